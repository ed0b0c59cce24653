//! An answer that is owed.

use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use parking_lot::Mutex;
use staves_model::Revision;
use staves_wire::encoded::EncodedAnswers;
use staves_wire::frame::{self, Envelope, MESSAGE_BYTES_MAX};
use staves_wire::{ErrorCode, Kind, Message};
use tokio::sync::Notify;

use crate::in_flight::{InFlight, OWN_BYTES};
use crate::outbox::{NotPut, Outbox};

/// Most requests of one client's connection whose answers cost much, begun and not answered: until they are, nothing more
/// is read of it.
pub(crate) const COSTLY_MAX: u32 = 4;

/// The requests of a connection that have begun and are not answered.
pub(crate) struct Owed {
    state: Mutex<OwedState>,
    /// Wakes the reader when something was answered.
    less: Notify,
    /// A client's requests count there, too.
    in_flight: Option<Arc<InFlight>>,
}

#[derive(Clone, Copy, Default)]
struct OwedState {
    requests: u32,
    /// Those among them whose answers cost much.
    costly: u32,
    /// Those among them that count at the node.
    counted: u32,
    bytes: usize,
}

impl Owed {
    pub(crate) fn new(in_flight: Option<Arc<InFlight>>) -> Owed {
        Owed {
            state: Mutex::default(),
            less: Notify::new(),
            in_flight,
        }
    }

    /// True if fewer than so many are owed; by a client's connection, fewer costly ones, too.
    pub(crate) fn is_below(&self, requests_max: u32, bytes_max: usize) -> bool {
        let now = *self.state.lock();
        let costly = self.in_flight.is_some() && now.costly >= COSTLY_MAX;
        now.requests < requests_max && now.bytes < bytes_max && !costly
    }

    /// Waits until fewer than so many are owed; by a client's connection, fewer costly ones, too.
    pub(crate) async fn wait_below(&self, requests_max: u32, bytes_max: usize) {
        let is_below = || self.is_below(requests_max, bytes_max);
        while !is_below() {
            let less = self.less.notified();
            tokio::pin!(less);
            less.as_mut().enable();
            // It may have become so before we listened.
            if !is_below() {
                less.await;
            }
        }
    }

    /// Waits until all was answered.
    pub(crate) async fn wait_none(&self) {
        self.wait_below(1, usize::MAX).await;
    }

    pub(crate) fn bytes(&self) -> usize {
        self.state.lock().bytes
    }

    fn add(&self, bytes: usize) {
        if let Some(in_flight) = &self.in_flight {
            in_flight.take(bytes);
        }
        let mut state = self.state.lock();
        state.requests += 1;
        state.bytes += bytes;
    }

    fn remove(&self, bytes: usize, costly: bool, counted: bool) {
        let mut state = self.state.lock();
        state.requests -= 1;
        state.costly -= u32::from(costly);
        state.counted -= u32::from(counted);
        state.bytes -= bytes;
        drop(state);
        if let Some(in_flight) = &self.in_flight {
            in_flight.give_back(bytes);
            in_flight.requests.remove(usize::from(counted));
        }
        self.less.notify_waiters();
    }
}

/// The right, and the duty, to answer one request. Dropped without an answer, it answers that the
/// request was dropped, so that nobody waits in vain.
pub struct Reply {
    outbox: Arc<Outbox>,
    owed: Arc<Owed>,
    request: u64,
    what: &'static str,
    bytes: usize,
    deadline: Option<Instant>,
    costly: bool,
    counted: bool,
    answered: bool,
}

impl Reply {
    pub(crate) fn new(
        outbox: Arc<Outbox>,
        owed: Arc<Owed>,
        request: u64,
        what: &'static str,
        bytes: usize,
        deadline: Option<Instant>,
    ) -> Reply {
        owed.add(bytes);
        Reply {
            outbox,
            owed,
            request,
            what,
            bytes,
            deadline,
            costly: false,
            counted: false,
            answered: false,
        }
    }

    /// The end of the asker's wait; `None` if the request has none.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// True if the asker has stopped waiting.
    pub fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// The answer costs more than its asker pays by asking, or waits for others: a client's connection has only a few such requests
    /// at a time, and waits with all that comes behind them. Those that it has now, with this one.
    pub fn mark_costly(&mut self) -> u32 {
        let mut state = self.owed.state.lock();
        if !std::mem::replace(&mut self.costly, true) {
            state.costly += 1;
        }
        state.costly
    }

    /// It counts among the requests of clients that wait at this node until it is answered. If there is no place for it, the words
    /// with which it is to be refused. The first of a connection has one in any case, and so has whoever is no client.
    pub fn take_place(&mut self) -> Result<(), String> {
        let Some(in_flight) = &self.owed.in_flight else {
            return Ok(());
        };
        let mut state = self.owed.state.lock();
        if state.counted > 0 && in_flight.requests.is_full(0) {
            drop(state);
            return Err(in_flight.requests.refuse());
        }
        if !std::mem::replace(&mut self.counted, true) {
            state.counted += 1;
            in_flight.requests.add(1);
        }
        Ok(())
    }

    /// True if the connection has ended: nobody will hear the answer.
    pub fn is_gone(&self) -> bool {
        self.outbox.is_closed()
    }

    /// Ends when the connection has.
    pub async fn gone(&self) {
        self.outbox.closed().await;
    }

    /// Bytes of answers that the server's connections, all together, have not taken yet: memory that somebody who answers
    /// with much should know of.
    pub fn server_queued_bytes(&self) -> usize {
        self.outbox.total()
    }

    /// True if so many bytes of an answer may wait to be taken beside what waits at the native door already. Nodes have bounds of their
    /// own.
    pub fn may_queue(&self, bytes: usize) -> bool {
        let in_flight = self.owed.in_flight.as_ref();
        in_flight.is_none_or(|in_flight| in_flight.may_queue(bytes))
    }

    /// True if a client asked: what it is answered counts in the memory for requests.
    pub fn is_of_client(&self) -> bool {
        self.owed.in_flight.is_some()
    }

    /// Answers. Never blocks; if the connection is gone, so is the answer.
    pub fn send(mut self, answer: &Message) {
        self.put(answer);
    }

    /// Answers, if the answer is small or has room beside those that wait to be taken; `ahead`: if those have not overrun their room. Else
    /// the reply comes back, with the bytes that there is to be room for; nothing of the answer is kept.
    pub fn send_if_room(mut self, answer: &Message, ahead: bool) -> Result<(), (Reply, usize)> {
        let mut encoded = BytesMut::new();
        frame::encode(self.envelope(), answer, &mut encoded);
        let bytes = encoded.len();
        let wanted = if ahead { 0 } else { bytes };
        if bytes > OWN_BYTES && !self.may_queue(wanted) {
            return Err((self, wanted));
        }
        if bytes > MESSAGE_BYTES_MAX {
            self.send(answer);
        } else {
            self.answered = true;
            self.outbox.put_frame(&encoded);
        }
        Ok(())
    }

    /// Answers with what is encoded by now.
    pub fn send_encoded(mut self, answers: EncodedAnswers, revision: Revision) {
        self.answered = true;
        let frame = answers.into_frame(self.envelope(), revision);
        self.outbox.put_frame(&frame);
    }

    /// Answers with an error packet.
    pub fn error(self, code: ErrorCode, text: impl Into<String>) {
        self.send(&Message::error(code, text));
    }

    fn envelope(&self) -> Envelope {
        Envelope {
            request: self.request,
            answer: true,
            deadline_ms: 0,
        }
    }

    fn put(&mut self, answer: &Message) {
        debug_assert_eq!(
            answer.opcode().kind(),
            Kind::Answer,
            "a request is answered with an answer"
        );
        self.answered = true;
        let envelope = self.envelope();
        let put = self.outbox.put(envelope, answer, MESSAGE_BYTES_MAX);
        if let Err(NotPut::TooLarge(bytes)) = put {
            // What was asked for has been done by now: "too large" would say that it was not.
            let text = format!(
                "it was done, but the answer to {} has {bytes} bytes, more than a message may have",
                self.what
            );
            let _ = self.outbox.put(
                envelope,
                &Message::error(ErrorCode::AnswerGone, text),
                usize::MAX,
            );
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.answered {
            let text = format!("{} was dropped without an answer", self.what);
            self.put(&Message::error(ErrorCode::Internal, text));
        }
        self.owed.remove(self.bytes, self.costly, self.counted);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use bytes::Bytes;
    use staves_wire::admin::StatusAnswer;

    use super::*;

    /// Replies of one connection each.
    fn reply(in_flight: &Arc<InFlight>, is_client: bool) -> Reply {
        let outbox = Outbox::among(in_flight.queued.clone(), usize::MAX, None, None);
        let owed = Owed::new(is_client.then(|| in_flight.clone()));
        Reply::new(Arc::new(outbox), Arc::new(owed), 1, "status", 0, None)
    }

    fn status(bytes: usize) -> Message {
        Message::StatusAnswer(StatusAnswer {
            json: Bytes::from(vec![b' '; bytes]),
        })
    }

    /// Regression: only maps waited for room, and four statuses of each of 400 connections took 750 MB.
    #[test]
    fn large_answers_have_room_beside_those_that_nobody_has_taken_or_come_back() {
        let in_flight = InFlight::new(1 << 20);
        let queued = || in_flight.queued.load(Ordering::Relaxed);
        let mut untaken = Vec::new();
        let refused = loop {
            let reply = reply(&in_flight, true);
            untaken.push(reply.outbox.clone());
            if let Err(refused) = reply.send_if_room(&status(100_000), false) {
                break refused;
            }
        };
        let full = queued();
        assert!(full > 1 << 20 && full <= (1 << 20) + (1 << 18), "{full}");
        let small = reply(&in_flight, true).send_if_room(&status(4000), false);
        assert!(small.is_ok(), "small ones go at once");
        let node = reply(&in_flight, false).send_if_room(&status(100_000), false);
        assert!(node.is_ok(), "nodes have bounds of their own");
        let (back, bytes) = refused;
        assert!((100_000..100_100).contains(&bytes) && !back.may_queue(bytes));
        // One that goes ahead of the others, and no more.
        let ahead = || reply(&in_flight, true);
        let tool = ahead();
        untaken.push(tool.outbox.clone());
        assert!(tool.send_if_room(&status(100_000), true).is_ok());
        assert!(ahead().send_if_room(&status(100_000), true).is_err());
        drop(untaken);
        assert!(back.may_queue(bytes));
        let outbox = back.outbox.clone();
        assert!(back.send_if_room(&status(100_000), false).is_ok());
        assert_eq!(outbox.queued_bytes(), bytes);
    }
}
