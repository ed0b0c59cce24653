//! Whether a region's parity finds memory: asked before a load, and where it is not made in time.

use std::collections::BTreeMap;

use staves_model::{
    CHUNK_BYTES, ClusterMap, Group, GroupId, Member, MemberSlot, Node, NodeId, NodeState, Pool,
    REGION_BUCKET_BYTES, Region,
};
use staves_node::group_state::GroupState;
use staves_store::EXTENT_BYTES;
use staves_wire::admin::GroupTarget;
use staves_wire::{ErrorCode, Message};

use crate::room::Room;
use staves_cli_common::cluster::Cluster;
use staves_cli_common::failure::Failure;
use staves_cli_common::output::bytes;

/// A region, with what its members say of the memory that they take.
pub struct Taken<'a> {
    map: &'a ClusterMap,
    pool: &'a Pool,
    region: &'a Region,
    /// Extents that each member has reserved, of those that answered.
    extents: BTreeMap<(GroupId, MemberSlot), u32>,
}

/// What parity takes and what there is for it.
struct Bill {
    /// Bytes that the members to be made take.
    needs: u64,
    has: u64,
    missing: u64,
}

/// What is in the way of a load.
#[derive(PartialEq, Eq, Debug)]
enum Short {
    /// A node holds data buckets of the region, and those take more than it has.
    Data { node: NodeId, needs: u64, has: u64 },
    /// A group's parity finds no node that has so much. `has`: what the emptiest of those has that may hold it.
    Parity {
        group: GroupId,
        needs: u64,
        has: u64,
    },
}

impl<'a> Taken<'a> {
    /// Asks all members of a region. `None`: there is no such region.
    pub fn of(cluster: &Cluster, map: &'a ClusterMap, name: &str) -> Option<Taken<'a>> {
        let (pool, region) = map.region_named(name)?;
        let (mut who, mut asks) = (Vec::new(), Vec::new());
        for group in region.groups().filter_map(|id| map.groups.get(&id)) {
            for (slot, member) in group.listed() {
                if let Some(node) = map.nodes.get(&member.id.node) {
                    let message = Message::GroupState(GroupTarget { group: group.id });
                    who.push((group.id, slot));
                    asks.push((node.native.clone(), message));
                }
            }
        }
        let answers = who.into_iter().zip(cluster.ask_all(asks));
        let extents = answers.filter_map(|((group, slot), answer)| match answer {
            Ok(Message::GroupStateAnswer(answer)) => {
                let state = serde_json::from_slice::<GroupState>(&answer.json).ok()?;
                // A node may hold two members of a group.
                let state = state.of_slot(slot.0)?;
                Some(((group, slot), state.extents_reserved))
            }
            _ => None,
        });
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

    /// Refuses a load that a data bucket has no room for, or after which the region's parity could not be made: by
    /// what is certainly taken then, as if the load went to places that are written already.
    pub fn may_load(&self, room: Room, offset: u64, count: u64) -> Result<(), Failure> {
        let Some(short) = self.short_of_load(room, offset, count) else {
            return Ok(());
        };
        let (region, pool) = (&self.region.name, &self.pool.name);
        let why = match short {
            Short::Data { node, needs, has } => format!(
                "its data on node {} takes {} more then, and that node has {} left for pool '{pool}'",
                self.map.nodes.get(&node).map_or("-", |node| &*node.name),
                bytes(needs),
                bytes(has),
            ),
            Short::Parity { group, needs, has } => format!(
                "the parity ({}) of its group {group} takes {} then on a node that holds no data of that group, and none \
                 of those has more than {} for it in pool '{pool}'",
                self.pool.scheme,
                bytes(needs),
                bytes(has),
            ),
        };
        let text = format!(
            "region '{region}' cannot be loaded with {}: {why}; nothing was written; give the pool more memory \
             ('staves pool set {pool} --memory'), add nodes, or delete what is not needed",
            bytes(count),
        );
        Err(Failure::Wire(ErrorCode::OutOfMemory, text))
    }

    fn short_of_load(&self, mut room: Room, offset: u64, count: u64) -> Option<Short> {
        // What a member has that does not say is counted as used at its node, and cannot be told from the rest.
        let says = |group: &Group| {
            let mut listed = group.listed();
            listed.all(|(slot, _)| self.extents.contains_key(&(group.id, slot)))
        };
        if !self.groups().all(says) {
            return None;
        }
        let parity = self.parity(room.nodes());
        let loaded = loaded(self.region, self.pool.scheme.m, offset, count);
        // The parity there is is given up first.
        for group in self.groups() {
            for slot in group.parity_slots() {
                if let Some(member) = group.member(slot) {
                    room.give(member.id.node, self.bytes_of(group, slot));
                }
            }
        }
        let mut sizes = Vec::new();
        let mut more: BTreeMap<NodeId, u64> = BTreeMap::new();
        for group in self.groups() {
            let mut largest = 0;
            for slot in (0..group.m).map(MemberSlot) {
                let now = self.bytes_of(group, slot);
                let then = match loaded.get(&(group.id, slot)) {
                    // One more, for the table of chunks.
                    Some(chunks) => (chunks + 1) * CHUNK_BYTES,
                    None => 0,
                };
                let then = now.max(then.next_multiple_of(EXTENT_BYTES as u64));
                largest = largest.max(then);
                if let Some(member) = group.member(slot) {
                    *more.entry(member.id.node).or_default() += then - now;
                }
            }
            sizes.push((group, largest));
        }
        for (node, needs) in more {
            // A node that drains gives its bucket to another.
            let has = room.left_on(node).unwrap_or(u64::MAX);
            if room.take(node, needs.min(has)) > 0 || needs > has {
                return Some(Short::Data { node, needs, has });
            }
        }
        for (group, needs) in sizes {
            let taken = |node| holds_data(group, node);
            // Where parity is now it finds room in any case, if it does not grow.
            let now = |node| holds_parity(group, node);
            if room.place_first_on(now, needs, parity, taken) > 0 {
                let group = group.id;
                let has = room.most(taken);
                return Some(Short::Parity { group, needs, has });
            }
        }
        None
    }

    /// Parity buckets that each group can have on so many nodes.
    fn parity(&self, nodes: usize) -> usize {
        let m = usize::from(self.pool.scheme.m);
        usize::from(self.pool.scheme.k).min(nodes.saturating_sub(m))
    }

    /// Why the region's parity is not all there yet, and what to do.
    pub fn why_unprotected(&self, room: Room) -> String {
        let is_up = |x: &Member| self.map.runs(x.id);
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
            let in_group = |node| group.listed().any(|(_, x)| x.id.node == node);
            bill.needs += members as u64 * size;
            bill.missing += room.place(size, members, in_group);
        }
        bill
    }
}

fn holds_data(group: &Group, node: NodeId) -> bool {
    let data = (0..group.m).filter_map(|slot| group.member(MemberSlot(slot)));
    data.into_iter().any(|x| x.id.node == node)
}

fn holds_parity(group: &Group, node: NodeId) -> bool {
    let parity = group.parity_slots().filter_map(|slot| group.member(slot));
    parity.into_iter().any(|x| x.id.node == node)
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
    use staves_model::{Change, ClusterId, Epoch, Medium, NewEpoch, PoolKind};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Four nodes, a pool 2+1, and region `r` of one group whose members are on the first so many of them: of none, if
    /// nobody is named.
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
        if members == 0 {
            return map;
        }
        let (group, epoch) = (GroupId(1), Epoch(1));
        let life = |n| {
            Some(staves_model::MemberId::new(
                NodeId(n),
                map.nodes[&NodeId(n)].incarnation,
            ))
        };
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

    fn room(mib: &[u64]) -> Room {
        Room::with((1..).zip(mib.iter().map(|mib| mib * MIB)))
    }

    #[test]
    fn h11_a_load_is_judged_by_what_data_and_parity_take_besides() {
        let map = map(3);
        let empty = taken(&map, &[0, 0, 0]);
        assert_eq!(empty.may_load(room(&[9, 9, 9, 0]), 0, 16 * MIB), Ok(()));
        // What is there already takes nothing besides, and the old parity makes room for the new.
        let full = taken(&map, &[9, 9, 9]);
        assert_eq!(full.may_load(room(&[0, 0, 0, 0]), 0, 16 * MIB), Ok(()));
        assert_eq!(full.may_load(room(&[0, 0, 0, 0]), 7, MIB + 5), Ok(()));
        assert!(full.may_load(room(&[0, 0, 0, 0]), 0, 19 * MIB).is_err());
    }

    /// Regression: a load was refused with what all nodes have left, which was more than it takes.
    #[test]
    fn a_load_that_is_refused_names_whom_it_has_no_room_at() {
        let map = map(3);
        let empty = taken(&map, &[0, 0, 0]);
        let refused = |left: &[u64]| {
            let refused = empty.may_load(room(left), 0, 16 * MIB);
            refused.expect_err("too much").to_string()
        };
        let text = refused(&[7, 9, 200, 200]);
        let parts = ["node n1 takes 8.2 MiB more", "7.0 MiB left for pool 'mem'"];
        let all_in = |text: &str, parts: [&str; 2]| parts.iter().all(|part| text.contains(part));
        assert!(all_in(&text, parts), "{text}");
        let text = refused(&[200, 200, 7, 6]);
        let parts = [
            "parity (2+1) of its group 1 takes 8.2 MiB",
            "more than 7.0 MiB",
        ];
        assert!(all_in(&text, parts), "{text}");
    }

    /// Regression: a member that did not say what it has was taken for empty, though its node counts it as used.
    #[test]
    fn a_member_that_does_not_answer_refuses_no_load() {
        let map = map(3);
        let two = taken(&map, &[9, 9]);
        assert_eq!(two.may_load(room(&[0, 0, 0, 0]), 0, 16 * MIB), Ok(()));
    }

    /// Regression: one group's parity was thought to move where another's alone fits, and bytes that were there
    /// could not be loaded again.
    #[test]
    fn parity_that_does_not_grow_counts_as_staying_where_it_is() {
        let (map, group) = two_groups();
        let takes = group.map(|(group, slot)| ((group, MemberSlot(slot)), 33));
        let (pool, region) = map.region_named("r").expect("made");
        let taken = Taken {
            map: &map,
            pool,
            region,
            extents: takes.into_iter().collect(),
        };
        // The first group's parity on node 4 could go to node 3 as well, which has more; the second's on node 3
        // could not go to node 4, whose data is of its group.
        assert_eq!(taken.may_load(room(&[0, 0, 1, 0]), 0, 16 * MIB), Ok(()));
    }

    /// A region of two groups: the first on nodes 1, 2 and 4, the second on 4, 1 and 3.
    fn two_groups() -> (ClusterMap, [(GroupId, u8); 6]) {
        let mut map = map(0);
        let grown = Change::GrowRegion {
            name: "r".into(),
            size_bytes: 256 * MIB,
        };
        map.apply(None, &grown).expect("sound");
        let life = |n: u64| {
            Some(staves_model::MemberId::new(
                NodeId(n),
                map.nodes[&NodeId(n)].incarnation,
            ))
        };
        let new = [(1, [1, 2, 4]), (2, [4, 1, 3])].map(|(group, nodes)| NewEpoch {
            group: GroupId(group),
            epoch: Epoch(1),
            members: nodes.map(life).to_vec(),
            kept: vec![None; 3],
            leader: MemberSlot(0),
            fresh: true,
        });
        map.apply(None, &Change::CommitEpochs(new.to_vec()))
            .expect("sound");
        let slots = |group| [0, 1, 2].map(|slot| (GroupId(group), slot));
        let ([a, b, c], [d, e, f]) = (slots(1), slots(2));
        (map, [a, b, c, d, e, f])
    }

    #[test]
    fn parity_that_is_not_made_is_told_of_by_what_is_missing() {
        let two = map(2);
        let data = taken(&two, &[8, 6]);
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
