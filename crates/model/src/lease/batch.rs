//! The lease batcher: lease requests wait, and one confirmation by a quorum serves all that wait.
//!
//! GROUP: a lease is granted only by a leader that a quorum lately confirmed. Here the confirmation begins after every
//! request of its batch has come, so a lease that is counted from the asking is safe against any leader elected later:
//! that one came after the confirmation, and waits one whole lease.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{Leases, heard_from};
use crate::ids::{Epoch, GroupId, Incarnation, NodeId};
use crate::map::ClusterMap;
use crate::mutant::{Mutant, planted};
use crate::time::Time;

/// Most requests that one confirmation serves.
const BATCH_MAX: usize = 512;
/// Most requests that wait for a confirmation that has not begun.
const WAITING_MAX: usize = 4096;

/// One node's request for leases.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
    /// The groups, and the epochs that it serves them in.
    pub wanted: Vec<(GroupId, Epoch)>,
}

/// A confirmed leader's answer to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaseAnswer {
    /// The leases, which may be none.
    Granted {
        /// The groups and epochs, of those wanted.
        granted: Vec<(GroupId, Epoch)>,
        /// Groups of the node for which this answer counts as contact with the directory, ascending, each with the
        /// epoch that a member must have come to (GROUP rule 13).
        heard: Vec<(GroupId, Epoch)>,
    },
    /// The life is over: a later one is reached at this address, or without one the node was removed.
    Over {
        /// The address of the later life.
        address: Option<String>,
    },
}

impl Leases {
    /// Answers a request under the conditions of [`Leases::grant`].
    pub fn answer(&mut self, now: Time, map: &ClusterMap, request: &LeaseRequest) -> LeaseAnswer {
        let (node, life) = (request.node, request.incarnation);
        // A quorum has confirmed this map since the request was made: lives only follow each other.
        match map.nodes.get(&node) {
            Some(known) if known.incarnation > life => {
                let address = Some(known.native.clone());
                return LeaseAnswer::Over { address };
            }
            None => return LeaseAnswer::Over { address: None },
            Some(_) => {}
        }
        let granted = self.grant(now, map, node, life, &request.wanted);
        let named = map.groups.values().filter(|g| g.names(node));
        let heard = named.filter_map(|g| Some((g.id, heard_from(map, g, node, life)?)));
        LeaseAnswer::Granted {
            granted,
            heard: heard.collect(),
        }
    }
}

/// The inputs of a batcher. `T` is the driver's way to answer a request.
#[derive(Clone, Debug)]
pub enum LeaseEvent<T> {
    /// A request has come.
    Request(LeaseRequest, T),
    /// The confirmation that was asked for has ended: with success, or not.
    Confirmed(bool),
}

/// The outputs of a step.
#[derive(Clone, Debug)]
pub struct LeaseEffects<T> {
    /// A confirmation is to begin now.
    pub confirm: bool,
    /// Requests that the confirmation serves; to be answered by [`Leases::answer`].
    pub serve: Vec<(LeaseRequest, T)>,
    /// Requests to be made again later.
    pub later: Vec<T>,
}

impl<T> Default for LeaseEffects<T> {
    fn default() -> LeaseEffects<T> {
        LeaseEffects {
            confirm: false,
            serve: Vec::new(),
            later: Vec::new(),
        }
    }
}

/// Requests of one leader's term, with at most one confirmation under way.
#[derive(Clone, Debug)]
pub struct LeaseBatcher<T> {
    waiting: VecDeque<(LeaseRequest, T)>,
    batch: Vec<(LeaseRequest, T)>,
}

impl<T> Default for LeaseBatcher<T> {
    fn default() -> LeaseBatcher<T> {
        LeaseBatcher {
            waiting: VecDeque::new(),
            batch: Vec::new(),
        }
    }
}

impl<T> LeaseBatcher<T> {
    /// Takes one event in, and appends what is to be done.
    pub fn step(&mut self, event: LeaseEvent<T>, out: &mut LeaseEffects<T>) {
        match event {
            LeaseEvent::Request(_, reply) if self.waiting.len() >= WAITING_MAX => {
                out.later.push(reply);
            }
            LeaseEvent::Request(request, reply)
                if planted(Mutant::LeaseFromOldRead) && !self.batch.is_empty() =>
            {
                self.batch.push((request, reply));
            }
            LeaseEvent::Request(request, reply) => self.waiting.push_back((request, reply)),
            LeaseEvent::Confirmed(true) => out.serve.append(&mut self.batch),
            LeaseEvent::Confirmed(false) => {
                out.later
                    .extend(self.batch.drain(..).map(|(_, reply)| reply));
            }
        }
        // One that comes while a confirmation is under way waits for the next: that one begins after it.
        if self.batch.is_empty() && !self.waiting.is_empty() {
            let count = self.waiting.len().min(BATCH_MAX);
            self.batch.extend(self.waiting.drain(..count));
            out.confirm = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(node: u64) -> LeaseRequest {
        LeaseRequest {
            node: NodeId(node),
            incarnation: Incarnation(1),
            wanted: Vec::new(),
        }
    }

    fn step(batcher: &mut LeaseBatcher<u64>, event: LeaseEvent<u64>) -> LeaseEffects<u64> {
        let mut out = LeaseEffects::default();
        batcher.step(event, &mut out);
        out
    }

    fn served(out: &LeaseEffects<u64>) -> Vec<u64> {
        out.serve.iter().map(|(_, reply)| *reply).collect()
    }

    #[test]
    fn a_confirmation_serves_requests_that_came_before_it_began() {
        let mut batcher = LeaseBatcher::default();
        let first = step(&mut batcher, LeaseEvent::Request(request(1), 1));
        assert!(first.confirm && first.serve.is_empty());
        for n in 2..=3 {
            let late = step(&mut batcher, LeaseEvent::Request(request(n), n));
            assert!(!late.confirm && late.serve.is_empty());
        }
        let out = step(&mut batcher, LeaseEvent::Confirmed(true));
        assert_eq!((served(&out), out.confirm), (vec![1], true));
        let out = step(&mut batcher, LeaseEvent::Confirmed(true));
        assert_eq!((served(&out), out.confirm), (vec![2, 3], false));
    }

    #[test]
    fn without_a_quorum_nobody_is_served_and_the_next_batch_is_tried() {
        let mut batcher = LeaseBatcher::default();
        step(&mut batcher, LeaseEvent::Request(request(1), 1));
        step(&mut batcher, LeaseEvent::Request(request(2), 2));
        let out = step(&mut batcher, LeaseEvent::Confirmed(false));
        assert_eq!(
            (served(&out), &out.later[..], out.confirm),
            (vec![], &[1][..], true)
        );
    }

    #[test]
    fn requests_that_wait_are_bounded() {
        let mut batcher = LeaseBatcher::default();
        let all = 0..(WAITING_MAX as u64 + 2);
        let later = all.map(|n| step(&mut batcher, LeaseEvent::Request(request(n), n)).later);
        // The first is in the batch whose confirmation is under way.
        assert_eq!(
            later.flatten().collect::<Vec<_>>(),
            [WAITING_MAX as u64 + 1]
        );
        step(&mut batcher, LeaseEvent::Confirmed(true));
        let out = step(&mut batcher, LeaseEvent::Confirmed(true));
        assert_eq!(out.serve.len(), BATCH_MAX);
    }
}
