//! A group's membership: commit, lost (GROUP rules 7, 13).

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::outcome::{Outcome, Refusal};
use crate::ids::{DiskId, Epoch, GroupId, MemberId, MemberSlot, NodeId};
use crate::map::{ClusterMap, Group, Medium, Member, whole_buckets};
use crate::mutant::{Mutant, planted};
use crate::scheme::{bucket_slot, slots_max};
use crate::writeback::Unflushed;

/// The next epoch of one group, as it is proposed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewEpoch {
    /// The group.
    pub group: GroupId,
    /// The epoch: one above the group's newest.
    pub epoch: Epoch,
    /// Members by member slot: `None` is vacant. At least m slots. A data slot may be
    /// vacant where m others keep what it held (m > 1, and no node is there for it).
    pub members: Vec<Option<MemberId>>,
    /// For each slot of `members`: where that member stands in the last open epoch, if it is
    /// retained; `None` for a joiner and for a vacant slot.
    pub kept: Vec<Option<MemberSlot>>,
    /// The member that seals, cuts, syncs and opens.
    pub coordinator: MemberSlot,
    /// Starts from nothing.
    pub fresh: bool,
}

impl ClusterMap {
    /// Commits epochs. With `gives_up`, members that hold what was not flushed are not waited for if their nodes are down.
    pub(super) fn commit_epochs(
        &mut self,
        new: &[NewEpoch],
        gives_up: bool,
    ) -> Result<Outcome, Refusal> {
        let mut seen = BTreeSet::new();
        let mut given_up = BTreeSet::new();
        let mut checked = Vec::with_capacity(new.len());
        for n in new {
            if !seen.insert(n.group) {
                return Err(Refusal::NamedTwice { group: n.group });
            }
            checked.push(self.check_epoch(n)?);
            match self.unflushed_in(n, |node| !gives_up || self.is_node_up(node)) {
                Unflushed::Kept => {}
                Unflushed::GivenUp => _ = given_up.insert(n.group),
                Unflushed::Awaited => return Err(Refusal::UnflushedAwaited { group: n.group }),
            }
        }
        if checked.is_empty() {
            return Ok(Outcome::Unchanged);
        }
        let revision = self.revision.next();
        for (n, members) in new.iter().zip(checked) {
            let group = self.groups.get_mut(&n.group).expect("check_epoch found it");
            group.epoch = n.epoch;
            group.open = false;
            group.coordinator = n.coordinator;
            group.members = members;
            group.kept = n.kept.clone();
            group.fresh = n.fresh;
            group.revision = revision;
        }
        given_up
            .into_iter()
            .for_each(|group| self.end_sessions(group));
        self.moved(Outcome::Done)
    }

    /// The fate of what was not flushed, with an epoch (D-13); nodes that are not awaited count as gone.
    pub(crate) fn unflushed_in(
        &self,
        n: &NewEpoch,
        is_awaited: impl Fn(NodeId) -> bool,
    ) -> Unflushed {
        let Some(group) = self.groups.get(&n.group) else {
            return Unflushed::Kept;
        };
        let retained = n.members.iter().zip(&n.kept);
        let retained = retained.filter(|(_, kept)| kept.is_some());
        let retained: BTreeSet<MemberId> = retained.filter_map(|(id, _)| *id).collect();
        self.unflushed(group, |id| retained.contains(&id), is_awaited)
    }

    /// Rule 7. Gives the members as they go into the map, with their `complete` marks.
    fn check_epoch(&self, n: &NewEpoch) -> Result<Vec<Option<Member>>, Refusal> {
        let group = self.known_group(n.group)?;
        if n.epoch != group.epoch.next() {
            return Err(Refusal::WrongEpoch {
                group: n.group,
                epoch: n.epoch,
                newest: group.epoch,
            });
        }
        check_shape(group, n)?;
        self.check_members_run(n, group.m)?;
        let members = if n.fresh {
            self.check_fresh(group, n)?;
            fresh_members(n)
        } else {
            let members = check_kept(group, n)?;
            check_sources_suffice(group, n, &members)?;
            members
        };
        let leads = members
            .get(n.coordinator.index())
            .is_some_and(Option::is_some);
        if !leads || (!n.fresh && n.kept[n.coordinator.index()].is_none()) {
            return Err(Refusal::BadLeader {
                group: n.group,
                slot: n.coordinator,
            });
        }
        Ok(members)
    }

    /// Members are on distinct nodes, each in its present life and up. With m > 1 a node may hold a second one:
    /// where nodes are fewer than members, but not on its disks, where a start would not tell the two apart.
    fn check_members_run(&self, n: &NewEpoch, m: u8) -> Result<(), Refusal> {
        let mut places = BTreeSet::new();
        let pool = self
            .groups
            .get(&n.group)
            .and_then(|group| self.pools.get(&group.pool));
        let in_memory = pool.is_none_or(|pool| pool.medium != Medium::Disk);
        for (slot, id) in listed(n) {
            let memory = id.disk == DiskId::MEMORY || (id.is_second() && m > 1 && in_memory);
            if !memory || !places.insert(id.place()) {
                return Err(Refusal::NodeTwice {
                    group: n.group,
                    node: id.node,
                });
            }
            if !self.runs(id) {
                return Err(Refusal::MemberNotUp {
                    group: n.group,
                    slot,
                    node: id.node,
                    incarnation: id.incarnation,
                });
            }
        }
        Ok(())
    }

    /// A start from nothing: the first of all, or after the loss of more than the scheme bears in a
    /// pool that may (GROUP rule 13: the time T before it is the proposer's to wait).
    fn check_fresh(&self, group: &Group, n: &NewEpoch) -> Result<(), Refusal> {
        let refuse = |reason: String| {
            Err(Refusal::NotFresh {
                group: n.group,
                reason,
            })
        };
        if n.kept.iter().any(Option::is_some) {
            return refuse("a start from nothing keeps nobody".into());
        }
        if group.last_open.epoch == Epoch(0) || group.starts_anew() {
            return Ok(());
        }
        if !self
            .pools
            .get(&group.pool)
            .is_some_and(|p| p.may_start_empty)
        {
            return refuse(
                "its pool promises to keep what it holds; delete the pool instead".into(),
            );
        }
        let alive = self.complete_sources_up(group);
        if alive >= usize::from(group.m) {
            return refuse(format!(
                "{alive} complete members of it run and {} are enough; keep them",
                group.m
            ));
        }
        Ok(())
    }

    /// The number of buckets of complete members of the last open epoch that run. None, once a start from
    /// nothing is committed: its members may have let go of what they held.
    pub fn complete_sources_up(&self, group: &Group) -> usize {
        whole_buckets(group.m, sources(group), |x| self.runs(x.id))
    }

    pub(super) fn mark_lost(&mut self, ids: &[GroupId]) -> Result<Outcome, Refusal> {
        for id in ids {
            let group = self.known_group(*id)?;
            let kept = self.complete_sources_up(group);
            if kept >= usize::from(group.m) || group.last_open.epoch == Epoch(0) {
                return Err(Refusal::NotLost {
                    group: *id,
                    kept,
                    m: group.m,
                });
            }
        }
        let revision = self.revision.next();
        let mut any = false;
        for id in ids {
            let group = self.groups.get_mut(id).expect("looked up above");
            if !group.lost {
                group.lost = true;
                group.revision = revision;
                any = true;
            }
        }
        if any {
            self.moved(Outcome::Done)
        } else {
            Ok(Outcome::Unchanged)
        }
    }
}

/// The members that may be retained: those of the last *open* epoch, and no other (GROUP rule 7). An epoch
/// that was committed and then abandoned may list joiners that hold nothing, and lack members that do.
///
/// A start from nothing has none, and there is no way back from it: any member that it lists may be a source
/// that came back too late, and lets go of what it held before the epoch opens.
pub(crate) fn sources(group: &Group) -> &[Option<Member>] {
    if planted(Mutant::SourcesFromCommitted) && group.last_open.epoch != Epoch(0) {
        return &group.members;
    }
    if group.starts_anew() {
        return &[];
    }
    &group.last_open.members
}

/// True if a member may not be listed as a joiner: it would wipe what it holds.
pub(crate) fn is_source(group: &Group, id: MemberId) -> bool {
    !planted(Mutant::SourceListedAsJoiner) && sources(group).iter().flatten().any(|x| x.id == id)
}

fn listed(n: &NewEpoch) -> impl Iterator<Item = (MemberSlot, MemberId)> + '_ {
    let slots = n.members.iter().enumerate();
    slots.filter_map(|(s, x)| x.map(|x| (MemberSlot(s as u8), x)))
}

fn check_shape(group: &Group, n: &NewEpoch) -> Result<(), Refusal> {
    let m = usize::from(group.m);
    let max = slots_max(group.m);
    let is_listed = |slot: MemberSlot| n.members.get(slot.index()).is_some_and(Option::is_some);
    let alone = |slot: &MemberSlot| {
        let of = bucket_slot(group.m, *slot);
        of != *slot && (n.fresh || !is_listed(of))
    };
    let reason = if n.members.len() < m || n.members.len() > max {
        format!(
            "it has {} member slots; give it {m} to {max}",
            n.members.len()
        )
    } else if n.kept.len() != n.members.len() {
        format!(
            "it has {} member slots and {} marks of kept",
            n.members.len(),
            n.kept.len()
        )
    } else if let Some(s) = n.members[..m].iter().position(Option::is_none)
        && (n.fresh || m == 1)
    {
        format!("data slot {s} is vacant; list a member there")
    } else if let Some((slot, _)) = listed(n).find(|(slot, _)| alone(slot)) {
        let of = bucket_slot(group.m, slot);
        format!("slot {slot} is the twin of slot {of}, which is vacant; list it there")
    } else {
        return Ok(());
    };
    Err(Refusal::Malformed {
        group: n.group,
        epoch: n.epoch,
        reason,
    })
}

fn fresh_members(n: &NewEpoch) -> Vec<Option<Member>> {
    let all_there = |id| Member { id, complete: true };
    n.members.iter().map(|x| x.map(all_there)).collect()
}

/// Each member is a source in the place that it is listed for, or a joiner that is no source.
fn check_kept(group: &Group, n: &NewEpoch) -> Result<Vec<Option<Member>>, Refusal> {
    let sources = sources(group);
    let mut members = vec![None; n.members.len()];
    for (s, kept) in n.kept.iter().enumerate() {
        let slot = MemberSlot(s as u8);
        members[s] = match (n.members[s], *kept) {
            (None, None) => None,
            (Some(id), None) => {
                if is_source(group, id) {
                    return Err(Refusal::SourceAsJoiner {
                        group: n.group,
                        node: id.node,
                    });
                }
                let complete = false;
                Some(Member { id, complete })
            }
            (listed, Some(from)) => {
                let source = sources.get(from.index()).copied().flatten();
                let same = source.filter(|x| listed == Some(x.id));
                let Some(source) = same else {
                    return Err(Refusal::NotThatSource {
                        group: n.group,
                        slot,
                        from,
                    });
                };
                check_place(group, n, slot, from, &source)?;
                Some(source)
            }
        };
    }
    Ok(members)
}

/// With m = 1 every bucket holds the same bytes and any may take any slot. With m > 1 the bytes of a
/// bucket are those of its slot, and only a complete twin of it can take its place.
fn check_place(
    group: &Group,
    n: &NewEpoch,
    slot: MemberSlot,
    from: MemberSlot,
    source: &Member,
) -> Result<(), Refusal> {
    let same_bucket = bucket_slot(group.m, slot) == bucket_slot(group.m, from);
    let whole = source.complete || planted(Mutant::TwinSettledEarly);
    if group.m == 1 || slot == from || (same_bucket && whole) {
        return Ok(());
    }
    Err(Refusal::Malformed {
        group: n.group,
        epoch: n.epoch,
        reason: format!(
            "member {slot} is kept from slot {from}; with m = {} members keep their slots, but for a \
             complete twin of the same bucket",
            group.m
        ),
    })
}

fn check_sources_suffice(
    group: &Group,
    n: &NewEpoch,
    members: &[Option<Member>],
) -> Result<(), Refusal> {
    let kept = whole_buckets(group.m, members, |_| true);
    if kept < usize::from(group.m) {
        return Err(Refusal::TooFewSources {
            group: n.group,
            kept,
            m: group.m,
        });
    }
    if group.m == 1 && !members[0].is_some_and(|x| x.complete) {
        return Err(Refusal::FirstNotComplete { group: n.group });
    }
    Ok(())
}
