//! Streams, conditions and cursors of logs by HTTP and gRPC against real nodes.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use staves_grpc::logs_v1 as v1;
use staves_grpc::{POSITION, SETTLED, TAIL, TRIM};
use tonic::{Code, Status};

use crate::log_doors::{Answer, ask, ask_with, cluster, grpc, http, make};
use crate::log_followers::Events;

const LINES: &str = "content-type: application/x-ndjson\r\n";

/// Appends lines of JSON.
fn append(door: SocketAddr, query: &str, lines: &str) -> Answer {
    let path = format!("/v1/logs/l?{query}");
    ask_with(door, ("POST", &path), LINES, lines.as_bytes())
}

/// The positions that a read answers, and where it goes on.
fn read(door: SocketAddr, query: &str) -> (Vec<u64>, u64) {
    let answer = ask(door, "GET", &format!("/v1/logs/l?{query}"), b"");
    assert_eq!(answer.status, 200, "{query}: {answer:?}");
    let position = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        line["position"].as_u64().expect("a position")
    };
    let next = answer.header("staves-next").and_then(|n| n.parse().ok());
    (
        answer.text().lines().map(position).collect(),
        next.expect("a header"),
    )
}

fn trailer(status: &Status, key: &str) -> Option<String> {
    let value = status.metadata().get(key)?;
    Some(value.to_str().expect("text").to_owned())
}

/// Six records: 0 and 1 of tag 7, 2 of 8 and 9, 3 of none, 4 and 5 of 7.
fn six(door: SocketAddr) {
    assert_eq!(append(door, "tag=7", "0\n1\n").status, 200);
    assert_eq!(append(door, "tag=8,9", "2\n").status, 200);
    assert_eq!(append(door, "", "3\n").status, 200);
    let last = append(door, "tag=7", "4\n5\n");
    assert_eq!(last.json()["positions"], json!([4, 5]), "{last:?}");
}

#[test]
fn a_stream_is_read_by_its_tag_and_in_parts() {
    let (cluster, _runtime) = cluster(2);
    let door = http(&cluster, 1);
    make(&cluster, "l");
    six(http(&cluster, 0));
    assert_eq!(read(door, "tag=7"), (vec![0, 1, 4, 5], 6));
    assert_eq!(read(door, "tag=9"), (vec![2], 6));
    assert_eq!(read(door, "tag=1"), (vec![], 6));
    assert_eq!(read(door, "from=0"), (vec![0, 1, 2, 3, 4, 5], 6));
    // In parts: the next position is one of the stream, or the tail.
    assert_eq!(read(door, "tag=7&count=1"), (vec![0], 1));
    assert_eq!(read(door, "tag=7&count=2"), (vec![0, 1], 4));
    assert_eq!(read(door, "tag=7&count=2&from=2"), (vec![4, 5], 6));
    assert_eq!(read(door, "tag=7&from=6"), (vec![], 6));
    let past = ask(door, "GET", "/v1/logs/l?tag=7&from=7", b"");
    assert_eq!((past.status, &past.json()["tail"]), (416, &6.into()));
}

#[test]
fn a_stream_is_read_past_what_was_given_up_and_from_where_it_begins() {
    let (cluster, runtime) = cluster(2);
    let door = http(&cluster, 1);
    make(&cluster, "l");
    six(door);
    let punched = ask(door, "POST", "/v1/logs/l/punch?at=4", b"");
    assert_eq!(
        (punched.status, &punched.json()["position"]),
        (200, &4.into()),
        "{punched:?}"
    );
    assert_eq!(read(door, "tag=7"), (vec![0, 1, 5], 6));
    runtime.block_on(async {
        let mut stub = grpc(&cluster, 0).await;
        let punch = |at| v1::PunchRequest {
            name: "l".into(),
            pool: None,
            at,
        };
        stub.punch(punch(0)).await.expect("punched");
        let past = stub.punch(punch(6)).await.expect_err("not given out");
        assert_eq!(past.code(), Code::OutOfRange, "{past}");
        assert_eq!(trailer(&past, TAIL).as_deref(), Some("6"));
        let of_seven = v1::ReadRequest {
            name: "l".into(),
            tag: Some(7),
            ..v1::ReadRequest::default()
        };
        let batch = stub.read(of_seven.clone()).await.expect("read");
        let batch = batch.into_inner();
        let positions: Vec<u64> = batch.records.iter().map(|r| r.position).collect();
        assert_eq!((positions, batch.next, batch.tail), (vec![1, 5], 6, 6));
        assert_eq!(&batch.records[1].value[..], b"5");
        let trim = v1::TrimRequest {
            name: "l".into(),
            to: 2,
            ..v1::TrimRequest::default()
        };
        stub.trim(trim).await.expect("trimmed");
        let old = v1::ReadRequest {
            from: Some(1),
            ..of_seven
        };
        let gone = stub.read(old).await.expect_err("trimmed");
        assert_eq!(gone.code(), Code::OutOfRange, "{gone}");
        assert_eq!(trailer(&gone, TRIM).as_deref(), Some("2"));
    });
    let gone = ask(door, "GET", "/v1/logs/l?tag=7&from=1", b"");
    assert_eq!((gone.status, &gone.json()["trim"]), (410, &2.into()));
    assert_eq!(read(door, "tag=7"), (vec![5], 6));
    // None of its records is left to name those before: the walk looks at those of others, and takes none.
    let punched = ask(door, "POST", "/v1/logs/l/punch?at=5", b"");
    assert_eq!(punched.status, 200, "{punched:?}");
    assert_eq!(read(door, "tag=7"), (vec![], 6));
}

#[test]
fn a_stream_is_followed_by_both_doors_and_resumed() {
    let (cluster, runtime) = cluster(2);
    let door = http(&cluster, 0);
    make(&cluster, "l");
    six(door);
    let path = "/v1/logs/l/follow?tag=7";
    let mut events = Events::open(http(&cluster, 1), path, "").expect("it follows");
    let mut again = Events::open(door, path, "last-event-id: 4\r\n").expect("it follows");
    let follow = v1::FollowRequest {
        name: "l".into(),
        from_tail: true,
        tag: Some(7),
        ..v1::FollowRequest::default()
    };
    let stream = runtime.block_on(async { grpc(&cluster, 1).await.follow(follow).await });
    let mut stream = stream.expect("it follows").into_inner();
    assert_eq!([0; 4].map(|_| events.record().0), [0, 1, 4, 5]);
    assert_eq!(again.record().0, 5, "behind the last one");
    assert_eq!(append(door, "tag=8", "6\n").status, 200);
    assert_eq!(append(door, "tag=7,8", "7\n").status, 200);
    assert_eq!((events.record().0, again.record().0), (7, 7));
    let reply = runtime.block_on(stream.message()).expect("it goes on");
    let records = reply.expect("a message").records;
    let positions: Vec<u64> = records.iter().map(|record| record.position).collect();
    assert_eq!(positions, [7], "only what came then");
    // Deleted by another client than the one that waits.
    let deleted = ask(http(&cluster, 0), "DELETE", "/v1/logs/l", b"");
    assert_eq!(deleted.status, 200, "{deleted:?}");
    let begun = Instant::now();
    let ended = runtime.block_on(stream.message()).expect_err("it ends");
    assert_eq!(ended.code(), Code::NotFound, "{ended}");
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "not at the sequencer's end"
    );
}

#[test]
fn an_append_whose_condition_fails_is_refused_with_the_tail() {
    let (cluster, runtime) = cluster(2);
    let door = http(&cluster, 0);
    make(&cluster, "l");
    six(door);
    let late = append(door, "tag=7&if_tail=5&if_tag=7", "6\n");
    assert_eq!(late.status, 409, "{late:?}");
    let json = late.json();
    assert_eq!(
        (&json["code"], &json["tail"]),
        (&"refused".into(), &6.into())
    );
    assert_eq!(json["may_have_been_done"], false);
    let late = append(door, "if_tail=5", "6\n");
    assert_eq!((late.status, &late.json()["tail"]), (409, &6.into()));
    let done = append(door, "tag=9&if_tail=3&if_tag=9", "6\n7\n");
    assert_eq!(done.json()["positions"], json!([6, 7]), "{done:?}");
    runtime.block_on(async {
        let mut stub = grpc(&cluster, 1).await;
        let conditional = |if_tail| v1::AppendRequest {
            name: "l".into(),
            records: vec!["8".into()],
            tags: vec![9],
            if_tail: Some(if_tail),
            if_tag: Some(9),
            ..v1::AppendRequest::default()
        };
        let late = stub.append(conditional(7)).await.expect_err("7 is of it");
        assert_eq!(late.code(), Code::FailedPrecondition, "{late}");
        assert_eq!(trailer(&late, TAIL).as_deref(), Some("8"));
        assert!(late.metadata().contains_key(SETTLED), "{late}");
        let done = stub.append(conditional(8)).await.expect("appended");
        assert_eq!(done.into_inner().positions, [8]);
    });
    assert_eq!(read(door, "tag=9").0, [2, 6, 7, 8]);
}

#[test]
fn cursors_are_moved_by_compare_and_set_by_http() {
    let (cluster, _runtime) = cluster(2);
    let door = http(&cluster, 0);
    make(&cluster, "l");
    let on = |method, below: &str| ask(door, method, &format!("/v1/logs/l/cursors{below}"), b"");
    let none = on("GET", "/reader");
    assert_eq!(
        (none.status, &none.json()["code"]),
        (404, &"not-found".into())
    );
    assert_eq!(on("DELETE", "/reader").status, 404);
    let made = on("PUT", "/reader?position=3&if_new");
    assert_eq!((made.status, &made.json()["result"]), (200, &"set".into()));
    let again = on("PUT", "/reader?position=4&if_new=true");
    assert_eq!((again.status, &again.json()["position"]), (409, &3.into()));
    let late = on("PUT", "/reader?position=6&if_at=2");
    assert_eq!((late.status, &late.json()["position"]), (409, &3.into()));
    assert_eq!(on("PUT", "/reader?position=4&if_at=3").status, 200);
    assert_eq!(on("PUT", "/a%2Fb?position=1").status, 200);
    let absent = on("PUT", "/other?position=6&if_at=2");
    assert_eq!(
        (absent.status, &absent.json()["position"]),
        (409, &Value::Null)
    );
    assert_eq!(on("GET", "/reader").json()["position"], 4);
    let all = json!([{ "cursor": "a/b", "position": 1 }, { "cursor": "reader", "position": 4 }]);
    assert_eq!(on("GET", "").json()["cursors"], all);
    let late = on("DELETE", "/reader?if_at=3");
    assert_eq!((late.status, &late.json()["position"]), (409, &4.into()));
    assert_eq!(on("DELETE", "/reader?if_at=4").status, 200);
    let left = json!([{ "cursor": "a/b", "position": 1 }]);
    assert_eq!(on("GET", "").json()["cursors"], left);
}

#[test]
fn cursors_are_moved_by_compare_and_set_by_grpc() {
    let (cluster, runtime) = cluster(2);
    let door = http(&cluster, 0);
    make(&cluster, "l");
    let on = |method, below: &str| ask(door, method, &format!("/v1/logs/l/cursors{below}"), b"");
    assert_eq!(on("PUT", "/reader?position=4").status, 200);
    assert_eq!(on("PUT", "/a%2Fb?position=1").status, 200);
    runtime.block_on(async {
        let mut stub = grpc(&cluster, 1).await;
        let set = |cursor: &str, position| v1::SetCursorRequest {
            name: "l".into(),
            cursor: cursor.into(),
            position,
            ..v1::SetCursorRequest::default()
        };
        let late = v1::SetCursorRequest {
            if_at: Some(3),
            ..set("reader", 9)
        };
        let late = stub.set_cursor(late).await.expect_err("it is elsewhere");
        assert_eq!(late.code(), Code::FailedPrecondition, "{late}");
        assert_eq!(trailer(&late, POSITION).as_deref(), Some("4"));
        let both = v1::SetCursorRequest {
            if_at: Some(4),
            if_new: true,
            ..set("reader", 9)
        };
        let both = stub.set_cursor(both).await.expect_err("both");
        assert_eq!(both.code(), Code::InvalidArgument, "{both}");
        stub.set_cursor(set("reader", 9)).await.expect("set");
        let delete = |cursor: &str, if_at| v1::DeleteCursorRequest {
            name: "l".into(),
            cursor: cursor.into(),
            if_at,
            ..v1::DeleteCursorRequest::default()
        };
        let late = stub.delete_cursor(delete("reader", Some(4))).await;
        let late = late.expect_err("it is elsewhere");
        assert_eq!(late.code(), Code::FailedPrecondition, "{late}");
        stub.delete_cursor(delete("a/b", None))
            .await
            .expect("deleted");
        let none = stub.delete_cursor(delete("a/b", None)).await;
        assert_eq!(none.expect_err("none").code(), Code::NotFound);
        let get = v1::GetCursorRequest {
            name: "l".into(),
            cursor: "reader".into(),
            ..v1::GetCursorRequest::default()
        };
        let at = stub.get_cursor(get).await.expect("there is one");
        assert_eq!(at.into_inner().position, 9);
        let list = v1::ListCursorsRequest {
            name: "l".into(),
            pool: None,
        };
        let all = stub.list_cursors(list).await.expect("listed").into_inner();
        assert_eq!(all.cursors.len(), 1, "{all:?}");
    });
    assert_eq!(on("GET", "/reader").json()["position"], 9);
}

/// Requests, the status that each gets, and a part of the reason.
const WRONG: &[(&str, &str, u16, &str)] = &[
    ("POST", "?tag=1,2,3,4,5,6,7,8,9", 400, "8 at most"),
    ("POST", "?tag=1,2,1", 400, "tag 1 twice"),
    ("POST", "?tag=1,,2", 400, "whole number"),
    ("POST", "?tag=x", 400, "whole number"),
    ("POST", "?if_tail=-1", 400, "whole number"),
    ("POST", "?if_tag=1", 400, "if_tag needs if_tail"),
    ("GET", "?tag=1,2", 400, "whole number"),
    ("GET", "/follow?tag=x", 400, "whole number"),
    ("GET", "/punch?at=0", 405, "POST"),
    ("POST", "/punch", 400, "at is missing"),
    ("POST", "/punch?at=1", 416, "past its tail, 1"),
    ("POST", "/cursors", 405, "GET"),
    ("POST", "/cursors/a", 405, "GET, PUT, DELETE"),
    ("PUT", "/cursors/a", 400, "position is missing"),
    (
        "PUT",
        "/cursors/a?position=1&if_new&if_at=1",
        400,
        "one of them",
    ),
    (
        "PUT",
        "/cursors/a?position=1&if_new=2",
        400,
        "true or false",
    ),
    ("PUT", "/cursors/?position=1", 400, "1 to 64 bytes"),
    (
        "PUT",
        "/cursors/a%0Ab?position=1",
        400,
        "no control characters",
    ),
    ("GET", "/cursors/%ff", 400, "no UTF-8"),
    ("GET", "/cursor/a", 404, "no such path"),
    ("GET", "/cursors/a/b", 404, "no such path"),
    ("GET", "/", 404, "no such path"),
];

#[test]
fn wrong_requests_on_streams_and_cursors_are_refused_with_the_reason() {
    let (cluster, runtime) = cluster(1);
    let door = http(&cluster, 0);
    make(&cluster, "l");
    assert_eq!(ask(door, "POST", "/v1/logs/l", b"first").status, 200);
    let long = format!("/cursors/{}?position=1", "x".repeat(65));
    let long = ("PUT", &long[..], 400, "1 to 64 bytes");
    for (method, below, status, part) in WRONG.iter().copied().chain([long]) {
        let refused = ask(door, method, &format!("/v1/logs/l{below}"), b"");
        assert_eq!(refused.status, status, "{method} {below:.40}: {refused:?}");
        let json = refused.json();
        let text = json["error"].as_str().expect("words");
        assert!(text.contains(part), "{method} {below:.40}: {text}");
        assert_eq!(json["may_have_been_done"], false, "{json}");
    }
    // As many as there may be.
    for n in 0..64 {
        let set = format!("/v1/logs/l/cursors/{n}?position=1");
        assert_eq!(ask(door, "PUT", &set, b"").status, 200);
    }
    let more = ask(door, "PUT", "/v1/logs/l/cursors/64?position=1", b"");
    assert_eq!(more.status, 409, "{more:?}");
    assert!(more.text().contains("at most 64 cursors"), "{more:?}");
    runtime.block_on(async {
        let mut stub = grpc(&cluster, 0).await;
        let append = |tags: Vec<u64>, if_tag| v1::AppendRequest {
            name: "l".into(),
            records: vec!["x".into()],
            tags,
            if_tag,
            ..v1::AppendRequest::default()
        };
        for (request, part) in [
            (append((0..9).collect(), None), "8 at most"),
            (append(vec![3, 3], None), "tag 3 twice"),
            (append(vec![3], Some(3)), "if_tag needs if_tail"),
        ] {
            let refused = stub.append(request).await.expect_err("refused");
            assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
            assert!(refused.message().contains(part), "{refused}");
        }
    });
    let tail = ask(door, "GET", "/v1/logs/l/tail", b"").json();
    assert_eq!(tail["tail"], 1, "nothing was appended");
}
