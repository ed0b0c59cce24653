//! One bucket at one node: a group's member, the index over its pages, and who waits.

use std::sync::Arc;

use bytes::Bytes;
use staves_group::{Effects, Event, Member};
use staves_model::mutant::{Mutant, planted};
use staves_model::{Group, MemberSlot, Revision, Time};
use staves_wire::cache::{Answer, Op};
use staves_wire::group::GroupMessage;

use crate::answer::{AnswerRef, Refused};
use crate::command;
use crate::index::Tag;
use crate::kv::{Kv, Value, record_at};
use crate::large::LargeWrite;
use crate::waiting::{Ask, Parked, Queue, Unstable, Waiters};
use crate::write::Room;
use crate::{Options, answer};

/// What a step wants done.
#[derive(Default, Debug)]
pub struct BucketEffects {
    /// The member's.
    pub effects: Effects,
    /// Answers to requests that were not answered at once, by token.
    pub answers: Vec<(u64, Result<Answer, Refused>)>,
}

/// Counted since the bucket was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Reads.
    pub reads: u64,
    /// Reads (`Get`) that found a value.
    pub hits: u64,
    /// Writes that took effect.
    pub writes: u64,
    /// Compactions.
    pub compactions: u64,
}

/// A bucket of a cache pool, at a data bucket or at a copy of it.
pub struct Bucket {
    pub(crate) options: Options,
    pub(crate) member: Member,
    pub(crate) kv: Kv,
    /// Which pages `kv` speaks of; `None` while pages are still being fetched.
    indexed: Option<u64>,
    pub(crate) unstable: Unstable,
    waiters: Waiters,
    queue: Queue,
    pub(crate) large: Option<LargeWrite>,
    /// Chunks of large values that were given up.
    pub(crate) orphans: Vec<u32>,
    /// The log had no room for giving them back.
    pub(crate) orphans_wait: bool,
    pub(crate) room: Room,
    /// The newest entry of the directory that was seen, and whether it names us the data bucket.
    newest: Revision,
    chosen: bool,
    was_serving: bool,
    pub(crate) unflushed: bool,
    pub(crate) stats: Stats,
}

/// What became of a request that was tried.
pub(crate) enum Outcome {
    /// To be given once everything up to `seq` is stable.
    Answer {
        seq: u64,
        answer: Answer,
        read: bool,
    },
    /// A large write has begun, and will answer.
    Later,
    /// It cannot begin now. `starved`: for lack of room, so that no other write may pass it.
    Blocked { starved: bool },
    /// It will not be.
    Refuse(Refused),
}

impl Bucket {
    /// A bucket around a member of a group.
    pub fn new(options: Options, member: Member) -> Bucket {
        Bucket {
            options,
            member,
            kv: Kv::default(),
            indexed: None,
            unstable: Unstable::default(),
            waiters: Waiters::default(),
            queue: Queue::default(),
            large: None,
            orphans: Vec::new(),
            orphans_wait: false,
            room: Room::default(),
            newest: Revision(0),
            chosen: false,
            was_serving: false,
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

    /// Every key with its value, in order; nothing while pages are still being fetched. Copies them all:
    /// for the simulator and for tests.
    pub fn entries(&self) -> Vec<(Bytes, Bytes)> {
        let pages = self.member.pages().filter(|_| self.indexed.is_some());
        let Some(pages) = pages else {
            return Vec::new();
        };
        let entry = |(tag, offset): (Tag, u64)| {
            let key = record_at(pages, offset)?.key;
            let value = self.kv.find(pages, tag, key)?.value.to_bytes();
            Some((Bytes::copy_from_slice(key), value))
        };
        let sorted = self.kv.index.sorted();
        let mut all: Vec<_> = sorted.into_iter().filter_map(entry).collect();
        all.sort_unstable();
        all
    }

    /// Whether it answers for its keys: the data bucket of an open epoch, with all pages here.
    #[inline]
    pub fn serving(&self) -> bool {
        self.member.serving() && self.indexed.is_some()
    }

    /// Keys, as far as this member knows.
    pub fn count(&self) -> u64 {
        self.kv.count()
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> u64 {
        self.kv.payload()
    }

    /// Bytes of a key's value, as far as this member knows; 0 if it has none.
    pub fn value_bytes(&self, key: &[u8]) -> usize {
        let pages = self.member.pages().filter(|_| self.indexed.is_some());
        let found = pages.and_then(|pages| self.kv.find(pages, Tag::of(key), key));
        found.map_or(0, |found| found.value.len())
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Requests that wait here.
    pub fn waiting(&self) -> usize {
        self.waiters.len() + self.queue.len() + usize::from(self.large.is_some())
    }

    /// Whether a further step would find something to do at once: the driver need not let a tick pass.
    pub fn has_work(&self) -> bool {
        // One that waits for the log or for memory is woken by the copies' acks.
        let ready = self.large.as_ref().is_some_and(|l| !l.waits());
        self.serving() && (ready || (!self.orphans.is_empty() && !self.orphans_wait))
    }

    /// Tries an operation. `Some` is the answer; `None` means that it is in `out.answers` under the
    /// ask's token, after this call or after a later one. Call [`Bucket::flush`] after the last of a batch.
    pub fn submit(
        &mut self,
        now: Time,
        ask: Ask,
        op: &Op<'_>,
        out: &mut BucketEffects,
    ) -> Option<Answer> {
        self.submit_with(now, ask, op, out, |answer| answer.to_owned())
    }

    /// As [`Bucket::submit`], but lends the answer to `give`: a value is not copied on its way from
    /// the pages to a door's output.
    pub fn submit_with<R>(
        &mut self,
        now: Time,
        ask: Ask,
        op: &Op<'_>,
        out: &mut BucketEffects,
        give: impl FnOnce(AnswerRef<'_>) -> R,
    ) -> Option<R> {
        let tag = Tag::of(op.key());
        if !self.serving() || self.must_wait(tag, op.is_write()) {
            self.park(ask, tag, op, out);
            return None;
        }
        if let Op::Get { key } = *op
            && self.member.releases(self.unstable.seq_of(tag))
            && self.member.may_read(now)
        {
            return self.read(tag, key, give);
        }
        if self.waiters_full() {
            out.answers.push((ask.token, Err(Refused::Busy)));
            return None;
        }
        match self.execute(now, &ask, tag, op, out) {
            Outcome::Answer { seq, answer, read } => {
                let answer = self.deliver(now, &ask, seq, answer, read)?;
                return Some(give(AnswerRef::of(&answer)));
            }
            Outcome::Later => {}
            Outcome::Blocked { starved } => {
                self.queue.starved |= starved;
                self.park(ask, tag, op, out);
            }
            Outcome::Refuse(why) => out.answers.push((ask.token, Err(why))),
        }
        None
    }

    /// Sends what the submits since the last flush have made.
    pub fn flush(&mut self, now: Time, out: &mut BucketEffects) {
        if std::mem::take(&mut self.unflushed) {
            self.member.flush(now, &mut out.effects);
        }
    }

    /// Tells the member of an event, and lets go whoever waited for what it changed.
    pub fn step(&mut self, now: Time, event: Event, out: &mut BucketEffects) {
        let tick = matches!(event, Event::Tick);
        self.look_at_map(&event);
        let follow = self.indexed.is_some() && !planted(Mutant::CopyForgetsIndex);
        let kv = &mut self.kv;
        self.member
            .step(now, event, &mut out.effects, &mut |pages, delta| {
                if follow {
                    kv.note(pages, &delta.runs, &delta.bytes);
                }
            });
        let anew = self.follow_pages();
        self.follow_role(anew, out);
        if self.serving() {
            self.release(now, out);
            if tick {
                self.tidy(now);
            }
            self.pump(now, out);
        } else if tick {
            self.expire_parked(now, out);
        }
        let expired = self.waiters.expire(now);
        out.answers
            .extend(expired.into_iter().map(|t| (t, Err(Refused::Deadline))));
        self.flush(now, out);
    }

    /// Checks the invariants of this crate, for the simulator: index and pages agree, and every chunk
    /// is accounted for.
    pub fn check(&self) -> Result<(), String> {
        let Some(pages) = self
            .member
            .pages()
            .filter(|p| self.indexed == Some(p.generation()))
        else {
            return Ok(());
        };
        self.kv.check(pages)?;
        if self.serving() {
            let written = self.large.as_ref().map_or(&[][..], LargeWrite::chunks);
            let known = |c: &u32| self.orphans.contains(c) || written.contains(c);
            if let Some(lost) = self.kv.segments.unnamed_chunks().iter().find(|c| !known(c)) {
                return Err(format!(
                    "chunk {lost} belongs to no value and to no write in progress"
                ));
            }
        }
        Ok(())
    }

    // The fast path of a read: no copy but what `give` makes.
    fn read<R>(
        &mut self,
        tag: Tag,
        key: &[u8],
        give: impl FnOnce(AnswerRef<'_>) -> R,
    ) -> Option<R> {
        self.stats.reads += 1;
        let pages = self.member.pages()?;
        let Some(found) = self.kv.find(pages, tag, key) else {
            return Some(give(AnswerRef::Nil));
        };
        self.stats.hits += 1;
        Some(match found.value {
            Value::Inline(bytes) => give(AnswerRef::Value(bytes)),
            large @ Value::Large(..) => give(AnswerRef::Value(&large.to_bytes())),
        })
    }

    fn execute(
        &mut self,
        now: Time,
        ask: &Ask,
        tag: Tag,
        op: &Op<'_>,
        out: &mut BucketEffects,
    ) -> Outcome {
        if let Some(answer) = command::too_large(op, self.options.value_bytes_max) {
            return Outcome::Answer {
                seq: 0,
                answer,
                read: false,
            };
        }
        if op.is_write()
            && let Some(again) = self.recall(ask)
        {
            return again;
        }
        // A write that changes nothing goes through the stream like any other: its answer is then known
        // to every copy, and a second copy of the request that comes late does not take effect after all.
        let kept = op.is_write() && ask.request.is_some() && !planted(Mutant::NoOpNotRemembered);
        let may_read = kept || self.member.may_read(now);
        if !op.is_write() && !may_read {
            return Outcome::Blocked { starved: false };
        }
        let Some(pages) = self.member.pages() else {
            return Outcome::Refuse(Refused::NotServing);
        };
        let old = self.kv.find(pages, tag, op.key()).map(|found| found.value);
        match command::decide(op, old, self.options.value_bytes_max) {
            command::Verdict::Keep(_) if !may_read => Outcome::Blocked { starved: false },
            command::Verdict::Keep(answer) => {
                self.stats.reads += 1;
                self.stats.hits +=
                    u64::from(matches!((op, &answer), (Op::Get { .. }, Answer::Value(_))));
                if kept {
                    return self.keep(ask, answer);
                }
                Outcome::Answer {
                    seq: self.unstable.seq_of(tag),
                    answer,
                    read: true,
                }
            }
            command::Verdict::Put(value, answer) => {
                match self.write(now, ask, tag, op.key(), value, answer, out) {
                    // Refused for want of memory.
                    Outcome::Answer {
                        answer: full @ Answer::Error(..),
                        ..
                    } if kept => self.keep(ask, full),
                    outcome => outcome,
                }
            }
            command::Verdict::Remove(answer) => self.remove(ask, tag, op.key(), answer),
        }
    }

    // I9: what was done is answered again, not done again.
    fn recall(&self, ask: &Ask) -> Option<Outcome> {
        let request = ask.request.as_ref()?;
        let (seq, answer) = match self.member.recall(request) {
            staves_group::Recall::New => return None,
            staves_group::Recall::Waiting { seq, answer } => (seq, answer::recall(&answer)),
            staves_group::Recall::Done { answer } => (0, answer::recall(&answer)),
            staves_group::Recall::Forgotten => (0, answer::forgotten()),
        };
        Some(Outcome::Answer {
            seq,
            answer,
            read: false,
        })
    }

    /// Gives an answer back if it may go out now, else lets it wait.
    pub(crate) fn deliver(
        &mut self,
        now: Time,
        ask: &Ask,
        seq: u64,
        answer: Answer,
        read: bool,
    ) -> Option<Answer> {
        let safe = if read {
            self.member.releases(seq) && self.member.may_read(now)
        } else {
            seq <= self.member.stable()
        };
        if safe && self.member.may_answer(now) {
            return Some(answer);
        }
        self.waiters
            .push(seq, ask.token, ask.deadline, answer, read);
        None
    }

    fn waiters_full(&self) -> bool {
        self.waiters.len() >= self.options.waiting_max
            || self.waiters.bytes() >= self.options.waiting_bytes_max
    }

    // Requests for one key keep their order; a write that found no room is not overtaken by another.
    #[inline]
    fn must_wait(&self, tag: Tag, is_write: bool) -> bool {
        self.queue.holds(tag)
            || (is_write && self.queue.starved)
            || self.large.as_ref().is_some_and(|l| l.tag() == tag)
    }

    fn park(&mut self, ask: Ask, tag: Tag, op: &Op<'_>, out: &mut BucketEffects) {
        let full = self.queue.len() >= self.options.parked_max
            || self.queue.bytes() >= self.options.parked_bytes_max;
        if !self.serving() && !self.chosen {
            out.answers.push((ask.token, Err(Refused::NotServing)));
        } else if full {
            out.answers.push((ask.token, Err(Refused::Busy)));
        } else {
            self.queue.push(Parked {
                ask,
                tag,
                op: op.to_owned(),
            });
        }
    }

    fn release(&mut self, now: Time, out: &mut BucketEffects) {
        let stable = self.member.stable();
        self.unstable.purge(stable);
        if !self.member.may_answer(now) {
            return;
        }
        if self.waiters.len() == 0 {
            return;
        }
        let may_read = self.member.may_read(now) || planted(Mutant::HeldReadNeedsNoLease);
        self.waiters.pop(stable, may_read, |token, answer| {
            out.answers.push((token, Ok(answer)));
        });
    }

    // Everything that could not go on before, in order.
    fn pump(&mut self, now: Time, out: &mut BucketEffects) {
        self.give_back_orphans();
        self.advance_large(now, out);
        if self.queue.len() == 0 {
            return;
        }
        for parked in self.queue.take() {
            let (ask, tag, op) = (parked.ask, parked.tag, parked.op.as_op());
            if ask.deadline <= now {
                out.answers.push((ask.token, Err(Refused::Deadline)));
                continue;
            }
            if self.must_wait(tag, op.is_write()) || self.waiters_full() {
                self.queue.push(parked);
                continue;
            }
            match self.execute(now, &ask, tag, &op, out) {
                Outcome::Answer { seq, answer, read } => {
                    let answer = self.deliver(now, &ask, seq, answer, read);
                    out.answers.extend(answer.map(|a| (ask.token, Ok(a))));
                }
                Outcome::Later => {}
                Outcome::Blocked { starved } => {
                    self.queue.starved |= starved;
                    self.queue.push(parked);
                }
                Outcome::Refuse(why) => out.answers.push((ask.token, Err(why))),
            }
        }
    }

    fn expire_parked(&mut self, now: Time, out: &mut BucketEffects) {
        for parked in self.queue.take() {
            if parked.ask.deadline <= now {
                out.answers.push((parked.ask.token, Err(Refused::Deadline)));
            } else {
                self.queue.push(parked);
            }
        }
    }

    // Whether the newest entry that any message brought names us the data bucket: then requests may wait
    // here for the epoch to open.
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
            let data = group.member(MemberSlot(0));
            self.chosen = data.is_some_and(|x| x.id == self.member.me());
        }
    }

    // The index belongs to certain pages, all of them here; it is made when that comes true. Returns
    // whether the pages are not those of before.
    fn follow_pages(&mut self) -> bool {
        let pages = self.member.pages().filter(|_| self.member.complete());
        let generation = pages.map(|p| p.generation());
        if generation == self.indexed {
            return false;
        }
        self.kv = pages.map(Kv::scan).unwrap_or_default();
        self.indexed = generation;
        true
    }

    fn follow_role(&mut self, anew: bool, out: &mut BucketEffects) {
        let serving = self.serving();
        if self.was_serving && !serving {
            // Its chunks are found, and given back, by whoever serves next.
            if let Some(large) = self.large.take() {
                out.answers.push((large.token(), Err(Refused::NotServing)));
            }
            self.orphans.clear();
        }
        // A data bucket that stays the data bucket keeps everything up to the cut, so whoever waits for
        // the copies waits on. Anybody else's successor knows the requests; the client asks there.
        if anew || (!serving && !self.chosen) {
            let interrupted = self.waiters.drain();
            out.answers.extend(
                interrupted
                    .into_iter()
                    .map(|t| (t, Err(Refused::Interrupted))),
            );
            self.unstable.clear();
        }
        if !serving && !self.chosen {
            let parked = self.queue.take();
            out.answers.extend(
                parked
                    .into_iter()
                    .map(|p| (p.ask.token, Err(Refused::NotServing))),
            );
        }
        if serving && (anew || !self.was_serving) {
            self.kv.segments.reopen();
            self.orphans = self.kv.segments.unnamed_chunks();
            self.room = Room::default();
        }
        self.was_serving = serving;
    }
}
