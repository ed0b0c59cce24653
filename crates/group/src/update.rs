//! Normal operation, rules 1 to 6: the data bucket makes and sends, parity receives, acknowledges and
//! applies, and the low watermark lets both forget.

use bytes::Bytes;
use staves_model::{
    DirectoryCall, Epoch, Label, MemberId, MemberSlot, Time, mutant::Mutant, mutant::planted,
};
use staves_wire::group::{Delta, GroupMessage, RequestId, Run};

use crate::member::{Member, ctx};
use crate::on_disk::OwedAck;
use crate::state::{Applied, Ctx, Durability, Effects, MemberState, stood_still};
use crate::table::well_formed;

/// On a way that loses messages each message repeats what is not reported yet, if that is no more than this; and where
/// much is lost it goes more than once, since repeats then cost less than waits.
const REPEAT_BYTES_MAX: usize = 64 << 10;
/// The most times that a message is sent: two more after each silence, one less after each report.
const REPEATS_MAX: u32 = 6;

/// So many times as long as a member may be silent, its disk may take for a sync: then it is stuck, too.
pub(crate) const DISK_PATIENCE: u32 = 10;

/// A parity bucket's log below this is applied with the next tick, above it at once; and at once, too, above an
/// eighth of what the log may hold.
const APPLY_WITH_TICK_BYTES: usize = 256 << 10;

impl Member {
    /// Makes an update: `runs` and `bytes` as in [`Delta`], but always the new bytes, whatever m is.
    /// It is answered once [`Member::stable`] has reached the seq that this returns; a group without
    /// parity is stable at once. Call [`Member::flush`] after the last of a batch.
    ///
    /// With m > 1, runs that put bytes must not overlap each other unless the update also makes something
    /// zero, and an update that makes pages zero weighs what their bytes do: parity needs them.
    ///
    /// # Panics
    /// If the member is not serving, a page is not here, or the update needs more than
    /// [`Member::usable_extents`]: ask [`Member::admit`] and [`Member::absent_in`] first.
    pub fn update(
        &mut self,
        request: Option<RequestId>,
        answer: Bytes,
        runs: Vec<Run>,
        bytes: Bytes,
    ) -> u64 {
        let (durability, state) = self.updating();
        let seq = state.make(durability, request, answer, runs, bytes);
        self.count_logs();
        seq
    }

    /// The same, but takes runs and bytes out of the vectors only where the log keeps them: without parity their memory
    /// can be used again.
    ///
    /// # Panics
    /// As [`Member::update`].
    pub fn update_from(
        &mut self,
        request: Option<RequestId>,
        answer: Bytes,
        runs: &mut Vec<Run>,
        bytes: &mut Vec<u8>,
    ) -> u64 {
        let (durability, state) = self.updating();
        if state.shape().m == 1 && !state.keeps_log() {
            return state.make_alone(durability, request, &answer, runs, bytes);
        }
        let (runs, bytes) = (std::mem::take(runs), Bytes::from(std::mem::take(bytes)));
        let seq = state.make(durability, request, answer, runs, bytes);
        self.count_logs();
        seq
    }

    fn updating(&mut self) -> (Durability, &mut MemberState) {
        let state = self.state.as_mut();
        let state = state.expect("update at a node that is no member of the group");
        (self.options.durability, state)
    }

    /// Sends what updates have made since the last flush.
    pub fn flush(&mut self, now: Time, out: &mut Effects) {
        let ctx = ctx!(self, now);
        if let Some(state) = &mut self.state {
            state.send_new(&ctx, out);
        }
        self.hand_over(out);
    }
}

impl MemberState {
    fn make(
        &mut self,
        durability: Durability,
        request: Option<RequestId>,
        answer: Bytes,
        runs: Vec<Run>,
        bytes: Bytes,
    ) -> u64 {
        let label = self.next_label();
        let (shape, own) = (self.shape(), self.slot.index());
        let (runs, bytes) = if shape.m == 1 {
            (runs, bytes)
        } else {
            self.as_sums(runs, bytes)
        };
        let delta = Delta {
            label,
            request,
            answer,
            runs,
            bytes,
        };
        debug_assert!(
            well_formed(&delta, shape.m, self.epoch),
            "runs and bytes of an update must agree"
        );
        self.apply_own(label, &delta.runs, &delta.bytes);
        if self.keeps_log() {
            self.streams[own].append(delta);
            self.sync(own);
        } else {
            self.append_alone(durability, label.seq, delta.request, &delta.answer);
        }
        label.seq
    }

    // Nobody else will ask for it.
    fn make_alone(
        &mut self,
        durability: Durability,
        request: Option<RequestId>,
        answer: &Bytes,
        runs: &[Run],
        bytes: &[u8],
    ) -> u64 {
        let label = self.next_label();
        self.apply_own(label, runs, bytes);
        self.append_alone(durability, label.seq, request, answer);
        label.seq
    }

    fn next_label(&self) -> Label {
        assert!(
            self.serving(),
            "only the data bucket of an open epoch makes deltas"
        );
        Label {
            epoch: self.epoch,
            seq: self.own().prefix + 1,
        }
    }

    // Somebody will ask for what it makes: parity, or the disk.
    fn keeps_log(&self) -> bool {
        self.disk.is_some() || self.view.protectors(self.slot.index()).next().is_some()
    }

    fn apply_own(&mut self, label: Label, runs: &[Run], bytes: &[u8]) {
        let (shape, own) = (self.shape(), self.slot.index());
        self.table.apply(shape, own, label, runs, bytes, &[]).expect(
            "usable_extents() says what was reserved everywhere; the service must stay within it",
        );
    }

    fn append_alone(
        &mut self,
        durability: Durability,
        seq: u64,
        request: Option<RequestId>,
        answer: &Bytes,
    ) {
        let own = self.slot.index();
        self.streams[own].append_unlogged(seq, request, answer);
        self.sync(own);
        let s = &mut self.streams[own];
        s.stable = s.stable.max(durability.releases(s.prefix, s.synced));
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

    /// Sends all that is owed to one parity bucket, in messages of bounded size; at least one message.
    pub fn send_to(&mut self, ctx: &Ctx<'_>, slot: MemberSlot, out: &mut Effects) {
        let Some(to) = self.view.member(slot).map(|x| x.id) else {
            return;
        };
        let own = self.slot.index();
        if std::mem::take(&mut self.reservation.lowered) {
            self.reservation.void_until = ctx.now;
        }
        let news = self.news();
        let peer = &mut self.peers[slot.index()];
        peer.tell(ctx.now, news);
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

    /// The time in which this process stood still counts against none of its peers.
    fn pass_over_a_pause(&mut self, ctx: &Ctx<'_>) {
        let still = stood_still(&mut self.ticked_at, ctx.now, ctx.options);
        for peer in self.peers.iter_mut().filter(|_| !still.is_zero()) {
            peer.heard_at = (peer.heard_at + still).min(ctx.now);
            peer.synced_at = (peer.synced_at + still).min(ctx.now);
            peer.moved_at = (peer.moved_at + still).min(ctx.now);
        }
    }

    /// Heartbeats, sending again, and reports of members that do not move (rules 1, 6).
    pub fn tick_data(&mut self, ctx: &Ctx<'_>, out: &mut Effects) {
        self.pass_over_a_pause(ctx);
        if !self.serving() {
            return;
        }
        let view = self.view.clone();
        let news = self.news();
        let (last, stable) = (self.own().prefix, self.own().stable);
        let stuck_after = ctx.options.stuck_after;
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
            if peer.synced >= last {
                peer.synced_at = ctx.now;
            }
            let disk_stalls = ctx.now.since(peer.synced_at) >= stuck_after * DISK_PATIENCE;
            let silent = if peer.rests { ctx.now } else { peer.heard_at };
            // A copy whose journal is full takes nothing in until it has made room.
            let moved = match self.disk {
                Some(_) => peer.moved_at + stuck_after * (DISK_PATIENCE - 1),
                None => peer.moved_at,
            };
            let late = ctx.now.since(silent.min(moved));
            if disk_stalls || late >= stuck_after && late >= ctx.patience(view.member(slot)) {
                stuck.push(slot);
            }
            let late = ctx.now.since(peer.sent_at) >= ctx.options.heartbeat_every;
            let due = late && !self.rests(slot, news);
            let peer = &self.peers[slot.index()];
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
                        self.set_open();
                        self.tick_backfill(ctx, out);
                    }
                    self.receive(ctx, epoch, stream, deltas, (stable, purgeable), applied);
                    self.take_reservation(stream, last, clock, want_extents);
                    let said = (carried, last, want_extents);
                    let owes = carried && self.owes_ack(stream, from, said, clock);
                    // Where an answer waits for what is held that is reported at once, and again when it is synced.
                    if !owes || ctx.options.durability == Durability::Writeback {
                        self.acknowledge(ctx, from, epoch, stream, said, clock, out);
                    }
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
                rests,
            } => {
                let current =
                    epoch == self.epoch && self.view.member(slot).is_some_and(|x| x.id == from);
                let own = self.serving() && usize::from(stream) == self.slot.index();
                let known = slot.index() >= self.streams.len() && slot.index() < self.peers.len();
                if own && known {
                    ctx.answered(from.node, ctx.now.since(clock));
                }
                if own && known && (current || planted(Mutant::OldIncarnationCounted)) {
                    self.acknowledged(ctx, slot, (prefix, synced), gap, clock, out);
                    let peer = &mut self.peers[slot.index()];
                    if !self.reservation.lowered && clock > self.reservation.void_until {
                        peer.granted = granted_extents;
                    }
                    peer.answered(clock, rests);
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
        let held = s.log.bytes();
        let free = ctx.options.node_logs.free_bytes();
        let room = ctx.options.log_bytes_max.min(held.saturating_add(free));
        // A copy applies what is stable at once. Parity has arithmetic to do, for which nobody waits: it
        // does it with the next tick, or when its log has grown (row H2).
        if self.applies_now(stream, room) {
            // First what is stable now: the data bucket has let go of it, and these deltas came in its place.
            self.advance(applied);
        }
        let takes_in = ctx.options.disk_takes_in();
        for delta in deltas.into_iter().filter(|_| takes_in) {
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

    // What came is not durable yet: it is acknowledged when it is, with all that comes until then. A gap is told at once.
    fn owes_ack(
        &mut self,
        stream: usize,
        to: MemberId,
        (_, last, asked): (bool, u64, u32),
        clock: Time,
    ) -> bool {
        let s = &self.streams[stream];
        let waits = s.synced < s.prefix && !s.log.has_gap();
        let owed = OwedAck {
            to,
            last,
            asked,
            clock,
        };
        match &mut self.disk {
            Some(disk) if waits => disk.owe_ack(stream, owed),
            _ => return false,
        }
        true
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn acknowledge(
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
            rests: self.rests_for(stream, last, asked),
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
        let synced = synced.min(prefix);
        if synced > peer.synced {
            (peer.synced, peer.synced_at) = (synced, ctx.now);
        }
        if peer.reported(ctx.now, prefix, gap, clock.min(ctx.now)) {
            peer.send_again(ctx.now);
            self.send_to(ctx, slot, out);
        }
        self.raise_stable(ctx);
    }

    /// Rules 3 and 5: stable is the lowest prefix, or the lowest synced mark, over all listed members, joiners
    /// included; what all have synced is purged.
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
                // On a disk nothing is purged before it was handed over, whatever a peer says.
                let synced = self.disk.as_ref().map_or(u64::MAX, |_| s.synced);
                s.purge(s.applied.min(s.purgeable).min(synced));
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
        let is_led_to_cut = self.disk.is_some()
            && self.installed != self.epoch
            && !planted(Mutant::LeastOfRestartedCounts);
        while self.streams[stream].applied < upto {
            let seq = self.streams[stream].applied + 1;
            if let Some(delta) = self.streams[stream].log.get(seq) {
                if self.table.adds_up(shape, delta) {
                    applied(self.table.pages(), delta);
                    self.table.add_up(shape, stream, delta);
                } else {
                    self.table.multiply(shape, stream);
                    // What it had reserved before it came back from its disk is forgotten.
                    if is_led_to_cut {
                        self.table.reserve_for(&delta.runs);
                    }
                    if !self.table.has_room_for(&delta.runs) {
                        return false;
                    }
                    // Who keeps books of the pages is told first: what the delta overwrites is still there.
                    let first = !planted(Mutant::ToldOnceApplied);
                    if first {
                        applied(self.table.pages(), delta);
                    }
                    let (label, table) = (delta.label, &mut self.table);
                    let (runs, bytes) = (&delta.runs, &delta.bytes);
                    if table
                        .apply(shape, stream, label, runs, bytes, &prefixes)
                        .is_err()
                    {
                        return false;
                    }
                    if !first {
                        applied(self.table.pages(), delta);
                    }
                }
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
}
