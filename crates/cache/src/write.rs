//! Writes become deltas: a place for its record, memory for the place, room in the log.

use std::borrow::Cow;

use bytes::Bytes;
use staves_model::Time;
use staves_service::{
    BucketContext, BucketEffects, Growth, KeyHash, OpHeader, Outcome, UpdateError,
};
use staves_wire::error::ErrorCode;
use staves_wire::group::RequestId;
use staves_wire::service::Answer;

use crate::cache::Cache;
use crate::compact::{self, Aim};
use crate::edit::Edit;
use crate::kv::Kv;
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
        key_hash: KeyHash,
        key: &[u8],
        value: Cow<'_, [u8]>,
        answer: Answer,
        out: &mut BucketEffects,
    ) -> Outcome {
        let inline_max = self.options.inline_bytes_max.min(SEGMENT_ROOM);
        if record::size(key.len(), value.len()) <= inline_max {
            return match self.put(
                context,
                now,
                header,
                key_hash,
                key,
                false,
                &[&value],
                &answer,
            ) {
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
            key_hash,
            key,
            value,
            answer,
        ));
        self.advance_large(context, now, out);
        Outcome::Later
    }

    /// One delta: the new record, and the end of the old one. Nothing has changed if it stops.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn put(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        header: &OpHeader,
        key_hash: KeyHash,
        key: &[u8],
        large: bool,
        body: &[&[u8]],
        answer: &Answer,
    ) -> Result<u64, UpdateError> {
        let body_len = body.iter().map(|part| part.len()).sum();
        let place = self.place(context, now, record::size(key.len(), body_len))?;
        let mut edit = Edit::default();
        edit.put(place, key, large, body);
        self.end_old(context, key_hash, key, &mut edit)?;
        let seq = self.make(context, header, key_hash, edit, answer)?;
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
        key_hash: KeyHash,
        key: &[u8],
        answer: Answer,
    ) -> Outcome {
        let mut edit = Edit::default();
        let made = self
            .end_old(context, key_hash, key, &mut edit)
            .and_then(|()| self.make(context, header, key_hash, edit, &answer));
        match made {
            Ok(seq) => Outcome::write(seq, answer),
            Err(stop) => stop.outcome(out_of_memory),
        }
    }

    fn end_old(
        &self,
        context: &BucketContext,
        key_hash: KeyHash,
        key: &[u8],
        edit: &mut Edit,
    ) -> Result<(), UpdateError> {
        let pages = context.member().pages().ok_or(UpdateError::NotServing)?;
        if let Some(old) = self.kv.find(pages, key_hash, key) {
            edit.kill(old.offset);
            edit.zero(Kv::chunks_of(pages, old.offset));
        }
        Ok(())
    }

    fn make(
        &mut self,
        context: &mut BucketContext,
        header: &OpHeader,
        key_hash: KeyHash,
        mut edit: Edit,
        answer: &Answer,
    ) -> Result<u64, UpdateError> {
        let kept = BucketContext::kept(header, answer);
        let empty = self.kv.segments.take_empty(EMPTY_PER_DELTA);
        edit.zero(empty.iter().copied());
        if let Err(stop) = context.admit(edit.runs.len(), edit.bytes.len(), kept.len()) {
            self.kv.segments.put_back_empty(empty);
            return Err(stop);
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
        self.commit(context, None, Bytes::new(), edit);
        Ok(())
    }

    /// The one place where deltas are made. The log has admitted it.
    fn commit(
        &mut self,
        context: &mut BucketContext,
        request: Option<RequestId>,
        kept: Bytes,
        edit: Edit,
    ) -> u64 {
        if let Some(pages) = context.member().pages() {
            self.kv.note(pages, &edit.runs, &edit.bytes);
        }
        context.commit(request, kept, edit.runs, Bytes::from(edit.bytes))
    }

    /// A place for a record of so many bytes, all its memory reserved at every member.
    fn place(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        bytes: usize,
    ) -> Result<SegmentPlace, UpdateError> {
        if let Some(place) = self.kv.segments.place(bytes) {
            return Ok(place);
        }
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
