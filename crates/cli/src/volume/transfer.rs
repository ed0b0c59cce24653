//! `staves volume export` and `import`: a volume, or what differs between two snapshots of it, as a stream of bytes.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::json;
use staves_cli_common::cluster::Cluster;
use staves_cli_common::failure::Failure;
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, bytes, count};
use staves_client::VolumeReader;
use staves_grpc::{AttachOptions, AttachedVolume, ClientOptions, VolumesClient, VolumesError};
use staves_model::CHUNK_BYTES;
use staves_wire::ErrorCode;

use super::stream::{Head, Part, RECORD_BYTES_MAX, StreamReader, StreamWriter};

/// Chunks that are asked for at once: 1 GiB.
const WINDOW_CHUNKS: u64 = 16_384;
/// The pause between two lines of progress.
const TELL: Duration = Duration::from_secs(2);
/// The time for one write, while a node is replaced.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Args, Debug)]
pub struct ExportOptions {
    /// The volume or snapshot to export; a volume that is written meanwhile is not of one moment, a snapshot is
    #[arg(value_name = "VOLUME[@SNAPSHOT]")]
    name: String,
    /// The file to write, which must not be there; '-' for standard output
    file: PathBuf,
    /// Only what has changed since this snapshot of the same volume
    #[arg(long, value_name = "VOLUME@SNAPSHOT")]
    since: Option<String>,
}

#[derive(Args, Debug)]
pub struct ImportOptions {
    /// The file to read; '-' for standard input
    file: PathBuf,
    /// The volume to write to, which nobody has attached and which is long enough
    name: String,
    /// Addresses of the nodes' gRPC doors, by which it is written
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', required = true)]
    grpc: Vec<String>,
}

/// Lines of progress.
struct TransferProgress {
    began: Instant,
    told: Instant,
    all: u64,
    /// Nobody reads lines beside JSON.
    is_told: bool,
}

impl TransferProgress {
    fn new(all: u64, out: Format) -> TransferProgress {
        let now = Instant::now();
        TransferProgress {
            began: now,
            told: now,
            all,
            is_told: out == Format::Table,
        }
    }

    fn tell(&mut self, done: u64) {
        if !self.is_told || self.told.elapsed() < TELL {
            return;
        }
        self.told = Instant::now();
        let left = (self.began.elapsed().as_millis() as u64)
            .saturating_mul(self.all.saturating_sub(done))
            .checked_div(done.max(1));
        let left = left.map_or(0, |ms| ms.div_ceil(1000));
        output::say(format_args!(
            "{} of {}, some {left} s more",
            bytes(done),
            bytes(self.all)
        ));
    }
}

pub fn export(session: &Cluster, options: &ExportOptions, out: Format) -> anyhow::Result<()> {
    let client = &session.client;
    let volume = session.wait(client.volume_reader(&options.name))?;
    let since = match &options.since {
        None => None,
        Some(name) => {
            let since = session.wait(client.volume_reader(name))?;
            ensure!(
                volume.is_related(&since),
                "'{}' and '{name}' have nothing in common: one must be a snapshot or a clone of the other, or both of one volume",
                options.name
            );
            Some(since)
        }
    };
    let head = Head {
        size_bytes: volume.size_bytes(),
        name: options.name.clone(),
        since: options.since.clone(),
    };
    let is_stdout = options.file == Path::new("-");
    let to: Box<dyn Write> = match is_stdout {
        true => Box::new(std::io::stdout().lock()),
        false => {
            let file = File::create_new(&options.file);
            let file = file.with_context(|| format!("cannot make {}", options.file.display()));
            Box::new(file?)
        }
    };
    let to = BufWriter::with_capacity(1 << 20, to);
    let copied = copy_out(session, (&volume, since.as_ref()), to, &head, out);
    let copied = copied.inspect_err(|_| {
        // A part of it is of no use, and would be in the way.
        if !is_stdout {
            let _ = std::fs::remove_file(&options.file);
        }
    })?;
    let answer = json!({
        "volume": options.name,
        "since": options.since,
        "bytes": copied,
        "size_bytes": head.size_bytes,
        "result": "exported",
    });
    let line = format!(
        "volume '{}': exported; {} of {}",
        options.name,
        count(copied, "byte"),
        bytes(head.size_bytes)
    );
    match is_stdout {
        // The answer would be taken for a part of it.
        true => {
            output::say(line);
            Ok(())
        }
        false => output::changed(out, answer, line, None),
    }
}

/// Writes what there is to a stream; the bytes.
fn copy_out(
    session: &Cluster,
    (volume, since): (&VolumeReader, Option<&VolumeReader>),
    to: impl Write,
    head: &Head,
    out: Format,
) -> anyhow::Result<u64> {
    let mut stream = StreamWriter::begin(to, head).context("cannot write")?;
    let run = |chunks: Range<u64>| session.runtime.block_on(volume.chunks(since, chunks));
    let chunks = head.size_bytes.div_ceil(CHUNK_BYTES);
    let mut progress = TransferProgress::new(head.size_bytes, out);
    let (mut at, mut copied) = (0, 0);
    while at < chunks {
        let until = chunks.min(at + WINDOW_CHUNKS);
        let marks = run(at..until)?;
        for (index, is_marked) in marks.chunk_by(|a, b| a == b).scan(at, |next, run| {
            let from = *next;
            *next += run.len() as u64;
            Some(((from, *next), run[0]))
        }) {
            if is_marked {
                let range = index.0 * CHUNK_BYTES..(index.1 * CHUNK_BYTES).min(head.size_bytes);
                copied += copy_range(session, volume, range, &mut stream)?;
            }
            progress.tell(index.1 * CHUNK_BYTES);
        }
        at = until;
    }
    // A volume that is deleted meanwhile reads as zeroes where it has given bytes back.
    for of in since.into_iter().chain([volume]) {
        session.runtime.block_on(of.check())?;
    }
    stream.end().context("cannot write")?;
    Ok(copied)
}

/// Writes the bytes of a range to a stream, and zeroes where it has nothing but those; the bytes.
fn copy_range(
    session: &Cluster,
    volume: &VolumeReader,
    range: Range<u64>,
    stream: &mut StreamWriter<impl Write>,
) -> anyhow::Result<u64> {
    let (mut at, mut copied) = (range.start, 0);
    while at < range.end {
        let len = (range.end - at).min(RECORD_BYTES_MAX as u64) as usize;
        let part = session.runtime.block_on(volume.read(at, len))?;
        let written = match part.iter().all(|byte| *byte == 0) {
            true => stream.zeroes(at, len as u64),
            false => {
                copied += len as u64;
                stream.bytes(at, &part)
            }
        };
        written.context("cannot write")?;
        at += len as u64;
    }
    Ok(copied)
}

pub fn import(session: &Cluster, options: &ImportOptions, out: Format) -> anyhow::Result<()> {
    let from: Box<dyn Read> = match options.file == Path::new("-") {
        true => Box::new(std::io::stdin().lock()),
        false => {
            let file = File::open(&options.file);
            let file = file.with_context(|| format!("cannot open {}", options.file.display()));
            Box::new(file?)
        }
    };
    let name = &options.file.display().to_string();
    let from = BufReader::with_capacity(1 << 20, from);
    let (stream, head) = StreamReader::begin(from).with_context(|| name.clone())?;
    let stat = session.wait(session.client.volume(&options.name))?;
    let room = stat.region.size_bytes;
    ensure!(
        head.size_bytes <= room,
        "'{}' is of {} and '{}' ends at {}: let it grow first with 'staves volume grow {} --size {}B'",
        head.name,
        bytes(head.size_bytes),
        options.name,
        bytes(room),
        options.name,
        head.size_bytes
    );
    let progress = TransferProgress::new(head.size_bytes, out);
    let attached = session.runtime.block_on(attached(options));
    let attached = attached.map_err(with_its_code);
    let (_client, volume) = attached
        .with_context(|| format!("nothing of {name} was written to volume '{}'", options.name))?;
    let put = put_in(volume, stream, &head, progress);
    let written = session.runtime.block_on(put).map_err(with_its_code);
    let written = written.with_context(|| {
        format!(
            "{name} was not imported whole, and volume '{}' has a part of it: import it again, or delete the volume",
            options.name
        )
    })?;
    let answer = json!({
        "volume": options.name,
        "of": head.name,
        "since": head.since,
        "bytes": written,
        "result": "imported",
    });
    let line = format!(
        "volume '{}': imported '{}'{}; {}",
        options.name,
        head.name,
        head.since
            .map_or_else(String::new, |since| format!(" since '{since}'")),
        count(written, "byte")
    );
    output::changed(out, answer, line, None)
}

/// The code that the same failure has by the native protocol: in one state of the cluster all commands end with the same exit code.
fn with_its_code(error: anyhow::Error) -> anyhow::Error {
    let code = error.chain().find_map(|cause| match cause.downcast_ref()? {
        VolumesError::Deadline(_) => Some(ErrorCode::Deadline),
        VolumesError::SessionOver(_) => Some(ErrorCode::Fenced),
        VolumesError::Refused { code, .. } => match *code as i32 {
            4 => Some(ErrorCode::Deadline),
            5 => Some(ErrorCode::NotFound),
            8 => Some(ErrorCode::OutOfMemory),
            9 => Some(ErrorCode::Refused),
            14 => Some(ErrorCode::NotServing),
            _ => None,
        },
        VolumesError::Address { .. } | VolumesError::NoRuntime => None,
    });
    match code {
        Some(ErrorCode::NotFound) => Failure::NotFound(format!("{error:#}")).into(),
        Some(code) => Failure::Wire(code, format!("{error:#}")).into(),
        None => error,
    }
}

/// The volume, attached, and the client that has it.
async fn attached(options: &ImportOptions) -> anyhow::Result<(VolumesClient, AttachedVolume)> {
    let patience = ClientOptions { deadline: PATIENCE };
    let client = VolumesClient::new(&options.grpc, patience)?;
    let volume = client
        .attach(&options.name, AttachOptions::default())
        .await
        .with_context(|| format!("by gRPC at {}", options.grpc.join(", ")))?;
    Ok((client, volume))
}

/// Writes a stream to a volume; the bytes.
async fn put_in(
    volume: AttachedVolume,
    mut stream: StreamReader<impl Read>,
    head: &Head,
    mut progress: TransferProgress,
) -> anyhow::Result<u64> {
    let (mut at, mut written) = (0, 0);
    while let Some(part) = stream.next()? {
        let (offset, len) = match &part {
            Part::Bytes(offset, bytes) => (*offset, bytes.len() as u64),
            Part::Zeroes(offset, len) => (*offset, *len),
        };
        clear(&volume, head, at..offset).await?;
        match part {
            Part::Bytes(offset, bytes) => {
                written += len;
                volume.write(offset, bytes).await?;
            }
            Part::Zeroes(offset, len) => volume.zero(offset, len).await?,
        }
        at = offset + len;
        progress.tell(at);
    }
    clear(&volume, head, at..head.size_bytes).await?;
    volume.flush().await?;
    volume.detach().await?;
    Ok(written)
}

/// Zeroes a gap of an export of everything; one of changes leaves it as it is.
async fn clear(volume: &AttachedVolume, head: &Head, gap: Range<u64>) -> anyhow::Result<()> {
    if head.since.is_none() && gap.start < gap.end {
        volume.zero(gap.start, gap.end - gap.start).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_cli_common::failure::code;

    /// Regression: an import of which no node did anything ended with 1, and an export in the same state with 4.
    #[test]
    fn an_import_ends_with_the_code_that_other_commands_have() {
        let late = anyhow::Error::from(VolumesError::Deadline("nobody".into()));
        let late = with_its_code(late.context("by gRPC"));
        assert_eq!(code(&late).exit_code(), Some(4), "{late:#}");
        assert!(
            late.to_string().contains("by gRPC: no node did it in time"),
            "{late:#}"
        );
        let other = with_its_code(anyhow::anyhow!("a file is damaged"));
        assert_eq!(code(&other).exit_code(), Some(1));
    }
}
