//! The invariants of the cluster's map, whatever is proposed, and of one that somebody sends.

use bytes::Bytes;
use staves_model::capacity::{Capacity, Own};
use staves_model::testing::new_node;
use staves_model::{
    Change, ClusterId, ClusterMap, Epoch, GroupId, GroupStep, HASH_SLOTS, HashSlot, Holdings,
    Incarnation, Medium, MemberId, MemberSlot, NewEpoch, NewHoldings, NodeId, Pin, Planner,
    PlannerConfig, PoolId, PoolKind, Ring, Scheme, Time, whom_to_ping,
};
use staves_wire::directory::MapAnswer;

/// Changes of one input: a map must stay small enough to be looked at after each.
const CHANGES_MAX: usize = 24;

/// Changes in postcard, one behind the other, as people's tools and nodes propose them: each is made whole or refused
/// whole, and whoever is given the map can read it and go by it. How many were made.
pub fn changes(data: &[u8]) -> usize {
    let (mut map, mut rest, mut made) = (start(), data, 0);
    let mut planner = Planner::new(PlannerConfig::default());
    for at in 0..CHANGES_MAX {
        let Ok((change, behind)) = postcard::take_from_bytes::<Change>(rest) else {
            break;
        };
        rest = behind;
        let before = map.clone();
        match map.apply(None, &change) {
            Ok(_) => made += usize::from(map != before),
            Err(refusal) => {
                assert!(map == before, "refused, and yet something has changed");
                assert!(refusal.to_string().len() < 64 << 10, "a refusal is a line");
                continue;
            }
        }
        assert!(map.revision >= before.revision);
        let answer = MapAnswer::new(&map, before.revision);
        let read = answer.read().expect("what is answered can be read");
        assert!(read.is_none_or(|read| read == map));
        go_by(&map);
        // What the leader makes of it passes the same rules.
        for (_, change) in planner.step(Time::from_millis(1000 * at as u64), &map, &[]) {
            let _ = map.clone().apply(None, &change);
        }
    }
    made
}

/// A map as somebody sends it: refused, or one to go by. Whether it was one.
pub fn map(data: &[u8]) -> bool {
    let answer = MapAnswer {
        revision: Default::default(),
        map: Some(Bytes::copy_from_slice(data)),
    };
    match answer.read() {
        Ok(Some(map)) => {
            go_by(&map);
            true
        }
        _ => false,
    }
}

/// A cluster of three nodes with a pool of each kind.
pub fn start() -> ClusterMap {
    let mut map = ClusterMap::default();
    for change in beginnings() {
        map.apply(None, &change).expect("a sound beginning");
    }
    map
}

/// The source of random changes.
pub fn beginnings() -> Vec<Change> {
    let mut all = vec![Change::Bootstrap {
        cluster: ClusterId(7),
    }];
    for n in 1..=3 {
        all.push(new_node(&format!("n{n}"), 1 << 30));
    }
    let memory = PoolKind::Memory {
        regions: Vec::new(),
    };
    let files = PoolKind::Files(Holdings::default());
    let pools = [
        ("cache", PoolKind::Cache, Scheme { m: 1, k: 2 }, 4),
        ("memory", memory, Scheme { m: 2, k: 1 }, 0),
        ("files", files, Scheme { m: 1, k: 0 }, 8),
    ];
    for (name, kind, scheme, buckets) in pools {
        all.push(Change::CreatePool {
            may_start_empty: !matches!(kind, PoolKind::Memory { .. }),
            name: name.into(),
            kind,
            scheme,
            medium: Medium::Ram,
            node_budget_bytes: 1 << 28,
            buckets,
        });
    }
    all.push(Change::CreateRegion {
        pool: "memory".into(),
        name: "r".into(),
        size_bytes: 1 << 20,
    });
    all.push(Change::SetDataset {
        pool: "files".into(),
        name: "data".into(),
        source: "/data".into(),
    });
    all
}

/// Others that a cluster like that may be asked for.
pub fn proposals() -> Vec<Change> {
    let (n1, n2) = (NodeId(1), NodeId(2));
    let pin = Pin {
        dataset: "data".into(),
        path: b"genome.fa".to_vec(),
        size: 1 << 20,
        version: "v".into(),
    };
    let life = |n: NodeId| Incarnation(n.0);
    let member = |n: NodeId| Some(MemberId::new(n, life(n)));
    let epoch = NewEpoch {
        group: GroupId(1),
        epoch: Epoch(1),
        members: vec![member(n1), member(n2)],
        kept: vec![None; 2],
        coordinator: MemberSlot(0),
        fresh: true,
    };
    let holdings = NewHoldings {
        pool: PoolId(3),
        node: n1,
        incarnation: life(n1),
        take: vec![0, 7],
        leave: Vec::new(),
        flag: Vec::new(),
        unflag: Vec::new(),
    };
    vec![
        Change::CommitEpochs(vec![epoch]),
        Change::Steps(vec![
            GroupStep::Open {
                group: GroupId(1),
                epoch: Epoch(1),
            },
            GroupStep::Complete {
                group: GroupId(1),
                epoch: Epoch(1),
                slot: MemberSlot(1),
                incarnation: life(n2),
            },
        ]),
        Change::MarkLost {
            groups: vec![GroupId(1)],
        },
        Change::Hold(holdings),
        Change::NodeDown {
            node: n2,
            incarnation: life(n2),
        },
        Change::NodeBack {
            node: n2,
            incarnation: life(n2),
        },
        Change::NodeLeft {
            node: n2,
            incarnation: life(n2),
        },
        Change::ForgetNode { node: n2 },
        Change::Drain { node: n2, on: true },
        Change::SetPool {
            name: "cache".into(),
            scheme: Some(Scheme { m: 1, k: 1 }),
            node_budget_bytes: Some(1 << 20),
        },
        Change::DeletePool {
            name: "cache".into(),
        },
        Change::GrowRegion {
            name: "r".into(),
            size_bytes: 1 << 30,
        },
        Change::MakeRegion {
            pool: "memory".into(),
            name: "v".into(),
            size_bytes: 1 << 33,
            bucket_bytes: 1 << 28,
            is_volume: true,
        },
        Change::ExtendRegion {
            name: "r".into(),
            size_bytes: 1 << 35,
            bucket_bytes: 1 << 30,
        },
        Change::LoadRegion {
            name: "r".into(),
            load: Some(0..1 << 20),
        },
        Change::DeleteRegion { name: "r".into() },
        Change::PinFiles(vec![pin]),
        Change::UnpinFiles {
            dataset: "data".into(),
            paths: vec![b"genome.fa".to_vec()],
        },
        Change::DropDataset {
            name: "data".into(),
        },
    ]
}

/// All of these, as they are sent.
pub fn seeds() -> Vec<Vec<u8>> {
    let all = beginnings().into_iter().chain(proposals());
    let encoded = |change: Change| postcard::to_allocvec(&change);
    all.map(|change| encoded(change).expect("plain data always encodes"))
        .collect()
}

/// The map, as it is sent.
pub fn sent() -> Vec<u8> {
    postcard::to_allocvec(&start()).expect("plain data always encodes")
}

/// The look-ups of nodes, clients and tools in a map.
fn go_by(map: &ClusterMap) {
    for pool in map.pools.values() {
        for slot in [0, 1, 8191, HASH_SLOTS - 1].map(HashSlot) {
            let _ = map.group_of(pool.id, slot);
        }
        for region in pool.regions() {
            let capacity = region.capacity_bytes(pool.scheme.m);
            for offset in [0, 65_536, region.size_bytes, capacity, u64::MAX] {
                if let Some(place) = region.place(offset, pool.scheme.m) {
                    assert!(place.slot.0 < pool.scheme.m && place.left > 0);
                }
            }
        }
        if let Some(holdings) = pool.holdings() {
            for file in [[0; 2], [u64::MAX; 2]] {
                let bucket = holdings.bucket_of(file, u32::MAX);
                assert!((bucket as usize) < holdings.buckets.len());
                assert_eq!(
                    holdings.home(bucket).is_some(),
                    !holdings.holders(bucket).is_empty()
                );
            }
            let _ = (holdings.pinned_bytes(), map.pin_room(pool));
            let own = Own {
                node: NodeId(1),
                incarnation: map
                    .nodes
                    .values()
                    .next()
                    .map(|n| n.incarnation)
                    .unwrap_or_default(),
                budget_bytes: pool.node_budget_bytes,
                bucket_bytes: &vec![1 << 18; holdings.buckets.len()],
                evicts_last: true,
                copying: None,
                going: &[],
                draining: false,
                spreads: true,
            };
            let _ = Capacity::default().step(Time::ZERO, map, pool, &own);
        }
        for placed in Ring::of(map).plan(pool).iter().take(4) {
            assert!(placed.len() <= map.nodes.len());
        }
    }
    for group in map.groups.values() {
        let _ = group.tolerates(|id| map.runs(id));
        for (slot, member) in group.listed() {
            let _ = (
                group.bucket_slot(slot),
                group.is_doubled(member),
                group.retained(slot),
            );
        }
        let parity: Vec<_> = (0..usize::from(group.m))
            .flat_map(|s| group.protectors(s))
            .collect();
        let _ = (parity, group.starts_anew(), group.parity_slots().count());
    }
    for node in map.nodes.values().take(4) {
        let after = map.after_stop(node.id, |_| false);
        let _ = (after.refusal(map, node), after.warning(map));
        let _ = whom_to_ping(map, node.id);
    }
}
