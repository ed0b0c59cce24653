//! A voter that cannot win leaves the term as it is.

use std::time::Duration;

use crate::failover::the_leader;
use crate::test_cluster::{TestCluster, eventually, others};

/// Regression: a voter that was cut off raised the term until it was back, and then deposed the leader; and each such term made all wait
/// longer for the next leader. On a machine that is starved somebody may stand for another reason: not three times in a row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voter_that_was_cut_off_comes_back_in_the_same_term() {
    for _ in 0..3 {
        if back_in_the_same_term().await {
            return;
        }
    }
    panic!("the term was raised each time");
}

async fn back_in_the_same_term() -> bool {
    let cluster = TestCluster::new();
    let nodes = cluster.found(3).await;
    let lead = the_leader(&nodes).await;
    let rest = others(&nodes, &lead);
    let term = lead.directory.status().term;
    for victim in &rest {
        for other in others(&nodes, victim) {
            cluster.net.cut(&victim.addr, &other.addr);
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        // Its log is behind now.
        let changed = lead.touch(Duration::from_secs(5)).await;
        assert!(changed.is_ok(), "two of three are there: {changed:?}");
        cluster.net.heal();
        let newest = lead.map().revision;
        eventually("it is told", || victim.map().revision >= newest).await;
    }
    let same = nodes.iter().all(|n| n.directory.status().term == term);
    cluster.kill_all(&nodes).await;
    same
}
