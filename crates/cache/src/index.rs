//! The index of one bucket: 8 bytes per key, from the hash of the key to where its record lies. An entry keeps
//! the hash, so that most wrong keys are ruled out without a look at the pages, and the table can grow without
//! reading keys.

use hashbrown::HashTable;
use staves_service::KeyHash;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct IndexEntry {
    key_hash: KeyHash,
    /// The record's offset / 8: a bucket's records lie within its first 32 GiB.
    at: u32,
}

impl IndexEntry {
    fn new(key_hash: KeyHash, offset: u64) -> IndexEntry {
        let at = u32::try_from(offset / 8).expect("records lie within a bucket's first 32 GiB");
        IndexEntry { key_hash, at }
    }

    fn offset(self) -> u64 {
        u64::from(self.at) * 8
    }
}

/// From key hashes to offsets of live records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    table: HashTable<IndexEntry>,
}

impl Index {
    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// The offset of the record with this key hash that `is` the one.
    #[inline]
    pub(crate) fn find(&self, key_hash: KeyHash, is: impl Fn(u64) -> bool) -> Option<u64> {
        self.table
            .find(key_hash.spread(), |e| {
                e.key_hash == key_hash && is(e.offset())
            })
            .map(|e| e.offset())
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
        let entry = IndexEntry::new(key_hash, offset);
        self.table
            .insert_unique(key_hash.spread(), entry, |e| e.key_hash.spread());
    }

    /// Changes the offset of an entry. Does nothing if there is none.
    pub(crate) fn change(&mut self, key_hash: KeyHash, from: u64, to: u64) {
        let was = IndexEntry::new(key_hash, from);
        if let Some(entry) = self.table.find_mut(key_hash.spread(), |e| *e == was) {
            *entry = IndexEntry::new(key_hash, to);
        }
    }

    /// Removes one entry with this key hash whose offset `is` the one; returns the offset.
    pub(crate) fn remove(&mut self, key_hash: KeyHash, is: impl Fn(u64) -> bool) -> Option<u64> {
        let found = self.table.find_entry(key_hash.spread(), |e| {
            e.key_hash == key_hash && is(e.offset())
        });
        found.ok().map(|entry| entry.remove().0.offset())
    }

    /// Keeps only the entries whose offset is `wanted`. Looks at all of them.
    pub(crate) fn retain(&mut self, wanted: impl Fn(u64) -> bool) {
        self.table.retain(|e| wanted(e.offset()));
    }

    /// All entries, sorted: for comparison.
    pub(crate) fn sorted(&self) -> Vec<(KeyHash, u64)> {
        let mut all: Vec<_> = self
            .table
            .iter()
            .map(|e| (e.key_hash, e.offset()))
            .collect();
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            index.add(KeyHash::of(&n.to_le_bytes()), n * 8);
        }
        for n in 0..50_000u64 {
            assert_eq!(
                index.find(KeyHash::of(&n.to_le_bytes()), |o| o == n * 8),
                Some(n * 8)
            );
        }
    }
}
