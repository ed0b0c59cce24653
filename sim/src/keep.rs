//! The program's own planner at work in the simulator: nodes are declared dead and back (rightly or
//! not), and the keeper proposes.

use staves_model::{Change, NodeState, Scheme};

use crate::world::World;

impl World {
    /// The directory's leader looks around and lets the keeper propose.
    pub fn keep(&mut self) {
        for node in 0..self.nodes.len() {
            self.judge(node);
        }
        let now = self.directory.clock(self.now);
        let reports = std::mem::take(&mut self.directory.reports);
        let proposals = self
            .directory
            .keeper
            .step(now, &self.directory.map, &reports);
        for (revision, change) in proposals {
            let before = self.committed().epoch;
            if self.directory.map.apply(Some(revision), &change).is_err() {
                self.directory.keeper.refused();
                self.cover.count("keeper's proposal refused");
            } else if self.committed().epoch != before {
                self.cover.count("keeper's epoch");
                self.note(|| {
                    format!(
                        "KEEPER {:?} {:?} kept {:?}",
                        self.committed().epoch,
                        self.committed().members,
                        self.committed().kept
                    )
                });
                self.entry_changed();
            }
        }
    }

    // What the detector would find, sooner or later, and now and then wrongly.
    fn judge(&mut self, node: usize) {
        let n = &self.nodes[node];
        let Some(known) = self.directory.map.nodes.get(&n.id) else {
            return;
        };
        let (id, incarnation) = (known.id, known.incarnation);
        let alive = n.lives(incarnation);
        let paused = n.paused_until > self.now;
        let change = match known.state {
            NodeState::Up => {
                let chance = match () {
                    () if !alive => 400,
                    () if self.healing => 0,
                    () if paused => 120,
                    () => self.profile.suspected / 4,
                };
                self.rng.chance(chance).then_some(Change::NodeDown {
                    node: id,
                    incarnation,
                })
            }
            NodeState::Down => {
                let back = alive && !paused && (self.healing || self.rng.chance(300));
                back.then_some(Change::NodeBack {
                    node: id,
                    incarnation,
                })
            }
        };
        if let Some(change) = change
            && self.directory.map.apply(None, &change).is_err()
        {
            self.violation(format!("directory refused {change:?}"));
        }
    }

    /// A fault of the operator: a node is drained, or taken in again.
    pub fn drain(&mut self, node: usize) {
        let Some(known) = self.directory.map.nodes.get(&self.nodes[node].id) else {
            return;
        };
        let change = Change::Drain {
            node: known.id,
            on: !known.draining,
        };
        self.directory.map.apply(None, &change).ok();
        self.cover.count("drain or resume");
    }

    /// A fault of the operator: the pool's k is raised or lowered while it serves.
    pub fn change_k(&mut self, k: usize) {
        let scheme = Scheme {
            m: self.m as u8,
            k: k as u8,
        };
        let change = Change::SetPool {
            name: "cache".into(),
            scheme: Some(scheme),
            node_budget_bytes: None,
        };
        self.directory.map.apply(None, &change).ok();
        self.cover.count("k of the pool set");
    }

    /// Everything is as it was meant to be again: nobody drains, k is the scheme's.
    pub fn settle_operator(&mut self) {
        let draining: Vec<_> = self
            .directory
            .map
            .nodes
            .values()
            .filter(|n| n.draining)
            .map(|n| n.id)
            .collect();
        for node in draining {
            self.directory
                .map
                .apply(None, &Change::Drain { node, on: false })
                .ok();
        }
        self.change_k(self.k);
        self.directory.keeper = crate::directory::new_keeper();
    }
}
