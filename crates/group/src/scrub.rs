//! I4 looked at while all goes on: sums of pages that are as linear as the code, so that those of parity pages
//! must be the code of those of data pages, and what they say about who is wrong.
//!
//! A page's sum is its own parity: cut into rows, it is coded as a group's pages are. Any one or two wrong bytes of a
//! column change it for certain, more of them all but certainly: 64 bytes are compared in place of 4,096.

use std::sync::OnceLock;

use bytes::Bytes;
use staves_erasure::Code;
use staves_model::{Label, MemberSlot, PAGE_BYTES, Time, bucket_slot};
use staves_wire::admin::PageSum;

use crate::code::code;
use crate::member::Member;

/// A page is cut into so many rows.
const ROWS: usize = 128;
const ROW_BYTES: usize = PAGE_BYTES / ROWS;
/// Parity rows of them.
const SUMS: usize = 2;

/// The result of comparing the sums of one rank's pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// Parity is the code of the data.
    Fits,
    /// The pages are of different moments: ask again.
    Busy,
    /// These parity pages do not fit. Other parity does, so that the data is right; or there is no other, and then
    /// nothing tells which of the rank's pages is wrong.
    Parity(Vec<MemberSlot>),
    /// All others agree on what this data page should be, and it is not that.
    Data(MemberSlot),
    /// More than one page is wrong, and nothing tells which.
    Several,
}

/// The sums of one rank: of all m data pages, and of the parity pages there are. A twin's page is its original's.
pub struct Sums<'a> {
    data: Vec<&'a PageSum>,
    parity: Vec<(MemberSlot, &'a PageSum)>,
}

impl Member {
    /// A page's labels and its sum in place of its bytes; `None` if it is not here.
    pub fn sum(&self, page: u32) -> Option<PageSum> {
        let state = self.state.as_ref()?;
        if !state.table.is_here(page) {
            return None;
        }
        let bytes = state.table.pages().page(page);
        Some(PageSum {
            page,
            labels: state.known_labels(page),
            sum: bytes.map_or_else(Bytes::new, sum_of),
        })
    }

    /// Lets go of a page of parity that was seen to be wrong with these labels, to make it anew from other members
    /// under rules 14 and 15. False, and nothing is done, if it is another page by now, or not of an open epoch.
    pub fn mend(&mut self, now: Time, page: u32, labels: &[Option<Label>]) -> bool {
        let Some(state) = &mut self.state else {
            return false;
        };
        let fits = state.open
            && !state.shape().holds_data()
            && page < state.table.end()
            && state.table.is_here(page)
            && state.known_labels(page) == labels;
        if fits {
            state.table.drop_wrong_page(page);
            state.backfill.wanted(now, page);
        }
        fits
    }
}

fn sum_of(page: &[u8]) -> Bytes {
    static CODE: OnceLock<Code> = OnceLock::new();
    let code = CODE.get_or_init(|| Code::new(ROWS, SUMS).expect("128 + 2 is below 256"));
    let mut sum = vec![0; SUMS * ROW_BYTES];
    for (row, bytes) in page.chunks_exact(ROW_BYTES).enumerate() {
        for (parity, sum) in sum.chunks_exact_mut(ROW_BYTES).enumerate() {
            code.apply(parity, row, bytes, sum);
        }
    }
    sum.into()
}

impl<'a> Sums<'a> {
    /// Of parts in any order; `None` if one of the m data pages is not among them, or no parity page is.
    pub fn new(m: usize, parts: &[(MemberSlot, &'a PageSum)]) -> Option<Sums<'a>> {
        let original = |slot: &MemberSlot| bucket_slot(m as u8, *slot) == *slot;
        let of = |slot: usize| parts.iter().find(|(s, _)| s.index() == slot);
        let data: Option<Vec<_>> = (0..m).map(|slot| of(slot).map(|(_, part)| *part)).collect();
        // What twins hold is looked at once they have taken the others' places.
        let parity = parts
            .iter()
            .filter(|(slot, _)| slot.index() >= m && original(slot))
            .copied();
        let sums = Sums {
            data: data?,
            parity: parity.collect(),
        };
        (!sums.parity.is_empty()).then_some(sums)
    }

    /// The result.
    pub fn finding(&self) -> Finding {
        if !self
            .parity
            .iter()
            .all(|(_, part)| self.is_of_one_moment(part))
        {
            return Finding::Busy;
        }
        let data: Vec<Vec<u8>> = self.data.iter().map(|part| bytes_of(part)).collect();
        let wrong = misfits(&data, &self.parity);
        match (&wrong[..], wrong.len() == self.parity.len()) {
            ([], _) => Finding::Fits,
            // Some parity fits the data.
            (_, false) => Finding::Parity(wrong),
            // The only one there is.
            ([_], true) => Finding::Parity(wrong),
            _ => self
                .odd_one_out(&data)
                .map_or(Finding::Several, Finding::Data),
        }
    }

    fn is_of_one_moment(&self, parity: &PageSum) -> bool {
        let label = |part: &PageSum, stream: usize| {
            let label = part.labels.get(stream).copied().flatten();
            label.unwrap_or_default()
        };
        let mut streams = self.data.iter().enumerate();
        streams.all(|(stream, data)| label(parity, stream) == label(data, stream))
    }

    /// The one data page with which all parity would fit, were it what the first parity page says.
    fn odd_one_out(&self, data: &[Vec<u8>]) -> Option<MemberSlot> {
        let m = data.len();
        let (first, rest) = self.parity.split_first()?;
        let fits = |odd: &usize| {
            let others = (0..m).filter(|slot| slot != odd);
            let sources: Vec<usize> = others.chain([first.0.index()]).collect();
            let Ok(recipe) = code(m).recipe(&sources, &[*odd]) else {
                return false;
            };
            let mut made = vec![0; SUMS * ROW_BYTES];
            let with_parity = bytes_of(first.1);
            for (at, slot) in sources.iter().enumerate() {
                let bytes = data.get(*slot).unwrap_or(&with_parity);
                recipe.add(at, bytes, &mut [&mut made]);
            }
            let mut mended = data.to_vec();
            mended[*odd] = made;
            misfits(&mended, rest).is_empty()
        };
        let mut odd = (0..m).filter(fits);
        let found = odd.next()?;
        odd.next().is_none().then_some(MemberSlot(found as u8))
    }
}

/// The parity slots whose sums are not the code of these.
fn misfits(data: &[Vec<u8>], parity: &[(MemberSlot, &PageSum)]) -> Vec<MemberSlot> {
    let m = data.len();
    let fits = |slot: MemberSlot, part: &PageSum| {
        let mut expected = vec![0; SUMS * ROW_BYTES];
        for (column, bytes) in data.iter().enumerate() {
            code(m).apply(slot.index() - m, column, bytes, &mut expected);
        }
        expected == bytes_of(part)
    };
    let wrong = parity.iter().filter(|(slot, part)| !fits(*slot, part));
    wrong.map(|(slot, _)| *slot).collect()
}

/// A sum's bytes: what came from elsewhere may have any length.
fn bytes_of(part: &PageSum) -> Vec<u8> {
    let mut sum = part.sum.to_vec();
    sum.resize(SUMS * ROW_BYTES, 0);
    sum
}

#[cfg(test)]
mod tests {
    use staves_model::{Epoch, twin};

    use super::*;

    fn page(seed: usize) -> Vec<u8> {
        let byte = |i: usize| (i * 7 + i / 13 + seed * 31) as u8;
        (0..PAGE_BYTES).map(byte).collect()
    }

    fn part(seqs: &[Option<u64>], bytes: &[u8]) -> PageSum {
        let label = |seq| Label {
            epoch: Epoch(1),
            seq,
        };
        PageSum {
            page: 0,
            labels: seqs.iter().map(|seq| seq.map(label)).collect(),
            sum: sum_of(bytes),
        }
    }

    /// The pages of m + k members, whose streams stand at seq 3.
    fn rank(m: usize, k: usize) -> Vec<Vec<u8>> {
        let mut pages: Vec<Vec<u8>> = (0..m).map(page).collect();
        for parity in 0..k {
            let mut made = vec![0; PAGE_BYTES];
            for (column, data) in pages[..m].iter().enumerate() {
                code(m).apply(parity, column, data, &mut made);
            }
            pages.push(made);
        }
        pages
    }

    fn finding(m: usize, pages: &[Vec<u8>]) -> Finding {
        let knows = |slot: usize, stream: usize| (slot >= m || slot == stream).then_some(3);
        let part = |(slot, bytes): (usize, &Vec<u8>)| {
            let seqs: Vec<Option<u64>> = (0..m).map(|stream| knows(slot, stream)).collect();
            part(&seqs, bytes)
        };
        let parts: Vec<PageSum> = pages.iter().enumerate().map(part).collect();
        let slots = (0..).map(MemberSlot).zip(&parts);
        let slots: Vec<(MemberSlot, &PageSum)> = slots.collect();
        Sums::new(m, &slots).expect("all are there").finding()
    }

    #[test]
    fn i4_sums_fit_where_the_pages_do_and_name_the_page_that_does_not() {
        for (m, k) in [(1, 1), (1, 2), (2, 1), (2, 2), (4, 2), (8, 3)] {
            let good = rank(m, k);
            assert_eq!(finding(m, &good), Finding::Fits, "{m}+{k}");
            for slot in 0..m + k {
                for flips in [&[0][..], &[4095], &[7, 8], &[100, 100 + ROW_BYTES]] {
                    let mut pages = good.clone();
                    flips.iter().for_each(|at| pages[slot][*at] ^= 0x10);
                    let odd = MemberSlot(slot as u8);
                    let expected = match (slot < m, k) {
                        (false, _) => Finding::Parity(vec![odd]),
                        (true, 1) => Finding::Parity(vec![MemberSlot(m as u8)]),
                        (true, _) => Finding::Data(odd),
                    };
                    assert_eq!(finding(m, &pages), expected, "{m}+{k}, {slot} at {flips:?}");
                }
            }
        }
    }

    #[test]
    fn two_wrong_pages_are_not_put_down_to_a_third() {
        let mut pages = rank(4, 2);
        pages[0][5] ^= 1;
        pages[4][9] ^= 1;
        assert_eq!(finding(4, &pages), Finding::Several);
        let mut pages = rank(4, 2);
        pages[4][5] ^= 1;
        pages[5][9] ^= 1;
        assert_eq!(finding(4, &pages), Finding::Several);
    }

    /// Regression: while a bucket moves, its twin's page was taken for a row of parity that no code has.
    #[test]
    fn a_twin_is_no_parity() {
        let streams = [
            [Some(3), None],
            [None, Some(3)],
            [Some(3); 2],
            [Some(3), None],
        ];
        let pages = rank(2, 1);
        let parts: Vec<PageSum> = [0, 1, 2, 0]
            .into_iter()
            .zip(&streams)
            .map(|(of, streams): (usize, _)| part(streams, &pages[of]))
            .collect();
        let twin = twin(2, MemberSlot(0));
        let slots = [MemberSlot(0), MemberSlot(1), MemberSlot(2), twin];
        let all: Vec<_> = slots.into_iter().zip(&parts).collect();
        assert_eq!(Sums::new(2, &all).expect("all").finding(), Finding::Fits);
        let [zero, one, _, twin] = all[..] else {
            unreachable!("four")
        };
        assert!(Sums::new(2, &[zero, one, twin]).is_none(), "no parity");
    }

    #[test]
    fn pages_of_different_moments_are_not_compared() {
        let data = [
            part(&[Some(3), None], &page(1)),
            part(&[None, Some(9)], &page(2)),
        ];
        let slots = |parity| {
            let data = (0..).map(MemberSlot).zip(&data);
            data.chain([(MemberSlot(2), parity)]).collect::<Vec<_>>()
        };
        let behind = part(&[Some(3), Some(8)], &page(3));
        let sums = slots(&behind);
        let sums = Sums::new(2, &sums).expect("all are there");
        assert_eq!(sums.finding(), Finding::Busy);
        assert!(Sums::new(2, &slots(&behind)[..2]).is_none(), "no parity");
        assert!(Sums::new(2, &slots(&behind)[1..]).is_none(), "not all data");
    }
}
