//! Volumes and their groups, as the cluster map has them.

use staves_grpc::v1;
use staves_model::{ClusterMap, Group, GroupId, Pool, Region, whole_buckets};

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
    let complete = whole_buckets(group.m, &group.members, |member| map.runs(member.id));
    match complete >= pool.scheme.width() {
        true => v1::GroupHealth::Whole,
        false => v1::GroupHealth::Short,
    }
}
