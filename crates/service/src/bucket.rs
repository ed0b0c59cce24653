//! One bucket at one node: the context, the service's state, and the operations that are parked.

mod role;

use std::collections::BTreeMap;

use staves_group::{Event, Member};
use staves_model::{MemberSlot, Revision, Time};
use staves_wire::service::Answer;

use crate::waiting::{FREE_READ_BYTES, LARGE_READ_BYTES, Parked, Queue};
use crate::{
    AnswerRef, BucketContext, BucketEffects, KeyHash, Limits, OpHeader, Outcome, Refused, Service,
};

/// A bucket of a service, at a data bucket or at a parity bucket.
pub struct Bucket<S: Service> {
    context: BucketContext,
    service: S,
    queue: Queue<S>,
    /// The newest entry of the map that any message brought, and the data slot that it gives this node.
    newest: Revision,
    chosen: Option<MemberSlot>,
    /// The data slot, and the pages, that waiting answers were made from.
    source: Option<(MemberSlot, u64)>,
    was_serving: bool,
    /// The last tick left no housekeeping to be done, and nothing was executed since.
    tidy: bool,
}

impl<S: Service> Bucket<S> {
    /// A bucket around a member of a group.
    pub fn new(service: S, limits: Limits, member: Member) -> Bucket<S> {
        Bucket {
            context: BucketContext::new(limits, member, S::FORGOTTEN),
            service,
            queue: Queue::default(),
            newest: Revision(0),
            chosen: None,
            source: None,
            was_serving: false,
            tidy: false,
        }
    }

    /// The group's member.
    #[inline]
    pub fn member(&self) -> &Member {
        &self.context.member
    }

    /// The group's member, for what only the driver does to it (a restart, memory that goes back).
    pub fn member_mut(&mut self) -> &mut Member {
        &mut self.context.member
    }

    /// The member alone: what is left to a process that restarts over its old memory.
    pub fn into_member(self) -> Member {
        self.context.member
    }

    /// The service's state.
    pub fn service(&self) -> &S {
        &self.service
    }

    /// True if it executes operations: the data bucket of an open epoch, with a complete state.
    #[inline]
    pub fn serving(&self) -> bool {
        self.context.member.serving() && self.service.is_ready()
    }

    /// True if operations on this data slot belong here: it serves the slot, or will once its epoch is open.
    pub fn answers_for(&self, slot: MemberSlot) -> bool {
        self.serves(slot) || self.chosen == Some(slot)
    }

    /// See [`BucketContext::lacked_extents`].
    pub fn lacked_extents(&self, now: Time) -> u32 {
        self.context.lacked_extents(now)
    }

    /// Sets which sessions are over, by the number of the image that they wrote to. To be called before [`Bucket::step`] with the entry of the
    /// same map.
    pub fn set_sessions_over(&mut self, over: BTreeMap<u32, u64>) {
        self.context.sessions_over = over;
    }

    /// Answers and operations that wait here.
    pub fn waiting(&self) -> usize {
        let answers = self.context.waiters.len() + self.context.syncing.len();
        answers + self.queue.len() + self.service.in_progress()
    }

    /// Bytes of the values of answers that wait here.
    pub fn waiting_bytes(&self) -> usize {
        self.context.waiting_bytes()
    }

    /// Operations among them that could not begin yet.
    pub fn parked(&self) -> usize {
        self.queue.len()
    }

    /// True if a further step would find work at once: the driver need not wait for a tick.
    pub fn has_work(&self) -> bool {
        self.serving() && self.service.has_work()
    }

    /// True if a tick would do nothing, now and at any time until another event or an operation comes.
    pub fn at_rest(&self) -> bool {
        let tidy = self.tidy || !self.serving();
        tidy && self.waiting() == 0 && !self.unflushed() && self.context.member.at_rest()
    }

    /// True if [`Bucket::flush`] has anything to send.
    #[inline]
    pub fn unflushed(&self) -> bool {
        self.context.unflushed
    }

    /// Submits an operation. `Some` is its answer; with `None` the answer comes under the header's token with a
    /// later call. Call [`Bucket::flush`] after the last of a batch.
    ///
    /// # Errors
    /// The bucket refuses the operation. Nothing was done, unless it says so.
    pub fn submit(
        &mut self,
        now: Time,
        header: OpHeader,
        op: S::Op<'_>,
        out: &mut BucketEffects,
    ) -> Result<Option<Answer>, Refused> {
        let key_hash = S::key_hash(op);
        match self.read_in_place(now, &header, key_hash, op) {
            Some(answer) => Ok(Some(answer.to_owned())),
            None => self.attempt(now, header, key_hash, op, out),
        }
    }

    /// As [`Bucket::submit`], but lends the answer to `give`: a value is not copied on its way from the
    /// pages to a door's output.
    ///
    /// # Errors
    /// As [`Bucket::submit`].
    pub fn submit_with<R>(
        &mut self,
        now: Time,
        header: OpHeader,
        op: S::Op<'_>,
        out: &mut BucketEffects,
        give: impl FnOnce(AnswerRef<'_>) -> R,
    ) -> Result<Option<R>, Refused> {
        let key_hash = S::key_hash(op);
        if let Some(answer) = self.read_in_place(now, &header, key_hash, op) {
            return Ok(Some(give(answer)));
        }
        let answer = self.attempt(now, header, key_hash, op, out)?;
        Ok(answer.map(|answer| give(AnswerRef::of(&answer))))
    }

    /// Sends what was made since the last flush.
    pub fn flush(&mut self, now: Time, out: &mut BucketEffects) {
        if std::mem::take(&mut self.context.unflushed) {
            self.context.member.flush(now, &mut out.effects);
        }
    }

    /// Steps the member, and continues whatever waited for what the event changed.
    pub fn step(&mut self, now: Time, event: Event, out: &mut BucketEffects) {
        let tick = matches!(event, Event::Tick);
        self.look_at_map(&event);
        let Bucket {
            context, service, ..
        } = self;
        let mut note = |pages: &_, delta: &_| service.note(pages, delta);
        context.member.step(now, event, &mut out.effects, &mut note);
        let others = service.follow_pages(&context.member);
        self.follow_role(others, out);
        if self.serving() {
            self.context.release(now, out);
            if tick {
                self.tidy = !self.service.maintain(&mut self.context, now);
            }
            self.pump(now, out);
        } else if tick {
            let expired = self.queue.remove(|header| header.deadline <= now);
            out.refuse(expired, Refused::Late);
        }
        let mut expired = self.context.waiters.expire(now);
        expired.extend(self.context.syncing.expire(now));
        for (token, read) in expired {
            let why = match read {
                true => Refused::Late,
                false => Refused::Deadline,
            };
            out.answers.push((token, Err(why)));
        }
        self.seek_promises(now, out);
        self.flush(now, out);
    }

    /// Checks the service's invariants, for the simulator and tests.
    pub fn check(&self) -> Result<(), String> {
        self.service.check(&self.context.member, self.serving())
    }

    // Somebody waits who may wait for a lease.
    fn seek_promises(&mut self, now: Time, out: &mut BucketEffects) {
        if self.waiting() > 0 && !self.context.member.may_read(now) {
            self.context.member.seek_promises(now, &mut out.effects);
        }
    }

    // The slot that it serves may be another than the one that an epoch which is not open yet gives it.
    #[inline]
    fn serves(&self, slot: MemberSlot) -> bool {
        self.serving() && self.context.member.slot() == Some(slot)
    }

    // Operations with one key hash keep their order; a write that found no room is not overtaken by another.
    #[inline]
    fn must_wait(&self, key_hash: Option<KeyHash>, is_write: bool) -> bool {
        let held = |key_hash| self.queue.holds(key_hash) || self.service.holds(key_hash);
        key_hash.is_some_and(held) || (is_write && self.queue.starved)
    }

    // Bytes of the value that a read has, as far as is known.
    fn read_bytes(&self, op: S::Op<'_>) -> usize {
        match S::is_write(op) {
            true => 0,
            false => self.service.answer_bytes(&self.context.member, op),
        }
    }

    // True if this is a read of a large value that cannot be answered now: it waits as itself, not as a copy of the value.
    fn is_held_back(&self, now: Time, key_hash: Option<KeyHash>, op: S::Op<'_>) -> bool {
        let member = &self.context.member;
        let seq = || key_hash.map_or(0, |key_hash| self.context.unstable.seq_of(key_hash));
        let may_leave = || member.releases(seq()) && member.may_read(now) && member.may_answer(now);
        key_hash.is_some() && self.read_bytes(op) > LARGE_READ_BYTES && !may_leave()
    }

    // The fast path of a read: no copy but what the caller makes.
    #[inline]
    pub(crate) fn read_in_place(
        &mut self,
        now: Time,
        header: &OpHeader,
        key_hash: Option<KeyHash>,
        op: S::Op<'_>,
    ) -> Option<AnswerRef<'_>> {
        if S::is_write(op) || !self.serves(header.slot) || self.must_wait(key_hash, false) {
            return None;
        }
        let member = &self.context.member;
        let seq = key_hash.map_or(0, |key_hash| self.context.unstable.seq_of(key_hash));
        if !member.releases(seq) || !member.may_read(now) {
            return None;
        }
        self.service.read_in_place(member, key_hash, op)
    }

    fn attempt(
        &mut self,
        now: Time,
        header: OpHeader,
        key_hash: Option<KeyHash>,
        op: S::Op<'_>,
        out: &mut BucketEffects,
    ) -> Result<Option<Answer>, Refused> {
        if let Some(wrong) = self.service.malformed(op) {
            return Ok(Some(wrong));
        }
        if !self.answers_for(header.slot) {
            return Err(Refused::NotServing);
        }
        let result = self.answer_or_park(now, header, key_hash, op, out);
        if matches!(result, Ok(None)) {
            self.seek_promises(now, out);
        }
        result
    }

    fn answer_or_park(
        &mut self,
        now: Time,
        header: OpHeader,
        key_hash: Option<KeyHash>,
        op: S::Op<'_>,
        out: &mut BucketEffects,
    ) -> Result<Option<Answer>, Refused> {
        match self.begin(now, &header, key_hash, op, out) {
            Outcome::Answer { seq, answer, read } => {
                let fits = self.context.fits(now, seq, &answer, out.value_bytes_max);
                match read && !fits {
                    true => Err(Refused::Busy),
                    false => self.context.deliver(now, &header, seq, answer, read),
                }
            }
            Outcome::Synced { seq, answer, read } => {
                self.context.deliver_synced(now, &header, seq, answer, read)
            }
            // It may have answered already.
            Outcome::Later => match out.answers.pop_if(|(token, _)| *token == header.token) {
                Some((_, result)) => result.map(Some),
                None => Ok(None),
            },
            Outcome::Blocked { starved } => {
                if self.queue.is_full(&self.context.limits, S::is_write(op)) {
                    return Err(Refused::Busy);
                }
                self.queue.starved |= starved;
                let op = S::to_owned(op);
                self.queue.push(Parked {
                    header,
                    key_hash,
                    op,
                });
                Ok(None)
            }
            Outcome::Refuse(why) => Err(why),
        }
    }

    fn begin(
        &mut self,
        now: Time,
        header: &OpHeader,
        key_hash: Option<KeyHash>,
        op: S::Op<'_>,
        out: &mut BucketEffects,
    ) -> Outcome {
        if !self.serves(header.slot) || self.must_wait(key_hash, S::is_write(op)) {
            return Outcome::Blocked { starved: false };
        }
        if S::is_write(op) && self.context.is_full() {
            return Outcome::Refuse(Refused::Busy);
        }
        let lacks_copies = S::is_write(op) && self.context.member().lacks_copies();
        if lacks_copies || self.is_held_back(now, key_hash, op) {
            return Outcome::Blocked { starved: false };
        }
        let Bucket {
            context,
            service,
            tidy,
            ..
        } = self;
        *tidy = false;
        service.execute(context, now, header, key_hash, op, out)
    }

    // Executes everything that could not begin before, in order.
    fn pump(&mut self, now: Time, out: &mut BucketEffects) {
        self.service.advance(&mut self.context, now, out);
        if self.queue.len() == 0 {
            return;
        }
        for parked in self.queue.take() {
            let (header, key_hash, op) = (parked.header, parked.key_hash, S::as_op(&parked.op));
            if header.deadline <= now {
                out.answers.push((header.token, Err(Refused::Late)));
                continue;
            }
            let bytes = self.read_bytes(op);
            let waits = match S::is_write(op) {
                true => self.context.is_full(),
                false => bytes > FREE_READ_BYTES && out.value_bytes_max == Some(0),
            };
            let outcome = match waits {
                true => Outcome::Blocked { starved: false },
                false => self.begin(now, &header, key_hash, op, out),
            };
            if let (Some(max), Outcome::Answer { .. }) = (&mut out.value_bytes_max, &outcome) {
                *max = max.saturating_sub(bytes);
            }
            let result = match outcome {
                Outcome::Answer { seq, answer, read } => {
                    self.context.deliver(now, &header, seq, answer, read)
                }
                Outcome::Synced { seq, answer, read } => {
                    self.context.deliver_synced(now, &header, seq, answer, read)
                }
                Outcome::Later => Ok(None),
                Outcome::Blocked { starved } => {
                    self.queue.starved |= starved;
                    self.queue.push(parked);
                    Ok(None)
                }
                Outcome::Refuse(why) => Err(why),
            };
            let result = result.transpose();
            out.answers
                .extend(result.map(|result| (header.token, result)));
        }
    }
}
