//! From `kill -9` to resumed writes, or to acknowledged appends to a log, many times.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use staves_history::Record;
use staves_history::record::Asked;

use crate::run::{RunSettings, Verdict, run};
use crate::scenario::{Scenario, parse};

/// Kills of one cluster, before a new one is made.
const KILLS_A_RUN: u32 = 10;
/// Runs that may end in trouble of their own before the measurement does.
const BROKEN_MAX: u32 = 3;

/// The nodes that are killed, and the writes that are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum KillTarget {
    /// A random node, and every third time the directory's leader; writes of contended keys
    #[default]
    Keys,
    /// The node of a log's sequencer; appends
    Sequencer,
    /// A node that answers for a log's unit; appends
    Unit,
    /// Both at once; appends
    Both,
    /// All nodes at once, as a loss of power does, with the log on disk; appends
    All,
}

/// The measurements.
#[derive(Clone, Debug, Default)]
pub struct Kills {
    /// The nodes that were killed.
    pub target: KillTarget,
    /// For each kill, the longest that a client's next write anywhere took to be answered; of logs, the longest without an acknowledged append to one.
    pub stalls: Vec<Duration>,
    /// Of logs: the longest that one writer was without an acknowledged append.
    pub writer_stalls: Vec<Duration>,
    /// Violations of the runs.
    pub lost: usize,
    /// Runs that ended in trouble of their own, and were made anew.
    pub broken: u32,
}

impl Kills {
    fn at(&self, percent: usize) -> Duration {
        quantile(&self.stalls, percent)
    }

    /// As JSON, times in milliseconds.
    pub fn json(&self) -> serde_json::Value {
        let ms = |d: Duration| d.as_millis() as u64;
        let mut json = json!({
            "kills": self.stalls.len(), "p50_ms": ms(self.at(50)), "p90_ms": ms(self.at(90)),
            "p99_ms": ms(self.at(99)), "worst_ms": ms(self.at(100)), "violations": self.lost,
            "broken_runs": self.broken,
        });
        if self.target != KillTarget::Keys {
            let of = |percent| ms(quantile(&self.writer_stalls, percent));
            json["of"] = json!(format!("{:?}", self.target).to_lowercase());
            json["writer_p50_ms"] = json!(of(50));
            json["writer_p90_ms"] = json!(of(90));
            json["writer_p99_ms"] = json!(of(99));
            json["writer_worst_ms"] = json!(of(100));
        }
        json
    }
}

impl std::fmt::Display for Kills {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.target {
            KillTarget::Keys => "from kill -9 until every contended key is written again",
            KillTarget::Sequencer | KillTarget::Unit | KillTarget::Both | KillTarget::All => {
                "the longest without an acknowledged append to a log"
            }
        };
        write!(
            f,
            "{} kills; {what}: {}; {} violations",
            self.stalls.len(),
            in_words(&self.stalls),
            self.lost
        )?;
        if self.broken > 0 {
            write!(f, "; {} runs broke off and were made anew", self.broken)?;
        }
        if self.writer_stalls.is_empty() {
            return Ok(());
        }
        write!(f, "; of one writer {}", in_words(&self.writer_stalls))
    }
}

fn in_words(times: &[Duration]) -> String {
    let ms = |percent| quantile(times, percent).as_millis();
    let (p50, p90, p99, worst) = (ms(50), ms(90), ms(99), ms(100));
    format!("p50 {p50} ms, p90 {p90} ms, p99 {p99} ms, worst {worst} ms")
}

fn quantile(times: &[Duration], percent: usize) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort();
    let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(place).copied().unwrap_or_default()
}

/// Kills nodes of five under load.
pub fn measure(
    settings: &RunSettings,
    (target, count): (KillTarget, u32),
    mut tell: impl FnMut(String),
) -> anyhow::Result<Kills> {
    let mut kills = Kills {
        target,
        ..Kills::default()
    };
    let mut done = 0;
    while done < count {
        let now = KILLS_A_RUN.min(count - done);
        let watched = settings.keep;
        let settings = RunSettings {
            seed: settings.seed + u64::from(done + kills.broken),
            keep: true,
            ..settings.clone()
        };
        let ran = run(&scenario(target, now)?, &settings, |_: &Path| Vec::new());
        // What was measured is not thrown away for a lab that could not be built once.
        let verdict = match ran {
            Err(why) if kills.broken < BROKEN_MAX => {
                kills.broken += 1;
                tell(format!("a run broke off, and is made anew: {why:#}"));
                continue;
            }
            ran => ran?,
        };
        done += now;
        take(&mut kills, &verdict, &mut tell)?;
        tell(format!("{done} of {count}: {kills}"));
        if let Some(folder) = verdict
            .folder
            .filter(|_| !watched && verdict.violations.is_empty())
        {
            std::fs::remove_dir_all(folder)?;
        }
    }
    Ok(kills)
}

fn scenario(target: KillTarget, kills: u32) -> anyhow::Result<Scenario> {
    let load = match target {
        KillTarget::Keys => "8 clients, 40 keys",
        KillTarget::Sequencer | KillTarget::Unit | KillTarget::Both => "1 client, 2 keys, log 1+2",
        KillTarget::All => "1 client, 2 keys, log 1+2 on disk\nexpect losses",
    };
    let mut text = format!("5 nodes, pool cache 1+2, {load}\n");
    let away = match target {
        KillTarget::All => "after 200ms restart them",
        _ => "after 3s restart it",
    };
    for at in 0..kills {
        let who = match target {
            KillTarget::Keys if at % 3 == 2 => "the directory's leader",
            KillTarget::Keys => "a random node",
            KillTarget::Sequencer => "the log's sequencer",
            KillTarget::Unit => "a log's unit",
            KillTarget::Both => "the log's sequencer and a unit",
            KillTarget::All => "every node",
        };
        text += &format!("after 2s kill {who}\n{away}\nwait until healthy\n");
    }
    Ok(parse("kills", &text)?)
}

/// The kills' times are in the story; the writes in the history.
fn take(kills: &mut Kills, verdict: &Verdict, tell: &mut impl FnMut(String)) -> anyhow::Result<()> {
    kills.lost += verdict.violations.len();
    if kills.target != KillTarget::Keys {
        for (at, gap) in verdict.kills.iter().zip(&verdict.append_gaps) {
            let (of_log, of_writer) = (&gap.of_log, &gap.of_writer);
            tell(format!(
                "{:.3} s: no {} for {} ms, of one writer {} ms",
                *at as f64 / 1e9,
                of_log.key,
                of_log.length.as_millis(),
                of_writer.length.as_millis()
            ));
            kills.stalls.push(of_log.length);
            kills.writer_stalls.push(of_writer.length);
        }
        return Ok(());
    }
    let folder = verdict.folder.as_deref().unwrap_or(Path::new(""));
    let file = std::fs::File::open(folder.join("history.jsonl"))?;
    let records = staves_history::record::read(std::io::BufReader::new(file))?;
    for at in &verdict.kills {
        let (key, stall) = resumed(&records, *at);
        tell(format!(
            "{:.3} s: {key} after {} ms",
            *at as f64 / 1e9,
            stall.as_millis()
        ));
        kills.stalls.push(stall);
    }
    Ok(())
}

/// The time after `at` until the last of the contended keys was written again: the largest, over the keys, of
/// the gaps between writes that `at` falls into.
fn resumed(records: &[Record], at: u64) -> (String, Duration) {
    let mut next: std::collections::BTreeMap<&str, u64> = Default::default();
    let write = |r: &&Record| r.asked != Asked::Get && !r.key.starts_with('l');
    for record in records.iter().filter(write) {
        let Some(end) = record.returned.filter(|_| record.call >= at) else {
            continue;
        };
        let first = next.entry(&record.key).or_insert(end);
        *first = (*first).min(end);
    }
    let latest = next.iter().max_by_key(|(_, end)| **end);
    latest.map_or_else(Default::default, |(key, end)| {
        let stall = Duration::from_nanos(end.saturating_sub(at));
        ((*key).to_owned(), stall)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Action;

    #[test]
    fn percentiles_are_of_what_was_measured() {
        let kills = Kills {
            stalls: (1..=10).map(|n| Duration::from_millis(n * 100)).collect(),
            ..Kills::default()
        };
        assert_eq!(
            (kills.at(50).as_millis(), kills.at(100).as_millis()),
            (500, 1000)
        );
        assert_eq!(kills.json()["p90_ms"], 900);
        assert_eq!(Kills::default().at(50), Duration::ZERO);
        assert!(kills.json().get("writer_p50_ms").is_none());
        let of_logs = Kills {
            target: KillTarget::Both,
            writer_stalls: kills.stalls.clone(),
            ..kills
        };
        assert_eq!(of_logs.json()["writer_worst_ms"], 1000);
        assert!(of_logs.to_string().contains("of one writer p50 500 ms"));
        assert_eq!(of_logs.json()["p99_ms"], 1000);
        assert!(!of_logs.to_string().contains("broke off"));
    }

    /// Each target is a scenario that reads, with a kill for each round; that of all nodes is on disk.
    #[test]
    fn every_target_has_its_scenario() {
        let targets = <KillTarget as clap::ValueEnum>::value_variants();
        for target in targets {
            let scenario = scenario(*target, 3).expect("it reads");
            let kills = scenario.steps.iter();
            let kills = kills.filter(|step| matches!(step.action, Action::Kill(_)));
            assert_eq!(kills.count(), 3, "{target:?}");
            let of_all = *target == KillTarget::All;
            assert_eq!((scenario.log_on_disk, scenario.losses), (of_all, of_all));
        }
        assert_eq!(targets.len(), 5);
    }
}
