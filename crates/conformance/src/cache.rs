//! The load of the key-value service. Keys are of five sorts, by their number: 0 to 2 hold text, key 0 is mostly set,
//! key 1 mostly set if absent and deleted, key 2 mostly appended to. Keys 3 and 4 count; key 4 is never deleted, so its numbers
//! never repeat. Memory is so little, and the log so short, that writes are refused, large values go in pieces and segments are
//! compacted within a few seconds.

use staves_cache::{Bucket, Cache, Options};
use staves_group::Member;
use staves_history::record::{Answered, Asked};
use staves_history::{Content, Operation, Record, Seen, Step};
use staves_model::{HashSlot, hash_slot};
use staves_service::Limits;
use staves_wire::cache::{Condition, Op};
use staves_wire::service::{Answer, Body};

use crate::{Draw, Ended, Workload};

/// Sorts of keys.
pub const SORTS: u64 = 5;
/// Keys from this number on are for drivers that write each once.
pub const LEDGER: u64 = 1 << 32;
/// Bytes that a stream's log may hold: two bulky values, or a few chunks.
const LOG_BYTES_MAX: usize = 90_000;
/// A longer record goes in chunks.
const INLINE_BYTES_MAX: usize = 40_000;
/// Bytes of a chunk, each of which takes one of a node's few extents.
const CHUNK_BYTES: usize = 20_000;

/// A text to be written: its bytes follow from its id, and no two ids give the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Text {
    /// The number of the operation that writes it.
    pub id: u64,
    /// Its length; at least 18 are written.
    pub len: usize,
}

impl Text {
    /// The bytes; never a number.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!("v{:016x}.", self.id).into_bytes();
        let mut x = self.id | 1;
        while bytes.len() < self.len {
            x = x
                .wrapping_mul(0x5851_F42D_4C95_7F2D)
                .wrapping_add(0x1405_7B7E_F767_814F);
            bytes.extend(x.to_le_bytes().map(|byte| b'a' + (byte & 15)));
        }
        bytes.truncate(self.len.max(18));
        bytes
    }
}

/// An operation on a key, with the text that it writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OnKey {
    step: Step,
    text: Option<Text>,
}

impl OnKey {
    /// A read.
    pub const GET: OnKey = OnKey::bare(Step::Get);

    const fn bare(step: Step) -> OnKey {
        OnKey { step, text: None }
    }

    fn with(step: fn(Content) -> Step, text: Text) -> OnKey {
        OnKey {
            step: step(Content::of(&text.bytes())),
            text: Some(text),
        }
    }

    /// A write of a whole value.
    pub fn set(text: Text) -> OnKey {
        OnKey::with(Step::Set, text)
    }
}

impl Operation for OnKey {
    type State = Option<Content>;
    type Seen = Seen;

    fn apply(&self, before: &Option<Content>) -> (Option<Content>, Seen) {
        self.step.apply(before)
    }

    fn is_read(&self) -> bool {
        self.step.is_read()
    }

    fn is_blind(&self) -> bool {
        self.step.is_blind()
    }
}

fn is_large(content: &Content) -> bool {
    content.len() > INLINE_BYTES_MAX as u64
}

/// The load.
pub struct KeyLoad;

impl Workload for KeyLoad {
    type Service = Cache;
    type Operation = OnKey;
    const OBJECTS: u64 = SORTS;
    const SCHEMES: &'static [(u8, u8)] = &[(1, 0), (1, 1), (1, 2)];
    // By the map the client's router knows; the bucket lets requests wait until their deadlines.
    const REPORTS_LOSS: bool = false;

    fn bucket(limits: Limits, member: Member) -> Bucket {
        let options = Options {
            value_bytes_max: 1 << 18,
            inline_bytes_max: INLINE_BYTES_MAX,
            chunk_bytes: CHUNK_BYTES,
            chunks_per_step: 2,
            compaction_bytes_max: LOG_BYTES_MAX - 1000,
            waste_percent_max: 30,
            limits,
        };
        Cache::bucket(options, member)
    }

    fn options(base: staves_group::Options) -> staves_group::Options {
        staves_group::Options {
            log_bytes_max: LOG_BYTES_MAX,
            message_bytes_max: LOG_BYTES_MAX / 5,
            ..base
        }
    }

    fn draw(draw: &mut Draw<'_, OnKey>) -> OnKey {
        if draw.is_read() {
            return OnKey::GET;
        }
        let len = match draw.below(100) {
            0..40 => 20 + draw.below(40),
            40..75 => 15_000 + draw.below(20_000),
            _ => 41_000 + draw.below(60_000),
        };
        let (id, len) = (draw.number, len.min(draw.bytes_max) as usize);
        let (text, short) = (Text { id, len }, Text { id, len: 20 });
        match (draw.object % SORTS, draw.below(100)) {
            (0, 0..90) | (1, 0..20) | (2, 0..15) => OnKey::set(text),
            (0, 90..95) | (1, 20..60) => OnKey::with(Step::SetIfAbsent, text),
            (1, 80..) | (2, 80..90) | (3, 80..90) => OnKey::bare(Step::GetDel),
            (2, 15..80) => OnKey::with(Step::Append, short),
            (3, 0..80) => OnKey::bare(Step::Incr(1 + (id % 3) as i64)),
            (0..4, _) => OnKey::bare(Step::Del),
            _ => OnKey::bare(Step::Incr(1)),
        }
    }

    fn read(_object: u64) -> OnKey {
        OnKey::GET
    }

    fn write(object: u64, id: u64) -> OnKey {
        match object % SORTS {
            0..3 => OnKey::set(Text { id, len: 20 }),
            _ => OnKey::bare(Step::Incr(1)),
        }
    }

    fn body(object: u64, operation: &OnKey) -> Body {
        let (key, value) = (name(object), operation.text.map(|text| text.bytes()));
        let (key, value) = (key.as_bytes(), &value.unwrap_or_default()[..]);
        let set = |condition| Op::Set {
            key,
            value,
            condition,
            get_old: false,
        };
        let op = match operation.step {
            Step::Get => Op::Get { key },
            Step::Set(_) => set(Condition::Always),
            Step::SetIfAbsent(_) => set(Condition::IfAbsent),
            Step::Del => Op::Del { key },
            Step::Incr(by) => Op::IncrBy { key, by },
            Step::Append(_) => Op::Append { key, value },
            Step::GetDel => Op::GetDel { key },
        };
        op.to_body()
    }

    fn hash_slot(object: u64) -> Option<HashSlot> {
        Some(hash_slot(name(object).as_bytes()))
    }

    fn seen(_operation: &OnKey, answer: &Answer) -> Option<Seen> {
        match answer {
            Answer::Nil => Some(Seen::Nil),
            Answer::Ok => Some(Seen::Ok),
            Answer::Int(n) => Some(Seen::Int(*n)),
            Answer::Value(bytes) => Some(Seen::Value(Content::of(bytes))),
            Answer::Error(..) => None,
        }
    }

    fn outcome(operation: &OnKey, seen: &Seen) -> &'static str {
        match (operation.step, seen) {
            (Step::Set(c) | Step::SetIfAbsent(c), Seen::Ok) if is_large(&c) => {
                "key-value: large value written"
            }
            (Step::Get | Step::GetDel, Seen::Value(c)) if is_large(c) => {
                "key-value: large value read"
            }
            (Step::SetIfAbsent(_), Seen::Nil) => "key-value: condition did not hold",
            (Step::Incr(_), _) => "key-value: counted",
            (Step::Append(_), _) => "key-value: appended",
            _ => "key-value: answered",
        }
    }

    // Texts are of one write each; what an append or a count leaves is not told apart.
    fn shows(_read: &OnKey, seen: &Seen, write: &OnKey) -> bool {
        match write.step {
            Step::Set(content) | Step::SetIfAbsent(content) => *seen == Seen::Value(content),
            _ => false,
        }
    }

    // A number that was given twice shows in whatever order the operations were done.
    fn judge(object: u64, answered: &[(OnKey, Seen)]) -> Result<(), String> {
        let counts = |(operation, _): &&(OnKey, Seen)| matches!(operation.step, Step::Incr(_));
        let counted = answered.iter().filter(counts).map(|(_, seen)| *seen);
        let mut numbers: Vec<Seen> = counted.filter(|_| object % SORTS == SORTS - 1).collect();
        let answers = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        match numbers.len() < answers {
            true => Err("a number was given twice".into()),
            false => Ok(()),
        }
    }
}

/// The name of a key.
pub fn name(key: u64) -> String {
    match key.checked_sub(LEDGER) {
        None => format!("key-{key}"),
        Some(number) => format!("ledger-{number}"),
    }
}

/// An operation, as the history's file has it.
pub fn asked(operation: &OnKey) -> Asked {
    let text = operation.text.map(|text| text.bytes()).unwrap_or_default();
    let value = String::from_utf8(text).expect("texts are ASCII");
    match operation.step {
        Step::Get => Asked::Get,
        Step::Set(_) => Asked::Set { value },
        Step::SetIfAbsent(_) => Asked::SetNx { value },
        Step::Del => Asked::Del,
        Step::Incr(by) => Asked::Incr { by },
        Step::Append(_) => Asked::Append { value },
        Step::GetDel => Asked::GetDel,
    }
}

/// An operation with its answer, as the history's file has it.
pub fn record(ended: &Ended<OnKey>) -> Record {
    let answer = match &ended.answer {
        Answer::Nil => Some(Answered::Nil),
        Answer::Ok => Some(Answered::Ok),
        Answer::Int(n) => Some(Answered::Int(*n)),
        Answer::Value(v) => Some(Answered::Value(String::from_utf8_lossy(v).into_owned())),
        Answer::Error(..) => None,
    };
    Record {
        process: ended.begun.client,
        key: name(ended.begun.object),
        asked: asked(&ended.begun.operation),
        call: ended.begun.called,
        returned: ended.returned,
        answer,
    }
}
