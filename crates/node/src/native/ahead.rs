//! Numbers from clocks that are far ahead are refused (GROUP rule 18).
//!
//! A bucket remembers the highest number of all clients that it has forgotten, and takes only numbers
//! above it for new. One client whose clock is days ahead would lift that mark, and with it the numbers
//! of everybody else, by days. So a new request's number may lie a day ahead of this node's clock, no more.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use staves_group::{Member, Recall};
use staves_wire::ErrorCode;
use staves_wire::group::RequestId;
use staves_wire::service::Answer;

/// A new number lies ahead of the clock by this much at most.
const AHEAD_MAX: Duration = Duration::from_secs(24 * 3600);
/// Or above the bucket's mark by this much, wherever that is: a node whose clock is behind must not
/// refuse those who were told to draw above it.
const ABOVE_MARK_MAX: Duration = Duration::from_secs(60);

/// The node's clock, as it is set now.
pub(super) fn micros_since_1970() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    since_1970.map_or(0, |d| d.as_micros() as u64)
}

/// The refusal of a request that the bucket does not know and whose number lies too far ahead.
pub(super) fn refuse(
    member: &Member,
    request: &RequestId,
    retry: bool,
    clock: u64,
) -> Option<Answer> {
    if request.number <= limit(clock, 0) {
        return None;
    }
    let known = member.recall(request) != Recall::New;
    if known || request.number <= limit(clock, member.forgotten()) {
        return None;
    }
    let hours = (request.number - clock) / 3_600_000_000;
    let (code, done) = match retry {
        false => (ErrorCode::ClockAhead, "nothing was done"),
        true => (
            ErrorCode::Forgotten,
            "whether an earlier try did it is not known",
        ),
    };
    Some(Answer::error(
        code,
        format!(
            "ERR the clock of the client's machine is {hours} h ahead of this node's, and more than {} h are not \
             taken: {done}. Set the clock that is wrong, then start the client again",
            AHEAD_MAX.as_secs() / 3600
        ),
    ))
}

fn limit(clock: u64, mark: u64) -> u64 {
    let ahead = clock.saturating_add(AHEAD_MAX.as_micros() as u64);
    ahead.max(mark.saturating_add(ABOVE_MARK_MAX.as_micros() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_ahead_of_the_clock_or_a_minute_above_the_mark() {
        const DAY: u64 = 86_400_000_000;
        assert_eq!(limit(1000, 0), 1000 + DAY);
        assert_eq!(limit(1000, 2 * DAY), 2 * DAY + 60_000_000);
        assert_eq!(limit(u64::MAX, u64::MAX), u64::MAX);
    }
}
