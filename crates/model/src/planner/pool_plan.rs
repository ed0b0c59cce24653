//! The ring's choice of nodes for each bucket of a pool.

use crate::ids::NodeId;
use crate::map::{Group, Pool};
use crate::ring::Ring;

/// The nodes of a pool's buckets, as long as neither ring nor pool change.
#[derive(Clone, Debug)]
pub(super) struct PoolPlan {
    pub(super) pool: Pool,
    /// Per bucket: the nodes that should hold it, then all others in the order of preference.
    choices: Vec<Vec<NodeId>>,
}

impl PoolPlan {
    pub(super) fn order_of(&self, group: &Group) -> &[NodeId] {
        let order = self.choices.get(group.bucket as usize);
        order.map_or(&[][..], Vec::as_slice)
    }

    pub(super) fn of(ring: &Ring, pool: &Pool) -> PoolPlan {
        let mut choices = ring.plan(pool);
        for (bucket, choice) in choices.iter_mut().enumerate() {
            let others = ring.preference(pool, bucket as u32);
            let others: Vec<_> = others.into_iter().filter(|n| !choice.contains(n)).collect();
            choice.extend(others);
        }
        PoolPlan {
            pool: pool.clone(),
            choices,
        }
    }
}
