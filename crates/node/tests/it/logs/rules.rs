//! The rules of the node's part of logs: who is a sequencer, and who becomes one.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use staves_client::{AppendMode, ErrorCode};
use staves_log::{
    LogRecord, RecordRefusal, RecordReply, SequencerAnswer, SequencerId, SequencerOp,
    SequencerReply, SequencerRequest, Term,
};
use staves_model::{ClusterId, Incarnation, Medium, PoolId};
use staves_net::{Connection, Identity, NetError};
use staves_testkit::cluster::{TestCluster, TestNode};
use staves_wire::Message;
use staves_wire::log::{LogAppoint, LogAsk};

use super::{client_of, cluster};

fn call(node: &TestNode, message: &Message) -> Result<Bytes, NetError> {
    node.runtime().block_on(async {
        let identity = Identity::client(ClusterId(0));
        let options = staves_net::Options::default();
        let addr = node.addresses.native.to_string();
        let connection = Connection::open(&addr, &identity, &options).await;
        let connection = connection.expect("the native door takes connections");
        let deadline = Instant::now() + Duration::from_secs(20);
        match connection.call(message, deadline).await? {
            Message::LogSaid(said) => Ok(said.body),
            other => panic!("{other:?}"),
        }
    })
}

fn pool(cluster: &TestCluster) -> PoolId {
    let map = cluster.nodes[0].map();
    map.pool_named("logs").expect("the pool").id
}

fn appointed(cluster: &TestCluster, at: usize, (take, above): (bool, u64)) -> LogRecord {
    let ask = LogAppoint {
        pool: pool(cluster),
        name: "l".into(),
        take,
        above,
    };
    let body = call(&cluster.nodes[at], &Message::LogAppoint(ask)).expect("an answer");
    match RecordReply::decode(body) {
        Ok(RecordReply::Record(record)) => *record,
        other => panic!("{other:?}"),
    }
}

/// The answer to a question for the tail of a log, by a life of a node.
fn tail(cluster: &TestCluster, record: &LogRecord, at: usize, to: SequencerId) -> SequencerAnswer {
    let request = SequencerRequest {
        log: record.view.log,
        op: SequencerOp::Check { tag: None },
    };
    let mut body = BytesMut::new();
    request.encode(&mut body);
    let ask = LogAsk {
        pool: pool(cluster),
        node: to.node,
        incarnation: to.incarnation,
        body: body.freeze(),
    };
    let body = call(&cluster.nodes[at], &Message::LogAsk(ask)).expect("an answer");
    SequencerReply::decode(body).expect("a reply").answer
}

/// Requests of one message are answered in their order, each by its own log's sequencer.
#[test]
fn a_message_to_sequencers_is_answered_request_by_request() {
    let cluster = with_log();
    let record = appointed(&cluster, 1, (false, 0));
    let (at, to) = place(&cluster, &record);
    let of = |log, op| SequencerRequest { log, op };
    let nonce = |nonce| SequencerOp::OpenSession { nonce };
    let log = record.view.log;
    let other = staves_log::LogId(log.0 + 1);
    let requests = [of(log, nonce(7)), of(other, nonce(8)), of(log, nonce(9))];
    let mut body = BytesMut::new();
    requests
        .iter()
        .for_each(|request| request.encode(&mut body));
    let ask = LogAsk {
        pool: pool(&cluster),
        node: to.node,
        incarnation: to.incarnation,
        body: body.freeze(),
    };
    let body = call(&cluster.nodes[at], &Message::LogAsk(ask)).expect("an answer");
    let replies = SequencerReply::decode_several(body).expect("replies");
    let opened = |reply: &SequencerReply, wanted| {
        reply.log == log
            && matches!(reply.answer, SequencerAnswer::SessionOpened { nonce, .. } if nonce == wanted)
    };
    assert_eq!(replies.len(), 3);
    assert!(
        opened(&replies[0], 7) && opened(&replies[2], 9),
        "{replies:?}"
    );
    let none = matches!(replies[1].answer, SequencerAnswer::NotSequencer { .. });
    assert!(none && replies[1].log == other, "{replies:?}");
}

/// The node of a record's sequencer, by its place in the cluster.
fn place(cluster: &TestCluster, record: &LogRecord) -> (usize, SequencerId) {
    let id = record.view.sequencer.expect("a sequencer");
    let at = cluster.nodes.iter().position(|node| node.id == id.node);
    (at.expect("one of the nodes"), id)
}

fn with_log() -> TestCluster {
    let cluster = cluster(3, Medium::Ram);
    let (client, runtime) = client_of(&cluster);
    let made = runtime.block_on(client.create_log(None, "l", AppendMode::Bind));
    made.expect("the log is made");
    cluster
}

#[test]
fn a_sequencer_that_lives_stays_where_it_is_whoever_is_asked() {
    let cluster = with_log();
    let first = appointed(&cluster, 1, (false, 0));
    assert_eq!((first.view.term, place(&cluster, &first).0), (Term(1), 1));
    // All units of the pool are the log's.
    let map = cluster.nodes[0].map();
    let units = map.pool_named("logs").expect("the pool").groups.clone();
    assert_eq!(first.view.projection.last(), units);
    for at in [0, 1, 2] {
        let again = appointed(&cluster, at, (false, 0));
        assert_eq!(again, first, "node {at} was asked");
    }
    // Unless it is to be taken, or the term to be another.
    let taken = appointed(&cluster, 2, (true, 0));
    assert_eq!((taken.view.term, place(&cluster, &taken).0), (Term(2), 2));
    assert_eq!(appointed(&cluster, 2, (true, 0)), taken, "it is there");
    let next = appointed(&cluster, 2, (true, 2));
    assert_eq!((next.view.term, place(&cluster, &next).0), (Term(3), 2));
    assert_eq!(next.view.projection, taken.view.projection, "no unit twice");
}

#[test]
fn a_sequencer_answers_in_its_own_life_and_its_own_term_only() {
    let cluster = with_log();
    let first = appointed(&cluster, 1, (false, 0));
    let (at, id) = place(&cluster, &first);
    let answer = tail(&cluster, &first, at, id);
    assert!(
        matches!(answer, SequencerAnswer::Tail { tail: 0, .. }),
        "{answer:?}"
    );
    let none = |answer| matches!(answer, SequencerAnswer::NotSequencer { .. });
    let other_life = SequencerId {
        incarnation: Incarnation(id.incarnation.0 + 1),
        ..id
    };
    assert!(none(tail(&cluster, &first, at, other_life)), "another life");
    assert!(none(tail(&cluster, &first, 0, id)), "another node");
    // Once the next term is sealed nothing of this one has effect.
    let taken = appointed(&cluster, 2, (true, 0));
    let mut late = tail(&cluster, &first, at, id);
    staves_testkit::wait_until("it learns that its term is over", || {
        let over = none(late.clone());
        late = tail(&cluster, &first, at, id);
        over
    });
    let (at, id) = place(&cluster, &taken);
    let answer = tail(&cluster, &taken, at, id);
    assert!(matches!(answer, SequencerAnswer::Tail { .. }), "{answer:?}");
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let cluster = with_log();
    let me = &cluster.nodes[0];
    let ask = LogAsk {
        pool: pool(&cluster),
        node: me.id,
        incarnation: Incarnation(1),
        body: Bytes::from_static(b"\xff\xff"),
    };
    let error = call(me, &Message::LogAsk(ask)).expect_err("no request");
    assert_eq!(error.code(), ErrorCode::Malformed, "{error}");
    let appoint = |pool, name: &str| {
        let ask = LogAppoint {
            pool,
            name: name.into(),
            take: true,
            above: u64::MAX,
        };
        call(me, &Message::LogAppoint(ask))
    };
    let none = appoint(pool(&cluster), "none").expect("an answer");
    let refused = RecordReply::Refused(RecordRefusal::NotFound);
    assert_eq!(RecordReply::decode(none), Ok(refused));
    let error = appoint(PoolId(7777), "l").expect_err("no pool");
    assert_eq!(error.code(), ErrorCode::NotFound, "{error}");
    // A term above all is tried a few times, and ends nowhere.
    let _any = appoint(pool(&cluster), "l");
    let record = appointed(&cluster, 0, (false, 0));
    assert!(record.view.term.0 < 100, "{record:?}");
}
