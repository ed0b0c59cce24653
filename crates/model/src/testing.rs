//! Small clusters for this crate's tests.

use crate::change::{Change, NewEpoch, Outcome, Refusal};
use crate::ids::{ClusterId, Epoch, GroupId, Incarnation, MemberId, MemberSlot, NodeId};
use crate::map::{ClusterMap, Medium, PoolKind};
use crate::scheme::Scheme;

/// A bootstrapped cluster of `nodes` nodes, n1 on (incarnation = id), in no zone, and no pool.
pub(crate) fn cluster(nodes: u64) -> ClusterMap {
    let mut map = ClusterMap::default();
    map.apply(
        None,
        &Change::Bootstrap {
            cluster: ClusterId(7),
        },
    )
    .expect("empty map");
    for _ in 0..nodes {
        map.apply(None, &node_up(None)).expect("a new node");
    }
    map
}

/// The same with a pool `cache` that may start empty.
pub(crate) fn cluster_with_pool(nodes: u64, scheme: &str, buckets: u32) -> ClusterMap {
    let mut map = cluster(nodes);
    map.apply(None, &create_pool("cache", scheme, buckets, true))
        .expect("a new pool");
    map
}

pub(crate) fn node_up(id: Option<u64>) -> Change {
    node_up_in(id, None, 1 << 30)
}

pub(crate) fn node_up_in(id: Option<u64>, zone: Option<&str>, memory_bytes: u64) -> Change {
    Change::NodeUp {
        id: id.map(NodeId),
        name: "a node".into(),
        zone: zone.map(str::to_owned),
        native: "127.0.0.1:1600".into(),
        resp: "127.0.0.1:6379".into(),
        admin: "127.0.0.1:1680".into(),
        memory_bytes,
        durable: true,
    }
}

pub(crate) fn node_down(map: &ClusterMap, node: u64) -> Change {
    let node = NodeId(node);
    Change::NodeDown {
        node,
        incarnation: map.nodes[&node].incarnation,
    }
}

pub(crate) fn create_pool(name: &str, scheme: &str, buckets: u32, may_start_empty: bool) -> Change {
    Change::CreatePool {
        name: name.into(),
        kind: PoolKind::Cache,
        scheme: scheme.parse::<Scheme>().expect("a scheme"),
        medium: Medium::Ram,
        node_budget_bytes: 1 << 20,
        buckets,
        may_start_empty,
    }
}

/// The bit of a number below that stands for the second member that a node holds.
const SECOND: u64 = 1 << 63;

/// The number that stands for the second member that a node holds.
pub(crate) const fn second(node: u64) -> u64 {
    node | SECOND
}

/// The member that a number stands for.
pub(crate) fn member_on(number: u64, incarnation: Incarnation) -> MemberId {
    let id = MemberId::new(NodeId(number & !SECOND), incarnation);
    if number & SECOND == 0 {
        id
    } else {
        id.second()
    }
}

/// The next epoch of a group: `members` as (node, slot it is kept from), 0 is vacant; see [`second`].
/// Node lives are the present ones.
pub(crate) fn next_epoch(map: &ClusterMap, group: u32, members: &[(u64, Option<u8>)]) -> NewEpoch {
    let group = &map.groups[&GroupId(group)];
    let member = |n: u64| {
        let node = member_on(n, Incarnation(0)).node;
        let life = map.nodes.get(&node).map(|n| n.incarnation);
        member_on(n, life.unwrap_or_default())
    };
    NewEpoch {
        group: group.id,
        epoch: group.epoch.next(),
        members: members
            .iter()
            .map(|(n, _)| (*n > 0).then(|| member(*n)))
            .collect(),
        kept: members.iter().map(|(_, k)| k.map(MemberSlot)).collect(),
        leader: MemberSlot(0),
        fresh: false,
    }
}

pub(crate) fn commit(map: &mut ClusterMap, new: NewEpoch) -> Result<Outcome, Refusal> {
    map.apply(Some(map.revision), &Change::CommitEpochs(vec![new]))
}

pub(crate) fn open(map: &mut ClusterMap, group: u32, epoch: u64) -> Result<Outcome, Refusal> {
    map.apply(
        None,
        &Change::Open {
            group: GroupId(group),
            epoch: Epoch(epoch),
        },
    )
}

/// Group 1 gets a fresh, open epoch 1 on these nodes.
pub(crate) fn start(map: &mut ClusterMap, nodes: &[u64]) {
    let members: Vec<_> = nodes.iter().map(|n| (*n, None)).collect();
    let fresh = NewEpoch {
        fresh: true,
        ..next_epoch(map, 1, &members)
    };
    commit(map, fresh).expect("a fresh epoch");
    open(map, 1, 1).expect("to open it");
}

/// A tiny generator, for tests that run many seeds (SplitMix64).
pub(crate) struct Dice(pub u64);

impl Dice {
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.roll() % n
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        (!of.is_empty()).then(|| of[self.below(of.len() as u64) as usize])
    }
}

pub(crate) fn create_memory_pool(name: &str, scheme: &str) -> Change {
    Change::CreatePool {
        name: name.into(),
        kind: PoolKind::Memory {
            regions: Vec::new(),
        },
        scheme: scheme.parse().expect("a scheme"),
        medium: Medium::Ram,
        node_budget_bytes: 1 << 29,
        buckets: 0,
        may_start_empty: false,
    }
}
