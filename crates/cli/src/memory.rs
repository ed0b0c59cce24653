//! `staves memory`: regions, and their bytes from and to the shell.

mod command;
mod room;
mod write;

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::json;
use staves_client::{Region, RegionStat};
use staves_model::Scheme;
use staves_model::policy::too_few_nodes;
use staves_wire::ErrorCode;

pub use self::command::Memory;
use crate::confirm::confirm;
use staves_cli_common::cluster::{Cluster, MAJORITY_REMEDY};
use staves_cli_common::codes::{Code, Own};
use staves_cli_common::failure::{self, Failure};
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, Column, bytes, count, properties};

/// Bytes that are read or written at a time.
const PART_BYTES: u64 = 8 << 20;
/// Most bytes that are told as JSON.
const JSON_BYTES_MAX: u64 = 16 << 20;

pub fn run(cluster: &Cluster, command: &Memory, out: Format) -> anyhow::Result<()> {
    let done = obey(cluster, command, out);
    done.map_err(|error| undecided(cluster, command, error))
}

/// Adds the reason to an error of a command that was not done in time: most often, the directory has no majority.
fn undecided(cluster: &Cluster, command: &Memory, error: anyhow::Error) -> anyhow::Error {
    let Code::Wire(
        code @ (ErrorCode::Deadline
        | ErrorCode::Unreachable
        | ErrorCode::NoQuorum
        | ErrorCode::NotLeader
        | ErrorCode::NotServing),
    ) = failure::code(&error)
    else {
        return error;
    };
    let until = match command {
        // They may take longer than the deadline as long as they get on.
        Memory::Read { .. } | Memory::Write { .. } => {
            Instant::now() + (cluster.deadline / 5).max(Duration::from_secs(1))
        }
        _ => cluster.until_told(),
    };
    let Some(why) = cluster.missing_majority(until) else {
        return error;
    };
    let text = match command {
        Memory::Read { .. } | Memory::Write { .. } => {
            format!(
                "{error:#}; {why}, and what needs a repair does not answer before it has: {MAJORITY_REMEDY}"
            )
        }
        _ if code.nothing_done() => format!("{why}; nothing was changed; {MAJORITY_REMEDY}"),
        _ => format!("{why}; the change may still be made once it has; {MAJORITY_REMEDY}"),
    };
    failure::with_text(&error, text)
}

fn obey(session: &Cluster, command: &Memory, out: Format) -> anyhow::Result<()> {
    match command {
        Memory::Create {
            name,
            size,
            pool,
            bucket,
        } => {
            session.check_regions(pool)?;
            let bucket = bucket.map(|bucket| bucket.0);
            let client = &session.client;
            let region = session.wait(client.create_region_with(pool, name, size.0, bucket))?;
            let stat = session.wait(region.stat())?;
            let scheme: Option<Scheme> = stat.scheme.parse().ok();
            let map = session.client.map();
            let few = scheme.and_then(|scheme| too_few_nodes(&map, &stat.name, scheme));
            print_result_with(out, &stat, "created", few.map(|few| few.to_string()))
        }
        Memory::List => {
            let stats = session.wait(session.client.regions())?;
            let rows: Vec<_> = stats.iter().map(as_json).collect();
            output::answer(out, &rows, |_| output::columns(COLUMNS, &stats))
        }
        Memory::Show { name } => {
            let stat = session.wait(session.region(name)?.stat())?;
            output::answer(out, &as_json(&stat), |_| described(&stat))
        }
        Memory::Grow { name, size } => {
            let region = session.region(name)?;
            let before = session.wait(region.stat())?;
            if before.size_bytes == size.0 {
                return print_result(out, &before, "ends there already");
            }
            session.wait(region.grow(size.0))?;
            print_result(out, &session.wait(region.stat())?, "grown")
        }
        Memory::Delete { name, yes } => {
            let region = session.region(name)?;
            let stat = session.wait(region.stat())?;
            if !yes {
                let what = format!("region '{name}' of {}", bytes(stat.size_bytes));
                confirm(session, &what, out)?;
            }
            session.wait(region.delete())?;
            print_result(out, &stat, "deleted")
        }
        Memory::Read {
            name,
            offset,
            length,
        } => read(session, name, offset.0, length.map(|length| length.0), out),
        Memory::Write { name, offset, load } => write::write(session, name, offset.0, *load, out),
        Memory::Protect { name } => {
            let region = session.region(name)?;
            write::protect(session, &region)?;
            print_result(out, &session.wait(region.stat())?, "protected")
        }
    }
}

fn read(
    session: &Cluster,
    name: &str,
    offset: u64,
    length: Option<u64>,
    out: Format,
) -> anyhow::Result<()> {
    let region = session.region(name)?;
    let stat = session.wait(region.stat())?;
    // At least one, so that an offset past the end is said to be one.
    let length = length.unwrap_or(stat.size_bytes.saturating_sub(offset).max(1));
    let end = offset.checked_add(length);
    if length > 0 && end.is_none_or(|end| end > stat.size_bytes) {
        let text = write::past_the_end(&stat, offset, length);
        return Err(Failure::Wire(ErrorCode::Malformed, text).into());
    }
    if out == Format::Json {
        return read_as_json(session, &region, offset, length);
    }
    // The last byte first, so that what is not there to be read is said before anything is printed.
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

/// Prints bytes as an object.
fn read_as_json(
    session: &Cluster,
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
    output::put_value(&mut answer, &read);
    output::line(answer)
}

fn print_result(out: Format, stat: &RegionStat, what: &str) -> anyhow::Result<()> {
    print_result_with(out, stat, what, None)
}

fn print_result_with(
    out: Format,
    stat: &RegionStat,
    what: &str,
    warning: Option<String>,
) -> anyhow::Result<()> {
    let mut answer = as_json(stat);
    answer["result"] = what.into();
    let (name, size) = (&stat.name, bytes(stat.size_bytes));
    let groups = count(stat.groups.len(), "group");
    let line = format!("region '{name}': {what}; {size}, {}, {groups}", stat.scheme);
    output::changed(out, answer, line, warning)
}

fn as_json(stat: &RegionStat) -> serde_json::Value {
    json!({
        "region": stat.name,
        "pool": stat.pool,
        "scheme": stat.scheme,
        "size_bytes": stat.size_bytes,
        "capacity_bytes": stat.capacity_bytes,
        "data_buckets": buckets_json(stat),
        "loading": stat.loading,
        "lost_groups": stat.lost.iter().map(|group| group.0).collect::<Vec<_>>(),
        "groups": stat.groups.iter().map(|group| group.0).collect::<Vec<_>>(),
    })
}

/// The numbers of groups by the bytes of their data buckets, in order of offset.
pub(crate) fn buckets_json(stat: &RegionStat) -> serde_json::Value {
    let of = stat.bucket_bytes.iter();
    let rows = of.map(|(groups, bytes)| json!({"groups": groups, "bytes": bytes}));
    rows.collect()
}

/// The same for people.
pub(crate) fn buckets(stat: &RegionStat) -> String {
    let of = stat.bucket_bytes.iter();
    let of = of.map(|(groups, each)| format!("{} of {groups}", bytes(*each)));
    match &of.collect::<Vec<_>>()[..] {
        [all] => format!("{all} groups"),
        several => format!("{} groups", several.join(", ")),
    }
}

const COLUMNS: &[Column<RegionStat>] = &[
    ("region", |stat| stat.name.clone()),
    ("pool", |stat| stat.pool.clone()),
    ("scheme", |stat| stat.scheme.clone()),
    ("size ", |stat| bytes(stat.size_bytes)),
    ("room to grow ", |stat| {
        bytes(stat.capacity_bytes - stat.size_bytes)
    }),
    ("groups ", |stat| stat.groups.len().to_string()),
    ("state", state_in_short),
];

fn state_in_short(stat: &RegionStat) -> String {
    match (stat.lost.len(), stat.loading) {
        (0, true) => "no parity".into(),
        (0, false) => "in use".into(),
        (lost, _) => format!("{lost} of {} lost", stat.groups.len()),
    }
}

fn described(stat: &RegionStat) -> String {
    let groups: Vec<String> = stat.groups.iter().map(ToString::to_string).collect();
    properties([
        ("name", stat.name.clone()),
        ("pool", stat.pool.clone()),
        ("scheme", stat.scheme.clone()),
        (
            "ends at",
            format!(
                "{} ({})",
                bytes(stat.size_bytes),
                count(stat.size_bytes, "byte")
            ),
        ),
        ("can grow to, with its groups", bytes(stat.capacity_bytes)),
        ("data buckets", buckets(stat)),
        ("groups", groups.join(" ")),
        ("state", state(stat)),
    ])
}

fn state(stat: &RegionStat) -> String {
    let lost: Vec<String> = stat.lost.iter().map(ToString::to_string).collect();
    match (&lost[..], stat.loading) {
        ([], true) => "being loaded: what is loaded has no parity".into(),
        ([], false) => "in use".into(),
        ([one], _) => format!(
            "group {one} is lost: more of its nodes failed than {} bears; 'staves group show {one}' says what can be done",
            stat.scheme
        ),
        ([one, ..], _) => format!(
            "groups {} are lost: more of their nodes failed than {} bears; 'staves group show {one}' says what can be done",
            lost.join(" "),
            stat.scheme
        ),
    }
}

#[cfg(test)]
mod tests {
    use staves_model::GroupId;

    use super::*;

    fn stat() -> RegionStat {
        RegionStat {
            name: "r".into(),
            pool: "p".into(),
            scheme: "2+1".into(),
            size_bytes: 1 << 20,
            capacity_bytes: 1 << 20,
            groups: vec![GroupId(3), GroupId(4)],
            bucket_bytes: vec![(2, 64 << 20)],
            lost: Vec::new(),
            loading: false,
            settled: true,
        }
    }

    #[test]
    fn a_region_with_a_lost_group_is_not_in_use() {
        let mut stat = stat();
        assert_eq!(state(&stat), "in use");
        let in_list = |stat: &RegionStat| output::columns(COLUMNS, [stat]);
        assert!(in_list(&stat).ends_with("in use"));
        stat.lost = vec![GroupId(4)];
        assert!(
            described(&stat).contains("group 4 is lost"),
            "{}",
            described(&stat)
        );
        assert_eq!(as_json(&stat)["lost_groups"], json!([4]));
        assert!(in_list(&stat).ends_with("1 of 2 lost"));
        stat.lost = stat.groups.clone();
        let text = state(&stat);
        assert!(
            text.starts_with("groups 3 4 are lost") && text.contains("group show 3"),
            "{text}"
        );
    }
}
