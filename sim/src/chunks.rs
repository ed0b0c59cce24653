//! The load of the memory service, on the chunks of a region.
//!
//! Operations on one chunk are atomic, whatever pages they touch, so all of a chunk's operations must
//! have one order; that is more than a history for each page would ask. A chunk is looked at as **cells**:
//! a few words, at the ends of pages and in their middle, and the stretches between them, which only
//! writes of several words touch.

use bytes::{Bytes, BytesMut};
use staves_conformance::{Draw, Workload};
use staves_group::{Member, Options};
use staves_history::Operation;
use staves_memory::{Bucket, Memory};
use staves_model::CHUNK_BYTES;
use staves_service::Limits;
use staves_wire::memory::Action;
use staves_wire::service::{Answer, Body};

/// Bytes that a stream's log may hold: a few writes that cross pages. A longer one goes alone.
const LOG_BYTES_MAX: usize = 40_000;
/// The places of the words in a chunk: in a page, on both sides of a page's end, and in the last page.
pub const WORDS: [u64; 5] = [16, 4088, 4096, 12_296, 65_528];
/// Words, and what lies between them.
pub const CELLS: usize = 2 * WORDS.len() - 1;

/// The contents of a chunk's cells. A stretch between two words is the eight bytes that it repeats.
pub type Cells = [u64; CELLS];

/// An operation on a chunk. Words are named by their place in [`WORDS`], the last included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
pub enum Seen {
    /// The write was done.
    Ok,
    /// The word that was there.
    Word(u64),
    /// The cells that were read; others are 0.
    Cells(Cells),
}

/// The beginning and the end of a cell in its chunk.
fn bounds(cell: usize) -> (u64, u64) {
    let word = WORDS[cell / 2];
    match cell % 2 {
        0 => (word, word + 8),
        _ => (word + 8, WORDS[cell / 2 + 1]),
    }
}

/// The cells of words `from` to `to`, and those between them.
fn cells_of(from: usize, to: usize) -> impl Iterator<Item = usize> {
    (2 * from..=2 * to).filter(|cell| bounds(*cell).0 < bounds(*cell).1)
}

impl Operation for OnChunk {
    type State = Cells;
    type Seen = Seen;

    fn apply(&self, before: &Cells) -> (Cells, Seen) {
        let mut after = *before;
        match *self {
            OnChunk::Read { from, to } => {
                let mut seen = [0; CELLS];
                for cell in cells_of(from, to) {
                    seen[cell] = before[cell];
                }
                (after, Seen::Cells(seen))
            }
            OnChunk::Write { from, to, value } => {
                for cell in cells_of(from, to) {
                    after[cell] = value;
                }
                (after, Seen::Ok)
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
                (after, Seen::Word(old))
            }
            OnChunk::Add { word, by } => {
                let old = before[2 * word];
                after[2 * word] = old.wrapping_add(by);
                (after, Seen::Word(old))
            }
        }
    }

    fn is_read(&self) -> bool {
        matches!(self, OnChunk::Read { .. })
    }
}

/// The load.
pub struct Chunks;

impl Workload for Chunks {
    type Service = Memory;
    type Operation = OnChunk;
    const OBJECTS: u64 = 2;
    const SCHEMES: &'static [(u8, u8)] = &[(1, 1), (1, 2), (2, 1), (2, 2), (4, 2)];
    const DELTA_BYTES_MAX: usize = CHUNK_BYTES as usize + 1024;

    fn bucket(limits: Limits, member: Member) -> Bucket {
        Memory::bucket(limits, member)
    }

    fn options(base: Options) -> Options {
        Options {
            log_bytes_max: LOG_BYTES_MAX,
            message_bytes_max: LOG_BYTES_MAX / 5,
            fetch_pages: 12,
            ..base
        }
    }

    // Mostly few chunks, so that operations meet.
    fn pick(chunks: u64, random: &mut dyn FnMut(u64) -> u64) -> u64 {
        match random(10) {
            0..5 => random(2),
            5..8 => random(chunks.min(4)),
            _ => random(chunks),
        }
    }

    fn draw(draw: &mut Draw<'_, OnChunk>) -> OnChunk {
        let value = (draw.number << 8 | 7).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let word = draw.below(WORDS.len() as u64) as usize;
        // Mostly one word or the two beside a page's end, seldom all of a chunk's pages.
        let (from, to) = match draw.below(20) {
            0..8 => (word, word),
            8..15 => (1, 2),
            15..18 => (draw.below(3) as usize, 3),
            _ => (draw.below(4) as usize, 4),
        };
        if draw.is_read() {
            return OnChunk::Read { from, to };
        }
        let by = value | 1;
        match draw.below(10) {
            0..5 => OnChunk::Write { from, to, value },
            5..7 => OnChunk::Add { word, by },
            _ => {
                let known = draw.recent.iter().rev();
                let known = known
                    .filter_map(|(act, seen)| act.word_after(seen, word))
                    .next();
                let expected = match draw.chance(800) {
                    true => known.unwrap_or(0),
                    false => value,
                };
                OnChunk::Swap {
                    word,
                    expected,
                    new: value,
                }
            }
        }
    }

    fn read(_chunk: u64) -> OnChunk {
        let (from, to) = (0, WORDS.len() - 1);
        OnChunk::Read { from, to }
    }

    fn body(chunk: u64, act: &OnChunk) -> Body {
        let at = |word: usize| chunk * CHUNK_BYTES + WORDS[word];
        let action = match *act {
            OnChunk::Read { from, to } => Action::Read {
                offset: at(from),
                len: (WORDS[to] + 8 - WORDS[from]) as u32,
            },
            OnChunk::Write { from, to, value } => {
                let words = (WORDS[to] + 8 - WORDS[from]) / 8;
                let bytes: Vec<u8> = (0..words).flat_map(|_| value.to_le_bytes()).collect();
                Action::Write {
                    offset: at(from),
                    bytes: Bytes::from(bytes),
                }
            }
            OnChunk::Swap {
                word,
                expected,
                new,
            } => Action::CompareSwap {
                offset: at(word),
                expected,
                new,
            },
            OnChunk::Add { word, by } => Action::FetchAdd {
                offset: at(word),
                by,
            },
        };
        action.into_body(&mut BytesMut::new())
    }

    fn seen(act: &OnChunk, answer: &Answer) -> Option<Seen> {
        match (act, answer) {
            (OnChunk::Read { from, to }, Answer::Value(bytes)) => cells(*from, *to, bytes),
            (OnChunk::Write { .. }, Answer::Ok) => Some(Seen::Ok),
            (OnChunk::Swap { .. } | OnChunk::Add { .. }, Answer::Int(old)) => {
                Some(Seen::Word(*old as u64))
            }
            _ => None,
        }
    }

    fn outcome(act: &OnChunk, seen: &Seen) -> &'static str {
        match (act, seen) {
            (OnChunk::Read { from, to }, _) if from == to => "memory: word read",
            (OnChunk::Read { .. }, _) => "memory: pages read",
            (OnChunk::Write { from, to, .. }, _) if from == to => "memory: word written",
            (OnChunk::Write { .. }, _) => "memory: pages written",
            (OnChunk::Swap { expected, .. }, Seen::Word(old)) if expected == old => {
                "memory: swapped"
            }
            (OnChunk::Swap { .. }, _) => "memory: not swapped",
            (OnChunk::Add { .. }, _) => "memory: added",
        }
    }
}

impl OnChunk {
    /// The content of a word after it was answered, if that follows.
    fn word_after(&self, seen: &Seen, word: usize) -> Option<u64> {
        match (*self, seen) {
            (OnChunk::Read { from, to }, Seen::Cells(cells)) if (from..=to).contains(&word) => {
                Some(cells[2 * word])
            }
            (OnChunk::Write { from, to, value }, _) if (from..=to).contains(&word) => Some(value),
            (OnChunk::Add { word: w, by }, Seen::Word(old)) if w == word => {
                Some(old.wrapping_add(by))
            }
            _ => None,
        }
    }
}

// The cells of what was read; none if the read is torn. Bytes between two words were written at once, always
// the same eight over and over.
fn cells(from: usize, to: usize, bytes: &[u8]) -> Option<Seen> {
    let mut cells = [0; CELLS];
    let start = WORDS[from];
    if bytes.len() as u64 != WORDS[to] + 8 - start {
        return None;
    }
    for cell in cells_of(from, to) {
        let (first, end) = bounds(cell);
        let part = &bytes[(first - start) as usize..(end - start) as usize];
        let (words, _) = part.as_chunks::<8>();
        if words.iter().any(|word| *word != words[0]) {
            return None;
        }
        cells[cell] = u64::from_le_bytes(words[0]);
    }
    Some(Seen::Cells(cells))
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_history::{Verdict, check};

    type Call = staves_history::Call<OnChunk>;

    const STEPS: usize = 10_000;

    fn write(from: usize, to: usize, value: u64, called: u64, end: u64) -> Call {
        let act = OnChunk::Write { from, to, value };
        let end = (end > 0).then_some(end);
        Call::new(act, called, end, end.map(|_| Seen::Ok))
    }

    fn read(from: usize, to: usize, values: &[u64], called: u64, end: u64) -> Call {
        let mut cells = [0; CELLS];
        for (cell, value) in cells_of(from, to).zip(values) {
            cells[cell] = *value;
        }
        let act = OnChunk::Read { from, to };
        Call::new(act, called, Some(end), Some(Seen::Cells(cells)))
    }

    fn word(act: OnChunk, old: u64, called: u64, end: u64) -> Call {
        Call::new(act, called, Some(end), Some(Seen::Word(old)))
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
