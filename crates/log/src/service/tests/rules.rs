//! Rules of a unit in a group that only a rare order shows: each test fails without the one that it is of.

use std::sync::atomic::Ordering;

use staves_wire::service::Answer;

use super::bench::{Bench, LOG, bytes_of, id};
use crate::codec::BucketRequest;
use crate::message::{RecordReply, RecordRequest, SlotAnswer, UnitAnswer, UnitOp};
use crate::service::UnitCall;
use crate::types::{Binding, LogOptions, Position};

impl Bench {
    fn read_with_word(&mut self, position: Position, seq: u64) -> SlotAnswer {
        let start = self.start();
        let binding = Binding {
            position,
            count: 1,
            id: Some(id(seq)),
            links: Vec::new(),
        };
        let op = UnitOp::Read {
            position,
            term: start.term,
            start: 0,
            word: Some((start, binding)),
        };
        match self.call(LOG, op) {
            UnitAnswer::Slot { slot, .. } => slot,
            other => panic!("{other:?}"),
        }
    }
}

/// Regression: a reader's word had data and binding meet while copies were lacking, and the next reader saw the record.
#[test]
fn nothing_is_decided_by_reads_or_by_the_clock_while_copies_are_lacking() {
    let mut bench = Bench::new(2, 64);
    bench.seal(LOG, 1);
    bench.park(LOG, id(1), bytes_of(1, 100));
    bench.send_bind(LOG, 5, 1, id(2));
    bench.cluster.ticks(4);
    let before = bench.last();
    bench.copies_min.store(3, Ordering::Relaxed);
    assert!(matches!(bench.read_with_word(0, 1), SlotAnswer::Unwritten));
    assert!(matches!(bench.slot(LOG, 0), SlotAnswer::Unwritten));
    // The binding without data is late by now.
    bench.cluster.ticks(500);
    assert!(matches!(bench.slot(LOG, 5), SlotAnswer::Unwritten));
    assert_eq!(bench.last(), before);
    bench.copies_min.store(1, Ordering::Relaxed);
    assert!(matches!(
        bench.read_with_word(0, 1),
        SlotAnswer::Data { .. }
    ));
    bench.cluster.ticks(4);
    assert!(matches!(bench.slot(LOG, 5), SlotAnswer::Junk));
}

/// Room for parked data: what was taken has its room when its binding comes.
#[test]
fn every_append_that_is_parked_finds_room_when_it_is_bound() {
    let mut bench = Bench::new(2, 12);
    bench.seal(LOG, 1);
    let park = |n| bench.park(LOG, id(n), bytes_of(n, 60_000));
    let all: Vec<u64> = (0..60).map(park).collect();
    bench.cluster.ticks(40);
    let answers = &bench.cluster.answers;
    let parked: Vec<u64> = all
        .into_iter()
        .take_while(|park| !answers.contains_key(park))
        .collect();
    assert!((10..60).contains(&parked.len()), "{}", parked.len());
    for (n, park) in (0..).zip(parked) {
        assert!(bench.bind(LOG, n, id(n)).data, "{n}");
        assert!(matches!(bench.answer(park), UnitAnswer::Ack { .. }));
        assert_eq!(bench.read(LOG, n), Some(bytes_of(n, 60_000)));
    }
    bench.check();
}

/// Un-staging: what a data bucket had staged is nobody's once it has ceased to serve, at its own pages as well.
#[test]
fn what_was_staged_is_given_up_by_a_member_that_serves_again() {
    let mut bench = Bench::new(2, 64);
    bench.seal(LOG, 1);
    bench.park(LOG, id(1), bytes_of(1, 900_000));
    bench.cluster.ticks(4);
    let used = bench.used();
    for nodes in [[1, 0], [0, 1]] {
        bench.cluster.change(&nodes);
        bench.cluster.settle();
        bench.seal(LOG, 2);
        bench.cluster.ticks(20);
        bench.check();
    }
    assert!(bench.used() + 2 < used, "{} of {used}", bench.used());
}

/// Recall: a request that comes twice has the answer of the first time.
#[test]
fn a_retry_of_a_change_has_its_first_answer() {
    let mut bench = Bench::new(2, 64);
    let create = RecordRequest::Create {
        name: "events".into(),
        options: LogOptions::default(),
    };
    let call = UnitCall::Request(BucketRequest::Record(create));
    for _ in 0..2 {
        let token = bench.cluster.submit_to(0, Some(7), &call);
        let Ok(Answer::Value(value)) = bench.reply(token) else {
            panic!("no answer");
        };
        let reply = RecordReply::decode(value);
        assert!(matches!(reply, Ok(RecordReply::Record(_))), "{reply:?}");
    }
}
