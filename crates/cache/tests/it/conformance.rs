//! The cache passes the suite of all services.

use staves_cache::{Bucket, Cache};
use staves_conformance::{Draw, Workload, bytes, conforms};
use staves_group::Member;
use staves_history::{Content, Seen, Step};
use staves_service::Limits;
use staves_wire::cache::{Condition, Op};
use staves_wire::service::{Answer, Body};

use crate::cluster::small_options;

/// An operation on a key, with the bytes that it writes.
#[derive(Clone, PartialEq, Debug)]
struct OnKey {
    step: Step,
    value: Vec<u8>,
}

impl staves_history::Operation for OnKey {
    type State = Option<Content>;
    type Seen = Seen;

    fn apply(&self, before: &Option<Content>) -> (Option<Content>, Seen) {
        self.step.apply(before)
    }

    fn is_read(&self) -> bool {
        self.step.is_read()
    }
}

struct Load;

impl Workload for Load {
    type Service = Cache;
    type Operation = OnKey;
    const OBJECTS: u64 = 6;
    const SCHEMES: &'static [(u8, u8)] = &[(1, 0), (1, 1), (1, 2)];

    // Its own limits, with a shorter wait for memory.
    fn bucket(_limits: Limits, member: Member) -> Bucket {
        Cache::bucket(small_options(), member)
    }

    // Objects 0 to 3 hold text, now and then in pieces; 4 and 5 count.
    fn draw(draw: &mut Draw<'_, OnKey>) -> OnKey {
        let len = match draw.below(6) {
            0 => 20 + draw.below(40_000),
            _ => 20 + draw.below(500),
        };
        let value = bytes(draw.number, len as usize);
        let content = Content::of(&value);
        let counts = draw.object >= 4;
        let step = match draw.below(5) {
            _ if draw.is_read() => Step::Get,
            0 => Step::Del,
            1 => Step::GetDel,
            2 if !counts => Step::SetIfAbsent(content),
            3 if !counts => Step::Append(content),
            _ if !counts => Step::Set(content),
            _ => Step::Incr(1 + (draw.number % 3) as i64),
        };
        OnKey { step, value }
    }

    fn read(_object: u64) -> OnKey {
        let (step, value) = (Step::Get, Vec::new());
        OnKey { step, value }
    }

    fn body(object: u64, operation: &OnKey) -> Body {
        let key = format!("key-{object}").into_bytes();
        let (key, value) = (&key[..], &operation.value[..]);
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

    fn seen(_operation: &OnKey, answer: &Answer) -> Option<Seen> {
        match answer {
            Answer::Nil => Some(Seen::Nil),
            Answer::Ok => Some(Seen::Ok),
            Answer::Int(n) => Some(Seen::Int(*n)),
            Answer::Value(bytes) => Some(Seen::Value(Content::of(bytes))),
            Answer::Error(..) => None,
        }
    }
}

#[test]
fn the_cache_conforms() {
    conforms::<Load>(6);
}
