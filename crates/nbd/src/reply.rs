//! Replies to requests: heads to bytes. Payloads are the driver's.

use bytes::{BufMut, BytesMut};

use crate::constants::{
    ALLOCATION_ID, CHUNK_DONE, CHUNK_MAGIC, HOLE_AND_ZERO, SIMPLE_REPLY_MAGIC, chunk,
};
use crate::error::NbdError;
use crate::text::clipped;

/// Most extents of a reply to a block status; the client asks again for the rest.
pub const EXTENTS_MAX: usize = 1 << 20;

/// An offset of 64 bits before a chunk's bytes.
const OFFSET_BYTES: u32 = 8;

/// The form of replies that was agreed on with a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replies {
    structured: bool,
}

/// A range of a read's reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRange {
    /// Length in bytes.
    pub len: u32,
    /// True if all of it is zero and need not be sent.
    pub hole: bool,
}

impl Replies {
    pub(crate) fn new(structured: bool) -> Replies {
        Replies { structured }
    }

    /// Returns whether replies are structured.
    pub fn is_structured(self) -> bool {
        self.structured
    }

    /// Appends the head of a whole read; its `len` bytes, at least one, are to follow.
    pub fn read_head(self, cookie: u64, offset: u64, len: u32, out: &mut BytesMut) {
        match self.structured {
            true => put_data_head(out, CHUNK_DONE, cookie, offset, len),
            false => put_simple(out, 0, cookie),
        }
    }

    /// Appends a read with holes, which a structured reply does not send.
    ///
    /// The ranges lie one behind the other from `offset` on and cover the read. `payload` is called for each range whose bytes are to
    /// follow what is in `out`, in order, with its offset; it appends them, or cuts `out` and remembers to send them. They are the ranges with data; the holes too, as zeroes,
    /// in a simple reply, or where the client wants one chunk (`dont_fragment`) and there are several ranges.
    pub fn read_ranges(
        self,
        cookie: u64,
        offset: u64,
        ranges: &[ReadRange],
        dont_fragment: bool,
        out: &mut BytesMut,
        mut payload: impl FnMut(&mut BytesMut, u64, ReadRange),
    ) {
        let filled = || ranges.iter().copied().filter(|range| range.len > 0);
        let count = filled().count();
        if count == 0 {
            return self.done(cookie, out);
        }
        let in_one = !self.structured || (dont_fragment && count > 1);
        if in_one {
            let len = filled().fold(0u32, |sum, range| sum.saturating_add(range.len));
            self.read_head(cookie, offset, len, out);
        }
        let mut at = offset;
        for (index, range) in filled().enumerate() {
            let flags = if index + 1 == count { CHUNK_DONE } else { 0 };
            if !in_one && range.hole {
                put_hole(out, flags, cookie, at, range.len);
            } else {
                if !in_one {
                    put_data_head(out, flags, cookie, at, range.len);
                }
                payload(out, at, range);
            }
            at = at.saturating_add(u64::from(range.len));
        }
    }

    /// Appends the success of a request without payload.
    pub fn done(self, cookie: u64, out: &mut BytesMut) {
        match self.structured {
            true => put_chunk_head(out, CHUNK_DONE, chunk::NONE, cookie, 0),
            false => put_simple(out, 0, cookie),
        }
    }

    /// Appends an error. A structured reply has the text, too, up to 4,096 bytes of it.
    pub fn error(self, cookie: u64, error: NbdError, text: &str, out: &mut BytesMut) {
        if !self.structured {
            return put_simple(out, error.number(), cookie);
        }
        let text = clipped(text).as_bytes();
        let bytes = 6 + text.len() as u32;
        put_chunk_head(out, CHUNK_DONE, chunk::ERROR, cookie, bytes);
        out.put_u32(error.number());
        out.put_u16(text.len() as u16);
        out.put_slice(text);
    }

    /// Appends the extents of a block status from its offset on: lengths in bytes, and whether each is a hole that reads as zeroes.
    ///
    /// Neighbours of one kind are joined, and what is beyond [`EXTENTS_MAX`] is left out. Without extents, or where replies are not
    /// structured, the request fails: such a reply does not exist.
    pub fn block_status(self, cookie: u64, extents: &[(u32, bool)], out: &mut BytesMut) {
        let extents = joined(extents);
        if extents.is_empty() || !self.structured {
            let text = "no extents are known here";
            return self.error(cookie, NbdError::Eio, text, out);
        }
        let bytes = 4 + 8 * extents.len() as u32;
        put_chunk_head(out, CHUNK_DONE, chunk::BLOCK_STATUS, cookie, bytes);
        out.put_u32(ALLOCATION_ID);
        for (len, is_hole) in extents {
            out.put_u32(len);
            out.put_u32(if is_hole { HOLE_AND_ZERO } else { 0 });
        }
    }
}

/// The extents without empty ones, neighbours of one kind in one as far as its length fits.
fn joined(extents: &[(u32, bool)]) -> Vec<(u32, bool)> {
    let mut all: Vec<(u32, bool)> = Vec::new();
    for &(len, is_hole) in extents.iter().filter(|(len, _)| *len > 0) {
        let room = all.len() < EXTENTS_MAX;
        match all.last_mut() {
            Some((before, kind)) if *kind == is_hole && before.checked_add(len).is_some() => {
                *before += len;
            }
            _ if room => all.push((len, is_hole)),
            _ => break,
        }
    }
    all
}

fn put_simple(out: &mut BytesMut, error: u32, cookie: u64) {
    out.put_u32(SIMPLE_REPLY_MAGIC);
    out.put_u32(error);
    out.put_u64(cookie);
}

fn put_chunk_head(out: &mut BytesMut, flags: u16, kind: u16, cookie: u64, bytes: u32) {
    out.put_u32(CHUNK_MAGIC);
    out.put_u16(flags);
    out.put_u16(kind);
    out.put_u64(cookie);
    out.put_u32(bytes);
}

fn put_data_head(out: &mut BytesMut, flags: u16, cookie: u64, offset: u64, len: u32) {
    let bytes = len.saturating_add(OFFSET_BYTES);
    put_chunk_head(out, flags, chunk::OFFSET_DATA, cookie, bytes);
    out.put_u64(offset);
}

fn put_hole(out: &mut BytesMut, flags: u16, cookie: u64, offset: u64, len: u32) {
    put_chunk_head(out, flags, chunk::OFFSET_HOLE, cookie, 12);
    out.put_u64(offset);
    out.put_u32(len);
}
