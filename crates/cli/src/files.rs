//! `staves files`: datasets, what of them is in memory, and bringing them there.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Subcommand;
use serde_json::json;
use staves_client::{Dataset, Kind, OpenFile};
use staves_model::{Change, ClusterMap, NodeId, PoolId};
use staves_wire::Message;
use staves_wire::files::{ALL_BUCKETS, FILE_BYTES_MAX, FileId, FileKeys, FileKeysAnswer};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::args::{Args, Format};
use crate::confirm::confirm;
use crate::explain::Own;
use crate::failure::Failure;
use crate::memory::{Session, failed};
use crate::output::{self, bytes, table};

/// Stretches that a preload fetches at a time.
const AT_ONCE: usize = 8;
/// How often a preload says how far it is: on a terminal, and elsewhere.
const TELL: Duration = Duration::from_millis(200);
const TELL_SELDOM: Duration = Duration::from_secs(5);
/// Folders within folders that are followed.
const DEPTH_MAX: usize = 64;
/// Bytes of a part.
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
    /// Bring files into memory before anybody reads them; what is there already is not fetched again
    Preload {
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
        Files::Show { dataset } => show(&session, dataset, out),
        Files::Preload { dataset, paths } => preload(&session, dataset, paths, out),
        Files::Drop { dataset, yes } => {
            open(&session, dataset)?;
            if !yes {
                confirm(&format!("dataset '{dataset}'"), out)?;
            }
            let name = dataset.clone();
            session.wait(session.client.propose(&Change::DropDataset { name }))?;
            let told = json!({ "dataset": dataset, "result": "dropped" });
            output::answer(out, &told, |_| format!("dataset '{dataset}' is dropped"))
        }
    }
}

fn list(session: &Session, out: Format) -> anyhow::Result<()> {
    let map = session.wait(session.client.refresh())?;
    let mut rows = Vec::new();
    for pool in map.pools.values() {
        for dataset in pool.holdings().iter().flat_map(|h| &h.datasets) {
            rows.push((
                dataset.name.clone(),
                pool.name.clone(),
                dataset.source.clone(),
            ));
        }
    }
    let all: Vec<_> = rows
        .iter()
        .map(|(name, pool, source)| json!({ "dataset": name, "pool": pool, "source": source }))
        .collect();
    output::answer(out, &all, |_| {
        let rows = rows
            .iter()
            .map(|(name, pool, source)| vec![name.clone(), pool.clone(), source.clone()]);
        table(&["dataset", "pool", "source"], rows)
    })
}

/// A dataset by name, as the map has it.
fn open(session: &Session, name: &str) -> anyhow::Result<Dataset> {
    let map = session.wait(session.client.refresh())?;
    let Some((pool, dataset)) = map.dataset(name) else {
        let text =
            format!("there is no dataset '{name}'; 'staves files list' shows those there are");
        return Err(Failure::NotFound(text).into());
    };
    let data = session.client.dataset(&pool.name, name, &dataset.source);
    session.runtime.block_on(data).map_err(failed)
}

/// All files below some paths of a dataset, opened.
fn files_below(data: &Dataset, paths: &[String]) -> anyhow::Result<Vec<OpenFile>> {
    let mut todo: Vec<(Vec<u8>, usize)> = match paths {
        [] => vec![(Vec::new(), 0)],
        paths => paths
            .iter()
            .map(|path| (path.trim_matches('/').as_bytes().to_vec(), 0))
            .collect(),
    };
    let mut files = Vec::new();
    let mut seen = BTreeSet::new();
    while let Some((path, depth)) = todo.pop() {
        let stat = data
            .stat(&path)
            .map_err(|e| Failure::NotFound(e.to_string()))?;
        match stat.kind {
            Kind::File { .. } => {
                if seen.insert(path.clone()) {
                    let file = data.open(&path);
                    files.push(file.map_err(|e| Failure::Own(Own::Failed, e.to_string()))?);
                }
            }
            Kind::Folder if depth < DEPTH_MAX => {
                let names = data.list(&path);
                for (name, _) in names.map_err(|e| Failure::Own(Own::Failed, e.to_string()))? {
                    let below = match path.is_empty() {
                        true => name,
                        false => [&path[..], b"/", &name].concat(),
                    };
                    todo.push((below, depth + 1));
                }
            }
            Kind::Folder | Kind::Link(_) => {}
        }
    }
    files.sort_by(|a, b| a.version().path.cmp(&b.version().path));
    Ok(files)
}

/// What is in memory: for each block of a file, the parts that any node has, and the nodes.
type Held = BTreeMap<FileId, BTreeMap<u32, (u32, BTreeSet<NodeId>)>>;

fn held(session: &Session, map: &ClusterMap, pool: PoolId) -> Held {
    let mut held = Held::new();
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
            continue; // its part counts as not there
        };
        for key in keys {
            let block = held
                .entry(key.file)
                .or_default()
                .entry(key.block)
                .or_default();
            block.0 |= key.parts;
            block.1.insert(node.id);
        }
    }
    held
}

/// Bytes of a file that any node has.
fn here(held: &Held, file: &OpenFile) -> u64 {
    let blocks = held.get(&file.id());
    let parts = blocks.iter().flat_map(|b| b.values());
    let parts: u64 = parts.map(|(parts, _)| u64::from(parts.count_ones())).sum();
    (parts * PART_BYTES).min(file.size())
}

fn show(session: &Session, name: &str, out: Format) -> anyhow::Result<()> {
    let data = open(session, name)?;
    let (pool, map) = data.pool();
    let held = held(session, &map, pool);
    let mut rows = Vec::new();
    for file in files_below(&data, &[])? {
        let blocks = held.get(&file.id());
        let here = here(&held, &file);
        let nodes: BTreeSet<NodeId> = blocks
            .iter()
            .flat_map(|b| b.values())
            .flat_map(|b| b.1.clone())
            .collect();
        let path = String::from_utf8_lossy(&file.version().path).into_owned();
        rows.push((path, file.size(), here, nodes));
    }
    let size: u64 = rows.iter().map(|(_, size, _, _)| size).sum();
    let here: u64 = rows.iter().map(|(_, _, here, _)| here).sum();
    let told = json!({
        "dataset": name,
        "bytes": size,
        "in_memory_bytes": here,
        "files": rows.iter().map(|(path, size, here, nodes)| json!({
            "path": path, "bytes": size, "in_memory_bytes": here,
            "nodes": nodes.iter().map(|n| n.0).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
    });
    output::answer(out, &told, |_| {
        let lines = rows.iter().map(|(path, size, here, nodes)| {
            let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
            vec![
                path.clone(),
                bytes(*size),
                percent(*here, *size),
                nodes.join(" "),
            ]
        });
        let files = table(&["file", "size ", "in memory ", "nodes"], lines);
        format!(
            "{files}\n{} of {} in memory ({})",
            bytes(here),
            bytes(size),
            percent(here, size)
        )
    })
}

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "100 %".to_owned(),
        _ => format!("{:.0} %", part as f64 * 100.0 / whole as f64),
    }
}

fn preload(session: &Session, name: &str, paths: &[String], out: Format) -> anyhow::Result<()> {
    let data = open(session, name)?;
    let files = files_below(&data, paths)?;
    let total: u64 = files.iter().map(OpenFile::size).sum();
    let done = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let stretch = u64::from(FILE_BYTES_MAX);
    let pieces = files.iter().flat_map(|file| {
        let starts = (0..file.size()).step_by(stretch as usize);
        starts.map(move |from| (file.clone(), from))
    });
    let ended = session.runtime.block_on(async {
        let room = Arc::new(Semaphore::new(AT_ONCE));
        let mut tasks: JoinSet<Result<(), staves_client::SourceError>> = JoinSet::new();
        let mut teller = Teller::new(out, total);
        for (file, from) in pieces {
            let place = room
                .clone()
                .acquire_owned()
                .await
                .expect("it is never closed");
            let (data, counted) = (data.clone(), done.clone());
            tasks.spawn(async move {
                let bytes = data.load(&file, from, stretch as usize).await?;
                counted.fetch_add(bytes, Ordering::Relaxed);
                drop(place);
                Ok(())
            });
            while let Some(ended) = tasks.try_join_next() {
                ended.expect("a load does not panic")?;
            }
            teller.tell(done.load(Ordering::Relaxed));
        }
        while let Some(ended) = tasks.join_next().await {
            ended.expect("a load does not panic")?;
            teller.tell(done.load(Ordering::Relaxed));
        }
        teller.end();
        Ok::<(), staves_client::SourceError>(())
    });
    ended.map_err(|error| {
        let text = format!("{error}; what was loaded before stays, and is not fetched again");
        Failure::Own(Own::Failed, text)
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let (pool, map) = data.pool();
    let held = held(session, &map, pool);
    let here: u64 = files.iter().map(|file| here(&held, file)).sum();
    let told = json!({
        "dataset": name, "files": files.len(), "bytes": total, "in_memory_bytes": here, "seconds": seconds,
        "result": "loaded",
    });
    output::answer(out, &told, |_| {
        let rate = bytes((total as f64 / seconds.max(1e-3)) as u64);
        let count = files.len();
        let loaded = format!(
            "{count} files with {} loaded in {seconds:.1} s ({rate}/s)",
            bytes(total)
        );
        match here == total {
            true => loaded,
            false => format!(
                "{loaded}; {} of them in memory ({}): the rest changed in the last 2 s, or the pool has no room for it",
                bytes(here),
                percent(here, total)
            ),
        }
    })
}

/// Says on stderr how far it is, where people read it.
struct Teller {
    on: bool,
    terminal: bool,
    total: u64,
    began: Instant,
    told: Instant,
}

impl Teller {
    fn new(out: Format, total: u64) -> Teller {
        Teller {
            on: out == Format::Table,
            terminal: std::io::stderr().is_terminal(),
            total,
            began: Instant::now(),
            told: Instant::now(),
        }
    }

    fn tell(&mut self, done: u64) {
        let pause = if self.terminal { TELL } else { TELL_SELDOM };
        if !self.on || self.told.elapsed() < pause {
            return;
        }
        self.told = Instant::now();
        let seconds = self.began.elapsed().as_secs_f64();
        let rate = done as f64 / seconds;
        let left = (self.total.saturating_sub(done)) as f64 / rate.max(1.0);
        let line = format!(
            "{} of {} ({}), {}/s, {left:.0} s left",
            bytes(done),
            bytes(self.total),
            percent(done, self.total),
            bytes(rate as u64)
        );
        let mut stderr = std::io::stderr();
        let _ = match self.terminal {
            true => write!(stderr, "\r\x1b[K{line}"),
            false => writeln!(stderr, "{line}"),
        };
    }

    fn end(&self) {
        if self.on && self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
