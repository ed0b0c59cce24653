//! Keeps pinned files in memory: the home of each of their buckets fetches missing blocks, and does not evict them. So they
//! come back when a node dies, a block is damaged, or buckets move. A home that does not reach the source has another node fetch
//! for it (`helpers.rs`). A failed fetch is tried again, ever more seldom, and status reports the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use staves_directory::Life;
use staves_files::{FileVersion, Keep};
use staves_model::{Holdings, NodeId, Pin, STRETCH_BLOCKS};
use staves_store::blocks::{BLOCK_BYTES, BlockKey};
use staves_wire::files::{FileFetch, FileId, FileRead};

use super::fetch::{self, Fetched};
use super::helpers::{self, Helped};
use super::readahead::all_parts;
use super::{Files, FilesPool, STRETCH_BYTES, bucket_of};
use crate::facts::LackFacts;

/// The interval between two passes over the pinned files.
const ROUND: Duration = Duration::from_secs(1);
/// Stretches of a pool that are looked at in a round.
const LOOKS_MAX: usize = 16 << 10;
/// A file that could not be fetched or kept is left alone for so long; twice that if it cannot be the next time, and so on.
const REST: Duration = Duration::from_secs(5);
/// Longest that it is.
const REST_MAX: Duration = Duration::from_secs(80);
/// The most files whose missing blocks a node explains.
pub(super) const LACKING_MAX: usize = 8;
/// The longest text of such an explanation, in characters.
const WHY_MAX: usize = 300;
/// The bound on a stretch.
const FETCH: Duration = Duration::from_secs(30);

/// The pinned files of a pool, as this node last saw them.
#[derive(Default)]
pub(super) struct Pinned {
    pins: Vec<Pin>,
    files: Vec<(FileId, FileVersion)>,
    /// The reasons that pinned blocks are missing on this node.
    lacking: BTreeMap<FileId, String>,
}

impl Pinned {
    /// Takes the pins of the map over. True if anything changed.
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

    /// The pinned blocks that are missing on this node.
    pub(super) fn lacking(&self) -> Vec<LackFacts> {
        let lacking = self.files.iter().filter_map(|(id, version)| {
            let why = self.lacking.get(id)?;
            Some(LackFacts {
                dataset: version.dataset.clone(),
                path: String::from_utf8_lossy(&version.path).into_owned(),
                why: why.clone(),
            })
        });
        lacking.take(LACKING_MAX).collect()
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

/// The progress through the pinned files of one pool.
#[derive(Default)]
struct PinPass {
    /// The next stretch of which file.
    at: (usize, u64),
    stuck: BTreeMap<FileId, Stuck>,
    /// The node that fetched last for this one.
    helper: NodeId,
}

/// A file that could not be fetched or kept.
struct Stuck {
    /// The stretch that it was last tried with.
    stretch: u64,
    /// The time of the next try, and the current delay.
    until: Instant,
    rest: Duration,
    why: String,
}

impl PinPass {
    fn is_left_alone(&self, id: FileId) -> bool {
        let stuck = self.stuck.get(&id);
        stuck.is_some_and(|stuck| Instant::now() < stuck.until)
    }

    /// Records the result of a stretch.
    fn tried(&mut self, id: FileId, stretch: u64, kept: Result<(), String>) {
        let was = self.stuck.get(&id);
        match kept {
            // Others of the file may be there while that one is not.
            Ok(()) if was.is_some_and(|stuck| stuck.stretch == stretch) => {
                self.stuck.remove(&id);
            }
            Ok(()) => {}
            Err(why) => {
                let rest = was.map_or(REST, |stuck| (stuck.rest * 2).min(REST_MAX));
                let stuck = Stuck {
                    stretch,
                    until: Instant::now() + rest,
                    rest,
                    why: why
                        .chars()
                        .filter(|c| !c.is_control())
                        .take(WHY_MAX)
                        .collect(),
                };
                self.stuck.insert(id, stuck);
            }
        }
    }
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
            let walk: &mut PinPass = walks.entry(pool.id).or_default();
            look(&files, &pool, walk).await;
            let mut pinned = pool.pinned.lock();
            walk.stuck.retain(|id, _| pinned.has(*id));
            let why = |(id, stuck): (&FileId, &Stuck)| (*id, stuck.why.clone());
            pinned.lacking = walk.stuck.iter().map(why).collect();
        }
    }
}

/// Goes on through the pinned files, once round at most.
async fn look(files: &Files, pool: &FilesPool, walk: &mut PinPass) {
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
        let alone = walk.is_left_alone(*id);
        let helper = (!alone).then_some(&mut walk.helper);
        let kept = keep(files, pool, (*id, file, stretch), helper).await;
        if kept.is_ok() || !alone {
            walk.tried(*id, stretch, kept);
        }
        // The list may be another by now.
        if began.elapsed() > ROUND {
            return;
        }
    }
}

/// Pins a stretch, and fetches it first if need be and there is a helper to begin with: what is left alone may have been brought by
/// a mount. Or says why it is not there.
async fn keep(
    files: &Files,
    pool: &FilesPool,
    (id, file, stretch): (FileId, &FileVersion, u64),
    helper: Option<&mut NodeId>,
) -> Result<(), String> {
    let is_home = || {
        let map = files.map();
        let holdings = map.pools.get(&pool.id).and_then(|p| p.holdings());
        let from = stretch * STRETCH_BYTES;
        holdings.is_some_and(|h| is_home(h, bucket_of(h, id, from), files.life))
    };
    if !is_home() || pin_listed(pool, id, file, stretch) {
        return Ok(());
    }
    let Some(helper) = helper else {
        return Err(String::new());
    };
    let why = fetch(files, pool, (id, file, stretch), helper).await;
    let whole = pin_listed(pool, id, file, stretch);
    // The bucket may have got another home in that time, and what is pinned in it have been let go.
    if !is_home() {
        pin(pool, id, file, stretch, false);
        return Ok(());
    }
    if whole {
        return Ok(());
    }
    tracing::debug!(pool = %pool.id, why, "a pinned file is not in memory for now");
    Err(why)
}

/// Fetches a stretch, or has it fetched. What stands against it, if it is not there then.
async fn fetch(
    files: &Files,
    pool: &FilesPool,
    (id, file, stretch): (FileId, &FileVersion, u64),
    helper: &mut NodeId,
) -> String {
    let from = stretch * STRETCH_BYTES;
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
    match fetch::fetch(files, pool, ask.clone(), Instant::now() + FETCH).await {
        Ok(Fetched::Bytes(_, Keep::Yes)) => "the pool has no room for it on this node".to_owned(),
        Ok(Fetched::Bytes(_, Keep::NotYet)) => "it changed just before".to_owned(),
        Ok(Fetched::Bytes(_, Keep::Never)) => {
            "not everybody may read it at its source (chmod o+r, and o+x for its folders)"
                .to_owned()
        }
        Ok(Fetched::Not(why)) => {
            let is_there = || pin_listed(pool, id, file, stretch);
            match helpers::help(files, pool, &ask, is_there, helper).await {
                Helped::Fetched => {
                    "another node fetched it, and it did not come in (no room in memory, or it changed just before)".to_owned()
                }
                Helped::Not => format!("{why}; nor do the nodes that were asked reach it"),
                Helped::Alone => why,
            }
        }
        Err(error) => error.text,
    }
}

/// Pins what is there of a stretch, unless the file is not to be pinned any more: whoever goes through the list has it as it was. Whether
/// that is all.
fn pin_listed(pool: &FilesPool, id: FileId, file: &FileVersion, stretch: u64) -> bool {
    let whole = pin(pool, id, file, stretch, true);
    // An unpin changes the list first, and then releases what is pinned.
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

    /// True if more can be evicted than makes room for one block.
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
