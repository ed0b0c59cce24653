//! `staves log append --if-tail`: all lines of standard input in one append, if nothing came in between.

use bytes::Bytes;
use staves_client::{AppendCondition, ConditionalAppend, LOG_BATCH_BYTES_MAX, LogHandle};
use staves_wire::ErrorCode;

use super::append::{Lines, positions};
use staves_cli_common::cluster::Cluster;
use staves_cli_common::failure::Failure;
use staves_cli_common::options::Format;

pub fn append(
    session: &Cluster,
    log: &LogHandle,
    (tail, tag): (u64, Option<u64>),
    tags: &[u64],
    out: Format,
) -> anyhow::Result<()> {
    let records = all_lines(log)?;
    if records.is_empty() {
        return Ok(());
    }
    let condition = AppendCondition { tag, tail };
    match session.wait(log.append_if(condition, &records, tags))? {
        ConditionalAppend::At(first) => {
            positions(&mut std::io::stdout().lock(), first, records.len(), out)
        }
        ConditionalAppend::Failed(now) => {
            let of = match tag {
                Some(tag) => format!("tag {tag} in log '{}'", log.name()),
                None => format!("log '{}'", log.name()),
            };
            let text = format!(
                "the condition failed: the tail of {of} is {now}, past {tail}; nothing was appended. Read what came since, and append with --if-tail {now}"
            );
            Err(Failure::Wire(ErrorCode::Refused, text).into())
        }
    }
}

/// Standard input up to its end, as the records of one append.
fn all_lines(log: &LogHandle) -> anyhow::Result<Vec<Bytes>> {
    let most = log.batch_records_max();
    let mut lines = Lines::of_stdin();
    let mut records: Vec<Bytes> = Vec::new();
    loop {
        let batch = lines.batch(most + 1)?;
        if batch.is_empty() {
            return Ok(records);
        }
        records.extend(batch);
        let bytes: usize = records.iter().map(Bytes::len).sum();
        if records.len() > most || bytes > LOG_BATCH_BYTES_MAX {
            let text = format!(
                "an append with a condition is one piece, of {most} lines and {LOG_BATCH_BYTES_MAX} bytes at most in log '{}': append fewer",
                log.name()
            );
            return Err(Failure::Wire(ErrorCode::TooLarge, text).into());
        }
    }
}
