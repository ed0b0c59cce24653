//! The operations that wait, those that set out, and how many, without a node.

use bytes::BytesMut;
use staves_model::{ClientId, Time};
use staves_wire::cache::Op;

use super::super::completions::RemoteResult;
use super::batch::{ReplyPlace, back};
use super::*;

fn answers(results: Vec<RemoteResult>) -> RemoteAnswers {
    RemoteAnswers {
        results,
        ..RemoteAnswers::default()
    }
}

/// The operations that set out next.
fn next_batch(remote: &mut RemoteOps, waiting: &BTreeSet<u32>) -> Vec<((u64, u32), RemoteOp)> {
    let (places, _) = remote.next_batch(waiting);
    remote.take(&places)
}

/// True if the answers of the next batch are expected to be small.
fn expects_little(remote: &RemoteOps) -> bool {
    remote.next_batch(&BTreeSet::new()).1 <= staves_net::SMALL_BYTES
}

fn wanted(bucket: u32) -> RemoteOp {
    let get = Op::Get { key: b"k" };
    RemoteOp::new(bucket, &get, None, Time(1), &mut BytesMut::new())
}

/// SET a 1 waits here for the copies; SET a 2 was refused, for the bucket was busy. Should a takeover
/// lose the first, it must be asked for again before the second is.
#[test]
fn nothing_sets_out_before_what_waits_here_for_its_bucket() {
    let mut remote = RemoteOps::default();
    remote.push(8, 0, wanted(3));
    remote.push(9, 0, wanted(4));
    let places = |batch: Vec<((u64, u32), RemoteOp)>| -> Vec<(u64, u32)> {
        batch.into_iter().map(|(place, _)| place).collect()
    };
    let waiting = BTreeSet::from([3]);
    assert_eq!(places(next_batch(&mut remote, &waiting)), [(9, 0)]);
    assert_eq!(places(next_batch(&mut remote, &waiting)), []);
    // A takeover came: the first is queued now, and nothing waits here.
    remote.expected_bytes = ANSWER_BYTES_MIN;
    remote.push(7, 0, wanted(3));
    assert_eq!(
        places(next_batch(&mut remote, &BTreeSet::new())),
        [(7, 0), (8, 0)]
    );
}

/// Regression: a batch asked for all that the client had asked, however large the values were, and all of them lay
/// here until the last had come.
#[test]
fn a_batch_asks_for_what_is_expected_to_fit() {
    let mut remote = RemoteOps::default();
    let mut places = 0..;
    let mut answers_of = |answer_bytes: usize| {
        while remote.has_room() {
            remote.push(places.next().expect("endless"), 0, wanted(3));
        }
        let batch = next_batch(&mut remote, &BTreeSet::new());
        let value = Answer::Value(vec![0; answer_bytes].into());
        let answered = batch
            .iter()
            .map(|((place, part), _)| back((*place, *part, 3), value.clone()));
        remote.back(answers(answered.collect()), |_, _, _| {});
        batch.len()
    };
    assert_eq!(answers_of(8 << 20), 1, "nothing is known");
    assert_eq!(answers_of(1 << 20), 1);
    assert_eq!(answers_of(1 << 20), 4);
    assert_eq!(answers_of(10), 4);
    assert_eq!(answers_of(10), 64);
    assert_eq!(answers_of(10), BATCH_OPS_MAX);
    assert_eq!(answers_of(8 << 20), BATCH_OPS_MAX);
    assert_eq!(answers_of(8 << 20), 1);
}

/// Regression: with memory for one value, reads set out to two nodes, each of which was asked for half of it, and gave none; so it
/// went on until their deadline.
#[test]
fn as_many_set_out_as_their_bytes_suffice_for_at_any_nodes() {
    let mut remote = RemoteOps::default();
    (0..8).for_each(|place| remote.push(place, 0, wanted(3)));
    let mut batch = next_batch(&mut remote, &BTreeSet::new());
    let left = batch.split_off(1);
    let value = Answer::Value(vec![0; 3000].into());
    let outcome = RemoteAnswers {
        results: vec![back((0, 0, 3), value)],
        left,
        ..RemoteAnswers::default()
    };
    remote.back(outcome, |_, _, _| {});
    remote.push(8, 0, wanted(3));
    let fitting = |remote: &RemoteOps, bytes| {
        let (mut places, _) = remote.next_batch(&BTreeSet::new());
        remote.fit(&mut places, bytes);
        places.len()
    };
    remote.expected_bytes = ANSWER_BYTES_MIN;
    assert_eq!(fitting(&remote, 4096), 1);
    assert_eq!(fitting(&remote, 7000), 2);
    assert_eq!(fitting(&remote, 1 << 20), 8);
    // A value of which it is known that it was too large goes alone, whatever there is.
    let outcome = RemoteAnswers {
        needs_bytes: 60_000,
        ..RemoteAnswers::default()
    };
    remote.back(outcome, |_, _, _| {});
    assert_eq!(fitting(&remote, 4096), 1);
    assert_eq!(fitting(&remote, 60_000), 1);
    // Writes are answered by nothing that needs memory.
    let mut remote = RemoteOps {
        largest_bytes: 3000,
        expected_bytes: ANSWER_BYTES_MIN,
        ..RemoteOps::default()
    };
    for place in 0..4 {
        let mut op = wanted(3);
        op.op.is_write = place != 2;
        remote.push(place, 0, op);
    }
    assert_eq!(fitting(&remote, 1), 4);
    remote.push(4, 0, wanted(3));
    assert_eq!(fitting(&remote, 1), 4);
}

/// Regression: the short answers to writes were taken for those of the reads behind them, and 200 MiB were asked for at once.
#[test]
fn an_answer_to_a_write_says_nothing_of_how_large_values_are() {
    let mut remote = RemoteOps::default();
    for place in 0..8 {
        let mut set = wanted(3);
        set.op.is_write = true;
        assert!(remote.has_room() && expects_little(&remote));
        remote.push(place, 0, set);
        assert_eq!(next_batch(&mut remote, &BTreeSet::new()).len(), 1);
        remote.back(answers(vec![back((place, 0, 3), Answer::Ok)]), |_, _, _| {});
    }
    (8..16).for_each(|place| remote.push(place, 0, wanted(3)));
    assert!(!remote.has_room() && !expects_little(&remote));
    assert_eq!(next_batch(&mut remote, &BTreeSet::new()).len(), 1);
}

/// Regression: refusals while a bucket moved were taken for small answers, and then all was asked for at once.
#[test]
fn a_refusal_says_nothing_of_how_large_the_answers_will_be() {
    let mut remote = RemoteOps::default();
    let busy = Answer::error(ErrorCode::Busy, "later");
    for place in 0..8 {
        remote.push(place, 0, wanted(3));
        remote.back(
            answers(vec![back((place, 0, 3), busy.clone())]),
            |_, _, _| {},
        );
    }
    assert_eq!(next_batch(&mut remote, &BTreeSet::new()).len(), 1);
}

/// Operations beyond the bytes that a batch asked for go before those that came behind them, which wait for their bucket all the while.
#[test]
fn what_was_not_begun_sets_out_again_in_its_place() {
    let mut remote = RemoteOps {
        expected_bytes: ANSWER_BYTES_MIN,
        ..RemoteOps::default()
    };
    (0..3).for_each(|place| remote.push(place, 0, wanted(3)));
    let mut batch = next_batch(&mut remote, &BTreeSet::new());
    let left = batch.split_off(1);
    remote.push(3, 0, wanted(3));
    let value = Answer::Value(vec![0; BATCH_BYTES_MAX].into());
    let results = vec![back((0, 0, 3), value)];
    let mut settled = Vec::new();
    let outcome = RemoteAnswers {
        results,
        left,
        ..RemoteAnswers::default()
    };
    remote.back(outcome, |place, _, _| settled.push(place));
    assert_eq!(settled, [0]);
    assert!(remote.holds(3) && !remote.has_room());
    for place in 1..4 {
        let batch = next_batch(&mut remote, &BTreeSet::new());
        let places: Vec<_> = batch.into_iter().map(|(place, _)| place).collect();
        assert_eq!(places, [(place, 0)]);
    }
}

/// A value of which it is known how large it is is asked for as a whole, alone, and one that has no memory is refused with the rest
/// of its command.
#[test]
fn a_value_that_was_withheld_is_asked_for_as_a_whole() {
    let mut remote = RemoteOps::default();
    (0..2).for_each(|part| remote.push(5, part, wanted(3)));
    remote.push(6, 0, wanted(3));
    let (places, expected) = remote.next_batch(&BTreeSet::new());
    assert_eq!((&places[..], expected), (&[(5, 0)][..], BATCH_BYTES_MAX));
    let outcome = RemoteAnswers {
        left: remote.take(&places),
        needs_bytes: 8 << 20,
        ..RemoteAnswers::default()
    };
    remote.back(outcome, |_, _, _| panic!("it has no answer"));
    let (places, expected) = remote.next_batch(&BTreeSet::new());
    assert_eq!((&places[..], expected), (&[(5, 0)][..], 8 << 20));
    let mut refused = Vec::new();
    let busy = Answer::error(ErrorCode::Busy, "no memory");
    remote.refuse(5, &busy, |place, part, _| refused.push((place, part)));
    assert_eq!(refused, [(5, 0), (5, 1)]);
    assert_eq!((remote.needs_bytes(), remote.reads), (0, 1));
    assert!(remote.holds(3), "the next command's");
}

#[test]
fn a_bucket_is_held_until_its_last_operation_is_back() {
    let mut remote = RemoteOps::default();
    assert!(!remote.holds(3));
    remote.push(8, 0, wanted(3));
    remote.push(7, 1, wanted(3));
    remote.push(7, 0, wanted(4));
    let order: Vec<(u64, u32)> = remote.queued.iter().map(|(at, _)| *at).collect();
    assert_eq!(order, [(7, 0), (7, 1), (8, 0)], "as the commands came");
    let mut settled = Vec::new();
    let mut come = |remote: &mut RemoteOps, places: &[ReplyPlace]| {
        let batch = places.iter().map(|place| back(*place, Answer::Nil));
        remote.back(answers(batch.collect()), |place, part, _| {
            settled.push((place, part));
        });
    };
    come(&mut remote, &[(7, 0, 4), (7, 1, 3)]);
    assert!(remote.holds(3) && !remote.holds(4));
    come(&mut remote, &[(8, 0, 3)]);
    assert!(!remote.holds(3));
    assert_eq!(settled, [(7, 0), (7, 1), (8, 0)]);
}

/// Regression: what was queued when its pool was deleted was never answered, nor anything after it.
#[test]
fn whoever_is_queued_when_the_pool_goes_is_told() {
    let mut remote = RemoteOps::default();
    remote.push(7, 0, wanted(3));
    let request = RequestId {
        client: ClientId(5),
        number: 1,
        floor: 1,
    };
    let begun = RemoteOp {
        request: Some(request),
        ..wanted(3)
    };
    remote.push(8, 0, begun);
    let mut told = Vec::new();
    remote.stay(|place, _, answer| match answer {
        Answer::Error(code, _) => told.push((place, code)),
        other => panic!("{other:?}"),
    });
    assert_eq!(
        told,
        [(7, ErrorCode::NotFound), (8, ErrorCode::Unreachable)]
    );
    assert!(!remote.holds(3) && !remote.is_ready());
}
