//! What a drain, or a bucket without a node, waits for that perhaps only a person can bring.

use staves_model::{ClusterMap, Group, Member, MemberSlot, NodeId, NodeState, Pool, whole_buckets};

use super::WaitingBucket;

/// What the drain of a node cannot go on without; `None` if it does not drain, or if every bucket that it still
/// holds has somewhere to go, as far as nodes are concerned.
pub fn drain_waits_for(map: &ClusterMap, node: NodeId) -> Option<String> {
    let drained = map.nodes.get(&node)?;
    if !drained.draining || drained.state == NodeState::Down {
        return None;
    }
    let homes: Vec<NodeId> = map
        .nodes
        .values()
        .filter(|n| n.state == NodeState::Up && !n.draining)
        .map(|n| n.id)
        .collect();
    let listed = |group: &Group, node: NodeId| {
        let is = |(_, x): (_, &Member)| x.id.node == node;
        group.listed().any(is)
    };
    // With m = 1 a group may do with fewer copies while it has any home at all. With m > 1 who comes stands
    // beside who goes, so that it must be a node that has no part in the group.
    let stays = |group: &&Group| {
        let every_home_has_it = homes.iter().all(|home| listed(group, *home));
        listed(group, node) && every_home_has_it && (group.m > 1 || homes.is_empty())
    };
    let stuck: Vec<&Group> = map.groups.values().filter(stays).collect();
    let first = stuck.first()?;
    let pool = map.pools.get(&first.pool)?;
    let buckets = match stuck.len() {
        1 => "1 bucket has".to_owned(),
        n => format!("{n} buckets have"),
    };
    Some(match homes.len() {
        0 => format!(
            "no other node is up and not draining, so {buckets} nowhere to go: start or resume one"
        ),
        n => format!(
            "{buckets} nowhere to go, because pool '{}' ({}) keeps the buckets of a group on different nodes \
             and {}: start or resume another node",
            pool.name,
            pool.scheme,
            match n {
                1 => "the 1 other that is up and not draining is in the group".to_owned(),
                n => format!("all {n} others that are up and not draining are in the group"),
            }
        ),
    })
}

/// Whether nobody answers for a data bucket of a group that serves, and nobody will until a node has room for it: where
/// there is parity to spare, that gives its place up.
pub(super) fn unanswered(map: &ClusterMap, group: &Group) -> bool {
    let m = usize::from(group.m);
    let whole = whole_buckets(group.m, &group.members, |x| map.runs(x.id));
    let vacant = || group.members.iter().take(m).any(Option::is_none);
    group.open && !group.lost && whole == m && vacant()
}

/// Most waiting buckets of a pool that are told one by one.
const WAITING_MAX: usize = 64;

/// The buckets of a pool's groups that no node holds, as far as the nodes there are could hold them (m > 1). With
/// m = 1 a copy that is missing is one less; it is told as such.
pub(super) fn waiting(map: &ClusterMap, pool: &Pool) -> Vec<WaitingBucket> {
    let homes: Vec<NodeId> = map
        .nodes
        .values()
        .filter(|n| n.state == NodeState::Up && !n.draining)
        .map(|n| n.id)
        .collect();
    let mut waiting = Vec::new();
    let groups = pool.groups.iter().filter_map(|id| map.groups.get(id));
    for group in groups.filter(|g| g.open && !g.lost && g.m > 1) {
        let width = match pool.is_loading(group.id) {
            true => group.m.into(),
            false => pool.scheme.width(),
        };
        let in_group = |node: &NodeId| group.listed().any(|(_, x)| x.id.node == *node);
        let free = homes.iter().filter(|home| !in_group(home)).count();
        let vacant = (0..width).filter(|s| group.member(MemberSlot(*s as u8)).is_none());
        // Parity that there are no nodes for is no bucket that anybody expects.
        let expected = |s: &usize| *s < usize::from(group.m) || free > 0;
        waiting.extend(vacant.filter(expected).map(|slot| WaitingBucket {
            group: group.id.0,
            bucket: slot as u8,
            has_nodes: free > 0,
        }));
        if waiting.len() >= WAITING_MAX {
            waiting.truncate(WAITING_MAX);
            break;
        }
    }
    waiting
}
