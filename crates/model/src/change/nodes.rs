//! Nodes: they start, die, come back, leave, drain, and are forgotten.

use serde::{Deserialize, Serialize};

use super::Change;
use super::bounds::NODES_MAX;
use super::claims::Claim;
use super::outcome::{Outcome, Refusal, check_text, too_many};
use crate::ids::{Incarnation, NodeId};
use crate::map::{ClusterMap, Node, NodeState};
use crate::mutant::{Mutant, planted};

/// A node's description of itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeFacts {
    /// A name for people. Need not be unique.
    pub name: String,
    /// Its zone, if it has one.
    pub zone: Option<String>,
    /// The address of its native door, `host:port`.
    pub native: String,
    /// The address of its RESP door.
    pub resp: String,
    /// The address of its admin door.
    pub admin: String,
    /// Memory for pages, in bytes.
    pub memory_bytes: u64,
    /// Bytes of pages that its disk takes; 0 if it has none.
    pub disk_bytes: u64,
}

impl NodeFacts {
    fn check(&self) -> Result<(), Refusal> {
        check_text("node name", &self.name)?;
        if let Some(zone) = &self.zone {
            check_text("zone", zone)?;
        }
        check_text("native address", &self.native)?;
        check_text("RESP address", &self.resp)?;
        check_text("admin address", &self.admin)
    }
}

impl ClusterMap {
    pub(super) fn node_up(&mut self, change: &Change) -> Result<Outcome, Refusal> {
        let Change::NodeUp {
            id,
            facts,
            durable,
            claims,
        } = change
        else {
            unreachable!("called for NodeUp only");
        };
        facts.check()?;
        Claim::check_all(claims)?;
        let former = match id {
            Some(id) => Some(self.known_node(*id)?.clone()),
            None if self.nodes.len() >= NODES_MAX || self.next_node >= NodeId::END => {
                return Err(too_many("nodes", NODES_MAX));
            }
            None => None,
        };
        let reused = former
            .as_ref()
            .filter(|_| planted(Mutant::IncarnationReused));
        let facts = facts.clone();
        let node = Node {
            id: former.as_ref().map_or(self.next_node, |n| n.id),
            incarnation: reused.map_or(self.next_incarnation, |n| n.incarnation),
            name: facts.name,
            zone: facts.zone,
            native: facts.native,
            resp: facts.resp,
            admin: facts.admin,
            memory_bytes: facts.memory_bytes,
            disk_bytes: facts.disk_bytes,
            durable: *durable,
            state: NodeState::Up,
            // A restart does not undo an operator's wish.
            draining: former.as_ref().is_some_and(|n| n.draining),
        };
        if former.is_none() {
            self.next_node = NodeId(self.next_node.0 + 1);
        }
        self.next_incarnation = Incarnation(self.next_incarnation.0 + 1);
        let outcome = Outcome::Node {
            id: node.id,
            incarnation: node.incarnation,
        };
        self.strike_holdings(node.id, Some(node.incarnation));
        self.take_claims(&node, claims);
        self.nodes.insert(node.id, node);
        self.moved(outcome)
    }

    pub(super) fn set_state(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        state: NodeState,
    ) -> Result<Outcome, Refusal> {
        let entry = self.known_node(node)?;
        if entry.incarnation != incarnation {
            let present = entry.incarnation;
            return Err(Refusal::OldIncarnation {
                node,
                incarnation,
                present,
            });
        }
        if entry.state == state {
            return Ok(Outcome::Unchanged);
        }
        entry.state = state;
        if state == NodeState::Down {
            self.strike_holdings(node, None);
        }
        self.moved(Outcome::Done)
    }

    pub(super) fn forget_node(&mut self, node: NodeId) -> Result<Outcome, Refusal> {
        if self.known_node(node)?.state == NodeState::Up {
            return Err(Refusal::NodeIsUp { node });
        }
        if let Some(group) = self.groups.values().find(|g| g.names(node)) {
            return Err(Refusal::NodeIsMember {
                node,
                group: group.id,
            });
        }
        self.nodes.remove(&node);
        self.moved(Outcome::Done)
    }

    pub(super) fn drain(&mut self, node: NodeId, on: bool) -> Result<Outcome, Refusal> {
        let entry = self.known_node(node)?;
        if entry.draining == on {
            return Ok(Outcome::Unchanged);
        }
        entry.draining = on;
        self.moved(Outcome::Done)
    }
}
