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
    let part = InFlightPart::new(host.options().in_flight.clone());
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
