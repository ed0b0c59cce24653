//! Sealed records: what is sent after two sides have proven a secret can be changed, made up, left out or repeated by nobody on the way.
//!
//! ```text
//! byte  0        4                20
//!       | bytes  | tag            | bytes of frames ...
//! ```
//!
//! The tag is the beginning of BLAKE3's keyed hash over the record's number in its direction, its length, and its bytes. The key is made
//! of the secret and both random numbers of the greeting, for each direction another: a side that passed the greeting on for others has
//! no key, and what it says for them is refused. A record holds at most [`RECORD_BYTES_MAX`], so that the head of a large frame is seen
//! before there is memory for all of it.
//!
//! Not here: secrecy. Who can read the bytes on the way reads them.

use blake3::Hasher;
use bytes::{Buf, BytesMut};

/// Most bytes of frames in a record.
pub(crate) const RECORD_BYTES_MAX: usize = 16 << 10;
const TAG_BYTES: usize = 16;
/// Bytes of the length and the tag before them.
pub(crate) const SEAL_BYTES: usize = 4 + TAG_BYTES;

/// The key of one direction, and the number of its next record.
#[derive(Clone)]
struct Numbered {
    key: [u8; 32],
    next: u64,
}

impl Numbered {
    /// The tag of the next record.
    fn tag<'a>(&mut self, bytes: usize, parts: impl Iterator<Item = &'a [u8]>) -> blake3::Hash {
        let mut hasher = Hasher::new_keyed(&self.key);
        hasher.update(&self.next.to_le_bytes());
        hasher.update(&(bytes as u64).to_le_bytes());
        parts.for_each(|part| {
            hasher.update(part);
        });
        self.next += 1;
        hasher.finalize()
    }
}

/// Seals what one side sends.
pub(crate) struct Sealer(Numbered);

impl Sealer {
    pub(crate) fn new(key: [u8; 32]) -> Sealer {
        Sealer(Numbered { key, next: 0 })
    }

    /// The seal before these bytes, which are one record.
    pub(crate) fn seal(&mut self, parts: [&[u8]; 2]) -> [u8; SEAL_BYTES] {
        let bytes = parts[0].len() + parts[1].len();
        assert!(
            (1..=RECORD_BYTES_MAX).contains(&bytes),
            "a record of {bytes} bytes"
        );
        let tag = self.0.tag(bytes, parts.into_iter());
        let mut seal = [0; SEAL_BYTES];
        seal[..4].copy_from_slice(&(bytes as u32).to_le_bytes());
        seal[4..].copy_from_slice(&tag.as_bytes()[..TAG_BYTES]);
        seal
    }
}

/// Opens what the other side has sealed.
pub(crate) struct Opener {
    numbered: Numbered,
    /// Bytes that came, and are not opened yet.
    pub(crate) sealed: BytesMut,
}

/// A record that the other side did not seal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "what came was not sealed by who proved the secret, or not in this order: somebody on the way has changed it"
)]
pub(crate) struct NotSealed;

impl Opener {
    pub(crate) fn new(key: [u8; 32], came: BytesMut) -> Opener {
        Opener {
            numbered: Numbered { key, next: 0 },
            sealed: came,
        }
    }

    /// Moves the bytes of all records that are here whole behind those in `opened`.
    pub(crate) fn open(&mut self, opened: &mut BytesMut) -> Result<(), NotSealed> {
        while let Some(seal) = self.sealed.first_chunk::<SEAL_BYTES>() {
            let (bytes, tag) = seal.split_at(4);
            let bytes = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
            if !(1..=RECORD_BYTES_MAX).contains(&bytes) {
                return Err(NotSealed);
            }
            let Some(record) = self.sealed.get(SEAL_BYTES..SEAL_BYTES + bytes) else {
                return Ok(());
            };
            let ours = self.numbered.tag(bytes, [record].into_iter());
            if !is_same(tag, &ours.as_bytes()[..TAG_BYTES]) {
                return Err(NotSealed);
            }
            opened.extend_from_slice(record);
            self.sealed.advance(SEAL_BYTES + bytes);
        }
        Ok(())
    }
}

/// Compares in constant time: padded, as only whole hashes can be compared so.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let whole = |tag: &[u8]| {
        let mut bytes = [0; 32];
        bytes[..TAG_BYTES].copy_from_slice(tag);
        blake3::Hash::from_bytes(bytes)
    };
    whole(one) == whole(other)
}

/// Both directions of one side of a connection.
pub(crate) struct Seals {
    pub(crate) sealer: Sealer,
    pub(crate) opener: Opener,
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [7; 32];

    /// Three records, as they are sent.
    fn sent() -> Vec<Vec<u8>> {
        let mut sealer = Sealer::new(KEY);
        let large = [3; RECORD_BYTES_MAX - 1];
        let records: [[&[u8]; 2]; 3] = [[b"he", b"llo"], [b"", b"again"], [b"x", &large]];
        let whole = |parts: [&[u8]; 2]| [&sealer.seal(parts)[..], parts[0], parts[1]].concat();
        records.map(whole).to_vec()
    }

    fn opened(key: [u8; 32], bytes: &[u8]) -> Result<usize, NotSealed> {
        let mut opener = Opener::new(key, BytesMut::new());
        let mut opened = BytesMut::new();
        for byte in bytes {
            opener.sealed.extend_from_slice(&[*byte]);
            opener.open(&mut opened)?;
        }
        Ok(opened.len())
    }

    #[test]
    fn what_was_sealed_comes_as_it_was_however_it_is_cut() {
        let sent = sent().concat();
        assert_eq!(opened(KEY, &sent), Ok(5 + 5 + RECORD_BYTES_MAX));
        let mut opener = Opener::new(KEY, BytesMut::from(&sent[..]));
        let mut all = BytesMut::new();
        opener.open(&mut all).expect("sealed");
        assert_eq!(&all[..10], b"helloagain");
        assert!(opener.sealed.is_empty());
        // The last of a record is awaited.
        assert_eq!(opened(KEY, &sent[..sent.len() - 1]), Ok(10));
    }

    #[test]
    fn nothing_else_is_taken() {
        let records = sent();
        let whole = |order: &[usize]| {
            let records: Vec<&[u8]> = order.iter().map(|i| &records[*i][..]).collect();
            opened(KEY, &records.concat())
        };
        assert!(whole(&[0, 1]).is_ok());
        assert_eq!(whole(&[1]), Err(NotSealed), "left out");
        assert_eq!(whole(&[0, 0]), Err(NotSealed), "repeated");
        assert_eq!(whole(&[1, 0]), Err(NotSealed), "in another order");
        assert_eq!(opened([8; 32], &records[0]), Err(NotSealed), "another key");
        for at in 0..records[0].len() {
            let mut changed = records[0].clone();
            changed[at] ^= 1;
            changed.resize(changed.len() + RECORD_BYTES_MAX, 0);
            assert_eq!(opened(KEY, &changed), Err(NotSealed), "byte {at}");
        }
        assert_eq!(opened(KEY, &[0; SEAL_BYTES]), Err(NotSealed), "no bytes");
        assert_eq!(opened(KEY, &[0xff; SEAL_BYTES]), Err(NotSealed), "too many");
        assert_eq!(opened(KEY, b"STAV plain frames of anybody"), Err(NotSealed));
    }
}
