//! Tests of batches.

use std::time::Duration;

use staves_model::ClientId;
use staves_wire::cache::{Condition, Op};
use staves_wire::service::NumberedOp;

use super::*;
use crate::host::testing;

/// SET k 1 waited here, and was refused when the bucket changed hands: SET k 2, which came with it, is not done before it is
/// asked again.
#[tokio::test]
async fn nothing_overtakes_what_was_refused_after_it_had_waited() {
    let host = testing::host(Duration::from_secs(2));
    let routes = host.routes();
    let set = Op::Set {
        key: b"k",
        value: b"2",
        condition: Condition::Always,
        get_old: false,
    };
    let op = NumberedOp {
        number: 0,
        to: Address::Slot(set.slot()),
        body: set.to_body(),
    };
    let request = ServiceRequest {
        revision: routes.map.revision,
        service: ServiceId::CACHE,
        pool: PoolRef::Name("cache".into()),
        client: ClientId(0),
        floor: 0,
        retry: false,
        forwarded: true,
        answer_bytes_max: 0,
        strict: false,
        ops: vec![op.clone(), op.clone()],
    };
    let pool = routes.pool(request.service, &request.pool).expect("cache");
    let (asker, _answers) = oneshot::channel();
    let part = InFlightPart::of_request(host.options().in_flight.clone());
    let batch = Batch::new(
        &host,
        Some(pool.id),
        &request,
        Asker::Here(asker),
        (part, 0),
    );
    let batch = Arc::new(batch);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut hand = Hand::of(&host, &batch, &request, deadline);
    batch.put(0, batch.refuse(Refused::Interrupted));
    hand.submit(&routes, &pool.cells[0], 1, &op);
    let answer = batch.state.lock().answers[1].clone();
    let refused = matches!(answer, Some(Answer::Error(ErrorCode::NotServing, _)));
    assert!(refused, "it overtakes: {answer:?}");
}

fn op(op: Op<'_>) -> NumberedOp {
    NumberedOp {
        number: 0,
        to: Address::Slot(op.slot()),
        body: op.to_body(),
    }
}

fn get(key: &[u8]) -> NumberedOp {
    op(Op::Get { key })
}

fn set(key: &[u8], value: &[u8]) -> NumberedOp {
    op(Op::Set {
        key,
        value,
        condition: Condition::Always,
        get_old: false,
    })
}

fn value(byte: u8, len: usize) -> Answer {
    Answer::Value(bytes::Bytes::from(vec![byte; len]))
}

/// A request of another node whose answers may have so many bytes.
fn request(host: &Host, ops: Vec<NumberedOp>, answer_bytes_max: u32) -> ServiceRequest {
    ServiceRequest {
        revision: host.routes().map.revision,
        service: ServiceId::CACHE,
        pool: PoolRef::Name("cache".into()),
        client: ClientId(0),
        floor: 0,
        retry: false,
        forwarded: true,
        answer_bytes_max,
        strict: true,
        ops,
    }
}

async fn answered(host: &Arc<Host>, ops: Vec<NumberedOp>, answer_bytes_max: u32) -> ServiceAnswers {
    let deadline = Instant::now() + Duration::from_secs(60);
    serve_and_wait(host, request(host, ops, answer_bytes_max), deadline).await
}

/// A node whose bucket has 100 bytes as `a` and 200 as `b`, with a lease.
async fn with_two_values() -> Arc<Host> {
    let host = testing::host(Duration::from_secs(2));
    let routes = host.routes();
    let cell = routes.cells().next().expect("its group");
    let now = host.clock.now();
    let (group, epoch) = (staves_model::GroupId(1), staves_model::Epoch(1));
    host.heard(now, &[(group, epoch)]);
    let lease = staves_group::Event::Lease {
        epoch,
        incarnation: host.life.incarnation,
        clock: now,
    };
    cell.step(&host, now, lease);
    let sets = vec![set(b"a", &[1; 100]), set(b"b", &[2; 200])];
    let done = answered(&host, sets, 0).await;
    assert_eq!(done.answers, vec![Answer::Ok; 2]);
    host
}

fn gets() -> Vec<NumberedOp> {
    vec![get(b"a"), get(b"none"), get(b"b"), get(b"a")]
}

/// A read that can be given at once is measured where it lies, against what is left of the asker's bound.
#[tokio::test]
async fn a_value_beyond_what_is_left_of_the_bound_is_not_read() {
    let host = with_two_values().await;
    let some = answered(&host, gets(), 299).await;
    assert_eq!(some.answers[..2], [value(1, 100), Answer::Nil]);
    assert!(matches!(some.answers[2], Answer::Error(ErrorCode::Busy, _)));
    assert_eq!((some.answers.len(), some.needs_bytes), (3, 200));
    let all = answered(&host, gets(), 401).await;
    assert_eq!(all.answers[2..], [value(2, 200), value(1, 100)]);
}

/// Reads at once are answered as by the longer way; all that is not a read, not here or beyond a bound goes that way.
#[tokio::test]
async fn what_is_read_at_once_is_what_the_longer_way_answers() {
    let host = with_two_values().await;
    let deadline = Instant::now() + Duration::from_secs(60);
    let read = |ops, bound, free| at_once::read(&host, &request(&host, ops, bound), deadline, free);
    let envelope = staves_wire::frame::Envelope::default();
    let all = answered(&host, gets(), 0).await;
    let revision = all.revision;
    let mut long = bytes::BytesMut::new();
    staves_wire::frame::encode(envelope, &Message::ServiceAnswers(all), &mut long);
    let short = read(gets(), 0, usize::MAX).expect("all lies here");
    assert_eq!(short.into_frame(envelope, revision), long);
    assert!(
        read(gets(), 299, usize::MAX).is_none(),
        "beyond the asker's bound"
    );
    assert!(read(gets(), 0, 300).is_none(), "beyond the memory for it");
    let other = NumberedOp {
        to: Address::Bucket(staves_model::GroupId(9), staves_model::MemberSlot(0)),
        ..get(b"a")
    };
    assert!(
        read(vec![get(b"a"), other], 0, usize::MAX).is_none(),
        "not here"
    );
    let numbered = NumberedOp {
        number: 1,
        ..get(b"a")
    };
    assert!(read(vec![numbered], 0, usize::MAX).is_none());
    assert!(read(vec![set(b"a", &[3; 10])], 0, usize::MAX).is_none());
    let a = answered(&host, vec![get(b"a")], 0).await;
    assert_eq!(a.answers, [value(1, 100)], "the write was not done");
}
