//! The steps of a run: what is done to nodes, and how it is undone.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, bail};

use super::Runner;
use crate::lab::HUB;
use crate::load::flood::Flood;
use crate::nodes::RESIDENT_MAX;
use crate::scenario::{Action, Step, Who};

/// The bound on a node's orderly stop.
const STOPPING: Duration = Duration::from_secs(25);
/// The bound on a drain that is waited for.
const DRAINING: Duration = Duration::from_secs(20);

impl Runner<'_> {
    pub(super) fn act(&mut self, step: &Step) -> anyhow::Result<String> {
        match &step.action {
            Action::Kill(who) => {
                let who = self.resolve(who)?;
                who.iter().for_each(|at| self.shared.excuse(*at, u64::MAX));
                let from = self.shared.now();
                self.verdict.kills.push(from);
                self.nodes.kill(&who)?;
                // One alone is never more than the scheme bears.
                if self.scenario.losses && who.len() > 1 {
                    self.losses.push(from..self.shared.now());
                }
                self.down.extend(&who);
            }
            Action::Restart { who, forget } => {
                for at in self.resolve(who)? {
                    self.shared.excuse(at, u64::MAX);
                    self.nodes.kill(&[at])?;
                    if *forget {
                        self.nodes.forget(at)?;
                        self.watch.forget(at);
                    }
                    self.restart(at)?;
                }
            }
            Action::Stop(who) => {
                for at in self.resolve(who)? {
                    self.stop(at)?;
                }
            }
            Action::Pause(who) => {
                for at in self.resolve(who)? {
                    self.shared.excuse(at, u64::MAX);
                    self.nodes.pause(at)?;
                }
            }
            Action::Cut { from, to, one_way } => {
                let from = self.resolve(from)?;
                let to = self.resolve_but(to, &from)?;
                self.last = [&from[..], &to].concat();
                self.cut(&from, &to, *one_way)?;
            }
            Action::Isolate(who) => {
                let who = self.resolve(who)?;
                let others: Vec<usize> = (0..self.nodes.count())
                    .filter(|at| !who.contains(at))
                    .collect();
                self.cut(&who, &others, false)?;
            }
            Action::Slow { who, rate } => {
                for at in self.resolve(who)? {
                    self.shared.excuse(at, u64::MAX);
                    self.lab.slow(at, Some(rate))?;
                }
            }
            Action::Fill(who) => {
                for at in self.resolve(who)? {
                    self.shared.excuse(at, u64::MAX);
                    self.nodes.fill_disk(at, true)?;
                    self.full.insert(at);
                }
            }
            Action::Flood { .. } | Action::Starve(_) | Action::SetClock { .. } => {
                self.strain(&step.action)?;
            }
            Action::Join => {
                self.lab.add()?;
                self.add()?;
                let at = self.nodes.count() - 1;
                self.last = vec![at];
                self.nodes.start(&self.lab, at, false)?;
            }
            Action::Drain { who, waits } => self.drain(who, *waits)?,
            Action::TakeBack(who) => self.command(who, &["resume"])?,
            Action::Disk { action, whose } => self.disk_step(*action, whose)?,
            Action::TakeOver => self.shared.volume.take_over(),
            Action::Snapshot => self.shared.images.ask(),
            Action::Roll => {
                for at in 0..self.nodes.count() {
                    self.stop(at)?;
                    self.restart(at)?;
                    if let Err(why) = self.healthy() {
                        self.wrong(format!("after n{} was restarted: {why}", at + 1));
                    }
                }
            }
            Action::SetScheme(scheme) => {
                self.staves(&["pool", "set", "cache", "--scheme", scheme])?;
            }
            Action::Overwrite => {
                let files = self.files.as_ref().context("there are no files")?;
                files.source.overwrite()?;
            }
            Action::Flip(who) => {
                let mut flipped = 0;
                for at in self.resolve(who)? {
                    flipped += self.nodes.flip_bits(at, &mut self.rng)?;
                }
                if flipped == 0 {
                    bail!("none of them holds anything of the files");
                }
                self.tell(&format!("   {flipped} bits flipped"));
            }
            Action::Heal => self.heal()?,
            Action::WaitHealthy => {
                self.settle_disks();
                if let Err(why) = self.healthy() {
                    self.wrong(why);
                }
            }
            Action::Run => {}
        }
        let name = |at: &usize| match *at {
            HUB => "clients".to_owned(),
            at => format!("n{}", at + 1),
        };
        let names: Vec<String> = self.last.iter().map(name).collect();
        Ok(match &step.action {
            Action::Heal
            | Action::WaitHealthy
            | Action::Run
            | Action::Roll
            | Action::TakeOver
            | Action::Snapshot
            | Action::Overwrite
            | Action::SetScheme(_) => String::new(),
            _ => format!("   [{}]", names.join(" ")),
        })
    }

    /// Strains nodes that go on.
    fn strain(&mut self, action: &Action) -> anyhow::Result<()> {
        match action {
            Action::Flood { who, kind } => {
                for at in self.resolve(who)? {
                    let door = self.shared.door(at).context("clients have no door")?;
                    self.floods.push(Flood::start(*kind, at, door));
                }
            }
            Action::Starve(who) => {
                for at in self.resolve(who)? {
                    self.shared.excuse(at, u64::MAX);
                    self.nodes.starve(at)?;
                }
            }
            Action::SetClock { who, to } => {
                for at in self.resolve(who)? {
                    self.nodes.set_clock(at, to)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn cut(&mut self, from: &[usize], to: &[usize], one_way: bool) -> anyhow::Result<()> {
        // Who is cut off from clients need not answer them.
        for (one, others) in [(from, to), (to, from)] {
            if one.contains(&HUB) {
                others
                    .iter()
                    .for_each(|at| self.shared.excuse(*at, u64::MAX));
            }
        }
        let mut cuts = self.lab.cuts().clone();
        let pairs = from.iter().flat_map(|a| to.iter().map(|b| (*a, *b)));
        for (a, b) in pairs.filter(|(a, b)| a != b) {
            cuts.insert((a, b));
            if !one_way {
                cuts.insert((b, a));
            }
        }
        self.lab.set_cuts(cuts)
    }

    fn stop(&mut self, at: usize) -> anyhow::Result<()> {
        self.shared.excuse(at, u64::MAX);
        let status = self.nodes.stop(at, STOPPING)?;
        self.down.insert(at);
        if !status.success() {
            self.wrong(format!(
                "n{} was asked to stop and ended with {status}",
                at + 1
            ));
        }
        Ok(())
    }

    pub(super) fn restart(&mut self, at: usize) -> anyhow::Result<()> {
        self.nodes.start(&self.lab, at, false)?;
        self.down.remove(&at);
        self.full.remove(&at);
        self.shared.excuse(at, self.shared.now());
        Ok(())
    }

    /// Asks for nodes to be drained, also where that costs copies. Who waits for the end of it demands that it ends while the faults last.
    fn drain(&mut self, who: &Who, waits: bool) -> anyhow::Result<()> {
        if !waits {
            return self.command(who, &["drain", "--force"]);
        }
        let limit = format!("{}s", DRAINING.as_secs());
        if let Err(why) = self.command(who, &["drain", "--force", "--wait", &limit]) {
            self.wrong(format!("not drained within {limit}: {why:#}"));
        }
        Ok(())
    }

    /// Tells the cluster what to do with nodes, by the ids that it knows them by.
    fn command(&mut self, who: &Who, verb: &[&str]) -> anyhow::Result<()> {
        for at in self.resolve(who)? {
            let id = self.node_id(at)?;
            self.staves(&[&["node"], verb, &[&id]].concat())?;
        }
        Ok(())
    }

    /// The id of a node; of several that had its address, the one that is up.
    pub(super) fn node_id(&self, at: usize) -> anyhow::Result<String> {
        let native = format!("{}:1600", self.lab.address(at));
        let said = self.staves(&["node", "list", "-o", "json"])?;
        let said: serde_json::Value = serde_json::from_str(&said).context("no JSON")?;
        let nodes = said.as_array().or_else(|| said["nodes"].as_array());
        let here = nodes.into_iter().flatten();
        let here: Vec<_> = here.filter(|n| n["native"] == native.as_str()).collect();
        let up = here.iter().find(|n| n["up"] == true).or(here.last());
        let id = up.and_then(|node| node["id"].as_u64());
        let id = id.with_context(|| format!("the cluster does not know n{}", at + 1))?;
        Ok(id.to_string())
    }

    pub(super) fn staves(&self, args: &[&str]) -> anyhow::Result<String> {
        let running = self
            .nodes
            .running()
            .into_iter()
            .filter(|at| self.nodes.is_running(*at));
        let doors: Vec<String> = running
            .map(|at| format!("{}:1600", self.lab.address(at)))
            .collect();
        let doors = doors.join(",");
        let all = [&["--cluster", &doors, "--deadline", "30s"], args].concat();
        crate::lab::tool(&self.settings.program.display().to_string(), &all)
    }

    pub(super) fn undo(&mut self, step: &Step) -> anyhow::Result<()> {
        if step.action == Action::Run {
            return Ok(());
        }
        self.heal()?;
        self.tell("   healed");
        Ok(())
    }

    /// Ends every fault but death.
    pub(super) fn heal(&mut self) -> anyhow::Result<()> {
        self.lab.set_cuts(BTreeSet::new())?;
        self.nodes.resume_all()?;
        let all: Vec<usize> = (0..self.nodes.count()).collect();
        self.nodes.feed(&all);
        for flood in std::mem::take(&mut self.floods) {
            self.end_flood(flood);
        }
        for at in 0..self.nodes.count() {
            self.nodes.fill_disk(at, false)?;
            // Fails where nothing was slowed.
            let _ = self.lab.slow(at, None);
            if !self.down.contains(&at) {
                self.shared.excuse(at, self.shared.now());
            }
        }
        Ok(())
    }

    /// Ends a flood, and looks whether its node has taken more memory than it may.
    fn end_flood(&mut self, flood: Flood) {
        let (at, kind, (connections, commands)) = (flood.at, flood.kind.words(), flood.counts());
        drop(flood);
        let most = self.nodes.resident_max(at).unwrap_or_default();
        let node = format!("n{} under a flood of {kind}", at + 1);
        self.tell(&format!(
            "   {node}: {connections} connections, {commands} answers, at most {} MiB of memory",
            most >> 20
        ));
        if most > RESIDENT_MAX {
            let (took, may) = (most >> 20, RESIDENT_MAX >> 20);
            self.wrong(format!(
                "{node} took {took} MiB of memory, and may take {may} MiB"
            ));
        }
        let counts = &mut self.verdict.by_kind;
        *counts.entry("connection of a flood").or_default() += connections;
        *counts.entry("command of a flood").or_default() += commands;
    }
}
