//! Stability, leases, retries, and what becomes of those who wait when the data bucket changes.

use std::time::Duration;

use staves_service::Refused;
use staves_wire::cache::{Condition, Op};
use staves_wire::error::ErrorCode;
use staves_wire::service::Answer;

use crate::cluster::{Cluster, bytes, set, small_options};

fn trio() -> Cluster {
    Cluster::new(2, 32, small_options())
}

/// I8: neither the write nor a read of it is answered before every copy has it.
#[test]
fn a_write_and_a_read_of_it_wait_for_every_copy() {
    let mut cluster = trio();
    cluster.set(b"k", b"old").unwrap();
    cluster.cut_off.push(2);
    let write = cluster.submit(None, &set(b"k", b"new"));
    let read = cluster.submit(None, &Op::Get { key: b"k" });
    let failed = cluster.submit(
        None,
        &Op::Set {
            key: b"k",
            value: b"x",
            condition: Condition::IfAbsent,
            get_old: false,
        },
    );
    let not_a_number = cluster.submit(None, &Op::IncrBy { key: b"k", by: 1 });
    let other = cluster.submit(None, &Op::Get { key: b"other" });
    cluster.deliver();
    let done: Vec<u64> = cluster.answers.keys().copied().collect();
    assert_eq!(
        done,
        vec![other],
        "only what depends on nothing new is answered"
    );
    cluster.cut_off.clear();
    assert_eq!(cluster.wait(write), Ok(Answer::Ok));
    assert_eq!(cluster.wait(read), Ok(Answer::Value(b"new"[..].into())));
    assert_eq!(cluster.wait(failed), Ok(Answer::Nil));
    assert!(matches!(
        cluster.wait(not_a_number),
        Ok(Answer::Error(ErrorCode::NotAnInteger, _))
    ));
}

/// I8 and rule 4: a value written over another one is shown to nobody before every copy has it, and a copy keeps the one
/// before until then. What no survivor has received never was.
#[test]
fn the_version_before_lasts_until_the_one_in_its_place_is_stable() {
    let mut cluster = trio();
    cluster.set(b"k", &bytes(1, 600)).unwrap();
    cluster.set(b"next", &bytes(2, 600)).unwrap();
    cluster.settle();
    // One copy receives it and does not apply it; nobody is told.
    cluster.cut_off.push(2);
    let write = cluster.submit(None, &set(b"k", &bytes(3, 590)));
    let read = cluster.submit(None, &Op::Get { key: b"k" });
    cluster.deliver();
    assert_eq!(cluster.cache().stats().in_place, 1);
    assert!(cluster.answers.is_empty(), "neither is stable");
    let at_copy = |cluster: &Cluster, node: usize| {
        let bucket = &cluster.buckets[node];
        let entries = bucket.service().entries(bucket.member());
        entries
            .into_iter()
            .find(|(key, _)| &key[..] == b"k")
            .map(|(_, value)| value.to_vec())
    };
    assert_eq!(at_copy(&cluster, 1), Some(bytes(1, 600)));
    assert_eq!(at_copy(&cluster, 2), Some(bytes(1, 600)));
    cluster.check();
    // The one that lacks it is the only survivor.
    cluster.cut_off = vec![0, 1];
    cluster.change(&[2]);
    cluster.settle();
    assert_eq!(cluster.get(b"k"), Some(bytes(1, 600)));
    assert_eq!(cluster.get(b"next"), Some(bytes(2, 600)));
    cluster.announce();
    for token in [write, read] {
        assert!(cluster.wait(token).is_err(), "nobody was told of the write");
    }
    cluster.check();
}

/// I7: without a lease reads wait; with one they go on.
#[test]
fn a_read_without_a_lease_waits_until_its_deadline() {
    let mut cluster = Cluster::new(0, 8, small_options());
    cluster.set(b"k", b"v").unwrap();
    cluster.no_lease = true;
    cluster.now = cluster.now + Duration::from_secs(1);
    let late = cluster.submit(None, &Op::Get { key: b"k" });
    assert_eq!(cluster.wait(late), Err(Refused::Late));
    let read = cluster.submit(None, &Op::Get { key: b"k" });
    cluster.ticks(3);
    assert!(!cluster.answers.contains_key(&read));
    cluster.no_lease = false;
    assert_eq!(cluster.wait(read), Ok(Answer::Value(b"v"[..].into())));
}

/// Regression: all reads that had waited were answered at once when the bucket went on, with memory for their values or not.
#[test]
fn reads_of_large_values_are_answered_as_there_is_memory() {
    const VALUE: usize = 70_000;
    let mut cluster = Cluster::new(0, 32, small_options());
    cluster.set(b"large", &bytes(1, VALUE)).unwrap();
    cluster.set(b"small", b"v").unwrap();
    cluster.no_lease = true;
    cluster.now = cluster.now + Duration::from_secs(1);
    let read = |cluster: &mut Cluster, key| cluster.submit(None, &Op::Get { key });
    let large: Vec<u64> = (0..10).map(|_| read(&mut cluster, b"large")).collect();
    let small = read(&mut cluster, b"small");
    assert_eq!(cluster.bucket().parked(), 10 + 1);
    // Of each step one value, the one that uses the memory up; small ones pass.
    cluster.no_lease = false;
    cluster.value_bytes_max = Some(0);
    cluster.ticks(3);
    assert_eq!(cluster.answers.keys().copied().collect::<Vec<_>>(), [small]);
    cluster.value_bytes_max = Some(VALUE + 1);
    cluster.step(0, staves_group::Event::Tick);
    assert_eq!(cluster.answers.len(), 1 + 2);
    cluster.value_bytes_max = Some(1);
    cluster.step(0, staves_group::Event::Tick);
    assert_eq!(cluster.answers.len(), 1 + 3);
    cluster.value_bytes_max = None;
    for token in large {
        assert_eq!(
            cluster.wait(token),
            Ok(Answer::Value(bytes(1, VALUE).into()))
        );
    }
}

/// I9, across a promotion too.
#[test]
fn a_retried_request_takes_effect_once() {
    let mut cluster = trio();
    let incr = Op::IncrBy { key: b"n", by: 5 };
    assert_eq!(cluster.run(Some(1), &incr), Ok(Answer::Int(5)));
    assert_eq!(cluster.run(Some(1), &incr), Ok(Answer::Int(5)));
    let first = cluster.submit(Some(2), &incr);
    let second = cluster.submit(Some(2), &incr);
    assert_eq!(cluster.wait(second), Ok(Answer::Int(10)));
    assert_eq!(cluster.wait(first), Ok(Answer::Int(10)));

    cluster.set(b"large", &bytes(1, 5000)).unwrap();
    let take = Op::GetDel { key: b"large" };
    assert_eq!(
        cluster.run(Some(3), &take),
        Ok(Answer::Value(bytes(1, 5000).into()))
    );
    let Ok(Answer::Error(ErrorCode::AnswerGone, text)) = cluster.run(Some(3), &take) else {
        panic!("too large an answer to be kept")
    };
    assert!(text.contains("took effect"), "{text}");

    cluster.cut_off.push(0);
    cluster.change(&[1, 2]);
    cluster.settle();
    assert_eq!(cluster.run(Some(2), &incr), Ok(Answer::Int(10)));
    assert_eq!(cluster.run(Some(4), &incr), Ok(Answer::Int(15)));
    cluster.check();
}

#[test]
fn who_waits_at_a_deposed_data_bucket_is_told_and_finds_the_outcome_at_its_successor() {
    let mut cluster = trio();
    cluster.cut_off.push(0);
    let write = cluster.submit(Some(1), &Op::IncrBy { key: b"n", by: 1 });
    let large = cluster.submit(Some(2), &set(b"l", &bytes(1, 100_000)));
    let parked = cluster.submit(None, &Op::Get { key: b"l" });
    cluster.deliver();
    // The directory reaches the old data bucket, its peers do not.
    cluster.change(&[1, 2]);
    cluster.settle();
    cluster.announce();
    let write = cluster.wait(write);
    assert!(
        matches!(write, Err(Refused::Interrupted | Refused::Deadline)),
        "{write:?}"
    );
    for token in [large, parked] {
        assert!(cluster.wait(token).is_err());
    }
    let old = &mut cluster.buckets[0];
    assert!(!old.serving() && old.waiting() == 0);
    assert_eq!(
        cluster.run(Some(1), &Op::IncrBy { key: b"n", by: 1 }),
        Ok(Answer::Int(1))
    );
    assert_eq!(cluster.get(b"n"), Some(b"1".to_vec()));
    cluster.check();
}

#[test]
fn requests_wait_at_a_data_bucket_to_be() {
    let mut cluster = trio();
    cluster.set(b"k", b"v").unwrap();
    cluster.cut_off.extend([0, 2]);
    cluster.change(&[1, 2]);
    let read = cluster.submit(None, &Op::Get { key: b"k" });
    let write = cluster.submit(None, &set(b"k", b"w"));
    let read_again = cluster.submit(None, &Op::Get { key: b"k" });
    cluster.ticks(3);
    assert!(cluster.answers.is_empty());
    cluster.cut_off.pop();
    cluster.settle();
    assert_eq!(cluster.wait(read), Ok(Answer::Value(b"v"[..].into())));
    assert_eq!(cluster.wait(write), Ok(Answer::Ok));
    assert_eq!(cluster.wait(read_again), Ok(Answer::Value(b"w"[..].into())));
}

#[test]
fn a_copy_that_joins_under_writes_has_the_index_when_it_takes_over() {
    let mut cluster = Cluster::with(1, 3, 64, small_options(), Default::default());
    for n in 0..600u64 {
        cluster
            .set(format!("k{n}").as_bytes(), &bytes(n, 900))
            .unwrap();
    }
    cluster.set(b"large", &bytes(77, 50_000)).unwrap();
    cluster.change(&[0, 1, 2]);
    for n in 0..400u64 {
        let key = format!("k{}", n * 13 % 600);
        if n % 5 == 0 {
            cluster
                .run(
                    None,
                    &Op::Del {
                        key: key.as_bytes(),
                    },
                )
                .unwrap();
        } else {
            // Over the old one, or beside it.
            let len = if n % 2 == 0 { 880 } else { 950 };
            cluster.set(key.as_bytes(), &bytes(n + 1000, len)).unwrap();
        }
        if n % 10 == 0 {
            cluster.check();
        }
    }
    cluster.settle();
    cluster.check();
    assert_eq!(cluster.cache().stats().in_place, 160);
    let count = cluster.buckets[0].service().keys();
    assert_eq!(cluster.buckets[2].service().keys(), count);
    cluster.cut_off.extend([0, 1]);
    cluster.change(&[2]);
    cluster.settle();
    assert_eq!(cluster.cache().keys(), count);
    assert_eq!(cluster.get(b"large"), Some(bytes(77, 50_000)));
    assert_eq!(cluster.get(b"k13"), Some(bytes(1001, 950)));
    cluster.set(b"k13", b"new").unwrap();
    cluster.check();
}

/// A bucket of three with memory for another large value, whose second copy has gone silent, and the
/// token of a large write that so got its chunks to the first copy and no further.
fn half_written() -> (Cluster, u64) {
    let group = staves_group::Options {
        log_bytes_max: 64 << 10,
        ..Default::default()
    };
    let mut cluster = Cluster::with(2, 3, 64, small_options(), group);
    cluster.set(b"k", b"old").unwrap();
    cluster.set(b"room", &bytes(1, 300_000)).unwrap();
    cluster.run(None, &Op::Del { key: b"room" }).unwrap();
    cluster.cut_off.push(2);
    let token = cluster.submit(Some(1), &set(b"k", &bytes(1, 300_000)));
    cluster.deliver();
    cluster.check();
    let used = cluster.bucket().member().pages().unwrap().used();
    assert!(used > 5, "the log took some chunks: {used} extents");
    (cluster, token)
}

/// The chunks of a large write that its data bucket did not live to finish are found and given back.
#[test]
fn orphaned_chunks_are_given_back_by_the_successor() {
    let (mut cluster, _) = half_written();
    cluster.cut_off = vec![0];
    cluster.change(&[1, 2]);
    cluster.settle();
    cluster.check();
    assert_eq!(cluster.get(b"k"), Some(b"old".to_vec()));
    let pages = cluster.bucket().member().pages().unwrap();
    assert_eq!(pages.used(), 1, "all but the one log segment came back");
}

#[test]
fn a_large_write_past_its_deadline_gives_its_chunks_back() {
    let (mut cluster, token) = half_written();
    assert_eq!(cluster.wait(token), Err(Refused::Deadline));
    cluster.check();
    cluster.cut_off.clear();
    cluster.ticks(8);
    cluster.check();
    assert_eq!(cluster.get(b"k"), Some(b"old".to_vec()));
    assert_eq!(cluster.bucket().member().pages().unwrap().used(), 1);
}

#[test]
fn a_bucket_that_starts_afresh_has_forgotten_everything() {
    let mut cluster = trio();
    cluster.set(b"k", b"v").unwrap();
    cluster.start_afresh();
    cluster.settle();
    cluster.check();
    assert_eq!((cluster.cache().keys(), cluster.get(b"k")), (0, None));
    cluster.set(b"k", b"w").unwrap();
    cluster.ticks(8);
    cluster.check();
    assert!(cluster.buckets.iter().all(|b| b.service().keys() == 1));
}

#[test]
fn a_deadline_ends_every_wait() {
    let mut cluster = trio();
    cluster.set(b"k", b"v").unwrap();
    cluster.cut_off.extend([1, 2]);
    let write = cluster.submit(None, &set(b"k", b"w"));
    let read = cluster.submit(None, &Op::Get { key: b"k" });
    let large = cluster.submit(None, &set(b"l", &bytes(1, 50_000)));
    let behind = cluster.submit(None, &Op::Get { key: b"l" });
    // A write may have been done; of a read, and of what never began, nothing was.
    for (token, why) in [
        (write, Refused::Deadline),
        (read, Refused::Late),
        (large, Refused::Deadline),
        (behind, Refused::Late),
    ] {
        assert_eq!(cluster.wait(token), Err(why));
    }
    assert_eq!(cluster.bucket().waiting(), 0);
}

/// Segments come and go while a copy fetches them: it needs no more memory than the data bucket.
#[test]
fn a_copy_that_joins_a_full_bucket_under_compaction_holds_it() {
    let group = staves_group::Options {
        fetch_pages: 3,
        fetch_window: 1,
        ..Default::default()
    };
    let mut cluster = Cluster::with(1, 3, 6, staves_cache::Options::default(), group);
    let keys = 1300;
    for n in 0..keys {
        cluster
            .set(format!("k{n}").as_bytes(), &bytes(n, 900))
            .unwrap();
    }
    for round in 0..6u64 {
        cluster.change(if round % 2 == 0 { &[0, 1, 2] } else { &[0, 1] });
        for n in 0..300u64 {
            let key = format!("k{}", (n * 13 + round * 77) % keys);
            let answer = cluster.set(key.as_bytes(), &bytes(n + round, 900));
            assert_eq!(answer, Ok(Answer::Ok), "write {n} of round {round}");
            if n % 20 == 0 {
                cluster.check();
            }
        }
        cluster.settle();
        cluster.check();
    }
}

/// A refused large value must not keep the bucket from growing by what there is.
#[test]
fn after_a_refusal_at_a_copy_small_writes_still_find_memory() {
    let mut cluster = Cluster::new(1, 16, staves_cache::Options::default());
    cluster.budgets[1].set_limit(8);
    cluster.set(b"k", b"v").unwrap();
    let large = bytes(1, 10 * (256 << 10));
    let answer = cluster.set(b"large", &large);
    assert!(
        matches!(answer, Ok(Answer::Error(ErrorCode::OutOfMemory, _))),
        "{answer:?}"
    );
    for n in 0..1000u64 {
        assert_eq!(
            cluster.set(format!("k{n}").as_bytes(), &bytes(n, 1000)),
            Ok(Answer::Ok),
            "{n}"
        );
    }
    cluster.check();
}
