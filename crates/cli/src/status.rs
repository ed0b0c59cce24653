//! `staves status`: one plain sentence, then the tables behind it.

use std::collections::BTreeMap;

use staves_model::units::count;
use staves_node::status::disks::disk_name;
use staves_node::status::{
    AgainFacts, DiskFacts, DiskState, NodeFacts, NodeStatus, PoolStatus, State, StatusReport,
    full_name,
};

use staves_cli_common::cluster::Cluster;
use staves_cli_common::codes::Own;
use staves_cli_common::failure::Failure;
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, Column, bytes, columns, number, or_dash};

pub fn run(cluster: &Cluster, check: bool, strict: bool, out: Format) -> anyhow::Result<()> {
    let report = cluster.status()?;
    output::answer(out, &report, |report| {
        let warnings = report.warnings.iter();
        let warnings: String = warnings.map(|w| format!("\nwarning: {w}")).collect();
        let (nodes, pools) = (nodes(&report.nodes), pools(&report.pools));
        format!("{}{warnings}\n\n{nodes}\n\n{pools}", report.sentence)
    })?;
    let found = |own, text: &str| Err(Failure::Own(own, text.into()).into());
    match report.state {
        State::Degraded if check => found(Own::Degraded, "the cluster is not healthy"),
        State::Critical if check => found(Own::Critical, "the cluster needs help"),
        State::Healthy if strict && !report.warnings.is_empty() => {
            found(Own::Degraded, "the cluster has less than it was asked for")
        }
        _ => Ok(()),
    }
}

/// The nodes as a table.
pub fn nodes(nodes: &[NodeStatus]) -> String {
    let mut text = columns(NODE_COLUMNS, nodes);
    for node in nodes {
        if let Some(waits) = &node.waits_for {
            text += &format!("\n{} cannot be drained as things are: {waits}", node.name);
        }
    }
    for node in nodes {
        let disks = node.facts.as_ref().map(|facts| &facts.disks[..]);
        let disks = disks.unwrap_or_default();
        // Of one that failed there is a warning.
        for disk in disks.iter().filter(|disk| disk.state != DiskState::Failed) {
            let which = disk_name(&full_name(nodes, node), disk, disks.len());
            text += &format!("\n{}", of_disk(&which, disk));
        }
        let in_memory = disk_memory(&full_name(nodes, node), disks);
        text.extend(in_memory.map(|line| format!("\n{line}")));
    }
    for again in nodes
        .iter()
        .filter_map(|node| node.facts.as_ref()?.fetching_again.as_ref())
    {
        text += &format!("\n{}", fetching_again(nodes, again));
    }
    for node in nodes {
        for lack in node.facts.iter().flat_map(|facts| &facts.lacking) {
            text += &format!(
                "\n{} of {} is pinned, and {} has not all of its part in memory: {}",
                lack.path,
                lack.dataset,
                full_name(nodes, node),
                lack.why
            );
        }
    }
    text.extend(forgetful_voters(nodes).map(|told| format!("\n{told}")));
    for twins in same_names(nodes) {
        let ids: Vec<String> = twins.iter().map(|node| node.id.to_string()).collect();
        let ids = ids.join(" and ");
        text += &format!(
            "\nnodes {ids} have the same name, {}: commands take the id (--name gives one another at its start)",
            twins[0].name
        );
    }
    text
}

/// That voters keep the directory in memory alone, if so.
fn forgetful_voters(nodes: &[NodeStatus]) -> Option<String> {
    let (durable, forgetful): (Vec<_>, Vec<_>) = nodes
        .iter()
        .filter(|node| node.votes || node.leads_directory)
        .partition(|node| node.durable);
    let names = forgetful.iter().map(|node| full_name(nodes, node));
    let names: Vec<String> = names.collect();
    let names = names.join(", ");
    let remedy = "nodes that are started with --data vote instead";
    match (&forgetful[..], &durable[..]) {
        ([], _) => None,
        ([_], []) => Some(format!(
            "the directory lies in the memory of {names} alone, which has no data folder: the cluster ends with that process; {remedy}"
        )),
        (_, []) => Some(format!(
            "the directory lies in the memory of its voters alone, {names}, which have no data folders: the cluster ends with \
             half of them; {remedy}"
        )),
        (_, _) => Some(format!(
            "{names} votes in the directory without a data folder, and forgets its vote when it ends; {remedy}"
        )),
    }
}

/// A node's disk in a line.
fn of_disk(which: &str, disk: &DiskFacts) -> String {
    let (used, all) = (bytes(disk.used_bytes), bytes(disk.bytes));
    let taken = (disk.journal_taken_bytes * 100).checked_div(disk.journal_bytes);
    let took = disk.syncs_us.checked_div(disk.syncs);
    let waiting = match disk.waiting {
        0 => String::new(),
        waiting => format!("; {} that nobody here serves", count(waiting, "bucket")),
    };
    let state = match disk.state {
        DiskState::Draining => {
            format!("; it is being drained of {}", count(disk.buckets, "bucket"))
        }
        DiskState::Drained => "; it is drained, and may be taken out".to_owned(),
        DiskState::Healthy | DiskState::Failed => String::new(),
    };
    format!(
        "{which}: {used} of pages written, {} reserved by pools, of {all}; its journal is {} % full; {} since the node's start, of {} us each{waiting}{state}",
        bytes(disk.reserved_bytes),
        taken.unwrap_or(0),
        count(disk.syncs, "sync"),
        took.unwrap_or(0),
    )
}

/// The memory that a node has for pages of its disks, all of them together, in a line; none without a disk.
pub fn disk_memory(node: &str, disks: &[DiskFacts]) -> Option<String> {
    let all = DiskFacts::sum(disks);
    (all.memory_bytes > 0).then(|| {
        format!(
            "{node} has {} of its disks' pages in memory as well, and may have {} (--disk-memory)",
            bytes(all.in_memory_bytes),
            bytes(all.memory_bytes)
        )
    })
}

/// The progress of fetching again the blocks of files that a lost node alone had.
fn fetching_again(nodes: &[NodeStatus], again: &AgainFacts) -> String {
    let lost = nodes.iter().find(|node| node.id == again.node);
    let lost = lost.map_or_else(
        || format!("node {}", again.node),
        |node| full_name(nodes, node),
    );
    let (done, all) = (bytes(again.done_bytes), bytes(again.bytes));
    format!("fetching again what only {lost} had of files: {done} of {all}")
}

/// Nodes of which several have one name, by name.
fn same_names(nodes: &[NodeStatus]) -> Vec<Vec<&NodeStatus>> {
    let mut by_name: BTreeMap<&str, Vec<&NodeStatus>> = BTreeMap::new();
    for node in nodes {
        by_name.entry(&node.name).or_default().push(node);
    }
    let several = by_name.into_values().filter(|nodes| nodes.len() > 1);
    several.collect()
}

const NODE_COLUMNS: &[Column<NodeStatus>] = &[
    ("id ", |node| node.id.to_string()),
    ("name", |node| node.name.clone()),
    ("state", |node| node.state().into()),
    ("zone", |node| or_dash(node.zone.clone())),
    ("native", |node| node.native.clone()),
    ("resp", |node| node.resp.clone()),
    ("memory ", |node| bytes(node.memory_bytes)),
    ("used ", |node| {
        let used = |facts: &NodeFacts| bytes(facts.used_bytes + facts.files_bytes);
        or_dash(node.facts.as_ref().map(used))
    }),
    ("keys ", |node| {
        or_dash(node.facts.as_ref().map(|facts| number(facts.keys)))
    }),
    ("primaries ", |node| node.primaries.to_string()),
    ("copies ", |node| node.copies.to_string()),
    ("filling ", |node| node.filling.to_string()),
    ("directory", |node| role(node).into()),
];

/// A node's role in the directory, in one word.
pub fn role(node: &NodeStatus) -> &'static str {
    match (node.leads_directory, node.votes) {
        (true, _) => "leads",
        (false, true) => "votes",
        (false, false) => "watches",
    }
}

/// The pools as a table.
pub fn pools(pools: &[PoolStatus]) -> String {
    columns(POOL_COLUMNS, pools)
}

const POOL_COLUMNS: &[Column<PoolStatus>] = &[
    ("pool", |pool| pool.name.clone()),
    ("kind", |pool| pool.kind.clone()),
    ("scheme", |pool| pool.scheme.clone()),
    ("memory/node ", |pool| bytes(pool.node_budget_bytes)),
    ("buckets ", |pool| pool.buckets.to_string()),
    ("whole ", |pool| pool.whole.to_string()),
    ("short ", |pool| pool.short.to_string()),
    ("changing ", |pool| pool.changing.to_string()),
    ("starting ", |pool| pool.starting.to_string()),
    ("lost ", |pool| pool.lost.to_string()),
    ("may lose ", may_lose),
];

/// The number of nodes that a pool may lose. Files are in their source, so any number, but what nodes held of them takes
/// the time to fetch it again.
pub fn may_lose(pool: &PoolStatus) -> String {
    match pool.has_sources() {
        true => "all, fetched again".to_owned(),
        false => or_dash(pool.tolerates.map(|nodes| nodes.to_string())),
    }
}

/// Finds a pool in a report.
pub fn find_pool<'a>(report: &'a StatusReport, name: &str) -> anyhow::Result<&'a PoolStatus> {
    let found = report.pools.iter().find(|pool| pool.name == name);
    found.ok_or_else(|| {
        let text = format!("there is no pool '{name}'; 'staves pool list' shows those there are");
        Failure::NotInMap(text).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, durable: bool, votes: bool) -> NodeStatus {
        let json = serde_json::json!({
            "id": 1, "name": name, "up": true, "draining": false, "zone": null, "native": "", "resp": "", "admin": "",
            "memory_bytes": 0, "durable": durable, "votes": votes, "leads_directory": false, "primaries": 0, "copies": 0,
            "filling": 0, "facts": null,
        });
        serde_json::from_value(json).expect("a row")
    }

    #[test]
    fn voters_without_a_data_folder_are_told_of() {
        let (a, b, c) = (
            node("a", false, true),
            node("b", true, true),
            node("c", false, false),
        );
        let told = |nodes: &[&NodeStatus]| {
            let nodes: Vec<NodeStatus> = nodes.iter().copied().cloned().collect();
            forgetful_voters(&nodes)
        };
        assert_eq!(
            told(&[&b, &c]),
            None,
            "who does not vote has nothing to forget"
        );
        let alone = told(&[&a, &c]).expect("one voter, no folder");
        assert!(
            alone.contains("memory of a alone") && alone.contains("--data"),
            "{alone}"
        );
        let one_of_two = told(&[&a, &b]).expect("one of two");
        assert!(
            one_of_two.starts_with("a votes in the directory without"),
            "{one_of_two}"
        );
        let both = told(&[&a, &node("d", false, true)]).expect("two voters, no folder");
        assert!(both.contains("its voters alone, a, d"), "{both}");
    }
}
