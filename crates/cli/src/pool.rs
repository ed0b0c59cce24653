//! `staves pool`: make, look at, change and delete pools.

use serde_json::json;
use staves_model::{Change, Medium, PoolKind};

use crate::args::{Format, Kind, Pool};
use crate::cluster::Cluster;
use crate::output::{self, bytes, or_dash, properties};
use crate::status::{self, find_pool};

pub fn run(cluster: &Cluster, command: &Pool, out: Format) -> anyhow::Result<()> {
    match command {
        Pool::List => {
            let report = cluster.status()?;
            output::answer(out, &report.pools, |pools| status::pools(pools))
        }
        Pool::Show { name } => show(cluster, name, out),
        Pool::Create {
            name,
            kind,
            scheme,
            memory,
            buckets,
            wait_when_lost,
        } => {
            cluster.propose(&Change::CreatePool {
                name: name.clone(),
                kind: match kind {
                    Kind::Cache => PoolKind::Cache,
                    Kind::Memory => PoolKind::Memory {
                        regions: Vec::new(),
                    },
                },
                scheme: *scheme,
                medium: Medium::Ram,
                node_budget_bytes: memory.0,
                buckets: if *kind == Kind::Cache { *buckets } else { 0 },
                may_start_empty: *kind == Kind::Cache && !wait_when_lost,
            })?;
            said(
                out,
                name,
                "created",
                &match kind {
                    Kind::Cache => format!("{scheme}, {buckets} buckets, {memory} of each node"),
                    Kind::Memory => format!(
                        "{scheme}, {memory} of each node; make regions in it with 'staves memory create'"
                    ),
                },
            )
        }
        Pool::Set {
            name,
            scheme,
            memory,
        } => {
            find_pool(&cluster.status()?, name)?;
            let change = Change::SetPool {
                name: name.clone(),
                scheme: *scheme,
                node_budget_bytes: memory.map(|size| size.0),
            };
            cluster.propose(&change)?;
            said(
                out,
                name,
                "set",
                "copies come and go while it serves; see 'staves status'",
            )
        }
        Pool::Delete { name } => {
            find_pool(&cluster.status()?, name)?;
            cluster.propose(&Change::DeletePool { name: name.clone() })?;
            said(out, name, "deleted", "all that it held is gone")
        }
    }
}

fn said(out: Format, name: &str, what: &str, then: &str) -> anyhow::Result<()> {
    let answer = json!({ "pool": name, "result": what });
    output::answer(out, &answer, |_| format!("pool '{name}': {what}; {then}"))
}

fn show(cluster: &Cluster, name: &str, out: Format) -> anyhow::Result<()> {
    let report = cluster.status()?;
    let pool = find_pool(&report, name)?;
    output::answer(out, pool, |pool| {
        properties([
            ("name", pool.name.clone()),
            ("kind", pool.kind.clone()),
            ("scheme", pool.scheme.clone()),
            ("copies possible now", pool.parity_possible.to_string()),
            ("medium", pool.medium.clone()),
            ("memory of each node", bytes(pool.node_budget_bytes)),
            (
                "when lost whole",
                if pool.may_start_empty {
                    "starts empty"
                } else {
                    "waits"
                }
                .into(),
            ),
            ("buckets", pool.buckets.to_string()),
            ("whole", pool.whole.to_string()),
            ("short", pool.short.to_string()),
            ("changing", pool.changing.to_string()),
            ("starting", pool.starting.to_string()),
            ("lost", pool.lost.to_string()),
            (
                "nodes it may lose",
                or_dash(pool.tolerates.map(|nodes| nodes.to_string())),
            ),
        ])
    })
}
