//! Schemes m+k and the fixed shapes that everything else agrees on.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::{HashSlot, MemberSlot};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Pages of an extent, the unit in which memory is handed out.
pub const EXTENT_PAGES: u32 = 64;
/// Bytes of an extent: 256 KiB.
pub const EXTENT_BYTES: usize = EXTENT_PAGES as usize * PAGE_BYTES;
/// Hash slots of a key-value pool, as Redis Cluster has them.
pub const HASH_SLOTS: u16 = 16_384;
/// Most data buckets of a group.
pub const M_MAX: u8 = 32;
/// Most parity buckets of a group.
pub const K_MAX: u8 = 8;

/// Most parity slots of a group: twice k, because members that are exchanged stand beside each other for
/// a while.
pub const PARITY_SLOTS: u8 = 2 * K_MAX;

/// The slot in which a *twin* of the member in `slot` stands (m > 1): a second member that holds the same
/// bucket, so that a bucket can move to another node while the one that has it stays. It lies
/// beyond all slots of data and parity buckets.
pub fn twin(m: u8, slot: MemberSlot) -> MemberSlot {
    MemberSlot(slot.0 + m + PARITY_SLOTS)
}

/// The slot whose bucket the member in `slot` holds: its own, or that of which it is the twin.
pub fn bucket_slot(m: u8, slot: MemberSlot) -> MemberSlot {
    MemberSlot(slot.0.checked_sub(m + PARITY_SLOTS).unwrap_or(slot.0))
}

/// The number of member slots that a group of m data buckets can have, twins among them.
pub fn slots_max(m: u8) -> usize {
    let buckets = usize::from(m) + usize::from(PARITY_SLOTS);
    // With m = 1 all buckets are alike: who is to take a place stands beside it as one copy more.
    if m == 1 { buckets } else { 2 * buckets }
}

/// m data and k parity buckets: any k of the m+k may be lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Scheme {
    /// Data buckets, at least 1.
    pub m: u8,
    /// Parity buckets; 0 means unprotected.
    pub k: u8,
}

impl Scheme {
    /// One copy, and nothing that protects it.
    pub const NONE: Scheme = Scheme { m: 1, k: 0 };

    /// Members in all.
    pub fn width(self) -> usize {
        usize::from(self.m) + usize::from(self.k)
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.m, self.k)
    }
}

impl fmt::Debug for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Scheme {
    type Err = String;

    fn from_str(s: &str) -> Result<Scheme, String> {
        let wrong = || {
            format!(
                "scheme '{s}' is not of the form m+k (m from 1 to {M_MAX}, k from 0 to {K_MAX}), for example 1+2"
            )
        };
        let (m, k) = s.split_once('+').ok_or_else(wrong)?;
        let m: u8 = m.trim().parse().map_err(|_| wrong())?;
        let k: u8 = k.trim().parse().map_err(|_| wrong())?;
        if m == 0 || m > M_MAX || k > K_MAX {
            return Err(wrong());
        }
        Ok(Scheme { m, k })
    }
}

/// The hash slot of a key: CRC16 (XMODEM) of the key, or of what stands between its first `{` and
/// the next `}` if that is not empty, modulo 16,384. As Redis Cluster has it.
pub fn hash_slot(key: &[u8]) -> HashSlot {
    let tagged = key
        .iter()
        .position(|b| *b == b'{')
        .and_then(|open| {
            let rest = &key[open + 1..];
            rest.iter()
                .position(|b| *b == b'}')
                .map(|close| &rest[..close])
        })
        .filter(|tag| !tag.is_empty())
        .unwrap_or(key);
    HashSlot(crc16(tagged) % HASH_SLOTS)
}

/// Four bytes at a time: byte by byte, each step would wait for the one before it.
fn crc16(bytes: &[u8]) -> u16 {
    let [one, two, three, four] = &CRC16_TABLES;
    let (fours, rest) = bytes.as_chunks::<4>();
    let crc = fours.iter().fold(0u16, |crc, [a, b, c, d]| {
        let [a, b] = (crc ^ u16::from_be_bytes([*a, *b])).to_be_bytes();
        let (a, b) = (four[usize::from(a)], three[usize::from(b)]);
        a ^ b ^ two[usize::from(*c)] ^ one[usize::from(*d)]
    });
    rest.iter().fold(crc, |crc, b| {
        (crc << 8) ^ one[usize::from((crc >> 8) as u8 ^ b)]
    })
}

/// The CRC of each byte, and of each with one, two and three zeros behind it.
const CRC16_TABLES: [[u16; 256]; 4] = {
    let one = CRC16_TABLE;
    let mut tables = [one; 4];
    let mut zeros = 1;
    while zeros < 4 {
        let mut i = 0;
        while i < 256 {
            let crc = tables[zeros - 1][i];
            tables[zeros][i] = (crc << 8) ^ one[(crc >> 8) as usize];
            i += 1;
        }
        zeros += 1;
    }
    tables
};

const CRC16_TABLE: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = (i as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 {
                (crc << 1) ^ 0x1021
            } else {
                crc << 1
            };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_slots_are_those_of_redis_cluster() {
        // Published check value of CRC16/XMODEM, and slots that Redis documents.
        assert_eq!(crc16(b"123456789"), 0x31C3);
        let byte_by_byte = |bytes: &[u8]| {
            bytes.iter().fold(0u16, |crc, b| {
                (crc << 8) ^ CRC16_TABLE[usize::from((crc >> 8) as u8 ^ b)]
            })
        };
        let bytes: Vec<u8> = (0..64u32).map(|i| (i * 151 + 7) as u8).collect();
        for len in 0..bytes.len() {
            assert_eq!(crc16(&bytes[..len]), byte_by_byte(&bytes[..len]), "{len}");
        }
        assert_eq!(hash_slot(b"foo"), HashSlot(12182));
        assert_eq!(
            hash_slot(b"{user1000}.following"),
            hash_slot(b"{user1000}.followers")
        );
        assert_eq!(
            hash_slot(b"foo{}{bar}"),
            HashSlot(crc16(b"foo{}{bar}") % HASH_SLOTS)
        );
        assert_eq!(
            hash_slot(b"foo{{bar}}zap"),
            HashSlot(crc16(b"{bar") % HASH_SLOTS)
        );
    }

    #[test]
    fn schemes_parse_or_say_why() {
        assert_eq!("1+2".parse::<Scheme>(), Ok(Scheme { m: 1, k: 2 }));
        for wrong in ["", "1", "0+1", "1+9", "33+1", "a+b", "1+2+3", "-1+2"] {
            assert!(wrong.parse::<Scheme>().is_err(), "{wrong}");
        }
    }
}
