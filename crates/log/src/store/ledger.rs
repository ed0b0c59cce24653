//! The reasons why entries of a unit live.
//!
//! A checkpoint stands for all entries of its log before it, or before its base if it is made in parts, but for the records and map pages that are there then. So a scan makes the state of the
//! checkpoint, with what those have, and replays all entries after it. An entry dies at a checkpoint, and at no other time: a trim or a punch takes the
//! record to be there. Two kinds are kept for good, some 40
//! bytes each: that a log was forgotten, and that a record was deleted whose name nobody has taken since. Without them dead entries that still
//! lie in the pages would come to life.

use std::collections::{BTreeMap, BTreeSet};

use super::parts::PART_BYTES;
use super::stored::StoredEntry;
use crate::entry::Entry;
use crate::share::LogShare;
use crate::state::UnitState;
use crate::types::{DataPlace, LogId};

/// The bits of a place that are the offset in its data.
pub(crate) const OFFSET_BITS: u32 = 20;
/// Bytes of entries that only wait for a checkpoint, from which on there is one; more where the last one was large.
const PINNED_BYTES_MIN: usize = 4 << 10;
/// Bytes of the frame of a small entry.
const FRAME_BYTES: usize = 128;
/// Entries since the last checkpoint, from which on there is one.
const SINCE_MAX: usize = 16 << 10;

/// The number of the data that a place is in.
pub(crate) fn data_of(place: &DataPlace) -> u64 {
    place.at >> OFFSET_BITS
}

/// The owner of a checkpoint.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum CheckpointOf {
    Log(LogId),
    Name(String),
}

/// Data that records are in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct NamedData {
    entry: u64,
    /// Records that are not trimmed.
    records: u32,
}

/// The entries of one log, or of one record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct OwnerEntries {
    /// The last checkpoint; 0 for none.
    checkpoint: u64,
    checkpoint_bytes: usize,
    /// Entries after it, and the data of each; 0 for none.
    since: Vec<(u64, u64)>,
    /// Entries whose records, or whose map page, are gone, and the entry by which they went, which takes them to be there: they die at a checkpoint
    /// that stands for that one.
    later: Vec<(u64, u64)>,
    /// The parts of the last checkpoint.
    named: Vec<u64>,
    /// Parts that no checkpoint names yet, and their base.
    parts: (u64, Vec<u64>),
    /// Bytes that the next checkpoint releases, about.
    pinned: usize,
    /// The entries of map pages.
    pages: BTreeMap<u64, u64>,
    /// The entry by which the log was last forgotten; 0 for none. It stays, whatever checkpoints there are: they do not stand for what was
    /// forgotten before.
    forgotten: u64,
    /// The entry by which the log was last forgotten, or the record deleted.
    gone: u64,
}

impl OwnerEntries {
    fn push(&mut self, number: u64, bytes: usize) {
        self.since.push((number, 0));
        self.pinned += bytes;
    }

    fn is_due(&self) -> bool {
        let min = PINNED_BYTES_MIN.max(4 * self.checkpoint_bytes);
        self.pinned >= min || self.since.len() >= SINCE_MAX.max(self.checkpoint_bytes / 4)
    }
}

/// A checkpoint that was noted.
struct NotedCheckpoint<'a> {
    /// 0 for none: the log was forgotten.
    number: u64,
    bytes: usize,
    /// The last entry that it stands for.
    base: u64,
    parts: &'a [u64],
}

impl NotedCheckpoint<'_> {
    /// The end of all that was there.
    const GONE: NotedCheckpoint<'static> = NotedCheckpoint {
        number: 0,
        bytes: 0,
        base: u64::MAX,
        parts: &[],
    };
}

/// The reasons of all entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    data: BTreeMap<u64, NamedData>,
    owners: BTreeMap<CheckpointOf, OwnerEntries>,
    /// The entry that has the number of logs that were ever created here, and whether it is dead but for that.
    counter: (u64, bool),
    due: BTreeSet<CheckpointOf>,
    /// Logs whose checkpoint would be made in parts, and its bytes.
    large: BTreeMap<LogId, usize>,
    /// The highest number of data that an entry had.
    last_data: u64,
}

fn log_of(entry: &Entry) -> Option<LogId> {
    match entry {
        Entry::Seal { log, .. }
        | Entry::Start { log, .. }
        | Entry::Commit { log, .. }
        | Entry::Junk { log, .. }
        | Entry::Trim { log, .. }
        | Entry::Punch { log, .. }
        | Entry::Page { log, .. }
        | Entry::Prefix { log, .. }
        | Entry::Floor { log, .. }
        | Entry::Forget { log } => Some(*log),
        _ => None,
    }
}

/// The owner of an entry.
pub(crate) fn owner_of(entry: &StoredEntry) -> CheckpointOf {
    match entry {
        StoredEntry::Share(log, _) => CheckpointOf::Log(*log),
        StoredEntry::Record(_, record) => CheckpointOf::Name(record.name.clone()),
        StoredEntry::Part(of, ..) | StoredEntry::Parted(of, ..) => of.clone(),
        StoredEntry::Change(
            Entry::Create { name, .. }
            | Entry::Lead { name, .. }
            | Entry::Open { name, .. }
            | Entry::RecordTrim { name, .. }
            | Entry::Cursor { name, .. }
            | Entry::Retention { name, .. }
            | Entry::Delete { name },
        ) => CheckpointOf::Name(name.clone()),
        StoredEntry::Change(entry) => CheckpointOf::Log(log_of(entry).unwrap_or_default()),
    }
}

impl Ledger {
    /// The entry that has some data.
    pub(crate) fn entry_of_data(&self, data: u64) -> Option<u64> {
        self.data.get(&data).map(|named| named.entry)
    }

    /// The highest number of data that an entry had.
    pub(crate) fn last_data(&self) -> u64 {
        self.last_data
    }

    /// An owner whose checkpoint is due. It is given once.
    pub(crate) fn take_due(&mut self) -> Option<CheckpointOf> {
        self.due.pop_first()
    }

    /// True if the state of an entry is gone since.
    pub(crate) fn is_gone_since(&self, of: &CheckpointOf, base: u64) -> bool {
        self.owners.get(of).is_none_or(|owner| owner.gone > base)
    }

    /// True if a checkpoint is due.
    pub(crate) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// A scan has found records of an entry that a checkpoint stands for, but for those.
    pub(crate) fn found_records(&mut self, number: u64, data: u64, records: u32) {
        self.last_data = self.last_data.max(data);
        let entry = number;
        self.data.insert(data, NamedData { entry, records });
    }

    /// The same of a map page.
    pub(crate) fn found_page(&mut self, number: u64, log: LogId, page: u64) {
        let owner = self.owners.entry(CheckpointOf::Log(log)).or_default();
        owner.pages.insert(page, number);
    }

    /// The same of the entry by which a log was forgotten.
    pub(crate) fn found_forgotten(&mut self, number: u64, of: CheckpointOf) {
        self.owners.entry(of).or_default().forgotten = number;
    }

    /// The same of an entry that is dead, but has the number of logs that were ever created here.
    pub(crate) fn found_counter(&mut self, number: u64) {
        self.counter = (number, true);
    }

    /// The data of a dead entry keeps its number.
    pub(crate) fn skip_data(&mut self, data: u64) {
        self.last_data = self.last_data.max(data);
    }

    /// An entry was appended, and the state has it. Those that are dead by it are added to `dead`.
    pub(crate) fn note(
        &mut self,
        (number, bytes): (u64, usize),
        entry: &StoredEntry,
        (state, freed): (&UnitState, &[DataPlace]),
        dead: &mut Vec<u64>,
    ) {
        let of = owner_of(entry);
        let mut owner = self.owners.remove(&of).unwrap_or_default();
        match entry {
            StoredEntry::Share(..) | StoredEntry::Record(..) => {
                if let StoredEntry::Record(..) = entry {
                    self.carries_counter(number, dead);
                }
                let noted = NotedCheckpoint {
                    number,
                    bytes,
                    base: number,
                    parts: &[],
                };
                self.checkpointed(&mut owner, noted, dead);
            }
            StoredEntry::Part(_, base, _) => {
                let (of, parts) = &mut owner.parts;
                if std::mem::replace(of, *base) != *base {
                    dead.append(parts);
                }
                parts.push(number);
            }
            // The number of logs that were created is as of its base: it does not carry that on.
            StoredEntry::Parted(_, base, parts) => {
                let noted = NotedCheckpoint {
                    number,
                    bytes: parts.len() * PART_BYTES,
                    base: *base,
                    parts,
                };
                self.checkpointed(&mut owner, noted, dead);
            }
            StoredEntry::Change(change) => {
                self.changed(&mut owner, (number, bytes), change, (state, freed), dead);
            }
        }
        match owner.is_due() {
            true => self.due.insert(of.clone()),
            false => self.due.remove(&of),
        };
        if let CheckpointOf::Log(log) = of {
            self.weigh(log, state);
        }
        self.owners.insert(of, owner);
    }

    fn changed(
        &mut self,
        owner: &mut OwnerEntries,
        (number, bytes): (u64, usize),
        change: &Entry,
        (state, freed): (&UnitState, &[DataPlace]),
        dead: &mut Vec<u64>,
    ) {
        for place in freed {
            self.freed(owner, number, place);
        }
        match change {
            Entry::Commit { places, .. } => match places.first() {
                Some(place) => {
                    let records = places.len() as u32;
                    self.found_records(number, data_of(place), records);
                    owner.since.push((number, data_of(place)));
                }
                None => owner.push(number, bytes),
            },
            Entry::Page { page, .. } if !owner.pages.contains_key(page) => {
                owner.pages.insert(*page, number);
            }
            Entry::Create { .. } => {
                owner.push(number, bytes);
                self.carries_counter(number, dead);
            }
            Entry::Forget { .. } => {
                self.checkpointed(owner, NotedCheckpoint::GONE, dead);
                dead.extend(std::mem::take(&mut owner.pages).into_values());
                owner.gone = number;
                let before = std::mem::replace(&mut owner.forgotten, number);
                dead.extend((before > 0).then_some(before));
            }
            Entry::Delete { .. } => {
                self.checkpointed(owner, NotedCheckpoint::GONE, dead);
                owner.since.push((number, 0));
                owner.gone = number;
            }
            _ => owner.push(number, bytes),
        }
        if let Entry::Trim { log, .. } = change {
            let share = state.share(*log);
            let later = &mut owner.later;
            owner.pages.retain(|page, entry| {
                let stays = share.is_some_and(|share| share.pages.contains_key(page));
                if !stays {
                    later.push((*entry, number));
                }
                stays
            });
        }
    }

    fn freed(&mut self, owner: &mut OwnerEntries, by: u64, place: &DataPlace) {
        let data = data_of(place);
        owner.pinned += FRAME_BYTES + place.bytes as usize;
        let Some(named) = self.data.get_mut(&data) else {
            return;
        };
        named.records = named.records.saturating_sub(1);
        if named.records > 0 {
            return;
        }
        owner.later.push((named.entry, by));
        self.data.remove(&data);
    }

    /// A checkpoint stands for all of an owner's entries up to its base, but for records and map pages.
    fn checkpointed(
        &mut self,
        owner: &mut OwnerEntries,
        noted: NotedCheckpoint<'_>,
        dead: &mut Vec<u64>,
    ) {
        let before = std::mem::replace(&mut owner.checkpoint, noted.number);
        if before > 0 {
            self.bury(before, dead);
        }
        dead.extend(std::mem::replace(&mut owner.named, noted.parts.to_vec()));
        let parts = std::mem::take(&mut owner.parts.1);
        let unnamed = |part: &u64| noted.parts.binary_search(part).is_err();
        dead.extend(parts.into_iter().filter(unnamed));
        let stays = |by: u64| by > noted.base;
        owner.later.retain(|(entry, by)| {
            if !stays(*by) {
                dead.push(*entry);
            }
            stays(*by)
        });
        // An entry with records dies with the last of them.
        let since = std::mem::take(&mut owner.since);
        for (number, data) in since {
            match number {
                number if stays(number) => owner.since.push((number, data)),
                number if data == 0 => self.bury(number, dead),
                _ => {}
            }
        }
        owner.checkpoint_bytes = noted.bytes;
        owner.pinned = 0;
    }

    /// Notes a log whose checkpoint is large.
    pub(crate) fn weigh(&mut self, log: LogId, state: &UnitState) {
        let bytes = state.share(log).map_or(0, LogShare::checkpoint_bytes);
        match bytes > PART_BYTES {
            true => self.large.insert(log, bytes),
            false => self.large.remove(&log),
        };
    }

    /// Bytes of the largest checkpoint that would be made in parts; 0 if there is none.
    pub(crate) fn large_bytes(&self) -> usize {
        self.large.values().copied().max().unwrap_or(0)
    }

    fn carries_counter(&mut self, number: u64, dead: &mut Vec<u64>) {
        let (before, is_dead) = std::mem::replace(&mut self.counter, (number, false));
        if is_dead {
            dead.push(before);
        }
    }

    fn bury(&mut self, number: u64, dead: &mut Vec<u64>) {
        match number == self.counter.0 {
            true => self.counter.1 = true,
            false => dead.push(number),
        }
    }
}
