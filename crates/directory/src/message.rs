//! The messages between directories, in postcard. A [`Envelope`] goes out, a [`PeerResponse`] comes back.

use std::collections::BTreeMap;

use bytes::Bytes;
use openraft::error::InstallSnapshotError;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use staves_model::{
    Claim, ClusterId, DirectoryCall, Epoch, Evidence, GroupId, Incarnation, LeaseRequest,
    NodeFacts, NodeId, Refusal, Revision, Sign, StopState,
};
use tokio::sync::oneshot;

use crate::types::{Applied, LogId, Proposal, Types};

/// The version of this file's messages; raised with any change to them. What each brought:
///
/// 1. The first.
/// 2. No release of leases; a leader that leaves asks another voter to stand for election.
/// 3. Who is told to stop asks whether it may.
/// 4. The messages are as they were, but the map's rules let a node hold two members of a group: all who apply changes
///    must go by the same rules.
/// 5. The answer to a ping says whether the node stops.
/// 6. Members are (node, disk, life), and their calls are one request.
/// 7. Nodes pass on what is meant for one that its sender does not reach.
/// 8. Parts of a region are loaded and written, not all of it: the map and its changes say which.
/// 9. The calls of many groups are one request and one change.
/// 10. A call that asks for a step carries that step.
/// 11. A voter asks the others for their votes before it stands.
/// 12. The answer to that says whether the log of who gives it has more.
/// 13. It does not: where a log ends, and who votes by it, is asked for apart.
/// 14. A voter that asks for votes says who votes by its log, and who asks the leader says how much of the log it has.
/// 15. Regions may be volumes: the map and its changes say who writes one.
/// 16. Pools may be on disk: who joins names the members that its disk has.
pub const VERSION: u8 = 16;

/// Most calls of one request.
pub const CALLS_MAX: usize = 256;

/// A request with what fences it: a process that has taken over an address answers to its own id only.
#[derive(Serialize, Deserialize)]
pub(crate) struct Envelope {
    pub version: u8,
    /// The sender's cluster; 0 while it has none.
    pub cluster: ClusterId,
    /// The sender; 0 while it has no id.
    pub from: NodeId,
    /// For whom; 0 for whoever is there.
    pub to: NodeId,
    pub body: PeerRequest,
}

#[derive(Serialize, Deserialize)]
pub(crate) enum PeerRequest {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<NodeId>),
    Snapshot(InstallSnapshotRequest<Types>),
    /// For the leader; may be passed on `hops` more times. `known` is an entry of the directory's log that who asks has.
    ForLeader {
        request: LeaderRequest,
        known: Option<LogId>,
        hops: u8,
        budget_ms: u32,
    },
    /// The leader of this term leaves: stand for election until it has a successor; the heir stands again soonest.
    Stand {
        term: u64,
        heir: bool,
    },
    /// Is this life of you there?
    Ping {
        incarnation: Incarnation,
    },
    /// Look whether this life of that node is there (row D5).
    Probe {
        node: NodeId,
        incarnation: Incarnation,
        addr: String,
    },
    /// Pass this envelope on to a node that the sender does not reach, and its answer back.
    Relay {
        addr: String,
        envelope: Vec<u8>,
        budget_ms: u32,
    },
    /// Asks for a pre-vote; this is the sender's log.
    PreVote {
        log: LogEnd,
    },
    /// Asks where the receiver's log ends.
    LogEnd,
}

/// A starting node's request to be part of the cluster.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Join {
    /// The cluster of its data folder; 0 if it has none.
    pub cluster: ClusterId,
    /// Its id in its data folder.
    pub node: Option<NodeId>,
    /// Drawn once per start, so that asking twice does not make two nodes.
    pub nonce: u64,
    pub facts: NodeFacts,
    pub durable: bool,
    /// The members that its disk has.
    pub claims: Vec<Claim>,
}

/// A request that only the leader can answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum LeaderRequest {
    Join(Join),
    Propose(Proposal),
    Lease(LeaseRequest),
    Report {
        from: NodeId,
        seen: Vec<Evidence>,
    },
    /// Calls of members of a node, at most [`CALLS_MAX`].
    Calls {
        from: NodeId,
        calls: Vec<DirectoryCall>,
    },
    Leave {
        node: NodeId,
        incarnation: Incarnation,
    },
    /// May this node stop, as far as the groups that it has can bear it?
    Stop {
        node: NodeId,
        incarnation: Incarnation,
    },
}

impl LeaderRequest {
    pub fn name(&self) -> &'static str {
        match self {
            LeaderRequest::Join(_) => "a join",
            LeaderRequest::Propose(_) => "a proposal",
            LeaderRequest::Lease(_) => "leases",
            LeaderRequest::Report { .. } => "a report of silent nodes",
            LeaderRequest::Calls { .. } => "the calls of members",
            LeaderRequest::Leave { .. } => "leaving",
            LeaderRequest::Stop { .. } => "whether the node may stop",
        }
    }

    /// Asking twice comes to the same as asking once.
    pub fn repeatable(&self) -> bool {
        !matches!(self, LeaderRequest::Propose(_))
    }
}

/// The leader's answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum LeaderResponse {
    Joined {
        cluster: ClusterId,
        node: NodeId,
        incarnation: Incarnation,
    },
    JoinRefused(JoinRefusal),
    Applied(Applied),
    Leased {
        granted: Vec<(GroupId, Epoch)>,
        /// Groups of the sender's for which this answer counts as contact with the directory, ascending, each
        /// with the epoch that a member must have come to.
        heard: Vec<(GroupId, Epoch)>,
        revision: Revision,
    },
    /// To each call of the request, in its order.
    Called(Vec<CallAnswer>),
    /// Done, or taken note of.
    Noted,
    /// The map's rules refuse it, or the leader does; asking again is no use.
    Refused(String),
    /// Not now; ask again after this long.
    Later {
        wait_ms: u32,
        reason: String,
    },
    /// The sender is the only node that can vote: no other can take over.
    LastVoter,
    /// The sender's life is over: a later one of the same node is reached there; or, without an address,
    /// the node was removed. Only such a life receives it, so a program that does not know this answer
    /// loses nothing by it.
    Over {
        address: Option<String>,
    },
}

impl LeaderResponse {
    pub fn later(wait_ms: u32, reason: impl Into<String>) -> LeaderResponse {
        let reason = reason.into();
        LeaderResponse::Later { wait_ms, reason }
    }
}

/// The answer to one call of a member.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum CallAnswer {
    /// Done, before perhaps, or taken note of.
    Done,
    /// Not now; to be called again after this long.
    Later {
        /// The time to wait.
        wait_ms: u32,
        /// The reason.
        reason: String,
    },
    /// The map's rules refuse it.
    Refused(Refusal),
}

impl CallAnswer {
    pub(crate) fn later(wait_ms: u32, reason: impl Into<String>) -> CallAnswer {
        let reason = reason.into();
        CallAnswer::Later { wait_ms, reason }
    }
}

/// A request for leases, with the channel of its answer.
pub(crate) type PendingLease = (LeaseRequest, oneshot::Sender<LeaderResponse>);

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum JoinRefusal {
    OtherCluster(ClusterId),
    Removed,
    AddressTaken(NodeId),
    Rules(staves_model::Refusal),
}

#[derive(Serialize, Deserialize)]
pub(crate) enum PeerResponse {
    Append(AppendEntriesResponse<NodeId>),
    Vote(VoteResponse<NodeId>),
    Snapshot(InstallSnapshotResponse<NodeId>),
    SnapshotMismatch(InstallSnapshotError),
    Answered(LeaderResponse),
    /// The node asked does not lead; perhaps it knows who does.
    NotLeader {
        leader: Option<(NodeId, String)>,
    },
    /// It stood for election; the outcome shows elsewhere.
    Stood,
    Pong {
        incarnation: Incarnation,
        stops: StopState,
    },
    Probed {
        sign: Sign,
    },
    /// The answer to what was passed on.
    Relayed(Vec<u8>),
    /// Another node lives at this address, or the receiver is of another cluster.
    Misdirected {
        cluster: ClusterId,
        node: NodeId,
    },
    /// The receiver could not: it starts, stops, or its store failed.
    Failed(String),
    /// It would vote for the candidate now, or not.
    PreVote {
        granted: bool,
    },
    LogEnd(LogEnd),
}

/// A node's log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct LogEnd {
    /// Its last entry.
    pub last_log: Option<LogId>,
    /// The entry in it that says who votes.
    pub membership: Option<LogId>,
    /// Those that vote by that, with their addresses.
    pub voters: BTreeMap<NodeId, String>,
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Bytes {
    // Plain data into a growing vector: postcard fails on unsized sequences only, which none here has.
    Bytes::from(postcard::to_stdvec(value).expect("plain data always encodes"))
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let (value, rest) = postcard::take_from_bytes(bytes).map_err(|e| e.to_string())?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(format!("{} bytes too many", rest.len()))
    }
}

/// A envelope of our version.
pub(crate) fn open_envelope(bytes: &[u8]) -> Result<Envelope, String> {
    // The version comes first, whatever follows: in another version that may not be readable.
    match bytes.first() {
        Some(version) if *version != VERSION => Err(format!(
            "the request has version {version} of the directory's messages, this node knows {VERSION}: run one version of \
             the program everywhere"
        )),
        _ => decode(bytes).map_err(|e| format!("the request cannot be read: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a envelope of another version was called unreadable where its fields were others too.
    #[test]
    fn a_letter_of_another_version_is_told_of_whatever_is_in_it() {
        let ours = encode(&Envelope {
            version: VERSION,
            cluster: ClusterId(7),
            from: NodeId(1),
            to: NodeId(2),
            body: PeerRequest::Ping {
                incarnation: Incarnation(1),
            },
        });
        assert!(open_envelope(&ours).is_ok());
        for version in [VERSION - 1, VERSION + 1] {
            let other = [version, 0xff, 0xff, 0xff];
            let told = open_envelope(&other).err().expect("another version");
            let (has, knows) = (format!("version {version} "), format!("knows {VERSION}:"));
            assert!(told.contains(&has) && told.contains(&knows), "{told}");
            assert!(
                told.ends_with("run one version of the program everywhere"),
                "{told}"
            );
        }
        let broken = open_envelope(&[VERSION, 0xff]).err().expect("cut short");
        assert!(broken.contains("cannot be read"), "{broken}");
    }
}
