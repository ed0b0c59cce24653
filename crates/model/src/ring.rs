//! Placement *ring*: consistent hashing with virtual nodes (rows X2, X3).
//!
//! Each node stands at many points of a circle of 64-bit positions, more if it has more memory. A
//! bucket's own position names its nodes: the distinct nodes met going round from there, in zones not
//! used yet first. Points depend on the node's id alone, so that a node that comes takes its share
//! from all others and a node that goes gives its share to all others; little else moves.
//!
//! With some dozens of buckets, chance alone would give one node twice another's share. So
//! [`Ring::plan`] walks the circle with a ceiling: a node that has its share and a quarter more is
//! passed over, and the bucket takes the next (consistent hashing with bounded loads). What it gives is
//! a function of the nodes and the pool alone.

use std::collections::BTreeSet;

use crate::ids::NodeId;
use crate::map::{ClusterMap, Pool};

/// Points of the node with the least memory.
const POINTS_MIN: u64 = 128;
/// The most points of a node, as a multiple of the smallest node's.
const WEIGHT_MAX: u64 = 8;

/// The circle of the nodes that may take buckets: up and not draining.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ring {
    /// By node id. The points follow from it.
    nodes: Vec<RingNode>,
    /// (position, index into `nodes`), in order of position.
    points: Vec<(u64, u32)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct RingNode {
    id: NodeId,
    zone: Option<String>,
    /// The number of its points on the circle.
    weight: u64,
}

impl Ring {
    /// The circle of a map.
    pub fn of(map: &ClusterMap) -> Ring {
        let nodes: Vec<RingNode> = takers(map).collect();
        let mut points: Vec<(u64, u32)> = nodes
            .iter()
            .enumerate()
            .flat_map(|(i, n)| (0..n.weight).map(move |v| (node_position(n.id, v), i as u32)))
            .collect();
        points.sort_unstable();
        Ring { nodes, points }
    }

    /// True if this still is the circle of that map. Much cheaper than to make it again.
    pub fn is_of(&self, map: &ClusterMap) -> bool {
        takers(map).eq(self.nodes.iter().cloned())
    }

    /// The nodes of the circle, by id.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.iter().map(|n| n.id)
    }

    /// All nodes in the order in which a bucket would take them: as the circle has them, but first one
    /// of each zone, then the rest.
    pub fn preference(&self, pool: &Pool, bucket: u32) -> Vec<NodeId> {
        let order = self.order(pool, bucket);
        let (mut first, mut rest) = (Vec::with_capacity(order.len()), Vec::new());
        let mut zones = BTreeSet::new();
        for i in order {
            let node = &self.nodes[i];
            let new_zone = node.zone.as_ref().is_none_or(|z| zones.insert(z));
            if new_zone {
                first.push(node.id)
            } else {
                rest.push(node.id)
            }
        }
        first.append(&mut rest);
        first
    }

    /// The nodes of every bucket of a pool: for each, up to m+k nodes, the first being the one that
    /// should hold the first data bucket. Fewer where nodes are fewer.
    pub fn plan(&self, pool: &Pool) -> Vec<Vec<NodeId>> {
        let buckets = pool.groups.len() as u64;
        let width = pool.scheme.width().min(self.nodes.len());
        let mut first = Loads::new(self, buckets);
        let mut all = Loads::new(self, buckets * width as u64);
        (0..buckets as u32)
            .map(|bucket| {
                if !pool.kind.row().has_slots {
                    // As if it were the last: groups that come later move none that are there.
                    let so_far = u64::from(bucket) + 1;
                    first.expect(self, so_far);
                    all.expect(self, so_far * width as u64);
                }
                let order = self.order(pool, bucket);
                let mut chosen: Vec<usize> = Vec::with_capacity(width);
                while chosen.len() < width {
                    let loads = if chosen.is_empty() {
                        &mut first
                    } else {
                        &mut all
                    };
                    let next = self.next(&order, &chosen, loads);
                    loads.count[next] += 1;
                    if chosen.is_empty() {
                        all.count[next] += 1;
                    }
                    chosen.push(next);
                }
                chosen.into_iter().map(|i| self.nodes[i].id).collect()
            })
            .collect()
    }

    /// The next member of a bucket: a zone not used yet counts for more than an even load.
    fn next(&self, order: &[usize], chosen: &[usize], loads: &Loads) -> usize {
        let taken_zone = |i: usize| {
            let zone = self.nodes[i].zone.as_ref();
            zone.is_some() && chosen.iter().any(|c| self.nodes[*c].zone.as_ref() == zone)
        };
        order
            .iter()
            .copied()
            .filter(|i| !chosen.contains(i))
            // `min_by_key` takes the first of equals: the circle's order decides among them.
            .min_by_key(|i| (taken_zone(*i), loads.full(*i)))
            .expect("fewer are chosen than the circle has nodes")
    }

    /// The distinct nodes of the circle, as indices into `nodes`, in the order met from the bucket's
    /// position on.
    fn order(&self, pool: &Pool, bucket: u32) -> Vec<usize> {
        let from = bucket_position(pool, bucket);
        let start = self.points.partition_point(|(at, _)| *at < from);
        let mut met = vec![false; self.nodes.len()];
        let mut order = Vec::with_capacity(self.nodes.len());
        for (_, i) in self.points[start..].iter().chain(&self.points[..start]) {
            let i = *i as usize;
            if !met[i] {
                met[i] = true;
                order.push(i);
                if order.len() == self.nodes.len() {
                    break;
                }
            }
        }
        order
    }
}

/// The nodes that may take buckets, by id.
fn takers(map: &ClusterMap) -> impl Iterator<Item = RingNode> + '_ {
    let up = || map.nodes.values().filter(|n| n.is_home());
    let smallest = up().map(|n| n.memory_bytes.max(1)).min().unwrap_or(1);
    up().map(move |n| RingNode {
        id: n.id,
        zone: n.zone.clone(),
        weight: points_of(n.memory_bytes.max(1), smallest),
    })
}

/// All nodes that may take a bucket, in the order in which it would take them. For many buckets
/// build one [`Ring`] and ask that.
pub fn preference(map: &ClusterMap, pool: &Pool, bucket: u32) -> Vec<NodeId> {
    Ring::of(map).preference(pool, bucket)
}

/// The number of buckets of each node, and its ceiling: its share by weight, and a quarter more.
struct Loads {
    count: Vec<u64>,
    ceiling: Vec<u64>,
}

impl Loads {
    fn new(ring: &Ring, buckets: u64) -> Loads {
        let total: u64 = ring.nodes.iter().map(|n| n.weight).sum();
        let share = |n: &RingNode| (5 * buckets * n.weight).div_ceil(4 * total);
        Loads {
            count: vec![0; ring.nodes.len()],
            ceiling: ring.nodes.iter().map(share).collect(),
        }
    }

    /// So many buckets there will be in all.
    fn expect(&mut self, ring: &Ring, buckets: u64) {
        self.ceiling = Loads::new(ring, buckets).ceiling;
    }

    fn full(&self, i: usize) -> bool {
        self.count[i] >= self.ceiling[i]
    }
}

/// Points of a node, by its memory relative to the smallest. Relative, so that they are enough for
/// an even spread whatever the unit is; bounded, so that one large node cannot make the circle huge.
fn points_of(memory_bytes: u64, smallest: u64) -> u64 {
    let scaled = u128::from(POINTS_MIN) * u128::from(memory_bytes) / u128::from(smallest);
    (scaled as u64).clamp(POINTS_MIN, POINTS_MIN * WEIGHT_MAX)
}

fn node_position(node: NodeId, point: u64) -> u64 {
    mix(mix(node.0 ^ 0x4E4F_4445) ^ point)
}

/// Buckets of hash slots stand at even distances from each other, each pool's from a point of its own. A memory
/// pool's groups come and go: each stands where its id puts it, a golden section from the one before.
fn bucket_position(pool: &Pool, bucket: u32) -> u64 {
    if !pool.kind.row().has_slots {
        let group = pool.groups.get(bucket as usize).map_or(0, |id| id.0);
        return mix(u64::from(pool.id.0) ^ 0x504F_4F4C)
            .wrapping_add(u64::from(group).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    }
    let step = (u128::from(u64::MAX) + 1) / pool.groups.len().max(1) as u128;
    let along = (step * u128::from(bucket)) as u64;
    mix(u64::from(pool.id.0) ^ 0x504F_4F4C).wrapping_add(along)
}

/// A fixed 64-bit mixer (the finalizer of SplitMix64, a bijection). Placement rests on it: never to be
/// changed, or every bucket of every cluster moves.
fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::change::Change;
    use crate::testing::*;

    fn pool(map: &ClusterMap) -> &Pool {
        map.pool_named("cache").expect("made by the test")
    }

    fn plan(map: &ClusterMap) -> Vec<Vec<NodeId>> {
        Ring::of(map).plan(pool(map))
    }

    /// A region that is made moves no group of those that are there, and shares stay even.
    #[test]
    fn groups_of_new_regions_move_none_that_are_there() {
        let mut map = cluster(5);
        map.apply(None, &create_memory_pool("memory", "2+1", 1 << 29))
            .expect("new");
        let mut before: Vec<Vec<NodeId>> = Vec::new();
        for region in 0..6 {
            let size_bytes = (region + 1) * 2 * crate::region::stretch_unit(2);
            let change = Change::CreateRegion {
                pool: "memory".into(),
                name: format!("r{region}"),
                size_bytes,
            };
            map.apply(None, &change).expect("new");
            let after = Ring::of(&map).plan(map.pool_named("memory").expect("made"));
            assert_eq!(after[..before.len()], before);
            before = after;
        }
        let mut all = BTreeMap::new();
        before
            .iter()
            .flatten()
            .for_each(|n| *all.entry(*n).or_insert(0) += 1);
        let fair = before.len() * 3 / 5;
        assert!(
            all.values().all(|n| (fair / 2..=fair * 3 / 2).contains(n)),
            "{all:?}"
        );
    }

    /// The number of (bucket, node) pairs of `after` that are not in `before`.
    fn moved(before: &[Vec<NodeId>], after: &[Vec<NodeId>]) -> usize {
        let pairs = before.iter().zip(after);
        pairs
            .map(|(b, a)| a.iter().filter(|n| !b.contains(n)).count())
            .sum()
    }

    fn first_moved(before: &[Vec<NodeId>], after: &[Vec<NodeId>]) -> usize {
        before
            .iter()
            .zip(after)
            .filter(|(b, a)| b[0] != a[0])
            .count()
    }

    /// Row X2: few keys move when a node comes or goes.
    #[test]
    fn few_buckets_move_when_a_node_comes_or_goes() {
        for nodes in 3..=12 {
            let mut map = cluster_with_pool(nodes, "1+1", 256);
            let before = plan(&map);
            map.apply(None, &node_up(None)).expect("new");
            let after = plan(&map);
            let share = 256 / (nodes as usize + 1);
            let (data, all) = (first_moved(&before, &after), moved(&before, &after));
            assert!(
                data <= 2 * share,
                "{nodes} nodes: {data} moved, the fair share is {share}"
            );
            assert!(
                all <= 4 * share,
                "{nodes} nodes: {all} moved, the fair share is {}",
                2 * share
            );
            map.apply(None, &node_down(&map, nodes + 1)).expect("up");
            assert_eq!(plan(&map), before, "as if it had never been");
        }
    }

    /// Row X2, on the bare circle: what a node takes when it comes, and nothing else, changes hands.
    #[test]
    fn on_the_circle_only_the_new_node_takes() {
        let mut map = cluster_with_pool(5, "1+2", 512);
        let before: Vec<_> = (0..512).map(|b| preference(&map, pool(&map), b)).collect();
        map.apply(None, &node_up(None)).expect("new");
        let mut taken = 0;
        for (b, before) in before.iter().enumerate() {
            let mut after = preference(&map, pool(&map), b as u32);
            taken += usize::from(after[0] == NodeId(6));
            after.retain(|n| *n != NodeId(6));
            assert_eq!(&after, before, "the others keep their order");
        }
        assert!((512 / 12..=512 / 4).contains(&taken), "{taken} of 512");
    }

    #[test]
    fn shares_are_even_and_follow_memory() {
        for (nodes, buckets) in [(3, 64), (5, 64), (9, 256), (2, 16)] {
            let map = cluster_with_pool(nodes, "1+1", buckets);
            let (mut first, mut all) = (BTreeMap::new(), BTreeMap::new());
            for members in plan(&map) {
                assert_eq!(members.len(), 2);
                assert_ne!(members[0], members[1]);
                *first.entry(members[0]).or_insert(0) += 1;
                members
                    .iter()
                    .for_each(|n| *all.entry(*n).or_insert(0) += 1);
            }
            let most = (5 * buckets).div_ceil(4 * nodes as u32);
            assert!(
                first.values().all(|n| *n <= most),
                "{nodes} nodes: {first:?}"
            );
            assert!(
                all.values().all(|n| *n <= 2 * most + 2),
                "{nodes} nodes: {all:?}"
            );
            assert!(
                first.values().all(|n| *n >= most / 3),
                "{nodes} nodes: {first:?}"
            );
        }
        let mut map = cluster_with_pool(3, "1+0", 256);
        map.apply(None, &new_node("large", 3 << 30)).expect("new");
        let big = plan(&map).iter().filter(|p| p[0] == NodeId(4)).count();
        assert!(
            (100..=160).contains(&big),
            "{big} of 256 for half of the memory"
        );
    }

    #[test]
    fn copies_go_to_distinct_zones_while_there_are_any() {
        let mut map = cluster(0);
        for zone in ["a", "a", "a", "a", "b", "b", "c"] {
            map.apply(None, &node_in_zone(zone, 1 << 30)).expect("new");
        }
        map.apply(None, &create_pool("cache", "1+3", 64, true))
            .expect("new");
        let zone = |n: &NodeId| map.nodes[n].zone.clone();
        for (b, members) in plan(&map).iter().enumerate() {
            assert_eq!(members.len(), 4);
            assert_eq!(
                members[..3].iter().map(zone).collect::<BTreeSet<_>>().len(),
                3
            );
            let order = preference(&map, pool(&map), b as u32);
            assert_eq!(order.len(), 7);
            assert_eq!(
                order[..3].iter().map(zone).collect::<BTreeSet<_>>().len(),
                3
            );
        }
    }

    #[test]
    fn down_and_draining_nodes_take_nothing_and_few_nodes_make_few_members() {
        let mut map = cluster_with_pool(4, "1+2", 64);
        map.apply(None, &set_drain(2, true)).expect("known");
        map.apply(None, &node_down(&map, 3)).expect("up");
        for members in plan(&map) {
            assert_eq!(members.iter().collect::<BTreeSet<_>>().len(), 2);
            assert!(members.iter().all(|n| [NodeId(1), NodeId(4)].contains(n)));
        }
        assert!(
            plan(&cluster_with_pool(0, "1+2", 4))
                .iter()
                .all(Vec::is_empty)
        );
    }

    /// Positions are for ever: a cluster's buckets must not move with a new version of the program.
    #[test]
    fn positions_are_fixed() {
        assert_eq!(mix(0), 0xE220_A839_7B1D_CDAF);
        let map = cluster_with_pool(5, "1+2", 4);
        let golden: Vec<Vec<u64>> = plan(&map)
            .iter()
            .map(|p| p.iter().map(|n| n.0).collect())
            .collect();
        assert_eq!(golden, GOLDEN);
    }

    const GOLDEN: [[u64; 3]; 4] = [[3, 2, 5], [5, 1, 4], [1, 2, 3], [4, 5, 3]];
}
