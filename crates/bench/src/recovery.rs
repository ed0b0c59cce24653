//! `staves bench recovery`: how fast lost buckets of a region are rebuilt, alone and under reads, and how
//! fast a page comes that a client waits for (row H9; figure 8 of the paper on reliability groups).
//!
//! As many nodes as the scheme is wide are started on this machine, and as many to spare as are killed at once, each
//! a process of its own, and a region is made and filled. Then nodes are killed, and the spare ones rebuild
//! what they held: a bucket of each of the groups that they were in, data or parity. Each node says itself when
//! a bucket's group opened and when it had all its pages; the rate is what was rebuilt over the time in which
//! any of them was being rebuilt.

mod busy;
mod reads;

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use staves_client::Region;
use staves_model::{
    CHUNK_BYTES, Change, ClusterMap, GroupId, Medium, NodeId, PAGE_BYTES, PoolKind, Scheme,
    stretch_unit,
};
use staves_node::config::Size;
use staves_node::resident::{available_bytes, proportional_bytes, resident_bytes};
use staves_node::status::StatusReport;
use tokio::runtime::Runtime;

use self::busy::CpuWatch;
use self::reads::{Places, ReadFigures, Reads};
use super::memory::{fill, us};
use staves_cli_common::nodes::Nodes;
use staves_cli_common::options::GlobalOptions;
use staves_cli_common::output::{self, Column, bytes, columns, count, number, or_dash};
use staves_cli_common::running::connect;

/// Longest wait for the cluster: to start, to notice a death, to rebuild.
const PATIENCE: Duration = Duration::from_secs(180);
const POOL: &str = "recovery";
const REGION: &str = "recovery";
/// Most memory of a process beside its pages, while much is written and rebuilt.
const BESIDE_PAGES_BYTES: u64 = 64 << 20;
/// Idle time of the nodes before their memory is measured.
const REST: Duration = Duration::from_secs(3);

#[derive(clap::Args, Debug)]
pub struct RecoveryBench {
    /// Bytes of the region; all are written before anything is measured
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub size: Size,

    /// The region's scheme; so many nodes are started, and as many more as are killed at once
    #[arg(long, value_name = "DATA+PARITY", default_value = "4+2")]
    pub scheme: Scheme,

    /// Number of nodes that are killed at once; a list
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub lost: Vec<u8>,

    /// Runs of each, to take the median of
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub times: u32,

    /// Reads a second beside a recovery, half of them of pages that are not rebuilt yet; 0: no run with reads
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub reads: u32,

    /// Pages that are read while nothing is rebuilt but what is asked for; 0: no such run
    #[arg(long, value_name = "COUNT", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub demand: u32,

    /// Worker threads of each node; 0: as many as give each core one or two
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub threads: u32,

    /// Keep the nodes' folders and logs, and say where
    #[arg(long)]
    pub keep: bool,
}

/// All that was measured.
#[derive(Serialize)]
struct RecoveryReport {
    scheme: String,
    nodes: usize,
    region_bytes: u64,
    fill_bytes_per_second: f64,
    /// Resident memory of all nodes some seconds after the region was filled, whatever it is used for; the program's
    /// file, which is in memory once, counts for each.
    resident_bytes: u64,
    resident_share: f64,
    /// The same, with what nodes share counted once.
    proportional_bytes: u64,
    proportional_share: f64,
    recoveries: Vec<Recovery>,
    demands: Vec<Demand>,
    /// For a plot: x is how many nodes were killed, y megabytes a second.
    rows: Vec<FigureRow>,
}

/// Nodes were killed, and what they held was rebuilt.
#[derive(Clone, Serialize)]
struct Recovery {
    lost_nodes: u8,
    pages: u64,
    seconds: f64,
    bytes_per_second: f64,
    /// Processors that the nodes kept busy meanwhile.
    processors_busy: f64,
    /// Pages that came out of turn, because a read waited for them.
    demanded_pages: u64,
    /// Of those that began while it went on; `null`: there were none beside it.
    reads: Option<ReadFigures>,
}

/// Reads while nothing is rebuilt but what they ask for.
#[derive(Serialize)]
struct Demand {
    /// Each page was missing when it was read; if false, none was.
    missing: bool,
    callers: u32,
    reads: ReadFigures,
}

#[derive(Serialize)]
struct FigureRow {
    figure: u8,
    case: &'static str,
    x: f64,
    y: f64,
}

pub fn run(global: &GlobalOptions, bench: &RecoveryBench) -> anyhow::Result<()> {
    let Scheme { m, k } = bench.scheme;
    ensure!(
        m > 1,
        "a recovery of {} copies bytes; give two data buckets or more",
        bench.scheme
    );
    if let Some(lost) = bench.lost.iter().find(|lost| **lost > k) {
        bail!(
            "{} does not bear the loss of {}",
            bench.scheme,
            count(*lost, "node")
        );
    }
    let spare = bench.lost.iter().copied().max().unwrap_or(1);
    check_size(bench, spare, available_bytes())?;
    let mut town = RecoveryCluster::start(bench, spare, &[])?;
    let fill_bytes_per_second = town.fill(bench.size.0)?;
    std::thread::sleep(REST);
    let resident_bytes = town.memory(resident_bytes);
    let proportional_bytes = town.memory(proportional_bytes);
    let mut report = RecoveryReport {
        scheme: bench.scheme.to_string(),
        nodes: town.nodes.count(),
        region_bytes: bench.size.0,
        fill_bytes_per_second,
        resident_bytes,
        resident_share: resident_bytes as f64 / bench.size.0 as f64,
        proportional_bytes,
        proportional_share: proportional_bytes as f64 / bench.size.0 as f64,
        recoveries: Vec::new(),
        demands: Vec::new(),
        rows: Vec::new(),
    };
    let loads = [0, bench.reads];
    let loads = if bench.reads > 0 {
        &loads[..]
    } else {
        &loads[..1]
    };
    for lost in &bench.lost {
        for reads in loads {
            for _ in 0..bench.times {
                let recovery = town.recovery(*lost, *reads)?;
                let rate = bytes(recovery.bytes_per_second as u64);
                output::say(format_args!(
                    "{lost} lost, {reads} reads/s beside it: {rate}/s"
                ));
                report.recoveries.push(recovery);
            }
        }
    }
    drop(town);
    if bench.demand > 0 {
        let mut town = RecoveryCluster::start(bench, 1, &["--rebuild-pages-max", "0"])?;
        town.fill(bench.size.0)?;
        report.demands = town.demand(bench.demand)?;
    }
    report.rows = rows(&report.recoveries);
    output::answer(global.output, &report, RecoveryReport::table)?;
    let beside = report.recoveries.iter().filter_map(|r| r.reads.as_ref());
    let reads = beside.chain(report.demands.iter().map(|d| &d.reads));
    let failed: u64 = reads.map(|reads| reads.errors).sum();
    ensure!(
        failed == 0,
        "{} failed, and each should have been answered",
        count(failed, "read")
    );
    Ok(())
}

/// Checks that a region of that size has bytes in each data bucket, and that the machine has memory for it.
fn check_size(bench: &RecoveryBench, spare: u8, available: Option<u64>) -> anyhow::Result<()> {
    let (size, width) = (bench.size.0, bench.scheme.width() as u64);
    let least = u64::from(bench.scheme.m) * CHUNK_BYTES;
    ensure!(
        size >= least,
        "a region of {} leaves data buckets empty, and of those nothing is lost: give {} or more",
        bytes(size),
        bytes(least)
    );
    let pages = u128::from(size.div_ceil(u64::from(bench.scheme.m))) * u128::from(width);
    let nodes = width + u64::from(spare);
    let needed = pages + u128::from(nodes * BESIDE_PAGES_BYTES);
    let Some(available) = available.filter(|available| u128::from(*available) < needed) else {
        return Ok(());
    };
    let rounded = |all: u128| bytes(u64::try_from(all).unwrap_or(u64::MAX));
    bail!(
        "a region of {} on {} takes {}, and {nodes} nodes up to {} each beside it, {} in all; this machine has {} \
         available: give a smaller --size",
        bytes(size),
        bench.scheme,
        rounded(pages),
        bytes(BESIDE_PAGES_BYTES),
        rounded(needed),
        bytes(available)
    )
}

/// The medians, as points of figure 8.
fn rows(recoveries: &[Recovery]) -> Vec<FigureRow> {
    let mut rows = Vec::new();
    for (case, beside) in [("alone", false), ("under reads", true)] {
        for lost in 1..=u8::MAX {
            let of = |r: &&Recovery| r.lost_nodes == lost && r.reads.is_some() == beside;
            let mut rates: Vec<f64> = recoveries
                .iter()
                .filter(of)
                .map(|r| r.bytes_per_second)
                .collect();
            rates.sort_by(f64::total_cmp);
            if let Some(median) = rates.get(rates.len() / 2) {
                rows.push(FigureRow {
                    figure: 8,
                    case,
                    x: f64::from(lost),
                    y: median / 1e6,
                });
            }
        }
    }
    rows
}

/// Our nodes, with a region on all of them.
struct RecoveryCluster {
    nodes: Nodes,
    runtime: Runtime,
    region: Region,
    scheme: Scheme,
}

impl RecoveryCluster {
    fn start(bench: &RecoveryBench, spare: u8, flags: &[&str]) -> anyhow::Result<RecoveryCluster> {
        let scheme = bench.scheme;
        let count = scheme.width() as u32 + u32::from(spare);
        let mut nodes = Nodes::new(count, None, bench.keep)?;
        // Each node has one bucket of every group, and some room beside it.
        let unit = stretch_unit(scheme.m);
        let bucket_bytes = bench.size.0.div_ceil(unit) * (unit / u64::from(scheme.m));
        let budget = bucket_bytes + bucket_bytes / 4 + (64 << 20);
        nodes.threads = match bench.threads {
            0 => threads_of(
                std::thread::available_parallelism().map_or(1, usize::from),
                count,
            ),
            given => given,
        };
        nodes.flags = vec!["--memory".into(), format!("{budget}B")];
        nodes.flags.extend(flags.iter().map(ToString::to_string));
        for at in 0..nodes.count() {
            nodes.spawn(at)?;
            if at == 0 {
                nodes.wait("the first node answers", PATIENCE, |nodes| {
                    Ok(nodes.status_if(|_| true))
                })?;
            }
        }
        wait_until_all_are_up(&mut nodes)?;
        // A cache that nobody uses would only be in the way.
        nodes.propose(&Change::DeletePool {
            name: "cache".into(),
        })?;
        nodes.propose(&Change::CreatePool {
            name: POOL.into(),
            kind: PoolKind::Memory {
                regions: Vec::new(),
            },
            scheme,
            medium: Medium::Ram,
            node_budget_bytes: budget,
            buckets: 0,
            may_start_empty: false,
        })?;
        let (runtime, client) = connect(&nodes.native_doors(), PATIENCE)?;
        let region = runtime.block_on(client.create_region(POOL, REGION, bench.size.0))?;
        let mut town = RecoveryCluster {
            nodes,
            runtime,
            region,
            scheme,
        };
        town.wait_until_whole()?;
        Ok(town)
    }

    fn fill(&mut self, size: u64) -> anyhow::Result<f64> {
        output::say(format_args!(
            "{} nodes; writing {}",
            self.nodes.count(),
            bytes(size)
        ));
        let begun = Instant::now();
        self.runtime.block_on(fill(&self.region, size))?;
        Ok(size as f64 / begun.elapsed().as_secs_f64())
    }

    fn pids(&self) -> Vec<u32> {
        let pids = (0..self.nodes.count()).filter_map(|at| self.nodes.pid(at));
        pids.collect()
    }

    fn memory(&self, of: fn(Option<u32>) -> Option<u64>) -> u64 {
        self.pids()
            .into_iter()
            .filter_map(|pid| of(Some(pid)))
            .sum()
    }

    /// Kills nodes that hold data of the first group, waits until others have what they held, and starts them
    /// again.
    fn recovery(&mut self, lost: u8, reads_per_second: u32) -> anyhow::Result<Recovery> {
        self.wait_until_whole()?;
        let begun = Instant::now();
        let places = self.kill(lost)?;
        let reads = match reads_per_second {
            0 => None,
            rate => Some(Reads::start(self.nodes.native_doors(), places, rate)?),
        };
        let watch = CpuWatch::start(self.pids());
        self.wait_until_whole()?;
        let busy = watch.stop()?;
        let reads = reads.map(Reads::stop).transpose()?;
        let fills = self.fills_since(begun)?;
        let (pages, demanded) = (sum(&fills, |f| f.pages), sum(&fills, |f| f.demanded));
        let (from, until) = match (fills.first(), fills.iter().map(|f| f.until).max()) {
            (Some(first), Some(until)) => (first.from, until),
            _ => bail!("nothing was lost with the nodes that were killed"),
        };
        let seconds = covered(&fills).as_secs_f64();
        let span = (until - from).as_secs_f64();
        self.nodes.revive()?;
        wait_until_all_are_up(&mut self.nodes)?;
        Ok(Recovery {
            lost_nodes: lost,
            pages,
            seconds,
            bytes_per_second: (pages * PAGE_BYTES as u64) as f64 / seconds.max(1e-6),
            processors_busy: busy.between(from, until).as_secs_f64() / span.max(1e-6),
            demanded_pages: demanded,
            reads: reads.map(|reads| reads.figures(from, until)),
        })
    }

    /// The rebuilds by members of the region's groups since then, in the order in which they began.
    fn fills_since(&mut self, begun: Instant) -> anyhow::Result<Vec<Fill>> {
        let groups = self.groups()?;
        let cluster = self.nodes.cluster()?;
        let map = cluster.map()?;
        let mut fills = Vec::new();
        for group in groups.iter().filter_map(|id| map.groups.get(id)) {
            for (slot, member) in group.listed() {
                let node = map.node_of(member).context("a member is no node")?;
                let says = cluster.group_state(node, group.id)?.of_slot(slot.0);
                let fill = says.and_then(|says| says.fill);
                let now = Instant::now();
                let at = |us_ago: u64| now.checked_sub(Duration::from_micros(us_ago));
                if let Some(fill) = fill
                    && let Some(from) = at(fill.began_us_ago).filter(|from| *from >= begun)
                    && let Some(until) = fill.ended_us_ago.and_then(at)
                {
                    fills.push(Fill {
                        from,
                        until,
                        pages: fill.pages,
                        demanded: fill.demanded_pages,
                    });
                }
            }
        }
        fills.sort_by_key(|fill| fill.from);
        Ok(fills)
    }

    /// Reads pages of a bucket whose new node rebuilds nothing by itself, and as many of other buckets.
    fn demand(&mut self, count: u32) -> anyhow::Result<Vec<Demand>> {
        let mut places = self.kill(1)?;
        let groups = self.groups()?;
        self.wait_for("a spare node has the killed node's buckets", |map| {
            let served = |id: &GroupId| {
                let group = map.groups.get(id);
                group.is_some_and(|g| {
                    let up = g.listed().filter(|(_, x)| map.runs(x.id));
                    g.open && up.count() == g.members.len()
                })
            };
            groups.iter().all(served)
        })?;
        let mut demands = Vec::new();
        for (missing, callers) in [(false, 1), (true, 1), (true, 16)] {
            let doors = self.nodes.native_doors();
            let (reads, left) = Reads::each(doors, places, missing, callers, count)?;
            places = left;
            demands.push(Demand {
                missing,
                callers,
                reads,
            });
        }
        Ok(demands)
    }

    /// Kills so many nodes that hold data of the first group, the directory's leader not among them, and waits
    /// until that is noticed. Where reads may go: pages of data buckets that were lost, and others.
    fn kill(&mut self, lost: u8) -> anyhow::Result<Places> {
        let report = self.nodes.status()?;
        let leader = report.directory.leader;
        let map = self.nodes.cluster()?.map()?;
        let first = self.groups()?[0];
        let group = map.groups.get(&first).context("the region has no group")?;
        let data = (0..group.m).filter_map(|slot| group.member(staves_model::MemberSlot(slot)));
        let victims: Vec<NodeId> = data
            .map(|x| x.id.node)
            .filter(|node| Some(node.0) != leader)
            .take(usize::from(lost))
            .collect();
        for victim in &victims {
            let node = map.nodes.get(victim).context("a member is no node")?;
            let process = self
                .nodes
                .at(&node.native)
                .context("a member is no process of ours")?;
            self.nodes.kill(process)?;
        }
        let gone = |map: &ClusterMap| {
            let up = |id: &NodeId| {
                map.nodes
                    .get(id)
                    .is_some_and(|n| n.state == staves_model::NodeState::Up)
            };
            !victims.iter().any(up)
        };
        self.wait_for("the death of the killed nodes is noticed", gone)?;
        let (_, region) = map.region_named(REGION).context("the region is gone")?;
        Ok(Places::of(region, self.scheme.m, |id, slot| {
            let member = map.groups.get(id).and_then(|group| group.member(slot));
            member.is_some_and(|x| victims.contains(&x.id.node))
        }))
    }

    fn groups(&self) -> anyhow::Result<Vec<GroupId>> {
        let stat = self.runtime.block_on(self.region.stat())?;
        ensure!(!stat.groups.is_empty(), "the region has no group");
        Ok(stat.groups)
    }

    fn wait_until_whole(&mut self) -> anyhow::Result<()> {
        let (groups, width) = (self.groups()?, self.scheme.width());
        self.wait_for("every bucket is whole", |map| {
            groups.iter().all(|id| {
                let group = map.groups.get(id);
                group.is_some_and(|g| {
                    g.open
                        && g.listed()
                            .filter(|(_, x)| x.complete && map.runs(x.id))
                            .count()
                            == width
                })
            })
        })
    }

    fn wait_for(&mut self, what: &str, wanted: impl Fn(&ClusterMap) -> bool) -> anyhow::Result<()> {
        self.nodes.wait(what, PATIENCE, |nodes| {
            let map = nodes.cluster().and_then(|cluster| cluster.map());
            Ok(match map {
                Ok(map) if wanted(&map) => Ok(()),
                Ok(map) => Err(format!("the map of revision {}.", map.revision)),
                Err(error) => Err(error.to_string()),
            })
        })
    }
}

/// Threads of each of so many nodes. One more than there is a core for only takes turns with the others.
fn threads_of(cores: usize, nodes: u32) -> u32 {
    u32::try_from(cores).unwrap_or(1).div_ceil(nodes).max(1)
}

fn wait_until_all_are_up(nodes: &mut Nodes) -> anyhow::Result<()> {
    let all = nodes.count();
    let up = |report: &StatusReport| report.nodes.iter().filter(|node| node.up).count();
    let all_are_up = |nodes: &mut Nodes| Ok(nodes.status_if(|report| up(report) == all));
    nodes.wait("all nodes are up", PATIENCE, all_are_up)?;
    Ok(())
}

/// A bucket that was rebuilt.
struct Fill {
    from: Instant,
    until: Instant,
    pages: u32,
    demanded: u32,
}

fn sum(fills: &[Fill], of: impl Fn(&Fill) -> u32) -> u64 {
    fills.iter().map(|fill| u64::from(of(fill))).sum()
}

/// The time in which at least one of these went on; they are in the order in which they began.
fn covered(fills: &[Fill]) -> Duration {
    let mut all = Duration::ZERO;
    let mut until: Option<Instant> = None;
    for fill in fills {
        let from = until.map_or(fill.from, |until| until.max(fill.from));
        all += fill.until.saturating_duration_since(from);
        until = Some(until.map_or(fill.until, |until| until.max(fill.until)));
    }
    all
}

const RECOVERIES: &[Column<Recovery>] = &[
    ("lost ", |r| r.lost_nodes.to_string()),
    ("reads ", |r| beside(r, |reads| number(reads.answered))),
    ("rebuilt ", |r| bytes(r.pages * PAGE_BYTES as u64)),
    ("seconds ", |r| format!("{:.3}", r.seconds)),
    ("MB/s ", |r| format!("{:.0}", r.bytes_per_second / 1e6)),
    ("cores busy ", |r| format!("{:.1}", r.processors_busy)),
    ("out of turn ", |r| number(r.demanded_pages)),
    ("p50 ", |r| beside(r, |reads| us(reads.p50_us))),
    ("p99 ", |r| beside(r, |reads| us(reads.p99_us))),
];

/// A figure of the reads beside a recovery.
fn beside(recovery: &Recovery, of: fn(&ReadFigures) -> String) -> String {
    or_dash(recovery.reads.as_ref().map(of))
}

const DEMANDS: &[Column<Demand>] = &[
    ("pages", |d| {
        if d.missing { "missing" } else { "there" }.to_owned()
    }),
    ("callers ", |d| d.callers.to_string()),
    ("reads ", |d| number(d.reads.answered)),
    ("reads/s ", |d| number(d.reads.per_second.round() as u64)),
    ("p50 ", |d| us(d.reads.p50_us)),
    ("p99 ", |d| us(d.reads.p99_us)),
    ("max ", |d| us(d.reads.max_us)),
    ("errors ", |d| number(d.reads.errors)),
];

impl RecoveryReport {
    fn table(&self) -> String {
        let mut text = format!(
            "{} on {} nodes, {}; filled at {}/s; all nodes have {} resident, {:.2} times the region, and {:.2} with what they share \
             counted once\n{}",
            bytes(self.region_bytes),
            self.nodes,
            self.scheme,
            bytes(self.fill_bytes_per_second as u64),
            bytes(self.resident_bytes),
            self.resident_share,
            self.proportional_share,
            columns(RECOVERIES, &self.recoveries)
        );
        if !self.demands.is_empty() {
            text.push_str("\n\nNothing is rebuilt but what is asked for:\n");
            text.push_str(&columns(DEMANDS, &self.demands));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_that_the_machine_has_no_memory_for_is_refused_with_numbers() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            bench: RecoveryBench,
        }
        let bench = |size| <Line as clap::Parser>::parse_from(["bench", "--size", size]).bench;
        let check = |size, available| {
            let checked = check_size(&bench(size), 2, Some(available));
            checked.map_err(|error| error.to_string())
        };
        assert_eq!(check("1GiB", 2 << 30), Ok(()));
        let refused = check("1GiB", 2047 << 20).expect_err("1.5 GiB, and 8 times 64 MiB");
        for part in ["1.5 GiB", "8 nodes", "64.0 MiB", "2.0 GiB in all"] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
        let refused = check("900TiB", 1 << 40).expect_err("more than any machine has");
        assert!(refused.contains("available"), "{refused}");
        assert!(check("256KiB", 1 << 40).is_ok() && check("255KiB", 1 << 40).is_err());
    }

    #[test]
    fn nodes_have_no_more_threads_than_there_is_use_for() {
        let cases = [(2, 8, 1), (8, 8, 1), (9, 8, 2), (64, 8, 8), (0, 1, 1)];
        for (cores, nodes, threads) in cases {
            assert_eq!(
                threads_of(cores, nodes),
                threads,
                "{cores} cores, {nodes} nodes"
            );
        }
    }

    #[test]
    fn time_in_which_nothing_is_rebuilt_does_not_count_and_other_time_counts_once() {
        let zero = Instant::now();
        let at = |ms: u64| zero + Duration::from_millis(ms);
        let fill = |(from, until)| Fill {
            from: at(from),
            until: at(until),
            pages: 7,
            demanded: 1,
        };
        let of = |spans: &[(u64, u64)]| {
            let fills: Vec<Fill> = spans.iter().copied().map(fill).collect();
            assert_eq!(sum(&fills, |f| f.pages), 7 * spans.len() as u64);
            covered(&fills).as_millis()
        };
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[(0, 10), (2, 5), (4, 20)]), 20);
        assert_eq!(of(&[(0, 10), (50, 60), (55, 57), (60, 61)]), 21);
    }
}
