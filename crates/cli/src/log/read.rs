//! `staves log read`: records in order.

use std::collections::VecDeque;
use std::io::{ErrorKind, StdoutLock, Write};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use staves_client::{ClientError, LogHandle, LogSlot, LogStat};
use staves_wire::ErrorCode;
use tokio::task::JoinHandle;

use staves_cli_common::cluster::Cluster;
use staves_cli_common::failure::{Failure, failed};
use staves_cli_common::options::Format;
use staves_cli_common::output;

/// Positions that are read at once.
const AHEAD: usize = 32;
/// The longest wait of one who follows, before it waits anew.
const WAIT: Duration = Duration::from_secs(3600);

/// The records that are asked for.
pub struct Wanted {
    /// The first position.
    pub from: u64,
    /// It is the log's beginning, wherever that is by now.
    pub from_beginning: bool,
    /// Most records.
    pub count: Option<u64>,
    /// Wait at the tail for more.
    pub follow: bool,
}

type Reads = VecDeque<(u64, JoinHandle<Result<LogSlot, ClientError>>)>;

pub fn read(
    session: &Cluster,
    log: &LogHandle,
    stat: &LogStat,
    wanted: &Wanted,
    out: Format,
) -> anyhow::Result<()> {
    if wanted.from < stat.trim {
        return Err(trimmed(log, wanted.from, Some(stat.trim)));
    }
    let tail = session.wait(log.tail())?;
    if wanted.from > tail && !wanted.follow {
        let text = format!(
            "position {} of log '{}' is past its tail, {tail}: read from {tail} or below, or wait with --follow",
            wanted.from,
            log.name()
        );
        return Err(Failure::Wire(ErrorCode::NotFound, text).into());
    }
    let end = if wanted.follow { u64::MAX } else { tail };
    let count = wanted.count.unwrap_or(u64::MAX);
    let mut left = count;
    let mut stdout = std::io::stdout().lock();
    let mut reads = Reads::new();
    let mut next = wanted.from;
    while left > 0 {
        // One who follows reads what is there at once, and beyond that one by one.
        while reads.len() < AHEAD && next < end && (next < tail || reads.is_empty()) {
            reads.push_back((next, begin(session, log, next)));
            next += 1;
        }
        let Some((position, read)) = reads.pop_front() else {
            return Ok(());
        };
        let slot = session.runtime.block_on(read)?.map_err(failed)?;
        match slot {
            LogSlot::Record(record) => {
                left -= 1;
                if !print(&mut stdout, position, &record, out)? {
                    return Ok(());
                }
            }
            LogSlot::Junk => {}
            // Old records went meanwhile.
            LogSlot::Trimmed if wanted.from_beginning && left == count => {
                next = session.wait(log.end_of(None))?.trim.max(position + 1);
                reads.clear();
            }
            LogSlot::Trimmed => return Err(trimmed(log, position, None)),
            // Only beyond the tail, where nothing is read ahead.
            LogSlot::PastTail => {
                next = position;
                reads.clear();
                while !session.wait(log.wait(position, None, WAIT))? {}
            }
        }
    }
    Ok(())
}

fn begin(
    session: &Cluster,
    log: &LogHandle,
    position: u64,
) -> JoinHandle<Result<LogSlot, ClientError>> {
    let log = log.clone();
    let read = async move { log.read(position).await };
    session.runtime.spawn(read)
}

pub(super) fn trimmed(log: &LogHandle, position: u64, from: Option<u64>) -> anyhow::Error {
    let remedy = match from {
        Some(from) => format!("read from {from} on"),
        None => format!("'staves log show {}' says from where to read", log.name()),
    };
    let text = format!(
        "position {position} of log '{}' is trimmed: {remedy}",
        log.name()
    );
    Failure::Wire(ErrorCode::NotFound, text).into()
}

/// Prints a record. False if nobody reads any more.
pub(super) fn print(
    stdout: &mut StdoutLock<'_>,
    position: u64,
    record: &Bytes,
    out: Format,
) -> anyhow::Result<bool> {
    let written = match out {
        Format::Json => {
            let mut line = json!({ "position": position });
            output::put_value(&mut line, record);
            writeln!(stdout, "{line}")
        }
        Format::Table => stdout
            .write_all(record)
            .and_then(|()| stdout.write_all(b"\n")),
    };
    match written.and_then(|()| stdout.flush()) {
        // A reader that has gone (`| head`) has had what it wanted.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        result => output::written(result).map(|()| true),
    }
}
