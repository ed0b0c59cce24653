//! The directory's leaders: the one whose proposals are committed, and for a while the one before it,
//! which does not know yet that it is deposed.
//!
//! Both have a place on the network, and nodes and clients may be split between them. The deposed one
//! shows the map as it was, and takes lease requests. It may grant what a quorum confirmed before it
//! was deposed, and nothing else: **a confirmation counts if it was given after the request came**, by
//! a quorum that followed this leader then. What it proposes is lost, for only the newest term commits.

use std::sync::Arc;

use staves_model::lease::heard_from;
use staves_model::mutant::{Mutant, planted};
use staves_model::{ClusterMap, Epoch, Group, GroupId, Incarnation, Leases, Time};

use crate::directory::new_keeper;
use crate::event::{Happening, Packet, Place};
use crate::loss::Loss;
use crate::world::{LEASE, MS, World};

/// A leader's clock.
#[derive(Clone, Copy, Debug)]
pub struct LeaderClock {
    rate_ppm: u64,
    offset: u64,
}

impl Default for LeaderClock {
    fn default() -> LeaderClock {
        LeaderClock {
            rate_ppm: 1_000_000,
            offset: 0,
        }
    }
}

impl LeaderClock {
    /// What it shows at true time `now`.
    pub fn at(&self, now: u64) -> Time {
        Time(self.offset + now / 1000 * self.rate_ppm / 1000)
    }
}

/// A leader that is deposed and still answers.
pub struct Former {
    /// Its term.
    pub term: u64,
    deposed_at: u64,
    until: u64,
    map: ClusterMap,
    leases: Leases,
    clock: LeaderClock,
    entry: Option<Arc<Group>>,
    /// The newest entry that it saw open.
    pub opened: Option<Arc<Group>>,
}

/// A request for leases that waits at a leader for a quorum's word.
#[derive(Clone, Debug)]
pub struct LeaseAsk {
    term: u64,
    from: Place,
    incarnation: Incarnation,
    /// The asker's clock.
    pub clock: Time,
    wanted: Vec<(GroupId, Epoch)>,
    /// When the quorum gives its word, if it follows this leader then.
    confirmed_at: u64,
}

impl World {
    /// The first client's place on the network: nodes come first, then two leaders of the directory.
    pub fn first_client(&self) -> Place {
        self.nodes.len() + 2
    }

    /// The place of the directory's leader.
    pub fn directory_place(&self) -> Place {
        self.place_of_term(self.directory.term)
    }

    fn place_of_term(&self, term: u64) -> Place {
        self.nodes.len() + (term % 2) as usize
    }

    /// Whether a place is a leader's of the directory.
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
        let former = self.former_leader().map(|f| f.term);
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
            self.nodes[node].follows = self.directory.term;
        }
    }

    /// Another node leads the directory: its clock is another, its lease book empty. The old leader goes
    /// on for a while as if nothing had happened.
    pub fn directory_leader_changes(&mut self) {
        let until = self.now + (50 + self.rng.below(1200)) * MS;
        let clock = LeaderClock {
            rate_ppm: 970_000 + self.rng.below(60_001),
            offset: self.rng.below(1_000_000) * MS,
        };
        let mut leases = Leases::new(LEASE);
        leases.become_leader(clock.at(self.now));
        let (entry, opened) = (self.directory.entry(), self.directory.last_open_entry());
        let d = &mut self.directory;
        d.former = Some(Former {
            term: d.term,
            deposed_at: self.now,
            until,
            map: d.map.clone(),
            leases: std::mem::replace(&mut d.leases, leases),
            clock: std::mem::replace(&mut d.clock, clock),
            entry,
            opened,
        });
        d.term += 1;
        d.keeper = new_keeper();
        d.reports.clear();
        d.detector.reset();
        d.evidence.clear();
        let term = d.term;
        self.note(|| format!("LEADER of term {term}"));
    }

    /// Each node and client reaches only one of the two leaders from now on.
    pub(crate) fn split_between_leaders(&mut self) {
        let new = self.directory_place();
        let old = self.place_of_term(self.directory.term + 1);
        for place in (0..self.hosts()).chain(self.first_client()..self.places()) {
            let hidden = if self.rng.chance(500) { old } else { new };
            self.cut.extend([(place, hidden), (hidden, place)]);
        }
    }

    /// How many places there are on the network.
    pub fn places(&self) -> usize {
        self.first_client() + self.clients.len()
    }

    /// A request for leases has come to a leader, whichever: it asks a quorum.
    pub(crate) fn ask_quorum(
        &mut self,
        from: Place,
        here: Place,
        incarnation: Incarnation,
        clock: Time,
        wanted: Vec<(GroupId, Epoch)>,
    ) {
        let round = 1 + self.rng.below(if self.is_sound() { 2 } else { 20 });
        let newest = here == self.directory_place();
        let term = self.directory.term - u64::from(!newest);
        let ask = LeaseAsk {
            term,
            from,
            incarnation,
            clock,
            wanted,
            confirmed_at: self.now + self.rng.below(round * MS),
        };
        self.queue
            .push(self.now + round * MS, Happening::Confirmed(Box::new(ask)));
    }

    /// A quorum has answered whether it follows a leader, or not: it grants.
    pub(crate) fn confirmed(&mut self, ask: LeaseAsk) {
        if ask.term == self.directory.term {
            return self.grant(ask);
        }
        let id = self.nodes[ask.from].id;
        if self.former_leader().is_none_or(|f| f.term != ask.term) {
            return;
        }
        let Some(former) = self.directory.former.as_mut() else {
            return;
        };
        let deposed = ask.confirmed_at >= former.deposed_at;
        if deposed && !planted(Mutant::LeaseUnconfirmed) {
            return self.cover.count("deposed leader: not confirmed");
        }
        self.cover
            .count("deposed leader: granted what was confirmed before");
        let (now, map) = (former.clock.at(self.now), &former.map);
        let granted = former
            .leases
            .grant(now, map, id, ask.incarnation, &ask.wanted);
        // It may not know of the group that a new region has.
        let group = map.groups.get(&self.group);
        let heard = group.and_then(|g| heard_from(map, g, id, ask.incarnation));
        self.answer_lease(ask, granted, heard);
    }

    fn grant(&mut self, ask: LeaseAsk) {
        if !self.directory.answers(self.now) {
            let later = self.directory.stalled_until;
            return self.queue.push(later, Happening::Confirmed(Box::new(ask)));
        }
        let (id, now) = (self.nodes[ask.from].id, self.directory.clock(self.now));
        let d = &mut self.directory;
        let granted = d
            .leases
            .grant(now, &d.map, id, ask.incarnation, &ask.wanted);
        let heard = heard_from(&d.map, &d.map.groups[&self.group], id, ask.incarnation);
        self.answer_lease(ask, granted, heard);
    }

    fn answer_lease(
        &mut self,
        ask: LeaseAsk,
        granted: Vec<(GroupId, Epoch)>,
        heard: Option<Epoch>,
    ) {
        let listed = self.committed().names(self.nodes[ask.from].id);
        let unheard = self.loss == Loss::StartsEmpty && listed && heard.is_none();
        if unheard {
            self.cover.count("rule 13: answered, and does not count");
        } else if !granted.is_empty() {
            self.cover.count("directory lease granted");
        } else if self.loss != Loss::StartsEmpty {
            return;
        }
        let (incarnation, clock) = (ask.incarnation, ask.clock);
        let lease = Packet::Lease {
            incarnation,
            clock,
            granted,
            heard,
        };
        self.send(self.place_of_term(ask.term), ask.from, lease);
    }

    /// The deposed leader shows its map to who still follows it.
    pub(crate) fn show_former_map(&mut self) {
        let Some((term, entry)) = self
            .former_leader()
            .and_then(|f| Some((f.term, f.entry.clone()?)))
        else {
            return;
        };
        let here = self.place_of_term(term);
        for node in 0..self.hosts() {
            if self.nodes[node].follows == term {
                self.send(here, node, Packet::Map(entry.clone()));
            }
        }
    }
}
