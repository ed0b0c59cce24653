//! From nothing, or from a data folder, to a life in the cluster (row D6).
//!
//! ```text
//! folder names a cluster    run Raft under that id, then ask the leader (perhaps oneself) for a new life
//! no cluster, no --join     draw a cluster id, be node 1, begin Raft's log alone, then as above
//! no cluster, --join        ask any node for an id and a life, write them down, run Raft as a learner
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use openraft::BasicNode;
use openraft::error::{InitializeError, RaftError};
use staves_model::{ClusterId, Incarnation, NodeId, PoolId};
use tokio::runtime::Handle;

use crate::ask::{NO_CLUSTER, ask_to_join};
use crate::directory::{Core, Inner, Life, not_running, unexpected};
use crate::error::DirectoryError;
use crate::folder_owner::{self, FolderOwner};
use crate::message::{Join, JoinRefusal, LeaderRequest, LeaderResponse, PeerRequest, PeerResponse};
use crate::network::Network;
use crate::restored::{self, Restored};
use crate::store::Identity;
use crate::types::{Applied, Proposal, Raft};
use crate::waiting::WaitNotice;
use crate::{elections, fatal, leader, lease_batcher, membership, pinger};

/// The id of the node that makes a cluster: the map hands out ids from here.
const FOUNDER: NodeId = NodeId(1);
/// The time that one address has to answer a join.
const JOIN_TRY: Duration = Duration::from_millis(1000);
/// The time that the former holder of the data folder, at another address, has to answer.
const FORMER: Duration = Duration::from_millis(500);
/// The remedy where no node lets it join.
const IF_FIRST: &str = "start one of those nodes, or its cluster's majority; leave `join` out on the first node of a new cluster";
/// The pause after all addresses were tried.
const JOIN_REST: Duration = Duration::from_millis(100);

impl Inner {
    pub(crate) async fn start(self: Arc<Self>) -> Result<Life, DirectoryError> {
        let begun = Instant::now();
        self.runtime.get_or_init(Handle::current);
        let nonce = rand::random();
        let mut life = None;
        let identity = match self.store.identity() {
            Some(identity) => {
                self.is_no_copy(identity).await?;
                identity
            }
            None if self.options.join.is_empty() => self.bootstrap().await?,
            None => {
                let (identity, incarnation) = self.join_cluster(nonce, begun).await?;
                life = Some(incarnation);
                identity
            }
        };
        if let Some(folder) = &self.options.data_dir {
            let (pid, native) = (std::process::id(), self.options.node.native.clone());
            folder_owner::write(folder, &FolderOwner { pid, native });
        }
        self.run_raft(identity).await?;
        let incarnation = match life {
            Some(incarnation) => incarnation,
            None => self.rejoin(identity, nonce).await?,
        };
        self.incarnation.store(incarnation.0, Ordering::Release);
        self.wait_for_own_life(identity.node, incarnation, begun)
            .await?;
        let caught_up = self.caught_up().await;
        caught_up.map_err(|e| self.options.unreadable(e.to_string()))?;
        self.spawn(pinger::run(self.clone()));
        if identity.founder {
            self.first_changes().await?;
        }
        tracing::info!(cluster = %identity.cluster, node = %identity.node, %incarnation, "this node is up");
        Ok(Life {
            cluster: identity.cluster,
            node: identity.node,
            incarnation,
        })
    }

    async fn bootstrap(&self) -> Result<Identity, DirectoryError> {
        let identity = Identity {
            cluster: ClusterId(rand::random_range(1..=u64::MAX)),
            node: FOUNDER,
            founder: true,
        };
        self.save(identity).await?;
        Ok(identity)
    }

    /// Two processes of one identity could vote twice: if this folder was copied from one whose node still
    /// answers at its address, this process must not run.
    async fn is_no_copy(&self, identity: Identity) -> Result<(), DirectoryError> {
        let Some(former) = &self.former else {
            return Ok(());
        };
        // At its own address this process itself answers.
        if former.native == self.options.node.native {
            return Ok(());
        }
        let (node, address) = (identity.node, former.native.clone());
        let network = self.network(identity.cluster, node);
        // The life does not matter; an answer by this node's identity does.
        let ping = PeerRequest::Ping {
            incarnation: Incarnation(0),
        };
        match network.call(node, &address, ping, FORMER).await {
            Ok(PeerResponse::Pong { .. }) => Err(DirectoryError::IsRunning { node, address }),
            _ => Ok(()),
        }
    }

    /// Asks the given addresses in turn for an id.
    async fn join_cluster(
        &self,
        nonce: u64,
        begun: Instant,
    ) -> Result<(Identity, Incarnation), DirectoryError> {
        let network = self.network(NO_CLUSTER, NodeId(0));
        let request = LeaderRequest::Join(self.join(NO_CLUSTER, None, nonce));
        let mut last = String::new();
        let mut waiting = WaitNotice::since(begun);
        let waits_for = format!("a cluster at {}", self.options.join.join(", "));
        while begun.elapsed() < self.options.times.join {
            for addr in &self.options.join {
                let left = self.options.times.join.saturating_sub(begun.elapsed());
                match ask_to_join(&network, addr, &request, left.min(JOIN_TRY)).await {
                    Ok(LeaderResponse::Joined {
                        cluster,
                        node,
                        incarnation,
                    }) => {
                        let identity = Identity {
                            cluster,
                            node,
                            founder: false,
                        };
                        self.save(identity).await?;
                        return Ok((identity, incarnation));
                    }
                    Ok(LeaderResponse::JoinRefused(refusal)) => {
                        return Err(self.join_refused(NO_CLUSTER, NodeId(0), refusal));
                    }
                    Ok(LeaderResponse::Later { reason, .. }) => last = format!("{addr}: {reason}"),
                    Ok(other) => last = format!("{addr} answered a join with {other:?}"),
                    Err(why) => last = why,
                }
                waiting.warn(&waits_for, &last, IF_FIRST);
            }
            tokio::time::sleep(JOIN_REST).await;
        }
        let waiting_for = "a cluster to join";
        last = format!("{last}; {IF_FIRST}");
        Err(DirectoryError::NoLeader {
            waiting_for,
            waited: begun.elapsed(),
            last,
        })
    }

    /// A new life for an id that this node has already.
    async fn rejoin(
        self: &Arc<Self>,
        identity: Identity,
        nonce: u64,
    ) -> Result<Incarnation, DirectoryError> {
        if identity.founder {
            self.initialize_raft(identity.node).await?;
        }
        let join = self.join(identity.cluster, Some(identity.node), nonce);
        let joined = self.ask(LeaderRequest::Join(join), self.options.times.join);
        match joined.await? {
            LeaderResponse::Joined {
                node, incarnation, ..
            } if node == identity.node => Ok(incarnation),
            LeaderResponse::JoinRefused(refusal) => {
                Err(self.join_refused(identity.cluster, identity.node, refusal))
            }
            other => {
                let join = format!("the join of node {}", identity.node);
                Err(unexpected(&join, &other))
            }
        }
    }

    /// The first entry of the cluster's log, unless it is there: this node alone votes.
    async fn initialize_raft(&self, me: NodeId) -> Result<(), DirectoryError> {
        let raft = &self.core()?.raft;
        let alone = [(me, BasicNode::new(&self.options.node.native))];
        match raft
            .initialize(std::collections::BTreeMap::from(alone))
            .await
        {
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(e) => Err(not_running(e.to_string())),
        }
    }

    async fn run_raft(self: &Arc<Self>, identity: Identity) -> Result<(), DirectoryError> {
        let twice = || not_running("it was started before");
        let machine = self.machine.lock().take().ok_or_else(twice)?;
        let queue = self.lease_requests.lock().take().ok_or_else(twice)?;
        let (cluster, me) = (identity.cluster, identity.node);
        let network = self.network(cluster, me);
        let config = Arc::new(self.options.raft()?);
        let no_store = |e| not_running(format!("its vote cannot be kept: {e}"));
        self.store.give_up_lead(me).await.map_err(no_store)?;
        if self.store.is_copied() && !self.options.data_is_newest {
            tracing::warn!(
                "the data folder was copied or restored: this node votes once it has caught up"
            );
            *self.restored.lock() = Some(Restored::default());
        }
        let raft = Raft::new(me, config, network.clone(), self.store.clone(), machine)
            .await
            .map_err(|e| not_running(format!("Raft cannot run on this data folder: {e}")))?;
        self.core
            .set(Core {
                raft,
                network,
                me,
                cluster,
            })
            .map_err(|_| twice())?;
        self.spawn(restored::run(self.clone()));
        self.spawn(fatal::run(self.clone()));
        let times = &self.options.times;
        self.spawn(elections::run(
            self.clone(),
            times.election,
            times.heartbeat,
        ));
        self.spawn(lease_batcher::run(self.clone(), queue));
        self.spawn(leader::run(self.clone()));
        self.spawn(membership::run(self.clone()));
        Ok(())
    }

    /// Waits until this node's own map has its new life.
    async fn wait_for_own_life(
        &self,
        me: NodeId,
        incarnation: Incarnation,
        begun: Instant,
    ) -> Result<(), DirectoryError> {
        let mut map_watch = self.map_watch.clone();
        let seen = map_watch.wait_for(|map| {
            map.nodes
                .get(&me)
                .is_some_and(|n| n.incarnation >= incarnation)
        });
        let left = self.options.times.join.saturating_sub(begun.elapsed());
        match tokio::time::timeout(left, seen).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(DirectoryError::NoLeader {
                waiting_for: "the first map from the leader",
                waited: begun.elapsed(),
                last: format!(
                    "the cluster took node {me} in, but its log does not reach this node"
                ),
            }),
        }
    }

    /// Makes the first pools of a new cluster. Not repeated once there was a pool, deleted or not.
    async fn first_changes(self: &Arc<Self>) -> Result<(), DirectoryError> {
        if self.map().next_pool != PoolId(1) {
            return Ok(());
        }
        for change in &self.options.first_changes {
            let proposal = LeaderRequest::Propose(Proposal::unconditional(change.clone()));
            let answer = self.ask(proposal, self.options.times.join).await?;
            if let LeaderResponse::Applied(Applied::Refused { refusal, .. }) = answer {
                return Err(refusal.into());
            }
        }
        Ok(())
    }

    fn network(&self, cluster: ClusterId, me: NodeId) -> Network {
        Network {
            transport: self.transport.clone(),
            map: self.map_watch.clone(),
            seen_at: self.seen_at.clone(),
            cluster,
            me,
            unreachable: self.unreachable.clone(),
            mute: self.mute.clone(),
        }
    }

    fn join(&self, cluster: ClusterId, node: Option<NodeId>, nonce: u64) -> Join {
        let of = self.options.claims_of;
        let mine = of.is_none_or(|(theirs, id)| theirs == cluster && node == Some(id));
        let claims = Some(self.options.claims.clone()).filter(|_| mine);
        Join {
            cluster,
            node,
            nonce,
            facts: self.options.node.clone(),
            durable: self.options.data_dir.is_some(),
            claims: claims.unwrap_or_default(),
        }
    }

    fn join_refused(&self, ours: ClusterId, node: NodeId, refusal: JoinRefusal) -> DirectoryError {
        match refusal {
            JoinRefusal::OtherCluster(theirs) => DirectoryError::OtherCluster { ours, theirs },
            JoinRefusal::Removed => DirectoryError::Removed { node },
            JoinRefusal::AddressTaken(node) => DirectoryError::AddressTaken {
                address: self.options.node.native.clone(),
                node,
            },
            JoinRefusal::Rules(refusal) => refusal.into(),
        }
    }

    async fn save(&self, identity: Identity) -> Result<(), DirectoryError> {
        let saved = self.store.save_identity(identity).await;
        saved.map_err(|e| self.options.unreadable(e.to_string()).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Directory;
    use crate::fatal::tests::{Alone, options};

    /// Regression: who asked to join between the founder's election and the founder's own join got the founder's id, and
    /// neither came up.
    #[tokio::test]
    async fn nobody_joins_before_the_founder() {
        let directory = Directory::open(options(), Arc::new(Alone)).expect("in memory");
        let inner = directory.inner.clone();
        let identity = inner.bootstrap().await.expect("it founds a cluster");
        inner.run_raft(identity).await.expect("it runs");
        inner
            .initialize_raft(identity.node)
            .await
            .expect("it begins");
        let leads = async {
            while inner.leader_state.lock().is_none() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        let leads = tokio::time::timeout(std::time::Duration::from_secs(20), leads);
        leads.await.expect("it leads");
        let mut other = inner.join(NO_CLUSTER, None, 1);
        other.facts.native = "b:1600".into();
        let asks = || inner.lead(LeaderRequest::Join(other.clone()));
        let early = asks().await.expect("it leads");
        assert!(matches!(early, LeaderResponse::Later { .. }), "{early:?}");
        inner.rejoin(identity, 2).await.expect("it joins itself");
        let then = asks().await.expect("it leads");
        assert!(
            matches!(
                then,
                LeaderResponse::Joined {
                    node: NodeId(2),
                    ..
                }
            ),
            "{then:?}"
        );
        directory.stop().await;
    }
}
