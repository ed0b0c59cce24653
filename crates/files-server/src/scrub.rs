//! Compares checksums of blocks that nobody reads, slowly, always: memory fails quietly (row D9). What is damaged is dropped
//! and comes from another holder or the source when it is asked for; what is pinned, at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use staves_model::PoolId;
use staves_store::blocks::BLOCK_BYTES;
use staves_wire::files::{CHECKED_ALL, FileCheck, FileChecked};
use staves_wire::{ErrorCode, ErrorPacket};

use super::{Files, FilesPool};

/// Bytes of each pool that are compared a second: 64 GiB in an hour, for some thousandths of a processor.
const BYTES_PER_SECOND: u64 = 18 << 20;
/// The interval between two steps.
const ROUND: Duration = Duration::from_millis(250);
/// The bytes that one question covers.
const ASKED_BYTES: u64 = 32 << 20;

pub(super) async fn run(files: Arc<Files>) {
    let mut places: BTreeMap<PoolId, usize> = BTreeMap::new();
    let mut rounds = tokio::time::interval(ROUND);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let bytes = (BYTES_PER_SECOND * ROUND.as_millis() as u64 / 1000).max(BLOCK_BYTES as u64);
    loop {
        rounds.tick().await;
        let pools = files.pools();
        places.retain(|id, _| pools.iter().any(|pool| pool.id == *id));
        for pool in pools {
            let place = places.entry(pool.id).or_default();
            *place = look(&pool, *place, bytes).next.unwrap_or(0);
        }
    }
}

fn look(pool: &FilesPool, from: usize, bytes: u64) -> staves_store::blocks::Checked {
    let found = pool.blocks.check(from, bytes);
    let scrubbed = &pool.counts.scrubbed_bytes;
    scrubbed.fetch_add(found.bytes, Ordering::Relaxed);
    if found.damaged > 0 {
        tracing::error!(
            pool = %pool.id, blocks = found.damaged,
            "blocks in memory are not what came in: dropped, to be fetched again; if this comes again, test this machine's memory"
        );
    }
    found
}

/// Answers a person's tool that wants all of it looked at now.
pub(super) fn asked(pool: &FilesPool, ask: FileCheck) -> Result<FileChecked, ErrorPacket> {
    let from = usize::try_from(ask.from).map_err(|_| {
        ErrorPacket::new(ErrorCode::Malformed, "a place beyond any table".to_owned())
    })?;
    let found = look(pool, from, ASKED_BYTES);
    Ok(FileChecked {
        next: found.next.map_or(CHECKED_ALL, |next| next as u32),
        bytes: found.bytes,
        damaged: found.damaged,
    })
}
