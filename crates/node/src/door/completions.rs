//! Answers on their way to a connection, from whatever thread has them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::BytesMut;
use parking_lot::Mutex;
use staves_client::turn::ServiceOp;
use staves_model::Time;
use staves_net::{InFlight, InFlightPart};
use staves_service::Refused;
use staves_wire::cache::Op;
use staves_wire::group::RequestId;
use staves_wire::service::{Address, Answer};
use tokio::sync::Notify;

/// A piece of the memory that small operations of one connection share on their way to other nodes.
const BODIES_BYTES: usize = 8 << 10;

/// An operation for another node.
#[derive(Debug)]
pub(super) struct RemoteOp {
    pub(super) bucket: u32,
    pub(super) op: ServiceOp,
    /// The number under which it may have taken effect already.
    pub(super) request: Option<RequestId>,
    pub(super) deadline: Time,
}

impl RemoteOp {
    /// An operation that sets out, under the number that it may have had already.
    pub(super) fn new(
        bucket: u32,
        op: &Op<'_>,
        request: Option<RequestId>,
        deadline: Time,
        bodies: &mut BytesMut,
    ) -> RemoteOp {
        let op = ServiceOp {
            to: Address::Slot(op.slot()),
            body: op.to_body_in(bodies, BODIES_BYTES),
            is_write: op.is_write(),
            answer_bytes: 0,
        };
        RemoteOp {
            bucket,
            op,
            request,
            deadline,
        }
    }
}

/// Answers for a connection's task.
#[derive(Debug)]
pub(crate) enum Completion {
    /// A bucket's answer to one operation of a command, or its refusal.
    Part {
        place: u64,
        part: u32,
        result: Result<Answer, Refused>,
        /// Its number, if it may have to be asked again under it.
        request: Option<RequestId>,
    },
    /// The answers to operations that took another way.
    Remote(RemoteAnswers),
}

/// The outcome of a batch of operations that took another way.
#[derive(Debug, Default)]
pub(crate) struct RemoteAnswers {
    pub(super) results: Vec<RemoteResult>,
    /// Those that were not begun, for the answers to the others are as many bytes as were asked for, with their places.
    pub(super) left: Vec<((u64, u32), RemoteOp)>,
    /// Bytes of the largest value that has more than were asked for; 0 if there is none.
    pub(super) needs_bytes: usize,
    /// Bytes for which the connection had taken memory.
    pub(super) reserved_bytes: usize,
}

/// The answer to an operation that this node's buckets did not answer.
#[derive(Debug)]
pub(crate) struct RemoteResult {
    pub(super) place: u64,
    pub(super) part: u32,
    pub(super) bucket: u32,
    pub(super) answer: Answer,
}

impl Completion {
    fn value_bytes(&self) -> usize {
        match self {
            Completion::Part { result, .. } => result.as_ref().map_or(0, Answer::value_bytes),
            Completion::Remote(answers) => {
                let values = answers.results.iter().map(|result| &result.answer);
                let bytes: usize = values.map(Answer::value_bytes).sum();
                bytes.saturating_sub(answers.reserved_bytes)
            }
        }
    }
}

/// The completions that lie there, and the memory of their values until the connection has taken them.
#[derive(Debug)]
struct QueuedCompletions {
    completions: Vec<Completion>,
    value_bytes: usize,
    part: InFlightPart,
}

/// The queue of a connection's completions. Bounded by what the connection has under way.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    /// `None` once the connection has ended.
    waiting: Mutex<Option<QueuedCompletions>>,
    wake: Notify,
    /// A bucket refused an operation that had waited. Set under that bucket's lock and looked at under
    /// it, so that no later operation for it overtakes the one that was refused.
    disturbed: AtomicBool,
}

impl CompletionQueue {
    /// An empty queue, whose values count in this budget.
    pub(crate) fn new(in_flight: Arc<InFlight>) -> CompletionQueue {
        CompletionQueue {
            waiting: Mutex::new(Some(QueuedCompletions {
                completions: Vec::new(),
                value_bytes: 0,
                part: InFlightPart::new(in_flight),
            })),
            wake: Notify::new(),
            disturbed: AtomicBool::new(false),
        }
    }

    /// Notes down a bucket's answer. Called under the bucket's lock. Gives the number back if nobody is
    /// left to ask again under it.
    pub(crate) fn answer(
        &self,
        place: u64,
        part: u32,
        result: Result<Answer, Refused>,
        request: Option<RequestId>,
    ) -> Option<RequestId> {
        let refused = result.is_err();
        let taken = self.put(Completion::Part {
            place,
            part,
            result,
            request,
        });
        if refused {
            self.disturbed.store(true, Ordering::Release);
        }
        request.filter(|_| !taken)
    }

    /// Returns true if it was taken: not once the connection has ended.
    pub(crate) fn put(&self, completion: Completion) -> bool {
        let (taken, first) = match &mut *self.waiting.lock() {
            Some(waiting) => {
                let first = waiting.completions.is_empty();
                waiting.value_bytes += completion.value_bytes();
                waiting.part.set(waiting.value_bytes);
                waiting.completions.push(completion);
                (true, first)
            }
            None => (false, false),
        };
        // Who was woken for the first takes all.
        if first {
            self.wake.notify_one();
        }
        taken
    }

    /// The connection has ended: takes what lies here, and nothing more is put in.
    pub(crate) fn close(&self) -> Vec<Completion> {
        let waiting = self.waiting.lock().take();
        waiting.map_or_else(Vec::new, |waiting| waiting.completions)
    }

    /// True if a refusal lies here.
    #[inline]
    pub(crate) fn disturbed(&self) -> bool {
        self.disturbed.load(Ordering::Acquire)
    }

    /// Takes everything out, in the order in which it came.
    pub(crate) fn take(&self) -> Vec<Completion> {
        // First: a refusal that comes in between is then seen again, which does no harm.
        self.disturbed.store(false, Ordering::Release);
        let mut waiting = self.waiting.lock();
        let Some(waiting) = waiting.as_mut() else {
            return Vec::new();
        };
        waiting.value_bytes = 0;
        waiting.part.set(0);
        std::mem::take(&mut waiting.completions)
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
        let completions = CompletionQueue::new(InFlight::new(usize::MAX));
        completions.answer(0, 0, Ok(Answer::Ok), None);
        assert!(!completions.disturbed());
        completions.answer(1, 0, Err(Refused::Interrupted), None);
        assert!(completions.disturbed());
        assert_eq!(completions.take().len(), 2);
        assert!(!completions.disturbed() && completions.take().is_empty());
    }

    /// Each waking is a poll of the connection's task. Who comes for the first takes all.
    #[tokio::test]
    async fn many_answers_wake_once() {
        let completions = CompletionQueue::new(InFlight::new(usize::MAX));
        let mut wakes = 0;
        for round in 1..=3 {
            for place in 0..10 {
                completions.answer(place, 0, Ok(Answer::Ok), None);
            }
            loop {
                tokio::select! {
                    biased;
                    () = completions.notified() => wakes += 1,
                    () = std::future::ready(()) => break,
                }
                completions.take();
            }
            assert_eq!(wakes, round);
        }
    }

    #[test]
    fn what_comes_for_a_connection_that_has_ended_is_given_back() {
        let completions = CompletionQueue::new(InFlight::new(usize::MAX));
        let number = RequestId {
            client: staves_model::ClientId(1),
            number: 5,
            floor: 5,
        };
        let interrupted = || completions.answer(0, 0, Err(Refused::Interrupted), Some(number));
        assert_eq!(interrupted(), None, "it lies here");
        assert_eq!(completions.close().len(), 1);
        assert_eq!(interrupted(), Some(number));
        assert!(completions.close().is_empty() && completions.take().is_empty());
    }
}
