//! Memory that a data bucket has reserved at every member before a delta needs it, so that a delta is never refused.

use staves_model::{Time, mutant::Mutant, mutant::planted};
use staves_store::EXTENT_PAGES;

use crate::state::MemberState;

/// The state of a reservation of extents, asked of and granted by peers.
#[derive(Clone, Default)]
pub(crate) struct Reservation {
    /// At the data bucket: it changed since it was last sent.
    pub unsent: bool,
    /// At the data bucket: fewer are wanted, and nobody was told yet.
    pub lowered: bool,
    /// At the data bucket: what was granted in answer to anything sent up to here is void, because
    /// fewer were wanted since.
    pub void_until: Time,
    /// At parity: the data bucket's clock when it asked; an older message's number is void.
    pub clock: Time,
    /// At parity with m > 1: of each data bucket, its clock when it asked, and for how many.
    pub of: Vec<(Time, u32)>,
}

impl MemberState {
    /// The data bucket wants so many extents at every member, itself included. What it gives back it
    /// counts as granted no longer, whatever reports are still under way. It gives nothing back that its
    /// pages need, here or (m > 1, at the same places) at whoever takes its slot; missing pages among them.
    pub fn want(&mut self, extents: u32) {
        let extents = match self.shape().m {
            1 => extents,
            _ if planted(Mutant::MissingPagesMemoryGivenBack) => extents,
            _ if self.table.absent_count() > 0 => {
                extents.max(self.table.end().div_ceil(EXTENT_PAGES))
            }
            _ => extents.max(self.table.pages().end_page() / EXTENT_PAGES),
        };
        if extents < self.want_extents {
            self.reservation.lowered = true;
            for peer in &mut self.peers {
                peer.granted = peer.granted.min(extents);
            }
        }
        self.reservation.unsent |= extents != self.want_extents;
        self.want_extents = extents;
        self.table.pages_mut().reserve(extents);
    }

    // At parity. The newest number counts, and memory is given back once all deltas made before it are
    // applied, since they may need more than is in use after them.
    pub fn take_reservation(&mut self, stream: usize, last: u64, clock: Time, extents: u32) {
        let reserved = self.table.pages().reserved();
        let settled = self.streams[stream].applied >= last && self.table.absent_count() == 0;
        if self.streams.len() > 1 {
            return self.take_reservation_of(stream, clock, extents, settled);
        }
        if clock == self.reservation.clock {
            self.want_extents = self.want_extents.max(extents);
        } else if clock > self.reservation.clock {
            (self.reservation.clock, self.want_extents) = (clock, extents);
            if settled && extents < reserved {
                self.table.pages_mut().reserve(extents);
            }
        }
        if self.want_extents > reserved {
            self.table.pages_mut().reserve(self.want_extents);
        }
    }

    // m > 1: the data buckets' clocks do not compare, and parity needs what the largest of them does.
    fn take_reservation_of(&mut self, stream: usize, clock: Time, extents: u32, settled: bool) {
        let before = (Time::ZERO, self.want_extents);
        self.reservation.of.resize(self.streams.len(), before);
        let (at, wanted) = &mut self.reservation.of[stream];
        // Two numbers of one moment come in either order. The larger counts: it may be granted already.
        let too_soon = clock == *at || !settled;
        if clock < *at || (extents < *wanted && too_soon) {
            return;
        }
        (*at, *wanted) = (clock, extents);
        let largest = self.reservation.of.iter().map(|(_, w)| *w).max();
        self.want_extents = match self.shape().holds_data() {
            true => extents,
            false => largest.unwrap_or(extents),
        };
        if self.want_extents != self.table.pages().reserved() {
            self.table.pages_mut().reserve(self.want_extents);
        }
    }

    /// The extents that every listed member has reserved.
    pub fn granted(&self) -> u32 {
        let own = self.table.pages().reserved();
        self.view
            .protectors(self.slot.index())
            .map(|p| self.peers[p.index()].granted)
            .fold(own, u32::min)
    }
}
