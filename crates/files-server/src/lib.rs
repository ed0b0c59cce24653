//! A node's part of files: its part of the blocks of each files pool.
//!
//! A block never changes under its key. So there is no protocol between holders: any of them answers, each evicts
//! for itself, and a block that one lacks comes from another or from the source. Only a bucket's home fetches from the
//! source, each part once, however many ask; it passes the bytes on to the other holders and waits for none of them.
//!
//! **Layout.**
//! - `pool.rs`: the blocks of one pool. `asked.rs`: requests about them. `facts.rs`: what status shows.
//! - `place.rs`: takes buckets on and gives them up. `returned.rs`: gives blocks back after a false death.
//! - `fetch.rs`: the home's fetches. `readahead.rs`: fetches ahead of a reader in order.
//! - `neighbour.rs`: remembers the blocks of another node. `recovery.rs`: has them fetched again when that node is gone, by `names.rs` and `lost.rs`.
//! - `pins.rs`: keeps pinned files, with the help of others (`helpers.rs`). `scrub.rs`: finds damaged blocks.
//! - `room.rs`: bounds the memory of requests. `refused.rs`: remembers refusals of servers. `away.rs`: says which sources give no
//!   answer. `uses.rs`: what mounts report. `door.rs`: gives the memory itself to mounts on this machine.
//!
//! **Memory.** Blocks lie beside the arena of buckets, and within the node's `--memory` with it: memory that buckets take, files
//! give up ([`Files::fit`]). Requests take a bounded amount beside that; a small node's blocks leave room for it and for the
//! program, so that the process has `--memory` and a tenth at most.

mod asked;
mod away;
mod door;
pub mod facts;
mod fetch;
mod helpers;
mod lost;
mod names;
mod neighbour;
mod pins;
mod place;
mod pool;
mod readahead;
mod recovery;
mod refused;
mod returned;
mod room;
mod scrub;
mod uses;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use staves_directory::{Directory, Life};
use staves_files::Source;
use staves_model::{ClusterMap, PoolId, STRETCH_BLOCKS};
use staves_net::Peers;
use staves_store::blocks::BLOCK_BYTES;
use staves_store::{Arena, EXTENT_BYTES};
use staves_wire::files::{FILE_BYTES_MAX, FileId};
use staves_wire::{ErrorCode, ErrorPacket};

pub use self::asked::check_range;
pub use self::facts::{AgainFacts, AwayFacts, LackFacts, UseFacts};
pub use self::pool::FilesPool;
use self::pool::{bucket_of, file_of};
use self::readahead::BlockReadahead;
use self::recovery::LossRecovery;
use self::refused::Refused;
use self::returned::Returned;
use self::room::Room;
use self::uses::Uses;

/// Bytes of a stretch: what one message asks for lies within one.
const STRETCH_BYTES: u64 = STRETCH_BLOCKS as u64 * BLOCK_BYTES as u64;

const _: () = assert!(STRETCH_BYTES == FILE_BYTES_MAX as u64);

/// All files pools of this node.
pub struct Files {
    life: Life,
    peers: Peers,
    /// The arena of buckets; files have the memory that those leave.
    arena: Arc<Arena>,
    began: Instant,
    /// True if memory that is free is to hold copies.
    pub spreads: bool,
    map: RwLock<Arc<ClusterMap>>,
    pools: RwLock<BTreeMap<PoolId, Arc<FilesPool>>>,
    /// Those that the map has no more, until their memory has gone back.
    gone: Mutex<Vec<Arc<FilesPool>>>,
    /// Sources by the words that the map has for them.
    sources: Mutex<BTreeMap<String, Source>>,
    readahead: BlockReadahead,
    recovery: LossRecovery,
    room: Room,
    /// The mounts that use datasets.
    pub uses: Uses,
    refused: Refused,
}

impl Files {
    /// No pool yet; [`Files::follow`] tells of them.
    pub fn new(life: Life, peers: Peers, arena: Arc<Arena>, memory_bytes: u64) -> Files {
        Files {
            spreads: true,
            life,
            peers,
            arena,
            began: Instant::now(),
            map: RwLock::default(),
            pools: RwLock::default(),
            gone: Mutex::default(),
            sources: Mutex::default(),
            readahead: BlockReadahead::default(),
            room: Room::new(memory_bytes),
            recovery: LossRecovery::default(),
            uses: Uses::default(),
            refused: Refused::default(),
        }
    }

    /// The tasks that drive it, until they are aborted.
    pub fn drivers(files: Arc<Files>, directory: Directory) -> Vec<tokio::task::JoinHandle<()>> {
        vec![
            tokio::spawn(door::run(files.clone())),
            tokio::spawn(away::run(files.clone())),
            tokio::spawn(readahead::run(files.clone())),
            tokio::spawn(scrub::run(files.clone())),
            tokio::spawn(pins::run(files.clone())),
            tokio::spawn(neighbour::run(files.clone())),
            tokio::spawn(recovery::run(files.clone())),
            tokio::spawn(returned::run(files.clone())),
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
    pub fn follow(&self, map: &Arc<ClusterMap>) {
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
        let drains = map.nodes.get(&self.life.node).is_some_and(|n| n.draining);
        for pool in self.pools() {
            let entry = map.pools.get(&pool.id);
            let holdings = entry.and_then(|p| p.holdings());
            if let Some(holdings) = holdings
                && !pool.keeps_all(self, holdings, drains)
            {
                pool.sort(self.life, holdings);
                *pool.returned.lock() = Returned::No;
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

    /// The bytes that all files pools may have.
    fn beside_buckets(&self) -> u64 {
        let taken = self.arena.extents() - self.arena.free_extents();
        let taken = u64::from(taken) * EXTENT_BYTES as u64;
        self.room.for_blocks().saturating_sub(taken)
    }

    /// The bytes that a new pool may have until [`Files::fit`] comes to it, which may take a while where much memory goes back: the bytes that
    /// no pool uses or may use, those that are gone included.
    fn certainly_free(&self, pools: &BTreeMap<PoolId, Arc<FilesPool>>) -> u64 {
        let given = pools.values().map(|p| p.budget_bytes().max(p.used_bytes()));
        let gone = self.gone.lock();
        let going = gone.iter().map(|pool| pool.used_bytes());
        let left = self.beside_buckets();
        given.chain(going).fold(left, u64::saturating_sub)
    }

    /// Bytes of all pools' blocks that are there.
    pub fn used_bytes(&self) -> u64 {
        self.pools().iter().map(|pool| pool.used_bytes()).sum()
    }

    /// A pool, if it is one of files.
    pub fn pool(&self, id: PoolId) -> Result<Arc<FilesPool>, ErrorPacket> {
        self.pools.read().get(&id).cloned().ok_or_else(|| {
            let text = format!("there is no files pool {id} on this node, by its map");
            ErrorPacket::new(ErrorCode::NotFound, text)
        })
    }

    /// All pools.
    pub fn pools(&self) -> Vec<Arc<FilesPool>> {
        self.pools.read().values().cloned().collect()
    }

    /// The progress of recovery after the end of a node.
    pub fn fetching_again(&self) -> Option<AgainFacts> {
        self.recovery.now()
    }

    /// Pinned files that this node is to keep and has not, and why.
    pub fn lacking(&self) -> Vec<LackFacts> {
        let pools = self.pools();
        let all = pools.iter().flat_map(|pool| pool.pinned.lock().lacking());
        all.take(pins::LACKING_MAX).collect()
    }

    /// The number of lost nodes that were recovered from.
    pub fn losses(&self) -> u64 {
        self.recovery.ended()
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
        match names::open_source(&entry.source, self.room.names_bytes()) {
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

#[cfg(test)]
mod tests {
    mod reads;

    use staves_model::{
        Change, ClusterId, Holder, Holdings, Incarnation, NodeId, Revision, testing,
    };
    use staves_net::{Identity, PeerOptions};
    use staves_store::blocks::PART_BYTES;

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
        let mut map = testing::cluster(0);
        map.apply(None, &testing::new_node("n1", memory_bytes))
            .unwrap();
        map
    }

    fn make_pool(map: &mut ClusterMap, name: &str, node_budget_bytes: u64) -> PoolId {
        let pool = testing::create_files_pool(name, 4, node_budget_bytes);
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
}
