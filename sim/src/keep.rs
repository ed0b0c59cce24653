//! The program's own planner at work in the simulator: the detector declares nodes dead (rightly or
//! not), and the planner proposes.

use staves_model::{Change, Epoch, MemberSlot, Scheme};

use crate::world::World;

impl World {
    /// The directory's leader looks around and lets the planner propose.
    pub fn keep(&mut self) {
        self.detect();
        let now = self.directory.clock(self.now);
        let reports = std::mem::take(&mut self.directory.reports);
        let detector = &self.directory.detector;
        let (cuts, late) = (detector.cuts(), detector.late());
        self.directory.planner.see_cuts(cuts);
        self.directory.planner.see_late(&late);
        let proposals = self
            .directory
            .planner
            .step(now, &self.directory.map, &reports);
        for (revision, change) in proposals {
            let before: Vec<Epoch> = self.all_groups().map(|g| self.committed(g).epoch).collect();
            if self.directory.map.apply(Some(revision), &change).is_err() {
                self.directory.planner.refused();
                self.cover.count("planner's proposal refused");
                continue;
            }
            if let Change::MarkLost { groups } = &change {
                self.cover.count("group marked lost");
                for id in groups {
                    if let Some(g) = self.index_of(*id) {
                        self.entry_changed(g);
                    }
                }
            }
            let moved = before.into_iter().enumerate();
            let moved = moved.filter(|(g, epoch)| self.committed(*g).epoch != *epoch);
            let moved: Vec<usize> = moved.map(|(g, _)| g).collect();
            if moved.len() > 1 {
                self.cover
                    .count("several groups: one proposal for more than one");
            }
            for g in moved {
                self.kept(g);
            }
        }
    }

    // The planner's epoch of a group is committed.
    fn kept(&mut self, g: usize) {
        self.cover.count("planner's epoch");
        let (group, m) = (self.committed(g).clone(), self.groups[g].m);
        let was = |s: usize| group.last_open.members.get(s).copied().flatten();
        let vacant = |s: &usize| group.last_open.epoch.0 > 0 && was(*s).is_none();
        if (0..m).any(|s| vacant(&s) && group.members[s].is_some()) {
            self.cover.count("vacant data bucket taken");
        }
        let of = |s: usize| group.bucket_slot(MemberSlot(s as u8)).index();
        let joins = |s: &usize| group.members[*s].is_some() && group.kept[*s].is_none();
        if (0..group.members.len()).any(|s| of(s) != s && joins(&s)) {
            self.cover.count("twin called in");
        }
        self.check_twins(&group);
        let sources = group.last_open.members.iter().flatten();
        let run = sources.filter(|x| self.directory.map.runs(x.id)).count();
        if m == 1 && run >= 3 && group.kept.iter().flatten().count() == 1 {
            self.cover.count("one of three that run goes on alone");
        }
        let moved = |s: &usize| group.kept[*s].is_some_and(|from| from.index() != *s);
        if m > 1 && (0..m).any(|s| moved(&s)) {
            self.cover.count("twin took a data bucket's place");
        }
        self.note(|| {
            let (epoch, members, kept) = (group.epoch, &group.members, &group.kept);
            format!("PLANNER {:?} {epoch:?} {members:?} kept {kept:?}", group.id)
        });
        self.entry_changed(g);
    }

    /// A fault of the operator: a node is drained, or taken in again.
    pub fn drain(&mut self, node: usize) {
        let Some(known) = self.directory.map.nodes.get(&self.nodes[node].id) else {
            return;
        };
        let on = !known.draining;
        match on {
            true => self.stops.wished.insert(node),
            false => self.stops.wished.remove(&node),
        };
        self.set_drain(node, on);
        self.cover.count("drain or resume");
    }

    /// A fault of the operator: a pool's k is raised or lowered while it serves.
    pub fn change_k(&mut self, g: usize, k: usize) {
        let of = &self.groups[g];
        let scheme = Scheme {
            m: of.m as u8,
            k: k as u8,
        };
        let change = Change::SetPool {
            name: of.pool_name.clone(),
            scheme: Some(scheme),
            node_budget_bytes: None,
        };
        self.directory.map.apply(None, &change).ok();
        self.cover.count("k of the pool set");
    }

    /// Everything is as it was meant to be again: nobody drains, k is the scheme's.
    pub fn settle_operator(&mut self) {
        for node in 0..self.hosts() {
            let known = self.directory.map.nodes.get(&self.nodes[node].id);
            if known.is_some_and(|n| n.draining) {
                self.set_drain(node, false);
            }
        }
        self.stops.marks.clear();
        for g in self.all_groups() {
            self.change_k(g, self.groups[g].k);
        }
        self.directory.planner = crate::directory_state::new_planner();
    }
}
