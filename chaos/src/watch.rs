//! The nodes' views of the directory while things break: terms and revisions never go back, and a
//! term has one leader.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use crate::nodes::status;

const REST: Duration = Duration::from_millis(100);

/// The views so far.
#[derive(Default, Debug)]
pub struct Seen {
    /// By node: the highest term and revision that it reported.
    highest: BTreeMap<usize, (u64, u64)>,
    /// By term: who led it.
    leaders: BTreeMap<u64, u64>,
    /// Nobody is meant to be declared dead.
    misses_nobody: bool,
    /// Those of whom it was reported that they were.
    dead: BTreeSet<String>,
    violations: Vec<String>,
}

impl Seen {
    /// Takes in what a node says.
    pub fn take(&mut self, at: usize, said: &Value) {
        let number = |path: &str| said.pointer(path).and_then(Value::as_u64);
        let Some((term, revision)) = number("/directory/term").zip(number("/revision")) else {
            return;
        };
        let before = self.highest.entry(at).or_default();
        if term < before.0 {
            let text = format!("n{} went back from term {} to {term}", at + 1, before.0);
            self.violations.push(text);
        }
        if revision < before.1 {
            let text = format!(
                "n{} went back from map revision {} to {revision}",
                at + 1,
                before.1
            );
            self.violations.push(text);
        }
        *before = (term, revision);
        let nodes = said["nodes"].as_array().into_iter().flatten();
        for node in nodes.filter(|node| self.misses_nobody && node["up"] == false) {
            let native = node["native"].as_str().unwrap_or_default();
            if self.dead.insert(native.to_owned()) {
                let text = format!("{native} was declared dead, as n{} has it", at + 1);
                self.violations.push(text);
            }
        }
        if let Some(leader) = number("/directory/leader") {
            let first = *self.leaders.entry(term).or_insert(leader);
            if first != leader {
                let text = format!(
                    "n{} says that node {leader} leads term {term}, which node {first} led",
                    at + 1
                );
                self.violations.push(text);
            }
        }
    }

    /// A node begins anew, with nothing to remember.
    pub fn forget(&mut self, at: usize) {
        self.highest.remove(&at);
    }
}

/// Asks all nodes, again and again, until it is stopped.
pub struct Watch {
    seen: Arc<Mutex<Seen>>,
    addresses: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Of nobody yet. The thread is in the caller's namespace.
    pub fn start() -> Watch {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let addresses: Arc<Mutex<Vec<String>>> = Arc::default();
        let stop: Arc<AtomicBool> = Arc::default();
        let (to, from, end) = (seen.clone(), addresses.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let all = from.lock().unwrap_or_else(PoisonError::into_inner).clone();
                for (at, address) in all.iter().enumerate() {
                    // Held while it is asked, so that nobody's folder is emptied between question and answer.
                    let mut seen = to.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Ok(said) = status(address) {
                        seen.take(at, &said);
                    }
                }
                std::thread::sleep(REST);
            }
        });
        Watch {
            seen,
            addresses,
            stop,
            thread: Some(thread),
        }
    }

    /// One more node.
    pub fn add(&self, address: String) {
        self.addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(address);
    }

    /// A node begins anew, with nothing to remember.
    pub fn forget(&self, at: usize) {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .forget(at);
    }

    /// From now on nobody may be declared dead.
    pub fn miss_nobody(&self) {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .misses_nobody = true;
    }

    /// The violations so far.
    pub fn violations(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.violations.clone()
    }

    /// Ends it; what was wrong.
    pub fn end(mut self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.violations()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(term: u64, revision: u64, leader: u64) -> Value {
        serde_json::json!({"revision": revision, "directory": {"term": term, "leader": leader}})
    }

    #[test]
    fn going_back_and_two_leaders_are_seen() {
        let mut seen = Seen::default();
        for (at, term, revision, leader) in [(0, 1, 5, 1), (1, 1, 4, 1), (0, 2, 5, 3), (1, 2, 6, 3)]
        {
            seen.take(at, &said(term, revision, leader));
        }
        assert_eq!(seen.violations, Vec::<String>::new());
        seen.take(0, &said(1, 5, 1));
        seen.take(1, &said(2, 5, 3));
        seen.take(2, &said(2, 6, 2));
        assert_eq!(seen.violations.len(), 3, "{:?}", seen.violations);
        seen.forget(1);
        seen.take(1, &said(0, 0, 0));
        assert_eq!(seen.violations.len(), 3, "{:?}", seen.violations);
    }

    #[test]
    fn deaths_are_seen_where_nobody_may_die() {
        let mut seen = Seen::default();
        let mut said = said(1, 1, 1);
        said["nodes"] =
            serde_json::json!([{"native": "a", "up": true}, {"native": "b", "up": false}]);
        seen.take(0, &said);
        assert_eq!(seen.violations, Vec::<String>::new());
        seen.misses_nobody = true;
        seen.take(0, &said);
        seen.take(1, &said);
        assert_eq!(seen.violations, ["b was declared dead, as n1 has it"]);
    }
}
