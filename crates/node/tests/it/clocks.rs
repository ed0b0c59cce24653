//! Clients whose clocks are far ahead harm nobody, and numbers that no clock gives are refused.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use staves_client::{Client, ClientOptions};
use staves_model::{ClientId, ClusterId, Revision, ServiceId};
use staves_net::{Connection, Identity};
use staves_wire::cache::OwnedOp;
use staves_wire::service::{Answer, PoolRef, ServiceRequest};
use staves_wire::{ErrorCode, Message};

use staves_testkit::cluster::{TestNode, config};
use staves_testkit::resp::Reply;
use staves_testkit::wait_until;

const KEY: &str = "counter";
const HOUR: u64 = 3_600_000_000;

fn now_micros() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    since_1970.expect("after 1970").as_micros() as u64
}

/// INCR under a client and a number of the test's choice.
fn incr(client: u64, number: u64, retry: bool) -> Message {
    let op = OwnedOp::IncrBy {
        key: KEY.into(),
        by: 1,
    };
    Message::Service(ServiceRequest {
        revision: Revision(0),
        service: ServiceId::CACHE,
        pool: PoolRef::Name("cache".into()),
        client: ClientId(client),
        floor: number,
        retry,
        forwarded: false,
        answer_bytes_max: 0,
        strict: false,
        ops: vec![op.numbered(number)],
    })
}

async fn ask(connection: &Connection, request: Message) -> (Answer, u64) {
    let deadline = Instant::now() + Duration::from_secs(8);
    match connection.call(&request, deadline).await {
        Ok(Message::ServiceAnswers(mut answers)) => {
            let answer = answers.answers.pop().expect("one answer");
            (answer, answers.draw_above)
        }
        other => panic!("{other:?}"),
    }
}

fn code(answer: &Answer) -> Option<ErrorCode> {
    match answer {
        Answer::Error(code, _) => Some(*code),
        _ => None,
    }
}

async fn native(node: &TestNode) -> Connection {
    let identity = Identity::client(ClusterId(0));
    let options = staves_net::Options::default();
    let addr = node.addresses.native.to_string();
    let connection = Connection::open(&addr, &identity, &options).await;
    connection.expect("the native door takes connections")
}

fn ready() -> TestNode {
    let node = TestNode::start(config(None, &[]));
    wait_until("it serves", || {
        node.client().ask("SET ready 1") == Reply::Ok
    });
    node
}

#[test]
fn a_number_that_no_clock_gives_is_refused_and_says_why() {
    let node = ready();
    node.runtime().block_on(async {
        let connection = native(&node).await;
        let absurd = staves_group::NUMBER_MAX - 5;
        let (answer, _) = ask(&connection, incr(1, absurd, false)).await;
        let Answer::Error(ErrorCode::Malformed, text) = &answer else {
            panic!("{answer:?}");
        };
        assert!(text.contains(&absurd.to_string()), "{text}");
        // Of a retry nobody can say that nothing was done.
        let (answer, _) = ask(&connection, incr(1, absurd, true)).await;
        assert_eq!(code(&answer), Some(ErrorCode::Forgotten), "{answer:?}");
        let (answer, _) = ask(&connection, incr(2, now_micros() + 9000 * HOUR, false)).await;
        assert_eq!(answer, Answer::Int(1), "nothing was done before");
    });
}

/// A client with a fast clock writes once and is forgotten, for many others come. Whoever comes new is
/// then told to draw higher numbers, and does so by itself.
#[test]
fn a_client_with_a_fast_clock_costs_the_others_no_write() {
    let node = ready();
    let addr = node.addresses.native.to_string();
    node.runtime().block_on(async {
        let connection = native(&node).await;
        let ahead = now_micros() + 9000 * HOUR;
        let (answer, _) = ask(&connection, incr(1, ahead, false)).await;
        assert_eq!(answer, Answer::Int(1));
        for client in 2..=staves_group::CLIENTS_MAX as u64 + 1 {
            let (answer, _) = ask(&connection, incr(client, now_micros(), false)).await;
            assert_eq!(code(&answer), None, "{answer:?}");
        }
        let (answer, draw_above) = ask(&connection, incr(9999, now_micros(), false)).await;
        assert_eq!(code(&answer), Some(ErrorCode::Forgotten), "{answer:?}");
        assert_eq!(draw_above, ahead, "as far as the fast clock went");

        let client = Client::connect(&[addr], ClientOptions::default()).await;
        let client = client.expect("a client");
        client.put(KEY, "1").await.expect("done at once");
        client.put(KEY, "2").await.expect("and again");
    });
    assert_eq!(node.client().ask("SET counter 3"), Reply::Ok);
}
