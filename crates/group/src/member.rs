//! The machine: one node's part in one group, its inputs, and what a service asks of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use staves_model::{
    Epoch, Group, GroupId, Incarnation, MemberId, MemberSlot, NodeId, Revision, Time,
    mutant::Mutant, mutant::planted,
};
use staves_store::{Arena, Budget, Pages};
use staves_wire::group::{GroupEnvelope, GroupMessage, MemberRecord, RequestId, Run, RunKind};

use crate::backfill::BackfillStats;
use crate::coordinate::Coordination;
use crate::node_logs::CountedLogs;
use crate::requests::Recall;
use crate::state::{Applied, Ctx, Durability, Effects, MemberState, Options};
use crate::stream::Stream;
use crate::table::PageTable;

/// An input to a member.
#[derive(Clone, Debug)]
pub enum Event {
    /// A message of the group protocol arrived.
    Message(GroupEnvelope),
    /// Time has passed.
    Tick,
    /// The directory's entry for the group, as this node sees it now.
    Map(Arc<Group>),
    /// The directory granted a lease on the request that was sent at `clock`.
    Lease {
        /// For this epoch of the group.
        epoch: Epoch,
        /// To this life of this node.
        incarnation: Incarnation,
        /// Our clock when we asked.
        clock: Time,
    },
    /// A directory leader that a quorum confirmed has answered what we asked at `clock`.
    Heard {
        /// It counts for members that have come to this epoch.
        epoch: Epoch,
        /// Our clock when we asked.
        clock: Time,
    },
    /// The first so many of the records that this member handed over ([`Effects::records`]) are durable.
    Synced(u64),
    /// A node that has answered nothing of this one since then, though it was asked.
    Silent {
        /// The node.
        node: NodeId,
        /// Our clock when it was last heard.
        since: Time,
    },
}

/// The reason for which an update is not taken now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdmitError {
    /// This member is not the data bucket of an open epoch: ask the directory's map again.
    NotServing,
    /// The log is full until the parity buckets catch up: try again in a moment.
    Busy,
}

/// The reason for which a range cannot be read now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadError {
    /// This member is not the data bucket of an open epoch: ask the directory's map again.
    NotServing,
    /// No lease holds, so that a successor may have answered: ask again after a step; it comes with an
    /// acknowledgement or from the directory.
    NoLease,
    /// This page is still to be rebuilt: give it to [`Member::demand`], and ask again after a step.
    Missing {
        /// The first such page of the range.
        page: u32,
    },
    /// The group has lost more members than its scheme bears, and what the range needs may be among it.
    /// It comes back only if enough of those members do.
    Lost,
}

/// One node's part in one group. It may be no member at all (yet, or any more).
pub struct Member {
    pub(crate) options: Options,
    pub(crate) id: GroupId,
    pub(crate) me: MemberId,
    pub(crate) arena: Arc<Arena>,
    pub(crate) budget: Arc<Budget>,
    newest: Revision,
    /// The newest epoch that was open without this member: no older one can bring it back.
    pub(crate) excluded_at: Epoch,
    heard: Time,
    pub(crate) state: Option<MemberState>,
    pub(crate) coordination: Option<Coordination>,
    pub(crate) old: Option<PageTable>,
    /// Records that were handed over for the disk.
    pub(crate) records: u64,
    logs: CountedLogs,
}

macro_rules! ctx {
    ($member:expr, $now:expr) => {
        Ctx {
            now: $now,
            options: &$member.options,
            group: $member.id,
            me: $member.me,
            quiet: $member.is_quiet($now),
        }
    };
}
pub(crate) use ctx;

impl Member {
    /// A node's part in group `id`, with nothing in it. Pages will come from `arena` within `budget`.
    pub fn new(
        options: Options,
        id: GroupId,
        me: MemberId,
        arena: Arc<Arena>,
        budget: Arc<Budget>,
    ) -> Member {
        Member {
            logs: CountedLogs::new(options.node_logs.clone()),
            options,
            id,
            me,
            arena,
            budget,
            newest: Revision(0),
            excluded_at: Epoch(0),
            heard: Time::ZERO,
            state: None,
            coordination: None,
            old: None,
            records: 0,
        }
    }

    /// Empty pages for a membership that begins in an epoch.
    pub(crate) fn new_pages(&self, join: Epoch) -> Pages {
        let (arena, budget) = (self.arena.clone(), self.budget.clone());
        match &self.options.kept_on {
            Some(on) => Pages::on_disk(arena, budget, on.clone(), join),
            None => Pages::new(arena, budget),
        }
    }

    /// Its identity.
    pub fn me(&self) -> MemberId {
        self.me
    }

    /// The group.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// Its member slot, if it is a member.
    pub fn slot(&self) -> Option<MemberSlot> {
        self.state.as_ref().map(|s| s.slot)
    }

    /// Its epoch; 0 if it is no member.
    pub fn epoch(&self) -> Epoch {
        self.state.as_ref().map_or(Epoch(0), |s| s.epoch)
    }

    /// Returns whether it is in a data bucket's slot.
    pub fn is_data(&self) -> bool {
        self.state.as_ref().is_some_and(|s| s.shape().is_data())
    }

    /// Returns whether it is the data bucket of an open epoch.
    pub fn serving(&self) -> bool {
        self.state.as_ref().is_some_and(MemberState::serving)
    }

    /// Returns whether its epoch is open, as far as it knows.
    pub fn is_open(&self) -> bool {
        self.state.as_ref().is_some_and(|s| s.open)
    }

    /// Returns whether all its pages are here.
    pub fn complete(&self) -> bool {
        self.state
            .as_ref()
            .is_some_and(|s| s.table.absent_count() == 0)
    }

    /// Pages still to be fetched, and the end of the page table.
    pub fn progress(&self) -> (u32, u32) {
        self.state
            .as_ref()
            .map_or((0, 0), |s| (s.table.absent_count(), s.table.end()))
    }

    /// The course of its last backfill, if there was one.
    pub fn backfill_stats(&self) -> Option<BackfillStats> {
        self.state.as_ref().and_then(|s| s.backfill.stats)
    }

    /// The directory's entry by which it stands.
    pub fn view(&self) -> Option<&Arc<Group>> {
        self.state.as_ref().map(|s| &s.view)
    }

    /// Returns whether its group has fewer complete copies than updates may be made with. Copies of a lost one are not waited for.
    pub fn lacks_copies(&self) -> bool {
        let wanted = self.options.copies_min.load(Ordering::Relaxed);
        wanted > 1 && !self.is_lost() && self.view().is_some_and(|view| view.lacks_copies(wanted))
    }

    /// Returns whether the log has room for a delta of this weight.
    pub fn admit(&self, weight: usize) -> Result<(), AdmitError> {
        let state = self
            .state
            .as_ref()
            .filter(|s| s.serving())
            .ok_or(AdmitError::NotServing)?;
        if !self.options.disk_admits() {
            return Err(AdmitError::Busy);
        }
        // One delta is always let in, so that a weight above the bound cannot wait for ever.
        let bytes = state.own().log.bytes();
        let node = &self.options.node_logs;
        let fits = bytes + weight <= self.options.log_bytes_max && node.has_room_for(weight);
        if bytes > 0 && !fits {
            return Err(AdmitError::Busy);
        }
        Ok(())
    }

    pub(crate) fn count_logs(&mut self) {
        let streams = self.state.iter().flat_map(|s| &s.streams);
        self.logs.set(streams.map(|s| s.log.bytes()).sum());
    }

    /// The time at which a tick will send something again that nobody has reported. A driver that can wait for less than its usual
    /// ticks may tick then: on a way that loses messages it is a matter of round trips.
    pub fn resend_at(&self, now: Time) -> Option<Time> {
        let ctx = ctx!(self, now);
        self.state.as_ref().and_then(|s| s.resend_at(&ctx))
    }

    /// The state of a request.
    pub fn recall(&self, request: &RequestId) -> Recall {
        match self.state.as_ref().filter(|s| s.serving()) {
            Some(s) => s.own().requests.recall(request, s.own().stable),
            None => Recall::New,
        }
    }

    /// The highest request number that a client had used who is forgotten here; see [`crate::RequestTable`].
    pub fn forgotten(&self) -> u64 {
        let state = self.state.as_ref().filter(|s| s.serving());
        state.map_or(0, |s| s.own().requests.forgotten())
    }

    /// The low watermark of the own stream: answers and reads of anything up to here may go out.
    pub fn stable(&self) -> u64 {
        self.state
            .as_ref()
            .filter(|s| s.serving())
            .map_or(0, |s| s.own().stable)
    }

    /// All up to here is on the disk of every listed member. Of what others may have answered for this stream all is up to [`Member::last`]; that
    /// nobody else has answered yet only a lease says ([`Member::may_read`]). Where updates are answered once they are synced, the same as
    /// [`Member::stable`].
    pub fn flushed(&self) -> u64 {
        let state = self.state.as_ref().filter(|s| s.serving());
        match self.options.durability {
            Durability::Writeback if !planted(Mutant::FlushAnsweredAtHeld) => {
                state.map_or(0, |s| s.own().purgeable)
            }
            _ => self.stable(),
        }
    }

    /// Returns whether updates are answered before disks have them.
    pub fn is_writeback(&self) -> bool {
        self.options.durability == Durability::Writeback
    }

    /// The seq of the last update made.
    pub fn last(&self) -> u64 {
        self.state
            .as_ref()
            .filter(|s| s.serving())
            .map_or(0, |s| s.own().prefix)
    }

    /// Returns whether a read whose newest write is `seq` may be answered as far as stability goes (I8).
    pub fn releases(&self, seq: u64) -> bool {
        seq <= self.stable() || planted(Mutant::ReadUnstable)
    }

    /// Returns whether a lease holds: no successor has answered anything yet (I7). For a read, ask at or after
    /// its arrival.
    pub fn may_read(&self, now: Time) -> bool {
        let ctx = ctx!(self, now);
        self.state.as_ref().is_some_and(|s| {
            s.lease_holds(&ctx) || (s.serving() && planted(Mutant::LeaseNotLookedAt))
        })
    }

    /// Returns whether updates may be answered: false only for a member of a pool that may start empty that has
    /// not heard the directory for too long (rule 13).
    pub fn may_answer(&self, now: Time) -> bool {
        !self.is_quiet(now)
    }

    /// Reads a range of a data bucket: appends its bytes to `into`, and gives the seq that must be stable
    /// ([`Member::releases`]) before they may be answered. Ask at or after the arrival of the request.
    ///
    /// # Errors
    /// All but [`ReadError::NotServing`] are for a while: the service keeps the request, asks again after the
    /// member's next step, and gives up at the request's deadline. Never are bytes guessed.
    pub fn read(
        &self,
        now: Time,
        offset: u64,
        len: u32,
        into: &mut Vec<u8>,
    ) -> Result<u64, ReadError> {
        let state = self
            .state
            .as_ref()
            .filter(|s| s.serving())
            .ok_or(ReadError::NotServing)?;
        let run = [Run {
            offset,
            len,
            kind: RunKind::Bytes,
        }];
        let unless_lost = |why| {
            if state.view.lost {
                ReadError::Lost
            } else {
                why
            }
        };
        if let Some(page) = self.absent_in(&run) {
            return Err(unless_lost(ReadError::Missing { page }));
        }
        if !self.may_read(now) {
            return Err(unless_lost(ReadError::NoLease));
        }
        state.table.pages().read_into(offset, len as usize, into);
        let seqs = crate::table::touched(&run).map(|p| state.table.label(p, 0).seq);
        Ok(seqs.max().unwrap_or(0))
    }

    /// Returns whether the directory says that the group has lost more than its scheme bears: writes will not be
    /// answered, and what is missing cannot be rebuilt.
    pub fn is_lost(&self) -> bool {
        self.state.as_ref().is_some_and(|s| s.view.lost)
    }

    /// The bytes. Empty if this is no member.
    pub fn pages(&self) -> Option<&Pages> {
        self.state.as_ref().map(|s| s.table.pages())
    }

    /// The first page of a range that is not here yet (m > 1). Ask for it with [`Member::demand`]; a write
    /// to it waits, as a read does.
    pub fn absent_in(&self, runs: &[Run]) -> Option<u32> {
        if planted(Mutant::MissingPageTakenAsZero) {
            return None;
        }
        let state = self.state.as_ref()?;
        crate::table::touched(runs).find(|p| !state.table.is_here(*p))
    }

    /// Fetches what is lacking of a run of pages before the others: a client waits for it (rule 16).
    pub fn demand(&mut self, now: Time, page: u32, count: u32, out: &mut Effects) {
        let ctx = ctx!(self, now);
        if let Some(state) = &mut self.state {
            state.demand(&ctx, page, count, out);
        }
    }

    /// PageRequests every member to reserve `extents` extents in all; the next flush sends it. Fewer than before
    /// gives memory back, but none that its own pages need, those that are still missing among them.
    pub fn want_extents(&mut self, extents: u32) {
        if let Some(state) = self.state.as_mut().filter(|s| s.serving()) {
            state.want(extents);
        }
    }

    /// The number of extents that every listed member has reserved for this bucket: no update may need more. With m > 1 it bounds
    /// offsets too: parity has the extents of all data buckets at the same places.
    pub fn usable_extents(&self) -> u32 {
        self.state
            .as_ref()
            .filter(|s| s.serving())
            .map_or(0, MemberState::granted)
    }

    /// The number of extents that this bucket has asked every member to reserve.
    pub fn wanted_extents(&self) -> u32 {
        self.state.as_ref().map_or(0, |s| s.want_extents)
    }

    /// A stream, for checkers and status.
    pub fn stream(&self, stream: usize) -> Option<&Stream> {
        self.state.as_ref().and_then(|s| s.streams.get(stream))
    }

    /// Returns whether it keeps that stream up to date: a data bucket and its twin their own, parity all.
    pub fn keeps(&self, stream: usize) -> bool {
        let state = self.state.as_ref();
        state.is_some_and(|s| stream < s.streams.len() && s.shape().carries(stream))
    }

    /// The page table, for checkers and status.
    pub fn table(&self) -> Option<&PageTable> {
        self.state.as_ref().map(|s| &s.table)
    }

    /// The arithmetic that this parity bucket has done since it took its slot (m > 1).
    pub fn arithmetic(&self) -> crate::Arithmetic {
        self.table().map(PageTable::arithmetic).unwrap_or_default()
    }

    /// Returns whether it cannot go on for lack of memory that its data buckets had reserved, for checkers: that
    /// must never be.
    pub fn is_stalled(&self) -> bool {
        self.state.as_ref().is_some_and(|s| s.stalled)
    }

    /// The epoch at whose cut this member stands, for checkers.
    pub fn installed(&self) -> Epoch {
        self.state.as_ref().map_or(Epoch(0), |s| s.installed)
    }

    /// Returns whether it leads the change to this epoch and has found its cut, for status and checkers.
    pub fn coordinates_sync_of(&self, epoch: Epoch) -> bool {
        self.coordination
            .as_ref()
            .is_some_and(|l| l.epoch() == epoch && l.has_cut())
    }

    /// Until when a parity bucket's promise counts here, for checkers.
    pub fn promise_of(&self, slot: MemberSlot) -> Option<Time> {
        self.state
            .as_ref()
            .filter(|s| s.serving())?
            .peers
            .get(slot.index())
            .map(|p| p.promise)
    }

    /// Until when this parity bucket has promised a stream's data bucket, for checkers.
    pub fn promised(&self, stream: usize) -> Option<Time> {
        self.state.as_ref()?.promised.get(stream).copied()
    }

    /// Returns whether it still has pages of a life in which it was a member, for rule 17.
    pub fn has_old_pages(&self) -> bool {
        self.old.is_some() || self.state.as_ref().is_some_and(|s| s.old.is_some())
    }

    /// Begins again in a process that comes back with its memory of this member, before anything else: it
    /// has forgotten what it promised, so it counts as having promised now (rule "after a restart a
    /// member seals nothing for one full promise").
    pub fn restart(&mut self, now: Time) {
        self.coordination = None;
        self.newest = Revision(0);
        self.heard = Time::ZERO;
        if let Some(state) = &mut self.state {
            state.restart(now, self.options.lease);
        }
    }

    /// The one way in.
    pub fn step(&mut self, now: Time, event: Event, out: &mut Effects, applied: &mut Applied<'_>) {
        match event {
            Event::Message(envelope) => self.message(now, envelope, out, applied),
            Event::Tick => self.tick(now, out, applied),
            Event::Map(group) => self.map(now, group, out, applied),
            Event::Lease {
                epoch,
                incarnation,
                clock,
            } => {
                let ctx = ctx!(self, now);
                if let Some(state) = &mut self.state {
                    state.directory_lease(&ctx, epoch, incarnation, clock);
                }
            }
            Event::Heard { epoch, clock } if self.epoch() >= epoch => {
                self.heard = self.heard.max(clock);
            }
            Event::Heard { .. } => {}
            Event::Synced(upto) => self.journal_synced(now, upto, out),
            Event::Silent { node, since } => self.silent(now, node, since),
        }
        self.hand_over(out);
        self.count_logs();
    }

    pub(crate) fn is_quiet(&self, now: Time) -> bool {
        self.options
            .quiet_after
            .is_some_and(|t| now > self.heard + staves_model::shortened(t))
            && !planted(Mutant::QuietMemberGoesOn)
    }

    fn message(
        &mut self,
        now: Time,
        envelope: GroupEnvelope,
        out: &mut Effects,
        applied: &mut Applied<'_>,
    ) {
        if envelope.group != self.id {
            return;
        }
        let ctx = ctx!(self, now);
        let (from, epoch) = (envelope.from, envelope.epoch);
        match envelope.message {
            GroupMessage::Sealed {
                slot,
                streams,
                reserved_extents,
                restarted,
                pages,
            } => {
                self.on_sealed(
                    now,
                    from,
                    epoch,
                    slot,
                    streams,
                    reserved_extents,
                    restarted,
                    pages,
                    out,
                );
            }
            GroupMessage::Synced { slot, able } => {
                self.on_synced(now, from, epoch, slot, able, out);
            }
            GroupMessage::Sync {
                group,
                slot,
                streams,
                reserve_extents,
                pages,
            } => {
                self.on_sync(
                    now,
                    from,
                    group,
                    slot,
                    streams,
                    reserve_extents,
                    pages,
                    out,
                    applied,
                );
            }
            message => {
                if let Some(state) = &mut self.state {
                    state.message(&ctx, from, epoch, message, out, applied);
                }
            }
        }
    }

    fn tick(&mut self, now: Time, out: &mut Effects, applied: &mut Applied<'_>) {
        self.coordinate(now, out);
        let ctx = ctx!(self, now);
        if let Some(state) = &mut self.state {
            state.retry_seal(&ctx, out);
            state.sync_all();
            if state.open {
                // Where no parity bucket is listed that would acknowledge, nothing else lets go of what a member that
                // was quiet when its epoch opened has kept: its log would be full for good.
                state.raise_stable(&ctx);
                state.tick_data(&ctx, out);
                state.tick_backfill(&ctx, out);
            }
            state.advance(applied);
        }
    }

    fn map(&mut self, now: Time, group: Arc<Group>, out: &mut Effects, applied: &mut Applied<'_>) {
        let late = group.revision < self.newest && !planted(Mutant::LateOldMapDrops);
        if group.id != self.id || late {
            return;
        }
        self.newest = self.newest.max(group.revision);
        if !group.open {
            self.start_coordinating(now, group, out);
            return;
        }
        if self
            .coordination
            .as_ref()
            .is_some_and(|l| l.epoch() <= group.epoch)
        {
            self.coordination = None;
        }
        if group.slot_of(self.me).is_none() {
            // A life that its node's disk has brought back is listed by the next epoch.
            if group.last_open.slot_of(self.me).is_none() {
                self.drop_state(&group, out);
            }
            return;
        }
        let ctx = ctx!(self, now);
        // One that a coordinator has brought into another shape than the directory's stays shut, and is left out.
        let fits = |s: &&mut MemberState| s.epoch == group.epoch && s.fits(&group, self.me);
        if let Some(state) = self.state.as_mut().filter(fits) {
            state.view = group.clone();
            if state.installed == group.epoch && !state.open {
                state.opened(&ctx, out, applied);
            }
        }
    }

    // Rule 12: state is dropped only on an open map, of an epoch not below its own, that does not list it.
    fn drop_state(&mut self, group: &Group, out: &mut Effects) {
        self.excluded_at = self.excluded_at.max(group.epoch);
        let listed_before = self.state.as_ref().is_some_and(|s| s.epoch > group.epoch);
        if listed_before && !planted(Mutant::LateOldMapDrops) {
            return;
        }
        if let Some(state) = self.state.take() {
            if state.disk.is_some() {
                self.records += 1;
                out.records.push((self.id, MemberRecord::Gone));
            }
            self.old = (state.shape().m == 1).then(|| state.into_former());
        }
    }
}
