//! `staves scrub`: whether parity is the code of the data, byte for byte (I4), over the whole cluster and
//! while it is written.
//!
//! Every page carries the label of the last delta in it, for each stream. Parity that has the same labels as
//! the data must be their code exactly; a page whose labels differ is on its way, and is looked at again.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use staves_erasure::Code;
use staves_model::{ClusterMap, Group, GroupId, Label, MemberSlot, PAGE_BYTES};
use staves_wire::admin::GroupPagesAnswer;
use staves_wire::group::{PageContent, PagePart};

use crate::args::Format;
use crate::cluster::Cluster;
use crate::explain::Own;
use crate::failure::Failure;
use crate::output::{self, number, properties};
use crate::status::find_pool;

/// Pages that are asked of a member at a time.
const PAGES: u32 = 64;
/// How often a page that is on its way is looked at again, and after how long.
const LOOKS: usize = 40;
const REST: Duration = Duration::from_millis(50);
/// Most differences that are told one by one.
const TOLD_MAX: usize = 100;

/// What was found.
#[derive(Default, Serialize)]
struct Found {
    groups: u64,
    /// Groups with a vacant or rebuilding member, or between two epochs: some of their pages could not be checked.
    groups_short: u64,
    pages_checked: u64,
    /// Pages that were written each time that they were looked at.
    pages_busy: u64,
    /// Pages that a member lacks: it is being rebuilt.
    pages_missing: u64,
    differences: u64,
    /// The first of them.
    told: Vec<Difference>,
}

#[derive(Serialize)]
struct Difference {
    group: u32,
    page: u32,
    slot: u8,
    node: u64,
}

/// What one look at a page shows.
#[derive(PartialEq, Eq, Debug)]
enum Look {
    /// These parity slots do not hold the code of the data.
    Compared(Vec<MemberSlot>),
    /// Labels differ: look again.
    Busy,
    /// A member does not have it.
    Missing,
}

pub fn run(cluster: &Cluster, pool: Option<&str>, out: Format) -> anyhow::Result<()> {
    if let Some(pool) = pool {
        find_pool(&cluster.status()?, pool)?;
    }
    let map = cluster.map()?;
    let wanted = |group: &&Group| {
        let name = map.pools.get(&group.pool).map(|pool| pool.name.as_str());
        pool.is_none() || name == pool
    };
    let groups: Vec<GroupId> = map.groups.values().filter(wanted).map(|g| g.id).collect();
    let mut found = Found::default();
    for (at, id) in groups.iter().enumerate() {
        // The newest map: a group may have moved, or be gone, since the last one was looked at.
        let map = cluster.map()?;
        if let Some(group) = map.groups.get(id) {
            Scrub::new(cluster, &map, group).run(&mut found)?;
            found.groups += 1;
        }
        if (at + 1) % 16 == 0 {
            eprintln!("{} of {} groups", at + 1, groups.len());
        }
    }
    output::answer(out, &found, told)?;
    match found.differences {
        0 => Ok(()),
        count => {
            let text = format!("{count} pages of parity are not the code of their data");
            Err(Failure::Own(Own::Failed, text).into())
        }
    }
}

/// One group.
struct Scrub<'a> {
    cluster: &'a Cluster,
    map: &'a ClusterMap,
    group: &'a Group,
    code: Option<Code>,
}

impl<'a> Scrub<'a> {
    fn new(cluster: &'a Cluster, map: &'a ClusterMap, group: &'a Group) -> Scrub<'a> {
        let (m, k) = (
            usize::from(group.m),
            group.members.len() - usize::from(group.m),
        );
        let code = Code::new(m, k.max(1)).ok().filter(|_| m > 1);
        Scrub {
            cluster,
            map,
            group,
            code,
        }
    }

    fn run(&self, found: &mut Found) -> anyhow::Result<()> {
        let vacant = self.group.members.iter().any(Option::is_none);
        if vacant || !self.group.open || self.group.members.len() == usize::from(self.group.m) {
            found.groups_short += u64::from(!self.group.open || vacant);
            return Ok(());
        }
        let (mut first, mut end) = (0, 1);
        while first < end {
            let mut left: Vec<u32> = (first..first + PAGES).collect();
            for look in 0..LOOKS {
                if look > 0 {
                    std::thread::sleep(REST);
                }
                let Some(parts) = self.fetch(first, &mut end) else {
                    found.groups_short += 1;
                    return Ok(());
                };
                left.retain(|page| self.look(&parts, *page, look + 1 == LOOKS, found));
                if left.is_empty() {
                    break;
                }
            }
            first += PAGES;
        }
        Ok(())
    }

    /// Every member's pages; `None` if one of them is not there, or is of another epoch.
    fn fetch(&self, first: u32, end: &mut u32) -> Option<Vec<BTreeMap<u32, PagePart>>> {
        let mut all = Vec::new();
        for (slot, member) in self.group.listed() {
            let node = self.map.nodes.get(&member.node)?;
            let answer = self
                .cluster
                .group_pages(node, self.group.id, first, PAGES)
                .ok()?;
            let GroupPagesAnswer {
                slot: theirs,
                epoch,
                end: theirs_end,
                parts,
            } = answer;
            if theirs != slot || epoch != self.group.epoch {
                return None;
            }
            *end = (*end).max(theirs_end);
            all.push(parts.into_iter().map(|part| (part.page, part)).collect());
        }
        Some(all)
    }

    /// Whether the page is to be looked at again.
    fn look(
        &self,
        parts: &[BTreeMap<u32, PagePart>],
        page: u32,
        last: bool,
        found: &mut Found,
    ) -> bool {
        let parts: Option<Vec<&PagePart>> = parts.iter().map(|all| all.get(&page)).collect();
        match compare(self.group.m.into(), self.code.as_ref(), parts.as_deref()) {
            Look::Busy if !last => return true,
            Look::Busy => found.pages_busy += 1,
            Look::Missing => found.pages_missing += 1,
            Look::Compared(wrong) => {
                found.pages_checked += 1;
                for slot in wrong {
                    found.differences += 1;
                    let node = self.group.member(slot).map_or(0, |member| member.node.0);
                    if found.told.len() < TOLD_MAX {
                        found.told.push(Difference {
                            group: self.group.id.0,
                            page,
                            slot: slot.0,
                            node,
                        });
                    }
                }
            }
        }
        false
    }
}

/// One page, by the parts of all members in order of slot.
fn compare(m: usize, code: Option<&Code>, parts: Option<&[&PagePart]>) -> Look {
    let Some(parts) = parts else {
        return Look::Missing;
    };
    let (data, parity) = parts.split_at(m);
    let label = |part: &PagePart, stream: usize| -> Label {
        part.labels
            .get(stream)
            .copied()
            .flatten()
            .unwrap_or_default()
    };
    let same = |parity: &&PagePart| {
        (0..m).all(|stream| label(parity, stream) == label(data[stream], stream))
    };
    if !parity.iter().all(same) {
        return Look::Busy;
    }
    let wrong = (0..parity.len()).filter(|row| {
        let mut expected = vec![0u8; PAGE_BYTES];
        for (column, part) in data.iter().enumerate() {
            match (&part.content, code) {
                (PageContent::Bytes(bytes), Some(code)) => {
                    code.apply(*row, column, bytes, &mut expected);
                }
                (PageContent::Bytes(bytes), None) => expected.copy_from_slice(bytes),
                _ => {}
            }
        }
        match &parity[*row].content {
            PageContent::Bytes(bytes) => bytes[..] != expected[..],
            _ => expected.iter().any(|byte| *byte != 0),
        }
    });
    Look::Compared(wrong.map(|row| MemberSlot((m + row) as u8)).collect())
}

fn told(found: &Found) -> String {
    let mut text = properties([
        ("groups", number(found.groups)),
        ("of them short or changing", number(found.groups_short)),
        ("pages checked", number(found.pages_checked)),
        ("pages that did not hold still", number(found.pages_busy)),
        ("pages being rebuilt", number(found.pages_missing)),
        ("pages that differ", number(found.differences)),
    ]);
    for one in &found.told {
        text.push_str(&format!(
            "\n  group {} page {}: member {} on node {}",
            one.group, one.page, one.slot, one.node
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use staves_model::Epoch;

    use super::*;

    fn part(labels: &[Option<u64>], byte: u8) -> PagePart {
        let label = |seq| Label {
            epoch: Epoch(1),
            seq,
        };
        PagePart {
            page: 0,
            labels: labels.iter().map(|seq| seq.map(label)).collect(),
            content: match byte {
                0 => PageContent::Zero,
                byte => PageContent::Bytes(Bytes::from(vec![byte; PAGE_BYTES])),
            },
        }
    }

    fn look(m: usize, parts: &[PagePart]) -> Look {
        let code = Code::new(m, 2).ok().filter(|_| m > 1);
        let parts: Vec<&PagePart> = parts.iter().collect();
        compare(m, code.as_ref(), Some(&parts))
    }

    #[test]
    fn what_has_the_same_labels_must_be_the_code() {
        let data = [part(&[Some(3), None], 5), part(&[None, Some(9)], 6)];
        let with = |parity: PagePart| [data[0].clone(), data[1].clone(), parity];
        let slot = MemberSlot(2);
        assert_eq!(
            look(2, &with(part(&[Some(3), Some(9)], 3))),
            Look::Compared(vec![])
        );
        assert_eq!(
            look(2, &with(part(&[Some(3), Some(9)], 4))),
            Look::Compared(vec![slot])
        );
        assert_eq!(
            look(2, &with(part(&[Some(3), Some(9)], 0))),
            Look::Compared(vec![slot])
        );
        assert_eq!(look(2, &with(part(&[Some(3), Some(8)], 3))), Look::Busy);
        assert_eq!(compare(2, None, None), Look::Missing);
    }

    #[test]
    fn a_copy_is_the_same() {
        let copies = |byte| {
            [
                part(&[Some(1)], 7),
                part(&[Some(1)], 7),
                part(&[Some(1)], byte),
            ]
        };
        assert_eq!(look(1, &copies(7)), Look::Compared(vec![]));
        assert_eq!(look(1, &copies(8)), Look::Compared(vec![MemberSlot(2)]));
    }
}
