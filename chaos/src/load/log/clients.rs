//! Writers and readers of a log.

use std::sync::Arc;

use anyhow::bail;
use bytes::Bytes;
use staves_client::{ClientError, ErrorCode, LogHandle, LogSlot};
use staves_testkit::load::Random;

use super::history::{SlotSeen, content};
use super::{
    AppendOutcome, LogAppend, LogRead, LogTail, LogTrim, PATIENCE, PAUSE, READER_REST, Shared,
    TRIMMED, WRITER_REST, open, seen,
};

/// A client opens the log anew after so many operations.
const STAY: u32 = 300;
/// Most records of a batch.
const BATCH: u64 = 4;
/// Of so many operations of a reader one asks for the tail.
const TAILS: u64 = 20;
/// Of so many operations of a reader one trims, where that is done.
const TRIMS: u64 = 150;
/// The positions below its own that a reader leaves.
const KEPT: u64 = 150;

/// Appends until the run is over. A record is never sent anew: where nobody knows whether it is there, the next one has another number.
pub async fn write(shared: Arc<Shared>, log: usize, writer: u32, mut random: Random) {
    let mut number = 0;
    while !shared.stopped() {
        let Ok(handle) = open(&shared, log).await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        for _ in 0..STAY {
            if shared.stopped() {
                return;
            }
            let most = BATCH.min(handle.batch_records_max() as u64);
            let count = match random.below(4) {
                0 => 1 + random.below(most) as u32,
                _ => 1,
            };
            let append = append_once(&shared, &handle, (log, writer), (number, count)).await;
            number += u64::from(count);
            if append.is_err() {
                tokio::time::sleep(PAUSE).await;
            }
            tokio::time::sleep(WRITER_REST).await;
        }
    }
}

/// Appends records of a writer from that number on.
pub async fn append_once(
    shared: &Shared,
    handle: &LogHandle,
    (log, writer): (usize, u32),
    (first, count): (u64, u32),
) -> anyhow::Result<()> {
    let numbers = first..first + u64::from(count);
    let records: Vec<Bytes> = numbers
        .map(|number| content(log, (writer, number)).into())
        .collect();
    let at = shared.logs.begin(LogAppend {
        log,
        writer,
        first,
        count,
        call: shared.now(),
        outcome: AppendOutcome::Unknown,
    });
    let waited = tokio::time::timeout(2 * PATIENCE, handle.append(&records)).await;
    let Ok(appended) = waited else {
        let text = format!("an append to log {} did not end", handle.name());
        shared.complain(text.clone());
        bail!(text);
    };
    match appended {
        Ok(position) => {
            let returned = shared.now();
            let outcome = AppendOutcome::Acked { position, returned };
            shared.logs.ended(at, outcome);
            Ok(())
        }
        Err(error) => {
            if !error.is_uncertain() {
                shared.logs.ended(at, AppendOutcome::Refused);
            }
            wrong(shared, handle, "an append", &error);
            Err(error.into())
        }
    }
}

/// Complains about an error that no fault explains: the log is there, and has room.
fn wrong(shared: &Shared, handle: &LogHandle, what: &str, error: &ClientError) {
    let is_wrong = matches!(
        error.code(),
        ErrorCode::Refused
            | ErrorCode::NotFound
            | ErrorCode::TooLarge
            | ErrorCode::Lost
            | ErrorCode::Internal
    );
    if is_wrong {
        let log = handle.name();
        shared.complain(format!("{what} of log {log} ended with: {error}"));
    }
}

/// Follows the log from its beginning, and reads older positions again in between.
pub async fn read(shared: Arc<Shared>, log: usize, reader: u64, mut random: Random) {
    let mut next = 0;
    while !shared.stopped() {
        let Ok(handle) = open(&shared, log).await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        for _ in 0..STAY {
            if shared.stopped() {
                return;
            }
            let is_trimming = log == TRIMMED && reader == 0 && next > KEPT;
            let done = if random.below(TAILS) == 0 {
                ask_tail(&shared, &handle, log).await
            } else if is_trimming && random.below(TRIMS) == 0 {
                trim(&shared, &handle, log, next - KEPT).await
            } else {
                read_any(&shared, &handle, log, &mut next, &mut random).await
            };
            let rest = if done.is_ok() { READER_REST } else { PAUSE };
            tokio::time::sleep(rest).await;
        }
    }
}

async fn read_any(
    shared: &Shared,
    handle: &LogHandle,
    log: usize,
    next: &mut u64,
    random: &mut Random,
) -> anyhow::Result<()> {
    let again = *next > 0 && random.below(4) == 0;
    if again {
        read_once(shared, handle, log, random.below(*next)).await?;
        return Ok(());
    }
    if read_once(shared, handle, log, *next).await? != SlotSeen::PastTail {
        *next += 1;
    }
    Ok(())
}

/// Reads a position.
pub async fn read_once(
    shared: &Shared,
    handle: &LogHandle,
    log: usize,
    position: u64,
) -> anyhow::Result<SlotSeen> {
    let call = shared.now();
    let Ok(slot) = tokio::time::timeout(2 * PATIENCE, handle.read(position)).await else {
        let text = format!("a read of log {} did not end", handle.name());
        shared.complain(text.clone());
        bail!(text);
    };
    let slot = slot.inspect_err(|error| wrong(shared, handle, "a read", error))?;
    let seen = match slot {
        LogSlot::Record(bytes) => seen(log, &bytes),
        LogSlot::Junk => SlotSeen::Junk,
        LogSlot::Trimmed => SlotSeen::Trimmed,
        LogSlot::PastTail => SlotSeen::PastTail,
    };
    shared.logs.read(LogRead {
        log,
        position,
        seen: seen.clone(),
        call,
        returned: shared.now(),
    });
    Ok(seen)
}

async fn ask_tail(shared: &Shared, handle: &LogHandle, log: usize) -> anyhow::Result<()> {
    let call = shared.now();
    let tail = handle.tail().await?;
    let returned = shared.now();
    let tail = LogTail {
        log,
        tail,
        call,
        returned,
    };
    shared.logs.tail(tail);
    Ok(())
}

async fn trim(shared: &Shared, handle: &LogHandle, log: usize, to: u64) -> anyhow::Result<()> {
    let at = shared.logs.trim(LogTrim {
        log,
        to,
        call: shared.now(),
        returned: None,
    });
    handle.trim(to).await?;
    shared.logs.trimmed(at, shared.now());
    Ok(())
}
