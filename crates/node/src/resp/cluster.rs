//! CLUSTER: the map in the words of Redis Cluster, so that cluster-aware clients send each key to the
//! node that serves it. They need not: every node takes every key.

use std::collections::BTreeMap;

use staves_model::{
    ClusterId, ClusterMap, Group, HASH_SLOTS, Node, NodeId, NodeState, Pool, hash_slot,
};

use super::facts::Facts;
use super::output::{Output, Protocol};
use super::parse::Args;
use super::session::{help, subcommand};

/// Answers a CLUSTER command.
pub(super) fn answer(
    args: Args<'_>,
    protocol: Protocol,
    facts: impl FnOnce() -> Facts,
    out: &mut Output,
) {
    match subcommand(args).as_str() {
        "keyslot" => out.integer(i64::from(hash_slot(args.at(2)).0)),
        "myid" => {
            let facts = facts();
            out.bulk(node_name(facts.map.cluster, facts.node).as_bytes());
        }
        "info" => out.text(protocol, &info(&facts())),
        "slots" => slots(&facts(), protocol, out),
        "shards" => shards(&facts(), protocol, out),
        "nodes" => out.text(protocol, &nodes(&facts())),
        _ => help("cluster", out),
    }
}

/// A node's id in the form that Redis Cluster's have: 40 hexadecimal digits.
pub(super) fn node_name(cluster: ClusterId, node: NodeId) -> String {
    format!("{:016x}{:024x}", cluster.0, node.0)
}

/// A run of slots and who serves it: the primary first, then the copies.
struct Range<'a> {
    first: u16,
    last: u16,
    nodes: Vec<&'a Node>,
}

/// The slots that have a running primary, neighbours with the same nodes joined.
fn ranges(facts: &Facts) -> Vec<Range<'_>> {
    let mut ranges: Vec<Range<'_>> = Vec::new();
    let Some(pool) = facts.pool() else {
        return ranges;
    };
    for bucket in 0..pool.groups.len() {
        let Some(nodes) = serving(&facts.map, pool, bucket) else {
            continue;
        };
        let (first, last) = slots_of(pool, bucket);
        if first > last {
            continue; // more buckets than slots
        }
        match ranges.last_mut() {
            Some(range) if range.last + 1 == first && same(&range.nodes, &nodes) => {
                range.last = last
            }
            _ => ranges.push(Range { first, last, nodes }),
        }
    }
    ranges
}

/// The slots `s` with `s * len / 16384 == bucket`, first and last.
fn slots_of(pool: &Pool, bucket: usize) -> (u16, u16) {
    let start = |bucket: usize| (bucket * usize::from(HASH_SLOTS)).div_ceil(pool.groups.len());
    let (first, end) = (start(bucket), start(bucket + 1));
    (first as u16, end.wrapping_sub(1) as u16)
}

fn same(a: &[&Node], b: &[&Node]) -> bool {
    a.iter().map(|n| n.id).eq(b.iter().map(|n| n.id))
}

fn serving<'a>(map: &'a ClusterMap, pool: &Pool, bucket: usize) -> Option<Vec<&'a Node>> {
    let group = map.groups.get(&pool.groups[bucket])?;
    let primary = group.members.first().copied().flatten()?;
    if !is_well(group) || !map.is_up(primary.node, primary.incarnation) {
        return None;
    }
    let members = group.members.iter().flatten();
    let up = members.filter(|m| map.is_up(m.node, m.incarnation));
    Some(up.filter_map(|m| map.nodes.get(&m.node)).collect())
}

fn is_well(group: &Group) -> bool {
    group.open && !group.lost
}

/// `host:port`, as the node advertises its RESP door.
fn address(node: &Node) -> (&str, i64) {
    let (host, port) = node.resp.rsplit_once(':').unwrap_or((&node.resp, "0"));
    (host.trim_matches(['[', ']']), port.parse().unwrap_or(0))
}

fn info(facts: &Facts) -> String {
    let ranges = ranges(facts);
    let ok: u32 = ranges.iter().map(|r| u32::from(r.last - r.first) + 1).sum();
    let all = u32::from(HASH_SLOTS);
    // Without a majority of the directory nothing can be repaired, and most keys soon stop answering.
    let state = match ok == all && !facts.directory_silent {
        true => "ok",
        false => "fail",
    };
    let mut primaries: Vec<NodeId> = ranges
        .iter()
        .filter_map(|r| r.nodes.first())
        .map(|n| n.id)
        .collect();
    primaries.sort_unstable();
    primaries.dedup();
    let revision = facts.map.revision;
    [
        format!("cluster_state:{state}"),
        format!(
            "cluster_slots_assigned:{}",
            if facts.pool().is_some() { all } else { 0 }
        ),
        format!("cluster_slots_ok:{ok}"),
        "cluster_slots_pfail:0".into(),
        format!("cluster_slots_fail:{}", all - ok),
        format!("cluster_known_nodes:{}", facts.map.nodes.len()),
        format!("cluster_size:{}", primaries.len()),
        format!("cluster_current_epoch:{revision}"),
        format!("cluster_my_epoch:{revision}"),
        String::new(),
    ]
    .join("\r\n")
}

fn slots(facts: &Facts, protocol: Protocol, out: &mut Output) {
    let ranges = ranges(facts);
    out.array(ranges.len());
    for range in ranges {
        out.array(2 + range.nodes.len());
        out.integer(i64::from(range.first));
        out.integer(i64::from(range.last));
        for node in range.nodes {
            let (host, port) = address(node);
            out.array(4);
            out.bulk(host.as_bytes());
            out.integer(port);
            out.bulk(node_name(facts.map.cluster, node.id).as_bytes());
            out.map(protocol, 0);
        }
    }
}

/// One shard for each distinct set of nodes.
fn shards(facts: &Facts, protocol: Protocol, out: &mut Output) {
    let mut shards: BTreeMap<Vec<NodeId>, Vec<Range<'_>>> = BTreeMap::new();
    for range in ranges(facts) {
        let ids = range.nodes.iter().map(|n| n.id).collect();
        shards.entry(ids).or_default().push(range);
    }
    out.array(shards.len());
    for ranges in shards.values() {
        out.map(protocol, 2);
        out.bulk(b"slots");
        out.array(2 * ranges.len());
        for range in ranges {
            out.integer(i64::from(range.first));
            out.integer(i64::from(range.last));
        }
        out.bulk(b"nodes");
        out.array(ranges[0].nodes.len());
        for (place, node) in ranges[0].nodes.iter().enumerate() {
            shard_node(facts, node, place == 0, protocol, out);
        }
    }
}

fn shard_node(facts: &Facts, node: &Node, primary: bool, protocol: Protocol, out: &mut Output) {
    let (host, port) = address(node);
    let name = node_name(facts.map.cluster, node.id);
    let role = if primary { "master" } else { "replica" };
    let texts = [
        ("id", name.as_str()),
        ("ip", host),
        ("endpoint", host),
        ("role", role),
        ("health", "online"),
    ];
    out.map(protocol, texts.len() + 2);
    for (key, value) in texts {
        out.bulk(key.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"port");
    out.integer(port);
    out.bulk(b"replication-offset");
    out.integer(0);
}

/// Every node is a master here: each serves some slots and holds copies of others.
fn nodes(facts: &Facts) -> String {
    let mut owned: BTreeMap<NodeId, Vec<String>> = BTreeMap::new();
    for range in ranges(facts) {
        let text = if range.first == range.last {
            range.first.to_string()
        } else {
            format!("{}-{}", range.first, range.last)
        };
        owned.entry(range.nodes[0].id).or_default().push(text);
    }
    let line = |node: &Node| {
        let (host, port) = address(node);
        let bus = node.native.rsplit_once(':').map_or("0", |(_, port)| port);
        let up = node.state == NodeState::Up;
        let me = if node.id == facts.node { "myself," } else { "" };
        let fail = if up { "" } else { ",fail" };
        let link = if up { "connected" } else { "disconnected" };
        let name = node_name(facts.map.cluster, node.id);
        let slots = owned
            .get(&node.id)
            .map(|s| format!(" {}", s.join(" ")))
            .unwrap_or_default();
        format!(
            "{name} {host}:{port}@{bus} {me}master{fail} - 0 0 {} {link}{slots}\n",
            facts.map.revision
        )
    };
    facts.map.nodes.values().map(line).collect()
}
