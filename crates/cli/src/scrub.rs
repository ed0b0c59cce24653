//! `staves scrub`: whether parity is the code of the data, byte for byte (I4), over the whole cluster and
//! while it is written; and what does not fit, made anew.
//!
//! The nodes send sums of their pages, which are as linear as the code ([`staves_group::PageScan`]), with the label of the
//! last delta in each, for each stream. Parity that has the same labels as the data must be their code exactly; a
//! page whose labels differ is on its way, and is looked at again.
//!
//! Files have no parity, but checksums: `scrub/blocks.rs`.

mod blocks;
mod tally;

use std::collections::BTreeMap;

use staves_group::{Finding, PageScan, ScannedPage};
use staves_model::{ClusterMap, Group, GroupId, MemberSlot, whole_buckets};
use staves_wire::Message;
use staves_wire::admin::{GroupMend, GroupSums, GroupSumsAnswer};

use self::tally::{Difference, PageOutcome, ScrubTally};
use crate::status::find_pool;
use staves_cli_common::cluster::Cluster;
use staves_cli_common::codes::Own;
use staves_cli_common::failure::Failure;
use staves_cli_common::options::Format;
use staves_cli_common::output;

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
    let parity = (group.listed()).any(|(s, _)| s.0 >= group.m && group.bucket_slot(s) == s);
    tally.group(id, whole, parity || pool.scheme.k > 0);
    let scrub = Scrub {
        cluster,
        map: &map,
        group,
    };
    // Records have indices beside their pages; and a copy of a cache starts empty at worst.
    let scan = PageScan::new(mend && pool.kind.row().can_mend);
    if parity && group.open && !scrub.run(scan, tally) && whole {
        tally.changed();
    }
    Ok(())
}

/// One group.
struct Scrub<'a> {
    cluster: &'a Cluster,
    map: &'a ClusterMap,
    group: &'a Group,
}

impl Scrub<'_> {
    /// Checks all pages. False: a member did not answer for its pages, or is of another epoch by now.
    fn run(&self, mut scan: PageScan, tally: &mut ScrubTally) -> bool {
        while !scan.is_done() {
            if scan.is_again() {
                std::thread::sleep(PageScan::REST);
            }
            let answers = self.fetch(&scan);
            let Some(step) = answers.and_then(|answers| scan.take(self.group, answers)) else {
                return false;
            };
            for page in &step.settled {
                self.count(page, tally);
            }
            step.mend
                .into_iter()
                .for_each(|mend| self.tell_to_mend(mend));
        }
        true
    }

    /// Every member's sums; `None` if one of them is not there.
    fn fetch(&self, scan: &PageScan) -> Option<Vec<GroupSumsAnswer>> {
        let asks = scan.asks(self.group).into_iter().map(|(member, ask)| {
            let node = self.map.node_of(&member)?;
            Some((node.native.clone(), Message::GroupSums(ask)))
        });
        let asks: Option<Vec<_>> = asks.collect();
        let answers = self.cluster.ask_all(asks?).into_iter();
        let sums = answers.map(|answer| match answer {
            Ok(Message::GroupSumsAnswer(answer)) => Some(answer),
            _ => None,
        });
        sums.collect()
    }

    fn tell_to_mend(&self, mend: GroupMend) {
        let member = self.group.member(mend.slot);
        if let Some(node) = member.and_then(|member| self.map.node_of(member)) {
            let ask = (node.native.clone(), Message::GroupMend(mend));
            self.cluster.ask_all(vec![ask]);
        }
    }

    fn count(&self, page: &ScannedPage, tally: &mut ScrubTally) {
        let mut wrong = |slots: &mut dyn Iterator<Item = MemberSlot>, outcome| {
            slots.for_each(|slot| tally.wrong(self.difference(page.page, slot, outcome)));
        };
        let mended = &mut page.mended.iter().copied();
        match &page.finding {
            None => return tally.missing(),
            Some(Finding::Busy) => {
                wrong(mended, PageOutcome::BeingRepaired);
                return tally.busy();
            }
            Some(Finding::Fits) => wrong(mended, PageOutcome::Repaired),
            Some(Finding::Parity(slots)) => wrong(&mut slots.iter().copied(), PageOutcome::Parity),
            Some(Finding::Data(slot)) => wrong(&mut [*slot].into_iter(), PageOutcome::Data),
            Some(Finding::Several) => {
                let first = MemberSlot(self.group.m);
                wrong(&mut [first].into_iter(), PageOutcome::Several);
            }
        }
        tally.checked();
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
