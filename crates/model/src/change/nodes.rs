//! Nodes: they start, die, come back, leave, drain, and are forgotten.

use super::{Change, NODES_MAX, Outcome, Refusal, check_text};
use crate::ids::{Incarnation, NodeId};
use crate::map::{ClusterMap, Node, NodeState};
use crate::mutant::{Mutant, planted};

impl ClusterMap {
    pub(super) fn node_up(&mut self, change: &Change) -> Result<Outcome, Refusal> {
        let Change::NodeUp {
            id,
            name,
            zone,
            native,
            resp,
            admin,
            memory_bytes,
            durable,
        } = change
        else {
            unreachable!("called for NodeUp only");
        };
        check_text("node name", name)?;
        zone.as_ref().map_or(Ok(()), |z| check_text("zone", z))?;
        for (what, address) in [
            ("native address", native),
            ("RESP address", resp),
            ("admin address", admin),
        ] {
            check_text(what, address)?;
        }
        let known = match id {
            Some(id) => Some(
                self.nodes
                    .get(id)
                    .ok_or(Refusal::UnknownNode { node: *id })?,
            ),
            None if self.nodes.len() >= NODES_MAX || self.next_node >= NodeId::END => {
                return Err(Refusal::TooMany {
                    what: "nodes".into(),
                    max: NODES_MAX,
                });
            }
            None => None,
        };
        let node = Node {
            id: known.map_or(self.next_node, |n| n.id),
            incarnation: known
                .filter(|_| planted(Mutant::IncarnationReused))
                .map_or(self.next_incarnation, |n| n.incarnation),
            name: name.clone(),
            zone: zone.clone(),
            native: native.clone(),
            resp: resp.clone(),
            admin: admin.clone(),
            memory_bytes: *memory_bytes,
            durable: *durable,
            state: NodeState::Up,
            // A restart does not undo an operator's wish.
            draining: known.is_some_and(|n| n.draining),
        };
        if known.is_none() {
            self.next_node = NodeId(self.next_node.0 + 1);
        }
        self.next_incarnation = Incarnation(self.next_incarnation.0 + 1);
        let outcome = Outcome::Node {
            id: node.id,
            incarnation: node.incarnation,
        };
        self.strike_holdings(node.id, Some(node.incarnation));
        self.nodes.insert(node.id, node);
        self.moved(outcome)
    }

    pub(super) fn set_state(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        state: NodeState,
    ) -> Result<Outcome, Refusal> {
        let entry = self
            .nodes
            .get_mut(&node)
            .ok_or(Refusal::UnknownNode { node })?;
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
        let entry = self.nodes.get(&node).ok_or(Refusal::UnknownNode { node })?;
        if entry.state == NodeState::Up {
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
        let entry = self
            .nodes
            .get_mut(&node)
            .ok_or(Refusal::UnknownNode { node })?;
        if entry.draining == on {
            return Ok(Outcome::Unchanged);
        }
        entry.draining = on;
        self.moved(Outcome::Done)
    }
}
