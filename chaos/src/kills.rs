//! From `kill -9` to resumed writes, many times.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use staves_history::Record;
use staves_history::record::Asked;

use crate::run::{RunSettings, Verdict, run};
use crate::scenario::{Scenario, parse};

/// Kills of one cluster, before a new one is made.
const KILLS_A_RUN: u32 = 10;

/// The measurements.
#[derive(Clone, Debug, Default)]
pub struct Kills {
    /// For each kill, the longest that a client's next write anywhere took to be answered.
    pub stalls: Vec<Duration>,
    /// Violations of the runs.
    pub lost: usize,
}

impl Kills {
    fn at(&self, percent: usize) -> Duration {
        let mut sorted = self.stalls.clone();
        sorted.sort();
        let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
        sorted.get(place).copied().unwrap_or_default()
    }

    /// As JSON, times in milliseconds.
    pub fn json(&self) -> serde_json::Value {
        let ms = |d: Duration| d.as_millis() as u64;
        json!({
            "kills": self.stalls.len(), "p50_ms": ms(self.at(50)), "p90_ms": ms(self.at(90)),
            "worst_ms": ms(self.at(100)), "violations": self.lost,
        })
    }
}

impl std::fmt::Display for Kills {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} kills; from kill -9 until every contended key is written again: p50 {} ms, p90 {} ms, worst {} ms; {} violations",
            self.stalls.len(),
            self.at(50).as_millis(),
            self.at(90).as_millis(),
            self.at(100).as_millis(),
            self.lost
        )
    }
}

/// Kills a random node, and every third time the directory's leader, of five under load.
pub fn measure(
    settings: &RunSettings,
    count: u32,
    mut tell: impl FnMut(String),
) -> anyhow::Result<Kills> {
    let mut kills = Kills::default();
    let mut done = 0;
    while done < count {
        let now = KILLS_A_RUN.min(count - done);
        let watched = settings.keep;
        let settings = RunSettings {
            seed: settings.seed + u64::from(done),
            keep: true,
            ..settings.clone()
        };
        let verdict = run(&scenario(now)?, &settings, |_: &Path| Vec::new())?;
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

fn scenario(kills: u32) -> anyhow::Result<Scenario> {
    let mut text = "5 nodes, pool cache 1+2, 8 clients, 40 keys\n".to_owned();
    for at in 0..kills {
        let who = if at % 3 == 2 {
            "the directory's leader"
        } else {
            "a random node"
        };
        text += &format!("after 2s kill {who}\nafter 3s restart it\nwait until healthy\n");
    }
    Ok(parse("kills", &text)?)
}

/// The kills' times are in the story; the writes in the history.
fn take(kills: &mut Kills, verdict: &Verdict, tell: &mut impl FnMut(String)) -> anyhow::Result<()> {
    kills.lost += verdict.violations.len();
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

    #[test]
    fn percentiles_are_of_what_was_measured() {
        let kills = Kills {
            stalls: (1..=10).map(|n| Duration::from_millis(n * 100)).collect(),
            lost: 0,
        };
        assert_eq!(
            (kills.at(50).as_millis(), kills.at(100).as_millis()),
            (500, 1000)
        );
        assert_eq!(kills.json()["p90_ms"], 900);
        assert_eq!(Kills::default().at(50), Duration::ZERO);
    }
}
