//! The layout of keys and values in a bucket's pages, byte by byte.
//!
//! The bucket is a row of **segments**, one extent (256 KiB) each. All numbers are little-endian.
//!
//! ```text
//! segment   0  kind      u8   1 log of records, 2 chunk of a large value (0: no segment)
//!           1  version   u8   2
//!           2  -         u16  0
//!           4  bytes     u32  a chunk's bytes; 0 for a log
//!           8  -         u64  0
//!          16  records, or the chunk
//!
//! record    0  state     u8   1 live, 2 dead (0: the segment's records end here)
//!           1  form      u8   bit 0: large. Bit 1 is kept for "an expiry of 8 bytes follows the header"
//!           2  spare     u16  room behind it that is its own, in units of 8 bytes
//!           4  key       u32  bytes
//!           8  body      u32  bytes
//!          12  key, body, zeroes up to a multiple of 8 from the record's start; then the spare room, of any bytes
//!
//! large     0  total     u64  bytes of the whole value
//! body      8  chunk     u32  bytes of each chunk but perhaps the last
//!          12  count     u32  of chunks
//!          16  count x u32    their segments, in order; then the value's tail, inline
//! ```
//!
//! A record, once written, changes in two ways: in one byte, its state, when it dies; or, while it lives, as a whole,
//! when its key gets a value that fits into its place. That is one run of one delta, with the lengths and the spare
//! room in it, so nobody meets a record that is half the one and half the other. What a parser meets here
//! came from another node, so each length is checked before it is believed.

use staves_store::EXTENT_BYTES;

/// Bytes before a segment's first record.
pub(crate) const SEGMENT_HEADER: usize = 16;
/// Bytes that records may fill in a segment.
pub(crate) const SEGMENT_ROOM: usize = EXTENT_BYTES - SEGMENT_HEADER;
/// Bytes before a record's key.
pub(crate) const RECORD_HEADER: usize = 12;
/// Bytes before a large body's list of chunks.
pub(crate) const LARGE_HEADER: usize = 16;
/// The state byte of a dead record.
pub(crate) const DEAD: u8 = 2;

const LIVE: u8 = 1;
const LARGE: u8 = 1;
const VERSION: u8 = 2;
/// The unit of a record's size and of its spare room.
const UNIT: usize = 8;

/// The contents of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum SegmentKind {
    /// Nothing: its extent need not exist.
    #[default]
    Free,
    /// Records.
    Log,
    /// A piece of one large value.
    Chunk,
}

/// The head of a segment of records, or of a chunk of so many bytes.
pub(crate) fn segment_header(kind: SegmentKind, bytes: usize) -> [u8; SEGMENT_HEADER] {
    let mut header = [0; SEGMENT_HEADER];
    header[0] = match kind {
        SegmentKind::Free => 0,
        SegmentKind::Log => 1,
        SegmentKind::Chunk => 2,
    };
    header[1] = VERSION;
    header[4..8].copy_from_slice(&(bytes as u32).to_le_bytes());
    header
}

/// The kind in a segment's head, and a chunk's bytes.
pub(crate) fn segment_kind(segment: &[u8]) -> (SegmentKind, usize) {
    let kind = match (segment.first(), segment.get(1)) {
        (Some(1), Some(&VERSION)) => SegmentKind::Log,
        (Some(2), Some(&VERSION)) => SegmentKind::Chunk,
        _ => SegmentKind::Free,
    };
    let bytes = read_u32(segment, 4).unwrap_or(0) as usize;
    (kind, bytes.min(SEGMENT_ROOM))
}

/// A record where it lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub live: bool,
    pub large: bool,
    /// Bytes behind it that are its own.
    pub spare: usize,
    pub key: &'a [u8],
    pub body: &'a [u8],
}

/// Bytes that do not make a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed;

impl<'a> Record<'a> {
    /// The record at the start of `bytes`; `None` if there is none.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Option<Record<'a>>, Malformed> {
        let live = match bytes.first() {
            None | Some(0) => return Ok(None),
            Some(&LIVE) => true,
            Some(&DEAD) => false,
            Some(_) => return Err(Malformed),
        };
        let form = *bytes.get(1).ok_or(Malformed)?;
        let key_len = read_u32(bytes, 4).ok_or(Malformed)? as usize;
        let body_len = read_u32(bytes, 8).ok_or(Malformed)? as usize;
        if form & !LARGE != 0 || size(key_len, body_len) > bytes.len() {
            return Err(Malformed);
        }
        let (key, rest) = bytes[RECORD_HEADER..].split_at(key_len);
        let record = Record {
            live,
            large: form & LARGE != 0,
            spare: usize::from(u16::from_le_bytes([bytes[2], bytes[3]])) * UNIT,
            key,
            body: &rest[..body_len],
        };
        if record.large {
            Large::parse(record.body).ok_or(Malformed)?;
        }
        Ok(Some(record))
    }

    /// Bytes that it takes up.
    pub(crate) fn size(&self) -> usize {
        size(self.key.len(), self.body.len())
    }

    /// Bytes from its start to the next record: its own and the spare ones.
    pub(crate) fn place(&self) -> usize {
        self.size() + self.spare
    }

    /// The list of its chunks, if it is large.
    pub(crate) fn as_large(&self) -> Option<Large<'a>> {
        if self.large {
            Large::parse(self.body)
        } else {
            None
        }
    }

    /// Bytes of key and value.
    pub(crate) fn payload(&self) -> u64 {
        let value = self.as_large().map_or(self.body.len() as u64, |l| l.total);
        self.key.len() as u64 + value
    }
}

/// The body of a large value's record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Large<'a> {
    pub total: u64,
    pub chunk_bytes: u32,
    chunks: &'a [u8],
    pub tail: &'a [u8],
}

impl<'a> Large<'a> {
    fn parse(body: &'a [u8]) -> Option<Large<'a>> {
        let total = u64::from_le_bytes(body.get(..8)?.try_into().ok()?);
        let chunk_bytes = read_u32(body, 8)?;
        let count = read_u32(body, 12)? as usize;
        let list = &body[LARGE_HEADER..];
        let (chunks, tail) = list.split_at_checked(count.checked_mul(4)?)?;
        let in_chunks = total.checked_sub(tail.len() as u64)?;
        let room = u64::from(chunk_bytes) * count as u64;
        let sane = chunk_bytes as usize <= SEGMENT_ROOM && in_chunks <= room;
        sane.then_some(Large {
            total,
            chunk_bytes,
            chunks,
            tail,
        })
    }

    /// The segments of its chunks, in order.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = u32> + 'a {
        self.chunks
            .chunks_exact(4)
            .map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]))
    }
}

/// Bytes that a record of such a key and body takes up.
pub(crate) fn size(key: usize, body: usize) -> usize {
    RECORD_HEADER
        .saturating_add(key)
        .saturating_add(body)
        .next_multiple_of(UNIT)
}

/// Returns whether a record of so many bytes is written over one in a place of so many: it must fit, and leave no more
/// than a quarter of the place spare.
pub(crate) fn fits_over(place: usize, size: usize) -> bool {
    let spare_max = (place / 4).max(UNIT);
    place
        .checked_sub(size)
        .is_some_and(|spare| spare <= spare_max)
}

/// Appends a live record to `into`, with so many spare bytes behind it that are there already; the body comes in parts.
pub(crate) fn append(into: &mut Vec<u8>, key: &[u8], large: bool, body: &[&[u8]], spare: usize) {
    let body_len: usize = body.iter().map(|part| part.len()).sum();
    let end = into.len() + size(key.len(), body_len);
    into.reserve(end - into.len());
    let [low, high] = u16::try_from(spare / UNIT)
        .unwrap_or(u16::MAX)
        .to_le_bytes();
    into.extend_from_slice(&[LIVE, if large { LARGE } else { 0 }, low, high]);
    into.extend_from_slice(&(key.len() as u32).to_le_bytes());
    into.extend_from_slice(&(body_len as u32).to_le_bytes());
    into.extend_from_slice(key);
    for part in body {
        into.extend_from_slice(part);
    }
    into.resize(end, 0);
}

/// Appends a record as it lies elsewhere, without its spare room.
pub(crate) fn append_packed(into: &mut Vec<u8>, record: &[u8]) {
    let from = into.len();
    into.extend_from_slice(record);
    into[from + 2..from + 4].fill(0);
}

/// The head of a large body and its list of chunks; the tail comes after it.
pub(crate) fn large_head(total: usize, chunk_bytes: usize, chunks: &[u32]) -> Vec<u8> {
    let mut head = Vec::with_capacity(LARGE_HEADER + 4 * chunks.len());
    head.extend_from_slice(&(total as u64).to_le_bytes());
    head.extend_from_slice(&(chunk_bytes as u32).to_le_bytes());
    head.extend_from_slice(&(chunks.len() as u32).to_le_bytes());
    for chunk in chunks {
        head.extend_from_slice(&chunk.to_le_bytes());
    }
    head
}

/// The records that lie one after another in `bytes`, with where each starts. Ends at the first that is
/// none, and says of it whether it was malformed. The spare room of the last may lie beyond the bytes.
pub(crate) struct Records<'a> {
    bytes: &'a [u8],
    at: usize,
    pub malformed: bool,
}

impl<'a> Records<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Records<'a> {
        Records {
            bytes,
            at: 0,
            malformed: false,
        }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = (usize, Record<'a>);

    fn next(&mut self) -> Option<(usize, Record<'a>)> {
        match Record::parse(self.bytes.get(self.at..)?) {
            Ok(Some(record)) => {
                let at = self.at;
                self.at += record.place();
                Some((at, record))
            }
            Ok(None) => None,
            Err(Malformed) => {
                self.malformed = true;
                None
            }
        }
    }
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn records_are_read_back_in_order() {
        let mut bytes = Vec::new();
        append(&mut bytes, b"k", false, &[b"value"], 16);
        bytes.extend_from_slice(&[0xff; 16]);
        let second = bytes.len();
        let head = large_head(300, 100, &[7, 9]);
        append(&mut bytes, b"large", true, &[&head, &[5; 100]], 0);
        bytes.resize(bytes.len() + 40, 0);

        let mut records = Records::new(&bytes);
        let (at, small) = records.next().unwrap();
        assert_eq!(
            (at, small.key, small.body, small.live),
            (0, &b"k"[..], &b"value"[..], true)
        );
        let (at, large) = records.next().unwrap();
        assert_eq!((at, large.payload()), (second, 305));
        let list = large.as_large().unwrap();
        assert_eq!(
            (list.chunks().collect::<Vec<_>>(), list.tail.len()),
            (vec![7, 9], 100)
        );
        assert!(records.next().is_none() && !records.malformed);
        assert_eq!(records.at, bytes.len() - 40);
    }

    #[test]
    fn the_layout_is_the_one_drawn_above() {
        let mut bytes = Vec::new();
        append(&mut bytes, b"ab", false, &[b"xyz"], 264);
        assert_eq!(
            bytes,
            b"\x01\0\x21\0\x02\0\0\0\x03\0\0\0abxyz\0\0\0\0\0\0\0"
        );
        assert_eq!(
            &segment_header(SegmentKind::Chunk, 258)[..8],
            b"\x02\x02\0\0\x02\x01\0\0"
        );
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), fix in any::<bool>()) {
            if fix && bytes.len() > 12 {
                bytes[0] = 1 + bytes[0] % 2;
                bytes[1] &= 1;
                for at in [5, 6, 7, 9, 10, 11] {
                    bytes[at] = 0;
                }
            }
            let _ = segment_kind(&bytes);
            for (_, record) in Records::new(&bytes) {
                let _ = (record.payload(), record.as_large().map(|l| l.chunks().count()));
            }
        }
    }
}
