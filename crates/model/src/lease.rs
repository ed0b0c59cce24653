//! The directory leader's lease book (GROUP, promises and leases).
//!
//! A lease promises a data bucket that no successor of its answers for one lease from when it asked.
//! The book is volatile and lies at the directory's leader alone. It keeps the saying true on both
//! sides: a lease goes only to who will not be succeeded meanwhile, and no epoch opens before every
//! lease of somebody else in its group ran out.
//!
//! **Why nobody else's lease is missed.** A leader grants only after a quorum confirmed it *after* the
//! request came, and the holder counts from its own clock at the request. So every lease of a former
//! leader ends at most one lease after its deposition, and a new leader that opens nothing for one whole
//! lease has waited them all out. Granting meanwhile is safe: a grant asserts nothing but that *this*
//! leader opens no successor before the grant ends (it has the grant in its book), and that no former
//! leader does (it is deposed: what it opened is in the map already, and the holder is checked against
//! the map). Waiting there too would only stop reads.
//!
//! **Clocks.** The book counts a whole lease from the grant; the holder counts a shortened one from its
//! request (`time::shortened`), so it stops first at any clock rates within the bound.

mod batch;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::{Epoch, GroupId, Incarnation, MemberId, MemberSlot, NodeId};
use crate::map::{ClusterMap, Group};
use crate::mutant::{Mutant, planted};
use crate::time::Time;

pub use batch::{LeaseAnswer, LeaseBatcher, LeaseEffects, LeaseEvent, LeaseRequest};

/// The holder of a lease: a data slot of a group, and its member.
type LeaseKey = (GroupId, MemberSlot, MemberId);

/// The book. At most one entry per data bucket and holder that recently asked; expired ones are removed.
#[derive(Clone, Debug)]
pub struct Leases {
    lease: Duration,
    /// From when this directory node may open epochs; `None` while it does not lead.
    opens_from: Option<Time>,
    until: BTreeMap<LeaseKey, Time>,
    strike_at: Time,
}

impl Leases {
    /// A book for leases of this length, at a directory node that does not lead.
    pub fn new(lease: Duration) -> Leases {
        Leases {
            lease,
            opens_from: None,
            until: BTreeMap::new(),
            strike_at: Time::ZERO,
        }
    }

    /// This directory node leads from now on; it opens nothing until one whole lease has passed. What
    /// it granted in an earlier time as leader is waited out with the rest.
    pub fn become_leader(&mut self, now: Time) {
        let wait = if planted(Mutant::NewDirectoryLeaderSkipsWait) {
            Duration::ZERO
        } else {
            self.lease
        };
        self.opens_from = Some(now + wait);
        self.until.clear();
    }

    /// This directory node leads no longer: it grants nothing and opens nothing.
    pub fn lose_leadership(&mut self) {
        self.opens_from = None;
        self.until.clear();
    }

    /// Grants leases to one life of a node: of the buckets and epochs `wanted`, those that it may have.
    ///
    /// The caller MUST have had its leadership confirmed by a quorum after the request came, and MUST
    /// hand in a map no older than that confirmation.
    pub fn grant(
        &mut self,
        now: Time,
        map: &ClusterMap,
        node: NodeId,
        incarnation: Incarnation,
        wanted: &[(GroupId, Epoch)],
    ) -> Vec<(GroupId, Epoch)> {
        self.strike(now);
        // Who is declared dead gets none, so that its takeover does not wait for ever longer.
        if self.opens_from.is_none() || !map.is_up(node, incarnation) {
            return Vec::new();
        }
        let mut granted = Vec::new();
        for (id, epoch) in wanted {
            let Some(group) = map.groups.get(id) else {
                continue;
            };
            let Some(holders) = entitled_all(group, node, incarnation, *epoch) else {
                continue;
            };
            for (slot, member) in holders {
                self.until.insert((*id, slot, member), now + self.lease);
            }
            granted.push((*id, *epoch));
        }
        granted
    }

    /// True if the group's newest epoch may open: this directory node has led for one lease, and nobody
    /// holds a lease but members that the epoch retains.
    pub fn may_open(&self, now: Time, group: &Group) -> bool {
        let Some(from) = self.opens_from else {
            return false;
        };
        if now < from {
            return false;
        }
        if planted(Mutant::OpenWithoutLeaseWait) {
            return true;
        }
        self.others(group).all(|until| until <= now)
    }

    /// The time at which `may_open` is worth asking again; `None` while this directory node does not lead.
    pub fn opens_at(&self, group: &Group) -> Option<Time> {
        let from = self.opens_from?;
        Some(self.others(group).fold(from, Time::max))
    }

    /// The ends of the leases that are to be waited out: those of holders whom the group's newest epoch
    /// does not retain. Who is retained has sealed before its leader asks to open (GROUP rule 8), and a
    /// sealed member has let its lease go, whichever slot it has now.
    fn others(&self, group: &Group) -> impl Iterator<Item = Time> {
        let from = match planted(Mutant::LeasesSoughtFromTheFirstGroup) {
            true => GroupId(0),
            false => group.id,
        };
        let first = (from, MemberSlot(0), MemberId::default());
        self.until
            .range(first..)
            .take_while(|((id, ..), _)| *id == group.id)
            .filter(|((_, _, member), _)| {
                !group
                    .slot_of(*member)
                    .is_some_and(|slot| group.retained(slot))
            })
            .map(|(_, until)| *until)
    }

    /// Strikes what ran out, once a lease: so the book never holds more than two leases' requests.
    fn strike(&mut self, now: Time) {
        if now >= self.strike_at {
            self.until.retain(|_, until| *until > now);
            self.strike_at = now + self.lease;
        }
    }
}

/// The data slots for which the members in this life of a node may have a lease. A grant names group and epoch,
/// so it is for all data buckets that the node holds there, or for none.
fn entitled_all(
    group: &Group,
    node: NodeId,
    incarnation: Incarnation,
    epoch: Epoch,
) -> Option<Vec<(MemberSlot, MemberId)>> {
    let mut holders = Vec::new();
    let first = MemberId::new(node, incarnation);
    for id in [first, first.second()] {
        let stood = group.last_open.slot_of(id);
        match entitled(group, id, epoch) {
            Some(slot) => holders.push((slot, id)),
            None if stood.is_some_and(|slot| slot.0 < group.m) => return None,
            None => {}
        }
    }
    (!holders.is_empty()).then_some(holders)
}

/// The data slot for which a member may have a lease, if any: it holds the slot in the
/// last open epoch, that is the epoch it asks for, and a successor under way leaves it in place.
fn entitled(group: &Group, id: MemberId, epoch: Epoch) -> Option<MemberSlot> {
    let slot = if planted(Mutant::LeaseWithoutEpoch) {
        group.slot_of(id)?
    } else {
        if epoch != group.last_open.epoch || epoch == Epoch(0) {
            return None;
        }
        let slot = group.last_open.slot_of(id)?;
        // A claimed life is a source, and serves nothing before it is listed.
        let listed = group.slot_of(id) == Some(slot);
        let stays = group.open || group.kept.get(slot.index()) == Some(&Some(slot));
        let stays = listed && stays;
        stays.then_some(slot)?
    };
    (slot.0 < group.m).then_some(slot)
}

/// The epoch from which on members of a group, at this life of a node, have reached the directory with an
/// answer of a confirmed leader with this map (GROUP rule 13). None: the answer counts for none of them.
///
/// It does not count while the group is without enough members to go on, nor while it starts from nothing:
/// the directory waits T from when it saw the members gone, and any of them that it still answers (it was
/// declared dead, and lives) would otherwise go on beyond T. And it counts only for members that have come
/// to the last open epoch: one of a life before may not know yet that the group began anew, and its node be
/// listed already, as a joiner or for another member that it holds.
pub fn heard_from(
    map: &ClusterMap,
    group: &Group,
    node: NodeId,
    incarnation: Incarnation,
) -> Option<Epoch> {
    let begun = group.last_open.epoch > Epoch(0);
    let gone = map.complete_sources_up(group) < usize::from(group.m);
    let counts = map.is_up(node, incarnation) && !(begun && gone);
    (counts || planted(Mutant::HeardWhileGone)).then_some(group.last_open.epoch)
}

#[cfg(test)]
mod tests;
