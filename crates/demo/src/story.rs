//! The events of a demo: each on stderr as it happens, all on stdout at the end; but not twice if both are the
//! same terminal or file.

use std::os::fd::AsFd;
use std::time::Instant;

use serde::Serialize;

use super::dataset::ReadCounts;
use super::load::{CheckFindings, Written};
use super::log::check::LogFindings;
use super::region::WorkCounts;
use super::volume::VolumeCounts;
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, table};
use staves_cli_common::served::Served;

/// One node killed.
#[derive(Clone, Copy, Serialize)]
pub struct Round {
    /// The node's id.
    pub killed: u64,
    /// It led the directory.
    pub led_directory: bool,
    /// The longest time that any writer waited for an acknowledgement, the kill included.
    pub writes_resumed_ms: u64,
    /// From the kill until every bucket was whole again.
    pub rebuilt_ms: u64,
}

/// Two nodes killed at once under a region of memory.
#[derive(Serialize)]
pub struct MemoryAct {
    /// The pool's scheme.
    pub scheme: String,
    /// The nodes' ids.
    pub killed: Vec<u64>,
    /// Pages of the region.
    pub pages: u32,
    /// The longest that a read or a write took, the kills included.
    pub longest_wait_ms: u64,
    /// From the restart of the killed nodes until every bucket was there again.
    pub rebuilt_ms: u64,
    /// The workers' counts.
    pub done: WorkCounts,
}

/// A node killed under a dataset.
#[derive(Serialize)]
pub struct FilesAct {
    /// The way of reading: by a mount or the client library.
    pub way: &'static str,
    /// The node's id.
    pub killed: u64,
    /// Files, and bytes of all.
    pub files: u32,
    /// See `files`.
    pub bytes: u64,
    /// The findings of the reads.
    pub seen: ReadCounts,
    /// The origin of the bytes.
    pub served: Served,
}

/// A log on disk through the death of its sequencer's node, of a unit's, and of all nodes.
#[derive(Serialize)]
pub struct LogAct {
    /// The pool's scheme.
    pub scheme: String,
    /// The ids of the nodes: the sequencer's, and that of a unit.
    pub killed: [u64; 2],
    /// After each of these kills, the longest that a client was without an acknowledged append.
    pub longest_wait_ms: [u64; 2],
    /// The findings once the clients had stopped.
    pub done: LogFindings,
    /// The findings after all nodes were killed at once.
    pub after_power_cut: LogFindings,
}

/// A volume on disk through the death of the client's node, and of all nodes.
#[derive(Serialize)]
pub struct VolumeAct {
    /// The pool's scheme.
    pub scheme: String,
    /// The id of the node that the client wrote through.
    pub killed: u64,
    /// From that kill until a write was acknowledged by another node.
    pub resumed_ms: u64,
    /// From the start of all nodes after the power cut until the volume answered.
    pub answered_ms: u64,
    /// The client's counts, and the findings of the check.
    pub done: VolumeCounts,
}

#[derive(Serialize)]
struct Event {
    at_ms: u64,
    what: String,
}

/// The demo's account.
#[derive(Serialize)]
pub struct Story {
    #[serde(skip)]
    begun: Instant,
    nodes: u32,
    rounds: Vec<Round>,
    writes_acknowledged: u64,
    writes_unknown: u64,
    keys_checked: u64,
    lost: u64,
    memory: Option<MemoryAct>,
    files: Option<FilesAct>,
    log: Option<LogAct>,
    volume: Option<VolumeAct>,
    events: Vec<Event>,
}

impl Story {
    /// Time begins.
    pub fn begin(nodes: u32) -> Story {
        Story {
            begun: Instant::now(),
            nodes,
            rounds: Vec::new(),
            writes_acknowledged: 0,
            writes_unknown: 0,
            keys_checked: 0,
            lost: 0,
            memory: None,
            files: None,
            log: None,
            volume: None,
            events: Vec::new(),
        }
    }

    /// Something happened now.
    pub fn note(&mut self, what: String) {
        let at_ms = self.begun.elapsed().as_millis() as u64;
        output::say(format_args!("{:>7}  {what}", seconds(at_ms)));
        self.events.push(Event { at_ms, what });
    }

    /// A round is over.
    pub fn round(&mut self, round: Round) {
        self.rounds.push(round);
    }

    /// The check is over.
    pub fn checked(&mut self, written: &Written, checked: &CheckFindings) {
        self.writes_acknowledged = written.acknowledged;
        self.writes_unknown = written.unknown;
        self.keys_checked = checked.keys;
        self.lost = checked.lost;
    }

    /// The second act is over.
    pub fn act(&mut self, act: MemoryAct) {
        self.memory = Some(act);
    }

    /// The act about files is over.
    pub fn files(&mut self, act: FilesAct) {
        self.files = Some(act);
    }

    /// The act about a log is over, and the power cut.
    pub fn log(&mut self, act: LogAct) {
        self.log = Some(act);
    }

    /// The act about a volume is over.
    pub fn volume(&mut self, act: VolumeAct) {
        self.volume = Some(act);
    }

    /// Counts acknowledged values, pages and records that were lost, and files that were read wrong.
    pub fn lost(&self) -> u64 {
        let pages = self.memory.as_ref().map_or(0, |act| act.done.wrong);
        let files = self.files.as_ref().map_or(0, |act| act.seen.wrong);
        let blocks = self.volume.as_ref().map_or(0, |act| act.done.wrong);
        let records = self
            .log
            .as_ref()
            .map_or(0, |act| act.done.wrong() + act.after_power_cut.wrong());
        self.lost + pages + files + blocks + records
    }

    /// The account as a whole.
    pub fn finish(&self, out: Format) -> anyhow::Result<()> {
        if out == Format::Table && one_place() {
            return Ok(());
        }
        output::answer(out, self, |story| {
            let rows = story
                .events
                .iter()
                .map(|e| vec![seconds(e.at_ms), e.what.clone()]);
            table(&["at ", "what happened"], rows)
        })
    }
}

/// Returns whether stdout and stderr go to the same terminal, pipe or file.
fn one_place() -> bool {
    let place = |fd: std::os::fd::BorrowedFd<'_>| {
        let stat = rustix::fs::fstat(fd).ok()?;
        Some((stat.st_dev, stat.st_ino))
    };
    let stdout = place(std::io::stdout().as_fd());
    stdout.is_some() && stdout == place(std::io::stderr().as_fd())
}

fn seconds(ms: u64) -> String {
    format!("{:.2} s", ms as f64 / 1000.0)
}
