//! Regressions, one by one: memory, large values, order.

use staves_cache::Options;
use staves_store::EXTENT_BYTES;
use staves_wire::cache::Op;
use staves_wire::error::ErrorCode;
use staves_wire::service::Answer;

use crate::cluster::{Cluster, bytes, set, small_options};

fn is_oom(answer: &crate::cluster::Reply) -> bool {
    matches!(answer, Ok(Answer::Error(ErrorCode::OutOfMemory, text))
        if text == "OOM command not allowed when used memory > 'maxmemory'.")
}

fn used(cluster: &mut Cluster) -> u32 {
    cluster.bucket().member().pages().unwrap().used()
}

/// Fills a bucket with values of one size until it refuses; returns how many it took.
fn fill(cluster: &mut Cluster, len: usize) -> usize {
    for n in 0..100_000u64 {
        let answer = cluster.set(format!("fill-{n}").as_bytes(), &bytes(n, len));
        if is_oom(&answer) {
            return n as usize;
        }
        assert_eq!(answer, Ok(Answer::Ok));
    }
    panic!("never full");
}

#[test]
fn a_full_bucket_refuses_and_changes_nothing_and_takes_writes_again_after_a_delete() {
    let mut cluster = Cluster::new(0, 4, Options::default());
    let took = fill(&mut cluster, 1000);
    let bytes_in = cluster.cache().bytes();
    assert!(
        bytes_in as usize > 4 * EXTENT_BYTES * 95 / 100,
        "it was all but full: {bytes_in}"
    );
    for n in 0..50 {
        assert!(is_oom(&cluster.set(b"one more", &bytes(n, 1000))));
    }
    assert_eq!(
        (cluster.cache().keys(), cluster.cache().bytes()),
        (took as u64, bytes_in)
    );
    cluster.check();
    assert_eq!(cluster.get(b"fill-7"), Some(bytes(7, 1000)));

    assert_eq!(
        cluster.run(None, &Op::Del { key: b"fill-7" }),
        Ok(Answer::Int(1))
    );
    assert_eq!(cluster.set(b"one more", &bytes(1, 1000)), Ok(Answer::Ok));
    assert!(is_oom(&cluster.set(b"and one more", &bytes(1, 1000))));
    cluster.check();
    for n in (0..took as u64).filter(|n| *n != 7) {
        assert_eq!(
            cluster.get(format!("fill-{n}").as_bytes()),
            Some(bytes(n, 1000))
        );
    }
}

/// Regression: a bucket full of small records had a few bytes left in each segment. For a record that fits there a whole segment was written
/// again, which then took no record all the same; and so on for as long as somebody waited with one.
#[test]
fn a_bucket_full_of_small_records_refuses_smaller_ones_without_moving_all_again_and_again() {
    let mut cluster = Cluster::new(0, 12, Options::default());
    let mut took = 0u64;
    // Of many lengths, the last of which do not fit where an increment would.
    let key = |n: u64| format!("{n:08}{}", "-".repeat(n as usize * 7 % 24 + 24)).into_bytes();
    while !is_oom(&cluster.set(&key(took), b"1")) {
        took += 1;
    }
    let before = cluster.cache().stats().compactions;
    let incr = |n: u64| format!("c{n}").into_bytes();
    for n in 0..300 {
        let key = incr(n);
        let answer = cluster.run(None, &Op::IncrBy { key: &key, by: 1 });
        assert!(
            is_oom(&answer) || answer == Ok(Answer::Int(1)),
            "{answer:?}"
        );
    }
    let moved = cluster.cache().stats().compactions - before;
    assert!(moved <= 8, "{moved} segments were written again");
    // As deletes make room, it is found.
    for n in 0..took / 20 {
        let key = key(n * 20);
        let deleted = cluster.run(None, &Op::Del { key: &key });
        assert_eq!(deleted, Ok(Answer::Int(1)));
    }
    for n in 300..400 {
        let key = incr(n);
        let answer = cluster.run(None, &Op::IncrBy { key: &key, by: 1 });
        assert_eq!(answer, Ok(Answer::Int(1)));
    }
    cluster.check();
}

/// Row D1's kin for memory: what fits is kept, however often it is written over.
#[test]
fn overwriting_needs_no_more_memory_than_what_is_live() {
    let mut cluster = Cluster::new(0, 4, Options::default());
    let keys = 700;
    for n in 0..20_000u64 {
        let key = format!("k{}", n * 7919 % keys);
        assert_eq!(
            cluster.set(key.as_bytes(), &bytes(n, 1000)),
            Ok(Answer::Ok),
            "write {n}"
        );
    }
    assert_eq!(cluster.cache().keys(), keys);
    cluster.check();
    // One hot key alone does not make the bucket grow at all.
    let mut cluster = Cluster::new(0, 64, Options::default());
    for n in 0..20_000u64 {
        assert_eq!(cluster.set(b"hot", &bytes(n, 1000)), Ok(Answer::Ok));
    }
    assert!(used(&mut cluster) <= 3, "{} extents", used(&mut cluster));
}

/// A value that fits into the place of the one before is written there: nothing dies, so nothing is ever moved.
#[test]
fn overwriting_with_values_of_one_size_makes_no_waste() {
    let mut cluster = Cluster::new(1, 16, Options::default());
    let keys = 2000;
    let key = |n: u64| format!("k{}", n * 7919 % keys).into_bytes();
    for n in 0..keys {
        assert_eq!(cluster.set(&key(n), &bytes(n, 500)), Ok(Answer::Ok));
    }
    let full = used(&mut cluster);
    for n in keys..8 * keys {
        assert_eq!(cluster.set(&key(n), &bytes(n, 500)), Ok(Answer::Ok));
    }
    let stats = cluster.cache().stats();
    assert_eq!((stats.in_place, stats.compactions), (7 * keys, 0));
    assert_eq!(used(&mut cluster), full);
    cluster.ticks(4);
    cluster.check();
    for n in 7 * keys..8 * keys {
        assert_eq!(cluster.get(&key(n)), Some(bytes(n, 500)));
    }
}

/// A place keeps its size: what becomes shorter may grow again there, and what does not fit any more goes elsewhere.
#[test]
fn a_value_stays_in_its_place_as_long_as_it_fits() {
    let mut cluster = Cluster::new(1, 16, Options::default());
    cluster.set(b"before", &bytes(1, 100)).unwrap();
    cluster.set(b"k", &bytes(2, 1000)).unwrap();
    cluster.set(b"behind", &bytes(3, 100)).unwrap();
    let lengths = [
        (1000, true),
        (1001, true),
        (760, true),
        (900, true),
        (1003, true),
        (1004, false),
        (700, false),
        (600, true),
        (0, false),
        (3, true),
        (50_000, false),
    ];
    let mut seen = 0;
    for (n, (len, stays)) in (10..).zip(lengths) {
        cluster.set(b"k", &bytes(n, len)).unwrap();
        let now = cluster.cache().stats().in_place;
        assert_eq!(now > seen, stays, "{len} bytes");
        seen = now;
        cluster.ticks(1);
        cluster.check();
        assert_eq!(cluster.get(b"k"), Some(bytes(n, len)));
        assert_eq!(cluster.get(b"before"), Some(bytes(1, 100)));
        assert_eq!(cluster.get(b"behind"), Some(bytes(3, 100)));
    }
    let incr = Op::IncrBy { key: b"n", by: 5 };
    for n in 1..300i64 {
        assert_eq!(cluster.run(None, &incr), Ok(Answer::Int(5 * n)));
    }
    assert_eq!(
        cluster.cache().stats().in_place,
        seen + 297,
        "but for the first, and that of four digits"
    );
    cluster.check();
}

/// The room that shorter values leave behind is no loss: it is found when memory is short.
#[test]
fn spare_room_is_given_to_other_keys() {
    let mut cluster = Cluster::new(0, 6, Options::default());
    let took = fill(&mut cluster, 1000) as u64;
    for n in 0..took {
        let key = format!("fill-{n}");
        assert_eq!(
            cluster.set(key.as_bytes(), &bytes(n + 1, 800)),
            Ok(Answer::Ok)
        );
    }
    let before = cluster.cache().stats();
    assert_eq!((before.in_place, before.compactions), (took, 0));
    let more = took / 10;
    for n in 0..more {
        let key = format!("more-{n}");
        assert_eq!(cluster.set(key.as_bytes(), &bytes(n, 800)), Ok(Answer::Ok));
        if n % 32 == 0 {
            cluster.check();
        }
    }
    for n in 0..took {
        assert_eq!(
            cluster.get(format!("fill-{n}").as_bytes()),
            Some(bytes(n + 1, 800))
        );
    }
    cluster.check();
}

#[test]
fn memory_of_deleted_keys_goes_back_to_the_pool() {
    let mut cluster = Cluster::new(1, 64, Options::default());
    for n in 0..8000u64 {
        cluster
            .set(format!("k{n}").as_bytes(), &bytes(n, 1000))
            .unwrap();
    }
    assert!(cluster.budgets[0].taken() >= 31);
    for n in 0..7990u64 {
        cluster
            .run(
                None,
                &Op::Del {
                    key: format!("k{n}").as_bytes(),
                },
            )
            .unwrap();
    }
    cluster.ticks(60);
    assert!(
        used(&mut cluster) <= 3,
        "{} extents in use",
        used(&mut cluster)
    );
    for budget in &cluster.budgets {
        assert!(budget.taken() <= 12, "{} extents reserved", budget.taken());
    }
    assert_eq!(cluster.get(b"k7995"), Some(bytes(7995, 1000)));
    cluster.check();
}

#[test]
fn a_large_value_that_does_not_fit_leaves_nothing_behind() {
    let mut cluster = Cluster::new(0, 8, Options::default());
    cluster.set(b"small", b"1").unwrap();
    let fits = bytes(1, 6 * EXTENT_BYTES);
    assert_eq!(cluster.set(b"large", &fits), Ok(Answer::Ok));
    assert!(is_oom(&cluster.set(b"large", &bytes(2, 6 * EXTENT_BYTES))));
    assert!(is_oom(&cluster.set(b"other", &bytes(3, 3 * EXTENT_BYTES))));
    cluster.ticks(4);
    cluster.check();
    assert_eq!(cluster.get(b"large"), Some(fits));
    assert_eq!(used(&mut cluster), 7);
    // After it has gone there is room for another of its size.
    assert_eq!(
        cluster.run(None, &Op::Del { key: b"large" }),
        Ok(Answer::Int(1))
    );
    assert_eq!(
        cluster.set(b"other", &bytes(3, 6 * EXTENT_BYTES)),
        Ok(Answer::Ok)
    );
    assert_eq!(cluster.get(b"other"), Some(bytes(3, 6 * EXTENT_BYTES)));
    cluster.check();
}

#[test]
fn a_large_value_passes_through_a_small_log() {
    let group = staves_group::Options {
        log_bytes_max: 600 << 10,
        ..Default::default()
    };
    let mut cluster = Cluster::with(2, 3, 64, Options::default(), group);
    let value = bytes(9, 10 << 20);
    assert_eq!(cluster.set(b"large", &value), Ok(Answer::Ok));
    assert_eq!(cluster.get(b"large"), Some(value.clone()));
    cluster.ticks(4);
    cluster.check();
    cluster.cut_off.push(0);
    cluster.change(&[1, 2]);
    cluster.settle();
    assert_eq!(cluster.get(b"large"), Some(value));
    cluster.check();
}

/// A node that stepped a blocked write again and again, without anything having come, kept a core from
/// those that it waited for.
#[test]
fn a_large_value_that_waits_for_the_copies_is_no_work() {
    let group = staves_group::Options {
        log_bytes_max: 600 << 10,
        ..Default::default()
    };
    let mut cluster = Cluster::with(2, 3, 64, Options::default(), group);
    let value = bytes(9, 10 << 20);
    let token = cluster.submit(None, &set(b"large", &value));
    assert!(
        !cluster.bucket().has_work(),
        "it waits for memory, or for the log"
    );
    assert_eq!(cluster.wait(token), Ok(Answer::Ok));
    assert_eq!(cluster.get(b"large"), Some(value));
}

/// I9: a request that was answered without changing anything does not take effect when a copy of it
/// comes late, after a takeover.
#[test]
fn what_changed_nothing_is_known_to_the_successor() {
    let mut cluster = Cluster::new(1, 64, Options::default());
    let claim = Op::Set {
        key: b"k",
        value: b"mine",
        condition: staves_wire::cache::Condition::IfAbsent,
        get_old: false,
    };
    assert_eq!(cluster.set(b"k", b"taken"), Ok(Answer::Ok));
    assert_eq!(cluster.run(Some(7), &claim), Ok(Answer::Nil));
    let error = cluster.run(Some(8), &Op::IncrBy { key: b"k", by: 1 });
    assert!(matches!(error, Ok(Answer::Error(..))), "{error:?}");
    cluster.cut_off.push(0);
    cluster.change(&[1]);
    cluster.settle();
    assert_eq!(
        cluster.run(Some(9), &Op::Del { key: b"k" }),
        Ok(Answer::Int(1))
    );
    assert_eq!(
        cluster.run(Some(7), &claim),
        Ok(Answer::Nil),
        "as it was answered"
    );
    assert_eq!(cluster.get(b"k"), None);
    let error = cluster.run(Some(8), &Op::IncrBy { key: b"k", by: 1 });
    assert!(matches!(error, Ok(Answer::Error(..))), "{error:?}");
    cluster.check();
}

#[test]
fn values_of_every_length_around_the_cuts_come_back() {
    let mut cluster = Cluster::new(0, 64, small_options());
    let lengths = (8150..8200)
        .chain(11_990..12_010)
        .chain(17_990..18_030)
        .chain(25_990..26_200);
    for len in lengths {
        let value = bytes(len as u64, len);
        assert_eq!(cluster.set(b"k", &value), Ok(Answer::Ok), "{len}");
        assert_eq!(cluster.get(b"k"), Some(value), "{len}");
        assert_eq!(
            cluster.run(None, &Op::StrLen { key: b"k" }),
            Ok(Answer::Int(len as i64))
        );
    }
    cluster.check();
}

#[test]
fn requests_for_one_key_keep_their_order_behind_a_large_write() {
    let options = Options {
        chunks_per_step: 1,
        ..small_options()
    };
    let mut cluster = Cluster::new(1, 64, options);
    cluster.set(b"k", b"old").unwrap();
    let value = bytes(1, 300_000);
    let set_large = cluster.submit(None, &set(b"k", &value));
    let read = cluster.submit(None, &Op::Get { key: b"k" });
    let delete = cluster.submit(None, &Op::Del { key: b"k" });
    let read_again = cluster.submit(None, &Op::Get { key: b"k" });
    let other = cluster.submit(None, &set(b"other", b"1"));
    cluster.ticks(80);
    let order = [other, set_large, read, delete, read_again];
    assert!(
        cluster.order.ends_with(&order),
        "a small write passes the large one: {:?}",
        cluster.order
    );
    assert_eq!(cluster.wait(other), Ok(Answer::Ok));
    assert_eq!(cluster.wait(read_again), Ok(Answer::Nil));
    assert_eq!(cluster.wait(set_large), Ok(Answer::Ok));
    assert_eq!(cluster.wait(read), Ok(Answer::Value(value.into())));
    assert_eq!(cluster.wait(delete), Ok(Answer::Int(1)));
    cluster.ticks(4);
    cluster.check();
}
