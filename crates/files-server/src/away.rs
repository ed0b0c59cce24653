//! Sources that give no answer: the node's own experience, and what mounts report.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use staves_files::Source;
use tokio::task::JoinSet;

use super::Files;
use crate::facts::AwayFacts;
use crate::uses::make_plain;

/// The pause between two questions to a source that is away.
const PAUSE: Duration = Duration::from_secs(5);
/// Most that a node tells of.
const AWAY_MAX: usize = 32;

/// Asks sources that are away for a sign of life: a node may have no other reason to ask.
pub(super) async fn run(files: Arc<Files>) {
    let mut rounds = tokio::time::interval(PAUSE);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let mut asked = JoinSet::new();
        for (_, source) in files.known_sources() {
            if source.outage().is_some() {
                asked.spawn(async move { source.probe(PAUSE).await });
            }
        }
        asked.join_all().await;
    }
}

impl Files {
    /// The datasets whose source gives this node, or a mount that reports to it, no answer: those that are to be told of, if there are
    /// many.
    pub fn away(&self) -> Vec<AwayFacts> {
        foremost(self.all_away())
    }

    /// All of them. A source that this node never reached is none of them: mounts read it themselves.
    fn all_away(&self) -> Vec<AwayFacts> {
        let map = self.map();
        let mut away = self.uses.away();
        away.retain(|one| map.dataset(&one.dataset).is_some());
        for (address, source) in self.known_sources() {
            let Some(outage) = source.outage().filter(|outage| outage.was_reached) else {
                continue;
            };
            let mut why = outage.why;
            make_plain(&mut why);
            let pools = map.pools.values().filter_map(|pool| pool.holdings());
            let datasets = pools.flat_map(|holdings| &holdings.datasets);
            away.extend(datasets.filter(|d| d.source == address).map(|d| AwayFacts {
                dataset: d.name.clone(),
                by: String::new(),
                for_ms: outage.since.elapsed().as_millis() as u64,
                why: why.clone(),
            }));
        }
        away
    }

    /// For each dataset, for how many seconds its source has been away; 0 if it is not.
    pub fn away_seconds(&self) -> Vec<(String, u64)> {
        let (map, away) = (self.map(), self.all_away());
        let pools = map.pools.values().filter_map(|pool| pool.holdings());
        let datasets = pools.flat_map(|holdings| &holdings.datasets);
        let seconds = datasets.map(|dataset| {
            let of_this = away.iter().filter(|one| one.dataset == dataset.name);
            let longest = of_this.map(|one| one.for_ms).max();
            // Less than a second is away, too.
            let seconds = longest.map_or(0, |ms| (ms / 1000).max(1));
            (dataset.name.clone(), seconds)
        });
        seconds.collect()
    }

    fn known_sources(&self) -> Vec<(String, Source)> {
        let sources = self.sources.lock();
        let both = sources
            .iter()
            .map(|(text, source)| (text.clone(), source.clone()));
        both.collect()
    }
}

/// A node's own experience, then what mounts report, the longest outages first: so many that a crowd of mounts does not fill the status.
fn foremost(mut away: Vec<AwayFacts>) -> Vec<AwayFacts> {
    away.sort_by_key(|one| (!one.by.is_empty(), Reverse(one.for_ms)));
    away.truncate(AWAY_MAX);
    away
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_outages_the_node_s_own_and_the_longest_are_told() {
        let one = |by: &str, for_ms| AwayFacts {
            by: by.to_owned(),
            for_ms,
            ..AwayFacts::default()
        };
        let mut all: Vec<AwayFacts> = (0..1000).map(|ms| one("lab1:/mnt", ms)).collect();
        all.push(one("", 5));
        let told = foremost(all);
        let of_mounts = (0..1000).rev().map(|ms| one("lab1:/mnt", ms));
        let want: Vec<AwayFacts> = std::iter::once(one("", 5)).chain(of_mounts).collect();
        assert_eq!(told, want[..AWAY_MAX]);
    }
}
