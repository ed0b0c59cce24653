//! The directory's leaders: the one whose proposals are committed, and for a while the one before it,
//! which does not know yet that it is deposed.
//!
//! Both have a place on the network, and nodes and clients may be split between them. The deposed one
//! shows the map as it was, and takes lease requests. It may grant what a quorum confirmed before it
//! was deposed, and nothing else: **a confirmation counts if it was given after the request came**, by
//! a quorum that followed this leader then. What it proposes is lost, for only the newest term commits.

use staves_model::mutant::{Mutant, planted};
use staves_model::{Incarnation, LeaseAnswer, LeaseEffects, LeaseEvent, LeaseRequest, Time};

use crate::directory_state::{Asker, Former, Leader, LeaderClock, new_planner};
use crate::event::{Confirmation, Happening, Packet, Place};
use crate::group::SimGroup;
use crate::scale::MS;
use crate::scenario::Loss;
use crate::world::World;

impl World {
    /// The first client's place on the network: nodes come first, then two leaders of the directory.
    pub fn first_client(&self) -> Place {
        self.nodes.len() + 2
    }

    /// The place of the directory's leader.
    pub fn directory_place(&self) -> Place {
        self.place_of_term(self.directory.leader.term)
    }

    pub(crate) fn place_of_term(&self, term: u64) -> Place {
        self.nodes.len() + (term % 2) as usize
    }

    /// The term of the leader in a place.
    pub(crate) fn term_at(&self, place: Place) -> u64 {
        let newest = place == self.directory_place();
        self.directory.leader.term - u64::from(!newest)
    }

    /// True if a place is a leader's of the directory.
    pub fn is_directory(&self, place: Place) -> bool {
        (self.nodes.len()..self.first_client()).contains(&place)
    }

    /// The leader that was deposed last, if it still answers.
    pub fn former_leader(&self) -> Option<&Former> {
        let former = self.directory.former.as_ref();
        former.filter(|f| self.now < f.until && !self.healing)
    }

    /// The place of whom a node takes for the directory's leader.
    pub fn leader_of(&self, node: usize) -> Place {
        let former = self.former_leader().map(|f| f.leader.term);
        match former {
            Some(term) if self.nodes[self.host_of(node)].follows == term => {
                self.place_of_term(term)
            }
            _ => self.directory_place(),
        }
    }

    /// A node has heard a leader: if it is the newest, it follows that one from now on.
    pub fn hear_leader(&mut self, node: usize, from: Place) {
        if from == self.directory_place() {
            self.nodes[node].follows = self.directory.leader.term;
        }
    }

    /// Another node leads the directory: its clock is another, its books are empty. The old leader goes
    /// on for a while as if nothing had happened.
    pub fn directory_leader_changes(&mut self) {
        let until = self.now + (50 + self.rng.below(1200)) * MS;
        let clock = LeaderClock {
            rate_ppm: 970_000 + self.rng.below(60_001),
            offset: self.rng.below(1_000_000) * MS,
        };
        let entries = self.groups.iter().map(SimGroup::entry).collect();
        let opened = self.groups.iter().map(|g| g.opened.clone()).collect();
        let d = &mut self.directory;
        let term = d.leader.term + 1;
        let leader = Leader::new(term, clock, self.now, &d.map);
        d.former = Some(Former {
            leader: std::mem::replace(&mut d.leader, leader),
            deposed_at: self.now,
            until,
            map: d.map.clone(),
            entries,
            opened,
        });
        d.planner = new_planner();
        d.reports.clear();
        d.detector.reset();
        d.evidence.clear();
        self.note(|| format!("LEADER of term {term}"));
    }

    /// Each node and client reaches only one of the two leaders from now on.
    pub(crate) fn split_between_leaders(&mut self) {
        let new = self.directory_place();
        let old = self.place_of_term(self.directory.leader.term + 1);
        for place in (0..self.hosts()).chain(self.first_client()..self.places()) {
            let hidden = if self.rng.chance(500) { old } else { new };
            self.cut.extend([(place, hidden), (hidden, place)]);
        }
    }

    /// The number of places on the network.
    pub fn places(&self) -> usize {
        self.first_client() + self.clients.len()
    }

    /// A request for leases has come to a leader, whichever.
    pub(crate) fn lease_requested(
        &mut self,
        from: Place,
        here: Place,
        clock: Time,
        request: LeaseRequest,
    ) {
        let asker = Asker {
            from,
            clock,
            came_at: self.now,
        };
        self.step_batcher(
            self.term_at(here),
            LeaseEvent::Request(request, asker),
            None,
        );
    }

    fn step_batcher(
        &mut self,
        term: u64,
        event: LeaseEvent<Asker>,
        confirmation: Option<Confirmation>,
    ) {
        let now = self.now;
        let Some((leader, map)) = self.directory.leader_at(term) else {
            return;
        };
        let mut out = LeaseEffects::default();
        leader.batcher.step(event, &mut out);
        let clock = leader.clock.at(now);
        let mut answers = Vec::new();
        for (request, asker) in out.serve {
            answers.push((leader.leases.answer(clock, map, &request), request, asker));
        }
        for (answer, request, asker) in answers {
            if confirmation.is_none_or(|c| asker.came_at > c.begun) {
                let node = request.node;
                self.violation(format!(
                    "{node:?} is granted leases by a confirmation that began before it asked"
                ));
            }
            self.answer_lease(term, answer, request.incarnation, &asker);
        }
        if out.confirm {
            let round = 1 + self.rng.below(if self.is_sound() { 2 } else { 20 });
            let confirmation = Confirmation {
                term,
                begun: now,
                given: now + self.rng.below(round * MS),
            };
            self.queue
                .push(now + round * MS, Happening::Confirmed(confirmation));
        }
    }

    /// A quorum has answered whether it follows a leader, or not.
    pub(crate) fn confirmed(&mut self, confirmation: Confirmation) {
        let term = confirmation.term;
        let mut follows = true;
        if term == self.directory.leader.term {
            if !self.directory.answers(self.now) {
                let later = self.directory.stalled_until;
                return self.queue.push(later, Happening::Confirmed(confirmation));
            }
        } else {
            let former = self.former_leader().filter(|f| f.leader.term == term);
            let Some(former) = former else { return };
            let deposed = confirmation.given >= former.deposed_at;
            follows = !deposed || planted(Mutant::LeaseUnconfirmed);
            self.cover.count(match follows {
                true => "deposed leader: granted what was confirmed before",
                false => "deposed leader: not confirmed",
            });
        }
        self.step_batcher(term, LeaseEvent::Confirmed(follows), Some(confirmation));
    }

    fn answer_lease(
        &mut self,
        term: u64,
        answer: LeaseAnswer,
        incarnation: Incarnation,
        asker: &Asker,
    ) {
        let (granted, heard) = match answer {
            LeaseAnswer::Granted { granted, heard } => (granted, heard),
            LeaseAnswer::Over { .. } => {
                if self.nodes[asker.from].lives(incarnation) {
                    let id = self.nodes[asker.from].id;
                    self.violation(format!("the life {incarnation:?} of {id:?} is called over"));
                }
                return self.cover.count("lease asked for by a life that is over");
            }
        };
        let mut heard = heard;
        heard.retain(|(group, _)| self.groups.iter().any(|g| g.id == *group));
        let asks = self.nodes[asker.from].id;
        let listed = |g: &usize| self.committed(*g).names(asks);
        let is_heard = |g: usize| heard.iter().any(|(group, _)| *group == self.groups[g].id);
        let unheard = self.all_groups().filter(listed).any(|g| !is_heard(g));
        if self.loss == Loss::StartsEmpty && unheard {
            self.cover.count("rule 13: answered, and does not count");
        } else if !granted.is_empty() {
            self.cover.count("directory lease granted");
        } else if self.loss != Loss::StartsEmpty {
            return;
        }
        let lease = Packet::Lease {
            incarnation,
            clock: asker.clock,
            granted,
            heard,
        };
        self.send(self.place_of_term(term), asker.from, lease);
    }

    /// The deposed leader shows its map to who still follows it.
    pub(crate) fn show_former_map(&mut self) {
        let Some(former) = self.former_leader() else {
            return;
        };
        let term = former.leader.term;
        let entries: Vec<_> = former.entries.iter().flatten().cloned().collect();
        let here = self.place_of_term(term);
        for node in 0..self.hosts() {
            if self.nodes[node].follows == term {
                for entry in &entries {
                    self.send(here, node, Packet::Map(entry.clone()));
                }
            }
        }
    }
}
