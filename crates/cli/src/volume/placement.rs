//! The places of a volume's buckets: where they lie, where the directory is to have them, and what that moves.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use staves_cli_common::cluster::Cluster;
use staves_cli_common::failure::Failure;
use staves_client::VolumeStat;
use staves_model::{ClusterMap, Group, GroupId, GroupMove, MemberSlot, NodeId, Pool, forecast};
use staves_node::group_state::GroupState;
use staves_store::EXTENT_BYTES;
use staves_wire::Message;
use staves_wire::admin::GroupTarget;

/// Most members that are asked at once.
const ASKED_AT_ONCE: usize = 64;

/// The moves of a volume's groups, or of a pool's, and each node's share of them.
#[derive(Serialize)]
pub(super) struct PlacementPlan {
    pub(super) moves: Vec<MovedGroup>,
    /// Bytes that are still to be copied.
    pub(super) bytes_left: u64,
    /// Groups that are on their way to other members.
    pub(super) under_way: usize,
    pub(super) nodes: Vec<NodeShare>,
    /// Groups of which no member said how much it holds.
    pub(super) silent_groups: usize,
}

/// A group that is to lie elsewhere. Nodes are called by their names.
#[derive(Serialize)]
pub(super) struct MovedGroup {
    pub(super) group: u32,
    pub(super) now: Vec<String>,
    pub(super) then: Vec<String>,
    /// The nodes that get a bucket of it which they have not got.
    pub(super) fills: Vec<String>,
    /// Bytes that these are still to get.
    pub(super) bytes: u64,
}

/// A node's part, now and once all has moved.
#[derive(Serialize, Default)]
pub(super) struct NodeShare {
    pub(super) node: u64,
    pub(super) name: String,
    pub(super) buckets_now: usize,
    pub(super) buckets_then: usize,
    pub(super) bytes_now: u64,
    pub(super) bytes_then: u64,
}

impl PlacementPlan {
    /// True if all is where it is to be.
    pub(super) fn is_done(&self) -> bool {
        self.moves.is_empty() && self.under_way == 0
    }

    /// Buckets that are still to be copied.
    pub(super) fn fills(&self) -> usize {
        self.moves.iter().map(|moved| moved.fills.len()).sum()
    }
}

/// The plan of a volume, or of all that is in a pool, as the newest map and its members' own figures have it.
///
/// # Errors
/// There is no such volume or pool, or the cluster does not answer.
pub(super) fn plan(
    session: &Cluster,
    volume: Option<&str>,
    pool: Option<&str>,
) -> anyhow::Result<PlacementPlan> {
    let stat = match volume {
        Some(name) => Some(session.wait(session.client.volume(name))?),
        None => None,
    };
    let name = stat.as_ref().map(|stat| stat.region.pool.clone());
    let name = name.or(pool.map(str::to_owned)).unwrap_or_default();
    session.check_regions(&name)?;
    let map = session.map()?;
    let pool = map.pool_named(&name);
    let pool =
        pool.ok_or_else(|| Failure::NotInMap(format!("pool '{name}' was deleted meanwhile")))?;
    let groups = groups(stat.as_ref(), pool);
    let mut moves = forecast(&map, pool.id);
    moves.retain(|found| groups.contains(&found.group));
    let held = ask(session, &map, &groups);
    Ok(put_together(&map, &groups, &moves, &held))
}

fn groups(stat: Option<&VolumeStat>, pool: &Pool) -> BTreeSet<GroupId> {
    match stat {
        Some(stat) => stat.region.groups.iter().copied().collect(),
        None => pool.groups.iter().copied().collect(),
    }
}

/// The figures of members, by group and slot.
type HeldBuckets = BTreeMap<(GroupId, MemberSlot), GroupState>;

/// Asks members how much they hold: of copies one that is complete and those that are being filled, else all.
fn ask(session: &Cluster, map: &ClusterMap, groups: &BTreeSet<GroupId>) -> HeldBuckets {
    let known = groups.iter().filter_map(|id| map.groups.get(id));
    let asked: Vec<(GroupId, MemberSlot, String)> =
        known.flat_map(|group| whom_to_ask(map, group)).collect();
    let mut held = BTreeMap::new();
    for some in asked.chunks(ASKED_AT_ONCE) {
        let question = |group| Message::GroupState(GroupTarget { group });
        let asks = some
            .iter()
            .map(|(group, _, at)| (at.clone(), question(*group)));
        let answers = session.ask_all(asks.collect());
        for ((group, slot, _), answer) in some.iter().zip(answers) {
            let Ok(Message::GroupStateAnswer(answer)) = answer else {
                continue; // shown without its bytes
            };
            let state = serde_json::from_slice::<GroupState>(&answer.json).ok();
            let state = state.and_then(|state| state.of_slot(slot.0));
            held.extend(state.map(|state| ((*group, *slot), state)));
        }
    }
    held
}

fn whom_to_ask(map: &ClusterMap, group: &Group) -> Vec<(GroupId, MemberSlot, String)> {
    let running = group.listed().filter(|(_, x)| map.runs(x.id));
    let mut has_one = false;
    let asked = running.filter(|(_, x)| {
        let is_copy = group.m == 1 && x.complete;
        let is_asked = !is_copy || !has_one;
        has_one |= is_copy;
        is_asked
    });
    let asked = asked.filter_map(|(slot, x)| {
        let node = map.node_of(x)?;
        Some((group.id, slot, node.native.clone()))
    });
    asked.collect()
}

/// Bytes of the buckets of groups, as their members say: those that are complete, and else the most of those that are being filled.
struct BucketBytes<'a> {
    map: &'a ClusterMap,
    held: &'a HeldBuckets,
}

impl BucketBytes<'_> {
    fn of(&self, group: &Group, slot: MemberSlot) -> u64 {
        let bucket = |slot| match group.m {
            1 => MemberSlot(0),
            _ => group.bucket_slot(slot),
        };
        let states = group.listed().filter_map(|(at, _)| {
            let state = self.held.get(&(group.id, at))?;
            (bucket(at) == bucket(slot)).then_some(state)
        });
        let extents = states.map(|state| u64::from(state.extents)).max();
        extents.unwrap_or(0) * EXTENT_BYTES as u64
    }

    /// Those that a node is still to get.
    fn missing(&self, group: &Group, slot: MemberSlot, node: NodeId) -> u64 {
        let bytes = self.of(group, slot);
        let filling = group.listed().find(|(at, x)| {
            let is_its = group.m == 1 || group.bucket_slot(*at) == group.bucket_slot(slot);
            x.id.node == node && !x.complete && is_its && self.map.runs(x.id)
        });
        let state = filling.and_then(|(at, _)| self.held.get(&(group.id, at)));
        // Before its epoch opens it knows of no page.
        match state.filter(|state| state.pages > 0) {
            Some(state) => bytes * u64::from(state.missing_pages) / u64::from(state.pages),
            None => bytes,
        }
    }
}

fn put_together(
    map: &ClusterMap,
    groups: &BTreeSet<GroupId>,
    moves: &[GroupMove],
    held: &HeldBuckets,
) -> PlacementPlan {
    let figures = BucketBytes { map, held };
    let mut shares: BTreeMap<NodeId, NodeShare> = BTreeMap::new();
    let share = |id: NodeId| NodeShare {
        node: id.0,
        name: name(map, id),
        ..NodeShare::default()
    };
    let homes = map.homes().map(|node| (node.id, share(node.id)));
    shares.extend(homes);
    let (mut under_way, mut silent_groups) = (0, 0);
    for group in groups.iter().filter_map(|id| map.groups.get(id)) {
        let found = moves.iter().find(|found| found.group == group.id);
        let filling = group.listed().any(|(_, x)| !x.complete);
        under_way += usize::from(!group.lost && (!group.open || filling));
        let mut slots = group.listed().map(|(slot, _)| (group.id, slot));
        silent_groups += usize::from(!slots.any(|slot| held.contains_key(&slot)));
        for (slot, x) in group.listed() {
            let of = shares.entry(x.id.node).or_insert_with(|| share(x.id.node));
            of.buckets_now += 1;
            of.bytes_now += figures.of(group, slot);
        }
        for (slot, node) in members_then(group, found) {
            let of = shares.entry(node).or_insert_with(|| share(node));
            of.buckets_then += 1;
            of.bytes_then += figures.of(group, slot);
        }
    }
    let moved = moves.iter().filter_map(|found| {
        let group = map.groups.get(&found.group)?;
        let names = |placed: &[(MemberSlot, NodeId)]| {
            let names = placed.iter().map(|(_, id)| name(map, *id));
            names.collect::<Vec<_>>()
        };
        let fills = found.fills.iter();
        let missing = fills
            .clone()
            .map(|(slot, node)| figures.missing(group, *slot, *node));
        Some(MovedGroup {
            group: found.group.0,
            now: names(&found.now),
            then: names(&found.then),
            bytes: missing.sum(),
            fills: fills.map(|(_, node)| name(map, *node)).collect(),
        })
    });
    let moves: Vec<MovedGroup> = moved.collect();
    PlacementPlan {
        bytes_left: moves.iter().map(|moved| moved.bytes).sum(),
        moves,
        under_way,
        nodes: shares.into_values().collect(),
        silent_groups,
    }
}

/// The slots and nodes of a group once it has moved.
fn members_then(group: &Group, found: Option<&GroupMove>) -> Vec<(MemberSlot, NodeId)> {
    match found {
        None => group.listed().map(|(slot, x)| (slot, x.id.node)).collect(),
        Some(found) => found.then.clone(),
    }
}

fn name(map: &ClusterMap, id: NodeId) -> String {
    let node = map.nodes.get(&id);
    node.map_or_else(|| id.to_string(), |node| node.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_model::testing::{cluster_with_pool, start_group};

    #[test]
    fn bytes_are_those_that_members_hold_and_a_fill_counts_what_it_misses() {
        let mut map = cluster_with_pool(3, "1+1", 2);
        [1, 2]
            .iter()
            .for_each(|group| start_group(&mut map, *group, &[1, 2]));
        let (first, second) = (GroupId(1), GroupId(2));
        let extents = |extents| GroupState {
            extents,
            ..GroupState::default()
        };
        let mut held = HeldBuckets::from([
            ((first, MemberSlot(0)), extents(4)),
            ((second, MemberSlot(0)), extents(8)),
        ]);
        // The second group's copy goes to node 3, and the first group stays.
        let now = vec![(MemberSlot(0), NodeId(1)), (MemberSlot(1), NodeId(2))];
        let then = vec![(MemberSlot(0), NodeId(1)), (MemberSlot(1), NodeId(3))];
        let moves = [GroupMove {
            group: second,
            now,
            then,
            fills: vec![(MemberSlot(1), NodeId(3))],
        }];
        let groups = BTreeSet::from([first, second]);
        let plan = put_together(&map, &groups, &moves, &held);
        const MIB: u64 = 1 << 20;
        assert_eq!((plan.bytes_left, plan.under_way), (2 * MIB, 0));
        let shares = plan.nodes.iter().map(|n| {
            let buckets = (n.buckets_now, n.buckets_then);
            (n.node, buckets, n.bytes_now, n.bytes_then)
        });
        let expected = [
            (1, (2, 2), 3 * MIB, 3 * MIB),
            (2, (2, 1), 3 * MIB, MIB),
            (3, (0, 1), 0, 2 * MIB),
        ];
        assert_eq!(shares.collect::<Vec<_>>(), expected);
        // Node 3 has joined, and has a quarter of the pages.
        let group = map.groups.get_mut(&second).expect("a group");
        let mut joiner = group.members[1].expect("a copy");
        joiner.id.node = NodeId(3);
        joiner.id.incarnation = map.nodes[&NodeId(3)].incarnation;
        joiner.complete = false;
        group.members.push(Some(joiner));
        let filling = GroupState {
            pages: 400,
            missing_pages: 300,
            ..GroupState::default()
        };
        held.insert((second, MemberSlot(2)), filling);
        let plan = put_together(&map, &groups, &moves, &held);
        assert_eq!((plan.bytes_left, plan.under_way), (2 * MIB * 3 / 4, 1));
        // A group of which nobody answered is counted, and not taken for empty.
        held.clear();
        let plan = put_together(&map, &groups, &moves, &held);
        assert_eq!((plan.silent_groups, plan.bytes_left), (2, 0));
    }
}
