//! The nodes that a node pings.

use super::*;

/// Rows D5 and X4: neighbours in the circle of ids, and the peers of one's groups.
#[test]
fn each_node_pings_its_neighbours_and_its_peers() {
    let ids = |map: &ClusterMap, me| -> Vec<u64> {
        whom_to_ping(map, NodeId(me)).iter().map(|n| n.0).collect()
    };
    let mut map = cluster_with_pool(9, "1+2", 1);
    assert_eq!(ids(&map, 5), vec![1, 2, 3, 4, 6, 7, 8, 9], "all of few");
    map.apply(None, &node_down(&map, 2)).expect("up");
    assert_eq!(ids(&map, 5), vec![1, 3, 4, 6, 7, 8, 9]);
    let mut map = cluster_with_pool(40, "1+2", 1);
    assert_eq!(ids(&map, 1), vec![2, 3, 40]);
    assert_eq!(ids(&map, 40), vec![1, 2, 39]);
    map.apply(None, &node_down(&map, 2)).expect("up");
    assert_eq!(
        ids(&map, 1),
        vec![3, 4, 40],
        "new neighbours for a dead one"
    );
    start(&mut map, &[1, 6, 7]);
    assert_eq!(ids(&map, 1), vec![3, 4, 6, 7, 40]);
    assert_eq!(ids(&cluster(1), 1), Vec::<u64>::new());
    assert_eq!(ids(&cluster(2), 1), vec![2]);
    let mut map = cluster(80);
    map.apply(None, &create_pool("cache", "1+1", 128, true))
        .expect("new");
    for g in 0..79 {
        let mut group = map.groups[&crate::ids::GroupId(g + 1)].clone();
        group.members = [1, u64::from(g) + 2]
            .map(|n| {
                Some(crate::map::Member {
                    id: crate::ids::MemberId::new(NodeId(n), Incarnation(n)),
                    complete: true,
                })
            })
            .to_vec();
        map.groups.insert(group.id, group);
    }
    assert_eq!(ids(&map, 1).len(), PINGED_MAX);
}
