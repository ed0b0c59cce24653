//! The end of a storm: all nodes run, and all groups are open and whole.

use crate::cluster::Cluster;

impl Cluster {
    /// All nodes run, nothing fails, and time passes until every group is open with complete members.
    pub fn heal(&mut self) {
        self.rough = false;
        self.see_all();
        let mut quiet = 0;
        for round in 0..4000 {
            for at in 0..self.nodes.len() {
                if self.nodes[at].process.is_none() {
                    self.start(at);
                }
                self.commit(at);
            }
            while self.deliver() {}
            if round % 3 == 0 {
                self.look();
            }
            if round % 10 == 5 {
                (0..self.nodes.len()).for_each(|at| self.save_oldest_first(at));
                (0..self.nodes.len()).for_each(|at| self.tell_map(at));
            }
            self.tick();
            self.check();
            let width = self.directory.width.min(self.nodes.len());
            let whole = |group: &staves_model::Group| {
                group.open
                    && group.listed().count() >= width
                    && group
                        .listed()
                        .all(|(_, x)| x.complete && self.directory.runs(x.id))
            };
            let all = self.directory.groups.values().all(whole);
            let is_quiet = all && self.pending.is_empty() && round > 20;
            quiet = if is_quiet { quiet + 1 } else { 0 };
            // Parity applies with a later tick.
            if quiet > if self.m > 1 { 8 } else { 0 } {
                return;
            }
        }
        self.describe();
        panic!(
            "NOT HEALED: {:?}, last start that failed: {:?}",
            self.directory.groups,
            self.open_errors.last()
        );
    }

    /// Saves a node's members, those first whose records lie furthest back, as long as that frees something.
    fn save_oldest_first(&mut self, at: usize) {
        let Some(process) = &self.nodes[at].process else {
            return;
        };
        let mut groups: Vec<_> = self.directory.groups.keys().copied().collect();
        groups.sort_by_key(|group| process.store.lock().needed_from_of(*group));
        for group in groups {
            let Some(process) = &self.nodes[at].process else {
                return;
            };
            let member = process.members.get(&group);
            let wanted = member.is_some_and(|m| m.unsaved() > 0 || m.wants_save());
            let for_room = process.store.lock().is_oldest(group);
            if wanted || for_room {
                self.save(at, group, for_room);
                self.release(at);
            }
        }
    }

    /// Prints where every member stands.
    fn describe(&self) {
        for node in &self.nodes {
            let Some(process) = &node.process else {
                continue;
            };
            let store = process.store.lock();
            for (group, member) in &process.members {
                eprintln!(
                    "resident {} old {} progress {:?} admits {} takes {}",
                    process.residency.pages(),
                    member.has_old_pages(),
                    member.progress(),
                    process.residency.admits(),
                    process.residency.takes_in(),
                );
                eprintln!(
                    "node {} {group}: epoch {:?} installed {:?} open {} records {} synced {} waits {} room {} of {}, last {} synced {} needed {:?} from {:?} unsaved {} prefix {:?}",
                    node.id,
                    member.epoch(),
                    member.installed(),
                    member.is_open(),
                    member.records(),
                    store.synced_of(*group),
                    store.waits(),
                    process.journal.room_reserved(),
                    process.journal.ring_bytes(),
                    process.journal.last(),
                    process.journal.synced(),
                    store.needed_from_of(*group),
                    process.journal.kept_from(),
                    member.unsaved(),
                    (0..usize::from(self.m))
                        .filter_map(|stream| member.stream(stream))
                        .map(|s| (s.prefix, s.synced, s.stable, s.purgeable))
                        .collect::<Vec<_>>(),
                );
            }
        }
    }
}
