//! One group's place on this node, or beside another one of it: its bucket if it has one, who waits at it, and the lane of numbers
//! that the RESP door uses for it. Everything in it happens under one short lock, so that the machine is
//! never stepped by two threads at once.

mod bodies;
mod on_disk;

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use staves_group::Event;
use staves_model::{DiskId, Epoch, GroupId, MemberSlot, Time};
use staves_net::{InFlight, InFlightPart};
use staves_service::{AnswerRef, AnyBucket, BucketEffects, OpHeader, Refused};
use staves_wire::cache::Op;
use staves_wire::group::{GroupEnvelope, RequestId};

use super::Host;
use super::lane::Lane;
use super::slab::Slab;
use super::waiter::Waiter;
use crate::disk::NodeDisk;
use crate::native::batch::Batch;

/// Most messages from a bucket to itself that one event may lead to. A leader that is also a member
/// needs a handful; what is beyond is lost, which the protocol bears.
const LOOPED_MAX: usize = 256;

/// A group's place.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) group: GroupId,
    /// For the second member that the node may hold.
    pub(crate) disk: DiskId,
    state: Mutex<CellState>,
}

/// The state that the lock guards.
pub(crate) struct CellState {
    pub(crate) bucket: Option<Box<dyn AnyBucket>>,
    /// The disk that the bucket keeps its bytes on, if it does.
    pub(crate) disk: Option<Arc<NodeDisk>>,
    /// The epoch that a bucket had come to which is gone because of a page that its disk lost.
    lost_in: Epoch,
    waiting: Slab<Waiter>,
    pub(crate) lane: Lane,
    out: BucketEffects,
    /// The memory of values that wait here, once there were any.
    held: Option<InFlightPart>,
    /// The group has parity, or a disk: writes wait for it, and may have to be asked again.
    parity: bool,
    /// Something was made since the last flush that other nodes are to be told.
    dirty: bool,
    /// The ticker looks after it, or will from the next flush on: the bucket does not rest.
    active: bool,
    /// The next flush has to tell the ticker.
    unseen: bool,
    /// Since when the bucket holds nothing and is listed nowhere.
    pub(crate) idle_since: Option<Time>,
}

impl std::fmt::Debug for CellState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CellState")
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}

impl Cell {
    pub(crate) fn new(group: GroupId, disk: DiskId, lane: Lane) -> Cell {
        Cell {
            group,
            disk,
            state: Mutex::new(CellState {
                bucket: None,
                disk: None,
                lost_in: Epoch(0),
                waiting: Slab::default(),
                lane,
                out: BucketEffects::default(),
                held: None,
                parity: false,
                dirty: false,
                active: false,
                unseen: false,
                idle_since: None,
            }),
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, CellState> {
        self.state.lock()
    }

    /// Tells the bucket, if there is one, of an event, and does what it wants done.
    pub(crate) fn step(self: &Arc<Self>, host: &Host, now: Time, event: Event) {
        // These two leave nothing to be done later.
        let granted = matches!(event, Event::Lease { .. } | Event::Heard { .. });
        let (finished, more, wakes) = {
            let mut state = self.lock();
            let (finished, more) = state.step(host, now, event);
            (finished, more, !granted && state.wakes())
        };
        if wakes {
            host.look_after(self);
        }
        if more {
            host.wake_busy(self.group);
        }
        Batch::finish_all(finished);
    }

    /// Something was changed past the bucket's events: it is looked after until it rests again.
    pub(crate) fn stir(self: &Arc<Self>, host: &Host) {
        if self.lock().wakes() {
            host.look_after(self);
        }
    }

    /// Sends what submits have made since the last flush.
    pub(crate) fn flush(self: &Arc<Self>, host: &Host, now: Time) {
        let (finished, wakes) = {
            let mut state = self.lock();
            let wakes = std::mem::take(&mut state.unseen);
            let mut finished = Vec::new();
            if std::mem::take(&mut state.dirty) {
                finished = state.unless_lost(Vec::new(), |state| {
                    let CellState { bucket, out, .. } = state;
                    if let Some(bucket) = bucket {
                        bucket.flush(now, out);
                    }
                    state.settle(host, now)
                });
            }
            (finished, wakes)
        };
        if wakes {
            host.look_after(self);
        }
        Batch::finish_all(finished);
    }

    /// Gives the bucket up, with its memory; who waits at it is sent elsewhere. The epoch that it had come to.
    pub(crate) fn clear(&self) -> Epoch {
        let mut epoch;
        let finished = {
            let mut state = self.lock();
            epoch = std::mem::take(&mut state.lost_in);
            if let Some(bucket) = state.bucket.take() {
                epoch = bucket.member().epoch();
            }
            state.disk = None;
            state.held = None;
            state.parity = false;
            let CellState { waiting, lane, .. } = &mut *state;
            let waiting = waiting.drain().into_iter();
            waiting
                .filter_map(|waiter| waiter.answer(Err(Refused::Interrupted), lane))
                .collect()
        };
        Batch::finish_all(finished);
        epoch
    }
}

impl CellState {
    /// True if requests are for this node's bucket to answer, now or as soon as its epoch is open.
    #[inline]
    pub(crate) fn answers(&self) -> bool {
        self.bucket.as_ref().is_some_and(|b| b.member().is_data())
    }

    /// True if nobody looks after the cell who has to from now on.
    fn wakes(&mut self) -> bool {
        !std::mem::replace(&mut self.active, true)
    }

    /// After a tick: true if no other is needed until something happens. A bucket that is `listed` nowhere waits to be given up.
    pub(crate) fn comes_to_rest(&mut self, listed: bool) -> bool {
        let bucket = self.bucket.as_ref();
        let rests = bucket.is_none_or(|bucket| listed && bucket.at_rest());
        self.active = !rests || self.waiting() > 0;
        !self.active
    }

    /// Requests that wait here.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes an event; returns batches that are complete, and whether a further step has work at once.
    pub(crate) fn step(&mut self, host: &Host, now: Time, event: Event) -> (Vec<Arc<Batch>>, bool) {
        self.unless_lost((Vec::new(), false), |state| {
            let CellState { bucket, out, .. } = state;
            let Some(bucket) = bucket else {
                return (Vec::new(), false);
            };
            out.value_bytes_max = Some(host.options().in_flight.free_bytes());
            bucket.step(now, event, out);
            let more = bucket.has_work();
            state.dirty = false;
            let finished = state.settle(host, now);
            (finished, more)
        })
    }

    /// Submits an operation on a key to a cache pool's bucket. `Ok(None)`: the waiter gets the answer. Sets
    /// `wants_flush` if the cell wants a flush after the batch: it has something to send, or is to be looked after.
    #[inline]
    #[allow(clippy::too_many_arguments)] // each is a different thing, and the caller is the hot path
    pub(crate) fn submit<R>(
        &mut self,
        now: Time,
        deadline: Time,
        op: &Op<'_>,
        give: impl FnOnce(AnswerRef<'_>) -> R,
        waiter: impl FnOnce(Option<RequestId>) -> Waiter,
        wants_flush: &mut bool,
    ) -> Result<Option<R>, Refused> {
        let CellState {
            bucket,
            waiting,
            lane,
            out,
            parity,
            dirty,
            active,
            unseen,
            ..
        } = self;
        let bucket = bucket.as_mut().ok_or(Refused::NotServing)?.as_mut();
        let bucket: &mut dyn Any = bucket;
        let bucket: &mut staves_cache::Bucket = bucket.downcast_mut().ok_or(Refused::NotServing)?;
        // A write that may have to be retried has a number of the bucket's lane.
        let replicated = *parity && op.is_write();
        let request = match replicated {
            true => Some(
                lane.take(now, bucket.member().forgotten())
                    .ok_or(Refused::Busy)?,
            ),
            false => None,
        };
        if op.is_write() && !*active {
            (*active, *unseen, *wants_flush) = (true, true, true);
        }
        if replicated && !*dirty {
            *dirty = true;
            *wants_flush = true;
        }
        let header = OpHeader {
            token: waiting.next_token(),
            slot: MemberSlot(0),
            request,
            deadline,
        };
        let result = bucket.submit_with(now, header, *op, out, give);
        match (&result, request) {
            (Ok(None), request) => {
                waiting.insert(waiter(request));
                // A read that waits for a lease may have asked for promises.
                *dirty |= !out.effects.sends.is_empty();
                *unseen |= !std::mem::replace(active, true);
                *wants_flush |= *dirty || *unseen;
            }
            (_, Some(request)) => lane.answered(&request),
            (_, None) => {}
        }
        result
    }

    /// True if operations on this data slot belong to this node's bucket.
    pub(crate) fn answers_for(&self, slot: MemberSlot) -> bool {
        let bucket = self.bucket.as_ref();
        bucket.is_some_and(|bucket| bucket.answers_for(slot))
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
        if !self.out.effects.records.is_empty()
            && let Some(disk) = &self.disk
        {
            disk.hand_over(self.out.effects.records.drain(..));
        }
        self.have_read();
        for call in self.out.effects.directory.drain(..) {
            host.calls.put(call);
        }
        let view = self.bucket.as_ref().and_then(|b| b.member().view());
        let durable = self
            .bucket
            .as_ref()
            .is_some_and(|b| b.member().is_durable());
        self.parity = durable || view.is_some_and(|group| group.parity_slots().next().is_some());
        if durable && let Some(bucket) = &mut self.bucket {
            bucket.member_to_save().let_go_beyond();
        }
        let finished = self.answer();
        self.count_waiting(&host.options().in_flight);
        finished
    }

    /// The memory that there is for values which have to wait here.
    pub(crate) fn lend(&mut self, in_flight: &InFlight) {
        self.out.value_bytes_max = Some(in_flight.free_bytes());
    }

    /// Counts the values that wait here in the memory for requests.
    pub(crate) fn count_waiting(&mut self, in_flight: &Arc<InFlight>) {
        let bytes = self.bucket.as_ref().map_or(0, |b| b.waiting_bytes());
        if bytes > 0 || self.held.is_some() {
            let new = || InFlightPart::new(in_flight.clone());
            self.held.get_or_insert_with(new).set(bytes);
        }
    }

    /// Hands answers to their receivers; batches that are complete.
    fn answer(&mut self) -> Vec<Arc<Batch>> {
        let CellState {
            out, waiting, lane, ..
        } = self;
        let mut finished = Vec::new();
        for (token, result) in out.answers.drain(..) {
            match waiting.take(token) {
                Some(waiter) => finished.extend(waiter.answer(result, lane)),
                None => debug_assert!(false, "an answer to nobody: token {token}"),
            }
        }
        finished
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::door::completions::CompletionQueue;
    use staves_model::ClientId;

    /// A client leaves while its write waits, and a takeover comes: nobody asks again for the write, and
    /// its number must not keep the lane's floor, nor a place in the lane's window, for ever.
    #[test]
    fn a_write_whose_connection_has_ended_gives_its_number_back() {
        let cell = Cell::new(GroupId(1), DiskId::MEMORY, Lane::new(ClientId(7), 1));
        let queues = [(); 2].map(|()| Arc::new(CompletionQueue::new(staves_net::InFlight::new(1))));
        let mut numbers = Vec::new();
        for completions in &queues {
            let mut state = cell.lock();
            let request = state.lane.take(Time::ZERO, 0).expect("room");
            numbers.push(request.number);
            state.waiting.insert(Waiter::Door {
                completions: completions.clone(),
                place: 0,
                part: 0,
                request: Some(request),
            });
        }
        queues[0].close();
        cell.clear();
        assert_eq!(queues[1].take().len(), 1);
        assert_eq!(
            cell.lock().lane.floor(),
            numbers[1],
            "the other's may be asked again"
        );
    }
}
