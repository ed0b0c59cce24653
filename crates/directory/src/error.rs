//! Errors, by the remedy that the caller has.

use std::path::PathBuf;
use std::time::Duration;

use staves_model::{ClusterId, NodeId, Refusal};

/// A data folder that cannot be used.
#[derive(thiserror::Error, Debug)]
pub enum StoreError {
    /// Another process has it open.
    #[error(
        "{} is in use by {}: stop that node, or give this one a data folder of its own",
        path.display(), holder.map_or("another process".into(), |pid| format!("process {pid}"))
    )]
    Locked {
        /// The file.
        path: PathBuf,
        /// The process's id, if it is known.
        holder: Option<u32>,
    },
    /// It cannot be read or written.
    #[error("{} cannot be used: {reason}; check that the folder can be written, or restore it", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system or of the file's own checks.
        reason: String,
    },
    /// A newer program wrote it.
    #[error("{} has format {found}, this program knows up to {known}: run the newer program", path.display())]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest known here.
        known: u32,
    },
    /// A former program wrote it, with members that have no disk.
    #[error("{} has format {found} of a former program, this one reads format {known}: stop all nodes and begin with empty data folders, or run the former program", path.display())]
    FormerFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The only one known here.
        known: u32,
    },
}

/// An error of the directory.
#[derive(thiserror::Error, Debug)]
pub enum DirectoryError {
    /// The data folder.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The options contradict themselves.
    #[error("the directory's options are refused: {reason}")]
    Options {
        /// The fault and the remedy.
        reason: String,
    },
    /// No leader answered in time.
    #[error("no directory leader answered within {} ms while waiting for {waiting_for}: {last}", waited.as_millis())]
    NoLeader {
        /// The request.
        waiting_for: &'static str,
        /// The time of all tries together.
        waited: Duration,
        /// The failure of the last try that had its time: the node that was tried, and its answer.
        last: String,
    },
    /// A proposal may or may not have taken effect: its answer did not come.
    #[error(
        "the answer to {waiting_for} was lost, {} ms after it was first asked for, and what became of it is not known: look at the map \
         before asking again ({last})",
        waited.as_millis()
    )]
    Unknown {
        /// The request.
        waiting_for: &'static str,
        /// The time of all tries together, to the moment at which the answer was lost.
        waited: Duration,
        /// The failure of the try that was lost.
        last: String,
    },
    /// The map's rules refused the change; nothing changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The data folder, or the node asked, belongs to another cluster.
    #[error(
        "this node's data folder belongs to cluster {ours}, the node asked to cluster {theirs}: \
         join a node of {ours}, or start with an empty data folder"
    )]
    OtherCluster {
        /// This node's.
        ours: ClusterId,
        /// The other's.
        theirs: ClusterId,
    },
    /// The cluster no longer knows this node.
    #[error(
        "node {node} was removed from the cluster: start with an empty data folder to join as a new node"
    )]
    Removed {
        /// The node that the data folder names.
        node: NodeId,
    },
    /// A node runs on the folder that this one's was copied from.
    #[error(
        "node {node}, whose identity this data folder holds, runs at {address}: the folder is a copy; stop \
         that process, or start with an empty data folder to join as a new node"
    )]
    IsRunning {
        /// The node that both folders name.
        node: NodeId,
        /// Its address.
        address: String,
    },
    /// Two live nodes say that they are reached at one address.
    #[error("{address} is the address of node {node}, which is running: advertise another one")]
    AddressTaken {
        /// The address.
        address: String,
        /// The node that has it.
        node: NodeId,
    },
    /// This life is over: the cluster knows a later one of the same node, somewhere else.
    #[error(
        "node {node} was started again at {address}, from a copy of this data folder, so this process has \
         stopped: to run here as well, start with an empty data folder"
    )]
    Displaced {
        /// The node.
        node: NodeId,
        /// The address of its later life.
        address: String,
    },
    /// The leader has other entries where this node has committed ones.
    #[error(
        "node {leader} leads the directory, and lacks what was committed and this node, {node}, has: the data folder of one of them is an \
         older state. Start that one with its newest folder; if that is gone, start the other with an empty data folder to join as a new node"
    )]
    Forgotten {
        /// The leader.
        leader: NodeId,
        /// This node.
        node: NodeId,
    },
    /// Not started yet, or stopped.
    #[error("the directory of this node does not run: {reason}")]
    NotRunning {
        /// The case, and its reason.
        reason: String,
    },
}
