//! One files pool of this node: its blocks, and what this node is to its buckets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use staves_directory::Life;
use staves_model::mutant::{Mutant, planted};
use staves_model::{Holdings, PoolId, Revision};
use staves_store::blocks::{BLOCK_BYTES, BlockKey, Blocks, Copies, Listed, Miss, PART_BYTES};
use staves_wire::files::{FileId, FileKey};

use super::fetch::Flights;
use super::pins::{self, Pinned};
use super::returned::Returned;

/// One pool.
pub struct FilesPool {
    /// Its id.
    pub id: PoolId,
    /// The blocks that are here.
    pub blocks: Blocks,
    pub(super) flights: Flights,
    pub(super) sorted: Mutex<Sorted>,
    pub(super) returned: Mutex<Returned>,
    pub(super) pinned: Mutex<Pinned>,
    pub(super) budget_bytes: AtomicU64,
    /// Counted since the start.
    pub counts: Counts,
}

/// The holdings by which blocks were last divided into spare copies and last ones.
pub(super) struct Sorted {
    /// `None` before that was done first.
    pub(super) revision: Option<Revision>,
    /// By bucket.
    pub(super) roles: Vec<Role>,
}

/// The role of this node for a bucket.
#[derive(Clone, Copy, Default)]
pub(super) struct Role {
    pub(super) holder: bool,
    pub(super) home: bool,
}

/// The counters since the start.
#[derive(Debug, Default)]
pub struct Counts {
    /// Bytes that readers asked the home for and were not there.
    pub asked_bytes: AtomicU64,
    /// Bytes read from sources.
    pub fetched_bytes: AtomicU64,
    /// The blocks among them that no reader had asked for: readahead.
    pub ahead_bytes: AtomicU64,
    /// Those of them that were in the memory of a node that is gone.
    pub again_bytes: AtomicU64,
    /// Reads from sources.
    pub fetches: AtomicU64,
    /// Reads answered from memory.
    pub hits: AtomicU64,
    /// Bytes whose checksums were compared without a reader.
    pub scrubbed_bytes: AtomicU64,
    /// Not a sum: blocks that this node remembers of another.
    pub remembered_blocks: AtomicU64,
    /// The same: bytes of the parts that those have, as it was told.
    pub remembered_bytes: AtomicU64,
}

impl Role {
    pub(super) fn of(life: Life, holdings: &Holdings, bucket: u32) -> Role {
        Role {
            holder: holdings
                .place(bucket, life.node, life.incarnation)
                .is_some(),
            home: pins::is_home(holdings, bucket, life),
        }
    }
}

impl FilesPool {
    pub(super) fn new(
        id: PoolId,
        buckets: u32,
        memory_bytes: Option<u64>,
        budget_bytes: u64,
    ) -> Option<Arc<FilesPool>> {
        let most = memory_bytes.unwrap_or(budget_bytes).max(budget_bytes);
        match Blocks::new(most, buckets) {
            Ok(blocks) => Some(Arc::new(FilesPool {
                id,
                blocks,
                flights: Flights::default(),
                sorted: Mutex::new(Sorted {
                    revision: None,
                    roles: vec![Role::default(); buckets as usize],
                }),
                returned: Mutex::default(),
                pinned: Mutex::default(),
                budget_bytes: AtomicU64::new(most),
                counts: Counts::default(),
            })),
            Err(error) => {
                tracing::error!(pool = %id, %error, "no memory for blocks of files: this node holds none");
                None
            }
        }
    }

    pub(super) fn set_budget(&self, bytes: u64) {
        if self.budget_bytes.swap(bytes, Ordering::Relaxed) != bytes
            && let Err(error) = self.blocks.set_limit(bytes)
        {
            tracing::warn!(pool = %self.id, %error, "the pool keeps more than its new budget");
        }
    }

    /// Bytes of blocks that are there.
    pub fn used_bytes(&self) -> u64 {
        let figures = self.blocks.figures();
        (figures.frames_spare + figures.frames_last) as u64 * PART_BYTES as u64
    }

    /// Bytes of blocks that may be there.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes.load(Ordering::Relaxed)
    }

    /// Tells spare copies from last ones, where holders have changed, and lets go of what is of no bucket of this
    /// node any more. No two threads at once.
    pub(super) fn sort(&self, life: Life, holdings: &Holdings) {
        let mut pinned = self.pinned.lock();
        if pinned.follow(holdings) {
            let stay = pinned.ids();
            drop(pinned);
            for bucket in 0..self.blocks.buckets() {
                let stays = |key: BlockKey| stay.contains(&file_of(key));
                self.blocks.pin_where(bucket, false, |key| !stays(key));
            }
        } else {
            drop(pinned);
        }
        if self.sorted.lock().revision.replace(holdings.revision) == Some(holdings.revision) {
            return;
        }
        for bucket in 0..self.blocks.buckets() {
            let now = Role::of(life, holdings, bucket);
            let was = self.sorted.lock().roles[bucket as usize];
            // What is being copied is not listed yet, and stays.
            if was.holder && !now.holder {
                self.blocks.drop_bucket(bucket);
            } else if was.home && !now.home {
                self.blocks.pin_where(bucket, false, |_| true);
            }
            self.blocks
                .set_copies(bucket, copies(holdings, bucket, life));
            self.sorted.lock().roles[bucket as usize] = now;
        }
    }

    /// Buckets that are not this node's any more, by the newest map, and whose blocks may be here still: they go soon, and with them
    /// whatever comes in.
    pub(super) fn going(&self, life: Life, holdings: &Holdings) -> Vec<u32> {
        let sorted = self.sorted.lock();
        let held = (0..).zip(&sorted.roles).filter(|(_, was)| was.holder);
        let gone = held.filter(|(bucket, _)| !Role::of(life, holdings, *bucket).holder);
        gone.map(|(bucket, _)| bucket).collect()
    }

    /// Bytes of a file, if all are there.
    pub(super) fn get(&self, file: FileId, from: u64, len: usize, moment: u32) -> Option<Bytes> {
        let mut bytes = BytesMut::zeroed(len);
        let mut done = 0;
        while done < len {
            let (key, within) = block_at(file, from + done as u64)?;
            let part = (len - done).min(BLOCK_BYTES - within);
            let into = &mut bytes[done..done + part];
            match self.blocks.read(key, within, into, moment) {
                Ok(()) => done += part,
                Err(Miss::Absent) => return None,
                Err(Miss::Damaged) => {
                    tracing::error!(
                        pool = %self.id, ?key,
                        "a block in memory is not what came in: dropped, to be fetched again; if this comes again, test this machine's memory"
                    );
                    return None;
                }
            }
        }
        Some(bytes.freeze())
    }

    /// Puts whole parts in. What does not fit is left out.
    pub(super) fn keep(&self, file: FileId, size: u64, from: u64, bytes: &[u8], moment: u32) {
        for (i, part) in bytes.chunks(PART_BYTES).enumerate() {
            let at = from + (i * PART_BYTES) as u64;
            let Some((key, within)) = block_at(file, at) else {
                return;
            };
            let block_bytes = (size - (at - within as u64)).min(BLOCK_BYTES as u64) as usize;
            let put = self
                .blocks
                .put(key, block_bytes, within / PART_BYTES, part, moment);
            if let Err(error) = put {
                tracing::debug!(pool = %self.id, %error, "bytes are not kept");
                return;
            }
        }
    }
}

/// The block that holds an offset, and where in it.
pub(super) fn block_at(file: FileId, at: u64) -> Option<(BlockKey, usize)> {
    let key = BlockKey {
        file: [file.high, file.low],
        block: u32::try_from(at / BLOCK_BYTES as u64).ok()?,
    };
    Some((key, (at % BLOCK_BYTES as u64) as usize))
}

pub(super) fn file_of(key: BlockKey) -> FileId {
    let [high, low] = key.file;
    FileId { high, low }
}

pub(super) fn key_of(block: Listed) -> FileKey {
    FileKey {
        file: file_of(block.key),
        block: block.key.block,
        bytes: block.bytes,
        parts: block.parts,
    }
}

pub(super) fn bucket_of(holdings: &Holdings, file: FileId, at: u64) -> u32 {
    let block = (at / BLOCK_BYTES as u64) as u32;
    holdings.bucket_of([file.high, file.low], block)
}

/// Of those that hold a bucket, its home alone keeps its blocks as last copies: if all others took theirs for spare and it did too,
/// all would give up the same ones first.
fn copies(holdings: &Holdings, bucket: u32, life: Life) -> Copies {
    match holdings.home(bucket) {
        Some(_) if planted(Mutant::AllCopiesSpare) => Copies::Spare,
        Some(home) if home.node != life.node => Copies::Spare,
        _ => Copies::Last,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_model::{ClusterId, Holder, Incarnation, NodeId};

    /// Of all holders of a bucket one alone gives its blocks up last.
    #[test]
    fn a_buckets_home_alone_keeps_last_copies() {
        let holder = |node: u64, leaving| Holder {
            node: NodeId(node),
            incarnation: Incarnation(node),
            leaving,
        };
        let buckets = vec![
            vec![holder(1, false), holder(2, false), holder(3, false)],
            vec![holder(1, true), holder(2, false)],
            vec![holder(1, true)],
            vec![],
        ];
        let holdings = Holdings {
            buckets,
            ..Holdings::default()
        };
        let last = |node: u64, bucket: u32| {
            let life = Life {
                cluster: ClusterId(1),
                node: NodeId(node),
                incarnation: Incarnation(node),
            };
            copies(&holdings, bucket, life) == Copies::Last
        };
        let who = |bucket: u32| {
            (1..=3)
                .filter(|node| last(*node, bucket))
                .collect::<Vec<_>>()
        };
        assert_eq!((who(0), who(1), who(2)), (vec![1], vec![2], vec![1]));
        assert!(last(2, 3), "nobody else has it");
    }
}
