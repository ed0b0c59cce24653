//! A node on its way into its cluster: its doors are open and say what it waits for.

use std::sync::{Arc, OnceLock};

use crate::config::{Config, Endpoint};
use crate::running::Running;

/// The state that the doors share from the start: the node, once it runs.
pub(crate) struct Entry {
    waits_for: String,
    running: OnceLock<Arc<Running>>,
}

impl Entry {
    /// Of a node with this configuration, whose data folder knows a cluster already or does not.
    pub(crate) fn new(config: &Config, has_cluster: bool) -> Arc<Entry> {
        let join: Vec<String> = config.join.iter().map(Endpoint::to_string).collect();
        let waits_for = match (has_cluster, &join[..]) {
            (true, _) => "it waits for a majority of its cluster's directory".to_owned(),
            (false, []) => "it makes one".to_owned(),
            (false, join) => format!("it looks for one at {}", join.join(", ")),
        };
        Arc::new(Entry {
            waits_for,
            running: OnceLock::new(),
        })
    }

    /// The node, once it has joined.
    pub(crate) fn get(&self) -> Option<&Arc<Running>> {
        self.running.get()
    }

    /// It has joined.
    pub(crate) fn set(&self, running: Arc<Running>) {
        let first = self.running.set(running).is_ok();
        debug_assert!(first, "a node joins once a start");
    }

    /// The reason why nothing can be done yet.
    pub(crate) fn not_yet(&self) -> String {
        let waits_for = &self.waits_for;
        format!("this node has not joined its cluster yet: {waits_for}; ask again in a moment")
    }
}
