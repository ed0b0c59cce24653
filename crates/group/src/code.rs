//! The linear code over a group's members, between the protocol and the arithmetic of `staves-erasure`.
//!
//! A group's code is that of its m with as many parity buckets as a group can ever have: the coefficients
//! of a parity bucket do not depend on how many there are, so k is raised and lowered without touching a
//! byte that is there. With m = 1 every coefficient is 1, and a parity bucket is a copy.

use std::sync::OnceLock;

use staves_erasure::{Code, Recipe};
use staves_model::mutant::{Mutant, planted};
use staves_model::{M_MAX, MemberSlot, PAGE_BYTES, PARITY_SLOTS, bucket_slot, slots_max};
use staves_store::{Full, Pages};

use crate::table::is_zero;

const PARITY_MAX: usize = PARITY_SLOTS as usize;

/// Returns whether there is a code for the shape.
pub fn supported(m: usize, k: usize) -> bool {
    (1..=usize::from(M_MAX)).contains(&m) && k <= PARITY_MAX
}

/// Returns whether a group of m data buckets can have so many member slots, twins among them.
pub fn fits(m: usize, slots: usize) -> bool {
    supported(m, 0) && (m..=slots_max(m as u8)).contains(&slots)
}

/// The row of the code for the bucket that the member in a slot holds, if that is a parity bucket.
fn row(m: usize, slot: MemberSlot) -> Option<usize> {
    bucket_slot(m as u8, slot).index().checked_sub(m)
}

/// The code of every group with so many data buckets.
pub(crate) fn code(m: usize) -> &'static Code {
    static CODES: [OnceLock<Code>; M_MAX as usize + 1] =
        [const { OnceLock::new() }; M_MAX as usize + 1];
    CODES[m].get_or_init(|| Code::new(m, PARITY_MAX).expect("M_MAX + PARITY_MAX is below 256"))
}

/// Adds a stream's delta to what a member has at `offset`, times the member's coefficient (m > 1).
pub fn add_delta(
    pages: &mut Pages,
    m: usize,
    slot: MemberSlot,
    stream: usize,
    offset: u64,
    delta: &[u8],
) -> Result<(), Full> {
    match row(m, slot) {
        None => pages.xor(offset, delta),
        Some(_) => pages.add(offset, delta, |there, delta| {
            add_delta_to(m, slot, stream, delta, there);
        }),
    }
}

/// The same for the bytes of one page at hand.
pub fn add_delta_to(m: usize, parity: MemberSlot, stream: usize, delta: &[u8], there: &mut [u8]) {
    let row = match row(m, parity) {
        _ if planted(Mutant::ParityTakenAsXor) => 0,
        Some(row) => row,
        // Who holds a data bucket makes or applies its deltas at once.
        None => return,
    };
    code(m).apply(row, stream, delta, there);
}

/// A source that is all zero.
pub(crate) static ZERO_PAGE: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// The last recipe, kept because the same one serves page after page (an inverted matrix), and the memory
/// that pages are made in.
#[derive(Default)]
pub struct Recipes {
    last: Option<(Vec<MemberSlot>, Vec<MemberSlot>, Recipe)>,
    made: Vec<u8>,
}

impl Recipes {
    /// Makes the pages of the members `wanted` of those of m others, reading each once, and hands them on
    /// one by one; `None` is a page that is all zero.
    pub fn make(
        &mut self,
        m: usize,
        sources: &[MemberSlot],
        parts: &[&[u8]],
        wanted: &[MemberSlot],
        mut take: impl FnMut(MemberSlot, Option<&[u8]>),
    ) {
        let zero = |part: &&[u8]| std::ptr::eq(*part, &ZERO_PAGE[..]);
        if m == 1 || parts.iter().all(zero) {
            let same = parts.first().copied().filter(|part| !zero(part));
            return wanted.iter().for_each(|slot| take(*slot, same));
        }
        let mut made = std::mem::take(&mut self.made);
        made.resize(wanted.len() * PAGE_BYTES, 0);
        let recipe = self.recipe(m, sources, wanted);
        match &wanted {
            [_] => recipe.make(parts, &mut [&mut made[..]]),
            _ => {
                let mut outputs: Vec<&mut [u8]> = made.chunks_exact_mut(PAGE_BYTES).collect();
                recipe.make(parts, &mut outputs);
            }
        }
        for (slot, page) in wanted.iter().zip(made.chunks_exact(PAGE_BYTES)) {
            take(*slot, (!is_zero(page)).then_some(page));
        }
        self.made = made;
    }

    fn recipe(&mut self, m: usize, sources: &[MemberSlot], wanted: &[MemberSlot]) -> &Recipe {
        let known = self.last.as_ref().is_some_and(|(s, w, _)| {
            (s == sources || (s.len() == sources.len() && planted(Mutant::RecipeOfOtherSources)))
                && w == wanted
        });
        if !known {
            let index = |slots: &[MemberSlot]| slots.iter().map(|s| s.index()).collect::<Vec<_>>();
            let recipe = code(m)
                .recipe(&index(sources), &index(wanted))
                .expect("m different members of the group, none beyond its parity slots");
            self.last = Some((sources.to_vec(), wanted.to_vec(), recipe));
        }
        let (_, _, recipe) = self.last.as_ref().expect("made above where it was missing");
        recipe
    }
}
