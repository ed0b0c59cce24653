//! Receivers of answers that a bucket gives later.

use std::sync::Arc;

use staves_model::mutant::{Mutant, planted};
use staves_service::Refused;
use staves_wire::group::RequestId;
use staves_wire::service::Answer;

use super::lane::Lane;
use crate::door::completions::CompletionQueue;
use crate::native::batch::Batch;

/// The receiver of one operation's answer.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// A command of a RESP connection.
    Door {
        completions: Arc<CompletionQueue>,
        place: u64,
        part: u32,
        /// Its number, if it is a write that may have to be asked again.
        request: Option<RequestId>,
    },
    /// An operation of a batch of the native protocol.
    Batch { batch: Arc<Batch>, index: u32 },
}

impl Waiter {
    /// Hands the answer over; a batch that is complete with it is to be sent once the bucket's lock is free.
    /// Called under that lock: only notes the answer down.
    ///
    /// The number of a write goes back to the lane unless a retry may carry it: once it is back, the bucket may
    /// forget it, and a retry under it would be refused. So an interrupted write keeps its number, while its
    /// connection lives.
    pub(crate) fn answer(
        self,
        result: Result<Answer, Refused>,
        lane: &mut Lane,
    ) -> Option<Arc<Batch>> {
        match self {
            Waiter::Door {
                completions,
                place,
                part,
                request,
            } => {
                let (unused, kept) = match &result {
                    Err(Refused::Interrupted) => (None, request),
                    _ => (request, None),
                };
                let unheard = completions.answer(place, part, result, kept);
                let unheard = unheard.filter(|_| !planted(Mutant::NumberKeptByTheGone));
                if let Some(request) = unused.or(unheard) {
                    lane.answered(&request);
                }
                None
            }
            Waiter::Batch { batch, index } => {
                let answer = result.unwrap_or_else(|refused| batch.refuse(refused));
                let complete = batch.put(index as usize, answer);
                complete.then_some(batch)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_model::{ClientId, Time};

    /// A write that was refused before it began is asked again as a new one: its number is the lane's
    /// again, and by the time of the retry the bucket may have forgotten it.
    #[test]
    fn only_what_may_have_begun_keeps_its_number() {
        let interrupted = Err(Refused::Interrupted);
        let refused = [
            Refused::NotServing,
            Refused::Busy,
            Refused::Deadline,
            Refused::Late,
        ]
        .map(Err);
        for result in refused.into_iter().chain([Ok(Answer::Ok), interrupted]) {
            let mut lane = Lane::new(ClientId(1), 1);
            let request = lane.take(Time::ZERO, 0);
            let number = request.map(|request| request.number);
            let completions = Arc::new(CompletionQueue::new(staves_net::InFlight::new(1)));
            let waiter = Waiter::Door {
                completions: completions.clone(),
                place: 0,
                part: 0,
                request,
            };
            assert!(waiter.answer(result.clone(), &mut lane).is_none());
            let keeps = result == Err(Refused::Interrupted);
            assert_eq!(Some(lane.floor()) == number, keeps, "{result:?}");
            let completion = format!("{:?}", completions.take());
            assert_eq!(completion.contains("Some(RequestId"), keeps, "{completion}");
        }
    }
}
