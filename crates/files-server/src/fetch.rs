//! The home's part: each stretch is fetched by one at a time, so that what many ask for is read once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use staves_files::{FileVersion, Keep, Source, SourceError};
use staves_model::mutant::{Mutant, planted};
use staves_store::blocks::PART_BYTES;
use staves_wire::files::{FileFetch, FileId, FilePut};
use staves_wire::{ErrorCode, ErrorPacket};

use super::readahead::{self, ReadaheadRequest};
use super::{Files, FilesPool, STRETCH_BYTES, bucket_of};

/// Stretches that are being fetched. Whoever wants one that is waits for its turn, and mostly finds it there then.
#[derive(Default)]
pub(super) struct Flights {
    all: Mutex<BTreeMap<(FileId, u64), Flight>>,
    /// Readers that wait for the source, or for their turn.
    readers: AtomicUsize,
}

/// One stretch: the turn, and how many want it.
type Flight = (Arc<tokio::sync::Mutex<()>>, usize);

/// A place in the line for one stretch.
pub(super) struct Turn<'a> {
    flights: &'a Flights,
    key: (FileId, u64),
    turn: Arc<tokio::sync::Mutex<()>>,
    is_reader: bool,
}

impl Flights {
    /// The number of readers that wait.
    pub(super) fn readers(&self) -> usize {
        self.readers.load(Ordering::Relaxed)
    }

    pub(super) fn line_up(&self, key: (FileId, u64), is_reader: bool) -> Turn<'_> {
        self.readers
            .fetch_add(usize::from(is_reader), Ordering::Relaxed);
        let mut all = self.all.lock();
        let (turn, wanted) = all.entry(key).or_default();
        *wanted += 1;
        Turn {
            flights: self,
            key,
            turn: turn.clone(),
            is_reader,
        }
    }
}

impl Turn<'_> {
    /// Waits for it.
    pub(super) async fn turn(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        if planted(Mutant::TurnNotAwaited) {
            return None;
        }
        Some(self.turn.lock().await)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let readers = &self.flights.readers;
        readers.fetch_sub(usize::from(self.is_reader), Ordering::Relaxed);
        let mut all = self.flights.all.lock();
        if let Some((_, wanted)) = all.get_mut(&self.key) {
            *wanted -= 1;
            if *wanted == 0 {
                all.remove(&self.key);
            }
        }
    }
}

/// The result of a fetch.
pub(super) enum Fetched {
    /// The bytes, and whether they may be kept.
    Bytes(Bytes, Keep),
    /// This node does not reach the source, or finds another version there; for people.
    Not(String),
}

/// Bytes from memory, or else from the source.
pub(super) async fn fetch(
    files: &Files,
    pool: &FilesPool,
    ask: FileFetch,
    deadline: Instant,
) -> Result<Fetched, ErrorPacket> {
    let (file, from, len) = (ask.read.file, ask.read.from, ask.read.len as usize);
    let line = pool.flights.line_up((file, from / STRETCH_BYTES), true);
    let Ok(_turn) = tokio::time::timeout_at(deadline.into(), line.turn()).await else {
        let text = "others fetch the same bytes from the source and it is slow";
        return Err(ErrorPacket::new(ErrorCode::Busy, text));
    };
    let held = pool.get(file, from, len, files.moment());
    if let Some(bytes) = held.filter(|_| !planted(Mutant::FetchedWithoutLook)) {
        files.readahead.read(file, from, len as u64);
        return Ok(Fetched::Bytes(bytes, Keep::Yes));
    }
    let Some(source) = files.source_of(pool.id, &ask.dataset, file) else {
        let why = format!("the source of {} is not for this node", ask.dataset);
        return Ok(Fetched::Not(why));
    };
    let version = FileVersion {
        dataset: ask.dataset,
        path: ask.path.to_vec(),
        size: ask.size,
        version: ask.version,
    };
    if version.id() != file && !planted(Mutant::DigestNotChecked) {
        let text = "the digest is not that of the version that is named";
        return Err(ErrorPacket::new(ErrorCode::Malformed, text));
    }
    let (start, end) = whole_parts(from, len, ask.size);
    let wanted = (end - start) as usize;
    let read = source.read_for_others(&version, start, wanted);
    let Ok(read) = tokio::time::timeout_at(deadline.into(), read).await else {
        let text = format!("the source of {} did not answer in time", version.dataset);
        return Err(ErrorPacket::new(ErrorCode::Deadline, text));
    };
    let (bytes, keep) = match read {
        Ok(read) => read,
        Err(error) => {
            // What a folder refuses costs little to ask for again.
            if let (SourceError::Denied { .. }, Source::Remote(_)) = (&error, &source) {
                files.refused.add(&version.dataset, file);
            }
            log(&error);
            return Ok(Fetched::Not(error.to_string()));
        }
    };
    files.refused.gave(&version.dataset);
    pool.counts
        .asked_bytes
        .fetch_add(len as u64, Ordering::Relaxed);
    pool.counts
        .fetched_bytes
        .fetch_add(wanted as u64, Ordering::Relaxed);
    pool.counts.fetches.fetch_add(1, Ordering::Relaxed);
    if keep == Keep::Yes {
        hold(files, pool, file, ask.size, start, &bytes);
        let block = readahead::goes_on(pool, file, ask.size, start, wanted as u64);
        let rest = block.map(|block| ReadaheadRequest::new(pool.id, block, version, file, source));
        files
            .readahead
            .missed(file, len as u64, wanted as u64, rest);
    }
    let skip = (from - start) as usize;
    Ok(Fetched::Bytes(bytes.slice(skip..skip + len), keep))
}

/// Keeps what was fetched, if this node holds the bucket, and gives the other holders a copy.
pub(super) fn hold(
    files: &Files,
    pool: &FilesPool,
    file: FileId,
    size: u64,
    from: u64,
    bytes: &Bytes,
) {
    let map = files.map();
    let Some(holdings) = map.pools.get(&pool.id).and_then(|p| p.holdings()) else {
        return;
    };
    let bucket = bucket_of(holdings, file, from);
    let life = files.life;
    if holdings
        .place(bucket, life.node, life.incarnation)
        .is_some()
    {
        pool.keep(file, size, from, bytes, files.moment());
    }
    let put = FilePut {
        pool: pool.id,
        file,
        size,
        from,
        bytes: bytes.clone(),
        forwarded: true,
    };
    files.pass_on(&map, holdings, bucket, put);
}

/// The range of whole parts around a range; it stays within the stretch and the file.
fn whole_parts(from: u64, len: usize, size: u64) -> (u64, u64) {
    let part = PART_BYTES as u64;
    let start = from / part * part;
    let end = (from + len as u64).next_multiple_of(part).min(size);
    (start, end)
}

pub(super) fn log(error: &SourceError) {
    match error {
        SourceError::Changed { .. }
        | SourceError::NotFound { .. }
        | SourceError::Absent { .. }
        | SourceError::Malformed { .. }
        | SourceError::Private { .. } => {
            tracing::debug!(%error, "not this version here: the mount reads it itself");
        }
        _ => tracing::warn!(%error, "a source cannot be read here: mounts read it themselves"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_parts_cover_and_stay_within() {
        let part = PART_BYTES as u64;
        assert_eq!(whole_parts(0, 1, 10), (0, 10));
        assert_eq!(whole_parts(part, 1, 10 * part), (part, 2 * part));
        assert_eq!(whole_parts(part - 1, 2, 10 * part), (0, 2 * part));
        let last = STRETCH_BYTES - 1;
        assert_eq!(
            whole_parts(last, 1, 1 << 40),
            (STRETCH_BYTES - part, STRETCH_BYTES)
        );
        assert_eq!(
            whole_parts(3 * part + 5, 7, 3 * part + 12),
            (3 * part, 3 * part + 12)
        );
    }
}
