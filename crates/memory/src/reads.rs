//! Operations that change nothing: the bytes of a chunk, and which chunks take up memory.
//!
//! A read shows two things: bytes, and that its chunk has a place or none. Both are answered only once every member has them, so that no takeover
//! takes back what was seen.

use bytes::Bytes;
use staves_group::{Member, PageTable, ReadError};
use staves_model::Time;
use staves_model::mutant::{Mutant, planted};
use staves_service::{BucketContext, KeyHash, Outcome, Refused};
use staves_wire::memory::{Action, ChunkBits};
use staves_wire::service::Answer;

use crate::chunks::Table;
use crate::memory::Memory;
use crate::{chunks, refusals};

impl Memory {
    /// The bytes of a range in one chunk, which has this place; what is in the place is here.
    pub(crate) fn read(
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
            None => may_read(member, now).map(|()| {
                bytes.resize(len as usize, 0);
                0
            }),
        };
        let read = read.map(|seq| seq.max(placed_by(context, chunks::chunk_of(offset))));
        match read {
            Ok(_) if planted(Mutant::ReadShowsUnstable) => self.seen(0, bytes.into()),
            Ok(seq) => self.seen(seq, bytes.into()),
            Err(error) => unread(error),
        }
    }

    /// The chunks of a range that have places in an image. Their pages of the table are here.
    pub(crate) fn allocated(
        &mut self,
        context: &BucketContext,
        now: Time,
        action: &Action,
        table: Option<Table>,
    ) -> Outcome {
        self.chunk_bits(context, now, action, |pages, chunk| {
            table
                .and_then(|table| table.place_of(pages, chunk))
                .is_some()
        })
    }

    /// The chunks of a range whose places in two images are not the same. Their pages of both tables are here.
    pub(crate) fn changed(
        &mut self,
        context: &BucketContext,
        now: Time,
        action: &Action,
        (image, since): (Option<Table>, Option<Table>),
    ) -> Outcome {
        self.chunk_bits(context, now, action, |pages, chunk| {
            let place = |table: Option<Table>| table.and_then(|t| t.place_of(pages, chunk));
            place(image) != place(since)
        })
    }

    /// A bit for each chunk of a range.
    fn chunk_bits(
        &mut self,
        context: &BucketContext,
        now: Time,
        action: &Action,
        bit: impl Fn(&PageTable, u32) -> bool,
    ) -> Outcome {
        let member = context.member();
        if let Err(error) = may_read(member, now) {
            return unread(error);
        }
        let first = chunks::chunk_of(action.range().0);
        let mut bits = ChunkBits::new(action.chunks());
        let mut placed = 0;
        for (index, chunk) in (0..action.chunks()).zip(first..) {
            placed = placed.max(placed_by(context, chunk));
            if member.table().is_some_and(|pages| bit(pages, chunk)) {
                bits.set(index);
            }
        }
        self.seen(placed, bits.into_bytes())
    }

    /// An answer that waits until all members have what it shows.
    fn seen(&mut self, seq: u64, bytes: Bytes) -> Outcome {
        self.stats.reads += 1;
        Outcome::read(seq, Answer::Value(bytes))
    }
}

/// The mark of a chunk whose place was changed of late.
pub(crate) fn of_chunk(chunk: u32) -> KeyHash {
    KeyHash(chunk)
}

/// The delta that gave a chunk its place, or took it away, if a takeover might take that back; else 0. It must not be seen before it is safe.
fn placed_by(context: &BucketContext, chunk: u32) -> u64 {
    match planted(Mutant::PlaceShowsUnstable) {
        true => 0,
        false => context.unstable_seq(of_chunk(chunk)),
    }
}

/// The outcome of a read that cannot be answered now.
fn unread(error: ReadError) -> Outcome {
    match error {
        ReadError::Missing { .. } | ReadError::NoLease => Outcome::Blocked { starved: false },
        ReadError::Lost => Outcome::at_once(refusals::lost()),
        ReadError::NotServing => Outcome::Refuse(Refused::NotServing),
    }
}

/// The reason why bytes that have no page must not be read now.
fn may_read(member: &Member, now: Time) -> Result<(), ReadError> {
    match (member.may_read(now), member.is_lost()) {
        (true, _) => Ok(()),
        (false, true) => Err(ReadError::Lost),
        (false, false) => Err(ReadError::NoLease),
    }
}
