//! `staves group`: where buckets lie.

use serde::Serialize;
use staves_model::{ClusterMap, GroupId, NodeId, NodeState};
use staves_node::group_state::{GroupState, StreamState};

use crate::status::find_pool;
use clap::Subcommand;
use staves_cli_common::cluster::Cluster;
use staves_cli_common::failure::Failure;
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, Column, or_dash, properties, table};

#[derive(Subcommand, Debug)]
pub enum Group {
    /// All groups
    List {
        /// Of this pool only
        #[arg(long)]
        pool: Option<String>,
    },
    /// One group and its members
    Show {
        /// Its number, as 'staves group list' shows it
        #[arg(value_parser = group_number)]
        group: u32,
    },
}

fn group_number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| {
        "groups have numbers; 'staves group list' shows those there are, and 'staves memory show NAME' those of a region".to_owned()
    })
}

/// One group, as it is told.
#[derive(Serialize)]
struct GroupRow {
    group: u32,
    pool: String,
    bucket: u32,
    epoch: u64,
    state: &'static str,
    tolerates: Option<u8>,
    members: Vec<MemberReport>,
    /// Of a memory pool: the region that it is part of.
    region: Option<String>,
    /// The names of the nodes whose disks have it, where it serves nobody until one of them is back.
    awaited_disks: Vec<String>,
}

#[derive(Serialize)]
struct MemberReport {
    slot: u8,
    holds: &'static str,
    node: u64,
    name: String,
    /// The slot of the other member of the group that the node holds, if it holds two.
    beside: Option<u8>,
    up: bool,
    /// Of the member: `up`, `down`, or `restarted` if its node is up again, without what it held.
    state: &'static str,
    complete: bool,
    /// The member's own report, if it was asked and answered.
    says: Option<GroupState>,
}

pub fn run(cluster: &Cluster, command: &Group, out: Format) -> anyhow::Result<()> {
    match command {
        Group::List { pool } => {
            if let Some(pool) = pool {
                find_pool(&cluster.status()?, pool)?;
            }
            let rows: Vec<GroupRow> = rows(&*cluster.map()?)
                .filter(|row| pool.as_ref().is_none_or(|pool| row.pool == *pool))
                .collect();
            output::answer(out, &rows, |rows| output::columns(COLUMNS, rows))
        }
        Group::Show { group } => {
            let map = cluster.map()?;
            if !map.groups.contains_key(&GroupId(*group)) {
                let text =
                    format!("there is no group {group}; 'staves group list' shows those there are");
                return Err(Failure::NotInMap(text).into());
            }
            let mut rows: Vec<GroupRow> = rows(&map).filter(|row| row.group == *group).collect();
            for member in rows[0].members.iter_mut().filter(|member| member.up) {
                // One that does not answer is told without its figures.
                let node = map.nodes.get(&NodeId(member.node));
                let says = node.and_then(|n| cluster.group_state(n, GroupId(*group)).ok());
                member.says = says.and_then(|says| says.of_slot(member.slot));
            }
            output::answer(out, &rows[0], described)
        }
    }
}

fn rows(map: &ClusterMap) -> impl Iterator<Item = GroupRow> {
    map.groups.values().map(|group| GroupRow {
        group: group.id.0,
        pool: map
            .pools
            .get(&group.pool)
            .map_or("?".into(), |pool| pool.name.clone()),
        bucket: group.bucket,
        epoch: group.epoch.0,
        state: match (group.lost, group.open, group.epoch.0) {
            (true, ..) => "lost",
            (_, true, _) => "open",
            (_, false, 0) => "starting",
            (_, false, _) => "changing",
        },
        tolerates: group.tolerates(|id| map.runs(id)),
        members: group
            .listed()
            .map(|(slot, member)| MemberReport {
                slot: slot.0,
                holds: match (slot.0 < group.m, group.m) {
                    _ if group.bucket_slot(slot) != slot => "twin",
                    (true, 1) => "primary",
                    (false, 1) => "copy",
                    (true, _) => "data",
                    (false, _) => "parity",
                },
                node: member.id.node.0,
                name: map
                    .node_of(member)
                    .map_or("?".into(), |node| node.name.clone()),
                beside: {
                    let same = |(s, x): &(_, &staves_model::Member)| {
                        *s != slot && x.id.node == member.id.node
                    };
                    group.listed().find(same).map(|(slot, _)| slot.0)
                },
                up: map.runs(member.id),
                state: match map.nodes.get(&member.id.node).map(|node| node.state) {
                    _ if map.runs(member.id) => "up",
                    Some(NodeState::Up) => "restarted",
                    _ => "down",
                },
                // What a node that is down had is not there.
                complete: member.complete && map.runs(member.id),
                says: None,
            })
            .collect(),
        region: map
            .pools
            .get(&group.pool)
            .and_then(|pool| {
                pool.regions()
                    .iter()
                    .find(|r| r.groups().any(|g| g == group.id))
            })
            .map(|region| region.name.clone()),
        awaited_disks: awaited_disks(map, group),
    })
}

fn awaited_disks(map: &ClusterMap, group: &staves_model::Group) -> Vec<String> {
    let awaited = map.awaited_disks(group).into_iter();
    let nodes = awaited.filter_map(|node| map.nodes.get(&node));
    nodes.map(|node| node.name.clone()).collect()
}

const COLUMNS: &[Column<GroupRow>] = &[
    ("group ", |row| row.group.to_string()),
    ("pool", |row| row.pool.clone()),
    ("bucket ", |row| row.bucket.to_string()),
    ("epoch ", |row| row.epoch.to_string()),
    ("state", |row| row.state.into()),
    ("data", |row| names(row, &["primary", "data"])),
    ("parity", |row| names(row, &["copy", "parity", "twin"])),
];

fn names(row: &GroupRow, holds: &[&str]) -> String {
    let members = row.members.iter();
    let members = members.filter(|member| holds.contains(&member.holds));
    members.map(marked).collect::<Vec<_>>().join(" ")
}

/// A member's name, with a mark if it is not whole.
fn marked(member: &MemberReport) -> String {
    match (member.up, member.complete) {
        (false, _) => format!("{}({})", member.name, member.state),
        (true, false) => format!("{}(filling)", member.name),
        (true, true) => member.name.clone(),
    }
}

fn described(row: &GroupRow) -> String {
    let mut pairs = vec![
        ("group", row.group.to_string()),
        ("pool", row.pool.clone()),
        ("bucket", row.bucket.to_string()),
        ("epoch", row.epoch.to_string()),
        ("state", row.state.into()),
    ];
    pairs.extend(row.region.clone().map(|name| ("region", name)));
    let twice = row.members.iter().filter_map(|member| {
        let other = member.beside.filter(|other| *other < member.slot)?;
        let (name, slot) = (&member.name, member.slot);
        Some(format!(
            "{name} holds {slot} beside {other} until another node comes"
        ))
    });
    let twice: Vec<String> = twice.collect();
    if !twice.is_empty() {
        pairs.push(("for want of nodes", twice.join("; ")));
    }
    match row.tolerates {
        Some(nodes) => pairs.push(("nodes it may lose", nodes.to_string())),
        None => pairs.extend(loss(row)),
    }
    let head = properties(pairs);
    let members = row.members.iter().map(|member| {
        vec![
            member.slot.to_string(),
            member.holds.into(),
            format!("{} ({})", member.name, member.node),
            member.state.into(),
            if member.complete { "yes" } else { "no" }.into(),
            or_dash(member.says.as_ref().map(|says| says.epoch.to_string())),
            or_dash(member.says.as_ref().map(prefixes)),
            or_dash(member.says.as_ref().map(|says| lag(row, says).to_string())),
            or_dash(member.says.as_ref().map(recovered)),
        ]
    });
    format!(
        "{head}\n\n{}",
        table(
            &[
                "slot ", "holds", "node", "state", "complete", "epoch ", "prefixes", "behind ",
                "pages",
            ],
            members
        )
    )
}

/// The loss, and the remedy.
fn loss(row: &GroupRow) -> [(&'static str, String); 2] {
    if !row.awaited_disks.is_empty() {
        let nodes = row.awaited_disks.join(" or ");
        let waits = ("waits for", format!("{nodes}, with it on disk"));
        return [waits, ("what to do", format!("start {nodes}"))];
    }
    let whole = row
        .members
        .iter()
        .filter(|member| member.up && member.complete);
    let left = format!(
        "more members than the scheme bears; {} of {} are left",
        whole.count(),
        row.members.len()
    );
    let to_do = match &row.region {
        Some(region) => format!(
            "if a node was only cut off, bring it back; else 'staves memory delete {region}', make it anew and fill it"
        ),
        None => "bring back a node that was only cut off; else 'staves pool delete'".to_owned(),
    };
    [("lost", left), ("what to do", to_do)]
}

/// The prefix of each stream: all of them at parity, its own at a data bucket.
fn prefixes(says: &GroupState) -> String {
    let streams = says.streams.iter();
    let each = streams.map(|stream| format!("{}:{}", stream.stream, stream.prefix));
    each.collect::<Vec<_>>().join(" ")
}

/// Deltas that a data bucket has made and this member has not received, over all streams.
fn lag(row: &GroupRow, says: &GroupState) -> u64 {
    let made = |number: u8| {
        let data = row.members.iter().find(|member| member.slot == number)?;
        let own = data
            .says
            .as_ref()?
            .streams
            .iter()
            .find(|s| s.stream == number)?;
        Some(own.prefix)
    };
    let behind = |stream: &StreamState| {
        made(stream.stream).map_or(0, |made| made.saturating_sub(stream.prefix))
    };
    says.streams.iter().map(behind).sum()
}

fn recovered(says: &GroupState) -> String {
    match (says.missing_pages, says.pages) {
        (0, pages) => pages.to_string(),
        (missing, pages) => format!("{} of {pages}", pages.saturating_sub(missing)),
    }
}
