//! Answers that are many bytes: no more of them are made at once than one message, or one command, may have.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use staves_model::{
    CHUNK_BYTES, Change, ClientId, ClusterId, Medium, PoolKind, Revision, ServiceId,
};
use staves_net::{Connection, Identity};
use staves_wire::cache::OwnedOp;
use staves_wire::memory::Action;
use staves_wire::service::{Address, Answer, NumberedOp, PoolRef, ServiceAnswers, ServiceRequest};
use staves_wire::{ErrorCode, Message};

use staves_hunts::{Hunt, hunt};
use staves_model::mutant::Mutant;
use staves_testkit::cluster::{Parse, TestNode, config};
use staves_testkit::resp::Reply;
use staves_testkit::wait_until;

const BIG: usize = 6 << 20;

fn ready() -> TestNode {
    let mut config = config(None, &[]);
    config.memory = "256MiB".parse_size();
    config.value_bytes_max = "16MiB".parse_size();
    let node = TestNode::start(config);
    wait_until("it serves", || {
        node.client().ask("SET ready 1") == Reply::Ok
    });
    node
}

/// Answers to one request of the native protocol.
fn ask(node: &TestNode, request: ServiceRequest) -> Vec<Answer> {
    ask_whole(node, request).answers
}

fn ask_whole(node: &TestNode, request: ServiceRequest) -> ServiceAnswers {
    node.runtime().block_on(async {
        let identity = Identity::client(ClusterId(0));
        let options = staves_net::Options::default();
        let addr = node.addresses.native.to_string();
        let connection = Connection::open(&addr, &identity, &options).await;
        let connection = connection.expect("the native door takes connections");
        let deadline = Instant::now() + Duration::from_secs(20);
        let request = Message::Service(request);
        match connection.call(&request, deadline).await {
            Ok(Message::ServiceAnswers(answers)) => answers,
            other => panic!("{other:?}"),
        }
    })
}

fn put(node: &TestNode, key: &str, bytes: usize) {
    let value = vec![b'v'; bytes];
    let set: [&[u8]; 3] = [b"SET", key.as_bytes(), &value];
    assert_eq!(node.client().ask_args(&set), Reply::Ok);
}

/// A batch of one operation for each of five keys.
fn batch(node: &TestNode, write: bool, op: impl Fn(Bytes) -> OwnedOp) -> Vec<Answer> {
    batch_of_bytes(node, 0, write, op)
}

/// The same with a bound of the answers' bytes.
fn batch_of_bytes(
    node: &TestNode,
    answer_bytes_max: usize,
    write: bool,
    op: impl Fn(Bytes) -> OwnedOp,
) -> Vec<Answer> {
    ask(node, request_of_bytes(answer_bytes_max, write, op))
}

fn request_of_bytes(
    answer_bytes_max: usize,
    write: bool,
    op: impl Fn(Bytes) -> OwnedOp,
) -> ServiceRequest {
    let ops = (0..5).map(|i| {
        let op = op(format!("big-{i}").into());
        op.numbered(if write { 1 + i } else { 0 })
    });
    ServiceRequest {
        revision: Revision(0),
        service: ServiceId::CACHE,
        pool: PoolRef::Name("cache".into()),
        client: ClientId(0),
        floor: 1,
        retry: false,
        forwarded: false,
        answer_bytes_max: answer_bytes_max as u32,
        strict: false,
        ops: ops.collect(),
    }
}

/// The number that were done; the others say that they were not.
fn done(answers: &[Answer]) -> usize {
    let done = |answer: &&Answer| match answer {
        Answer::Value(value) => {
            assert_eq!(value.len(), BIG);
            true
        }
        Answer::Error(ErrorCode::Busy, _) => false,
        other => panic!("{other:?}"),
    };
    let count = answers.iter().take_while(done).count();
    assert_eq!(
        answers.iter().filter(done).count(),
        count,
        "none is done after one that is not"
    );
    count
}

#[test]
fn a_batch_is_answered_by_so_many_bytes_and_what_is_left_was_not_done() {
    let node = ready();
    (0..5).for_each(|i| put(&node, &format!("big-{i}"), BIG));
    let got = batch(&node, false, |key| OwnedOp::Get { key });
    assert_eq!(done(&got), 3, "16 MiB are reached with the third");
    // Nor are old values taken away of which the answer has no room.
    let taken = batch(&node, true, |key| OwnedOp::GetDel { key });
    assert_eq!(done(&taken), 3);
    let left = node.client().ask("EXISTS big-0 big-1 big-2 big-3 big-4");
    assert_eq!(left, Reply::Int(2));
}

/// Regression: whoever had learned that values are small asked for a thousand large ones, and got them.
#[test]
fn a_request_is_answered_by_as_many_bytes_as_it_allows() {
    let node = ready();
    (0..5).for_each(|i| put(&node, &format!("big-{i}"), BIG));
    for (bytes_max, count) in [(1, 1), (BIG, 1), (BIG + 1, 2), (usize::MAX, 3)] {
        let bytes_max = bytes_max.min(u32::MAX as usize);
        let got = batch_of_bytes(&node, bytes_max, false, |key| OwnedOp::Get { key });
        assert_eq!(got.len(), count, "answers of {bytes_max} bytes");
        assert_eq!(done(&got), count);
    }
    let nothing = batch_of_bytes(&node, 1, false, |key| OwnedOp::Exists { key });
    assert_eq!(nothing, [const { Answer::Int(1) }; 5], "of no bytes");
    let taken = batch_of_bytes(&node, BIG + 1, true, |key| OwnedOp::GetDel { key });
    assert_eq!((taken.len(), done(&taken)), (2, 2));
    let left = node.client().ask("EXISTS big-0 big-1 big-2 big-3 big-4");
    assert_eq!(left, Reply::Int(3), "the others were not begun");
}

/// Regression: the first value was answered whatever its size, and whoever asked for a client had to hold it.
#[test]
fn of_a_value_that_is_larger_than_was_asked_for_the_size_is_said() {
    let node = ready();
    (0..5).for_each(|i| put(&node, &format!("big-{i}"), BIG));
    let strict = |bytes_max, write, op: fn(Bytes) -> OwnedOp| {
        let request = ServiceRequest {
            strict: true,
            ..request_of_bytes(bytes_max, write, op)
        };
        let got = ask_whole(&node, request);
        (got.answers.len(), done(&got.answers), got.needs_bytes)
    };
    let big = BIG as u32;
    for write in [false, true] {
        let op = match write {
            false => |key| OwnedOp::Get { key },
            true => |key| OwnedOp::GetDel { key },
        };
        assert_eq!(strict(BIG - 1, write, op), (1, 0, big), "nothing is done");
        assert_eq!(strict(2 * BIG - 1, write, op), (2, 1, big));
    }
    let left = node.client().ask("EXISTS big-0 big-1 big-2 big-3 big-4");
    assert_eq!(left, Reply::Int(4), "the others were not begun");
}

#[test]
fn a_node_that_answers_beyond_the_bound_is_found() {
    hunt(&[Hunt {
        mutant: Mutant::AnswersBeyondBound,
        test: "answers::a_request_is_answered_by_as_many_bytes_as_it_allows",
        shows: "answers of 1 bytes",
    }]);
}

/// Regression: a batch of reads of a region was answered by as many bytes as it asked for.
#[test]
fn reads_of_a_region_are_answered_by_so_many_bytes_as_well() {
    let node = ready();
    let change = Change::CreatePool {
        name: "memory".into(),
        kind: PoolKind::Memory {
            regions: Vec::new(),
        },
        scheme: "1+0".parse().expect("a scheme"),
        medium: Medium::Ram,
        node_budget_bytes: 48 << 20,
        buckets: 0,
        may_start_empty: false,
    };
    node.propose(&change).expect("a pool");
    let create = Change::CreateRegion {
        pool: "memory".into(),
        name: "r".into(),
        size_bytes: 1 << 20,
    };
    node.propose(&create).expect("a region");
    let map = node.map();
    let (pool, region) = map.region_named("r").expect("it was made");
    let place = region.place(0, pool.scheme.m).expect("its first chunk");
    let read = |number| {
        let action = Action::Read {
            image: 0,
            offset: place.offset,
            len: CHUNK_BYTES as u32,
        };
        NumberedOp {
            number,
            to: Address::Bucket(place.group, place.slot),
            body: action.into_body(&mut BytesMut::new()),
        }
    };
    let request = ServiceRequest {
        revision: Revision(0),
        service: ServiceId::MEMORY,
        pool: PoolRef::Id(pool.id),
        client: ClientId(0),
        floor: 1,
        retry: false,
        forwarded: false,
        answer_bytes_max: 0,
        strict: false,
        ops: (0..400).map(|_| read(0)).collect(),
    };
    let mut answers = Vec::new();
    wait_until("its group is open", || {
        answers = ask(&node, request.clone());
        matches!(answers[0], Answer::Value(_))
    });
    let read = |answer: &Answer| matches!(answer, Answer::Value(bytes) if bytes.len() as u64 == CHUNK_BYTES);
    let refused = |answer: &Answer| matches!(answer, Answer::Error(ErrorCode::Busy, _));
    let at_once = (16 << 20) / CHUNK_BYTES as usize;
    assert!(answers[..at_once].iter().all(read));
    assert!(answers[at_once..].iter().all(refused));
}

#[test]
fn one_command_is_answered_by_so_many_bytes() {
    let node = ready();
    put(&node, "k", 16 << 20);
    let mget = |count: usize| node.client().ask(&format!("MGET{}", " k".repeat(count)));
    match mget(4) {
        Reply::Array(values) => assert_eq!(values.len(), 4),
        other => panic!("{other:?}"),
    }
    let refused = mget(5);
    let text = refused.is_error().expect("too much");
    assert!(text.contains("fewer keys"), "{text}");
}
