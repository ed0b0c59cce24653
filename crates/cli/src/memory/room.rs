//! Whether a region's parity finds memory: asked before a load, and where it is not made in time.

use std::collections::BTreeMap;

use staves_model::{
    CHUNK_BYTES, ClusterMap, Group, GroupId, Member, MemberSlot, Node, NodeState, Pool,
    REGION_BUCKET_BYTES, Region,
};
use staves_node::group_state::GroupState;
use staves_store::EXTENT_BYTES;
use staves_wire::admin::GroupTarget;
use staves_wire::{ErrorCode, Message};

use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::output::bytes;
use crate::room::Room;

/// A region, with what its members say of the memory that they take.
pub struct Taken<'a> {
    map: &'a ClusterMap,
    pool: &'a Pool,
    region: &'a Region,
    /// Extents of each member that answered.
    extents: BTreeMap<(GroupId, MemberSlot), u32>,
}

/// What parity takes and what there is for it.
struct Bill {
    /// Bytes that the members to be made take, and data buckets besides what they have.
    needs: u64,
    has: u64,
    missing: u64,
}

impl<'a> Taken<'a> {
    /// Asks all members of a region. `None`: there is no such region.
    pub fn of(cluster: &Cluster, map: &'a ClusterMap, name: &str) -> Option<Taken<'a>> {
        let (pool, region) = map.region_named(name)?;
        let (mut who, mut asks) = (Vec::new(), Vec::new());
        for group in region.groups().filter_map(|id| map.groups.get(&id)) {
            for (slot, member) in group.listed() {
                if let Some(node) = map.nodes.get(&member.node.home()) {
                    let message = Message::GroupState(GroupTarget { group: group.id });
                    who.push((group.id, slot));
                    asks.push((node.native.clone(), message));
                }
            }
        }
        let extents = |answer| match answer {
            Ok(Message::GroupStateAnswer(answer)) => {
                let state = serde_json::from_slice::<GroupState>(&answer.json).ok()?;
                Some(state.extents)
            }
            _ => None,
        };
        let answers = cluster.ask_all(asks).into_iter().map(extents);
        let extents = who.into_iter().zip(answers);
        let extents = extents.filter_map(|(of, extents)| Some((of, extents?)));
        Some(Taken {
            map,
            pool,
            region,
            extents: extents.collect(),
        })
    }

    fn groups(&self) -> impl Iterator<Item = &'a Group> {
        let map = self.map;
        self.region.groups().filter_map(|id| map.groups.get(&id))
    }

    fn bytes_of(&self, group: &Group, slot: MemberSlot) -> u64 {
        let extents = self.extents.get(&(group.id, slot));
        u64::from(extents.copied().unwrap_or(0)) * EXTENT_BYTES as u64
    }

    /// Refuses a load after which the region's parity could not be made: by what is certainly taken then, as if the
    /// load went to places that are written already.
    pub fn may_load(&self, room: Room, offset: u64, count: u64) -> Result<(), Failure> {
        let bill = self.bill_of_load(room, offset, count);
        if bill.missing == 0 {
            return Ok(());
        }
        let text = format!(
            "region '{}' cannot be loaded with {}: its data and parity ({}) take {} more then, and the nodes have {} left \
             for pool '{}', so that {} of it find no room; nothing was written; give the pool more memory \
             ('staves pool set {} --memory'), add nodes, or delete what is not needed",
            self.region.name,
            bytes(count),
            self.pool.scheme,
            bytes(bill.needs),
            bytes(bill.has),
            self.pool.name,
            bytes(bill.missing),
            self.pool.name,
        );
        Err(Failure::Wire(ErrorCode::OutOfMemory, text))
    }

    fn bill_of_load(&self, mut room: Room, offset: u64, count: u64) -> Bill {
        let loaded = loaded(self.region, self.pool.scheme.m, offset, count);
        let parity = self.parity(room.nodes());
        // The parity there is is given up first.
        for group in self.groups() {
            for slot in group.parity_slots() {
                if let Some(member) = group.member(slot) {
                    room.give(member.node.home(), self.bytes_of(group, slot));
                }
            }
        }
        let mut bill = Bill {
            needs: 0,
            has: room.left(),
            missing: 0,
        };
        let mut sizes = Vec::new();
        for group in self.groups() {
            let mut largest = 0;
            for slot in (0..group.m).map(MemberSlot) {
                let now = self.bytes_of(group, slot);
                let chunks = loaded.get(&(group.id, slot)).copied().unwrap_or(0);
                let then = now.max((chunks * CHUNK_BYTES).next_multiple_of(EXTENT_BYTES as u64));
                largest = largest.max(then);
                bill.needs += then - now;
                if let Some(member) = group.member(slot) {
                    bill.missing += room.take(member.node.home(), then - now);
                }
            }
            sizes.push((group, largest));
        }
        for (group, size) in sizes {
            bill.needs += size * parity as u64;
            bill.missing += room.place(size, parity, |node| holds_data(group, node));
        }
        bill
    }

    /// Parity buckets that each group can have on so many nodes.
    fn parity(&self, nodes: usize) -> usize {
        let m = usize::from(self.pool.scheme.m);
        usize::from(self.pool.scheme.k).min(nodes.saturating_sub(m))
    }

    /// Why the region's parity is not all there yet, and what to do.
    pub fn why_unprotected(&self, room: Room) -> String {
        let is_up = |x: &Member| self.map.is_up(x.node, x.incarnation);
        let down = |n: &&Node| n.state == NodeState::Down;
        let nodes: Vec<&str> = self
            .map
            .nodes
            .values()
            .filter(down)
            .map(|n| &*n.name)
            .collect();
        let bill = self.bill_of_what_is_missing(room);
        let (pool, region) = (&self.pool.name, &self.region.name);
        let vacant = self
            .groups()
            .filter(|g| !g.lost && g.listed().all(|(_, x)| is_up(x)));
        let vacant = vacant.filter(|g| g.listed().count() < self.pool.scheme.width());
        if bill.missing > 0 {
            return format!(
                "what is missing of its parity takes {} on nodes that have no part in the same group, and {2} of that find no \
                 room (all nodes have {1} left for pool '{pool}'): give the pool more memory ('staves pool set {pool} --memory'), add nodes, or delete what is \
                 not needed; then it is made by itself, and 'staves memory protect {region}' waits for it",
                bytes(bill.needs),
                bytes(bill.has),
                bytes(bill.missing),
            );
        }
        match (vacant.count(), &nodes[..]) {
            (1.., [_, ..]) => format!(
                "{} down ({}), and there is no other node that its buckets could go to: bring it back, add one, or strike \
                 it ('staves node forget'); then ask again",
                match nodes.len() {
                    1 => "a node is".to_owned(),
                    n => format!("{n} nodes are"),
                },
                nodes.join(", ")
            ),
            _ => format!(
                "its parity is still being made: 'staves status' shows how far it is; 'staves memory protect {region} \
                 --deadline 10m' waits for it"
            ),
        }
    }

    fn bill_of_what_is_missing(&self, mut room: Room) -> Bill {
        let parity = self.parity(room.nodes());
        let mut bill = Bill {
            needs: 0,
            has: room.left(),
            missing: 0,
        };
        for group in self.groups().filter(|group| !group.lost) {
            let there = group.parity_slots().count();
            let data = (0..group.m).map(|slot| self.bytes_of(group, MemberSlot(slot)));
            let size = data.max().unwrap_or(0);
            let members = parity.saturating_sub(there);
            let in_group = |node| group.listed().any(|(_, x)| x.node.home() == node);
            bill.needs += members as u64 * size;
            bill.missing += room.place(size, members, in_group);
        }
        bill
    }
}

fn holds_data(group: &Group, node: staves_model::NodeId) -> bool {
    let data = (0..group.m).filter_map(|slot| group.member(MemberSlot(slot)));
    data.into_iter().any(|x| x.node.home() == node)
}

/// Chunks of each data bucket that a load touches.
fn loaded(region: &Region, m: u8, offset: u64, count: u64) -> BTreeMap<(GroupId, MemberSlot), u64> {
    let mut chunks = BTreeMap::new();
    let end = offset.saturating_add(count).min(region.size_bytes);
    let mut at = offset;
    while at < end {
        let Some(place) = region.place(at, m) else {
            break;
        };
        let of: &mut u64 = chunks.entry((place.group, place.slot)).or_default();
        *of = (*of + 1).min(REGION_BUCKET_BYTES / CHUNK_BYTES);
        at += place.left;
    }
    chunks
}

#[cfg(test)]
mod tests {
    use staves_model::{Change, ClusterId, Epoch, Medium, NewEpoch, NodeId, PoolKind};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Four nodes, a pool 2+1, and region `r` of one group whose members are on the first so many of them.
    fn map(members: u64) -> ClusterMap {
        let mut map = ClusterMap::default();
        let mut apply = |change: Change| map.apply(None, &change).map(|_| ()).expect("sound");
        let cluster = ClusterId(1);
        apply(Change::Bootstrap { cluster });
        for node in 1..=4 {
            apply(Change::NodeUp {
                id: None,
                name: format!("n{node}"),
                zone: None,
                native: format!("n{node}:1600"),
                resp: format!("n{node}:6379"),
                admin: format!("n{node}:1680"),
                memory_bytes: 1 << 30,
                durable: true,
            });
        }
        apply(Change::CreatePool {
            name: "mem".into(),
            kind: PoolKind::Memory {
                regions: Vec::new(),
            },
            scheme: "2+1".parse().expect("a scheme"),
            medium: Medium::Ram,
            node_budget_bytes: 64 * MIB,
            buckets: 0,
            may_start_empty: false,
        });
        apply(Change::CreateRegion {
            pool: "mem".into(),
            name: "r".into(),
            size_bytes: 64 * MIB,
        });
        let (group, epoch) = (GroupId(1), Epoch(1));
        let life = |n| Some((NodeId(n), map.nodes[&NodeId(n)].incarnation));
        let new = NewEpoch {
            group,
            epoch,
            members: (1..=members).map(life).collect(),
            kept: vec![None; members as usize],
            leader: MemberSlot(0),
            fresh: true,
        };
        map.apply(None, &Change::CommitEpochs(vec![new]))
            .expect("sound");
        map.apply(None, &Change::Open { group, epoch })
            .expect("opens");
        map
    }

    /// What each member takes, in MiB.
    fn taken<'a>(map: &'a ClusterMap, takes: &[u32]) -> Taken<'a> {
        let (pool, region) = map.region_named("r").expect("made");
        let of = |(slot, mib): (u8, &u32)| ((GroupId(1), MemberSlot(slot)), mib * 4);
        Taken {
            map,
            pool,
            region,
            extents: (0..).zip(takes).map(of).collect(),
        }
    }

    #[test]
    fn h11_a_load_is_judged_by_what_data_and_parity_take_besides() {
        let map = map(3);
        let empty = taken(&map, &[0, 0, 0]);
        let room = |mib: &[u64]| Room::with((1..).zip(mib.iter().map(|mib| mib * MIB)));
        assert_eq!(empty.may_load(room(&[8, 8, 8, 0]), 0, 16 * MIB), Ok(()));
        // Parity finds no room, or a data bucket does not.
        for left in [[8, 8, 7, 7], [7, 8, 20, 20]] {
            let refused = empty.may_load(room(&left), 0, 16 * MIB);
            let text = refused.expect_err("too much").to_string();
            assert!(text.contains("take 24.0 MiB more then"), "{text}");
        }
        // What is there already takes nothing besides, and the old parity makes room for the new.
        let full = taken(&map, &[8, 8, 8]);
        assert_eq!(full.may_load(room(&[0, 0, 0, 0]), 0, 16 * MIB), Ok(()));
        assert!(full.may_load(room(&[0, 0, 0, 0]), 0, 17 * MIB).is_err());
    }

    #[test]
    fn parity_that_is_not_made_is_told_of_by_what_is_missing() {
        let two = map(2);
        let data = taken(&two, &[8, 6]);
        let room = |mib: &[u64]| Room::with((1..).zip(mib.iter().map(|mib| mib * MIB)));
        let text = data.why_unprotected(room(&[20, 20, 7, 3]));
        for part in [
            "takes 8.0 MiB",
            "8.0 MiB of that find no room",
            "50.0 MiB left",
            "pool set mem",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = data.why_unprotected(room(&[0, 0, 8, 0]));
        assert!(
            text.contains("still being made") && text.contains("protect r"),
            "{text}"
        );
        let mut down = two.clone();
        for node in [3, 4] {
            let node = NodeId(node);
            let incarnation = down.nodes[&node].incarnation;
            down.apply(None, &Change::NodeDown { node, incarnation })
                .expect("up");
        }
        let text = taken(&down, &[8, 6]).why_unprotected(room(&[20, 20]));
        assert!(text.contains("2 nodes are down (n3, n4)"), "{text}");
    }
}
