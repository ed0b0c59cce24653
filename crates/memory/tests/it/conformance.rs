//! Memory passes the suite of all services.

use bytes::{Bytes, BytesMut};
use staves_conformance::{Draw, Workload, conforms};
use staves_group::Member as GroupMember;
use staves_history::Operation;
use staves_memory::{Bucket, Memory};
use staves_model::CHUNK_BYTES;
use staves_service::Limits;
use staves_wire::memory::Action;
use staves_wire::service::{Answer, Body};

/// Two words of a chunk, on both sides of a page's end.
type Words = [u64; 2];

#[derive(Clone, Copy, PartialEq, Debug)]
enum OnChunk {
    Read,
    Write(Words),
    Swap(u64, u64),
    Add(u64),
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Seen {
    Ok,
    Words(Words),
    Old(u64),
}

impl Operation for OnChunk {
    type State = Words;
    type Seen = Seen;

    fn apply(&self, before: &Words) -> (Words, Seen) {
        let [first, second] = *before;
        match *self {
            OnChunk::Read => (*before, Seen::Words(*before)),
            OnChunk::Write(words) => (words, Seen::Ok),
            OnChunk::Swap(expected, new) if first == expected => ([new, second], Seen::Old(first)),
            OnChunk::Swap(..) => (*before, Seen::Old(first)),
            OnChunk::Add(by) => ([first, second.wrapping_add(by)], Seen::Old(second)),
        }
    }

    fn is_read(&self) -> bool {
        *self == OnChunk::Read
    }
}

struct Load;

impl Workload for Load {
    type Service = Memory;
    type Operation = OnChunk;
    const OBJECTS: u64 = 6;
    const SCHEMES: &'static [(u8, u8)] = &[(1, 0), (1, 1), (2, 1), (2, 2)];

    fn bucket(limits: Limits, member: GroupMember) -> Bucket {
        Memory::bucket(limits, member)
    }

    fn draw(draw: &mut Draw<'_, OnChunk>) -> OnChunk {
        match draw.below(4) {
            _ if draw.is_read() => OnChunk::Read,
            0 => OnChunk::Swap(draw.below(3), 1 + draw.below(3)),
            1 => OnChunk::Add(draw.number),
            _ => OnChunk::Write([draw.below(3), draw.number]),
        }
    }

    fn read(_object: u64) -> OnChunk {
        OnChunk::Read
    }

    fn body(object: u64, operation: &OnChunk) -> Body {
        let offset = object * 3 * CHUNK_BYTES + 4088;
        let action = match *operation {
            OnChunk::Read => Action::Read { offset, len: 16 },
            OnChunk::Write(words) => {
                let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
                let bytes = Bytes::from(bytes);
                Action::Write { offset, bytes }
            }
            OnChunk::Swap(expected, new) => Action::CompareSwap {
                offset,
                expected,
                new,
            },
            OnChunk::Add(by) => Action::FetchAdd {
                offset: offset + 8,
                by,
            },
        };
        action.into_body(&mut BytesMut::new())
    }

    fn seen(_operation: &OnChunk, answer: &Answer) -> Option<Seen> {
        match answer {
            Answer::Ok => Some(Seen::Ok),
            Answer::Int(old) => Some(Seen::Old(*old as u64)),
            Answer::Value(bytes) => {
                let (first, second) = bytes.split_first_chunk::<8>()?;
                let second = second.try_into().ok()?;
                let word = u64::from_le_bytes;
                Some(Seen::Words([word(*first), word(second)]))
            }
            _ => None,
        }
    }
}

#[test]
fn memory_conforms() {
    conforms::<Load>(6);
}
