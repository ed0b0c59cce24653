//! Placement by capacity: what a node takes on and gives up of a files pool (row D7, rules 1 to 4).
//!
//! Each node looks for itself, at the newest map and at its own memory, and proposes what it alone does. The four
//! rules, in their order:
//!
//! 1. an orphan, a bucket without a holder, is taken by any node with free memory: as many as there are;
//! 2. a bucket flagged need-to-remove is copied from its holder, then taken: one a round;
//! 3. a bucket with the fewest holders is copied into free memory: one a round;
//! 4. without free memory, a bucket that others hold too is given up in favour of 1 and 2: one a round.
//!
//! **Beyond the paper.** Orphans are shared out by budget at first (a start would give all to the node that is
//! fastest), and go to anybody when they stay orphans. Where the dataset is larger than all memory, nobody ever has
//! memory free, and an orphan must be answered for all the same: its blocks are evicted as others are. And a node that evicts last
//! copies gives up what others hold too.

use std::cmp::Reverse;
use std::time::Duration;

use crate::files::{HOLDERS_MAX, Holder, Holdings};
use crate::ids::{Incarnation, NodeId};
use crate::map::{ClusterMap, Pool};
use crate::mutant::{Mutant, planted};
use crate::time::Time;

/// The time after which an orphan is taken by any node that sees it, whatever its share.
pub const ORPHAN_MAX: Duration = Duration::from_secs(1);
/// Memory that must be free, in buckets of the usual size, before copies are made that nobody needs.
const FREE_BUCKETS: u64 = 2;

/// A node's knowledge of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Own<'a> {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
    /// Bytes that it may use for the pool.
    pub budget_bytes: u64,
    /// Bytes that it uses of each bucket, whether it is listed for it or copies it still.
    pub bucket_bytes: &'a [u64],
    /// True if it evicted blocks of which no other node has a copy since the last step.
    pub evicts_last: bool,
    /// A bucket that is being copied.
    pub copying: Option<u32>,
    /// Buckets that it gave up and whose blocks are still being let go of: what came in anew would go with them.
    pub going: &'a [u32],
    /// True if it is to give up all that it holds.
    pub draining: bool,
    /// True if memory that is free is to hold copies that nobody needs (rule 3).
    pub spreads: bool,
}

/// The next actions of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Take these at once: nobody holds them.
    pub take: Vec<u32>,
    /// Copy this from its holders, and take it then.
    pub copy: Option<u32>,
    /// Give these up: another holds each.
    pub leave: Vec<u32>,
    /// Flag these.
    pub flag: Vec<u32>,
    /// Keep these after all.
    pub unflag: Vec<u32>,
}

impl Plan {
    /// True if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        *self == Plan::default()
    }
}

/// The memory of a node between two steps.
#[derive(Clone, Debug, Default)]
pub struct Capacity {
    orphans_since: Option<Time>,
}

impl Capacity {
    /// Looks, once a round.
    pub fn step(&mut self, now: Time, map: &ClusterMap, pool: &Pool, own: &Own<'_>) -> Plan {
        let Some(holdings) = pool.holdings() else {
            return Plan::default();
        };
        let orphans = holdings.buckets.iter().any(Vec::is_empty);
        let since = match orphans {
            true => *self.orphans_since.get_or_insert(now),
            false => {
                self.orphans_since = None;
                now
            }
        };
        let decision = Decision {
            map,
            pool,
            holdings,
            own,
            for_anybody: now.since(since) >= ORPHAN_MAX && !planted(Mutant::OrphanKeptForItsShare),
        };
        decision.plan()
    }
}

struct Decision<'a> {
    map: &'a ClusterMap,
    pool: &'a Pool,
    holdings: &'a Holdings,
    own: &'a Own<'a>,
    for_anybody: bool,
}

impl Decision<'_> {
    fn buckets(&self) -> impl Iterator<Item = u32> + '_ {
        0..self.holdings.buckets.len() as u32
    }

    fn mine(&self, bucket: u32) -> bool {
        let own = self.own;
        let place = self.holdings.place(bucket, own.node, own.incarnation);
        place.is_some()
    }

    /// Others that hold a bucket and mean to go on.
    fn others(&self, bucket: u32) -> usize {
        let own = self.own;
        let stays = |h: &Holder| !h.leaving || planted(Mutant::FlaggedTakenAsStaying);
        let other = |h: &&Holder| stays(h) && !h.is(own.node, own.incarnation);
        self.holdings.holders(bucket).iter().filter(other).count()
    }

    /// True if it can be copied now, and is not here already.
    fn can_come(&self, bucket: u32) -> bool {
        !self.mine(bucket) && !self.own.going.contains(&bucket)
    }

    fn flagged(&self, bucket: u32, mine: bool) -> bool {
        let own = self.own;
        let mut holders = self.holdings.holders(bucket).iter();
        holders.any(|h| h.leaving && h.is(own.node, own.incarnation) == mine)
    }

    /// The mean size of the buckets that this node has; 0 if it has none yet.
    fn usual_bytes(&self) -> u64 {
        let held = self.own.bucket_bytes.iter().filter(|bytes| **bytes > 0);
        let (count, sum) = held.fold((0, 0), |(n, sum), bytes| (n + 1, sum + bytes));
        sum.checked_div(count).unwrap_or(0)
    }

    fn free_bytes(&self) -> u64 {
        let used: u64 = self.own.bucket_bytes.iter().sum();
        self.own.budget_bytes.saturating_sub(used)
    }

    fn plan(&self) -> Plan {
        if self.own.draining {
            return self.go();
        }
        let mut plan = Plan {
            unflag: self
                .buckets()
                .filter(|b| self.flagged(*b, true) && self.others(*b) == 0)
                .collect(),
            take: self.orphans(),
            ..Plan::default()
        };
        if self.own.copying.is_some() {
            return plan;
        }
        let wanted = self.flagged_elsewhere();
        let room = self.free_bytes() >= self.usual_bytes() * FREE_BUCKETS;
        let short = !room && (wanted.is_some() || !plan.take.is_empty());
        if short || self.own.evicts_last {
            plan.leave.extend(self.spare());
        }
        let may_spread = self.own.spreads && room && plan.take.is_empty() && plan.leave.is_empty();
        if wanted.is_some() && !(may_spread && planted(Mutant::SpreadBeforeFlagged)) {
            plan.copy = wanted.filter(|_| room || plan.leave.is_empty());
        } else if may_spread {
            plan.copy = self.fewest_holders();
        }
        plan
    }

    /// A node that drains: flags all, and gives up what others hold.
    fn go(&self) -> Plan {
        let (mut leave, mut flag) = (Vec::new(), Vec::new());
        for bucket in self.buckets().filter(|b| self.mine(*b)) {
            if self.others(bucket) > 0 || planted(Mutant::DrainLeavesTheLastCopy) {
                leave.push(bucket);
            } else if !self.flagged(bucket, true) {
                flag.push(bucket);
            }
        }
        Plan {
            leave,
            flag,
            ..Plan::default()
        }
    }

    /// Rule 1.
    fn orphans(&self) -> Vec<u32> {
        let holders = |b: &u32| self.holdings.holders(*b).len();
        let orphans: Vec<u32> = self.buckets().filter(|b| holders(b) == 0).collect();
        if self.for_anybody {
            return orphans;
        }
        let mine = |bucket: &u32| self.whose(*bucket) == Some(self.own.node);
        orphans.into_iter().filter(mine).collect()
    }

    /// The node whose share a bucket is: by lot, weighted by budget.
    fn whose(&self, bucket: u32) -> Option<NodeId> {
        let lot = |node: &crate::map::Node| {
            let budget = match planted(Mutant::SharesOfOneSize) {
                true => 1,
                false => node.memory_bytes.min(self.pool.node_budget_bytes).max(1),
            };
            // Of exponential lots with these rates each is the smallest as often as its rate has it.
            -unit(
                node.id.0,
                u64::from(self.pool.id.0) << 32 | u64::from(bucket),
            )
            .ln()
                / budget as f64
        };
        let lots = self.map.homes().map(|node| (lot(node), node.id));
        lots.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, id)| id)
    }

    /// Rule 2: the flagged bucket that is most this node's to take.
    fn flagged_elsewhere(&self) -> Option<u32> {
        let wanted = |b: &u32| self.can_come(*b) && self.flagged(*b, false) && self.others(*b) == 0;
        self.first_of_all(self.buckets().filter(wanted))
    }

    /// Rule 3: of the buckets that a holder means to keep.
    fn fewest_holders(&self) -> Option<u32> {
        let able = |b: &u32| {
            let has_room = self.holdings.holders(*b).len() < HOLDERS_MAX;
            self.can_come(*b) && self.others(*b) > 0 && has_room
        };
        let fewest = self.buckets().filter(able).map(|b| self.others(b)).min()?;
        let any = planted(Mutant::AnyBucketSpread);
        let few = |b: &u32| able(b) && (any || self.others(*b) == fewest);
        self.first_of_all(self.buckets().filter(few))
    }

    /// Rule 4: a bucket that others hold too, the most copied first.
    fn spare(&self) -> Vec<u32> {
        let spare = |b: &u32| self.mine(*b) && self.others(*b) > 0;
        let mut spare: Vec<u32> = self.buckets().filter(spare).collect();
        spare.sort_by_key(|b| (Reverse(self.others(*b)), Reverse(self.lot(*b))));
        if !planted(Mutant::AllSparesLeftAtOnce) {
            spare.truncate(1);
        }
        spare
    }

    /// In an order of this node's own, so that two nodes seldom want the same.
    fn first_of_all(&self, buckets: impl Iterator<Item = u32>) -> Option<u32> {
        buckets.min_by_key(|b| self.lot(*b))
    }

    fn lot(&self, bucket: u32) -> u64 {
        unit(self.own.node.0, u64::from(bucket)).to_bits()
    }
}

/// A number in (0, 1] that rests on these two alone.
fn unit(a: u64, b: u64) -> f64 {
    let mut x = a.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(b);
    for _ in 0..2 {
        x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    }
    ((x >> 11) + 1) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests;
