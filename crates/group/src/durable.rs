//! Members that keep their bytes on a disk (D-1 to D-17 of the durable groups' rules).
//!
//! **Path of a delta.** What a member makes or takes in leaves as a [`MemberRecord`] with the effects of the same step
//! ([`Effects::records`]). The driver appends the records of a member to its disk's journal in that order, and says with
//! [`Event::Synced`] up to which of them all is durable. Only then does the stream's synced mark pass the delta, and parity acknowledges
//! it; a heartbeat it acknowledges at once.
//!
//! **Epochs.** A member that was brought to a cut writes a snapshot behind the deltas that lead there: its epoch, its slot, its
//! request tables. It confirms the cut once that is durable (D-12).
//!
//! **Saving pages.** From time to time the driver has all that changed written to a page file, in rounds: [`Member::begin_save`] takes note of the
//! pages that changed until now, and writes a snapshot; [`Member::take_images`] copies them out, some at a time, each as it is then. An image may be
//! written to the page file once every record that was handed over before it was copied is durable (D-5), and
//! [`Member::saved`] says that it was. A snapshot is enough to start from once every delta before it is in a page that was saved, and synced by every listed
//! member (D-8): nothing before that record is needed any more ([`Member::needed_from`]). Parity applies late, so that is often a snapshot of the round before.

use staves_model::GroupId;
use staves_model::mutant::{Mutant, planted};
use staves_model::{Epoch, Label, MemberSlot, Time};
use staves_wire::group::{GroupMessage, MemberRecord, MemberSnapshot, SnapshotStream};

use crate::member::{Member, ctx};
use crate::on_disk::{ImageBytes, SNAPSHOTS_MAX, SaveLimits, SaveRound, SavedPages, SyncMark};
use crate::page_set::PageSet;
use crate::state::{Ctx, Effects, MemberState};
use crate::table::PageTable;

/// Pages that a member with too many in memory lets go at once, at least and at most.
const LET_GO_MIN: u32 = 64;
const LET_GO_MAX: u32 = 512;

impl Member {
    /// Hands over what was taken in since the last time.
    pub(crate) fn hand_over(&mut self, out: &mut Effects) {
        if let Some(state) = &mut self.state {
            state.hand_over(self.id, &mut self.records, out);
        }
    }

    /// The first so many records that this member handed over are durable.
    pub(crate) fn journal_synced(&mut self, now: Time, upto: u64, out: &mut Effects) {
        let ctx = ctx!(self, now);
        if let Some(state) = &mut self.state {
            state.journal_synced(&ctx, upto, out);
        }
    }

    /// Returns whether it keeps its bytes on a disk.
    pub fn is_durable(&self) -> bool {
        self.state.as_ref().is_some_and(|s| s.disk.is_some())
    }

    /// The records that it has handed over, in this life of its node.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Labels of each of its pages: one for each stream that they carry. `None` if it is no member.
    pub fn columns(&self) -> Option<usize> {
        self.state.as_ref().map(|s| s.shape().columns())
    }

    /// The number of pages that changed since the last round of saving began, or are still to be copied out in it.
    pub fn unsaved(&self) -> u32 {
        self.state.as_ref().map_or(0, |s| {
            let round = s.disk.as_ref().and_then(|disk| disk.round.as_ref());
            s.table.changed().map_or(0, PageSet::len) + round.map_or(0, |round| round.pages.len())
        })
    }

    /// Returns whether it has every page, and waits to be complete until all are saved.
    pub fn wants_save(&self) -> bool {
        let state = self.state.as_ref();
        state.is_some_and(|s| {
            let fills = s.disk.as_ref().is_some_and(|disk| !disk.filled);
            fills && s.table.absent_count() == 0
        })
    }

    /// Begins a round of saving: what changed until now will be copied out, and a snapshot leaves with `out` if something has changed since the last one, or the journal
    /// is to let go of that (`for_room`). The number of the last record of this member; `None` if there is nothing to keep.
    pub fn begin_save(&mut self, for_room: bool, out: &mut Effects) -> Option<u64> {
        self.hand_over(out);
        let number = self.records + 1;
        let state = self.state.as_mut().filter(|s| s.installed == s.epoch)?;
        state.begin_save(number, for_room)?;
        self.hand_over(out);
        Some(self.records)
    }

    /// Copies out some of the pages of a round, each as it is now: it may be written once all [`records`](Self::records) of now are durable. `None` if no round is under way, or all of its pages were copied out.
    pub fn take_images(&mut self, most: SaveLimits<'_>, out: &mut Effects) -> Option<SavedPages> {
        self.hand_over(out);
        self.state.as_mut()?.take_images(most)
    }

    /// The pages that were copied out last are durable in the page file.
    pub fn saved(&mut self) {
        if let Some(state) = &mut self.state {
            state.saved();
        }
    }

    /// The pages that were copied out could not be written: they count as changed.
    pub fn not_saved(&mut self, pages: impl Iterator<Item = u32>) {
        if let Some(state) = &mut self.state {
            if let Some(disk) = &mut state.disk
                && let Some(round) = disk.round.take()
            {
                state.table.mark_changed(round.pages);
            }
            let mut set = PageSet::default();
            pages.for_each(|page| set.insert(page));
            state.table.mark_changed(set);
        }
    }

    /// Lets the memory of up to `most` pages go that were not used of late and are in the page file as they are. How many went.
    pub fn let_go(&mut self, most: u32) -> u32 {
        let mut gone = 0;
        let mut formers = vec![self.old.as_mut()];
        if let Some(state) = &mut self.state {
            formers.push(state.old.as_mut());
            let round = state.disk.as_ref().and_then(|disk| disk.round.as_ref());
            gone = state.table.let_go(most, round.map(|round| &round.all));
        }
        for former in formers.into_iter().flatten() {
            gone += former.let_go_of_former(most - gone);
        }
        gone
    }

    /// Lets some go if far more pages are in memory than may be: the driver, which looks at all members, does not keep up.
    #[inline]
    pub fn let_go_beyond(&mut self) {
        let residency = self.options.kept_on.as_ref().map(|on| &on.residency);
        let beyond = residency.map_or(0, |residency| residency.beyond());
        if beyond > 0 && self.let_go(beyond.clamp(LET_GO_MIN, LET_GO_MAX)) == 0 {
            // All of them were used of late.
            self.let_go(LET_GO_MIN);
        }
    }

    /// The newest of its records, a snapshot, before which none is needed any more (D-8), if one is new since the last time.
    pub fn needed_from(&mut self) -> Option<u64> {
        self.state.as_mut()?.needed_from()
    }
}

impl MemberState {
    /// The table of a member that is not one any more. Pages that were being saved count as changed.
    pub(crate) fn into_former(self) -> PageTable {
        let mut table = self.table;
        if let Some(round) = self.disk.and_then(|disk| disk.round) {
            table.mark_changed(round.all);
        }
        table
    }

    fn hand_over(&mut self, group: GroupId, records: &mut u64, out: &mut Effects) {
        let (shape, is_open) = (self.shape(), self.open && self.installed == self.epoch);
        let Some(disk) = &mut self.disk else {
            return;
        };
        for (stream, s) in self.streams.iter().enumerate() {
            if s.prefix <= disk.recorded[stream] || !shape.carries(stream) {
                continue;
            }
            for delta in s.log.from(disk.recorded[stream] + 1) {
                *records += 1;
                // A cut counts as synced by all once its epoch has opened.
                let purgeable = if is_open { s.purgeable } else { 0 };
                let (stream, delta) = (stream as u8, delta.clone());
                let record = MemberRecord::Delta {
                    stream,
                    purgeable,
                    delta,
                };
                out.records.push((group, record));
            }
            disk.recorded[stream] = s.prefix;
            let seq = s.prefix;
            disk.under_way
                .push_back((*records, SyncMark::Deltas { stream, seq }));
        }
        if std::mem::take(&mut disk.wants_snapshot) {
            *records += 1;
            disk.under_way
                .push_back((*records, SyncMark::Snapshot(self.installed)));
            let snapshot = MemberRecord::Snapshot(self.snapshot());
            out.records.push((group, snapshot));
        }
    }

    fn snapshot(&self) -> MemberSnapshot {
        let disk = self.disk.as_ref();
        let stream = |s: &crate::stream::Stream| SnapshotStream {
            prefix: s.prefix,
            requests: s.requests.dump(),
        };
        MemberSnapshot {
            join: disk.map_or(Epoch(0), |disk| disk.join),
            epoch: self.installed,
            whole: disk.is_some_and(|disk| disk.whole),
            slot: self.slot,
            view: self.view.clone(),
            reserved_extents: self.table.pages().reserved(),
            copied: 0,
            streams: self.streams.iter().map(stream).collect(),
        }
    }

    fn journal_synced(&mut self, ctx: &Ctx<'_>, upto: u64, out: &mut Effects) {
        let Some(disk) = &mut self.disk else {
            return;
        };
        let mut streams = 0u64;
        while let Some((number, mark)) = disk.under_way.front().copied()
            && number <= upto
        {
            disk.under_way.pop_front();
            match mark {
                SyncMark::Deltas { stream, seq } => {
                    let s = &mut self.streams[stream];
                    s.synced = s.synced.max(seq);
                    assert!(s.synced <= s.prefix, "synced beyond what was received");
                    streams |= 1 << stream;
                }
                SyncMark::Snapshot(epoch) => disk.synced_epoch = disk.synced_epoch.max(epoch),
            }
        }
        self.confirm_cut(ctx, out);
        if self.shape().is_data() {
            return self.raise_stable(ctx);
        }
        for stream in (0..self.streams.len()).filter(|stream| streams & 1 << stream != 0) {
            self.acknowledge_synced(ctx, stream, out);
        }
    }

    // Rule 10, once the snapshot is durable.
    fn confirm_cut(&mut self, ctx: &Ctx<'_>, out: &mut Effects) {
        let (epoch, installed, slot) = (self.epoch, self.installed, self.slot);
        let Some(disk) = &mut self.disk else {
            return;
        };
        if installed == epoch
            && disk.has_synced(epoch)
            && let Some(coordinator) = disk.owed_synced.take()
        {
            let able = true;
            let message = GroupMessage::Synced { slot, able };
            out.sends.push(ctx.addressed(coordinator, epoch, message));
        }
    }

    fn acknowledge_synced(&mut self, ctx: &Ctx<'_>, stream: usize, out: &mut Effects) {
        let s = &self.streams[stream];
        let is_all = s.synced == s.prefix;
        if self.installed != self.epoch || !self.open {
            return;
        }
        let owed = self.disk.as_mut().and_then(|disk| match is_all {
            true => disk.owed_acks[stream].take(),
            false => disk.owed_acks[stream],
        });
        if let Some(owed) = owed {
            let said = (true, owed.last, owed.asked);
            let epoch = self.epoch;
            self.acknowledge(ctx, owed.to, epoch, stream, said, owed.clock, out);
        }
    }

    fn begin_save(&mut self, number: u64, for_room: bool) -> Option<()> {
        let whole = self.table.absent_count() == 0;
        let of = |mark: fn(&crate::stream::Stream) -> u64| self.streams.iter().map(mark).collect();
        let (applied, prefixes): (Vec<u64>, Vec<u64>) = (of(|s| s.applied), of(|s| s.prefix));
        let disk = self.disk.as_mut()?;
        let mut pages = self.table.take_changed();
        if let Some(before) = disk.round.take() {
            pages.add(before.pages);
        }
        // While what came before those that there are is not synced by all, or in no page, one more frees nothing, and takes room.
        let is_new = disk.snapshots.back().is_none_or(|(_, at)| *at != prefixes);
        let is_wanted = for_room || disk.last_snapshot.as_ref() != Some(&prefixes);
        if is_new && is_wanted && disk.snapshots.len() < SNAPSHOTS_MAX {
            disk.wants_snapshot = true;
            disk.last_snapshot = Some(prefixes.clone());
            disk.snapshots.push_back((number, prefixes));
        }
        disk.round = Some(SaveRound {
            all: pages.clone(),
            pages,
            applied,
            whole,
            is_out: false,
            forgets: false,
        });
        Some(())
    }

    fn take_images(&mut self, most: SaveLimits<'_>) -> Option<SavedPages> {
        let shape = self.shape();
        let table = &self.table;
        let disk = self.disk.as_mut()?;
        let round = disk.round.as_mut().filter(|round| !round.is_out)?;
        let mut saved = SavedPages {
            slot: if shape.m == 1 {
                MemberSlot(0)
            } else {
                shape.bucket()
            },
            join: disk.join,
            ..SavedPages::default()
        };
        let mut copies = 0;
        while saved.pages.len() + saved.forgotten.len() < most.pages
            && copies < most.copies
            && let Some(page) = round.pages.pop()
        {
            if !table.is_here(page) {
                saved.forgotten.push(page);
                continue;
            }
            let labels = table.labels(page);
            let placed = most.placed.get(&page);
            let is_placed = |of: &Label| labels == [*of] || planted(Mutant::PlacedOfAnyLabel);
            let bytes = match placed.is_some_and(is_placed) {
                true => ImageBytes::Placed,
                false => {
                    copies += 1;
                    table.image(page)
                }
            };
            saved.pages.push((page, labels, bytes));
        }
        round.forgets |= !saved.forgotten.is_empty();
        if round.pages.is_empty() {
            round.is_out = true;
            let all = round.whole && !round.forgets && table.absent_count() == 0;
            // A page that cannot be read is missing, and is found so by the next start, too, as long as it has its row.
            saved.is_whole = Some(all || (disk.filled && !round.forgets));
        }
        Some(saved)
    }

    fn saved(&mut self) {
        let all_here = self.table.absent_count() == 0;
        let Some(disk) = &mut self.disk else {
            return;
        };
        if let Some(round) = disk.round.take_if(|round| round.is_out) {
            disk.filled = !round.forgets && (disk.filled || (round.whole && all_here));
            disk.saved = round.applied;
        }
    }

    fn needed_from(&mut self) -> Option<u64> {
        let (shape, is_open) = (self.shape(), self.open && self.installed == self.epoch);
        let disk = self.disk.as_mut().filter(|_| is_open)?;
        let mut found = None;
        while let Some((number, prefixes)) = disk.snapshots.front() {
            let mut streams = prefixes
                .iter()
                .zip(&disk.saved)
                .zip(&self.streams)
                .enumerate();
            let is_enough = streams.all(|(at, ((prefix, saved), s))| {
                let synced = s.purgeable >= *prefix;
                let saved = saved >= prefix || planted(Mutant::TruncatedUnapplied);
                let is_other = at > 0 && planted(Mutant::TruncatedByFirstStream);
                (synced && saved) || !shape.carries(at) || is_other
            });
            if !is_enough {
                break;
            }
            found = Some(*number);
            disk.snapshots.pop_front();
        }
        found
    }
}
