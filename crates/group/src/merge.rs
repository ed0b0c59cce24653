//! Rule 4 at parity with m > 1: deltas of one stream that are applied together are added up by page first, and
//! multiplied once (row H2). To a page that is written over and over, that is one multiplication for many
//! deltas; where they do not meet, it is one for each, as without.

use std::collections::BTreeMap;

use bytes::Bytes;

/// Most pages that are added up before they are multiplied: 256 KiB, which stay in a core's cache.
pub const PAGES_MAX: usize = 64;
/// Most sums of one page that lie apart; with more, they are made one.
const APART_MAX: usize = 32;

/// The arithmetic that parity has done since this member took its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Arithmetic {
    /// Parts of deltas, each within one page.
    pub parts: u64,
    /// Multiplications that were made for them.
    pub multiplications: u64,
}

/// Some bytes of a page: those of one delta, or the sum of several.
struct Sum {
    start: usize,
    bytes: Bytes,
}

impl Sum {
    fn end(&self) -> usize {
        self.start + self.bytes.len()
    }

    // Overlaps or touches it.
    fn meets(&self, other: &Sum) -> bool {
        self.start <= other.end() && other.start <= self.end()
    }
}

/// The sums of a stream's deltas, by page.
#[derive(Default)]
pub struct Merge {
    pages: BTreeMap<u32, Vec<Sum>>,
}

impl Merge {
    /// Pages that have a sum.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Adds a part of a delta that begins at `start` in its page.
    pub fn add(&mut self, page: u32, start: usize, bytes: Bytes) {
        let sums = self.pages.entry(page).or_default();
        let new = Sum { start, bytes };
        let crowded = sums.len() >= APART_MAX;
        let meets = |s: &Sum| crowded || s.meets(&new);
        if !sums.iter().any(meets) {
            return sums.push(new);
        }
        let (mut met, apart): (Vec<Sum>, Vec<Sum>) = sums.drain(..).partition(meets);
        *sums = apart;
        met.push(new);
        sums.push(sum_of(met));
    }

    /// Takes the sums out: pages in order, each with where in it the bytes begin.
    pub fn take(&mut self) -> impl Iterator<Item = (u32, Vec<(usize, Bytes)>)> + use<> {
        let sums = |sums: Vec<Sum>| sums.into_iter().map(|s| (s.start, s.bytes)).collect();
        std::mem::take(&mut self.pages)
            .into_iter()
            .map(move |(page, of_page)| (page, sums(of_page)))
    }
}

// At least one is given.
fn sum_of(mut parts: Vec<Sum>) -> Sum {
    let start = parts.iter().map(|s| s.start).min().unwrap_or(0);
    let end = parts.iter().map(Sum::end).max().unwrap_or(0);
    // Mostly the first covers the rest and is a sum already: its bytes are nobody else's.
    let whole = parts
        .iter()
        .position(|s| (s.start, s.end()) == (start, end));
    let whole = whole.map(|at| parts.swap_remove(at).bytes);
    let mut bytes = match whole.map(Bytes::try_into_mut) {
        Some(Ok(own)) => own,
        Some(Err(shared)) => bytes::BytesMut::from(&shared[..]),
        None => bytes::BytesMut::zeroed(end - start),
    };
    for part in &parts {
        let there = &mut bytes[part.start - start..part.end() - start];
        there.iter_mut().zip(&part.bytes).for_each(|(t, p)| *t ^= p);
    }
    let bytes = bytes.freeze();
    Sum { start, bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sums(merge: &mut Merge) -> Vec<(u32, Vec<(usize, Bytes)>)> {
        merge.take().collect()
    }

    #[test]
    fn what_meets_is_one_sum_and_what_lies_apart_is_not() {
        let mut merge = Merge::default();
        let log = Bytes::from_static(b"abcdefgh");
        merge.add(3, 8, log.slice(0..4));
        merge.add(3, 100, log.slice(4..8));
        merge.add(3, 12, log.slice(4..6));
        merge.add(3, 8, log.slice(0..4));
        merge.add(9, 0, log.clone());
        assert_eq!(merge.len(), 2);
        let mut made = sums(&mut merge);
        made[0].1.sort_by_key(|(start, _)| *start);
        let first = (8, Bytes::from_static(b"\0\0\0\0ef"));
        let second = (100, Bytes::from_static(b"efgh"));
        assert_eq!(
            made,
            [(3, vec![first, second]), (9, vec![(0, log.clone())])]
        );
        assert_eq!(log, b"abcdefgh"[..], "the log's own bytes stay as they are");
    }

    #[test]
    fn a_page_has_only_so_many_sums() {
        let mut merge = Merge::default();
        for i in 0..200 {
            merge.add(0, i * 16, Bytes::from_static(b"x"));
        }
        assert!(sums(&mut merge)[0].1.len() <= APART_MAX);
    }

    proptest! {
        #[test]
        fn a_sum_is_what_its_parts_come_to(parts in prop::collection::vec(
            (0..2u32, 0..120usize, prop::collection::vec(any::<u8>(), 1..40)), 1..120))
        {
            let (mut merge, mut wanted) = (Merge::default(), vec![vec![0u8; 160]; 2]);
            for (page, start, bytes) in &parts {
                merge.add(*page, *start, Bytes::from(bytes.clone()));
                for (i, b) in bytes.iter().enumerate() {
                    wanted[*page as usize][start + i] ^= b;
                }
            }
            let mut got = vec![vec![0u8; 160]; 2];
            for (page, sums) in merge.take() {
                prop_assert!(sums.len() <= APART_MAX);
                for (start, bytes) in sums {
                    for (i, b) in bytes.iter().enumerate() {
                        got[page as usize][start + i] ^= b;
                    }
                }
            }
            prop_assert_eq!(got, wanted);
        }
    }
}
