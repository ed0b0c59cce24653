//! `staves files preload`: bringing files into memory, and the truth of what came of it.

mod load;

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;
use staves_client::{Dataset, Keep};
use staves_model::{Change, ClusterMap, Holdings, Pin, PoolId, Revision};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::load::{RefusedFiles, load};
use super::held::{ResidentBlocks, held, percent};
use super::{FoundBelow, FoundFile, files_below, open, source_of};
use staves_cli_common::cluster::Cluster;
use staves_cli_common::codes::Own;
use staves_cli_common::failure::{Failure, failed};
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, bytes, count};

/// The interval of progress reports: on a terminal, and elsewhere.
const TELL: Duration = Duration::from_millis(200);
const TELL_SELDOM: Duration = Duration::from_secs(5);
/// Longest wait until a pool's buckets have homes.
const HOMES: Duration = Duration::from_secs(30);
/// The interval at which that is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// The number of times that missing blocks are loaded, if nodes come and go meanwhile.
const TRIES: u32 = 3;
/// The promise of a preload that ends before it is done.
const STAYS: &str = "what was loaded stays, and the same command goes on from there";
/// Files of which it is asked why they are not kept.
const ASKED_MAX: usize = 32;

pub fn run(
    session: &Cluster,
    name: &str,
    paths: &[String],
    pinned: bool,
    out: Format,
) -> anyhow::Result<()> {
    let data = open(session, name)?;
    let found = files_below(&data, paths)?;
    let files = &found.files;
    let total: u64 = files.iter().map(|found| found.file.size()).sum();
    if pinned {
        session.runtime.block_on(all_may_be_kept(&data, files))?;
        pin(session, files)?;
    }
    let mut interrupt = {
        let _within = session.runtime.enter();
        signal(SignalKind::interrupt()).context("cannot wait for an interrupt")?
    };
    let mut teller = Teller::new(out, total);
    let began = Instant::now();
    let brought = session.runtime.block_on(async {
        tokio::select! {
            held = bring(session, &data, files, &mut teller) => held.map(Some),
            _ = interrupt.recv() => Ok(None),
        }
    });
    teller.end();
    let ((held, refused), interrupted) = match brought? {
        Some(brought) => (brought, false),
        None => {
            let held = there_now(session, &data, files, &mut interrupt)?;
            ((held, RefusedFiles::default()), true)
        }
    };
    let seconds = began.elapsed().as_secs_f64();
    let here: u64 = files.iter().map(|found| held.here(&found.file)).sum();
    let result = match (interrupted, here == total && found.is_whole()) {
        (true, _) => "interrupted",
        (false, true) => "loaded",
        (false, false) => "partly",
    };
    let answer = json!({
        "dataset": name, "files": files.len(), "bytes": total, "in_memory_bytes": here, "seconds": seconds,
        "pinned": pinned, "unreadable_files": found.unreadable.len(),
        "unlisted_folders": found.unlisted.count, "result": result,
    });
    let mut in_memory = format!(
        "{} of {} are in memory ({}), {} are not",
        bytes(here),
        bytes(total),
        percent(here, total),
        bytes(total - here)
    );
    output::answer(out, &answer, |_| {
        let all = format!("{} with {}", count(files.len(), "file"), bytes(total));
        let rate = bytes((total as f64 / seconds.max(1e-3)) as u64);
        let pinned = if pinned { " and pinned" } else { "" };
        match result {
            "loaded" if files.is_empty() => "no file is there to be loaded".to_owned(),
            "interrupted" => format!("{all}: interrupted after {seconds:.1} s"),
            "loaded" => format!("{all} loaded{pinned} in {seconds:.1} s ({rate}/s)"),
            _ => format!("{all} read{pinned} in {seconds:.1} s ({rate}/s)"),
        }
    })?;
    if interrupted {
        if !held.silent.is_empty() {
            in_memory = format!("{in_memory}; {}", held.silence(&data.pool().1));
        }
        let text = format!("{in_memory}; {STAYS}");
        return Err(Failure::Own(Own::Interrupted, text).into());
    }
    let reasons = session.runtime.block_on(async {
        let is_all = here == total;
        reasons(&data, &found, &held, &refused, is_all).await
    });
    match reasons.is_empty() {
        true => Ok(()),
        false => {
            let text = format!("{in_memory}: {}", reasons.join("; "));
            Err(Failure::Own(Own::Failed, text).into())
        }
    }
}

/// All that was left out, or is not in memory, and why.
async fn reasons(
    data: &Dataset,
    found: &FoundBelow,
    held: &ResidentBlocks,
    refused: &RefusedFiles,
    is_all: bool,
) -> Vec<String> {
    let mut reasons = found.left_out();
    if is_all {
        return reasons;
    }
    reasons.extend(refused.message());
    let lacks = |found: &&FoundFile| held.lacks(&found.file) && !refused.has(found);
    let lacking: Vec<&FoundFile> = found.files.iter().filter(lacks).collect();
    if !lacking.is_empty() || reasons.is_empty() {
        reasons.extend(why(data, lacking, held).await);
    }
    reasons
}

/// Has all of the files brought into memory, as far as that can be. What is there in the end.
async fn bring(
    session: &Cluster,
    data: &Dataset,
    files: &[FoundFile],
    teller: &mut Teller,
) -> anyhow::Result<(ResidentBlocks, RefusedFiles)> {
    let mut refused = RefusedFiles::default();
    let mut lacking: Vec<&FoundFile> = files.iter().collect();
    let mut tries = 0;
    loop {
        tries += 1;
        let homes = wait_for_homes(session, data.pool().0, teller).await?;
        let ended = load(data, &lacking, teller, &mut refused).await;
        ended.map_err(|error| Failure::Own(Own::Failed, format!("{error}; {STAYS}")))?;
        let map = session.client.refresh().await.map_err(failed)?;
        let until = Instant::now() + session.deadline;
        let held = held(&session.client, &map, data.pool().0, files, until).await;
        lacking.retain(|found| held.lacks(&found.file) && !refused.has(found));
        // Whoever came or went meanwhile may have taken something along.
        let settled = held.silent.is_empty() && homes == holders_since(&map, data.pool().0);
        if lacking.is_empty() || settled || tries == TRIES {
            return Ok((held, refused));
        }
    }
}

/// Asks for the blocks in memory after an interrupt. A second interrupt ends the question.
fn there_now(
    session: &Cluster,
    data: &Dataset,
    files: &[FoundFile],
    interrupt: &mut Signal,
) -> anyhow::Result<ResidentBlocks> {
    let (pool, map) = data.pool();
    let until = Instant::now() + session.deadline;
    session.runtime.block_on(async {
        tokio::select! {
            held = held(&session.client, &map, pool, files, until) => Ok(held),
            _ = interrupt.recv() => Err(Failure::Own(Own::Interrupted, format!("interrupted; {STAYS}")).into()),
        }
    })
}

/// Refuses to pin what no node keeps.
async fn all_may_be_kept(data: &Dataset, files: &[FoundFile]) -> anyhow::Result<()> {
    // What servers have is asked for with credentials that the nodes have, too, or not: it has no modes.
    let files = if source_of(data).starts_with('/') {
        files
    } else {
        &[]
    };
    for found in files {
        if let Ok(Keep::Never) = data.may_be_kept(&found.file).await {
            let text = format!(
                "{} cannot be pinned: not everybody may read it at its source (chmod o+r, and o+x for its folders), so no node keeps it",
                found.path()
            );
            return Err(Failure::Own(Own::Failed, text).into());
        }
    }
    Ok(())
}

/// Pins files, before they are loaded: whoever has not the room for them learns it at once.
fn pin(session: &Cluster, files: &[FoundFile]) -> anyhow::Result<()> {
    let pins = files.iter().map(|found| {
        let version = found.file.version();
        Pin {
            dataset: version.dataset.clone(),
            path: version.path.clone(),
            size: version.size,
            version: version.version.clone(),
        }
    });
    session.wait(session.client.propose(&Change::PinFiles(pins.collect())))?;
    Ok(())
}

/// Since when a pool's holders are those that they are.
fn holders_since(map: &ClusterMap, pool: PoolId) -> Option<Revision> {
    let holdings = map.pools.get(&pool)?.holdings()?;
    Some(holdings.revision)
}

/// Waits until all buckets of a pool have homes, for a while: nobody keeps what is loaded before. Since when they are what they are.
async fn wait_for_homes(
    session: &Cluster,
    pool: PoolId,
    teller: &mut Teller,
) -> anyhow::Result<Option<Revision>> {
    let until = Instant::now() + HOMES;
    loop {
        let map = session.client.refresh().await.map_err(failed)?;
        let (without, all) = homeless(&map, pool);
        if without == 0 || Instant::now() >= until {
            return Ok(holders_since(&map, pool));
        }
        teller.say(&format!(
            "waiting for a home of {without} of the pool's {}",
            count(all, "bucket")
        ));
        tokio::time::sleep(LOOK).await;
    }
}

/// Counts a pool's buckets without a home that runs, and all of its buckets.
fn homeless(map: &ClusterMap, pool: PoolId) -> (usize, usize) {
    let holdings: Option<&Holdings> = map.pools.get(&pool).and_then(|p| p.holdings());
    let Some(holdings) = holdings else {
        return (0, 0);
    };
    let all = holdings.buckets.len();
    let has_home = |bucket: &u32| {
        let home = holdings.home(*bucket);
        home.is_some_and(|home| map.is_up(home.node, home.incarnation))
    };
    let with = (0..all as u32).filter(has_home).count();
    (all - with, all)
}

/// The reasons why not all of the files are in memory.
async fn why(data: &Dataset, lacking: Vec<&FoundFile>, held: &ResidentBlocks) -> Vec<String> {
    let mut why = Vec::new();
    let (pool, map) = data.pool();
    let (without, all) = homeless(&map, pool);
    if without > 0 {
        let all = count(all, "bucket");
        why.push(format!(
            "no node is home of {without} of the pool's {all}: see 'staves status', then preload again"
        ));
    }
    if !held.silent.is_empty() {
        why.push(held.silence(&map));
    }
    let (fresh, lacking): (Vec<_>, Vec<_>) = lacking.into_iter().partition(|f| f.fresh);
    if let Some(names) = names(&fresh) {
        why.push(format!(
            "{names} had changed just before, and is kept only after some seconds: preload again"
        ));
    }
    let (mut closed, mut written) = (Vec::new(), Vec::new());
    for found in lacking.iter().take(ASKED_MAX) {
        match data.may_be_kept(&found.file).await {
            Ok(Keep::Never) => closed.push(*found),
            Ok(Keep::NotYet) => written.push(*found),
            _ => {}
        }
    }
    if let Some(names) = names(&written) {
        why.push(format!(
            "{names} is open for writing, or changed just now, and is kept only when that is over: preload again then"
        ));
    }
    if let Some(names) = names(&closed) {
        why.push(format!(
            "{names} is not for everybody to read (chmod o+r, and o+x for its folders), and so never pooled"
        ));
    }
    if why.is_empty() || lacking.len() > closed.len() + written.len() {
        why.push(room(&map, pool));
    }
    why
}

/// One by name, and how many more there are.
fn names(files: &[&FoundFile]) -> Option<String> {
    let first = files.first()?.path();
    Some(match files.len() {
        1 => first,
        more => format!("{first} (and {} more)", more - 1),
    })
}

/// Describes the memory of the pool.
fn room(map: &ClusterMap, pool: PoolId) -> String {
    let budget = map.pools.get(&pool).map_or(0, |p| p.node_budget_bytes);
    let up = map.nodes.values();
    let up = up.filter(|n| map.is_up(n.id, n.incarnation) && !n.draining);
    let nodes = up.count();
    format!(
        "the pool has no room for more: {} on {} are for all files, and less where caches and regions need the memory",
        bytes(budget.saturating_mul(nodes as u64)),
        count(nodes, "node")
    )
}

/// Says on stderr how far it is, where people read it.
struct Teller {
    on: bool,
    terminal: bool,
    total: u64,
    began: Instant,
    answer: Instant,
}

impl Teller {
    fn new(out: Format, total: u64) -> Teller {
        Teller {
            on: out == Format::Table,
            terminal: std::io::stderr().is_terminal(),
            total,
            began: Instant::now(),
            answer: Instant::now(),
        }
    }

    fn tell(&mut self, done: u64) {
        let seconds = self.began.elapsed().as_secs_f64();
        let rate = done as f64 / seconds;
        let left = (self.total.saturating_sub(done)) as f64 / rate.max(1.0);
        self.say(&format!(
            "{} of {} ({}), {}/s, {left:.0} s left",
            bytes(done),
            bytes(self.total),
            percent(done, self.total),
            bytes(rate as u64)
        ));
    }

    /// Says it, unless something was said just before.
    fn say(&mut self, line: &str) {
        let pause = if self.terminal { TELL } else { TELL_SELDOM };
        if !self.on || self.answer.elapsed() < pause {
            return;
        }
        self.answer = Instant::now();
        let mut stderr = std::io::stderr();
        let _ = match self.terminal {
            true => write!(stderr, "\r\x1b[K{line}"),
            false => writeln!(stderr, "{line}"),
        };
    }

    fn end(&self) {
        if self.on && self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
