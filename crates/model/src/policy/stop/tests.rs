//! Advice on stops, on small maps.

use super::*;
use crate::change::Change;
use crate::policy::testing::{mem, usage};
use crate::testing::*;

/// A pool 2+1 with one group on nodes 1 to 3, and node 4 beside them.
fn map() -> ClusterMap {
    let mut map = cluster(4);
    map.apply(None, &create_pool("kept", "2+1", 1, false))
        .expect("new");
    start(&mut map, &[1, 2, 3]);
    map
}

#[test]
fn a_stop_that_is_borne_is_told_of_and_the_next_is_refused() {
    let mut map = map();
    let nobody = |_| false;
    assert_eq!(map.after_stop(NodeId(4), nobody), AfterStop::default());
    let after = map.after_stop(NodeId(1), nobody);
    assert_eq!((after.broken.len(), after.bare.len()), (0, 1));
    assert_eq!(after.refusal(&map, &map.nodes[&NodeId(1)]), None);
    let warning = after.warning(&map).expect("it bears none then");
    assert!(warning.contains("'kept'"), "{warning}");

    // Told at once to two, and one after the other.
    let both = map.after_stop(NodeId(2), |n| n == NodeId(1));
    map.apply(None, &node_down(&map.clone(), 1)).expect("up");
    let next = map.after_stop(NodeId(2), nobody);
    assert_eq!(
        (&both.broken, &both.others[..]),
        (&next.broken, &[NodeId(1)][..])
    );
    assert_eq!(next.broken, [GroupId(1)]);
    let text = next.refusal(&map, &map.nodes[&NodeId(2)]).expect("refused");
    for part in [
        "node 2",
        "group 1",
        "'kept'",
        "2 members",
        "drain",
        "--force",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    map.apply(None, &node_down(&map.clone(), 2)).expect("up");
    let lost = map.after_stop(NodeId(3), nobody);
    assert_eq!(lost, AfterStop::default(), "nothing more can be lost");
}

/// Regression: the last node of a group on disk could not be stopped, as if its bytes were gone with it.
#[test]
fn what_is_on_disk_waits_for_the_return_of_its_last_node() {
    for (on_disk, broken, waits) in [(true, 0, 1), (false, 1, 0)] {
        let mut map = cluster(2);
        let pool = match on_disk {
            true => create_disk_pool("vols", "1+1"),
            false => create_memory_pool("vols", "1+1", 1 << 20),
        };
        map.apply(None, &pool).expect("a new pool");
        let region = Change::CreateRegion {
            pool: "vols".into(),
            name: "r".into(),
            size_bytes: 1 << 16,
        };
        map.apply(None, &region).expect("a new region");
        start(&mut map, &[1, 2]);
        map.apply(None, &node_down(&map.clone(), 1)).expect("up");
        let after = map.after_stop(NodeId(2), |_| false);
        assert_eq!((after.broken.len(), after.waits.len()), (broken, waits));
        let refusal = after.refusal(&map, &map.nodes[&NodeId(2)]);
        assert_eq!(refusal.is_some(), !on_disk, "{refusal:?}");
        let warning = after.warning(&map).unwrap_or_default();
        assert_eq!(
            warning.contains("until this node is back"),
            on_disk,
            "{warning}"
        );
    }
}

/// Regression: a group of which more members were to stop, or were silent, than it bears passed for lost, and the rest was let go.
#[test]
fn those_that_are_to_go_are_not_gone_yet() {
    let mut map = map();
    let two = map.after_stop(NodeId(1), |n| n != NodeId(4));
    assert_eq!(two.broken, [GroupId(1)]);
    // One was granted its stop, and another died.
    map.apply(None, &node_down(&map.clone(), 3)).expect("up");
    let after = map.after_stop(NodeId(2), |n| n == NodeId(1));
    assert_eq!(after.broken, [GroupId(1)]);
}

/// Regression: two nodes were stopped at once, or one beside another that drained. Nothing was lost, and nobody was
/// left to answer for a data bucket.
#[test]
fn a_stop_that_leaves_nobody_to_answer_counts_those_that_drain_or_stop() {
    // 2+2 on two nodes, each with two parts, and node 3 beside them.
    let (one, two) = (NodeId(1), NodeId(2));
    let mut map = cluster(3);
    map.apply(None, &create_pool("kept", "2+2", 1, false))
        .expect("new");
    start(&mut map, &[1, 2, second(1), second(2)]);
    let borne = map.after_stop(one, |_| false);
    assert_eq!(borne.mute, [], "node 3 takes the bucket");
    assert_eq!(borne.refusal(&map, &map.nodes[&one]), None);

    // The one free node is on its way out.
    for drains in [true, false] {
        let three = NodeId(3);
        map.apply(
            None,
            &Change::Drain {
                node: three,
                on: drains,
            },
        )
        .expect("known");
        let after = map.after_stop(one, |n| !drains && n == three);
        assert_eq!(
            (&after.mute[..], &after.others[..]),
            (&[GroupId(1)][..], &[three][..])
        );
        let text = after.refusal(&map, &map.nodes[&one]).expect("refused");
        for part in [
            "node 1",
            "node 3 (n3)",
            "group 1",
            "'kept'",
            "nothing is lost",
            "--force",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    // Alone it is only warned of: the operator who stops a node knows that it is gone.
    map.apply(None, &node_down(&map.clone(), 3)).expect("up");
    let alone = map.after_stop(two, |_| false);
    assert_eq!(
        (alone.refusal(&map, &map.nodes[&two]), alone.others.len()),
        (None, 0)
    );
    let warning = alone.warning(&map).expect("nobody answers then");
    assert!(
        warning.contains("no node is left") && warning.contains("no further loss"),
        "{warning}"
    );
}

/// Regression: the stop of a node that drained was not judged.
#[test]
fn the_stop_of_a_draining_node_is_judged_like_any_other() {
    let mut map = map();
    let drain = set_drain(1, true);
    map.apply(None, &drain).expect("known");
    let drains = |n: NodeId| map.nodes[&n].draining;
    let after = map.after_stop(NodeId(1), drains);
    assert_eq!(
        (&after.bare[..], after.others.len()),
        (&[GroupId(1)][..], 0)
    );
    assert!(after.warning(&map).is_some());
}

/// Regression: without a leader of the directory a stop was judged by the node's own map, however old.
#[test]
fn without_a_leader_only_a_node_that_holds_nothing_stops() {
    let mut map = cluster(3);
    for (group, may_start_empty) in [(1, true), (2, false)] {
        let name = format!("pool{group}");
        map.apply(None, &create_pool(&name, "1+1", 1, may_start_empty))
            .expect("new");
        start_group(&mut map, group, &[1, 2]);
        let why = StopUnjudged::of(&map, NodeId(1)).expect("it holds a bucket");
        let why = why.to_string();
        assert!(why.contains("node 1 (n1)") && why.contains("--force"));
        assert_eq!(StopUnjudged::of(&map, NodeId(3)), None);
    }
}

#[test]
fn a_node_of_a_region_is_known_as_such() {
    let map = mem(4);
    let of_a_region = |node| map.is_of_a_region(NodeId(node));
    assert_eq!([1, 3, 4].map(of_a_region), [true, true, false]);
    let mut cache = cluster_with_pool(1, "1+0", 1);
    start(&mut cache, &[1]);
    assert!(!cache.is_of_a_region(NodeId(1)));
}

/// Regression: on as many nodes as a group has members, a data bucket that no node had room for was not reported.
#[test]
fn a_stop_without_room_for_a_second_part_leaves_a_bucket_unanswered() {
    let map = mem(3);
    let judged = |node, used: &[u64]| not_rebuilt(&map, &usage(used), &map.nodes[&NodeId(node)]);
    assert_eq!(
        judged(1, &[20; 3]),
        None,
        "44 MiB are left of the pool's 64"
    );
    let found = judged(1, &[40; 3]).expect("24 MiB are left");
    assert_eq!((found.no_room.buckets, found.unanswered), (1, 1));
    let text = found.to_string();
    for part in [
        "until it is back",
        "nobody answers for 1 data bucket",
        "1 bucket of pool 'mem'",
        "40.0 MiB",
        "no node with room,",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Parity beside data would save nothing, so no memory is missing for it.
    assert_eq!(judged(3, &[40; 3]), None);
    // With a node more it would be made there, had that the room.
    let four = mem(4);
    let found = not_rebuilt(&four, &usage(&[40; 4]), &four.nodes[&NodeId(3)]);
    assert_eq!(found.expect("no room").unanswered, 0);
}

/// That a pool may start empty is for accidents: nobody empties it by an orderly stop without saying so.
#[test]
fn the_last_copy_of_a_cache_is_not_stopped() {
    let mut map = cluster(2);
    map.apply(None, &create_pool("cache", "1+1", 2, true))
        .expect("new");
    start(&mut map, &[1, 2]);
    let nobody = |_| false;
    let first = map.after_stop(NodeId(1), nobody);
    assert_eq!(first.refusal(&map, &map.nodes[&NodeId(1)]), None);
    assert!(first.warning(&map).is_some(), "it bears none then");
    map.apply(None, &node_down(&map.clone(), 1)).expect("up");
    let last = map.after_stop(NodeId(2), nobody);
    let why = last
        .refusal(&map, &map.nodes[&NodeId(2)])
        .expect("the last");
    for part in ["pool 'cache'", "no copy left", "--force"] {
        assert!(why.contains(part), "{why}");
    }
}
