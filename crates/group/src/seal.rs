//! Rule 8 at the sealed member: it takes the new epoch, refuses the old, answers no client, and
//! reports once its promises have run out.

use std::sync::Arc;
use std::time::Duration;

use staves_model::{Epoch, Group, MemberId, MemberSlot, Time, mutant::Mutant, mutant::planted};
use staves_wire::group::{GroupMessage, SealedStream};

use crate::state::{Ctx, Effects, MemberState};

impl MemberState {
    /// The coordinator of a new epoch asks this member to seal.
    pub fn on_seal(
        &mut self,
        ctx: &Ctx<'_>,
        coordinator: MemberId,
        group: Arc<Group>,
        released: u32,
        out: &mut Effects,
    ) {
        let Some(slot) = group.slot_of(ctx.me) else {
            return;
        };
        let coordinated = group.id == ctx.group
            && usize::from(group.m) == self.streams.len()
            && group
                .member(group.coordinator)
                .is_some_and(|x| x.id == coordinator);
        if self.epoch > group.epoch || !group.retained(slot) || !coordinated {
            return;
        }
        if self.epoch < group.epoch {
            if !planted(Mutant::SealingKeepsPromising) {
                self.sealing = self.sealing.max(group.epoch);
            }
            if !self.promises_over(ctx, released) && !planted(Mutant::SealBeforePromiseEnds) {
                self.pending_seal = Some((coordinator, group, released));
                return;
            }
            self.seal(&group);
        }
        self.report_sealed(ctx, coordinator, slot, group.epoch, out);
    }

    /// A seal that waited for promises to run out is tried again as time passes.
    pub fn retry_seal(&mut self, ctx: &Ctx<'_>, out: &mut Effects) {
        if let Some((coordinator, group, released)) = self.pending_seal.take() {
            self.on_seal(ctx, coordinator, group, released, out);
        }
    }

    fn seal(&mut self, group: &Arc<Group>) {
        self.epoch = group.epoch;
        self.open = false;
        self.pending_seal = None;
        self.directory_lease = Time::ZERO;
        for peer in &mut self.peers {
            peer.promise = Time::ZERO;
        }
        self.backfill.clear();
        self.view = group.clone();
    }

    fn report_sealed(
        &self,
        ctx: &Ctx<'_>,
        coordinator: MemberId,
        slot: MemberSlot,
        epoch: Epoch,
        out: &mut Effects,
    ) {
        let shape = self.shape();
        let streams = (0..self.streams.len())
            .filter(|stream| shape.carries(*stream))
            .map(|stream| {
                let s = &self.streams[stream];
                SealedStream {
                    stream: stream as u8,
                    prefix: s.prefix,
                    deltas: s.log.all().cloned().collect(),
                    requests: s.requests.dump(),
                    forgot: s.requests.forgotten() > 0,
                }
            })
            .collect();
        let message = GroupMessage::Sealed {
            slot,
            streams,
            reserved_extents: self.table.pages().reserved(),
            restarted: self.disk.as_ref().is_some_and(|disk| disk.restarted),
            pages: self.table.end(),
        };
        out.sends.push(ctx.addressed(coordinator, epoch, message));
    }

    /// See [`crate::Member::restart`].
    pub fn restart(&mut self, now: Time, lease: Duration) {
        let until = if planted(Mutant::RestartForgetsPromise) {
            Time::ZERO
        } else {
            now + lease
        };
        for promise in &mut self.promised {
            *promise = until;
        }
        self.sealing = Epoch(0);
        self.pending_seal = None;
        self.directory_lease = Time::ZERO;
        self.open = false;
        self.backfill.clear();
        if self.shape().is_data() {
            let (stable, purgeable) = (self.own().stable, self.own().purgeable);
            for peer in &mut self.peers {
                *peer = crate::peer::Peer::at_cut(stable, now);
                peer.synced = purgeable;
            }
        }
    }
}
