//! The program's own planner at work in the simulator: the detector declares nodes dead (rightly or
//! not), and the planner proposes.

use staves_model::{Change, MemberSlot, Scheme};

use crate::world::World;

impl World {
    /// The directory's leader looks around and lets the planner propose.
    pub fn keep(&mut self) {
        self.detect();
        let now = self.directory.clock(self.now);
        let reports = std::mem::take(&mut self.directory.reports);
        let proposals = self
            .directory
            .planner
            .step(now, &self.directory.map, &reports);
        for (revision, change) in proposals {
            let before = self.committed().epoch;
            if self.directory.map.apply(Some(revision), &change).is_err() {
                self.directory.planner.refused();
                self.cover.count("planner's proposal refused");
            } else if let Change::MarkLost { .. } = change {
                self.cover.count("group marked lost");
                self.entry_changed();
            } else if self.committed().epoch != before {
                self.cover.count("planner's epoch");
                let group = self.committed().clone();
                let was = |s: usize| group.last_open.members.get(s).copied().flatten();
                let vacant = |s: &usize| group.last_open.epoch.0 > 0 && was(*s).is_none();
                if (0..self.m).any(|s| vacant(&s) && group.members[s].is_some()) {
                    self.cover.count("vacant data bucket taken");
                }
                let of = |s: usize| group.bucket_slot(MemberSlot(s as u8)).index();
                let joins = |s: &usize| group.members[*s].is_some() && group.kept[*s].is_none();
                if (0..group.members.len()).any(|s| of(s) != s && joins(&s)) {
                    self.cover.count("twin called in");
                }
                self.check_twins(&group);
                let moved = |s: &usize| group.kept[*s].is_some_and(|from| from.index() != *s);
                if self.m > 1 && (0..self.m).any(|s| moved(&s)) {
                    self.cover.count("twin took a data bucket's place");
                }
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
        self.directory.planner = crate::directory_state::new_planner();
    }
}
