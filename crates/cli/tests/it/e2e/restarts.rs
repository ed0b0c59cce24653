//! Nodes that are restarted one after another, by somebody who does not wait.

use std::process::Command;

use super::Cluster;

/// Regression: the third of three nodes was alone for a moment, and took what was in memory with it.
#[test]
fn the_last_node_waits_a_moment_for_those_that_are_on_their_way() {
    let mut cluster = Cluster::start_with(3, &["--scheme", "1+1"]);
    for i in 0..50 {
        let ran = cluster.run(0, &["cache", "put", &format!("key:{i}"), "1"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
    cluster.end(0, "-TERM");
    cluster.end(1, "-TERM");
    // Those two are processes by then, and no nodes of the cluster yet.
    cluster.up(0);
    cluster.up(1);
    let mut last = cluster.nodes[2].child.take().expect("it runs");
    let told = Command::new("kill")
        .args(["-TERM", &last.id().to_string()])
        .status();
    assert!(told.expect("it runs").success());
    staves_testkit::wait_until("the last node ends", || {
        last.try_wait().expect("a child").is_some()
    });
    cluster.up(2);
    cluster.wait_for("the first node answers", 0, |_| true);
    for i in 0..50 {
        let ran = cluster.run(0, &["cache", "get", &format!("key:{i}")]);
        assert_eq!(ran.stdout.trim(), "1", "key:{i}: {}", ran.stderr);
    }
}
