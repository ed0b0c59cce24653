//! The logs of all members of a node share a bound.

use std::sync::Arc;

use staves_group::{NodeLogs, Options};
use staves_model::NodeId;

use crate::test_group::TestGroup;

const BYTES_MAX: usize = 1 << 20;
const GROUPS: usize = 8;

fn held(clusters: &[TestGroup]) -> usize {
    let members = clusters.iter().flat_map(|c| &c.members);
    let streams = members.filter_map(|m| m.stream(0));
    streams.map(|s| s.log.bytes()).sum()
}

/// Each of eight groups may log half a MiB, at three members: with one copy of each away, all their logs together stay within
/// one MiB; and when it is back, everything is written.
#[test]
fn logs_of_many_groups_stay_within_the_node_s_bound_while_a_copy_is_away() {
    let node_logs = Arc::new(NodeLogs::new(BYTES_MAX));
    let options = Options {
        log_bytes_max: BYTES_MAX / 2,
        node_logs: node_logs.clone(),
        ..Options::default()
    };
    let mut clusters: Vec<TestGroup> = (0..GROUPS)
        .map(|_| TestGroup::with(options.clone(), 1, 2, 0))
        .collect();
    let bytes = vec![7; 4 << 10];
    let mut written = vec![0; GROUPS];
    for cluster in &mut clusters {
        assert!(!cluster.write(0, b"asks for memory"));
        cluster.silent = Some(NodeId(3));
    }
    for _ in 0..200 {
        for (cluster, written) in clusters.iter_mut().zip(&mut written) {
            if cluster.members[0].admit(bytes.len() + 64).is_ok() {
                assert!(cluster.write(0, &bytes), "there is memory now");
                *written += 1;
            }
        }
        assert!(held(&clusters) <= BYTES_MAX, "{}", held(&clusters));
    }
    let most = held(&clusters);
    assert!(most > BYTES_MAX / 2, "{most}: there was room for more");
    assert!(node_logs.held_bytes() <= most && node_logs.held_bytes() > BYTES_MAX / 2);
    for (cluster, written) in clusters.iter_mut().zip(&written) {
        assert!(*written > 0, "each group goes on with one update at least");
        cluster.silent = None;
        cluster.ticks(100);
        assert_eq!(cluster.members[0].stable(), *written);
    }
    assert_eq!((held(&clusters), node_logs.held_bytes()), (0, 0));
    assert!(clusters[0].write(0, &bytes), "room again");
    // A member that is gone holds nothing.
    clusters[0].silent = Some(NodeId(3));
    for _ in 0..20 {
        clusters[0].write(0, &bytes);
    }
    assert!(node_logs.held_bytes() > 0);
    drop(clusters);
    assert_eq!(node_logs.held_bytes(), 0);
}
