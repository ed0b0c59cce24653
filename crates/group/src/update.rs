//! Normal operation, rules 1 to 6: the data bucket makes and sends, parity receives, acknowledges and
//! applies, and the low watermark lets both forget.

use std::time::Duration;

use bytes::Bytes;
use staves_model::{
    DirectoryCall, Epoch, Label, MemberId, MemberSlot, Time, mutant::Mutant, mutant::planted,
};
use staves_store::EXTENT_PAGES;
use staves_wire::group::{Delta, GroupMessage, RequestId, Run};

use crate::state::{Applied, Ctx, Durability, Effects, MemberState};
use crate::table::well_formed;

/// The data bucket's knowledge of one parity bucket.
#[derive(Clone, Default)]
pub(crate) struct Peer {
    /// It reported to have received everything up to here, in this incarnation and epoch.
    pub prefix: u64,
    /// It reported to have synced everything up to here.
    pub synced: u64,
    /// Sent up to here (perhaps lost).
    pub sent: u64,
    /// The stable seq that was last sent.
    pub sent_stable: u64,
    /// The time of the last message to it.
    pub sent_at: Time,
    /// The time at which its prefix last rose, or nothing was owed to it.
    pub moved_at: Time,
    /// The time of its last message.
    pub heard_at: Time,
    /// The time at which all that it has not reported was last sent again.
    pub resent_at: Time,
    /// The number of retransmissions since its prefix last passed what was retransmitted.
    pub resends: u32,
    /// The last seq that had been sent at the time of the last retransmission.
    pub resent_to: u64,
    /// The smoothed time from sending a delta to its report.
    pub round_trip: Duration,
    /// Messages to it are known to get lost, until then.
    pub lossy_until: Time,
    /// Each message is sent so many times meanwhile.
    pub repeats: u32,
    /// It promised that no successor answers before.
    pub promise: Time,
    /// Extents that it has reserved.
    pub granted: u32,
}

impl Peer {
    /// A parity bucket that stands at the cut.
    pub fn at_cut(cut: u64, now: Time) -> Peer {
        Peer {
            prefix: cut,
            synced: cut,
            sent: cut,
            moved_at: now,
            heard_at: now,
            ..Peer::default()
        }
    }

    fn is_lossy(&self, now: Time) -> bool {
        now < self.lossy_until
    }

    /// Marks all that it has not reported to be sent again.
    fn send_again(&mut self, now: Time) {
        self.resent_to = self.sent;
        self.sent = self.prefix;
        self.resent_at = now;
        self.resends = self.resends.saturating_add(1);
    }

    /// The time that it is given to report what was sent, each time longer. Only where messages do get lost is
    /// a round trip enough: elsewhere who is silent is slow or paused, and has them already.
    fn resend_wait(&self, now: Time, resend_after: Duration) -> Duration {
        let slow = resend_after * (1 << self.resends.min(RESEND_DOUBLINGS));
        if !self.is_lossy(now) || self.round_trip.is_zero() {
            return slow;
        }
        let quick = self.round_trip * 3 / 2 * (1 << self.resends.min(QUICK_DOUBLINGS));
        quick.min(slow)
    }

    /// The time at which what it has not reported is to be sent again. Whatever else was sent meanwhile, heartbeats and
    /// later deltas, does not put it off.
    fn due_again(&self, now: Time, resend_after: Duration) -> Option<Time> {
        let since = self.moved_at.max(self.resent_at);
        (self.prefix < self.sent).then(|| since + self.resend_wait(now, resend_after))
    }

    /// Takes in its answer to a message that was sent at `clock`: true if something was lost and is to be
    /// sent again at once. On one connection messages keep their order. So a gap in front of one that
    /// was sent after the last repetition is a new loss; in front of an older one, the repetition is on
    /// its way, and would come ever later if each answer let it be sent once more.
    fn reported(&mut self, now: Time, prefix: u64, gap: bool, clock: Time) -> bool {
        self.heard_at = now;
        let gap = gap && clock > self.resent_at;
        let mut lost = gap;
        if prefix > self.prefix {
            self.prefix = prefix;
            self.moved_at = now;
            let took = now.since(clock);
            self.round_trip = match self.round_trip {
                Duration::ZERO => took,
                before => (before * 7 + took) / 8,
            };
            self.repeats = self.repeats.saturating_sub(1);
            // The report is of a retransmission, not of the original.
            lost |= self.resends > 0 && clock >= self.resent_at;
        }
        self.sent = self.sent.max(self.prefix);
        if self.prefix >= self.resent_to {
            self.resends = 0;
        }
        if lost {
            self.lossy_until = now + LOSSY_FOR;
        }
        // A member whose log is full lets go of what it is sent: it is not sent the same each round trip.
        let waits = self.round_trip * (1 << self.resends.min(RESEND_DOUBLINGS));
        gap && now.since(self.resent_at) >= waits
    }
}

/// The state of a reservation of extents, asked of and granted by peers.
#[derive(Clone, Default)]
pub(crate) struct Reservation {
    /// At the data bucket: it changed since it was last sent.
    unsent: bool,
    /// At the data bucket: fewer are wanted, and nobody was told yet.
    lowered: bool,
    /// At the data bucket: what was granted in answer to anything sent up to here is void, because
    /// fewer were wanted since.
    void_until: Time,
    /// At parity: the data bucket's clock when it asked; an older message's number is void.
    clock: Time,
    /// At parity with m > 1: of each data bucket, its clock when it asked, and for how many.
    of: Vec<(Time, u32)>,
}

/// A way that lost a message is taken for one that loses more, for so long.
const LOSSY_FOR: Duration = Duration::from_secs(1);
/// On such a way each message repeats what is not reported yet, if that is no more than this; and where much is
/// lost it goes more than once, since repeats then cost less than waits.
const REPEAT_BYTES_MAX: usize = 64 << 10;
/// The most times that a message is sent: two more after each silence, one less after each report.
const REPEATS_MAX: u32 = 6;
/// A member that does not answer is sent the same again after twice the time before, so often: eight times
/// `resend_after` is the longest. A copy that is slow or paused is not buried under what it has anyway.
const RESEND_DOUBLINGS: u32 = 3;
/// From a few microseconds to the same.
const QUICK_DOUBLINGS: u32 = 16;

/// A parity bucket's log below this is applied with the next tick, above it at once; and at once, too, above an
/// eighth of what the log may hold.
const APPLY_WITH_TICK_BYTES: usize = 256 << 10;

impl MemberState {
    /// Rule 1, the data bucket's part that needs no message.
    pub fn make(
        &mut self,
        durability: Durability,
        request: Option<RequestId>,
        answer: Bytes,
        runs: Vec<Run>,
        bytes: Bytes,
    ) -> u64 {
        assert!(
            self.serving(),
            "only the data bucket of an open epoch makes deltas"
        );
        let shape = self.shape();
        let own = self.slot.index();
        let (runs, bytes) = if shape.m == 1 {
            (runs, bytes)
        } else {
            self.as_sums(runs, bytes)
        };
        let label = Label {
            epoch: self.epoch,
            seq: self.streams[own].prefix + 1,
        };
        let delta = Delta {
            label,
            request,
            answer,
            runs,
            bytes,
        };
        assert!(
            well_formed(&delta, shape.m, self.epoch),
            "runs and bytes of an update must agree"
        );
        let protected = self.view.protectors(own).next().is_some();
        self.table.apply(shape, own, &delta, &[]).expect(
            "usable_extents() says what was reserved everywhere; the service must stay within it",
        );
        self.streams[own].append(delta, protected);
        self.sync(own);
        if !protected {
            let s = &mut self.streams[own];
            s.stable = s.stable.max(durability.releases(s.prefix, s.synced));
        }
        label.seq
    }

    /// The one place where what was received becomes synced.
    fn sync(&mut self, stream: usize) {
        self.streams[stream].sync(stream, &mut self.journal);
    }

    /// The same for all streams that this member keeps.
    pub fn sync_all(&mut self) {
        let shape = self.shape();
        let kept = (0..self.streams.len()).filter(|stream| shape.carries(*stream));
        kept.for_each(|stream| self.sync(stream));
    }

    /// Sends every parity bucket (and its twin, if it has one), joiners included, what it was not sent yet.
    pub fn send_new(&mut self, ctx: &Ctx<'_>, out: &mut Effects) {
        if !self.serving() {
            return;
        }
        let view = self.view.clone();
        let changed = std::mem::take(&mut self.reservation.unsent);
        for slot in view.protectors(self.slot.index()) {
            if changed || self.peers[slot.index()].sent < self.own().prefix {
                self.send_to(ctx, slot, out);
            }
        }
    }

    // All that is owed to one parity bucket, in messages of bounded size; at least one message.
    fn send_to(&mut self, ctx: &Ctx<'_>, slot: MemberSlot, out: &mut Effects) {
        let Some(to) = self.view.member(slot).map(|x| x.id) else {
            return;
        };
        let own = self.slot.index();
        if std::mem::take(&mut self.reservation.lowered) {
            self.reservation.void_until = ctx.now;
        }
        let peer = &mut self.peers[slot.index()];
        if peer.prefix >= peer.sent && peer.resends == 0 {
            peer.moved_at = ctx.now;
        }
        let repeats = self.repeats_to(ctx, slot);
        loop {
            let stream = &self.streams[own];
            let peer = &self.peers[slot.index()];
            let mut deltas = Vec::new();
            let mut weight = 0;
            for delta in stream.log.from(peer.sent + 1) {
                weight += delta.weight();
                if !deltas.is_empty() && weight > ctx.options.message_bytes_max {
                    break;
                }
                deltas.push(delta.clone());
            }
            let sent = deltas.last().map_or(peer.sent, |d| d.label.seq);
            let message = GroupMessage::Deltas {
                stream: own as u8,
                deltas,
                stable: stream.stable,
                purgeable: stream.purgeable,
                last: stream.prefix,
                clock: ctx.now,
                want_extents: self.want_extents,
            };
            let (last, stable) = (stream.prefix, stream.stable);
            let addressed = ctx.addressed(to, self.epoch, message);
            let peer = &mut self.peers[slot.index()];
            let stuck_in_place = sent == peer.sent;
            let repeats = if stuck_in_place { 1 } else { repeats };
            out.sends.extend(std::iter::repeat_n(addressed, repeats));
            peer.sent = sent;
            peer.sent_stable = stable;
            peer.sent_at = ctx.now;
            if sent >= last || stuck_in_place {
                return;
            }
        }
    }

    // How often each message goes. On a way that loses them it begins with all that is not reported, so
    // that it needs no other; but not if that is much.
    fn repeats_to(&mut self, ctx: &Ctx<'_>, slot: MemberSlot) -> usize {
        let log = &self.streams[self.slot.index()].log;
        let peer = &mut self.peers[slot.index()];
        if !peer.is_lossy(ctx.now) {
            return 1;
        }
        let mut weight = 0;
        let fits = log.from(peer.prefix + 1).all(|delta| {
            weight += delta.weight();
            weight <= REPEAT_BYTES_MAX
        });
        if !fits {
            return 1;
        }
        if peer.prefix < peer.sent {
            peer.sent = peer.prefix;
            peer.resent_at = ctx.now;
        }
        peer.repeats.max(1) as usize
    }

    /// The time at which what is not reported is sent again, if there is any.
    pub fn resend_at(&self, ctx: &Ctx<'_>) -> Option<Time> {
        let own = self.slot.index();
        let slots = self.serving().then(|| self.view.protectors(own));
        let due = |slot: MemberSlot| {
            self.peers[slot.index()].due_again(ctx.now, ctx.options.resend_after)
        };
        slots.into_iter().flatten().filter_map(due).min()
    }

    /// A process that stood still heard nobody meanwhile, and what came for it waits yet: that time counts against none
    /// of its peers.
    fn pass_over_a_pause(&mut self, ctx: &Ctx<'_>) {
        let since = ctx.now.since(self.ticked_at);
        self.ticked_at = ctx.now;
        if since < ctx.options.stuck_after / 4 {
            return;
        }
        for peer in &mut self.peers {
            peer.heard_at = (peer.heard_at + since).min(ctx.now);
            peer.moved_at = (peer.moved_at + since).min(ctx.now);
        }
    }

    /// Heartbeats, sending again, and reports of members that do not move (rules 1, 6).
    pub fn tick_data(&mut self, ctx: &Ctx<'_>, out: &mut Effects) {
        self.pass_over_a_pause(ctx);
        if !self.serving() {
            return;
        }
        let view = self.view.clone();
        let (last, stable) = (self.own().prefix, self.own().stable);
        let mut stuck = Vec::new();
        for slot in view.protectors(self.slot.index()) {
            let peer = &mut self.peers[slot.index()];
            if peer.prefix >= last {
                peer.moved_at = ctx.now;
            }
            let due_again = peer.due_again(ctx.now, ctx.options.resend_after);
            if due_again.is_some_and(|at| at <= ctx.now) {
                peer.send_again(ctx.now);
                peer.repeats = (peer.repeats + 2).min(REPEATS_MAX);
            }
            let silent = ctx.now.since(peer.heard_at) >= ctx.options.stuck_after;
            let unmoved = ctx.now.since(peer.moved_at) >= ctx.options.stuck_after;
            if silent || unmoved {
                stuck.push(slot);
            }
            let due = ctx.now.since(peer.sent_at) >= ctx.options.heartbeat_every;
            if peer.sent < last || peer.sent_stable < stable || due {
                self.send_to(ctx, slot, out);
            }
        }
        if !stuck.is_empty() {
            out.directory.push(DirectoryCall::Stuck {
                group: ctx.group,
                epoch: self.epoch,
                slots: stuck,
            });
        }
    }

    /// Messages that need a member with state.
    #[allow(clippy::too_many_arguments)]
    pub fn message(
        &mut self,
        ctx: &Ctx<'_>,
        from: MemberId,
        epoch: Epoch,
        message: GroupMessage,
        out: &mut Effects,
        applied: &mut Applied<'_>,
    ) {
        match message {
            GroupMessage::Deltas {
                stream,
                deltas,
                stable,
                purgeable,
                last,
                clock,
                want_extents,
            } => {
                if self.accepts(from, epoch, stream, deltas.first()) {
                    let stream = usize::from(stream);
                    let carried = !deltas.is_empty();
                    // The data bucket speaks only once the directory has opened the epoch, so this one
                    // need not wait to be told: until then it would acknowledge and never purge (I10).
                    if !self.open && epoch == self.epoch && self.installed == self.epoch {
                        self.open = true;
                        self.tick_backfill(ctx, out);
                    }
                    self.receive(ctx, epoch, stream, deltas, (stable, purgeable), applied);
                    self.take_reservation(stream, last, clock, want_extents);
                    let said = (carried, last, want_extents);
                    self.acknowledge(ctx, from, epoch, stream, said, clock, out);
                }
            }
            GroupMessage::Ack {
                slot,
                stream,
                prefix,
                synced,
                gap,
                clock,
                promise,
                granted_extents,
            } => {
                let current =
                    epoch == self.epoch && self.view.member(slot).is_some_and(|x| x.id == from);
                let own = self.serving() && usize::from(stream) == self.slot.index();
                let known = slot.index() >= self.streams.len() && slot.index() < self.peers.len();
                if own && known && (current || planted(Mutant::OldIncarnationCounted)) {
                    self.acknowledged(ctx, slot, (prefix, synced), gap, clock, out);
                    let peer = &mut self.peers[slot.index()];
                    if !self.reservation.lowered && clock > self.reservation.void_until {
                        peer.granted = granted_extents;
                    }
                    if promise {
                        self.promised_by(ctx, slot, clock);
                    }
                }
            }
            GroupMessage::Seal { group, released } => self.on_seal(ctx, from, group, released, out),
            GroupMessage::Get {
                page,
                count,
                urgent: _,
                held,
            } => {
                if self.view.slot_of(from).is_some() {
                    self.send_pages(ctx, from, epoch, page, count, &held, out);
                }
            }
            GroupMessage::Parts { slot, parts } => {
                let giver = self.view.slot_of(from);
                if epoch != self.epoch || !self.open || giver.is_none() {
                    return;
                }
                if slot == self.slot {
                    self.take_made(ctx, parts, out);
                } else if giver == Some(slot) {
                    self.take_parts(ctx, slot, parts, out);
                }
            }
            GroupMessage::Sealed { .. }
            | GroupMessage::Sync { .. }
            | GroupMessage::Synced { .. } => {}
        }
    }

    // Rule 2: the envelope's epoch fences, whatever the deltas' labels say.
    fn accepts(&self, from: MemberId, epoch: Epoch, stream: u8, first: Option<&Delta>) -> bool {
        let carried = self.shape().carries(usize::from(stream));
        if self.shape().is_data() || !carried || usize::from(stream) >= self.streams.len() {
            return false;
        }
        if planted(Mutant::OldEpochAccepted) {
            return true;
        }
        let fence = match first {
            Some(delta) if planted(Mutant::FenceByLabel) => delta.label.epoch,
            _ => epoch,
        };
        let from_data = planted(Mutant::FenceByLabel)
            || self
                .view
                .member(MemberSlot(stream))
                .is_some_and(|x| x.id == from);
        fence == self.epoch && self.installed == self.epoch && from_data
    }

    fn receive(
        &mut self,
        ctx: &Ctx<'_>,
        epoch: Epoch,
        stream: usize,
        deltas: Vec<Delta>,
        (stable, purgeable): (u64, u64),
        applied: &mut Applied<'_>,
    ) {
        let s = &mut self.streams[stream];
        s.stable = s.stable.max(stable);
        s.purgeable = s.purgeable.max(purgeable);
        let room = ctx.options.log_bytes_max;
        // A copy applies what is stable at once. Parity has arithmetic to do, for which nobody waits: it
        // does it with the next tick, or when its log has grown (row H2).
        if self.applies_now(stream, room) {
            // First what is stable now: the data bucket has let go of it, and these deltas came in its place.
            self.advance(applied);
        }
        for delta in deltas {
            if !well_formed(&delta, self.streams.len(), epoch) {
                return;
            }
            self.streams[stream].receive(delta, room);
        }
        self.sync(stream);
        if self.applies_now(stream, room) {
            self.advance(applied);
        }
    }

    fn applies_now(&self, stream: usize, room: usize) -> bool {
        let most = APPLY_WITH_TICK_BYTES.min(room / 8);
        self.shape().m == 1 || self.streams[stream].log.bytes() > most
    }

    #[allow(clippy::too_many_arguments)]
    fn acknowledge(
        &mut self,
        ctx: &Ctx<'_>,
        to: MemberId,
        epoch: Epoch,
        stream: usize,
        (carried, last, asked): (bool, u64, u32),
        clock: Time,
        out: &mut Effects,
    ) {
        // A member that cannot go on says nothing, is found stuck, and begins anew.
        if ctx.quiet || self.stalled {
            return;
        }
        let s = &self.streams[stream];
        // A heartbeat may have overtaken deltas: it says nothing of what was lost.
        let gap = carried && s.log.has_gap() && s.prefix < last;
        let (mut prefix, mut synced) = (s.prefix, s.synced);
        if planted(Mutant::AckHighestReceived) {
            prefix = prefix.max(s.log.highest().unwrap_or(0));
            synced = prefix;
        }
        let promise = self.promise(ctx, stream);
        let epoch = if planted(Mutant::OldEpochAccepted) {
            epoch
        } else {
            self.epoch
        };
        // Memory that is reserved for another data bucket is released once that one no longer wants it. A data bucket that
        // asks for less is told of no more than it asks for, even while more is still reserved: the rest is released with
        // a later message, of which it would not know.
        let of = self.reservation.of.get(stream);
        let of = of.map_or(self.want_extents, |(_, extents)| *extents);
        let mut wanted = of.min(asked);
        if planted(Mutant::GrantedToAll) {
            wanted = self.want_extents;
        }
        let message = GroupMessage::Ack {
            slot: self.slot,
            stream: stream as u8,
            prefix,
            synced,
            gap,
            clock,
            promise,
            granted_extents: self.table.pages().reserved().min(wanted),
        };
        out.sends.push(ctx.addressed(to, epoch, message));
    }

    fn acknowledged(
        &mut self,
        ctx: &Ctx<'_>,
        slot: MemberSlot,
        (prefix, synced): (u64, u64),
        gap: bool,
        clock: Time,
        out: &mut Effects,
    ) {
        let last = self.own().prefix;
        // What nobody can have received yet is no report of ours; a peer that says so is not believed.
        let prefix = prefix.min(last);
        let peer = &mut self.peers[slot.index()];
        // A member has synced only what it has received.
        peer.synced = peer.synced.max(synced.min(prefix));
        if peer.reported(ctx.now, prefix, gap, clock.min(ctx.now)) {
            peer.send_again(ctx.now);
            self.send_to(ctx, slot, out);
        }
        self.raise_stable(ctx);
    }

    /// Rules 3 and 5: stable is the lowest prefix, or the lowest synced mark, over all listed members, joiners
    /// included; what all have synced is let go.
    pub fn raise_stable(&mut self, ctx: &Ctx<'_>) {
        if ctx.quiet || !self.serving() {
            return;
        }
        let own = self.slot.index();
        let stream = &self.streams[own];
        let (mut held, mut synced) = (stream.prefix, stream.synced);
        let mut purgeable = synced;
        for slot in self.view.protectors(own) {
            let peer = &self.peers[slot.index()];
            let complete = self.view.member(slot).is_some_and(|x| x.complete);
            if !complete && planted(Mutant::JoinerNotCounted) {
                continue;
            }
            held = held.min(peer.prefix);
            synced = synced.min(peer.synced);
            purgeable = purgeable.min(match planted(Mutant::PurgedAtHeld) {
                true => peer.prefix,
                false => peer.synced,
            });
        }
        let stable = ctx.options.durability.releases(held, synced);
        let stream = &mut self.streams[own];
        stream.stable = stream.stable.max(stable);
        stream.purgeable = stream.purgeable.max(purgeable);
        stream.purge(purgeable);
    }

    /// Rule 4: parity applies each stream in order up to stable; rule 5: and lets it go, but never while
    /// its epoch is not open.
    pub fn advance(&mut self, applied: &mut Applied<'_>) {
        let shape = self.shape();
        if shape.is_data() {
            return;
        }
        self.stalled = false;
        for stream in 0..self.streams.len() {
            if shape.m > 1 && planted(Mutant::ParityPurgesUnstable) {
                let s = &mut self.streams[stream];
                (s.stable, s.purgeable) = (s.prefix, s.prefix);
            }
            let upto = self.streams[stream].stable.min(self.streams[stream].prefix);
            self.stalled |= !self.apply_upto(stream, upto, applied);
            if self.open || planted(Mutant::PurgeWhileNotOpen) {
                let s = &mut self.streams[stream];
                s.purge(s.applied.min(s.purgeable));
            }
        }
        let at = self.applied();
        self.table.settle(&at);
    }

    /// Applies a stream's deltas, in order, up to a seq that is in the log. Stops before one for which
    /// there is no memory; false then. At parity with m > 1 they are added up by page first.
    pub fn apply_upto(&mut self, stream: usize, upto: u64, applied: &mut Applied<'_>) -> bool {
        let shape = self.shape();
        let prefixes = self.prefixes();
        while self.streams[stream].applied < upto {
            let seq = self.streams[stream].applied + 1;
            if let Some(delta) = self.streams[stream].log.get(seq) {
                if self.table.adds_up(shape, delta) {
                    self.table.add_up(shape, stream, delta);
                } else {
                    self.table.multiply(shape, stream);
                    let fits = self.table.has_room_for(&delta.runs);
                    if !fits || self.table.apply(shape, stream, delta, &prefixes).is_err() {
                        return false;
                    }
                }
                applied(self.table.pages(), delta);
            } else {
                debug_assert!(
                    false,
                    "delta {seq} of stream {stream} is neither applied nor logged"
                );
            }
            self.streams[stream].applied = seq;
        }
        self.table.multiply(shape, stream);
        true
    }

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
    fn take_reservation(&mut self, stream: usize, last: u64, clock: Time, extents: u32) {
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
