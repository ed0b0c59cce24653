//! `staves memory`: regions, and their bytes from and to the shell.

mod args;

use std::io::{Read, Write};

use anyhow::Context;
use bytes::Bytes;
use serde_json::json;
use staves_client::{Client, ClientError, ClientOptions, Region, RegionStat};
use staves_model::{ClusterMap, Pool};
use staves_node::config::Size;
use staves_wire::ErrorCode;
use tokio::runtime::Runtime;

pub use self::args::Memory;
use crate::args::{Args, Format};
use crate::confirm::confirm;
use crate::explain::{Code, Own};
use crate::failure::{self, Failure};
use crate::output::{self, bytes, properties, table};

/// Bytes that are read or written at a time.
const PART_BYTES: u64 = 8 << 20;
/// Bytes of standard input that are read before any is written.
const AHEAD_BYTES: u64 = 64 << 20;
/// Most bytes that are told as JSON.
const JSON_BYTES_MAX: u64 = 16 << 20;

/// A client, and what it runs on.
pub struct Session {
    pub runtime: Runtime,
    pub client: Client,
}

impl Session {
    /// Finds the cluster through any of the nodes of `--cluster`.
    pub fn open(args: &Args) -> anyhow::Result<Session> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the program's runtime")?;
        let addresses: Vec<String> = args.cluster.iter().map(ToString::to_string).collect();
        let options = ClientOptions {
            deadline: args.deadline.duration(),
            map_try_max: args.deadline.duration(),
            admin: true,
            ..ClientOptions::default()
        };
        let client = runtime.block_on(Client::connect(&addresses, options));
        let client = client.map_err(failed)?;
        Ok(Session { runtime, client })
    }

    fn region(&self, name: &str) -> anyhow::Result<Region> {
        self.wait(self.client.region(name))
    }

    /// Waits for what a client does.
    pub fn wait<T>(
        &self,
        future: impl Future<Output = Result<T, ClientError>>,
    ) -> anyhow::Result<T> {
        self.runtime.block_on(future).map_err(failed)
    }
}

/// A client's error as a failure of the command.
pub fn failed(error: ClientError) -> anyhow::Error {
    let code = error.code();
    let text = match error {
        ClientError::Operation { text, .. } => text,
        error => error.to_string(),
    };
    match code {
        ErrorCode::NotFound => Failure::NotFound(text).into(),
        code => Failure::Wire(code, text).into(),
    }
}

pub fn run(args: &Args, command: &Memory) -> anyhow::Result<()> {
    let out = args.output;
    let session = Session::open(args)?;
    match command {
        Memory::Create { name, size, pool } => {
            check_pool(&session, pool)?;
            let region = session.wait(session.client.create_region(pool, name, size.0))?;
            let stat = session.wait(region.stat())?;
            said(out, &stat, "created")
        }
        Memory::List => {
            let stats = session.wait(session.client.regions())?;
            let rows: Vec<_> = stats.iter().map(as_json).collect();
            output::answer(out, &rows, |_| {
                let headings = [
                    "region",
                    "pool",
                    "scheme",
                    "size ",
                    "room to grow ",
                    "groups ",
                ];
                table(&headings, stats.iter().map(listed))
            })
        }
        Memory::Show { name } => {
            let stat = session.wait(session.region(name)?.stat())?;
            output::answer(out, &as_json(&stat), |_| described(&stat))
        }
        Memory::Grow { name, size } => {
            let region = session.region(name)?;
            session.wait(region.grow(size.0))?;
            said(out, &session.wait(region.stat())?, "grown")
        }
        Memory::Delete { name, yes } => {
            let region = session.region(name)?;
            let stat = session.wait(region.stat())?;
            if !yes {
                let what = format!("region '{name}' of {}", bytes(stat.size_bytes));
                confirm(&what, out)?;
            }
            session.wait(region.delete())?;
            said(out, &stat, "deleted")
        }
        Memory::Read {
            name,
            offset,
            length,
        } => read(&session, name, offset.0, length.map(|length| length.0), out),
        Memory::Write { name, offset, load } => write(&session, name, offset.0, *load, out),
        Memory::Protect { name } => {
            let region = session.region(name)?;
            session.wait(region.load(false))?;
            said(out, &session.wait(region.stat())?, "protected")
        }
    }
}

/// Whether the pool is there and holds regions.
pub fn check_pool(session: &Session, name: &str) -> anyhow::Result<()> {
    let known = |map: &ClusterMap| map.pool_named(name).map(Pool::is_cache);
    let kind = match known(&session.client.map()) {
        None => known(&*session.wait(session.client.refresh())?),
        kind => kind,
    };
    let text = match kind {
        Some(false) => return Ok(()),
        Some(true) => {
            let make = "'staves pool create NAME --kind memory' makes one that holds regions";
            let text = format!("pool '{name}' holds keys, not regions; {make}");
            return Err(Failure::Wire(ErrorCode::Refused, text).into());
        }
        None => format!(
            "there is no pool '{name}'; 'staves pool list' shows those there are, and 'staves pool create {name} --kind memory' makes it"
        ),
    };
    Err(Failure::NotFound(text).into())
}

fn read(
    session: &Session,
    name: &str,
    offset: u64,
    length: Option<u64>,
    out: Format,
) -> anyhow::Result<()> {
    let region = session.region(name)?;
    let length = match length {
        Some(length) => length,
        // At least one, so that an offset past the end is said to be one.
        None => session
            .wait(region.stat())?
            .size_bytes
            .saturating_sub(offset)
            .max(1),
    };
    if out == Format::Json {
        return read_as_json(session, &region, offset, length);
    }
    // The last byte first, so that what is out of range is said before anything is printed.
    let last = length.saturating_sub(1).saturating_add(offset);
    session.wait(region.read(last, length.min(1)))?;
    let mut stdout = std::io::stdout().lock();
    let mut at = 0;
    loop {
        let part = (length - at).min(PART_BYTES);
        let bytes = session.wait(region.read(offset.saturating_add(at), part))?;
        match stdout.write_all(&bytes) {
            // A reader that has gone (`| head`) has had what it wanted.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            result => output::written(result)?,
        }
        at += part;
        if at >= length {
            return Ok(());
        }
    }
}

/// JSON has no bytes: what is no text is told in hexadecimal.
fn read_as_json(
    session: &Session,
    region: &Region,
    offset: u64,
    length: u64,
) -> anyhow::Result<()> {
    if length > JSON_BYTES_MAX {
        let most = bytes(JSON_BYTES_MAX);
        let text =
            format!("as JSON at most {most} are printed: give --length, or do without -o json");
        return Err(Failure::Own(Own::Usage, text).into());
    }
    let read = session.wait(region.read(offset, length))?;
    let mut answer = json!({ "region": region.name(), "offset": offset, "bytes": length });
    match std::str::from_utf8(&read) {
        Ok(text) => answer["value"] = text.into(),
        Err(_) => {
            let hex = read.iter().map(|byte| format!("{byte:02x}"));
            answer["value_hex"] = hex.collect::<String>().into();
        }
    }
    output::line(answer)
}

fn write(
    session: &Session,
    name: &str,
    offset: u64,
    load: bool,
    out: Format,
) -> anyhow::Result<()> {
    let region = session.region(name)?;
    let mut stdin = std::io::stdin().lock();
    let next = |stdin: &mut std::io::StdinLock<'_>, most: u64| {
        let mut part = Vec::new();
        let read = stdin.by_ref().take(most).read_to_end(&mut part);
        read.context("cannot read the bytes")
            .map(|_| Bytes::from(part))
    };
    // As much as fits into memory is read before any is written: what does not fit the region is said then.
    let mut ahead = next(&mut stdin, AHEAD_BYTES)?;
    let known = match length_of_stdin() {
        Some(more) => ahead.len() as u64 + more,
        None => ahead.len() as u64,
    };
    if known > 0 {
        let last = offset.saturating_add(known - 1);
        session
            .wait(region.read(last, 1))
            .map_err(|error| match failure::code(&error) {
                Code::Wire(ErrorCode::Malformed) => past_the_end(session, &region, offset, known),
                _ => error,
            })?;
    }
    let mut put = || {
        put(session, &region, offset, &mut ahead, || {
            next(&mut stdin, PART_BYTES)
        })
    };
    // Only now: what is refused before must not cost the region its parity.
    let written = match load && known > 0 {
        false => put()?,
        true => {
            session.wait(region.load(true))?;
            let written = put();
            let protected = session.wait(region.load(false));
            match (written, protected) {
                (Ok(written), Ok(())) => written,
                (Err(error), Ok(())) => return Err(error),
                (Ok(_), Err(error)) => return Err(unprotected(name, error)),
                (Err(error), Err(_)) => return Err(unprotected(name, error)),
            }
        }
    };
    let answer = json!({ "region": name, "offset": offset, "bytes": written, "result": "written" });
    output::answer(out, &answer, |_| {
        format!("region '{name}': {written} bytes written at offset {offset}")
    })
}

/// The region has no parity, and this is why that is not made now.
fn unprotected(name: &str, error: anyhow::Error) -> anyhow::Error {
    let text = format!(
        "{error:#}; region '{name}' has no parity and bears no loss until 'staves memory protect {name}' was done"
    );
    match failure::code(&error) {
        Code::Wire(code) => Failure::Wire(code, text).into(),
        Code::Own(code) => Failure::Own(code, text).into(),
        Code::Redis(_) => anyhow::anyhow!(text),
    }
}

/// Writes what is at hand and what comes; how much it was.
fn put(
    session: &Session,
    region: &Region,
    offset: u64,
    ahead: &mut Bytes,
    mut next: impl FnMut() -> anyhow::Result<Bytes>,
) -> anyhow::Result<u64> {
    let mut written = 0;
    loop {
        if ahead.is_empty() {
            *ahead = next()?;
        }
        if ahead.is_empty() && written > 0 {
            return Ok(written);
        }
        let part = ahead.split_to(ahead.len().min(PART_BYTES as usize));
        let count = part.len() as u64;
        let to = offset.saturating_add(written);
        let done = session.wait(region.write(to, part));
        done.map_err(|error| after(error, written, to))?;
        written += count;
    }
}

/// How many bytes standard input still has, if it is a file.
fn length_of_stdin() -> Option<u64> {
    let stdin = std::io::stdin();
    let stat = rustix::fs::fstat(&stdin).ok()?;
    let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    let at = rustix::fs::tell(&stdin).ok().filter(|_| is_file)?;
    u64::try_from(stat.st_size).ok()?.checked_sub(at)
}

fn past_the_end(session: &Session, region: &Region, offset: u64, count: u64) -> anyhow::Error {
    let end = match session.wait(region.stat()) {
        Ok(stat) => stat.size_bytes,
        Err(error) => return error,
    };
    let text = format!(
        "region '{}' ends at {}: {} do not fit at offset {}; nothing was written; let it grow with 'staves memory grow'",
        region.name(),
        Size(end),
        Size(count),
        Size(offset),
    );
    Failure::Wire(ErrorCode::Malformed, text).into()
}

/// An error behind bytes that were written.
fn after(error: anyhow::Error, written: u64, to: u64) -> anyhow::Error {
    match (written, failure::code(&error)) {
        (0, _) => error,
        (_, Code::Wire(code)) => {
            let text = format!(
                "all before offset {} was written; then: {error:#}",
                Size(to)
            );
            Failure::Wire(code, text).into()
        }
        _ => error,
    }
}

fn said(out: Format, stat: &RegionStat, what: &str) -> anyhow::Result<()> {
    let mut answer = as_json(stat);
    answer["result"] = what.into();
    output::answer(out, &answer, |_| {
        let (name, size) = (&stat.name, bytes(stat.size_bytes));
        let groups = match stat.groups.len() {
            1 => "1 group".to_owned(),
            count => format!("{count} groups"),
        };
        format!("region '{name}': {what}; {size}, {}, {groups}", stat.scheme)
    })
}

fn as_json(stat: &RegionStat) -> serde_json::Value {
    json!({
        "region": stat.name,
        "pool": stat.pool,
        "scheme": stat.scheme,
        "size_bytes": stat.size_bytes,
        "capacity_bytes": stat.capacity_bytes,
        "loading": stat.loading,
        "groups": stat.groups.iter().map(|group| group.0).collect::<Vec<_>>(),
    })
}

fn listed(stat: &RegionStat) -> Vec<String> {
    vec![
        stat.name.clone(),
        stat.pool.clone(),
        stat.scheme.clone(),
        bytes(stat.size_bytes),
        bytes(stat.capacity_bytes - stat.size_bytes),
        stat.groups.len().to_string(),
    ]
}

fn described(stat: &RegionStat) -> String {
    let groups: Vec<String> = stat.groups.iter().map(ToString::to_string).collect();
    properties([
        ("name", stat.name.clone()),
        ("pool", stat.pool.clone()),
        ("scheme", stat.scheme.clone()),
        (
            "ends at",
            format!("{} ({} bytes)", bytes(stat.size_bytes), stat.size_bytes),
        ),
        ("can grow to, with its groups", bytes(stat.capacity_bytes)),
        ("groups", groups.join(" ")),
        (
            "state",
            if stat.loading {
                "being loaded: it has no parity"
            } else {
                "in use"
            }
            .into(),
        ),
    ])
}
