//! Logs: how they begin, the nodes of steps about them, and the verdict on their history.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use rand::Rng;
use rand::seq::IndexedRandom;

use super::{HEALING, Runner, counted};
use crate::load::log::{self, AppendGap, LOGS, LogPlaces};

/// An append may have no answer for so much longer than a read of a key: its client waits for its answer, and then tries another one.
const APPENDS_LATER: Duration = Duration::from_secs(40);

impl Runner<'_> {
    /// Makes the pool and the logs; them in words.
    pub(super) fn create_logs(&self) -> anyhow::Result<String> {
        let Some(scheme) = &self.scenario.log else {
            return Ok(String::new());
        };
        let medium = match self.scenario.log_on_disk {
            true => "disk",
            false => "ram",
        };
        let pool = ["pool", "create", log::POOL, "--kind", "log"];
        let share = ["--memory", log::MEMORY, "--buckets", log::UNITS];
        let scheme_and_medium = ["--scheme", scheme, "--medium", medium];
        self.staves(&[&pool[..], &share, &scheme_and_medium].concat())?;
        for (name, mode) in LOGS {
            self.staves(&["log", "create", name, "--mode", mode])?;
        }
        Ok(format!(", logs of {scheme} in {medium}"))
    }

    /// The nodes of any of the logs, as soon as they are known and run: its sequencer's, and that of a unit, another one if there is one.
    pub(super) fn log_nodes(&mut self) -> anyhow::Result<(usize, usize)> {
        let of = self.rng.random_range(0..LOGS.len());
        let until = Instant::now() + HEALING;
        loop {
            let found = log::find(&self.shared, of);
            let nodes = match &found {
                Ok(places) => self.places_of(places),
                Err(_) => None,
            };
            match (nodes, found) {
                (Some(nodes), _) => {
                    self.tell(&format!("   of log {}", LOGS[of].0));
                    return Ok(nodes);
                }
                (None, Err(error)) if Instant::now() >= until => {
                    let log = LOGS[of].0;
                    return Err(error).with_context(|| format!("nobody leads log {log}"));
                }
                (None, Ok(_)) if Instant::now() >= until => {
                    anyhow::bail!("no node of log {} runs", LOGS[of].0)
                }
                (None, _) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn places_of(&mut self, places: &LogPlaces) -> Option<(usize, usize)> {
        let running = self.nodes.running();
        let at = |native: &String| {
            let here = |at: &&usize| *native == format!("{}:1600", self.lab.address(**at));
            running.iter().find(here).copied()
        };
        let sequencer = at(&places.sequencer)?;
        let units: Vec<usize> = places.units.iter().filter_map(at).collect();
        let others: Vec<usize> = units
            .iter()
            .filter(|at| **at != sequencer)
            .copied()
            .collect();
        let unit = others.choose(&mut self.rng).or(units.first())?;
        Some((sequencer, *unit))
    }

    /// Appends to all logs once more, and reads all of them.
    pub(super) fn read_logs(&mut self) {
        if self.scenario.log.is_none() {
            return;
        }
        let until = Instant::now() + self.healing();
        match log::read_all(&self.shared, until) {
            Ok((all, wrong)) => {
                self.tell(&format!("read all {all} positions of logs"));
                wrong.into_iter().for_each(|what| self.wrong(what));
            }
            Err(error) => self.wrong(format!("logs cannot be read: {error:#}")),
        }
    }

    pub(super) fn judge_logs(&mut self, folder: &Path, from: u64, to: u64) -> anyhow::Result<()> {
        if self.scenario.log.is_none() {
            return Ok(());
        }
        let shared = self.shared.clone();
        let history = shared.logs.history();
        let wrong = history.judge(&LOGS.map(|(name, _)| name));
        let counts = shared.logs.counts();
        self.verdict.by_kind.extend(counts);
        self.verdict.operations += counts.iter().map(|(_, count)| count).sum::<usize>();
        self.verdict.log_unknown = shared.logs.unknown();
        if self.settings.keep || !wrong.is_empty() {
            std::fs::write(folder.join("logs.jsonl"), history.text())
                .context("cannot write the logs' history")?;
        }
        wrong
            .into_iter()
            .for_each(|violation| self.wrong(violation));
        self.judge_append_gaps(from, to);
        Ok(())
    }

    /// The times without an acknowledged append: told, and held against a wide bound.
    fn judge_append_gaps(&mut self, from: u64, to: u64) {
        let shared = self.shared.clone();
        let kills = self.verdict.kills.clone();
        self.verdict.append_gaps = (kills.iter().enumerate())
            .map(|(at, kill)| {
                let until = kills.get(at + 1).copied().unwrap_or(to);
                longest(shared.logs.append_gaps(*kill, until))
            })
            .collect();
        let all = shared.logs.append_gaps(from, to);
        let each = LOGS.iter().zip(&all).map(|((name, _), gap)| {
            format!(
                "{name} {} ms, of one writer {} ms",
                gap.of_log.length.as_millis(),
                gap.of_writer.length.as_millis()
            )
        });
        let each: Vec<String> = each.collect();
        self.tell(&format!(
            "logs: {}, {} appends with unknown outcome; longest without an acknowledged append: {}",
            counted(&shared.logs.counts().into_iter().collect()),
            shared.logs.unknown(),
            each.join("; ")
        ));
        let gap = longest(all);
        let is_late = gap.of_log.length > self.scenario.stall_max + APPENDS_LATER;
        if is_late && !self.scenario.losses {
            let (key, length) = (&gap.of_log.key, gap.of_log.length);
            let since = gap.of_log.from as f64 / 1e9;
            self.wrong(format!(
                "no {key} were acknowledged for {length:?} from {since:.3} s on"
            ));
        }
        self.verdict.append_gap = Some(gap);
    }
}

/// The longest of several logs.
fn longest(gaps: Vec<AppendGap>) -> AppendGap {
    let by_log = gaps.iter().map(|gap| &gap.of_log);
    let by_writer = gaps.iter().map(|gap| &gap.of_writer);
    AppendGap {
        of_log: by_log
            .max_by_key(|gap| gap.length)
            .cloned()
            .unwrap_or_default(),
        of_writer: by_writer
            .max_by_key(|gap| gap.length)
            .cloned()
            .unwrap_or_default(),
    }
}
