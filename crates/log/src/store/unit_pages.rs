//! A unit's state and the pages that it lies in, brought together: at a data bucket, at a copy, and after a start.

use staves_store::Pages;
use staves_wire::group::Run;

use super::entry_log::{EntryLog, NotedEntry};
use super::ledger::{CheckpointOf, Ledger, OFFSET_BITS, data_of, owner_of};
use super::marks::{FoundCheckpoint, Marks};
use super::stored::{HEAD_INLINE_BYTES_MAX, ShareState, StoredEntry, is_outlined, outlined};
use super::{AppendedEntry, DataPiece, NewData, NoPlace, PageDamage, PageEdit};
use crate::entry::Entry;
use crate::slots::DataSlot;
use crate::state::UnitState;
use crate::types::{DataPlace, UnitId};

/// The pages of a unit, as its state needs them.
#[derive(Clone, Debug, Default)]
pub struct UnitPages {
    pub(crate) log: EntryLog,
    pub(crate) ledger: Ledger,
}

fn none_of_ours(at: u64) -> PageDamage {
    let why = "an entry is none of the log service's";
    PageDamage { at, why }
}

impl UnitPages {
    /// The state that the pages of a unit have. Reads all heads twice, and no data of records.
    ///
    /// # Errors
    /// The pages are damaged.
    pub fn open(pages: &Pages, unit: UnitId) -> Result<(UnitPages, UnitState), PageDamage> {
        let log = EntryLog::scan(pages)?;
        let ledger = Ledger::default();
        let (mut found, mut state) = (UnitPages { log, ledger }, UnitState::new(unit));
        let numbers: Vec<u64> = found.log.numbers().collect();
        let mut marks = Marks::default();
        for number in &numbers {
            match found.stored(pages, *number)? {
                Some(entry) => marks.see(*number, &entry),
                None => found.log.release(*number),
            }
        }
        // Numbers grow, so what is forgotten after its checkpoint has none.
        let forgotten = &marks.forgotten;
        let stands = |of: &CheckpointOf, at: &mut FoundCheckpoint| {
            forgotten.get(of).is_none_or(|f| *f < at.number)
        };
        marks.checkpoints.retain(stands);
        let numbers = numbers
            .into_iter()
            .filter(|n| found.log.entries.contains_key(n));
        let numbers: Vec<u64> = numbers.collect();
        for checkpoint in marks.checkpoints.values() {
            found.restore(pages, checkpoint, &mut state)?;
        }
        let mut created = state.created();
        for number in numbers {
            let Some(entry) = found.stored(pages, number)? else {
                continue;
            };
            if let StoredEntry::Change(Entry::Create { log, .. }) = &entry {
                created = created.max((log.0 & ((1 << 40) - 1)) + 1);
            }
            found.replay(number, entry, &marks, &mut state);
        }
        // A replay of those that are left has not counted them all.
        state.set_created(created);
        for log in state.shares().keys() {
            found.ledger.weigh(*log, &state);
        }
        found.log.settle();
        Ok((found, state))
    }

    fn restore(
        &self,
        pages: &Pages,
        found: &FoundCheckpoint,
        state: &mut UnitState,
    ) -> Result<(), PageDamage> {
        let mut entry = self.stored(pages, found.number)?;
        if let Some(StoredEntry::Parted(..)) = entry {
            let mut bytes = Vec::new();
            for part in &found.parts {
                match self.stored(pages, *part)? {
                    Some(StoredEntry::Part(_, _, part)) => bytes.extend_from_slice(&part),
                    _ => return Err(none_of_ours(found.number)),
                }
            }
            let whole = StoredEntry::from_bytes(&bytes);
            entry = Some(whole.map_err(|_| none_of_ours(found.number))?);
        }
        match entry {
            Some(StoredEntry::Share(log, checkpoint)) => *state.share_mut(log) = checkpoint.share,
            Some(StoredEntry::Record(created, record)) => {
                state.put_record(*record);
                state.set_created(created.max(state.created()));
            }
            Some(_) | None => {}
        }
        Ok(())
    }

    /// One entry that a scan has found, in order of numbers.
    fn replay(&mut self, number: u64, entry: StoredEntry, marks: &Marks, state: &mut UnitState) {
        let of = owner_of(&entry);
        let forgotten = marks.forgotten.get(&of).copied().unwrap_or(0);
        let known = marks.checkpoints.get(&of);
        let (checkpoint, base) = known.map_or((0, 0), |known| (known.number, known.base));
        if let StoredEntry::Change(Entry::Commit { places, .. }) = &entry {
            places
                .iter()
                .for_each(|place| self.ledger.skip_data(data_of(place)));
        }
        match &entry {
            _ if number < forgotten => self.release_found(number, marks),
            StoredEntry::Change(Entry::Forget { log }) if number <= base => {
                self.ledger.found_forgotten(number, of);
                state.note_forgotten(*log);
            }
            StoredEntry::Change(change) if number <= base => {
                if !self.replay_old(number, change, state) {
                    self.release_found(number, marks);
                }
            }
            StoredEntry::Part(..) if known.is_some_and(|known| known.parts.contains(&number)) => {
                self.noted(number, &entry, state, &[]);
            }
            StoredEntry::Share(..)
            | StoredEntry::Record(..)
            | StoredEntry::Part(..)
            | StoredEntry::Parted(..)
                if number < checkpoint =>
            {
                self.release_found(number, marks);
            }
            StoredEntry::Change(change) => {
                let mut freed = Vec::new();
                state.apply(change, &mut freed);
                self.noted(number, &entry, state, &freed);
            }
            _ => self.noted(number, &entry, state, &[]),
        }
    }

    fn release_found(&mut self, number: u64, marks: &Marks) {
        match number == marks.counter {
            true => self.ledger.found_counter(number),
            false => self.log.release(number),
        }
    }

    /// An entry that a checkpoint stands for: only its records, or its map page, count. False if there are none.
    fn replay_old(&mut self, number: u64, change: &Entry, state: &mut UnitState) -> bool {
        match change {
            Entry::Commit {
                log,
                position,
                id,
                links,
                places,
                ..
            } => {
                let share = state.share_mut(*log);
                let shared = (!links.is_empty()).then(|| links.as_slice().into());
                let count = places.len() as u32;
                let mut records = 0;
                for (at, (index, place)) in (*position..).zip((0..).zip(places)) {
                    if at < share.trim || share.slots.get(at).is_some() {
                        continue;
                    }
                    let data = DataSlot {
                        id: *id,
                        index,
                        count,
                        place: *place,
                        links: std::clone::Clone::clone(&shared),
                    };
                    share.slots.data(at, data);
                    records += 1;
                }
                if let Some(place) = places.first().filter(|_| records > 0) {
                    self.ledger.found_records(number, data_of(place), records);
                }
                records > 0
            }
            Entry::Page { log, page, runs } => {
                let share = state.share_mut(*log);
                // The checkpoint has put in place of each page that there was an empty one.
                let is_there = share.pages.get(page).is_some_and(Vec::is_empty);
                if is_there {
                    share.pages.insert(*page, runs.clone());
                    self.ledger.found_page(number, *log, *page);
                }
                is_there
            }
            _ => false,
        }
    }

    /// An entry as the pages have it; none if it is dead, and others have written over its data.
    fn stored(&self, pages: &Pages, number: u64) -> Result<Option<StoredEntry>, PageDamage> {
        let at = self.log.entries.get(&number).map_or(0, |place| place.at);
        let head = self.log.head(pages, number).unwrap_or_default();
        let mut bytes = Vec::new();
        if is_outlined(head) {
            for piece in self.log.data(number) {
                pages.read_into(piece.at, piece.len as usize, &mut bytes);
            }
            if outlined(&bytes) != head {
                return Ok(None);
            }
        }
        let entry = StoredEntry::from_bytes(if is_outlined(head) { &bytes } else { head });
        entry.map(Some).map_err(|_| none_of_ours(at))
    }

    /// A copy follows a delta that its pages do not have yet.
    ///
    /// # Errors
    /// It is none of a unit's: the pages are damaged then.
    pub fn follow(
        &mut self,
        runs: &[Run],
        bytes: &[u8],
        state: &mut UnitState,
    ) -> Result<(), PageDamage> {
        for NotedEntry { number, head } in self.log.note(runs, bytes)? {
            let at = self.log.entries.get(&number).map_or(0, |place| place.at);
            let entry = match is_outlined(head) {
                false => StoredEntry::from_bytes(head),
                true => StoredEntry::from_bytes(&brought(runs, bytes, self.log.data(number))),
            };
            let entry = entry.map_err(|_| none_of_ours(at))?;
            let mut freed = Vec::new();
            if let StoredEntry::Change(change) = &entry {
                state.apply(change, &mut freed);
            }
            self.noted(number, &entry, state, &freed);
        }
        Ok(())
    }

    /// The change that appends entries with the data of those that have some. Nothing is appended before [`UnitPages::appended`].
    ///
    /// # Errors
    /// There is no place for them.
    pub(crate) fn append(
        &self,
        entries: &[(StoredEntry, NewData<'_>)],
    ) -> Result<PageEdit, NoPlace> {
        let heads: Vec<Vec<u8>> = entries.iter().map(|(entry, _)| entry.to_bytes()).collect();
        let of = |(head, (_, data)): (&'_ Vec<u8>, &(StoredEntry, NewData<'_>))| {
            head.len() <= HEAD_INLINE_BYTES_MAX || !matches!(data, NewData::Nothing)
        };
        let marks: Vec<[u8; 5]> = heads.iter().map(|head| outlined(head)).collect();
        let inline: Vec<bool> = heads.iter().zip(entries).map(of).collect();
        let all = heads.iter().zip(entries).zip(inline.iter().zip(&marks));
        let new: Vec<AppendedEntry<'_>> = all
            .map(|((head, (_, data)), (is_inline, mark))| match is_inline {
                true => AppendedEntry { head, data: *data },
                false => AppendedEntry {
                    head: mark,
                    data: NewData::Bytes(head),
                },
            })
            .collect();
        self.log.append(&new)
    }

    /// The data bucket has made a change, and its state has these entries.
    ///
    /// # Errors
    /// The change is wrong: a fault of ours.
    pub(crate) fn appended(
        &mut self,
        edit: &PageEdit,
        entries: &[(StoredEntry, Vec<DataPlace>)],
        state: &UnitState,
    ) -> Result<(), PageDamage> {
        let noted = self.log.note(&edit.runs, &edit.bytes)?;
        let numbers: Vec<u64> = noted.iter().map(|noted| noted.number).collect();
        self.log.keep_open(edit);
        for (number, (entry, freed)) in numbers.into_iter().zip(entries) {
            self.noted(number, entry, state, freed);
        }
        Ok(())
    }

    fn noted(&mut self, number: u64, entry: &StoredEntry, state: &UnitState, freed: &[DataPlace]) {
        let Some(place) = self.log.entries.get(&number) else {
            return;
        };
        let outlined = match entry {
            StoredEntry::Change(Entry::Commit { .. }) => 0,
            _ => place.pieces.iter().map(|piece| piece.len as usize).sum(),
        };
        let bytes = place.frame_bytes() + outlined;
        let mut dead = Vec::new();
        self.ledger
            .note((number, bytes), entry, (state, freed), &mut dead);
        dead.into_iter().for_each(|number| self.log.release(number));
    }

    /// The checkpoint of what is due; none if there is nothing of it any more.
    pub(crate) fn checkpoint(of: &CheckpointOf, state: &UnitState) -> Option<StoredEntry> {
        match of {
            CheckpointOf::Log(log) => {
                let share = state.share(*log)?;
                Some(StoredEntry::Share(*log, ShareState::of(share)))
            }
            CheckpointOf::Name(name) => {
                let record = state.records().get(name)?.clone();
                Some(StoredEntry::Record(state.created(), Box::new(record)))
            }
        }
    }

    /// The pieces of a record's bytes; none if it is not here.
    pub(crate) fn pieces_of(&self, place: &DataPlace) -> Option<Vec<DataPiece>> {
        let number = self.ledger.entry_of_data(data_of(place))?;
        let mut skip = place.at & ((1 << OFFSET_BITS) - 1);
        let mut left = u64::from(place.bytes);
        let mut pieces = Vec::new();
        for piece in self.log.data(number) {
            let from = skip.min(piece.len.into());
            let len = left.min(u64::from(piece.len) - from);
            if len > 0 {
                let at = piece.at + from;
                pieces.push(DataPiece {
                    at,
                    len: len as u32,
                });
            }
            (skip, left) = (skip - from, left - len);
        }
        (left == 0).then_some(pieces)
    }
}

/// The bytes of data that a delta itself brings.
fn brought(runs: &[Run], bytes: &[u8], pieces: &[DataPiece]) -> Vec<u8> {
    let mut all = Vec::new();
    for piece in pieces {
        let within = |(offset, part): (u64, &'_ [u8])| {
            let from = piece.at.checked_sub(offset)? as usize;
            let part = part.get(from..from + piece.len as usize)?;
            Some(part.to_vec())
        };
        all.extend(
            PageEdit::written(runs, bytes)
                .find_map(within)
                .unwrap_or_default(),
        );
    }
    all
}
