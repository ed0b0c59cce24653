//! The options of a node's directory.

use std::path::PathBuf;
use std::time::Duration;

use staves_model::planner::GIVE_UP_AFTER;
use staves_model::{Change, Claim, ClusterId, ElectionTimes, NodeFacts, NodeId};

use crate::error::{DirectoryError, StoreError};

/// Everything that the directory needs to know at the start.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder of vote and log. Without it the node gets a new id at each start, and does not vote
    /// once others can (but see `volatile_votes`).
    pub data_dir: Option<PathBuf>,
    /// Native addresses of nodes of the cluster to join; any one that runs is enough. Empty: a node
    /// without a cluster in its data folder makes one.
    pub join: Vec<String>,
    /// The data folder was copied or restored, and has all that this node wrote before: it votes as if it had not been.
    pub data_is_newest: bool,
    /// Nodes without a data folder vote too. For demos: if most voters stop, the directory is gone.
    pub volatile_votes: bool,
    /// Most voters: 1, 3, 5, ...
    pub voters_max: usize,
    /// This node.
    pub node: NodeFacts,
    /// The members of groups that this node's disk has, whole, as it starts.
    pub claims: Vec<Claim>,
    /// The cluster and the node that the disk is of, if that is known: its claims are made in no other name.
    pub claims_of: Option<(ClusterId, NodeId)>,
    /// Changes that the node that makes the cluster proposes right after it (its first pool).
    pub first_changes: Vec<Change>,
    /// The directory's times.
    pub times: Times,
}

/// The directory's share of the budget from a kill to resumed writes (at most 2 s).
///
/// A new leader stands for election 450 to 600 ms after the old one's last word. The answers to appends, confirmations and
/// candidacies are waited for as long as a voter refuses its vote to others, 300 ms: too short a time, and a leader
/// on a busy machine orders nothing at all.
#[derive(Clone, Debug)]
pub struct Times {
    /// The leases of data buckets.
    pub lease: Duration,
    /// The period of the leader's heartbeats.
    pub heartbeat: Duration,
    /// The silence of the leader after which a voter stands for election.
    pub election: ElectionTimes,
    /// The period of the leader's rounds.
    pub tick: Duration,
    /// The period of a node's pings.
    pub ping: Duration,
    /// Silence that is reported.
    pub suspicion: Duration,
    /// The time that a dead voter is waited for before another takes its place.
    pub replace_voter_after: Duration,
    /// The time that a start waits for the cluster.
    pub join: Duration,
    /// The time that a node is waited for that is down and may hold what a volume with write-back has not flushed.
    pub unflushed_wait: Duration,
    /// Log entries between two snapshots, which bounds the log in memory and on disk.
    pub snapshot_entries: u64,
}

impl Default for Times {
    fn default() -> Times {
        Times {
            lease: Duration::from_millis(500),
            heartbeat: Duration::from_millis(150),
            election: ElectionTimes {
                min: Duration::from_millis(450),
                max: Duration::from_millis(600),
            },
            tick: Duration::from_millis(50),
            ping: Duration::from_millis(100),
            suspicion: Duration::from_millis(350),
            replace_voter_after: Duration::from_millis(500),
            join: Duration::from_secs(60),
            unflushed_wait: GIVE_UP_AFTER,
            snapshot_entries: 1000,
        }
    }
}

impl Options {
    /// Options with the default times, for a node that makes its own cluster in memory.
    pub fn new(node: NodeFacts) -> Options {
        Options {
            data_dir: None,
            join: Vec::new(),
            data_is_newest: false,
            volatile_votes: false,
            voters_max: 5,
            node,
            claims: Vec::new(),
            claims_of: None,
            first_changes: Vec::new(),
            times: Times::default(),
        }
    }

    /// Rejects options with which a directory would not start.
    pub fn check(&self) -> Result<(), DirectoryError> {
        self.raft().map(|_| ())
    }

    /// The error of a store that cannot be used.
    pub(crate) fn unreadable(&self, reason: String) -> StoreError {
        let folder = self.data_dir.clone().unwrap_or_default();
        let path = folder.join(crate::store::FILE);
        StoreError::Unreadable { path, reason }
    }

    pub(crate) fn raft(&self) -> Result<openraft::Config, DirectoryError> {
        if self.voters_max.is_multiple_of(2) {
            let reason = format!(
                "voters_max is {}: make it odd, for an even set bears no more losses",
                self.voters_max
            );
            return Err(DirectoryError::Options { reason });
        }
        let vote_lease = self.times.election.vote_lease().as_millis() as u64;
        let config = openraft::Config {
            cluster_name: "staves".into(),
            // Its timers are off (`elections`). What is left of these: the wait for the answer to an append, the wait for a
            // vote, and the lease of a vote, and openraft wants them in this order.
            enable_heartbeat: false,
            enable_elect: false,
            heartbeat_interval: vote_lease.saturating_sub(2),
            election_timeout_min: vote_lease.saturating_sub(1),
            election_timeout_max: vote_lease,
            install_snapshot_timeout: 2_000,
            max_payload_entries: 64,
            snapshot_max_chunk_size: 512 << 10,
            snapshot_policy: openraft::SnapshotPolicy::LogsSinceLast(self.times.snapshot_entries),
            max_in_snapshot_log_to_keep: self.times.snapshot_entries / 2,
            // Must exceed what lies between two snapshots, or a lagging node would get them over and over.
            replication_lag_threshold: 2 * self.times.snapshot_entries,
            ..openraft::Config::default()
        };
        config.validate().map_err(|e| DirectoryError::Options {
            reason: e.to_string(),
        })
    }
}
