//! Takes buckets on and gives them up, by capacity (rows D3, D5, D7). The rules are `staves_model::capacity`; here
//! is what they look at, and the copying that comes before a bucket is taken.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use staves_directory::{Directory, DirectoryError, Proposal};
use staves_model::capacity::{Capacity, Own, Plan};
use staves_model::{
    Change, ClusterMap, HOLDERS_MAX, NewHoldings, NodeId, Pool, PoolId, Refusal, Time,
};
use staves_store::blocks::{BLOCK_BYTES, BLOCK_PARTS, BlockKey, PART_BYTES};
use staves_wire::files::{FROM_LAST, FileBytes, FileKey, FileKeys, FileRead};
use staves_wire::{ErrorPacket, Message};
use tokio::task::{JoinHandle, JoinSet};

use super::{Files, FilesPool, STRETCH_BYTES};

/// The interval between two rounds.
const ROUND: Duration = Duration::from_millis(250);
/// The bound on a proposal.
const PROPOSE: Duration = Duration::from_secs(2);
/// The pause after a bucket was copied: there may be another.
const NEXT: Duration = Duration::from_millis(50);
/// Questions under way for the bucket that is copied, each for a block at most: where blocks are there in parts, one at a time would
/// wait for the network more than use it.
const COPIES: usize = 8;
/// The bound on each question to another holder.
const ASK: Duration = Duration::from_secs(5);

/// The state of a pool between rounds.
#[derive(Default)]
struct Watch {
    capacity: Capacity,
    evicted: u64,
    /// A bucket that is being copied.
    copying: Option<u32>,
    /// One that is copied, and can be taken.
    copied: Option<u32>,
}

pub(super) async fn run(files: Arc<Files>, directory: Directory) {
    let mut watches: BTreeMap<PoolId, Watch> = BTreeMap::new();
    let mut rounds = tokio::time::interval(ROUND);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // Rounds go on while much memory goes back.
    let mut settling: Option<JoinHandle<()>> = None;
    let mut copies = JoinSet::new();
    loop {
        tokio::select! {
            _ = rounds.tick() => {}
            Some(copied) = copies.join_next() => match copied {
                Ok((pool, whole)) => if let Some(watch) = watches.get_mut(&pool) {
                    watch.copied = watch.copying.take().filter(|_| whole);
                },
                // It broke, whichever it was: it may be copied anew.
                Err(_) => watches.values_mut().for_each(|watch| watch.copying = None),
            },
        }
        if settling.as_ref().is_none_or(JoinHandle::is_finished) {
            let files = files.clone();
            settling = Some(tokio::task::spawn_blocking(move || files.settle()));
        }
        let pools = files.pools();
        watches.retain(|id, _| pools.iter().any(|pool| pool.id == *id));
        for pool in pools {
            let watch = watches.entry(pool.id).or_default();
            if watch.copied.is_some() {
                rounds.reset_after(NEXT);
            }
            look(&files, &directory, &pool, watch, &mut copies).await;
        }
    }
}

async fn look(
    files: &Arc<Files>,
    directory: &Directory,
    pool: &Arc<FilesPool>,
    watch: &mut Watch,
    copies: &mut JoinSet<(PoolId, bool)>,
) {
    let map = files.map();
    let Some(entry) = map.pools.get(&pool.id) else {
        return;
    };
    let copied = watch.copied.take();
    let plan = decide(files, &map, entry, pool, watch, copied.or(watch.copying));
    if let Some(bucket) = plan.copy {
        let (files, pool) = (files.clone(), pool.clone());
        copies.spawn(async move { (pool.id, copy(files, pool, bucket).await) });
        watch.copying = Some(bucket);
    }
    let mut take = plan.take.clone();
    // It may have lost its last other holder since, and be taken as an orphan; or have been given enough of them.
    let holders = |bucket: u32| entry.holdings().map_or(0, |h| h.holders(bucket).len());
    take.extend(copied.filter(|b| !plan.take.contains(b) && holders(*b) < HOLDERS_MAX));
    let new = NewHoldings {
        pool: pool.id,
        node: files.life.node,
        incarnation: files.life.incarnation,
        take,
        leave: plan.leave,
        flag: plan.flag,
        unflag: plan.unflag,
    };
    let idle = new.take.is_empty() && new.leave.is_empty();
    if idle && new.flag.is_empty() && new.unflag.is_empty() {
        return;
    }
    propose(directory, &map, new).await;
}

fn decide(
    files: &Files,
    map: &ClusterMap,
    entry: &Pool,
    pool: &FilesPool,
    watch: &mut Watch,
    copying: Option<u32>,
) -> Plan {
    let bucket_bytes = pool.blocks.bucket_bytes();
    let going = entry.holdings().map(|h| pool.going(files.life, h));
    let going = going.unwrap_or_default();
    let evicted = pool.blocks.figures().evicted_last;
    let evicts_last = evicted > std::mem::replace(&mut watch.evicted, evicted);
    let draining = map.nodes.get(&files.life.node).is_some_and(|n| n.draining);
    let own = Own {
        node: files.life.node,
        incarnation: files.life.incarnation,
        budget_bytes: pool.budget_bytes(),
        bucket_bytes: &bucket_bytes,
        evicts_last,
        copying,
        going: &going,
        draining,
        spreads: files.spreads,
    };
    let now = Time(files.began.elapsed().as_nanos() as u64 + 1);
    watch.capacity.step(now, map, entry, &own)
}

/// A proposal against the map that was looked at: if its holders have changed since, the next round decides anew.
async fn propose(directory: &Directory, map: &ClusterMap, new: NewHoldings) {
    let pool = new.pool;
    let proposal = Proposal {
        expected: Some(map.revision),
        term: None,
        change: Change::Hold(new),
    };
    match directory.propose(proposal, PROPOSE).await {
        Ok(_) => {}
        Err(DirectoryError::Refused(Refusal::MapMovedOn { .. })) => {}
        Err(error) => tracing::debug!(%pool, %error, "buckets of files stay as they are for now"),
    }
}

/// Fetches all that a bucket's holders have of it. Whether it has all that one of them had.
async fn copy(files: Arc<Files>, pool: Arc<FilesPool>, bucket: u32) -> bool {
    let map = files.map();
    let holdings = map.pools.get(&pool.id).and_then(|p| p.holdings());
    let Some(holdings) = holdings else {
        return false;
    };
    let up = |node: NodeId| node != files.life.node;
    let holders: Vec<NodeId> = holdings.holders(bucket).iter().map(|h| h.node).collect();
    for node in holders.into_iter().filter(|node| up(*node)) {
        match copy_from(&files, &pool, bucket, node).await {
            Ok(true) => return true,
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(pool = %pool.id, bucket, %node, %error, "a copy broke off")
            }
        }
    }
    false
}

async fn copy_from(
    files: &Arc<Files>,
    pool: &Arc<FilesPool>,
    bucket: u32,
    node: NodeId,
) -> Result<bool, ErrorPacket> {
    let mut ask = FileKeys {
        pool: pool.id,
        bucket,
        before: FROM_LAST,
    };
    loop {
        let answer = call(files, node, &Message::FileKeys(ask)).await?;
        let Message::FileKeysAnswer(page) = answer else {
            return Ok(false);
        };
        // One that leads back or nowhere would never end.
        let goes_on = (1..ask.before).contains(&page.next);
        if !page.holds || !copy_page(files, pool, node, page.keys).await? {
            return Ok(false);
        }
        if !goes_on {
            return Ok(page.next == 0);
        }
        ask.before = page.next;
    }
}

/// Fetches what is not here yet of some blocks that a node has. Whether it has all that was still there.
async fn copy_page(
    files: &Arc<Files>,
    pool: &Arc<FilesPool>,
    node: NodeId,
    keys: Vec<FileKey>,
) -> Result<bool, ErrorPacket> {
    let mut runs = keys.into_iter().flat_map(|key| {
        let there = pool.blocks.parts(BlockKey {
            file: [key.file.high, key.file.low],
            block: key.block,
        });
        runs(key.parts & !there)
            .into_iter()
            .map(move |run| (key, run))
    });
    let mut tasks = JoinSet::new();
    loop {
        while tasks.len() < COPIES
            && let Some((key, (first, end))) = runs.next()
        {
            let (files, pool) = (files.clone(), pool.clone());
            tasks.spawn(async move { copy_run(&files, &pool, node, key, first, end).await });
        }
        match tasks.join_next().await {
            Some(Ok(copied)) => copied?,
            Some(Err(_)) => return Ok(false),
            None => return Ok(true),
        }
    }
}

async fn copy_run(
    files: &Files,
    pool: &FilesPool,
    node: NodeId,
    key: FileKey,
    first: usize,
    end: usize,
) -> Result<(), ErrorPacket> {
    let block = u64::from(key.block) * BLOCK_BYTES as u64;
    let from = block + (first * PART_BYTES) as u64;
    let bytes = (end * PART_BYTES)
        .min(key.bytes as usize)
        .saturating_sub(first * PART_BYTES);
    if bytes == 0 || from % STRETCH_BYTES + bytes as u64 > STRETCH_BYTES {
        return Ok(());
    }
    let ask = FileRead {
        pool: pool.id,
        file: key.file,
        from,
        len: bytes as u32,
    };
    let answer = call(files, node, &Message::FileRead(ask)).await?;
    let Message::FileBytes(FileBytes { bytes: Some(bytes) }) = answer else {
        return Ok(()); // evicted meanwhile
    };
    let size = block + u64::from(key.bytes);
    pool.keep(key.file, size, from, &bytes, files.moment());
    Ok(())
}

async fn call(files: &Files, node: NodeId, ask: &Message) -> Result<Message, ErrorPacket> {
    let asked = files.peers.call(node, ask, Instant::now() + ASK).await;
    asked.map_err(|error| ErrorPacket::new(staves_wire::ErrorCode::Unreachable, error.to_string()))
}

/// Runs of parts that are there: from, to.
pub(super) fn runs(parts: u32) -> Vec<(usize, usize)> {
    let mut runs = Vec::new();
    let mut from = None;
    for part in 0..=BLOCK_PARTS {
        let there = part < BLOCK_PARTS && parts & 1 << part != 0;
        match (there, from) {
            (true, None) => from = Some(part),
            (false, Some(first)) => {
                runs.push((first, part));
                from = None;
            }
            _ => {}
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_parts() {
        assert_eq!(runs(0), []);
        assert_eq!(runs(u32::MAX), [(0, BLOCK_PARTS)]);
        assert_eq!(runs(0xffff), [(0, 16)]);
        assert_eq!(runs(0x8000_0061), [(0, 1), (5, 7), (31, 32)]);
    }
}
