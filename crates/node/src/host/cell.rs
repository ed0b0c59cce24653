//! One group's place on this node, or on its shadow: its bucket if it has one, who waits at it, and the lane of numbers
//! that the RESP door uses for it. Everything in it happens under one short lock, so that the machine is
//! never stepped by two threads at once.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use staves_group::Event;
use staves_model::{GroupId, MemberSlot, Time};
use staves_service::{AnswerRef, Ask, BucketEffects, Refused, Service};
use staves_wire::cache::{Answer, Op};
use staves_wire::group::{GroupEnvelope, RequestId};
use staves_wire::memory::MemoryOp;

use super::Host;
use super::bucket::Bucket;
use super::lane::Lane;
use super::slab::Slab;
use super::waiter::{Told, Waiter};
use crate::native::Batch;

/// Most messages from a bucket to itself that one event may lead to. A leader that is also a member
/// needs a handful; what is beyond is lost, which the protocol bears.
const LOOPED_MAX: usize = 256;

/// A group's place.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) group: GroupId,
    /// For the second member that the node may hold.
    pub(crate) shadow: bool,
    state: Mutex<State>,
}

/// What the lock guards.
pub(crate) struct State {
    pub(crate) bucket: Option<Bucket>,
    waiting: Slab<Waiter>,
    pub(crate) lane: Lane,
    out: BucketEffects,
    /// The group has parity: writes wait for it, and may have to be asked again.
    parity: bool,
    /// Something was made since the last flush that other nodes are to be told.
    dirty: bool,
    /// Since when the bucket holds nothing and is listed nowhere.
    pub(crate) idle_since: Option<Time>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}

/// How a write is named.
pub(crate) enum Naming {
    /// By the bucket's lane, if it may have to be asked again.
    Lane,
    /// As its client named it.
    Given(Option<RequestId>),
}

/// What became of a request.
pub(crate) enum Submitted<R> {
    /// Answered.
    Given(R),
    /// The waiter will be told.
    Waits,
    /// Not taken; nothing was done.
    Refused(Refused),
}

impl Cell {
    pub(crate) fn new(group: GroupId, shadow: bool, lane: Lane) -> Cell {
        Cell {
            group,
            shadow,
            state: Mutex::new(State {
                bucket: None,
                waiting: Slab::default(),
                lane,
                out: BucketEffects::default(),
                parity: false,
                dirty: false,
                idle_since: None,
            }),
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Tells the bucket, if there is one, of an event, and does what it wants done.
    pub(crate) fn step(&self, host: &Host, now: Time, event: Event) {
        let (finished, more) = {
            let mut state = self.lock();
            state.step(host, now, event)
        };
        if more {
            host.wake_busy(self.group);
        }
        Batch::finish_all(finished);
    }

    /// Sends what submits have made since the last flush.
    pub(crate) fn flush(&self, host: &Host, now: Time) {
        let finished = {
            let mut state = self.lock();
            if !std::mem::take(&mut state.dirty) {
                return;
            }
            let State { bucket, out, .. } = &mut *state;
            if let Some(bucket) = bucket {
                bucket.flush(now, out);
            }
            state.settle(host, now)
        };
        Batch::finish_all(finished);
    }

    /// Gives the bucket up, with its memory; who waits at it is sent elsewhere.
    pub(crate) fn clear(&self) {
        let finished = {
            let mut state = self.lock();
            state.bucket = None;
            state.parity = false;
            let State { waiting, lane, .. } = &mut *state;
            let waiting = waiting.drain().into_iter();
            waiting
                .filter_map(|waiter| note(lane, waiter.tell(Err(Refused::Interrupted))))
                .collect()
        };
        Batch::finish_all(finished);
    }
}

impl State {
    /// Whether requests are for this node's bucket to answer, now or as soon as its epoch is open.
    #[inline]
    pub(crate) fn answers(&self) -> bool {
        self.bucket.as_ref().is_some_and(|b| b.member().is_data())
    }

    /// Requests that wait here.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes an event; returns batches that are complete, and whether a further step has work at once.
    pub(crate) fn step(&mut self, host: &Host, now: Time, event: Event) -> (Vec<Arc<Batch>>, bool) {
        let State { bucket, out, .. } = self;
        let Some(bucket) = bucket else {
            return (Vec::new(), false);
        };
        bucket.step(now, event, out);
        let more = bucket.has_work();
        self.dirty = false;
        let finished = self.settle(host, now);
        (finished, more)
    }

    /// Tries an operation. `marks` is told if the cell wants a flush after the batch.
    #[inline]
    #[allow(clippy::too_many_arguments)] // each is a different thing, and the caller is the hot path
    pub(crate) fn submit<R>(
        &mut self,
        now: Time,
        naming: Naming,
        deadline: Time,
        op: &Op<'_>,
        give: impl FnOnce(AnswerRef<'_>) -> R,
        waiter: impl FnOnce(Option<RequestId>) -> Waiter,
        wants_flush: &mut bool,
    ) -> Submitted<R> {
        let State {
            bucket,
            waiting,
            lane,
            out,
            parity,
            dirty,
            ..
        } = self;
        let Some(Bucket::Cache(bucket)) = bucket else {
            return Submitted::Refused(Refused::NotServing);
        };
        let replicated = *parity && op.is_write();
        let from_lane = matches!(naming, Naming::Lane);
        let request = match naming {
            Naming::Given(request) => request,
            Naming::Lane if !replicated => None,
            Naming::Lane => match lane.take(now, bucket.member().forgotten()) {
                Some(request) => Some(request),
                None => return Submitted::Refused(Refused::Busy),
            },
        };
        if replicated && !*dirty {
            *dirty = true;
            *wants_flush = true;
        }
        let ask = Ask {
            token: waiting.next_token(),
            slot: MemberSlot(0),
            request,
            deadline,
        };
        let own = request.filter(|_| from_lane);
        let result = bucket.submit_with(now, ask, *op, out, give);
        if let (Some(request), Ok(Some(_)) | Err(_)) = (own, &result) {
            lane.answered(&request);
        }
        match result {
            Ok(Some(given)) => Submitted::Given(given),
            Ok(None) => {
                waiting.insert(waiter(own));
                Submitted::Waits
            }
            Err(refused) => Submitted::Refused(refused),
        }
    }

    /// Bytes of the old value that a write is to answer.
    pub(crate) fn answer_bytes(&self, op: &Op<'_>) -> usize {
        match &self.bucket {
            Some(Bucket::Cache(bucket)) => bucket.service().answer_bytes(bucket.member(), *op),
            _ => 0,
        }
    }

    /// Whether requests for this data bucket of a memory pool are for this node.
    pub(crate) fn answers_for(&self, slot: MemberSlot) -> bool {
        match &self.bucket {
            Some(Bucket::Memory(bucket)) => bucket.answers_for(slot),
            _ => false,
        }
    }

    /// Whether submits have left something to be said to other nodes: flush the cell after the batch.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Tries an operation on a memory pool's bucket. `None`: the waiter will be told. Writes want a flush
    /// after the batch, and so does a read that asks other nodes for pages.
    pub(crate) fn submit_memory(
        &mut self,
        now: Time,
        request: Option<RequestId>,
        deadline: Time,
        op: &MemoryOp,
        waiter: impl FnOnce() -> Waiter,
    ) -> Option<Answer> {
        let Some(Bucket::Memory(bucket)) = &mut self.bucket else {
            let refused = Refused::NotServing;
            return Some(Answer::error(refused.code(), refused.to_string()));
        };
        self.dirty |= op.action.is_write();
        let ask = Ask {
            token: self.waiting.next_token(),
            slot: op.slot,
            request,
            deadline,
        };
        let result = bucket.submit(now, ask, &op.action, &mut self.out);
        self.dirty |= !self.out.effects.sends.is_empty();
        match result {
            Ok(None) => {
                self.waiting.insert(waiter());
                None
            }
            Ok(answer) => answer,
            Err(refused) => Some(Answer::error(refused.code(), refused.to_string())),
        }
    }

    /// Does what the bucket wants done: messages to itself first, until there are none.
    fn settle(&mut self, host: &Host, now: Time) -> Vec<Arc<Batch>> {
        let mut to_self: VecDeque<GroupEnvelope> = VecDeque::new();
        let mut looped = 0;
        loop {
            for (node, mut envelope) in self.out.effects.sends.drain(..) {
                envelope.to_shadow = node.is_shadow();
                if node == envelope.from {
                    to_self.push_back(envelope);
                } else if node.home() == host.life.node {
                    host.own.put(envelope);
                } else {
                    host.peers.send_group(node.home(), &envelope);
                }
            }
            let Some(envelope) = to_self.pop_front().filter(|_| looped < LOOPED_MAX) else {
                break;
            };
            looped += 1;
            if let Some(bucket) = &mut self.bucket {
                bucket.step(now, Event::Message(envelope), &mut self.out);
            }
        }
        for call in self.out.effects.directory.drain(..) {
            host.calls.put(call);
        }
        let view = self.bucket.as_ref().and_then(|b| b.member().view());
        self.parity = view.is_some_and(|group| group.parity_slots().next().is_some());
        self.tell()
    }

    /// Hands answers to who waits for them.
    fn tell(&mut self) -> Vec<Arc<Batch>> {
        let State {
            out, waiting, lane, ..
        } = self;
        let mut finished = Vec::new();
        for (token, result) in out.answers.drain(..) {
            let Some(mut waiter) = waiting.take(token) else {
                debug_assert!(false, "an answer to nobody: token {token}");
                continue;
            };
            if let Some(request) = waiter.release(&result) {
                lane.answered(&request);
            }
            finished.extend(note(lane, waiter.tell(result)));
        }
        finished
    }
}

/// Takes back a number that nobody will use; returns a batch that is complete.
fn note(lane: &mut Lane, told: Told) -> Option<Arc<Batch>> {
    match told {
        Told::Heard => None,
        Told::Complete(batch) => Some(batch),
        Told::Unheard(request) => {
            lane.answered(&request);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::door::Mailbox;
    use staves_model::ClientId;

    /// A client leaves while its write waits, and a takeover comes: nobody asks again for the write, and
    /// its number must not keep the lane's floor, nor a place in the lane's window, for ever.
    #[test]
    fn a_write_whose_connection_has_ended_gives_its_number_back() {
        let cell = Cell::new(GroupId(1), false, Lane::new(ClientId(7), 1));
        let mailboxes = [(); 2].map(|()| Arc::new(Mailbox::default()));
        let mut numbers = Vec::new();
        for mailbox in &mailboxes {
            let mut state = cell.lock();
            let request = state.lane.take(Time::ZERO, 0).expect("room");
            numbers.push(request.number);
            state.waiting.insert(Waiter::Door {
                mailbox: mailbox.clone(),
                place: 0,
                part: 0,
                request: Some(request),
            });
        }
        mailboxes[0].close();
        cell.clear();
        assert_eq!(mailboxes[1].take().len(), 1);
        assert_eq!(
            cell.lock().lane.floor(),
            numbers[1],
            "the other's may be asked again"
        );
    }
}
