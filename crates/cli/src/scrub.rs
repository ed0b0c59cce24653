//! `staves scrub`: whether parity is the code of the data, byte for byte (I4), over the whole cluster and
//! while it is written; and what does not fit, made anew.
//!
//! The nodes send sums of their pages, which are as linear as the code ([`staves_group::Sums`]), with the label of the
//! last delta in each, for each stream. Parity that has the same labels as the data must be their code exactly; a
//! page whose labels differ is on its way, and is looked at again.
//!
//! Files have no parity, but checksums: `scrub/blocks.rs`.

mod blocks;
mod tally;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use staves_group::{Finding, Sums};
use staves_model::{ClusterMap, Group, GroupId, MemberSlot, whole_buckets};
use staves_wire::Message;
use staves_wire::admin::{GroupMend, GroupSums, GroupSumsAnswer, PageSum};

use self::tally::{Difference, PageOutcome, ScrubTally};
use crate::status::find_pool;
use staves_cli_common::cluster::Cluster;
use staves_cli_common::codes::Own;
use staves_cli_common::failure::Failure;
use staves_cli_common::options::Format;
use staves_cli_common::output;

/// Pages whose sums are asked of a member at a time.
const PAGES: u32 = 1024;
/// The number of looks at a page with updates under way, and the rest between them.
const LOOKS: usize = 40;
const REST: Duration = Duration::from_millis(50);

pub fn run(cluster: &Cluster, pool: Option<&str>, mend: bool, out: Format) -> anyhow::Result<()> {
    if let Some(pool) = pool {
        find_pool(&cluster.status()?, pool)?;
    }
    let map = cluster.map()?;
    let wanted = |group: &&Group| {
        let name = map.pools.get(&group.pool).map(|pool| pool.name.as_str());
        pool.is_none() || name == pool
    };
    let groups: Vec<&Group> = map.groups.values().filter(wanted).collect();
    let mut tally = ScrubTally::new(out == Format::Table, pages_of(cluster, &map, &groups));
    for group in groups {
        scrub(cluster, group.id, mend, &mut tally)?;
    }
    let files = map.pools.values().filter(|p| p.holdings().is_some());
    for files in files.filter(|files| pool.is_none_or(|pool| pool == files.name)) {
        blocks::scrub(cluster, &map, files, &mut tally);
    }
    conclude(tally, out)
}

/// Compares the members of all groups of a volume, and changes nothing (row B5). Fails if anything differs or could not be compared.
pub fn check_volume(cluster: &Cluster, name: &str, out: Format) -> anyhow::Result<()> {
    let map = cluster.map()?;
    let named = map.region_named(name).map(|(_, region)| region);
    let volume = named.filter(|region| region.volume.is_some());
    let volume = volume.ok_or_else(|| {
        let text =
            format!("there is no volume '{name}': 'staves volume list' shows those that there are");
        Failure::NotInMap(text)
    })?;
    let groups = volume.groups().filter_map(|id| map.groups.get(&id));
    let groups: Vec<&Group> = groups.collect();
    let pages = pages_of(cluster, &map, &groups);
    let mut tally = ScrubTally::of_all(out == Format::Table, pages);
    for group in groups {
        scrub(cluster, group.id, false, &mut tally)?;
    }
    if cluster.map()?.region(volume.id).is_none() {
        let text = format!("volume '{name}' was deleted while it was checked");
        return Err(Failure::NotInMap(text).into());
    }
    conclude(tally, out)
}

fn conclude(mut tally: ScrubTally, out: Format) -> anyhow::Result<()> {
    tally.end();
    output::answer(out, &tally.found(), |_| tally.told())?;
    match tally.failure() {
        None => Ok(()),
        Some(text) => Err(Failure::Own(Own::Failed, text).into()),
    }
}

/// The number of pages to check, as far as it is known: for the progress.
fn pages_of(cluster: &Cluster, map: &ClusterMap, groups: &[&Group]) -> BTreeMap<GroupId, u32> {
    let ask = |group: &&Group| {
        let (slot, member) = group.listed().next()?;
        let node = map.node_of(member)?;
        let message = Message::GroupSums(GroupSums {
            group: group.id,
            slot,
            page: 0,
            count: 0,
        });
        Some((group.id, (node.native.clone(), message)))
    };
    let (ids, asks): (Vec<GroupId>, Vec<_>) = groups.iter().filter_map(ask).unzip();
    let end = |answer| match answer {
        Ok(Message::GroupSumsAnswer(answer)) => answer.end,
        _ => 0,
    };
    let ends = cluster.ask_all(asks).into_iter().map(end);
    ids.into_iter().zip(ends).collect()
}

/// Checks one group by the newest map: it may have moved, or be gone, since the last one was looked at.
fn scrub(cluster: &Cluster, id: GroupId, mend: bool, tally: &mut ScrubTally) -> anyhow::Result<()> {
    let map = cluster.map()?;
    let Some(group) = map.groups.get(&id) else {
        return Ok(());
    };
    let Some(pool) = map.pools.get(&group.pool) else {
        return Ok(());
    };
    let held = whole_buckets(group.m, &group.members, |x| map.runs(x.id));
    let whole = group.open && held >= pool.scheme.width();
    let parity = originals(group).any(|(slot, _)| slot.0 >= group.m);
    tally.group(id, whole, parity || pool.scheme.k > 0);
    let scrub = Scrub {
        cluster,
        map: &map,
        group,
        // Records have indices beside their pages; and a copy of a cache starts empty at worst.
        mend: mend && pool.kind.row().can_mend,
    };
    if parity && group.open && !scrub.run(tally) && whole {
        tally.changed();
    }
    Ok(())
}

/// The members, but for those that only stand beside another that holds the same.
fn originals(group: &Group) -> impl Iterator<Item = (MemberSlot, &staves_model::Member)> {
    let original = |slot: MemberSlot| group.bucket_slot(slot) == slot;
    group.listed().filter(move |(slot, _)| original(*slot))
}

/// One group.
struct Scrub<'a> {
    cluster: &'a Cluster,
    map: &'a ClusterMap,
    group: &'a Group,
    mend: bool,
}

/// A member's report of its pages.
struct MemberPages {
    slot: MemberSlot,
    end: u32,
    parts: BTreeMap<u32, PageSum>,
    /// A page that was never written.
    unwritten: PageSum,
}

impl MemberPages {
    fn new(answer: GroupSumsAnswer) -> MemberPages {
        let parts = answer.sums.into_iter().map(|part| (part.page, part));
        MemberPages {
            slot: answer.slot,
            end: answer.end,
            parts: parts.collect(),
            unwritten: PageSum {
                page: 0,
                labels: Vec::new(),
                sum: bytes::Bytes::new(),
            },
        }
    }

    /// `None` if it lacks the page.
    fn part(&self, page: u32) -> Option<(MemberSlot, &PageSum)> {
        let part = match page < self.end {
            true => self.parts.get(&page)?,
            false => &self.unwritten,
        };
        Some((self.slot, part))
    }
}

/// The knowledge of a page so far.
#[derive(Default)]
struct PageKnowledge {
    /// Found wrong, and told to be made anew.
    mended: BTreeSet<MemberSlot>,
    last: Option<Finding>,
}

impl Scrub<'_> {
    /// Checks all pages. False: a member did not answer for its pages, or is of another epoch by now.
    fn run(&self, tally: &mut ScrubTally) -> bool {
        let (mut first, mut end) = (0, 0);
        loop {
            let mut left = BTreeMap::new();
            for look in 0..LOOKS {
                if look > 0 {
                    std::thread::sleep(REST);
                }
                let pages = match look {
                    0 => first..first + PAGES,
                    _ => spanned(&left),
                };
                let Some(parts) = self.fetch(pages, &mut end) else {
                    return false;
                };
                if look == 0 {
                    left = (first..end.min(first + PAGES))
                        .map(|page| (page, PageKnowledge::default()))
                        .collect();
                }
                left.retain(|page, seen| self.look(*page, seen, &parts, tally));
                if left.is_empty() {
                    break;
                }
            }
            for (page, seen) in left {
                self.give_up(page, &seen, tally);
            }
            first += PAGES;
            if first >= end {
                return true;
            }
        }
    }

    /// Every member's sums; `None` if one of them is not there, or is of another epoch.
    fn fetch(&self, pages: std::ops::Range<u32>, end: &mut u32) -> Option<Vec<MemberPages>> {
        let ask = |(slot, member): (MemberSlot, &staves_model::Member)| {
            let node = self.map.node_of(member)?;
            let message = Message::GroupSums(GroupSums {
                group: self.group.id,
                slot,
                page: pages.start,
                count: pages.end - pages.start,
            });
            Some((node.native.clone(), message))
        };
        let asks: Option<Vec<_>> = originals(self.group).map(ask).collect();
        let mut all = Vec::new();
        for ((slot, _), answer) in originals(self.group).zip(self.cluster.ask_all(asks?)) {
            let Ok(Message::GroupSumsAnswer(answer)) = answer else {
                return None;
            };
            if answer.slot != slot || answer.epoch != self.group.epoch {
                return None;
            }
            *end = (*end).max(answer.end);
            all.push(MemberPages::new(answer));
        }
        Some(all)
    }

    /// Compares a page. Returns whether it is to be looked at again.
    fn look(
        &self,
        page: u32,
        seen: &mut PageKnowledge,
        parts: &[MemberPages],
        tally: &mut ScrubTally,
    ) -> bool {
        let here = parts.iter().filter_map(|member| member.part(page));
        let here: Vec<(MemberSlot, &PageSum)> = here.collect();
        let all = here.len() == parts.len();
        let sums = Sums::new(self.group.m.into(), &here).filter(|_| all);
        let Some(finding) = sums.map(|sums| sums.finding()) else {
            // It is being rebuilt. That is waited for only if it was asked for here.
            seen.last = None;
            if seen.mended.is_empty() {
                tally.missing();
            }
            return !seen.mended.is_empty();
        };
        let again = match &finding {
            Finding::Fits => {
                tally.checked();
                for slot in &seen.mended {
                    tally.wrong(self.difference(page, *slot, PageOutcome::Repaired));
                }
                false
            }
            Finding::Parity(slots) if self.mend => {
                let part = |slot| here.iter().find(|(s, _)| *s == slot);
                for (slot, part) in slots.iter().filter_map(|slot| part(*slot)) {
                    seen.mended.insert(*slot);
                    self.tell_to_mend(*slot, part);
                }
                true
            }
            Finding::Busy => true,
            Finding::Parity(_) | Finding::Data(_) | Finding::Several => {
                self.tell_of(page, &finding, tally);
                false
            }
        };
        seen.last = Some(finding);
        again
    }

    /// Asks for a repair; its effect is seen at the next look.
    fn tell_to_mend(&self, slot: MemberSlot, part: &PageSum) {
        let member = self.group.member(slot);
        let node = member.and_then(|member| self.map.node_of(member));
        if let Some(node) = node {
            let message = Message::GroupMend(GroupMend {
                group: self.group.id,
                slot,
                page: part.page,
                labels: part.labels.clone(),
            });
            self.cluster.ask_all(vec![(node.native.clone(), message)]);
        }
    }

    fn give_up(&self, page: u32, seen: &PageKnowledge, tally: &mut ScrubTally) {
        match &seen.last {
            Some(wrong @ Finding::Parity(_)) => self.tell_of(page, wrong, tally),
            Some(_) if seen.mended.is_empty() => tally.busy(),
            _ => {
                for slot in &seen.mended {
                    tally.wrong(self.difference(page, *slot, PageOutcome::BeingRepaired));
                }
                tally.busy();
            }
        }
    }

    fn tell_of(&self, page: u32, finding: &Finding, tally: &mut ScrubTally) {
        tally.checked();
        match finding {
            Finding::Parity(slots) => {
                for slot in slots {
                    tally.wrong(self.difference(page, *slot, PageOutcome::Parity));
                }
            }
            Finding::Data(slot) => tally.wrong(self.difference(page, *slot, PageOutcome::Data)),
            Finding::Several => {
                let first = MemberSlot(self.group.m);
                tally.wrong(self.difference(page, first, PageOutcome::Several));
            }
            Finding::Fits | Finding::Busy => {}
        }
    }

    fn difference(&self, page: u32, slot: MemberSlot, outcome: PageOutcome) -> Difference {
        let node = self.group.member(slot).map(|member| member.id.node);
        let name = node.and_then(|node| self.map.nodes.get(&node));
        Difference {
            group: self.group.id.0,
            page,
            slot: slot.0,
            node: node.map_or(0, |node| node.0),
            name: name.map_or_else(String::new, |node| node.name.clone()),
            outcome,
        }
    }
}

fn spanned(left: &BTreeMap<u32, PageKnowledge>) -> std::ops::Range<u32> {
    let first = left.first_key_value().map_or(0, |(page, _)| *page);
    let last = left.last_key_value().map_or(0, |(page, _)| *page);
    first..last + 1
}
