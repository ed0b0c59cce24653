//! One bucket at one node: a group's member, and who waits at it.

use std::sync::Arc;

use staves_group::{Effects, Event, Member};
use staves_model::{Group, MemberSlot, Revision, Time};
use staves_wire::ErrorCode;
use staves_wire::cache::Answer;
use staves_wire::group::{GroupMessage, RequestId};
use staves_wire::memory::Action;

use crate::execute::Outcome;
use crate::room::Room;
use crate::waiting::{Parked, Queue, Waiters};
use crate::{Answers, Options, chunks};

/// Who asks, and until when.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// The caller's name for it, handed back with the answer.
    pub token: u64,
    /// The client's name for it; none for a read, or where nobody retries.
    pub request: Option<RequestId>,
    /// When it is given up.
    pub deadline: Time,
}

/// Counted since the bucket was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Reads that were answered.
    pub reads: u64,
    /// Writes that took effect.
    pub writes: u64,
}

/// A bucket of a memory pool, at a data or a parity bucket.
pub struct Bucket {
    pub(crate) options: Options,
    pub(crate) member: Member,
    pub(crate) waiters: Waiters,
    queue: Queue,
    pub(crate) room: Room,
    /// The newest entry of the directory that was seen, and the data slot that it gives us.
    newest: Revision,
    chosen: Option<MemberSlot>,
    /// Which pages whoever waits here was served from.
    served: Option<(MemberSlot, u64)>,
    pub(crate) unflushed: bool,
    pub(crate) stats: Stats,
}

impl Bucket {
    /// A bucket around a member of a group.
    pub fn new(options: Options, member: Member) -> Bucket {
        Bucket {
            options,
            member,
            waiters: Waiters::default(),
            queue: Queue::default(),
            room: Room::default(),
            newest: Revision(0),
            chosen: None,
            served: None,
            unflushed: false,
            stats: Stats::default(),
        }
    }

    /// The group's member.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// For what only the driver does to a member (a restart, giving old memory back).
    pub fn member_mut(&mut self) -> &mut Member {
        &mut self.member
    }

    /// The member alone: what a process that starts again over its old memory is left with.
    pub fn into_member(self) -> Member {
        self.member
    }

    /// Whether it answers for its bytes: a data bucket of an open epoch. Pages that it lacks it rebuilds as
    /// they are asked for.
    pub fn serving(&self) -> bool {
        self.member.serving()
    }

    /// Whether requests for this data slot may be brought here: it answers for it, or will once its
    /// epoch is open.
    pub fn answers_for(&self, slot: MemberSlot) -> bool {
        self.serves(slot) || self.chosen == Some(slot)
    }

    // Whether it answers for this data slot now. It may be serving another: an epoch that is not open yet
    // can give it this one.
    fn serves(&self, slot: MemberSlot) -> bool {
        self.member.serving() && self.member.slot() == Some(slot)
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Bytes of the chunks that were ever written, as far as this member knows.
    pub fn written_bytes(&self) -> u64 {
        let pages = self.member.pages().filter(|_| self.serving());
        let chunks = pages.map_or(0, |pages| chunks::taken(pages).count());
        chunks as u64 * staves_model::CHUNK_BYTES
    }

    /// Requests that wait here.
    pub fn waiting(&self) -> usize {
        self.waiters.len() + self.queue.len()
    }

    /// Of these, requests that could not begin yet.
    pub fn parked(&self) -> usize {
        self.queue.len()
    }

    /// Tries an operation on the data bucket in this slot. `Some` is the answer; `None` means that it is in
    /// `answers` under the ask's token, after this call or after a later one. Call [`Bucket::flush`] after
    /// the last of a batch.
    pub fn submit(
        &mut self,
        now: Time,
        ask: Ask,
        slot: MemberSlot,
        action: &Action,
        effects: &mut Effects,
        answers: &mut Answers,
    ) -> Option<Answer> {
        if let Some(wrong) = crate::execute::malformed(action) {
            return Some(wrong);
        }
        if !self.answers_for(slot) {
            return Some(not_serving());
        }
        self.attempt(now, ask, slot, action, effects, answers)
    }

    // Does it, or lets it wait.
    fn attempt(
        &mut self,
        now: Time,
        ask: Ask,
        slot: MemberSlot,
        action: &Action,
        effects: &mut Effects,
        answers: &mut Answers,
    ) -> Option<Answer> {
        let ready = self.serves(slot) && !(action.is_write() && self.queue.starved);
        let outcome = match ready {
            true => self.execute(now, &ask, action, effects),
            false => Outcome::Blocked { starved: false },
        };
        match outcome {
            Outcome::Answer { seq, answer, read } => self.deliver(now, &ask, seq, answer, read),
            Outcome::Blocked { starved } => {
                self.queue.starved |= starved;
                let action = action.clone();
                self.park(Parked { ask, slot, action }, answers);
                None
            }
        }
    }

    /// Sends what the submits since the last flush have made.
    pub fn flush(&mut self, now: Time, effects: &mut Effects) {
        if std::mem::take(&mut self.unflushed) {
            self.member.flush(now, effects);
        }
    }

    /// Tells the member of an event, and lets go whoever waited for what it changed.
    pub fn step(&mut self, now: Time, event: Event, effects: &mut Effects, answers: &mut Answers) {
        self.look_at_map(&event);
        self.member.step(now, event, effects, &mut |_, _| {});
        self.follow_role(answers);
        if self.member.serving() {
            self.release(now, answers);
            self.pump(now, effects, answers);
        } else {
            self.expire_parked(now, answers);
        }
        let expired = self.waiters.expire(now);
        answers.extend(expired.into_iter().map(|token| (token, late())));
        self.flush(now, effects);
    }

    /// Checks the invariants of this crate, for the simulator and for tests.
    pub fn check(&self) -> Result<(), String> {
        let table_here = self
            .member
            .table()
            .is_some_and(|t| t.is_here(chunks::TABLE_PAGE));
        let Some(pages) = self.member.pages().filter(|_| self.serving() && table_here) else {
            return Ok(());
        };
        let mut places: Vec<u16> = chunks::taken(pages).map(|(_, place)| place).collect();
        places.sort_unstable();
        let in_order = places.iter().zip(1..).all(|(place, next)| *place == next);
        if !in_order {
            return Err(format!("the places taken are {places:?}"));
        }
        Ok(())
    }

    /// Gives an answer back if it may go out now, else lets it wait.
    fn deliver(
        &mut self,
        now: Time,
        ask: &Ask,
        seq: u64,
        answer: Answer,
        read: bool,
    ) -> Option<Answer> {
        let safe = match read {
            true => self.member.releases(seq) && self.member.may_read(now),
            false => seq <= self.member.stable(),
        };
        if safe && self.member.may_answer(now) {
            return Some(answer);
        }
        let full = self.waiters.len() >= self.options.waiting_max
            || self.waiters.bytes() >= self.options.waiting_bytes_max;
        // A write has been made: its answer is kept in any case. What writes can wait is bounded by the log.
        if read && full {
            return Some(busy());
        }
        self.waiters.push(seq, ask, answer, read);
        None
    }

    fn park(&mut self, parked: Parked, answers: &mut Answers) {
        let full = self.queue.len() >= self.options.parked_max
            || self.queue.bytes() >= self.options.parked_bytes_max;
        if full {
            answers.push((parked.ask.token, busy()));
        } else {
            self.queue.push(parked);
        }
    }

    fn release(&mut self, now: Time, answers: &mut Answers) {
        let stable = self.member.stable();
        if self.waiters.len() == 0 || !self.member.may_answer(now) {
            return;
        }
        let may_read = self.member.may_read(now);
        self.waiters.pop(stable, may_read, |token, answer| {
            answers.push((token, answer));
        });
    }

    // Everything that could not go on before, in order.
    fn pump(&mut self, now: Time, effects: &mut Effects, answers: &mut Answers) {
        for parked in self.queue.take() {
            let Parked { ask, slot, action } = parked;
            if ask.deadline <= now {
                answers.push((ask.token, late()));
                continue;
            }
            let answer = self.attempt(now, ask, slot, &action, effects, answers);
            answers.extend(answer.map(|answer| (ask.token, answer)));
        }
    }

    fn expire_parked(&mut self, now: Time, answers: &mut Answers) {
        let expired = self.queue.let_go(|parked| parked.ask.deadline <= now);
        answers.extend(expired.into_iter().map(|token| (token, late())));
    }

    // Which data slot the newest entry that any message brought gives us: requests for it may wait here
    // for the epoch to open.
    fn look_at_map(&mut self, event: &Event) {
        let group: &Arc<Group> = match event {
            Event::Map(group) => group,
            Event::Message(envelope) if envelope.group == self.member.id() => {
                match &envelope.message {
                    GroupMessage::Seal { group, .. } | GroupMessage::Sync { group, .. } => group,
                    _ => return,
                }
            }
            _ => return,
        };
        if group.id == self.member.id() && group.revision >= self.newest {
            self.newest = group.revision;
            let slot = group.slot_of(self.member.me());
            self.chosen = slot.filter(|slot| slot.0 < group.m);
        }
    }

    // A data bucket that stays the data bucket keeps everything up to the cut, so whoever waits for parity
    // waits on. Anybody else's successor knows the requests; the client asks there.
    fn follow_role(&mut self, answers: &mut Answers) {
        let pages = self.member.pages().map(|pages| pages.generation());
        let here = self
            .member
            .slot()
            .zip(pages)
            .filter(|_| self.member.is_data());
        if self.served.is_some() && self.served != here {
            let interrupted = self.waiters.drain();
            answers.extend(interrupted.into_iter().map(|token| (token, moved_away())));
        }
        self.served = here;
        let epoch = self.member.epoch();
        if self.room.epoch != epoch {
            self.room = Room::of(epoch);
        }
        // Who is parked waits for the data bucket of one slot. The next epoch may give us another, before the
        // one that gave us that slot was ever open.
        let serves = self.member.serving().then(|| self.member.slot()).flatten();
        let chosen = self.chosen;
        let waits = |slot| serves == Some(slot) || chosen == Some(slot);
        let gone = self.queue.let_go(|parked| !waits(parked.slot));
        answers.extend(gone.into_iter().map(|token| (token, not_serving())));
    }
}

pub(crate) fn not_serving() -> Answer {
    Answer::error(
        ErrorCode::NotServing,
        "this node does not answer for the group's data bucket; ask the node that the newer map names",
    )
}

fn moved_away() -> Answer {
    Answer::error(
        ErrorCode::Unreachable,
        "the data bucket moved before the request was safe; ask its new node, with the same request number",
    )
}

pub(crate) fn busy() -> Answer {
    Answer::error(
        ErrorCode::Busy,
        "too many requests wait at the data bucket; ask again a little later",
    )
}

fn late() -> Answer {
    Answer::error(
        ErrorCode::Deadline,
        "the deadline passed before the request was safe on all members; a write may or may not have taken effect",
    )
}
