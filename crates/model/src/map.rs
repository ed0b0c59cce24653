//! The cluster map: nodes, pools, groups. A plain value; `change.rs` holds the rules that change it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{
    ClusterId, DiskId, Epoch, GroupId, HashSlot, Incarnation, MemberId, MemberSlot, NodeId, PoolId,
    RegionId, Revision,
};
use crate::image::{Image, ImageState};
pub use crate::kind::{KindRow, PoolKind};
use crate::mutant::{Mutant, planted};
use crate::region::{Region, StretchState};
use crate::scheme::{HASH_SLOTS, Scheme, bucket_slot};
use crate::volume_tables::{self, VolumeTables};

/// Is the node's process believed to run?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodeState {
    /// Running, as far as the directory knows.
    Up,
    /// Declared dead, or left; its memberships count as lost.
    Down,
}

/// One node of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Its id, for good where it has a data folder.
    pub id: NodeId,
    /// Its present life; raised each time that its process starts.
    pub incarnation: Incarnation,
    /// A name for people.
    pub name: String,
    /// Members of a group go to distinct zones where that can be had.
    pub zone: Option<String>,
    /// The address of the native protocol, `host:port`.
    pub native: String,
    /// The address of RESP, `host:port`.
    pub resp: String,
    /// The address of the admin HTTP door, `host:port`.
    pub admin: String,
    /// Memory for pages, in bytes.
    pub memory_bytes: u64,
    /// Bytes of pages that its disk takes; 0 if it has none.
    pub disk_bytes: u64,
    /// True if it keeps its vote on disk, and so may vote.
    pub durable: bool,
    /// Up or down.
    pub state: NodeState,
    /// Asked to give up its buckets (need-to-remove, row X5).
    pub draining: bool,
}

impl Node {
    /// True if it may hold buckets: it is up and does not drain.
    pub fn is_home(&self) -> bool {
        self.state == NodeState::Up && !self.draining
    }

    /// Bytes that it has for pages of pools on a medium.
    pub fn bytes_on(&self, medium: Medium) -> u64 {
        match medium {
            Medium::Ram => self.memory_bytes,
            Medium::Disk => self.disk_bytes,
        }
    }
}

/// The medium of a pool's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Medium {
    /// The nodes' memory.
    Ram,
    /// The nodes' disks, and as much of their memory as they lend to it.
    Disk,
}

impl Medium {
    /// A word for people.
    pub fn word(self) -> &'static str {
        match self {
            Medium::Ram => "ram",
            Medium::Disk => "disk",
        }
    }
}

/// A named container of groups.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pool {
    /// Its id, never used again.
    pub id: PoolId,
    /// Its name, unique among pools.
    pub name: String,
    /// The meaning of its bytes.
    pub kind: PoolKind,
    /// m and the k that is wanted; a group may have fewer parity buckets while nodes are few.
    pub scheme: Scheme,
    /// The medium of its pages.
    pub medium: Medium,
    /// Bytes of pages that each node may give to this pool.
    pub node_budget_bytes: u64,
    /// Its groups in bucket order. For key-value pools hash slot `s` belongs to bucket
    /// `s * len / 16384`.
    pub groups: Vec<GroupId>,
    /// True if a group that has lost all its members may start again empty.
    pub may_start_empty: bool,
}

impl Pool {
    /// Its regions; none if it is no memory pool.
    pub fn regions(&self) -> &[Region] {
        match &self.kind {
            PoolKind::Memory { regions } => regions,
            _ => &[],
        }
    }

    /// True if a group of it belongs to a stretch that is being loaded.
    pub fn is_loading(&self, group: GroupId) -> bool {
        let mut stretches = self.regions().iter().flat_map(|region| &region.stretches);
        stretches.any(|s| s.state == StretchState::Loading && s.contains(group))
    }

    /// The bucket (index into `groups`) of a hash slot.
    pub fn bucket_of(&self, slot: HashSlot) -> usize {
        usize::from(slot.0) * self.groups.len() / usize::from(HASH_SLOTS)
    }
}

/// A listed member of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Its identity.
    pub id: MemberId,
    /// All its pages are done. Only complete members count towards m.
    pub complete: bool,
}

/// The members of the last epoch that was open: the only sources there are (GROUP rule 7).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LastOpen {
    /// That epoch; 0 if none ever was.
    pub epoch: Epoch,
    /// Its members by member slot, with their `complete` marks kept up to date while it is the newest. A member on disk is here
    /// in its node's present life once the node has claimed it (`change/claims.rs`), though the newest epoch names a former one.
    pub members: Vec<Option<Member>>,
}

/// One group as the directory knows it. Members receive the same (GROUP's "map").
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Group {
    /// Its id.
    pub id: GroupId,
    /// The pool that it belongs to.
    pub pool: PoolId,
    /// Its place in the pool (index into `Pool::groups`).
    pub bucket: u32,
    /// Data buckets. `members.len() - m` is the number of parity slots of this epoch.
    pub m: u8,
    /// The newest committed epoch.
    pub epoch: Epoch,
    /// True if that epoch is open; if not, its coordinator is at work.
    pub open: bool,
    /// The one member slot that coordinates the change to this epoch. Always a listed member.
    pub coordinator: MemberSlot,
    /// Members by member slot; `None` is vacant.
    pub members: Vec<Option<Member>>,
    /// For each member slot of `members`: where that member stood in `last_open`, if it is retained.
    /// `None` for a joiner (and for a vacant slot).
    pub kept: Vec<Option<MemberSlot>>,
    /// The epoch starts from nothing (a new group, or a cache group whose members are all gone):
    /// nobody is retained, all streams begin at the cut 0, all pages are there and zero.
    pub fresh: bool,
    /// The sources.
    pub last_open: LastOpen,
    /// More was lost than the scheme bears: nobody can answer for the old bytes.
    pub lost: bool,
    /// The revision of the map at which this entry last changed.
    pub revision: Revision,
}

impl Group {
    /// The member in a slot.
    pub fn member(&self, slot: MemberSlot) -> Option<&Member> {
        self.members.get(slot.index()).and_then(Option::as_ref)
    }

    /// The slot of a member in the newest committed epoch.
    pub fn slot_of(&self, id: MemberId) -> Option<MemberSlot> {
        position(&self.members, id)
    }

    /// True if any life of this node is a member of the newest epoch or of the last open one.
    pub fn names(&self, node: NodeId) -> bool {
        self.members
            .iter()
            .chain(&self.last_open.members)
            .flatten()
            .any(|x| x.id.node == node)
    }

    /// True if any life of this disk of this node is a member of the newest epoch or of the last open one.
    pub fn seats(&self, node: NodeId, disk: DiskId) -> bool {
        let all = self.members.iter().chain(&self.last_open.members);
        all.flatten().any(|x| x.id.place() == (node, disk))
    }

    /// The slots of the parity buckets that are listed (copies when m = 1), twins of them included.
    pub fn parity_slots(&self) -> impl Iterator<Item = MemberSlot> + '_ {
        self.listed()
            .map(|(slot, _)| slot)
            .filter(|slot| self.bucket_slot(*slot).0 >= self.m)
    }

    /// The slots of the members to which a data bucket's deltas go: the parity buckets, and its own twin.
    pub fn protectors(&self, stream: usize) -> impl Iterator<Item = MemberSlot> + '_ {
        let keeps = move |slot: &MemberSlot| {
            let of = self.bucket_slot(*slot);
            slot.0 >= self.m && (of.0 >= self.m || of.index() == stream)
        };
        self.listed().map(|(slot, _)| slot).filter(keeps)
    }

    /// The slot whose bucket a slot's member holds: its own, or that of which it is the twin.
    pub fn bucket_slot(&self, slot: MemberSlot) -> MemberSlot {
        bucket_slot(self.m, slot)
    }

    /// True if a member of the newest epoch stands on a node.
    pub fn lists(&self, node: NodeId) -> bool {
        self.listed().any(|(_, x)| x.id.node == node)
    }

    /// All listed members with their slots.
    pub fn listed(&self) -> impl Iterator<Item = (MemberSlot, &Member)> + '_ {
        self.members
            .iter()
            .enumerate()
            .filter_map(|(s, x)| x.as_ref().map(|x| (MemberSlot(s as u8), x)))
    }

    /// True if the newest epoch starts from nothing and is not open yet.
    pub fn starts_anew(&self) -> bool {
        self.fresh && !self.open
    }

    /// True if the member in this slot is retained from the last open epoch.
    pub fn retained(&self, slot: MemberSlot) -> bool {
        self.kept.get(slot.index()).is_some_and(Option::is_some)
    }

    /// True if a node holds two members of the newest epoch, this one among them.
    pub fn is_doubled(&self, x: &Member) -> bool {
        let same = |(_, other): &(MemberSlot, &Member)| other.id.node == x.id.node;
        self.listed().filter(same).count() > 1
    }

    /// The number of nodes that may be lost now without losing data, whichever they are, by the complete members of the
    /// last open epoch that run. `None` if data is lost already.
    pub fn tolerates(&self, up: impl Fn(MemberId) -> bool) -> Option<u8> {
        let source = if self.fresh && !self.open {
            &self.members
        } else {
            &self.last_open.members
        };
        let counts = |x: &Member| x.complete && up(x.id);
        let holders = (0..).zip(source).filter_map(|(slot, x)| {
            let x = x.filter(counts)?;
            Some((MemberSlot(slot), x.id))
        });
        nodes_to_spare(self.m, holders)
    }
}

/// The number of nodes that may be lost, whichever they are, while these hold whole what stands in these slots: so many
/// that the buckets of the others are still m. A bucket that a twin holds too is counted where fewer lie, and never
/// as one that the loss of two nodes takes. `None`: there are fewer than m now.
pub(crate) fn nodes_to_spare(
    m: u8,
    holders: impl Iterator<Item = (MemberSlot, MemberId)>,
) -> Option<u8> {
    let apart = |id: MemberId| id.is_second() && planted(Mutant::SecondTakenAsNode);
    let holders: Vec<_> = holders.map(|(s, id)| (s, (id.node, apart(id)))).collect();
    let mut held: BTreeMap<_, usize> = BTreeMap::new();
    for (_, node) in &holders {
        *held.entry(*node).or_default() += 1;
    }
    let mut of_bucket = BTreeMap::new();
    for (slot, here) in holders {
        let bucket = bucket_slot(m, slot);
        let known = of_bucket.entry(bucket).or_insert(here);
        if held[&here] < held[known] {
            *known = here;
        }
    }
    let mut takes: BTreeMap<_, usize> = BTreeMap::new();
    of_bucket
        .values()
        .for_each(|node| *takes.entry(*node).or_default() += 1);
    let mut takes: Vec<usize> = takes.into_values().collect();
    takes.sort_unstable_by(|a, b| b.cmp(a));
    let mut spare = of_bucket.len().checked_sub(usize::from(m))?;
    let borne = takes.into_iter().take_while(|takes| {
        let left = spare.checked_sub(*takes);
        spare = left.unwrap_or(0);
        left.is_some()
    });
    Some(borne.count() as u8)
}

/// The number of different buckets that these members hold whole, of those that `count`. A twin holds what
/// another holds too: both together are worth one.
pub fn whole_buckets(m: u8, members: &[Option<Member>], counts: impl Fn(&Member) -> bool) -> usize {
    let whole = |x: &Option<Member>| x.as_ref().is_some_and(|x| x.complete && counts(x));
    let slots = (0..members.len()).filter(|s| whole(&members[*s]));
    let buckets = slots.fold(0u64, |bits, s| {
        bits | 1 << bucket_slot(m, MemberSlot(s as u8)).0
    });
    buckets.count_ones() as usize
}

// The mask above has a bit for each slot of a data or parity bucket.
const _: () = assert!(crate::scheme::M_MAX + crate::scheme::PARITY_SLOTS <= 64);

impl Group {
    /// True if it has fewer complete copies than writes to its pool wait for ([`ClusterMap::copies_min`]). With m > 1 that many bear as many losses as copies would.
    pub fn lacks_copies(&self, copies_min: u8) -> bool {
        let complete = self.listed().filter(|(_, x)| x.complete);
        if copies_min <= 1 {
            return false;
        }
        if self.m == 1 {
            return complete.count() < usize::from(copies_min);
        }
        // Two buckets on one node are lost together.
        let borne = nodes_to_spare(self.m, complete.map(|(slot, x)| (slot, x.id)));
        borne.is_none_or(|borne| borne + 1 < copies_min)
    }
}

impl LastOpen {
    /// The slot of a member in the last open epoch.
    pub fn slot_of(&self, id: MemberId) -> Option<MemberSlot> {
        position(&self.members, id)
    }
}

fn position(members: &[Option<Member>], id: MemberId) -> Option<MemberSlot> {
    members
        .iter()
        .position(|x| x.as_ref().is_some_and(|x| x.id == id))
        .map(|s| MemberSlot(s as u8))
}

/// The cluster's one replicated truth.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClusterMap {
    /// The cluster's name for itself; 0 before bootstrap.
    pub cluster: ClusterId,
    /// Raised by each change that takes effect.
    pub revision: Revision,
    /// All nodes that are known, up or down.
    pub nodes: BTreeMap<NodeId, Node>,
    /// All pools.
    pub pools: BTreeMap<PoolId, Pool>,
    /// All groups of all pools.
    pub groups: BTreeMap<GroupId, Group>,
    /// The next ids to hand out; an id is never used twice.
    pub next_node: NodeId,
    /// See `next_node`.
    pub next_pool: PoolId,
    /// See `next_node`.
    pub next_group: GroupId,
    /// The next incarnation to hand out, of any node.
    pub next_incarnation: Incarnation,
    /// The tables of volumes and pools. They stay the last: maps of before end here.
    #[serde(
        default,
        skip_serializing_if = "VolumeTables::is_empty",
        deserialize_with = "volume_tables::at_end"
    )]
    pub volumes: VolumeTables,
}

impl ClusterMap {
    /// A pool by name.
    pub fn pool_named(&self, name: &str) -> Option<&Pool> {
        self.pools.values().find(|p| p.name == name)
    }

    /// The complete copies of a group below which writes to a pool wait: with so many, no byte that is written is lost with one fewer nodes.
    pub fn copies_min(&self, pool: PoolId) -> u8 {
        self.volumes.copies_min.get(&pool).copied().unwrap_or(1)
    }

    /// The nodes that may hold buckets.
    pub fn homes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values().filter(|node| node.is_home())
    }

    /// The nodes that may hold buckets of a pool: those that have its medium.
    pub fn homes_of(&self, pool: &Pool) -> impl Iterator<Item = &Node> {
        let on_disk = pool.medium == Medium::Disk;
        self.homes()
            .filter(move |node| !on_disk || node.disk_bytes > 0)
    }

    /// The groups of a pool, in bucket order.
    pub fn groups_of(&self, pool: &Pool) -> impl Iterator<Item = &Group> {
        pool.groups.iter().filter_map(|id| self.groups.get(id))
    }

    /// A region by name, with its pool.
    pub fn region_named(&self, name: &str) -> Option<(&Pool, &Region)> {
        self.regions().find(|(_, region)| region.name == name)
    }

    /// A region by id, with its pool.
    pub fn region(&self, id: RegionId) -> Option<(&Pool, &Region)> {
        self.regions().find(|(_, region)| region.id == id)
    }

    /// The region that a group belongs to.
    pub fn region_of(&self, group: GroupId) -> Option<&Region> {
        let mut regions = self.regions().map(|(_, region)| region);
        regions.find(|region| region.stretches.iter().any(|s| s.contains(group)))
    }

    /// The image that a region is; `None` for one that is neither a copy nor being deleted for the sake of its copies.
    pub fn image(&self, id: RegionId) -> Option<&Image> {
        self.volumes.images.get(&id)
    }

    /// The number of a region in its buckets.
    pub fn image_number(&self, id: RegionId) -> u32 {
        self.image(id).map_or(0, |image| image.number)
    }

    /// True if a region is neither a copy that is being made, nor being deleted.
    pub fn is_in_use(&self, id: RegionId) -> bool {
        let image = self.image(id);
        image.is_none_or(|image| image.state == ImageState::Ready)
    }

    /// True while the buckets give back what a volume holds.
    pub fn is_deleted(&self, id: RegionId) -> bool {
        let image = self.image(id);
        image.is_some_and(|image| image.state == ImageState::Deleting)
    }

    /// True while the buckets of a volume are being told of a copy of it.
    pub fn is_copied(&self, id: RegionId) -> bool {
        let mut images = self.volumes.images.values();
        images.any(|image| image.of == id && image.is_copying())
    }

    /// All regions, by pool.
    pub fn regions(&self) -> impl Iterator<Item = (&Pool, &Region)> {
        let in_pool = |pool| Pool::regions(pool).iter().map(move |region| (pool, region));
        self.pools.values().flat_map(in_pool)
    }

    /// The node that a member stands on.
    pub fn node_of(&self, x: &Member) -> Option<&Node> {
        self.nodes.get(&x.id.node)
    }

    /// True if this life of this node is believed to run.
    pub fn is_up(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.nodes
            .get(&node)
            .is_some_and(|n| n.state == NodeState::Up && n.incarnation == incarnation)
    }

    /// True if the process of a member is believed to run.
    pub fn runs(&self, id: MemberId) -> bool {
        self.is_up(id.node, id.incarnation)
    }

    /// The group that owns a hash slot of a pool.
    pub fn group_of(&self, pool: PoolId, slot: HashSlot) -> Option<&Group> {
        let pool = self.pools.get(&pool)?;
        let id = pool.groups.get(pool.bucket_of(slot))?;
        self.groups.get(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheme::hash_slot;

    /// All ways of losing so many nodes, looked at one by one.
    #[test]
    fn what_is_tolerated_is_counted_in_nodes() {
        let mut dice = crate::testing::Dice(3);
        let mut seen = [0; 4];
        for _ in 0..2000 {
            let (m, nodes) = (2 + dice.below(3) as u8, 2 + dice.below(6));
            let mut holders: Vec<(MemberSlot, MemberId)> = Vec::new();
            for slot in 0..m + 3 {
                let node = MemberId::new(NodeId(1 + dice.below(nodes)), Incarnation(1));
                let held = |id| holders.iter().any(|(_, n)| *n == id);
                let id = if held(node) { node.second() } else { node };
                if !held(id) && dice.below(8) > 0 {
                    holders.push((MemberSlot(slot), id));
                }
            }
            let left = |gone: u64| {
                let stays = |(_, x): &&(MemberSlot, MemberId)| gone >> x.node.0 & 1 == 0;
                holders.iter().filter(stays).count()
            };
            let bears = |t: u32| {
                let mut sets = (0..2u64 << nodes).filter(|gone| gone.count_ones() == t);
                sets.all(|gone| left(gone) >= usize::from(m))
            };
            let most = (0..10).take_while(|t| bears(*t)).last();
            let told = nodes_to_spare(m, holders.iter().copied());
            assert_eq!(told.map(u32::from), most, "{m}: {holders:?}");
            seen[told.map_or(3, usize::from)] += 1;
        }
        assert!(seen.iter().all(|n| *n > 20), "{seen:?}");
    }

    /// A bucket that moves lies on two nodes: it is counted where fewer lie.
    #[test]
    fn a_twin_on_a_node_of_its_own_raises_what_is_tolerated() {
        let on = |slots: &[(u8, u64)]| {
            let one = Incarnation(1);
            let holders = slots
                .iter()
                .map(|(s, n)| (MemberSlot(*s), crate::testing::member_on(*n, one)));
            nodes_to_spare(2, holders)
        };
        let second = crate::testing::second(1);
        let twin = crate::scheme::twin(2, MemberSlot(1)).0;
        assert_eq!(on(&[(0, 1), (1, second), (2, 2)]), Some(0));
        assert_eq!(on(&[(0, 1), (1, second), (2, 2), (twin, 3)]), Some(1));
        assert_eq!(on(&[(0, 1), (1, 3), (2, 2), (twin, second)]), Some(1));
    }

    /// Row D2: which bucket a key is in never changes; which node holds the bucket is the map's.
    #[test]
    fn keys_keep_their_bucket_while_buckets_change_their_nodes() {
        let group = |id: u32, node: u64| Group {
            id: GroupId(id),
            pool: PoolId(1),
            bucket: id,
            m: 1,
            epoch: Epoch(1),
            open: true,
            coordinator: MemberSlot(0),
            members: vec![Some(Member {
                id: MemberId::new(NodeId(node), Incarnation(1)),
                complete: true,
            })],
            kept: vec![None],
            fresh: false,
            last_open: LastOpen::default(),
            lost: false,
            revision: Revision(1),
        };
        let pool = Pool {
            id: PoolId(1),
            name: "cache".into(),
            kind: PoolKind::Cache,
            scheme: Scheme { m: 1, k: 0 },
            medium: Medium::Ram,
            node_budget_bytes: 0,
            groups: (0..16).map(GroupId).collect(),
            may_start_empty: true,
        };
        let mut map = ClusterMap::default();
        map.groups = (0..16).map(|id| (GroupId(id), group(id, 1))).collect();
        map.pools.insert(PoolId(1), pool);
        let keys: Vec<String> = (0..1000).map(|i| format!("key:{i}")).collect();
        let bucket_of = |map: &ClusterMap, key: &String| {
            let group = map.group_of(PoolId(1), hash_slot(key.as_bytes()));
            group.map(|g| (g.id, g.members[0].map(|x| x.id.node)))
        };
        let before: Vec<_> = keys.iter().map(|k| bucket_of(&map, k)).collect();
        map.groups.insert(GroupId(3), group(3, 2));
        for (key, before) in keys.iter().zip(before) {
            let (Some((was, _)), Some((is, node))) = (before, bucket_of(&map, key)) else {
                panic!("{key} is in no bucket");
            };
            assert_eq!(was, is, "{key}");
            assert_eq!(
                node,
                Some(NodeId(if is == GroupId(3) { 2 } else { 1 })),
                "{key}"
            );
        }
    }
}
