//! The steps about disks: which one is meant, what is done to it, and what must have come of it once all is well.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rand::seq::IndexedRandom;
use serde_json::Value;

use super::{HEALING, Runner};
use crate::nodes::disks::FURTHER;
use crate::scenario::Who;
use crate::scenario::disk::{DiskAction, Whose};

/// The bound on a command for a disk whose node is up, and on a drain that is waited for.
const COMMAND: Duration = Duration::from_secs(30);
/// The pause before a command is given again.
const AGAIN: Duration = Duration::from_millis(200);

/// The refusal of a folder that is there.
const HALF_MADE: &str = "it is there already";

/// A disk, by its node and its folder there.
type NodeDisk = (usize, PathBuf);

/// The disks that steps are about.
#[derive(Default)]
pub(super) struct StepDisks {
    /// Those of the last step.
    that: Vec<NodeDisk>,
    /// Commands under way, each with the disk that goes.
    changes: Vec<(NodeDisk, JoinHandle<Result<(), String>>)>,
    /// Disks that fail and had buckets, since when.
    failing: Vec<(NodeDisk, Instant)>,
}

impl Runner<'_> {
    /// Gives each node a second disk.
    pub(super) fn add_second_disks(&mut self) -> anyhow::Result<()> {
        for at in 0..self.nodes.count() {
            self.add_disk(at)?;
        }
        Ok(())
    }

    fn add_disk(&mut self, at: usize) -> anyhow::Result<NodeDisk> {
        let folder = self.nodes.add_disk(at)?;
        self.disk_command(at, &["add"], &folder, &["--size", FURTHER])?;
        Ok((at, folder))
    }

    /// Does what a step says.
    pub(super) fn disk_step(&mut self, action: DiskAction, whose: &Whose) -> anyhow::Result<()> {
        let disks = match (action, whose) {
            (DiskAction::Add, Whose::Newest(who)) => {
                let nodes = self.resolve(who)?.into_iter();
                let added = nodes.map(|at| self.add_disk(at));
                added.collect::<anyhow::Result<Vec<_>>>()?
            }
            (_, whose) => self.disks_of(whose)?,
        };
        self.last = disks.iter().map(|(at, _)| *at).collect();
        for (at, folder) in &disks {
            self.change_disk(action, *at, folder)?;
        }
        self.disks.that = disks;
        Ok(())
    }

    fn change_disk(&mut self, action: DiskAction, at: usize, folder: &Path) -> anyhow::Result<()> {
        match action {
            DiskAction::Add => Ok(()),
            DiskAction::Fail => {
                let buckets = self.disk(at, folder)?.map_or(0, |disk| buckets_of(&disk));
                self.nodes.fail_disk(at, folder)?;
                self.tell(&format!(
                    "   n{}: {} had {buckets} buckets",
                    at + 1,
                    folder.display()
                ));
                if buckets > 0 {
                    let failing = ((at, folder.to_owned()), Instant::now());
                    self.disks.failing.push(failing);
                }
                Ok(())
            }
            DiskAction::Drain { waits: false } => self.disk_command(at, &["drain"], folder, &[]),
            DiskAction::Drain { waits: true } => {
                let wait = format!("{}s", COMMAND.as_secs());
                let drained = self.disk_command(at, &["drain"], folder, &["--wait", &wait]);
                if let Err(why) = drained {
                    self.wrong(format!("a disk of n{} was not drained: {why:#}", at + 1));
                }
                Ok(())
            }
            DiskAction::Resume => self.disk_command(at, &["resume"], folder, &[]),
            DiskAction::Replace => {
                let with = self.nodes.add_disk(at)?;
                let wait = format!("{}s", COMMAND.as_secs());
                let rest = [
                    &with.display().to_string(),
                    "--size",
                    FURTHER,
                    "--wait",
                    &wait,
                ];
                self.begin_change(at, "replace", folder, &rest, Some(with.clone()))
            }
            DiskAction::Remove => self.begin_change(at, "remove", folder, &[], None),
        }
    }

    /// The disks that are meant. Those of random nodes have buckets, if any do; a node without a further disk gets one.
    fn disks_of(&mut self, whose: &Whose) -> anyhow::Result<Vec<NodeDisk>> {
        let nodes = match whose {
            Whose::That if self.disks.that.is_empty() => bail!("no step before was about a disk"),
            Whose::That => return Ok(self.disks.that.clone()),
            Whose::First(who) => {
                let nodes = self.resolve(who)?;
                // What is on it needs another place.
                for at in &nodes {
                    if self.nodes.newest_disk(*at).is_none() {
                        self.add_disk(*at)?;
                    }
                }
                let first = |at| (at, self.nodes.first_disk(at));
                return Ok(nodes.into_iter().map(first).collect());
            }
            Whose::Newest(Who::Random(n)) => match self.nodes_with_buckets()? {
                some if some.len() >= *n => {
                    some.choose_multiple(&mut self.rng, *n).copied().collect()
                }
                _ => self.resolve(&Who::Random(*n))?,
            },
            Whose::Newest(who) => self.resolve(who)?,
        };
        let newest = |at: usize| match self.nodes.newest_disk(at) {
            Some(folder) => Ok((at, folder)),
            None => self.add_disk(at),
        };
        nodes.into_iter().map(newest).collect()
    }

    /// The running nodes whose newest disk has buckets.
    fn nodes_with_buckets(&self) -> anyhow::Result<Vec<usize>> {
        let listed = self.listed_disks()?;
        let has_some = |at: &usize| {
            let newest = self.nodes.newest_disk(*at);
            let of_folder = newest.and_then(|folder| of_folder(&listed, &folder));
            of_folder.is_some_and(|disk| buckets_of(disk) > 0)
        };
        Ok(self.nodes.running().into_iter().filter(has_some).collect())
    }

    /// All disks, as nodes report them. Their folders are those of this machine, so each is there once.
    fn listed_disks(&self) -> anyhow::Result<Vec<Value>> {
        let said = self.staves(&["disk", "list", "-o", "json"])?;
        serde_json::from_str(&said).context("no JSON")
    }

    /// A disk, as its node reports it within a while; `None` if it has none such, or does not answer.
    fn disk(&self, at: usize, folder: &Path) -> anyhow::Result<Option<Value>> {
        let listed = self.listed_disks()?;
        let found = of_folder(&listed, folder).cloned();
        Ok(found.filter(|_| self.nodes.is_running(at)))
    }

    /// Gives a command for a disk until it is done.
    fn disk_command(
        &self,
        at: usize,
        verb: &[&str],
        folder: &Path,
        rest: &[&str],
    ) -> anyhow::Result<()> {
        let until = Instant::now() + COMMAND;
        let folder = folder.display().to_string();
        loop {
            let node = self.node_id(at)?;
            let args = [&["disk"], verb, &[&node, &folder], rest].concat();
            match self.staves(&args) {
                Ok(_) => return Ok(()),
                Err(why) if Instant::now() >= until => return Err(why),
                Err(_) => std::thread::sleep(AGAIN),
            }
        }
    }

    /// Begins what may take a while, and may have to be asked for again when the node has ended in the middle.
    fn begin_change(
        &mut self,
        at: usize,
        verb: &'static str,
        folder: &Path,
        rest: &[&str],
        with: Option<PathBuf>,
    ) -> anyhow::Result<()> {
        let change = DiskChange {
            head: vec![
                "--cluster".into(),
                self.shared.native_doors().join(","),
                "--deadline".into(),
                "10s".into(),
            ],
            program: self.settings.program.display().to_string(),
            words: {
                let (node, gone) = (self.node_id(at)?, folder.display().to_string());
                let words = [&["disk", verb, &node, &gone], rest].concat();
                words.into_iter().map(str::to_owned).collect()
            },
            old: folder.to_owned(),
            new: with,
        };
        let until = Instant::now() + 2 * HEALING;
        let change = std::thread::spawn(move || change.make(until));
        self.disks.changes.push(((at, folder.to_owned()), change));
        Ok(())
    }

    /// Waits until all that was begun is done, and disks that fail are known to have failed.
    pub(super) fn settle_disks(&mut self) {
        for ((at, folder), change) in std::mem::take(&mut self.disks.changes) {
            let name = format!("the disk {} of n{}", folder.display(), at + 1);
            let done = change.join();
            match done.unwrap_or_else(|_| Err("its command panicked".into())) {
                Ok(()) => {
                    self.tell(&format!("   {name} is out"));
                    self.nodes.drop_disk(at, &folder);
                }
                Err(why) => self.wrong(format!("{name} could not be taken out: {why}")),
            }
        }
        for ((at, folder), since) in std::mem::take(&mut self.disks.failing) {
            let until = since + self.healing();
            while let Err(why) = self.has_failed(at, &folder, since) {
                self.check_alive();
                if self.is_found() {
                    return;
                }
                if Instant::now() >= until {
                    self.wrong(why);
                    break;
                }
                std::thread::sleep(AGAIN);
            }
        }
    }

    /// `Err` says what a node that goes on makes of a disk that fails.
    fn has_failed(&self, at: usize, folder: &Path, since: Instant) -> Result<(), String> {
        // A start may have found it good for what it has, and put nothing there.
        if !self.nodes.is_running(at) || self.nodes.age(at) < since.elapsed() {
            return Ok(());
        }
        let said = match self.disk(at, folder) {
            Ok(None) => return Ok(()),
            Ok(Some(disk)) if disk["state"] == "failed" || buckets_of(&disk) == 0 => return Ok(()),
            Ok(Some(disk)) => disk.to_string(),
            Err(why) => format!("{why:#}"),
        };
        let folder = folder.display();
        Err(format!(
            "the disk {folder} of n{} fails, and its node has it that {said}",
            at + 1
        ))
    }
}

/// A disk that goes, and the one that comes in its place, by a command that is given until that is so.
struct DiskChange {
    program: String,
    head: Vec<String>,
    words: Vec<String>,
    old: PathBuf,
    new: Option<PathBuf>,
}

impl DiskChange {
    fn staves(&self, args: &[&str]) -> anyhow::Result<String> {
        let head: Vec<&str> = self.head.iter().map(String::as_str).collect();
        let all = [&head[..], args].concat();
        crate::lab::tool(&self.program, &all)
    }

    fn make(self, until: Instant) -> Result<(), String> {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        loop {
            let Err(why) = self.staves(&words) else {
                return Ok(());
            };
            let why = format!("{why:#}");
            let listed = self.staves(&["disk", "list", "-o", "json"]);
            let listed = listed.map(|text| serde_json::from_str(&text).unwrap_or_default());
            let listed: Vec<Value> = listed.unwrap_or_default();
            if let Some(new) = &self.new {
                let is_new_there = of_folder(&listed, new).is_some();
                // The answer to one before was lost.
                if is_new_there && of_folder(&listed, &self.old).is_none() {
                    return Ok(());
                }
                // A node that ended while it made the disk leaves what there is of it: a person would delete that.
                if !is_new_there
                    && of_folder(&listed, &self.old).is_some()
                    && why.contains(HALF_MADE)
                {
                    // If that fails the command does, too.
                    let _ = std::fs::remove_dir_all(new);
                }
            }
            if Instant::now() >= until {
                return Err(why);
            }
            std::thread::sleep(AGAIN);
        }
    }
}

fn of_folder<'a>(listed: &'a [Value], folder: &Path) -> Option<&'a Value> {
    let folder = folder.to_string_lossy();
    listed.iter().find(|disk| disk["folder"] == *folder)
}

fn buckets_of(disk: &Value) -> u64 {
    disk["buckets"].as_u64().unwrap_or(0)
}
