//! Facts about files that a node reports in its status.

use serde::{Deserialize, Serialize};
pub use staves_files::{ANSWER_AGE_MAX, OUTAGE_MAX};

/// A pinned file that is not all in memory.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LackFacts {
    /// The dataset's name.
    pub dataset: String,
    /// The file's path in it.
    pub path: String,
    /// The obstacle at the last try; it is tried again.
    pub why: String,
}

/// Bytes that are fetched again from sources after the loss of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AgainFacts {
    /// The node that is gone.
    pub node: u64,
    /// Bytes that it alone had: whole parts.
    pub bytes: u64,
    /// Those of them that are in memory again.
    pub done_bytes: u64,
}

/// A source that gives a node, or a mount, no answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AwayFacts {
    /// The dataset's name.
    pub dataset: String,
    /// The mount, as in [`UseFacts`]; empty for the node itself.
    pub by: String,
    /// The length of the outage until now, in milliseconds.
    pub for_ms: u64,
    /// The source's last error.
    pub why: String,
}

/// A mount that uses a dataset.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UseFacts {
    /// The dataset's name.
    pub dataset: String,
    /// The machine, and the mount's folder there.
    pub by: String,
}
