//! The reasons for which a node cannot use its disk.

use staves_durable::DiskOpenError;
use staves_model::{ClusterId, NodeId};

/// A disk that a node cannot use.
#[derive(Debug, thiserror::Error)]
pub enum NodeDiskError {
    /// There is no room for it, or no folder.
    #[error("a disk of {bytes} bytes cannot be made in {path}: {reason}; ask for less with --disk")]
    Create {
        /// All of its bytes.
        bytes: u64,
        /// Its folder.
        path: String,
        /// The system's error.
        reason: std::io::Error,
    },
    /// The files that are there cannot be used.
    #[error(
        "the disk in {path} cannot be used: {reason}; to go on without what it has, move the folder away: its buckets are filled anew from other nodes, if those have them"
    )]
    Open {
        /// Its folder.
        path: String,
        /// The reason.
        reason: DiskOpenError,
    },
    /// It is another node's.
    #[error(
        "the disk in {path} is of node {} of cluster {}, and this is node {} of cluster {}: move the folder away, and this node makes one of its own",
        .theirs.1, .theirs.0, .ours.1, .ours.0
    )]
    Foreign {
        /// Its folder.
        path: String,
        /// The cluster and the node that it is of.
        theirs: (ClusterId, NodeId),
        /// This node's.
        ours: (ClusterId, NodeId),
    },
    /// The note of its owner cannot be read or written.
    #[error("{path}, which says whose the disk is, cannot be used: {reason}")]
    Owner {
        /// The file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// The list of disks cannot be read or written.
    #[error("the list of disks {path} cannot be used: {reason}")]
    List {
        /// The file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// The node keeps nothing.
    #[error("this node has no data folder, which a disk needs: start it with --data")]
    NoFolder,
    /// The folder of a disk that is to be added.
    #[error("no disk can be made in '{path}': {reason}")]
    BadFolder {
        /// It.
        path: String,
        /// The fault of it.
        reason: String,
    },
    /// There are too many.
    #[error("this node has {most} disks, and may have no more")]
    TooMany {
        /// Their number.
        most: usize,
    },
    /// There is no such disk.
    #[error("this node has no disk '{path}': it has {known}")]
    Unknown {
        /// The folder that was given.
        path: String,
        /// Those that it has.
        known: String,
    },
    /// There is no other.
    #[error(
        "'{path}' is the only disk of this node that takes buckets: add another one first, or drain the node"
    )]
    Only {
        /// Its folder.
        path: String,
    },
    /// It has buckets.
    #[error(
        "'{path}' still has {buckets} buckets, or the directory does not know yet that they have left: drain it, and wait until it is drained"
    )]
    Holds {
        /// Its folder.
        path: String,
        /// Their number.
        buckets: usize,
    },
    /// There is no address space for its pages.
    #[error(transparent)]
    Arena(staves_store::MapError),
    /// The system gave no thread.
    #[error("the journal's thread cannot be started: {0}")]
    Thread(std::io::Error),
}
