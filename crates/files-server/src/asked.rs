//! Requests about this node's blocks, by mounts, by other nodes and by people's tools.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use staves_model::mutant::{Mutant, planted};
use staves_model::{ClusterMap, Holdings};
use staves_net::Reply;
use staves_store::blocks::{BLOCK_BYTES, PART_BYTES};
use staves_wire::files::{
    FILE_KEYS_MAX, FileBytes, FileChanges, FileChangesAnswer, FileCheck, FileChecked, FileFetch,
    FileKeys, FileKeysAnswer, FileLost, FileLostAnswer, FilePut, FileRead,
};
use staves_wire::{ErrorCode, ErrorPacket, Message};

use super::fetch::{self, Fetched};
use super::pool::{bucket_of, key_of};
use super::{Files, STRETCH_BYTES, lost, neighbour, scrub};

/// The bound on passing bytes to a holder; no request waits for it.
const PUT: Duration = Duration::from_secs(2);

impl Files {
    /// Compares checksums for a person's tool.
    pub fn check(&self, ask: FileCheck) -> Result<FileChecked, ErrorPacket> {
        scrub::asked(&*self.pool(ask.pool)?, ask)
    }

    /// Answers from memory.
    pub fn read(&self, ask: &FileRead) -> Result<FileBytes, ErrorPacket> {
        let pool = self.pool(ask.pool)?;
        let bytes = pool.get(ask.file, ask.from, ask.len as usize, self.moment());
        if bytes.is_some() {
            pool.counts.hits.fetch_add(1, Ordering::Relaxed);
            self.readahead.read(ask.file, ask.from, ask.len.into());
        }
        Ok(FileBytes { bytes })
    }

    /// Room for bytes that are fetched. The caller keeps it until the answer waits to be written, and is counted there.
    pub async fn flight(
        &self,
        bytes: u32,
        deadline: Instant,
    ) -> Result<tokio::sync::SemaphorePermit<'_>, ErrorPacket> {
        self.room.flight(bytes, deadline).await
    }

    /// True if an answer of so many bytes may be sent now.
    pub fn may_answer(&self, reply: &Reply, bytes: u32) -> bool {
        self.room.may_answer(reply, bytes)
    }

    /// Waits until it may be.
    pub async fn wait_to_answer(
        &self,
        reply: &Reply,
        bytes: u32,
        deadline: Instant,
    ) -> Result<(), ErrorPacket> {
        self.room.wait_to_answer(reply, bytes, deadline).await
    }

    /// Answers from memory, or else from the source.
    pub async fn fetch(&self, ask: FileFetch, deadline: Instant) -> Result<FileBytes, ErrorPacket> {
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
    pub fn put(&self, ask: FilePut) -> Result<(), ErrorPacket> {
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
        let place = holdings.place(bucket, life.node, life.incarnation);
        if place.is_none() && !planted(Mutant::UnheldPutKept) {
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
    pub(super) fn pass_on(&self, map: &ClusterMap, holdings: &Holdings, bucket: u32, put: FilePut) {
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

    /// The changes among this node's blocks.
    pub fn changes(&self, ask: FileChanges) -> Result<FileChangesAnswer, ErrorPacket> {
        neighbour::changes(self, &*self.pool(ask.pool)?, ask)
    }

    /// Says what this node has not of what a node had that is gone, or fetches it.
    pub async fn lost(
        &self,
        ask: FileLost,
        deadline: Instant,
    ) -> Result<FileLostAnswer, ErrorPacket> {
        let pool = self.pool(ask.pool)?;
        lost::lost(self, &pool, ask, deadline).await
    }

    /// Some of what this node has of a bucket.
    pub fn keys(&self, ask: &FileKeys) -> Result<FileKeysAnswer, ErrorPacket> {
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
}

/// Refuses what is no range of one stretch.
pub fn check_range(from: u64, len: u64) -> Result<(), ErrorPacket> {
    let within = from % STRETCH_BYTES + len <= STRETCH_BYTES
        && (from / BLOCK_BYTES as u64) < u64::from(u32::MAX);
    if len > 0 && len <= STRETCH_BYTES && within {
        return Ok(());
    }
    let text =
        format!("{len} bytes from {from} are not within one stretch of {STRETCH_BYTES} bytes");
    Err(ErrorPacket::new(ErrorCode::Malformed, text))
}
