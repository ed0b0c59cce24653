//! `staves memory`: regions, and their bytes from and to the shell.

mod args;

use std::io::{IsTerminal, Read, Write};

use anyhow::Context;
use bytes::Bytes;
use serde_json::json;
use staves_client::{Client, ClientError, ClientOptions, Region, RegionStat};
use staves_wire::ErrorCode;
use tokio::runtime::Runtime;

pub use self::args::Memory;
use crate::args::{Args, Format};
use crate::explain::Own;
use crate::failure::Failure;
use crate::output::{self, bytes, properties, table};

/// Bytes that are read or written at a time.
const PART_BYTES: u64 = 8 << 20;

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

    fn wait<T>(&self, future: impl Future<Output = Result<T, ClientError>>) -> anyhow::Result<T> {
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
            confirm(&stat, *yes)?;
            session.wait(region.delete())?;
            said(out, &stat, "deleted")
        }
        Memory::Read {
            name,
            offset,
            length,
        } => read(&session, name, offset.0, length.map(|length| length.0)),
        Memory::Write { name, offset, load } => {
            let region = session.region(name)?;
            if *load {
                session.wait(region.load(true))?;
            }
            write(&session, name, offset.0, out)?;
            match load {
                true => session.wait(region.load(false)),
                false => Ok(()),
            }
        }
        Memory::Protect { name } => {
            let region = session.region(name)?;
            session.wait(region.load(false))?;
            said(out, &session.wait(region.stat())?, "protected")
        }
    }
}

fn read(session: &Session, name: &str, offset: u64, length: Option<u64>) -> anyhow::Result<()> {
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
            result => result.context("cannot write the bytes")?,
        }
        at += part;
        if at >= length {
            return Ok(());
        }
    }
}

fn write(session: &Session, name: &str, offset: u64, out: Format) -> anyhow::Result<()> {
    let region = session.region(name)?;
    let mut stdin = std::io::stdin().lock();
    let mut written = 0;
    loop {
        let mut part = Vec::new();
        stdin
            .by_ref()
            .take(PART_BYTES)
            .read_to_end(&mut part)
            .context("cannot read the bytes")?;
        if part.is_empty() && written > 0 {
            break;
        }
        let count = part.len() as u64;
        let to = offset.saturating_add(written);
        session
            .wait(region.write(to, Bytes::from(part)))
            .with_context(|| format!("{written} bytes were written before"))?;
        written += count;
    }
    let answer = json!({ "region": name, "offset": offset, "bytes": written, "result": "written" });
    output::answer(out, &answer, |_| {
        format!("region '{name}': {written} bytes written at offset {offset}")
    })
}

fn confirm(stat: &RegionStat, yes: bool) -> anyhow::Result<()> {
    if yes {
        return Ok(());
    }
    let what = format!("region '{}' of {}", stat.name, bytes(stat.size_bytes));
    if std::io::stdin().is_terminal() {
        eprint!("Delete {what} with all that it holds? [y/N] ");
        let mut line = String::new();
        std::io::stdin()
            .read_line(&mut line)
            .context("cannot read the answer")?;
        if matches!(line.trim(), "y" | "Y" | "yes") {
            return Ok(());
        }
    }
    let text = format!("{what} was not deleted: say --yes");
    Err(Failure::Own(Own::Usage, text).into())
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
