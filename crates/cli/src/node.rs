//! `staves node`: look at nodes, empty them, stop them, strike them.

mod forget;
mod units;

use std::time::{Duration, Instant};

use anyhow::bail;
use serde::Serialize;
use serde_json::json;
use staves_model::policy::{drain_waits_for, may_drain, no_room_after_drain, not_rebuilt};
use staves_model::{Change, ClusterMap, NodeState, ServiceId};
use staves_node::config::Millis;
use staves_node::status::{DiskFacts, NodeFacts, NodeStatus, StatusReport};
use staves_wire::ErrorCode;

use crate::status::{self, role};
use clap::Subcommand;
use staves_cli_common::cluster::{Cluster, find_node};
use staves_cli_common::codes::{Code, Own};
use staves_cli_common::failure::{self, Failure};
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, bytes, count, number, or_dash, properties, table};

#[derive(Subcommand, Debug)]
pub enum Node {
    /// All nodes
    List,
    /// One node, and which keys it holds
    Show {
        /// Its id or its name
        node: String,
    },
    /// Move a node's buckets elsewhere, so that it can be stopped
    Drain {
        /// Its id or its name
        node: String,
        /// Wait until it holds none, at most this long
        #[arg(long, value_name = "TIME")]
        wait: Option<Millis>,
        /// Even if the nodes that are left cannot hold its buckets, or not all copies of them
        #[arg(long)]
        force: bool,
    },
    /// Let a drained node have buckets again
    Resume {
        /// Its id or its name
        node: String,
    },
    /// Stop a node's process in good order, if what it holds is held by enough others
    Stop {
        /// Its id or its name
        node: String,
        /// Even if what it holds is lost by that
        #[arg(long)]
        force: bool,
    },
    /// Strike a node that will not come back
    Forget {
        /// Its id or its name
        node: String,
        /// Even if it is up: stop it if it answers, and wait until it is gone
        #[arg(long)]
        force: bool,
    },
}

/// The interval at which a drain that is waited for is looked at.
const LOOK: Duration = Duration::from_millis(200);

pub fn run(cluster: &Cluster, command: &Node, out: Format) -> anyhow::Result<()> {
    match command {
        Node::List => {
            let report = cluster.status()?;
            output::answer(out, &report.nodes, |nodes| status::nodes(nodes))
        }
        Node::Show { node } => show(cluster, node, out),
        Node::Drain { node, wait, force } => {
            let wait = wait.map(Millis::duration);
            drain(cluster, node, wait, *force, out)
        }
        Node::Resume { node } => {
            let map = cluster.map()?;
            let node = find_node(&map, node)?;
            cluster.drain(node.id, false)?;
            print_result(out, node, "resumed", "it takes buckets again", None)
        }
        Node::Stop { node, force } => {
            let map = cluster.map()?;
            let node = find_node(&map, node)?;
            if node.state == NodeState::Down {
                bail!("node {} ({}) is down already", node.id, node.name);
            }
            stop(cluster, &map, node, *force, out)
        }
        Node::Forget { node, force } => {
            let map = cluster.map()?;
            let node = find_node(&map, node)?;
            let was = forget::forget(cluster, node, *force)?;
            let left = match map.nodes.len() - 1 {
                1 => "1 node is left".to_owned(),
                n => format!("{n} nodes are left"),
            };
            let then = format!("{was}; its id is not used again; {left}");
            print_result(out, node, "forgotten", &then, None)
        }
    }
}

fn drain(
    cluster: &Cluster,
    wanted: &str,
    wait: Option<Duration>,
    force: bool,
    out: Format,
) -> anyhow::Result<()> {
    let until = cluster.until_looked();
    let (map, warning) = loop {
        let map = cluster.map()?;
        let node = find_node(&map, wanted)?;
        // Who drains already is not asked again whether it may.
        if force || node.draining {
            cluster.drain(node.id, true)?;
            break (map, None);
        }
        let warning = may_drain(&map, &cluster.status()?.usage(), node);
        let warning = warning.map_err(|refusal| {
            let who = format!("node {} ({}) cannot be drained", node.id, node.name);
            let text =
                format!("{who}: {refusal}; nothing was changed (--force drains all the same)");
            Failure::Own(Own::NeedsForce, text)
        })?;
        let warning = warning.map(|no_room| format!("the drain cannot end: {no_room}"));
        let (node, on) = (node.id, true);
        // Of two drains at once the second is judged by a map that has the first.
        match cluster.propose_on(&Change::Drain { node, on }, Some(map.revision)) {
            Ok(_) => break (map, warning),
            Err(error) if is_refused(&error) && Instant::now() < until => {
                std::thread::sleep(LOOK);
            }
            Err(error) => return Err(error),
        }
    };
    let node = find_node(&map, wanted)?;
    match wait {
        Some(wait) => {
            if let (Some(warning), Format::Table) = (warning, out) {
                output::say(format_args!("staves: warning: {warning}"));
            }
            wait_until_empty(cluster, node, wait, out)
        }
        None if holds(&map, node) == 0 => print_result(
            out,
            node,
            "drained",
            "it holds nothing and can be stopped",
            None,
        ),
        None => {
            let waits = drain_waits_for(&*cluster.map()?, node.id);
            let then = "its buckets move to others; see 'staves status'";
            let waits = waits.map(|waits| waits.to_string());
            print_result(out, node, "draining", then, waits.or(warning))
        }
    }
}

fn is_refused(error: &anyhow::Error) -> bool {
    matches!(failure::code(error), Code::Wire(ErrorCode::Refused))
}

fn stop(
    cluster: &Cluster,
    map: &ClusterMap,
    node: &staves_model::Node,
    force: bool,
    out: Format,
) -> anyhow::Result<()> {
    let report = cluster.status()?;
    cluster
        .stop(node, force)
        .map_err(|error| match is_refused(&error) {
            true => Failure::Own(Own::NeedsForce, why(&error)).into(),
            false => error,
        })?;
    let warning = after_stop(map, &report, node);
    let others = map.homes().any(|home| home.id != node.id);
    let until = cluster.until_looked();
    while cluster.answers(node) {
        if Instant::now() + LOOK >= until {
            let then = match others {
                true => "it hands over what it serves, then ends",
                false => "nobody is left to hand over to; it ends",
            };
            return print_result(out, node, "stopping", then, warning);
        }
        std::thread::sleep(LOOK);
    }
    let then = match others {
        true => "it has handed over what it served",
        false => "nobody was left to hand over to",
    };
    print_result(out, node, "stopped", then, warning)
}

/// The warning after a stop, if there is one.
fn after_stop(
    map: &ClusterMap,
    report: &StatusReport,
    node: &staves_model::Node,
) -> Option<String> {
    // Others that drain are on their way out, too.
    let drains = |id| map.nodes.get(&id).is_some_and(|n| n.draining);
    let left = node.draining.then(|| holds(map, node)).filter(|n| *n > 0);
    let left = left.map(|left| {
        let left = count(left, "bucket");
        format!("it was still being drained: {left} that it held are made anew by others")
    });
    let bears = map.after_stop(node.id, drains).warning(map);
    let room = not_rebuilt(map, &report.usage(), node).map(|found| found.to_string());
    let all: Vec<String> = [left, bears, room].into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// The node's own words, without who said them to what question.
fn why(error: &anyhow::Error) -> String {
    let text = error.to_string();
    let text = text.strip_suffix(" (refused)").unwrap_or(&text);
    let own = text.split_once(" refused node-stop: ");
    own.map_or(text, |(_, own)| own).to_owned()
}

fn print_result(
    out: Format,
    node: &staves_model::Node,
    what: &str,
    then: &str,
    warning: Option<String>,
) -> anyhow::Result<()> {
    let answer = json!({ "node": node.id.0, "name": node.name, "result": what });
    let line = format!("node {} ({}): {what}; {then}", node.id, node.name);
    output::changed(out, answer, line, warning)
}

/// Counts the buckets that a node holds, or that others still fetch from it.
fn holds(map: &ClusterMap, node: &staves_model::Node) -> usize {
    let held = map.groups.values().filter(|group| {
        let all = group.members.iter().chain(&group.last_open.members);
        let mut nodes = all.flatten().map(|x| (x.id.node, x.id.incarnation));
        nodes.any(|held| held == (node.id, node.incarnation))
    });
    held.count()
}

/// Waits until a drained node holds no bucket.
fn wait_until_empty(
    cluster: &Cluster,
    node: &staves_model::Node,
    wait: Duration,
    out: Format,
) -> anyhow::Result<()> {
    let until = Instant::now() + wait;
    let mut shown = None;
    loop {
        let map = cluster.map()?;
        let left = holds(&map, node);
        if left == 0 {
            return print_result(
                out,
                node,
                "drained",
                "it holds nothing and can be stopped",
                None,
            );
        }
        if !map.nodes.get(&node.id).is_some_and(|n| n.draining) {
            bail!(
                "node {} ({}) drains no more: its drain was taken back, or it was forgotten, with {} left to move",
                node.id,
                node.name,
                count(left, "bucket")
            );
        }
        // Programs have nothing to read on stderr but an error.
        if shown != Some(left) && out == Format::Table {
            let to_move = count(left, "bucket");
            output::say(format_args!(
                "node {} ({}): {to_move} to move",
                node.id, node.name
            ));
            shown = Some(left);
        }
        if Instant::now() >= until {
            let waits = drain_waits_for(&map, node.id).map(|waits| format!("; {waits}"));
            let room = || {
                let usage = cluster.status().ok()?.usage();
                Some(format!("; {}", no_room_after_drain(&map, &usage, node)?))
            };
            let waits = waits.or_else(room).unwrap_or_default();
            return Err(Failure::late(format!(
                "node {} still holds {} after {} s; it goes on draining{waits}",
                node.id,
                count(left, "bucket"),
                wait.as_secs()
            ))
            .into());
        }
        std::thread::sleep(LOOK);
    }
}

/// A run of hash slots that a node holds.
#[derive(Serialize)]
struct Span {
    pool: String,
    first: u16,
    last: u16,
    holds: &'static str,
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    node: NodeStatus,
    keys: Vec<Span>,
    units: Vec<units::HeldUnits>,
}

fn show(cluster: &Cluster, wanted: &str, out: Format) -> anyhow::Result<()> {
    let map = cluster.map()?;
    let node = find_node(&map, wanted)?;
    let report = cluster.status()?;
    let keys = match node.state {
        NodeState::Down => Vec::new(),
        NodeState::Up => cluster.key_range(node)?.spans,
    };
    let is_of_keys = |span: &&staves_wire::admin::KeySpan| {
        let pool = map.pools.get(&span.pool);
        pool.is_none_or(|pool| pool.kind.service() != Some(ServiceId::LOG))
    };
    let span = |span: &staves_wire::admin::KeySpan| Span {
        pool: map
            .pools
            .get(&span.pool)
            .map_or("?".into(), |pool| pool.name.clone()),
        first: span.first.0,
        last: span.last.0,
        holds: if span.data { "primary" } else { "copy" },
    };
    let shown = Shown {
        node: row(&report, node)?,
        keys: keys.iter().filter(is_of_keys).map(span).collect(),
        units: match node.state {
            NodeState::Down => Vec::new(),
            NodeState::Up => units::held(&map, node),
        },
    };
    output::answer(out, &shown, |shown| {
        let spans = shown.keys.iter().map(|span| {
            vec![
                span.pool.clone(),
                format!("{}-{}", span.first, span.last),
                span.holds.into(),
            ]
        });
        let spans = table(&["pool", "hash slots", "holds"], spans);
        let tables = [Some(spans), units::table(&shown.units)];
        let tables = tables.into_iter().flatten();
        let parts: Vec<_> = [described(&shown.node)].into_iter().chain(tables).collect();
        parts.join("\n\n")
    })
}

fn row(report: &StatusReport, node: &staves_model::Node) -> anyhow::Result<NodeStatus> {
    let found = report.nodes.iter().find(|row| row.id == node.id.0);
    found
        .cloned()
        .ok_or_else(|| Failure::NotInMap(format!("node {} has just gone", node.id)).into())
}

fn described(node: &NodeStatus) -> String {
    let mut pairs = vec![
        ("id", node.id.to_string()),
        ("name", node.name.clone()),
        ("state", node.state().into()),
        ("zone", or_dash(node.zone.clone())),
        ("native", node.native.clone()),
        ("resp", node.resp.clone()),
        ("admin", node.admin.clone()),
        ("directory", role(node).into()),
        (
            "data folder",
            if node.durable { "yes" } else { "no" }.into(),
        ),
        ("memory", bytes(node.memory_bytes)),
        ("primaries", node.primaries.to_string()),
        ("copies", node.copies.to_string()),
        ("filling", node.filling.to_string()),
    ];
    if let Some(facts) = &node.facts {
        pairs.extend([
            ("version", facts.version.clone()),
            ("nbd", or_dash(facts.nbd.clone())),
            ("grpc", or_dash(facts.grpc.clone())),
            ("http", or_dash(facts.http.clone())),
            ("uptime", format!("{} s", number(facts.uptime_ms / 1000))),
            ("keys", number(facts.keys)),
            ("live bytes", bytes(facts.live_bytes)),
            ("memory used", memory_used(facts)),
            ("disks", or_dash(disks_used(&facts.disks))),
            (
                "reads",
                format!(
                    "{}, {} found a value",
                    number(facts.reads),
                    number(facts.hits)
                ),
            ),
            ("writes", number(facts.writes)),
        ]);
    }
    properties(pairs)
}

/// The memory that 'staves status' counts as used, by what has it.
fn memory_used(facts: &NodeFacts) -> String {
    format!(
        "{} of {}: {} reserved by pools in memory, {} of blocks of files",
        bytes(facts.used_bytes + facts.files_bytes),
        bytes(facts.budget_bytes),
        bytes(facts.used_bytes),
        bytes(facts.files_bytes)
    )
}

/// All disks of a node together, as 'staves disk list' has each.
fn disks_used(disks: &[DiskFacts]) -> Option<String> {
    let all = DiskFacts::sum(disks);
    (!disks.is_empty()).then(|| {
        format!(
            "{}: {} of pages written, {} reserved by pools, of {}; {} of them in memory as well",
            count(disks.len(), "disk"),
            bytes(all.used_bytes),
            bytes(all.reserved_bytes),
            bytes(all.bytes),
            bytes(all.in_memory_bytes)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_stop_is_told_in_the_nodes_own_words() {
        let told = "10.0.0.5:1600 refused node-stop: node 5 (n5) cannot be stopped: why (refused)";
        let error = anyhow::anyhow!(told);
        assert_eq!(why(&error), "node 5 (n5) cannot be stopped: why");
        assert_eq!(why(&anyhow::anyhow!("as it is")), "as it is");
    }
}
