//! The changes of the table since a number: so that a neighbour that remembers what a node has need not be told all of
//! it again and again.
//!
//! Each change of an entry (a block came, got a part, or went) gets the next number, and the entry keeps the last one that it got. What goes
//! leaves an empty entry behind, which is told like a full one: so there is no log, and nothing to be bounded but the
//! table itself. Whoever asks needs no place here, and may ask again for what did not reach it.

use std::sync::atomic::Ordering::Relaxed;

use staves_model::mutant::{Mutant, planted};

use super::writer::{Blocks, Listed};

/// Entries whose newest number is kept together: what did not change is passed over by so many at a time. Fewer in tests, so
/// that small tables have several runs.
const RUN: usize = if cfg!(test) { 64 } else { 1024 };

/// The last change of each entry.
#[derive(Debug)]
pub(super) struct Changes {
    number: u64,
    /// By entry; 0: none yet.
    last: Vec<u64>,
    /// By run: the highest of its entries.
    newest: Vec<u64>,
}

impl Changes {
    pub(super) fn new(entries: usize) -> Changes {
        Changes {
            number: 0,
            last: vec![0; entries],
            newest: vec![0; entries.div_ceil(RUN)],
        }
    }

    /// An entry is not as it was.
    pub(super) fn note(&mut self, index: usize) {
        self.number += 1;
        self.last[index] = self.number;
        self.newest[index / RUN] = self.number;
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Entries of the run of `from`, from there on, that changed since; and where the next run begins.
    fn in_run(&self, since: u64, from: usize) -> (impl Iterator<Item = usize> + '_, usize) {
        let next = ((from / RUN + 1) * RUN).min(self.last.len());
        let end = match self.newest[from / RUN] > since {
            true => next,
            false => from,
        };
        let changed = (from..end).filter(move |index| self.last[*index] > since);
        (changed, next)
    }
}

/// Some of what changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// The number of the newest change there is. Whoever has seen all from the table's start to its end may ask, next time, for
    /// what came after the number that it was told at the start.
    pub number: u64,
    /// The place in the table to go on; `None` at its end.
    pub next: Option<usize>,
    /// Entries, each with what is there now; `None`: nobody.
    pub entries: Vec<(u32, Option<Listed>)>,
}

impl Blocks {
    /// Entries from `from` on that changed after the change of that number, each as it is now: no more than `most` of them, in
    /// the table's order.
    pub fn changed(&self, since: u64, from: usize, most: usize) -> Changed {
        let mut changed = Changed {
            number: self.inner.lock().changes.number(),
            next: None,
            entries: Vec::new(),
        };
        let mut at = from;
        // The lock is taken for one run at a time. What changes between two is told now or has a higher number.
        while at < self.entries() {
            let inner = self.inner.lock();
            if planted(Mutant::ChangesNumberedLate) {
                changed.number = inner.changes.number();
            }
            let (run, next) = inner.changes.in_run(since, at);
            for index in run {
                if changed.entries.len() == most {
                    changed.next = Some(index);
                    return changed;
                }
                changed.entries.push((index as u32, self.listed(index)));
            }
            at = next;
        }
        changed
    }

    /// The content of an entry, for the holder of the lock.
    fn listed(&self, index: usize) -> Option<Listed> {
        let entry = self.mapping.entry(index);
        self.is_taken(index).then(|| Listed {
            key: entry.key(),
            bytes: entry.bytes.load(Relaxed),
            parts: entry.parts.load(Relaxed),
        })
    }

    /// Places of the table.
    fn entries(&self) -> usize {
        self.mapping.layout().entries()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::blocks::{BLOCK_BYTES, BLOCK_PARTS, BlockKey, PART_BYTES};

    fn key(block: u32) -> BlockKey {
        BlockKey {
            file: [7, 9],
            block,
        }
    }

    fn put(blocks: &Blocks, block: u32, part: usize) {
        let bytes = [1; PART_BYTES];
        let put = blocks.put(key(block), BLOCK_BYTES, part, &bytes, 0);
        put.unwrap();
    }

    /// The knowledge of a reader that asks now and then, by pages of a few entries.
    #[derive(Default)]
    struct Knows {
        since: u64,
        entries: BTreeMap<u32, Listed>,
    }

    impl Knows {
        /// The number of entries that it received.
        fn ask(&mut self, blocks: &Blocks) -> usize {
            let (mut from, mut number, mut told) = (0, None, 0);
            loop {
                let some = blocks.changed(self.since, from, 3);
                assert!(some.entries.len() <= 3);
                number.get_or_insert(some.number);
                told += some.entries.len();
                for (entry, listed) in some.entries {
                    match listed {
                        Some(listed) => self.entries.insert(entry, listed),
                        None => self.entries.remove(&entry),
                    };
                }
                match some.next {
                    Some(next) => from = next,
                    None => break,
                }
            }
            self.since = number.unwrap();
            told
        }

        fn all(&self) -> Vec<Listed> {
            self.entries.values().copied().collect()
        }
    }

    /// All entries, in the table's order.
    fn there(blocks: &Blocks) -> Vec<Listed> {
        let all = 0..blocks.entries();
        all.filter_map(|index| blocks.listed(index)).collect()
    }

    #[test]
    fn who_asks_for_changes_alone_knows_all_that_is_there() {
        // Some runs of the table, and room for few blocks.
        let blocks = Blocks::new(40 << 20, 1).unwrap();
        assert!(blocks.entries() > 160);
        let mut knows = Knows::default();
        assert_eq!(knows.ask(&blocks), 0);
        for block in 0..20 {
            put(&blocks, block, 0);
        }
        assert_eq!(knows.ask(&blocks), 20);
        assert_eq!(knows.all(), there(&blocks));
        assert_eq!(knows.ask(&blocks), 0, "nothing has changed");
        // A part more, and what is there already.
        put(&blocks, 3, 5);
        put(&blocks, 4, 0);
        assert_eq!(knows.ask(&blocks), 1);
        assert_eq!(knows.all(), there(&blocks));
        assert_eq!(knows.all().len(), 20);
        // More than fits: the first are evicted, and others lie in their place.
        for block in 0..400 {
            for part in 0..BLOCK_PARTS {
                put(&blocks, 1000 + block, part);
            }
        }
        knows.ask(&blocks);
        assert_eq!(knows.all(), there(&blocks));
        assert_eq!(knows.all().len(), 160, "{} blocks", blocks.figures().blocks);
    }

    /// Changes that come while a page is being made, in front of where it is: the next question is answered with them.
    #[test]
    fn nothing_is_missed_of_what_changes_while_it_is_told() {
        let blocks = Blocks::new(40 << 20, 1).unwrap();
        let mut knows = Knows::default();
        for round in 0..40 {
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    for step in 0..200u32 {
                        let at = step.wrapping_mul(2_654_435_761) >> 16;
                        put(&blocks, at % 140, (round + step as usize) % BLOCK_PARTS);
                    }
                });
                while !writer.is_finished() {
                    knows.ask(&blocks);
                }
            });
            knows.ask(&blocks);
            let (all, there) = (knows.all(), there(&blocks));
            let unknown = there.iter().find(|listed| !all.contains(listed));
            assert!(unknown.is_none(), "it is not known: {unknown:?}");
            blocks.drop_bucket(0);
        }
    }

    /// A change during a pass over the pages is reported in the same pass or in the next one.
    #[test]
    fn nothing_is_missed_between_two_pages() {
        let blocks = Blocks::new(40 << 20, 1).unwrap();
        for block in 0..100 {
            put(&blocks, block, 0);
        }
        let first = blocks.changed(0, 0, 50);
        let next = first.next.unwrap();
        // Behind the place and before it, of those that were told and of those that will be.
        for block in 0..100 {
            put(&blocks, block, 1);
        }
        let rest = blocks.changed(0, next, 1000);
        assert_eq!((rest.entries.len(), rest.next), (50, None));
        let again = blocks.changed(first.number, 0, 1000);
        assert_eq!(again.entries.len(), 100);
        assert!(again.entries.iter().all(|(_, l)| l.unwrap().parts == 0b11));
        // A place beyond the table is its end.
        let beyond = blocks.changed(0, usize::MAX, 10);
        assert_eq!((beyond.entries.len(), beyond.next), (0, None));
    }
}
