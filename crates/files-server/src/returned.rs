//! Gives back the blocks that this node still has, when it was taken for dead and is not.
//!
//! A node that stood still for a moment loses all its buckets, and others take them with nothing in them. Its neighbour
//! has the blocks fetched again from the source (`recovery.rs`), as far as that is there. But they are still here: before they are
//! dropped, each bucket's new home reports the blocks that it lacks, and receives them.
//!
//! **Bounds.** A few blocks at a time, and no longer than [`PATIENCE`]; the others then go. Meanwhile the memory is evicted as any.

use std::sync::Arc;
use std::time::{Duration, Instant};

use staves_model::{Holdings, NodeId, STRETCH_BLOCKS};
use staves_store::blocks::{BLOCK_BYTES, BLOCK_PARTS, Listed, PART_BYTES};
use staves_wire::Message;
use staves_wire::files::{FILE_KEYS_MAX, FileLost, FilePut};
use tokio::task::JoinSet;

use super::place::runs;
use super::{Files, FilesPool, file_of};

/// The interval between looks for blocks to give, and for nodes to give them to.
const ROUND: Duration = Duration::from_millis(250);
/// The time that it is tried.
const PATIENCE: Duration = Duration::from_secs(30);
/// The bound on a home's answer for a block.
const ASK: Duration = Duration::from_secs(5);
/// Blocks that are given at a time.
const AT_ONCE: usize = 8;

/// The progress of a pool with that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Returned {
    /// There is nothing of the kind.
    #[default]
    No,
    /// The blocks here stay until they are given.
    Gives,
    /// It may go.
    Gave,
}

impl FilesPool {
    /// True if blocks of buckets that are not this node's any more stay for now: it had some buckets, gave up none, and has none.
    pub(super) fn keeps_all(&self, files: &Files, holdings: &Holdings, drains: bool) -> bool {
        let life = files.life;
        let mut returned = self.returned.lock();
        if *returned == Returned::No && !drains {
            let had = self.sorted.lock().roles.iter().any(|was| was.holder);
            let mut all = holdings.buckets.iter().flatten();
            if had && !all.any(|h| h.is(life.node, life.incarnation)) {
                *returned = Returned::Gives;
            }
        }
        *returned == Returned::Gives
    }
}

pub(super) async fn run(files: Arc<Files>) {
    let mut rounds = tokio::time::interval(ROUND);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        for pool in files.pools() {
            if *pool.returned.lock() == Returned::Gives {
                give(&files, &pool).await;
                *pool.returned.lock() = Returned::Gave;
            }
        }
    }
}

async fn give(files: &Arc<Files>, pool: &Arc<FilesPool>) {
    let until = Instant::now() + PATIENCE;
    let mut left: Vec<u32> = (0..pool.blocks.buckets()).collect();
    tracing::info!(pool = %pool.id, "this node was taken for dead: it gives back what only it has of files");
    while !left.is_empty() && Instant::now() < until {
        let bytes = pool.blocks.bucket_bytes();
        let mut later = Vec::new();
        for bucket in left {
            let empty = bytes[bucket as usize] == 0;
            if !empty && Instant::now() < until && !give_bucket(files, pool, bucket).await {
                later.push(bucket);
            }
        }
        left = later;
        if !left.is_empty() {
            tokio::time::sleep(ROUND).await;
        }
    }
    tracing::debug!(pool = %pool.id, left = left.len(), "what it had of other nodes' buckets goes");
}

/// Gives a bucket's blocks to its home; true if the home has all of them now.
async fn give_bucket(files: &Arc<Files>, pool: &Arc<FilesPool>, bucket: u32) -> bool {
    let map = files.map();
    let Some(holdings) = map.pools.get(&pool.id).and_then(|p| p.holdings()) else {
        return true;
    };
    let life = files.life;
    if holdings
        .place(bucket, life.node, life.incarnation)
        .is_some()
    {
        return true; // taken anew, with what is in it
    }
    let home = holdings.home(bucket);
    let Some(home) = home.filter(|h| map.is_up(h.node, h.incarnation)) else {
        return false;
    };
    let mut before = usize::MAX;
    let mut has_all = true;
    while before > 0 && has_all {
        let (blocks, next) = pool.blocks.list(bucket, before, FILE_KEYS_MAX);
        before = next;
        let mut tasks = JoinSet::new();
        for block in blocks {
            if tasks.len() == AT_ONCE {
                has_all &= matches!(tasks.join_next().await, Some(Ok(Some(()))));
            }
            let (files, pool, node) = (files.clone(), pool.clone(), home.node);
            tasks.spawn(async move { bring(&files, &pool, node, block).await });
        }
        while let Some(brought) = tasks.join_next().await {
            has_all &= matches!(brought, Ok(Some(())));
        }
    }
    has_all
}

/// Brings a home what it has not of a block. `None` if it does not take it.
async fn bring(files: &Files, pool: &FilesPool, home: NodeId, block: Listed) -> Option<()> {
    let (file, key) = (file_of(block.key), block.key);
    let shift = key.block % STRETCH_BLOCKS * BLOCK_PARTS as u32;
    let ask = Message::FileLost(FileLost {
        pool: pool.id,
        file,
        stretch: key.block / STRETCH_BLOCKS,
        parts: (u128::from(block.parts) << shift).into(),
        named: None,
    });
    let answer = files.peers.call(home, &ask, Instant::now() + ASK).await;
    let Ok(Message::FileLostAnswer(answer)) = answer else {
        return None;
    };
    let missing = (u128::from(answer.missing) >> shift) as u32 & block.parts;
    let start = u64::from(key.block) * BLOCK_BYTES as u64;
    for (first, end) in runs(missing) {
        let end = (end * PART_BYTES).min(block.bytes as usize);
        let from = start + (first * PART_BYTES) as u64;
        let len = end.saturating_sub(first * PART_BYTES);
        let Some(bytes) = pool.get(file, from, len, files.moment()) else {
            continue; // evicted meanwhile
        };
        let _room = files.room.copy(len as u32)?;
        let put = Message::FilePut(FilePut {
            pool: pool.id,
            file,
            size: start + u64::from(block.bytes),
            from,
            bytes,
            forwarded: false,
        });
        let until = Instant::now() + ASK;
        files.peers.call(home, &put, until).await.ok()?;
    }
    Some(())
}
