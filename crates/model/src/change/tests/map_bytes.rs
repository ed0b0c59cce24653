//! The bytes of a map: every node has all of it, and it goes over the network at each change that is not told as a difference.

use super::super::*;
use crate::map::ClusterMap;
use crate::testing::*;

fn bytes(map: &ClusterMap) -> usize {
    postcard::to_allocvec(map).expect("it fits").len()
}

/// A volume of 1 TiB is 1,024 groups, and one entry of a region. Its session, snapshots and limits are the volume's, not the groups'.
#[test]
fn a_volume_of_a_tebibyte_takes_few_bytes_of_the_map() {
    let mut map = cluster(5);
    let pool = create_memory_pool("vols", "1+1", 1 << 40);
    map.apply(None, &pool).expect("new");
    let before = bytes(&map);
    let create = Change::MakeRegion {
        pool: "vols".into(),
        name: "disk".into(),
        size_bytes: 1 << 40,
        bucket_bytes: 1 << 30,
        is_volume: true,
    };
    map.apply(None, &create).expect("new");
    let groups: Vec<u32> = map.groups.keys().map(|group| group.0).collect();
    assert_eq!(groups.len(), 1024);
    for group in groups {
        let first = u64::from(group) % 5;
        start_group(&mut map, group, &[first + 1, (first + 1) % 5 + 1]);
    }
    let of_group = (bytes(&map) - before) / 1024;
    assert!(of_group <= 48, "{of_group} bytes for each group");
    println!("{} bytes, {of_group} for each group", bytes(&map) - before);
}
