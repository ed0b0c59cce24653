//! The reports about one node that is suspected.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Sign;
use crate::ids::{Incarnation, NodeId};
use crate::time::Time;

/// The reports of one life of a suspect.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) incarnation: Incarnation,
    /// Since when a word against it has stood without a break.
    pub(super) doubted_since: Option<Time>,
    /// It is slow and cannot be spared: the losses that its groups would bear without it, and since when they are so few.
    pub(super) waited: Option<(Option<u8>, Time)>,
    /// The latest word of each reporter.
    pub(super) words: BTreeMap<NodeId, (Time, Sign)>,
    pub(super) probed_at: Option<Time>,
    /// The time of the first question since somebody last had it alive, and those who were asked.
    pub(super) asked_first: Option<(Time, Vec<NodeId>)>,
    /// Raised with each round of probes, so that each round asks others.
    pub(super) round: usize,
    pub(super) judged_at: Option<Time>,
    /// The time of the last word that it is slow.
    pub(super) slow_at: Option<Time>,
}

impl Case {
    pub(super) fn new(incarnation: Incarnation) -> Case {
        Case {
            incarnation,
            doubted_since: None,
            waited: None,
            words: BTreeMap::new(),
            probed_at: None,
            asked_first: None,
            round: 0,
            judged_at: None,
            slow_at: None,
        }
    }

    pub(super) fn doubted_for(&self, now: Time) -> Option<Duration> {
        self.doubted_since.map(|since| now.since(since))
    }

    /// True if one reporter is enough where there is no second one to ask.
    pub(super) fn lone_word_counts(&self, now: Time, alone_after: Duration) -> bool {
        self.is_refused() || self.doubted_for(now) >= Some(alone_after)
    }

    /// True if it has answered within the window, if not in time.
    pub(super) fn is_slow(&self, now: Time, window: Duration) -> bool {
        let answered = self.slow_at.is_some_and(|at| now.since(at) <= window);
        answered && !self.is_refused()
    }

    pub(super) fn is_refused(&self) -> bool {
        self.words.values().any(|(_, f)| *f == Sign::Refused)
    }

    /// True once those who were asked first have answered, or had the time to.
    pub(super) fn others_looked(&self, now: Time, within: Duration) -> bool {
        let Some((asked_at, asked)) = &self.asked_first else {
            return false;
        };
        let answered = |n: &NodeId| self.words.get(n).is_some_and(|(at, _)| at >= asked_at);
        now.since(*asked_at) >= within || asked.iter().all(answered)
    }

    /// Those of them who looked for themselves. A failed request may be one that the suspect could not
    /// serve, and two clients' complaints are no death: somebody must have found it silent or gone.
    pub(super) fn looked(&self, now: Time) -> impl Iterator<Item = NodeId> + '_ {
        let failed = |n: &NodeId| self.words.get(n).is_some_and(|(_, f)| *f == Sign::Failed);
        self.against(now).filter(move |n| !failed(n))
    }

    /// The reporters whose word against the suspect stands. (Words too old are gone already.)
    pub(super) fn against(&self, now: Time) -> impl Iterator<Item = NodeId> + '_ {
        let alive = self.words.values().filter(|(_, f)| *f == Sign::Alive);
        let alive_at = alive.map(|(at, _)| *at).max().filter(|at| *at <= now);
        self.words
            .iter()
            .filter_map(move |(reporter, (at, finding))| {
                let stands = match (finding, alive_at) {
                    (Sign::Alive, _) => false,
                    (_, None) => true,
                    (Sign::Refused, Some(alive_at)) => *at > alive_at,
                    (Sign::Silent | Sign::Slow | Sign::Failed, Some(_)) => false,
                };
                stands.then_some(*reporter)
            })
    }
}
