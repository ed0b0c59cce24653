//! A start from disk (D-10): members as the records of a journal have them.
//!
//! Records come in the order of the journal. A snapshot says where its member stood, and drops what its streams had beyond; a delta is the next
//! of its stream. What comes of a member before its first snapshot is not needed: that is how a journal begins whose older records were let
//! go. A member that nobody has taken over may have its log and a snapshot written again, so that those before can be let go
//! ([`RecoveredMember::copy_forward`]). A member that is made of it has promised nobody anything it remembers, so it counts as having promised now, and it serves, acknowledges and
//! promises nothing until an open map lists this life of its node.

mod copied;
mod held;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use staves_model::mutant::{Mutant, planted};
use staves_model::{Epoch, Group, GroupId, MemberId, MemberSlot, Time};
use staves_store::{Arena, Budget, EXTENT_PAGES, Extent};
use staves_wire::DecodeError;
use staves_wire::group::{Delta, JournalRecord, MemberRecord, MemberSnapshot};

use self::copied::CopiedDelta;
use crate::backfill::Backfill;
use crate::code::fits;
use crate::kept_page::{KeptBytes, KeptPage};
use crate::member::Member;
use crate::on_disk::OnDisk;
use crate::peer::Peer;
use crate::requests::RequestTable;
use crate::reservation::Reservation;
use crate::state::{MemberState, Options};
use crate::stream::{CUT_MAX, Stream};
use crate::table::{PAGES_MAX, PageTable, Shape, touched, well_formed};

/// A journal that cannot be used, or a member of it.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// A record is none.
    #[error("the record does not decode: {0}")]
    Decode(#[from] DecodeError),
    /// A record does not follow those before it.
    #[error("the record of group {group} {what}")]
    Contradiction {
        /// The group.
        group: GroupId,
        /// The contradiction.
        what: String,
    },
    /// There is less memory than its pages need.
    #[error(
        "its pages need {extents} extents of 256 KiB, and this node has no room for them: {room}"
    )]
    NoMemory {
        /// Extents that are needed.
        extents: u32,
        /// The room of its pool and its disk, in words.
        room: String,
    },
}

/// The members that a journal has.
#[derive(Default)]
pub struct Recovery {
    members: BTreeMap<GroupId, RecoveredMember>,
    /// Copied deltas since the last other record of the member.
    copied: BTreeMap<GroupId, Vec<CopiedDelta>>,
}

/// One of them: where its last snapshot says that it stood, and what it took in since.
pub struct RecoveredMember {
    snapshot: MemberSnapshot,
    streams: Vec<Stream>,
    from: u64,
    /// Extents that are its own already ([`RecoveredMember::hold`]).
    held: Vec<Extent>,
}

impl Recovery {
    /// Takes the next record, which has this number in the journal.
    ///
    /// # Errors
    /// It is none, or does not follow those before it.
    pub fn take(&mut self, number: u64, bytes: Bytes) -> Result<(), RecoveryError> {
        let JournalRecord { group, record } = JournalRecord::decode(bytes)?;
        let wrong = |what: String| RecoveryError::Contradiction { group, what };
        // Those without their snapshot were cut off by a crash, and what they are copies of is still there.
        let copied = match record {
            MemberRecord::Copied { .. } => Vec::new(),
            _ => self.copied.remove(&group).unwrap_or_default(),
        };
        match record {
            MemberRecord::Gone => {
                self.members.remove(&group);
            }
            MemberRecord::Copied {
                stream,
                purgeable,
                delta,
            } => self.copied.entry(group).or_default().push(CopiedDelta {
                number,
                stream: stream.into(),
                purgeable,
                delta,
            }),
            MemberRecord::Snapshot(snapshot) => {
                let mut before = self.members.remove(&group);
                if snapshot.copied > 0 {
                    let again = RecoveredMember::of_copied(copied, &snapshot);
                    before = again.map_err(wrong)?;
                }
                let member = RecoveredMember::after(before, snapshot, number).map_err(wrong)?;
                self.members.insert(group, member);
            }
            MemberRecord::Delta {
                stream,
                purgeable,
                delta,
            } => {
                if let Some(member) = self.members.get_mut(&group) {
                    let taken = member.take(stream.into(), purgeable, delta);
                    taken.map_err(wrong)?;
                }
            }
        }
        Ok(())
    }

    /// The members, by group.
    pub fn into_members(self) -> BTreeMap<GroupId, RecoveredMember> {
        self.members
    }
}

impl RecoveredMember {
    fn after(
        before: Option<RecoveredMember>,
        snapshot: MemberSnapshot,
        number: u64,
    ) -> Result<RecoveredMember, String> {
        let width = usize::from(snapshot.view.m);
        let sound = snapshot.streams.len() == width
            && fits(width, snapshot.view.members.len())
            && snapshot.slot.index() < snapshot.view.members.len()
            && snapshot.streams.iter().all(|s| s.prefix <= CUT_MAX);
        if !sound {
            return Err("has a snapshot that contradicts itself".into());
        }
        let same = |member: &RecoveredMember| member.snapshot.join == snapshot.join;
        let before = before.filter(same);
        let from = before.as_ref().map_or(number, |member| member.from);
        let logs = before.map(|member| member.streams.into_iter());
        let mut logs = logs.into_iter().flatten();
        let mut streams = Vec::with_capacity(width);
        for at in &snapshot.streams {
            let mut stream = Stream::at_cut(at.prefix, RequestTable::load(&at.requests));
            if let Some(mut log) = logs.next() {
                log.drop_beyond(at.prefix);
                if log.log.highest().unwrap_or(at.prefix) != at.prefix {
                    return Err(format!(
                        "has a snapshot at delta {}, which is not there",
                        at.prefix
                    ));
                }
                stream.purgeable = log.purgeable.min(at.prefix);
                stream.log = log.log;
            }
            streams.push(stream);
        }
        Ok(RecoveredMember {
            snapshot,
            streams,
            from,
            held: Vec::new(),
        })
    }

    fn take(&mut self, stream: usize, purgeable: u64, delta: Delta) -> Result<(), String> {
        let (width, seq) = (self.streams.len(), delta.label.seq);
        let Some(s) = self.streams.get_mut(stream) else {
            return Err(format!("is of stream {stream} of {width}"));
        };
        if !well_formed(&delta, width, self.snapshot.epoch) {
            return Err(format!(
                "has a delta {} that is not well formed",
                delta.label.seq
            ));
        }
        if seq != s.prefix + 1 || !s.receive(delta, usize::MAX) {
            return Err(format!(
                "has delta {seq} behind {} of stream {stream}",
                s.prefix
            ));
        }
        s.purgeable = s.purgeable.max(purgeable.min(seq));
        Ok(())
    }

    /// The epoch to whose cut it was brought last.
    pub fn epoch(&self) -> Epoch {
        self.snapshot.epoch
    }

    /// The epoch in which it joined: pages of an earlier membership do not count.
    pub fn join(&self) -> Epoch {
        self.snapshot.join
    }

    /// It joined with every page.
    pub fn is_whole(&self) -> bool {
        self.snapshot.whole
    }

    /// Its member slot.
    pub fn slot(&self) -> MemberSlot {
        self.snapshot.slot
    }

    /// The group as it last stood.
    pub fn view(&self) -> &Arc<Group> {
        &self.snapshot.view
    }

    /// The number of the first record of it that was found.
    pub fn needed_from(&self) -> u64 {
        self.from
    }
}

impl Member {
    /// A node's part in a group as its disk has it, in a new life of the node, which begins now. It has every page but those that are bad.
    ///
    /// # Errors
    /// There is no memory for it, or its log needs more than it had reserved.
    #[allow(clippy::too_many_arguments)]
    pub fn recover(
        options: Options,
        id: GroupId,
        me: MemberId,
        arena: Arc<Arena>,
        budget: Arc<Budget>,
        now: Time,
        recovered: RecoveredMember,
        kept: &mut dyn Iterator<Item = KeptPage>,
    ) -> Result<Member, RecoveryError> {
        let mut member = Member::new(options, id, me, arena, budget);
        let RecoveredMember {
            snapshot,
            streams,
            held,
            ..
        } = recovered;
        let mut pages = member.new_pages(snapshot.join);
        pages.adopt(held);
        let shape = Shape {
            m: streams.len(),
            slot: snapshot.slot,
        };
        let mut table = PageTable::whole(pages, shape.columns());
        fill(&mut table, snapshot.join, kept)?;
        table.note_changes();
        let prefixes: Vec<u64> = streams.iter().map(|s| s.prefix).collect();
        let disk = OnDisk::recovered(snapshot.join, snapshot.whole, snapshot.epoch, prefixes);
        let mut state = MemberState {
            slot: snapshot.slot,
            epoch: snapshot.epoch,
            installed: snapshot.epoch,
            open: false,
            peers: vec![Peer::default(); snapshot.view.members.len()],
            view: snapshot.view,
            promised: vec![Time::ZERO; streams.len()],
            streams,
            journal: member.options.journal.clone(),
            disk: Some(disk),
            table,
            directory_lease: Time::ZERO,
            sealing: Epoch(0),
            pending_seal: None,
            backfill: Backfill::default(),
            want_extents: 0,
            reservation: Reservation::default(),
            stalled: false,
            ticked_at: now,
            old: None,
        };
        state.redo()?;
        state.want_extents = state.table.pages().reserved();
        state.restart(now, member.options.lease);
        member.state = Some(state);
        member.count_logs();
        Ok(member)
    }
}

// Pages of an earlier membership do not count (D-16).
fn fill(
    table: &mut PageTable,
    join: Epoch,
    kept: &mut dyn Iterator<Item = KeptPage>,
) -> Result<(), RecoveryError> {
    for kept in kept.filter(|kept| kept.join == join && kept.page < PAGES_MAX) {
        if kept.bytes == KeptBytes::Bad {
            table.set_absent(kept.page);
            continue;
        }
        if table.install_kept(&kept).is_err() {
            reserve_more(table)?;
            let installed = table.install_kept(&kept);
            installed.map_err(|_| no_memory(table))?;
        }
    }
    Ok(())
}

fn reserve_more(table: &mut PageTable) -> Result<(), RecoveryError> {
    let extents = table.pages().reserved() + 1;
    match table.pages_mut().reserve_kept(extents) {
        true => Ok(()),
        false => Err(no_memory(table)),
    }
}

fn no_memory(table: &PageTable) -> RecoveryError {
    RecoveryError::NoMemory {
        extents: table.pages().reserved() + 1,
        room: table.pages().room(),
    }
}

impl MemberState {
    /// Runs the logs into the pages: each page takes what its labels say that it lacks (D-6). The cut of the next epoch is not below what is here.
    fn redo(&mut self) -> Result<(), RecoveryError> {
        let (shape, prefixes) = (self.shape(), self.prefixes());
        for (stream, s) in self.streams.iter_mut().enumerate() {
            let first = s.log.first().unwrap_or(s.prefix + 1);
            s.purgeable = s.purgeable.min(s.prefix).max(first - 1);
            s.stable = s.purgeable;
            s.synced = s.prefix;
            s.applied = s.prefix;
            if !shape.carries(stream) {
                continue;
            }
            for delta in s.log.all() {
                let (label, table) = (delta.label, &mut self.table);
                let mut pages = touched(&delta.runs);
                let newest = |page| table.labels(page).into_iter().max() >= Some(label);
                if planted(Mutant::RedoByNewestLabel) && pages.any(newest) {
                    continue;
                }
                if !table.reserve_for(&delta.runs) {
                    return Err(no_memory(table));
                }
                let applied =
                    table.apply(shape, stream, label, &delta.runs, &delta.bytes, &prefixes);
                applied.map_err(|_| no_memory(table))?;
            }
            // Nobody asks for what all have synced.
            s.purge(s.purgeable);
        }
        // With m > 1 a reservation bounds offsets: it reaches to the last page that was ever written. What is beyond is asked for again by who writes.
        let table = &mut self.table;
        let extents = match shape.m {
            1 => table.pages().used(),
            _ => table.end().div_ceil(EXTENT_PAGES),
        };
        match table.pages_mut().reserve_kept(extents) {
            true => Ok(()),
            false => Err(no_memory(table)),
        }
    }
}
