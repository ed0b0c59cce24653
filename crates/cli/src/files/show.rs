//! `staves files show`: how much of a dataset is in memory, and on which nodes.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};
use staves_client::{Dataset, OpenFile};
use staves_model::{ClusterMap, NodeId, Pin};
use staves_node::status::{NodeStatus, StatusReport};
use staves_wire::ErrorCode;
use tokio::time::timeout_at;

use super::held::{ResidentBlocks, held, name_of, percent};
use crate::mount::host;

use super::{FoundBelow, FoundFile, aside, files_below, known, late, open_by, pins, source_of};
use staves_cli_common::cluster::Cluster;
use staves_cli_common::codes::Code;
use staves_cli_common::failure::{self, Failure};
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, bytes, count, table};

/// The least time to ask nodes about a source that is away.
const LOOK: Duration = Duration::from_millis(500);

/// Shows a dataset: sums, and each of its files if `each`.
pub fn run(session: &Cluster, name: &str, each: bool, out: Format) -> anyhow::Result<()> {
    not_away_here(session, name)?;
    let listed = listed(session, name);
    let (data, found) = listed.map_err(|error| with_outage(session, name, error))?;
    let files = &found.files;
    let (pool, map) = data.pool();
    let until = Instant::now() + session.left() * 4 / 5;
    let held = held(&session.client, &map, pool, files, until);
    let held = session.runtime.block_on(held);
    let pinned = pins(known(&map, name)?, name);
    let shown = DatasetSums::of(&data, &map, files, &held, &pinned);
    let mut answer = shown.as_json(&map, each);
    let mut warnings = found.left_out();
    if !held.silent.is_empty() {
        warnings.push(held.silence(&map));
    }
    let lacking = shown.lacking_pinned();
    if !lacking.is_empty() {
        let status = session.status_by(session.end());
        warnings.push(lacks_pinned(status.ok().as_ref(), name, &lacking));
    }
    warnings.extend(outage(session, name, session.end()));
    if !warnings.is_empty() {
        output::warn(out, &mut answer, warnings.join("; "));
    }
    output::answer(out, &answer, |_| match each {
        true => format!("{}\n{}", shown.list(&map), shown.sums(&map)),
        false => shown.sums(&map),
    })
}

/// Fails at once where a mount of this machine has no answer of the source. A file system in user space that hangs holds whoever asks it
/// beyond the end of the process.
fn not_away_here(session: &Cluster, name: &str) -> anyhow::Result<()> {
    let Ok(report) = session.status_by(Instant::now() + session.left() / 4) else {
        return Ok(());
    };
    let here = format!("{}:", host());
    let facts = report.nodes.iter().filter_map(|node| node.facts.as_ref());
    let mut away = facts.flat_map(|facts| &facts.away);
    if !away.any(|one| one.dataset == name && one.by.starts_with(&here)) {
        return Ok(());
    }
    match report.away().remove(name) {
        Some(text) => Err(Failure::Wire(ErrorCode::Unreachable, text).into()),
        None => Ok(()),
    }
}

/// The files that the source has now. Most of the time is for it: a source that is silent is to be explained.
fn listed(session: &Cluster, name: &str) -> anyhow::Result<(Dataset, FoundBelow)> {
    let until = Instant::now() + session.left() * 4 / 5;
    let data = open_by(session, name, until)?;
    let asked = data.clone();
    let found = aside(move || files_below(&asked, &[]))?;
    let found = async { timeout_at(until.into(), found).await };
    let files = session.runtime.block_on(found);
    let files = files.map_err(|_| late(session, &source_of(&data)))?;
    let files = files.context("the thread that asks the source ended")??;
    Ok((data, files))
}

/// An error of the source with what nodes and mounts have seen of it.
fn with_outage(session: &Cluster, name: &str, error: anyhow::Error) -> anyhow::Error {
    let is_silence = matches!(
        failure::code(&error),
        Code::Wire(ErrorCode::Unreachable | ErrorCode::Deadline)
    );
    if !is_silence {
        return error;
    }
    let until = session.end().max(Instant::now() + LOOK);
    match outage(session, name, until) {
        Some(outage) => failure::with_text(&error, format!("{error}; {outage}")),
        None => error,
    }
}

/// The outage of a dataset's source, if nodes know of one, with what still works.
fn outage(session: &Cluster, name: &str, until: Instant) -> Option<String> {
    session.status_by(until).ok()?.away().remove(name)
}

/// The files of a dataset with what is in memory of them, and the sums of it.
struct DatasetSums<'a> {
    dataset: &'a str,
    source: String,
    files: Vec<FileSums<'a>>,
    bytes: u64,
    here: u64,
    /// Bytes that each node has.
    nodes: BTreeMap<NodeId, u64>,
}

struct FileSums<'a> {
    file: &'a OpenFile,
    path: String,
    here: u64,
    nodes: Vec<(NodeId, u64)>,
    pinned: bool,
}

impl<'a> DatasetSums<'a> {
    fn of(
        data: &'a Dataset,
        map: &ClusterMap,
        files: &'a [FoundFile],
        held: &ResidentBlocks,
        pins: &[&Pin],
    ) -> DatasetSums<'a> {
        let pinned: HashSet<_> = pins
            .iter()
            .map(|pin| (&pin.path, &pin.version, pin.size))
            .collect();
        let mut nodes: BTreeMap<NodeId, u64> = BTreeMap::new();
        // One that runs and has nothing is shown, too.
        let up = map.nodes.values();
        let up = up.filter(|node| map.is_up(node.id, node.incarnation));
        nodes.extend(up.map(|node| (node.id, 0)));
        nodes.retain(|node, _| !held.silent.contains(node));
        let mut shown = Vec::with_capacity(files.len());
        for found in files {
            let (file, of) = (&found.file, found.file.version());
            let by_node: Vec<_> = held.by_node(file).collect();
            for (node, bytes) in &by_node {
                *nodes.entry(*node).or_default() += bytes;
            }
            shown.push(FileSums {
                file,
                path: found.path(),
                here: held.here(file),
                nodes: by_node,
                pinned: pinned.contains(&(&of.path, &of.version, of.size)),
            });
        }
        DatasetSums {
            dataset: data.name(),
            source: source_of(data),
            bytes: shown.iter().map(|file| file.file.size()).sum(),
            here: shown.iter().map(|file| file.here).sum(),
            files: shown,
            nodes,
        }
    }

    /// The number of files, and of those that are wholly in memory, in part, and pinned. An empty file is there always.
    fn counts(&self) -> [usize; 4] {
        let of = |which: &dyn Fn(&FileSums) -> bool| self.files.iter().filter(|f| which(f)).count();
        let whole = of(&|f| f.here == f.file.size());
        let some = of(&|f| f.here > 0 && f.here < f.file.size());
        [self.files.len(), whole, some, of(&|f| f.pinned)]
    }

    /// Pinned files that are not all in memory.
    fn lacking_pinned(&self) -> BTreeSet<String> {
        let lacks = |f: &&FileSums| f.pinned && f.here < f.file.size();
        let lacking = self.files.iter().filter(lacks);
        lacking.map(|file| file.path.clone()).collect()
    }

    fn as_json(&self, map: &ClusterMap, each: bool) -> Value {
        let by_name = |nodes: &mut dyn Iterator<Item = (NodeId, u64)>| -> BTreeMap<String, u64> {
            nodes.map(|(n, bytes)| (name_of(map, n), bytes)).collect()
        };
        let [files, whole, some, pinned] = self.counts();
        let mut answer = json!({
            "dataset": self.dataset,
            "source": self.source,
            "bytes": self.bytes,
            "in_memory_bytes": self.here,
            "file_count": files,
            "files_in_memory": whole,
            "files_partly_in_memory": some,
            "files_pinned": pinned,
            "node_bytes": by_name(&mut self.nodes.iter().map(|(n, b)| (*n, *b))),
        });
        if each {
            let files = self.files.iter().map(|file| {
                json!({
                    "path": file.path,
                    "bytes": file.file.size(),
                    "in_memory_bytes": file.here,
                    "pinned": file.pinned,
                    "node_bytes": by_name(&mut file.nodes.iter().copied()),
                })
            });
            answer["files"] = files.collect();
        }
        answer
    }

    fn sums(&self, map: &ClusterMap) -> String {
        let [files, whole, some, pinned] = self.counts();
        let mut pairs = vec![
            ("dataset", self.dataset.to_owned()),
            ("source", self.source.clone()),
            ("files", files.to_string()),
            ("wholly in memory", whole.to_string()),
            ("partly", some.to_string()),
            ("not", (files - whole - some).to_string()),
        ];
        if pinned > 0 {
            pairs.push(("pinned", pinned.to_string()));
        }
        let of = |node_bytes: u64| match node_bytes {
            0 => bytes(0),
            some => format!("{} ({})", bytes(some), percent(some, self.bytes)),
        };
        let nodes = self.nodes.iter();
        let nodes = nodes.map(|(node, bytes)| vec![name_of(map, *node), of(*bytes)]);
        format!(
            "{}\n{}\n{} of {} in memory ({})",
            output::properties(pairs),
            table(&["node", "has "], nodes),
            bytes(self.here),
            bytes(self.bytes),
            percent(self.here, self.bytes)
        )
    }

    fn list(&self, map: &ClusterMap) -> String {
        let lines = self.files.iter().map(|file| {
            let size = file.file.size();
            let share = |(node, bytes): &(NodeId, u64)| {
                format!("{}: {}", name_of(map, *node), percent(*bytes, size))
            };
            let nodes: Vec<String> = file.nodes.iter().map(share).collect();
            vec![
                file.path.clone(),
                bytes(size),
                percent(file.here, size),
                if file.pinned { "yes" } else { "" }.to_owned(),
                nodes.join(", "),
            ]
        });
        table(
            &["file", "size ", "in memory ", "pinned", "on nodes"],
            lines,
        )
    }
}

/// That these pinned files are not all in memory, and why, as far as nodes say.
fn lacks_pinned(
    report: Option<&StatusReport>,
    dataset: &str,
    lacking: &BTreeSet<String>,
) -> String {
    let facts = |node: &NodeStatus| node.facts.clone().unwrap_or_default().lacking;
    let mut nodes = report.into_iter().flat_map(|report| &report.nodes);
    let said = nodes.find_map(|node| {
        let mut facts = facts(node).into_iter();
        let lack = facts.find(|lack| lack.dataset == dataset && lacking.contains(&lack.path))?;
        Some(format!("{} of {}: {}", lack.path, node.name, lack.why))
    });
    let why = said.unwrap_or_else(|| "nodes fetch them now".to_owned());
    let files = count(lacking.len(), "pinned file");
    format!("{files} not all in memory ({why}); it is tried again by itself")
}
