//! The home's part in recovery after the end of a node: it reports the parts that it lacks, and fetches them. It does so behind all
//! readers, each stretch in its turn with them, so that nothing is read twice; and only where there is room beside the last copies
//! of other blocks, which it never evicts for it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use staves_files::{FileVersion, Keep, Source};
use staves_model::STRETCH_BLOCKS;
use staves_model::mutant::{Mutant, planted};
use staves_store::blocks::{BLOCK_PARTS, BlockKey, PART_BYTES};
use staves_wire::files::{FileId, FileLost, FileLostAnswer, FileNamed};
use staves_wire::{ErrorCode, ErrorPacket};

use super::fetch::{hold, log};
use super::{Files, FilesPool, STRETCH_BYTES, bucket_of};

/// With more readers than this at the source, or waiting for it, it is left to them.
const READERS_MAX: usize = 2;
/// Frames that stay free for what comes in meanwhile.
const SLACK: usize = 128;
/// The bound on a source's answer for a run of parts.
const FETCH: Duration = Duration::from_secs(10);

pub(super) async fn lost(
    files: &Files,
    pool: &FilesPool,
    ask: FileLost,
    deadline: Instant,
) -> Result<FileLostAnswer, ErrorPacket> {
    let from = u64::from(ask.stretch) * STRETCH_BYTES;
    if ask.stretch > u32::MAX / STRETCH_BLOCKS {
        let text = format!("stretch {} is beyond the end of any file", ask.stretch);
        return Err(ErrorPacket::new(ErrorCode::Malformed, text));
    }
    let map = files.map();
    let holdings = map.pools.get(&pool.id).and_then(|p| p.holdings());
    let bucket = holdings.map(|h| (h, bucket_of(h, ask.file, from)));
    let home = bucket.and_then(|(h, bucket)| h.home(bucket));
    if !home.is_some_and(|h| h.is(files.life.node, files.life.incarnation)) {
        let text = "this node is not the home of these bytes, by its map";
        return Err(ErrorPacket::new(ErrorCode::NotServing, text));
    }
    let FileLost { file, stretch, .. } = ask;
    let parts = ask.parts.into();
    let answer = |missing: u128| {
        let missing = missing.into();
        Ok(FileLostAnswer { missing })
    };
    let missing = missing(pool, file, stretch, parts);
    let Some(named) = ask.named.filter(|_| missing != 0) else {
        return answer(missing);
    };
    let version = version(named, file)?;
    if pool.flights.readers() > READERS_MAX {
        return Err(busy());
    }
    let Some(_room) = files.room.spare_flight(STRETCH_BYTES as u32) else {
        return Err(busy());
    };
    let line = pool.flights.line_up((file, stretch.into()), false);
    let Ok(_turn) = tokio::time::timeout_at(deadline.into(), line.turn()).await else {
        return Err(busy());
    };
    if let Some(source) = files.source_of(pool.id, &version.dataset, file) {
        // A reader may have fetched it meanwhile.
        let missing = match planted(Mutant::LostFetchedWithoutLook) {
            true => missing,
            false => self::missing(pool, file, stretch, parts),
        };
        fetch(
            files,
            pool,
            &source,
            &version,
            (file, stretch, missing),
            deadline,
        )
        .await;
    }
    answer(self::missing(pool, file, stretch, parts))
}

/// Fetches what is missing, until something stands against it.
async fn fetch(
    files: &Files,
    pool: &FilesPool,
    source: &Source,
    version: &FileVersion,
    (file, stretch, missing): (FileId, u32, u128),
    deadline: Instant,
) {
    let start = u64::from(stretch) * STRETCH_BYTES;
    for (first, end) in runs(missing) {
        let from = start + first * PART_BYTES as u64;
        let end = (start + end * PART_BYTES as u64).min(version.size);
        if from >= end || pool.flights.readers() > READERS_MAX {
            return;
        }
        let len = end - from;
        let figures = pool.blocks.figures();
        let room = figures.frames_max.saturating_sub(figures.frames_last);
        if room < len.div_ceil(PART_BYTES as u64) as usize + SLACK {
            return;
        }
        let until = deadline.min(Instant::now() + FETCH);
        let read = source.read_for_others(version, from, len as usize);
        let (bytes, keep) = match tokio::time::timeout_at(until.into(), read).await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => return log(&error),
            Err(_) => return,
        };
        let counts = &pool.counts;
        counts.fetched_bytes.fetch_add(len, Ordering::Relaxed);
        counts.again_bytes.fetch_add(len, Ordering::Relaxed);
        counts.fetches.fetch_add(1, Ordering::Relaxed);
        if keep != Keep::Yes {
            return;
        }
        hold(files, pool, file, version.size, from, &bytes);
    }
}

/// The parts of these that are not there.
fn missing(pool: &FilesPool, file: FileId, stretch: u32, parts: u128) -> u128 {
    let mut there = 0;
    for block in 0..STRETCH_BLOCKS {
        let key = BlockKey {
            file: [file.high, file.low],
            block: stretch * STRETCH_BLOCKS + block,
        };
        there |= u128::from(pool.blocks.parts(key)) << (block * BLOCK_PARTS as u32);
    }
    parts & !there
}

fn version(named: FileNamed, file: FileId) -> Result<FileVersion, ErrorPacket> {
    let version = FileVersion {
        dataset: named.dataset,
        path: named.path.to_vec(),
        size: named.size,
        version: named.version,
    };
    match version.id() == file {
        true => Ok(version),
        false => {
            let text = "the digest is not that of the version that is named";
            Err(ErrorPacket::new(ErrorCode::Malformed, text))
        }
    }
}

fn busy() -> ErrorPacket {
    let text = "readers wait for the source, or as many bytes are under way as may be: ask later";
    ErrorPacket::new(ErrorCode::Busy, text)
}

/// Runs of parts of a stretch: from, to.
fn runs(parts: u128) -> impl Iterator<Item = (u64, u64)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let left = parts.checked_shr(at)?;
        if left == 0 {
            return None;
        }
        let first = at + left.trailing_zeros();
        let end = first + (parts >> first).trailing_ones();
        at = end;
        Some((first.into(), end.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_a_stretchs_parts() {
        let of = |parts| runs(parts).collect::<Vec<_>>();
        assert_eq!(of(0), []);
        assert_eq!(of(u128::MAX), [(0, 128)]);
        assert_eq!(of(0b110_0001 | 1 << 127), [(0, 1), (5, 7), (127, 128)]);
    }
}
