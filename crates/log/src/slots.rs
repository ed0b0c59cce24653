//! The content of a unit's positions of one log: data, runs of junk, and tombs.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::mutant::{LogMutant, planted};
use crate::share::keep_last;
use crate::types::{AppendId, DataPlace, Position, RecordHead, TagLink};

/// Bytes of memory that a position with data takes, beside the map's own.
pub const SLOT_BYTES: usize = size_of::<Position>() + size_of::<Slot>();

/// A record at its position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DataSlot {
    /// The append.
    pub id: AppendId,
    /// Its place in the batch.
    pub index: u32,
    /// The records of the batch.
    pub count: u32,
    /// The place of its bytes.
    pub place: DataPlace,
    /// The links of the batch's first record.
    pub links: Option<Arc<[TagLink]>>,
}

impl DataSlot {
    /// The head, as a reader of the position receives it. A later record of a batch names those of its own batch, too.
    pub fn head(&self, position: Position) -> RecordHead {
        let first = position - u64::from(self.index);
        let mut links: Vec<TagLink> = self.links.iter().flat_map(|l| l.iter().cloned()).collect();
        for link in &mut links {
            link.back.extend(first..position);
            keep_last(&mut link.back);
        }
        RecordHead {
            id: self.id,
            index: self.index,
            count: self.count,
            links,
        }
    }
}

/// The content at a key of the map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Slot {
    /// A record.
    Data(DataSlot),
    /// So many positions of junk.
    Junk(u32),
    /// A record that was trimmed by itself.
    Tomb,
}

impl Slot {
    fn count(&self) -> u64 {
        match self {
            Slot::Junk(count) => u64::from(*count),
            Slot::Data(_) | Slot::Tomb => 1,
        }
    }
}

/// The content of positions. A run of junk is one item.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Slots {
    all: BTreeMap<Position, Slot>,
    /// Those of them without data.
    without: usize,
}

impl Slots {
    fn put(&mut self, position: Position, slot: Slot) -> Option<Slot> {
        self.without += usize::from(Slots::place(&slot).is_none());
        let was = self.all.insert(position, slot);
        self.without -= usize::from(was.as_ref().is_some_and(|was| Slots::place(was).is_none()));
        was
    }

    /// The number of runs of junk and tombs.
    pub fn without_data_len(&self) -> usize {
        self.without
    }

    /// The content of a position; none if it is undecided here, or trimmed.
    pub fn get(&self, position: Position) -> Option<&Slot> {
        let (first, slot) = self.all.range(..=position).next_back()?;
        (position - first < slot.count()).then_some(slot)
    }

    /// True if any of the positions holds something.
    pub fn any(&self, position: Position, count: u32) -> bool {
        let end = position + u64::from(count);
        self.get(position).is_some() || self.all.range(position..end).next().is_some()
    }

    /// The position past the last content.
    pub fn end(&self) -> Position {
        let last = self.all.last_key_value();
        last.map_or(0, |(first, slot)| first + slot.count())
    }

    /// Puts a record at a position. Returns the place of the record that was there: none, but in tests.
    pub fn data(&mut self, position: Position, data: DataSlot) -> Option<DataPlace> {
        match self.put(position, Slot::Data(data)) {
            Some(Slot::Data(was)) => Some(was.place),
            _ => None,
        }
    }

    /// Makes positions junk, as far as they hold nothing.
    pub fn junk(&mut self, position: Position, count: u32) {
        if !self.any(position, count) {
            self.put(position, Slot::Junk(count));
            return;
        }
        for at in position..position + u64::from(count) {
            if self.get(at).is_none() {
                self.put(at, Slot::Junk(1));
            }
        }
    }

    /// Replaces a record by a tomb, and returns its place.
    pub fn punch(&mut self, position: Position) -> Option<DataPlace> {
        let slot = self.all.get_mut(&position)?;
        let Slot::Data(data) = slot else {
            return None;
        };
        let place = data.place;
        *slot = Slot::Tomb;
        self.without += 1;
        if planted(LogMutant::PunchForgets) {
            self.all.remove(&position);
            self.without -= 1;
        }
        Some(place)
    }

    /// Drops everything below a position.
    pub fn trim(&mut self, position: Position, freed: &mut Vec<DataPlace>) {
        let kept = self.all.split_off(&position);
        let dropped = std::mem::replace(&mut self.all, kept);
        let lacks = |slot: &&Slot| Slots::place(slot).is_none();
        self.without -= dropped.values().filter(lacks).count();
        if let Some((first, slot)) = dropped.last_key_value() {
            let end = first + slot.count();
            if end > position {
                let left = (end - position) as u32;
                self.put(position, Slot::Junk(left));
            }
        }
        freed.extend(dropped.values().filter_map(Slots::place));
    }

    fn place(slot: &Slot) -> Option<DataPlace> {
        match slot {
            Slot::Data(data) => Some(data.place),
            _ => None,
        }
    }

    /// The runs of junk, each with its number of positions, and the tombs, with none.
    pub fn without_data(&self) -> impl Iterator<Item = (Position, Option<u32>)> + '_ {
        self.all.iter().filter_map(|(first, slot)| match slot {
            Slot::Data(_) => None,
            Slot::Junk(count) => Some((*first, Some(*count))),
            Slot::Tomb => Some((*first, None)),
        })
    }

    /// Puts one of them back.
    pub fn put_without_data(&mut self, position: Position, junk: Option<u32>) {
        self.put(position, junk.map_or(Slot::Tomb, Slot::Junk));
    }

    /// The places of all records.
    pub fn places(&self) -> impl Iterator<Item = DataPlace> + '_ {
        self.all.values().filter_map(Slots::place)
    }

    /// The number of records.
    pub fn records(&self) -> usize {
        self.places().count()
    }

    /// Claimed positions from `from` on, as runs of neighbours: first and number.
    pub fn claims(&self, from: Position) -> impl Iterator<Item = (Position, u32)> + '_ {
        let before = self.all.range(..from).next_back();
        let partly = before.and_then(|(first, slot)| {
            let left = (first + slot.count()).checked_sub(from)?;
            (left > 0).then_some((from, left as u32))
        });
        let rest = self
            .all
            .range(from..)
            .map(|(first, slot)| (*first, slot.count() as u32));
        Neighbours {
            runs: partly.into_iter().chain(rest).peekable(),
        }
    }
}

/// Runs joined with those that follow at once.
struct Neighbours<I: Iterator<Item = (Position, u32)>> {
    runs: std::iter::Peekable<I>,
}

impl<I: Iterator<Item = (Position, u32)>> Iterator for Neighbours<I> {
    type Item = (Position, u32);

    fn next(&mut self) -> Option<(Position, u32)> {
        let (first, mut count) = self.runs.next()?;
        let follows = |next: &(Position, u32), count: u32| next.0 == first + u64::from(count);
        while let Some(next) = self.runs.next_if(|next| follows(next, count)) {
            let Some(sum) = count.checked_add(next.1) else {
                break;
            };
            count = sum;
        }
        Some((first, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(at: u64) -> DataSlot {
        let id = AppendId {
            seq: at as u32,
            ..AppendId::default()
        };
        DataSlot {
            id,
            index: 0,
            count: 1,
            place: DataPlace { at, bytes: 1 },
            links: None,
        }
    }

    #[test]
    fn a_run_of_junk_is_one_item_and_fills_only_what_is_free() {
        let mut slots = Slots::default();
        slots.junk(10, 5);
        assert_eq!(slots.all.len(), 1);
        assert_eq!(slots.get(9), None);
        assert_eq!(slots.get(14), Some(&Slot::Junk(5)));
        assert_eq!(slots.get(15), None);
        slots.data(16, record(16));
        slots.junk(13, 5);
        let claims: Vec<_> = slots.claims(0).collect();
        assert_eq!(claims, [(10, 8)]);
        assert_eq!(slots.records(), 1);
        assert_eq!(slots.claims(12).collect::<Vec<_>>(), [(12, 6)]);
    }

    #[test]
    fn a_trim_cuts_a_run_and_frees_places() {
        let mut slots = Slots::default();
        slots.data(3, record(3));
        slots.junk(4, 6);
        let mut freed = Vec::new();
        slots.trim(7, &mut freed);
        assert_eq!(freed, [DataPlace { at: 3, bytes: 1 }]);
        assert_eq!(slots.claims(0).collect::<Vec<_>>(), [(7, 3)]);
        assert_eq!((slots.end(), slots.punch(3)), (10, None));
        slots.data(10, record(10));
        assert!(slots.punch(10).is_some());
        assert_eq!(slots.get(10), Some(&Slot::Tomb));
        assert_eq!(slots.without_data_len(), slots.without_data().count());
    }
}
