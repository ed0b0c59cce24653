//! Answers of units are bounded before they are made.

use std::time::{Duration, Instant};

use bytes::Bytes;
use staves_client::AppendMode;
use staves_log::service::UnitCall;
use staves_log::{
    BucketRequest, LogView, RecordReply, RecordRequest, SlotAnswer, UnitAnswer, UnitOp, UnitReply,
    UnitRequest,
};
use staves_model::{Change, ClientId, ClusterId, GroupId, MemberSlot, Revision, ServiceId};
use staves_net::{Connection, Identity};
use staves_testkit::cluster::TestCluster;
use staves_wire::service::{Address, Answer, NumberedOp, PoolRef, ServiceAnswers, ServiceRequest};
use staves_wire::{ErrorCode, Message};

const RECORD: usize = 600 << 10;

fn op(unit: GroupId, call: UnitCall) -> NumberedOp {
    NumberedOp {
        number: 0,
        to: Address::Bucket(unit, MemberSlot(0)),
        body: call.into_body(),
    }
}

fn ask(cluster: &TestCluster, answer_bytes_max: usize, ops: Vec<NumberedOp>) -> ServiceAnswers {
    let node = &cluster.nodes[0];
    let request = ServiceRequest {
        revision: Revision(0),
        service: ServiceId::LOG,
        pool: PoolRef::Name("logs".into()),
        client: ClientId(0),
        floor: 1,
        retry: false,
        forwarded: false,
        answer_bytes_max: answer_bytes_max as u32,
        strict: true,
        ops,
    };
    node.runtime().block_on(async {
        let identity = Identity::client(ClusterId(0));
        let options = staves_net::Options::default();
        let addr = node.addresses.native.to_string();
        let connection = Connection::open(&addr, &identity, &options).await;
        let connection = connection.expect("the native door takes connections");
        let deadline = Instant::now() + Duration::from_secs(20);
        match connection.call(&Message::Service(request), deadline).await {
            Ok(Message::ServiceAnswers(answers)) => answers,
            other => panic!("{other:?}"),
        }
    })
}

/// A log of records of [`RECORD`] bytes in one unit.
fn large_records(cluster: &TestCluster, count: u8) -> (GroupId, LogView) {
    let (client, runtime) = super::client_of(cluster);
    runtime.block_on(async {
        let made = client.create_log(None, "large", AppendMode::Bind).await;
        made.expect("the log is made");
        let log = client.open_log(None, "large").await.expect("the log");
        for n in 0..count {
            let record = Bytes::from(vec![n; RECORD]);
            log.append(&[record]).await.expect("appended");
        }
    });
    let map = cluster.nodes[0].map();
    let pool = map.pool_named("logs").expect("the pool");
    let unit = map.groups_of(pool).next().expect("its unit").id;
    let name = "large".to_owned();
    let view = UnitCall::Request(BucketRequest::Record(RecordRequest::View { name }));
    let mut found = ask(cluster, 1 << 20, vec![op(unit, view)]);
    match found.answers.pop() {
        Some(Answer::Value(value)) => match RecordReply::decode(value) {
            Ok(RecordReply::Record(record)) => (unit, record.view),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn read(unit: GroupId, view: &LogView, position: u64) -> NumberedOp {
    let read = UnitOp::Read {
        position,
        term: view.term,
        start: view.start,
        word: None,
    };
    let request = UnitRequest {
        log: view.log,
        op: read,
    };
    op(unit, UnitCall::Request(BucketRequest::Unit(request)))
}

/// Regression: a record was made ready whatever its size, and whoever asked for a client had to hold it.
#[test]
fn of_a_record_that_is_larger_than_was_asked_for_the_size_is_said() {
    let cluster = TestCluster::start(1);
    let create = match super::create(staves_model::Medium::Ram) {
        Change::CreatePool {
            name,
            kind,
            medium,
            node_budget_bytes,
            may_start_empty,
            ..
        } => Change::CreatePool {
            name,
            kind,
            scheme: "1+0".parse().expect("a scheme"),
            medium,
            node_budget_bytes,
            buckets: 1,
            may_start_empty,
        },
        other => other,
    };
    super::make(&cluster, &create);
    let (unit, view) = large_records(&cluster, 4);
    let reads = |count: u64| (0..count).map(|p| read(unit, &view, p)).collect();
    let small = ask(&cluster, RECORD / 2, reads(4));
    assert!(small.needs_bytes as usize > RECORD, "{}", small.needs_bytes);
    let refused = |answer: &Answer| matches!(answer, Answer::Error(ErrorCode::Busy, _));
    assert!(small.answers.iter().all(refused), "{:?}", small.answers);
    let one = ask(&cluster, RECORD + 1000, reads(4));
    let Some(Answer::Value(value)) = one.answers.first() else {
        panic!("{:?}", one.answers.first());
    };
    let reply = UnitReply::decode(value.clone()).expect("a reply");
    let UnitAnswer::Slot { slot, .. } = reply.answer else {
        panic!("{:?}", reply.answer);
    };
    assert!(matches!(slot, SlotAnswer::Data { data, .. } if data.len() == RECORD));
    assert!(one.answers[1..].iter().all(refused), "no second one");
}
