//! Nodes' shadows: the members that a node may hold beside its first, be they the second of a group with m > 1, or of other groups.
//!
//! A shadow has an entry of its own behind those of the nodes, for its member and who waits there; process, clock and
//! memory are its node's. It has no place on the network: what is for it comes to its node, which brings it to the
//! right one of them, as the program does.

use staves_group::Event;
use staves_model::mutant::{Mutant, planted};
use staves_model::{DiskId, GroupId};
use staves_wire::group::GroupEnvelope;

use crate::event::Place;
use crate::load::Seat;
use crate::waiting::Waiting;
use crate::watch::Watch;
use crate::world::{SimNode, World};

impl SimNode {
    /// The entry of one of this node's shadows.
    pub(crate) fn shadow(&self) -> SimNode {
        SimNode {
            id: self.id,
            arena: self.arena.clone(),
            budget: self.budget.clone(),
            member: None,
            waiting: Waiting::default(),
            watch: Watch::default(),
            known: Default::default(),
            taken: 0,
            ..*self
        }
    }
}

impl World {
    /// The number of nodes; the entries behind theirs are those of their shadows.
    pub fn hosts(&self) -> usize {
        self.hosts
    }

    /// The node of an entry, be it its shadow's. Other places of the network are what they are.
    pub fn host_of(&self, place: Place) -> Place {
        match place < self.nodes.len() {
            true => place % self.hosts(),
            false => place,
        }
    }

    /// A node's own entry, and those of its shadows.
    pub fn seats_of(&self, node: usize) -> Vec<usize> {
        let host = self.host_of(node);
        (host..self.nodes.len()).step_by(self.hosts()).collect()
    }

    /// Those of a node's entries that are for a group.
    pub(crate) fn seats_in(&self, node: usize, g: usize) -> Vec<usize> {
        let mut seats = self.seats_of(node);
        seats.retain(|seat| self.nodes[*seat].group == g);
        seats
    }

    /// The shadows are what their node is.
    pub(crate) fn mirror(&mut self, node: usize) {
        let host = self.host_of(node);
        for shadow in self.seats_of(node).into_iter().skip(1) {
            let now = self.nodes[host].shadow();
            let kept = &mut self.nodes[shadow];
            let (member, waiting) = (kept.member.take(), std::mem::take(&mut kept.waiting));
            *kept = SimNode {
                group: kept.group,
                disk: kept.disk,
                member,
                waiting,
                ..now
            };
        }
    }

    /// Lets both members of a group at a node know of an event.
    pub(crate) fn step_both(&mut self, node: usize, group: GroupId, event: &Event) {
        let Some(g) = self.index_of(group) else {
            return;
        };
        for seat in self.seats_in(node, g) {
            self.step_member(seat, event.clone());
        }
    }

    /// The entry of a node that a message is for.
    pub(crate) fn addressee(&mut self, node: usize, envelope: &GroupEnvelope) -> usize {
        let second = envelope.to == DiskId::SECOND;
        if second {
            self.cover.count("message to a shadow");
        }
        let at = usize::from(second && !planted(Mutant::SecondsMailToFirst));
        let g = self.index_of(envelope.group).unwrap_or_default();
        self.seats_in(node, g).get(at).copied().unwrap_or(node)
    }

    /// The entry of a node that answers for a data bucket of a group: the first, if neither does.
    pub(crate) fn answering(&self, node: usize, g: usize, stream: usize) -> usize {
        let answers = |seat: &usize| {
            let member = self.nodes[*seat].member.as_deref();
            let slot = member.filter(|m| m.is_data()).and_then(|m| m.slot());
            slot.is_some_and(|slot| slot.index() == stream)
        };
        let seats = self.seats_in(node, g);
        seats.iter().copied().find(answers).unwrap_or(seats[0])
    }

    /// A process takes with it all that it held.
    pub(crate) fn empty_seats(&mut self, node: usize) {
        for seat in self.seats_of(node) {
            self.nodes[seat].member = None::<Seat>;
            self.nodes[seat].waiting = Waiting::default();
            self.forget_tokens(seat);
        }
        self.mirror(node);
    }

    /// True if the group stands as well as so many nodes let it: with as many as members, each has its own. With
    /// fewer, some hold two, and the loss of as many nodes is borne as can be.
    pub(crate) fn is_well_placed(&self, g: usize, nodes: usize) -> bool {
        let (group, of) = (self.committed(g), &self.groups[g]);
        let (m, width) = (of.m, of.m + of.k);
        let listed = group.listed().count();
        let doubled = group.listed().any(|(_, x)| group.is_doubled(x));
        if m == 1 || nodes >= width {
            return listed == width.min(nodes) && !doubled;
        }
        let data = group.members[..m].iter().all(Option::is_some);
        let map = &self.directory.map;
        data && group.tolerates(|id| map.runs(id)) >= Some(best_with((m, width), nodes))
    }
}

// The most losses of nodes that can be borne where fewer nodes are than members: `twice` of them hold two.
fn best_with((m, width): (usize, usize), nodes: usize) -> u8 {
    let most = (width - nodes).min(nodes);
    let borne = |twice: usize| {
        let mut spare = nodes + twice - m;
        let takes = (0..nodes).map(|n| if n < twice { 2 } else { 1 });
        let borne = takes.take_while(|takes| {
            let left = spare.checked_sub(*takes);
            spare = left.unwrap_or(0);
            left.is_some()
        });
        borne.count() as u8
    };
    (0..=most).map(borne).max().unwrap_or(0)
}
