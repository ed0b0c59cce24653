//! The events that a run, or a batch of runs, has met: a fault that never struck at some step of the protocol is a
//! blind spot, and a blind spot is a bug of the simulator.

use std::collections::BTreeMap;

/// The kinds of faults, as the coverage counts them.
pub const FAULTS: [&str; 17] = [
    "crash",
    "restart with state",
    "pause",
    "one-way cut",
    "partial partition",
    "full partition",
    "island",
    "directory leader change",
    "split between leaders",
    "directory stall",
    "group lost",
    "group cut off",
    "memory full",
    "takeover",
    "operator",
    "stop",
    "heal",
];

/// The steps of the protocol, as the coverage counts them.
pub const STEPS: [&str; 4] = ["steady", "filling", "sealing", "syncing"];

/// Faults that strike only where an epoch is open.
const ONLY_OPEN: [&str; 1] = ["takeover"];

/// Other events that a batch must have met.
const MET: &[&str] = &[
    "burst at a page that somebody lacks",
    "burst at a page",
    "client: a request passed on",
    "client: a silent node given up",
    "client: gave up, nothing done",
    "client: gave up, outcome unknown",
    "client: learnt of a newer entry by an answer",
    "client: refused by a machine",
    "client: the region is gone",
    "crash for good, and no node to spare",
    "deposed leader: called in vain",
    "deposed leader: granted what was confirmed before",
    "deposed leader: not confirmed",
    "detector: alive, declared dead",
    "detector: dead, declared so",
    "detector: paused, declared dead",
    "detector: taken in again",
    "extent used as soon as it is granted",
    "group marked lost",
    "group started empty",
    "healed while short of memory",
    "k crashed for good, and no node to spare",
    "lost for good",
    "memory of a small node raised",
    "memory: added",
    "memory: another group asked for",
    "memory: not swapped",
    "memory: pages read",
    "memory: pages written",
    "memory: region deleted amid a recovery",
    "memory: region deleted",
    "memory: region grown",
    "memory: swapped",
    "memory: zeroed",
    "message to a shadow",
    "no bucket to spare",
    "no bucket to spare, of a scheme that bears three losses",
    "one more lost than the scheme bears",
    "others take what memory there is",
    "rule 13: a member is quiet",
    "service: a lost group's data bucket, whole",
    "service: a lost group's data bucket, with pages missing",
    "service: refused for lack of memory",
    "several groups",
    "several groups: one proposal for more than one",
    "stop: deposed leader",
    "stop: drain taken back",
    "stop: drained first",
    "stop: permitted by a young leader",
    "stop: permitted",
    "stop: refused",
    "stop: stopped",
    "vacant data bucket taken",
    "wish beyond the own memory",
    "wish lowered with pages missing",
    "wish lowered",
    "wish raised",
    "woke with its state",
];

/// Counters.
#[derive(Clone, Default)]
pub struct Coverage {
    faults: BTreeMap<(&'static str, &'static str), u64>,
    counts: BTreeMap<&'static str, u64>,
}

impl Coverage {
    /// A fault struck at a step.
    pub fn fault(&mut self, fault: &'static str, step: &'static str) {
        *self.faults.entry((fault, step)).or_default() += 1;
    }

    /// Something happened that is worth counting.
    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// The number of faults that struck.
    pub fn faults(&self) -> u64 {
        self.faults.values().sum()
    }

    /// The count of an event.
    pub fn of(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    /// Takes in another run's.
    pub fn merge(&mut self, other: &Coverage) {
        for (key, n) in &other.faults {
            *self.faults.entry(*key).or_default() += n;
        }
        for (key, n) in &other.counts {
            *self.counts.entry(key).or_default() += n;
        }
    }

    /// Every fault at every step that stayed at zero, and what no run met.
    pub fn blind_spots(&self) -> Vec<(&'static str, &'static str)> {
        let possible = |fault: &&str, step: &&str| {
            !ONLY_OPEN.contains(fault) || matches!(*step, "steady" | "filling")
        };
        FAULTS
            .iter()
            .flat_map(|f| STEPS.iter().map(move |s| (*f, *s)))
            .filter(|(f, s)| possible(f, s) && !self.faults.contains_key(&(*f, *s)))
            .chain(
                MET.iter()
                    .map(|what| (*what, "never"))
                    .filter(|(what, _)| self.of(what) == 0),
            )
            .collect()
    }

    /// A table for people.
    pub fn table(&self) -> String {
        let mut text = format!("{:<26}", "fault");
        for step in STEPS {
            text += &format!("{step:>10}");
        }
        for fault in FAULTS {
            text += &format!("\n{fault:<26}");
            for step in STEPS {
                text += &format!(
                    "{:>10}",
                    self.faults.get(&(fault, step)).copied().unwrap_or(0)
                );
            }
        }
        for (what, n) in &self.counts {
            text += &format!("\n{what:<40}{n:>10}");
        }
        text
    }
}
