//! `staves group`: where buckets lie.

use serde::Serialize;
use staves_model::{ClusterMap, GroupId};

use crate::args::{Format, Group};
use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::output::{self, properties, table};
use crate::status::find_pool;

/// One group, as it is told.
#[derive(Serialize)]
struct Row {
    group: u32,
    pool: String,
    bucket: u32,
    epoch: u64,
    state: &'static str,
    tolerates: Option<u8>,
    members: Vec<Member>,
}

#[derive(Serialize)]
struct Member {
    slot: u8,
    holds: &'static str,
    node: u64,
    name: String,
    up: bool,
    complete: bool,
}

pub fn run(cluster: &Cluster, command: &Group, out: Format) -> anyhow::Result<()> {
    match command {
        Group::List { pool } => {
            if let Some(pool) = pool {
                find_pool(&cluster.status()?, pool)?;
            }
            let rows: Vec<Row> = rows(&cluster.map()?)
                .filter(|row| pool.as_ref().is_none_or(|pool| row.pool == *pool))
                .collect();
            output::answer(out, &rows, |rows| {
                let headings = [
                    "group ", "pool", "bucket ", "epoch ", "state", "primary", "copies",
                ];
                table(&headings, rows.iter().map(listed))
            })
        }
        Group::Show { group } => {
            let map = cluster.map()?;
            if !map.groups.contains_key(&GroupId(*group)) {
                let text =
                    format!("there is no group {group}; 'staves group list' shows those there are");
                return Err(Failure::NotFound(text).into());
            }
            let rows: Vec<Row> = rows(&map).filter(|row| row.group == *group).collect();
            output::answer(out, &rows[0], described)
        }
    }
}

fn rows(map: &ClusterMap) -> impl Iterator<Item = Row> {
    map.groups.values().map(|group| Row {
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
        tolerates: group.tolerates(|node, incarnation| map.is_up(node, incarnation)),
        members: group
            .listed()
            .map(|(slot, member)| Member {
                slot: slot.0,
                holds: if slot.0 < group.m { "primary" } else { "copy" },
                node: member.node.0,
                name: map
                    .nodes
                    .get(&member.node)
                    .map_or("?".into(), |node| node.name.clone()),
                up: map.is_up(member.node, member.incarnation),
                complete: member.complete,
            })
            .collect(),
    })
}

fn listed(row: &Row) -> Vec<String> {
    let names = |holds: &str| {
        let members = row.members.iter().filter(|member| member.holds == holds);
        members.map(marked).collect::<Vec<_>>().join(" ")
    };
    vec![
        row.group.to_string(),
        row.pool.clone(),
        row.bucket.to_string(),
        row.epoch.to_string(),
        row.state.into(),
        names("primary"),
        names("copy"),
    ]
}

/// A member's name, with a mark if it is not whole.
fn marked(member: &Member) -> String {
    let mark = match (member.up, member.complete) {
        (false, _) => "(down)",
        (true, false) => "(filling)",
        (true, true) => "",
    };
    format!("{}{mark}", member.name)
}

fn described(row: &Row) -> String {
    let tolerates = row
        .tolerates
        .map_or("its data is lost".into(), |nodes| nodes.to_string());
    let head = properties([
        ("group", row.group.to_string()),
        ("pool", row.pool.clone()),
        ("bucket", row.bucket.to_string()),
        ("epoch", row.epoch.to_string()),
        ("state", row.state.into()),
        ("members it may lose", tolerates),
    ]);
    let members = row.members.iter().map(|member| {
        vec![
            member.slot.to_string(),
            member.holds.into(),
            format!("{} ({})", member.name, member.node),
            if member.up { "up" } else { "down" }.into(),
            if member.complete { "yes" } else { "no" }.into(),
        ]
    });
    format!(
        "{head}\n\n{}",
        table(&["slot ", "holds", "node", "state", "complete"], members)
    )
}
