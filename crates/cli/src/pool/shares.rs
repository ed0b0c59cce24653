//! A pool's share of each node: the most that it may take, and what it has.

use staves_cli_common::output::{bytes, or_dash};
use staves_model::Medium;
use staves_node::status::{NodeStatus, PoolStatus, StatusReport, full_name};

/// The name of the bound of what a pool takes of each node.
pub(super) fn most_of_each(pool: &PoolStatus) -> &'static str {
    match pool.medium == Medium::Disk.word() {
        true => "most of each node's disks",
        false => "most of each node's memory",
    }
}

/// The bytes that a pool's buckets have reserved on each node, for the pages that they have and the next ones.
pub(super) fn reserved(report: &StatusReport, pool: &str) -> String {
    let of = |node: &NodeStatus| {
        let facts = node.facts.as_ref()?;
        let of_pool = facts.pools.iter().find(|of| of.pool == pool)?;
        let name = full_name(&report.nodes, node);
        Some(format!("{name} {}", bytes(of_pool.used_bytes)))
    };
    let all: Vec<String> = report.nodes.iter().filter_map(of).collect();
    or_dash((!all.is_empty()).then(|| all.join(", ")))
}
