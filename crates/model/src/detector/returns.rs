//! Nodes that were taken for dead and came back in the same life: each time a wrong verdict, which cost their groups a takeover
//! and a rebuild.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::{Incarnation, NodeId};
use crate::map::{ClusterMap, NodeState};
use crate::mutant::{Mutant, planted};
use crate::time::Time;

/// So many wrong verdicts in a row are forgiven: a cut or a pause costs one.
const FORGIVEN: u32 = 1;
/// The time for which words must stand after one more; doubled by each further one.
const PATIENCE: Duration = Duration::from_millis(500);
/// The number of times that it doubles: 4 s at the most.
const DOUBLINGS_MAX: u32 = 3;
/// A node that was up for so long since its last return is as good as any other.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The returns of each node. No larger than the map.
#[derive(Clone, Debug, Default)]
pub(super) struct Returns(BTreeMap<NodeId, Return>);

#[derive(Clone, Debug)]
struct Return {
    incarnation: Incarnation,
    /// It is down now.
    down: bool,
    times: u32,
    /// The time at which it was last seen down.
    at: Time,
}

impl Returns {
    /// Takes note of who is down, and of who has come back.
    pub(super) fn watch(&mut self, now: Time, map: &ClusterMap) {
        for node in map.nodes.values() {
            let down = node.state == NodeState::Down;
            let incarnation = node.incarnation;
            let known = self.0.get_mut(&node.id);
            match known.filter(|known| known.incarnation == incarnation) {
                Some(known) => {
                    known.times += u32::from(known.down && !down);
                    known.down = down;
                    known.at = if down { now } else { known.at };
                }
                None if down => {
                    let first = Return {
                        incarnation,
                        down,
                        times: 0,
                        at: now,
                    };
                    self.0.insert(node.id, first);
                }
                None => {
                    self.0.remove(&node.id); // another life: the former one did not come back
                }
            }
        }
        self.0.retain(|node, known| {
            let recent = known.down || now.since(known.at) <= FORGOTTEN_AFTER;
            recent && map.nodes.contains_key(node)
        });
    }

    /// The time for which words against this node must stand, if no machine refused a connection for it.
    pub(super) fn patience(&self, node: NodeId) -> Duration {
        let times = self.0.get(&node).map_or(0, |known| known.times);
        match times.checked_sub(FORGIVEN + 1) {
            Some(more) if !planted(Mutant::ReturnsForgotten) => {
                PATIENCE * (1 << more.min(DOUBLINGS_MAX))
            }
            _ => Duration::ZERO,
        }
    }
}
