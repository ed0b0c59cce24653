//! CLUSTER: the map in the words of Redis Cluster, so that cluster-aware clients send each key to the
//! node that serves it.
//!
//! SLOTS, SHARDS and NODES are made from one list of slot ranges and so cannot disagree. Every node is a
//! master: it serves some slots and holds copies of others. Copies are not listed: they answer no reads, and
//! clients keep one role a node, so that a node listed as a replica of one range would not be taken for the
//! master of the next. As in Redis, a dead node keeps its slots until another has been promoted, and is
//! listed as `fail`.

use std::collections::BTreeMap;

use staves_model::{ClusterId, HASH_SLOTS, Node, NodeId, NodeState, Pool, hash_slot};

use super::facts::Facts;
use super::output::{Output, Protocol};
use super::parse::{Args, integer};
use super::redirect::{Owner, address, owner};
use super::subcommand::{help, subcommand};

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
        "replicas" | "slaves" => replicas(args.at(2), &facts(), out),
        "countkeysinslot" | "getkeysinslot" => keys_in_slot(args, out),
        _ => help("cluster", out),
    }
}

/// A node's id in the form that Redis Cluster's have: 40 hexadecimal digits.
pub(super) fn node_name(cluster: ClusterId, node: NodeId) -> String {
    format!("{cluster}{:024x}", node.0)
}

/// A run of slots that one node serves.
struct Range<'a> {
    first: u16,
    last: u16,
    owner: Owner<'a>,
}

impl Range<'_> {
    fn len(&self) -> u32 {
        u32::from(self.last - self.first) + 1
    }
}

/// The slots that somebody serves, in order; neighbours that are `alike` are one range.
fn ranges(facts: &Facts, alike: fn(&Owner<'_>, &Owner<'_>) -> bool) -> Vec<Range<'_>> {
    let mut ranges: Vec<Range<'_>> = Vec::new();
    let Some(pool) = facts.pool() else {
        return ranges;
    };
    for bucket in 0..pool.groups.len() {
        let Some(owner) = owner(&facts.map, pool, bucket) else {
            continue;
        };
        let (first, last) = slots_of(pool, bucket);
        if first > last {
            continue; // more buckets than slots
        }
        match ranges.last_mut() {
            Some(range) if range.last + 1 == first && alike(&range.owner, &owner) => {
                range.last = last;
            }
            _ => ranges.push(Range { first, last, owner }),
        }
    }
    ranges
}

/// Compares ranges by the node that serves them, in whatever state it is.
fn by_node(a: &Owner<'_>, b: &Owner<'_>) -> bool {
    a.node.id == b.node.id
}

/// The slots `s` with `s * len / 16384 == bucket`, first and last.
fn slots_of(pool: &Pool, bucket: usize) -> (u16, u16) {
    let start = |bucket: usize| (bucket * usize::from(HASH_SLOTS)).div_ceil(pool.groups.len());
    let (first, end) = (start(bucket), start(bucket + 1));
    (first as u16, end.wrapping_sub(1) as u16)
}

/// The answer to CLUSTER INFO.
///
/// Slots whose node is dead, or that no node serves, fail. Those of an epoch that is not open yet are "possibly failing":
/// requests for them wait.
fn info(facts: &Facts) -> String {
    let ranges = ranges(facts, |a, b| {
        by_node(a, b) && (a.up, a.open) == (b.up, b.open)
    });
    let count = |holds: fn(&Owner<'_>) -> bool| -> u32 {
        let those = ranges.iter().filter(|r| holds(&r.owner));
        those.map(Range::len).sum()
    };
    let all = facts.pool().map_or(0, |_| u32::from(HASH_SLOTS));
    let ok = count(|owner| owner.up && owner.open);
    let waiting = count(|owner| owner.up && !owner.open);
    let fail = all - ok - waiting;
    // Without a majority of the directory nothing can be repaired, and most keys soon stop answering.
    let whole = all > 0 && fail == 0 && !facts.directory_silent;
    let state = if whole { "ok" } else { "fail" };
    let mut primaries: Vec<NodeId> = ranges.iter().map(|r| r.owner.node.id).collect();
    primaries.sort_unstable();
    primaries.dedup();
    let revision = facts.map.revision;
    let lines = [
        format!("cluster_state:{state}"),
        format!("cluster_slots_assigned:{all}"),
        format!("cluster_slots_ok:{ok}"),
        format!("cluster_slots_pfail:{waiting}"),
        format!("cluster_slots_fail:{fail}"),
        format!("cluster_known_nodes:{}", facts.map.nodes.len()),
        format!("cluster_size:{}", primaries.len()),
        format!("cluster_current_epoch:{revision}"),
        format!("cluster_my_epoch:{revision}"),
        // Nodes speak the native protocol with each other; there is no bus to count messages on.
        "cluster_stats_messages_sent:0".into(),
        "cluster_stats_messages_received:0".into(),
        "total_cluster_links_buffer_limit_exceeded:0".into(),
    ];
    lines.map(|line| line + "\r\n").concat()
}

fn slots(facts: &Facts, protocol: Protocol, out: &mut Output) {
    let ranges = ranges(facts, by_node);
    out.array(ranges.len());
    for range in ranges {
        let (host, port) = address(range.owner.node);
        out.array(3);
        out.integer(i64::from(range.first));
        out.integer(i64::from(range.last));
        out.array(4);
        out.bulk(host.as_bytes());
        out.integer(port);
        out.bulk(node_name(facts.map.cluster, range.owner.node.id).as_bytes());
        out.map(protocol, 0);
    }
}

/// Each node's slots, by node.
fn owned(facts: &Facts) -> BTreeMap<NodeId, Vec<(u16, u16)>> {
    let mut owned: BTreeMap<NodeId, Vec<(u16, u16)>> = BTreeMap::new();
    for range in ranges(facts, by_node) {
        let slots = owned.entry(range.owner.node.id).or_default();
        slots.push((range.first, range.last));
    }
    owned
}

/// Returns whether another node that is up has this one's address now: it came back under a new id.
fn is_replaced(facts: &Facts, node: &Node) -> bool {
    let takes = |other: &Node| other.state == NodeState::Up && other.resp == node.resp;
    node.state == NodeState::Down && facts.map.nodes.values().any(takes)
}

/// A shard for each node: those that share a shard in Redis serve the same slots, and no two here do.
fn shards(facts: &Facts, protocol: Protocol, out: &mut Output) {
    let owned = owned(facts);
    let nodes = facts.map.nodes.values();
    let nodes: Vec<&Node> = nodes.filter(|n| !is_replaced(facts, n)).collect();
    out.array(nodes.len());
    for node in nodes {
        let slots = owned.get(&node.id).map_or(&[][..], Vec::as_slice);
        out.map(protocol, 2);
        out.bulk(b"slots");
        out.array(2 * slots.len());
        for (first, last) in slots {
            out.integer(i64::from(*first));
            out.integer(i64::from(*last));
        }
        out.bulk(b"nodes");
        out.array(1);
        shard_node(facts, node, protocol, out);
    }
}

/// In the order of Redis's fields.
fn shard_node(facts: &Facts, node: &Node, protocol: Protocol, out: &mut Output) {
    let (host, port) = address(node);
    let name = node_name(facts.map.cluster, node.id);
    let health = match node.state {
        NodeState::Up => "online",
        NodeState::Down => "fail",
    };
    let text = |key: &str, value: &str, out: &mut Output| {
        out.bulk(key.as_bytes());
        out.bulk(value.as_bytes());
    };
    out.map(protocol, 7);
    text("id", &name, out);
    out.bulk(b"port");
    out.integer(port);
    text("ip", host, out);
    text("endpoint", host, out);
    text("role", "master", out);
    out.bulk(b"replication-offset");
    out.integer(0);
    text("health", health, out);
}

fn nodes(facts: &Facts) -> String {
    let owned = owned(facts);
    let line = |node: &Node| {
        let up = node.state == NodeState::Up;
        let me = if node.id == facts.node { "myself," } else { "" };
        let (address, flags) = if is_replaced(facts, node) {
            (":0@0".into(), "master,fail,noaddr")
        } else {
            let (host, port) = address(node);
            let bus = node.native.rsplit_once(':').map_or("0", |(_, port)| port);
            let flags = if up { "master" } else { "master,fail" };
            (format!("{host}:{port}@{bus}"), flags)
        };
        let name = node_name(facts.map.cluster, node.id);
        let link = if up { "connected" } else { "disconnected" };
        let revision = facts.map.revision;
        let mut line = format!("{name} {address} {me}{flags} - 0 0 {revision} {link}");
        for (first, last) in owned.get(&node.id).into_iter().flatten() {
            line += &match first == last {
                true => format!(" {first}"),
                false => format!(" {first}-{last}"),
            };
        }
        line + "\n"
    };
    facts.map.nodes.values().map(line).collect()
}

/// No node is a replica of another.
fn replicas(name: &[u8], facts: &Facts, out: &mut Output) {
    let cluster = facts.map.cluster;
    let mut names = facts.map.nodes.keys().map(|id| node_name(cluster, *id));
    if names.any(|known| known.as_bytes().eq_ignore_ascii_case(name)) {
        return out.array(0);
    }
    let name = String::from_utf8_lossy(&name[..name.len().min(128)]);
    out.error(&format!("ERR Unknown node {name}"));
}

fn keys_in_slot(args: Args<'_>, out: &mut Output) {
    match integer(args.at(2)) {
        None => out.error("ERR value is not an integer or out of range"),
        Some(slot) if !(0..i64::from(HASH_SLOTS)).contains(&slot) => {
            out.error("ERR Invalid slot");
        }
        Some(_) => out.error(
            "ERR COUNTKEYSINSLOT and GETKEYSINSLOT are not supported: keys are kept by bucket, which is \
             many hash slots; DBSIZE counts keys, and 'staves status' those of each node",
        ),
    }
}
