//! The index of one bucket: 8 bytes per key, from the hash of the key to where its record lies. An entry keeps
//! the hash, so that most wrong keys are ruled out without a look at the pages, and the table can grow without
//! reading keys.
//!
//! It is one array, and an entry lies at the place that its hash names or behind it (linear probing), so that a
//! look-up is mostly one miss of the processor's caches: in a large pool that is what a look-up costs.

use staves_service::KeyHash;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct IndexEntry {
    key_hash: KeyHash,
    /// The record's offset / 8: a bucket's records lie within its first 32 GiB. None lies at 0, where the first
    /// segment's head is: that is an empty slot.
    at: u32,
}

const EMPTY: IndexEntry = IndexEntry {
    key_hash: KeyHash(0),
    at: 0,
};
/// Slots of the smallest table.
const SLOTS_MIN: usize = 16;

impl IndexEntry {
    fn new(key_hash: KeyHash, offset: u64) -> IndexEntry {
        let at = u32::try_from(offset / 8).expect("records lie within a bucket's first 32 GiB");
        debug_assert!(at != 0, "no record lies at a bucket's first byte");
        IndexEntry { key_hash, at }
    }

    fn offset(self) -> u64 {
        u64::from(self.at) * 8
    }
}

/// From key hashes to offsets of live records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    /// At least a fifth of them empty.
    slots: Vec<IndexEntry>,
    len: usize,
}

impl Index {
    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The offset of the record with this key hash that `is` the one.
    #[inline]
    pub(crate) fn find(&self, key_hash: KeyHash, is: impl Fn(u64) -> bool) -> Option<u64> {
        let slot = self.slot_of(key_hash, is)?;
        Some(self.slots[slot].offset())
    }

    /// Adds an entry; false if it was there.
    pub(crate) fn add(&mut self, key_hash: KeyHash, offset: u64) -> bool {
        if self.find(key_hash, |o| o == offset).is_some() {
            return false;
        }
        self.insert(key_hash, offset);
        true
    }

    /// Adds an entry that is known not to be there.
    pub(crate) fn insert(&mut self, key_hash: KeyHash, offset: u64) {
        if (self.len + 1) * 5 > self.slots.len() * 4 {
            let larger = (self.slots.len() * 3 / 2).max(SLOTS_MIN);
            let old = std::mem::replace(&mut self.slots, vec![EMPTY; larger]);
            let there = old.into_iter().filter(|e| *e != EMPTY);
            there.for_each(|entry| self.place(entry));
        }
        self.place(IndexEntry::new(key_hash, offset));
        self.len += 1;
    }

    /// Changes the offset of an entry. Does nothing if there is none.
    pub(crate) fn change(&mut self, key_hash: KeyHash, from: u64, to: u64) {
        if let Some(slot) = self.slot_of(key_hash, |o| o == from) {
            self.slots[slot] = IndexEntry::new(key_hash, to);
        }
    }

    /// Removes one entry with this key hash whose offset `is` the one; returns the offset.
    pub(crate) fn remove(&mut self, key_hash: KeyHash, is: impl Fn(u64) -> bool) -> Option<u64> {
        let slot = self.slot_of(key_hash, is)?;
        let offset = self.slots[slot].offset();
        self.close(slot);
        self.len -= 1;
        Some(offset)
    }

    /// Keeps only the entries whose offset is `wanted`. Looks at all of them.
    pub(crate) fn retain(&mut self, wanted: impl Fn(u64) -> bool) {
        let kept: Vec<IndexEntry> = self.entries().filter(|e| wanted(e.offset())).collect();
        self.slots.fill(EMPTY);
        self.len = kept.len();
        kept.into_iter().for_each(|entry| self.place(entry));
    }

    /// All entries, sorted: for comparison.
    pub(crate) fn sorted(&self) -> Vec<(KeyHash, u64)> {
        let mut all: Vec<_> = self.entries().map(|e| (e.key_hash, e.offset())).collect();
        all.sort_unstable();
        all
    }

    fn entries(&self) -> impl Iterator<Item = IndexEntry> + '_ {
        self.slots.iter().copied().filter(|e| *e != EMPTY)
    }

    // Hashes are spread evenly over 32 bits: of any number of slots each gets as many.
    #[inline]
    fn home(&self, key_hash: KeyHash) -> usize {
        ((u64::from(key_hash.0) * self.slots.len() as u64) >> 32) as usize
    }

    #[inline]
    fn next(&self, slot: usize) -> usize {
        if slot + 1 == self.slots.len() {
            0
        } else {
            slot + 1
        }
    }

    #[inline]
    fn slot_of(&self, key_hash: KeyHash, is: impl Fn(u64) -> bool) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut slot = self.home(key_hash);
        loop {
            let entry = self.slots[slot];
            if entry.at == EMPTY.at {
                return None;
            }
            if entry.key_hash == key_hash && is(entry.offset()) {
                return Some(slot);
            }
            slot = self.next(slot);
        }
    }

    // There is an empty slot.
    fn place(&mut self, entry: IndexEntry) {
        let mut slot = self.home(entry.key_hash);
        while self.slots[slot] != EMPTY {
            slot = self.next(slot);
        }
        self.slots[slot] = entry;
    }

    // Empties a slot: those behind it move up, as far as their home lets them, so that none is cut off from it.
    fn close(&mut self, slot: usize) {
        let slots = self.slots.len();
        let distance = |from: usize, to: usize| (to + slots - from) % slots;
        let (mut hole, mut at) = (slot, self.next(slot));
        while self.slots[at] != EMPTY {
            let home = self.home(self.slots[at].key_hash);
            if distance(home, at) >= distance(hole, at) {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
            at = self.next(at);
        }
        self.slots[hole] = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_with_the_same_tag_are_told_apart_by_where_they_lie() {
        let mut index = Index::default();
        assert!(
            index.add(KeyHash(7), 16) && index.add(KeyHash(7), 48) && !index.add(KeyHash(7), 16)
        );
        assert_eq!(index.find(KeyHash(7), |o| o == 48), Some(48));
        index.change(KeyHash(7), 48, 64);
        index.change(KeyHash(7), 64, 48);
        index.change(KeyHash(7), 64, 80);
        assert_eq!(index.remove(KeyHash(7), |o| o == 16), Some(16));
        assert_eq!(index.remove(KeyHash(7), |o| o == 16), None);
        assert_eq!(index.sorted(), vec![(KeyHash(7), 48)]);
        index.retain(|o| o != 48);
        assert_eq!(index.len(), 0);
    }

    #[test]
    fn an_entry_takes_eight_bytes_and_the_table_grows() {
        assert_eq!(size_of::<IndexEntry>(), 8);
        let mut index = Index::default();
        for n in 0..50_000u64 {
            index.add(KeyHash::of(&n.to_le_bytes()), n * 8 + 8);
        }
        for n in 0..50_000u64 {
            assert_eq!(
                index.find(KeyHash::of(&n.to_le_bytes()), |o| o == n * 8 + 8),
                Some(n * 8 + 8)
            );
        }
        let bytes = index.slots.capacity() * size_of::<IndexEntry>();
        assert!(bytes <= 50_000 * 16, "{bytes} bytes");
    }

    proptest! {
        /// Hashes that crowd at the table's start and at its end, so that runs go round.
        #[test]
        fn it_is_a_set(steps in prop::collection::vec((0..4u8, 0..6u32, any::<bool>(), 1..40u64), 1..600)) {
            let (mut index, mut model) = (Index::default(), BTreeSet::new());
            for (what, low, high, at) in steps {
                let key_hash = KeyHash(if high { u32::MAX - low * 1000 } else { low * 3 });
                let (offset, known) = (at * 8, (key_hash, at * 8));
                match what {
                    0 | 1 => prop_assert_eq!(index.add(key_hash, offset), model.insert(known)),
                    2 => {
                        let gone = index.remove(key_hash, |o| o == offset);
                        prop_assert_eq!(gone.is_some(), model.remove(&known));
                    }
                    _ => {
                        let to = offset + 400;
                        if !model.contains(&(key_hash, to)) {
                            index.change(key_hash, offset, to);
                            if model.remove(&known) {
                                model.insert((key_hash, to));
                            }
                        }
                    }
                }
                prop_assert_eq!(index.len(), model.len());
            }
            for (key_hash, offset) in &model {
                prop_assert_eq!(index.find(*key_hash, |o| o == *offset), Some(*offset));
            }
            prop_assert_eq!(index.sorted(), model.iter().copied().collect::<Vec<_>>());
            index.retain(|o| o % 16 == 0);
            model.retain(|(_, o)| o % 16 == 0);
            prop_assert_eq!(index.sorted(), model.into_iter().collect::<Vec<_>>());
        }
    }
}
