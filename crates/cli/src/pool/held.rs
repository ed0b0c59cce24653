//! The volumes and regions that a pool holds.

use staves_model::units::count;
use staves_model::{ClusterMap, Region};

/// Most volumes that are named.
const NAMED_MAX: usize = 4;

/// The number of a pool's volumes and regions, and the volumes that clients have attached; `None` if it has none.
pub(super) fn held(map: &ClusterMap, pool: &str) -> Option<String> {
    let regions = map.pool_named(pool)?.regions();
    let (volumes, regions): (Vec<&Region>, Vec<&Region>) =
        regions.iter().partition(|region| region.volume.is_some());
    let attached: Vec<&Region> = volumes
        .iter()
        .copied()
        .filter(|volume| is_attached(map, volume))
        .collect();
    let in_use = match attached.len() {
        0 if volumes.is_empty() => String::new(),
        0 => " (none of them attached)".to_owned(),
        n => {
            let names: Vec<String> = attached
                .iter()
                .take(NAMED_MAX)
                .map(|v| format!("'{}'", v.name))
                .collect();
            let more = if n > NAMED_MAX { ", ..." } else { "" };
            format!(" ({n} of them attached: {}{more})", names.join(", "))
        }
    };
    let volumes =
        (!volumes.is_empty()).then(|| format!("{}{in_use}", count(volumes.len() as u64, "volume")));
    let regions = (!regions.is_empty()).then(|| count(regions.len() as u64, "region"));
    let all: Vec<String> = volumes.into_iter().chain(regions).collect();
    (!all.is_empty()).then(|| all.join(" and "))
}

/// True if a client has a volume attached, through a node that is up.
fn is_attached(map: &ClusterMap, region: &Region) -> bool {
    let writer = region
        .volume
        .as_ref()
        .and_then(|volume| volume.writer.as_ref());
    let is_up = writer.is_some_and(|writer| map.is_up(writer.node, writer.incarnation));
    is_up || map.shared_doors(region.id).next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_model::testing::cluster_with_pool;
    use staves_model::{PoolKind, RegionId, Volume, VolumeWriter};

    fn region(id: u32, writer: Option<Option<VolumeWriter>>) -> Region {
        Region {
            id: RegionId(id),
            name: format!("r{id}"),
            volume: writer.map(|writer| Volume {
                writer,
                ..Volume::default()
            }),
            size_bytes: 1,
            stretches: Vec::new(),
        }
    }

    /// Regression: a pool was deleted without a word of the volumes in it that clients had attached.
    #[test]
    fn volumes_and_those_that_are_attached_are_counted() {
        let mut map = cluster_with_pool(3, "1+1", 2);
        let node = map.nodes.values().next().cloned().expect("three nodes");
        let writer = VolumeWriter {
            node: node.id,
            incarnation: node.incarnation,
            client: "10.0.0.9:4711".into(),
        };
        let pool = map.pools.values_mut().next().expect("a pool");
        let name = pool.name.clone();
        let of = |map: &ClusterMap| held(map, &name);
        assert_eq!(of(&map), None);
        let pool = map.pools.values_mut().next().expect("a pool");
        let regions = vec![
            region(1, None),
            region(2, Some(None)),
            region(3, Some(Some(writer))),
        ];
        pool.kind = PoolKind::Memory { regions };
        let said = "2 volumes (1 of them attached: 'r3') and 1 region";
        assert_eq!(of(&map).as_deref(), Some(said));
        let up = map.nodes.get_mut(&node.id).expect("it is there");
        up.state = staves_model::NodeState::Down;
        let said = "2 volumes (none of them attached) and 1 region";
        assert_eq!(of(&map).as_deref(), Some(said));
    }
}
