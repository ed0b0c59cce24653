//! The cluster's status, for people and for programs.
//!
//! **Promises.** A [`StatusReport`] is a pure function of a map, of the nodes' own reports, and of what one node knows of the directory. It
//! claims no more than they show: a node whose facts did not come is listed without them, and the number of losses that can still be borne is
//! the lowest over all buckets *and* the directory's voters. Its [`sentence`](StatusReport::sentence) is the same in plain words.
//!
//! **Path of the data.** Each node makes [`NodeFacts`] of itself and a report of its own map
//! ([`StatusReport::new`]); that is what `/api/v1/status` and the native protocol's `status` answer, as
//! JSON. Whoever asks several nodes joins their answers with [`StatusReport::absorb`].
//!
//! **Invariants.** [`State::Healthy`] means: every node that was not forgotten is up; there is a pool, and
//! every bucket of every pool is open with all the members that its scheme asks for (as far as the cluster
//! has nodes at all), all of them complete; no pool has used up its memory on any node that reported; and
//! the directory has a leader. A node that is drained on request is only mentioned, as long as another may hold buckets. What is not answered, or lost, makes it [`State::Critical`].

pub mod disks;
mod down;
mod names;
mod rebuild;
mod room;
mod sentence;
mod unheard;
mod unopened;
mod waits;
mod warnings;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
pub use staves_files_server::{AgainFacts, AwayFacts, LackFacts, UseFacts};
use staves_model::policy::{NodeUsage, Usage, drain_waits_for};
use staves_model::{
    ClusterMap, Group, GroupId, Holdings, Medium, Member, Node, NodeId, NodeState, Pool,
    whole_buckets,
};

pub(crate) use self::down::DownNodes;
pub use self::names::full_name;
pub use self::unheard::{SilentNode, UnheardNode};
pub(crate) use self::unopened::UnopenedGroups;
pub use self::waits::{AwaitedDisks, WaitingBucket};
pub use crate::disk::{DiskFacts, DiskState};

/// The health of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// All is as it was asked to be.
    Healthy,
    /// Nothing is lost, but something is missing or being rebuilt.
    Degraded,
    /// Something is lost, or is refused until somebody does something about it.
    Critical,
}

/// A node's report of itself.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeFacts {
    /// The node.
    pub node: u64,
    /// The life of it.
    pub incarnation: u64,
    /// The program's version.
    pub version: String,
    /// Since its process started.
    pub uptime_ms: u64,
    /// Keys in the data buckets that it serves.
    pub keys: u64,
    /// Bytes of keys and values in them.
    pub live_bytes: u64,
    /// Bytes of pages that it holds, copies included.
    pub used_bytes: u64,
    /// Bytes of blocks of files that it holds, beside the pages: they go where pages need the room.
    pub files_bytes: u64,
    /// Bytes of pages that it may hold.
    pub budget_bytes: u64,
    /// Memory that its process has, as the kernel counts it.
    pub resident_bytes: u64,
    /// Bytes that it has sent to nodes and clients of the native protocol since its start.
    pub sent_bytes: u64,
    /// Reads since its start.
    pub reads: u64,
    /// Reads that found a value.
    pub hits: u64,
    /// Writes since its start.
    pub writes: u64,
    /// Pages of the buckets that it is filling now: all of them.
    pub filling_pages: u64,
    /// Those of them that are not here yet.
    pub missing_pages: u64,
    /// Pages received per second, of late.
    pub pages_per_second: u64,
    /// It is on its way out: it hands over what it serves, and ends.
    pub stopping: bool,
    /// Clients that it has refused for want of connections or descriptors since its start; 0 if none in the last minute.
    pub clients_refused: u64,
    /// Memory that the pools take of it.
    pub pools: Vec<PoolFacts>,
    /// Its disks for pools.
    pub disks: Vec<DiskFacts>,
    /// Mounts that recently reported their use of a dataset.
    pub uses: Vec<UseFacts>,
    /// Blocks that it has others fetch again, because a node is gone.
    pub fetching_again: Option<AgainFacts>,
    /// Pinned files that it is to keep and has not all of its part of: some of them, if there are many.
    pub lacking: Vec<LackFacts>,
    /// Sources that give no answer to it, or to mounts that report to it.
    pub away: Vec<AwayFacts>,
    /// Requests of volumes that it has served.
    pub volumes: Vec<crate::volumes::VolumeFacts>,
    /// The address at which it serves volumes by NBD, `host:port`, if it does.
    pub nbd: Option<String>,
    /// The address at which it serves volumes and logs by gRPC, `host:port`, if it does.
    pub grpc: Option<String>,
    /// The address at which it serves logs by HTTP, `host:port`, if it does.
    pub http: Option<String>,
}

/// Memory that a pool takes of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolFacts {
    /// The pool's name.
    pub pool: String,
    /// Bytes of pages that its buckets hold there.
    pub used_bytes: u64,
    /// Bytes of pages that they may hold there; 0 for a pool that evicts what it has no room for.
    pub budget_bytes: u64,
    /// Data buckets there without room in the pages that they hold: a write to one of them needs a further page, here and
    /// at the bucket's parity.
    pub dense_buckets: u64,
    /// Data buckets there that found no memory for a write in the last seconds, there or at their other members.
    pub lacking_buckets: u64,
    /// The most bytes that one of these needs at each of its members; 0 if that is not known.
    pub lacking_bytes: u64,
}

/// One node's knowledge of the directory.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DirectoryFacts {
    /// Its leader; `None` while there is none.
    pub leader: Option<u64>,
    /// The nodes that vote.
    pub voters: Vec<u64>,
    /// Raft's term.
    pub term: u64,
    /// Nodes that do not answer its pings.
    pub silent: Vec<SilentNode>,
    /// Groups that served, and have had no epoch that opened and stayed for more than a second: in order.
    pub unopened: Vec<u32>,
    /// Nodes that are down, and for how long the directory has waited for what they may hold.
    pub down: Vec<SilentNode>,
    /// The longest wait for one of them, in milliseconds (`unflushed_wait_ms`); 0 if it is not known.
    pub unflushed_wait_ms: u64,
}

/// One node, as the map has it and as it reports itself.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its id.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// True if the directory believes that it runs.
    pub up: bool,
    /// True if it gives up its buckets.
    pub draining: bool,
    /// Its zone.
    pub zone: Option<String>,
    /// The address of the native protocol.
    pub native: String,
    /// The address of Redis's protocol.
    pub resp: String,
    /// The address of HTTP.
    pub admin: String,
    /// Memory for pages.
    pub memory_bytes: u64,
    /// Bytes of pages that its disk takes; 0 if it has none.
    #[serde(default)]
    pub disk_bytes: u64,
    /// True if it has a data folder.
    pub durable: bool,
    /// True if it votes in the directory.
    pub votes: bool,
    /// True if it leads the directory.
    pub leads_directory: bool,
    /// Data buckets that it holds.
    pub primaries: u32,
    /// Parity buckets (copies) that it holds.
    pub copies: u32,
    /// The number of both that are not complete yet.
    pub filling: u32,
    /// Its own report, if it was asked and answered.
    pub facts: Option<NodeFacts>,
    /// True if it was asked and did not answer in time, or does not answer other nodes' pings.
    #[serde(default)]
    pub silent: bool,
    /// For how long it has not answered pings, if it has not.
    #[serde(default)]
    pub silent_ms: Option<u64>,
    /// Buckets that it holds, or that others still take from it.
    #[serde(default)]
    pub depending: u32,
    /// The obstacle to its drain, if there is one.
    #[serde(default)]
    pub waits_for: Option<String>,
}

impl NodeStatus {
    /// In one word: `up`, `down`, `silent`, `stopping`, `draining` or `drained`.
    pub fn state(&self) -> &'static str {
        match (self.up, self.draining) {
            (false, _) => "down",
            _ if self.silent => "silent",
            _ if self.is_stopping() => "stopping",
            (true, true) if self.depending == 0 => "drained",
            (true, true) => "draining",
            (true, false) => "up",
        }
    }

    fn is_stopping(&self) -> bool {
        self.facts.as_ref().is_some_and(|facts| facts.stopping)
    }

    /// True if it can be reached, as far as is known.
    fn is_there(&self) -> bool {
        self.up && !self.silent
    }
}

/// One pool. Each bucket counts in one of `whole`, `short`, `changing`, `starting` and `lost`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// `cache`, `memory` or `files`.
    pub kind: String,
    /// m+k, as asked.
    pub scheme: String,
    /// Parity buckets that a group can have with the nodes there are.
    pub parity_possible: u8,
    /// `ram` or `disk`.
    pub medium: String,
    /// Bytes of each node.
    pub node_budget_bytes: u64,
    /// True if a bucket that is lost whole starts empty.
    pub may_start_empty: bool,
    /// The complete copies of a bucket below which writes to it wait; 1 if they never do. A coded pool counts as many as it may lose, and one.
    #[serde(default)]
    pub copies_min: u8,
    /// All buckets.
    pub buckets: u32,
    /// With all members, all complete.
    pub whole: u32,
    /// Serving, but short of complete members.
    pub short: u32,
    /// Moving on to new members: not serving for a moment.
    pub changing: u32,
    /// Not begun yet.
    pub starting: u32,
    /// More lost than the scheme bears.
    pub lost: u32,
    /// Of which some node holds two members, because there are fewer nodes than members.
    #[serde(default)]
    pub doubled: u32,
    /// Regions of which some group is lost.
    #[serde(default)]
    pub lost_regions: Vec<String>,
    /// Those of the changing that do not serve by themselves soon: a data bucket waits for a node, and the group has no
    /// parity to spare for it, or its newest epoch has not opened for more than a second, or disks are waited for.
    #[serde(default)]
    pub unanswered: u32,
    /// Regions that are being loaded, or whose load was broken off: they have no parity.
    #[serde(default)]
    pub loading_regions: Vec<String>,
    /// Buckets that no node holds, of groups that serve.
    #[serde(default)]
    pub waiting: Vec<WaitingBucket>,
    /// Buckets that serve, and whose writes wait because they have fewer complete copies than that.
    #[serde(default)]
    pub unwritable: u32,
    /// Groups on disk that serve nobody until a node is back.
    #[serde(default)]
    pub awaited_disks: Vec<AwaitedDisks>,
    /// For each node the copies (m = 1) of buckets that lack one and have none there.
    #[serde(default)]
    pub copies_without_node: BTreeMap<u64, u32>,
    /// The number of nodes that may still be lost without losing data; `None` if data is lost.
    pub tolerates: Option<u32>,
}

impl PoolStatus {
    /// True if its bytes come from their sources again, so that no loss of nodes takes them.
    pub fn has_sources(&self) -> bool {
        self.kind == "files"
    }
}

/// The progress of rebuilding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rebuild {
    /// Pages to fill, as nodes report them.
    pub pages: u64,
    /// Those that are still missing.
    pub missing_pages: u64,
    /// Done, in percent, rounded down.
    pub percent: u8,
    /// At the present speed; `None` while nothing moves.
    pub seconds_left: Option<u64>,
}

/// The pool that a cluster begins with, as a node's options ask for it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FirstPool {
    /// Its name.
    pub name: String,
    /// Its buckets.
    pub buckets: u32,
}

/// The cluster's state.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StatusReport {
    /// The health of the cluster.
    pub state: State,
    /// The same in one plain sentence.
    pub sentence: String,
    /// All that is less than was asked for, although nothing is wrong: a sentence each.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The first pool as the options of the node that began the cluster ask for it; of no other node.
    #[serde(default)]
    pub first_pool: Option<FirstPool>,
    /// The cluster's id, in hexadecimal; empty before there is one.
    pub cluster: String,
    /// The map's revision.
    pub revision: u64,
    /// The node that answered.
    pub answered_by: u64,
    /// The number of nodes that may still be lost, whichever they are; `None` if data is lost.
    pub tolerates: Option<u32>,
    /// The progress of rebuilding, if there is any.
    pub rebuild: Option<Rebuild>,
    /// The directory.
    pub directory: DirectoryFacts,
    /// The nodes that do not answer others' pings, by each node that said so.
    #[serde(default)]
    pub unheard: Vec<UnheardNode>,
    /// All nodes, by id.
    pub nodes: Vec<NodeStatus>,
    /// All pools, by id.
    pub pools: Vec<PoolStatus>,
}

impl StatusReport {
    /// The report of a node with this map, this knowledge of the directory, and these reports of nodes.
    pub fn new(
        map: &ClusterMap,
        answered_by: NodeId,
        directory: DirectoryFacts,
        facts: impl IntoIterator<Item = NodeFacts>,
    ) -> StatusReport {
        let nodes = map
            .nodes
            .values()
            .map(|node| node_status(map, node, &directory))
            .collect();
        let pools = map
            .pools
            .values()
            .map(|pool| pool_status(map, pool, &directory.unopened))
            .collect();
        let cluster = match map.cluster.0 {
            0 => String::new(),
            _ => map.cluster.to_string(),
        };
        let mut report = StatusReport {
            state: State::Healthy,
            sentence: String::new(),
            warnings: Vec::new(),
            first_pool: None,
            cluster,
            revision: map.revision.0,
            answered_by: answered_by.0,
            tolerates: None,
            rebuild: None,
            unheard: UnheardNode::all_of(answered_by.0, &directory.silent),
            directory,
            nodes,
            pools,
        };
        for SilentNode { node, ms } in report.directory.silent.clone() {
            report.is_silent(node, ms);
        }
        facts.into_iter().for_each(|facts| report.place(facts));
        report.conclude();
        report
    }

    /// Compares the pool that the cluster began with with what was asked for.
    pub fn with_first_pool(mut self, pool: FirstPool) -> StatusReport {
        self.first_pool = Some(pool);
        self.conclude();
        self
    }

    /// Takes over the facts of another node, and its view of the directory where this one has
    /// none. The newer map wins. The report of a node of another cluster, at an address of this one, is ignored.
    pub fn absorb(&mut self, other: StatusReport) {
        let known = [&self.cluster, &other.cluster];
        if known.iter().all(|cluster| !cluster.is_empty()) && self.cluster != other.cluster {
            return;
        }
        let other = if other.revision > self.revision {
            std::mem::replace(self, other)
        } else {
            other
        };
        self.first_pool = self.first_pool.take().or(other.first_pool);
        self.unheard.extend(other.unheard);
        if self.directory.leader.is_none() && other.directory.term >= self.directory.term {
            self.directory = other.directory;
            for node in &mut self.nodes {
                node.leads_directory = self.directory.leader == Some(node.id);
                node.votes = self.directory.voters.contains(&node.id);
            }
        }
        for node in other.nodes {
            if let Some(ms) = node.silent_ms {
                self.is_silent(node.id, ms);
            }
            if let Some(facts) = node.facts {
                self.place(facts);
            }
        }
        self.conclude();
    }

    /// These nodes were asked, and did not answer in time.
    pub fn silent(&mut self, asked: &[u64]) {
        for node in &mut self.nodes {
            let silent = asked.contains(&node.id) || node.silent_ms.is_some();
            node.silent = silent && node.facts.is_none();
        }
        self.conclude();
    }

    /// If the directory can decide nothing at present: why, and which voters are missed.
    pub fn undecided(&self) -> Option<String> {
        let nobody = self.directory.leader.is_none() && !self.cluster.is_empty();
        nobody.then(|| sentence::no_leader(self))
    }

    /// If the map may be an old one, since the node that reports it reaches no majority of the directory: why.
    pub fn may_be_old(&self) -> Option<String> {
        let cut_off = !self.cluster.is_empty() && !self.majority_answers();
        let why = || cut_off.then(|| sentence::no_leader(self));
        self.undecided().or_else(why)
    }

    /// The memory in use, by the nodes that reported it.
    pub fn usage(&self) -> Usage {
        let reported = self.nodes.iter().filter_map(|node| {
            let facts = node.facts.as_ref()?;
            let pools = facts.pools.iter();
            let usage = NodeUsage {
                used_bytes: facts.used_bytes,
                pools: pools.map(|of| (of.pool.clone(), of.used_bytes)).collect(),
            };
            Some((NodeId(node.id), usage))
        });
        Usage {
            nodes: reported.collect(),
        }
    }

    /// Marks a node as silent, unless it has answered itself.
    fn is_silent(&mut self, id: u64, ms: u64) {
        let row = self.nodes.iter_mut().find(|node| node.id == id);
        if let Some(node) = row.filter(|node| node.up && node.facts.is_none()) {
            node.silent = true;
            node.silent_ms = node.silent_ms.max(Some(ms));
        }
    }

    /// Puts a node's report into its row.
    fn place(&mut self, facts: NodeFacts) {
        if let Some(node) = self.nodes.iter_mut().find(|node| node.id == facts.node) {
            (node.silent, node.silent_ms) = (false, None);
            node.facts = Some(facts);
        }
    }

    /// Everything that follows from the rows.
    fn conclude(&mut self) {
        self.rebuild = self.rebuilding();
        // A pool without buckets has nothing to lose.
        let data = self
            .pools
            .iter()
            .filter(|pool| pool.buckets > 0 && !pool.has_sources())
            .map(|pool| pool.tolerates)
            .min();
        let nothing = if self.pools.is_empty() { 0 } else { u32::MAX };
        let data = data.unwrap_or(Some(nothing));
        self.tolerates = data.map(|data| data.min(self.directory_tolerates()));
        self.state = self.judge();
        self.warnings = warnings::warnings(self);
        self.sentence = sentence::sentence(self);
    }

    fn judge(&self) -> State {
        let any = |count: fn(&PoolStatus) -> u32| self.pools.iter().any(|pool| count(pool) > 0);
        if any(|pool| pool.lost + pool.unanswered + pool.unwritable)
            || self.undecided().is_some()
            || !room::full(self).is_empty()
        {
            State::Critical
        } else if self.cluster.is_empty()
            || self.pools.is_empty()
            || any(|pool| pool.short + pool.changing + pool.starting)
            || self.nodes.iter().any(|n| !n.up || n.silent_ms.is_some())
            || self.has_no_home()
            || self.voters_down() > 0
        {
            State::Degraded
        } else {
            State::Healthy
        }
    }

    /// True if no node that is up may hold buckets: all are drained.
    fn has_no_home(&self) -> bool {
        !self.nodes.iter().any(|node| node.up && !node.draining)
    }

    /// The voters that are down or do not answer.
    fn voters_missed(&self) -> Vec<u64> {
        let is_there = |id: &u64| self.nodes.iter().any(|n| n.id == *id && n.is_there());
        let missed = self.directory.voters.iter().filter(|id| !is_there(id));
        missed.copied().collect()
    }

    fn voters_down(&self) -> usize {
        let is_up = |id: &u64| self.nodes.iter().any(|node| node.id == *id && node.up);
        self.directory.voters.iter().filter(|id| !is_up(id)).count()
    }

    /// The number of voters that may still be lost while a majority remains.
    fn directory_tolerates(&self) -> u32 {
        if self.directory.leader.is_none() || !self.majority_answers() {
            return 0;
        }
        let voters = self.directory.voters.len();
        let up = voters - self.voters_down();
        up.saturating_sub(voters / 2 + 1) as u32
    }

    /// True if a majority of the voters answers pings. A leader is known for a moment after those who followed it have fallen silent.
    fn majority_answers(&self) -> bool {
        let pinged = |n: &NodeStatus| n.up && n.silent_ms.is_none();
        let answers = |id: &&u64| self.nodes.iter().any(|n| n.id == **id && pinged(n));
        let voters = &self.directory.voters;
        voters.iter().filter(answers).count() > voters.len() / 2
    }

    fn rebuilding(&self) -> Option<Rebuild> {
        let facts = || {
            self.nodes
                .iter()
                .filter(|n| n.up)
                .filter_map(|n| n.facts.as_ref())
        };
        let missing_pages: u64 = facts().map(|f| f.missing_pages).sum();
        let pages: u64 = facts().map(|f| f.filling_pages.max(f.missing_pages)).sum();
        let speed: u64 = facts().map(|f| f.pages_per_second).sum();
        let filling = self.nodes.iter().any(|node| node.filling > 0);
        (filling || missing_pages > 0).then(|| Rebuild {
            pages,
            missing_pages,
            percent: ((pages - missing_pages) * 100)
                .checked_div(pages)
                .unwrap_or(0) as u8,
            seconds_left: (missing_pages + speed.saturating_sub(1)).checked_div(speed),
        })
    }
}

fn node_status(map: &ClusterMap, node: &Node, directory: &DirectoryFacts) -> NodeStatus {
    let (mut primaries, mut copies, mut filling, mut depending) = (0, 0, 0, 0);
    for group in map.groups.values() {
        let here = |x: &&Member| (x.id.node, x.id.incarnation) == (node.id, node.incarnation);
        let sources = group.last_open.members.iter().flatten();
        let listed: Vec<_> = group.listed().filter(|(_, x)| here(x)).collect();
        depending += u32::from(listed.len() + sources.filter(here).count() > 0);
        for (slot, member) in listed {
            let count = if slot.0 < group.m {
                &mut primaries
            } else {
                &mut copies
            };
            *count += 1;
            filling += u32::from(!member.complete);
        }
    }
    NodeStatus {
        id: node.id.0,
        name: node.name.clone(),
        up: node.state == NodeState::Up,
        draining: node.draining,
        zone: node.zone.clone(),
        native: node.native.clone(),
        resp: node.resp.clone(),
        admin: node.admin.clone(),
        memory_bytes: node.memory_bytes,
        disk_bytes: node.disk_bytes,
        durable: node.durable,
        votes: directory.voters.contains(&node.id.0),
        leads_directory: directory.leader == Some(node.id.0),
        primaries,
        copies,
        filling,
        facts: None,
        silent: false,
        silent_ms: None,
        depending,
        waits_for: drain_waits_for(map, node.id).map(|waits| waits.to_string()),
    }
}

fn pool_status(map: &ClusterMap, pool: &Pool, unopened: &[u32]) -> PoolStatus {
    // Drained nodes hold nothing; those that are down are expected back until they are forgotten.
    let has_place = |node: &&Node| pool.medium == Medium::Ram || node.disk_bytes > 0;
    let homes = || {
        map.nodes
            .values()
            .filter(|node| !node.draining)
            .filter(has_place)
    };
    let (m, k) = (usize::from(pool.scheme.m), usize::from(pool.scheme.k));
    let parity_on = |homes: usize| k.min(homes.saturating_sub(m)) as u8;
    let parity_possible = parity_on(homes().count());
    let mut status = empty_status(map, pool, parity_possible);
    if let Some(holdings) = pool.holdings() {
        return files_status(status, holdings, homes().count());
    }
    let up = homes().filter(|node| node.state == NodeState::Up);
    let could_bear = Some(parity_on(up.count()));
    let mut tolerated: BTreeMap<Condition, Option<u8>> = BTreeMap::new();
    let width = m + usize::from(parity_possible);
    for group in map.groups_of(pool) {
        let late = unopened.binary_search(&group.id.0).is_ok();
        let bears = group.tolerates(|id| map.runs(id));
        let condition = match condition(map, group, width) {
            _ if late => Condition::Changing,
            // A node holds two of its members, and others could: until they do, it bears less.
            Condition::Whole if bears < could_bear => Condition::Short,
            condition => condition,
        };
        status.doubled += u32::from(group.listed().any(|(_, x)| x.id.is_second()));
        let is_unanswered = late || waits::unanswered(map, group);
        status.unanswered += u32::from(is_unanswered);
        // Nobody has seen that those which it could do without are there.
        let bears = bears.map(|bears| if is_unanswered { 0 } else { bears });
        let least = tolerated.entry(condition).or_insert(Some(u8::MAX));
        *least = (*least).min(bears);
        match condition {
            Condition::Whole => status.whole += 1,
            Condition::Short => status.short += 1,
            Condition::Changing => status.changing += 1,
            Condition::Starting => status.starting += 1,
            Condition::Lost => status.lost += 1,
        }
    }
    // A bucket that has not begun has nothing to lose.
    tolerated.remove(&Condition::Starting);
    status.tolerates = match tolerated.into_values().min() {
        // Nor has a pool without any.
        None if pool.groups.is_empty() => Some(parity_possible.into()),
        None => Some(0),
        Some(least) => least.map(u32::from),
    };
    status
}

/// A pool whose buckets are not counted yet.
fn empty_status(map: &ClusterMap, pool: &Pool, parity_possible: u8) -> PoolStatus {
    let loading = pool.regions().iter().filter(|r| r.is_loading());
    PoolStatus {
        name: pool.name.clone(),
        kind: pool.kind.word().into(),
        scheme: pool.scheme.to_string(),
        parity_possible,
        medium: pool.medium.word().into(),
        node_budget_bytes: pool.node_budget_bytes,
        may_start_empty: pool.may_start_empty,
        copies_min: map.copies_min(pool.id),
        unwritable: waits::unwritable(map, pool),
        buckets: pool.groups.len() as u32,
        whole: 0,
        short: 0,
        changing: 0,
        starting: 0,
        lost: 0,
        doubled: 0,
        unanswered: 0,
        lost_regions: lost_regions(map, pool),
        loading_regions: loading.map(|r| r.name.clone()).collect(),
        waiting: waits::waiting(map, pool),
        awaited_disks: waits::awaited_disks(map, pool),
        copies_without_node: waits::copies_without_node(map, pool),
        tolerates: None,
    }
}

/// Nothing of a files pool is lost with any node: it comes from its source again. A bucket that nobody holds is
/// about to be taken on.
fn files_status(status: PoolStatus, holdings: &Holdings, homes: usize) -> PoolStatus {
    let buckets = holdings.buckets.len() as u32;
    let held = holdings.buckets.iter().filter(|b| !b.is_empty()).count() as u32;
    PoolStatus {
        buckets,
        whole: held,
        starting: buckets - held,
        tolerates: Some(homes as u32),
        ..status
    }
}

fn lost_regions(map: &ClusterMap, pool: &Pool) -> Vec<String> {
    let is_lost = |id: GroupId| map.groups.get(&id).is_some_and(|group| group.lost);
    let lost = pool.regions().iter().filter(|r| r.groups().any(is_lost));
    lost.map(|region| region.name.clone()).collect()
}

/// The condition of a bucket.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Condition {
    Whole,
    Short,
    Changing,
    Starting,
    Lost,
}

fn condition(map: &ClusterMap, group: &Group, width: usize) -> Condition {
    let is_up = |x: &Member| map.runs(x.id);
    let data = group.members.iter().take(usize::from(group.m));
    let served = data.flatten().filter(|x| is_up(x)).count() == usize::from(group.m);
    let complete = whole_buckets(group.m, &group.members, is_up);
    if group.lost {
        Condition::Lost
    } else if group.last_open.epoch.0 == 0 && !group.open {
        Condition::Starting
    } else if !group.open || !served {
        Condition::Changing
    } else if complete < width {
        Condition::Short
    } else {
        Condition::Whole
    }
}

#[cfg(test)]
mod tests;
