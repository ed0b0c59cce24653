//! `staves log append`: each line of standard input is a record.

use std::io::{BufRead, BufReader, ErrorKind, Read, StdinLock, StdoutLock, Write};

use anyhow::Context;
use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde_json::json;
use staves_client::{LOG_BATCH_BYTES_MAX, LogHandle};
use staves_wire::ErrorCode;

use staves_cli_common::cluster::Cluster;
use staves_cli_common::failure::Failure;
use staves_cli_common::options::Format;
use staves_cli_common::output;

/// Standard input as records.
pub(super) struct Lines<'a> {
    input: BufReader<StdinLock<'a>>,
    /// The number of the last line, from 1.
    line: u64,
    /// A line that had no room in the batch before.
    kept: Option<Bytes>,
}

impl Lines<'_> {
    pub(super) fn of_stdin() -> Self {
        Lines {
            input: BufReader::with_capacity(1 << 20, std::io::stdin().lock()),
            line: 0,
            kept: None,
        }
    }

    /// The lines that have come, up to so many, and to the bytes of one append; at least one, which is waited for. None at the end.
    pub(super) fn batch(&mut self, most: usize) -> anyhow::Result<Vec<Bytes>> {
        self.batch_with(most, 0)
    }

    /// The same where each line takes so many bytes more.
    pub(super) fn batch_with(
        &mut self,
        most: usize,
        head_bytes: usize,
    ) -> anyhow::Result<Vec<Bytes>> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < most {
            let waits = !batch.is_empty() && !self.input.buffer().contains(&b'\n');
            if waits && self.kept.is_none() {
                break;
            }
            let Some(line) = self.next()? else {
                break;
            };
            bytes += line.len() + head_bytes;
            if bytes > LOG_BATCH_BYTES_MAX && !batch.is_empty() {
                self.kept = Some(line);
                break;
            }
            batch.push(line);
        }
        Ok(batch)
    }

    fn next(&mut self) -> anyhow::Result<Option<Bytes>> {
        if let Some(kept) = self.kept.take() {
            return Ok(Some(kept));
        }
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') && line.len() <= LOG_BATCH_BYTES_MAX {
            if self.input.buffer().is_empty() {
                wait_for_input()?;
            }
            let come = self.input.fill_buf().context("cannot read the records")?;
            if come.is_empty() {
                break;
            }
            // No more than has come: to wait for the rest is not the reader's business.
            let most = come.len().min(LOG_BATCH_BYTES_MAX + 1 - line.len()) as u64;
            let read = self.input.by_ref().take(most).read_until(b'\n', &mut line);
            read.context("cannot read the records")?;
        }
        if line.is_empty() {
            return Ok(None);
        }
        self.line += 1;
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if line.len() > LOG_BATCH_BYTES_MAX {
            let text = format!(
                "line {} has more than {LOG_BATCH_BYTES_MAX} bytes, the most of a record: split it; what stands before it was appended",
                self.line
            );
            return Err(Failure::Wire(ErrorCode::TooLarge, text).into());
        }
        Ok(Some(Bytes::from(line)))
    }
}

/// Waits for input, or its end.
///
/// # Errors
/// Nobody reads the positions any more: who waits for input would wait for nobody.
fn wait_for_input() -> anyhow::Result<()> {
    let (stdin, stdout) = (std::io::stdin(), std::io::stdout());
    loop {
        let mut ends = [
            PollFd::new(&stdin, PollFlags::IN),
            PollFd::new(&stdout, PollFlags::empty()),
        ];
        match poll(&mut ends, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error).context("cannot wait for records"),
        }
        if !ends[1].revents().is_empty() {
            return Err(nobody_reads());
        }
        if !ends[0].revents().is_empty() {
            return Ok(());
        }
    }
}

fn nobody_reads() -> anyhow::Error {
    anyhow::anyhow!(
        "nobody reads the positions any more (standard output is closed): no more of the input is appended; read the log's end to see what of it is there"
    )
}

pub fn append(session: &Cluster, log: &LogHandle, tags: &[u64], out: Format) -> anyhow::Result<()> {
    let mut lines = Lines::of_stdin();
    let mut stdout = std::io::stdout().lock();
    loop {
        let batch = lines.batch(log.batch_records_max())?;
        if batch.is_empty() {
            return Ok(());
        }
        let first = session.wait(log.append_tagged(&batch, tags))?;
        positions(&mut stdout, first, batch.len(), out)?;
    }
}

/// Prints the positions of records.
pub(super) fn positions(
    stdout: &mut StdoutLock<'_>,
    first: u64,
    count: usize,
    out: Format,
) -> anyhow::Result<()> {
    for position in first..first + count as u64 {
        let told = match out {
            Format::Json => writeln!(stdout, "{}", json!({ "position": position })),
            Format::Table => writeln!(stdout, "{position}"),
        };
        written(told)?;
    }
    written(stdout.flush())
}

fn written(result: std::io::Result<()>) -> anyhow::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(nobody_reads()),
        result => output::written(result),
    }
}
