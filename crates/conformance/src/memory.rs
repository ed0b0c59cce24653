//! The load of the memory service, on chunks. The data bucket of a chunk is the driver's choice.

use bytes::{Bytes, BytesMut};
use staves_group::{Member, Options};
use staves_history::Record;
use staves_history::chunk::{CELLS, ChunkSeen, OnChunk, WORDS, bounds, cells_of};
use staves_history::record::{Answered, Asked};
use staves_memory::{Bucket, Memory};
use staves_model::{BUCKET_CHUNKS_MAX, CHUNK_BYTES};
use staves_service::Limits;
use staves_wire::memory::Action;
use staves_wire::service::{Answer, Body};

use crate::{Draw, Ended, Workload};

/// Bytes that a stream's log may hold: a few writes that cross pages. A longer one goes alone.
const LOG_BYTES_MAX: usize = 40_000;

/// All of a chunk becomes zeroes, and gives its place up.
const ZERO: OnChunk = OnChunk::Write {
    from: 0,
    to: WORDS.len() - 1,
    value: 0,
};

/// The load.
pub struct ChunkLoad;

impl Workload for ChunkLoad {
    type Service = Memory;
    type Operation = OnChunk;
    const OBJECTS: u64 = 6;
    const SCHEMES: &'static [(u8, u8)] = &[(1, 0), (1, 1), (2, 1), (2, 2)];
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
        let value = value(draw.number);
        let word = draw.below(WORDS.len() as u64) as usize;
        // Mostly one word or the two beside a page's end, seldom all of a chunk's pages.
        let (from, to) = match draw.below(20) {
            0..8 => (word, word),
            8..15 => (1, 2),
            15..18 => (draw.below(3) as usize, 3),
            _ => (draw.below(4) as usize, 4),
        };
        let fits = WORDS[to] + 8 - WORDS[from] <= draw.bytes_max;
        let (from, to) = if fits { (from, to) } else { (word, word) };
        if draw.is_read() {
            return OnChunk::Read { from, to };
        }
        let by = value | 1;
        match draw.below(10) {
            0 if draw.bytes_max >= CHUNK_BYTES && draw.chance(500) => ZERO,
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

    // Values are of one write each.
    fn shows(_read: &OnChunk, seen: &ChunkSeen, write: &OnChunk) -> bool {
        match (seen, *write) {
            // Zeroes show nothing: many write them.
            (ChunkSeen::Cells(_), ZERO) => false,
            (ChunkSeen::Cells(cells), OnChunk::Write { value, .. }) => cells.contains(&value),
            (ChunkSeen::Cells(cells), OnChunk::Swap { new, .. }) => cells.contains(&new),
            _ => false,
        }
    }

    fn read(_chunk: u64) -> OnChunk {
        let (from, to) = (0, WORDS.len() - 1);
        OnChunk::Read { from, to }
    }

    fn write(_chunk: u64, number: u64) -> OnChunk {
        let (from, to, value) = (1, 2, value(number));
        OnChunk::Write { from, to, value }
    }

    fn body(chunk: u64, act: &OnChunk) -> Body {
        action(in_bucket(chunk), act).into_body(&mut BytesMut::new())
    }

    fn seen(act: &OnChunk, answer: &Answer) -> Option<ChunkSeen> {
        match (act, answer) {
            (OnChunk::Read { from, to }, Answer::Value(bytes)) => cells(*from, *to, bytes),
            (OnChunk::Write { .. }, Answer::Ok) => Some(ChunkSeen::Ok),
            (OnChunk::Swap { .. } | OnChunk::Add { .. }, Answer::Int(old)) => {
                Some(ChunkSeen::Word(*old as u64))
            }
            _ => None,
        }
    }

    fn outcome(act: &OnChunk, seen: &ChunkSeen) -> &'static str {
        match (act, seen) {
            (OnChunk::Read { from, to }, _) if from == to => "memory: word read",
            (OnChunk::Read { .. }, _) => "memory: pages read",
            (&ZERO, _) => "memory: zeroed",
            (OnChunk::Write { from, to, .. }, _) if from == to => "memory: word written",
            (OnChunk::Write { .. }, _) => "memory: pages written",
            (OnChunk::Swap { expected, .. }, ChunkSeen::Word(old)) if expected == old => {
                "memory: swapped"
            }
            (OnChunk::Swap { .. }, _) => "memory: not swapped",
            (OnChunk::Add { .. }, _) => "memory: added",
        }
    }
}

/// An operation on the chunk of this name, as the history's file has it.
pub fn record(key: String, ended: &Ended<OnChunk>) -> Record {
    let act = ended.begun.operation;
    let answer = ChunkLoad::seen(&act, &ended.answer).map(|seen| match seen {
        ChunkSeen::Ok => Answered::Ok,
        ChunkSeen::Word(word) => Answered::Int(word as i64),
        ChunkSeen::Cells(cells) => Answered::Cells(cells),
    });
    Record {
        process: ended.begun.client,
        key,
        asked: Asked::Chunk(act),
        call: ended.begun.called,
        returned: ended.returned,
        answer,
    }
}

/// An operation on a chunk, as its bucket or region has it.
pub fn action(chunk: u64, act: &OnChunk) -> Action {
    let at = |word: usize| chunk * CHUNK_BYTES + WORDS[word];
    match *act {
        OnChunk::Read { from, to } => Action::Read {
            image: 0,
            offset: at(from),
            len: (WORDS[to] + 8 - WORDS[from]) as u32,
        },
        ZERO => Action::Zero {
            image: 0,
            session: 0,
            offset: chunk * CHUNK_BYTES,
            len: CHUNK_BYTES as u32,
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
    }
}

/// The chunk of the bucket that a chunk of the load is: each second one is far from the others, so that their entries lie in all
/// pages of the table of chunks.
fn in_bucket(chunk: u64) -> u64 {
    const FAR: u64 = 1637;
    match chunk % 2 {
        0 => chunk,
        _ => chunk * FAR % u64::from(BUCKET_CHUNKS_MAX),
    }
}

// No two operations write the same.
fn value(number: u64) -> u64 {
    (number << 8 | 7).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

// The cells of what was read; none if the read is torn. Bytes between two words were written at once, always
// the same eight over and over.
fn cells(from: usize, to: usize, bytes: &[u8]) -> Option<ChunkSeen> {
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
    Some(ChunkSeen::Cells(cells))
}
