//! The room that a load needs, on small maps.

use super::*;
use crate::change::Change;
use crate::policy::testing::{MIB, mem, unborn};
use crate::testing::{node_down, start, start_group};

/// The region, whose members take so many MiB each.
fn taken<'a>(map: &'a ClusterMap, mib: &[u32]) -> RegionUsage<'a> {
    let of = |(slot, mib): (u8, &u32)| ((GroupId(1), MemberSlot(slot)), mib * 4);
    RegionUsage::new(map, "r", (0..).zip(mib).map(of).collect()).expect("a region")
}

fn free(mib: &[u64]) -> FreeMemory {
    FreeMemory::with((1..).zip(mib.iter().map(|mib| mib * MIB)))
}

#[test]
fn h11_a_load_is_judged_by_what_data_and_parity_take_besides() {
    let map = mem(4);
    let empty = taken(&map, &[0, 0, 0]);
    assert_eq!(empty.may_load(free(&[9, 9, 9, 0]), 0, 16 * MIB), Ok(()));
    // What is there already takes nothing besides, and the old parity makes room for the new.
    let full = taken(&map, &[9, 9, 9]);
    assert_eq!(full.may_load(free(&[0, 0, 0, 0]), 0, 16 * MIB), Ok(()));
    assert_eq!(full.may_load(free(&[0, 0, 0, 0]), 7, MIB + 5), Ok(()));
    assert!(full.may_load(free(&[0, 0, 0, 0]), 0, 19 * MIB).is_err());
}

/// Regression: a load was refused with what all nodes have left, which was more than it takes.
#[test]
fn a_load_that_is_rejected_names_the_node_or_group_without_room() {
    let map = mem(4);
    let empty = taken(&map, &[0, 0, 0]);
    let rejected = |left: &[u64]| {
        let refusal = empty.may_load(free(left), 0, 16 * MIB);
        refusal.expect_err("too much")
    };
    let data = rejected(&[7, 9, 200, 200]);
    let on_one =
        matches!(&data, LoadRefusal::Data { node, has, .. } if node == "n1" && *has == 7 * MIB);
    assert!(on_one, "{data:?}");
    let parity = rejected(&[200, 200, 7, 6]);
    assert!(matches!(
        parity,
        LoadRefusal::Parity {
            group: GroupId(1),
            ..
        }
    ));
    let has_all = |text: String, parts: [&str; 2]| {
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    };
    has_all(
        data.to_string(),
        ["node n1 takes 8.2 MiB more", "7.0 MiB left for pool 'mem'"],
    );
    has_all(
        parity.to_string(),
        [
            "parity (2+1) of its group 1 takes 8.2 MiB",
            "more than 7.0 MiB",
        ],
    );
}

/// Regression: a member that did not report was taken for empty, though its node counts it as used.
#[test]
fn a_member_that_does_not_answer_rejects_no_load() {
    let map = mem(4);
    let two = taken(&map, &[9, 9]);
    assert_eq!(two.may_load(free(&[0, 0, 0, 0]), 0, 16 * MIB), Ok(()));
}

/// Regression: a node that drains, and so has no room for buckets, rejected every load of a region on it.
#[test]
fn a_load_is_not_rejected_for_a_data_bucket_that_moves_away() {
    let map = mem(4);
    let empty = taken(&map, &[0, 0, 0]);
    let stay = FreeMemory::with([2, 3, 4].map(|node| (node, 20 * MIB)));
    assert_eq!(empty.may_load(stay, 0, 16 * MIB), Ok(()));
}

/// Regression: one group's parity was thought to move where another's alone fits, and bytes that were there
/// could not be loaded again.
#[test]
fn parity_that_does_not_grow_counts_as_staying_where_it_is() {
    let mut map = unborn(4);
    let size_bytes = 256 * MIB;
    let name = "r".into();
    map.apply(None, &Change::GrowRegion { name, size_bytes })
        .expect("sound");
    let groups: Vec<u32> = map.groups.keys().map(|id| id.0).collect();
    for (group, nodes) in groups.iter().zip([[1, 2, 4], [4, 1, 3]]) {
        start_group(&mut map, *group, &nodes);
    }
    let slots = |group| [0, 1, 2].map(|slot| (GroupId(group), MemberSlot(slot)));
    let all = groups.iter().flat_map(|group| slots(*group));
    let extents = all.map(|member| (member, 33)).collect();
    let taken = RegionUsage::new(&map, "r", extents).expect("a region");
    // The first group's parity on node 4 could go to node 3 as well, which has more; the second's on node 3
    // could not go to node 4, whose data is of its group.
    assert_eq!(taken.may_load(free(&[0, 0, 1, 0]), 0, 16 * MIB), Ok(()));
}

#[test]
fn parity_that_is_not_made_is_explained_by_what_is_missing() {
    let mut map = unborn(4);
    start(&mut map, &[1, 2]);
    let data = taken(&map, &[8, 6]);
    let missing = data.missing_parity(free(&[20, 20, 7, 3]));
    let text = missing.to_string();
    for part in [
        "takes 8.0 MiB",
        "8.0 MiB of that find no room",
        "50.0 MiB left",
        "pool set mem",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = data.missing_parity(free(&[0, 0, 8, 0])).to_string();
    assert!(
        text.contains("still being made") && text.contains("protect r"),
        "{text}"
    );
    let mut down = map.clone();
    for node in [3, 4] {
        let death = node_down(&down, node);
        down.apply(None, &death).expect("up");
    }
    let missing = taken(&down, &[8, 6]).missing_parity(free(&[20, 20]));
    assert_eq!(
        missing,
        MissingParity::NodesDown(vec!["n3".into(), "n4".into()])
    );
    assert!(missing.to_string().contains("2 nodes are down (n3, n4)"));
}
