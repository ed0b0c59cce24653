//! Requests on logs by HTTP and gRPC that were done in part, or could not be: the status says so.

use staves_client::{LogRetention, WhenFull};
use staves_grpc::SETTLED;
use staves_grpc::logs_v1 as v1;
use staves_model::{Change, Medium, NodeState, PoolKind, ServiceId};
use staves_testkit::cluster::TestCluster;
use staves_testkit::wait_until;
use tonic::Code;

use crate::log_doors::{ask, cluster, grpc, http, make};
use crate::logs::client_of;

/// Regression: it was 504 without the reason.
#[test]
fn an_append_to_a_log_that_is_full_says_so() {
    let (cluster, runtime) = cluster(1);
    let door = http(&cluster, 0);
    make(&cluster, "l");
    let set = ask(door, "PUT", "/v1/logs/l/cursors/reader?position=0", b"");
    assert_eq!(set.status, 200, "{set:?}");
    let (client, threads) = client_of(&cluster);
    let rules = LogRetention {
        records: Some(2),
        when_full: WhenFull::Refuse,
        ..LogRetention::default()
    };
    let set = threads.block_on(client.set_log_retention(None, "l", rules));
    set.expect("set");
    let path = "/v1/logs/l?timeout_ms=3000";
    let mut answers = (0..200).map(|_| ask(door, "POST", path, b"x"));
    let refused = answers.find(|answer| answer.status != 200);
    let refused = refused.expect("it is full at some time");
    assert_eq!(refused.status, 507, "{refused:?}");
    let json = refused.json();
    assert_eq!(json["code"], "log-full", "{json}");
    assert_eq!(json["may_have_been_done"], true, "{json}");
    let text = json["error"].as_str().expect("words");
    assert!(text.contains("oldest cursor"), "{text}");
    runtime.block_on(async {
        let append = v1::AppendRequest {
            name: "l".into(),
            records: vec!["x".into()],
            timeout_ms: 3000,
            ..v1::AppendRequest::default()
        };
        let refused = grpc(&cluster, 0).await.append(append).await;
        let refused = refused.expect_err("it is full");
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        assert!(!refused.metadata().contains_key(SETTLED), "{refused}");
    });
    let moved = ask(
        door,
        "PUT",
        "/v1/logs/l/cursors/reader?position=100000",
        b"",
    );
    assert_eq!(moved.status, 200, "{moved:?}");
    let goes_on = || ask(door, "POST", path, b"x").status == 200;
    wait_until("it takes appends again", goes_on);
}

/// The pool of units that have one copy each.
fn make_pool_of_one_copy(cluster: &TestCluster) {
    let pool = Change::CreatePool {
        name: "one".into(),
        kind: PoolKind::Slots(ServiceId::LOG),
        scheme: "1+0".parse().expect("a scheme"),
        medium: Medium::Ram,
        node_budget_bytes: 64 << 20,
        buckets: 4,
        may_start_empty: false,
    };
    cluster.nodes[0].propose(&pool).expect("the pool is made");
    wait_until("the pool's groups are open", || {
        let map = cluster.nodes[0].map();
        let pool = map.pool_named("one");
        pool.is_some_and(|pool| map.groups_of(pool).all(|group| group.open))
    });
}

/// Regression: the log was deleted, and the answer was 503, ask again.
#[test]
fn a_log_that_is_deleted_is_no_error_where_a_unit_was_not_told() {
    let (mut cluster, runtime) = cluster(3);
    make_pool_of_one_copy(&cluster);
    let door = http(&cluster, 0);
    let on = |method: &str, name: &str| {
        ask(
            door,
            method,
            &format!("/v1/logs/{name}?pool=one&timeout_ms=20000"),
            b"",
        )
    };
    // Of several logs some have their record on nodes that live.
    let names: Vec<String> = (0..12).map(|n| format!("l{n}")).collect();
    for name in &names {
        assert_eq!(on("PUT", name).status, 201);
        assert_eq!(on("POST", name).status, 200);
    }
    let victim = cluster.nodes[2].id;
    cluster.nodes[2].kill();
    wait_until("it is taken for dead", || {
        let map = cluster.nodes[0].map();
        let node = map.nodes.get(&victim);
        node.is_none_or(|node| node.state != NodeState::Up)
    });
    let mut deleted = names.iter().filter(|name| on("GET", name).status == 200);
    let (by_http, by_grpc) = (deleted.next(), deleted.next());
    let by_http = on("DELETE", by_http.expect("a log"));
    assert_eq!(by_http.status, 200, "{by_http:?}");
    let json = by_http.json();
    assert_eq!(json["result"], "deleted", "{json}");
    let warning = json["warning"].as_str().expect("a warning");
    assert!(warning.contains("keeps its records"), "{warning}");
    runtime.block_on(async {
        let delete = v1::DeleteRequest {
            name: by_grpc.expect("another").clone(),
            pool: Some("one".into()),
        };
        let deleted = grpc(&cluster, 1).await.delete(delete).await;
        let warning = deleted.expect("deleted").into_inner().warning;
        assert!(warning.contains("keeps its records"), "{warning}");
    });
}
