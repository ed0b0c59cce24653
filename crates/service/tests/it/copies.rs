//! Buckets whose writes wait for copies: what is held back, what goes on, and the room that both have.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use staves_conformance::TestCluster;
use staves_conformance::counter::{Change, Count, Counter, Load};
use staves_conformance::{Reply, Workload};
use staves_service::{Limits, Refused};
use staves_wire::service::Answer;

/// Nodes 0 to 3, of which the first `k + 1` hold the counters, in a pool whose writes want so many complete copies.
fn cluster(k: u8, copies_min: u8, limits: Limits) -> TestCluster<Counter> {
    let options = staves_group::Options {
        copies_min: Arc::new(AtomicU8::new(copies_min)),
        ..staves_group::Options::default()
    };
    let bucket = |member| Load::bucket(limits.clone(), member);
    let mut cluster = TestCluster::new((1, k), 4, 8, options, bucket);
    let first = add(&mut cluster, 1);
    assert_eq!(cluster.wait_for(first), Ok(Answer::Int(0)));
    cluster
}

fn submit(cluster: &mut TestCluster<Counter>, change: Change) -> u64 {
    let counter = 7;
    cluster.submit_to(0, None, Count { counter, change })
}

fn add(cluster: &mut TestCluster<Counter>, by: u64) -> u64 {
    submit(cluster, Change::Add(by))
}

/// The replies under these tokens so far.
fn replies<const N: usize>(cluster: &TestCluster<Counter>, tokens: [u64; N]) -> [Option<Reply>; N] {
    tokens.map(|token| cluster.answers.get(&token).cloned())
}

#[test]
fn the_answer_of_a_write_under_way_waits_until_there_are_enough_copies_again() {
    let mut c = cluster(2, 3, Limits::default());
    c.cut_off = vec![2];
    let under_way = add(&mut c, 5);
    c.ticks(2);
    assert_eq!(replies(&c, [under_way]), [None], "a copy lacks it");
    c.change(&[0, 1]);
    c.open();
    c.ticks(4);
    let member = c.bucket().member();
    assert_eq!(member.stable(), member.last(), "both that are left have it");
    let read = submit(&mut c, Change::Get);
    c.ticks(1);
    assert_eq!(
        replies(&c, [under_way, read]),
        [None, Some(Ok(Answer::Int(6)))],
        "two copies are fewer than three; reads go on"
    );
    c.change(&[0, 1, 3]);
    c.settle();
    assert_eq!(replies(&c, [under_way]), [Some(Ok(Answer::Int(1)))]);
}

/// Submits four writes and then four reads that cannot begin: the writes for want of copies, the reads for want of a lease.
fn parked(limits: Limits) -> ([Option<Reply>; 4], [Option<Reply>; 4], TestCluster<Counter>) {
    let mut c = cluster(1, 2, limits);
    c.cut_off = vec![1];
    c.change(&[0]);
    c.open();
    c.no_lease = true;
    c.ticks(40);
    let writes = [1, 2, 3, 4].map(|by| add(&mut c, by));
    let reads = [(); 4].map(|()| submit(&mut c, Change::Get));
    let seen = (replies(&c, writes), replies(&c, reads));
    c.no_lease = false;
    c.ticks(2);
    assert_eq!(c.answers[&reads[0]], Ok(Answer::Int(1)), "it only waited");
    (seen.0, seen.1, c)
}

#[test]
fn writes_that_wait_for_copies_leave_half_of_the_room_to_reads() {
    let busy = Some(Err(Refused::Busy));
    let by_count = Limits {
        parked_max: 4,
        ..Limits::default()
    };
    let by_bytes = Limits {
        parked_bytes_max: 4 * size_of::<Count>(),
        ..Limits::default()
    };
    for limits in [by_count, by_bytes] {
        let text = format!("{limits:?}");
        let (writes, reads, mut c) = parked(limits);
        assert_eq!(writes, [None, None, busy.clone(), busy.clone()], "{text}");
        assert_eq!(reads, [None, None, busy.clone(), busy.clone()], "{text}");
        // What has room again is taken.
        let read = submit(&mut c, Change::Get);
        assert_eq!(c.wait_for(read), Ok(Answer::Int(1)), "{text}");
    }
}
