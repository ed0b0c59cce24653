//! Buckets of m > 1 go on to nodes that hold far fewer (row X2): a node that joins gets its share.
//!
//! With m = 1 the ring places each bucket. With m > 1 a bucket stays where it was made, since to move it
//! means to copy its bytes; so only what is far out of balance is moved, by twins, one bucket in the whole cluster at a
//! time, and only while nothing else is to be done.

use std::collections::BTreeMap;

use super::plan::{EpochSeat, View, seat};
use crate::ids::{MemberId, MemberSlot, NodeId, PoolId};
use crate::map::{ClusterMap, Member};
use crate::scheme::twin;

/// A node that holds so many buckets of a pool more than another, and a quarter of its own, gives one up. After that
/// it does not hold fewer than the other, so that nothing moves back and forth.
const BUCKETS_MORE: usize = 2;
const PART_MORE: usize = 4;

/// The number of buckets of each pool with m > 1 that each node holds. Twins do not count: they take a place or go.
#[derive(Clone, Debug, Default)]
pub(super) struct Load {
    buckets: BTreeMap<(PoolId, NodeId), usize>,
}

impl Load {
    pub(super) fn of(map: &ClusterMap) -> Load {
        let mut buckets = BTreeMap::new();
        for group in map.groups.values().filter(|group| group.m > 1) {
            let own = |(slot, _): &(MemberSlot, &Member)| group.bucket_slot(*slot) == *slot;
            for (_, member) in group.listed().filter(own) {
                *buckets.entry((group.pool, member.id.node)).or_default() += 1;
            }
        }
        Load { buckets }
    }

    fn on(&self, pool: PoolId, node: NodeId) -> usize {
        self.buckets.get(&(pool, node)).copied().unwrap_or(0)
    }
}

impl View<'_> {
    fn load(&self, node: NodeId) -> usize {
        self.load.on(self.group.pool, node)
    }

    /// True if a bucket should go on from the one node to the other, which holds far fewer.
    pub(super) fn is_lighter(&self, from: NodeId, to: NodeId) -> bool {
        self.load(from) >= self.load(to) + BUCKETS_MORE
    }

    /// A twin for the member on the fullest node, on the emptiest one without a part in the group, if they are far
    /// apart. Whether there was such a pair.
    pub(super) fn spread(
        &self,
        members: &[(MemberSlot, Member)],
        seats: &mut Vec<Option<EpochSeat>>,
    ) -> bool {
        // What is loaded is written once, and not to a twin as well.
        if self.pool.is_loading(self.group.id) {
            return false;
        }
        let fullest = members
            .iter()
            .max_by_key(|(slot, x)| (self.load(x.id.node), *slot));
        let taken: Vec<EpochSeat> = members.iter().map(seat).collect();
        let emptiest = |id: &MemberId| self.load(id.node);
        let (Some((slot, x)), Some(to)) = (fullest, self.joiners(&taken).min_by_key(emptiest))
        else {
            return false;
        };
        let more = self.load(x.id.node).saturating_sub(self.load(to.node));
        if more < BUCKETS_MORE || more * PART_MORE < self.load(x.id.node) {
            return false;
        }
        let at = twin(self.group.m, *slot).index();
        seats.resize(seats.len().max(at + 1), None);
        seats[at] = Some((to, None));
        true
    }
}
