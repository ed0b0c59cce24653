//! A large value on its way in: chunks first, to segments that nothing names; then one small delta that
//! names them, and that is the write. Until then the key has its old value; if it comes to nothing, the
//! chunks are given back.

use std::borrow::Cow;

use bytes::Bytes;
use staves_model::Time;
use staves_model::mutant::{Mutant, planted};
use staves_service::{
    BucketContext, BucketEffects, KeyHash, OpHeader, Outcome, Refused, UpdateError,
};
use staves_wire::cache::Op;
use staves_wire::service::Answer;

use crate::Options;
use crate::cache::Cache;
use crate::command;
use crate::edit::Edit;
use crate::record::{self, LARGE_HEADER, SEGMENT_ROOM};
use crate::write::{NewValue, out_of_memory};

/// One large write. A bucket has one at a time; others wait their turn.
pub(crate) struct LargeWrite {
    header: OpHeader,
    key_hash: KeyHash,
    key: Bytes,
    value: Bytes,
    answer: Answer,
    chunk_bytes: usize,
    /// The number of chunks in the end; what remains of the value goes into the record.
    count: usize,
    chunks: Vec<u32>,
    /// There was no memory for it: that is the answer, once the log has room for it.
    full: bool,
    /// It cannot go on before the copies have said something.
    waits: bool,
}

enum Progress {
    More,
    Wait,
    /// There is no memory for it.
    Full,
    Done(u64, Answer),
    Failed(Refused),
}

impl LargeWrite {
    /// Cuts a value.
    pub(crate) fn new(
        options: &Options,
        header: OpHeader,
        key_hash: KeyHash,
        key: &[u8],
        value: Cow<'_, [u8]>,
        answer: Answer,
    ) -> LargeWrite {
        let chunk_bytes = options.chunk_bytes.clamp(1, SEGMENT_ROOM);
        let (full, tail) = (value.len() / chunk_bytes, value.len() % chunk_bytes);
        // The tail lies with the key, where it wastes no segment, if the record then still fits.
        let record = record::size(key.len(), LARGE_HEADER + 4 * full + tail);
        let inline = record <= options.inline_bytes_max.min(SEGMENT_ROOM) && full > 0;
        let count = if inline || tail == 0 { full } else { full + 1 };
        let (key, value) = (Bytes::copy_from_slice(key), command::owned(value));
        LargeWrite {
            header,
            key_hash,
            key,
            value,
            answer,
            chunk_bytes,
            count,
            chunks: Vec::new(),
            full: false,
            waits: false,
        }
    }

    pub(crate) fn key_hash(&self) -> KeyHash {
        self.key_hash
    }

    pub(crate) fn token(&self) -> u64 {
        self.header.token
    }

    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// The chunks that are written and not named yet.
    pub(crate) fn chunks(&self) -> &[u32] {
        &self.chunks
    }

    fn next_chunk(&self) -> Bytes {
        let from = self.chunks.len() * self.chunk_bytes;
        self.value
            .slice(from..self.value.len().min(from + self.chunk_bytes))
    }

    fn tail(&self) -> &[u8] {
        &self.value[self.value.len().min(self.count * self.chunk_bytes)..]
    }
}

impl Cache {
    /// Takes the large write in progress, if there is one, as far as log and memory let it.
    pub(crate) fn advance_large(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        out: &mut BucketEffects,
    ) {
        let Some(mut large) = self.large.take() else {
            return;
        };
        large.waits = false;
        for _ in 0..=self.options.chunks_per_step {
            let progress = if large.full {
                refuse_large(context, now, &large)
            } else if large.header.deadline <= now {
                Progress::Failed(Refused::Deadline)
            } else if large.chunks.len() < large.count {
                self.write_chunk(context, now, &mut large)
            } else {
                self.name_chunks(context, now, &large)
            };
            match progress {
                Progress::More => {}
                Progress::Wait => {
                    large.waits = true;
                    break;
                }
                Progress::Full => {
                    self.orphans.append(&mut large.chunks);
                    large.full = true;
                }
                Progress::Done(seq, answer) => {
                    let result = context.deliver(now, &large.header, seq, answer, false);
                    let result = result.transpose();
                    out.answers.extend(result.map(|r| (large.header.token, r)));
                    return;
                }
                Progress::Failed(why) => {
                    self.orphans.append(&mut large.chunks);
                    out.answers.push((large.header.token, Err(why)));
                    return;
                }
            }
        }
        self.large = Some(large);
    }

    /// A reason not to append to a large value now. It is copied first, which takes long: not in vain, nor for one refusal after the other.
    /// `kept`: the answer to it goes to the copies.
    pub(crate) fn stops_append(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        header: &OpHeader,
        key_hash: KeyHash,
        op: Op<'_>,
        kept: bool,
    ) -> Option<Outcome> {
        let Op::Append { key, value, .. } = op else {
            return None;
        };
        let old = self.kv.find(context.member().pages()?, key_hash, key)?;
        let bytes = old.value.len() + value.len();
        let inline_max = self.options.inline_bytes_max.min(SEGMENT_ROOM);
        if value.is_empty() || bytes > self.options.value_bytes_max || bytes <= inline_max {
            return None;
        }
        if self.large.is_some() {
            return Some(Outcome::Blocked { starved: false });
        }
        let chunk_bytes = self.options.chunk_bytes.clamp(1, SEGMENT_ROOM);
        let chunks = u32::try_from(bytes / chunk_bytes).unwrap_or(u32::MAX);
        let stop = self.make_room(context, now, chunks).err()?;
        Some(match stop.outcome(out_of_memory) {
            Outcome::Answer { answer: full, .. } if kept => context.record(header, full, 0),
            outcome => outcome,
        })
    }

    fn write_chunk(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        large: &mut LargeWrite,
    ) -> Progress {
        let chunk = large.next_chunk();
        // All that the value will need is requested before its first byte is written.
        let missing = (large.count - large.chunks.len()) as u32;
        if let Err(stop) = self.make_room(context, now, missing) {
            return stop.into();
        }
        let Some(segment) = self.kv.segments.fresh() else {
            return UpdateError::Full.into();
        };
        let last = large.chunks.len() + 1 == large.count;
        if last && planted(Mutant::LargeNamedBeforeWritten) {
            large.chunks.push(segment);
            return Progress::More;
        }
        let mut edit = Edit::default();
        edit.chunk(segment, &chunk);
        if let Err(stop) = self.commit_own(context, edit) {
            return stop.into();
        }
        large.chunks.push(segment);
        Progress::More
    }

    fn name_chunks(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        large: &LargeWrite,
    ) -> Progress {
        let head = record::large_head(large.value.len(), large.chunk_bytes, &large.chunks);
        let body = [&head[..], large.tail()];
        if record::size(large.key.len(), head.len() + large.tail().len()) > SEGMENT_ROOM {
            return UpdateError::Full.into();
        }
        let (header, answer) = (&large.header, &large.answer);
        let new = NewValue {
            key_hash: large.key_hash,
            key: &large.key,
            old: self.find_place(context, large.key_hash, &large.key),
        };
        match self.put(context, now, header, new, true, &body, answer) {
            Ok(seq) => Progress::Done(seq, large.answer.clone()),
            Err(stop) => stop.into(),
        }
    }
}

/// Records that there is no memory for the write. That waits for the log like the write itself, and no longer.
fn refuse_large(context: &mut BucketContext, now: Time, large: &LargeWrite) -> Progress {
    let full = out_of_memory();
    if large.header.request.is_none() || planted(Mutant::NoOpNotRemembered) {
        return Progress::Done(0, full);
    }
    match context.record(&large.header, full, 0) {
        Outcome::Answer { seq, answer, .. } => Progress::Done(seq, answer),
        Outcome::Refuse(why) => Progress::Failed(why),
        _ if large.header.deadline <= now => Progress::Failed(Refused::Deadline),
        Outcome::Later | Outcome::Blocked { .. } | Outcome::Synced { .. } => Progress::Wait,
    }
}

impl From<UpdateError> for Progress {
    fn from(stop: UpdateError) -> Progress {
        match stop {
            UpdateError::Blocked => Progress::Wait,
            UpdateError::Full => Progress::Full,
            UpdateError::NotServing => Progress::Failed(Refused::NotServing),
        }
    }
}
