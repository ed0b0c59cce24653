//! What operations do to the bytes, and how a change becomes a delta.

use bytes::{Bytes, BytesMut};
use staves_group::{Effects, Recall, Unread};
use staves_model::mutant::{Mutant, planted};
use staves_model::{CHUNK_BYTES, PAGE_BYTES, REGION_BUCKET_BYTES, Time};
use staves_wire::ErrorCode;
use staves_wire::cache::Answer;
use staves_wire::group::{Run, RunKind};
use staves_wire::memory::Action;

use crate::bucket::{Ask, Bucket, not_serving};
use crate::chunks;
use crate::room::Growth;

/// What became of a request that was tried.
pub(crate) enum Outcome {
    /// To be given once everything up to `seq` is stable.
    Answer {
        seq: u64,
        answer: Answer,
        read: bool,
    },
    /// It cannot begin now. `starved`: for lack of room, so that no other write may pass it.
    Blocked { starved: bool },
}

/// What is wrong with an operation whatever the bucket holds.
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

impl Bucket {
    /// Tries an operation that is well formed, at a bucket that serves.
    pub(crate) fn execute(
        &mut self,
        now: Time,
        ask: &Ask,
        action: &Action,
        effects: &mut Effects,
    ) -> Outcome {
        if action.is_write()
            && let Some(again) = self.recall(ask)
        {
            return again;
        }
        let (offset, len) = action.range();
        let is_lost = Outcome::Answer {
            seq: 0,
            answer: lost(),
            read: false,
        };
        if action.is_write() && self.member.is_lost() {
            return is_lost;
        }
        // What is missing in a lost group may never come: that is said at once.
        let missing = match self.member.is_lost() && !planted(Mutant::LostReadWaits) {
            true => is_lost,
            false => Outcome::Blocked { starved: false },
        };
        if self.lacks(now, table(), effects) {
            return missing;
        }
        let place = self
            .member
            .pages()
            .and_then(|pages| chunks::place_of(pages, chunks::chunk_of(offset)));
        if let Some(place) = place
            && self.lacks(now, run(chunks::at(place, offset), len), effects)
        {
            return missing;
        }
        match action {
            Action::Read { .. } => self.read(now, place, offset, len),
            Action::Write { bytes, .. } => {
                self.write(now, ask, place, offset, bytes, Answer::Ok, effects)
            }
            Action::CompareSwap { expected, new, .. } => {
                let old = self.word(place, offset);
                let answer = Answer::Int(old as i64);
                match old == *expected {
                    true => {
                        self.write(now, ask, place, offset, &new.to_le_bytes(), answer, effects)
                    }
                    false => self.keep(ask, answer),
                }
            }
            Action::FetchAdd { by, .. } => {
                let old = self.word(place, offset);
                let new = old.wrapping_add(*by).to_le_bytes();
                self.write(
                    now,
                    ask,
                    place,
                    offset,
                    &new,
                    Answer::Int(old as i64),
                    effects,
                )
            }
        }
    }

    // I9: what was done is answered again, not done again.
    fn recall(&self, ask: &Ask) -> Option<Outcome> {
        let kept = |bytes| {
            Answer::from_bytes(bytes).unwrap_or_else(|_| {
                Answer::error(ErrorCode::Internal, "the kept answer cannot be read")
            })
        };
        let (seq, answer) = match self.member.recall(ask.request.as_ref()?) {
            Recall::New => return None,
            Recall::Waiting { seq, answer } => (seq, kept(answer)),
            Recall::Done { answer } => (0, kept(answer)),
            Recall::Forgotten => (0, forgotten()),
        };
        Some(Outcome::Answer {
            seq,
            answer,
            read: false,
        })
    }

    /// Whether pages of this run are still to be rebuilt; asks for them out of turn (row H6).
    fn lacks(&mut self, now: Time, run: Run, effects: &mut Effects) -> bool {
        if self.member.absent_in(&[run]).is_none() {
            return false;
        }
        let page = |at: u64| (at / PAGE_BYTES as u64) as u32;
        let (first, last) = (page(run.offset), page(run.offset + u64::from(run.len) - 1));
        self.member.demand(now, first, last - first + 1, effects);
        true
    }

    fn read(&mut self, now: Time, place: Option<u16>, offset: u64, len: u64) -> Outcome {
        let mut bytes = Vec::new();
        let read = match place {
            Some(place) => {
                let at = chunks::at(place, offset);
                self.member.read(now, at, len as u32, &mut bytes)
            }
            None if !self.member.may_read(now) => Err(match self.member.is_lost() {
                true => Unread::Lost,
                false => Unread::NoLease,
            }),
            None => {
                bytes.resize(len as usize, 0);
                Ok(0)
            }
        };
        let (seq, answer) = match read {
            Ok(seq) => {
                self.stats.reads += 1;
                (seq, Answer::Value(bytes.into()))
            }
            Err(Unread::Missing { .. } | Unread::NoLease) => {
                return Outcome::Blocked { starved: false };
            }
            Err(Unread::Lost) => (0, lost()),
            Err(Unread::NotServing) => (0, not_serving()),
        };
        Outcome::Answer {
            seq,
            read: matches!(answer, Answer::Value(_)),
            answer,
        }
    }

    fn bytes(&self, place: Option<u16>, offset: u64, len: u64) -> Bytes {
        match (place, self.member.pages()) {
            (Some(place), Some(pages)) => {
                let at = chunks::at(place, offset);
                Bytes::copy_from_slice(pages.slice(at, len as usize))
            }
            _ => Bytes::from(vec![0; len as usize]),
        }
    }

    fn word(&self, place: Option<u16>, offset: u64) -> u64 {
        let bytes = self.bytes(place, offset, 8);
        u64::from_le_bytes(bytes[..].try_into().expect("eight were read"))
    }

    #[allow(clippy::too_many_arguments)] // the request's parts, borrowed one by one
    /// One delta: the bytes, and the chunk's place if it has none yet. Nothing has changed if it stops.
    fn write(
        &mut self,
        now: Time,
        ask: &Ask,
        place: Option<u16>,
        offset: u64,
        bytes: &[u8],
        answer: Answer,
        effects: &mut Effects,
    ) -> Outcome {
        let (mut runs, mut all) = (
            Vec::with_capacity(2),
            BytesMut::with_capacity(bytes.len() + 2),
        );
        let taken = place.is_some();
        let next = || self.member.pages().map_or(1, chunks::next_place);
        let place = place.unwrap_or_else(next);
        // A new place was never written here, but perhaps at another data bucket of the group.
        if self.lacks(
            now,
            run(chunks::at(place, offset), bytes.len() as u64),
            effects,
        ) {
            return Outcome::Blocked { starved: true };
        }
        // A new member says first what it has reserved: until then the memory of a place that is taken counts
        // as lacking too.
        match self.grow(now, chunks::extents_upto(place)) {
            Growth::Granted => {}
            Growth::Refused if !taken => return self.keep(ask, out_of_memory()),
            Growth::Pending | Growth::Refused
                if taken && planted(Mutant::OldPlaceNeedsNoMemory) => {}
            Growth::Pending | Growth::Refused => return Outcome::Blocked { starved: true },
        }
        if !taken {
            let (run, entry) = chunks::entry(chunks::chunk_of(offset), place);
            runs.push(run);
            all.extend_from_slice(&entry);
        }
        runs.push(run(chunks::at(place, offset), bytes.len() as u64));
        all.extend_from_slice(bytes);
        let outcome = self.make(ask, answer, runs, all.freeze());
        self.stats.writes += u64::from(matches!(outcome, Outcome::Answer { .. }));
        outcome
    }

    /// An answer to a write that changed nothing. Where the client may ask again, a delta without bytes
    /// brings it to the other members, so that a copy of the request that comes late does not take effect after all (I9).
    fn keep(&mut self, ask: &Ask, answer: Answer) -> Outcome {
        if ask.request.is_none() {
            return Outcome::Answer {
                seq: self.member.last(),
                answer,
                read: true,
            };
        }
        self.make(ask, answer, Vec::new(), Bytes::new())
    }

    fn make(&mut self, ask: &Ask, answer: Answer, runs: Vec<Run>, bytes: Bytes) -> Outcome {
        let kept = match ask.request {
            Some(_) => answer.to_bytes(),
            None => Bytes::new(),
        };
        // As `Delta::weight` counts it.
        let weight = 64 + runs.len() * 16 + bytes.len() + kept.len();
        if self.member.admit(weight).is_err() {
            return Outcome::Blocked { starved: true };
        }
        self.unflushed = true;
        let seq = self.member.update(ask.request, kept, runs, bytes);
        Outcome::Answer {
            seq,
            answer,
            read: false,
        }
    }
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

fn forgotten() -> Answer {
    Answer::error(
        ErrorCode::Forgotten,
        "outcome unknown: the retry came too late to tell whether the first try took effect; read the bytes",
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
