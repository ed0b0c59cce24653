//! A cluster with a memory pool, and what its nodes report.

use crate::change::Change;
use crate::ids::NodeId;
use crate::map::ClusterMap;
use crate::policy::{NodeUsage, Usage};
use crate::region::REGION_BUCKET_BYTES_MIN;
use crate::testing::{cluster, create_memory_pool, start};

pub(super) const MIB: u64 = 1 << 20;

/// So many nodes, a pool `mem` of 2+1 and 64 MiB of each node, and a region `r` of one group that has not begun.
pub(super) fn unborn(nodes: u64) -> ClusterMap {
    let mut map = cluster(nodes);
    let region = Change::CreateRegion {
        pool: "mem".into(),
        name: "r".into(),
        size_bytes: REGION_BUCKET_BYTES_MIN,
    };
    for change in [create_memory_pool("mem", "2+1", 64 * MIB), region] {
        map.apply(None, &change).expect("sound");
    }
    map
}

/// The same with the group on nodes 1 to 3.
pub(super) fn mem(nodes: u64) -> ClusterMap {
    let mut map = unborn(nodes);
    start(&mut map, &[1, 2, 3]);
    map
}

/// A report of each node: so many MiB, all of pool `mem`.
pub(super) fn usage(mib: &[u64]) -> Usage {
    let node = |(node, mib): (u64, &u64)| {
        let used_bytes = mib * MIB;
        let pools = [("mem".to_owned(), used_bytes)].into();
        (NodeId(node), NodeUsage { used_bytes, pools })
    };
    Usage {
        nodes: (1..).zip(mib).map(node).collect(),
    }
}
