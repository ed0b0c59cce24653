//! Turns, without a network.

mod hunts;

use super::*;
use bytes::Bytes;
use staves_model::{GroupId, HashSlot, Revision, testing};

const MILLI: Duration = Duration::from_millis(1);
const SLOTS: [HashSlot; 2] = [HashSlot(0), HashSlot(16_383)];

/// A cache of two buckets, of which node 1 answers for the first and node 2 for the second.
fn map() -> ClusterMap {
    let mut map = testing::cluster(3);
    let pool = testing::create_pool("cache", "1+0", 2, true);
    map.apply(None, &pool).expect("a new pool");
    testing::start_group(&mut map, 1, &[1]);
    testing::start_group(&mut map, 2, &[2]);
    map
}

fn turn(ops: &[(HashSlot, bool)]) -> RouterTurn {
    let ops = ops.iter().map(|(slot, is_write)| {
        let op = ServiceOp {
            to: Address::Slot(*slot),
            body: Body {
                head: Bytes::from_static(b"op"),
                payload: Bytes::new(),
            },
            is_write: *is_write,
            answer_bytes: 0,
        };
        let windows = op.windows(&map(), Some(PoolId(1)));
        (op, windows)
    });
    let of = (ServiceId::CACHE, PoolRef::Name("cache".into()), ClientId(7));
    let deadline = Time::ZERO + 100 * MILLI;
    RouterTurn::new(of, RouterOptions::default(), ops.collect(), 10.., deadline)
}

fn go(map: &Arc<ClusterMap>) -> TurnEvent {
    TurnEvent::Go(map.clone(), Avoid::default())
}

fn sent(next: TurnStep) -> Vec<NodeBatch> {
    match next {
        TurnStep::Send(batches) => batches,
        other => panic!("{other:?}"),
    }
}

fn answers(next: TurnStep) -> Vec<Answer> {
    match next {
        TurnStep::Done(Ok(answers)) => answers.into_iter().map(answered).collect(),
        other => panic!("{other:?}"),
    }
}

fn answer(node: u64, answers: &[Answer], draw_above: u64) -> TurnEvent {
    withheld(node, answers, draw_above, 0)
}

/// The same, of a node that has withheld a value of so many bytes.
fn withheld(node: u64, answers: &[Answer], draw_above: u64, needs_bytes: u32) -> TurnEvent {
    let answers = ServiceAnswers {
        revision: Revision(1),
        answers: answers.to_vec(),
        moved: Vec::new(),
        draw_above,
        needs_bytes,
    };
    TurnEvent::Answered(NodeId(node), Ok(answers))
}

fn error(code: ErrorCode) -> Answer {
    Answer::error(code, "so it is")
}

fn failed(node: u64, code: ErrorCode) -> TurnEvent {
    let failure = CallFailure {
        code,
        text: "so it is".into(),
        nothing_done: code.nothing_done(),
    };
    TurnEvent::Answered(NodeId(node), Err(failure))
}

#[test]
fn each_node_gets_one_batch_and_answers_come_in_the_operations_order() {
    let (map, now) = (Arc::new(map()), Time::ZERO);
    let [a, b] = SLOTS;
    let mut turn = turn(&[(a, true), (b, false), (a, false)]);
    let batches = sent(turn.step(now, go(&map)));
    let shape = batches.iter().map(|b| (b.node.0, b.request.ops.len()));
    assert_eq!(shape.collect::<Vec<_>>(), [(1, 2), (2, 1)]);
    let numbers = batches[0].request.ops.iter().map(|op| op.number);
    assert_eq!(numbers.collect::<Vec<_>>(), [10, 0]);
    assert!(!batches[0].request.retry && batches[0].windows == Windows::of(GroupId(1)));
    let next = turn.step(now, answer(2, &[Answer::Nil], 0));
    assert!(matches!(next, TurnStep::Await));
    // An answer of a node that was not asked changes nothing.
    let next = turn.step(now, answer(3, &[Answer::Int(5)], 0));
    assert!(matches!(next, TurnStep::Await));
    let next = turn.step(now, answer(1, &[Answer::Ok, Answer::Int(1)], 0));
    assert_eq!(answers(next), [Answer::Ok, Answer::Nil, Answer::Int(1)]);
}

/// Regression: a turn went on until it had all values, however many bytes they were.
#[test]
fn a_turn_of_so_many_bytes_ends_with_them_and_leaves_the_rest_undone() {
    let (map, now) = (Arc::new(map()), Time::ZERO);
    let [a, b] = SLOTS;
    let mut turn = turn(&[(a, false), (a, false), (a, true), (b, false)]).of_bytes(Some(1000));
    let bounds = |batches: &[NodeBatch]| -> Vec<u32> {
        let requests = batches.iter().map(|batch| &batch.request);
        requests.map(|request| request.answer_bytes_max).collect()
    };
    assert_eq!(bounds(&sent(turn.step(now, go(&map)))), [500, 500]);
    let value = |bytes| Answer::Value(vec![0; bytes].into());
    turn.step(now, answer(2, &[value(100)], 0));
    // The first node begins one alone; 300 bytes are left.
    let next = turn.step(now, answer(1, &[value(600)], 0));
    assert!(matches!(next, TurnStep::Rest(_)), "{next:?}");
    let batches = sent(turn.step(now, go(&map)));
    assert_eq!(bounds(&batches), [300]);
    assert_eq!(batches[0].request.ops.len(), 2);
    match turn.step(now, answer(1, &[value(300)], 0)) {
        TurnStep::Done(Ok(answers)) => {
            let done = [Some(value(600)), Some(value(300)), None, Some(value(100))];
            assert_eq!(answers, done);
        }
        other => panic!("{other:?}"),
    }
}

/// A value that has more bytes than the turn ends it as well: who asks has to make room for it first.
#[test]
fn a_turn_of_so_many_bytes_ends_at_a_value_that_has_more() {
    let (map, now) = (Arc::new(map()), Time::ZERO);
    let [a, b] = SLOTS;
    let mut turn = turn(&[(a, false), (a, false), (b, false)]).of_bytes(Some(1000));
    let batches = sent(turn.step(now, go(&map)));
    assert!(batches.iter().all(|batch| batch.request.strict));
    let value = Answer::Value(vec![0; 100].into());
    turn.step(now, answer(2, std::slice::from_ref(&value), 0));
    let next = turn.step(now, withheld(1, &[error(ErrorCode::Busy)], 0, 5000));
    match next {
        TurnStep::Done(Ok(answers)) => assert_eq!(answers, [None, None, Some(value)]),
        other => panic!("{other:?}"),
    }
    assert_eq!(turn.needs_bytes(), 5000);
}

/// A write that may have been done keeps its number, which another turn would not know.
#[test]
fn a_turn_of_so_many_bytes_does_not_leave_a_write_that_may_have_been_done() {
    let (map, now) = (Arc::new(map()), Time::ZERO);
    let slot = SLOTS[0];
    let mut turn = turn(&[(slot, false), (slot, true), (slot, false)]).of_bytes(Some(10));
    sent(turn.step(now, go(&map)));
    turn.step(now, failed(1, ErrorCode::Unreachable));
    let next = turn.step(now, go(&map));
    assert!(matches!(next, TurnStep::Rest(_)), "no newer map: {next:?}");
    sent(turn.step(now, go(&map)));
    let value = Answer::Value(vec![0; 10].into());
    let next = turn.step(now, answer(1, std::slice::from_ref(&value), 0));
    assert!(matches!(next, TurnStep::Rest(_)), "{next:?}");
    let again = sent(turn.step(now, go(&map)));
    let request = &again[0].request;
    assert_eq!((request.ops[0].number, request.answer_bytes_max), (10, 1));
    match turn.step(now, answer(1, &[Answer::Ok], 0)) {
        TurnStep::Done(Ok(answers)) => {
            assert_eq!(answers, [Some(value), Some(Answer::Ok), None])
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_write_that_was_interrupted_goes_to_the_new_node_under_its_number() {
    let old = Arc::new(map());
    let mut turn = turn(&[(SLOTS[0], true)]);
    sent(turn.step(Time::ZERO, go(&old)));
    let next = turn.step(Time::ZERO, failed(1, ErrorCode::Unreachable));
    assert!(matches!(next, TurnStep::Look(known, _) if Arc::ptr_eq(&known, &old)));
    let mut newer = map();
    let members = newer.groups[&GroupId(2)].members.clone();
    newer.groups.get_mut(&GroupId(1)).expect("there").members = members;
    let batches = sent(turn.step(Time::ZERO + MILLI, go(&Arc::new(newer))));
    assert_eq!(batches[0].node, NodeId(2));
    let request = &batches[0].request;
    assert!(request.retry && request.ops[0].number == 10);
    // The map's word is no news of a write that was sent before.
    let next = turn.step(Time::ZERO + MILLI, answer(2, &[error(ErrorCode::Lost)], 0));
    let answers = answers(next);
    assert!(matches!(
        &answers[..],
        [Answer::Error(ErrorCode::Unreachable, _)]
    ));
}

/// Regression: an append whose first try had been kept was said to be in no unit, since the second try found no room.
#[test]
fn a_write_that_may_have_been_done_is_not_said_to_have_found_no_room() {
    let map = Arc::new(map());
    for first in [true, false] {
        let mut turn = turn(&[(SLOTS[0], true)]);
        let mut next = turn.step(Time::ZERO, go(&map));
        if !first {
            sent(next);
            turn.step(Time::ZERO, failed(1, ErrorCode::Unreachable));
            next = turn.step(Time::ZERO + MILLI, go(&map));
            if let TurnStep::Rest(wait) = next {
                next = turn.step(Time::ZERO + MILLI + wait, go(&map));
            }
        }
        sent(next);
        let now = Time::ZERO + MILLI * 10;
        let next = turn.step(now, answer(1, &[error(ErrorCode::OutOfMemory)], 0));
        let wanted = match first {
            true => ErrorCode::OutOfMemory,
            false => ErrorCode::Unreachable,
        };
        let answers = answers(next);
        assert!(
            matches!(&answers[..], [Answer::Error(code, _)] if *code == wanted),
            "{answers:?}"
        );
    }
}

#[test]
fn waits_grow_while_no_newer_map_comes_and_end_with_the_deadline() {
    let map = Arc::new(map());
    let mut turn = turn(&[(SLOTS[0], true), (SLOTS[0], false)]);
    let (mut now, mut waits) = (Time::ZERO, Vec::new());
    let mut next = turn.step(now, go(&map));
    let answers = loop {
        next = match next {
            TurnStep::Send(_) => turn.step(now, failed(1, ErrorCode::Unreachable)),
            TurnStep::Look(..) => turn.step(now, go(&map)),
            TurnStep::Rest(wait) => {
                waits.push(wait.as_millis());
                now = now + wait;
                turn.step(now, go(&map))
            }
            TurnStep::Done(answers) => break answers.expect("one each"),
            other => panic!("{other:?}"),
        };
    };
    assert_eq!(waits, [2, 4, 8, 16, 32]);
    assert!(now < Time::ZERO + 100 * MILLI);
    let answers: Vec<Answer> = answers.into_iter().map(answered).collect();
    let codes = answers.iter().map(|answer| match answer {
        Answer::Error(code, _) => *code,
        other => panic!("{other:?}"),
    });
    // The write may have been done; of the read it does not matter.
    let expected = [ErrorCode::Deadline, ErrorCode::NotServing];
    assert_eq!(codes.collect::<Vec<_>>(), expected);
}

#[test]
fn as_much_as_goes_at_once_is_no_reason_to_look_for_a_map() {
    let map = Arc::new(map());
    let mut turn = turn(&[(SLOTS[0], false); 3]);
    let busy = error(ErrorCode::Busy);
    for done in 0..2 {
        let batches = sent(turn.step(Time::ZERO, go(&map)));
        let mut some = vec![busy.clone(); batches[0].request.ops.len()];
        some[0] = Answer::Int(done);
        let next = turn.step(Time::ZERO, answer(1, &some, 0));
        assert!(
            matches!(next, TurnStep::Rest(wait) if wait == 2 * MILLI),
            "{next:?}"
        );
    }
    sent(turn.step(Time::ZERO, go(&map)));
    let next = turn.step(Time::ZERO, answer(1, &[Answer::Int(2)], 0));
    assert_eq!(answers(next), [0, 1, 2].map(Answer::Int));
}

#[test]
fn forgotten_writes_are_done_under_higher_numbers_but_not_after_later_ones() {
    let map = Arc::new(map());
    let [a, b] = SLOTS;
    let mut turn = turn(&[(a, true), (b, true), (a, false)]);
    sent(turn.step(Time::ZERO, go(&map)));
    let forgotten = error(ErrorCode::Forgotten);
    turn.step(
        Time::ZERO,
        answer(1, &[forgotten.clone(), Answer::Nil], 500),
    );
    let next = turn.step(Time::ZERO, answer(2, &[forgotten], 400));
    // The first of slot `a` was overtaken; slot `b` is free to go again.
    let TurnStep::Renumber(above, windows) = next else {
        panic!("{next:?}");
    };
    assert_eq!((above, windows), (500, vec![Windows::of(GroupId(2))]));
    let next = turn.step(Time::ZERO, TurnEvent::Numbered(Some(vec![501])));
    assert!(matches!(next, TurnStep::Rest(Duration::ZERO)));
    let batches = sent(turn.step(Time::ZERO, go(&map)));
    assert_eq!(batches[0].request.ops[0].number, 501);
    assert!(
        !batches[0].request.retry,
        "nothing was done under the other number"
    );
    let answers = answers(turn.step(Time::ZERO, answer(2, &[Answer::Ok], 0)));
    assert!(matches!(
        &answers[0],
        Answer::Error(ErrorCode::NotServing, _)
    ));
    assert_eq!(answers[1..], [Answer::Ok, Answer::Nil]);
}

#[test]
fn a_node_that_is_passed_over_is_asked_if_nobody_else_is_left() {
    let map = Arc::new(map());
    let mut turn = turn(&[(SLOTS[0], false)]);
    let avoid = || Avoid {
        nodes: [1, 2, 3].map(NodeId).into(),
        ..Avoid::default()
    };
    let batches = sent(turn.step(Time::ZERO, TurnEvent::Go(map.clone(), avoid())));
    assert_eq!(batches[0].node, NodeId(1));
}

/// Regression: after one operation that nobody answered for, a turn passed nobody over, and asked a node that it did
/// not reach until its deadline.
#[test]
fn a_node_stays_passed_over_whatever_was_not_served() {
    let mut closed = map();
    closed
        .groups
        .values_mut()
        .for_each(|group| group.open = false);
    let (closed, open) = (Arc::new(closed), Arc::new(map()));
    let mut turn = turn(&[(SLOTS[0], false)]);
    let avoid = || Avoid {
        nodes: [1].map(NodeId).into(),
        ..Avoid::default()
    };
    let next = turn.step(Time::ZERO, TurnEvent::Go(closed, avoid()));
    assert!(matches!(next, TurnStep::Look(..)));
    let batches = sent(turn.step(Time::ZERO, TurnEvent::Go(open, avoid())));
    assert_eq!(batches[0].node, NodeId(2));
}

#[test]
fn a_pool_that_is_not_there_is_looked_for_once() {
    let nothing = Arc::new(ClusterMap::default());
    let mut turn = turn(&[(SLOTS[0], true)]);
    let next = turn.step(Time::ZERO, go(&nothing));
    assert!(matches!(next, TurnStep::Look(..)));
    let next = turn.step(Time::ZERO, go(&nothing));
    assert!(matches!(next, TurnStep::Rest(_)));
    let next = turn.step(Time::ZERO, go(&nothing));
    assert!(matches!(
        next,
        TurnStep::Done(Err(ClientError::NoSuchPool { .. }))
    ));
}
