//! Nodes on this machine: their blocks are read where they lie, without a message.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use staves_files::attach::attach;
use staves_model::{ClusterMap, Incarnation, NodeId, PoolId};
use staves_store::blocks::{BLOCK_BYTES, BlockKey, BlockMapping};
use staves_wire::files::FileId;

/// Reads are reported after so many, or after so long.
const TOLD_READS: usize = 1024;
const TOLD_AFTER: Duration = Duration::from_millis(500);
/// Reads that are kept when a node does not take the news; more are forgotten.
const UNTOLD_MAX: usize = 4 * TOLD_READS;

/// The memory of the nodes of one pool that run on this machine.
#[derive(Default)]
pub(crate) struct Locals {
    all: RwLock<Vec<Arc<Local>>>,
}

struct Local {
    pool: PoolId,
    node: NodeId,
    incarnation: Incarnation,
    mapping: BlockMapping,
    news: Mutex<News>,
}

/// Entries that were read and not told of yet.
struct News {
    stream: UnixStream,
    entries: Vec<u32>,
    told: Instant,
}

impl Locals {
    /// Looks which nodes of the map are on this machine, and lets go of those that are not any more. Blocks the
    /// thread, but not for long.
    pub(crate) fn look(&self, map: &ClusterMap, pool: PoolId) {
        let now = self.all.read().clone();
        let is_up = |l: &&Arc<Local>| l.pool == pool && map.is_up(l.node, l.incarnation);
        let mut then: Vec<Arc<Local>> = now.iter().filter(is_up).cloned().collect();
        let stayed = then.len();
        for node in map
            .nodes
            .values()
            .filter(|n| map.is_up(n.id, n.incarnation))
        {
            let known = then
                .iter()
                .any(|l| l.node == node.id && l.incarnation == node.incarnation);
            if !known {
                then.extend(Local::find(map, node.id, node.incarnation, pool).map(Arc::new));
            }
        }
        if then.len() != stayed || stayed != now.len() {
            // What is let go of is unmapped, which nobody who reads waits for.
            drop(std::mem::replace(&mut *self.all.write(), then));
        }
    }

    /// Fills `into` from one of them, if one has all of it.
    pub(crate) fn read(&self, file: FileId, from: u64, into: &mut [u8]) -> bool {
        let all = self.all.read();
        all.iter().any(|local| local.read(file, from, into))
    }

    /// Returns true if there is any.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.read().is_empty()
    }
}

impl Local {
    fn find(
        map: &ClusterMap,
        node: NodeId,
        incarnation: Incarnation,
        pool: PoolId,
    ) -> Option<Local> {
        let (memory, stream) = match attach(map.cluster, node, incarnation, pool) {
            Ok(given) => given?,
            Err(error) => {
                tracing::debug!(%node, %error, "its memory is not given: it is asked instead");
                return None;
            }
        };
        match BlockMapping::open(memory) {
            Ok(mapping) => Some(Local {
                pool,
                node,
                incarnation,
                mapping,
                news: Mutex::new(News {
                    stream,
                    entries: Vec::new(),
                    told: Instant::now(),
                }),
            }),
            Err(error) => {
                tracing::warn!(%node, %error, "its memory cannot be read here: it is asked instead");
                None
            }
        }
    }

    fn read(&self, file: FileId, from: u64, into: &mut [u8]) -> bool {
        let mut done = 0;
        let mut last = None;
        while done < into.len() {
            let at = from + done as u64;
            let within = (at % BLOCK_BYTES as u64) as usize;
            let Ok(block) = u32::try_from(at / BLOCK_BYTES as u64) else {
                return false;
            };
            let key = BlockKey {
                file: [file.high, file.low],
                block,
            };
            let part = (into.len() - done).min(BLOCK_BYTES - within);
            // A damaged block is a miss here; the node finds it damaged itself when it is asked.
            match self.mapping.read(key, within, &mut into[done..done + part]) {
                Ok(entry) => last = Some(entry),
                Err(_) => return false,
            }
            done += part;
        }
        // Who holds the lock tells of enough reads: this is for an order, not a count.
        if let (Some(entry), Some(mut news)) = (last, self.news.try_lock()) {
            news.add(entry);
        }
        true
    }
}

impl News {
    fn add(&mut self, entry: u32) {
        if self.entries.last() == Some(&entry) {
            return;
        }
        if self.entries.len() < UNTOLD_MAX {
            self.entries.push(entry);
        }
        let full = self.entries.len().is_multiple_of(TOLD_READS);
        if !full && self.told.elapsed() < TOLD_AFTER {
            return;
        }
        self.told = Instant::now();
        let bytes: Vec<u8> = self.entries.iter().flat_map(|e| e.to_le_bytes()).collect();
        match self.stream.write(&bytes) {
            // A part of an entry would shift all that follow.
            Ok(sent) if sent % 4 == 0 => {
                self.entries.drain(..sent / 4);
            }
            Ok(_) => {
                let _ = self.stream.shutdown(std::net::Shutdown::Both);
                self.entries.clear();
            }
            Err(_) if self.entries.len() >= UNTOLD_MAX => self.entries.clear(),
            Err(_) => {}
        }
    }
}
