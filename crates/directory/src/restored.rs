//! A node whose data folder was copied or restored: it may lack entries of the log that it confirmed in its life before, by which the
//! others count them as committed. With its vote, one that lacks them as well would lead, and they would be forgotten.
//!
//! So it votes only for whoever has all that any *other* voter has, which it asks them for (what it confirmed to be committed one of them
//! has too), and for nobody before all have answered. It is over once the leader has brought its log up to its new life. A folder is known to
//! be another by its file ([`Mark`](crate::store::Mark)); `Options::data_is_newest` says that nothing is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::BasicNode;
use openraft::raft::AppendEntriesRequest;
use staves_model::NodeId;
use tokio::task::JoinSet;

use crate::directory::{Core, Inner};
use crate::error::DirectoryError;
use crate::message::{JoinRefusal, LeaderResponse, LogEnd};
use crate::types::{LogId, Types};
use crate::waiting::WaitNotice;

/// The time that the others have to answer, and the pause until those are asked again who did not.
const ANSWER: Duration = Duration::from_millis(300);
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// The time for which a node waits for a leader that by its own log votes alone and knows no other node: others may have voted since.
const NOBODY_ELSE: Duration = Duration::from_secs(3);

/// The words for a node that votes alone, and lacks what another has; and what to do.
pub(crate) const IS_BEHIND: &str = "this node alone votes by what its data folder says, and others have more of the directory's log";
pub(crate) const IF_BEHIND: &str = "give it its newest folder; or, if that is gone, start it with --data-is-newest true: what it lacks is \
    forgotten then, and nodes that have it have to join anew";

/// The others, as far as it knows them.
pub(crate) struct Restored {
    since: Instant,
    /// The newest entry that says who votes, of its own log and of those that answered.
    membership: Option<LogId>,
    /// Those that vote by that, with their addresses.
    voters: BTreeMap<NodeId, String>,
    /// The other nodes of its map that have a folder, with their addresses.
    known: BTreeMap<NodeId, String>,
    /// The ends of the logs of those that answered.
    ends: BTreeMap<NodeId, Option<LogId>>,
}

impl Default for Restored {
    fn default() -> Restored {
        Restored {
            since: Instant::now(),
            membership: None,
            voters: BTreeMap::new(),
            known: BTreeMap::new(),
            ends: BTreeMap::new(),
        }
    }
}

impl Restored {
    /// The voters that have not answered, or all nodes where it votes alone: some may have begun to vote since.
    fn unheard(&self, me: NodeId) -> BTreeMap<NodeId, String> {
        let known = self.known.iter().filter(|_| self.is_alone(me));
        let others = self.voters.iter().chain(known);
        let unheard = others.filter(|(id, _)| **id != me && !self.ends.contains_key(id));
        unheard.map(|(id, addr)| (*id, addr.clone())).collect()
    }

    fn is_alone(&self, me: NodeId) -> bool {
        self.voters.keys().all(|id| *id == me)
    }

    /// True if it votes alone, and another has more of the log.
    fn is_behind(&self, me: NodeId, last_log: Option<LogId>) -> bool {
        self.is_alone(me) && self.ends.values().any(|end| *end > last_log)
    }

    fn take(&mut self, from: NodeId, answer: LogEnd) {
        self.ends.insert(from, answer.last_log);
        self.see(answer);
    }

    /// Voters that have been replaced are not waited for: a majority of those before has agreed, so that one of them says so.
    fn see(&mut self, log: LogEnd) {
        if log.membership >= self.membership {
            (self.membership, self.voters) = (log.membership, log.voters);
        }
    }

    /// True if this node may vote for who has this log.
    fn votes_for(&self, me: NodeId, last_log: Option<LogId>) -> bool {
        // Others were asked for the names of the voters only, unless this node alone votes: then they may have more than it.
        let votes = |id: &NodeId| self.voters.contains_key(id) || self.is_alone(me);
        let mut ends = self.ends.iter().filter(|(id, _)| votes(id));
        let all = self.unheard(me).is_empty() && ends.all(|(_, end)| *end <= last_log);
        let nobody = self.is_alone(me) && self.known.is_empty();
        all && (!nobody || self.since.elapsed() >= NOBODY_ELSE)
    }
}

impl Inner {
    /// True if this node may vote for a candidate, itself or another, whose log ends there. Only a folder that was copied or restored has
    /// it refuse more than Raft does.
    pub fn may_vote(&self, core: &Core, last_log: Option<LogId>) -> bool {
        let restored = self.restored.lock();
        let votes = restored.as_ref().map(|r| r.votes_for(core.me, last_log));
        votes.unwrap_or(true)
    }

    /// Takes in who votes by the log of one that asks for a pre-vote: a voter since this folder was copied perhaps, of which nobody else tells.
    pub fn learn_voters(&self, log: LogEnd) {
        if let Some(restored) = self.restored.lock().as_mut() {
            restored.see(log);
        }
    }

    /// The end of this node's log, and those that vote by it.
    pub fn log_end(&self, core: &Core) -> LogEnd {
        let metrics = core.raft.metrics();
        let metrics = metrics.borrow();
        let membership = metrics.membership_config.membership();
        let addr = |id: &NodeId| membership.get_node(id).map(|n| n.addr.clone());
        let voters = membership.voter_ids();
        LogEnd {
            last_log: self.store.last_log(),
            membership: *metrics.membership_config.log_id(),
            voters: voters
                .map(|id| (id, addr(&id).unwrap_or_default()))
                .collect(),
        }
    }

    /// The error if a leader sends others in the place of entries that this node has applied, which were committed: it leads with an older
    /// folder, by votes that no rule here could refuse. Raft has no answer to that.
    pub fn contradicted(
        &self,
        core: &Core,
        rpc: &AppendEntriesRequest<Types>,
    ) -> Option<DirectoryError> {
        let (applied, vote) = {
            let metrics = core.raft.metrics();
            let metrics = metrics.borrow();
            (metrics.last_applied?.index, metrics.vote)
        };
        let sent = rpc.entries.iter().map(|entry| entry.log_id);
        let others = |id: LogId| {
            let ours = self.store.log_id(id.index);
            id.index <= applied && ours.is_some_and(|ours| ours != id)
        };
        let contradicts = rpc.vote >= vote && sent.chain(rpc.prev_log_id).any(others);
        contradicts.then(|| DirectoryError::Forgotten {
            leader: rpc.vote.leader_id.voted_for().unwrap_or_default(),
            node: core.me,
        })
    }

    /// The last entry of this node's log that it knows to be committed.
    pub fn known_entry(&self, core: &Core) -> Option<LogId> {
        let applied = core.raft.metrics().borrow().last_applied;
        applied.max(self.store.last_committed())
    }

    /// The leader's answer to one that has this entry. Where the leader lacks it, its own folder is an older state, and says nothing
    /// about who was removed.
    pub fn unless_forgotten(
        &self,
        core: &Core,
        known: Option<LogId>,
        answer: LeaderResponse,
    ) -> LeaderResponse {
        let ends = matches!(
            answer,
            LeaderResponse::Over { .. } | LeaderResponse::JoinRefused(JoinRefusal::Removed)
        );
        let last = self.store.last_log();
        let lacks = |known: LogId| match self.store.log_id(known.index) {
            Some(ours) => ours != known,
            None => last.is_none_or(|last| last.index < known.index),
        };
        if !ends || !known.is_some_and(lacks) {
            return answer;
        }
        let reason = format!(
            "node {} leads, and lacks entries of the directory's log that this node has: the data folder of one of them is an older state",
            core.me
        );
        tracing::warn!(
            ?known,
            "a node asks that has more of the directory's log: this node's data folder is an older state"
        );
        LeaderResponse::later(1000, reason)
    }

    /// The log has all that was committed before this life began.
    pub async fn caught_up(&self) -> std::io::Result<()> {
        self.store.save_mark().await?;
        if self.restored.lock().take().is_some() {
            tracing::info!(
                "the data folder, which was copied or restored, is up to date: this node votes as before"
            );
        }
        Ok(())
    }
}

/// Asks the other voters, until all have answered or it is over; and the other nodes that it knows, one of which may know newer voters.
pub(crate) async fn run(inner: Arc<Inner>) {
    let Some(core) = inner.core.get() else { return };
    let mut waiting = WaitNotice::since(Instant::now());
    loop {
        let map = inner.map();
        let asked = match inner.restored.lock().as_mut() {
            Some(restored) => {
                let others = || map.nodes.values().filter(|n| n.id != core.me);
                // One without a folder has another id when it starts again, and does not vote.
                let volatile = inner.options.volatile_votes;
                let known = others().filter(|n| n.durable || volatile);
                restored.known = known.map(|n| (n.id, n.native.clone())).collect();
                restored.see(inner.log_end(core));
                let unheard = others().filter(|n| !restored.ends.contains_key(&n.id));
                let unheard = unheard.map(|n| (n.id, n.native.clone()));
                let mut asked: BTreeMap<NodeId, String> = unheard.collect();
                asked.extend(restored.unheard(core.me));
                asked
            }
            None => return,
        };
        let mut answers = JoinSet::new();
        for (id, addr) in &asked {
            let (id, link) = (*id, core.network.link(*id, &BasicNode::new(addr.clone())));
            answers.spawn(async move { Some((id, link.log_end(ANSWER).await?)) });
        }
        while let Some(answer) = answers.join_next().await {
            let mut restored = inner.restored.lock();
            // One that has just begun may not know yet who votes, and is asked again; one that has never been a voter or learner never does.
            if let (Some(restored), Ok(Some((id, end)))) = (restored.as_mut(), answer)
                && (!end.voters.is_empty() || restored.since.elapsed() >= NOBODY_ELSE)
            {
                restored.take(id, end);
            }
        }
        let last = inner.store.last_log();
        let mut behind = false;
        let still = inner.restored.lock().as_ref().map(|restored| {
            behind = restored.is_behind(core.me, last);
            restored.unheard(core.me)
        });
        let still: BTreeSet<NodeId> = still.into_iter().flatten().map(|(id, _)| id).collect();
        // What is known to be missing comes first: whoever waits for nodes that are gone is not to give that up unknowingly.
        if behind {
            waiting.warn("a leader", IS_BEHIND, IF_BEHIND);
        } else if !still.is_empty() {
            let names: Vec<String> = still.iter().map(ToString::to_string).collect();
            let waits_for = format!("a leader, or nodes {}", names.join(", "));
            let why = "the data folder was copied or restored, and may lack what this node confirmed: it votes for nobody before";
            waiting.warn(&waits_for, why, "start those nodes; or start this one with --data-is-newest true, if nothing is missing in its folder");
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use openraft::CommittedLeaderId;

    use super::*;

    fn id(n: u64) -> NodeId {
        NodeId(n)
    }

    fn log(index: u64) -> Option<LogId> {
        Some(LogId::new(CommittedLeaderId::new(1, id(1)), index))
    }

    /// The end of a log in which the voters' own entry is its tenth part.
    fn end(index: u64, voters: &[u64]) -> LogEnd {
        LogEnd {
            last_log: log(index),
            membership: log(index / 10),
            voters: voters.iter().map(|n| (id(*n), format!("{n}:1"))).collect(),
        }
    }

    fn of(voters: &[u64]) -> Restored {
        let voters = end(0, voters).voters;
        Restored {
            voters,
            ..Restored::default()
        }
    }

    #[test]
    fn it_votes_for_nobody_who_lacks_what_another_voter_has() {
        let mut restored = of(&[1, 2, 3]);
        assert!(!restored.votes_for(id(3), log(99)), "nobody has answered");
        restored.take(id(1), end(7, &[1, 2, 3]));
        assert!(!restored.votes_for(id(3), log(99)), "one has not");
        restored.take(id(2), end(5, &[1, 2, 3]));
        assert!(restored.votes_for(id(3), log(7)));
        assert!(!restored.votes_for(id(3), log(6)), "the first has more");
    }

    /// The voters have changed since the copy was made: one that is asked says so. Those that have left may be gone for good.
    #[test]
    fn it_asks_those_who_vote_by_the_newest_log() {
        let mut restored = of(&[1, 2, 3]);
        restored.take(id(1), end(79, &[1, 3, 4]));
        let unheard = restored.unheard(id(3));
        assert_eq!(unheard, BTreeMap::from([(id(4), "4:1".to_owned())]));
        assert!(!restored.votes_for(id(3), log(90)));
        restored.take(id(4), end(80, &[1, 3, 4]));
        assert!(!restored.votes_for(id(3), log(79)));
        assert!(restored.votes_for(id(3), log(80)));
        restored.take(id(2), end(8, &[1, 2, 3]));
        assert!(restored.votes_for(id(3), log(80)), "an older log");
        restored.take(id(5), end(81, &[1, 3, 4]));
        assert!(restored.votes_for(id(3), log(80)), "it does not vote");
    }

    #[test]
    fn alone_it_waits_for_a_leader_first() {
        let mut restored = of(&[1]);
        assert!(!restored.votes_for(id(1), log(1)));
        restored.since -= NOBODY_ELSE;
        assert!(restored.votes_for(id(1), log(1)));
    }

    /// The others did not vote when the copy was made, and may have begun to.
    #[test]
    fn alone_among_others_it_waits_for_them() {
        let mut restored = of(&[1]);
        restored.known = end(0, &[2, 3]).voters;
        restored.since -= NOBODY_ELSE;
        assert!(!restored.votes_for(id(1), log(99)), "nobody has answered");
        restored.take(id(2), end(5, &[1]));
        assert!(!restored.votes_for(id(1), log(99)), "one has not");
        restored.take(id(3), end(5, &[1]));
        assert!(!restored.votes_for(id(1), log(4)), "they have more");
        assert!(restored.is_behind(id(1), log(4)) && !restored.is_behind(id(1), log(5)));
        assert!(restored.votes_for(id(1), log(6)));
        restored.take(id(3), end(70, &[1, 2, 3]));
        assert!(!restored.votes_for(id(1), log(6)), "they do");
    }
}
