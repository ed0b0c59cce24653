//! Reads and writes while a lost bucket is rebuilt (row H6).

use staves_hunts::{Hunt, hunt};
use staves_model::CHUNK_BYTES;
use staves_model::mutant::Mutant;
use staves_wire::ErrorCode;
use staves_wire::memory::Action;
use staves_wire::service::Answer;

use crate::cluster::{Cluster, bytes, code, write};

const CHUNKS: u64 = 12;

/// A group 2+1 with something in both data buckets, whose first is lost and being rebuilt at node 3.
fn losing_the_first() -> Cluster {
    let mut c = Cluster::new(2, 1, 4, 64);
    for chunk in 0..CHUNKS {
        c.write(0, chunk * CHUNK_BYTES, &bytes(chunk, 40_000));
        c.write(1, chunk * CHUNK_BYTES, &bytes(100 + chunk, 50_000));
    }
    c.cut_off = vec![0];
    c.no_parts = true;
    c.change(&[3, 1, 2]);
    c.open();
    c
}

/// Row H6: the replacement answers before it has all its pages, in any order, and the rest follows.
#[test]
fn h6_pages_that_are_asked_for_are_rebuilt_first() {
    let mut c = losing_the_first();
    let (missing, _) = c.buckets[3].member().progress();
    assert!(missing > 100, "{missing} pages are missing");
    let token = c.submit(
        0,
        None,
        &Action::Read {
            image: 0,
            offset: 11 * CHUNK_BYTES + 39_990,
            len: 20,
        },
    );
    c.deliver();
    assert!(!c.answers.contains_key(&token), "no page has come");
    let untouched = c.submit(
        1,
        None,
        &Action::Read {
            image: 0,
            offset: 0,
            len: 4,
        },
    );
    assert!(
        c.answers.contains_key(&untouched),
        "the other data bucket goes on"
    );

    c.no_parts = false;
    let got = loop {
        match c.answered(token) {
            Some(Answer::Value(got)) => break got,
            Some(other) => panic!("a read is answered {other:?}"),
            None if c.deliver_at_most(1) == 0 => c.tick_without_delivery(),
            None => {}
        }
    };
    let mut expected = bytes(11, 40_000)[39_990..].to_vec();
    expected.resize(20, 0);
    assert_eq!(got, expected);
    let (left, _) = c.buckets[3].member().progress();
    assert!(
        left > missing / 2,
        "{left} of {missing}: it did not wait for all"
    );

    c.write(0, 5 * CHUNK_BYTES + 100, b"during");
    c.write(0, 900 * CHUNK_BYTES, b"a new chunk");
    c.settle();
    c.check_code();
    assert_eq!(&c.read(0, 5 * CHUNK_BYTES + 99, 8)[1..7], b"during");
    assert_eq!(&c.read(0, 900 * CHUNK_BYTES, 11)[..], b"a new chunk");
    for chunk in (0..CHUNKS).filter(|chunk| *chunk != 5) {
        let got = c.read(0, chunk * CHUNK_BYTES, 40_000);
        assert!(got == bytes(chunk, 40_000), "chunk {chunk}");
    }
}

/// A page that cannot be rebuilt yet: whoever waits for it is told by the deadline, reads and writes alike.
#[test]
fn h6_who_waits_for_a_page_waits_no_longer_than_the_deadline() {
    let mut c = losing_the_first();
    let read = c.submit(
        0,
        None,
        &Action::Read {
            image: 0,
            offset: 7,
            len: 1,
        },
    );
    let write = c.submit(0, Some(1), &write(7, b"x"));
    for token in [read, write] {
        // Neither has begun.
        assert_eq!(code(&c.wait(token)), Some(ErrorCode::NotServing));
    }
    c.no_parts = false;
    assert_eq!(c.read(0, 7, 1)[..], bytes(0, 8)[7..]);
}

/// I9 past a takeover: the replacement knows what was done, before it has any page.
#[test]
fn a_retry_after_a_takeover_is_answered_and_not_done_again() {
    for (m, seats) in [(2u8, [3, 1, 2]), (1, [1, 2, 3])] {
        let mut c = Cluster::new(m, 3 - m, 4, 64);
        let add = Action::FetchAdd { offset: 0, by: 5 };
        assert_eq!(c.run(0, Some(1), &add), Answer::Int(0));
        let lost = c.submit(0, Some(2), &add);
        c.deliver();
        c.answered(lost);
        c.cut_off = vec![0];
        c.change(&seats);
        c.open();
        assert_eq!(c.run(0, Some(2), &add), Answer::Int(5), "it was done");
        assert_eq!(c.run(0, Some(1), &add), Answer::Int(0), "answered again");
        assert_eq!(c.run(0, Some(3), &add), Answer::Int(10));
    }
}

/// A data bucket that is deposed lets go whoever waits at it.
#[test]
fn who_waits_at_a_deposed_bucket_is_sent_to_its_successor() {
    let mut c = Cluster::new(2, 1, 4, 64);
    c.write(0, 0, b"x");
    c.cut_off = vec![2];
    let waits = c.submit(0, Some(9), &write(0, b"y"));
    c.tick();
    assert!(c.answers.is_empty(), "parity does not answer");
    // It hears of the change, and can reach nobody.
    c.cut_off = vec![0];
    c.change(&[3, 1, 2]);
    c.open();
    let answer = c.wait(waits);
    assert_eq!(code(&answer), Some(ErrorCode::Unreachable), "{answer:?}");
    let again = c.run(0, Some(9), &write(0, b"y"));
    assert_eq!(again, Answer::Ok);
    assert_eq!(c.read(0, 0, 1)[..], *b"y");
}

/// Regression: whoever has joined has not yet said that it has memory for places that were taken before, and a
/// write to one of them ended the node.
#[test]
fn a_write_to_an_old_place_waits_until_a_new_parity_bucket_has_memory_for_it() {
    for (m, seats) in [(2u8, [0, 1, 3]), (1, [0, 3, 2])] {
        let mut c = Cluster::new(m, 3 - m, 4, 64);
        c.write(0, 0, b"old");
        c.cut_off = vec![if m == 2 { 2 } else { 1 }];
        c.change(&seats);
        c.deliver_at_most(1);
        let overwrite = c.submit(0, Some(7), &write(0, b"new"));
        c.open();
        assert_eq!(c.wait(overwrite), Answer::Ok);
        c.settle();
        c.check();
        assert_eq!(c.read(0, 0, 3)[..], *b"new");
    }
}

/// A chunk that was never written has no pages to be missing: who reads it in a lost group whose lease has run
/// out is told so all the same.
#[test]
fn a_read_of_what_was_never_written_in_a_lost_group_is_told_so() {
    let mut c = Cluster::new(2, 1, 3, 8);
    c.write(0, 0, b"one");
    c.no_lease = true;
    c.cut_off = vec![1, 2];
    c.ticks(60);
    let read = Action::Read {
        image: 0,
        offset: 9 * CHUNK_BYTES,
        len: 4,
    };
    let waits = c.submit(0, None, &read);
    assert!(!c.answers.contains_key(&waits), "it may still be answered");
    c.group.lost = true;
    c.revise();
    let told = c.answered(waits);
    assert_eq!(
        told.as_ref().and_then(code),
        Some(ErrorCode::Lost),
        "{told:?}"
    );
}

/// More is lost than the scheme bears while pages are missing: who reads them is told so, and not let wait.
#[test]
fn a_read_of_what_is_missing_in_a_lost_group_is_told_so() {
    let mut c = losing_the_first();
    let read = Action::Read {
        image: 0,
        offset: 0,
        len: 4,
    };
    let waits = c.submit(0, None, &read);
    c.deliver();
    assert!(!c.answers.contains_key(&waits));
    c.group.lost = true;
    c.revise();
    let later = c.submit(0, None, &read);
    c.deliver();
    for token in [waits, later] {
        let answer = c.answered(token);
        let told = answer.as_ref().and_then(code);
        assert_eq!(told, Some(ErrorCode::Lost), "{answer:?}");
    }
}

/// Two data buckets are lost, an epoch gives a node the place of the second, and before it is ever open the next
/// gives it the place of the first. Who waited there for the second's bytes must not get the first's.
#[test]
fn who_waits_for_one_data_bucket_is_not_served_by_another() {
    let mut c = Cluster::new(2, 2, 6, 64);
    c.write(0, 0, b"first");
    c.write(1, 0, b"other");
    c.cut_off = vec![0, 1];
    c.change(&[4, 5, 2, 3]);
    let read = Action::Read {
        image: 0,
        offset: 0,
        len: 5,
    };
    let waits = c.submit_at(5, 1, None, &read);
    assert!(!c.answers.contains_key(&waits), "it may wait for the epoch");
    c.change(&[5, 4, 2, 3]);
    c.open();
    c.ticks(8);
    let told = c.answered(waits);
    let why = told.as_ref().and_then(code);
    assert_eq!(why, Some(ErrorCode::NotServing), "{told:?}");
    assert_eq!(c.read(0, 0, 5)[..], *b"first");
    assert_eq!(c.read(1, 0, 5)[..], *b"other");
}

/// A write waits for memory, which a member that is cut off cannot grant. Once the next epoch is open all say anew what they
/// have: that they have not yet is no refusal.
#[test]
fn a_wait_for_memory_is_not_a_refusal_in_the_next_epoch() {
    let mut c = Cluster::new(2, 1, 4, 64);
    c.write(0, 0, b"first");
    c.cut_off = vec![2];
    let more = |i: u64| write(i * CHUNK_BYTES, b"more");
    let waits: Vec<u64> = (0..20)
        .map(|i| c.submit(0, Some(i + 1), &more(i)))
        .collect();
    c.ticks(6);
    c.change(&[0, 1, 3]);
    c.open();
    for token in waits {
        assert_eq!(c.wait(token), Answer::Ok);
    }
}

/// Row H6: pages come out of turn because somebody asks for them, and not by chance.
#[test]
fn a_rebuild_that_lets_clients_wait_for_their_pages_turn_is_found() {
    hunt(&[Hunt {
        mutant: Mutant::DemandNotSent,
        test: "recovery::h6_pages_that_are_asked_for_are_rebuilt_first",
        shows: "it did not wait for all",
    }]);
}
