//! Numbers that no clock gives are refused (GROUP rule 18).
//!
//! A bucket remembers the highest number of all clients that it has forgotten, and takes only numbers
//! above it for new. A client whose clock is wrong lifts that mark, and the others are told to draw above it: that costs
//! them nothing, by however many days. So this node's own clock is not asked: it may be the one that is wrong. What
//! must not be is that somebody lifts the mark to where no numbers are left.

use staves_group::{Member, NUMBER_MAX, Recall};
use staves_wire::ErrorCode;
use staves_wire::group::RequestId;
use staves_wire::service::Answer;

/// The highest number for a clock to give: 73,000 years after 1970, in microseconds.
const CLOCK_MAX: u64 = NUMBER_MAX / 2;
/// Above a mark that lies there, a number may lie by this much: a minute. With as many numbers again left above it, and
/// [`staves_group::CLIENTS_MAX`] clients to be forgotten for each step, nobody gets to the end.
const ABOVE_MARK_MAX: u64 = 60_000_000;

/// The refusal of a request that the bucket does not know and whose number is no clock's.
pub(super) fn refuse(member: &Member, request: &RequestId, retry: bool) -> Option<Answer> {
    if request.number <= limit(0) {
        return None;
    }
    let known = member.recall(request) != Recall::New;
    let most = limit(member.forgotten());
    if known || request.number <= most {
        return None;
    }
    let (code, done) = match retry {
        false => (ErrorCode::Malformed, "nothing was done"),
        true => (
            ErrorCode::Forgotten,
            "whether an earlier try did it is not known",
        ),
    };
    let number = request.number;
    Some(Answer::error(
        code,
        format!(
            "ERR the request's number {number} is above {most}, the highest that is taken: {done}. Draw numbers from a clock, \
             in microseconds since 1970"
        ),
    ))
}

fn limit(mark: u64) -> u64 {
    CLOCK_MAX.max(mark.saturating_add(ABOVE_MARK_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_clock_gives_or_a_minute_above_the_mark() {
        assert_eq!(limit(1000), CLOCK_MAX);
        assert_eq!(limit(CLOCK_MAX + 7), CLOCK_MAX + 60_000_007);
        assert_eq!(limit(u64::MAX), u64::MAX);
    }
}
