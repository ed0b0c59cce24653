//! The groups of a volume that wait, and their reason, as the map has them.

use std::collections::BTreeSet;

use staves_model::{ClusterMap, Group, GroupId, NodeId};

/// The groups, of those of a volume, that nobody answers for at present, in words with the reason; `None` if all of them serve. Requests to their part of the
/// volume wait.
pub(super) fn waits(map: &ClusterMap, groups: &[GroupId]) -> Option<String> {
    let groups: Vec<&Group> = groups.iter().filter_map(|id| map.groups.get(id)).collect();
    let waiting = groups.iter().filter(|group| !group.lost);
    let waiting: Vec<&&Group> = waiting.filter(|group| !serves(map, group)).collect();
    if waiting.is_empty() {
        return None;
    }
    let nodes = |group: &&&Group| map.awaited_disks(group);
    let is_unflushed = |group: &&&Group| {
        let may_go_on = map.complete_sources_up(group) >= usize::from(group.m);
        may_go_on && !map.awaited_disks(group).is_empty()
    };
    let awaited: BTreeSet<NodeId> = waiting.iter().flat_map(nodes).collect();
    let why = match awaited.is_empty() {
        true => "for new members ('staves status' says more)".to_owned(),
        false if waiting.iter().any(is_unflushed) => format!(
            "for {}, which may hold unflushed writes: until it is back, or is given up ('staves status' says when)",
            names(map, &awaited)
        ),
        false => format!("for the disk of {}: start it", names(map, &awaited)),
    };
    let wait = if waiting.len() == 1 { "waits" } else { "wait" };
    Some(format!(
        "{} of {} groups {wait} {why}",
        waiting.len(),
        groups.len()
    ))
}

/// True if each data bucket of a group has a node that answers for it. One that has not begun yet begins with its first write.
fn serves(map: &ClusterMap, group: &Group) -> bool {
    if group.last_open.epoch.0 == 0 && !group.open {
        return true;
    }
    let data = group.members.iter().take(usize::from(group.m)).flatten();
    let running = data.filter(|x| map.runs(x.id)).count();
    group.open && running == usize::from(group.m) && map.awaited_disks(group).is_empty()
}

fn names(map: &ClusterMap, nodes: &BTreeSet<NodeId>) -> String {
    let name = |id: &NodeId| map.nodes.get(id).map_or(id.to_string(), |n| n.name.clone());
    nodes.iter().map(name).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_model::testing::{cluster_with_pool, start_group};
    use staves_model::{Medium, NodeState};

    /// Regression: a volume half of which waited was listed as in use.
    #[test]
    fn a_volume_of_which_groups_wait_says_for_what() {
        let mut map = cluster_with_pool(3, "1+1", 2);
        start_group(&mut map, 1, &[1, 2]);
        start_group(&mut map, 2, &[2, 3]);
        let pools = map.pools.values_mut();
        pools.for_each(|pool| pool.medium = Medium::Disk);
        let groups = [GroupId(1), GroupId(2)];
        assert_eq!(waits(&map, &groups), None);
        map.groups.get_mut(&GroupId(2)).expect("a group").open = false;
        let said = waits(&map, &groups).expect("one is not open");
        assert!(
            said.starts_with("1 of 2 groups waits for new members"),
            "{said}"
        );
        map.groups.get_mut(&GroupId(2)).expect("a group").open = true;
        for node in [1, 2] {
            map.nodes.get_mut(&NodeId(node)).expect("a node").state = NodeState::Down;
        }
        let said = waits(&map, &groups).expect("both of one are down");
        assert!(
            said.contains(" for the disk of n1 or n2: start it"),
            "{said}"
        );
    }
}
