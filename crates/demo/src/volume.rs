//! The demo's last act: a volume on disk, written through NBD while its node is killed, and then all nodes at once.
//!
//! One client writes pages that can be checked by themselves. When its connection ends it connects to the next node and goes on.
//! After the power cut the nodes start again from their data folders, and every page is read before anything else is written.

mod load;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context;
use staves_cli_common::output::{bytes, number};
use staves_cli_common::running::connect;
use staves_client::Client;
use staves_model::{Change, Medium, NodeId, PoolKind, Scheme};
use tokio::runtime::Runtime;

use self::load::{BlockReader, GROUP_BYTES, GROUPS, PAGES, VolumeLoad};
use super::pages::{PAGE_BYTES, Page};
use super::story::VolumeAct;
use super::{PATIENCE, Show, WARM_UP};

pub use self::load::VolumeCounts;

/// The name of the volume, and of its pool.
const NAME: &str = "demo-disk";
const SCHEME: Scheme = Scheme { m: 1, k: 1 };
/// Bytes that each node's disk takes, for the log as well, and of these the pool's.
pub const NODE_DISK: &str = "96MiB";
const BUDGET: u64 = 48 << 20;
/// The time that making the volume may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// A client of the cluster, and what it runs on.
type ClientRuntime = (Runtime, Client);

/// The node that the client writes through, and the one to be killed.
struct ServingNode {
    id: u64,
    process: usize,
}

impl Show {
    /// A volume on disk through the death of the client's node, and a loss of power.
    pub(super) fn volume(&mut self) -> anyhow::Result<()> {
        let client = self.make_volume()?;
        let door = self.door(&client)?;
        let mut doors = self.nodes.nbd_doors();
        doors.rotate_left(door.process);
        let load = VolumeLoad::start(doors);
        self.until_volume_is_filled(&load)?;
        self.story.note(format!(
            "a volume of {} on disk, {SCHEME}, is written through node {} by NBD",
            bytes(u64::from(GROUPS) * GROUP_BYTES),
            door.id
        ));
        self.pause(WARM_UP)?;
        let resumed_ms = self.kill_the_door(&load, &door, &client)?;
        self.pause(WARM_UP)?;
        let (answered_ms, done) = self.cut_the_power(load, &door)?;
        for example in &done.examples {
            self.story.note(format!("lost: {example}"));
        }
        self.story.volume(VolumeAct {
            scheme: SCHEME.to_string(),
            killed: door.id,
            resumed_ms,
            answered_ms,
            done,
        });
        Ok(())
    }

    /// Kills all nodes, starts them again and checks every page: how long until the first answer, and the counts.
    fn cut_the_power(
        &mut self,
        load: VolumeLoad,
        door: &ServingNode,
    ) -> anyhow::Result<(u64, VolumeCounts)> {
        self.nodes.kill_all()?;
        let (mut pages, mut done) = load.stop()?;
        self.story.note(format!(
            "power cut: killed all nodes at once while the client wrote; {} of its writes were acknowledged, {} cut off",
            number(done.writes),
            number(done.unknown)
        ));
        self.nodes.revive()?;
        let back = Instant::now();
        let mut doors = self.nodes.nbd_doors();
        doors.rotate_left(door.process);
        let checked = self.check_all_pages(&doors, &mut pages, &mut done);
        if checked.is_err() {
            self.nodes.keep();
            self.nodes.check_alive()?;
        }
        let answered = checked?.saturating_duration_since(back);
        self.story.note(format!(
            "started again from their disks; the volume answered {:.2} s later; checked all {} pages of it, {}: {} lost",
            answered.as_secs_f64(),
            number(done.checked),
            bytes(done.checked * PAGE_BYTES as u64),
            number(done.wrong)
        ));
        Ok((answered.as_millis() as u64, done))
    }

    /// Reads and compares all pages, and sees that the volume takes writes again; the time of the first answer.
    fn check_all_pages(
        &self,
        doors: &[SocketAddr],
        pages: &mut [Page],
        done: &mut VolumeCounts,
    ) -> anyhow::Result<Instant> {
        let look_up = || self.look_up();
        let mut reader = BlockReader::new(doors, &look_up);
        let first = reader.check(pages, done)?;
        reader.write_once(pages)?;
        Ok(first)
    }

    /// Makes the pool and the volume.
    fn make_volume(&mut self) -> anyhow::Result<ClientRuntime> {
        self.nodes.revive()?;
        let all = self.nodes.count();
        self.wait("all nodes are up and whole", |report| {
            let up = report.nodes.iter().filter(|node| node.up).count();
            up >= all && report.pools.iter().all(|p| p.whole == p.buckets)
        })?;
        self.nodes.propose(&Change::CreatePool {
            name: NAME.into(),
            kind: PoolKind::Memory {
                regions: Vec::new(),
            },
            scheme: SCHEME,
            medium: Medium::Disk,
            node_budget_bytes: BUDGET,
            buckets: 0,
            may_start_empty: false,
        })?;
        let (runtime, client) = connect(&self.nodes.native_doors(), DEADLINE)?;
        let size = u64::from(GROUPS) * GROUP_BYTES;
        let made = runtime.block_on(client.create_volume(NAME, NAME, size));
        made.context("cannot make the volume")?;
        Ok((runtime, client))
    }

    /// A node with most primaries of the volume, but not the directory's leader: its death was shown before.
    fn door(&mut self, (runtime, client): &ClientRuntime) -> anyhow::Result<ServingNode> {
        let report = self.wait("the directory has a leader", |report| {
            report.directory.leader.is_some()
        })?;
        let up = report.nodes.iter().filter(|n| n.up && !n.leads_directory);
        let mut most = None;
        for node in up {
            let primaries = runtime.block_on(primaries(client, node.id))?;
            if most.is_none_or(|(least, _)| primaries > least) {
                most = Some((primaries, node));
            }
        }
        let (_, node) = most.context("there is no node to write through")?;
        let process = self.nodes.at(&node.native);
        Ok(ServingNode {
            id: node.id,
            process: process.context("the node is not one of ours")?,
        })
    }

    fn until_volume_is_filled(&mut self, load: &VolumeLoad) -> anyhow::Result<()> {
        self.nodes.wait("the volume is filled", PATIENCE, |_| {
            super::go_on(&self.interrupted)?;
            let filled = load.filled();
            Ok(match filled {
                all if all == u64::from(PAGES) => Ok(()),
                some => Err(format!("{some} of {PAGES} pages are.")),
            })
        })
    }

    /// Kills the node that the client writes through; how long until a write was acknowledged by another.
    fn kill_the_door(
        &mut self,
        load: &VolumeLoad,
        door: &ServingNode,
        (runtime, client): &ClientRuntime,
    ) -> anyhow::Result<u64> {
        let primaries = runtime.block_on(primaries(client, door.id))?;
        let connections = load.connections();
        let killed = Instant::now();
        self.nodes.kill(door.process)?;
        let what = "the client's write is acknowledged by another node";
        let first = self.nodes.wait(what, PATIENCE, |_| {
            super::go_on(&self.interrupted)?;
            let first = load.first_of(connections);
            Ok(first.ok_or_else(|| "none was.".to_owned()))
        })?;
        let resumed_ms = first.saturating_duration_since(killed).as_millis() as u64;
        self.story.note(format!(
            "killed node {}, which the client wrote through and which had {primaries} of the volume's {GROUPS} primaries; \
             its first write through another node was acknowledged {resumed_ms} ms later",
            door.id
        ));
        Ok(resumed_ms)
    }
}

/// The volume's primaries on a node, by the newest map.
async fn primaries(client: &Client, node: u64) -> anyhow::Result<usize> {
    let stat = client.volume(NAME).await?;
    let map = client.map();
    let groups = stat
        .region
        .groups
        .iter()
        .filter_map(|id| map.groups.get(id));
    let primaries = groups.filter_map(|group| group.members.first()?.as_ref());
    Ok(primaries.filter(|p| p.id.node == NodeId(node)).count())
}
