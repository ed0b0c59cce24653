//! Groups at rest (rule 19): nobody ticks them, and the silence of a node wakes those that it is a member of.

use staves_group::{Event, Member};
use staves_model::{MemberSlot, Time};

use crate::load::Seat;
use crate::world::World;

impl World {
    /// True if the program's driver would not tick what this entry holds.
    pub(crate) fn seat_rests(&self, seat: usize) -> bool {
        let node = &self.nodes[seat];
        let waits = node.waiting.reads.len() + node.waiting.writes.len() > 0;
        !waits
            && match &node.member {
                None => true,
                Some(Seat::Raw(member)) => member.at_rest(),
                Some(Seat::Served(bucket)) => bucket.at_rest(),
            }
    }

    /// A node's timer: who does not answer it is silent. One that runs and is reached both ways answers at once.
    pub(crate) fn look_for_silence(&mut self, node: usize) {
        let clock = self.nodes[node].clock(self.now);
        let answers = |other: &usize| {
            let n = &self.nodes[*other];
            let cut = [(node, *other), (*other, node)].map(|way| self.cut.contains(&way));
            n.up && n.paused_until <= self.now && cut == [false; 2]
        };
        let others = (0..self.hosts()).filter(|other| *other != node);
        let heard: Vec<_> = others.map(|n| (self.nodes[n].id, answers(&n))).collect();
        let watch = &mut self.nodes[node].watch;
        for (id, answers) in heard {
            let at: &mut Time = watch.links.entry(id).or_insert(clock);
            *at = if answers { clock } else { *at };
        }
        let links = watch.links.iter().map(|(id, at)| (*id, *at));
        let silent = watch.silences.tick(clock, links);
        for (id, since) in silent {
            self.cover.count("rest: a silent node told");
            for seat in self.seats_of(node) {
                self.step_member(seat, Event::Silent { node: id, since });
            }
        }
    }

    /// I12: a data bucket that rests owes nobody anything.
    pub(crate) fn bad_rest(&self, node: usize, member: &Member) -> Option<String> {
        let slot = member
            .slot()
            .filter(|_| member.serving() && member.at_rest())?;
        let (g, view) = (self.nodes[node].group, member.view()?);
        let own = member.stream(slot.index())?.prefix;
        let lags = |p: &MemberSlot| {
            let there = view.member(*p).and_then(|x| self.entry_of(g, x.id));
            let other = there.and_then(|n| self.nodes[n].member.as_deref());
            let other = other.filter(|m| m.is_open() && m.epoch() == member.epoch());
            let stream = other.and_then(|m| m.stream(slot.index()));
            stream.is_some_and(|s| s.prefix != own || !s.is_settled())
        };
        let lagging = view.protectors(slot.index()).find(lags)?;
        Some(format!(
            "I12 slot {slot} rests at {own} on node {node}, and slot {lagging} has work left to do"
        ))
    }
}
