//! One identity, one process: copied folders, lives that are over, folders of other clusters, and a
//! directory that has lost its majority.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use staves_model::{Change, NodeId, NodeState};
use tempfile::TempDir;

use staves_testkit::cluster::{TestCluster, TestNode, config};
use staves_testkit::resp::Reply;
use staves_testkit::{DEADLINE, wait_until};

fn copy_of(folder: &Path) -> TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    for file in std::fs::read_dir(folder).expect("a folder").flatten() {
        std::fs::copy(file.path(), copy.path().join(file.file_name())).expect("copied");
    }
    copy
}

/// A node that does not lead the directory, and one that is neither it nor the leader.
fn two_followers(cluster: &TestCluster) -> (usize, usize) {
    let leader = cluster.leader();
    let mut others = (0..cluster.nodes.len()).filter(|at| *at != leader);
    (others.next().expect("three"), others.next().expect("three"))
}

#[test]
fn a_copied_folder_is_refused_while_its_node_runs() {
    let cluster = TestCluster::start(3);
    let copy = copy_of(cluster.folders[2].path());
    let (id, at) = (cluster.nodes[2].id, cluster.nodes[2].addresses.native);
    let join = [&cluster.nodes[0]];
    for _ in 0..2 {
        let refused = TestNode::try_start(config(Some(&copy), &join)).map(|c| c.id);
        let text = refused.expect_err("its node runs").to_string();
        assert!(
            text.contains(&format!("node {id}")) && text.contains(&at.to_string()),
            "{text}"
        );
        assert!(text.contains("copy"), "{text}");
    }
    cluster.settle();
    let set = cluster.nodes[2].client().ask("SET k v");
    assert_eq!(set, Reply::Ok, "the node itself goes on");
}

#[test]
fn a_life_that_was_taken_over_ends_and_says_where_the_next_one_is() {
    let cluster = TestCluster::start(3);
    let (old, other) = two_followers(&cluster);
    let old = &cluster.nodes[old];
    let folder = cluster.position(old.id);
    let copy = copy_of(cluster.folders[folder].path());
    old.pause(Duration::from_secs(4));
    let new = TestNode::start(config(Some(&copy), &[&cluster.nodes[other]]));
    assert_eq!(new.id, old.id, "the copy has its identity");
    let why = old.over(DEADLINE).expect("its life is over");
    let place = new.addresses.native.to_string();
    assert!(why.contains(&place) && why.contains("copy"), "{why}");
    assert_eq!(
        new.over(Duration::from_secs(1)),
        None,
        "the newer life goes on"
    );
    assert_eq!(cluster.nodes[other].over(Duration::ZERO), None);
}

#[test]
fn a_node_that_is_forgotten_while_it_lives_ends() {
    let cluster = TestCluster::start(3);
    let (sleeper, other) = two_followers(&cluster);
    let (sleeper, other) = (&cluster.nodes[sleeper], &cluster.nodes[other]);
    sleeper.pause(Duration::from_secs(8));
    let node = sleeper.id;
    wait_until(
        "it is taken for dead, and its buckets are elsewhere",
        || {
            let map = other.map();
            let down = map
                .nodes
                .get(&node)
                .is_some_and(|n| n.state == NodeState::Down);
            down && other.propose(&Change::ForgetNode { node }).is_ok()
        },
    );
    let why = sleeper.over(DEADLINE).expect("its life is over");
    assert!(why.contains("removed"), "{why}");
}

#[test]
fn a_folder_of_one_cluster_does_not_join_another() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let mut ours = TestNode::start(config(Some(&folders[0]), &[]));
    let theirs = TestNode::start(config(Some(&folders[1]), &[]));
    let ids = [&ours, &theirs].map(|c| c.map().cluster.to_string());
    ours.leave();
    let refused = TestNode::try_start(config(Some(&folders[0]), &[&theirs])).map(|c| c.id);
    let text = refused.expect_err("another cluster").to_string();
    for part in [&ids[0], &ids[1], &theirs.addresses.native.to_string()] {
        assert!(text.contains(part.as_str()), "{part} in {text}");
    }
    // Nothing came of it: without the wrong address the node comes back.
    let again = TestNode::start(config(Some(&folders[0]), &[]));
    assert_eq!(again.map().cluster.to_string(), ids[0]);
}

/// Those of the nodes that a folder knows may all have moved: `--join` is one more address to find them by.
#[test]
fn an_address_of_the_own_cluster_leads_back_to_it() {
    let mut cluster = TestCluster::start(3);
    let (a, b) = two_followers(&cluster);
    let id = cluster.nodes[a].id;
    cluster.nodes[a].leave();
    let config = config(Some(&cluster.folders[a]), &[&cluster.nodes[b]]);
    cluster.nodes[a] = TestNode::start(config);
    assert_eq!(cluster.nodes[a].id, id);
    cluster.settle();
}

fn http(addr: SocketAddr, path: &str) -> String {
    let mut socket = TcpStream::connect(addr).expect("the admin door");
    socket.set_read_timeout(Some(DEADLINE)).expect("a time-out");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("answered");
    answer
}

#[test]
fn a_lost_majority_is_said_at_every_door() {
    let mut cluster = TestCluster::start(3);
    let (a, b) = two_followers(&cluster);
    let info = |c: &TestNode| match c.client().ask("CLUSTER INFO") {
        Reply::Bulk(text) => String::from_utf8(text).expect("text"),
        other => panic!("{other:?}"),
    };
    let survivor = |cluster: &TestCluster| NodeId(cluster.nodes[a].id.0);
    assert!(info(&cluster.nodes[a]).contains("cluster_state:ok"));
    assert!(http(cluster.nodes[a].addresses.admin, "/readyz").contains(" 200 "));
    let leader = cluster.leader();
    cluster.nodes[leader].kill();
    cluster.nodes[b].kill();
    let at = cluster.position(survivor(&cluster));
    let left = &cluster.nodes[at];
    wait_until("CLUSTER INFO says so", || {
        info(left).contains("cluster_state:fail")
    });
    wait_until("the status says so", || {
        let status = left.status();
        let said = status
            .sentence
            .contains("the directory has no majority: of its 3 voters");
        status.directory.leader.is_none() && said
    });
    wait_until("the node is not ready", || {
        http(left.addresses.admin, "/readyz").contains(" 503 ")
    });
    let metrics = http(left.addresses.admin, "/metrics");
    assert!(
        metrics.contains("\nstaves_directory_leader_known 0\n"),
        "{metrics}"
    );
    assert!(http(left.addresses.admin, "/livez").contains(" 200 "));
}
