//! Rule 14 at the member that gives: the pages that it has, with their labels, as far as it has received
//! the streams.

use std::collections::BTreeMap;

use bytes::Bytes;
use staves_model::{Epoch, Label, MemberId, PAGE_BYTES, mutant::Mutant, mutant::planted};
use staves_store::{EXTENT_PAGES, Pages};
use staves_wire::group::{Delta, GroupMessage, Labels, PageContent, PagePart};

use crate::code;
use crate::state::{Ctx, Effects, MemberState};
use crate::table::{bytes_in, is_zero, touched};

/// Most pages that one request may name; a bound on what a peer can make us send.
const GET_PAGES_MAX: u32 = 1024;

/// Pages as they were copied out, a contiguous range at once: cold memory is read 1.5 times as fast so as page by page.
#[derive(Default)]
struct Copied {
    first: u32,
    bytes: Bytes,
}

impl Copied {
    /// A page's bytes, unless it is all zero. Those behind it up to `last` will be asked for next.
    fn page(&mut self, pages: &Pages, page: u32, last: u32) -> Option<Bytes> {
        let end = self.first + (self.bytes.len() / PAGE_BYTES) as u32;
        if !(self.first..end).contains(&page) {
            pages.page(page)?;
            let end = last.min((page / EXTENT_PAGES + 1) * EXTENT_PAGES);
            let at = u64::from(page) * PAGE_BYTES as u64;
            let bytes = pages.slice(at, (end - page) as usize * PAGE_BYTES);
            (self.first, self.bytes) = (page, Bytes::copy_from_slice(bytes));
        }
        let at = (page - self.first) as usize * PAGE_BYTES;
        let bytes = self.bytes.slice(at..at + PAGE_BYTES);
        (!is_zero(&bytes)).then_some(bytes)
    }
}

impl MemberState {
    /// Gives the pages that are here to a joiner of the same epoch, at whose cut this member stands. A joiner
    /// asks only once the epoch is open, so this one need not have been told yet: the joiner would have to
    /// wait until it asks again.
    #[allow(clippy::too_many_arguments)]
    pub fn send_pages(
        &mut self,
        ctx: &Ctx<'_>,
        to: MemberId,
        epoch: Epoch,
        page: u32,
        count: u32,
        held: &[Label],
        out: &mut Effects,
    ) {
        if epoch != self.epoch || self.installed != self.epoch {
            return;
        }
        let count = count.min(GET_PAGES_MAX);
        let last = page.saturating_add(count);
        let logged = self.logged(page, last);
        let mut copied = Copied::default();
        let parts: Vec<PagePart> = (page..last)
            .filter(|p| self.table.is_here(*p))
            .map(|p| match logged.get(&p) {
                Some(deltas) => self.part_rolled_forward(p, deltas),
                None => self.part_in(p, last, held.get((p - page) as usize), &mut copied),
            })
            .collect();
        let message = GroupMessage::Parts {
            slot: self.slot,
            parts,
        };
        out.sends.push(ctx.addressed(to, self.epoch, message));
    }

    // Parity applies what is stable, so its pages lag behind those of data buckets; what it lacks is in its
    // log. By page of a range: the deltas received and not applied, with their streams (rule 14).
    fn logged(&self, first: u32, end: u32) -> BTreeMap<u32, Vec<(usize, &Delta)>> {
        let mut logged: BTreeMap<u32, Vec<(usize, &Delta)>> = BTreeMap::new();
        if self.shape().m == 1 || self.shape().holds_data() {
            return logged;
        }
        for (stream, s) in self.streams.iter().enumerate() {
            for delta in s.log.from(s.applied + 1) {
                for page in touched(&delta.runs).filter(|p| (first..end).contains(p)) {
                    let deltas = logged.entry(page).or_default();
                    // Once for a page that several of its runs touch. Other streams may use the same label.
                    let same = |(s, d): &(usize, &Delta)| {
                        let streams = *s == stream || planted(Mutant::EqualLabelsTakenAsOne);
                        streams && d.label == delta.label
                    };
                    if !deltas.last().is_some_and(same) {
                        deltas.push((stream, delta));
                    }
                }
            }
        }
        logged
    }

    fn part_rolled_forward(&self, page: u32, deltas: &[(usize, &Delta)]) -> PagePart {
        let shape = self.shape();
        let mut labels = self.table.labels(page);
        let mut bytes = self
            .table
            .pages()
            .page(page)
            .map_or_else(|| vec![0; PAGE_BYTES], <[u8]>::to_vec);
        for (stream, delta) in deltas {
            if labels[*stream] >= delta.label {
                continue;
            }
            labels[*stream] = delta.label;
            if planted(Mutant::LaggingSourceTakenAsCurrent) {
                continue;
            }
            for (at, part) in bytes_in(delta, page) {
                let there = &mut bytes[at..at + part.len()];
                code::add_delta_to(shape.m, self.slot, *stream, part, there);
            }
        }
        let content = match is_zero(&bytes) {
            true => PageContent::Zero,
            false => PageContent::Bytes(Bytes::from(bytes)),
        };
        PagePart {
            page,
            labels: labels.into_iter().map(Some).collect::<Vec<_>>().into(),
            content,
        }
    }

    /// A page's label of each stream that it says something of.
    pub fn known_labels(&self, page: u32) -> Vec<Option<Label>> {
        let shape = self.shape();
        let label = |stream| self.table.label(page, shape.column(stream));
        let known = |stream| shape.carries(stream).then(|| label(stream));
        (0..shape.m).map(known).collect()
    }

    // A part of a message that ends before page `last`; it has the bytes of its pages in few pieces of memory.
    fn part_in(&self, page: u32, last: u32, held: Option<&Label>, copied: &mut Copied) -> PagePart {
        let shape = self.shape();
        let label = self.table.label(page, 0);
        let labels = match shape.columns() {
            1 => Labels::of_one(shape.stream(0), label, shape.m),
            _ => self.known_labels(page).into(),
        };
        // Rule 17: pair by pair. A label of 0 is a page never written: zero, and cheaper said so.
        let same = held.is_some_and(|held| {
            let equal = if planted(Mutant::LabelsBySeqAlone) {
                held.seq == label.seq
            } else {
                *held == label
            };
            shape.m == 1 && label.seq > 0 && equal
        });
        let content = if same {
            PageContent::Held
        } else {
            let bytes = copied.page(self.table.pages(), page, last);
            bytes.map_or(PageContent::Zero, PageContent::Bytes)
        };
        PagePart {
            page,
            labels,
            content,
        }
    }
}
