//! Writes become deltas: a place for its record, memory for the place, room in the log.

use std::borrow::Cow;

use bytes::Bytes;
use staves_model::Time;
use staves_model::mutant::{Mutant, planted};
use staves_service::{
    BucketContext, BucketEffects, Growth, KeyHash, OpHeader, Outcome, UpdateError,
};
use staves_wire::error::ErrorCode;
use staves_wire::group::{RequestId, RunKind};
use staves_wire::service::Answer;

use crate::cache::Cache;
use crate::compact::{self, Aim};
use crate::edit::Edit;
use crate::kv::{Kv, RecordPlace};
use crate::large::LargeWrite;
use crate::record::{self, SEGMENT_ROOM};
use crate::segments::SegmentPlace;

/// Compactions that one operation may cause before it waits for the next step.
const COMPACTIONS_PER_OPERATION: usize = 4;
/// Empty segments that one delta gives back beside what it is made for.
const EMPTY_PER_DELTA: usize = 8;
/// Chunks that one delta gives back.
const ORPHANS_PER_DELTA: usize = 256;
/// Extents reserved and not used that a bucket does not bother to give back.
const SPARE_EXTENTS: u32 = 8;

/// The key that a write is about, and the record that it has.
#[derive(Clone, Copy)]
pub(crate) struct NewValue<'a> {
    pub key_hash: KeyHash,
    pub key: &'a [u8],
    pub old: Option<RecordPlace>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Compacted {
    Done,
    LogFull,
    Useless,
}

impl Cache {
    /// Gives a key a value: at once if it is small, as a large write otherwise.
    #[allow(clippy::too_many_arguments)] // the request's parts, borrowed one by one
    pub(crate) fn write(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        header: &OpHeader,
        new: NewValue<'_>,
        value: Cow<'_, [u8]>,
        answer: Answer,
        out: &mut BucketEffects,
    ) -> Outcome {
        let inline_max = self.options.inline_bytes_max.min(SEGMENT_ROOM);
        if record::size(new.key.len(), value.len()) <= inline_max {
            return match self.put(context, now, header, new, false, &[&value], &answer) {
                Ok(seq) => Outcome::write(seq, answer),
                Err(stop) => stop.outcome(out_of_memory),
            };
        }
        if self.large.is_some() {
            return Outcome::Blocked { starved: false };
        }
        self.large = Some(LargeWrite::new(
            &self.options,
            *header,
            new.key_hash,
            new.key,
            value,
            answer,
        ));
        self.advance_large(context, now, out);
        Outcome::Later
    }

    /// One delta: the new record, in the place of the old one or beside its end. Nothing has changed if it stops.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn put(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        header: &OpHeader,
        mut new: NewValue<'_>,
        large: bool,
        body: &[&[u8]],
        answer: &Answer,
    ) -> Result<u64, UpdateError> {
        let (key, body_len) = (new.key, body.iter().map(|part| part.len()).sum());
        let size = record::size(key.len(), body_len);
        let over = new
            .old
            .filter(|old| !large && can_be_written_over(old, size));
        let place = match over {
            Some(old) => SegmentPlace::Over(old.offset, old.bytes),
            None => match self.kv.segments.place(size) {
                Some(place) => place,
                None => {
                    let place = self.make_place(context, now, size)?;
                    // Compaction may have moved it.
                    new.old = self.find_place(context, new.key_hash, key);
                    place
                }
            },
        };
        let ends = new.old.filter(|_| over.is_none());
        let mut edit = std::mem::take(&mut self.spare_edit);
        let offset = edit.put(place, key, large, body, ends.is_some());
        if let Some(old) = ends {
            end_old(context, &old, &mut edit)?;
        }
        let any_large = large || new.old.is_some_and(|old| old.large);
        let plain = !any_large && !matches!(place, SegmentPlace::Fresh(_));
        let known = RecordPlace {
            offset,
            bytes: over.map_or(size, |old| old.bytes),
            size,
            payload: (key.len() + body_len) as u64,
            large,
        };
        let seq = self.make(context, header, new, edit, plain.then_some(known), answer)?;
        self.stats.in_place += u64::from(over.is_some());
        if let SegmentPlace::Fresh(segment) = place {
            self.kv.segments.open(segment);
        }
        Ok(seq)
    }

    /// Takes a key's value away.
    pub(crate) fn remove(
        &mut self,
        context: &mut BucketContext,
        header: &OpHeader,
        gone: NewValue<'_>,
        answer: Answer,
    ) -> Outcome {
        let mut edit = Edit::default();
        let ended = match &gone.old {
            Some(old) => end_old(context, old, &mut edit),
            None => Ok(()),
        };
        let made = ended.and_then(|()| self.make(context, header, gone, edit, None, &answer));
        match made {
            Ok(seq) => Outcome::write(seq, answer),
            Err(stop) => stop.outcome(out_of_memory),
        }
    }

    /// The place of a key's record.
    pub(crate) fn find_place(
        &self,
        context: &BucketContext,
        key_hash: KeyHash,
        key: &[u8],
    ) -> Option<RecordPlace> {
        let found = self.kv.find(context.member().pages()?, key_hash, key)?;
        Some(found.place)
    }

    /// `known`: the one record that it puts, if what [`Kv::put`] says is true of it.
    fn make(
        &mut self,
        context: &mut BucketContext,
        header: &OpHeader,
        NewValue { key_hash, old, .. }: NewValue<'_>,
        mut edit: Edit,
        known: Option<RecordPlace>,
        answer: &Answer,
    ) -> Result<u64, UpdateError> {
        let kept = BucketContext::kept(header, answer);
        let empty = self.kv.segments.take_empty(EMPTY_PER_DELTA);
        edit.zero(empty.iter().copied());
        if let Err(stop) = context.admit(edit.runs.len(), edit.bytes.len(), kept.len()) {
            self.kv.segments.put_back_empty(empty);
            return Err(stop);
        }
        // Of segments that are given back only `note` keeps the books.
        let zeroes = edit.runs.iter().any(|r| r.kind == RunKind::Zero);
        match known.filter(|_| !zeroes) {
            Some(new) => self.kv.put(key_hash, new, old),
            None => self.note_own(context, &edit),
        }
        let seq = self.commit(context, header.request, kept, edit);
        context.wrote(key_hash, seq);
        self.stats.writes += 1;
        Ok(seq)
    }

    /// Makes a delta of an edit on the service's own account, if the log has room.
    pub(crate) fn commit_own(
        &mut self,
        context: &mut BucketContext,
        edit: Edit,
    ) -> Result<(), UpdateError> {
        context.admit(edit.runs.len(), edit.bytes.len(), 0)?;
        self.note_own(context, &edit);
        self.commit(context, None, Bytes::new(), edit);
        Ok(())
    }

    fn note_own(&mut self, context: &BucketContext, edit: &Edit) {
        if let Some(pages) = context.member().pages() {
            self.kv.note(pages, &edit.runs, &edit.bytes);
        }
    }

    /// The one place where deltas are made. The log has admitted it, and the index knows of it.
    fn commit(
        &mut self,
        context: &mut BucketContext,
        request: Option<RequestId>,
        kept: Bytes,
        mut edit: Edit,
    ) -> u64 {
        let seq = context.commit_from(request, kept, &mut edit.runs, &mut edit.bytes);
        self.spare_edit = edit.emptied();
        seq
    }

    /// A place for a record of so many bytes that no open segment has room for, all its memory reserved at every member.
    fn make_place(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        bytes: usize,
    ) -> Result<SegmentPlace, UpdateError> {
        // Waste is taken back at the pace at which new segments are begun.
        if self.is_untidy() {
            self.compact(context, Aim::Tidy);
        }
        for _ in 0..=COMPACTIONS_PER_OPERATION {
            if let Some(place) = self.kv.segments.place(bytes) {
                return Ok(place);
            }
            match grow(context, now, 1) {
                Growth::Granted => {
                    return self
                        .kv
                        .segments
                        .fresh()
                        .map(SegmentPlace::Fresh)
                        .ok_or(UpdateError::Full);
                }
                Growth::Pending => return Err(UpdateError::Blocked),
                Growth::Refused => self.compact_or_stop(context, Aim::SegmentPlace(bytes))?,
            }
        }
        Err(UpdateError::Blocked)
    }

    /// Makes sure of so many further extents, by compaction if need be.
    pub(crate) fn make_room(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        extents: u32,
    ) -> Result<(), UpdateError> {
        for _ in 0..=COMPACTIONS_PER_OPERATION {
            match grow(context, now, extents) {
                Growth::Granted => return Ok(()),
                Growth::Pending => return Err(UpdateError::Blocked),
                Growth::Refused => self.compact_or_stop(context, Aim::Extent)?,
            }
        }
        Err(UpdateError::Blocked)
    }

    fn compact_or_stop(
        &mut self,
        context: &mut BucketContext,
        aim: Aim,
    ) -> Result<(), UpdateError> {
        match self.compact(context, aim) {
            Compacted::Done => Ok(()),
            Compacted::LogFull => Err(UpdateError::Blocked),
            Compacted::Useless => Err(UpdateError::Full),
        }
    }

    fn is_untidy(&self) -> bool {
        let (waste, logs) = (self.kv.segments.waste(), u64::from(self.kv.segments.logs()));
        let held = logs * SEGMENT_ROOM as u64;
        waste >= SEGMENT_ROOM as u64 && waste * 100 > held * self.options.waste_percent_max
    }

    fn compact(&mut self, context: &mut BucketContext, aim: Aim) -> Compacted {
        let Some(pages) = context.member().pages() else {
            return Compacted::Useless;
        };
        let plan = compact::plan(&self.kv, pages, aim, self.options.compaction_bytes_max);
        let Some(compaction) = plan else {
            return Compacted::Useless;
        };
        if self.commit_own(context, compaction.edit).is_err() {
            return Compacted::LogFull;
        }
        self.stats.compactions += 1;
        for target in compaction.targets {
            self.kv.segments.open(target);
        }
        Compacted::Done
    }

    /// A bounded part of the housekeeping that no write has done.
    pub(crate) fn housekeeping(&mut self, context: &mut BucketContext, now: Time) -> bool {
        if self.kv.segments.has_empty() {
            self.give_back_empty(context);
        }
        if self.is_untidy() {
            self.compact(context, Aim::Tidy);
        }
        let (used, next) = (context.used_extents(), context.used_extents() + 1);
        let member = context.member();
        let (usable, wanted) = (member.usable_extents(), member.wanted_extents());
        let settled = member.stable() == member.last() && self.large.is_none();
        let lacks = usable <= used && wanted <= used;
        let spare = usable > used + SPARE_EXTENTS;
        let asks = lacks && !context.is_refused(now, next);
        let gives = spare && settled && !context.is_refused(now, 0);
        if asks || gives {
            context.member_mut().want_extents(next);
        }
        lacks || spare || self.kv.segments.has_empty() || self.is_untidy()
    }

    fn give_back_empty(&mut self, context: &mut BucketContext) {
        let empty = self.kv.segments.take_empty(ORPHANS_PER_DELTA);
        let mut edit = Edit::default();
        edit.zero(empty.iter().copied());
        if !edit.runs.is_empty() && self.commit_own(context, edit).is_err() {
            self.kv.segments.put_back_empty(empty);
        }
    }

    /// Gives back the chunks of large values that were given up.
    pub(crate) fn give_back_orphans(&mut self, context: &mut BucketContext) {
        self.orphans_wait = false;
        while !self.orphans.is_empty() {
            let rest = self.orphans.len().saturating_sub(ORPHANS_PER_DELTA);
            let mut edit = Edit::default();
            edit.zero(self.orphans[rest..].iter().copied());
            if self.commit_own(context, edit).is_err() {
                self.orphans_wait = true;
                return;
            }
            self.orphans.truncate(rest);
        }
    }
}

/// Returns whether the record of a small value that takes so many bytes is written over this one.
fn can_be_written_over(old: &RecordPlace, size: usize) -> bool {
    let beyond = planted(Mutant::WrittenBeyondItsPlace) && size <= 2 * old.bytes;
    !old.large && (record::fits_over(old.bytes, size) || beyond)
}

/// Marks a record dead, and gives its chunks back.
fn end_old(context: &BucketContext, old: &RecordPlace, edit: &mut Edit) -> Result<(), UpdateError> {
    edit.kill(old.offset);
    if old.large {
        let pages = context.member().pages().ok_or(UpdateError::NotServing)?;
        edit.zero(Kv::chunks_of(pages, old.offset));
    }
    Ok(())
}

/// Requests so many extents beyond those in use, and one more when they are just enough, so that the next
/// segment need not wait.
fn grow(context: &mut BucketContext, now: Time, extents: u32) -> Growth {
    let need = context.used_extents().saturating_add(extents);
    context.grow(now, need, need, need.saturating_add(1))
}

/// Redis's own words for a full memory.
pub(crate) fn out_of_memory() -> Answer {
    Answer::error(
        ErrorCode::OutOfMemory,
        "OOM command not allowed when used memory > 'maxmemory'.",
    )
}
