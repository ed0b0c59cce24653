//! Drains that cost copies: no node that is left could take them.

use std::fmt;

use super::with_medium;
use crate::ids::NodeId;
use crate::map::{ClusterMap, Group, Medium, Pool};
use crate::scheme::Scheme;
use crate::units::count;

/// The buckets of a pool that would have fewer copies than its scheme says, since each node that is left and may hold
/// them has one already.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FewerCopies {
    /// The number of these buckets.
    pub buckets: usize,
    /// The pool.
    pub pool: String,
    /// Its scheme.
    pub scheme: Scheme,
    /// Its medium.
    pub medium: Medium,
    /// The nodes that are left and may hold its buckets.
    pub homes: usize,
}

impl FewerCopies {
    /// The first pool with such buckets, on a map in which the node drains already. Of groups with several data buckets
    /// none: a member of theirs stays until another node has its bucket.
    pub(super) fn after(map: &ClusterMap, node: NodeId) -> Option<FewerCopies> {
        map.pools.values().find_map(|pool| {
            let homes = map.homes_of(pool).count();
            let loses = |group: &&Group| {
                let wanted = copies_wanted(pool, group);
                group.m == 1 && !group.lost && group.lists(node) && homes < wanted
            };
            let buckets = map.groups_of(pool).filter(loses).count();
            (buckets > 0).then(|| FewerCopies {
                buckets,
                pool: pool.name.clone(),
                scheme: pool.scheme,
                medium: pool.medium,
                homes,
            })
        })
    }
}

/// The copies that a group is to have: what is being loaded has the others later.
fn copies_wanted(pool: &Pool, group: &Group) -> usize {
    match pool.is_loading(group.id) {
        true => group.m.into(),
        false => pool.scheme.width(),
    }
}

impl fmt::Display for FewerCopies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pool, scheme, with) = (&self.pool, self.scheme, with_medium(self.medium));
        let left = match self.homes {
            0 => format!("no node{with} would be left"),
            1 => format!("1 node{with} would be left"),
            n if self.medium == Medium::Disk => format!("{n} nodes with disks would be left"),
            n => format!("{n} nodes would be left"),
        };
        write!(
            f,
            "{} of pool '{pool}' ({scheme}) would stay with fewer copies, because each is to be on {} and {left}: add or \
             resume a node{with}, or keep fewer copies ('staves pool set {pool} --scheme')",
            count(self.buckets, "bucket"),
            count(scheme.width(), "node"),
        )
    }
}
