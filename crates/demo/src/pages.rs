//! Pages that can be checked by themselves, of regions and of volumes.
//!
//! Each page holds numbers that follow from its place and its version: it is as its newest acknowledged version, or as a
//! later one whose fate is unknown because its write ended in an error.

use bytes::{BufMut, BytesMut};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// The versions that a page may hold, from 1; 0 stands for a page that was never written.
#[derive(Clone, Copy, Default)]
pub struct Page {
    /// The newest that was acknowledged.
    pub acknowledged: u64,
    /// The newest that was written, acknowledged or not.
    pub newest: u64,
}

impl Page {
    /// Compares what was read of the page of this number with what it may hold; a sentence if it is wrong.
    pub fn judge(&mut self, number: u32, bytes: &[u8]) -> Result<(), String> {
        let version = bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        let mut whole = BytesMut::with_capacity(PAGE_BYTES);
        match version {
            0 => whole.put_bytes(0, PAGE_BYTES),
            version => put_page(&mut whole, number, version),
        }
        let known = (self.acknowledged..=self.newest).contains(&version);
        if known && whole == *bytes {
            // Once read, it is never lost.
            self.acknowledged = version;
            return Ok(());
        }
        let state = if whole == *bytes { "whole" } else { "torn" };
        Err(format!(
            "page {number} holds version {version} ({state}); acknowledged was {}, written up to {}",
            self.acknowledged, self.newest
        ))
    }
}

/// The bytes of a page's version: the version, then numbers that follow from it and from the page.
pub fn put_page(out: &mut BytesMut, page: u32, version: u64) {
    out.put_u64_le(version);
    let mut word = version.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(page);
    for _ in 1..PAGE_BYTES / 8 {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        out.put_u64_le(word | 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(page: u32, version: u64) -> BytesMut {
        let mut bytes = BytesMut::new();
        put_page(&mut bytes, page, version);
        bytes
    }

    #[test]
    fn pages_differ_by_place_and_by_version() {
        assert_eq!(page(7, 1).len(), PAGE_BYTES);
        assert_eq!(page(7, 1), page(7, 1));
        assert_ne!(page(7, 1)[8..], page(8, 1)[8..]);
        assert_ne!(page(7, 1)[8..], page(7, 2)[8..]);
    }

    #[test]
    fn the_check_knows_what_a_page_may_hold() {
        let judge = |acknowledged, newest, bytes: &[u8]| {
            let mut known = Page {
                acknowledged,
                newest,
            };
            known.judge(7, bytes).is_ok()
        };
        assert!(judge(3, 3, &page(7, 3)));
        assert!(judge(3, 5, &page(7, 5)), "its fate was unknown");
        assert!(judge(0, 1, &[0; PAGE_BYTES]));
        assert!(!judge(3, 3, &page(7, 2)), "an older one is a loss");
        assert!(!judge(3, 3, &page(7, 4)), "nobody wrote that");
        assert!(!judge(3, 3, &page(8, 3)), "another page's");
        assert!(!judge(1, 1, &[0; PAGE_BYTES]));
        let mut torn = page(7, 3);
        torn[PAGE_BYTES - 1] ^= 1;
        assert!(!judge(3, 3, &torn));
        let mut known = Page {
            acknowledged: 3,
            newest: 5,
        };
        assert!(known.judge(7, &page(7, 5)).is_ok());
        assert!(
            known.judge(7, &page(7, 4)).is_err(),
            "once read, it is never lost"
        );
    }
}
