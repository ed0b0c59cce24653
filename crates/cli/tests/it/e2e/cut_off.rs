//! A node that does not hear the others any more.

use super::{Cluster, signal};

/// Others stand still.
struct Standing(Vec<u32>);

impl Drop for Standing {
    fn drop(&mut self) {
        self.0.iter().for_each(|pid| signal("-CONT", *pid));
    }
}

/// Regression: for a second from the cut on it was said that all is well.
#[test]
fn a_cluster_is_not_healthy_at_the_moment_at_which_a_majority_falls_silent() {
    let cluster = Cluster::start(3);
    let pids = cluster.nodes[1..].iter();
    let pids = pids.map(|node| node.child.as_ref().expect("it runs").id());
    let standing = Standing(pids.collect());
    standing.0.iter().for_each(|pid| signal("-STOP", *pid));
    let check = cluster.run(0, &["status", "--check"]);
    // The leader, which may be the node that is left, is one for a moment more.
    let is_well = !matches!(check.code, Some(5 | 6));
    assert!(!is_well, "{}{}", check.stdout, check.stderr);
    for node in &cluster.nodes[1..] {
        let row = check
            .stdout
            .lines()
            .find(|row| row.contains("silent") && row.contains(&node.native));
        assert!(row.is_some(), "{}", check.stdout);
    }
}
