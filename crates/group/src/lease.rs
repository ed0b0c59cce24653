//! Promises and leases: why a data bucket may answer a read without asking anybody.
//!
//! It rests on clock rates, never on clocks that agree: a promise is counted from its *sending* at the
//! giver, and from the *echoed* clock at the receiver, shortened by twice the rate bound.

use staves_model::{
    Epoch, Incarnation, MemberSlot, Time, mutant::Mutant, mutant::planted, shortened,
};

use crate::state::{Ctx, MemberState};

impl MemberState {
    /// Returns whether the data bucket may answer reads now (I7): a directory lease, or unexpired promises from
    /// all listed parity buckets, of which there is at least one.
    pub fn lease_holds(&self, ctx: &Ctx<'_>) -> bool {
        if !self.serving() || ctx.quiet {
            return false;
        }
        if ctx.now < self.directory_lease {
            return true;
        }
        let mut listed = self.view.protectors(self.slot.index()).peekable();
        listed.peek().is_some() && listed.all(|p| ctx.now < self.peers[p.index()].promise)
    }

    /// The directory granted a lease: counted from when it was asked for.
    pub fn directory_lease(
        &mut self,
        ctx: &Ctx<'_>,
        epoch: Epoch,
        incarnation: Incarnation,
        clock: Time,
    ) {
        let current = epoch == self.epoch || planted(Mutant::LeaseWithoutEpoch);
        if self.open && current && incarnation == ctx.me.incarnation {
            let lease = match planted(Mutant::LeaseNotShortened) {
                true => ctx.options.lease,
                false => shortened(ctx.options.lease),
            };
            let until = clock + lease;
            self.directory_lease = self.directory_lease.max(until);
        }
    }

    /// A parity bucket's promise, made now. None once it was asked to seal.
    pub fn promise(&mut self, ctx: &Ctx<'_>, stream: usize) -> bool {
        if self.sealing > self.epoch || ctx.quiet {
            return false;
        }
        let until = ctx.now + ctx.options.lease;
        self.promised[stream] = self.promised[stream].max(until);
        true
    }

    /// A promise received by the data bucket.
    pub fn promised_by(&mut self, ctx: &Ctx<'_>, slot: MemberSlot, echoed: Time) {
        let until = if planted(Mutant::PromiseFromReceipt) {
            ctx.now + ctx.options.lease
        } else {
            // A clock that we cannot have sent counts as that of now.
            echoed.min(ctx.now) + shortened(ctx.options.lease)
        };
        let peer = &mut self.peers[slot.index()];
        peer.promise = peer.promise.max(until);
    }

    /// Returns whether every promise that this member made has run out, or was released by its data bucket's seal.
    pub fn promises_over(&self, ctx: &Ctx<'_>, released: u32) -> bool {
        self.promised
            .iter()
            .enumerate()
            .all(|(stream, until)| released & (1 << stream) != 0 || *until <= ctx.now)
    }
}
