//! Writes that wait for copies, in pools that bear no write on fewer.

use std::sync::mpsc;
use std::time::Duration;

use staves_model::Change;
use staves_testkit::cluster::TestCluster;
use staves_testkit::resp::{Reply, RespClient};
use staves_testkit::wait_until;

fn set(cluster: &TestCluster, node: usize, copies: u8) -> Result<(), String> {
    cluster.nodes[node].propose(&Change::SetCopiesMin {
        pool: "cache".into(),
        copies,
    })
}

#[test]
fn writes_wait_while_there_are_fewer_copies_than_they_want() {
    let mut cluster = TestCluster::start(3);
    set(&cluster, 0, 3).expect("the pool is 1+2");
    let refused = set(&cluster, 0, 4).expect_err("it has 3 copies");
    assert!(
        refused.contains("from 1, which never waits, to 3"),
        "{refused}"
    );
    let victim = (cluster.leader() + 1) % 3;
    let other = (victim + 1) % 3;
    let door = cluster.nodes[other].addresses.resp;
    wait_until("all know of it", || {
        let pool = |map: &staves_model::ClusterMap| map.pool_named("cache").map(|pool| pool.id);
        let known = |node: &staves_testkit::cluster::TestNode| {
            let map = node.map();
            pool(&map).map(|id| map.copies_min(id)) == Some(3)
        };
        cluster.nodes.iter().all(known)
    });
    let mut client = RespClient::connect(door);
    for key in ["k", "other"] {
        let answer = client.ask(&format!("SET {key} 1"));
        assert_eq!(answer, Reply::Ok, "all three are there");
    }
    cluster.nodes[victim].kill();
    // Writes of before its death is known wait for it anyway.
    wait_until("the groups go on without it", || {
        let map = cluster.nodes[other].map();
        let without = |g: &staves_model::Group| g.open && g.listed().count() == 2;
        map.groups.values().all(without)
    });
    let (sender, answers) = mpsc::channel();
    let writer = std::thread::spawn(move || {
        let mut client = RespClient::connect(door);
        let _ = sender.send(client.ask("SET k 2"));
    });
    assert_eq!(
        answers.recv_timeout(Duration::from_secs(2)),
        Err(mpsc::RecvTimeoutError::Timeout),
        "two copies are fewer than three"
    );
    assert_eq!(client.ask("GET other"), Reply::text("1"), "reads go on");
    let report = cluster.nodes[other].status();
    let pool = report.pools.iter().find(|pool| pool.name == "cache");
    assert!(pool.is_some_and(|pool| pool.unwritable == pool.buckets));
    assert!(
        report.sentence.contains("fewer than the 3 complete copies"),
        "{}",
        report.sentence
    );
    set(&cluster, other, 2).expect("fewer");
    let answer = answers.recv_timeout(Duration::from_secs(20));
    assert_eq!(answer, Ok(Reply::Ok));
    writer.join().expect("the writer");
    assert_eq!(client.ask("GET k"), Reply::text("2"));
}
