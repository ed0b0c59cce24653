//! The rules of pools by kind.

use std::collections::BTreeMap;

use super::*;
use crate::policy::memory::{FreeMemory, NodeUsage, Usage};
use crate::policy::testing::{MIB, usage};
use crate::testing::{
    cluster, create_disk_pool, create_files_pool, create_memory_pool, create_pool, new_node,
};

const EXTENT: u64 = EXTENT_BYTES as u64;

/// A cache of 64 buckets, 1+1.
fn create(budget: u64) -> Change {
    let mut cache = create_pool("p", "1+1", 64, true);
    if let Change::CreatePool {
        node_budget_bytes, ..
    } = &mut cache
    {
        *node_budget_bytes = budget;
    }
    cache
}

fn set(scheme: Option<&str>, node_budget_bytes: Option<u64>) -> Change {
    Change::SetPool {
        name: "p".into(),
        scheme: scheme.map(|scheme| scheme.parse().expect("a scheme")),
        node_budget_bytes,
    }
}

fn text(map: &ClusterMap, change: &Change) -> String {
    check_change(map, change).expect_err("rejected").to_string()
}

#[test]
fn a_cache_pool_keeps_whole_copies() {
    let mut map = cluster(3);
    map.apply(None, &create(1 << 29)).expect("a pool");
    assert_eq!(check_change(&map, &set(Some("1+0"), None)), Ok(()));
    let refusal = text(&map, &set(Some("2+1"), None));
    assert!(
        refusal.contains("'p'") && refusal.contains("1+k"),
        "{refusal}"
    );
}

fn create_log_pool(scheme: &str, budget: u64) -> Change {
    let mut pool = create_pool("l", scheme, 8, false);
    if let Change::CreatePool {
        kind,
        node_budget_bytes,
        ..
    } = &mut pool
    {
        (*kind, *node_budget_bytes) = (PoolKind::Slots(ServiceId::LOG), budget);
    }
    pool
}

/// Regression: a pool of logs of 4 MiB was made, and its units had no room for a record.
#[test]
fn a_pool_of_logs_has_room_for_each_unit() {
    let mut map = cluster(2);
    let least = 8 * LOG_UNIT_BYTES;
    assert_eq!(check_change(&map, &create_log_pool("1+1", least)), Ok(()));
    let refusal = text(&map, &create_log_pool("1+1", 4 * MIB));
    let says = "8 of its members lie on each of 2 nodes and take 2560KiB each as soon as they are used; give it 20MiB or more, or fewer buckets";
    assert!(refusal.contains(says), "{refusal}");
    map.apply(None, &create_log_pool("1+1", least))
        .expect("a pool");
    let less = Change::SetPool {
        name: "l".into(),
        scheme: None,
        node_budget_bytes: Some(4 * MIB),
    };
    let refusal = text(&map, &less);
    assert!(refusal.contains("give it 20MiB or more"), "{refusal}");
    // Regression: it was called a key-value pool.
    let refusal = text(&map, &create_log_pool("2+1", 1 << 30));
    assert!(
        refusal.contains("a pool of logs keeps whole copies"),
        "{refusal}"
    );
}

/// Regression: m + k was taken for k, and memory pools with more than 16 members were rejected.
#[test]
fn a_memory_pool_may_have_any_scheme() {
    let map = cluster(3);
    for scheme in ["1+0", "4+2", "12+8", "32+8"] {
        let pool = create_memory_pool("m", scheme, MIB);
        assert_eq!(check_change(&map, &pool), Ok(()), "{scheme}");
    }
}

#[test]
fn a_files_pool_has_no_scheme() {
    let map = cluster(3);
    let mut pool = create_files_pool("f", 8, MIB);
    assert_eq!(check_change(&map, &pool), Ok(()));
    if let Change::CreatePool { scheme, .. } = &mut pool {
        scheme.k = 1;
    }
    assert!(text(&map, &pool).contains("come from their source again"));
}

#[test]
fn a_pool_has_room_for_an_extent_of_each_bucket() {
    let mut map = cluster(0);
    // 64 buckets with two members each, or with one while there is one node.
    for (nodes, of_each) in [(1, 64), (2, 64), (3, 43), (4, 32)] {
        map.apply(None, &new_node(&format!("n{nodes}"), 1 << 30))
            .expect("a node");
        let least = of_each * EXTENT;
        assert_eq!(check_change(&map, &create(least)), Ok(()), "{nodes} nodes");
        let refusal = text(&map, &create(least - 1));
        let named = format!("{} or more, or fewer buckets", with_unit(least));
        assert!(
            refusal.contains(&named) && refusal.contains("'p'"),
            "{refusal}"
        );
    }
    map.apply(None, &create(1 << 29)).expect("a pool");
    assert_eq!(check_change(&map, &set(None, Some(32 * EXTENT))), Ok(()));
    let refusal = text(&map, &set(None, Some(4096)));
    assert!(refusal.ends_with("give it 8MiB or more"), "{refusal}");
}

#[test]
fn a_pool_asks_for_no_more_than_the_largest_node_has() {
    let mut map = cluster(2);
    map.apply(None, &create(1 << 29)).expect("a pool");
    let refusal = text(&map, &set(None, Some((1 << 30) + 1)));
    assert!(refusal.contains("'p'") && refusal.contains("largest node has 1GiB"));
}

#[test]
fn a_region_needs_nodes_for_its_data() {
    let mut map = cluster(3);
    map.apply(None, &create_memory_pool("m", "4+1", MIB))
        .expect("new");
    let region = |pool: &str| Change::CreateRegion {
        pool: pool.into(),
        name: "r".into(),
        size_bytes: 1,
    };
    let refusal = text(&map, &region("m"));
    assert!(refusal.contains("needs 4 nodes, and 3 take buckets"));
    assert_eq!(check_change(&map, &region("none")), Ok(()));
}

/// Regression: a region was made on fewer nodes than its scheme needs without a word.
#[test]
fn a_region_on_too_few_nodes_is_warned_of() {
    let mut map = cluster(3);
    let scheme = "2+1".parse().expect("a scheme");
    assert_eq!(too_few_nodes(&map, "r", scheme), None);
    let (node, on) = (NodeId(2), true);
    map.apply(None, &Change::Drain { node, on }).expect("known");
    let warning = too_few_nodes(&map, "r", scheme).expect("two are left");
    let warning = warning.to_string();
    for part in ["region 'r'", "than 2+1 says", "until there are 3", "are 2"] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
}

#[test]
fn a_scheme_that_bears_less_is_warned_of() {
    let scheme = |text: &str| text.parse::<Scheme>().expect("a scheme");
    let text = |now, then| {
        let less = bears_less(scheme(now), scheme(then));
        less.map(|less| less.to_string())
    };
    assert_eq!((text("1+1", "1+1"), text("4+1", "4+2")), (None, None));
    let one = text("4+2", "4+1").expect("less");
    assert!(
        one.contains("1 node with 4+1") && one.contains("not of 2"),
        "{one}"
    );
    assert!(text("2+1", "2+0").is_some_and(|none| none.starts_with("no loss at all with 2+0")));
}

/// Regression: a pool was set below what it took; the next loss was then not rebuilt.
#[test]
fn a_budget_below_what_is_used_is_rejected() {
    let map = cluster(3);
    let mut usage = usage(&[10, 40, 20]);
    for node in usage.nodes.values_mut() {
        node.pools.insert("other".into(), 60 * MIB);
    }
    assert_eq!(holds_usage(&map, &usage, "mem", 40 * MIB), Ok(()));
    // Regression: a files pool that had filled its memory could not be made smaller, whatever was dropped.
    for node in usage.nodes.values_mut() {
        node.pools.insert("files".into(), 60 * MIB);
    }
    let mut with_files = map.clone();
    let made = with_files.apply(None, &create_files_pool("files", 64, 64 * MIB));
    assert!(made.is_ok(), "{made:?}");
    assert_eq!(holds_usage(&with_files, &usage, "files", MIB), Ok(()));
    let refusal = holds_usage(&map, &usage, "mem", 16 * MIB).expect_err("too small");
    let text = refusal.to_string();
    for part in [
        "'mem'",
        "16.0 MiB",
        "40.0 MiB of node 2 (n2)",
        "1 other node",
        "40MiB or",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn pools_that_together_take_more_than_a_node_has_are_warned_of() {
    let mut map = cluster(2);
    map.apply(None, &create(1 << 30)).expect("a pool");
    assert_eq!(overcommitted(&map), None);
    map.apply(None, &create_memory_pool("m", "1+1", MIB))
        .expect("another");
    let text = overcommitted(&map).expect("more than 1 GiB").to_string();
    assert!(
        text.contains("node 1 (n1) has 1.0 GiB: who comes first"),
        "{text}"
    );
}

#[test]
fn pools_on_disk_that_take_more_than_a_disk_has_are_warned_of() {
    let mut map = cluster(3);
    map.nodes.get_mut(&NodeId(1)).expect("node 1").disk_bytes = 0;
    map.nodes.get_mut(&NodeId(2)).expect("node 2").disk_bytes = MIB + MIB / 2;
    map.apply(None, &create(1 << 30)).expect("in memory");
    map.apply(None, &create_disk_pool("a", "1+1"))
        .expect("of 1 MiB");
    assert_eq!(disk_overcommitted(&map), None);
    map.apply(None, &create_disk_pool("b", "1+1"))
        .expect("another");
    let text = disk_overcommitted(&map).expect("2 MiB").to_string();
    assert!(
        text.contains("take 2.0 MiB") && text.contains("disk of node 2 (n2) takes 1.5 MiB"),
        "{text}"
    );
}

/// Pages of a pool on disk are in memory only while they are used: such a pool is no smaller than a disk, whatever memory there is.
#[test]
fn pools_on_disk_are_held_against_disks_alone() {
    let mut map = cluster(3);
    for node in map.nodes.values_mut() {
        (node.memory_bytes, node.disk_bytes) = (MIB, 64 * MIB);
    }
    let of = |budget| {
        let mut create = create_disk_pool("a", "1+1");
        if let Change::CreatePool {
            node_budget_bytes, ..
        } = &mut create
        {
            *node_budget_bytes = budget;
        }
        create
    };
    assert_eq!(check_change(&map, &of(64 * MIB)), Ok(()));
    let refused = check_change(&map, &of(65 * MIB)).expect_err("more than any disk");
    assert!(refused.to_string().contains("64MiB"), "{refused}");
    map.apply(None, &of(64 * MIB)).expect("a pool");
    assert_eq!(overcommitted(&map), None);
    let pool = map.pool_named("a").expect("it was made").clone();
    let used = NodeUsage {
        used_bytes: MIB,
        pools: BTreeMap::from([("a".to_owned(), 60 * MIB)]),
    };
    let usage = Usage {
        nodes: BTreeMap::from([(NodeId(1), used)]),
    };
    let free = FreeMemory::of(&map, &usage, &pool);
    assert_eq!(free.left_on(NodeId(1)), Some(4 * MIB));
    assert_eq!(free.left_on(NodeId(2)), Some(64 * MIB));
}

#[test]
fn a_new_pool_has_the_shape_of_its_kind() {
    let memory = PoolKind::Memory {
        regions: Vec::new(),
    };
    let scheme = Scheme { m: 2, k: 1 };
    let shape = new_pool_shape(&PoolKind::Cache, None, None);
    assert_eq!(shape, Ok((SCHEME, 64)));
    let files = PoolKind::Files(Default::default());
    assert_eq!(new_pool_shape(&files, None, None), Ok((Scheme::NONE, 1024)));
    assert_eq!(new_pool_shape(&memory, Some(scheme), None), Ok((scheme, 0)));
    assert_eq!(
        new_pool_shape(&memory, None, Some(1)),
        Err(NoSuchOption::BucketsOfMemory)
    );
    assert_eq!(
        new_pool_shape(&files, Some(scheme), None),
        Err(NoSuchOption::SchemeOfFiles)
    );
}
