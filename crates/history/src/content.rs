//! Values, as far as they need be told from each other.

const BASE: u64 = 0x0000_0100_0000_01B3;

/// A value's length and hash, and the number that it spells if it spells one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Content {
    len: u64,
    hash: u64,
    number: Option<i64>,
}

impl Content {
    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Content {
        let step = |h: u64, b: &u8| h.wrapping_mul(BASE).wrapping_add(u64::from(*b) + 1);
        Content {
            len: bytes.len() as u64,
            hash: bytes.iter().fold(0, step),
            number: std::str::from_utf8(bytes).ok().and_then(|t| t.parse().ok()),
        }
    }

    /// Of a number's digits.
    pub fn of_number(n: i64) -> Content {
        Content::of(n.to_string().as_bytes())
    }

    /// The number of bytes.
    #[allow(clippy::len_without_is_empty)] // nobody asks
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The number that it spells.
    pub fn number(&self) -> Option<i64> {
        self.number
    }

    /// Of these bytes followed by others. What was put together spells no number any more: keys that
    /// are counted are not appended to.
    pub fn then(self, more: Content) -> Content {
        let (mut shift, mut square, mut n) = (1u64, BASE, more.len);
        while n > 0 {
            if n & 1 == 1 {
                shift = shift.wrapping_mul(square);
            }
            square = square.wrapping_mul(square);
            n >>= 1;
        }
        Content {
            len: self.len + more.len,
            hash: self.hash.wrapping_mul(shift).wrapping_add(more.hash),
            number: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_add_up() {
        let (a, b) = (&b"one value"[..], &b"and another"[..]);
        let both = [a, b].concat();
        assert_eq!(Content::of(a).then(Content::of(b)), Content::of(&both));
        assert_ne!(Content::of(b).then(Content::of(a)), Content::of(&both));
    }
}
