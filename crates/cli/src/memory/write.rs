//! `staves memory write`: standard input into a region, in parts; also as a load without parity.

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Context;
use bytes::Bytes;
use serde_json::json;
use staves_client::{GO_ON_THERE, Region, RegionStat};
use staves_model::policy::FreeMemory;
use staves_model::with_unit;
use staves_wire::ErrorCode;

use super::PART_BYTES;
use super::room::region_usage;
use staves_cli_common::cluster::Cluster;
use staves_cli_common::codes::Code;
use staves_cli_common::failure::{self, Failure};
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, count};
use staves_cli_common::running::at_signal;

/// Bytes of standard input that are read before any is written.
const AHEAD_BYTES: u64 = 64 << 20;

pub fn write(
    session: &Cluster,
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
    let stat = session.wait(region.stat())?;
    check_end(&stat, offset, known)?;
    let loads = load && known > 0;
    if loads {
        check_room(session, &stat, offset, known)?;
    }
    let progress = tell_at_ctrl_c(name, offset)?;
    let mut load = loads.then(|| BareLoad::new(offset, known));
    let mut written = put(
        session,
        &region,
        offset,
        &progress,
        &mut load,
        &mut ahead,
        || next(&mut stdin, PART_BYTES),
    );
    // One that was broken off before ends as well.
    if loads && session.wait(region.stat()).is_ok_and(|stat| stat.loading) {
        written = protected(written, protect(session, &region));
    }
    let written = written?;
    let mut answer =
        json!({ "region": name, "offset": offset, "bytes": written, "result": "written" });
    let (all, from) = (count(written, "byte"), with_unit(offset));
    let mut line = format!("region '{name}': {all} written at offset {from}");
    if let Some(load) = load {
        let logged = written - load.bare_bytes;
        answer["loaded_bytes"] = load.bare_bytes.into();
        answer["logged_bytes"] = logged.into();
        line += &load.told(logged);
    }
    output::changed(out, answer, line, None)
}

/// A load under way. Not all that it writes may be without parity: what shares groups with other bytes is logged.
struct BareLoad {
    /// The bytes that are certainly written, or were already.
    declared: Range<u64>,
    /// Those of them that have no parity meanwhile.
    bare: Vec<Range<u64>>,
    /// Bytes that were written without parity.
    bare_bytes: u64,
}

impl BareLoad {
    fn new(offset: u64, known: u64) -> BareLoad {
        BareLoad {
            declared: offset..offset.saturating_add(known),
            bare: Vec::new(),
            bare_bytes: 0,
        }
    }

    /// Before the first part, and before each that comes from a pipe behind what was known.
    fn declare(
        &mut self,
        session: &Cluster,
        region: &Region,
        part: Range<u64>,
    ) -> anyhow::Result<()> {
        let first = part.start == self.declared.start;
        if !first && part.end <= self.declared.end {
            return Ok(());
        }
        let next = match first {
            true => self.declared.start..self.declared.end.max(part.end),
            false => part,
        };
        self.bare
            .extend(session.wait(region.load(next.start, next.end - next.start))?);
        self.declared.end = next.end;
        Ok(())
    }

    fn written(&mut self, part: &Range<u64>) {
        let both = |bare: &Range<u64>| {
            let end = bare.end.min(part.end);
            end.saturating_sub(bare.start.max(part.start))
        };
        self.bare_bytes += self.bare.iter().map(both).sum::<u64>();
    }

    fn told(&self, logged: u64) -> String {
        let loaded = output::bytes(self.bare_bytes);
        match logged {
            0 => ", all of it loaded without parity, which is made".to_owned(),
            _ => format!(
                ", {loaded} of it loaded without parity, which is made, and {} logged: there other bytes kept their parity",
                output::bytes(logged)
            ),
        }
    }
}

/// The outcome of a load behind which parity was made, or not.
fn protected(written: anyhow::Result<u64>, made: anyhow::Result<()>) -> anyhow::Result<u64> {
    match (written, made) {
        (written, Ok(())) => written,
        (Ok(written), Err(error)) => {
            let text = format!("{} written; then: {error:#}", with_unit(written));
            Err(failure::with_text(&error, text))
        }
        (Err(error), Err(more)) => {
            let text = format!("{error:#}; {more:#}");
            Err(failure::with_text(&error, text))
        }
    }
}

/// Ends a load, and says what is in the way where parity is not made in time.
pub fn protect(session: &Cluster, region: &Region) -> anyhow::Result<()> {
    let Err(error) = session.wait(region.protect()) else {
        return Ok(());
    };
    let name = region.name();
    let why = match failure::code(&error) {
        Code::Wire(ErrorCode::Deadline) => what_is_missing(session, name).ok().flatten(),
        _ => None,
    };
    let text = match why {
        Some(why) => format!("region '{name}': {why}"),
        None => format!(
            "{error:#}; what was loaded of region '{name}' bears no loss until 'staves memory protect {name}' was done"
        ),
    };
    Err(failure::with_text(&error, text))
}

/// `None` if the load has not ended, as far as the map says.
fn what_is_missing(cluster: &Cluster, name: &str) -> anyhow::Result<Option<String>> {
    let (map, report) = (cluster.map()?, cluster.status()?);
    let known = map
        .region_named(name)
        .filter(|(_, region)| !region.is_loading());
    let Some((pool, _)) = known else {
        return Ok(None);
    };
    let free = FreeMemory::of(&map, &report.usage(), pool);
    let region = region_usage(cluster, &map, name);
    Ok(region.map(|region| region.missing_parity(free).to_string()))
}

fn check_room(cluster: &Cluster, stat: &RegionStat, offset: u64, count: u64) -> anyhow::Result<()> {
    let (map, report) = (cluster.map()?, cluster.status()?);
    // A node that does not know the region yet knows nothing of its memory either.
    let Some((pool, _)) = map.region_named(&stat.name) else {
        return Ok(());
    };
    let free = FreeMemory::of(&map, &report.usage(), pool);
    let Some(region) = region_usage(cluster, &map, &stat.name) else {
        return Ok(());
    };
    let refusal = region.may_load(free, offset, count);
    Ok(refusal.map_err(|refusal| Failure::Wire(ErrorCode::OutOfMemory, refusal.to_string()))?)
}

fn check_end(stat: &RegionStat, offset: u64, count: u64) -> Result<(), Failure> {
    let fits = offset.checked_add(count);
    if count == 0 || fits.is_some_and(|end| end <= stat.size_bytes) {
        return Ok(());
    }
    let text = format!("{}; nothing was written", past_the_end(stat, offset, count));
    Err(Failure::Wire(ErrorCode::Malformed, text))
}

/// A range that is not in the region, in the words of whoever asked for it.
pub fn past_the_end(stat: &RegionStat, offset: u64, count: u64) -> String {
    format!(
        "region '{}' ends at {}: there are no {} at offset {}; let it grow with 'staves memory grow'",
        stat.name,
        told(stat.size_bytes),
        told(count),
        told(offset),
    )
}

/// Exactly, and where that is a long row of digits roughly as well.
fn told(count: u64) -> String {
    let exact = with_unit(count);
    match exact.len() > 6 {
        true => format!("{exact} ({})", output::bytes(count)),
        false => exact,
    }
}

/// The progress of a write.
#[derive(Default)]
struct WriteProgress {
    /// Bytes that were acknowledged.
    written: AtomicU64,
    /// Some of them have no parity yet.
    bare: AtomicBool,
}

/// From now on Ctrl-C (and SIGTERM) says how much is safe before it ends the program, by the progress that is noted in
/// what this returns.
fn tell_at_ctrl_c(name: &str, offset: u64) -> anyhow::Result<Arc<WriteProgress>> {
    let progress = Arc::new(WriteProgress::default());
    let (name, told) = (name.to_owned(), progress.clone());
    at_signal(move || {
        let written = told.written.load(Ordering::SeqCst);
        let bare = told.bare.load(Ordering::SeqCst);
        output::say(stopped(&name, offset, written, bare));
    })?;
    Ok(progress)
}

fn stopped(name: &str, offset: u64, written: u64, bare: bool) -> String {
    let then = match bare {
        true => {
            format!("; what was loaded has no parity until 'staves memory protect {name}' was done")
        }
        false => String::new(),
    };
    let next = with_unit(offset.saturating_add(written));
    format!(
        "\nstopped: {} of region '{name}' were written and acknowledged, all before offset {next}; up to {} behind that may \
         have been written{then}",
        with_unit(written),
        with_unit(PART_BYTES),
    )
}

/// Writes what is at hand and what comes; how much it was.
fn put(
    session: &Cluster,
    region: &Region,
    offset: u64,
    progress: &WriteProgress,
    load: &mut Option<BareLoad>,
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
        let range = to..to.saturating_add(count);
        if let Some(load) = load {
            // Only now: what is refused before must not cost the region its parity.
            let declared = load.declare(session, region, range.clone());
            declared.map_err(|error| after(error, written, to))?;
            progress.bare.store(!load.bare.is_empty(), Ordering::SeqCst);
        }
        let done = session.wait(region.write(to, part));
        done.map_err(|error| after(error, written, to))?;
        written += count;
        if let Some(load) = load {
            load.written(&range);
        }
        progress.written.store(written, Ordering::SeqCst);
    }
}

/// The bytes that standard input still has, if it is a file.
fn length_of_stdin() -> Option<u64> {
    let stdin = std::io::stdin();
    let stat = rustix::fs::fstat(&stdin).ok()?;
    let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    let at = rustix::fs::tell(&stdin).ok().filter(|_| is_file)?;
    u64::try_from(stat.st_size).ok()?.checked_sub(at)
}

/// An error behind bytes that were written. It names one place to go on at: its own, if it has one.
fn after(error: anyhow::Error, written: u64, to: u64) -> anyhow::Error {
    let said = format!("{error:#}");
    if written == 0 || said.contains(GO_ON_THERE) {
        return error;
    }
    // What this part says of itself is not true of the whole.
    let said = said.trim_end_matches("; nothing was written");
    let text = format!(
        "{said}; all before offset {} was written: {GO_ON_THERE}",
        with_unit(to)
    );
    failure::with_text(&error, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_past_the_end_is_told_for_people() {
        let stat = RegionStat {
            name: "r".into(),
            pool: "p".into(),
            scheme: "2+1".into(),
            size_bytes: 10 << 20,
            capacity_bytes: 128 << 20,
            groups: Vec::new(),
            bucket_bytes: Vec::new(),
            lost: Vec::new(),
            loading: false,
            settled: true,
        };
        let text = past_the_end(&stat, (100 << 20) + 1, 7);
        assert!(
            text.contains("ends at 10MiB: there are no 7B at offset 104857601B (100 MiB);"),
            "{text}"
        );
    }

    #[test]
    fn a_write_that_fails_names_one_place_to_go_on_at() {
        let failed = |text: &str| {
            let error: anyhow::Error = Failure::Wire(ErrorCode::OutOfMemory, text.into()).into();
            format!("{:#}", after(error, 8 << 20, 8 << 20))
        };
        let told = failed("the pool is full; nothing was written");
        assert!(
            told.contains("full; all before offset 8MiB was written: go on there"),
            "{told}"
        );
        let inner = format!(
            "the pool is full; 3 of 9 parts of the request were written, all before offset 9MiB among them: {GO_ON_THERE}"
        );
        let told = failed(&inner);
        assert_eq!(told.matches("before offset").count(), 1, "{told}");
        assert!(told.contains("9MiB"), "{told}");
    }

    #[test]
    fn an_interrupted_write_says_how_far_it_came() {
        let told = stopped("r", 1 << 20, 24 << 20, false);
        for part in ["24MiB of region 'r'", "before offset 25MiB", "8MiB behind"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(!told.contains("parity"));
        assert!(stopped("r", 0, 0, true).contains("staves memory protect r"));
    }
}
