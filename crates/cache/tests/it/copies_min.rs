//! Pools whose writes want so many complete copies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use staves_wire::cache::Op;
use staves_wire::service::Answer;

use crate::cluster::{Cluster, bytes, set, small_options};

/// A large value is written in many deltas. Without copies the last of them is stable as soon as it is made.
#[test]
fn a_large_write_under_way_waits_for_the_copies_that_its_pool_wants_by_then() {
    let copies_min = Arc::new(AtomicU8::new(1));
    let group = staves_group::Options {
        copies_min: copies_min.clone(),
        ..staves_group::Options::default()
    };
    let mut cluster = Cluster::with(1, 3, 64, small_options(), group);
    let value = bytes(1, 300_000);
    cluster.set(b"room", &value).expect("answered");
    let room = Op::Del { key: b"room" };
    cluster.run(None, &room).expect("answered");
    cluster.cut_off.push(1);
    cluster.change(&[0]);
    cluster.open();
    let large = cluster.submit(Some(1), &set(b"l", &value));
    assert!(!cluster.answers.contains_key(&large), "it takes some steps");
    copies_min.store(2, Ordering::Relaxed);
    let read = cluster.get(b"l");
    let answer = cluster.answers.get(&large);
    assert!(
        read == Some(value),
        "it is written, and reads go on: {answer:?}"
    );
    assert_eq!(answer, None, "one copy is fewer than two");
    cluster.change(&[0, 2]);
    cluster.settle();
    assert_eq!(cluster.wait(large), Ok(Answer::Ok));
}
