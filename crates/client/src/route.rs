//! The node that a bucket's operations go to, by the map that is at hand; and the map, kept the newest of
//! all that were received.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use staves_model::{
    ClusterMap, Group, MemberSlot, Node, NodeId, NodeState, Pool, PoolId, ServiceId,
};
use staves_wire::ErrorCode;
use staves_wire::service::{Address, PoolRef};

use crate::error::ClientError;

/// The target of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// To this node.
    Node(NodeId),
    /// Nowhere for now: no epoch is open, or nobody holds the bucket.
    Wait,
    /// Its bytes are lost.
    Lost,
}

/// The id of a service's pool.
pub(crate) fn pool_of(
    map: &ClusterMap,
    service: ServiceId,
    pool: &PoolRef,
) -> Result<PoolId, ClientError> {
    let found = match pool {
        PoolRef::Id(id) => map.pools.get(id),
        PoolRef::Name(name) => map.pool_named(name),
    };
    let is_of = |pool: &&Pool| pool.kind.service() == Some(service);
    if let Some(found) = found.filter(is_of) {
        return Ok(found.id);
    }
    let name = match pool {
        PoolRef::Id(id) if found.is_none() => {
            let text = format!(
                "the {} pool of this request is gone: no pool has its number, {id}, any more; 'staves pool list' shows those there are",
                service.word()
            );
            return Err(ClientError::of(ErrorCode::NotFound, text));
        }
        PoolRef::Id(id) => id.to_string(),
        PoolRef::Name(name) => name.clone(),
    };
    let pools = map.pools.values().filter(is_of);
    let have: Vec<&str> = pools.map(|pool| pool.name.as_str()).collect();
    let instead = match found {
        Some(other) => format!(": it holds {}", other.kind.row().holds),
        None if have.is_empty() => "; there are: none yet".to_owned(),
        None => format!("; there are: {}", have.join(", ")),
    };
    Err(ClientError::NoSuchPool {
        service: service.word(),
        name,
        instead,
    })
}

/// Nodes that are passed over while others are left.
#[derive(Clone, Debug, Default)]
pub struct Avoid {
    /// Nodes that did not answer us.
    pub nodes: BTreeSet<NodeId>,
    /// The node that asks, if it is one: it has nobody to pass on to that it would not ask itself.
    pub me: Option<NodeId>,
    /// Of each of them, the tries in vain beside it: each takes the detour over another node. One count for all would have two buckets,
    /// to which different detours lead, send each other away from the right one.
    pub turns: BTreeMap<NodeId, usize>,
}

impl Avoid {
    pub(crate) fn turn_of(&self, node: NodeId) -> usize {
        self.turns.get(&node).copied().unwrap_or(0)
    }
}

/// The node of a group's data bucket; where that is to be avoided (it did not answer us), the next
/// node that is up, which passes the operations on (row D1). If nobody is left, the node itself.
pub(crate) fn data_bucket(
    map: &ClusterMap,
    group: &Group,
    slot: MemberSlot,
    avoid: &Avoid,
) -> Target {
    if group.lost {
        return Target::Lost;
    }
    match owner(map, group, slot) {
        None => Target::Wait,
        Some(node) if !avoid.nodes.contains(&node) => Target::Node(node),
        Some(node) => Target::Node(next_up(map, node, avoid).unwrap_or(node)),
    }
}

/// The node that answers for a data bucket.
fn owner(map: &ClusterMap, group: &Group, slot: MemberSlot) -> Option<NodeId> {
    let member = group
        .member(slot)
        .filter(|_| group.open && slot.0 < group.m)?;
    map.runs(member.id).then_some(member.id.node)
}

/// The nodes that answer for these data buckets.
pub(crate) fn owners(
    map: &ClusterMap,
    pool: PoolId,
    buckets: impl Iterator<Item = Address>,
) -> BTreeSet<NodeId> {
    let owner = |to: Address| owner(map, to.group(map, pool)?, to.slot());
    buckets.filter_map(owner).collect()
}

/// A node that is up and not to be avoided: the first after this one in the circle of ids, another at each turn.
fn next_up(map: &ClusterMap, after: NodeId, avoid: &Avoid) -> Option<NodeId> {
    let avoided = |id: NodeId| avoid.nodes.contains(&id) || avoid.me == Some(id);
    let able = |node: &&Node| node.state == NodeState::Up && !avoided(node.id);
    let beyond = map.nodes.range(NodeId(after.0 + 1)..).map(|(_, node)| node);
    let before = map.nodes.range(..after).map(|(_, node)| node);
    let able: Vec<NodeId> = beyond.chain(before).filter(able).map(|n| n.id).collect();
    able.get(avoid.turn_of(after).checked_rem(able.len())?)
        .copied()
}

/// The newest of two maps, with the newest entry of each group that either has.
pub fn newest(old: &Arc<ClusterMap>, heard: Arc<ClusterMap>) -> Arc<ClusterMap> {
    if heard.revision <= old.revision {
        return old.clone();
    }
    let ahead =
        |group: &&Group| group.revision > heard.revision && heard.groups.contains_key(&group.id);
    let ahead: Vec<Group> = old.groups.values().filter(ahead).cloned().collect();
    if ahead.is_empty() {
        return heard;
    }
    let mut map = Arc::unwrap_or_clone(heard);
    map.groups
        .extend(ahead.into_iter().map(|group| (group.id, group)));
    Arc::new(map)
}

/// The map with newer entries of single groups, which came with answers; `None` if there is nothing
/// new in them.
pub fn with_moved(map: &ClusterMap, moved: &[Arc<Group>]) -> Option<Arc<ClusterMap>> {
    let newer = |group: &&Arc<Group>| {
        map.groups
            .get(&group.id)
            .is_some_and(|known| known.revision < group.revision)
    };
    let newer: Vec<&Arc<Group>> = moved.iter().filter(newer).collect();
    if newer.is_empty() {
        return None;
    }
    let mut map = map.clone();
    map.groups.extend(
        newer
            .into_iter()
            .map(|group| (group.id, Group::clone(group))),
    );
    Some(Arc::new(map))
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_model::testing::cluster;

    /// With two nodes the detour is the asker itself, which would ask itself until it is over.
    #[test]
    fn nobody_takes_the_detour_over_himself() {
        let mut map = cluster(2);
        let avoid = |me| Avoid {
            nodes: BTreeSet::from([NodeId(1)]),
            me,
            ..Avoid::default()
        };
        assert_eq!(next_up(&map, NodeId(1), &avoid(None)), Some(NodeId(2)));
        let by_two = avoid(Some(NodeId(2)));
        assert_eq!(next_up(&map, NodeId(1), &by_two), None);
        map = cluster(3);
        assert_eq!(next_up(&map, NodeId(1), &by_two), Some(NodeId(3)));
    }

    /// Regression: the node that stands in may not reach the other either, and it was asked again and again.
    #[test]
    fn each_try_takes_the_detour_over_another_node() {
        let map = cluster(4);
        let over = |turn| Avoid {
            nodes: BTreeSet::from([NodeId(1)]),
            me: Some(NodeId(3)),
            turns: BTreeMap::from([(NodeId(1), turn)]),
        };
        let taken = (0..3).map(|turn| next_up(&map, NodeId(1), &over(turn)));
        let taken: Vec<_> = taken.map(|node| node.expect("one is left").0).collect();
        assert_eq!(taken, [2, 4, 2]);
    }

    /// Regression: of five nodes in a ring of cuts each reaches two, by different detours; tries in vain beside one moved the detour
    /// that led to the other, and writes stood for 3 to 15 s.
    #[test]
    fn tries_in_vain_beside_one_node_say_nothing_of_another() {
        let map = cluster(5);
        let over = |turns: [(u64, usize); 1]| Avoid {
            nodes: [1, 5].map(NodeId).into(),
            me: Some(NodeId(3)),
            turns: turns.map(|(node, turn)| (NodeId(node), turn)).into(),
        };
        let (before, after) = (over([(1, 0)]), over([(1, 1)]));
        assert_eq!(next_up(&map, NodeId(1), &before), Some(NodeId(2)));
        assert_eq!(next_up(&map, NodeId(1), &after), Some(NodeId(4)));
        let beside_five = |avoid| next_up(&map, NodeId(5), avoid);
        assert_eq!(beside_five(&before), beside_five(&after));
    }
}
