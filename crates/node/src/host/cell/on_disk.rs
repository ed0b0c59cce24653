//! The dealings of a disk with the member on it. The bucket may have come to another disk meanwhile, which counts other records.

use std::sync::Arc;

use staves_group::{Effects, Event, Member};
use staves_model::Time;

use super::{Cell, CellState};
use crate::disk::NodeDisk;
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
            let CellState { bucket, out, .. } = &mut *state;
            let Some(bucket) = bucket.as_mut().filter(|_| is_on) else {
                return false;
            };
            act(bucket.member_to_save(), &mut out.effects);
            state.settle(host, host.clock.now())
        };
        Batch::finish_all(finished);
        true
    }

    /// Tells the bucket of what its disk has synced. One on another disk counts other records.
    pub(crate) fn synced(self: &Arc<Self>, host: &Host, on: &NodeDisk, now: Time, records: u64) {
        let (finished, more, wakes) = {
            let mut state = self.lock();
            if !state.is_on(on) {
                return;
            }
            let (finished, more) = state.step(host, now, Event::Synced(records));
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
    fn is_on(&self, disk: &NodeDisk) -> bool {
        let own = self.disk.as_deref();
        own.is_some_and(|own| std::ptr::eq(own, disk))
    }
}
