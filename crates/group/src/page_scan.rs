//! All pages of a group, compared some at a time while they are in use: the sums to ask its members for, and the findings.
//!
//! A page whose labels differ is on its way, and is looked at again after a rest. Whoever drives a scan asks, rests, and passes requests to mend on.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use staves_model::{Group, Member, MemberSlot};
use staves_wire::admin::{GroupMend, GroupSums, GroupSumsAnswer, PageSum};

use crate::scrub::{Finding, Sums};

/// Pages whose sums are asked of a member at a time.
const PAGES: u32 = 1024;
/// Most looks at a page with updates under way.
const LOOKS: usize = 40;

/// A group's pages on the way to their findings.
pub struct PageScan {
    mends: bool,
    /// The pages under way begin here.
    first: u32,
    looks: usize,
    left: BTreeMap<u32, PageKnowledge>,
    /// The end of the members' page tables, as far as they have answered.
    end: Option<u32>,
}

/// The findings of one look.
#[derive(Default)]
pub struct ScanStep {
    /// The pages that are looked at no more.
    pub settled: Vec<ScannedPage>,
    /// Pages of parity to be made anew: their effect is seen at the next look.
    pub mend: Vec<GroupMend>,
}

/// The end of one page's scan.
#[derive(Debug)]
pub struct ScannedPage {
    /// The page.
    pub page: u32,
    /// The last finding. `None`: a member lacks the page, for it is being filled.
    pub finding: Option<Finding>,
    /// The members that were asked to make it anew.
    pub mended: BTreeSet<MemberSlot>,
}

/// The knowledge of a page so far.
#[derive(Default)]
struct PageKnowledge {
    mended: BTreeSet<MemberSlot>,
    last: Option<Finding>,
}

/// A member's sums of some pages.
struct MemberPages {
    slot: MemberSlot,
    end: u32,
    sums: BTreeMap<u32, PageSum>,
    /// A page that was never written.
    unwritten: PageSum,
}

impl MemberPages {
    fn new(answer: GroupSumsAnswer) -> MemberPages {
        let sums = answer.sums.into_iter().map(|sum| (sum.page, sum));
        MemberPages {
            slot: answer.slot,
            end: answer.end,
            sums: sums.collect(),
            unwritten: PageSum {
                page: 0,
                labels: Vec::new(),
                sum: Bytes::new(),
            },
        }
    }

    /// `None` if it lacks the page.
    fn part(&self, page: u32) -> Option<(MemberSlot, &PageSum)> {
        let sum = match page < self.end {
            true => self.sums.get(&page)?,
            false => &self.unwritten,
        };
        Some((self.slot, sum))
    }
}

/// The members that are compared: those that only stand beside another which holds the same are not.
fn compared(group: &Group) -> impl Iterator<Item = (MemberSlot, &Member)> {
    let is_original = |slot: MemberSlot| group.bucket_slot(slot) == slot;
    group.listed().filter(move |(slot, _)| is_original(*slot))
}

impl PageScan {
    /// The rest between two looks at a page.
    pub const REST: Duration = Duration::from_millis(50);

    /// A scan of all pages, which `mends` pages of parity or only compares.
    pub fn new(mends: bool) -> PageScan {
        PageScan {
            mends,
            first: 0,
            looks: 0,
            left: BTreeMap::new(),
            end: None,
        }
    }

    /// True once every page is settled.
    pub fn is_done(&self) -> bool {
        self.end.is_some_and(|end| self.first >= end)
    }

    /// True if the next look is at pages that were looked at before: it comes after a rest.
    pub fn is_again(&self) -> bool {
        self.looks > 0
    }

    /// The requests of the next look, with the members that they are for.
    pub fn asks(&self, group: &Group) -> Vec<(Member, GroupSums)> {
        let pages = self.pages();
        let ask = |(slot, member): (MemberSlot, &Member)| {
            let ask = GroupSums {
                group: group.id,
                slot,
                page: pages.start,
                count: pages.end - pages.start,
            };
            (*member, ask)
        };
        compared(group).map(ask).collect()
    }

    /// Takes in the answers to all requests of a look, in their order. `None`, and nothing has changed, if one is not of the group's epoch.
    pub fn take(&mut self, group: &Group, answers: Vec<GroupSumsAnswer>) -> Option<ScanStep> {
        let slots: Vec<MemberSlot> = compared(group).map(|(slot, _)| slot).collect();
        let fits = |(answer, slot): (&GroupSumsAnswer, &MemberSlot)| {
            answer.slot == *slot && answer.epoch == group.epoch
        };
        if answers.len() != slots.len() || !answers.iter().zip(&slots).all(fits) {
            return None;
        }
        let ends = answers.iter().map(|answer| answer.end).chain(self.end);
        let end = ends.max().unwrap_or(0);
        self.end = Some(end);
        if self.looks == 0 {
            let pages = self.first..end.min(self.first.saturating_add(PAGES));
            self.left = pages.map(|page| (page, PageKnowledge::default())).collect();
        }
        self.looks += 1;
        let members: Vec<MemberPages> = answers.into_iter().map(MemberPages::new).collect();
        let mut step = ScanStep::default();
        for (page, known) in std::mem::take(&mut self.left) {
            self.look(group, page, known, &members, &mut step);
        }
        if self.left.is_empty() {
            self.looks = 0;
            self.first = self.first.saturating_add(PAGES);
        }
        Some(step)
    }

    /// The pages of the next look.
    fn pages(&self) -> Range<u32> {
        let first = self.left.first_key_value().map(|(page, _)| *page);
        let last = self.left.last_key_value().map(|(page, _)| *page);
        match first.zip(last) {
            Some((first, last)) => first..last.saturating_add(1),
            None => self.first..self.first.saturating_add(PAGES),
        }
    }

    /// Compares a page, which is settled or looked at again.
    fn look(
        &mut self,
        group: &Group,
        page: u32,
        mut known: PageKnowledge,
        members: &[MemberPages],
        step: &mut ScanStep,
    ) {
        let here = members.iter().filter_map(|member| member.part(page));
        let here: Vec<(MemberSlot, &PageSum)> = here.collect();
        let is_whole = here.len() == members.len();
        let sums = Sums::new(group.m.into(), &here).filter(|_| is_whole);
        let finding = sums.map(|sums| sums.finding());
        let again = match &finding {
            // It is being filled. That is waited for only if it was asked for here.
            None => !known.mended.is_empty(),
            Some(Finding::Busy) => true,
            Some(Finding::Parity(slots)) if self.mends => {
                for (slot, sum) in here.iter().filter(|(slot, _)| slots.contains(slot)) {
                    known.mended.insert(*slot);
                    step.mend.push(GroupMend {
                        group: group.id,
                        slot: *slot,
                        page,
                        labels: sum.labels.clone(),
                    });
                }
                true
            }
            Some(_) => false,
        };
        known.last = finding;
        if again && self.looks < LOOKS {
            self.left.insert(page, known);
            return;
        }
        // A page that is still being made anew was not compared since.
        let finding = match known.last {
            None if again => Some(Finding::Busy),
            last => last,
        };
        step.settled.push(ScannedPage {
            page,
            finding,
            mended: known.mended,
        });
    }
}

#[cfg(test)]
mod tests {
    use staves_model::testing::{cluster_with_pool, start};
    use staves_model::{Epoch, Label};

    use super::*;

    /// A page that was written up to this seq, as one of two copies has it.
    fn sum(page: u32, seq: u64, byte: u8) -> PageSum {
        let label = Label {
            epoch: Epoch(1),
            seq,
        };
        PageSum {
            page,
            labels: vec![Some(label)],
            sum: vec![byte; 8].into(),
        }
    }

    fn group() -> Group {
        let mut map = cluster_with_pool(2, "1+1", 1);
        start(&mut map, &[1, 2]);
        map.groups.values().next().expect("one").clone()
    }

    fn answers(group: &Group, end: u32, sums: [Vec<PageSum>; 2]) -> Vec<GroupSumsAnswer> {
        let answer = |(slot, sums)| GroupSumsAnswer {
            slot: MemberSlot(slot),
            epoch: group.epoch,
            end,
            sums,
        };
        (0..).zip(sums).map(answer).collect()
    }

    fn settled(step: &ScanStep) -> Vec<(u32, Option<Finding>)> {
        let pages = step.settled.iter();
        pages.map(|p| (p.page, p.finding.clone())).collect()
    }

    #[test]
    fn pages_are_looked_at_until_they_are_settled_and_busy_ones_not_for_ever() {
        let group = group();
        let mut scan = PageScan::new(false);
        let asks = scan.asks(&group);
        let asked = |asks: &[(Member, GroupSums)]| {
            let all = asks.iter();
            all.map(|(_, ask)| (ask.slot.0, ask.page, ask.count))
                .collect::<Vec<_>>()
        };
        assert_eq!(asked(&asks), [(0, 0, PAGES), (1, 0, PAGES)]);
        let data = || vec![sum(0, 1, 7), sum(1, 1, 7), sum(2, 5, 7), sum(3, 1, 7)];
        let copy = || vec![sum(0, 1, 7), sum(1, 1, 8), sum(2, 4, 7)];
        let mut first = answers(&group, PAGES + 1, [data(), copy()]);
        first[1].epoch = group.epoch.next();
        assert!(
            scan.take(&group, first.clone()).is_none(),
            "of another epoch"
        );
        assert!(!scan.is_again());
        first[1].epoch = group.epoch;
        let step = scan.take(&group, first).expect("all are of this epoch");
        let wrong = Finding::Parity(vec![MemberSlot(1)]);
        let [zero, one, three, ..] = &settled(&step)[..] else {
            panic!("all but one")
        };
        assert_eq!(zero, &(0, Some(Finding::Fits)));
        assert_eq!(one, &(1, Some(wrong)));
        assert_eq!(three, &(3, None), "the copy lacks it");
        assert!(step.mend.is_empty(), "it only looks");
        assert_eq!(asked(&scan.asks(&group)), [(0, 2, 1), (1, 2, 1)]);
        for look in 2..=LOOKS {
            assert!(scan.is_again(), "look {look}");
            let sums = [vec![sum(2, look as u64 + 5, 7)], vec![sum(2, 4, 7)]];
            let step = scan.take(&group, answers(&group, PAGES + 1, sums));
            let last = (look == LOOKS).then_some((2, Some(Finding::Busy)));
            assert_eq!(settled(&step.expect("taken")), Vec::from_iter(last));
        }
        assert!(!scan.is_again() && !scan.is_done(), "there is another page");
        let sums = [vec![sum(PAGES, 1, 7)], vec![sum(PAGES, 1, 7)]];
        let step = scan.take(&group, answers(&group, PAGES + 1, sums));
        assert_eq!(
            settled(&step.expect("taken")),
            [(PAGES, Some(Finding::Fits))]
        );
        assert!(scan.is_done());
    }

    #[test]
    fn a_wrong_page_of_parity_is_mended_and_looked_at_again() {
        let group = group();
        let mut scan = PageScan::new(true);
        let look = |scan: &mut PageScan, copy: Vec<PageSum>| {
            let sums = [vec![sum(0, 1, 7)], copy];
            scan.take(&group, answers(&group, 1, sums)).expect("taken")
        };
        let step = look(&mut scan, vec![sum(0, 1, 8)]);
        assert!(step.settled.is_empty());
        let mend = &step.mend[0];
        assert_eq!((mend.slot, mend.page), (MemberSlot(1), 0));
        assert_eq!(mend.labels, sum(0, 1, 8).labels);
        // It is being made anew.
        assert!(look(&mut scan, Vec::new()).settled.is_empty());
        let step = look(&mut scan, vec![sum(0, 1, 7)]);
        assert_eq!(settled(&step), [(0, Some(Finding::Fits))]);
        assert!(step.settled[0].mended.contains(&MemberSlot(1)));
        assert!(scan.is_done());
    }
}
