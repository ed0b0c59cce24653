//! Rules 10 and 11 at every listed member: it is brought to the cut, and serves once the directory
//! has opened the epoch.

use std::sync::Arc;

use staves_model::{Group, MemberId, MemberSlot, Time, mutant::Mutant, mutant::planted};
use staves_store::BUCKET_EXTENTS_MAX;
use staves_wire::group::{Delta, GroupMessage, MemberRecord, SyncStream};

use crate::backfill::Backfill;
use crate::code::fits;
use crate::member::{Event, Member, ctx};
use crate::on_disk::OnDisk;
use crate::peer::Peer;
use crate::requests::RequestTable;
use crate::reservation::Reservation;
use crate::state::{Applied, Ctx, Effects, MemberState};
use crate::stream::{CUT_MAX, Stream};
use crate::table::{PAGES_MAX, PageTable, Shape, sound_deltas};

/// The most that a log may hold after a sync, as a multiple of `log_bytes_max`: its own deltas and those it lacked.
const SYNC_LOGS: usize = 4;

impl Member {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn on_sync(
        &mut self,
        now: Time,
        coordinator: MemberId,
        group: Arc<Group>,
        slot: MemberSlot,
        streams: Vec<SyncStream>,
        extents: u32,
        pages: u32,
        out: &mut Effects,
        applied: &mut Applied<'_>,
    ) {
        if planted(Mutant::ServeBeforeOpen) && group.open {
            return self.step(now, Event::Map(group), out, applied);
        }
        let listed = group.member(slot).is_some_and(|x| x.id == self.me);
        let sender = group.member(group.coordinator).map(|x| x.id);
        let coordinated = group.id == self.id && sender == Some(coordinator);
        let sound = streams.len() == usize::from(group.m)
            && fits(streams.len(), group.members.len())
            && extents <= BUCKET_EXTENTS_MAX
            && pages <= PAGES_MAX
            && streams.iter().enumerate().all(|(i, s)| {
                usize::from(s.stream) == i
                    && s.cut <= CUT_MAX
                    && sound_deltas(&s.deltas, streams.len(), group.epoch)
            });
        let old = self.epoch() > group.epoch || group.epoch <= self.excluded_at;
        if !listed || !coordinated || !sound || old {
            return;
        }
        let mut able = true;
        if self.installed() != group.epoch {
            if group.retained(slot) {
                let sealed = self.epoch() == group.epoch || planted(Mutant::GoOnWithSealMissing);
                // With m > 1 a page is of its bucket; only copies and twins change slots.
                let shaped = |s: &&mut MemberState| {
                    sealed
                        && s.streams.len() == streams.len()
                        && (streams.len() == 1 || s.shape().bucket() == group.bucket_slot(slot))
                        && s.is_led_to_cut(&streams)
                        && s.has_log_room_for(&streams, self.options.log_bytes_max)
                };
                let Some(state) = self.state.as_mut().filter(shaped) else {
                    return;
                };
                able = state.bring_to_cut(now, group.clone(), slot, streams, extents, applied);
            } else {
                able = self.join(now, group.clone(), slot, streams, extents, pages, out);
            }
        }
        if able && !self.is_synced_to_cut(coordinator) {
            return; // it is told once the sync has ended, and asks again
        }
        let ctx = ctx!(self, now);
        let message = GroupMessage::Synced { slot, able };
        out.sends
            .push(ctx.addressed(coordinator, group.epoch, message));
    }

    // What leads to the cut is on stable storage here (rule 10): before, this member confirms nothing.
    fn is_synced_to_cut(&mut self, coordinator: MemberId) -> bool {
        let Some(state) = &mut self.state else {
            return false;
        };
        state.sync_all();
        if let Some(disk) = state.disk.as_mut()
            && !disk.has_synced(state.installed)
        {
            disk.owed_synced = Some(coordinator);
            return false;
        }
        let shape = state.shape();
        let kept = (0..).zip(&state.streams).filter(|(s, _)| shape.carries(*s));
        kept.into_iter().all(|(_, s)| s.synced >= s.prefix) || planted(Mutant::ConfirmedUnsynced)
    }

    #[allow(clippy::too_many_arguments)]
    // A joiner: no state counts, the cut is its base (rule 10). What it held before may save bytes only.
    fn join(
        &mut self,
        now: Time,
        group: Arc<Group>,
        slot: MemberSlot,
        streams: Vec<SyncStream>,
        reserve_extents: u32,
        pages: u32,
        out: &mut Effects,
    ) -> bool {
        let shape = Shape {
            m: usize::from(group.m),
            slot,
        };
        let mut fresh = self.new_pages(group.epoch);
        if !fresh.reserve(reserve_extents) {
            // The life before may be what is in the way.
            self.old = None;
            if self.state.as_ref().is_none_or(|s| s.epoch <= group.epoch) {
                if self.is_durable() {
                    self.records += 1;
                    out.records.push((self.id, MemberRecord::Gone));
                }
                self.state = None;
            }
            if !fresh.reserve(reserve_extents) {
                return false;
            }
        }
        let before = self.state.take();
        let old = match before {
            Some(state) if state.shape().m == 1 => Some(state),
            _ => None,
        };
        let trusted = old.as_ref().is_some_and(|s| {
            planted(Mutant::ReturningTrustsPrefix) && s.streams[0].prefix >= streams[0].cut
        });
        let old = old
            .map(MemberState::into_former)
            .or_else(|| self.old.take());
        let cuts = streams
            .iter()
            .map(|s| s.cut)
            .collect::<Vec<_>>()
            .into_iter();
        let (mut table, old) = match old {
            Some(old) if trusted => (old, None),
            old if group.fresh || planted(Mutant::ServeBeforeCatchUp) => {
                drop(old);
                (PageTable::whole(fresh, shape.columns()), None)
            }
            old => (PageTable::absent(fresh, shape.columns(), pages), old),
        };
        let cut = streams.get(slot.index()).map_or(0, |s| s.cut);
        let streams = streams
            .iter()
            .map(|s| {
                let requests = if planted(Mutant::RequestTableNotRebuilt) {
                    RequestTable::default()
                } else {
                    RequestTable::load(&s.requests)
                };
                Stream::at_cut(s.cut, requests)
            })
            .collect();
        if self.options.is_durable() {
            table.note_changes();
        }
        self.state = Some(MemberState {
            slot,
            epoch: group.epoch,
            installed: group.epoch,
            open: false,
            streams,
            disk: self.options.is_durable().then(|| {
                let cuts = cuts.collect();
                OnDisk::joined(group.epoch, group.fresh, cuts)
            }),
            journal: self.options.journal.clone(),
            table,
            peers: vec![Peer::at_cut(cut, now); group.members.len()],
            promised: vec![Time::ZERO; shape.m],
            directory_lease: Time::ZERO,
            sealing: staves_model::Epoch(0),
            pending_seal: None,
            backfill: Backfill::default(),
            want_extents: reserve_extents,
            reservation: Reservation::default(),
            stalled: false,
            ticked_at: now,
            old,
            view: group,
        });
        true
    }
}

impl MemberState {
    // A retained member: it fills its streams to the cut, drops what lies beyond, and applies (rules 9, 10).
    fn bring_to_cut(
        &mut self,
        now: Time,
        group: Arc<Group>,
        slot: MemberSlot,
        streams: Vec<SyncStream>,
        reserve_extents: u32,
        applied: &mut Applied<'_>,
    ) -> bool {
        // With m > 1 a data bucket made all that it has, and needs nothing for what the others have; nor does its twin.
        let needs_more = self.shape().m == 1
            || !self.shape().holds_data()
            || planted(Mutant::MemoryOfTheLargestAsked);
        // Never less than it has: deltas up to the cut may need more than the cut itself.
        let lacks = needs_more && self.table.pages().reserved() < reserve_extents;
        let is_short = lacks && !self.table.pages_mut().reserve(reserve_extents);
        // Others may have taken what it had before it came back from its disk: the cut may need less.
        if is_short && self.disk.is_none() {
            return false;
        }
        self.epoch = group.epoch;
        self.open = false;
        if needs_more {
            self.want_extents = reserve_extents;
        }
        self.reservation = Reservation::default();
        self.stalled = false;
        for sync in &streams {
            if self.shape().carries(usize::from(sync.stream)) && !self.stream_to_cut(sync, applied)
            {
                return false;
            }
        }
        self.slot = slot;
        self.view = group;
        let cut = streams.get(slot.index()).map_or(0, |s| s.cut);
        self.peers = vec![Peer::at_cut(cut, now); self.view.members.len()];
        self.backfill.clear();
        self.installed = self.epoch;
        if let Some(disk) = &mut self.disk {
            disk.at_cut();
        }
        true
    }

    // True if what the coordinator sends leads to the cut, in every stream that this member keeps.
    fn is_led_to_cut(&self, streams: &[SyncStream]) -> bool {
        let kept = streams
            .iter()
            .filter(|s| self.shape().carries(usize::from(s.stream)));
        planted(Mutant::KeepBeyondCut)
            || planted(Mutant::GoOnWithSealMissing)
            || kept
                .into_iter()
                .all(|s| self.streams[usize::from(s.stream)].leads_to(s.cut, &s.deltas))
    }

    // I10: what leads there was in one log or another, whose bounds may differ somewhat from ours.
    fn has_log_room_for(&self, streams: &[SyncStream], log_bytes_max: usize) -> bool {
        streams.iter().zip(&self.streams).all(|(sync, s)| {
            let brought: usize = sync.deltas.iter().map(Delta::weight).sum();
            // What a disk has brought back is here already.
            let held = self.disk.as_ref().map_or(s.log.bytes(), |_| 0);
            sync.deltas.len() <= 1 || held + brought <= SYNC_LOGS * log_bytes_max
        })
    }

    // False if there is no memory for what leads there.
    fn stream_to_cut(&mut self, sync: &SyncStream, applied: &mut Applied<'_>) -> bool {
        let stream = usize::from(sync.stream);
        let s = &mut self.streams[stream];
        if !planted(Mutant::KeepBeyondCut) {
            s.drop_beyond(sync.cut);
            self.journal.drop_beyond(stream, sync.cut);
            if let Some(disk) = &mut self.disk {
                disk.drop_beyond(stream, sync.cut);
            }
        }
        for delta in &sync.deltas {
            s.receive(delta.clone(), usize::MAX);
        }
        if planted(Mutant::GoOnWithSealMissing) {
            s.prefix = s.prefix.min(sync.cut);
        }
        // Whatever slot it was given by an epoch that never opened: with m = 1 it may be a copy still.
        if !planted(Mutant::PartsBeforeCutApplied) {
            s.stable = s.stable.max(sync.cut);
            // Nobody purges before the epoch is open, and then all have confirmed the cut.
            s.purgeable = s.purgeable.max(sync.cut);
            let upto = sync.cut.min(self.streams[stream].prefix);
            if !self.apply_upto(stream, upto, applied) {
                return false;
            }
            let at = self.applied();
            self.table.settle(&at);
        }
        if !planted(Mutant::PageAheadTakenAsDone) {
            let shape = self.shape();
            let reset = planted(Mutant::DonePagesReset) && self.table.absent_count() > 0;
            let cut = if reset && shape.m > 1 { 0 } else { sync.cut };
            self.table.revert_above(shape, stream, cut);
        }
        true
    }

    /// Its epoch is open: what it has reserved is what the epoch was made with, or more.
    pub fn set_open(&mut self) {
        self.open = true;
        if let Some(disk) = &mut self.disk {
            disk.restarted = false;
        }
    }

    /// The directory has opened the epoch at whose cut this member stands (rule 11).
    pub fn opened(&mut self, ctx: &Ctx<'_>, out: &mut Effects, applied: &mut Applied<'_>) {
        self.set_open();
        self.sealing = staves_model::Epoch(0);
        if self.shape().is_data() {
            for peer in &mut self.peers {
                peer.heard_at = ctx.now;
                peer.moved_at = ctx.now;
                peer.synced_at = ctx.now;
            }
            self.raise_stable(ctx);
            self.tick_data(ctx, out);
        } else {
            self.advance(applied);
        }
        self.tick_backfill(ctx, out);
    }
}
