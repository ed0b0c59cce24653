//! How a write becomes a delta: a place for its record, memory for the place, room in the log.

use std::borrow::Cow;

use bytes::Bytes;
use staves_model::Time;
use staves_wire::cache::Answer;
use staves_wire::group::RequestId;

use crate::answer::{self, Refused};
use crate::bucket::{Bucket, BucketEffects, Outcome};
use crate::compact::{self, Aim};
use crate::edit::Edit;
use crate::index::Tag;
use crate::kv::Kv;
use crate::large::LargeWrite;
use crate::record::{self, SEGMENT_ROOM};
use crate::segments::Place;
use crate::waiting::Ask;

/// Compactions that one operation may cause before it waits for the next step.
const COMPACTIONS_PER_OPERATION: usize = 4;
/// Empty segments that one delta gives back beside what it is made for.
const EMPTY_PER_DELTA: usize = 8;
/// Chunks that one delta gives back.
const ORPHANS_PER_DELTA: usize = 256;
/// Extents reserved and not used that a bucket does not bother to give back.
const SPARE_EXTENTS: u32 = 8;

/// What is known of the memory that was asked for.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Asked for and not granted since.
    asked: Option<Time>,
    /// So many extents were refused, and are not asked for again until then.
    refused: Option<(u32, Time)>,
}

/// Whether memory can be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Growth {
    Granted,
    Pending,
    Refused,
}

/// Why a write stops before it changed anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// Until the log or the memory has room.
    Blocked,
    /// There is no memory.
    Full,
    /// Not the data bucket any more.
    NotServing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Compacted {
    Done,
    LogFull,
    Useless,
}

impl From<staves_group::Refused> for Stop {
    fn from(refused: staves_group::Refused) -> Stop {
        match refused {
            staves_group::Refused::Busy => Stop::Blocked,
            staves_group::Refused::NotServing => Stop::NotServing,
        }
    }
}

impl Stop {
    pub(crate) fn outcome(self) -> Outcome {
        match self {
            Stop::Blocked => Outcome::Blocked { starved: true },
            Stop::Full => Outcome::Answer {
                seq: 0,
                answer: answer::out_of_memory(),
                read: false,
            },
            Stop::NotServing => Outcome::Refuse(Refused::NotServing),
        }
    }
}

impl Bucket {
    /// Gives a key a value: at once if it is small, as a large write otherwise.
    #[allow(clippy::too_many_arguments)] // the request's parts, borrowed one by one
    pub(crate) fn write(
        &mut self,
        now: Time,
        ask: &Ask,
        tag: Tag,
        key: &[u8],
        value: Cow<'_, [u8]>,
        answer: Answer,
        out: &mut BucketEffects,
    ) -> Outcome {
        let inline_max = self.options.inline_bytes_max.min(SEGMENT_ROOM);
        if record::size(key.len(), value.len()) <= inline_max {
            return match self.put(now, ask, tag, key, false, &[&value], &answer) {
                Ok(seq) => Outcome::Answer {
                    seq,
                    answer,
                    read: false,
                },
                Err(stop) => stop.outcome(),
            };
        }
        if self.large.is_some() {
            return Outcome::Blocked { starved: false };
        }
        self.large = Some(LargeWrite::new(
            &self.options,
            *ask,
            tag,
            key,
            value,
            answer,
        ));
        self.advance_large(now, out);
        Outcome::Later
    }

    /// One delta: the new record, and the end of the old one. Nothing has changed if it stops.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn put(
        &mut self,
        now: Time,
        ask: &Ask,
        tag: Tag,
        key: &[u8],
        large: bool,
        body: &[&[u8]],
        answer: &Answer,
    ) -> Result<u64, Stop> {
        let body_len = body.iter().map(|part| part.len()).sum();
        let place = self.place(now, record::size(key.len(), body_len))?;
        let mut edit = Edit::default();
        edit.put(place, key, large, body);
        self.end_old(tag, key, &mut edit)?;
        let seq = self.make(ask, tag, edit, answer)?;
        if let Place::Fresh(segment) = place {
            self.kv.segments.open(segment);
        }
        Ok(seq)
    }

    /// An answer to a write that changed nothing: a delta without bytes brings it to the copies (I9).
    pub(crate) fn keep(&mut self, ask: &Ask, answer: Answer) -> Outcome {
        let kept = answer::keep(&answer);
        if let Err(refused) = self.member.admit(Edit::default().weight(kept.len())) {
            return Stop::from(refused).outcome();
        }
        Outcome::Answer {
            seq: self.commit(ask.request, kept, Edit::default()),
            answer,
            read: false,
        }
    }

    /// Takes a key's value away.
    pub(crate) fn remove(&mut self, ask: &Ask, tag: Tag, key: &[u8], answer: Answer) -> Outcome {
        let mut edit = Edit::default();
        let made = self
            .end_old(tag, key, &mut edit)
            .and_then(|()| self.make(ask, tag, edit, &answer));
        match made {
            Ok(seq) => Outcome::Answer {
                seq,
                answer,
                read: false,
            },
            Err(stop) => stop.outcome(),
        }
    }

    fn end_old(&self, tag: Tag, key: &[u8], edit: &mut Edit) -> Result<(), Stop> {
        let pages = self.member.pages().ok_or(Stop::NotServing)?;
        if let Some(old) = self.kv.find(pages, tag, key) {
            edit.kill(old.offset);
            edit.zero(Kv::chunks_of(pages, old.offset));
        }
        Ok(())
    }

    fn make(&mut self, ask: &Ask, tag: Tag, mut edit: Edit, answer: &Answer) -> Result<u64, Stop> {
        let kept = if ask.request.is_some() {
            answer::keep(answer)
        } else {
            Bytes::new()
        };
        let empty = self.kv.segments.take_empty(EMPTY_PER_DELTA);
        edit.zero(empty.iter().copied());
        if let Err(refused) = self.member.admit(edit.weight(kept.len())) {
            self.kv.segments.put_back_empty(empty);
            return Err(refused.into());
        }
        let seq = self.commit(ask.request, kept, edit);
        if seq > self.member.stable() {
            self.unstable.insert(tag, seq);
        }
        self.stats.writes += 1;
        Ok(seq)
    }

    /// The one place where deltas are made. The member has admitted it.
    pub(crate) fn commit(&mut self, request: Option<RequestId>, answer: Bytes, edit: Edit) -> u64 {
        if let Some(pages) = self.member.pages() {
            self.kv.note(pages, &edit.runs, &edit.bytes);
        }
        self.unflushed = true;
        self.member
            .update(request, answer, edit.runs, Bytes::from(edit.bytes))
    }

    /// A place for a record of so many bytes, all its memory reserved at every member.
    fn place(&mut self, now: Time, bytes: usize) -> Result<Place, Stop> {
        if let Some(place) = self.kv.segments.place(bytes) {
            return Ok(place);
        }
        // Waste is taken back at the pace at which new segments are begun.
        if self.is_untidy() {
            self.compact(Aim::Tidy);
        }
        for _ in 0..=COMPACTIONS_PER_OPERATION {
            if let Some(place) = self.kv.segments.place(bytes) {
                return Ok(place);
            }
            match self.grow(now, 1) {
                Growth::Granted => {
                    return self.kv.segments.fresh().map(Place::Fresh).ok_or(Stop::Full);
                }
                Growth::Pending => return Err(Stop::Blocked),
                Growth::Refused => self.compact_or_stop(Aim::Place(bytes))?,
            }
        }
        Err(Stop::Blocked)
    }

    /// Makes sure of so many further extents, by compaction if need be.
    pub(crate) fn make_room(&mut self, now: Time, extents: u32) -> Result<(), Stop> {
        for _ in 0..=COMPACTIONS_PER_OPERATION {
            match self.grow(now, extents) {
                Growth::Granted => return Ok(()),
                Growth::Pending => return Err(Stop::Blocked),
                Growth::Refused => self.compact_or_stop(Aim::Extent)?,
            }
        }
        Err(Stop::Blocked)
    }

    fn compact_or_stop(&mut self, aim: Aim) -> Result<(), Stop> {
        match self.compact(aim) {
            Compacted::Done => Ok(()),
            Compacted::LogFull => Err(Stop::Blocked),
            Compacted::Useless => Err(Stop::Full),
        }
    }

    /// Asks for so many extents beyond those in use. All members have them, or will say, or lack them.
    fn grow(&mut self, now: Time, extents: u32) -> Growth {
        let used = self.used();
        let need = used.saturating_add(extents);
        let usable = self.member.usable_extents();
        if usable >= need {
            self.room.asked = None;
            // One ahead, so that the next segment need not wait.
            if usable == need
                && self.member.wanted_extents() <= need
                && !self.is_refused(now, need + 1)
            {
                self.member.want_extents(need + 1);
            }
            return Growth::Granted;
        }
        if self.is_refused(now, need) {
            return Growth::Refused;
        }
        // A wish is only raised until it is refused. Were it changed back and forth between two writes,
        // each step would tell all copies, and each of their answers is a step.
        if self.member.wanted_extents() < need {
            self.wish(now, need);
        }
        if self.member.usable_extents() >= need {
            self.room.asked = None;
            return Growth::Granted;
        }
        let wish = self.member.wanted_extents();
        let here = self.member.pages().map_or(0, |p| p.reserved());
        let since = *self.room.asked.get_or_insert(now);
        // A copy that is behind has not refused: it will answer, or be removed.
        let behind = self.member.stable() < self.member.last();
        if here >= wish && (behind || now.since(since) < self.options.grant_wait) {
            return Growth::Pending;
        }
        self.room.refused = Some((wish, now + self.options.refused_for));
        if wish > need {
            // Somebody wished for more than there is; this may still be had.
            self.wish(now, need);
            return Growth::Pending;
        }
        // Wanting on would keep the members trying for what is not there.
        self.member.want_extents(usable.max(used));
        self.room.asked = None;
        Growth::Refused
    }

    fn wish(&mut self, now: Time, extents: u32) {
        self.member.want_extents(extents);
        self.unflushed = true;
        self.room.asked = Some(now);
    }

    fn is_refused(&self, now: Time, need: u32) -> bool {
        self.room
            .refused
            .is_some_and(|(refused, until)| need >= refused && now < until)
    }

    fn used(&self) -> u32 {
        self.member.pages().map_or(0, |p| p.used())
    }

    fn is_untidy(&self) -> bool {
        let (waste, logs) = (self.kv.segments.waste(), u64::from(self.kv.segments.logs()));
        let held = logs * SEGMENT_ROOM as u64;
        waste >= SEGMENT_ROOM as u64 && waste * 100 > held * self.options.waste_percent_max
    }

    fn compact(&mut self, aim: Aim) -> Compacted {
        let Some(pages) = self.member.pages() else {
            return Compacted::Useless;
        };
        let plan = compact::plan(&self.kv, pages, aim, self.options.compaction_bytes_max);
        let Some(compaction) = plan else {
            return Compacted::Useless;
        };
        if self.member.admit(compaction.edit.weight(0)).is_err() {
            return Compacted::LogFull;
        }
        self.commit(None, Bytes::new(), compaction.edit);
        self.stats.compactions += 1;
        for target in compaction.targets {
            self.kv.segments.open(target);
        }
        Compacted::Done
    }

    /// On each tick: a bounded part of the housekeeping that no write has done.
    pub(crate) fn tidy(&mut self, now: Time) {
        if self.kv.segments.has_empty() {
            self.give_back_empty();
        }
        if self.is_untidy() {
            self.compact(Aim::Tidy);
        }
        let (used, usable) = (self.used(), self.member.usable_extents());
        if usable <= used && self.member.wanted_extents() <= used && !self.is_refused(now, used + 1)
        {
            self.member.want_extents(used + 1);
        }
        let settled = self.member.stable() == self.member.last() && self.large.is_none();
        if settled && usable > used + SPARE_EXTENTS && !self.is_refused(now, 0) {
            self.member.want_extents(used + 1);
        }
    }

    fn give_back_empty(&mut self) {
        let empty = self.kv.segments.take_empty(ORPHANS_PER_DELTA);
        let mut edit = Edit::default();
        edit.zero(empty.iter().copied());
        if edit.runs.is_empty() {
            return;
        }
        if self.member.admit(edit.weight(0)).is_ok() {
            self.commit(None, Bytes::new(), edit);
        } else {
            self.kv.segments.put_back_empty(empty);
        }
    }

    /// Gives back the chunks of large values that were given up.
    pub(crate) fn give_back_orphans(&mut self) {
        self.orphans_wait = false;
        while !self.orphans.is_empty() {
            let rest = self.orphans.len().saturating_sub(ORPHANS_PER_DELTA);
            let mut edit = Edit::default();
            edit.zero(self.orphans[rest..].iter().copied());
            if self.member.admit(edit.weight(0)).is_err() {
                self.orphans_wait = true;
                return;
            }
            self.orphans.truncate(rest);
            self.commit(None, Bytes::new(), edit);
        }
    }
}
