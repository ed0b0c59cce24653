//! The demo's act about a log: clients append and one follows, while the node of its sequencer is killed, and then one of its units'.
//!
//! The log is on disk. It is checked when its clients have stopped, and once more after the power cut of the last act.

pub(super) mod check;
mod load;

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use staves_cli_common::output::number;
use staves_cli_common::running::connect;
use staves_client::{AppendMode, Client};
use staves_model::{Change, Medium, MemberSlot, NodeId, PoolKind, Scheme, ServiceId};
use staves_node::status::{NodeStatus, StatusReport};
use tokio::runtime::Runtime;

use self::check::{ClientEvents, EventFound, LogFindings, check};
use self::load::{CLIENTS, EventLoad, read_all};
use super::story::LogAct;
use super::{PATIENCE, Show, WARM_UP};

/// The name of the log, and of its pool.
const NAME: &str = "demo-log";
const SCHEME: Scheme = Scheme { m: 1, k: 1 };
/// The units that its records are spread over.
const UNITS: u32 = 4;
/// The pool's bytes of each node's disk.
pub const BUDGET: u64 = 32 << 20;
/// The time that an operation of a client may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// Appends that each client must have had since a death was noticed: the second of them began after it.
const APPENDS_SINCE: u64 = 2;

/// A log whose clients have stopped: what is known of it.
pub struct SettledLog {
    act: LogAct,
    clients: Vec<ClientEvents>,
    found: Vec<EventFound>,
}

impl Show {
    /// Appends to a log through the death of its sequencer's node, and of a unit's.
    pub(super) fn log(&mut self) -> anyhow::Result<SettledLog> {
        let (runtime, client) = self.make_log()?;
        let load = EventLoad::start(self.nodes.native_doors());
        self.until_each_appends(&load, &[0; CLIENTS])?;
        self.story.note(format!(
            "{CLIENTS} clients append to a log on disk, {SCHEME} in {UNITS} units, and another follows it"
        ));
        self.pause(WARM_UP)?;
        let (sequencer, sequencer_wait_ms) =
            self.lose(&load, "which had the log's sequencer", |report| {
                let stat = runtime.block_on(client.log_stat(Some(NAME), NAME))?;
                let node = stat.sequencer.context("the log has no sequencer")?;
                let is_it = |of: &&NodeStatus| of.name == node;
                report
                    .nodes
                    .iter()
                    .find(is_it)
                    .cloned()
                    .context("it is gone")
            })?;
        self.bring_back()?;
        let (unit, unit_wait_ms) =
            self.lose(&load, "which answered for a unit of the log", |report| {
                let stat = runtime.block_on(client.log_stat(Some(NAME), NAME))?;
                let others = report.nodes.iter().filter(|node| {
                    node.up && !node.leads_directory && stat.sequencer.as_ref() != Some(&node.name)
                });
                let units = |id: u64| runtime.block_on(units(&client, id));
                let most = others.max_by_key(|node| units(node.id).unwrap_or(0));
                most.cloned().context("there is no node to kill")
            })?;
        let (clients, followed) = load.stop()?;
        let found = self.read_log()?;
        let mut done = check(&clients, &found);
        done.compare("the follower", &found, &followed);
        self.tell(&done, "the follower had read the same");
        let act = LogAct {
            scheme: SCHEME.to_string(),
            killed: [sequencer, unit],
            longest_wait_ms: [sequencer_wait_ms, unit_wait_ms],
            done,
            after_power_cut: LogFindings::default(),
        };
        Ok(SettledLog {
            act,
            clients,
            found,
        })
    }

    /// Reads the log again, after the power cut.
    pub(super) fn log_again(&mut self, mut log: SettledLog) -> anyhow::Result<()> {
        let found = self.read_log()?;
        let mut again = check(&log.clients, &found);
        again.compare("those who read before", &found, &log.found);
        self.story.note(format!(
            "the log is on disk, too: read all {} positions of it again: {} lost or changed",
            number(again.positions),
            number(again.wrong())
        ));
        for example in &again.examples {
            self.story.note(format!("wrong: {example}"));
        }
        log.act.after_power_cut = again;
        self.story.log(log.act);
        Ok(())
    }

    fn tell(&mut self, done: &LogFindings, otherwise: &str) {
        self.story.note(format!(
            "{} records in {} appends acknowledged, {} appends cut off or answered with an error",
            number(done.records),
            number(done.appends),
            number(done.unknown)
        ));
        let agrees = match done.differing {
            0 => otherwise.to_owned(),
            some => format!("{some} read otherwise by the follower"),
        };
        self.story.note(format!(
            "checked all {} positions of the log: {} lost, {} twice, {} out of their client's order; {agrees}",
            number(done.positions),
            number(done.lost + done.foreign),
            number(done.twice),
            number(done.unordered)
        ));
        for example in &done.examples {
            self.story.note(format!("wrong: {example}"));
        }
    }

    fn read_log(&mut self) -> anyhow::Result<Vec<EventFound>> {
        let look_up = || self.look_up();
        let read = read_all(self.nodes.native_doors(), &look_up);
        if read.is_err() {
            self.nodes.keep();
            self.nodes.check_alive()?;
        }
        read
    }

    /// Makes the pool and the log.
    fn make_log(&mut self) -> anyhow::Result<(Runtime, Client)> {
        self.bring_back()?;
        self.nodes.propose(&Change::CreatePool {
            name: NAME.into(),
            kind: PoolKind::Slots(ServiceId::LOG),
            scheme: SCHEME,
            medium: Medium::Disk,
            node_budget_bytes: BUDGET,
            buckets: UNITS,
            may_start_empty: false,
        })?;
        let (runtime, client) = connect(&self.nodes.native_doors(), DEADLINE)?;
        let made = runtime.block_on(client.create_log(Some(NAME), NAME, AppendMode::Bind));
        made.context("cannot make the log")?;
        Ok((runtime, client))
    }

    /// Starts the nodes that are down, and waits until all is whole.
    fn bring_back(&mut self) -> anyhow::Result<()> {
        self.nodes.revive()?;
        let all = self.nodes.count();
        self.wait("all nodes are up and whole", |report| {
            let up = report.nodes.iter().filter(|node| node.up).count();
            up >= all && report.pools.iter().all(|p| p.whole == p.buckets)
        })?;
        Ok(())
    }

    /// Waits until each client had a few appends acknowledged beyond those.
    fn until_each_appends(&mut self, load: &EventLoad, before: &[u64]) -> anyhow::Result<()> {
        self.nodes.wait("each client appends", PATIENCE, |_| {
            super::go_on(&self.interrupted)?;
            if load.is_broken() {
                bail!("a client of the log has ended by itself");
            }
            let acked = load.acked();
            let more = |(now, before): (&u64, &u64)| *now >= before + APPENDS_SINCE;
            Ok(match acked.iter().zip(before).all(more) {
                true => Ok(()),
                false => Err(format!("appends of each: {acked:?}.")),
            })
        })
    }

    /// Kills a node; its id, and the longest that a client was without an acknowledged append then, in milliseconds.
    fn lose(
        &mut self,
        load: &EventLoad,
        what: &str,
        choose: impl Fn(&StatusReport) -> anyhow::Result<NodeStatus>,
    ) -> anyhow::Result<(u64, u64)> {
        let report = self.wait("the directory has a leader", |report| {
            report.directory.leader.is_some()
        })?;
        let victim = choose(&report)?;
        let process = self.nodes.at(&victim.native);
        load.begin_round();
        let killed = Instant::now();
        self.nodes
            .kill(process.context("the victim is not one of ours")?)?;
        self.story
            .note(format!("killed node {}, {what}", victim.id));
        self.wait("its death is noticed", |report| {
            let is_it = |node: &&NodeStatus| node.id == victim.id;
            report.nodes.iter().find(is_it).is_none_or(|node| !node.up)
        })?;
        self.until_each_appends(load, &load.acked())?;
        // As much as before the kill: also what is slow to notice it.
        self.pause(WARM_UP.saturating_sub(killed.elapsed()))?;
        let waited_ms = load.longest_wait().as_millis() as u64;
        self.story.note(format!(
            "no client waited longer than {waited_ms} ms for its append"
        ));
        Ok((victim.id, waited_ms))
    }
}

/// The units that a node answers for, by the newest map.
async fn units(client: &Client, node: u64) -> anyhow::Result<usize> {
    let map = client.refresh().await?;
    let pool = map.pool_named(NAME).context("there is no pool of logs")?;
    let heads = map.groups_of(pool);
    let heads = heads.filter_map(|group| group.member(MemberSlot(0)));
    Ok(heads.filter(|head| head.id.node == NodeId(node)).count())
}
