//! The smallest service on groups: counters, with four operations. A bucket holds 512 of them, eight bytes
//! each, in its first page; so its state lies in the pages alone. `cargo run -p staves-service --example
//! counter` uses it in a group, and the suite, the simulator and the node's tests use its [`Load`].

use bytes::{BufMut, Bytes, BytesMut};
use staves_group::{Member, ReadError};
use staves_history::Operation;
use staves_model::{ServiceId, Time};
use staves_service::{
    Bucket, BucketContext, BucketEffects, Growth, KeyHash, Limits, OpHeader, Outcome, Service,
};
use staves_wire::group::{Run, RunKind};
use staves_wire::service::{Address, Answer, Body};
use staves_wire::{DecodeError, ErrorCode};

use crate::{Draw, Workload};

/// Counter of one bucket.
const COUNTERS: u32 = 512;

/// An operation on one counter. Each is answered with the number that was there before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Count {
    /// The counter's number.
    pub counter: u32,
    /// The change to it.
    pub change: Change,
}

/// A change of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// None.
    Get,
    /// Adds to it, past 64 bits around.
    Add(u64),
    /// Raises it to this, if it is less.
    Raise(u64),
    /// Begins again from this.
    Reset(u64),
}

impl Change {
    /// The number after it.
    pub fn of(self, number: u64) -> u64 {
        match self {
            Change::Get => number,
            Change::Add(by) => number.wrapping_add(by),
            Change::Raise(to) => number.max(to),
            Change::Reset(to) => to,
        }
    }
}

impl Count {
    /// Its body: a tag, the counter and a number.
    pub fn to_body(self) -> Body {
        let (tag, number) = match self.change {
            Change::Get => (0, 0),
            Change::Add(by) => (1, by),
            Change::Raise(to) => (2, to),
            Change::Reset(to) => (3, to),
        };
        let mut head = BytesMut::with_capacity(13);
        head.put_u8(tag);
        head.put_u32_le(self.counter);
        head.put_u64_le(number);
        let (head, payload) = (head.freeze(), Bytes::new());
        Body { head, payload }
    }

    /// The operation of a body.
    ///
    /// # Errors
    /// The body is none of the service's.
    pub fn from_body(body: &Body) -> Result<Count, DecodeError> {
        let wrong = DecodeError::Tag {
            what: "an operation on a counter",
            tag: body.head.first().map_or(0, |tag| u64::from(*tag)),
        };
        let Ok([tag, c0, c1, c2, c3, number @ ..]) = <[u8; 13]>::try_from(&body.head[..]) else {
            return Err(wrong);
        };
        let number = u64::from_le_bytes(number);
        let change = match tag {
            0 => Change::Get,
            1 => Change::Add(number),
            2 => Change::Raise(number),
            3 => Change::Reset(number),
            _ => return Err(wrong),
        };
        let counter = u32::from_le_bytes([c0, c1, c2, c3]);
        Ok(Count { counter, change })
    }
}

/// The service.
#[derive(Default)]
pub struct Counter {
    operations: u64,
}

/// A bucket of counters around a member of a group.
pub fn bucket(member: Member) -> Bucket<Counter> {
    Load::bucket(Limits::default(), member)
}

impl Service for Counter {
    type Op<'a> = Count;
    type OwnedOp = Count;
    const ID: ServiceId = ServiceId(200);
    const FORGOTTEN: &'static str = "outcome unknown: the retry came too late; read the counter";
    const MENDABLE: bool = true;
    const EXISTS_EMPTY: bool = false;

    fn with_body<R>(body: &Body, take: impl FnOnce(Count) -> R) -> Result<R, DecodeError> {
        Ok(take(Count::from_body(body)?))
    }

    fn check_address(_op: Count, _to: Address) -> Result<(), String> {
        Ok(())
    }

    fn to_owned(op: Count) -> Count {
        op
    }

    fn as_op(op: &Count) -> Count {
        *op
    }

    fn is_write(op: Count) -> bool {
        op.change != Change::Get
    }

    fn op_bytes(_op: Count) -> usize {
        size_of::<Count>()
    }

    fn malformed(&self, op: Count) -> Option<Answer> {
        let text = format!("there is no counter {}", op.counter);
        (op.counter >= COUNTERS).then(|| Answer::error(ErrorCode::Malformed, text))
    }

    fn execute(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        header: &OpHeader,
        _key_hash: Option<KeyHash>,
        op: Count,
        out: &mut BucketEffects,
    ) -> Outcome {
        if Counter::is_write(op)
            && let Some(again) = context.recall(header)
        {
            return again;
        }
        let run = Run {
            offset: u64::from(op.counter) * 8,
            len: 8,
            kind: RunKind::Bytes,
        };
        // Pages that a lost group lacks may never come, and what it holds is only read.
        let is_lost = context.member().is_lost();
        if Counter::is_write(op) && is_lost {
            return Outcome::at_once(lost());
        }
        // A page that is being rebuilt is requested, and the operation waits for it.
        if context.lacks(now, run, &mut out.effects) {
            return match is_lost {
                true => Outcome::at_once(lost()),
                false => Outcome::Blocked { starved: false },
            };
        }
        self.operations += 1;
        if op.change == Change::Get {
            let mut bytes = Vec::new();
            return match context.member().read(now, run.offset, run.len, &mut bytes) {
                Ok(seq) => Outcome::read(seq, Answer::Int(number(&bytes))),
                Err(ReadError::Lost) => Outcome::at_once(lost()),
                Err(_) => Outcome::Blocked { starved: false },
            };
        }
        match context.grow(now, 1, 1, 1) {
            Growth::Granted => {}
            Growth::Pending => return Outcome::Blocked { starved: true },
            // It is kept, so that a late copy of the request does not take effect after all.
            Growth::Refused => return context.record(header, full(), context.member().last()),
        }
        let pages = context.member().pages();
        let old = pages.map_or(0, |pages| number(pages.slice(run.offset, 8)));
        let new = op.change.of(old as u64).to_le_bytes();
        let answer = Answer::Int(old);
        match context.make(header, &answer, vec![run], Bytes::copy_from_slice(&new)) {
            Ok(seq) => Outcome::write(seq, answer),
            Err(stop) => stop.outcome(full),
        }
    }

    fn count(&self, _member: &Member, _serving: bool, add: &mut dyn FnMut(&'static str, u64)) {
        add("counter_operations", self.operations);
    }

    fn check(&self, _member: &Member, _serving: bool) -> Result<(), String> {
        Ok(())
    }
}

fn lost() -> Answer {
    Answer::error(ErrorCode::Lost, "the counters are lost")
}

fn full() -> Answer {
    Answer::error(
        ErrorCode::OutOfMemory,
        "there is no memory for the counters",
    )
}

fn number(bytes: &[u8]) -> i64 {
    let bytes = bytes.try_into().unwrap_or_default();
    i64::from_le_bytes(bytes)
}

/// A change of a number, as the plain model has it: the number before is the answer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Plain(Change);

impl Operation for Plain {
    type State = u64;
    type Seen = u64;

    fn apply(&self, before: &u64) -> (u64, u64) {
        (self.0.of(*before), *before)
    }

    fn is_read(&self) -> bool {
        self.0 == Change::Get
    }

    fn is_blind(&self) -> bool {
        false // the number before says what it did
    }
}

/// The load on counters.
pub struct Load;

impl Workload for Load {
    type Service = Counter;
    type Operation = Plain;
    const OBJECTS: u64 = 5;
    const SCHEMES: &'static [(u8, u8)] = &[(1, 0), (1, 2), (2, 1), (2, 2)];

    fn bucket(limits: Limits, member: Member) -> Bucket<Counter> {
        Bucket::new(Counter::default(), limits, member)
    }

    fn draw(draw: &mut Draw<'_, Plain>) -> Plain {
        let number = draw.number;
        Plain(match draw.below(3) {
            _ if draw.is_read() => Change::Get,
            0 => Change::Add(number),
            1 => Change::Raise(number.wrapping_mul(1000)),
            _ => Change::Reset(number),
        })
    }

    fn read(_object: u64) -> Plain {
        Plain(Change::Get)
    }

    fn write(_object: u64, number: u64) -> Plain {
        Plain(Change::Add(number))
    }

    fn body(object: u64, operation: &Plain) -> Body {
        let (counter, change) = (object as u32, operation.0);
        Count { counter, change }.to_body()
    }

    fn seen(_operation: &Plain, answer: &Answer) -> Option<u64> {
        match answer {
            Answer::Int(number) => Some(*number as u64),
            _ => None,
        }
    }
}
