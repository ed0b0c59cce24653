//! Buckets of a files pool: which nodes hold them, and the datasets whose blocks are in them (rows D2, D3).
//!
//! A bucket is a set of holders, one of them its home. There is no group behind it: a block never changes under its
//! key and can be read again from its source. So holders come and go one by one, each by its own proposal.

use serde::{Deserialize, Serialize};

use crate::ids::{Incarnation, NodeId, Revision};
use crate::map::{ClusterMap, Pool, PoolKind};

/// Blocks of a file that lie in one bucket together: 1 MiB, what object stores like to give at once.
pub const STRETCH_BLOCKS: u32 = 4;
/// Most holders of a bucket.
pub const HOLDERS_MAX: usize = 16;
/// Most datasets of all pools.
pub const DATASETS_MAX: usize = 1024;
/// Most files of all pools that are pinned: every node has the list.
pub const PINS_MAX: usize = 1024;
/// Longest path and version of a pinned file, in bytes.
pub const PIN_TEXT_BYTES_MAX: usize = 4096;
/// Of a pool's memory, so much may be pinned, in percent: blocks are spread over nodes by lot, and what is not pinned needs
/// some room too.
pub const PINNED_PERCENT_MAX: u64 = 75;
/// Bytes of a part of a file, the least that takes memory.
const PART_BYTES: u64 = 8 << 10;
/// Longest address of a source, in bytes.
pub const SOURCE_BYTES_MAX: usize = 4096;

/// A node that holds a bucket: it has all that it was given of it since it is listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Holder {
    /// The node.
    pub node: NodeId,
    /// The life of it: memory does not outlive one.
    pub incarnation: Incarnation,
    /// It wants to give the bucket up, once another holds it (need-to-remove).
    pub leaving: bool,
}

impl Holder {
    /// True if this is that life of that node.
    pub fn is(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.node == node && self.incarnation == incarnation
    }
}

/// A dataset: files of one source under one name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Dataset {
    /// Its name, unique among the datasets of all pools.
    pub name: String,
    /// Its source: a folder's path, or an address of an object store or of an HTTP server.
    pub source: String,
}

/// A version of a file that is to stay in memory: its blocks are not evicted, and come back when they are lost.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pin {
    /// The dataset's name.
    pub dataset: String,
    /// The file's path in it, as its source has it.
    pub path: Vec<u8>,
    /// Its bytes.
    pub size: u64,
    /// The version's name, as its source gives it.
    pub version: String,
}

/// The holdings of a files pool, as the directory knows them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Holdings {
    /// By bucket: its holders. The first that is not leaving, if there is one, is its home.
    pub buckets: Vec<Vec<Holder>>,
    /// The datasets, by name.
    pub datasets: Vec<Dataset>,
    /// The map's revision when a holder last came or went.
    pub revision: Revision,
    /// Files that are to stay, by dataset and path.
    pub pins: Vec<Pin>,
}

/// The bucket of a block, by the digest of its file's version, in a pool of so many buckets; the same for the blocks of a
/// stretch. It never changes while the pool is there.
///
/// # Panics
/// If there are no buckets: a files pool has some.
pub fn bucket_of(file: [u64; 2], block: u32, buckets: u32) -> u32 {
    assert!(buckets > 0, "a files pool has buckets");
    let mix = |x: u64| {
        let x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        x ^ (x >> 32)
    };
    let stretch = u64::from(block / STRETCH_BLOCKS);
    let x = mix(mix(file[0] ^ file[1].rotate_left(23)).wrapping_add(stretch));
    ((u128::from(x) * u128::from(buckets)) >> 64) as u32
}

impl Holdings {
    /// The holder that fetches missing blocks of a bucket, and gives them to the others.
    pub fn home(&self, bucket: u32) -> Option<&Holder> {
        let holders = self.buckets.get(bucket as usize)?;
        holders.iter().find(|h| !h.leaving).or(holders.first())
    }

    /// The holders of a bucket.
    pub fn holders(&self, bucket: u32) -> &[Holder] {
        self.buckets.get(bucket as usize).map_or(&[], Vec::as_slice)
    }

    /// The place of a node among the holders of a bucket.
    pub fn place(&self, bucket: u32, node: NodeId, incarnation: Incarnation) -> Option<usize> {
        self.holders(bucket)
            .iter()
            .position(|h| h.is(node, incarnation))
    }

    /// The bucket of a block: [`bucket_of`].
    pub fn bucket_of(&self, file: [u64; 2], block: u32) -> u32 {
        bucket_of(file, block, self.buckets.len() as u32)
    }

    /// Memory that pinned files take, in bytes: whole parts.
    pub fn pinned_bytes(&self) -> u64 {
        let bytes = self.pins.iter().map(Pin::bytes);
        bytes.fold(0, u64::saturating_add)
    }

    /// Strikes all that a node holds, but for what this life of it holds. Whether there was anything.
    pub(crate) fn strike(&mut self, node: NodeId, but: Option<Incarnation>) -> bool {
        let mut any = false;
        for holders in &mut self.buckets {
            let were = holders.len();
            holders.retain(|h| h.node != node || Some(h.incarnation) == but);
            any |= holders.len() != were;
        }
        any
    }
}

impl Pin {
    /// Memory that it takes: whole parts.
    pub fn bytes(&self) -> u64 {
        self.size
            .checked_next_multiple_of(PART_BYTES)
            .unwrap_or(u64::MAX)
    }
}

impl Pool {
    /// Its holdings, if it is a files pool.
    pub fn holdings(&self) -> Option<&Holdings> {
        match &self.kind {
            PoolKind::Files(holdings) => Some(holdings),
            _ => None,
        }
    }
}

impl ClusterMap {
    /// Bytes of a pool's memory that may be pinned, with the nodes that are up and stay.
    pub fn pin_room(&self, pool: &Pool) -> u64 {
        // A node may report any amount.
        let memory = self
            .homes()
            .map(|n| n.memory_bytes.min(pool.node_budget_bytes))
            .fold(0, u64::saturating_add);
        let most = u128::from(memory) * u128::from(PINNED_PERCENT_MAX) / 100;
        most as u64 / PART_BYTES * PART_BYTES
    }

    /// A dataset by name, with its pool.
    pub fn dataset(&self, name: &str) -> Option<(&Pool, &Dataset)> {
        let of = |pool| Pool::holdings(pool).map(|h| (pool, &h.datasets));
        let mut all = self.pools.values().filter_map(of);
        all.find_map(|(pool, all)| Some((pool, all.iter().find(|d| d.name == name)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row D2: blocks are spread evenly, and a block's bucket rests on its key alone.
    #[test]
    fn d2_blocks_are_spread_evenly_and_stretches_stay_together() {
        let holdings = Holdings {
            buckets: vec![Vec::new(); 64],
            ..Holdings::default()
        };
        let mut counts = [0u32; 64];
        for file in 0..50u64 {
            for stretch in 0..128 {
                let of = |i| holdings.bucket_of([file, 7], stretch * STRETCH_BLOCKS + i);
                assert!((1..STRETCH_BLOCKS).all(|i| of(i) == of(0)));
                counts[of(0) as usize] += 1;
            }
        }
        assert!(counts.iter().all(|c| (60..150).contains(c)), "{counts:?}");
    }
}
