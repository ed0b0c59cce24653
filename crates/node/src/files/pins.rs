//! Keeps pinned files in memory: the home of each of their buckets fetches what is missing, and does not evict it. So they
//! come back when a node dies, a block is damaged, or buckets move.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use staves_directory::Life;
use staves_files::FileVersion;
use staves_model::{Holdings, Pin, STRETCH_BLOCKS};
use staves_store::blocks::{BLOCK_BYTES, BlockKey};
use staves_wire::files::{FileFetch, FileId, FileRead};

use super::rest::all_parts;
use super::{Files, FilesPool, STRETCH_BYTES, bucket_of};

/// How often it is looked whether all is there.
const ROUND: Duration = Duration::from_secs(1);
/// Stretches of a pool that are looked at in a round.
const LOOKS_MAX: usize = 16 << 10;
/// A file that could not be fetched or kept is left alone for so long.
const REST: Duration = Duration::from_secs(10);
/// How long a stretch may take.
const FETCH: Duration = Duration::from_secs(30);

/// What of a pool is pinned, as this node last saw it.
#[derive(Default)]
pub(super) struct Pinned {
    pins: Vec<Pin>,
    files: Vec<(FileId, FileVersion)>,
}

impl Pinned {
    /// Takes over what the map says. Whether anything is other than before.
    pub(super) fn follow(&mut self, holdings: &Holdings) -> bool {
        if self.pins == holdings.pins {
            return false;
        }
        self.pins.clone_from(&holdings.pins);
        let version = |pin: &Pin| FileVersion {
            dataset: pin.dataset.clone(),
            path: pin.path.clone(),
            size: pin.size,
            version: pin.version.clone(),
        };
        let versions = self.pins.iter().map(version);
        self.files = versions.map(|version| (version.id(), version)).collect();
        true
    }

    fn has(&self, id: FileId) -> bool {
        self.files.iter().any(|(pinned, _)| *pinned == id)
    }

    /// The versions that are pinned.
    pub(super) fn ids(&self) -> BTreeSet<FileId> {
        self.files.iter().map(|(id, _)| *id).collect()
    }
}

pub(super) fn is_home(holdings: &Holdings, bucket: u32, life: Life) -> bool {
    let home = holdings.home(bucket);
    home.is_some_and(|h| h.is(life.node, life.incarnation))
}

/// How far it is through the pinned files of one pool.
#[derive(Default)]
struct Walk {
    /// The next stretch of which file.
    at: (usize, u64),
    /// Files that are left alone, and since when.
    stuck: BTreeMap<FileId, Instant>,
}

pub(super) async fn run(files: Arc<Files>) {
    let mut walks = BTreeMap::new();
    let mut rounds = tokio::time::interval(ROUND);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let pools = files.pools();
        walks.retain(|id, _| pools.iter().any(|pool| pool.id == *id));
        for pool in pools {
            let walk: &mut Walk = walks.entry(pool.id).or_default();
            walk.stuck.retain(|_, since| since.elapsed() < REST);
            look(&files, &pool, walk).await;
        }
    }
}

/// Goes on through the pinned files, once round at most.
async fn look(files: &Files, pool: &FilesPool, walk: &mut Walk) {
    let all = pool.pinned.lock().files.clone();
    let stretches = |file: &FileVersion| file.size.div_ceil(STRETCH_BYTES);
    let sum: u64 = all.iter().map(|(_, file)| stretches(file)).sum();
    let began = Instant::now();
    for _ in 0..sum.min(LOOKS_MAX as u64) {
        // Past the end of a file, or of all.
        while walk.at.0 >= all.len() || walk.at.1 >= stretches(&all[walk.at.0].1) {
            walk.at = match walk.at.0 + 1 < all.len() {
                true => (walk.at.0 + 1, 0),
                false => (0, 0),
            };
            if stretches(&all[walk.at.0].1) > 0 {
                break;
            }
        }
        let (id, file) = &all[walk.at.0];
        let stretch = walk.at.1;
        walk.at.1 += 1;
        if !walk.stuck.contains_key(id) && !keep(files, pool, *id, file, stretch).await {
            walk.stuck.insert(*id, Instant::now());
        }
        // The list may be another by now.
        if began.elapsed() > ROUND {
            return;
        }
    }
}

/// Pins a stretch, and fetches it first if need be. False: it could not be had, or there is no room for it.
async fn keep(
    files: &Files,
    pool: &FilesPool,
    id: FileId,
    file: &FileVersion,
    stretch: u64,
) -> bool {
    let map = files.map();
    let Some(holdings) = map.pools.get(&pool.id).and_then(|p| p.holdings()) else {
        return true;
    };
    let from = stretch * STRETCH_BYTES;
    if !is_home(holdings, bucket_of(holdings, id, from), files.life) {
        return true;
    }
    if pin_listed(pool, id, file, stretch) {
        return true;
    }
    let ask = FileFetch {
        read: FileRead {
            pool: pool.id,
            file: id,
            from,
            len: (file.size - from).min(STRETCH_BYTES) as u32,
        },
        size: file.size,
        dataset: file.dataset.clone(),
        path: Bytes::copy_from_slice(&file.path),
        version: file.version.clone(),
    };
    match files.fetch(ask, Instant::now() + FETCH).await {
        Ok(_) => {
            let whole = pin_listed(pool, id, file, stretch);
            let map = files.map();
            let holdings = map.pools.get(&pool.id).and_then(|p| p.holdings());
            // The bucket may have got another home in that time, and what is pinned in it have been let go.
            let stays = |h: &Holdings| is_home(h, bucket_of(h, id, from), files.life);
            if !holdings.is_some_and(stays) {
                pin(pool, id, file, stretch, false);
            }
            whole
        }
        Err(error) => {
            tracing::debug!(pool = %pool.id, %error, "a pinned file is not fetched for now");
            false
        }
    }
}

/// Pins what is there of a stretch, unless the file is not to be pinned any more: whoever goes through the list has it as it was. Whether
/// that is all.
fn pin_listed(pool: &FilesPool, id: FileId, file: &FileVersion, stretch: u64) -> bool {
    let whole = pin(pool, id, file, stretch, true);
    // Whoever unpins changes the list first, and then lets go of what is pinned.
    if !pool.pinned.lock().has(id) {
        pin(pool, id, file, stretch, false);
    }
    whole
}

/// Pins what is there of a stretch, or lets it be evicted again. Whether that is all.
fn pin(pool: &FilesPool, id: FileId, file: &FileVersion, stretch: u64, on: bool) -> bool {
    let first = stretch * u64::from(STRETCH_BLOCKS);
    let end = file.size.div_ceil(BLOCK_BYTES as u64);
    let blocks = first..end.min(first + u64::from(STRETCH_BLOCKS));
    let mut whole = true;
    for block in blocks {
        let key = BlockKey {
            file: [id.high, id.low],
            block: block as u32,
        };
        let bytes = (file.size - block * BLOCK_BYTES as u64).min(BLOCK_BYTES as u64);
        pool.blocks.pin(key, on);
        whole &= pool.blocks.parts(key) == all_parts(bytes);
    }
    whole
}

#[cfg(test)]
mod tests {
    use staves_model::{ClusterId, Holder, Incarnation, NodeId, PoolId, Revision};
    use staves_store::blocks::{BLOCK_PARTS, PART_BYTES};

    use super::*;

    const LIFE: Life = Life {
        cluster: ClusterId(1),
        node: NodeId(1),
        incarnation: Incarnation(1),
    };

    fn holdings(revision: u64, pins: &[Pin]) -> Holdings {
        let holder = Holder {
            node: LIFE.node,
            incarnation: LIFE.incarnation,
            leaving: false,
        };
        Holdings {
            revision: Revision(revision),
            buckets: vec![vec![holder]; 4],
            pins: pins.to_vec(),
            ..Holdings::default()
        }
    }

    /// Whether more can be evicted than what makes room for one block.
    fn is_evictable(pool: &FilesPool) -> bool {
        let shrunk = pool.blocks.set_limit(BLOCK_BYTES as u64).is_ok();
        let _ = pool.blocks.set_limit(4 * BLOCK_BYTES as u64);
        shrunk
    }

    /// Regression: a file was unpinned, or its dataset dropped, while somebody went through the list as it had been before: who came
    /// last pinned it again, for good.
    #[test]
    fn what_is_unpinned_stays_so_whoever_goes_by_an_older_list() {
        let pin = Pin {
            dataset: "data".into(),
            path: b"a".to_vec(),
            size: 2 * BLOCK_BYTES as u64,
            version: "1".into(),
        };
        let bytes = 4 * BLOCK_BYTES as u64;
        let pool = FilesPool::new(PoolId(1), 4, None, bytes).expect("memory");
        pool.sort(LIFE, &holdings(1, std::slice::from_ref(&pin)));
        let listed = pool.pinned.lock().files.clone();
        let (id, file) = &listed[0];
        let part = [7; PART_BYTES];
        for at in 0..=BLOCK_PARTS {
            let from = (at * PART_BYTES) as u64;
            pool.keep(*id, file.size, from, &part, 0);
        }
        pin_listed(&pool, *id, file, 0);
        assert!(!is_evictable(&pool), "it is pinned");
        pool.sort(LIFE, &holdings(2, &[]));
        pin_listed(&pool, *id, file, 0);
        assert!(is_evictable(&pool), "it is not pinned any more");
    }
}
