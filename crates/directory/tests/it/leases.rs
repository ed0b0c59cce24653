//! Leases and the opening of epochs (GROUP, promises and leases; rule 11).

use std::time::{Duration, Instant};

use staves_directory::{CallAnswer, Proposal};
use staves_hunts::{Hunt, hunt};
use staves_model::mutant::Mutant;
use staves_model::testing::create_pool;
use staves_model::{DirectoryCall, Epoch, Group, GroupId, GroupStep, MemberSlot, NodeId, Time};

use crate::test_cluster::{PATIENCE, TestCluster, TestNode, eventually, leader, others};

const LEASE: Duration = Duration::from_millis(500);

/// A cluster of three with a pool of one bucket, whose first epoch is open.
async fn with_pool(cluster: &TestCluster) -> (Vec<TestNode>, GroupId) {
    with_pool_of(cluster, "1+1").await
}

/// The same, of another scheme.
async fn with_pool_of(cluster: &TestCluster, scheme: &str) -> (Vec<TestNode>, GroupId) {
    let nodes = cluster.found(3).await;
    let proposal = Proposal::unconditional(create_pool("cache", scheme, 1, true));
    nodes[1]
        .directory
        .propose(proposal, PATIENCE)
        .await
        .expect("a pool");
    let group = GroupId(1);
    open_newest(&nodes, group, Epoch(0)).await;
    (nodes, group)
}

fn entry(node: &TestNode, group: GroupId) -> Option<Group> {
    node.map().groups.get(&group).cloned()
}

/// Plays the leading member of the next epoch; returns the group once it is open.
async fn open_newest(nodes: &[TestNode], group: GroupId, after: Epoch) -> Group {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let Some(g) = entry(&nodes[0], group).filter(|g| g.epoch > after) else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        if g.open {
            return g;
        }
        // The planner may commit a further epoch meanwhile; then that one is to be opened.
        let _ = nodes[0]
            .directory
            .call(
                vec![
                    GroupStep::Open {
                        group,
                        epoch: g.epoch,
                    }
                    .into(),
                ],
                Duration::from_millis(1500),
            )
            .await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no epoch after {after} opens");
}

fn on(nodes: &[TestNode], node: NodeId) -> &TestNode {
    nodes.iter().find(|c| c.id() == node).expect("a node")
}

async fn ask(node: &TestNode, group: GroupId, epoch: Epoch) -> bool {
    let lease = node
        .directory
        .lease(Time(7), vec![(group, epoch)], PATIENCE)
        .await
        .expect("answered");
    assert_eq!(lease.clock, Time(7));
    lease.granted == [(group, epoch)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_data_bucket_of_the_open_epoch_gets_a_lease() {
    let cluster = TestCluster::new();
    let (nodes, group) = with_pool(&cluster).await;
    let g = entry(&nodes[0], group).expect("the group");
    let data = on(&nodes, g.members[0].expect("a data bucket").id.node).clone();
    assert!(ask(&data, group, g.epoch).await);
    assert!(!ask(&data, group, Epoch(g.epoch.0 + 1)).await);
    for other in others(&nodes, &data) {
        assert!(!ask(&other, group, g.epoch).await, "not the data bucket");
    }
    cluster.kill_all(&nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_epoch_opens_only_after_the_old_holders_lease() {
    let cluster = TestCluster::new();
    let (nodes, group) = with_pool(&cluster).await;
    let g = entry(&nodes[0], group).expect("the group");
    let data = on(&nodes, g.members[0].expect("a data bucket").id.node).clone();
    let asked = Instant::now();
    assert!(ask(&data, group, g.epoch).await);
    cluster.kill(&data).await;
    let rest = others(&nodes, &data);
    let opened = open_newest(&rest, group, g.epoch).await;
    assert_ne!(opened.members[0].expect("a data bucket").id.node, data.id());
    assert!(
        asked.elapsed() >= LEASE,
        "opened {:?} after a lease was granted",
        asked.elapsed()
    );
    cluster.kill_all(&rest).await;
}

/// A node whose map is ahead of the leader's must not have the next epoch's opening judged by the last one's members.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_epoch_that_the_leader_has_not_seen_is_not_opened() {
    let cluster = TestCluster::new();
    let (nodes, group) = with_pool(&cluster).await;
    let g = entry(&nodes[0], group).expect("the group");
    let next = g.epoch.next();
    let open = |epoch| DirectoryCall::from(GroupStep::Open { group, epoch });
    let calls = vec![open(next), open(g.epoch)];
    let answers = nodes[1].directory.call(calls, PATIENCE).await;
    let answers = answers.expect("a leader answers");
    match &answers[..] {
        [CallAnswer::Later { reason, .. }, CallAnswer::Done] => {
            assert!(reason.contains("so far"), "{reason}");
        }
        other => panic!("not yet, and open already: {other:?}"),
    }
    cluster.kill_all(&nodes).await;
}

/// A new leader knows nothing of its predecessor's leases: it waits one out. Leases are longer here than an election takes, which
/// would hide a leader that does not wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leader_waits_a_lease_before_it_opens() {
    const LONG: Duration = Duration::from_secs(3);
    let mut cluster = TestCluster::new();
    cluster.adjust = |options| options.times.lease = LONG;
    // Every node is a member: whoever leads, its end changes the group.
    let (nodes, group) = with_pool_of(&cluster, "1+2").await;
    let g = entry(&nodes[0], group).expect("the group");
    eventually("somebody leads", || leader(&nodes).is_some()).await;
    let old = leader(&nodes).expect("just seen");
    let data = on(&nodes, g.members[0].expect("a data bucket").id.node).clone();
    let asked = Instant::now();
    assert!(ask(&data, group, g.epoch).await);
    cluster.kill(&old).await;
    let rest = others(&nodes, &old);
    open_newest(&rest, group, g.epoch).await;
    let waited = asked.elapsed();
    assert!(
        waited >= LONG,
        "opened {waited:?} after a lease was granted"
    );
    cluster.kill_all(&rest).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_is_marked_complete_and_a_stuck_one_is_heard_of() {
    let cluster = TestCluster::new();
    let (nodes, group) = with_pool(&cluster).await;
    let g = entry(&nodes[0], group).expect("the group");
    let copy = on(&nodes, g.members[1].expect("a copy").id.node).clone();
    let slot = MemberSlot(1);
    let incarnation = g.members[1].expect("a copy").id.incarnation;
    let complete = |epoch| {
        DirectoryCall::from(GroupStep::Complete {
            group,
            epoch,
            slot,
            incarnation,
        })
    };
    let stuck = DirectoryCall::Stuck {
        group,
        epoch: g.epoch,
        slots: vec![slot],
    };
    let calls = vec![complete(g.epoch), complete(Epoch(0)), stuck];
    let answers = copy.directory.call(calls, PATIENCE).await;
    let answers = answers.expect("a leader answers");
    // A fresh group is complete already; there is no such epoch; the report is heard.
    match &answers[..] {
        [CallAnswer::Done, CallAnswer::Refused(_), CallAnswer::Done] => {}
        other => panic!("{other:?}"),
    }
    cluster.kill_all(&nodes).await;
}

#[test]
fn planted_bugs_of_leases_are_seen() {
    let of = |mutant, test, shows| Hunt {
        mutant,
        test,
        shows,
    };
    hunt(&[
        of(
            Mutant::NewDirectoryLeaderSkipsWait,
            "leases::a_new_leader_waits_a_lease_before_it_opens",
            "after a lease was granted",
        ),
        of(
            Mutant::LeaseConfirmedByNobody,
            "failover::a_leader_in_the_minority_commits_nothing_and_grants_no_lease",
            "Ok(Granted",
        ),
    ]);
}
