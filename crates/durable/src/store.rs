//! The records of all members on their way to the journal, and the pages that are kept of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use staves_disk::{JournalError, Located, PageFile, RecordBytes};
use staves_group::RecoveredMember;
use staves_model::GroupId;
use staves_model::mutant::{Mutant, planted};
use staves_wire::group::{JournalRecord, MemberRecord};

use crate::placed::{PLACED_PAGES_MIN, PlacedPages, split};

/// So many groups may have records that find no room before those of further ones are not tried.
const BLOCKED_MAX: usize = 64;

/// See [`room_of`].
const COPY_SPARE: u64 = 16 << 10;

/// Appends a record to the journal, perhaps into its reserved room; its number.
pub type AppendRecord<'a> = dyn FnMut(&RecordBytes<'_>, bool) -> Result<u64, JournalError> + 'a;

/// The state of a disk, beside its journal and its devices.
#[derive(Debug)]
pub struct DiskStore {
    pub(crate) pages: PageFile,
    members: BTreeMap<GroupId, MemberRecords>,
    /// Records that were appended and are not durable yet.
    under_way: VecDeque<AppendedRecord>,
    /// Records for which the journal had no room.
    waiting: VecDeque<(GroupId, u64, MemberRecord)>,
    lives: u64,
    /// Pages that were found to be bad, where they lay then.
    pub(crate) bad: BTreeMap<(GroupId, u32), Located>,
    /// Groups whose member is gone, and the record that says so.
    gone: BTreeMap<GroupId, u64>,
    pub(crate) placed: PlacedPages,
    pub(crate) placed_pages_min: usize,
}

#[derive(Clone, Copy, Debug)]
struct AppendedRecord {
    number: u64,
    group: GroupId,
    life: u64,
    /// Of the member's records.
    count: u64,
}

/// A member of this process, and its records.
#[derive(Clone, Debug, Default)]
struct MemberRecords {
    /// A member that is made anew begins to count its records anew.
    life: u64,
    /// A bucket has taken it over, and is told what is durable of it.
    is_served: bool,
    appended: u64,
    synced: u64,
    /// The first record of the journal that a start needs.
    needed_from: Option<u64>,
    /// Snapshots that a start may come to begin with: which of the member's records each is, and its number in the journal.
    snapshots: VecDeque<(u64, u64)>,
    /// Data buckets of its group, once they are known: with one of them its deltas have the bytes of its pages.
    width: Option<usize>,
    /// The process has no such member any more.
    ended: bool,
    /// A round of saving is under way.
    is_saved: bool,
    /// All that a start needs of it is being written again.
    copy: Option<CopyForward>,
}

/// Records that take the place of all before them, once the last is durable.
#[derive(Clone, Copy, Debug)]
struct CopyForward {
    /// The place of that among the member's records.
    last: u64,
    /// The number of the first in the journal, once it is there.
    first: Option<u64>,
}

/// The room that a member's records take in the journal if they are written again at once, and some more for the ends of batches.
pub fn room_of(member: &RecoveredMember) -> u64 {
    let bytes = member.copy_bytes() as u64;
    bytes + bytes / 16 + COPY_SPARE
}

impl DiskStore {
    pub(crate) fn new(pages: PageFile) -> DiskStore {
        DiskStore {
            pages,
            members: BTreeMap::new(),
            under_way: VecDeque::new(),
            waiting: VecDeque::new(),
            lives: 0,
            bad: BTreeMap::new(),
            gone: BTreeMap::new(),
            placed: PlacedPages::default(),
            placed_pages_min: PLACED_PAGES_MIN,
        }
    }

    /// The page file.
    pub fn page_file(&self) -> &PageFile {
        &self.pages
    }

    pub(crate) fn page_file_mut(&mut self) -> &mut PageFile {
        &mut self.pages
    }

    /// A bucket takes a group's member over, or makes it: it begins to count its records.
    pub fn begin(&mut self, group: GroupId) {
        self.begin_as(group, None);
    }

    /// A start has found a member, which nobody serves yet.
    pub(crate) fn found(&mut self, group: GroupId, member: &RecoveredMember) {
        self.begin_as(group, Some(member.needed_from()));
        if let Some(records) = self.members.get_mut(&group) {
            records.width = Some(member.view().m.into());
        }
    }

    fn begin_as(&mut self, group: GroupId, needed_from: Option<u64>) {
        self.lives += 1;
        let is_served = needed_from.is_none();
        let former = self.members.get(&group);
        // Until it is durable that the former one is gone, a start may find it, and needs all of it.
        let needed_from = needed_from.or_else(|| former.and_then(|member| member.needed_from));
        let member = MemberRecords {
            life: self.lives,
            is_served,
            needed_from,
            width: former.and_then(|member| member.width),
            ..MemberRecords::default()
        };
        self.placed.forget(group);
        self.members.insert(group, member);
    }

    /// Writes again all that a start needs of a member that nobody has taken over ([`staves_group::RecoveredMember::copy_forward`]), so that the journal can let go
    /// of what lies further back; how many of its records are to be durable for that. `None` if it is under way, or there is no such member. There must be
    /// room for all of them ([`room_of`]): in a journal that is full of half a copy nothing could be let go any more.
    ///
    /// # Errors
    /// As [`hand_over`](Self::hand_over).
    pub fn copy_forward(
        &mut self,
        group: GroupId,
        records: Vec<MemberRecord>,
        append: &mut AppendRecord<'_>,
    ) -> Result<Option<u64>, JournalError> {
        let member = self.members.get_mut(&group);
        let Some(member) = member.filter(|member| member.copy.is_none() && !member.ended) else {
            return Ok(None);
        };
        let last = member.appended + records.len() as u64;
        member.copy = Some(CopyForward { last, first: None });
        let records = records.into_iter().map(|record| (group, record));
        self.hand_over(records, append).map(|()| Some(last))
    }

    /// A member that was begun is given up, with all that is kept of it.
    ///
    /// # Errors
    /// As [`hand_over`](Self::hand_over).
    pub fn end(
        &mut self,
        group: GroupId,
        append: &mut AppendRecord<'_>,
    ) -> Result<(), JournalError> {
        match self.members.get_mut(&group) {
            Some(member) if !member.ended => member.ended = true,
            _ => return Ok(()),
        }
        self.hand_over([(group, MemberRecord::Gone)], append)
    }

    /// Takes records of members that were begun, and appends what the journal has room for.
    ///
    /// # Errors
    /// The journal has failed, or a record is larger than it takes: nothing more becomes durable.
    pub fn hand_over(
        &mut self,
        records: impl IntoIterator<Item = (GroupId, MemberRecord)>,
        append: &mut AppendRecord<'_>,
    ) -> Result<(), JournalError> {
        for (group, record) in records {
            let life = self.members.get(&group).map(|member| member.life);
            debug_assert!(life.is_some(), "a record of {group}, which was not begun");
            self.waiting
                .push_back((group, life.unwrap_or_default(), record));
        }
        self.append_waiting(append)
    }

    /// Appends what waited, as far as the journal has room now.
    ///
    /// # Errors
    /// As [`hand_over`](Self::hand_over).
    pub fn append_waiting(&mut self, append: &mut AppendRecord<'_>) -> Result<(), JournalError> {
        let mut left = VecDeque::new();
        let mut blocked = BTreeSet::new();
        let mut failed = None;
        while let Some((group, life, record)) = self.waiting.pop_front() {
            let passed = blocked.len() > BLOCKED_MAX && !self.frees(group, &record);
            if passed || failed.is_some() || blocked.contains(&group) {
                blocked.insert(group);
                left.push_back((group, life, record));
                continue;
            }
            let record = JournalRecord { group, record };
            let member = self.members.get(&group);
            let is_plain = member.is_some_and(|member| member.width == Some(1));
            let least = is_plain.then_some(self.placed_pages_min);
            let split = split(&record, least, &mut self.pages);
            // A record that is to be let go has others before it, which are needed until it is there.
            let frees = self.frees(group, &record.record);
            match append(&split.bytes(), frees) {
                Ok(number) => {
                    self.appended(number, group, life, &record.record);
                    self.placed.appended(number, group, &split);
                }
                Err(error) => {
                    let blocks = split.blocks.iter();
                    blocks.for_each(|block| self.pages.release(block.place));
                    // Those of other groups may be let in.
                    blocked.insert(group);
                    left.push_back((group, life, record.record));
                    let waits = matches!(error, JournalError::Full { .. } | JournalError::Busy);
                    failed = Some(error).filter(|_| !waits);
                }
            }
        }
        left.append(&mut self.waiting);
        self.waiting = left;
        failed.map_or(Ok(()), Err)
    }

    /// A record with which, or behind which, others can be let go: the reserved room of the journal is for those.
    fn frees(&self, group: GroupId, record: &MemberRecord) -> bool {
        let member = self.members.get(&group);
        let frees =
            |member: &MemberRecords| member.is_saved || member.ended || member.copy.is_some();
        matches!(record, MemberRecord::Gone) || member.is_some_and(frees)
    }

    /// A round of saving of a member begins: its records may fill the room that is reserved, until it is over.
    pub(crate) fn set_saved(&mut self, group: GroupId, is_saved: bool) {
        if let Some(member) = self.members.get_mut(&group) {
            member.is_saved = is_saved;
        }
    }

    fn appended(&mut self, number: u64, group: GroupId, life: u64, record: &MemberRecord) {
        let member = self.members.get_mut(&group);
        let Some(member) = member.filter(|member| member.life == life) else {
            return; // of one that was made anew since, or is gone
        };
        member.appended += 1;
        let count = member.appended;
        if let Some(copy) = &mut member.copy {
            copy.first.get_or_insert(number);
            if planted(Mutant::CopyLetGoToItsEnd) {
                copy.first = Some(number);
            }
        }
        self.under_way.push_back(AppendedRecord {
            number,
            group,
            life,
            count,
        });
        match record {
            MemberRecord::Snapshot(snapshot) => {
                member.width = Some(snapshot.view.m.into());
                member.snapshots.push_back((count, number));
                member.needed_from.get_or_insert(number);
                self.gone.remove(&group);
            }
            MemberRecord::Gone => {
                self.gone.insert(group, number);
                member.snapshots.clear();
            }
            MemberRecord::Delta { .. } | MemberRecord::Copied { .. } => {}
        }
    }

    /// Records wait for room.
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// All records of the journal up to this one are durable: the members that are to be told, and how many of their records are.
    pub fn synced(&mut self, number: u64) -> Vec<(GroupId, u64)> {
        let mut told: BTreeMap<GroupId, u64> = BTreeMap::new();
        while let Some(first) = self.under_way.front().copied()
            && first.number <= number
        {
            self.under_way.pop_front();
            if let Some(member) = self.members.get_mut(&first.group)
                && member.life == first.life
            {
                member.synced = first.count;
                if let Some(copy) = member.copy.take_if(|copy| copy.last <= first.count) {
                    member.needed_from = copy.first.or(member.needed_from);
                }
                if member.is_served {
                    told.insert(first.group, first.count);
                }
            }
        }
        told.into_iter().collect()
    }

    /// The life of a member: it ends when its records are counted anew.
    pub fn life_of(&self, group: GroupId) -> Option<u64> {
        self.members.get(&group).map(|member| member.life)
    }

    /// The journal cannot let go of its oldest records before it can of this member's.
    pub fn is_oldest(&self, group: GroupId) -> bool {
        let first = self.needed_from_of(group);
        first.is_some() && first == self.needed_from()
    }

    /// The number of a member's records that are durable.
    pub fn synced_of(&self, group: GroupId) -> u64 {
        self.members.get(&group).map_or(0, |member| member.synced)
    }

    /// Groups that have a member here.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.members.keys().copied()
    }

    /// The first record of a member that a start needs; `None` if there is none.
    pub fn needed_from_of(&self, group: GroupId) -> Option<u64> {
        self.members.get(&group)?.needed_from
    }

    /// Nothing of a member before this one of its records, a snapshot, is needed any more ([`staves_group::Member::needed_from`]).
    pub fn release(&mut self, group: GroupId, before: u64) {
        let Some(member) = self.members.get_mut(&group) else {
            return;
        };
        while let Some((count, number)) = member.snapshots.front().copied()
            && count <= before
        {
            member.snapshots.pop_front();
            if count == before {
                member.needed_from = Some(number);
            }
        }
    }

    /// The first record of the journal that a start needs, if any member is here; a record of a member that waits is later than all.
    pub fn needed_from(&self) -> Option<u64> {
        let members = self.members.values();
        members.filter_map(|member| member.needed_from).min()
    }

    /// Groups whose member is gone, as is durable: what is kept of their pages may go.
    pub(crate) fn take_gone(&mut self, synced: u64) -> Vec<GroupId> {
        let is_durable = |(_, number): &(&GroupId, &u64)| **number <= synced;
        let gone = self.gone.iter().filter(is_durable);
        let gone: Vec<GroupId> = gone.map(|(group, _)| *group).collect();
        for group in &gone {
            let number = self.gone.remove(group);
            let of = self.members.get_mut(group);
            if let Some(member) = of.filter(|member| member.needed_from < number) {
                member.needed_from = None;
            }
            if self.members.get(group).is_some_and(|member| member.ended) {
                self.members.remove(group);
            }
        }
        gone
    }
}
