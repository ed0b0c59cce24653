//! One group's place on this node, or beside another one of it: its bucket if it has one, who waits at it, and the lane of numbers
//! that the RESP door uses for it. Everything in it happens under one short lock, so that the machine is
//! never stepped by two threads at once.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use staves_cache::{AnswerRef, Ask, BucketEffects, Refused};
use staves_group::Event;
use staves_model::{DiskId, GroupId, MemberSlot, Time};
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
    pub(crate) disk: DiskId,
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
    Given {
        request: Option<RequestId>,
        retry: bool,
    },
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
    pub(crate) fn new(group: GroupId, disk: DiskId, lane: Lane) -> Cell {
        Cell {
            group,
            disk,
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
        let (request, retry) = match naming {
            Naming::Given { request, retry } => (request, retry),
            Naming::Lane if !replicated => (None, false),
            Naming::Lane => match lane.take(now, bucket.member().forgotten()) {
                Some(request) => (Some(request), false),
                None => return Submitted::Refused(Refused::Busy),
            },
        };
        if replicated && !*dirty {
            *dirty = true;
            *wants_flush = true;
        }
        let ask = Ask {
            token: waiting.next_token(),
            request,
            retry,
            deadline,
        };
        let own = request.filter(|_| from_lane);
        if let Some(given) = bucket.submit_with(now, ask, op, out, give) {
            if let Some(request) = own {
                lane.answered(&request);
            }
            return Submitted::Given(given);
        }
        match out.answers.pop() {
            None => {
                waiting.insert(waiter(own));
                Submitted::Waits
            }
            Some((_, result)) => {
                if let Some(request) = own {
                    lane.answered(&request);
                }
                match result {
                    Err(refused) => Submitted::Refused(refused),
                    // No bucket does this today: an answer that comes at once comes lent.
                    Ok(answer) => {
                        drop(waiter(None).tell(Ok(answer)));
                        Submitted::Waits
                    }
                }
            }
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
        let ask = staves_memory::Ask {
            token: self.waiting.next_token(),
            request,
            deadline,
        };
        let (effects, mut answers) = (&mut self.out.effects, staves_memory::Answers::new());
        let answer = bucket.submit(now, ask, op.slot, &op.action, effects, &mut answers);
        self.dirty |= !effects.sends.is_empty();
        let answer = answer.or_else(|| answers.pop().map(|(_, answer)| answer));
        if answer.is_none() {
            self.waiting.insert(waiter());
        }
        answer
    }

    /// Does what the bucket wants done: messages to itself first, until there are none.
    fn settle(&mut self, host: &Host, now: Time) -> Vec<Arc<Batch>> {
        let mut to_self: VecDeque<GroupEnvelope> = VecDeque::new();
        let mut looped = 0;
        loop {
            for (node, envelope) in self.out.effects.sends.drain(..) {
                if (node, envelope.to) == envelope.from.place() {
                    to_self.push_back(envelope);
                } else if node == host.life.node {
                    host.own.put(envelope);
                } else {
                    host.peers.send_group(node, &envelope);
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
        let cell = Cell::new(GroupId(1), DiskId::MEMORY, Lane::new(ClientId(7), 1));
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
