//! Logs by HTTP and gRPC against real nodes: any node serves any log, and both doors show the same.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use staves_grpc::logs_v1::logs_client::LogsClient;
use staves_grpc::logs_v1::{self as v1, Mode};
use staves_model::{Change, Medium, PoolKind, ServiceId};
use staves_node::config::Config;
use staves_testkit::cluster::TestCluster;
use staves_testkit::wait_until;
use tokio::runtime::Runtime;
use tonic::Code;
use tonic::transport::Channel;

use crate::grpc_volumes::channel;

/// Nodes with both doors for logs, and a pool of logs.
pub(crate) fn cluster(nodes: usize) -> (TestCluster, Runtime) {
    cluster_with(nodes, |_| {})
}

/// The same with changed configurations.
pub(crate) fn cluster_with(
    nodes: usize,
    change: impl Fn(&mut Config) + Sync,
) -> (TestCluster, Runtime) {
    let cluster = TestCluster::start_with(nodes, |_, config| {
        config.http = Some("127.0.0.1:0".parse().expect("an address"));
        config.grpc = Some("127.0.0.1:0".parse().expect("an address"));
        change(config);
    });
    let scheme = if nodes > 1 { "1+1" } else { "1+0" };
    let pool = Change::CreatePool {
        name: "logs".into(),
        kind: PoolKind::Slots(ServiceId::LOG),
        scheme: scheme.parse().expect("a scheme"),
        medium: Medium::Ram,
        node_budget_bytes: 64 << 20,
        buckets: 4,
        may_start_empty: false,
    };
    cluster.nodes[0].propose(&pool).expect("the pool is made");
    wait_until("the pool's groups are open", || {
        let map = cluster.nodes[0].map();
        let pool = map.pool_named("logs");
        pool.is_some_and(|pool| map.groups_of(pool).all(|group| group.open))
    });
    (cluster, Runtime::new().expect("a runtime"))
}

/// The address of a node's HTTP door.
pub(crate) fn http(cluster: &TestCluster, node: usize) -> SocketAddr {
    cluster.nodes[node].addresses.http.expect("it has the door")
}

/// A client of a node's gRPC door.
pub(crate) async fn grpc(cluster: &TestCluster, node: usize) -> LogsClient<Channel> {
    let door = cluster.nodes[node].addresses.grpc.expect("it has the door");
    LogsClient::new(channel(door).await).max_decoding_message_size(8 << 20)
}

/// An answer of a door.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let line = |line: &'_ str| -> Option<(usize, usize)> {
            let (key, value) = line.split_once(':')?;
            let begin = line.len() - value.trim_start().len();
            key.eq_ignore_ascii_case(name)
                .then_some((begin, line.len()))
        };
        self.head
            .lines()
            .find_map(|text| line(text).map(|(begin, end)| &text[begin..end]))
    }
}

/// A connection to a door.
pub(crate) fn connect(door: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(door).expect("it listens");
    let patience = Some(Duration::from_secs(60));
    socket.set_read_timeout(patience).expect("set");
    socket
}

/// Sends bytes and reads the answer of a connection that ends with it.
pub(crate) fn raw(door: SocketAddr, bytes: &[u8]) -> Answer {
    let mut socket = connect(door);
    // A door that has answered already may not read on.
    let _ = socket.write_all(bytes);
    let mut all = Vec::new();
    let _ = socket.read_to_end(&mut all);
    let end = all.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no head: {}", String::from_utf8_lossy(&all)));
    let head = String::from_utf8_lossy(&all[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Answer {
        status: status.expect("a status"),
        head,
        body: all.split_off(end + 4),
    }
}

/// One request, on a connection of its own.
pub(crate) fn ask(door: SocketAddr, method: &str, path: &str, body: &[u8]) -> Answer {
    ask_with(door, (method, path), "", body)
}

/// The same with headers, each ended as HTTP ends them.
pub(crate) fn ask_with(
    door: SocketAddr,
    (method, path): (&str, &str),
    headers: &str,
    body: &[u8],
) -> Answer {
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
    );
    raw(door, &[head.as_bytes(), body].concat())
}

/// Makes a log by HTTP.
pub(crate) fn make(cluster: &TestCluster, name: &str) {
    let made = ask(http(cluster, 0), "PUT", &format!("/v1/logs/{name}"), b"");
    assert_eq!(made.status, 201, "{made:?}");
}

const LINES: &str = "content-type: application/x-ndjson\r\n";

#[test]
fn records_go_in_by_one_door_and_come_out_by_both_through_any_node() {
    let (cluster, runtime) = cluster(3);
    make(&cluster, "events");
    let door = |node| http(&cluster, node);
    let one = ask(door(0), "POST", "/v1/logs/events", b"a\nb");
    assert_eq!(one.status, 200, "{one:?}");
    assert_eq!(one.json()["positions"], serde_json::json!([0]));
    let lines = b"{\"n\": 1}\n{\"n\":2}\n";
    let two = ask_with(door(1), ("POST", "/v1/logs/events"), LINES, lines);
    assert_eq!(two.json()["positions"], serde_json::json!([1, 2]));
    let binary = ask(door(2), "POST", "/v1/logs/events?pool=logs", b"\xff\0");
    assert_eq!(binary.json()["positions"], serde_json::json!([3]));
    let read = ask(door(2), "GET", "/v1/logs/events?from=0", b"");
    let expected = "{\"position\":0,\"value\":\"a\\nb\"}\n{\"position\":1,\"value\":\"{\\\"n\\\": 1}\"}\n\
                    {\"position\":2,\"value\":\"{\\\"n\\\":2}\"}\n{\"position\":3,\"value_hex\":\"ff00\"}\n";
    assert_eq!(read.text(), expected);
    assert_eq!(read.header("content-type"), Some("application/x-ndjson"));
    assert_eq!(
        (read.header("staves-next"), read.header("staves-tail")),
        (Some("4"), Some("4"))
    );
    runtime.block_on(async {
        let mut stub = grpc(&cluster, 1).await;
        let append = v1::AppendRequest {
            name: "events".into(),
            records: vec!["c".into(), "".into()],
            ..v1::AppendRequest::default()
        };
        let appended = stub.append(append).await.expect("appended").into_inner();
        assert_eq!(appended.positions, [4, 5]);
        let read = v1::ReadRequest {
            name: "events".into(),
            from: Some(2),
            count: 3,
            ..v1::ReadRequest::default()
        };
        let read = stub.read(read).await.expect("read").into_inner();
        let values = read.records.iter().map(|r| (r.position, &r.value[..]));
        let expected = [(2, &b"{\"n\":2}"[..]), (3, b"\xff\0"), (4, b"c")];
        assert_eq!(values.collect::<Vec<_>>(), expected);
        assert_eq!((read.next, read.tail), (5, 6));
    });
    let part = ask(door(0), "GET", "/v1/logs/events?from=4&count=1", b"");
    assert_eq!(part.text(), "{\"position\":4,\"value\":\"c\"}\n");
    assert_eq!(
        (part.header("staves-next"), part.header("staves-tail")),
        (Some("5"), Some("6"))
    );
    let end = ask(door(0), "GET", "/v1/logs/events?from=6", b"");
    assert_eq!((end.status, end.text().as_str()), (200, ""));
    let tail = ask(door(2), "GET", "/v1/logs/events/tail", b"");
    assert_eq!(tail.text(), "{\"log\":\"events\",\"tail\":6}\n");
    // One handle of each node that was asked for records, whatever the door: the second has both.
    assert_eq!(cluster.nodes[1].metric("staves_log_handles"), 1);
}

#[test]
fn logs_are_made_and_listed_by_both_doors() {
    let (cluster, runtime) = cluster(2);
    let door = http(&cluster, 0);
    let made = ask(door, "PUT", "/v1/logs/a%2Fb?mode=corfu", b"");
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(
        (&made.json()["log"], &made.json()["mode"]),
        (&"a/b".into(), &"corfu".into())
    );
    runtime.block_on(async {
        let mut stub = grpc(&cluster, 1).await;
        let create = v1::CreateRequest {
            name: "c".into(),
            ..v1::CreateRequest::default()
        };
        let made = stub
            .create(create.clone())
            .await
            .expect("made")
            .into_inner();
        assert_eq!(made.log.expect("the log").mode(), Mode::Bind);
        let again = stub.create(create).await.expect_err("there is one");
        assert_eq!(again.code(), Code::FailedPrecondition, "{again}");
        let list = v1::ListRequest {
            limit: 1,
            ..v1::ListRequest::default()
        };
        let page = stub.list(list.clone()).await.expect("listed").into_inner();
        assert_eq!((page.logs[0].name.as_str(), page.more), ("a/b", true));
        let list = v1::ListRequest {
            after_pool: Some("logs".into()),
            after_name: Some("a/b".into()),
            ..list
        };
        let page = stub.list(list).await.expect("listed").into_inner();
        assert_eq!((page.logs[0].name.as_str(), page.more), ("c", false));
    });
    let page = ask(
        door,
        "GET",
        "/v1/logs?limit=1&after_pool=logs&after=a/b",
        b"",
    );
    assert_eq!(page.json()["logs"][0]["log"], "c", "{page:?}");
    let again = ask(door, "PUT", "/v1/logs/c", b"");
    assert_eq!(
        (again.status, &again.json()["code"]),
        (409, &"refused".into())
    );
}

#[test]
fn logs_are_trimmed_and_deleted_by_both_doors() {
    let (cluster, runtime) = cluster(2);
    let door = http(&cluster, 0);
    make(&cluster, "c");
    let lines = ask_with(door, ("POST", "/v1/logs/c"), LINES, b"0\n1\n2\n3");
    assert_eq!(lines.status, 200);
    let trimmed = ask(door, "POST", "/v1/logs/c/trim?to=3", b"");
    assert_eq!((trimmed.status, &trimmed.json()["trim"]), (200, &3.into()));
    let gone = ask(door, "GET", "/v1/logs/c?from=1", b"");
    assert_eq!((gone.status, &gone.json()["trim"]), (410, &3.into()));
    let gone = ask(door, "GET", "/v1/logs/c/follow?from=2", b"");
    assert_eq!((gone.status, &gone.json()["trim"]), (410, &3.into()));
    let begin = ask(door, "GET", "/v1/logs/c?count=10", b"");
    assert_eq!(
        begin.text(),
        "{\"position\":3,\"value\":\"3\"}\n",
        "from where it begins"
    );
    runtime.block_on(async {
        let mut stub = grpc(&cluster, 1).await;
        let read = v1::ReadRequest {
            name: "c".into(),
            from: Some(0),
            ..v1::ReadRequest::default()
        };
        let gone = stub.read(read).await.expect_err("trimmed");
        assert_eq!(gone.code(), Code::OutOfRange, "{gone}");
        assert!(gone.message().contains("read from 3 on"), "{gone}");
        let delete = v1::DeleteRequest {
            name: "c".into(),
            pool: None,
        };
        stub.delete(delete).await.expect("deleted");
        let show = v1::ShowRequest {
            name: "c".into(),
            pool: None,
        };
        let gone = stub.show(show).await.expect_err("deleted");
        assert_eq!(gone.code(), Code::NotFound, "{gone}");
    });
    // Another of the same name, for a node that had the first one open.
    make(&cluster, "c");
    let first = ask(door, "POST", "/v1/logs/c", b"anew");
    assert_eq!(
        first.json()["positions"],
        serde_json::json!([0]),
        "{first:?}"
    );
    let deleted = ask(door, "DELETE", "/v1/logs/c", b"");
    assert_eq!(
        (deleted.status, &deleted.json()["result"]),
        (200, &"deleted".into())
    );
    let none = ask(door, "GET", "/v1/logs/c/tail", b"");
    assert_eq!(
        (none.status, &none.json()["code"]),
        (404, &"not-found".into())
    );
}
