//! `staves demo`: a cluster on this machine, killed node by node under load, and an account of it.
//!
//! **What is shown.** Some nodes are started as processes of their own, with folders in a temporary place.
//! Writers set numbered keys through Redis's protocol and remember every value that was acknowledged.
//! Then a node is killed with SIGKILL, and when all is rebuilt another, the one that leads the directory.
//! At the end every key is read through a surviving node: an acknowledged value that is not there is a
//! loss, and the demo fails.
//!
//! With six nodes or more there is a second act: a region of memory, 4+2, is filled with pages that can be
//! checked, two nodes are killed at once, and it is read and written while they are rebuilt.
//!
//! Then a dataset is read through a mount, a node is killed, and all of it is read again.
//!
//! Then clients append to a log on disk and one follows it, while the node of its sequencer is killed, and then one that answers for a unit of it.
//!
//! At last a volume on disk is written through NBD, the node that serves it is killed, and then all nodes at once, as a loss of
//! power does. They start again, and every block is read, and the log once more. That act is last: all else is in memory alone.
//!
//! **Layout.** `load`: the writers and the check. `region`: the same for memory. `dataset`: the same for files. `log`: the same for logs, with its
//! act. `volume`: the same for volumes, with its act. `pages`: bytes that can be checked, for memory and volumes. `story`: what happened when. The nodes' processes and the client that writers use are shared with other commands.

#![warn(clippy::print_stdout, clippy::print_stderr)] // they panic if nobody reads

mod dataset;
mod load;
mod log;
mod pages;
mod region;
mod story;
mod volume;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use staves_model::{Change, Holdings, Medium, NodeId, PoolKind, Scheme};
use staves_node::status::{NodeStatus, PoolStatus, State, StatusReport};

use staves_cli_common::codes::Own;
use staves_cli_common::failure::Failure;
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, bytes, count, number};
use staves_cli_common::running::runtime;

use load::KeyLoad;
use staves_cli_common::nodes::Nodes;
use story::{FilesAct, MemoryAct, Round, Story};

// No doc comment: clap would print it.
#[allow(missing_docs)]
#[derive(clap::Args, Debug)]
pub struct Demo {
    /// Number of nodes
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(3..=15))]
    pub nodes: u32,

    /// End when it is shown, instead of leaving the cluster running
    #[arg(long)]
    pub once: bool,

    /// Use the ports from here on (four for each node) instead of free ones
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..=65_000))]
    pub base_port: Option<u16>,

    /// Keep the nodes' folders and logs, and say where
    #[arg(long)]
    pub keep: bool,
}

/// The time that the load runs before the first node is killed, and between rounds.
const WARM_UP: Duration = Duration::from_secs(2);
/// Longest wait for the cluster to start, or to rebuild the buckets of a killed node.
const PATIENCE: Duration = Duration::from_secs(120);
/// The interval at which the cluster is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(50);
/// Connections that write.
const WRITERS: usize = 4;
/// Memory of each node.
const NODE_MEMORY: &str = "512MiB";
/// The budget of the second act's pool on each node.
const MEMORY_BUDGET: u64 = 128 << 20;
/// From so many nodes on, a second one may be killed: its successors still have a majority.
const NODES_FOR_TWO_ROUNDS: u32 = 4;
/// The second act's pool. So many nodes it takes.
const MEMORY_POOL: &str = "memory";
const MEMORY_SCHEME: Scheme = Scheme { m: 4, k: 2 };
const NODES_FOR_MEMORY: usize = 6;
/// The budget of the dataset's pool on each node, and its buckets.
const FILES_BUDGET: u64 = 32 << 20;
const FILES_BUCKETS: u32 = 64;

/// Runs the demo.
pub fn run(demo: &Demo, out: Format) -> anyhow::Result<()> {
    let interrupted = on_interrupt()?;
    shown(demo, out, interrupted.clone()).map_err(|error| {
        // A terminal's Ctrl-C reaches the nodes as well: they may be missed before it is seen here.
        match interrupted.load(Ordering::SeqCst) {
            true => {
                let text = "the demo was interrupted before its end; its nodes are stopped";
                Failure::Own(Own::Interrupted, text.into()).into()
            }
            false => error,
        }
    })
}

fn shown(demo: &Demo, out: Format, interrupted: Arc<AtomicBool>) -> anyhow::Result<()> {
    let mut nodes = Nodes::new(demo.nodes, demo.base_port, demo.keep)?;
    let flags = ["--memory", NODE_MEMORY, "--disk", volume::NODE_DISK];
    nodes.flags = flags.map(str::to_owned).to_vec();
    nodes.serve_nbd = true;
    let source = dataset::GeneratedSource::generate(nodes.folder().join("files"))?;
    let mut show = Show {
        nodes,
        story: Story::begin(demo.nodes),
        interrupted,
    };
    show.start()?;
    let load = KeyLoad::start(&show.nodes.doors(), WRITERS)?;
    show.story.note(format!(
        "{WRITERS} writers set numbered keys, one at a time each"
    ));
    show.pause(WARM_UP)?;
    let rounds = if demo.nodes >= NODES_FOR_TWO_ROUNDS {
        2
    } else {
        1
    };
    for round in 0..rounds {
        show.round(&load, round == 1)?;
        show.pause(WARM_UP)?;
    }
    show.check(load)?;
    if show.nodes.count() >= NODES_FOR_MEMORY {
        show.memory()?;
    }
    show.files(source)?;
    let log = show.log()?;
    show.volume()?;
    show.log_again(log)?;
    show.story.finish(out)?;
    if !demo.once {
        show.stay()?;
    }
    match show.story.lost() {
        0 => Ok(()),
        lost => bail!(
            "{lost} acknowledged values, pages or records were lost, or files were read wrong"
        ),
    }
}

/// A flag that the first Ctrl-C raises, so that everything is cleaned up; the second ends at once.
fn on_interrupt() -> anyhow::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let raised = interrupted.clone();
    let runtime = runtime()?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            while tokio::signal::ctrl_c().await.is_ok() {
                if raised.swap(true, Ordering::SeqCst) {
                    std::process::exit(130);
                }
            }
        });
    });
    Ok(interrupted)
}

struct Show {
    nodes: Nodes,
    story: Story,
    interrupted: Arc<AtomicBool>,
}

impl Show {
    /// Starts the nodes: the first one makes the cluster, all others join it at once.
    fn start(&mut self) -> anyhow::Result<()> {
        self.nodes.spawn(0)?;
        self.wait("the first node answers", |_| true)?;
        for node in 1..self.nodes.count() {
            self.nodes.spawn(node)?;
        }
        let all = self.nodes.count();
        self.story.note(format!(
            "{} started; they log to {}",
            count(all, "node"),
            self.nodes.folder().display()
        ));
        let report = self.wait("all nodes have joined and hold copies", |report| {
            let up = report.nodes.iter().filter(|node| node.up).count();
            up == all && report.state == State::Healthy && !report.pools.is_empty()
        })?;
        let pool = &report.pools[0];
        self.story.note(format!(
            "healthy: pool '{}' has {}, {}",
            pool.name,
            count(pool.buckets, "bucket"),
            pool.scheme
        ));
        Ok(())
    }

    /// Kills a node under load and waits until what it held is whole again elsewhere.
    fn round(&mut self, load: &KeyLoad, leader: bool) -> anyhow::Result<()> {
        // Not healthy: a node that was killed before is missed until the end.
        let before = self.wait("every bucket is whole", |report| {
            let is_up = |id: &u64| report.nodes.iter().any(|node| node.id == *id && node.up);
            let whole = report.pools.iter().all(|p| as_whole_as_can_be(p, report));
            whole && report.directory.leader.is_some() && report.directory.voters.iter().all(is_up)
        })?;
        let victim = victim(&before, leader)?;
        let process = self
            .nodes
            .at(&victim.native)
            .context("the victim is not one of ours")?;
        load.begin_round();
        let killed = Instant::now();
        self.nodes.kill(process)?;
        let leads = if victim.leads_directory {
            ", which led the directory"
        } else {
            ""
        };
        self.story.note(format!(
            "killed node {}{leads}: {} and {} gone",
            victim.id,
            count(victim.primaries, "primary"),
            count(victim.copies, "copy")
        ));
        self.wait("the killed node's buckets are whole again", |report| {
            let noticed = report
                .nodes
                .iter()
                .any(|node| node.id == victim.id && !node.up);
            noticed
                && report
                    .pools
                    .iter()
                    .all(|pool| as_whole_as_can_be(pool, report))
        })?;
        let round = Round {
            killed: victim.id,
            led_directory: victim.leads_directory,
            writes_resumed_ms: load.longest_wait().as_millis() as u64,
            rebuilt_ms: killed.elapsed().as_millis() as u64,
        };
        self.story.note(format!(
            "rebuilt {:.2} s after the kill; no writer waited longer than {} ms for an answer",
            round.rebuilt_ms as f64 / 1000.0,
            round.writes_resumed_ms
        ));
        self.story.round(round);
        Ok(())
    }

    /// Stops the writers, and reads every key through a surviving node.
    fn check(&mut self, load: KeyLoad) -> anyhow::Result<()> {
        let written = load.stop()?;
        self.story.note(format!(
            "{} writes acknowledged, {} cut off or answered with an error",
            number(written.acknowledged),
            number(written.unknown)
        ));
        let door = self
            .nodes
            .doors()
            .into_iter()
            .next()
            .context("no node is left")?;
        let checked = load::check(&door, &written, PATIENCE)?;
        self.story.note(format!(
            "checked {} keys through {door}: {} lost",
            number(checked.keys),
            number(checked.lost)
        ));
        checked
            .examples
            .iter()
            .for_each(|example| self.story.note(format!("lost: {example}")));
        self.story.checked(&written, &checked);
        Ok(())
    }

    /// The second act: two nodes at once.
    fn memory(&mut self) -> anyhow::Result<()> {
        self.nodes.revive()?;
        let all = self.nodes.count();
        self.wait("the killed nodes are back", |report| {
            let up = report.nodes.iter().filter(|node| node.up).count();
            up >= all && report.pools.iter().all(|p| p.whole == p.buckets)
        })?;
        self.nodes.propose(&Change::CreatePool {
            name: MEMORY_POOL.into(),
            kind: PoolKind::Memory {
                regions: Vec::new(),
            },
            scheme: MEMORY_SCHEME,
            medium: Medium::Ram,
            node_budget_bytes: MEMORY_BUDGET,
            buckets: 0,
            may_start_empty: false,
        })?;
        let load = region::RegionLoad::start(self.nodes.native_doors(), MEMORY_POOL)?;
        let load = self.until_filled(load)?;
        let mib = (u64::from(region::PAGES) * pages::PAGE_BYTES as u64) >> 20;
        self.story.note(format!(
            "the killed nodes are back; a region of {mib} MiB of memory, {MEMORY_SCHEME}, is filled, read and written"
        ));
        self.pause(WARM_UP)?;
        let before = self.wait("every bucket is whole", |report| {
            report.pools.iter().all(|p| p.whole == p.buckets) && report.directory.leader.is_some()
        })?;
        // Data buckets are the harder loss: what they held has to be made of what the others hold. The
        // directory's leader stays: its death was shown before.
        let data_nodes = load.data_nodes()?;
        let mut victims: Vec<NodeStatus> = before.nodes;
        victims.retain(|node| data_nodes.contains(&node.id) && !node.leads_directory);
        victims.truncate(2);
        load.begin_round();
        let (ids, rebuilt_ms) = self.lose_and_rebuild(&victims)?;
        self.pause(WARM_UP)?;
        let longest_wait_ms = load.longest_wait().as_millis() as u64;
        self.story.note(format!(
            "started again with nothing in memory, and rebuilt {:.2} s later; no read or write took longer than \
             {longest_wait_ms} ms, from the kills on",
            rebuilt_ms as f64 / 1000.0
        ));
        let done = load.stop()?;
        self.story.note(format!(
            "checked all {} pages after {} reads and {} writes: {} wrong",
            number(region::PAGES.into()),
            number(done.reads),
            number(done.writes),
            number(done.wrong)
        ));
        for example in &done.examples {
            self.story.note(format!("wrong: {example}"));
        }
        self.story.act(MemoryAct {
            scheme: MEMORY_SCHEME.to_string(),
            killed: ids,
            pages: region::PAGES,
            longest_wait_ms,
            rebuilt_ms,
            done,
        });
        Ok(())
    }

    /// Waits until the workers have written every page once.
    fn until_filled(&mut self, load: region::RegionLoad) -> anyhow::Result<region::RegionLoad> {
        let until = Instant::now() + PATIENCE;
        while load.filled() < u64::from(region::PAGES) {
            self.look_up()?;
            if load.is_broken() {
                self.nodes.keep();
                return Err(load
                    .stop()
                    .err()
                    .unwrap_or_else(|| anyhow!("a worker ended")))
                .context("the region is not filled");
            }
            if Instant::now() >= until {
                self.nodes.keep();
                bail!(
                    "the region is not filled: {} of {} pages are. Last error: {}. The nodes' logs are in {}",
                    load.filled(),
                    region::PAGES,
                    load.last_error().unwrap_or_else(|| "none".into()),
                    self.nodes.folder().display()
                );
            }
            std::thread::sleep(LOOK);
        }
        Ok(load)
    }

    /// Kills two nodes at once, starts them again, and waits until all is rebuilt: their ids, and how long it
    /// took from their start on.
    fn lose_and_rebuild(&mut self, victims: &[NodeStatus]) -> anyhow::Result<(Vec<u64>, u64)> {
        let all = self.nodes.count();
        let ids: Vec<u64> = victims.iter().map(|node| node.id).collect();
        anyhow::ensure!(ids.len() == 2, "fewer than two nodes hold data buckets");
        for victim in victims {
            let process = self.nodes.at(&victim.native);
            self.nodes
                .kill(process.context("the victim is not one of ours")?)?;
        }
        self.story.note(format!(
            "killed nodes {} and {} at once, which held data buckets of it",
            ids[0], ids[1]
        ));
        self.wait("their death is noticed", |report| {
            let noticed = |id: &u64| report.nodes.iter().any(|n| n.id == *id && !n.up);
            ids.iter().all(noticed)
        })?;
        // With as many nodes as members there is none to spare: what was lost is rebuilt where they ran.
        self.nodes.revive()?;
        let back = Instant::now();
        self.wait("the lost buckets are rebuilt", |report| {
            let up = report.nodes.iter().filter(|node| node.up).count();
            up == all && report.pools.iter().all(|p| p.whole == p.buckets)
        })?;
        Ok((ids, back.elapsed().as_millis() as u64))
    }

    /// The act before the last: a dataset, and a node killed between two reads of all of it.
    fn files(&mut self, source: dataset::GeneratedSource) -> anyhow::Result<()> {
        self.nodes.revive()?;
        self.nodes.propose(&Change::CreatePool {
            name: dataset::NAME.into(),
            kind: PoolKind::Files(Holdings::default()),
            scheme: Scheme { m: 1, k: 0 },
            medium: Medium::Ram,
            node_budget_bytes: FILES_BUDGET,
            buckets: FILES_BUCKETS,
            may_start_empty: true,
        })?;
        let all = self.nodes.count();
        let before = self.wait("all nodes are up and each bucket has a home", |report| {
            let up = report.nodes.iter().filter(|node| node.up).count();
            up >= all && report.pools.iter().all(|p| p.whole == p.buckets)
        })?;
        let interrupted = self.interrupted.clone();
        let look_up = || go_on(&interrupted);
        let (program, doors) = (self.nodes.program().to_owned(), self.nodes.native_doors());
        let (reader, why) = dataset::DatasetReader::open(&program, &doors, source, look_up)?;
        if let Some(why) = why {
            self.story
                .note(format!("nothing is mounted, the client reads: {why}"));
        }
        let mut seen = reader.check(look_up)?;
        let (files, total, way) = (dataset::FILES, bytes(dataset::BYTES), reader.way());
        self.story.note(format!(
            "a dataset of {files} files, {total}, was read through {way}, and is in the memory of the nodes now"
        ));
        let killed = self.kill_a_home(&before)?;
        seen.add(reader.check(look_up)?);
        let served = reader.end()?;
        self.story.note(format!(
            "killed node {killed}, and read all again: {} of {} checksums wrong; the longest read took {} ms; of {} read \
             both times {} came from the source, the rest from memory",
            seen.wrong,
            seen.checked,
            seen.longest_read_us.div_ceil(1000),
            bytes(seen.bytes),
            bytes(served.all_source_bytes()),
        ));
        for example in &seen.examples {
            self.story.note(format!("wrong: {example}"));
        }
        self.story.files(FilesAct {
            way,
            killed,
            files,
            bytes: dataset::BYTES,
            seen,
            served,
        });
        Ok(())
    }

    /// Kills the node that is the home of most buckets of the dataset's pool, but not the directory's leader: its id.
    fn kill_a_home(&mut self, before: &StatusReport) -> anyhow::Result<u64> {
        let map = self.nodes.cluster()?.map()?;
        let holdings = map.pool_named(dataset::NAME).and_then(|p| p.holdings());
        let holdings = holdings.context("the dataset's pool is not there")?;
        let homes = |id: u64| {
            let buckets = 0..FILES_BUCKETS;
            let home = |b: &u32| holdings.home(*b).is_some_and(|h| h.node == NodeId(id));
            buckets.filter(home).count()
        };
        let up = before.nodes.iter().filter(|n| n.up && !n.leads_directory);
        let victim = up.max_by_key(|node| homes(node.id));
        let victim = victim.context("there is no node to kill")?;
        let process = self.nodes.at(&victim.native);
        self.nodes
            .kill(process.context("the victim is not one of ours")?)?;
        Ok(victim.id)
    }

    /// Brings the killed nodes back and keeps the cluster running until Ctrl-C.
    fn stay(&mut self) -> anyhow::Result<()> {
        self.nodes.revive()?;
        let all = self.nodes.count();
        self.wait("the killed nodes are back", |report| {
            report.nodes.iter().filter(|node| node.up).count() >= all
        })?;
        if all >= NODES_FOR_MEMORY {
            // It was in memory alone, and is lost: the cluster is healthy without it.
            let name = region::NAME.to_owned();
            self.nodes.propose(&Change::DeleteRegion { name })?;
        }
        let (resp, native) = self.nodes.first_doors();
        let (host, port) = resp.rsplit_once(':').unwrap_or(("127.0.0.1", &resp));
        output::say(
            "\nThe cluster keeps running; all that it had in memory alone went with the power. Ctrl-C ends it.\n",
        );
        output::line(format!("redis-cli -h {host} -p {port}"))?;
        output::line(format!("staves status --cluster {native}"))?;
        while !self.interrupted.load(Ordering::SeqCst) {
            self.nodes.check_alive()?;
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn pause(&self, time: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.look_up()?;
            std::thread::sleep(LOOK.min(time));
        }
        Ok(())
    }

    /// Looks at the cluster until it is as wanted; the report that said so.
    fn wait(
        &mut self,
        what: &str,
        wanted: impl Fn(&StatusReport) -> bool,
    ) -> anyhow::Result<StatusReport> {
        let Show {
            nodes, interrupted, ..
        } = self;
        nodes.wait(what, PATIENCE, |nodes| {
            go_on(interrupted)?;
            Ok(nodes.status_if(&wanted))
        })
    }

    fn look_up(&self) -> anyhow::Result<()> {
        go_on(&self.interrupted)
    }
}

/// Fails after a Ctrl-C.
fn go_on(interrupted: &AtomicBool) -> anyhow::Result<()> {
    match interrupted.load(Ordering::SeqCst) {
        true => bail!("interrupted"),
        false => Ok(()),
    }
}

/// All copies are there, or as many as there are nodes for, and nothing moves any more.
fn as_whole_as_can_be(pool: &PoolStatus, report: &StatusReport) -> bool {
    let wanted: Option<Scheme> = pool.scheme.parse().ok();
    let up = report.nodes.iter().filter(|node| node.up).count();
    let short_of_nodes = wanted.is_some_and(|scheme| up < scheme.width());
    let still = pool.changing == 0 && pool.starting == 0 && report.rebuild.is_none();
    pool.whole == pool.buckets
        || (short_of_nodes && still && pool.whole + pool.short == pool.buckets)
}

/// The directory's leader, or of the others the one with the most primaries.
fn victim(report: &StatusReport, leader: bool) -> anyhow::Result<NodeStatus> {
    let mut up: Vec<&NodeStatus> = report.nodes.iter().filter(|node| node.up).collect();
    up.retain(|node| node.leads_directory == leader);
    let most = up.into_iter().max_by_key(|node| node.primaries);
    most.cloned()
        .context("there is no node to kill: does the directory have a leader?")
}
