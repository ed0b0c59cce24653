//! The example service in a group of buckets.

#[path = "../../examples/counter.rs"]
mod counter;

use counter::{Change, Count, Counters};
use staves_conformance::{Workload, conforms};
use staves_group::Member;
use staves_history::Operation;
use staves_service::{AnyBucket, Bucket};
use staves_wire::service::Answer;

/// A change of a number, as the plain model has it: the number before is the answer.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Plain(Change);

impl Operation for Plain {
    type State = u64;
    type Seen = u64;

    fn apply(&self, before: &u64) -> (u64, u64) {
        (self.0.of(*before), *before)
    }

    fn is_read(&self) -> bool {
        self.0 == Change::Get
    }
}

struct Load;

impl Workload for Load {
    type Service = Counters;
    type Operation = Plain;
    const OBJECTS: u64 = 5;
    const SCHEMES: &'static [(u8, u8)] = &[(1, 0), (1, 2), (2, 1), (2, 2)];

    fn bucket(member: Member) -> Bucket<Counters> {
        counter::bucket(member)
    }

    fn draw(_object: u64, number: u64, random: &mut dyn FnMut(u64) -> u64) -> Plain {
        Plain(match random(4) {
            0 => Change::Get,
            1 => Change::Add(number),
            2 => Change::Raise(number * 1000),
            _ => Change::Reset(number),
        })
    }

    fn read(_object: u64) -> Plain {
        Plain(Change::Get)
    }

    fn encode(object: u64, operation: &Plain) -> Count {
        Count {
            counter: object as u32,
            change: operation.0,
        }
    }

    fn seen(_operation: &Plain, answer: &Answer) -> Option<u64> {
        match answer {
            Answer::Int(number) => Some(*number as u64),
            _ => None,
        }
    }
}

#[test]
fn the_smallest_service_conforms() {
    conforms::<Load>(6);
}

/// A node uses a bucket of a service that it knows by number only.
#[test]
fn a_bucket_takes_bodies_and_counts_without_its_type() {
    use staves_model::{GroupId, MemberSlot};
    use staves_service::{Ask, BucketEffects, Refused};
    use staves_wire::service::{Address, Body};

    let options = staves_group::Options::default();
    let cluster = staves_conformance::TestCluster::new((1, 0), 1, 8, options, counter::bucket);
    let now = cluster.now;
    let mut buckets = cluster.buckets.into_iter();
    let mut bucket: Box<dyn AnyBucket> = Box::new(buckets.next().expect("one node"));
    let mut out = BucketEffects::default();
    let ask = |slot| Ask {
        token: 1,
        slot: MemberSlot(slot),
        request: None,
        deadline: now + std::time::Duration::from_secs(1),
    };
    let to = Address::Bucket(GroupId(1), MemberSlot(0));
    let change = Change::Add(9);
    let body = Count { counter: 1, change }.to_body();
    // The first write waits for memory.
    let _ = bucket.submit_body(now, ask(0), to, &body, &mut out);
    bucket.step(now, staves_group::Event::Tick, &mut out);
    let (result, _) = bucket.submit_body(now, ask(0), to, &body, &mut out);
    assert_eq!(result, Ok(Some(Answer::Int(9))));
    let (result, _) = bucket.submit_body(now, ask(1), to, &body, &mut out);
    assert_eq!(result, Err(Refused::NotServing), "another data slot");
    let (result, _) = bucket.submit_body(now, ask(0), to, &Body::default(), &mut out);
    assert!(matches!(result, Ok(Some(Answer::Error(..)))), "{result:?}");
    let mut counted = Vec::new();
    bucket.count(&mut |name, value| counted.push((name, value)));
    assert_eq!(counted.len(), 1);
    assert!(bucket.holds_anything() && !bucket.has_work());
}
