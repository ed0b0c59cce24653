//! `staves pool`: make, look at, change and delete pools.

mod copies;
mod held;
mod shares;
mod uses;

use serde_json::json;
use staves_model::policy::{
    NoSuchOption, bears_less, disk_overcommitted, holds_usage, new_pool_shape, overcommitted,
};
use staves_model::{Change, ClusterMap, Holdings, Medium, NodeId, PoolKind, Scheme, ServiceId};
use staves_node::config::Size;
use staves_node::status::{DirectoryFacts, StatusReport};
use staves_wire::ErrorCode;

use self::copies::{copies_of, writes_wait, wrong_copies};
use self::held::held;
use self::shares::{most_of_each, reserved};
pub use self::uses::{goes_on, in_use};
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
        /// Its contents
        #[arg(long, value_enum, default_value = "cache")]
        kind: KindName,
        /// One primary and so many copies; for memory, so many data and so many parity buckets; 1+2 if not given (files have none: they come from their source again)
        #[arg(long)]
        scheme: Option<Scheme>,
        /// Medium of its bytes; on disk only of kind memory or log
        #[arg(long, value_enum, default_value = "ram")]
        medium: MediumName,
        /// Memory that each node may give to it; of a pool on disk, room on its disk
        #[arg(long, value_name = "SIZE")]
        memory: Size,
        /// Buckets: a power of two; if not given 64, for files 1024, for logs 8, which are the units that records are spread over (those of memory come with its regions)
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
        buckets: Option<u32>,
        /// Let a bucket that is lost whole wait for its members instead of starting empty (those of memory and logs always do)
        #[arg(long)]
        wait_when_lost: bool,
        /// Have writes wait while a bucket has fewer complete copies, instead of going on with less: 2 bears the loss of one node at any time. With parity it is the losses of nodes that are borne while writes go on, and one: 2 waits where none is borne. Not of files
        #[arg(long, default_value = "1", value_parser = copies_of)]
        min_copies: u8,
    },
    /// All pools
    List,
    /// One pool
    Show {
        /// Its name
        name: String,
    },
    /// Change a pool while it serves
    #[command(group = ArgGroup::new("what").required(true).multiple(true).args(["scheme", "memory", "min_copies"]))]
    Set {
        /// Its name
        name: String,
        /// One primary and so many copies
        #[arg(long)]
        scheme: Option<Scheme>,
        /// Memory that each node may give to it; of a pool on disk, room on its disk
        #[arg(long, value_name = "SIZE")]
        memory: Option<Size>,
        /// Have writes wait while a bucket has fewer complete copies; 1 never waits. With parity it is the losses of nodes that are borne while writes go on, and one. Not of files
        #[arg(long, value_parser = copies_of)]
        min_copies: Option<u8>,
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

/// The kind of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum KindName {
    /// Keys and values
    Cache,
    /// Regions of flat bytes
    Memory,
    /// Blocks of files that come from a source
    Files,
    /// Records of logs, in order
    Log,
}

/// The medium of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum MediumName {
    /// The memory of nodes
    Ram,
    /// The disks of nodes
    Disk,
}

impl From<MediumName> for Medium {
    fn from(name: MediumName) -> Medium {
        match name {
            MediumName::Ram => Medium::Ram,
            MediumName::Disk => Medium::Disk,
        }
    }
}

/// The options of a pool that may be changed later.
struct PoolOptions {
    scheme: Option<Scheme>,
    memory: Option<Size>,
    min_copies: Option<u8>,
}

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
            medium,
            memory,
            buckets,
            wait_when_lost,
            min_copies,
        } => {
            let asked = PoolOptions {
                scheme: *scheme,
                memory: Some(*memory),
                min_copies: Some(*min_copies),
            };
            let waits = matches!(kind, KindName::Memory | KindName::Log) || *wait_when_lost;
            let how = (*medium, *buckets, waits);
            create(cluster, (name, kind), &asked, how, out)
        }
        Pool::Set {
            name,
            scheme,
            memory,
            min_copies,
            yes,
        } => {
            let asked = PoolOptions {
                scheme: *scheme,
                memory: *memory,
                min_copies: *min_copies,
            };
            set(cluster, name, &asked, *yes, out)
        }
        Pool::Delete { name, yes } => delete(cluster, name, *yes, out),
    }
}

fn create(
    cluster: &Cluster,
    (name, kind): (&str, &KindName),
    asked: &PoolOptions,
    (medium, buckets, waits_when_lost): (MediumName, Option<u32>, bool),
    out: Format,
) -> anyhow::Result<()> {
    let pool_kind = kind_of(kind);
    let (scheme, buckets) = shape(&pool_kind, asked.scheme, buckets)?;
    let copies = asked.min_copies.unwrap_or(1);
    if let Some(text) = wrong_copies(name, kind, scheme, copies) {
        return Err(Failure::Own(Own::Usage, text).into());
    }
    let memory = asked.memory.unwrap_or(Size(0));
    cluster.propose(&Change::CreatePool {
        name: name.to_owned(),
        kind: pool_kind,
        scheme,
        medium: medium.into(),
        node_budget_bytes: memory.0,
        buckets,
        may_start_empty: !waits_when_lost,
    })?;
    if copies > 1 {
        cluster.propose(&copies_min(name, copies))?;
    }
    let then = made(name, kind, scheme, buckets, memory);
    let warnings = warnings(&*cluster.map()?, name);
    print_result(out, name, "created", &then, &warnings)
}

fn kind_of(kind: &KindName) -> PoolKind {
    match kind {
        KindName::Cache => PoolKind::Cache,
        KindName::Memory => PoolKind::Memory {
            regions: Vec::new(),
        },
        KindName::Files => PoolKind::Files(Holdings::default()),
        KindName::Log => PoolKind::Slots(ServiceId::LOG),
    }
}

/// The scheme and the buckets of a new pool, asked for or usual.
fn shape(
    kind: &PoolKind,
    scheme: Option<Scheme>,
    buckets: Option<u32>,
) -> Result<(Scheme, u32), Failure> {
    new_pool_shape(kind, scheme, buckets).map_err(|wrong| {
        let text = match wrong {
            NoSuchOption::BucketsOfMemory => {
                "a memory pool takes no --buckets: they come with its regions"
            }
            NoSuchOption::SchemeOfFiles => {
                "a files pool takes no --scheme: what is lost of it comes from its source again"
            }
        };
        Failure::Own(Own::Usage, text.into())
    })
}

/// Describes a new pool, and the next step.
fn made(name: &str, kind: &KindName, scheme: Scheme, buckets: u32, memory: Size) -> String {
    let buckets = count(buckets, "bucket");
    match kind {
        KindName::Cache => format!("{scheme}, {buckets}, {memory} of each node"),
        KindName::Memory => format!(
            "{scheme}, {memory} of each node; make regions in it with 'staves memory create NAME --pool {name}', volumes with 'staves volume create NAME --pool {name}'"
        ),
        KindName::Files => format!(
            "{buckets}, {memory} of each node; show files from it with 'staves mount SOURCE DIR --pool {name}'"
        ),
        KindName::Log => format!("{scheme}, {buckets}, {memory} of each node: 'staves log create'"),
    }
}

fn copies_min(pool: &str, copies: u8) -> Change {
    Change::SetCopiesMin {
        pool: pool.to_owned(),
        copies,
    }
}

fn set(
    cluster: &Cluster,
    name: &str,
    asked: &PoolOptions,
    yes: bool,
    out: Format,
) -> anyhow::Result<()> {
    let (scheme, memory) = (asked.scheme, asked.memory);
    let report = cluster.status()?;
    find_pool(&report, name)?;
    let map = cluster.map()?;
    let now = map.pool_named(name).map(|pool| pool.scheme);
    let bears_less = now
        .zip(scheme)
        .and_then(|(now, then)| bears_less(now, then));
    if let (Some(less), Some(Scheme { k: 0, .. }), false) = (&bears_less, scheme, yes) {
        let would = format!("pool '{name}' would bear {less}");
        let not_done = format!("pool '{name}' was not set");
        confirmed(cluster, &would, "Set it?", "sets it", &not_done, out)?;
    }
    if let Some(memory) = memory {
        let holds = holds_usage(&map, &report.usage(), name, memory.0);
        holds.map_err(|refusal| Failure::Wire(ErrorCode::Refused, refusal.to_string()))?;
    }
    let copies = asked.min_copies.map(|copies| copies_min(name, copies));
    let pool = (scheme.is_some() || memory.is_some()).then(|| Change::SetPool {
        name: name.to_owned(),
        scheme,
        node_budget_bytes: memory.map(|size| size.0),
    });
    // Of both, the one first that the other may need.
    let fewer = now.is_some_and(|now| scheme.is_some_and(|then| then.k < now.k));
    let mut changes = [pool, copies];
    if fewer {
        changes.reverse();
    }
    for change in changes.iter().flatten() {
        cluster.propose(change)?;
    }
    let then = "copies come and go while it serves; see 'staves status'";
    let less = bears_less.map(|less| format!("pool '{name}' bears {less}"));
    let mut all: Vec<String> = less.into_iter().collect();
    all.extend(warnings(&*cluster.map()?, name));
    print_result(out, name, "set", then, &all)
}

/// The ways in which a pool has less than it asks for: nodes for its scheme, and memory that others may take too.
fn warnings(map: &ClusterMap, name: &str) -> Vec<String> {
    let report = StatusReport::new(map, NodeId(0), DirectoryFacts::default(), []);
    let pool = report.pools.iter().find(|pool| pool.name == name);
    let lacks = pool.and_then(|pool| report.lacks(pool));
    let over = [overcommitted(map), disk_overcommitted(map)];
    let over = over.into_iter().flatten().map(|over| over.to_string());
    lacks.into_iter().chain(over).collect()
}

fn delete(cluster: &Cluster, name: &str, yes: bool, out: Format) -> anyhow::Result<()> {
    let report = cluster.status()?;
    let has_sources = find_pool(&report, name)?.has_sources();
    let map = cluster.map()?;
    let datasets = map.pool_named(name).and_then(|pool| pool.holdings());
    let datasets = datasets.map_or(&[][..], |h| &h.datasets);
    let used = in_use(&report, |dataset| {
        datasets.iter().any(|d| d.name == dataset)
    });
    let held = held(&map, name);
    if !yes {
        let what = match (&used, &held) {
            (Some(used), _) => format!("pool '{name}', which is in use ({used}),"),
            (None, Some(held)) => format!("pool '{name}' with {held}"),
            (None, None) => format!("pool '{name}'"),
        };
        confirm(cluster, &what, out)?;
    }
    cluster.propose(&Change::DeletePool {
        name: name.to_owned(),
    })?;
    let then = match (has_sources, held) {
        (true, _) => {
            "its memory is free; the files are where they always were, in their sources".to_owned()
        }
        (false, None) => "all that it held is gone".to_owned(),
        (false, Some(held)) => format!("all that it held is gone: {held}"),
    };
    let used: Vec<String> = used.map(goes_on).into_iter().collect();
    print_result(out, name, "deleted", &then, &used)
}

fn print_result(
    out: Format,
    name: &str,
    what: &str,
    then: &str,
    warnings: &[String],
) -> anyhow::Result<()> {
    let warning = (!warnings.is_empty()).then(|| warnings.join("; "));
    let answer = json!({ "pool": name, "result": what });
    let line = format!("pool '{name}': {what}; {then}");
    output::changed(out, answer, line, warning)
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
            (most_of_each(pool), bytes(pool.node_budget_bytes)),
            ("reserved there now", reserved(&report, &pool.name)),
            (
                "when lost whole",
                if pool.may_start_empty {
                    "starts empty"
                } else {
                    "waits"
                }
                .into(),
            ),
            ("writes wait for", writes_wait(pool)),
            ("buckets", pool.buckets.to_string()),
            ("whole", pool.whole.to_string()),
            ("short", pool.short.to_string()),
            ("changing", pool.changing.to_string()),
            ("starting", pool.starting.to_string()),
            ("lost", pool.lost.to_string()),
            (
                "nodes it may lose",
                match pool.has_sources() {
                    true => "all: what they held of files is fetched again from the sources".into(),
                    false => status::may_lose(pool),
                },
            ),
        ])
    })
}
