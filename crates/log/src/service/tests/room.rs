//! Room: what is refused when there is none, and what comes back.

use staves_wire::ErrorCode;
use staves_wire::service::Answer;

use super::bench::{Bench, LOG, bytes_of, id};
use crate::message::{SlotAnswer, UnitAnswer, UnitOp};
use crate::service::{UnitCall, room::RESERVED_EXTENTS};
use crate::types::{AppendId, LogId, PageEntry, PageRun, SessionId, Term};

#[test]
fn a_full_unit_refuses_and_changes_nothing_and_a_trim_makes_room() {
    let mut bench = Bench::new(2, 12);
    bench.seal(LOG, 1);
    let size = 60_000;
    let fill = |bench: &mut Bench, from: u64| {
        (from..).find(|n| !bench.append(LOG, *n, bytes_of(*n, size)))
    };
    let full = fill(&mut bench, 0).unwrap();
    assert!(full > 20, "{full} records");
    let (state, last) = (bench.unit().state().clone(), bench.last());
    assert!(!bench.append(LOG, full, bytes_of(full, size)));
    assert_eq!((bench.unit().state(), ()), (&state, ()));
    assert_eq!(bench.last(), last);
    assert!(bench.used() <= 12 - RESERVED_EXTENTS + 1);
    // Regression: whoever sent again what is in the log heard that it found no room, and is not there.
    let again = bench.park(LOG, id(3), bytes_of(3, size));
    let ack = bench.answer(again);
    assert!(
        matches!(ack, UnitAnswer::Ack { position: 3, .. }),
        "{ack:?}"
    );
    (0..full).for_each(|n| assert_eq!(bench.read(LOG, n), Some(bytes_of(n, size))));
    bench.check();

    bench.trim(LOG, full / 2);
    bench.cluster.ticks(100);
    bench.check();
    assert!(matches!(bench.slot(LOG, 0), SlotAnswer::Trimmed));
    let again = fill(&mut bench, full).unwrap();
    assert!(again - full >= full / 2 - 6, "{full}, and then {again}");
    (full / 2..again).for_each(|n| assert_eq!(bench.read(LOG, n), Some(bytes_of(n, size))));
    bench.check();
}

/// Regression: data that were held came again, found no room beside themselves, and were said to be nowhere.
#[test]
fn data_that_are_held_and_come_again_are_not_refused() {
    let mut bench = Bench::new(2, 12);
    bench.seal(LOG, 1);
    let size = 60_000;
    let full = (0..100).find(|n| {
        let token = bench.park(LOG, id(*n), bytes_of(*n, size));
        bench.cluster.deliver();
        bench.cluster.answers.contains_key(&token)
    });
    let full = full.expect("some do not fit");
    assert!(full > 3, "{full} appends");
    let again = bench.park(LOG, id(2), bytes_of(2, size));
    bench.cluster.deliver();
    let answer = bench.cluster.answers.get(&again);
    assert!(answer.is_none(), "it waits for its binding: {answer:?}");
    assert!(bench.bind(LOG, 0, id(2)).data);
    let ack = bench.answer(again);
    assert!(
        matches!(ack, UnitAnswer::Ack { position: 0, .. }),
        "{ack:?}"
    );
    bench.check();
}

/// Regression: a log stood still at all its units, since a map page found no room at one of them.
#[test]
fn map_pages_have_room_in_a_unit_that_is_full_for_appends() {
    let mut bench = Bench::new(2, 12);
    bench.seal(LOG, 1);
    let full = (0..)
        .find(|n| !bench.append(LOG, *n, bytes_of(*n, 60_000)))
        .unwrap();
    assert!(full > 20, "{full} records");
    let term = Term(bench.term);
    let positions = u64::from(super::bench::options().page_positions);
    for page in 1..200 {
        let runs = vec![PageRun {
            count: positions as u32,
            entry: PageEntry::Junk,
        }];
        let written = bench.call(LOG, UnitOp::WritePage { term, page, runs });
        let is_written = matches!(written, UnitAnswer::PageWritten { page: of, .. } if of == page);
        assert!(is_written, "{written:?}");
    }
    assert!(!bench.append(LOG, full, bytes_of(full, 60_000)), "still");
    bench.check();
}

#[test]
fn trims_and_seals_have_room_in_a_full_unit() {
    let mut bench = Bench::new(2, 8);
    bench.seal(LOG, 1);
    let full = (0..)
        .find(|n| !bench.append(LOG, *n, bytes_of(*n, 60_000)))
        .unwrap();
    for term in 2..2000 {
        let options = super::bench::options();
        let term = Term(term);
        let sealed = bench.call(LOG, UnitOp::Seal { term, options });
        assert!(matches!(sealed, UnitAnswer::Sealed { .. }), "{sealed:?}");
    }
    bench.trim(LOG, full);
    bench.term = 1999;
    bench.cluster.ticks(100);
    assert!(bench.append(LOG, full, bytes_of(1, 60_000)));
    bench.check();
}

#[test]
fn many_small_logs_pin_little() {
    let mut bench = Bench::new(2, 64);
    let logs = 300;
    for log in 1..=logs {
        bench.seal(LogId(log), 1);
    }
    let mut most = 0;
    for round in 0..60u64 {
        bench.low = round.saturating_sub(1) as u32;
        for log in (1..=logs).filter(|log| (log + round) % 3 == 0) {
            assert!(bench.append(LogId(log), round, bytes_of(round, 900)));
            bench.trim(LogId(log), round);
        }
        most = most.max(bench.used());
    }
    bench.cluster.ticks(100);
    bench.check();
    let (live, stats) = (bench.live_bytes(), bench.unit().stats());
    assert!(stats.cleanings > 0, "{stats:?}");
    // A record that lives and up to 4 KiB of entries for each log.
    assert!(
        live < logs * (900 + 8 * 1024),
        "{live} bytes live, {stats:?}"
    );
    assert!(most <= 24, "{most} extents, {stats:?}");
    bench.cluster.change(&[1, 0]);
    bench.cluster.settle();
    bench.check();
}

#[test]
fn entries_of_one_log_go_behind_its_checkpoints() {
    let mut bench = Bench::new(3, 64);
    bench.seal(LOG, 1);
    for n in 0..1500 {
        bench.low = n as u32;
        assert!(bench.append(LOG, n, bytes_of(n, 50)));
        if n % 3 == 2 {
            bench.trim(LOG, n - 1);
        }
        if n % 250 == 249 {
            bench.cluster.ticks(8);
            bench.check();
            let to = [[1, 2], [2, 0], [0, 1]][(n / 250) as usize % 3];
            bench.cluster.change(&to);
            bench.cluster.settle();
            bench.check();
        }
    }
    let (live, stats) = (bench.live_bytes(), bench.unit().stats());
    assert!(live < 16_000, "{live} bytes live, {stats:?}");
    assert!(stats.checkpoints > 0, "{stats:?}");
    // What was acknowledged last is known to whoever is asked again.
    let park = bench.park(LOG, id(1499), bytes_of(1499, 50));
    assert!(matches!(
        bench.answer(park),
        UnitAnswer::Ack { position: 1499, .. }
    ));
}

/// Regression: a unit that was started on a full disk found no room even to be read.
#[test]
fn a_unit_that_starts_on_a_full_disk_is_read_sealed_and_trimmed() {
    let mut bench = Bench::new(3, 12);
    bench.seal(LOG, 1);
    let size = 60_000;
    let full = (0..)
        .find(|n| !bench.append(LOG, *n, bytes_of(*n, size)))
        .unwrap();
    bench.cluster.ticks(8);
    // Whatever it does not use others have, at the node that serves next and at its copy.
    bench.cluster.change(&[1, 0]);
    bench.cluster.settle();
    let used = bench.used();
    // A read needs no room, not even what is spare.
    bench.unit().reserved_max.set(0);
    assert_eq!(bench.read(LOG, 1), Some(bytes_of(1, size)));
    bench.unit().reserved_max.set(used);
    bench.check();
    (0..full).for_each(|n| assert_eq!(bench.read(LOG, n), Some(bytes_of(n, size))));
    assert!(!bench.append(LOG, full, bytes_of(full, size)));
    // By the sequencer's word nothing is decided without room, and nothing is refused.
    for term in 2..800 {
        let (options, term) = (super::bench::options(), Term(term));
        let sealed = bench.call(LOG, UnitOp::Seal { term, options });
        assert!(matches!(sealed, UnitAnswer::Sealed { .. }), "{sealed:?}");
    }
    bench.term = 799;
    bench.trim(LOG, full / 2);
    bench.cluster.ticks(100);
    bench.check();
    assert!(bench.used() < used, "{} of {used}", bench.used());
    for n in full..full + full / 2 - 8 {
        assert!(bench.append(LOG, n, bytes_of(n, size)), "{n}");
    }
    (full / 2..full + full / 2 - 8)
        .for_each(|n| assert_eq!(bench.read(LOG, n), Some(bytes_of(n, size))));
    bench.check();
}

/// Regression: a checkpoint of more than 256 KiB was not made, and its log kept all its room.
#[test]
fn a_log_with_many_sessions_gives_its_room_back() {
    let mut bench = Bench::new(3, 48);
    bench.seal(LOG, 1);
    let append = |bench: &mut Bench, n: u64| {
        let session = SessionId {
            term: Term(1),
            count: n as u32 + 1,
        };
        let id = AppendId { session, seq: 0 };
        bench.append_as(LOG, n, id, bytes_of(n, 1500))
    };
    for n in 0..9000 {
        assert!(append(&mut bench, n), "{n}");
        if n % 64 == 63 {
            bench.trim(LOG, n - 20);
        }
    }
    bench.cluster.ticks(100);
    bench.check();
    let (used, stats) = (bench.used(), bench.unit().stats());
    assert!(used < 20, "{used} extents, {stats:?}");
    // A full unit has room for the parts all the same.
    let full = (9000..).find(|n| !append(&mut bench, *n)).unwrap();
    assert!(full > 9500, "{full}");
    bench.trim(LOG, full);
    bench.cluster.ticks(200);
    let used = bench.used();
    assert!(used < 20, "{used} extents");
    assert!(append(&mut bench, full));
    bench.check();
    bench.cluster.change(&[1, 2]);
    bench.cluster.settle();
    bench.check();
    assert_eq!(bench.read(LOG, full), Some(bytes_of(full, 1500)));
}

/// Regression: what a unit had reserved for a log that was deleted stayed reserved, up to 4 MiB at each unit, and counted as data.
#[test]
fn a_log_that_is_deleted_gives_back_what_was_reserved_for_it() {
    let mut bench = Bench::new(2, 200);
    bench.seal(LOG, 1);
    bench.cluster.ticks(200);
    let empty = wanted(&mut bench);
    for n in 0..24 {
        assert!(bench.append(LOG, n, bytes_of(n, 120_000)));
    }
    let full = wanted(&mut bench);
    assert!(full > empty + 8, "{empty}, and then {full}");
    let done = bench.call(LOG, UnitOp::Forget);
    assert!(matches!(done, UnitAnswer::Done));
    bench.cluster.ticks(200);
    let left = wanted(&mut bench);
    assert!(left <= empty + 4, "{empty}, {full}, and then {left}");
    bench.check();
}

/// The extents that the unit has reserved.
fn wanted(bench: &mut Bench) -> u32 {
    bench.cluster.bucket().member().wanted_extents()
}

/// Regression: a full unit kept every append for as long as its client waited for the answer, and nobody learned that there was no room.
#[test]
fn a_unit_that_is_full_says_so_at_once() {
    let mut bench = Bench::new(2, 200);
    // Its copy lacks the memory, and has to be asked.
    bench.cluster.budgets[1].set_limit(12);
    bench.seal(LOG, 1);
    let size = 60_000;
    let full = (0..)
        .find(|n| !bench.append(LOG, *n, bytes_of(*n, size)))
        .unwrap();
    // The memory is requested anew, and meanwhile nobody waits for it.
    bench.cluster.ticks(100);
    let park = bench.park(LOG, id(full), bytes_of(full, size));
    bench.cluster.deliver();
    let answer = bench.cluster.answers.remove(&park);
    assert!(
        matches!(answer, Some(Ok(Answer::Error(ErrorCode::OutOfMemory, _)))),
        "{answer:?}"
    );
    bench.trim(LOG, full / 2);
    bench.cluster.ticks(100);
    assert!(bench.append(LOG, full, bytes_of(full, size)));
    bench.check();
}

#[test]
fn a_body_of_any_bytes_is_no_reason_to_panic() {
    for seed in 0..2000u64 {
        let head = super::bench::bytes_of(seed, (seed % 90) as usize);
        let payload = bytes_of(seed, (seed % 7) as usize);
        let body = staves_wire::service::Body { head, payload };
        let _ = UnitCall::from_body(&body);
    }
}
