//! What clients of a memory world ask for, and what they make of the answers.

use staves_model::CHUNK_BYTES;
use staves_wire::ErrorCode;
use staves_wire::group::RequestId;
use staves_wire::service::Answer;

use crate::event::{MemoryRequest, Packet, client_id};
use crate::memory::{MemoryOperation, chunks_of};
use crate::memory_history::{
    Act, CELLS, Call, Cells, Seen, Verdict, WORDS, bounds, cells_of, check,
};
use crate::world::World;

/// Steps that the search over one chunk's history makes before it gives up.
const SEARCH_MAX: usize = 200_000;

impl World {
    /// A client whose map names a newer region than it works on gives up what it wanted of the old one.
    pub(crate) fn leave_region(&mut self, c: usize) {
        let Some(memory) = &self.memory else { return };
        let client = &mut self.clients[c];
        let (Some(map), Some(i)) = (&client.map, client.under_way) else {
            return;
        };
        if memory.region_of(map.id) != Some(memory.history[i].region) {
            client.under_way = None;
            self.cover.count("memory: region gone under a client");
        }
    }

    pub(crate) fn begin_memory(&mut self, c: usize) -> bool {
        let Some(memory) = &self.memory else {
            return false;
        };
        let map = self.clients[c].map.as_ref();
        let Some(region) = map.and_then(|g| memory.region_of(g.id)) else {
            return false;
        };
        let chunks = chunks_of(&memory.regions[region]);
        // Mostly few chunks, so that operations meet.
        let chunk = match self.rng.below(10) {
            0..5 => self.rng.below(2),
            5..8 => self.rng.below(chunks.min(4)),
            _ => self.rng.below(chunks),
        };
        let number = self.clients[c].number + 1;
        let value = ((c as u64 + 1) << 40 | number << 8 | 7).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let act = self.pick_memory_act(region, chunk, value);
        let now = self.now;
        let Some(memory) = &mut self.memory else {
            return false;
        };
        let client = &mut self.clients[c];
        client.number = number;
        client.attempts = 0;
        client.under_way = Some(memory.history.len());
        memory.history.push(MemoryOperation {
            region,
            chunk,
            act,
            called: now,
            seen: None,
            refused: false,
        });
        true
    }

    fn pick_memory_act(&mut self, region: usize, chunk: u64, value: u64) -> Act {
        let reads_mostly = self.profile.think <= 10;
        let word = self.rng.below(WORDS.len() as u64) as usize;
        // Mostly one word or the two beside a page's end, seldom all of a chunk's pages.
        let (from, to) = match self.rng.below(20) {
            0..8 => (word, word),
            8..15 => (1, 2),
            15..18 => (self.rng.below(3) as usize, 3),
            _ => (self.rng.below(4) as usize, 4),
        };
        if self.rng.chance(if reads_mostly { 800 } else { 350 }) {
            return Act::Read { from, to };
        }
        match self.rng.below(10) {
            0..5 => Act::Write { from, to, value },
            5..7 => Act::Add {
                word,
                by: value | 1,
            },
            _ => {
                let seen = self.last_seen(region, chunk, word);
                let expected = if self.rng.chance(800) { seen } else { value };
                Act::Swap {
                    word,
                    expected,
                    new: value,
                }
            }
        }
    }

    // What anybody was last told of a word.
    fn last_seen(&self, region: usize, chunk: u64, word: usize) -> u64 {
        let told = |o: &MemoryOperation| match (o.act, o.seen?.1) {
            (Act::Read { from, to }, Seen::Cells(cells)) if (from..=to).contains(&word) => {
                Some(cells[2 * word])
            }
            (Act::Write { from, to, value }, _) if (from..=to).contains(&word) => Some(value),
            (Act::Add { word: w, by }, Seen::Word(old)) if w == word => Some(old.wrapping_add(by)),
            _ => None,
        };
        let history = self.memory.iter().flat_map(|m| m.history.iter().rev());
        let of_chunk = history.filter(|o| o.region == region && o.chunk == chunk);
        of_chunk.take(8).find_map(told).unwrap_or(0)
    }

    pub(crate) fn ask_memory(&mut self, c: usize) {
        let place = self.first_client() + c;
        let client = &mut self.clients[c];
        client.attempts += 1;
        let (Some(operation), Some(map), Some(memory)) =
            (client.under_way, &client.map, &self.memory)
        else {
            return;
        };
        let asked = &memory.history[operation];
        let at = memory.regions[asked.region].place(asked.chunk * CHUNK_BYTES, self.m as u8);
        let data = at.and_then(|at| {
            map.last_open
                .members
                .get(at.slot.index())
                .copied()
                .flatten()
        });
        let request = MemoryRequest {
            client: place,
            group: map.id,
            id: RequestId {
                client: client_id(place),
                number: client.number,
                floor: client.number,
            },
            attempt: client.attempts - 1,
            operation,
        };
        if let Some(node) = data.and_then(|x| self.entry_of(x.id)) {
            self.send(place, node, Packet::MemoryRequest(request));
        }
    }

    pub(crate) fn deliver_memory_answer(&mut self, c: usize, number: u64, answer: &Answer) {
        if number != self.clients[c].number {
            return;
        }
        let Some(i) = self.clients[c].under_way.take() else {
            return;
        };
        let now = self.now;
        let Some(operation) = self.memory.as_mut().and_then(|m| m.history.get_mut(i)) else {
            return;
        };
        let what = match answer {
            Answer::Error(ErrorCode::OutOfMemory, _) if operation.act.is_write() => {
                operation.refused = true;
                "memory: refused for lack of memory"
            }
            // It may have taken effect, or not.
            Answer::Error(ErrorCode::Forgotten, _) => "memory: forgotten",
            Answer::Error(ErrorCode::Lost, _) => match operation.act.is_write() {
                true => "memory: told of a write that the group is lost",
                false => "memory: told of a read that the group is lost",
            },
            answer => match seen_of(&operation.act, answer) {
                Ok(seen) => {
                    operation.seen = Some((now, seen));
                    operation.act.name(&seen)
                }
                Err(why) => {
                    let text = format!("I8 chunk {}: {why}", operation.chunk);
                    return self.violation(text);
                }
            },
        };
        self.cover.count(what);
    }

    /// Whether one order of each chunk's operations explains what all clients saw (I8, I9).
    pub(crate) fn check_memory_history(&mut self) {
        let Some(memory) = self.memory.as_mut() else {
            return;
        };
        let mut chunks: Vec<(usize, u64)> =
            memory.history.iter().map(|o| (o.region, o.chunk)).collect();
        chunks.sort_unstable();
        chunks.dedup();
        let mut bad = Vec::new();
        for (region, chunk) in chunks {
            let of_chunk = |o: &&MemoryOperation| (o.region, o.chunk) == (region, chunk);
            let done = memory
                .history
                .iter()
                .filter(of_chunk)
                .filter(|o| !o.refused);
            let calls: Vec<Call> = done
                .map(|o| {
                    let (returned, seen) = o.seen.unzip();
                    Call::new(o.act, o.called, returned, seen)
                })
                .collect();
            match check(&calls, SEARCH_MAX) {
                Verdict::Fine => {}
                Verdict::Undecided => memory.undecided += 1,
                Verdict::Bad(what) => {
                    bad.push(format!("I8/I9 region {region} chunk {chunk}: {what}"));
                }
            }
        }
        for what in bad {
            self.violation(what);
        }
    }
}

impl Act {
    pub(crate) fn is_write(&self) -> bool {
        !matches!(self, Act::Read { .. })
    }

    fn name(&self, seen: &Seen) -> &'static str {
        match (self, seen) {
            (Act::Read { from, to }, _) if from == to => "memory: word read",
            (Act::Read { .. }, _) => "memory: pages read",
            (Act::Write { from, to, .. }, _) if from == to => "memory: word written",
            (Act::Write { .. }, _) => "memory: pages written",
            (Act::Swap { expected, .. }, Seen::Word(old)) if expected == old => "memory: swapped",
            (Act::Swap { .. }, _) => "memory: not swapped",
            (Act::Add { .. }, _) => "memory: added",
        }
    }
}

// What a client makes of an answer that is no error of the group's.
fn seen_of(act: &Act, answer: &Answer) -> Result<Seen, String> {
    match (act, answer) {
        (Act::Read { from, to }, Answer::Value(bytes)) => {
            Ok(Seen::Cells(cells(*from, *to, bytes)?))
        }
        (Act::Write { .. }, Answer::Ok) => Ok(Seen::Ok),
        (Act::Swap { .. } | Act::Add { .. }, Answer::Int(old)) => Ok(Seen::Word(*old as u64)),
        _ => Err(format!("{act:?} was answered with {answer:?}")),
    }
}

// The cells of what was read. What lies between two words was written at once, always with eight bytes over
// and over.
fn cells(from: usize, to: usize, bytes: &[u8]) -> Result<Cells, String> {
    let mut cells = [0; CELLS];
    let start = WORDS[from];
    if bytes.len() as u64 != WORDS[to] + 8 - start {
        return Err(format!("{} bytes were read", bytes.len()));
    }
    for cell in cells_of(from, to) {
        let (first, end) = bounds(cell);
        let part = &bytes[(first - start) as usize..(end - start) as usize];
        let mut words = part.chunks_exact(8).map(|w| {
            let word: [u8; 8] = w.try_into().expect("chunks of eight");
            u64::from_le_bytes(word)
        });
        let word = words.next().unwrap_or_default();
        if words.any(|w| w != word) {
            return Err(format!(
                "a torn read between bytes {first} and {end} of the chunk"
            ));
        }
        cells[cell] = word;
    }
    Ok(cells)
}
