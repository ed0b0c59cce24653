//! The dealings of a disk with the member on it. The bucket may have come to another disk meanwhile, which counts other records.

use std::sync::Arc;

use staves_group::{Effects, Event, Member};
use staves_model::{Epoch, Time};
use staves_service::BucketEffects;

use super::{Cell, CellState};
use crate::disk::readers::{ReadPage, Wanted};
use crate::disk::{NodeDisk, unless_lost};
use crate::host::Host;
use crate::native::batch::Batch;

impl Cell {
    /// Does something to the member on a disk past its events, and what follows from it. False if there is none.
    pub(crate) fn with_member(
        self: &Arc<Self>,
        host: &Host,
        on: &NodeDisk,
        act: &mut dyn FnMut(&mut Member, &mut Effects),
    ) -> bool {
        let finished = {
            let mut state = self.lock();
            let is_on = state.is_on(on);
            state.unless_lost(None, |state| {
                let CellState { bucket, out, .. } = state;
                let bucket = bucket.as_mut().filter(|_| is_on)?;
                act(bucket.member_to_save(), &mut out.effects);
                Some(state.settle(host, host.clock.now()))
            })
        };
        let is_there = finished.is_some();
        Batch::finish_all(finished.unwrap_or_default());
        is_there
    }

    /// Tells the bucket of what its disk has synced. One on another disk counts other records.
    pub(crate) fn synced(self: &Arc<Self>, host: &Host, on: &NodeDisk, now: Time, records: u64) {
        self.step_on(host, on, now, Event::Synced(records), |_| {});
    }

    /// Pages that operations wait for were read: the bucket goes on with them.
    pub(crate) fn read(
        self: &Arc<Self>,
        host: &Host,
        on: &NodeDisk,
        wanted: &Wanted,
        read: &[ReadPage],
    ) {
        let give = |state: &mut CellState| {
            let member = state.bucket.as_ref().map(|bucket| bucket.member());
            if let Some(pages) = member.and_then(Member::pages) {
                on.give_pages(wanted, pages, read);
            }
        };
        self.step_on(host, on, host.clock.now(), Event::Tick, give);
    }

    /// Does something to the state of a bucket on a disk, and steps it in the same breath: what was given to it is here yet.
    fn step_on(
        self: &Arc<Self>,
        host: &Host,
        on: &NodeDisk,
        now: Time,
        event: Event,
        first: impl FnOnce(&mut CellState),
    ) {
        let (finished, more, wakes) = {
            let mut state = self.lock();
            if !state.is_on(on) {
                return;
            }
            state.unless_lost((), first);
            let (finished, more) = state.step(host, now, event);
            (finished, more, state.wakes())
        };
        if wakes {
            host.look_after(self);
        }
        if more {
            host.wake_busy(self.group);
        }
        Batch::finish_all(finished);
    }
}

impl CellState {
    /// Has the pages read that operations wait for.
    pub(super) fn have_read(&mut self) {
        let reads = &mut self.out.effects.reads;
        if reads.is_empty() {
            return;
        }
        let member = self.bucket.as_ref().map(|bucket| bucket.member());
        let on = member.and_then(|member| member.pages()?.kept_on());
        if let (Some((_, join)), Some(disk), Some(member)) = (on, &self.disk, member) {
            disk.reads.put(member.id(), join, reads.drain(..));
        }
        reads.clear();
    }

    /// Does something that may need pages. If one of them is lost, the bucket is gone with all that was done, and the outcome is `otherwise`; the node's disks give it up then.
    pub(crate) fn unless_lost<R>(
        &mut self,
        otherwise: R,
        act: impl FnOnce(&mut CellState) -> R,
    ) -> R {
        if self.disk.is_none() {
            return act(self);
        }
        if let Some(done) = unless_lost(|| act(self)) {
            return done;
        }
        let bucket = self.bucket.take();
        let epoch = bucket.map_or(Epoch(0), |bucket| bucket.member().epoch());
        self.lost_in = self.lost_in.max(epoch);
        self.out = BucketEffects::default();
        otherwise
    }

    fn is_on(&self, disk: &NodeDisk) -> bool {
        let own = self.disk.as_deref();
        own.is_some_and(|own| std::ptr::eq(own, disk))
    }
}
