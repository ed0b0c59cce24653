//! Pools on the disks of a node share them by use.

use super::testing::host_with_disks;
use super::*;
use crate::disks::StartedDisks;

/// Regression: a pool that was made later got no room while an older one, which had nothing, might have taken the whole disk.
#[tokio::test]
async fn a_later_pool_on_disk_has_the_room_that_an_empty_older_one_may_take() {
    let data = tempfile::tempdir().expect("a folder");
    let disks = StartedDisks::open(Some(data.path()), 8 << 20, 1 << 20)
        .expect("a disk")
        .disks;
    let all = (disks.page_bytes() / EXTENT_BYTES as u64) as u32;
    let (host, _) = host_with_disks(Duration::from_secs(1), disks);
    let mut map = ClusterMap::clone(&host.routes().map);
    let first = map.pools.values().next().cloned().expect("a pool");
    for (id, node_budget_bytes) in [(7, 1 << 30), (8, 6 << 20), (9, 1 << 20)] {
        let mut pool = first.clone();
        (pool.id, pool.name) = (PoolId(id), format!("p{id}"));
        (pool.medium, pool.node_budget_bytes) = (Medium::Disk, node_budget_bytes);
        pool.groups.clear();
        map.pools.insert(pool.id, pool);
    }
    host.follow(Arc::new(map));
    let limits = |host: &Host| {
        let routes = host.routes();
        [7, 8, 9].map(|id| routes.pools[&PoolId(id)].budget.limit())
    };
    assert_eq!(
        limits(&host),
        [all, 24, 4],
        "each its own limit, and the disk's"
    );
}
