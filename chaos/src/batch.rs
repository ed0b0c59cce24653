//! Runs in a row, and what they come to together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use staves_chaos::mutants::Hunt;
use staves_chaos::nodes::disks;
use staves_chaos::run::{self, RunSettings, Verdict};
use staves_chaos::scenario::{Scenario, parse};
use staves_chaos::{catalogue, judge, kills, lab, mutants, random, second, wan};
use staves_history::record;

use crate::args::{Args, Command};
use crate::delay;

/// Does what the command line says; whether nothing was found wrong.
pub fn execute(args: &Args) -> anyhow::Result<bool> {
    if let Command::Check { history } = &args.command {
        return check(history);
    }
    if let Command::Wan { one_way, places } = &args.command {
        return delay::execute(*one_way, places);
    }
    if let Some(why) = lab::impossible() {
        bail!("{why}");
    }
    let from_clock = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |t| t.as_millis() as u64)
    };
    let plants = args.mutant.is_some() || matches!(args.command, Command::Mutants { .. });
    let settings = RunSettings {
        program: match &args.staves {
            Some(program) => program.clone(),
            None => built(plants)?,
        },
        seed: args.seed.unwrap_or_else(from_clock),
        mutant: args.mutant.clone(),
        wanted: None,
        folder: args.folder.clone(),
        keep: args.keep,
    };
    let mut batch = Batch::new(args, settings);
    match &args.command {
        Command::Quick => batch.all(catalogue::all()?, None),
        Command::Rest => {
            let tested = |s: &Scenario| catalogue::TESTED.contains(&s.name.as_str());
            let all = catalogue::all()?.into_iter();
            batch.all(all.filter(|s| !tested(s)).collect(), None)
        }
        Command::Run { scenarios } => {
            let read = scenarios.iter().map(|name| named(name));
            batch.all(read.collect::<anyhow::Result<_>>()?, None)
        }
        Command::Long { minutes } => {
            let until = Instant::now() + Duration::from_secs(minutes * 60);
            batch.all(catalogue::all()?, Some(until))
        }
        Command::Kills { of, count } => {
            let kills = kills::measure(&batch.settings, (*of, *count), |line| eprintln!("{line}"))?;
            println!(
                "{}",
                if args.json {
                    kills.json().to_string()
                } else {
                    kills.to_string()
                }
            );
            Ok(kills.lost == 0)
        }
        Command::Mutants { names } => hunt(&batch.settings, names),
        Command::WanLog { .. } => delay::far_appends(args, &batch.settings),
        Command::Check { .. } | Command::Wan { .. } => Ok(true),
    }
}

/// Both opinions about one history.
fn check(path: &Path) -> anyhow::Result<bool> {
    let file =
        std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let records = record::read(std::io::BufReader::new(file))?;
    let (checked, mut violations) = judge::histories(&records);
    violations.extend(second::opinion(path, &checked)?);
    println!(
        "{} operations on {} keys, {} with unknown outcome, {} keys undecided; Porcupine {}",
        checked.operations,
        checked.keys,
        checked.unknown,
        checked.undecided.len(),
        if second::is_there() {
            "agrees or is quoted below"
        } else {
            "was not asked: there is no go"
        }
    );
    violations
        .iter()
        .for_each(|violation| println!("VIOLATION: {violation}"));
    Ok(violations.is_empty())
}

fn named(name: &str) -> anyhow::Result<Scenario> {
    if let Some(scenario) = catalogue::named(name)? {
        return Ok(scenario);
    }
    if let Some(seed) = random::seed_of(name) {
        return Ok(random::scenario(seed));
    }
    let text = std::fs::read_to_string(name).with_context(|| {
        format!(
            "'{name}' is no file, no random-SEED, and no scenario that comes with the program ({})",
            catalogue::names().join(", ")
        )
    })?;
    parse(name, &text).with_context(|| name.to_owned())
}

/// Builds the program beside this one.
fn built(with_bugs: bool) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let folder = own.parent().context("this program is in no folder")?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Process::new(cargo);
    command
        .current_dir(&root)
        .args(["build", "--quiet", "-p", "staves", "--bin", "staves"]);
    // Planted bugs get a folder of their own: no program that anybody might install has them.
    let mut target = folder.parent().context("no target folder")?.to_owned();
    if with_bugs {
        target = target.join("with-bugs");
        command
            .args(["--features", "mutants"])
            .arg("--target-dir")
            .arg(&target);
    } else {
        command.arg("--target-dir").arg(&target);
    }
    let profile = folder.file_name().context("no profile")?;
    if profile != "debug" {
        command.arg("--release");
    }
    eprintln!("building staves ({}) ...", profile.display());
    if !command
        .status()
        .context("cannot run cargo; name the program with --staves")?
        .success()
    {
        bail!("staves could not be built; name the program with --staves");
    }
    Ok(target.join(profile).join("staves"))
}

/// Hunts for these bugs, or for all.
fn hunt(settings: &RunSettings, wanted: &[String]) -> anyhow::Result<bool> {
    if let Some(unknown) = wanted
        .iter()
        .find(|w| !mutants::HUNTS.iter().any(|h| h.mutant == **w))
    {
        let known = mutants::HUNTS.map(|h| h.mutant).join(", ");
        bail!("there is no bug '{unknown}' of the glue; there are {known}");
    }
    let mut all_found = true;
    let chosen = |h: &Hunt| wanted.is_empty() || wanted.iter().any(|w| w == h.mutant);
    for one in mutants::HUNTS.into_iter().filter(chosen) {
        let begun = Instant::now();
        let hunted = mutants::hunt(settings, &one)?;
        all_found &= hunted.found.is_some();
        let (word, what) = match &hunted.found {
            Some(found) => ("found ", found.clone()),
            None => ("MISSED", format!("seen instead: {:?}", hunted.others)),
        };
        println!(
            "{word} {:<26} by {:<18} run {}, {:>3} s: {what}",
            one.mutant,
            one.scenario,
            hunted.runs,
            begun.elapsed().as_secs(),
        );
    }
    Ok(all_found)
}

/// The totals of several runs.
struct Batch<'a> {
    args: &'a Args,
    settings: RunSettings,
    begun: Instant,
    verdicts: Vec<(u64, Verdict)>,
}

/// The runs that are still to be made.
struct Agenda {
    scenarios: Vec<Scenario>,
    /// Of the given scenarios, those that were begun.
    begun: usize,
    seed: u64,
    /// The next is a random one.
    turn_of_random: bool,
    /// Until then there are random ones, too.
    until: Option<Instant>,
}

impl Agenda {
    /// The next to run, and its seed: where there is a time, given ones and random ones in turn.
    fn next(&mut self) -> Option<(Scenario, u64)> {
        let seed = self.seed;
        self.seed += 1;
        if self.until.is_some_and(|until| Instant::now() >= until) {
            return None;
        }
        let wants_random = self.until.is_some() && self.turn_of_random;
        self.turn_of_random = !self.turn_of_random;
        if let Some(given) = self.scenarios.get(self.begun).filter(|_| !wants_random) {
            self.begun += 1;
            // A random one that was named runs as it did when it was drawn.
            let seed = random::seed_of(&given.name).unwrap_or(seed);
            return Some((given.clone(), seed));
        }
        self.until.map(|_| (random::scenario(seed), seed))
    }

    fn drop_the_rest(&mut self) {
        self.scenarios.clear();
        self.until = None;
    }
}

impl Batch<'_> {
    fn new(args: &Args, settings: RunSettings) -> Batch<'_> {
        Batch {
            args,
            settings,
            begun: Instant::now(),
            verdicts: Vec::new(),
        }
    }

    /// The given ones, or, until that time, these and random ones in turn. So many at a time as the command line says.
    fn all(&mut self, scenarios: Vec<Scenario>, until: Option<Instant>) -> anyhow::Result<bool> {
        let given = scenarios.len();
        let (settings, begun) = (self.settings.clone(), self.begun);
        let agenda = Mutex::new(Agenda {
            scenarios,
            begun: 0,
            seed: settings.seed,
            turn_of_random: false,
            until,
        });
        let verdicts = Mutex::new(Vec::new());
        let work = || -> anyhow::Result<()> {
            loop {
                // Held no longer than that.
                let next = lock(&agenda).next();
                let Some((scenario, seed)) = next else {
                    return Ok(());
                };
                if let Some(why) = impossible(&scenario) {
                    eprintln!("skipped {}: {why}", scenario.name);
                    continue;
                }
                let started = Instant::now();
                let settings = RunSettings {
                    seed,
                    ..settings.clone()
                };
                let verdict = run::run(&scenario, &settings, second::of_run);
                let verdict = verdict.inspect_err(|_| lock(&agenda).drop_the_rest())?;
                let mut verdicts = lock(&verdicts);
                let done = verdicts.len() + 1;
                let left = match until {
                    Some(until) => until.saturating_duration_since(Instant::now()),
                    None => begun.elapsed() / done as u32 * given.saturating_sub(done) as u32,
                };
                tell(&verdict, seed, started.elapsed(), left);
                verdicts.push((seed, verdict));
            }
        };
        let ended = std::thread::scope(|scope| {
            // Threads of their own: each enters its lab's namespace.
            let workers: Vec<_> = (0..self.args.jobs).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| {
                let ended = worker.join();
                ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        });
        self.verdicts = lock(&verdicts).split_off(0);
        self.summary();
        ended?;
        Ok(self.verdicts.iter().all(|(_, v)| v.violations.is_empty()))
    }

    fn summary(&self) {
        let mut faults: BTreeMap<&str, usize> = BTreeMap::new();
        self.verdicts
            .iter()
            .flat_map(|(_, v)| &v.faults)
            .for_each(|f| *faults.entry(f).or_default() += 1);
        let sum = |f: fn(&Verdict) -> usize| self.verdicts.iter().map(|(_, v)| f(v)).sum::<usize>();
        let bad: Vec<&(u64, Verdict)> = self
            .verdicts
            .iter()
            .filter(|(_, v)| !v.violations.is_empty())
            .collect();
        let mut by_kind: BTreeMap<&str, usize> = BTreeMap::new();
        for (kind, n) in self.verdicts.iter().flat_map(|(_, v)| &v.by_kind) {
            *by_kind.entry(kind).or_default() += n;
        }
        let json = serde_json::json!({
            "seed": self.settings.seed,
            "runs": self.verdicts.len(),
            "seconds": self.begun.elapsed().as_secs(),
            "faults": faults,
            "operations": sum(|v| v.operations),
            "operations_by_kind": by_kind,
            "unknown": sum(|v| v.unknown),
            "keys_undecided": sum(|v| v.undecided),
            "violations": bad.iter().flat_map(|(seed, v)| v.violations.iter().map(move |text| {
                serde_json::json!({"scenario": v.name, "seed": seed, "what": text, "folder": v.folder})
            })).collect::<Vec<_>>(),
        });
        if self.args.json {
            return println!("{json}");
        }
        println!(
            "{} runs from seed {}, {} s; {} operations, {} with unknown outcome, {} keys undecided; {} runs with violations",
            self.verdicts.len(),
            self.settings.seed,
            self.begun.elapsed().as_secs(),
            sum(|v| v.operations),
            sum(|v| v.unknown),
            sum(|v| v.undecided),
            bad.len()
        );
        println!("faults: {}", run::counted(&faults));
        println!("operations: {}", run::counted(&by_kind));
    }
}

/// The reason that a scenario cannot be run here.
fn impossible(scenario: &Scenario) -> Option<String> {
    let disks = scenario.two_disks.then(disks::impossible).flatten();
    let disks = disks.map(|why| format!("no disk can fail here: {why}"));
    let wan = || scenario.wan.and_then(|_| wan::impossible());
    disks.or_else(wan)
}

/// A lock whose holder cannot have broken anything by panicking.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One line on a run that is over, and its violations.
fn tell(verdict: &Verdict, seed: u64, took: Duration, left: Duration) {
    let folder = verdict.folder.as_ref();
    eprintln!(
        "{} {:<28} seed {seed}: {:>6} operations, stall {:>5} ms, {:>3} s; {} min left{}",
        if verdict.violations.is_empty() {
            "fine"
        } else {
            "BAD "
        },
        verdict.name,
        verdict.operations,
        verdict.stall.length.as_millis(),
        took.as_secs(),
        left.as_secs().div_ceil(60),
        folder.map_or(String::new(), |f| format!("; see {}", f.display())),
    );
    let mut faults: BTreeMap<&str, usize> = BTreeMap::new();
    verdict
        .faults
        .iter()
        .for_each(|f| *faults.entry(f).or_default() += 1);
    eprintln!(
        "     faults: {}; operations: {}",
        run::counted(&faults),
        run::counted(&verdict.by_kind)
    );
    if let Some(gap) = &verdict.append_gap {
        eprintln!(
            "     longest without an acknowledged append: {} ms ({}), of one writer {} ms",
            gap.of_log.length.as_millis(),
            gap.of_log.key,
            gap.of_writer.length.as_millis()
        );
    }
    verdict
        .violations
        .iter()
        .for_each(|v| eprintln!("     {v}"));
}
