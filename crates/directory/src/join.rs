//! Nodes that start: joins at the leader (row D6).
//!
//! Every start of a process asks to join, the founder's own too. Raft's membership follows the map
//! (`membership.rs`), so that several joins at once cost one change of it.

use std::sync::Arc;
use std::time::Duration;

use staves_model::{
    Change, Claim, ClusterId, ClusterMap, NodeId, NodeState, Outcome, Refusal, StopReply,
};

use crate::ask::{LeadError, NO_CLUSTER};
use crate::directory::Inner;
use crate::lead::newly_elected;
use crate::leader_state::{JoinState, LeaderState};
use crate::message::{Join, JoinRefusal, LeaderResponse};
use crate::types::{Applied, Proposal};

/// The time that the present holder of an address has to answer.
const HOLDER: Duration = Duration::from_millis(200);

impl Inner {
    /// Runs the join to its end even if the joiner gives up meanwhile: it will repeat its request, and must
    /// not become two nodes.
    pub(crate) async fn lead_join(
        self: &Arc<Self>,
        join: Join,
    ) -> Result<LeaderResponse, LeadError> {
        let begin = |leader_state: &mut LeaderState| leader_state.begin_join(join.nonce);
        let begun = self.leader_state.lock().as_mut().map(begin);
        match begun {
            None => return Ok(newly_elected()),
            Some(JoinState::Done(answer)) => return Ok(answer),
            Some(JoinState::UnderWay) => {
                self.note_return(&join);
                return Ok(LeaderResponse::later(20, "the join is under way"));
            }
            Some(JoinState::New) => {}
        }
        let inner = self.clone();
        let task = tokio::spawn(async move {
            let nonce = join.nonce;
            let answer = inner.join_once(join).await;
            let joined = answer
                .as_ref()
                .ok()
                .filter(|a| matches!(a, LeaderResponse::Joined { .. }))
                .cloned();
            if let Some(leader_state) = inner.leader_state.lock().as_mut() {
                leader_state.end_join(nonce, joined);
            }
            answer
        });
        task.await.unwrap_or(Err(LeadError::NotLeader))
    }

    fn note_return(&self, join: &Join) {
        let (now, map) = (self.now(), self.map());
        if let (Some(node), Some(leader_state)) = (join.node, self.leader_state.lock().as_mut()) {
            leader_state.note_return(now, &map, node);
        }
    }

    async fn join_once(self: &Arc<Self>, join: Join) -> Result<LeaderResponse, LeadError> {
        let core = self.core().map_err(|_| LeadError::NotLeader)?;
        let (me, cluster) = (core.me, core.cluster);
        if join.cluster != NO_CLUSTER && join.cluster != cluster {
            return Ok(LeaderResponse::JoinRefused(JoinRefusal::OtherCluster(
                cluster,
            )));
        }
        if self.map().cluster == NO_CLUSTER {
            let answer = self
                .write(Proposal::unconditional(Change::Bootstrap { cluster }))
                .await?;
            if let LeaderResponse::Later { .. } | LeaderResponse::Refused(_) = answer {
                return Ok(answer);
            }
        }
        // They are not worth an entry of the log.
        if let Err(refusal) = Claim::check_all(&join.claims) {
            return Ok(LeaderResponse::JoinRefused(JoinRefusal::Rules(refusal)));
        }
        let map = self.map();
        // The founder's first life: the map is empty, and its folder says which id it has.
        let founds = map.nodes.is_empty() && join.node == Some(me);
        if map.nodes.is_empty() && !founds {
            // It would get the founder's id.
            return Ok(LeaderResponse::later(
                20,
                "the node that founds the cluster joins first",
            ));
        }
        if let Some(node) = join.node.filter(|n| !founds && !map.nodes.contains_key(n)) {
            tracing::warn!(%node, "a node that was removed asks to join");
            return Ok(LeaderResponse::JoinRefused(JoinRefusal::Removed));
        }
        if let Some(refusal) = self.clear_address(&map, &join).await? {
            return Ok(refusal);
        }
        self.note_return(&join);
        let id = join.node.filter(|_| !founds);
        self.bring_up(cluster, id, join).await
    }

    /// Declares another holder of the joiner's address dead: a port has one owner. If it answers after all,
    /// one of the two advertises a wrong address.
    async fn clear_address(
        &self,
        map: &ClusterMap,
        join: &Join,
    ) -> Result<Option<LeaderResponse>, LeadError> {
        let former = map.nodes.values().filter(|n| {
            n.state == NodeState::Up && n.native == join.facts.native && Some(n.id) != join.node
        });
        for node in former {
            let alive = self
                .ping(node.id, node.incarnation, &node.native, HOLDER)
                .await;
            match alive {
                StopReply::State(_) => {
                    return Ok(Some(LeaderResponse::JoinRefused(
                        JoinRefusal::AddressTaken(node.id),
                    )));
                }
                // Silence proves nothing; the detector will find out.
                StopReply::Silent => continue,
                StopReply::Over => {}
            }
            let change = Change::NodeDown {
                node: node.id,
                incarnation: node.incarnation,
            };
            self.write(Proposal::unconditional(change)).await?;
        }
        Ok(None)
    }

    async fn bring_up(
        &self,
        cluster: ClusterId,
        id: Option<NodeId>,
        join: Join,
    ) -> Result<LeaderResponse, LeadError> {
        let change = Change::NodeUp {
            id,
            facts: join.facts,
            durable: join.durable,
            claims: join.claims,
        };
        Ok(match self.write(Proposal::unconditional(change)).await? {
            LeaderResponse::Applied(Applied::Done {
                outcome: Outcome::Node { id, incarnation },
                ..
            }) => {
                tracing::info!(node = %id, %incarnation, "a node joined");
                LeaderResponse::Joined {
                    cluster,
                    node: id,
                    incarnation,
                }
            }
            LeaderResponse::Applied(Applied::Refused {
                refusal: Refusal::UnknownNode { .. },
                ..
            }) => LeaderResponse::JoinRefused(JoinRefusal::Removed),
            LeaderResponse::Applied(Applied::Refused { refusal, .. }) => {
                LeaderResponse::JoinRefused(JoinRefusal::Rules(refusal))
            }
            other => other,
        })
    }
}

#[cfg(test)]
mod tests {
    use staves_model::testing::create_disk_pool;
    use staves_model::{Epoch, GroupId, GroupStep, MemberId};

    use super::*;
    use crate::fatal::tests::alone_with;
    use crate::message::LeaderRequest;
    use crate::{Directory, Options};

    const NODE: NodeId = NodeId(1);
    const PATIENCE: Duration = Duration::from_secs(1);

    /// The epoch in which the group opens, by the word of its member.
    async fn opened(directory: &Directory, group: GroupId) -> Epoch {
        let open = async {
            loop {
                let now = directory.map().borrow().groups[&group].clone();
                let epoch = now.epoch;
                if now.open {
                    return epoch;
                }
                let open = GroupStep::Open { group, epoch }.into();
                let _ = directory.call(vec![open], PATIENCE).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let opened = tokio::time::timeout(Duration::from_secs(20), open).await;
        opened.expect("it opens")
    }

    /// The claims of a start reach the map, and none that no node makes reach the log.
    #[tokio::test]
    async fn a_node_that_starts_anew_claims_what_its_disk_has() {
        let folder = tempfile::tempdir().expect("a folder");
        let group = GroupId(1);
        let region = Change::CreateRegion {
            pool: "disk".into(),
            name: "r".into(),
            size_bytes: 1 << 16,
        };
        let with = |claims: Vec<Claim>| {
            let first_changes = vec![create_disk_pool("disk", "1+0"), region.clone()];
            let data = folder.path().join("data");
            move |options: &mut Options| {
                options.node.memory_bytes = 1 << 26;
                options.data_dir = Some(data);
                (options.claims, options.first_changes) = (claims, first_changes);
            }
        };
        let directory = alone_with(with(Vec::new())).await;
        let epoch = opened(&directory, group).await;
        directory.stop().await;
        drop(directory);

        let directory = alone_with(with(vec![Claim { group, epoch }])).await;
        let map = directory.map().borrow().clone();
        let life = map.nodes[&NODE].incarnation;
        let retained = map.groups[&group].last_open.members[0].expect("one");
        assert_eq!(retained.id, MemberId::new(NODE, life));

        let inner = directory.inner.clone();
        let twice = Join {
            cluster: map.cluster,
            node: Some(NODE),
            nonce: 7,
            facts: inner.options.node.clone(),
            durable: true,
            claims: vec![Claim { group, epoch }; 2],
        };
        let refused = inner.lead(LeaderRequest::Join(twice)).await;
        let refused = refused.expect("it leads");
        assert!(
            matches!(
                refused,
                LeaderResponse::JoinRefused(JoinRefusal::Rules(Refusal::NamedTwice { .. }))
            ),
            "{refused:?}"
        );
        assert_eq!(directory.map().borrow().nodes[&NODE].incarnation, life);
        directory.stop().await;
    }
}
