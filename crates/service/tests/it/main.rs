//! The example service in a group of buckets.

mod copies;

use staves_conformance::conforms;
use staves_conformance::counter::{Change, Count, Load, bucket};
use staves_service::AnyBucket;
use staves_wire::service::Answer;

#[test]
fn the_smallest_service_conforms() {
    conforms::<Load>(6);
}

/// A node uses a bucket of a service that it knows by number only.
#[test]
fn a_bucket_takes_bodies_and_counts_without_its_type() {
    use staves_model::{GroupId, MemberSlot};
    use staves_service::{BucketEffects, OpHeader, Refused};
    use staves_wire::service::{Address, Body};

    let options = staves_group::Options::default();
    let cluster = staves_conformance::TestCluster::new((1, 0), 1, 8, options, bucket);
    let now = cluster.now;
    let mut buckets = cluster.buckets.into_iter();
    let mut bucket: Box<dyn AnyBucket> = Box::new(buckets.next().expect("one node"));
    let mut out = BucketEffects::default();
    let header = |slot| OpHeader {
        token: 1,
        slot: MemberSlot(slot),
        request: None,
        deadline: now + std::time::Duration::from_secs(1),
    };
    let to = Address::Bucket(GroupId(1), MemberSlot(0));
    let change = Change::Add(9);
    let body = Count { counter: 1, change }.to_body();
    // The first write waits for memory.
    let _ = bucket.submit_body(now, header(0), to, &body, &mut out);
    bucket.step(now, staves_group::Event::Tick, &mut out);
    let (result, _) = bucket.submit_body(now, header(0), to, &body, &mut out);
    assert_eq!(result, Ok(Some(Answer::Int(9))));
    let (result, _) = bucket.submit_body(now, header(1), to, &body, &mut out);
    assert_eq!(result, Err(Refused::NotServing), "another data slot");
    let (result, _) = bucket.submit_body(now, header(0), to, &Body::default(), &mut out);
    assert!(matches!(result, Ok(Some(Answer::Error(..)))), "{result:?}");
    let mut counted = Vec::new();
    bucket.count(&mut |name, value| counted.push((name, value)));
    assert_eq!(counted.len(), 1);
    assert!(bucket.holds_anything() && !bucket.has_work());
}
