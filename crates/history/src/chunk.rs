//! The plain model of a chunk of the memory service.
//!
//! Operations on one chunk are atomic, whatever pages they touch, so all of a chunk's operations must
//! have one order; that is more than a history for each page would ask. A chunk is looked at as **cells**:
//! a few words, at the ends of pages and in their middle, and the stretches between them, which only
//! writes of several words touch.

use serde::{Deserialize, Serialize};

use crate::search::Operation;

/// The places of the words in a chunk: in a page, on both sides of a page's end, and in the last page.
pub const WORDS: [u64; 5] = [16, 4088, 4096, 12_296, 65_528];
/// Words, and what lies between them.
pub const CELLS: usize = 2 * WORDS.len() - 1;

/// The contents of a chunk's cells. A stretch between two words is the eight bytes that it repeats.
pub type Cells = [u64; CELLS];

/// An operation on a chunk. Words are named by their place in [`WORDS`], the last included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
#[allow(missing_docs)] // the operations' own names
pub enum OnChunk {
    Read {
        from: usize,
        to: usize,
    },
    Write {
        from: usize,
        to: usize,
        value: u64,
    },
    Swap {
        word: usize,
        expected: u64,
        new: u64,
    },
    Add {
        word: usize,
        by: u64,
    },
}

/// The answer to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkSeen {
    /// The write was done.
    Ok,
    /// The word that was there.
    Word(u64),
    /// The cells that were read; others are 0.
    Cells(Cells),
}

/// The beginning and the end of a cell in its chunk.
pub fn bounds(cell: usize) -> (u64, u64) {
    let word = WORDS[cell / 2];
    match cell % 2 {
        0 => (word, word + 8),
        _ => (word + 8, WORDS[cell / 2 + 1]),
    }
}

/// The cells of words `from` to `to`, and those between them.
pub fn cells_of(from: usize, to: usize) -> impl Iterator<Item = usize> {
    (2 * from..=2 * to).filter(|cell| bounds(*cell).0 < bounds(*cell).1)
}

impl Operation for OnChunk {
    type State = Cells;
    type Seen = ChunkSeen;

    fn apply(&self, before: &Cells) -> (Cells, ChunkSeen) {
        let mut after = *before;
        match *self {
            OnChunk::Read { from, to } => {
                let mut seen = [0; CELLS];
                for cell in cells_of(from, to) {
                    seen[cell] = before[cell];
                }
                (after, ChunkSeen::Cells(seen))
            }
            OnChunk::Write { from, to, value } => {
                for cell in cells_of(from, to) {
                    after[cell] = value;
                }
                (after, ChunkSeen::Ok)
            }
            OnChunk::Swap {
                word,
                expected,
                new,
            } => {
                let old = before[2 * word];
                if old == expected {
                    after[2 * word] = new;
                }
                (after, ChunkSeen::Word(old))
            }
            OnChunk::Add { word, by } => {
                let old = before[2 * word];
                after[2 * word] = old.wrapping_add(by);
                (after, ChunkSeen::Word(old))
            }
        }
    }

    fn is_read(&self) -> bool {
        matches!(self, OnChunk::Read { .. })
    }

    fn is_blind(&self) -> bool {
        matches!(self, OnChunk::Write { .. })
    }
}

impl OnChunk {
    /// The content of a word after the operation was answered so, if that follows.
    pub fn word_after(&self, seen: &ChunkSeen, word: usize) -> Option<u64> {
        match (*self, seen) {
            (OnChunk::Read { from, to }, ChunkSeen::Cells(cells))
                if (from..=to).contains(&word) =>
            {
                Some(cells[2 * word])
            }
            (OnChunk::Write { from, to, value }, _) if (from..=to).contains(&word) => Some(value),
            (OnChunk::Add { word: w, by }, ChunkSeen::Word(old)) if w == word => {
                Some(old.wrapping_add(by))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{Verdict, check};

    type Call = crate::search::Call<OnChunk>;

    const STEPS: usize = 10_000;

    fn write(from: usize, to: usize, value: u64, called: u64, end: u64) -> Call {
        let act = OnChunk::Write { from, to, value };
        let end = (end > 0).then_some(end);
        Call::new(act, called, end, end.map(|_| ChunkSeen::Ok))
    }

    fn read(from: usize, to: usize, values: &[u64], called: u64, end: u64) -> Call {
        let mut cells = [0; CELLS];
        for (cell, value) in cells_of(from, to).zip(values) {
            cells[cell] = *value;
        }
        let act = OnChunk::Read { from, to };
        Call::new(act, called, Some(end), Some(ChunkSeen::Cells(cells)))
    }

    fn word(act: OnChunk, old: u64, called: u64, end: u64) -> Call {
        Call::new(act, called, Some(end), Some(ChunkSeen::Word(old)))
    }

    fn swap(expected: u64, new: u64) -> OnChunk {
        let word = 0;
        OnChunk::Swap {
            word,
            expected,
            new,
        }
    }

    #[test]
    fn what_has_an_order_passes() {
        let add = |old, called, end| word(OnChunk::Add { word: 1, by: 2 }, old, called, end);
        let good = [
            vec![write(0, 1, 7, 1, 2), read(0, 1, &[7, 7, 7], 3, 4)],
            // A read beside a write may see either, but all of it.
            vec![
                write(0, 1, 7, 1, 9),
                read(0, 1, &[0, 0, 0], 3, 4),
                read(0, 1, &[7, 7, 7], 5, 6),
            ],
            // What was never answered may have been done, late or never.
            vec![
                write(0, 0, 7, 1, 0),
                read(0, 0, &[0], 3, 4),
                read(0, 0, &[7], 5, 6),
            ],
            vec![
                word(swap(0, 5), 0, 1, 2),
                word(swap(0, 6), 5, 3, 4),
                read(0, 0, &[5], 5, 6),
            ],
            vec![add(2, 1, 5), add(0, 1, 5), read(1, 1, &[4], 6, 7)],
        ];
        for calls in good {
            assert_eq!(check(&calls, STEPS), Verdict::Fine, "{calls:?}");
        }
    }

    #[test]
    fn what_has_none_is_rejected() {
        let add = |old, called, end| word(OnChunk::Add { word: 1, by: 2 }, old, called, end);
        let bad = [
            // An answered write is gone; one of two pages of it is.
            vec![write(0, 1, 7, 1, 2), read(0, 1, &[0, 0, 0], 3, 4)],
            vec![write(0, 1, 7, 1, 2), read(0, 1, &[7, 7, 0], 3, 4)],
            // Two readers see two writes of two pages in two orders.
            vec![
                write(0, 0, 7, 1, 9),
                write(3, 3, 8, 1, 9),
                read(0, 3, &[7, 0, 0, 0, 0, 0], 2, 3),
                read(0, 3, &[0, 0, 0, 0, 0, 8], 2, 3),
            ],
            // A retry that was done twice; two that saw the same word.
            vec![add(0, 1, 2), read(1, 1, &[4], 3, 4)],
            vec![add(0, 1, 5), add(0, 1, 5)],
            // One swap of two succeeds.
            vec![
                word(swap(0, 5), 0, 1, 2),
                word(swap(0, 6), 0, 1, 2),
                read(0, 0, &[6], 5, 6),
            ],
        ];
        for calls in bad {
            let verdict = check(&calls, STEPS);
            assert!(matches!(verdict, Verdict::Bad(_)), "{verdict:?}: {calls:?}");
        }
    }
}
