//! Stops: what the cluster bears once a node has stopped, asked before it stops (row D6).
//!
//! Memory dies with its process. A group that is down to the last m buckets is lost with the next member
//! that goes, however orderly it goes; where its pool may start empty it does, and what it held is gone all
//! the same. So a stop is asked for first, and granted by the directory's leader, which knows the stops that it
//! granted before. A group on disk waits for the node's return instead: nothing of it is lost.

use std::fmt;

use thiserror::Error;

use super::memory::{FreeMemory, NoRoom, Usage};
use crate::ids::{GroupId, MemberSlot, NodeId};
use crate::map::{
    ClusterMap, Group, Medium, Member, Node, NodeState, Pool, PoolKind, whole_buckets,
};
use crate::mutant::{Mutant, planted};
use crate::units::count;

/// The losses that the groups of a node would bear without it, in order of id. Groups that are lost already are not
/// among them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AfterStop {
    /// Groups that would have fewer members than they need.
    pub broken: Vec<GroupId>,
    /// Groups that bear a loss now and would bear none.
    pub bare: Vec<GroupId>,
    /// Groups that would lose nothing, and have a data bucket that no node is left to answer for (m > 1).
    pub mute: Vec<GroupId>,
    /// Groups on disk that would wait for this node's return.
    pub waits: Vec<GroupId>,
    /// Other nodes that hold nothing for long: they drain, or are on their way out.
    pub others: Vec<NodeId>,
}

impl ClusterMap {
    /// The state after a stop of this node and of those for which `goes` holds.
    pub fn after_stop(&self, node: NodeId, goes: impl Fn(NodeId) -> bool) -> AfterStop {
        let goes = |n: NodeId| n != node && goes(n);
        let mut after = AfterStop::default();
        let groups_max = match planted(Mutant::StopJudgedByOneGroup) {
            true => 1,
            false => usize::MAX,
        };
        let named = self.groups.values().filter(|g| g.names(node));
        for group in named.take(groups_max) {
            let Some(pool) = self.pools.get(&group.pool) else {
                continue;
            };
            let bears = |gone: &dyn Fn(NodeId) -> bool| {
                group.tolerates(|id| self.runs(id) && !gone(id.node))
            };
            let now = bears(&goes);
            let gone = |n: NodeId| n == node || goes(n);
            match bears(&gone) {
                // Those that go are there still, and may stay: what they hold is lost by nobody's stop but the last one's.
                None if bears(&|_| false).is_some() => match pool.medium {
                    // Its bytes are on the disk when its node is back.
                    Medium::Disk => after.waits.push(group.id),
                    Medium::Ram => after.broken.push(group.id),
                },
                Some(0) if now > Some(0) => after.bare.push(group.id),
                _ => {}
            }
            if now.is_some() && !self.is_mute(group, &goes) && self.is_mute(group, &gone) {
                after.mute.push(group.id);
            }
        }
        let leaves = |n: &&Node| {
            let is_up = n.state == NodeState::Up;
            n.id != node && is_up && (n.draining || goes(n.id))
        };
        after.others = self.nodes.values().filter(leaves).map(|n| n.id).collect();
        after
    }

    /// True if a data bucket of the group would have no node: a lost one is made anew on a node without a part
    /// in the group, beside the one part that a node has in memory, or in place of a parity bucket that the group can spare.
    fn is_mute(&self, group: &Group, gone: &dyn Fn(NodeId) -> bool) -> bool {
        let there = |x: &Member| self.runs(x.id) && !gone(x.id.node);
        let m = usize::from(group.m);
        let whole = whole_buckets(group.m, &group.members, there);
        if m == 1 || whole < m {
            return false;
        }
        let answers = |slot: usize| {
            let slot = MemberSlot(slot as u8);
            let own = group.member(slot).is_some_and(there);
            let holds = |(s, x): (MemberSlot, &Member)| {
                group.bucket_slot(s) == slot && x.complete && there(x)
            };
            own || group.listed().any(holds)
        };
        let homeless = (0..m).filter(|slot| !answers(*slot)).count();
        let pool = self.pools.get(&group.pool);
        let most = match pool.is_some_and(|pool| pool.medium == Medium::Disk) {
            true => 1,
            false => 2,
        };
        let free = |n: &&Node| {
            let home = n.is_home() && !gone(n.id);
            let parts = group.listed().filter(|(_, x)| x.id.node == n.id);
            home && parts.count() < most
        };
        homeless > self.nodes.values().filter(free).count() + (whole - m)
    }

    /// The first of some groups, with its pool's name.
    fn named(&self, groups: &[GroupId]) -> Option<(&str, &Group)> {
        let group = self.groups.get(groups.first()?)?;
        Some((&self.pools.get(&group.pool)?.name, group))
    }
}

impl AfterStop {
    /// The reason and the remedy, if the node must not stop.
    pub fn refusal(&self, map: &ClusterMap, node: &Node) -> Option<String> {
        let Some((pool, group)) = map.named(&self.broken) else {
            return self.refusal_of_mute(map, node);
        };
        let more = match self.broken.len() - 1 {
            0 => String::new(),
            1 => ", and 1 group more".to_owned(),
            more => format!(", and {more} groups more"),
        };
        let left = match group.m {
            1 => "no copy left".to_owned(),
            m => format!("fewer than the {m} members that it needs"),
        };
        Some(format!(
            "node {id} ({name}) cannot be stopped: group {group} of pool '{pool}'{more} would have {left}, and what \
             it holds would be lost; wait until 'staves status' says that \
             another loss is borne, or move its buckets away with 'staves node drain {id} --wait 10m'; nothing was \
             changed (--force stops all the same)",
            id = node.id,
            name = node.name,
            group = group.id,
        ))
    }

    /// A stop that leaves a bucket without an answer is only warned of; beside other nodes that drain or stop it is
    /// rejected, since the operator may not know of them.
    fn refusal_of_mute(&self, map: &ClusterMap, node: &Node) -> Option<String> {
        let text = self.mute_warning(map)?;
        let name = |id: &NodeId| map.nodes.get(id).map(|n| format!("{} ({})", n.id, n.name));
        let others: Vec<String> = self.others.iter().filter_map(name).collect();
        if others.is_empty() {
            return None;
        }
        Some(format!(
            "node {id} ({name}) cannot be stopped while others drain or stop (node {others}): {text}; wait until they \
             are back, 'staves node resume' them, or add a node; nothing was changed (--force stops all the same)",
            id = node.id,
            name = node.name,
            others = others.join(", node "),
        ))
    }

    fn mute_warning(&self, map: &ClusterMap) -> Option<String> {
        let (pool, group) = map.named(&self.mute)?;
        let groups = some_groups(self.mute.len(), pool, group);
        Some(format!(
            "{groups} would have a data bucket that no node is left to answer for until one comes (nothing is lost)"
        ))
    }

    /// The warning about a stop that can be borne, if there is one.
    pub fn warning(&self, map: &ClusterMap) -> Option<String> {
        let all = [
            self.waits_warning(map),
            self.mute_warning(map),
            self.bare_warning(map),
        ];
        let all: Vec<String> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    fn waits_warning(&self, map: &ClusterMap) -> Option<String> {
        let (pool, group) = map.named(&self.waits)?;
        let groups = some_groups(self.waits.len(), pool, group);
        Some(format!(
            "{groups} would be answered by nobody until this node is back (nothing is lost)"
        ))
    }

    fn bare_warning(&self, map: &ClusterMap) -> Option<String> {
        let (pool, group) = map.named(&self.bare)?;
        let groups = some_groups(self.bare.len(), pool, group);
        let bear = if self.bare.len() == 1 {
            "bears"
        } else {
            "bear"
        };
        Some(format!(
            "{groups} {bear} no further loss until what is missing is rebuilt: stop no other node before that"
        ))
    }
}

fn some_groups(count: usize, pool: &str, first: &Group) -> String {
    match count {
        1 => format!("group {} of pool '{pool}'", first.id),
        n => format!("{n} groups (group {} of pool '{pool}' first)", first.id),
    }
}

/// A stop for which no leader of the directory can be asked: the node holds buckets, and its map may be an old one.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "node {node} ({name}) cannot be stopped: it holds buckets, and no leader of the directory says whether others hold \
     them as well, so that this node's map may be an old one; bring the directory's voters back ('staves status' names \
     them); nothing was changed (--force stops all the same)"
)]
#[allow(missing_docs)] // the text says it
pub struct StopUnjudged {
    pub node: NodeId,
    pub name: String,
}

impl StopUnjudged {
    /// Rejects the stop of a node that a group names.
    pub fn of(map: &ClusterMap, node: NodeId) -> Option<StopUnjudged> {
        let holds = map.groups.values().any(|group| group.names(node));
        let name = map.nodes.get(&node).filter(|_| holds)?.name.clone();
        Some(StopUnjudged { node, name })
    }
}

impl ClusterMap {
    /// True if a group of a region names the node.
    pub fn is_of_a_region(&self, node: NodeId) -> bool {
        let memory = |pool: &&Pool| matches!(pool.kind, PoolKind::Memory { .. });
        let mut groups = self
            .pools
            .values()
            .filter(memory)
            .flat_map(|pool| self.groups_of(pool));
        groups.any(|group| group.names(node))
    }
}

/// Buckets of a stopped node that no other node has room for until it is back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotRebuilt {
    /// The buckets and the memory that there is.
    pub no_room: NoRoom,
    /// Those of them that are data buckets without an answer until then.
    pub unanswered: usize,
}

impl fmt::Display for NotRebuilt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("until it is back, its buckets are not made anew")?;
        if self.unanswered > 0 {
            let buckets = count(self.unanswered, "data bucket");
            write!(f, ", and nobody answers for {buckets} of them")?;
        }
        write!(f, ": {}", self.no_room)
    }
}

/// The buckets of a node that could not be made anew after its stop. A bucket counts as the mean of the node's
/// buckets of the pool.
pub fn not_rebuilt(map: &ClusterMap, usage: &Usage, node: &Node) -> Option<NotRebuilt> {
    let mut gone = map.clone();
    gone.nodes.get_mut(&node.id)?.state = NodeState::Down;
    map.pools.values().find_map(|pool| {
        let groups = map.groups_of(pool).filter(|group| !group.lost);
        let held = groups.flat_map(|group| {
            let here = group.listed().filter(|(_, x)| x.id.node == node.id);
            here.map(move |(slot, _)| (group, slot))
        });
        let held: Vec<(&Group, MemberSlot)> = held.collect();
        let bucket_bytes = usage
            .of_pool(node.id, pool)?
            .checked_div(held.len() as u64)?;
        let mut free = FreeMemory::of(&gone, usage, pool);
        let left_bytes = free.left();
        let (mut buckets, mut unanswered) = (0, 0);
        for (group, slot) in held {
            let fits = |home: NodeId| may_rebuild(group, slot, home);
            // Without any such node it is not memory that is missing.
            let any = gone.homes().any(|home| fits(home.id));
            if any && free.place(bucket_bytes, 1, |home| !fits(home)) > 0 {
                buckets += 1;
                unanswered += usize::from(is_unanswered(&gone, group, slot));
            }
        }
        let no_room = NoRoom {
            pool: pool.name.clone(),
            buckets,
            bucket_bytes,
            left_bytes,
            outside_group: false,
        };
        (buckets > 0).then_some(NotRebuilt {
            no_room,
            unanswered,
        })
    })
}

/// True if a node may make a bucket of the group anew: it has no part in the group, or one (m > 1) beside which a data
/// bucket finds its place.
fn may_rebuild(group: &Group, slot: MemberSlot, home: NodeId) -> bool {
    let parts = group.listed().filter(|(_, x)| x.id.node == home);
    parts.count() <= usize::from(is_coded_data(group, slot))
}

fn is_coded_data(group: &Group, slot: MemberSlot) -> bool {
    group.m > 1 && group.bucket_slot(slot).0 < group.m
}

/// True if the group has no parity bucket to spare, the place of which a data bucket would take.
fn is_unanswered(gone: &ClusterMap, group: &Group, slot: MemberSlot) -> bool {
    let up = |x: &Member| gone.runs(x.id);
    let whole = whole_buckets(group.m, &group.members, up);
    is_coded_data(group, slot) && whole <= usize::from(group.m)
}

#[cfg(test)]
mod tests;
