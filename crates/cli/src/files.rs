//! `staves files`: datasets, what of them is in memory, and bringing them there.

mod below;
mod held;
mod preload;
mod show;

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use clap::Subcommand;
use clap::builder::NonEmptyStringValueParser;
use serde_json::json;
use staves_client::{Dataset, SourceError};
use staves_model::{Change, ClusterMap, Pin, Pool};
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use self::below::{FoundBelow, FoundFile, files_below};
use crate::confirm::confirmed;
use crate::pool::{goes_on, in_use};
use staves_cli_common::cluster::Cluster;
use staves_cli_common::codes::Own;
use staves_cli_common::failure::{Failure, failed, no_source};
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, bytes, count, table};

#[derive(Subcommand, Debug)]
pub enum Files {
    /// All datasets
    List,
    /// One dataset: how much of it is in memory, and on which nodes
    Show {
        /// Its name
        dataset: String,
        /// Also each of its files
        #[arg(long)]
        files: bool,
    },
    /// Bring files into memory before anybody reads them; what is there already is not fetched again. It fails if not all of them are in
    /// memory then, and says why
    Preload {
        /// The dataset
        dataset: String,
        /// Files and folders of it; everything if none is given
        #[arg(value_name = "PATH", value_parser = NonEmptyStringValueParser::new())]
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
        #[arg(value_name = "PATH", value_parser = NonEmptyStringValueParser::new())]
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

pub fn run(session: &Cluster, command: &Files, out: Format) -> anyhow::Result<()> {
    match command {
        Files::List => list(session, out),
        Files::Show { dataset, files } => show::run(session, dataset, *files, out),
        Files::Preload {
            dataset,
            paths,
            pin,
        } => preload::run(session, dataset, paths, *pin, out),
        Files::Unpin { dataset, paths } => unpin(session, dataset, paths, out),
        Files::Drop { dataset, yes } => drop_dataset(session, dataset, *yes, out),
    }
}

fn drop_dataset(session: &Cluster, dataset: &str, yes: bool, out: Format) -> anyhow::Result<()> {
    let map = session.map()?;
    known(&map, dataset)?;
    let used = in_use(&session.status()?, |name| name == dataset);
    if !yes {
        let used = used.as_ref().map(|used| format!(" (it is {used})"));
        let would = format!(
            "dataset '{dataset}'{} would be forgotten with what of it is in memory; its source stays as it is",
            used.unwrap_or_default()
        );
        let not_done = format!("dataset '{dataset}' was not dropped");
        confirmed(session, &would, "Drop it?", "drops it", &not_done, out)?;
    }
    let name = dataset.to_owned();
    session.propose(&Change::DropDataset { name })?;
    let answer = json!({ "dataset": dataset, "result": "dropped" });
    let line = format!("dataset '{dataset}' is dropped");
    output::changed(out, answer, line, used.map(goes_on))
}

fn unpin(session: &Cluster, dataset: &str, paths: &[String], out: Format) -> anyhow::Result<()> {
    let map = session.map()?;
    let pins = pins(known(&map, dataset)?, dataset);
    let source = map
        .dataset(dataset)
        .map_or("", |(_, known)| known.source.as_str());
    let wanted: Vec<Vec<u8>> = paths
        .iter()
        .map(|path| within(below_source(source, path)))
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
        session.propose(&Change::UnpinFiles {
            dataset: dataset.to_owned(),
            paths: goes.iter().map(|pin| pin.path.clone()).collect(),
        })?;
    }
    let answer =
        json!({ "dataset": dataset, "files": goes.len(), "bytes": sum, "result": "unpinned" });
    output::answer(out, &answer, |_| match goes.len() {
        0 => "nothing of that is pinned".to_owned(),
        files => format!(
            "no longer pinned: {} with {}",
            count(files, "file"),
            bytes(sum)
        ),
    })
}

/// Refuses what the dataset has not: a slip, most likely. Whoever cannot look there is not held up beyond the deadline.
fn is_there(session: &Cluster, dataset: &str, path: &[u8]) -> anyhow::Result<()> {
    let Ok(data) = open(session, dataset) else {
        return Ok(());
    };
    let path = path.to_owned();
    let stat = aside(move || Ok(data.stat(&path)))?;
    let stat = async { timeout_at(session.end().into(), stat).await };
    match session.runtime.block_on(stat) {
        Ok(Ok(Ok(Err(error @ SourceError::NotFound { .. })))) => Err(no_source(error)),
        _ => Ok(()),
    }
}

/// The pool of a dataset.
fn known<'a>(map: &'a ClusterMap, name: &str) -> anyhow::Result<&'a Pool> {
    map.dataset(name).map(|(pool, _)| pool).ok_or_else(|| {
        let text =
            match map.pool_named(name) {
                Some(_) => format!("'{name}' is a pool, and no dataset has that name; 'staves files list' shows those there are"),
                None => format!("there is no dataset '{name}'; 'staves files list' shows those there are"),
            };
        Failure::NotInMap(text).into()
    })
}

fn pins<'a>(pool: &'a Pool, dataset: &str) -> Vec<&'a Pin> {
    let all = pool.holdings().into_iter().flat_map(|h| &h.pins);
    all.filter(|pin| pin.dataset == dataset).collect()
}

/// A dataset's source, in the words that the map has for it.
fn source_of(data: &Dataset) -> String {
    let (_, map) = data.pool();
    let known = map.dataset(data.name());
    known.map_or_else(String::new, |(_, entry)| entry.source.clone())
}

/// A path within the dataset, also if it was given as its source has it.
fn below_source<'a>(source: &str, path: &'a str) -> &'a str {
    let below = path.strip_prefix(source.trim_end_matches('/'));
    below
        .filter(|rest| rest.is_empty() || rest.starts_with('/'))
        .unwrap_or(path)
}

/// A path within a dataset, as its source has it.
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

fn list(session: &Cluster, out: Format) -> anyhow::Result<()> {
    let map = newest(session);
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

/// The newest map that can be had in half of the time that is left; else that with which the session began, a moment ago.
fn newest(session: &Cluster) -> Arc<ClusterMap> {
    let until = Instant::now() + session.left() / 2;
    let newer = async { timeout_at(until.into(), session.client.refresh()).await };
    match session.runtime.block_on(newer) {
        Ok(Ok(map)) => map,
        _ => session.client.map(),
    }
}

/// A dataset by name, as the map has it. Its source is not waited for beyond the deadline.
fn open(session: &Cluster, name: &str) -> anyhow::Result<Dataset> {
    open_by(session, name, session.end())
}

fn open_by(session: &Cluster, name: &str, until: Instant) -> anyhow::Result<Dataset> {
    let map = newest(session);
    let pool = known(&map, name)?;
    let (_, dataset) = map.dataset(name).expect("its pool is known");
    let data = session.client.dataset(&pool.name, name, &dataset.source);
    let data = async { timeout_at(until.into(), data).await };
    match session.runtime.block_on(data) {
        Ok(data) => data.map_err(failed),
        Err(_) => Err(late(session, &dataset.source)),
    }
}

/// A source did not answer by the deadline.
fn late(session: &Cluster, source: &str) -> anyhow::Error {
    Failure::late(format!(
        "{source} did not answer by the deadline, {} ms: see that it can be reached from here, or give it longer with --deadline",
        session.deadline.as_millis()
    ))
    .into()
}

/// Asks a source on a thread of its own, for nobody can take back such a question.
fn aside<T: Send + 'static>(
    ask: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<oneshot::Receiver<anyhow::Result<T>>> {
    let (done, come) = oneshot::channel();
    std::thread::Builder::new()
        .spawn(move || drop(done.send(ask())))
        .context("cannot start a thread")?;
    Ok(come)
}

#[cfg(test)]
mod tests {
    use super::*;

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
