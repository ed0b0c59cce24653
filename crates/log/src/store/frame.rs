//! The bytes of one entry in a segment of entries.
//!
//! ```text
//!  0  check   u32  CRC32C of the rest of the frame
//!  4  head    u32  bytes of the entry's head
//!  8  number  u64  the entry's place in the order of all entries, from 1
//! 16  pieces  u32  pieces of its data
//! 20  -       u32  0
//! 24  pieces x (offset u64, bytes u32, 0 u32), in order
//!     head, zeroes up to a multiple of 8
//! ```
//!
//! All numbers are little-endian. Zeroes in place of a frame's first 24 bytes end the segment. What a parser meets came from another node or
//! from a disk, so each length is checked before it is believed.

use staves_store::{BUCKET_EXTENTS_MAX, EXTENT_BYTES};

use super::PageDamage;

/// Bytes of a frame before its pieces.
const FRAME_HEADER: usize = 24;
/// Bytes of one piece.
const PIECE_BYTES: usize = 16;
/// Most pieces of an entry's data.
pub(crate) const PIECES_MAX: usize = 16;
/// Most bytes of an entry's head.
pub const HEAD_BYTES_MAX: usize = 64 << 10;

/// Bytes of an entry's data that lie together, in one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataPiece {
    /// The offset in the bucket.
    pub at: u64,
    /// Their number.
    pub len: u32,
}

impl DataPiece {
    /// The segment that it lies in.
    pub(crate) fn segment(&self) -> u32 {
        segment_of(self.at)
    }

    /// Bytes that it takes up.
    pub(crate) fn taken(&self) -> u32 {
        self.len.next_multiple_of(8)
    }

    /// The end of the bytes that it takes up, in its segment.
    pub(crate) fn end(&self) -> u32 {
        within(self.at) as u32 + self.taken()
    }

    fn is_sound(&self) -> bool {
        let fits = within(self.at) + self.len as usize <= EXTENT_BYTES;
        let known = (1..u64::from(BUCKET_EXTENTS_MAX)).contains(&(self.at / EXTENT_BYTES as u64));
        fits && known && self.len > 0 && self.at.is_multiple_of(8)
    }
}

/// The segment of an offset.
pub(crate) fn segment_of(offset: u64) -> u32 {
    u32::try_from(offset / EXTENT_BYTES as u64).unwrap_or(u32::MAX)
}

/// The place of an offset in its segment.
pub(crate) fn within(offset: u64) -> usize {
    (offset % EXTENT_BYTES as u64) as usize
}

/// The offset of a segment.
pub(crate) fn start_of(segment: u32) -> u64 {
    u64::from(segment) * EXTENT_BYTES as u64
}

/// An entry where it lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EntryFrame<'a> {
    pub number: u64,
    pub pieces: Box<[DataPiece]>,
    pub head: &'a [u8],
}

/// Bytes of the frame of a head and so many pieces.
pub(crate) fn frame_bytes(head: usize, pieces: usize) -> usize {
    (FRAME_HEADER + pieces * PIECE_BYTES + head).next_multiple_of(8)
}

/// The place of the head in a frame of so many pieces.
pub(crate) fn head_at(pieces: usize) -> usize {
    FRAME_HEADER + pieces * PIECE_BYTES
}

/// Appends a frame.
pub(crate) fn put_frame(into: &mut Vec<u8>, number: u64, pieces: &[DataPiece], head: &[u8]) {
    let from = into.len();
    into.extend_from_slice(&[0; 4]);
    into.extend_from_slice(&(head.len() as u32).to_le_bytes());
    into.extend_from_slice(&number.to_le_bytes());
    into.extend_from_slice(&(pieces.len() as u32).to_le_bytes());
    into.extend_from_slice(&[0; 4]);
    for piece in pieces {
        into.extend_from_slice(&piece.at.to_le_bytes());
        into.extend_from_slice(&piece.len.to_le_bytes());
        into.extend_from_slice(&[0; 4]);
    }
    into.extend_from_slice(head);
    into.resize(from + frame_bytes(head.len(), pieces.len()), 0);
    let check = crc32c::crc32c(&into[from + 4..]);
    into[from..from + 4].copy_from_slice(&check.to_le_bytes());
}

/// Parses the frame at the start of `bytes`, which reach to the end of its segment; `None` where the segment's frames end.
///
/// # Errors
/// There is something else; the text says what is wrong with it.
pub(crate) fn parse_frame(bytes: &[u8]) -> Result<Option<EntryFrame<'_>>, &'static str> {
    let Some(header) = bytes.get(..FRAME_HEADER) else {
        return Ok(None);
    };
    if header.iter().all(|b| *b == 0) {
        return Ok(None);
    }
    let (head, pieces) = (u32_at(bytes, 4) as usize, u32_at(bytes, 16) as usize);
    if head > HEAD_BYTES_MAX {
        return Err("its head is longer than any");
    }
    if pieces > PIECES_MAX {
        return Err("it has more pieces than any");
    }
    let Some(frame) = bytes.get(..frame_bytes(head, pieces)) else {
        return Err("it leaves its segment");
    };
    if crc32c::crc32c(&frame[4..]) != u32_at(frame, 0) {
        return Err("its checksum does not fit");
    }
    let number = u64_at(frame, 8);
    if number == 0 {
        return Err("it has no number");
    }
    let pieces: Box<[DataPiece]> = frame[FRAME_HEADER..head_at(pieces)]
        .chunks_exact(PIECE_BYTES)
        .map(|piece| DataPiece {
            at: u64_at(piece, 0),
            len: u32_at(piece, 8),
        })
        .collect();
    if !pieces.iter().all(DataPiece::is_sound) {
        return Err("its data lies where no data can");
    }
    let head = &frame[head_at(pieces.len())..head_at(pieces.len()) + head];
    Ok(Some(EntryFrame {
        number,
        pieces,
        head,
    }))
}

/// The frames that lie one behind the other at an offset, with the offset of each. Ends with the first that is none.
pub(crate) struct Frames<'a> {
    offset: u64,
    rest: &'a [u8],
}

impl<'a> Frames<'a> {
    /// Those in bytes that lie at an offset of a segment.
    pub(crate) fn new(offset: u64, rest: &'a [u8]) -> Frames<'a> {
        Frames { offset, rest }
    }

    fn fail(&mut self, why: &'static str) -> Option<Result<(u64, EntryFrame<'a>), PageDamage>> {
        self.rest = &[];
        let at = self.offset;
        Some(Err(PageDamage { at, why }))
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<(u64, EntryFrame<'a>), PageDamage>;

    fn next(&mut self) -> Option<Self::Item> {
        if within(self.offset) + self.rest.len() > EXTENT_BYTES {
            return self.fail("entries leave their segment");
        }
        match parse_frame(self.rest) {
            Ok(Some(frame)) => {
                let bytes = frame_bytes(frame.head.len(), frame.pieces.len());
                let at = self.offset;
                self.offset += bytes as u64;
                self.rest = &self.rest[bytes..];
                Some(Ok((at, frame)))
            }
            Ok(None) if self.rest.iter().any(|b| *b != 0) => {
                self.fail("there is something behind the last entry")
            }
            Ok(None) => None,
            Err(why) => self.fail(why),
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let part = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    u32::from_le_bytes(part.unwrap_or_default())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let part = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
    u64::from_le_bytes(part.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_frame_is_read_as_it_was_written(
            number in 1..u64::MAX,
            head in prop::collection::vec(any::<u8>(), 0..300),
            pieces in prop::collection::vec((1..1000u64, 1..4096u32), 0..=PIECES_MAX),
            behind in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let piece = |(at, len)| DataPiece { at: start_of(2) + at * 8, len };
            let pieces: Vec<DataPiece> = pieces.into_iter().map(piece).collect();
            let mut bytes = Vec::new();
            put_frame(&mut bytes, number, &pieces, &head);
            prop_assert_eq!(bytes.len(), frame_bytes(head.len(), pieces.len()));
            let whole = bytes.len();
            bytes.extend_from_slice(&behind);
            let frame = parse_frame(&bytes).unwrap().unwrap();
            prop_assert_eq!((frame.number, frame.head), (number, &head[..]));
            prop_assert_eq!(&frame.pieces[..], &pieces[..]);
            let cut = parse_frame(&bytes[..whole - 1]);
            prop_assert!(cut.is_err() || whole == FRAME_HEADER);
        }

        #[test]
        fn a_frame_with_any_bit_changed_is_refused(at in 0..1000usize, bit in 0..8u8) {
            let mut bytes = Vec::new();
            put_frame(&mut bytes, 7, &[DataPiece { at: start_of(3), len: 9 }], b"the head of an entry");
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            prop_assert!(parse_frame(&bytes).is_err());
        }

        #[test]
        fn bytes_of_any_kind_are_no_reason_to_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_frame(&bytes);
        }
    }

    #[test]
    fn zeroes_end_a_segment() {
        assert_eq!(parse_frame(&[0; 100]), Ok(None));
        assert_eq!(parse_frame(&[1; 23]), Ok(None));
    }
}
