//! Units in groups: appends and reads over changes of members, room, and the suite of all services.

mod bench;
mod load;
mod room;
mod rules;

use bytes::Bytes;
use staves_wire::ErrorCode;
use staves_wire::service::Answer;

use self::bench::{Bench, LOG, bytes_of, id};
use crate::message::{Records, SlotAnswer, UnitAnswer, UnitOp};
use crate::types::{LogId, Term};

#[test]
fn an_append_is_read_where_it_was_bound_whoever_serves() {
    let mut bench = Bench::new(3, 64);
    bench.seal(LOG, 1);
    for n in 0..40 {
        let data = bytes_of(n, 3000 * n as usize);
        let park = bench.park(LOG, id(n), data);
        assert!(bench.bind(LOG, n, id(n)).data);
        let ack = bench.answer(park);
        assert!(
            matches!(ack, UnitAnswer::Ack { position, .. } if position == n),
            "{ack:?}"
        );
    }
    bench.check();
    for nodes in [[1, 2, 0], [2, 0, 1]] {
        bench.cluster.change(&nodes[..2]);
        bench.cluster.settle();
        bench.check();
        for n in 0..40 {
            assert_eq!(
                bench.read(LOG, n),
                Some(bytes_of(n, 3000 * n as usize)),
                "{n}"
            );
        }
        let again = bench.park(LOG, id(7), Bytes::from_static(b"again"));
        let ack = bench.answer(again);
        assert!(
            matches!(ack, UnitAnswer::Ack { position: 7, .. }),
            "{ack:?}"
        );
    }
    assert!(matches!(bench.slot(LOG, 40), SlotAnswer::Unwritten));
}

#[test]
fn a_batch_is_read_record_by_record() {
    let mut bench = Bench::new(2, 64);
    bench.seal(LOG, 1);
    let lens: Vec<u32> = (0..50).map(|n| n * 37 % 901).collect();
    let bytes = bytes_of(9, lens.iter().sum::<u32>() as usize);
    let records = Records { lens, bytes };
    let park = bench.park_records(LOG, id(1), records.clone());
    assert!(bench.bind_many(LOG, 100, 50, id(1)).data);
    assert!(matches!(
        bench.answer(park),
        UnitAnswer::Ack {
            position: 100,
            count: 50,
            ..
        }
    ));
    for (position, record) in (100..).zip(records.each()) {
        assert_eq!(bench.read(LOG, position), Some(record));
    }
    bench.check();
}

#[test]
fn a_large_append_is_staged_and_named_at_once() {
    let mut bench = Bench::new(3, 64);
    bench.seal(LOG, 1);
    let large = bytes_of(5, super::APPEND_BYTES_MAX);
    let park = bench.park(LOG, id(1), large.clone());
    bench.cluster.ticks(4);
    let before = bench.last();
    assert!(bench.bind(LOG, 0, id(1)).data);
    assert_eq!(bench.last(), before + 1, "one small delta");
    assert!(matches!(bench.answer(park), UnitAnswer::Ack { .. }));
    bench.check();
    bench.cluster.change(&[1, 2]);
    bench.cluster.settle();
    assert_eq!(bench.read(LOG, 0), Some(large));
    let beyond = bytes_of(5, super::APPEND_BYTES_MAX + 1);
    let park = bench.park(LOG, id(2), beyond);
    let refused = bench.reply(park);
    assert!(
        matches!(refused, Ok(Answer::Error(ErrorCode::TooLarge, _))),
        "{refused:?}"
    );
}

#[test]
fn what_is_parked_goes_with_the_bucket_that_serves() {
    let mut bench = Bench::new(3, 64);
    bench.seal(LOG, 1);
    let small = bench.park(LOG, id(1), bytes_of(1, 100));
    let large = bench.park(LOG, id(2), bytes_of(1, 700_000));
    bench.cluster.ticks(4);
    bench.cluster.change(&[1, 2]);
    bench.cluster.settle();
    for token in [small, large] {
        let reply = bench.reply(token);
        assert_eq!(reply, Err(staves_service::Refused::Interrupted));
    }
    bench.seal(LOG, 2);
    let data = bytes_of(3, 700_000);
    let park = bench.park(LOG, id(2), data.clone());
    bench.term = 2;
    assert!(bench.bind(LOG, 0, id(2)).data);
    assert!(matches!(bench.answer(park), UnitAnswer::Ack { .. }));
    bench.check();
    // Nothing names what was staged before: its room comes back.
    bench.cluster.ticks(20);
    assert_eq!(bench.live_bytes() / 100_000, 7);
    assert!(bench.used() <= 8, "{} extents", bench.used());
}

#[test]
fn an_answer_waits_for_all_copies_and_for_a_lease() {
    let mut bench = Bench::new(2, 64);
    bench.seal(LOG, 1);
    assert!(bench.append(LOG, 5, bytes_of(1, 100)));
    bench.cluster.cut_off = vec![1];
    let park = bench.park(LOG, id(1), bytes_of(1, 100));
    let bind = bench.send_bind(LOG, 0, 1, id(1));
    bench.cluster.ticks(8);
    let early = [park, bind].map(|token| bench.cluster.answers.get(&token).cloned());
    assert_eq!(early, [None, None]);
    bench.cluster.cut_off.clear();
    assert!(matches!(
        bench.answer(park),
        UnitAnswer::Ack { position: 0, .. }
    ));

    bench.cluster.no_lease = true;
    bench.cluster.cut_off = vec![1];
    bench.cluster.ticks(400);
    let confirm = bench.send(
        LOG,
        UnitOp::Confirm {
            term: Term(1),
            nonce: 4,
        },
    );
    bench.cluster.ticks(8);
    assert!(
        !bench.cluster.answers.contains_key(&confirm),
        "a word without a lease"
    );
}

#[test]
fn every_log_has_its_own_positions_and_goes_when_forgotten() {
    let mut bench = Bench::new(2, 64);
    for log in 1..=200 {
        bench.seal(LogId(log), 1);
        let park = bench.park(LogId(log), id(1), bytes_of(log, 400));
        assert!(bench.bind(LogId(log), 0, id(1)).data);
        assert!(matches!(bench.answer(park), UnitAnswer::Ack { .. }));
    }
    for log in 1..=200 {
        assert_eq!(bench.read(LogId(log), 0), Some(bytes_of(log, 400)));
    }
    for log in 1..=199 {
        bench.call(LogId(log), UnitOp::Forget);
    }
    bench.check();
    bench.cluster.ticks(8);
    assert!(bench.live_bytes() < 20_000, "{} bytes", bench.live_bytes());
    bench.check();
    bench.cluster.change(&[1, 0]);
    bench.cluster.settle();
    bench.check();
    assert_eq!(bench.read(LogId(200), 0), Some(bytes_of(200, 400)));
}
