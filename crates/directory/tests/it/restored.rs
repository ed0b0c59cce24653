//! Restarts from copies of the data folder that may be older states.

use std::path::Path;
use std::time::Duration;

use staves_directory::Proposal;
use staves_model::{Change, Time};

use crate::test_cluster::{PATIENCE, TestCluster, TestNode, eventually, leader, others};

/// A copy of a node's folder, as a backup of a running machine has it.
fn copy_folder(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("it is there") {
        let entry = entry.expect("a file");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("it is ours");
    }
}

/// Regression: the leader that came back with an older copy of its folder went on leading its term without an election, and put other
/// entries in the place of those that were committed: nothing was answered any more, or all was forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_with_an_older_folder_is_not_the_leader() {
    let cluster = TestCluster::new();
    let mut nodes = cluster.found(3).await;
    let old = leader(&nodes).expect("one leads");
    let name = old.map().nodes[&old.id()].name.clone();
    let (folder, copy) = (cluster.folder(&name), cluster.folder("copy"));
    copy_folder(&folder, &copy);
    for _ in 0..20 {
        old.touch(PATIENCE).await.expect("commits");
    }
    let (term, committed) = (old.directory.status().term, old.map().revision);
    let rest = others(&nodes, &old);
    eventually("all have it", || {
        rest.iter().all(|n| n.map().revision >= committed)
    })
    .await;
    cluster.kill(&old).await;
    copy_folder(&copy, &folder);
    let back = cluster.start(&name, &[]).await;
    nodes = rest;
    nodes.push(back);
    for node in &nodes {
        node.touch(PATIENCE).await.expect("it goes on");
        assert!(node.map().revision > committed, "nothing was forgotten");
        assert!(node.directory.status().term > term, "one was elected");
    }
    let revision = nodes.iter().map(|n| n.map().revision).max();
    eventually("all have the same", || {
        nodes.iter().all(|n| Some(n.map().revision) >= revision)
    })
    .await;
    assert_eq!(nodes[0].map(), nodes[2].map());
    cluster.kill_all(&nodes).await;
}

/// Regression: the first node, restarted with a copy of its folder from when it alone voted, led by its own vote, and what the others had
/// committed since was forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_from_when_it_voted_alone_makes_no_leader() {
    let cluster = TestCluster::new();
    let a = cluster.start("a", &[]).await;
    let b = cluster.start("b", &["a"]).await;
    eventually("it knows of the other", || a.map().nodes.len() == 2).await;
    assert_eq!(a.directory.status().voters.len(), 1);
    let (folder, copy) = (cluster.folder("a"), cluster.folder("copy"));
    copy_folder(&folder, &copy);
    let c = cluster.start("c", &["a"]).await;
    for node in [&b, &c] {
        eventually("three vote", || node.directory.status().voters.len() == 3).await;
    }
    for _ in 0..20 {
        c.touch(PATIENCE).await.expect("commits");
    }
    let committed = c.map().revision;
    cluster.kill(&a).await;
    copy_folder(&copy, &folder);
    let back = cluster.start("a", &[]).await;
    let nodes = [back, b, c];
    for node in &nodes {
        node.touch(PATIENCE).await.expect("it goes on");
        assert!(node.map().revision > committed, "nothing was forgotten");
        assert_eq!(node.directory.status().voters.len(), 3);
    }
    cluster.kill_all(&nodes).await;
}

/// Regression: the same after a power cut, when none of the others runs yet: it led alone after a moment, and they, with all that was
/// committed, were told that they did not belong to the cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_from_when_it_voted_alone_waits_for_those_that_it_knows() {
    let cluster = TestCluster::new();
    let a = cluster.start("a", &[]).await;
    let b = cluster.start("b", &["a"]).await;
    eventually("it knows of the other", || a.map().nodes.len() == 2).await;
    let (folder, copy) = (cluster.folder("a"), cluster.folder("copy"));
    copy_folder(&folder, &copy);
    let c = cluster.start("c", &["a"]).await;
    let nodes = [a, b, c];
    for node in &nodes {
        eventually("three vote", || node.directory.status().voters.len() == 3).await;
    }
    let committed = nodes[2].map().revision;
    cluster.kill_all(&nodes).await;
    copy_folder(&copy, &folder);
    let mut back = vec![cluster.start_soon("a", &[])];
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!back[0].is_finished(), "the other may know more");
    back.extend(["b", "c"].map(|name| cluster.start_soon(name, &[])));
    let mut nodes = Vec::new();
    for start in back {
        nodes.push(start.await.expect("no panic"));
    }
    for node in &nodes {
        node.touch(PATIENCE).await.expect("it goes on");
        assert!(node.map().revision > committed, "nothing was forgotten");
    }
    cluster.kill_all(&nodes).await;
}

/// Regression: a node that came back with a copy from when there was no other one led alone where nobody reached it, and those that reached
/// it later, and had all that was committed, took its word that they had been removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_has_forgotten_others_removes_nobody() {
    let cluster = TestCluster::new();
    let a = cluster.start("a", &[]).await;
    let (folder, copy) = (cluster.folder("a"), cluster.folder("copy"));
    copy_folder(&folder, &copy);
    let [b, c] = [
        cluster.start("b", &["a"]).await,
        cluster.start("c", &["a"]).await,
    ];
    let three = || c.directory.status().voters.len() == 3;
    eventually("three vote", three).await;
    b.touch(PATIENCE).await.expect("commits");
    cluster.kill(&a).await;
    copy_folder(&copy, &folder);
    cluster.net.cut(&a.addr, &b.addr);
    cluster.net.cut(&a.addr, &c.addr);
    let old = cluster.start("a", &[]).await;
    // It reaches nobody else now.
    cluster.net.heal();
    cluster.net.cut(&b.addr, &c.addr);
    cluster.net.cut(&a.addr, &c.addr);
    for _ in 0..6 {
        // There is no majority of its own; one that was on its way may have answered the first.
        let wait = Duration::from_millis(500);
        let _ = b.directory.lease(Time(1), Vec::new(), wait).await;
    }
    assert!(b.directory.over().borrow().is_none(), "it was not removed");
    cluster.net.heal();
    for node in [&b, &c] {
        node.touch(PATIENCE).await.expect("they go on");
        assert!(node.directory.over().borrow().is_none());
    }
    let over = old.directory.over();
    eventually("the old one ends", || over.borrow().is_some()).await;
    let why = over.borrow().as_ref().map(ToString::to_string);
    let why = why.expect("it is over");
    assert!(why.contains("lacks what was committed"), "{why}");
    cluster.kill_all(&[old, b, c]).await;
}

/// Regression: two of three voters came back with copies from before the third voted, and waited for one that had left for good; of the
/// third, which has everything, they knew nothing. It asks them for their votes, and so tells them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_folders_learn_of_a_newer_voter_from_itself() {
    let cluster = TestCluster::new();
    let nodes = cluster.found(3).await;
    for name in ["a", "b"] {
        copy_folder(
            &cluster.folder(name),
            &cluster.folder(&format!("{name}.old")),
        );
    }
    let name = |n: &TestNode| n.map().nodes[&n.id()].name.clone();
    let (gone, stay): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|n| name(n) == "c");
    let d = cluster.start("d", &["a"]).await;
    cluster.kill(&gone[0]).await;
    eventually("it votes in the place of one that is gone", || {
        let status = d.directory.status();
        let there = status.voters.contains(&d.id()) && !status.voters.contains(&gone[0].id());
        there && !status.changing_voters
    })
    .await;
    d.touch(PATIENCE).await.expect("commits");
    let committed = d.map().revision;
    cluster.kill_all(&stay).await;
    let mut back = Vec::new();
    for name in ["a", "b"] {
        copy_folder(
            &cluster.folder(&format!("{name}.old")),
            &cluster.folder(name),
        );
        back.push(cluster.start_soon(name, &[]));
    }
    let mut nodes = vec![d];
    for start in back {
        nodes.push(start.await.expect("no panic"));
    }
    for node in &nodes {
        node.touch(PATIENCE).await.expect("it goes on");
        assert!(node.map().revision > committed, "nothing was forgotten");
    }
    cluster.kill_all(&nodes).await;
}

/// Regression: a voter that came back with an older copy of its folder gave its vote to one that lacked what both had not seen, or had
/// forgotten; what the dead leader had committed with it was forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voter_with_an_older_folder_votes_for_nobody_who_lacks_the_same() {
    let cluster = TestCluster::new();
    let nodes = cluster.found(3).await;
    let lead = leader(&nodes).expect("one leads");
    let rest = others(&nodes, &lead);
    let (restored, behind) = (&rest[0], &rest[1]);
    let name = |node: &TestNode| lead.map().nodes[&node.id()].name.clone();
    let names = [name(restored), name(behind), name(&lead)];
    let (folder, copy) = (cluster.folder(&names[0]), cluster.folder("copy"));
    copy_folder(&folder, &copy);
    cluster.kill(behind).await;
    for _ in 0..20 {
        lead.touch(PATIENCE).await.expect("two of three are there");
    }
    let committed = lead.map().revision;
    cluster.kill(restored).await;
    cluster.kill(&lead).await;
    copy_folder(&copy, &folder);
    let mut back = vec![
        cluster.start_soon(&names[0], &[]),
        cluster.start_soon(&names[1], &[]),
    ];
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    let up = back.iter().filter(|start| start.is_finished()).count();
    assert_eq!(
        up, 0,
        "they are a majority, and know less than was committed"
    );
    back.push(cluster.start_soon(&names[2], &[]));
    let mut nodes = Vec::new();
    for start in back {
        nodes.push(start.await.expect("no panic"));
    }
    for node in &nodes {
        node.touch(PATIENCE).await.expect("it goes on");
        assert!(node.map().revision > committed, "nothing was forgotten");
    }
    cluster.kill_all(&nodes).await;
}

/// Folders that were all moved to other disks are copies only, and know all that there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn folders_that_all_moved_make_the_same_cluster() {
    let cluster = TestCluster::new();
    let nodes = cluster.found(3).await;
    let committed = nodes[0].map().revision;
    let name = |n: &TestNode| n.map().nodes[&n.id()].name.clone();
    let names: Vec<_> = nodes.iter().map(name).collect();
    cluster.kill_all(&nodes).await;
    let mut starts = Vec::new();
    for name in &names {
        let (folder, copy) = (cluster.folder(name), cluster.folder("copy"));
        copy_folder(&folder, &copy);
        copy_folder(&copy, &folder);
        starts.push(cluster.start_soon(name, &[]));
    }
    let mut nodes = Vec::new();
    for start in starts {
        nodes.push(start.await.expect("no panic"));
    }
    assert!(nodes.iter().all(|n| n.map().revision > committed));
    cluster.kill_all(&nodes).await;
}

/// Regression: where only one node voted and came back with an older folder, the other's process panicked when it was sent other entries in
/// the place of its own. Its operator is told, and it joins anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_forgot_what_was_committed_is_named() {
    let cluster = TestCluster::new();
    let nodes = cluster.found(2).await;
    let (folder, copy) = (cluster.folder("a"), cluster.folder("copy"));
    copy_folder(&folder, &copy);
    for _ in 0..20 {
        // Not of the one that votes: another would vote then.
        let (node, on) = (nodes[1].id(), nodes[0].map().revision.0 % 2 == 0);
        let change = Proposal::unconditional(Change::Drain { node, on });
        let proposed = nodes[0].directory.propose(change, PATIENCE).await;
        proposed.expect("commits");
    }
    let committed = nodes[0].map().revision;
    eventually("both have it", || nodes[1].map().revision >= committed).await;
    cluster.kill(&nodes[0]).await;
    copy_folder(&copy, &folder);
    let (waits, _) = cluster.open(cluster.options("a", &[])).expect("a folder");
    let started = tokio::time::timeout(Duration::from_secs(4), waits.start()).await;
    assert!(started.is_err(), "the other has more: {started:?}");
    waits.stop().await;
    let mut options = cluster.options("a", &[]);
    options.data_is_newest = true;
    let old = cluster.try_start(options).await.expect("it was told to");
    let over = nodes[1].directory.over();
    eventually("the other ends", || over.borrow().is_some()).await;
    let why = over.borrow().as_ref().map(ToString::to_string);
    let why = why.expect("it is over");
    assert!(why.contains("lacks what was committed"), "{why}");
    cluster.kill(&nodes[1]).await;
    std::fs::remove_dir_all(cluster.folder("b")).expect("its folder");
    let again = cluster.start("b", &["a"]).await;
    again.touch(PATIENCE).await.expect("it goes on");
    cluster.kill_all(&[old, again]).await;
}
