//! Operations on the bytes, and the deltas that they become.

use bytes::{Bytes, BytesMut};
use staves_group::{Effects, ReadError};
use staves_model::mutant::{Mutant, planted};
use staves_model::{CHUNK_BYTES, PAGE_BYTES, REGION_BUCKET_BYTES, Time};
use staves_service::{BucketContext, Growth, OpHeader, Outcome, Refused};
use staves_wire::ErrorCode;
use staves_wire::group::{Run, RunKind};
use staves_wire::memory::Action;
use staves_wire::service::Answer;

use crate::chunks;
use crate::memory::Memory;

/// Most extents that are requested beyond those needed now, so that a long write need not wait for each.
const AHEAD_MAX: u32 = 16;

/// The error of an operation that no bucket would take.
pub(crate) fn malformed(action: &Action) -> Option<Answer> {
    let (offset, len) = action.range();
    let word = matches!(action, Action::CompareSwap { .. } | Action::FetchAdd { .. });
    let wrong = if len == 0 {
        "it touches 0 bytes"
    } else if offset
        .checked_add(len)
        .is_none_or(|end| end > REGION_BUCKET_BYTES)
    {
        "it lies beyond the data bucket's end"
    } else if offset % CHUNK_BYTES + len > CHUNK_BYTES {
        "it leaves its chunk"
    } else if word && !offset.is_multiple_of(8) {
        "its word does not begin at a multiple of 8"
    } else {
        return None;
    };
    let text = format!("an operation on {len} bytes at offset {offset} of a data bucket: {wrong}");
    Some(Answer::error(ErrorCode::Malformed, text))
}

impl Memory {
    /// Executes an operation that is well formed, at a bucket that serves.
    pub(crate) fn execute_action(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        header: &OpHeader,
        action: &Action,
        effects: &mut Effects,
    ) -> Outcome {
        if action.is_write()
            && let Some(again) = context.recall(header)
        {
            return again;
        }
        let (offset, len) = action.range();
        let is_lost = context.member().is_lost();
        if action.is_write() && is_lost {
            return Outcome::at_once(lost());
        }
        // Pages that a lost group lacks may never come: that is answered at once.
        let missing = match is_lost && !planted(Mutant::LostReadWaits) {
            true => Outcome::at_once(lost()),
            false => Outcome::Blocked { starved: false },
        };
        if context.lacks(now, table(), effects) {
            return missing;
        }
        let pages = context.member().pages();
        let place = pages.and_then(|pages| chunks::place_of(pages, chunks::chunk_of(offset)));
        if let Some(place) = place
            && context.lacks(now, run(chunks::at(place, offset), len), effects)
        {
            return missing;
        }
        let (bytes, answer) = match action {
            Action::Read { .. } => return self.read(context, now, place, offset, len),
            Action::Write { bytes, .. } | Action::Load { bytes, .. } => (bytes.clone(), Answer::Ok),
            Action::CompareSwap { expected, new, .. } => {
                let old = word(context, place, offset);
                let answer = Answer::Int(old as i64);
                if old != *expected {
                    return context.record(header, answer, context.member().last());
                }
                (Bytes::copy_from_slice(&new.to_le_bytes()), answer)
            }
            Action::FetchAdd { by, .. } => {
                let old = word(context, place, offset);
                let new = old.wrapping_add(*by).to_le_bytes();
                (Bytes::copy_from_slice(&new), Answer::Int(old as i64))
            }
        };
        let outcome = write(context, now, header, place, offset, &bytes, answer, effects);
        let written = |outcome: &Outcome| matches!(outcome, Outcome::Answer { .. });
        self.stats.writes += u64::from(written(&outcome));
        outcome
    }

    fn read(
        &mut self,
        context: &BucketContext,
        now: Time,
        place: Option<u16>,
        offset: u64,
        len: u64,
    ) -> Outcome {
        let member = context.member();
        let mut bytes = Vec::new();
        let read = match place {
            Some(place) => {
                let at = chunks::at(place, offset);
                member.read(now, at, len as u32, &mut bytes)
            }
            None if !member.may_read(now) => Err(match member.is_lost() {
                true => ReadError::Lost,
                false => ReadError::NoLease,
            }),
            None => {
                bytes.resize(len as usize, 0);
                Ok(0)
            }
        };
        match read {
            Ok(seq) => {
                self.stats.reads += 1;
                let seq = if planted(Mutant::ReadShowsUnstable) {
                    0
                } else {
                    seq
                };
                Outcome::read(seq, Answer::Value(bytes.into()))
            }
            Err(ReadError::Missing { .. } | ReadError::NoLease) => {
                Outcome::Blocked { starved: false }
            }
            Err(ReadError::Lost) => Outcome::at_once(lost()),
            Err(ReadError::NotServing) => Outcome::Refuse(Refused::NotServing),
        }
    }
}

fn word(context: &BucketContext, place: Option<u16>, offset: u64) -> u64 {
    let (Some(place), Some(pages)) = (place, context.member().pages()) else {
        return 0;
    };
    let word = pages.slice(chunks::at(place, offset), 8);
    u64::from_le_bytes(word.try_into().expect("a slice of eight"))
}

/// Makes one delta: the bytes, and the chunk's place if it has none yet. Nothing has changed if it stops.
#[allow(clippy::too_many_arguments)] // the request's parts, borrowed one by one
fn write(
    context: &mut BucketContext,
    now: Time,
    header: &OpHeader,
    place: Option<u16>,
    offset: u64,
    bytes: &[u8],
    answer: Answer,
    effects: &mut Effects,
) -> Outcome {
    let taken = place.is_some();
    let next = || context.member().pages().map_or(1, chunks::next_place);
    let place = place.unwrap_or_else(next);
    let target = run(chunks::at(place, offset), bytes.len() as u64);
    // A new place was never written here, but perhaps at another data bucket of the group.
    if context.lacks(now, target, effects) {
        return Outcome::Blocked { starved: true };
    }
    // A new member reports first what it has reserved: until then the memory of a place that is taken counts
    // as lacking too.
    match grow(context, now, chunks::extents_upto(place)) {
        Growth::Granted => {}
        Growth::Refused if !taken => {
            return context.record(header, out_of_memory(), context.member().last());
        }
        Growth::Pending | Growth::Refused if taken && planted(Mutant::OldPlaceNeedsNoMemory) => {}
        Growth::Pending | Growth::Refused => return Outcome::Blocked { starved: true },
    }
    let mut runs = Vec::with_capacity(2);
    let mut all = BytesMut::with_capacity(bytes.len() + 2);
    if !taken {
        let (run, entry) = chunks::entry(chunks::chunk_of(offset), place);
        runs.push(run);
        all.extend_from_slice(&entry);
    }
    runs.push(target);
    all.extend_from_slice(bytes);
    match context.make(header, &answer, runs, all.freeze()) {
        Ok(seq) => Outcome::write(seq, answer),
        Err(stop) => stop.outcome(out_of_memory),
    }
}

/// Requests so many extents in all, and an eighth more, so that a long write need not wait for each.
fn grow(context: &mut BucketContext, now: Time, need: u32) -> Growth {
    let ahead = need + (need / 8).clamp(1, AHEAD_MAX);
    context.grow(now, need, ahead, ahead)
}

fn run(offset: u64, len: u64) -> Run {
    Run {
        offset,
        len: len as u32,
        kind: RunKind::Bytes,
    }
}

/// The table's page.
fn table() -> Run {
    run(
        u64::from(chunks::TABLE_PAGE) * PAGE_BYTES as u64,
        PAGE_BYTES as u64,
    )
}

fn lost() -> Answer {
    Answer::error(
        ErrorCode::Lost,
        "the group is lost: more of its nodes failed than its scheme bears",
    )
}

fn out_of_memory() -> Answer {
    Answer::error(
        ErrorCode::OutOfMemory,
        "the pool's memory is used up on a node that holds these bytes: delete a region, or give the pool more with 'staves pool set NAME --memory SIZE'",
    )
}
