//! Volumes and their groups, as the cluster map has them.

use staves_grpc::v1;
use staves_model::{ClusterMap, Group, GroupId, Pool, Region};

/// All volumes of the map.
pub(super) fn volumes(map: &ClusterMap) -> Vec<v1::Volume> {
    let pools = map.pools.values();
    let in_pool = |pool| volumes_of(map, pool);
    pools.flat_map(in_pool).collect()
}

fn volumes_of<'a>(map: &'a ClusterMap, pool: &'a Pool) -> impl Iterator<Item = v1::Volume> + 'a {
    let regions = pool.regions().iter();
    regions.filter_map(|region| volume(map, pool, region))
}

/// One of them; `None` if it is a region of memory, or a copy that is being made, or is being deleted.
pub(super) fn volume(map: &ClusterMap, pool: &Pool, region: &Region) -> Option<v1::Volume> {
    let volume = region
        .volume
        .as_ref()
        .filter(|_| map.is_in_use(region.id))?;
    // A session ends with its door.
    let writer = map.live_writer(region);
    let medium = match pool.medium {
        staves_model::Medium::Ram => v1::Medium::Memory,
        staves_model::Medium::Disk => v1::Medium::Disk,
    };
    Some(v1::Volume {
        name: region.name.clone(),
        size_bytes: region.size_bytes,
        pool: pool.name.clone(),
        scheme: pool.scheme.to_string(),
        medium: medium.into(),
        session: volume.session,
        writer: writer.map(|writer| v1::Writer {
            client: writer.client.clone(),
            node: writer.node.0,
        }),
    })
}

/// The state of a volume and of its groups.
pub(super) fn state(map: &ClusterMap, pool: &Pool, region: &Region) -> Option<v1::GetStateReply> {
    Some(v1::GetStateReply {
        volume: Some(volume(map, pool, region)?),
        capacity_bytes: region.capacity_bytes(pool.scheme.m),
        groups: region.groups().map(|id| group(map, pool, id)).collect(),
    })
}

fn group(map: &ClusterMap, pool: &Pool, id: GroupId) -> v1::Group {
    let Some(group) = map.groups.get(&id) else {
        // On its way: the directory has not placed it yet.
        return v1::Group {
            id: id.0,
            health: v1::GroupHealth::Unanswered.into(),
            ..v1::Group::default()
        };
    };
    let members = group.listed().map(|(slot, member)| v1::Member {
        slot: slot.0.into(),
        node: member.id.node.0,
        node_name: map
            .node_of(member)
            .map_or_else(String::new, |node| node.name.clone()),
        up: map.runs(member.id),
        complete: member.complete,
    });
    v1::Group {
        id: id.0,
        health: health(map, pool, group).into(),
        epoch: group.epoch.0,
        members: members.collect(),
    }
}

fn health(map: &ClusterMap, pool: &Pool, group: &Group) -> v1::GroupHealth {
    if group.lost {
        return v1::GroupHealth::Lost;
    }
    let data_runs = |slot: usize| {
        let member = group.members.get(slot).and_then(Option::as_ref);
        member.is_some_and(|member| map.runs(member.id))
    };
    if !group.open || !(0..usize::from(group.m)).all(data_runs) {
        return v1::GroupHealth::Unanswered;
    }
    // Of two members on one node the loss of that takes both.
    match group.tolerates(|id| map.runs(id)) >= Some(pool.scheme.k) {
        true => v1::GroupHealth::Whole,
        false => v1::GroupHealth::Short,
    }
}

#[cfg(test)]
mod tests {
    use staves_model::testing::{cluster, create_memory_pool};
    use staves_model::{Change, Member, MemberId, MemberSlot, NodeId, twin};

    use super::*;

    /// A group of scheme 2+1 with a volume, with complete members in these slots on these nodes: the first on a node is its first member.
    fn health_of(members: &[(MemberSlot, u64)]) -> v1::GroupHealth {
        let mut map = cluster(4);
        for change in [
            create_memory_pool("memory", "2+1", 1 << 29),
            Change::CreateVolume {
                pool: "memory".into(),
                name: "v".into(),
                size_bytes: 1 << 20,
            },
        ] {
            map.apply(None, &change).expect("it is made");
        }
        let (_, region) = map.region_named("v").expect("the volume");
        let id = region.groups().next().expect("a group");
        let mut seats = vec![
            None;
            1 + members
                .iter()
                .map(|(slot, _)| slot.index())
                .max()
                .unwrap_or(0)
        ];
        for (at, (slot, node)) in members.iter().enumerate() {
            let is_second = members[..at].iter().any(|(_, other)| other == node);
            let node = NodeId(*node);
            let first = MemberId::new(node, map.nodes[&node].incarnation);
            seats[slot.index()] = Some(Member {
                id: if is_second { first.second() } else { first },
                complete: true,
            });
        }
        let mut group = map.groups[&id].clone();
        group.open = true;
        group.fresh = false;
        group.kept = vec![None; seats.len()];
        group.last_open.members = seats.clone();
        group.members = seats;
        map.groups.insert(id, group);
        let pool = map.pool_named("memory").expect("the pool");
        health(&map, pool, &map.groups[&id])
    }

    #[test]
    fn a_group_is_whole_if_it_bears_the_losses_of_its_scheme() {
        let [zero, one, parity] = [0, 1, 2].map(MemberSlot);
        let apart = [(zero, 1), (one, 2), (parity, 3)];
        assert_eq!(health_of(&apart), v1::GroupHealth::Whole);
        assert_eq!(health_of(&apart[..2]), v1::GroupHealth::Short);
        let doubled = [(zero, 1), (one, 2), (parity, 2)];
        assert_eq!(health_of(&doubled), v1::GroupHealth::Short);
        // While a bucket moves, both members that hold it are worth one.
        let twin = twin(2, zero);
        let moving = [&apart[..], &[(twin, 4)]].concat();
        assert_eq!(health_of(&moving), v1::GroupHealth::Whole);
        let without_parity = [apart[0], apart[1], (twin, 3)];
        assert_eq!(health_of(&without_parity), v1::GroupHealth::Short);
        let twin_beside_other = [&doubled[..], &[(twin, 4)]].concat();
        assert_eq!(health_of(&twin_beside_other), v1::GroupHealth::Short);
    }
}
