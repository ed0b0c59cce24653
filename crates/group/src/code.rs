//! The linear code over a group's members, as far as this version has it: m = 1 (every coefficient is
//! 1, a parity bucket is a copy) and m > 1 with one parity bucket (the plain XOR). The general code
//! over GF(2^8) has these as its first parity; nothing outside this file knows which one is at work.

use bytes::Bytes;
use staves_model::{MemberSlot, PAGE_BYTES};
use staves_store::{Full, Pages};

/// Whether this version has a code for the shape.
pub fn supported(m: usize, k: usize) -> bool {
    m == 1 || k <= 1
}

/// What a member multiplies a stream's bytes by.
pub fn coefficient(m: usize, slot: MemberSlot, stream: usize) -> u8 {
    let own_or_parity = slot.index() >= m || slot.index() == stream;
    u8::from(own_or_parity)
}

/// Adds `coefficient` times `bytes` to what is at `offset`.
pub fn multiply_add(
    pages: &mut Pages,
    offset: u64,
    bytes: &[u8],
    coefficient: u8,
) -> Result<(), Full> {
    match coefficient {
        0 => Ok(()),
        _ => pages.xor(offset, bytes),
    }
}

/// Which of the members in `have` rebuild the page of `slot`: m of them, or none if they do not suffice.
pub fn sources(m: usize, slot: MemberSlot, have: &[MemberSlot]) -> Option<Vec<MemberSlot>> {
    let mut others: Vec<MemberSlot> = have.iter().copied().filter(|s| *s != slot).collect();
    others.sort();
    others.truncate(m);
    (others.len() == m).then_some(others)
}

/// The page that m parts give; `None` where it is all zero.
pub fn rebuild(m: usize, parts: &[Option<Bytes>]) -> Option<Bytes> {
    if m == 1 {
        return parts.first().cloned().flatten();
    }
    let mut page = vec![0u8; PAGE_BYTES];
    for bytes in parts.iter().flatten() {
        for (p, b) in page.iter_mut().zip(bytes.iter()) {
            *p ^= b;
        }
    }
    page.iter().any(|b| *b != 0).then(|| Bytes::from(page))
}
