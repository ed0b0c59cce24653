//! One run of a scenario, from an empty lab to a verdict.

mod disks;
mod logs;
mod steps;
mod volumes;
mod who;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use staves_history::record;

use crate::judge::{self, Stall};
use crate::lab::Lab;
use crate::load::files::{self, Files};
use crate::load::flood::Flood;
use crate::load::{self, Shared, log, region, volume};
use crate::nodes::{FOLDER, Nodes, Setup, is_whole, status};
use crate::scenario::Scenario;
use crate::wan::Wan;
use crate::watch::Watch;

/// The bound on the cluster's recovery.
const HEALING: Duration = Duration::from_secs(90);
/// The same, where a planted bug may be what it takes so long for.
const HEALING_HUNTED: Duration = Duration::from_secs(20);
/// The memory pool's share of each node, without a volume and with one: the region may be all there, and some of the volume.
const MEMORY_OF_POOL: [&str; 2] = ["64MiB", "88MiB"];
/// The process number of the reader at the end.
const READER: u32 = 1_000_000;

/// The options of a run besides its scenario.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// The `staves` program.
    pub program: PathBuf,
    /// For what is random.
    pub seed: u64,
    /// A planted bug.
    pub mutant: Option<String>,
    /// Words of the violation that is hunted for, any of these: once it is seen, the run need not go on.
    pub wanted: Option<&'static [&'static str]>,
    /// The parent of the folders of runs.
    pub folder: PathBuf,
    /// Leave the folder behind in any case.
    pub keep: bool,
}

/// The verdict on a run.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// The scenario's name.
    pub name: String,
    /// The violations; nothing if all is well.
    pub violations: Vec<String>,
    /// Operations in the history.
    pub operations: usize,
    /// All operations by kind, those of readers and of floods too.
    pub by_kind: BTreeMap<&'static str, usize>,
    /// Of these, such with an unknown outcome.
    pub unknown: usize,
    /// Keys that took too long to decide.
    pub undecided: usize,
    /// The longest that a contended key had no answer.
    pub stall: Stall,
    /// Faults by kind.
    pub faults: Vec<&'static str>,
    /// The times at which nodes were killed, in nanoseconds of the run.
    pub kills: Vec<u64>,
    /// Appends to logs with an unknown outcome.
    pub log_unknown: usize,
    /// The longest without an acknowledged append to a log, where there are logs.
    pub append_gap: Option<log::AppendGap>,
    /// The same from each kill to the next.
    pub append_gaps: Vec<log::AppendGap>,
    /// The events, with times.
    pub story: String,
    /// The folder of logs and history, if they were left behind.
    pub folder: Option<PathBuf>,
    /// The history, as JSON lines, while the folder is there.
    pub history: PathBuf,
}

struct Runner<'a> {
    scenario: &'a Scenario,
    settings: &'a RunSettings,
    /// Before the lab: what is mounted goes first.
    files: Option<Files>,
    lab: Lab,
    nodes: Nodes,
    floods: Vec<Flood>,
    shared: Arc<Shared>,
    watch: Watch,
    rng: SmallRng,
    /// The nodes of the last step.
    last: Vec<usize>,
    /// Nodes that are not meant to run.
    down: BTreeSet<usize>,
    /// Nodes whose disks were full since they were started: they may end by themselves, and say so.
    full: BTreeSet<usize>,
    losses: Vec<Range<u64>>,
    disks: disks::StepDisks,
    verdict: Verdict,
}

/// Does it. An error is trouble of the run's own, not of what it tests; `second` may look at the history
/// before the folder goes.
pub fn run(
    scenario: &Scenario,
    settings: &RunSettings,
    second: impl FnOnce(&Path) -> Vec<String>,
) -> anyhow::Result<Verdict> {
    let folder = tempfile::Builder::new()
        .prefix(&format!("{FOLDER}{}-", std::process::id()))
        .tempdir_in(&settings.folder)
        .context("cannot make a folder for the run")?;
    // A thread of its own: it moves into the lab's namespace, and never back.
    let result = std::thread::scope(|scope| {
        let run = scope.spawn(|| in_lab(scenario, settings, folder.path()));
        run.join()
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the run panicked")))
    });
    let mut verdict = match result {
        Ok(verdict) => verdict,
        Err(error) => {
            let kept = folder.keep();
            return Err(error.context(format!("the run's logs are in {}", kept.display())));
        }
    };
    verdict.violations.extend(second(&verdict.history));
    if settings.keep || !verdict.violations.is_empty() {
        let mut text = verdict.story.clone();
        for violation in &verdict.violations {
            let _ = writeln!(text, "VIOLATION: {violation}");
        }
        let kept = folder.keep();
        std::fs::write(kept.join("story.txt"), text).context("cannot write the run's story")?;
        verdict.folder = Some(kept);
    }
    Ok(verdict)
}

fn in_lab(scenario: &Scenario, settings: &RunSettings, folder: &Path) -> anyhow::Result<Verdict> {
    let mut lab = Lab::new(scenario.nodes)?;
    if let Some(wan) = scenario.wan {
        lab.delay(Wan::new(wan.one_way)?, wan.zone)?;
    }
    lab.enter()?;
    let setup = Setup {
        program: settings.program.clone(),
        mutant: settings.mutant.clone(),
        scheme: scenario.scheme.clone(),
        clocks_apart: scenario.clocks_apart,
        wall_clocks_apart: scenario.wall_clocks_apart,
        few_descriptors: scenario.few_descriptors,
        on_disk: scenario.on_disk || scenario.log_on_disk,
        volumes: scenario.volume,
        log_door: false,
        zone: scenario.wan.map(|wan| wan.zone).filter(|nodes| *nodes > 1),
    };
    let mut runner = Runner {
        scenario,
        settings,
        nodes: Nodes::new(setup, folder),
        files: None,
        floods: Vec::new(),
        lab,
        shared: Shared::new(scenario.few_descriptors),
        watch: Watch::start(),
        rng: SmallRng::seed_from_u64(settings.seed),
        last: Vec::new(),
        down: BTreeSet::new(),
        full: BTreeSet::new(),
        losses: Vec::new(),
        disks: disks::StepDisks::default(),
        verdict: Verdict {
            name: scenario.name.clone(),
            ..Verdict::default()
        },
    };
    if scenario.files {
        runner.files = Some(Files::new(folder, &runner.shared)?);
    }
    runner.begin()?;
    let from = runner.shared.now();
    let clients = runner.start_clients();
    if !scenario.deaths {
        runner.watch.miss_nobody();
    }
    let steps = runner.steps();
    let to = runner.shared.now();
    runner.end(clients, steps)?;
    runner.judge(folder, from, to)
}

impl Runner<'_> {
    fn start_clients(&self) -> Vec<JoinHandle<()>> {
        let (scenario, seed) = (self.scenario, self.settings.seed);
        let mut clients = match &self.files {
            Some(files) => files.start(&self.shared, seed),
            None => Vec::new(),
        };
        if !scenario.only_files {
            clients.extend(load::start(
                &self.shared,
                seed,
                scenario.clients,
                scenario.keys,
                scenario.memory.is_some(),
            ));
        }
        if scenario.volume {
            clients.extend(volume::start(&self.shared, seed));
        }
        if scenario.snapshots {
            let program = &self.settings.program;
            clients.extend(volume::copies::start(&self.shared, seed, program));
        }
        if scenario.log.is_some() {
            clients.extend(log::start(&self.shared, seed));
        }
        clients
    }

    fn tell(&mut self, text: &str) {
        let at = self.shared.now() as f64 / 1e9;
        let _ = writeln!(self.verdict.story, "{at:8.3} s  {text}");
    }

    /// True if a violation that is hunted for has been seen.
    fn is_found(&self) -> bool {
        self.settings.wanted.is_some_and(|words| {
            let seen = self.watch.violations();
            let mut all = self.verdict.violations.iter().chain(&seen);
            all.any(|violation| words.iter().any(|word| violation.contains(word)))
        })
    }

    fn wrong(&mut self, text: String) {
        self.tell(&format!("VIOLATION: {text}"));
        self.verdict.violations.push(text);
    }

    /// Starts all nodes and waits until they are whole.
    fn begin(&mut self) -> anyhow::Result<()> {
        for at in 0..self.scenario.nodes {
            self.add()?;
            self.nodes.start(&self.lab, at, at == 0)?;
            if at == 0 {
                self.wait(|s| s["nodes"][0]["up"] == true, "the first node is up")?;
                if let Some(mutant) = &self.settings.mutant {
                    let log = std::fs::read_to_string(self.nodes.log(0)).unwrap_or_default();
                    if !log.contains("a bug is planted") {
                        bail!(
                            "{mutant} was not planted: {} was built without the feature 'mutants'",
                            self.settings.program.display()
                        );
                    }
                }
            }
        }
        // A pool begins with the nodes that are there.
        let all = self.scenario.nodes;
        self.wait(
            |s| (0..all).all(|at| s["nodes"][at]["up"] == true),
            "all nodes are up",
        )?;
        if self.scenario.two_disks {
            self.add_second_disks()?;
        }
        let mut pools = self.create_pools()?;
        self.healthy_within(HEALING).map_err(anyhow::Error::msg)?;
        if let Some(files) = &mut self.files {
            let doors = self.shared.native_doors();
            pools += match files.mount(&self.settings.program, &self.lab, &doors)? {
                true => ", files, mounted",
                false => ", files, not mounted: /dev/fuse cannot be opened",
            };
        }
        self.tell(&format!("{} nodes are up, {pools}", self.scenario.nodes));
        Ok(())
    }

    /// The pools, in words.
    fn create_pools(&mut self) -> anyhow::Result<String> {
        let mut pools = format!("pool cache {}", self.scenario.scheme);
        if let Some(scheme) = &self.scenario.memory {
            let share = MEMORY_OF_POOL[usize::from(self.scenario.volume)];
            let pool = [
                "pool", "create", "ram", "--kind", "memory", "--memory", share,
            ];
            let medium = match self.scenario.on_disk {
                true => "disk",
                false => "ram",
            };
            let scheme_and_medium = ["--scheme", scheme, "--medium", medium];
            self.staves(&[&pool[..], &scheme_and_medium].concat())?;
            let size = format!("{}B", region::REGION_BYTES);
            let create = [
                "memory",
                "create",
                region::REGION,
                "--pool",
                "ram",
                "--size",
            ];
            self.staves(&[&create[..], &[&size]].concat())?;
            pools += &format!(", a region of {scheme} in {medium}");
        }
        pools += self.create_volumes()?;
        pools += &self.create_logs()?;
        if self.scenario.files {
            let pool = ["pool", "create", files::NAME, "--kind", "files", "--memory"];
            self.staves(&[&pool[..], &[files::MEMORY]].concat())?;
        }
        Ok(pools)
    }

    fn add(&mut self) -> anyhow::Result<()> {
        let at = self.nodes.add()?;
        let address = self.lab.address(at);
        self.shared
            .add_door(format!("{address}:6379").parse().context("an address")?);
        self.watch.add(address);
        Ok(())
    }

    /// Waits until some node says what is wanted.
    fn wait(
        &mut self,
        wanted: impl Fn(&serde_json::Value) -> bool,
        what: &str,
    ) -> anyhow::Result<()> {
        let until = Instant::now() + HEALING;
        let mut last = "no node answered".to_owned();
        while Instant::now() < until {
            for at in self.nodes.running() {
                match status(&self.lab.address(at)) {
                    Ok(said) if wanted(&said) => return Ok(()),
                    Ok(said) => last = said["sentence"].to_string(),
                    Err(_) => {}
                }
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("after {HEALING:?} still waiting until {what}; last heard: {last}")
    }

    /// Waits until `staves status --check` is content with the nodes that are meant to run. `Err` says
    /// what it is not content with.
    fn healthy(&mut self) -> Result<(), String> {
        self.healthy_within(self.healing())
    }

    /// The bound on recovery in this run.
    fn healing(&self) -> Duration {
        match self.settings.wanted {
            Some(_) => HEALING_HUNTED,
            None => HEALING,
        }
    }

    fn healthy_within(&mut self, healing: Duration) -> Result<(), String> {
        let doors = |nodes: &Nodes, lab: &Lab| {
            let running = nodes
                .running()
                .into_iter()
                .filter(|at| nodes.is_running(*at));
            running
                .map(|at| format!("{}:1600", lab.address(at)))
                .collect::<Vec<_>>()
                .join(",")
        };
        let until = Instant::now() + healing;
        loop {
            self.check_alive();
            if self.is_found() {
                return Err("no need to wait any longer".into());
            }
            let doors = doors(&self.nodes, &self.lab);
            let args = ["--cluster", &doors, "status", "-o", "json"];
            let out = std::process::Command::new(&self.settings.program)
                .args(args)
                .output();
            let out = out.map_err(|error| format!("cannot run staves status: {error}"))?;
            let said: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
            let up = said["nodes"]
                .as_array()
                .map_or(0, |n| n.iter().filter(|n| n["up"] == true).count());
            // Not as things were before the last fault was noticed.
            let current = self
                .nodes
                .running()
                .iter()
                .all(|at| self.is_current(*at, &said));
            if is_whole(&said) && up == self.nodes.running().len() && current {
                return Ok(());
            }
            if Instant::now() >= until {
                let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
                return Err(format!(
                    "not healthy after {healing:?} ({up} up of {} that run): {} {stderr}",
                    self.nodes.running().len(),
                    said["sentence"]
                ));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// True if the report has this node's status from its present process.
    fn is_current(&self, at: usize, said: &serde_json::Value) -> bool {
        let native = format!("{}:1600", self.lab.address(at));
        let nodes = said["nodes"].as_array();
        // Who came back without its folder is a new node at the address of one that is down.
        let here = |n: &&serde_json::Value| n["native"] == native.as_str() && n["up"] == true;
        let row = nodes.and_then(|all| all.iter().find(here));
        let uptime = row.and_then(|row| row["facts"]["uptime_ms"].as_u64());
        uptime.is_some_and(|ms| Duration::from_millis(ms) <= self.nodes.age(at))
    }

    /// Does what the scenario says. `Err` is a step that did not come to its end.
    fn steps(&mut self) -> anyhow::Result<()> {
        for step in &self.scenario.steps {
            std::thread::sleep(step.after);
            self.check_alive();
            if self.is_found() {
                return Ok(());
            }
            let resolved = self
                .act(step)
                .with_context(|| format!("step '{}'", step.text))?;
            self.verdict.faults.extend(step.action.fault());
            self.tell(&format!("{}{resolved}", step.text));
            if let Some(lasting) = step.lasting {
                std::thread::sleep(lasting);
                self.undo(step)?;
            }
        }
        // What the last step did is given time to show.
        std::thread::sleep(Duration::from_millis(1500));
        Ok(())
    }

    /// A process that ends though nobody ended it is a finding, and so is a thread that panics.
    fn check_alive(&mut self) {
        match self.nodes.panics() {
            Ok(panics) => {
                for (at, panic) in panics {
                    self.wrong(format!("n{}: {panic}", at + 1));
                }
            }
            Err(why) => self.wrong(format!("{why:#}")),
        }
        let mounts = self.files.as_mut().map(Files::ended_by_themselves);
        mounts
            .into_iter()
            .flatten()
            .for_each(|ended| self.wrong(ended));
        for (at, status) in self.nodes.ended_by_themselves() {
            self.down.insert(at);
            let log = std::fs::read_to_string(self.nodes.log(at)).unwrap_or_default();
            let said: Vec<&str> = log.lines().rev().take(3).collect();
            if self.full.contains(&at) && status.contains("exit status: 1") {
                self.tell(&format!("   n{} ended, for its disk was full", at + 1));
                continue;
            }
            self.wrong(format!(
                "n{} ended by itself ({status}); it said: {said:?}",
                at + 1
            ));
        }
    }

    /// Heals, brings all back, waits until all is well, ends the clients and reads every key once more.
    fn end(
        &mut self,
        clients: Vec<JoinHandle<()>>,
        steps: anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.heal()?;
        self.check_alive();
        let found = self.is_found();
        for at in self.down.clone().into_iter().filter(|_| !found) {
            self.restart(at)?;
        }
        self.settle_disks();
        let healthy = self.healthy();
        match self.lab.delays() {
            Ok(Some(counts)) => self.tell(&format!("wan: {counts}")),
            Ok(None) => {}
            Err(why) => self.wrong(format!("{why:#}")),
        }
        self.shared.stop();
        for client in clients {
            if client.join().is_err() {
                bail!("a client panicked");
            }
        }
        self.check_alive();
        if let Err(error) = steps {
            self.wrong(format!("{error:#}"));
        }
        match healthy {
            Ok(()) => self.tell("healthy again"),
            Err(why) => self.wrong(why),
        }
        if let Some(files) = &self.files {
            files.read_all(&self.shared);
            self.tell("read all files");
        }
        if !self.scenario.only_files && !self.is_found() {
            self.read_all();
        }
        if !self.is_found() {
            self.read_volumes();
            self.read_logs();
        }
        Ok(())
    }

    fn read_all(&mut self) {
        let (region, until) = (
            self.scenario.memory.is_some(),
            Instant::now() + self.healing(),
        );
        let (all, silent) = match load::read_all(&self.shared, region, READER, until) {
            Ok(read) => read,
            Err(error) => return self.wrong(format!("not all can be read: {error:#}")),
        };
        self.tell(&format!("read all {all} keys"));
        if let Some(first) = silent.first() {
            self.wrong(format!(
                "{} keys could not be read at the end, {first} for one",
                silent.len()
            ));
        }
    }

    fn count(&mut self, records: &[record::Record]) {
        for record in records {
            let kind = judge::kind(&record.asked);
            *self.verdict.by_kind.entry(kind).or_default() += 1;
        }
    }

    fn judge(mut self, folder: &Path, from: u64, to: u64) -> anyhow::Result<Verdict> {
        let hangs = self.shared.hangs();
        hangs.into_iter().for_each(|hang| self.wrong(hang));
        let records = self.shared.records();
        self.count(&records);
        let records = judge::with_losses(records, &self.losses, self.scenario.on_disk);
        self.verdict.history = folder.join("history.jsonl");
        let file =
            std::fs::File::create(&self.verdict.history).context("cannot write the history")?;
        record::write(&mut std::io::BufWriter::new(file), &records)
            .context("cannot write the history")?;
        let (checked, violations) = judge::histories(&records);
        violations
            .into_iter()
            .for_each(|violation| self.wrong(violation));
        if !self.scenario.only_files {
            self.verdict.stall = judge::worst_stall(&records, from, to);
        }
        self.judge_volumes(folder, from, to)?;
        self.judge_logs(folder, from, to)?;
        let files = self.files.as_ref().map(Files::worst_stall);
        if let Some(stall) = files.filter(|stall| stall.length > self.verdict.stall.length) {
            self.verdict.stall = stall;
        }
        let wait = self.shared.worst_wait(self.scenario.but_node);
        if self.scenario.everywhere && wait.length > self.verdict.stall.length {
            self.verdict.stall = wait;
        }
        let stall = self.verdict.stall.clone();
        if stall.length > self.scenario.stall_max && !self.scenario.losses {
            self.wrong(format!(
                "no answer about {} for {:?} from {:.3} s on",
                stall.key,
                stall.length,
                stall.from as f64 / 1e9
            ));
        }
        self.verdict.operations += checked.operations;
        self.verdict.unknown = checked.unknown + self.verdict.log_unknown;
        self.verdict.undecided = checked.undecided.len();
        if let Some(files) = &self.files {
            let (reads, stale) = files.counts();
            self.verdict.operations += reads;
            self.verdict.by_kind.insert("read of a file", reads);
            self.tell(&format!(
                "{reads} reads, {stale} refused for the file had changed; longest {:?}",
                stall.length
            ));
        }
        let kinds = counted(&self.verdict.by_kind);
        self.tell(&format!("operations: {kinds}"));
        self.tell(&format!(
            "{} operations on {} keys, {} with unknown outcome, {} refused or not sent; longest stall {:?} ({})",
            checked.operations, checked.keys, checked.unknown,
            self.shared.refused(), stall.length, stall.key
        ));
        let Runner {
            watch, mut verdict, ..
        } = self;
        verdict.violations.extend(watch.end());
        Ok(verdict)
    }
}

/// Counts by kind, in words.
pub fn counted(counts: &BTreeMap<&str, usize>) -> String {
    let each: Vec<String> = counts
        .iter()
        .map(|(kind, n)| format!("{n} {kind}"))
        .collect();
    each.join(", ")
}
