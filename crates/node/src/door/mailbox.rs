//! Answers on their way to a connection, from whatever thread has them.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use staves_cache::Refused;
use staves_wire::cache::Answer;
use staves_wire::group::RequestId;
use tokio::sync::Notify;

use super::detour::Detoured;

/// What a connection's task is told.
#[derive(Debug)]
pub(crate) enum Letter {
    /// A bucket's answer to one operation of a command, or its refusal.
    Part {
        place: u64,
        part: u32,
        result: Result<Answer, Refused>,
        /// Its number, if it may have to be asked again under it.
        request: Option<RequestId>,
    },
    /// The answers to operations that took another way.
    Detoured(Vec<Detoured>),
}

/// A connection's mailbox. Bounded by what the connection has under way.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    letters: Mutex<Vec<Letter>>,
    wake: Notify,
    /// A bucket refused an operation that had waited. Set under that bucket's lock and looked at under
    /// it, so that no later operation for it overtakes the one that was refused.
    disturbed: AtomicBool,
}

impl Mailbox {
    /// Notes down a bucket's answer. Called under the bucket's lock.
    pub(crate) fn answer(
        &self,
        place: u64,
        part: u32,
        result: Result<Answer, Refused>,
        request: Option<RequestId>,
    ) {
        let refused = result.is_err();
        self.put(Letter::Part {
            place,
            part,
            result,
            request,
        });
        if refused {
            self.disturbed.store(true, Ordering::Release);
        }
    }

    pub(crate) fn put(&self, letter: Letter) {
        self.letters.lock().push(letter);
        self.wake.notify_one();
    }

    /// Whether a refusal lies here.
    #[inline]
    pub(crate) fn disturbed(&self) -> bool {
        self.disturbed.load(Ordering::Acquire)
    }

    /// Takes everything out, in the order in which it came.
    pub(crate) fn take(&self) -> Vec<Letter> {
        // First: a refusal that comes in between is then seen again, which does no harm.
        self.disturbed.store(false, Ordering::Release);
        std::mem::take(&mut *self.letters.lock())
    }

    /// Waits until something lies here.
    pub(crate) async fn notified(&self) {
        self.wake.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_seen_until_the_mail_is_taken() {
        let mailbox = Mailbox::default();
        mailbox.answer(0, 0, Ok(Answer::Ok), None);
        assert!(!mailbox.disturbed());
        mailbox.answer(1, 0, Err(Refused::Interrupted), None);
        assert!(mailbox.disturbed());
        assert_eq!(mailbox.take().len(), 2);
        assert!(!mailbox.disturbed() && mailbox.take().is_empty());
    }
}
