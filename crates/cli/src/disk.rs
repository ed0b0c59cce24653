//! `staves disk`: the disks of nodes, for pools on disk.

use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Subcommand;
use serde::Serialize;
use serde_json::json;
use staves_cli_common::cluster::{Cluster, find_node};
use staves_cli_common::failure::Failure;
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, Column, bytes, count, number, or_dash};
use staves_model::Node;
use staves_node::config::{Millis, Size};
use staves_node::status::{DiskFacts, DiskState, NodeStatus, StatusReport};
use staves_wire::admin::DiskAction;

#[derive(Subcommand, Debug)]
pub enum Disk {
    /// The disks of all nodes, or of one
    List {
        /// Its id or its name
        node: Option<String>,
    },
    /// Make a further disk on a node, and use it
    Add {
        /// The node's id or name
        node: String,
        /// A folder on that node that is not there yet, in a file system of its own: a path from the root
        folder: String,
        /// The room for pages of all pools that it is to have, as --disk of 'staves up' says it of the first one; a journal of some more is made beside it
        #[arg(long, value_name = "SIZE")]
        size: Size,
    },
    /// Bring what is on a disk to the other disks of its node, one bucket at a time
    Drain {
        /// The node's id or name
        node: String,
        /// The disk's folder
        folder: String,
        /// Wait until nothing is on it, at most this long
        #[arg(long, value_name = "TIME")]
        wait: Option<Millis>,
    },
    /// Let a disk that is drained have buckets again
    Resume {
        /// The node's id or name
        node: String,
        /// The disk's folder
        folder: String,
    },
    /// Take a disk out that has nothing any more, or has failed; its files stay
    Remove {
        /// The node's id or name
        node: String,
        /// The disk's folder
        folder: String,
    },
    /// Make a disk in the place of another one, and take that out once nothing is on it: 'add', 'drain' and 'remove'
    Replace {
        /// The node's id or name
        node: String,
        /// The folder of the disk that goes
        folder: String,
        /// The folder of the new one
        with: String,
        /// The room for pages of all pools that the new one is to have; a journal of some more is made beside it
        #[arg(long, value_name = "SIZE")]
        size: Size,
        /// The longest time to wait until nothing is on the one that goes
        #[arg(long, value_name = "TIME", default_value = "60m")]
        wait: Millis,
    },
}

/// The interval at which a drain that is waited for is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// A disk is made within this, or its making goes on unwatched: file systems that cannot set room aside have it written.
const MADE: Duration = Duration::from_secs(600);

pub fn run(cluster: &Cluster, command: &Disk, out: Format) -> anyhow::Result<()> {
    match command {
        Disk::List { node } => list(cluster, node.as_deref(), out),
        Disk::Add { node, folder, size } => {
            let disk = NamedDisk::find(cluster, node, folder)?;
            disk.ask(DiskAction::Add(size.0), MADE)?;
            disk.tell(out, "added", "it takes buckets from now on")
        }
        Disk::Drain { node, folder, wait } => {
            let disk = NamedDisk::find(cluster, node, folder)?;
            disk.ask(DiskAction::Drain, LATE)?;
            match wait {
                Some(wait) => {
                    disk.wait_until_drained(wait.duration(), out)?;
                    disk.tell(out, "drained", "nothing is on it: it may be taken out")
                }
                None => disk.tell(out, "draining", "its buckets go; see 'staves disk list'"),
            }
        }
        Disk::Resume { node, folder } => {
            let disk = NamedDisk::find(cluster, node, folder)?;
            disk.ask(DiskAction::Resume, LATE)?;
            disk.tell(out, "resumed", "it takes buckets again")
        }
        Disk::Remove { node, folder } => {
            let disk = NamedDisk::find(cluster, node, folder)?;
            disk.ask(DiskAction::Remove, LATE)?;
            disk.tell(
                out,
                "removed",
                "its files are not used any more, and may be deleted",
            )
        }
        Disk::Replace {
            node,
            folder,
            with,
            size,
            wait,
        } => {
            let old = NamedDisk::find(cluster, node, folder)?;
            let known = old.facts()?;
            let new = NamedDisk::find(cluster, node, with)?;
            // What was begun before goes on.
            if new.facts().is_err() {
                new.ask(DiskAction::Add(size.0), MADE)?;
            }
            if known.state != DiskState::Failed {
                old.ask(DiskAction::Drain, LATE)?;
                old.wait_until_drained(wait.duration(), out)?;
            }
            old.remove_when_left(wait.duration())?;
            let then = format!("{with} is there in its place; its files may be deleted");
            old.tell(out, "replaced", &then)
        }
    }
}

/// The time for what needs no long work.
const LATE: Duration = Duration::from_secs(10);

/// A disk of a node, as it was named.
struct NamedDisk<'a> {
    cluster: &'a Cluster,
    node: Node,
    folder: &'a str,
}

impl<'a> NamedDisk<'a> {
    fn find(cluster: &'a Cluster, node: &str, folder: &'a str) -> anyhow::Result<NamedDisk<'a>> {
        let map = cluster.map()?;
        let node = find_node(&map, node)?.clone();
        Ok(NamedDisk {
            cluster,
            node,
            folder,
        })
    }

    fn ask(&self, action: DiskAction, patience: Duration) -> anyhow::Result<()> {
        let by = Instant::now() + patience;
        self.cluster
            .change_disk(&self.node, self.folder, action, by)
    }

    /// The disk as its node reports it.
    fn facts(&self) -> anyhow::Result<DiskFacts> {
        let report = self.cluster.status()?;
        let who = format!("node {} ({})", self.node.id, self.node.name);
        let of_node = report.nodes.iter().find(|node| node.id == self.node.id.0);
        let Some(facts) = of_node.and_then(|node| node.facts.as_ref()) else {
            bail!("{who} does not say how its disks are: is it up?");
        };
        let mut disks = facts.disks.iter();
        match disks.find(|disk| disk.folder == self.folder) {
            Some(disk) => Ok(disk.clone()),
            None => bail!(
                "{who} has no disk '{}': see 'staves disk list'",
                self.folder
            ),
        }
    }

    fn wait_until_drained(&self, wait: Duration, out: Format) -> anyhow::Result<()> {
        let (began, first) = (Instant::now(), self.facts()?.buckets);
        let mut shown = None;
        loop {
            // One that does not answer for a moment may be asked again.
            let facts = match self.facts() {
                Err(error) if began.elapsed() >= wait => return Err(error),
                Err(_) => {
                    std::thread::sleep(LOOK);
                    continue;
                }
                Ok(facts) => facts,
            };
            let left = facts.buckets;
            match facts.state {
                DiskState::Drained => return Ok(()),
                DiskState::Healthy => bail!(
                    "the disk {} drains no more: its drain was taken back, with {} left on it",
                    self.folder,
                    count(left, "bucket")
                ),
                DiskState::Failed => bail!(
                    "the disk {} has failed while it was drained: {}; what it had is filled again from other nodes",
                    self.folder,
                    facts.why
                ),
                DiskState::Draining => {}
            }
            if shown != Some(left) && out == Format::Table {
                output::say(format_args!(
                    "the disk {}: {} to move{}",
                    self.folder,
                    count(left, "bucket"),
                    eta(began.elapsed(), first, left)
                ));
                shown = Some(left);
            }
            if began.elapsed() >= wait {
                let text = format!(
                    "the disk {} still has {} after {} s; it goes on draining: a bucket goes while the other copies of its group are whole, and another \
                     disk of the node has room for it",
                    self.folder,
                    count(left, "bucket"),
                    wait.as_secs()
                );
                return Err(Failure::late(text).into());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Takes it out. One that has just failed may have buckets for a moment.
    fn remove_when_left(&self, wait: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + wait;
        while self.facts().is_ok_and(|facts| facts.buckets > 0) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        self.ask(DiskAction::Remove, LATE)
    }

    fn tell(&self, out: Format, what: &str, then: &str) -> anyhow::Result<()> {
        let Node { id, name, .. } = &self.node;
        let answer = json!({ "node": id.0, "name": name, "disk": self.folder, "result": what });
        let line = format!("disk {} of node {id} ({name}): {what}; {then}", self.folder);
        output::changed(out, answer, line, None)
    }
}

/// The time that the rest takes, if it goes on as it went.
fn eta(since: Duration, first: u64, left: u64) -> String {
    let gone = first.saturating_sub(left);
    match (since.as_millis() as u64 * left).checked_div(gone) {
        Some(ms) if left > 0 => format!(", some {} s more", ms.div_ceil(1000)),
        _ => String::new(),
    }
}

/// A disk of a node; or a node that has some and does not say which.
#[derive(Serialize)]
struct DiskRow {
    node: u64,
    name: String,
    /// The node's own state.
    node_state: &'static str,
    /// Bytes that its disks take, as the directory knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    known_bytes: Option<u64>,
    #[serde(flatten)]
    disk: Option<DiskFacts>,
}

impl DiskRow {
    fn of_disk(&self, text: impl FnOnce(&DiskFacts) -> String) -> String {
        or_dash(self.disk.as_ref().map(text))
    }
}

const COLUMNS: &[Column<DiskRow>] = &[
    ("node", |row| format!("{} ({})", row.node, row.name)),
    ("disk", |row| row.of_disk(|disk| disk.folder.clone())),
    ("state", |row| match &row.disk {
        Some(disk) => disk.state.word().to_owned(),
        None => "not reachable".to_owned(),
    }),
    ("buckets ", |row| row.of_disk(|disk| number(disk.buckets))),
    ("keeps ", |row| row.of_disk(|disk| bytes(disk.used_bytes))),
    ("reserved ", |row| {
        row.of_disk(|disk| bytes(disk.reserved_bytes))
    }),
    ("of ", |row| {
        let known = row.disk.as_ref().map(|disk| disk.bytes);
        or_dash(known.or(row.known_bytes).map(bytes))
    }),
    ("journal ", |row| {
        row.of_disk(|disk| {
            let percent = (disk.journal_taken_bytes * 100).checked_div(disk.journal_bytes);
            format!("{} %", percent.unwrap_or(0))
        })
    }),
    ("why", |row| match &row.disk {
        Some(disk) => disk.why.clone(),
        None => format!("the node is {}", row.node_state),
    }),
];

fn list(cluster: &Cluster, wanted: Option<&str>, out: Format) -> anyhow::Result<()> {
    let report = cluster.status()?;
    let only = match wanted {
        Some(wanted) => Some(find_node(&*cluster.map()?, wanted)?.id.0),
        None => None,
    };
    let rows = rows(&report, only);
    output::answer(out, &rows, |rows| match (rows.is_empty(), wanted) {
        (true, None) => {
            "no node has a disk: start nodes with --disk, or add some ('staves disk add')"
                .to_owned()
        }
        (true, Some(node)) => format!(
            "node {node} has no disk: start it with --disk, or add one ('staves disk add {node} FOLDER --size SIZE')"
        ),
        (false, _) => output::columns(COLUMNS, rows),
    })
}

fn rows(report: &StatusReport, only: Option<u64>) -> Vec<DiskRow> {
    let nodes = report.nodes.iter();
    let nodes = nodes.filter(|node| only.is_none_or(|id| id == node.id));
    let of_node = |node: &NodeStatus| {
        let row = |disk: Option<DiskFacts>| DiskRow {
            node: node.id,
            name: node.name.clone(),
            node_state: node.state(),
            known_bytes: disk.is_none().then_some(node.disk_bytes),
            disk,
        };
        match &node.facts {
            Some(facts) => facts
                .disks
                .iter()
                .cloned()
                .map(|disk| row(Some(disk)))
                .collect(),
            None if node.disk_bytes > 0 => vec![row(None)],
            None => Vec::new(),
        }
    };
    nodes.flat_map(of_node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_drain_takes_as_long_as_what_went() {
        let since = Duration::from_secs(10);
        assert_eq!(eta(since, 12, 8), ", some 20 s more");
        assert_eq!((eta(since, 12, 12), eta(since, 12, 0)), <_>::default());
    }

    /// Regression: a node that was down was left out, as if it had no disks.
    #[test]
    fn a_node_that_does_not_answer_has_a_row() {
        let mut map = staves_model::testing::cluster_with_pool(3, "1+1", 2);
        for node in map.nodes.values_mut() {
            node.disk_bytes = if node.id.0 == 3 { 0 } else { 96 << 20 };
        }
        let first = map.nodes.values_mut().next().expect("three nodes");
        first.state = staves_model::NodeState::Down;
        let facts = staves_node::status::NodeFacts {
            node: 2,
            disks: vec![DiskFacts::default()],
            ..Default::default()
        };
        let report = StatusReport::new(&map, staves_model::NodeId(2), Default::default(), [facts]);
        let found = rows(&report, None);
        let nodes: Vec<(u64, bool)> = found
            .iter()
            .map(|row| (row.node, row.disk.is_some()))
            .collect();
        assert_eq!(nodes, [(1, false), (2, true)]);
        let shown = output::columns(COLUMNS, &found);
        for part in ["not reachable", "96.0 MiB", "the node is down"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert_eq!(rows(&report, Some(3)).len(), 0);
    }
}
