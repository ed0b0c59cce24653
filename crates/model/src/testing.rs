//! Small clusters for the tests of this crate and of those above it.

use crate::change::{Change, Claim, GroupStep, NewEpoch, NodeFacts, Outcome, Refusal};
use crate::files::Holdings;
use crate::ids::{ClusterId, Epoch, GroupId, Incarnation, MemberId, MemberSlot, NodeId};
use crate::map::{ClusterMap, Medium, PoolKind};
use crate::scheme::Scheme;

/// A bootstrapped cluster of nodes `n1`, `n2` and so on (incarnation = id), in no zone, and no pool.
pub fn cluster(nodes: u64) -> ClusterMap {
    let mut map = ClusterMap::default();
    let cluster = ClusterId(7);
    map.apply(None, &Change::Bootstrap { cluster })
        .expect("empty map");
    for node in 1..=nodes {
        map.apply(None, &new_node(&format!("n{node}"), 1 << 30))
            .expect("a new node");
    }
    map
}

/// A node that the cluster does not know yet, with a data folder.
pub fn new_node(name: &str, memory_bytes: u64) -> Change {
    Change::NodeUp {
        id: None,
        facts: node_facts(name, memory_bytes),
        durable: true,
        claims: Vec::new(),
    }
}

/// A node's description of itself, in no zone; its doors are `NAME:1600` and so on.
pub fn node_facts(name: &str, memory_bytes: u64) -> NodeFacts {
    NodeFacts {
        name: name.into(),
        zone: None,
        native: format!("{name}:1600"),
        resp: format!("{name}:6379"),
        admin: format!("{name}:1680"),
        memory_bytes,
        disk_bytes: memory_bytes,
    }
}

/// The start of a known node of [`cluster`] where it was before, or of a new one.
pub fn node_up(known: Option<u64>) -> Change {
    let name = known.map_or("new".to_owned(), |id| format!("n{id}"));
    let mut up = new_node(&name, 1 << 30);
    if let Change::NodeUp { id, .. } = &mut up {
        *id = known.map(NodeId);
    }
    up
}

/// A new node in a zone.
pub fn node_in_zone(name: &str, memory_bytes: u64) -> Change {
    let mut up = new_node("new", memory_bytes);
    if let Change::NodeUp { facts, .. } = &mut up {
        facts.zone = Some(name.to_owned());
    }
    up
}

/// The death of a node in its present life.
pub fn node_down(map: &ClusterMap, node: u64) -> Change {
    let node = NodeId(node);
    Change::NodeDown {
        node,
        incarnation: map.nodes[&node].incarnation,
    }
}

/// The return of a life of a node that was declared dead.
pub fn node_back(node: u64, incarnation: Incarnation) -> Change {
    let node = NodeId(node);
    Change::NodeBack { node, incarnation }
}

/// The beginning or the end of a node's drain.
pub fn set_drain(node: u64, on: bool) -> Change {
    let node = NodeId(node);
    Change::Drain { node, on }
}

/// The same with a pool `cache` that may start empty.
pub fn cluster_with_pool(nodes: u64, scheme: &str, buckets: u32) -> ClusterMap {
    let mut map = cluster(nodes);
    map.apply(None, &create_pool("cache", scheme, buckets, true))
        .expect("a new pool");
    map
}

/// A new cache of 1 MiB of each node.
pub fn create_pool(name: &str, scheme: &str, buckets: u32, may_start_empty: bool) -> Change {
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

/// A new memory pool.
pub fn create_memory_pool(name: &str, scheme: &str, node_budget_bytes: u64) -> Change {
    Change::CreatePool {
        name: name.into(),
        kind: PoolKind::Memory {
            regions: Vec::new(),
        },
        scheme: scheme.parse().expect("a scheme"),
        medium: Medium::Ram,
        node_budget_bytes,
        buckets: 0,
        may_start_empty: false,
    }
}

/// A new pool on disk.
pub fn create_disk_pool(name: &str, scheme: &str) -> Change {
    let mut create = create_memory_pool(name, scheme, 1 << 20);
    if let Change::CreatePool { medium, .. } = &mut create {
        *medium = Medium::Disk;
    }
    create
}

/// The start of a known node whose disk has members, each as of an epoch.
pub fn node_up_with(known: u64, has: &[(u32, u64)]) -> Change {
    let mut up = node_up(Some(known));
    if let Change::NodeUp { claims, .. } = &mut up {
        let claim = |(group, epoch): &(u32, u64)| Claim {
            group: GroupId(*group),
            epoch: Epoch(*epoch),
        };
        claims.extend(has.iter().map(claim));
    }
    up
}

/// A new files pool.
pub fn create_files_pool(name: &str, buckets: u32, node_budget_bytes: u64) -> Change {
    Change::CreatePool {
        name: name.into(),
        kind: PoolKind::Files(Holdings::default()),
        scheme: Scheme::NONE,
        medium: Medium::Ram,
        node_budget_bytes,
        buckets,
        may_start_empty: true,
    }
}

/// The bit of a number below that stands for the second member that a node holds.
const SECOND: u64 = 1 << 63;

/// The number that stands for the second member that a node holds.
pub const fn second(node: u64) -> u64 {
    node | SECOND
}

/// The member that a number stands for.
pub fn member_on(number: u64, incarnation: Incarnation) -> MemberId {
    let id = MemberId::new(NodeId(number & !SECOND), incarnation);
    if number & SECOND == 0 {
        id
    } else {
        id.second()
    }
}

/// The next epoch of a group: `members` as (node, slot it is kept from), 0 is vacant; see [`second`].
/// Node lives are the present ones.
pub fn next_epoch(map: &ClusterMap, group: u32, members: &[(u64, Option<u8>)]) -> NewEpoch {
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
        coordinator: MemberSlot(0),
        fresh: false,
    }
}

/// Commits one epoch on the present map.
pub fn commit(map: &mut ClusterMap, new: NewEpoch) -> Result<Outcome, Refusal> {
    map.apply(Some(map.revision), &Change::CommitEpochs(vec![new]))
}

/// Opens a group's epoch.
pub fn open(map: &mut ClusterMap, group: u32, epoch: u64) -> Result<Outcome, Refusal> {
    map.apply(
        None,
        &Change::step(GroupStep::Open {
            group: GroupId(group),
            epoch: Epoch(epoch),
        }),
    )
}

/// Gives a group a fresh, open epoch 1 on these nodes; 0 leaves a slot vacant.
pub fn start_group(map: &mut ClusterMap, group: u32, nodes: &[u64]) {
    let members: Vec<_> = nodes.iter().map(|n| (*n, None)).collect();
    let fresh = NewEpoch {
        fresh: true,
        ..next_epoch(map, group, &members)
    };
    commit(map, fresh).expect("a fresh epoch");
    open(map, group, 1).expect("to open it");
}

/// Gives group 1 a fresh, open epoch 1 on these nodes.
pub fn start(map: &mut ClusterMap, nodes: &[u64]) {
    start_group(map, 1, nodes);
}

/// A tiny generator, for tests that run many seeds (SplitMix64).
pub struct Dice(
    /// The seed.
    pub u64,
);

impl Dice {
    /// The next number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.roll() % n
    }

    /// One of some values.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        (!of.is_empty()).then(|| of[self.below(of.len() as u64) as usize])
    }
}
