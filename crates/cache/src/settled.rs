//! Writes that changed nothing, and were answered: a condition that did not hold, a key that was not
//! there, a full memory.
//!
//! They leave no delta, so no request table knows them; but a second copy of such a request that
//! arrives late must not take effect after the first was answered. So the data bucket remembers them
//! while it serves. It is enough here: a request that was answered at one node and arrives late at
//! another would have to be older than the change of the bucket between.

use std::collections::{BTreeMap, VecDeque};

use staves_model::ClientId;
use staves_model::mutant::{Mutant, planted};
use staves_wire::cache::Answer;
use staves_wire::error::ErrorCode;
use staves_wire::group::RequestId;

use crate::answer::KEPT_ANSWER_BYTES_MAX;
use crate::waiting::Ask;

/// Most answers kept; the oldest goes first. Fifty bytes each, and at most a kept answer's.
const SETTLED_MAX: usize = 4096;

/// The newest of them.
#[derive(Default)]
pub(crate) struct Settled {
    answers: BTreeMap<(ClientId, u64), (u64, Answer)>,
    order: VecDeque<(ClientId, u64)>,
}

impl Settled {
    /// A write was answered, or will be once `seq` is stable, and changed nothing.
    pub(crate) fn note(&mut self, ask: &Ask, seq: u64, answer: &Answer) {
        let Some(request) = ask.request else {
            return;
        };
        let answer = match answer {
            Answer::Value(bytes) if bytes.len() > KEPT_ANSWER_BYTES_MAX => Answer::error(
                ErrorCode::Forgotten,
                "ERR the first try of this request changed nothing, but its answer is too large to be kept for a retry",
            ),
            answer => answer.clone(),
        };
        let name = (request.client, request.number);
        if self.answers.insert(name, (seq, answer)).is_some() {
            return;
        }
        self.order.push_back(name);
        if self.order.len() > SETTLED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.answers.remove(&oldest);
        }
    }

    /// What was answered, and the seq that it waits for.
    #[inline]
    pub(crate) fn recall(&self, request: &RequestId) -> Option<(u64, Answer)> {
        if self.answers.is_empty() || planted(Mutant::NoOpNotRemembered) {
            return None;
        }
        let name = (request.client, request.number);
        self.answers.get(&name).cloned()
    }

    pub(crate) fn clear(&mut self) {
        self.answers.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_model::Time;

    #[test]
    fn the_oldest_answers_go_first() {
        let mut settled = Settled::default();
        let id = |number| RequestId {
            client: ClientId(1),
            number,
            floor: 0,
        };
        let ask = |number| Ask {
            token: 0,
            request: Some(id(number)),
            retry: false,
            deadline: Time(9),
        };
        for number in 0..SETTLED_MAX as u64 + 10 {
            settled.note(&ask(number), number, &Answer::Int(0));
        }
        assert_eq!(settled.recall(&id(9)), None);
        assert_eq!(settled.recall(&id(10)), Some((10, Answer::Int(0))));
        assert_eq!(settled.answers.len(), SETTLED_MAX);
        settled.clear();
        assert_eq!(settled.recall(&id(10)), None);
    }
}
