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

/// A read that can be given at once is measured where it lies, against what is left of the asker's bound.
#[tokio::test]
async fn a_value_beyond_what_is_left_of_the_bound_is_not_read() {
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
    let op = |op: Op<'_>| NumberedOp {
        number: 0,
        to: Address::Slot(op.slot()),
        body: op.to_body(),
    };
    let set = |key, value| {
        op(Op::Set {
            key,
            value,
            condition: Condition::Always,
            get_old: false,
        })
    };
    let request = |ops, answer_bytes_max| ServiceRequest {
        revision: routes.map.revision,
        service: ServiceId::CACHE,
        pool: PoolRef::Name("cache".into()),
        client: ClientId(0),
        floor: 0,
        retry: false,
        forwarded: true,
        answer_bytes_max,
        strict: true,
        ops,
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    let sets = vec![set(b"a", &[1; 100]), set(b"b", &[2; 200])];
    let done = serve_and_wait(&host, request(sets, 0), deadline).await;
    assert_eq!(done.answers, vec![Answer::Ok; 2]);
    let get = |key| op(Op::Get { key });
    let gets = || vec![get(b"a"), get(b"none"), get(b"b"), get(b"a")];
    let some = serve_and_wait(&host, request(gets(), 299), deadline).await;
    let value = |byte, len| Answer::Value(bytes::Bytes::from(vec![byte; len]));
    assert_eq!(some.answers[..2], [value(1, 100), Answer::Nil]);
    assert!(matches!(some.answers[2], Answer::Error(ErrorCode::Busy, _)));
    assert_eq!((some.answers.len(), some.needs_bytes), (3, 200));
    let all = serve_and_wait(&host, request(gets(), 401), deadline).await;
    assert_eq!(all.answers[2..], [value(2, 200), value(1, 100)]);
    // Those that may have any number of bytes are the same by the short way, which goes no further than it may.
    let read = |ops, bound, free| at_once::read(&host, &request(ops, bound), deadline, free);
    let short = read(gets(), 0, usize::MAX).expect("all lies here");
    let envelope = staves_wire::frame::Envelope::default();
    let mut long = bytes::BytesMut::new();
    let revision = all.revision;
    staves_wire::frame::encode(envelope, &Message::ServiceAnswers(all), &mut long);
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
    let number = |op| NumberedOp { number: 1, ..op };
    assert!(read(vec![number(get(b"a"))], 0, usize::MAX).is_none());
    let write = vec![set(b"a", &[3; 10])];
    assert!(read(write, 0, usize::MAX).is_none());
    let gets = serve_and_wait(&host, request(vec![get(b"a")], 0), deadline).await;
    assert_eq!(gets.answers, [value(1, 100)], "the write was not done");
}
