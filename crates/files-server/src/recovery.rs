//! Recovery after the end of a node: fetches again the parts that only it had. Runs at the neighbour that remembers them
//! (`neighbour.rs`).
//!
//! **Path.** A [`Loss`] waits here until its turn. Each stretch's present home reports which of the lost parts it lacks
//! (a copy elsewhere, a drain or a reader may have restored them). For the missing ones, the names of the pool's
//! datasets are listed once (`names.rs`), and the home is sent the name of each version, so that it can fetch the
//! parts (`lost.rs`). No bytes come by here.
//!
//! **Bounds.** One loss at a time, and a few stretches of it. A home that has readers at the source is asked again later. After
//! many stretches without success (no home, no room, no source), the others are left to their readers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use staves_files::FileVersion;
use staves_model::{NodeId, PoolId};
use staves_net::NetError;
use staves_store::blocks::PART_BYTES;
use staves_wire::files::{FileId, FileLost, FileNamed};
use staves_wire::{ErrorCode, Message};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::names::Names;
use super::{Files, STRETCH_BYTES, bucket_of};
use crate::facts::AgainFacts;

/// The most losses that wait; further ones are left to readers.
const LOSSES_MAX: usize = 16;
/// The most stretches that are asked for at a time.
const AT_ONCE: usize = 4;
/// The bound on one request to a home.
const ASK: Duration = Duration::from_secs(15);
/// The time for tries of one stretch, while its home is busy, or there is none yet.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(200);
/// After so many fruitless stretches in a row, recovery is given up.
const FRUITLESS_MAX: usize = 64;

/// Parts by version and stretch: a bit for each.
pub(super) type Parts = BTreeMap<(FileId, u32), u128>;

/// The blocks of a node whose life is over.
pub(super) struct Loss {
    pub(super) pool: PoolId,
    pub(super) node: NodeId,
    pub(super) parts: Parts,
}

/// The blocks to fetch again, and the progress.
#[derive(Default)]
pub(super) struct LossRecovery {
    waiting: Mutex<VecDeque<Loss>>,
    more: Notify,
    now: Mutex<Option<Arc<Progress>>>,
    /// The number of losses that were recovered from.
    ended: AtomicU64,
}

struct Progress {
    node: NodeId,
    bytes: u64,
    done_bytes: AtomicU64,
}

impl LossRecovery {
    /// Queues the loss of a node.
    pub(super) fn lost(&self, loss: Loss) {
        if loss.parts.is_empty() {
            return;
        }
        let mut waiting = self.waiting.lock();
        if waiting.len() == LOSSES_MAX {
            tracing::warn!(pool = %loss.pool, node = %loss.node, "more nodes are lost than are seen to: what it had is fetched when it is asked for");
            return;
        }
        waiting.push_back(loss);
        drop(waiting);
        self.more.notify_one();
    }

    /// The number of losses that were recovered from.
    pub(super) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// The progress of the recovery under way.
    pub(super) fn now(&self) -> Option<AgainFacts> {
        let now = self.now.lock();
        now.as_ref().map(|now| AgainFacts {
            node: now.node.0,
            bytes: now.bytes,
            done_bytes: now.done_bytes.load(Ordering::Relaxed),
        })
    }
}

/// Recovers from one loss after the other, until the task is aborted.
pub(super) async fn run(files: Arc<Files>) {
    loop {
        let next = files.recovery.waiting.lock().pop_front();
        match next {
            Some(loss) => {
                refetch(&files, loss).await;
                files.recovery.ended.fetch_add(1, Ordering::Relaxed);
            }
            None => files.recovery.more.notified().await,
        }
    }
}

async fn refetch(files: &Arc<Files>, loss: Loss) {
    let Loss { pool, node, parts } = loss;
    let began = Instant::now();
    let mut tries = Tries::new(files, pool);
    for (at, parts) in parts {
        tries.ask(at, parts, None).await;
    }
    while tries.next().await {}
    let missing = tries.missing;
    if missing.is_empty() {
        tracing::debug!(%pool, lost = %node, "others have all that it had of files");
        return;
    }
    let bytes = bytes_of(missing.values());
    tracing::info!(
        %pool, lost = %node, bytes,
        "fetching again from their source the parts of files that only the lost node had"
    );
    let progress = Arc::new(Progress {
        node,
        bytes,
        done_bytes: AtomicU64::new(0),
    });
    *files.recovery.now.lock() = Some(progress.clone());
    fetch(files, pool, missing, &progress).await;
    *files.recovery.now.lock() = None;
    let done_bytes = progress.done_bytes.load(Ordering::Relaxed);
    tracing::info!(
        %pool, lost = %node, bytes, done_bytes, ms = began.elapsed().as_millis() as u64,
        "what only the lost node had of files is in memory again; what is left (there was no room, the source has another version or is not reached) comes when it is asked for"
    );
}

async fn fetch(files: &Arc<Files>, pool: PoolId, mut missing: Parts, progress: &Progress) {
    let map = files.map();
    let holdings = map.pools.get(&pool).and_then(|p| p.holdings());
    let wanted = missing.keys().map(|(file, _)| *file);
    let wanted = Arc::new(wanted.collect::<BTreeSet<FileId>>());
    let mut tries = Tries::new(files, pool);
    // The names of its datasets take memory, too.
    let Some(_room) = files.room.names(PATIENCE).await else {
        tracing::info!(%pool, "this node has too much under way to look for the names of what was lost: it comes when it is asked for");
        return;
    };
    for dataset in holdings.into_iter().flat_map(|h| &h.datasets) {
        if missing.is_empty() {
            break;
        }
        let Some(source) = files.source(pool, &dataset.name) else {
            continue;
        };
        // A source that this pool's homes do not reach is no evidence about the next pool.
        tries.fruitless = 0;
        let mut names = Names::walk(
            source,
            dataset.name.clone(),
            wanted.clone(),
            files.room.names_bytes(),
        );
        while let Some((file, version)) = names.next().await {
            let of_file = missing.range((file, 0)..=(file, u32::MAX));
            let stretches: Vec<_> = of_file.map(|(at, parts)| (*at, *parts)).collect();
            let version = Arc::new(version);
            for (at, parts) in stretches {
                missing.remove(&at);
                tries.ask(at, parts, Some(version.clone())).await;
                progress.is(tries.got_bytes);
            }
            if missing.is_empty() || tries.is_vain() {
                break;
            }
        }
    }
    while tries.next().await {
        progress.is(tries.got_bytes);
    }
}

impl Progress {
    fn is(&self, done_bytes: u64) {
        self.done_bytes.store(done_bytes, Ordering::Relaxed);
    }
}

fn bytes_of<'a>(parts: impl Iterator<Item = &'a u128>) -> u64 {
    let parts: u32 = parts.map(|parts| parts.count_ones()).sum();
    u64::from(parts) * PART_BYTES as u64
}

/// The requests to homes, a few at a time.
struct Tries<'a> {
    files: &'a Arc<Files>,
    pool: PoolId,
    tasks: JoinSet<StretchReply>,
    /// The parts that homes lack.
    missing: Parts,
    got_bytes: u64,
    /// The number of fruitless answers in a row.
    fruitless: usize,
}

/// One stretch.
struct StretchReply {
    at: (FileId, u32),
    parts: u128,
    /// True if they were to be fetched, false if only asked after.
    fetched: bool,
    /// The parts that its home lacks; `None`: no answer.
    missing: Option<u128>,
}

impl<'a> Tries<'a> {
    fn new(files: &'a Arc<Files>, pool: PoolId) -> Tries<'a> {
        Tries {
            files,
            pool,
            tasks: JoinSet::new(),
            missing: Parts::new(),
            got_bytes: 0,
            fruitless: 0,
        }
    }

    fn is_vain(&self) -> bool {
        self.fruitless >= FRUITLESS_MAX
    }

    /// Asks for a stretch, once there is room for it: for the parts that its home lacks, or, with a version, to fetch them.
    async fn ask(&mut self, at: (FileId, u32), parts: u128, version: Option<Arc<FileVersion>>) {
        if self.tasks.len() == AT_ONCE {
            self.next().await;
        }
        if self.is_vain() {
            return;
        }
        let (files, pool) = (self.files.clone(), self.pool);
        let fetched = version.is_some();
        let named = version.as_deref().map(named);
        self.tasks.spawn(async move {
            let (file, stretch) = at;
            let ask = FileLost {
                pool,
                file,
                stretch,
                parts: parts.into(),
                named,
            };
            let missing = try_for(&files, ask).await;
            StretchReply {
                at,
                parts,
                fetched,
                missing,
            }
        });
    }

    /// Waits for one of the requests under way. False if there was none.
    async fn next(&mut self) -> bool {
        let Some(tried) = self.tasks.join_next().await else {
            return false;
        };
        // It panics nowhere, and is aborted with all else.
        let Ok(tried) = tried else {
            return true;
        };
        let missing = tried.missing.map_or(tried.parts, |m| m & tried.parts);
        self.got_bytes += bytes_of([tried.parts & !missing].iter());
        if missing != 0 {
            self.missing.insert(tried.at, missing);
        }
        let fruitless = tried.missing.is_none() || tried.fetched && missing == tried.parts;
        self.fruitless = if fruitless { self.fruitless + 1 } else { 0 };
        true
    }
}

fn named(version: &FileVersion) -> FileNamed {
    FileNamed {
        size: version.size,
        dataset: version.dataset.clone(),
        path: Bytes::copy_from_slice(&version.path),
        version: version.version.clone(),
    }
}

/// Asks the current home of a stretch, until there is an answer or the time is up.
async fn try_for(files: &Files, ask: FileLost) -> Option<u128> {
    let until = Instant::now() + PATIENCE;
    let from = u64::from(ask.stretch) * STRETCH_BYTES;
    let (pool, file) = (ask.pool, ask.file);
    let message = Message::FileLost(ask.clone());
    while Instant::now() < until {
        let map = files.map();
        let holdings = map.pools.get(&pool)?.holdings()?;
        let home = holdings.home(bucket_of(holdings, file, from));
        let home = home.filter(|h| map.is_up(h.node, h.incarnation));
        let deadline = Instant::now() + ASK;
        let refused = match home {
            None => ErrorCode::NotServing,
            Some(home) if home.node == files.life.node => {
                match files.lost(ask.clone(), deadline).await {
                    Ok(answer) => return Some(answer.missing.into()),
                    Err(refused) => refused.code,
                }
            }
            Some(home) => match files.peers.call(home.node, &message, deadline).await {
                Ok(Message::FileLostAnswer(answer)) => return Some(answer.missing.into()),
                Ok(_) => return None,
                Err(NetError::Refused { packet, .. }) => packet.code,
                Err(_) => ErrorCode::Unreachable,
            },
        };
        match refused {
            ErrorCode::Busy
            | ErrorCode::NotServing
            | ErrorCode::Unreachable
            | ErrorCode::Stopping => tokio::time::sleep(PAUSE).await,
            code => {
                tracing::debug!(%pool, code = code.word(), "a home does not fetch what was lost");
                return None;
            }
        }
    }
    None
}
