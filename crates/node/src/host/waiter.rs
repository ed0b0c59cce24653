//! Who waits for an answer of a bucket, and how it gets there.

use std::sync::Arc;

use staves_cache::Refused;
use staves_wire::group::RequestId;
use staves_wire::service::Answer;

use crate::door::Mailbox;
use crate::native::Batch;

/// One request that waits.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// A command of a RESP connection.
    Door {
        mailbox: Arc<Mailbox>,
        place: u64,
        part: u32,
        /// Its number, if it is a write that may have to be asked again.
        request: Option<RequestId>,
    },
    /// An operation of a batch of the native protocol.
    Batch { batch: Arc<Batch>, index: u32 },
}

impl Waiter {
    /// Takes away the number of a write that no retry is to carry: all but those that may have begun. Once
    /// it is given back to the lane, the bucket may forget it, and a retry under it would be refused.
    pub(crate) fn release(&mut self, result: &Result<Answer, Refused>) -> Option<RequestId> {
        match self {
            Waiter::Door { request, .. } if !matches!(result, Err(Refused::Interrupted)) => {
                request.take()
            }
            _ => None,
        }
    }

    /// Hands the answer over. Called under the bucket's lock: only notes it down.
    pub(crate) fn tell(self, result: Result<Answer, Refused>) -> Told {
        match self {
            Waiter::Door {
                mailbox,
                place,
                part,
                request,
            } => match mailbox.answer(place, part, result, request) {
                Some(request) => Told::Unheard(request),
                None => Told::Heard,
            },
            Waiter::Batch { batch, index } => {
                let answer = result.unwrap_or_else(|refused| batch.refuse(refused));
                match batch.put(index as usize, answer) {
                    true => Told::Complete(batch),
                    false => Told::Heard,
                }
            }
        }
    }
}

/// What came of telling who waited.
#[derive(Debug)]
pub(crate) enum Told {
    /// There is nothing more to do.
    Heard,
    /// This batch is complete with it: its answer is to be sent once the bucket's lock is free.
    Complete(Arc<Batch>),
    /// Its connection has ended, so that no retry will carry this number: it is the lane's again.
    Unheard(RequestId),
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_model::ClientId;

    /// A write that was refused before it began is asked again as a new one: its number is the lane's
    /// again, and by the time of the retry the bucket may have forgotten it.
    #[test]
    fn only_what_may_have_begun_keeps_its_number() {
        let number = RequestId {
            client: ClientId(1),
            number: 5,
            floor: 5,
        };
        let waiter = || Waiter::Door {
            mailbox: Arc::default(),
            place: 0,
            part: 0,
            request: Some(number),
        };
        for refused in [Refused::NotServing, Refused::Busy, Refused::Deadline] {
            assert_eq!(waiter().release(&Err(refused)), Some(number));
            let mut twice = waiter();
            twice.release(&Err(refused));
            assert_eq!(twice.release(&Err(refused)), None, "it is given back once");
        }
        assert_eq!(waiter().release(&Ok(Answer::Ok)), Some(number));
        assert_eq!(waiter().release(&Err(Refused::Interrupted)), None);
    }
}
