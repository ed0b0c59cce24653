//! Rule 19: a group in which nobody owes anybody anything says nothing, and needs no ticks.
//!
//! A data bucket has told a parity bucket all that it has to tell, and the parity bucket has answered that it has done all
//! that follows. From then on neither sends anything until there is news: an update, memory that is asked for, a read that needs
//! a promise ([`Member::seek_promises`]), or a node that is silent ([`crate::Event::Silent`]). Whether a resting member's *node*
//! lives is a question between two nodes, which the driver asks once for all of their groups.

use staves_model::{MemberSlot, NodeId, Time, mutant::Mutant, mutant::planted};

use crate::member::{Member, ctx};
use crate::peer::News;
use crate::state::{Ctx, Effects, MemberState};

impl Member {
    /// True if a tick would do nothing, now and at any time until another event comes.
    pub fn at_rest(&self) -> bool {
        self.coordination.is_none() && self.state.as_ref().is_none_or(MemberState::at_rest)
    }

    /// A read waits for a lease: asks the parity buckets for promises, of which a resting group has none.
    pub fn seek_promises(&mut self, now: Time, out: &mut Effects) {
        let ctx = ctx!(self, now);
        if let Some(state) = &mut self.state
            && !planted(Mutant::RestingReadAsksNobody)
        {
            state.seek_promises(&ctx, out);
        }
    }

    /// A node has not answered this one since then. Who rests there is to answer now.
    pub(crate) fn silent(&mut self, now: Time, node: NodeId, since: Time) {
        if let Some(state) = &mut self.state
            && !planted(Mutant::SilenceUnseenAtRest)
        {
            state.silent(now, node, since);
        }
    }
}

impl MemberState {
    /// The news that a message to a parity bucket carries now.
    pub fn news(&self) -> News {
        let own = self.own();
        News {
            last: own.prefix,
            stable: own.stable,
            purgeable: own.purgeable,
            want_extents: self.want_extents,
        }
    }

    fn at_rest(&self) -> bool {
        let shape = self.shape();
        let kept = (0..self.streams.len()).filter(|stream| shape.carries(*stream));
        let settled = kept
            .into_iter()
            .all(|stream| self.streams[stream].is_settled());
        let quiet = self.open && self.is_whole() && self.pending_seal.is_none() && settled;
        quiet && (!shape.is_data() || self.all_rest())
    }

    /// It has every page, and the directory knows it.
    fn is_whole(&self) -> bool {
        let listed = self.view.member(self.slot);
        let complete = listed.is_some_and(|member| member.complete);
        complete && self.table.absent_count() == 0 && self.old.is_none() && !self.stalled
    }

    // At the data bucket.
    fn all_rest(&self) -> bool {
        let news = self.news();
        let mut protectors = self.view.protectors(self.slot.index());
        !self.reservation.unsent && protectors.all(|slot| self.rests(slot, news))
    }

    /// At the data bucket: this parity bucket knows the news, and has nothing left to do; and what it has reserved counts here.
    pub fn rests(&self, slot: MemberSlot, news: News) -> bool {
        let peer = &self.peers[slot.index()];
        peer.rests && peer.told == news && peer.granted >= news.want_extents
    }

    /// At parity: it has nothing left to do for a data bucket that is at `last` and wants so many extents here.
    pub fn rests_for(&self, stream: usize, last: u64, want_extents: u32) -> bool {
        let s = &self.streams[stream];
        let of = self.reservation.of.get(stream);
        let wanted = of.map_or(self.want_extents, |(_, extents)| *extents);
        let pages = self.table.pages();
        let reserved = pages.reserved() == self.want_extents.max(pages.used());
        let settled = s.is_settled() && s.prefix == last;
        (settled || planted(Mutant::RestsBeforeApplied))
            && wanted == want_extents
            && reserved
            && self.is_whole()
    }

    fn seek_promises(&mut self, ctx: &Ctx<'_>, out: &mut Effects) {
        if !self.serving() {
            return;
        }
        let view = self.view.clone();
        for slot in view.protectors(self.slot.index()) {
            let peer = &mut self.peers[slot.index()];
            if ctx.now < peer.promise {
                continue;
            }
            let rested = peer.wake(ctx.now, ctx.now);
            if rested || ctx.now.since(peer.sent_at) >= ctx.options.heartbeat_every {
                self.ticked_at = ctx.now;
                self.send_to(ctx, slot, out);
            }
        }
    }

    fn silent(&mut self, now: Time, node: NodeId, since: Time) {
        if !self.serving() {
            return;
        }
        let view = self.view.clone();
        for slot in view.protectors(self.slot.index()) {
            let there = view
                .member(slot)
                .is_some_and(|member| member.id.node == node);
            if there && self.peers[slot.index()].wake(now, since.min(now)) {
                self.ticked_at = now;
            }
        }
    }
}
