//! `staves pool`: make, look at, change and delete pools.

use std::collections::BTreeSet;

use serde_json::json;
use staves_model::{Change, ClusterMap, Holdings, Medium, PoolKind, Scheme};
use staves_node::config::Size;
use staves_node::status::{NodeStatus, StatusReport};
use staves_wire::ErrorCode;

use crate::confirm::{confirm, confirmed};
use crate::status::{self, find_pool};
use clap::{ArgGroup, Subcommand, ValueEnum};
use staves_cli_common::cluster::Cluster;
use staves_cli_common::codes::Own;
use staves_cli_common::failure::Failure;
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, bytes, count, properties};

#[derive(Subcommand, Debug)]
pub enum Pool {
    /// Make a pool
    Create {
        /// Its name
        name: String,
        /// What it holds
        #[arg(long, value_enum, default_value = "cache")]
        kind: Kind,
        /// One primary and so many copies; for memory, so many data and so many parity buckets; 1+2 if not given (files have none:
        /// they come from their source again)
        #[arg(long)]
        scheme: Option<Scheme>,
        /// Memory that each node may give to it
        #[arg(long, value_name = "SIZE")]
        memory: Size,
        /// Buckets: a power of two; if not given 64, for files 1024 (those of memory come with its regions)
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
        buckets: Option<u32>,
        /// When a bucket is lost whole, wait for its members instead of starting empty
        #[arg(long)]
        wait_when_lost: bool,
    },
    /// All pools
    List,
    /// One pool
    Show {
        /// Its name
        name: String,
    },
    /// Change a pool while it serves
    #[command(group = ArgGroup::new("what").required(true).multiple(true).args(["scheme", "memory"]))]
    Set {
        /// Its name
        name: String,
        /// One primary and so many copies
        #[arg(long)]
        scheme: Option<Scheme>,
        /// Memory that each node may give to it
        #[arg(long, value_name = "SIZE")]
        memory: Option<Size>,
        /// Do not ask where a scheme without copies or parity is to bear no loss any more
        #[arg(long)]
        yes: bool,
    },
    /// Delete a pool with all that it holds
    Delete {
        /// Its name
        name: String,
        /// Do not ask; needed where there is no terminal to ask on
        #[arg(long)]
        yes: bool,
    },
}

/// What a pool holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Kind {
    /// Keys and values
    Cache,
    /// Regions of flat bytes
    Memory,
    /// Blocks of files that come from a source
    Files,
}

/// Buckets of a cache for which none were asked.
const BUCKETS: u32 = 64;
/// The same for files: a small multiple of the nodes that there may be.
const FILES_BUCKETS: u32 = 1024;
/// The scheme of a pool for which none was asked.
const SCHEME: Scheme = Scheme { m: 1, k: 2 };

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
            let (scheme, buckets) = shape(kind, *scheme, *buckets)?;
            cluster.propose(&Change::CreatePool {
                name: name.clone(),
                kind: kind_of(kind),
                scheme,
                medium: Medium::Ram,
                node_budget_bytes: memory.0,
                buckets,
                may_start_empty: *kind != Kind::Memory && !wait_when_lost,
            })?;
            let then = made(name, kind, scheme, buckets, *memory);
            said(out, name, "created", &then, overcommitted(&cluster.map()?))
        }
        Pool::Set {
            name,
            scheme,
            memory,
            yes,
        } => set(cluster, name, (*scheme, *memory), *yes, out),
        Pool::Delete { name, yes } => delete(cluster, name, *yes, out),
    }
}

fn kind_of(kind: &Kind) -> PoolKind {
    match kind {
        Kind::Cache => PoolKind::Cache,
        Kind::Memory => PoolKind::Memory {
            regions: Vec::new(),
        },
        Kind::Files => PoolKind::Files(Holdings::default()),
    }
}

/// The scheme and the buckets of a new pool, asked for or usual.
fn shape(
    kind: &Kind,
    scheme: Option<Scheme>,
    buckets: Option<u32>,
) -> Result<(Scheme, u32), Failure> {
    let wrong = match (kind, scheme, buckets) {
        (Kind::Memory, _, Some(_)) => {
            "a memory pool takes no --buckets: they come with its regions"
        }
        (Kind::Files, Some(_), _) => {
            "a files pool takes no --scheme: what is lost of it comes from its source again"
        }
        (Kind::Memory, ..) => return Ok((scheme.unwrap_or(SCHEME), 0)),
        (Kind::Cache, ..) => return Ok((scheme.unwrap_or(SCHEME), buckets.unwrap_or(BUCKETS))),
        (Kind::Files, ..) => return Ok((Scheme { m: 1, k: 0 }, buckets.unwrap_or(FILES_BUCKETS))),
    };
    Err(Failure::Own(Own::Usage, wrong.into()))
}

/// What a new pool is, and what to do with it.
fn made(name: &str, kind: &Kind, scheme: Scheme, buckets: u32, memory: Size) -> String {
    let buckets = count(buckets, "bucket");
    match kind {
        Kind::Cache => format!("{scheme}, {buckets}, {memory} of each node"),
        Kind::Memory => format!(
            "{scheme}, {memory} of each node; make regions in it with 'staves memory create'"
        ),
        Kind::Files => format!(
            "{buckets}, {memory} of each node; show files from it with 'staves mount SOURCE DIR --pool {name}'"
        ),
    }
}

fn set(
    cluster: &Cluster,
    name: &str,
    (scheme, memory): (Option<Scheme>, Option<Size>),
    yes: bool,
    out: Format,
) -> anyhow::Result<()> {
    let report = cluster.status()?;
    find_pool(&report, name)?;
    let now = cluster.map()?.pool_named(name).map(|pool| pool.scheme);
    let bears_less = now
        .zip(scheme)
        .and_then(|(now, then)| bears_less(now, then));
    if let (Some(less), Some(Scheme { k: 0, .. }), false) = (&bears_less, scheme, yes) {
        let would = format!("pool '{name}' would bear {less}");
        let not_done = format!("pool '{name}' was not set");
        confirmed(&would, "Set it?", "sets it", &not_done, out)?;
    }
    if let Some(memory) = memory {
        holds_what_is_there(&report, name, memory.0)?;
    }
    let change = Change::SetPool {
        name: name.to_owned(),
        scheme,
        node_budget_bytes: memory.map(|size| size.0),
    };
    cluster.propose(&change)?;
    let then = "copies come and go while it serves; see 'staves status'";
    let warning = memory.map(|_| cluster.map()).transpose()?;
    let warning = warning.and_then(|map| overcommitted(&map));
    let less = bears_less.map(|less| format!("pool '{name}' bears {less}"));
    let warnings: Vec<String> = less.into_iter().chain(warning).collect();
    let warning = (!warnings.is_empty()).then(|| warnings.join("; "));
    said(out, name, "set", then, warning)
}

fn delete(cluster: &Cluster, name: &str, yes: bool, out: Format) -> anyhow::Result<()> {
    let report = cluster.status()?;
    let kind = &find_pool(&report, name)?.kind;
    let map = cluster.map()?;
    let datasets = map.pool_named(name).and_then(|pool| pool.holdings());
    let datasets = datasets.map_or(&[][..], |h| &h.datasets);
    let used = in_use(&report, |dataset| {
        datasets.iter().any(|d| d.name == dataset)
    });
    if !yes {
        let what = match &used {
            Some(used) => format!("pool '{name}', which is in use ({used}),"),
            None => format!("pool '{name}'"),
        };
        confirm(&what, out)?;
    }
    cluster.propose(&Change::DeletePool {
        name: name.to_owned(),
    })?;
    let then = match kind.as_str() {
        "files" => "its memory is free; the files are where they always were, in their sources",
        _ => "all that it held is gone",
    };
    said(out, name, "deleted", then, used.map(goes_on))
}

/// Which mounts use datasets, as far as they told a node lately.
pub fn in_use(report: &StatusReport, which: impl Fn(&str) -> bool) -> Option<String> {
    let facts = report.nodes.iter().filter_map(|node| node.facts.as_ref());
    let uses = facts.flat_map(|facts| &facts.uses);
    let mounts: BTreeSet<&str> = uses
        .filter(|one| which(&one.dataset))
        .map(|one| one.by.as_str())
        .collect();
    let mounts: Vec<&str> = mounts.into_iter().collect();
    (!mounts.is_empty()).then(|| format!("mounted at {}", mounts.join(", ")))
}

/// What becomes of mounts whose memory is taken away.
pub fn goes_on(mounted: String) -> String {
    format!(
        "it is still {mounted}: what is read there comes from the source from now on, as slowly as that is"
    )
}

/// What a pool does not bear any more with a scheme of fewer copies or less parity.
fn bears_less(now: Scheme, then: Scheme) -> Option<String> {
    (now.m == then.m && then.k < now.k).then(|| match then.k {
        0 => format!("no loss at all with {then}: what a node holds of it is gone with the node"),
        k => format!(
            "the loss of {} with {then}, and not of {} any more",
            count(k, "node"),
            now.k
        ),
    })
}

/// A pool is given no less of each node than it takes of one already: nothing would be freed by it, and what
/// is lost next would find no memory to be rebuilt in.
fn holds_what_is_there(report: &StatusReport, name: &str, budget: u64) -> Result<(), Failure> {
    let used = |node: &NodeStatus| {
        let pools = node.facts.iter().flat_map(|facts| &facts.pools);
        let of_pool = pools.filter(|pool| pool.pool == name);
        of_pool.map(|pool| pool.used_bytes).max().unwrap_or(0)
    };
    let over: Vec<&NodeStatus> = report.nodes.iter().filter(|n| used(n) > budget).collect();
    let Some(most) = over.iter().max_by_key(|node| used(node)) else {
        return Ok(());
    };
    let others = match over.len() - 1 {
        0 => String::new(),
        1 => " (and of 1 other node more than that budget, too)".to_owned(),
        n => format!(" (and of {n} other nodes more than that budget, too)"),
    };
    let text = format!(
        "pool '{name}' cannot do with {} of each node: it takes {} of node {} ({}) now{others}; give it {} or more, \
         or delete some of what it holds first; nothing was changed",
        bytes(budget),
        bytes(used(most)),
        most.id,
        most.name,
        Size(used(most))
    );
    Err(Failure::Wire(ErrorCode::Refused, text))
}

fn said(
    out: Format,
    name: &str,
    what: &str,
    then: &str,
    warning: Option<String>,
) -> anyhow::Result<()> {
    let mut answer = json!({ "pool": name, "result": what });
    if let Some(warning) = warning {
        output::warn(out, &mut answer, warning);
    }
    output::answer(out, &answer, |_| format!("pool '{name}': {what}; {then}"))
}

/// Whether the pools together may take more of a node than it has: then the first to come has it.
fn overcommitted(map: &ClusterMap) -> Option<String> {
    let pools: u64 = map.pools.values().map(|pool| pool.node_budget_bytes).sum();
    let least = map.nodes.values().min_by_key(|node| node.memory_bytes)?;
    (pools > least.memory_bytes).then(|| {
        format!(
            "all pools together may take {} of each node, and node {} ({}) has {}: who comes first has it",
            bytes(pools),
            least.id,
            least.name,
            bytes(least.memory_bytes)
        )
    })
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
                match pool.kind.as_str() {
                    "files" => "all: its files are in their sources".to_owned(),
                    _ => status::may_lose(pool),
                },
            ),
        ])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_model::{ClusterId, NodeId};
    use staves_node::status::{DirectoryFacts, NodeFacts, PoolFacts};

    #[test]
    fn a_scheme_that_bears_less_is_told_of() {
        let scheme = |text: &str| text.parse::<Scheme>().expect("a scheme");
        let told = |now, then| bears_less(scheme(now), scheme(then));
        assert_eq!((told("1+1", "1+1"), told("4+1", "4+2")), (None, None));
        let one = told("4+2", "4+1").expect("less");
        assert!(
            one.contains("1 node with 4+1") && one.contains("not of 2"),
            "{one}"
        );
        assert!(told("2+1", "2+0").is_some_and(|none| none.starts_with("no loss at all with 2+0")));
    }

    /// Regression: a pool was set below what it took; the next loss was then not rebuilt.
    #[test]
    fn a_budget_below_what_is_used_is_refused() {
        let mut map = ClusterMap::default();
        let cluster = ClusterId(1);
        map.apply(None, &Change::Bootstrap { cluster })
            .expect("new");
        let facts = [(1, 10 << 20), (2, 40 << 20), (3, 20 << 20)].map(|(node, used_bytes)| {
            let up = Change::NodeUp {
                id: None,
                name: format!("n{node}"),
                zone: None,
                native: format!("n{node}:1600"),
                resp: format!("n{node}:6379"),
                admin: format!("n{node}:1680"),
                memory_bytes: 1 << 30,
                durable: true,
            };
            map.apply(None, &up).expect("new");
            let of = |pool: &str, used_bytes| PoolFacts {
                pool: pool.into(),
                used_bytes,
                budget_bytes: 64 << 20,
            };
            NodeFacts {
                node,
                pools: vec![of("other", 60 << 20), of("mem", used_bytes)],
                ..NodeFacts::default()
            }
        });
        let report = StatusReport::new(&map, NodeId(1), DirectoryFacts::default(), facts);
        assert_eq!(holds_what_is_there(&report, "mem", 40 << 20), Ok(()));
        let refused = holds_what_is_there(&report, "mem", 16 << 20).expect_err("too small");
        let text = refused.to_string();
        for part in [
            "'mem'",
            "16.0 MiB",
            "40.0 MiB of node 2 (n2)",
            "1 other node",
            "40MiB or",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
