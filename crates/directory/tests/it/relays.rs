//! Words that one node cannot say to another go through a third.

use std::time::Duration;

use crate::failover::the_leader;
use crate::test_cluster::{Net, TestCluster, eventually, others};

/// The leader does not reach two of four voters, in either direction or in one: they are told through those that it reaches, and stand
/// for no election. On a machine that is starved somebody may stand for another reason: not three times in a row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_leader_cannot_say_itself_others_pass_on() {
    for _ in 0..3 {
        if told_without_election().await {
            return;
        }
    }
    panic!("somebody stood for election each time");
}

async fn told_without_election() -> bool {
    let cluster = TestCluster::new();
    let nodes = cluster.found(5).await;
    let lead = the_leader(&nodes).await;
    let rest = others(&nodes, &lead);
    let term = lead.directory.status().term;
    for cut in [Net::cut, Net::cut_one_way] as [fn(&Net, &str, &str); 2] {
        for deaf in &rest[..2] {
            cut(&cluster.net, &lead.addr, &deaf.addr);
        }
        for _ in 0..10 {
            // The first may go straight to the leader, whose answer is lost; no proposal is made twice by itself.
            let mut changed = false;
            for _ in 0..5 {
                changed = changed || rest[0].touch(Duration::from_secs(2)).await.is_ok();
            }
            assert!(changed, "through one that the leader does not reach");
            let newest = lead.map().revision;
            eventually("all know of it", || {
                rest.iter().all(|n| n.map().revision >= newest)
            })
            .await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        cluster.net.heal();
    }
    let same = lead.directory.status().term == term;
    cluster.kill_all(&nodes).await;
    same
}

/// A leader that reaches one voter of four leads all others through that one, but for a node that does not reach it either: that would be
/// told nothing for as long as the cut lasts. So the lead goes to one that reaches more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_reaches_one_voter_gives_up_the_lead() {
    let cluster = TestCluster::new();
    let nodes = cluster.found(5).await;
    let lead = the_leader(&nodes).await;
    let rest = others(&nodes, &lead);
    let (beside, far) = (&rest[0], &rest[1]);
    for other in &rest[1..] {
        cluster.net.cut(&lead.addr, &other.addr);
    }
    cluster.net.cut(&beside.addr, &far.addr);
    eventually("another leads", || {
        let now = far.directory.status().leader;
        now.is_some_and(|now| now != lead.id())
    })
    .await;
    for node in [far, beside, &lead, &rest[2]] {
        let mut changed = false;
        for _ in 0..5 {
            changed = changed || node.touch(Duration::from_secs(2)).await.is_ok();
        }
        assert!(changed, "through {}", node.addr);
    }
    let newest = lead.map().revision;
    eventually("all know of it", || {
        nodes.iter().all(|n| n.map().revision >= newest)
    })
    .await;
    cluster.net.heal();
    cluster.kill_all(&nodes).await;
}

/// Regression: a leader on a link on which every answer comes too late tried to hand the lead over, which takes several round trips within
/// its patience, and led on by heartbeats that came late: nothing was ordered for as long as the link was slow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_hears_nobody_in_time_leads_no_more() {
    let cluster = TestCluster::new();
    let nodes = cluster.found(5).await;
    let lead = the_leader(&nodes).await;
    let rest = others(&nodes, &lead);
    cluster
        .net
        .slow_node(&lead.addr, Duration::from_millis(450));
    eventually("another leads", || {
        let now = rest[0].directory.status().leader;
        now.is_some_and(|now| now != lead.id())
    })
    .await;
    for node in &rest {
        let mut changed = false;
        for _ in 0..5 {
            changed = changed || node.touch(Duration::from_secs(2)).await.is_ok();
        }
        assert!(changed, "through {}", node.addr);
    }
    assert!(rest.iter().all(|n| !n.sees_down(rest[0].id())));
    cluster.kill_all(&nodes).await;
}
