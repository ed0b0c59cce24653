//! Reads and flushes of a bucket whose writes wait for copies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use bytes::Bytes;
use staves_group::{Durability, Options};
use staves_wire::ErrorCode;
use staves_wire::memory::Action;
use staves_wire::service::Answer;

use crate::cluster::{Cluster, code, write};

/// A bucket with one copy, whose writes want both; it has lost the copy.
fn alone(durability: Durability) -> Cluster {
    let options = Options {
        copies_min: Arc::new(AtomicU8::new(2)),
        durability,
        ..Options::default()
    };
    let mut c = Cluster::with((1, 1), 3, 64, options);
    c.write(0, 0, b"before");
    c.cut_off = vec![1];
    c.change(&[0]);
    c.open();
    c.ticks(4);
    c
}

/// The write is not answered, so that the value of before it is right, and nobody waits for it.
#[test]
fn bytes_that_a_write_waits_to_change_are_read_as_they_were() {
    let mut c = alone(Durability::default());
    let waits = c.submit(0, Some(1), &write(0, b"after!"));
    assert_eq!(&c.read(0, 0, 6)[..], b"before");
    c.ticks(4);
    assert_eq!(c.answered(waits), None, "one copy is fewer than two");
    c.change(&[0, 2]);
    c.settle();
    assert_eq!(c.wait(waits), Answer::Ok);
    assert_eq!(&c.read(0, 0, 6)[..], b"after!");
}

/// Regression: no was held back like a write's yes, until its deadline.
#[test]
fn a_flush_of_a_session_that_is_over_is_refused_at_once_without_copies() {
    let mut c = alone(Durability::Writeback);
    c.bucket().set_sessions_over(BTreeMap::from([(0, 4)]));
    let (image, session) = (0, 3);
    let token = c.submit(0, None, &Action::Sync { image, session });
    let answer = c.answered(token).expect("answered at once");
    assert_eq!(code(&answer), Some(ErrorCode::Fenced), "{answer:?}");
}

/// Regression: writes to a lost group waited for copies that will not come.
#[test]
fn what_is_lost_is_not_waited_for() {
    let mut c = alone(Durability::default());
    c.group.lost = true;
    c.revise();
    let put = Action::Write {
        offset: 0,
        bytes: Bytes::from_static(b"x"),
    };
    let token = c.submit(0, Some(1), &put);
    let answer = c.answered(token).expect("answered at once");
    assert_eq!(code(&answer), Some(ErrorCode::Lost), "{answer:?}");
}
