//! Who waits for an answer of a bucket, and how it gets there.

use std::sync::Arc;

use staves_cache::Refused;
use staves_wire::cache::Answer;
use staves_wire::group::RequestId;

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
    /// Hands the answer over. Called under the bucket's lock: only notes it down. Returns a batch that
    /// is complete with it; the caller sends its answer once the lock is free.
    pub(crate) fn tell(self, result: Result<Answer, Refused>) -> Option<Arc<Batch>> {
        match self {
            Waiter::Door {
                mailbox,
                place,
                part,
                request,
            } => {
                mailbox.answer(place, part, result, request);
                None
            }
            Waiter::Batch { batch, index } => {
                let answer = result.unwrap_or_else(|refused| batch.refuse(refused));
                batch.put(index as usize, answer).then_some(batch)
            }
        }
    }
}
