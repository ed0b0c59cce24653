//! Files: this node's part of the blocks of each files pool, and what fills it (DESIGN section 8).
//!
//! A block never changes under its key. So there is no protocol between holders: any of them answers, each evicts
//! for itself, and what one does not have another or the source has. Only a bucket's home fetches from the source, each
//! part once, however many ask; it gives the other holders what it fetched and waits for none of them.
//!
//! `files/place.rs` takes buckets on and gives them up; `files/fetch.rs` is the home's part, `files/rest.rs` what it fetches beyond
//! what was asked for; `files/neighbour.rs` remembers what another node has, `files/again.rs` has it fetched again when that node is
//! gone, by way of `files/names.rs` and, at the home, `files/lost.rs`; `files/pins.rs` keeps pinned files, with the help of others (`files/helpers.rs`); `files/scrub.rs` looks for damaged blocks; `files/room.rs` bounds what
//! requests take; `files/refused.rs` knows what servers refuse; `files/door.rs` gives mounts on this machine the memory itself.
//!
//! **Memory.** Blocks lie beside the arena of buckets, and within the node's `--memory` with it: what buckets take, files give
//! up ([`Files::fit`]). What requests take beside that is bounded; a small node's blocks leave room for it and for the program, so that
//! the process has `--memory` and a tenth at most.

mod again;
mod door;
mod fetch;
mod helpers;
mod lost;
mod names;
mod neighbour;
mod pins;
mod place;
mod refused;
mod rest;
mod room;
mod scrub;
mod uses;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, RwLock};
use staves_directory::{Directory, Life};
use staves_files::{Source, SourceError};
use staves_model::{ClusterMap, Holdings, PoolId, Revision, STRETCH_BLOCKS};
use staves_net::{Peers, Reply};
use staves_store::blocks::{BLOCK_BYTES, BlockKey, Blocks, Copies, Listed, Miss, PART_BYTES};
use staves_store::{Arena, EXTENT_BYTES};
use staves_wire::files::{
    FILE_BYTES_MAX, FILE_KEYS_MAX, FileBytes, FileChanges, FileChangesAnswer, FileCheck,
    FileChecked, FileFetch, FileId, FileKey, FileKeys, FileKeysAnswer, FileLost, FileLostAnswer,
    FilePut, FileRead,
};
use staves_wire::{ErrorCode, ErrorPacket, Message};
use tokio::runtime::RuntimeFlavor;

use self::again::Again;
use self::fetch::{Fetched, Flights};
use self::pins::Pinned;
use self::refused::Refused;
use self::rest::Rest;
use self::room::Room;
use self::uses::Uses;
use crate::status::{AgainFacts, LackFacts};

/// Bytes of a stretch: what one message asks for lies within one.
const STRETCH_BYTES: u64 = STRETCH_BLOCKS as u64 * BLOCK_BYTES as u64;
/// How long a holder is given to take what it is brought; nobody waits for it.
const PUT: Duration = Duration::from_secs(2);

const _: () = assert!(STRETCH_BYTES == FILE_BYTES_MAX as u64);

/// All files pools of this node.
pub(crate) struct Files {
    life: Life,
    peers: Peers,
    /// What buckets have; files have what they leave.
    arena: Arc<Arena>,
    began: Instant,
    map: RwLock<Arc<ClusterMap>>,
    pools: RwLock<BTreeMap<PoolId, Arc<FilesPool>>>,
    /// Those that the map has no more, until their memory has gone back.
    gone: Mutex<Vec<Arc<FilesPool>>>,
    /// Sources by the words that the map has for them.
    sources: Mutex<BTreeMap<String, Source>>,
    rest: Rest,
    again: Again,
    room: Room,
    pub(crate) uses: Uses,
    refused: Refused,
}

/// One pool.
pub(crate) struct FilesPool {
    pub(crate) id: PoolId,
    pub(crate) blocks: Blocks,
    flights: Flights,
    sorted: Mutex<Sorted>,
    pinned: Mutex<Pinned>,
    budget_bytes: AtomicU64,
    pub(crate) counts: Counts,
}

/// By which holdings blocks were last told apart into spare copies and last ones.
struct Sorted {
    /// `None` before that was done first.
    revision: Option<Revision>,
    /// By bucket.
    roles: Vec<Role>,
}

/// What this node was to a bucket.
#[derive(Clone, Copy, Default)]
struct Role {
    holder: bool,
    home: bool,
}

/// What was done since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Bytes that readers asked the home for and were not there.
    pub(crate) asked_bytes: AtomicU64,
    /// Bytes read from sources.
    pub(crate) fetched_bytes: AtomicU64,
    /// Those of them that nobody had asked for: rests of blocks.
    pub(crate) ahead_bytes: AtomicU64,
    /// Those of them that were in the memory of a node that is gone.
    pub(crate) again_bytes: AtomicU64,
    /// Reads from sources.
    pub(crate) fetches: AtomicU64,
    /// Reads answered from memory.
    pub(crate) hits: AtomicU64,
    /// Bytes whose checksums were compared without a reader.
    pub(crate) scrubbed_bytes: AtomicU64,
    /// Not a sum: blocks that this node remembers of another.
    pub(crate) remembered_blocks: AtomicU64,
}

impl Files {
    pub(crate) fn new(life: Life, peers: Peers, arena: Arc<Arena>, memory_bytes: u64) -> Files {
        Files {
            life,
            peers,
            arena,
            began: Instant::now(),
            map: RwLock::default(),
            pools: RwLock::default(),
            gone: Mutex::default(),
            sources: Mutex::default(),
            rest: Rest::default(),
            room: Room::new(memory_bytes),
            again: Again::default(),
            uses: Uses::default(),
            refused: Refused::default(),
        }
    }

    /// What drives it, until the tasks are aborted.
    pub(crate) fn drivers(
        files: Arc<Files>,
        directory: Directory,
    ) -> Vec<tokio::task::JoinHandle<()>> {
        vec![
            tokio::spawn(door::run(files.clone())),
            tokio::spawn(rest::run(files.clone())),
            tokio::spawn(scrub::run(files.clone())),
            tokio::spawn(pins::run(files.clone())),
            tokio::spawn(neighbour::run(files.clone())),
            tokio::spawn(again::run(files.clone())),
            tokio::spawn(place::run(files, directory)),
        ]
    }

    /// A coarse clock: reads within a second count as one.
    fn moment(&self) -> u32 {
        self.began.elapsed().as_secs() as u32
    }

    fn map(&self) -> Arc<ClusterMap> {
        self.map.read().clone()
    }

    /// The map has changed. What that means for blocks that are there is for [`Files::settle`].
    pub(crate) fn follow(&self, map: &Arc<ClusterMap>) {
        *self.map.write() = map.clone();
        let own = map.nodes.get(&self.life.node).map(|n| n.memory_bytes);
        let mut pools = self.pools.write();
        let stays = |id: &PoolId| map.pools.get(id).is_some_and(|p| p.holdings().is_some());
        let (stay, gone) = std::mem::take(&mut *pools)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(id, _)| stays(id));
        *pools = stay;
        self.gone.lock().extend(gone.into_values());
        for pool in map.pools.values() {
            let Some(holdings) = pool.holdings().filter(|_| !pools.contains_key(&pool.id)) else {
                continue;
            };
            let budget = pool.node_budget_bytes.min(own.unwrap_or(u64::MAX));
            let buckets = holdings.buckets.len() as u32;
            if let Some(new) = FilesPool::new(pool.id, buckets, own, budget) {
                new.set_budget(budget.min(self.certainly_free(&pools)));
                pools.insert(pool.id, new);
            }
        }
    }

    /// Does to the blocks what the newest map says: gives up what is not this node's any more, and keeps to budgets. It blocks the
    /// thread for as long as the memory takes to go back, while readers are served.
    fn settle(&self) {
        let gone = self.gone.lock().clone();
        gone.iter().for_each(|pool| pool.blocks.close());
        let went = |pool: &Arc<FilesPool>| gone.iter().any(|gone| Arc::ptr_eq(gone, pool));
        self.gone.lock().retain(|pool| !went(pool));
        let map = self.map();
        for pool in self.pools() {
            let entry = map.pools.get(&pool.id);
            if let Some(holdings) = entry.and_then(|p| p.holdings()) {
                pool.sort(self.life, holdings);
            }
        }
        self.fit();
    }

    /// Gives each pool its budget, as far as buckets leave it, and the node's memory has room for it beside all else.
    fn fit(&self) {
        let map = self.map();
        let mut left = self.beside_buckets();
        for pool in self.pools() {
            let budget = map.pools.get(&pool.id).map_or(0, |p| p.node_budget_bytes);
            let share = budget.min(left);
            pool.set_budget(share);
            left -= share;
        }
    }

    /// What all files pools may have.
    fn beside_buckets(&self) -> u64 {
        let taken = self.arena.extents() - self.arena.free_extents();
        let taken = u64::from(taken) * EXTENT_BYTES as u64;
        self.room.for_blocks().saturating_sub(taken)
    }

    /// What a new pool may have until [`Files::fit`] comes to it, which may take a while where much memory goes back: what these
    /// pools neither use nor may use, nor those that are gone use still.
    fn certainly_free(&self, pools: &BTreeMap<PoolId, Arc<FilesPool>>) -> u64 {
        let given = pools.values().map(|p| p.budget_bytes().max(p.used_bytes()));
        let gone = self.gone.lock();
        let going = gone.iter().map(|pool| pool.used_bytes());
        let left = self.beside_buckets();
        given.chain(going).fold(left, u64::saturating_sub)
    }

    /// Bytes of all pools' blocks that are there.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.pools().iter().map(|pool| pool.used_bytes()).sum()
    }

    /// Compares checksums for a person's tool.
    pub(crate) fn check(&self, ask: FileCheck) -> Result<FileChecked, ErrorPacket> {
        scrub::asked(&*self.pool(ask.pool)?, ask)
    }

    /// A pool, if it is one of files.
    pub(crate) fn pool(&self, id: PoolId) -> Result<Arc<FilesPool>, ErrorPacket> {
        self.pools.read().get(&id).cloned().ok_or_else(|| {
            let text = format!("there is no files pool {id} on this node, by its map");
            ErrorPacket::new(ErrorCode::NotFound, text)
        })
    }

    /// All pools.
    pub(crate) fn pools(&self) -> Vec<Arc<FilesPool>> {
        self.pools.read().values().cloned().collect()
    }

    /// Answers from memory.
    pub(crate) fn read(&self, ask: &FileRead) -> Result<FileBytes, ErrorPacket> {
        let pool = self.pool(ask.pool)?;
        let bytes = pool.get(ask.file, ask.from, ask.len as usize, self.moment());
        if bytes.is_some() {
            pool.counts.hits.fetch_add(1, Ordering::Relaxed);
            self.rest.read(ask.file, ask.from, ask.len.into());
        }
        Ok(FileBytes { bytes })
    }

    /// Room for bytes that are fetched. The caller keeps it until the answer waits to be written, and is counted there.
    pub(crate) async fn flight(
        &self,
        bytes: u32,
        deadline: Instant,
    ) -> Result<tokio::sync::SemaphorePermit<'_>, ErrorPacket> {
        self.room.flight(bytes, deadline).await
    }

    /// Whether an answer of so many bytes may be given now.
    pub(crate) fn may_answer(&self, reply: &Reply, bytes: u32) -> bool {
        self.room.may_answer(reply, bytes)
    }

    /// Waits until it may be.
    pub(crate) async fn wait_to_answer(
        &self,
        reply: &Reply,
        bytes: u32,
        deadline: Instant,
    ) -> Result<(), ErrorPacket> {
        self.room.wait_to_answer(reply, bytes, deadline).await
    }

    /// Answers from memory, or else from the source.
    pub(crate) async fn fetch(
        &self,
        ask: FileFetch,
        deadline: Instant,
    ) -> Result<FileBytes, ErrorPacket> {
        let pool = self.pool(ask.read.pool)?;
        let (from, len) = (ask.read.from, u64::from(ask.read.len));
        check_range(from, len)?;
        if from.checked_add(len).is_none_or(|end| end > ask.size) {
            let text = format!("bytes {from} to {} of a file of {}", from + len, ask.size);
            return Err(ErrorPacket::new(ErrorCode::Malformed, text));
        }
        let bytes = match fetch::fetch(self, &pool, ask, deadline).await? {
            Fetched::Bytes(bytes, _) => Some(bytes),
            Fetched::Not(_) => None,
        };
        Ok(FileBytes { bytes })
    }

    /// Keeps what a mount or a home brings.
    pub(crate) fn put(&self, ask: FilePut) -> Result<(), ErrorPacket> {
        let pool = self.pool(ask.pool)?;
        let len = ask.bytes.len() as u64;
        check_range(ask.from, len)?;
        let end = ask.from + len;
        let whole = ask.from.is_multiple_of(PART_BYTES as u64)
            && (end.is_multiple_of(PART_BYTES as u64) || end == ask.size)
            && end <= ask.size;
        if !whole {
            let text = format!(
                "bytes {} to {end} of a file of {} are not whole parts of {PART_BYTES} bytes",
                ask.from, ask.size
            );
            return Err(ErrorPacket::new(ErrorCode::Malformed, text));
        }
        let map = self.map();
        let Some(holdings) = map.pools.get(&ask.pool).and_then(|p| p.holdings()) else {
            return Ok(());
        };
        let bucket = bucket_of(holdings, ask.file, ask.from);
        let life = self.life;
        if holdings
            .place(bucket, life.node, life.incarnation)
            .is_none()
        {
            let text = format!("this node does not hold bucket {bucket}, by its map");
            return Err(ErrorPacket::new(ErrorCode::NotServing, text));
        }
        pool.keep(ask.file, ask.size, ask.from, &ask.bytes, self.moment());
        if !ask.forwarded {
            self.pass_on(&map, holdings, bucket, ask);
        }
        Ok(())
    }

    /// Gives the bucket's other holders what came in, and waits for none of them.
    fn pass_on(&self, map: &ClusterMap, holdings: &Holdings, bucket: u32, put: FilePut) {
        let others = holdings.holders(bucket).iter();
        let others =
            others.filter(|h| h.node != self.life.node && map.is_up(h.node, h.incarnation));
        for holder in others {
            let Some(room) = self.room.copy(put.bytes.len() as u32) else {
                return;
            };
            let (peers, node) = (self.peers.clone(), holder.node);
            let put = Message::FilePut(FilePut {
                forwarded: true,
                ..put.clone()
            });
            tokio::spawn(async move {
                if let Err(error) = peers.call(node, &put, Instant::now() + PUT).await {
                    tracing::debug!(%node, %error, "a holder did not take a copy");
                }
                drop(room);
            });
        }
    }

    /// What changed among this node's blocks.
    pub(crate) fn changes(&self, ask: FileChanges) -> Result<FileChangesAnswer, ErrorPacket> {
        neighbour::changes(self, &*self.pool(ask.pool)?, ask)
    }

    /// Says what this node has not of what a node had that is gone, or fetches it.
    pub(crate) async fn lost(
        &self,
        ask: FileLost,
        deadline: Instant,
    ) -> Result<FileLostAnswer, ErrorPacket> {
        let pool = self.pool(ask.pool)?;
        lost::lost(self, &pool, ask, deadline).await
    }

    /// What is being fetched again because a node is gone.
    pub(crate) fn fetching_again(&self) -> Option<AgainFacts> {
        self.again.now()
    }

    /// Pinned files that this node is to keep and has not, and why.
    pub(crate) fn lacking(&self) -> Vec<LackFacts> {
        let pools = self.pools();
        let all = pools.iter().flat_map(|pool| pool.pinned.lock().lacking());
        all.take(pins::LACKING_MAX).collect()
    }

    /// How many lost nodes it has seen to so.
    pub(crate) fn losses(&self) -> u64 {
        self.again.ended()
    }

    /// Some of what this node has of a bucket.
    pub(crate) fn keys(&self, ask: &FileKeys) -> Result<FileKeysAnswer, ErrorPacket> {
        let pool = self.pool(ask.pool)?;
        let map = self.map();
        let holdings = map.pools.get(&ask.pool).and_then(|p| p.holdings());
        let Some(holdings) = holdings else {
            return Ok(FileKeysAnswer {
                holds: false,
                keys: Vec::new(),
                next: 0,
            });
        };
        if ask.bucket >= pool.blocks.buckets() {
            let text = format!("pool {} has no bucket {}", ask.pool, ask.bucket);
            return Err(ErrorPacket::new(ErrorCode::Malformed, text));
        }
        let life = self.life;
        let before = usize::try_from(ask.before).unwrap_or(usize::MAX);
        let (blocks, next) = pool.blocks.list(ask.bucket, before, FILE_KEYS_MAX);
        Ok(FileKeysAnswer {
            holds: holdings
                .place(ask.bucket, life.node, life.incarnation)
                .is_some(),
            keys: blocks.into_iter().map(key_of).collect(),
            next: u32::try_from(next).unwrap_or(0),
        })
    }

    /// The source of a dataset of a pool, to read a file of it that it did not refuse just now.
    fn source_of(&self, pool: PoolId, dataset: &str, file: FileId) -> Option<Source> {
        let may_be = !self.refused.is(dataset, file);
        may_be.then(|| self.source(pool, dataset))?
    }

    /// The source of a dataset of a pool, as the map has it.
    fn source(&self, pool: PoolId, dataset: &str) -> Option<Source> {
        let map = self.map();
        let (there, entry) = map.dataset(dataset)?;
        if there.id != pool || self.refused.is_all(dataset) {
            return None;
        }
        let known = self.sources.lock().get(&entry.source).cloned();
        if known.is_some() {
            return known;
        }
        match parse(&entry.source) {
            Ok(source) => {
                let mut sources = self.sources.lock();
                let named = |text: &String| {
                    let pools = map.pools.values().filter_map(|p| p.holdings());
                    pools.flat_map(|h| &h.datasets).any(|d| d.source == *text)
                };
                sources.retain(|text, _| named(text));
                sources.insert(entry.source.clone(), source.clone());
                Some(source)
            }
            Err(error) => {
                tracing::debug!(%dataset, %error, "this node does not reach a source: mounts read it themselves");
                None
            }
        }
    }
}

/// The source by its words. A bucket's credentials are read from files, which may be on a file server that does not answer for
/// seconds: others' work goes on meanwhile.
fn parse(source: &str) -> Result<Source, SourceError> {
    let here = tokio::runtime::Handle::try_current().map(|handle| handle.runtime_flavor());
    match here {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(|| Source::parse(source)),
        _ => Source::parse(source),
    }
}

impl Role {
    fn of(life: Life, holdings: &Holdings, bucket: u32) -> Role {
        Role {
            holder: holdings
                .place(bucket, life.node, life.incarnation)
                .is_some(),
            home: pins::is_home(holdings, bucket, life),
        }
    }
}

impl FilesPool {
    fn new(
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

    fn set_budget(&self, bytes: u64) {
        if self.budget_bytes.swap(bytes, Ordering::Relaxed) != bytes
            && let Err(error) = self.blocks.set_limit(bytes)
        {
            tracing::warn!(pool = %self.id, %error, "the pool keeps more than its new budget");
        }
    }

    /// Bytes of blocks that are there.
    pub(crate) fn used_bytes(&self) -> u64 {
        let figures = self.blocks.figures();
        (figures.frames_spare + figures.frames_last) as u64 * PART_BYTES as u64
    }

    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes.load(Ordering::Relaxed)
    }

    /// Tells spare copies from last ones, where holders have changed, and lets go of what is of no bucket of this
    /// node any more. No two threads at once.
    fn sort(&self, life: Life, holdings: &Holdings) {
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
    fn going(&self, life: Life, holdings: &Holdings) -> Vec<u32> {
        let sorted = self.sorted.lock();
        let held = (0..).zip(&sorted.roles).filter(|(_, was)| was.holder);
        let gone = held.filter(|(bucket, _)| !Role::of(life, holdings, *bucket).holder);
        gone.map(|(bucket, _)| bucket).collect()
    }

    /// Bytes of a file, if all are there.
    fn get(&self, file: FileId, from: u64, len: usize, moment: u32) -> Option<Bytes> {
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
    fn keep(&self, file: FileId, size: u64, from: u64, bytes: &[u8], moment: u32) {
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
fn block_at(file: FileId, at: u64) -> Option<(BlockKey, usize)> {
    let key = BlockKey {
        file: [file.high, file.low],
        block: u32::try_from(at / BLOCK_BYTES as u64).ok()?,
    };
    Some((key, (at % BLOCK_BYTES as u64) as usize))
}

fn file_of(key: BlockKey) -> FileId {
    let [high, low] = key.file;
    FileId { high, low }
}

fn key_of(block: Listed) -> FileKey {
    FileKey {
        file: file_of(block.key),
        block: block.key.block,
        bytes: block.bytes,
        parts: block.parts,
    }
}

fn bucket_of(holdings: &Holdings, file: FileId, at: u64) -> u32 {
    let block = (at / BLOCK_BYTES as u64) as u32;
    holdings.bucket_of([file.high, file.low], block)
}

/// Of those that hold a bucket, its home alone keeps its blocks as last copies: if all others took theirs for spare and it did too,
/// all would give up the same ones first.
fn copies(holdings: &Holdings, bucket: u32, life: Life) -> Copies {
    match holdings.home(bucket) {
        Some(home) if home.node != life.node => Copies::Spare,
        _ => Copies::Last,
    }
}

/// Refuses what is no range of one stretch.
pub(crate) fn check_range(from: u64, len: u64) -> Result<(), ErrorPacket> {
    let within = from % STRETCH_BYTES + len <= STRETCH_BYTES
        && (from / BLOCK_BYTES as u64) < u64::from(u32::MAX);
    if len > 0 && len <= STRETCH_BYTES && within {
        return Ok(());
    }
    let text =
        format!("{len} bytes from {from} are not within one stretch of {STRETCH_BYTES} bytes");
    Err(ErrorPacket::new(ErrorCode::Malformed, text))
}

#[cfg(test)]
mod tests {
    use staves_model::{Change, ClusterId, Holder, Incarnation, Medium, NodeId, PoolKind, Scheme};
    use staves_net::{Identity, PeerOptions};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn files(memory_bytes: u64) -> Files {
        let life = Life {
            cluster: ClusterId(7),
            node: NodeId(1),
            incarnation: Incarnation(1),
        };
        let identity = Identity::admin(life.cluster);
        let peers = Peers::new(identity, PeerOptions::default(), Arc::new(|_, _| {}));
        Files::new(life, peers, Arena::new(1).unwrap(), memory_bytes)
    }

    /// A cluster of one node.
    fn cluster(memory_bytes: u64) -> ClusterMap {
        let mut map = ClusterMap::default();
        let bootstrap = Change::Bootstrap {
            cluster: ClusterId(7),
        };
        let up = Change::NodeUp {
            id: None,
            name: "a node".into(),
            zone: None,
            native: "127.0.0.1:1600".into(),
            resp: "127.0.0.1:6379".into(),
            admin: "127.0.0.1:1680".into(),
            memory_bytes,
            durable: true,
        };
        map.apply(None, &bootstrap).unwrap();
        map.apply(None, &up).unwrap();
        map
    }

    fn make_pool(map: &mut ClusterMap, name: &str, node_budget_bytes: u64) -> PoolId {
        let pool = Change::CreatePool {
            name: name.into(),
            kind: PoolKind::Files(Holdings::default()),
            scheme: Scheme { m: 1, k: 0 },
            medium: Medium::Ram,
            node_budget_bytes,
            buckets: 4,
            may_start_empty: true,
        };
        map.apply(None, &pool).unwrap();
        map.pool_named(name).unwrap().id
    }

    /// Regression: a new pool might use all of the node's memory until it was first looked at.
    #[test]
    fn a_new_pool_has_at_first_what_is_certainly_free() {
        let (files, mut map) = (files(1 << 30), cluster(1 << 30));
        let room = |id: PoolId| {
            let frames = files.pool(id).unwrap().blocks.figures().frames_max;
            frames as u64 * PART_BYTES as u64
        };
        let first = make_pool(&mut map, "first", 700 * MIB);
        files.follow(&Arc::new(map.clone()));
        assert_eq!(room(first), 700 * MIB);
        let second = make_pool(&mut map, "second", 1 << 30);
        files.follow(&Arc::new(map.clone()));
        assert_eq!(room(second), 324 * MIB, "the rest");
        let third = make_pool(&mut map, "third", 1 << 30);
        files.follow(&Arc::new(map.clone()));
        files.settle();
        assert!(room(third) <= MIB, "there is no more: {}", room(third));
        assert_eq!((room(first), room(second)), (700 * MIB, 324 * MIB));
        // One that is gone counts for what it uses until that has gone back.
        let pool = files.pool(first).unwrap();
        let id = FileId { high: 7, low: 9 };
        pool.keep(id, MIB, 0, &[7; MIB as usize], 1);
        let name = "first".to_owned();
        map.apply(None, &Change::DeletePool { name }).unwrap();
        let fourth = make_pool(&mut map, "fourth", 1 << 30);
        files.follow(&Arc::new(map.clone()));
        assert_eq!(room(fourth), 699 * MIB);
        files.settle();
        assert!(room(fourth) <= MIB, "the others come first");
    }

    /// Regression: a bucket that was given up and copied anew, before its old blocks had gone, was listed with holes.
    #[test]
    fn what_is_given_up_is_known_until_its_blocks_have_gone() {
        let (files, mut map) = (files(1 << 30), cluster(1 << 30));
        let id = make_pool(&mut map, "files", 64 * MIB);
        let holder = Holder {
            node: files.life.node,
            incarnation: files.life.incarnation,
            leaving: false,
        };
        let held = |buckets: &[u32], revision| Holdings {
            buckets: (0..4)
                .map(|b| Vec::from_iter(buckets.contains(&b).then_some(holder)))
                .collect(),
            revision: Revision(revision),
            ..Holdings::default()
        };
        files.follow(&Arc::new(map));
        let (pool, life) = (files.pool(id).unwrap(), files.life);
        let all = held(&[0, 1, 2, 3], 5);
        pool.sort(life, &all);
        assert!(pool.going(life, &all).is_empty());
        for file in 0..8 {
            let id = FileId { high: file, low: 9 };
            pool.keep(id, MIB, 0, &[7; MIB as usize], 1);
        }
        let less = held(&[1, 3], 6);
        assert_eq!(pool.going(life, &less), [0, 2]);
        let bytes = || pool.blocks.bucket_bytes();
        assert!(bytes().iter().sum::<u64>() == 8 * MIB);
        pool.sort(life, &less);
        assert!(pool.going(life, &less).is_empty());
        assert_eq!((bytes()[0], bytes()[2]), (0, 0));
    }

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
