//! `staves files`: datasets, what of them is in memory, and bringing them there.

mod preload;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use clap::Subcommand;
use serde_json::json;
use staves_client::{Dataset, Kind, OpenFile, SourceError};
use staves_model::{Change, ClusterMap, NodeId, Pin, Pool, PoolId};
use staves_node::status::{NodeStatus, StatusReport};
use staves_wire::Message;
use staves_wire::files::{ALL_BUCKETS, FileId, FileKeys, FileKeysAnswer};

use crate::args::{Args, Format};
use crate::cluster::Cluster;
use crate::confirm::confirmed;
use crate::explain::Own;
use crate::failure::Failure;
use crate::memory::{Session, failed, no_source};
use crate::output::{self, bytes, table};
use crate::pool::{goes_on, in_use};

/// Folders within folders that are followed.
const DEPTH_MAX: usize = 64;
/// Bytes of a block, and of a part of it.
const BLOCK_BYTES: u64 = staves_store::blocks::BLOCK_BYTES as u64;
const PART_BYTES: u64 = staves_store::blocks::PART_BYTES as u64;

#[derive(Subcommand, Debug)]
pub enum Files {
    /// All datasets
    List,
    /// One dataset: its files, and how much of each is in memory
    Show {
        /// Its name
        dataset: String,
    },
    /// Bring files into memory before anybody reads them; what is there already is not fetched again. It fails if not all of them are in
    /// memory then, and says why
    Preload {
        /// The dataset
        dataset: String,
        /// Files and folders of it; everything if none is given
        #[arg(value_name = "PATH")]
        paths: Vec<String>,
        /// Keep them there: they are not evicted, and fetched again when a node is lost; refused if they do not fit
        #[arg(long)]
        pin: bool,
    },
    /// Let pinned files be evicted again
    Unpin {
        /// The dataset
        dataset: String,
        /// Files and folders of it; everything if none is given
        #[arg(value_name = "PATH")]
        paths: Vec<String>,
    },
    /// Forget a dataset: its blocks go when room is needed
    Drop {
        /// Its name
        dataset: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

pub fn run(args: &Args, command: &Files) -> anyhow::Result<()> {
    let out = args.output;
    let session = Session::open(args)?;
    match command {
        Files::List => list(&session, out),
        Files::Show { dataset } => show(args, &session, dataset, out),
        Files::Preload {
            dataset,
            paths,
            pin,
        } => preload::run(&session, dataset, paths, *pin, out),
        Files::Unpin { dataset, paths } => unpin(&session, dataset, paths, out),
        Files::Drop { dataset, yes } => {
            let cluster = Cluster::connect(&args.cluster, args.deadline.duration())?;
            drop_dataset(&session, &cluster, dataset, *yes, out)
        }
    }
}

fn drop_dataset(
    session: &Session,
    cluster: &Cluster,
    dataset: &str,
    yes: bool,
    out: Format,
) -> anyhow::Result<()> {
    let map = session.wait(session.client.refresh())?;
    known(&map, dataset)?;
    let used = in_use(&cluster.status()?, |name| name == dataset);
    if !yes {
        let used = used.as_ref().map(|used| format!(" (it is {used})"));
        let would = format!(
            "dataset '{dataset}'{} would be forgotten with what of it is in memory; its source stays as it is",
            used.unwrap_or_default()
        );
        let not_done = format!("dataset '{dataset}' was not dropped");
        confirmed(&would, "Drop it?", "drops it", &not_done, out)?;
    }
    let name = dataset.to_owned();
    session.wait(session.client.propose(&Change::DropDataset { name }))?;
    let mut told = json!({ "dataset": dataset, "result": "dropped" });
    if let Some(used) = used {
        output::warn(out, &mut told, goes_on(used));
    }
    output::answer(out, &told, |_| format!("dataset '{dataset}' is dropped"))
}

fn unpin(session: &Session, dataset: &str, paths: &[String], out: Format) -> anyhow::Result<()> {
    let map = session.wait(session.client.refresh())?;
    let pins = pins(known(&map, dataset)?, dataset);
    let wanted: Vec<Vec<u8>> = paths
        .iter()
        .map(|path| within(path))
        .collect::<Result<_, _>>()?;
    let below = |pin: &Pin, path: &Vec<u8>| {
        let rest = pin.path.strip_prefix(&path[..]);
        path.is_empty() || rest.is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
    };
    for path in &wanted {
        if !pins.iter().any(|pin| below(pin, path)) {
            is_there(session, dataset, path)?;
        }
    }
    let is_below = |pin: &&Pin| wanted.is_empty() || wanted.iter().any(|path| below(pin, path));
    let goes: Vec<&Pin> = pins.into_iter().filter(is_below).collect();
    let sum: u64 = goes.iter().map(|pin| pin.size).sum();
    if !goes.is_empty() {
        session.wait(session.client.propose(&Change::UnpinFiles {
            dataset: dataset.to_owned(),
            paths: goes.iter().map(|pin| pin.path.clone()).collect(),
        }))?;
    }
    let told =
        json!({ "dataset": dataset, "files": goes.len(), "bytes": sum, "result": "unpinned" });
    output::answer(out, &told, |_| match goes.len() {
        0 => "nothing of that is pinned".to_owned(),
        files => format!("{files} files with {} are not pinned any more", bytes(sum)),
    })
}

/// Refuses what the dataset has not: a slip, most likely. Whoever cannot look there is not held up.
fn is_there(session: &Session, dataset: &str, path: &[u8]) -> anyhow::Result<()> {
    match open(session, dataset).map(|data| data.stat(path)) {
        Ok(Err(error @ SourceError::NotFound { .. })) => Err(no_source(error)),
        _ => Ok(()),
    }
}

/// The pool of a dataset.
fn known<'a>(map: &'a ClusterMap, name: &str) -> anyhow::Result<&'a Pool> {
    map.dataset(name).map(|(pool, _)| pool).ok_or_else(|| {
        let text =
            format!("there is no dataset '{name}'; 'staves files list' shows those there are");
        Failure::NotFound(text).into()
    })
}

fn pins<'a>(pool: &'a Pool, dataset: &str) -> Vec<&'a Pin> {
    let all = pool.holdings().into_iter().flat_map(|h| &h.pins);
    all.filter(|pin| pin.dataset == dataset).collect()
}

/// A path within a dataset, as its source has it.
/// A dataset's source, in the words that the map has for it.
fn source_of(data: &Dataset) -> String {
    let (_, map) = data.pool();
    let known = map.dataset(data.name());
    known.map_or_else(String::new, |(_, entry)| entry.source.clone())
}

/// A path within the dataset, also if it was given as its source has it.
fn below_source<'a>(data: &Dataset, path: &'a str) -> &'a str {
    let source = source_of(data);
    let below = path.strip_prefix(source.trim_end_matches('/'));
    below
        .filter(|rest| rest.is_empty() || rest.starts_with('/'))
        .unwrap_or(path)
}

fn within(path: &str) -> anyhow::Result<Vec<u8>> {
    if path.split('/').any(|word| word == "..") {
        let text = format!(
            "'{path}' leads out of the dataset's folder: give a path within it, without '..'"
        );
        return Err(Failure::Own(Own::Usage, text).into());
    }
    let words = path.split('/').filter(|word| !matches!(*word, "" | "."));
    Ok(words.collect::<Vec<_>>().join("/").into_bytes())
}

fn list(session: &Session, out: Format) -> anyhow::Result<()> {
    let map = session.wait(session.client.refresh())?;
    let mut rows = Vec::new();
    for pool in map.pools.values() {
        for dataset in pool.holdings().iter().flat_map(|h| &h.datasets) {
            let pinned = pins(pool, &dataset.name);
            let sum: u64 = pinned.iter().map(|pin| pin.size).sum();
            rows.push((dataset, &pool.name, pinned.len(), sum));
        }
    }
    let all: Vec<_> = rows
        .iter()
        .map(|(dataset, pool, files, sum)| {
            json!({
                "dataset": dataset.name, "pool": pool, "source": dataset.source,
                "pinned_files": files, "pinned_bytes": sum,
            })
        })
        .collect();
    output::answer(out, &all, |_| {
        let rows = rows.iter().map(|(dataset, pool, _, sum)| {
            let (name, source) = (dataset.name.clone(), dataset.source.clone());
            vec![name, pool.to_string(), bytes(*sum), source]
        });
        table(&["dataset", "pool", "pinned ", "source"], rows)
    })
}

/// A dataset by name, as the map has it.
fn open(session: &Session, name: &str) -> anyhow::Result<Dataset> {
    let map = session.wait(session.client.refresh())?;
    let pool = known(&map, name)?;
    let (_, dataset) = map.dataset(name).expect("its pool is known");
    let data = session.client.dataset(&pool.name, name, &dataset.source);
    session.runtime.block_on(data).map_err(failed)
}

/// A file that was found.
struct Found {
    file: OpenFile,
    /// It changed just then, so that nodes do not keep it yet.
    fresh: bool,
}

impl Found {
    fn path(&self) -> String {
        String::from_utf8_lossy(&self.file.version().path).into_owned()
    }
}

/// All files below some paths of a dataset, opened.
fn files_below(data: &Dataset, paths: &[String]) -> anyhow::Result<Vec<Found>> {
    let mut todo: Vec<(Vec<u8>, usize)> = match paths {
        [] => vec![(Vec::new(), 0)],
        paths => paths
            .iter()
            .map(|path| Ok((within(below_source(data, path))?, 0)))
            .collect::<anyhow::Result<_>>()?,
    };
    let mut files = Vec::new();
    let mut seen = BTreeSet::new();
    while let Some((path, depth)) = todo.pop() {
        let stat = data.stat(&path).map_err(no_source)?;
        match stat.kind {
            Kind::File { fresh, .. } => {
                if seen.insert(path.clone()) {
                    let file = data.open(&path);
                    let file = file.map_err(no_source)?;
                    files.push(Found { file, fresh });
                }
            }
            Kind::Folder if depth < DEPTH_MAX => {
                let names = data.list(&path);
                for (name, _) in names.map_err(no_source)? {
                    let below = match path.is_empty() {
                        true => name,
                        false => [&path[..], b"/", &name].concat(),
                    };
                    todo.push((below, depth + 1));
                }
            }
            // Links are shown, never followed; that one was asked for by its name must be said.
            Kind::Link(to) if depth == 0 => {
                let text = format!(
                    "{} is a link to {}: give the path of what it leads to, if that is in the dataset",
                    String::from_utf8_lossy(&path),
                    String::from_utf8_lossy(&to)
                );
                return Err(Failure::Own(Own::Usage, text).into());
            }
            Kind::Folder | Kind::Link(_) => {}
        }
    }
    files.sort_by(|a, b| a.file.version().path.cmp(&b.file.version().path));
    Ok(files)
}

/// What is in memory.
#[derive(Default)]
struct Held {
    /// By file and block: the parts that each node has.
    files: BTreeMap<FileId, BTreeMap<u32, BTreeMap<NodeId, u32>>>,
    /// Nodes that are up and did not say what they have.
    silent: Vec<NodeId>,
}

fn held(session: &Session, map: &ClusterMap, pool: PoolId) -> Held {
    let mut held = Held::default();
    for node in map
        .nodes
        .values()
        .filter(|n| map.is_up(n.id, n.incarnation))
    {
        let ask = Message::FileKeys(FileKeys {
            pool,
            bucket: ALL_BUCKETS,
        });
        let until = Instant::now() + Duration::from_secs(5);
        let answer = session
            .runtime
            .block_on(session.client.ask(node.id, ask, until));
        let Ok(Message::FileKeysAnswer(FileKeysAnswer { keys, .. })) = answer else {
            held.silent.push(node.id);
            continue;
        };
        for key in keys {
            let blocks = held.files.entry(key.file).or_default();
            blocks
                .entry(key.block)
                .or_default()
                .insert(node.id, key.parts);
        }
    }
    held
}

impl Held {
    fn silence(&self) -> String {
        let nodes: Vec<String> = self.silent.iter().map(ToString::to_string).collect();
        format!(
            "node {} did not say what it has: there may be more in memory",
            nodes.join(", ")
        )
    }

    /// Whether not all of a file is in memory.
    fn lacks(&self, file: &OpenFile) -> bool {
        self.here(file) < file.size()
    }

    /// Bytes of a file that any node has.
    fn here(&self, file: &OpenFile) -> u64 {
        self.bytes(file, |nodes| {
            nodes.values().fold(0, |all, parts| all | parts)
        })
    }

    /// Bytes of a file that each node has.
    fn by_node(&self, file: &OpenFile) -> BTreeMap<NodeId, u64> {
        let blocks = self.files.get(&file.id()).into_iter().flatten();
        let nodes: BTreeSet<NodeId> = blocks.flat_map(|(_, by)| by.keys().copied()).collect();
        let of = |node| self.bytes(file, |by| by.get(&node).copied().unwrap_or(0));
        nodes.into_iter().map(|node| (node, of(node))).collect()
    }

    fn bytes(&self, file: &OpenFile, parts: impl Fn(&BTreeMap<NodeId, u32>) -> u32) -> u64 {
        let blocks = self.files.get(&file.id()).into_iter().flatten();
        let bytes = blocks.map(|(block, by)| parts_bytes(file.size(), *block, parts(by)));
        bytes.sum()
    }
}

/// Bytes of some parts of a block of a file that ends where it does.
fn parts_bytes(size: u64, block: u32, parts: u32) -> u64 {
    let start = u64::from(block) * BLOCK_BYTES;
    let there = (0..32u64).filter(|part| parts & 1 << part != 0);
    there
        .map(|part| {
            size.saturating_sub(start + part * PART_BYTES)
                .min(PART_BYTES)
        })
        .sum()
}

fn show(args: &Args, session: &Session, name: &str, out: Format) -> anyhow::Result<()> {
    let data = open(session, name)?;
    let (pool, map) = data.pool();
    let held = held(session, &map, pool);
    let pinned = pins(known(&map, name)?, name);
    let is_pinned = |file: &OpenFile| {
        let of = file.version();
        let mut pins = pinned.iter();
        pins.any(|pin| pin.path == of.path && pin.version == of.version && pin.size == of.size)
    };
    let files = files_below(&data, &[])?;
    let rows: Vec<_> = files
        .iter()
        .map(|found| {
            let file = &found.file;
            (found, held.here(file), held.by_node(file), is_pinned(file))
        })
        .collect();
    let size: u64 = files.iter().map(|found| found.file.size()).sum();
    let here: u64 = rows.iter().map(|(_, here, ..)| here).sum();
    let mut told = json!({
        "dataset": name,
        "bytes": size,
        "in_memory_bytes": here,
        "files": rows.iter().map(|(found, here, nodes, pinned)| json!({
            "path": found.path(), "bytes": found.file.size(), "in_memory_bytes": here, "pinned": pinned,
            "nodes": nodes.keys().map(|n| n.0).collect::<Vec<_>>(),
            "node_bytes": nodes.iter().map(|(n, b)| (n.to_string(), *b)).collect::<BTreeMap<_, _>>(),
        })).collect::<Vec<_>>(),
    });
    let mut warnings = Vec::new();
    if !held.silent.is_empty() {
        warnings.push(held.silence());
    }
    let lacks = |(found, here, _, pinned): &(&Found, u64, _, bool)| {
        let lacks = *pinned && *here < found.file.size();
        lacks.then(|| found.path())
    };
    let lacking: BTreeSet<String> = rows.iter().filter_map(lacks).collect();
    if !lacking.is_empty() {
        let cluster = Cluster::connect(&args.cluster, args.deadline.duration())?;
        warnings.push(lacks_pinned(&cluster.status()?, name, &lacking));
    }
    if !warnings.is_empty() {
        output::warn(out, &mut told, warnings.join("; "));
    }
    output::answer(out, &told, |_| {
        let lines = rows.iter().map(|(found, here, nodes, pinned)| {
            let file = &found.file;
            let share = |(node, bytes): (&NodeId, &u64)| {
                format!("{node}: {}", percent(*bytes, file.size()))
            };
            let nodes: Vec<String> = nodes.iter().map(share).collect();
            vec![
                found.path(),
                bytes(file.size()),
                percent(*here, file.size()),
                if *pinned { "yes" } else { "" }.to_owned(),
                nodes.join(", "),
            ]
        });
        let files = table(
            &["file", "size ", "in memory ", "pinned", "on nodes"],
            lines,
        );
        format!(
            "{files}\n{} of {} in memory ({})",
            bytes(here),
            bytes(size),
            percent(here, size)
        )
    })
}

/// That these pinned files are not all in memory, and why, as far as nodes say.
fn lacks_pinned(report: &StatusReport, dataset: &str, lacking: &BTreeSet<String>) -> String {
    let facts = |node: &NodeStatus| node.facts.clone().unwrap_or_default().lacking;
    let said = report.nodes.iter().find_map(|node| {
        let mut facts = facts(node).into_iter();
        let lack = facts.find(|lack| lack.dataset == dataset && lacking.contains(&lack.path))?;
        Some(format!("{} of {}: {}", lack.path, node.name, lack.why))
    });
    let why = said.unwrap_or_else(|| "nodes fetch them now".to_owned());
    let files = output::count(lacking.len(), "pinned file");
    format!("{files} not all in memory ({why}); it is tried again by itself")
}

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "100 %".to_owned(),
        // What is not all there is never told as all.
        _ if part < whole => format!("{} %", u128::from(part) * 100 / u128::from(whole)),
        _ => "100 %".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_memory_is_counted_to_the_byte() {
        let size = BLOCK_BYTES + PART_BYTES + 100;
        assert_eq!(parts_bytes(size, 0, 0b101), 2 * PART_BYTES);
        assert_eq!(parts_bytes(size, 1, 0b11), PART_BYTES + 100);
        assert_eq!(parts_bytes(size, 1, 0b10), 100);
        assert_eq!(parts_bytes(size, 2, 0b1), 0);
        assert_eq!(
            (percent(999, 1000), percent(1000, 1000)),
            ("99 %".into(), "100 %".into())
        );
    }

    /// Regression: `../etc` was refused as something that a link leads to.
    #[test]
    fn a_path_that_leads_out_is_named_as_such() {
        for path in ["../etc", "a/../../b", "/..", "a/.."] {
            let error = within(path).unwrap_err().to_string();
            assert!(error.contains("leads out"), "{path}: {error}");
        }
        for (path, is) in [
            ("/a//b/", "a/b"),
            ("./a", "a"),
            ("/", ""),
            ("..a/b..", "..a/b.."),
        ] {
            assert_eq!(within(path).unwrap(), is.as_bytes(), "{path}");
        }
    }
}
