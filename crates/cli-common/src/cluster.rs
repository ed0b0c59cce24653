//! A command's session with a cluster, through the client library.
//!
//! The node of `--cluster` that answers first is asked; it serves a request or passes it on. A further node is asked by its
//! address where a figure is its own. Every request ends by the deadline.

mod report;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use staves_client::{Client, ClientError, ClientOptions, Region};
use staves_model::{Change, ClusterMap, GroupId, Node, NodeId, Revision, ServiceId};
use staves_net::{NetError, Options, Secret};
use staves_node::config::Endpoint;
use staves_node::group_state::GroupState;
use staves_node::status::StatusReport;
use staves_wire::admin::{
    DiskAction, DiskChange, GroupTarget, KeyRangeAnswer, NodeTarget, StatusAnswer,
};
use staves_wire::service::Answer;
use staves_wire::{ErrorCode, Message};
use tokio::runtime::Runtime;

use crate::failure::{Failure, failed, from_net, not_reached};
use crate::options::GlobalOptions;
use crate::running::runtime;

pub use self::report::MAJORITY_REMEDY;

/// Longest wait for each further node's facts.
const FACTS: Duration = Duration::from_millis(1000);

/// A cluster, as one command sees it.
pub struct Cluster {
    /// The runtime that the client runs on.
    pub runtime: Runtime,
    /// The client.
    pub client: Client,
    /// The time that the command may take.
    pub deadline: Duration,
    /// The end of that time.
    end: Cell<Instant>,
}

impl Cluster {
    /// Finds the cluster through any of the nodes of `--cluster`.
    pub fn open(global: &GlobalOptions) -> anyhow::Result<Cluster> {
        let (deadline, secret) = (global.deadline.duration(), global.secret()?);
        Cluster::connect_with(&global.cluster, deadline, secret)
    }

    /// Connects to the first of these addresses that answers. One that does not leaves as much time to each of the others.
    pub fn connect(addresses: &[Endpoint], deadline: Duration) -> anyhow::Result<Cluster> {
        Cluster::connect_with(addresses, deadline, None)
    }

    fn connect_with(
        addresses: &[Endpoint],
        deadline: Duration,
        secret: Option<Secret>,
    ) -> anyhow::Result<Cluster> {
        let until = Instant::now() + deadline;
        let runtime = runtime()?;
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        // The rest is for looking into what went wrong.
        let looked = deadline * 4 / 5;
        let options = ClientOptions {
            deadline: looked,
            map_try_max: looked / addresses.len().max(1) as u32,
            admin: true,
            secret,
            connection: Options {
                connect_timeout: looked,
                ..Options::default()
            },
            ..ClientOptions::default()
        };
        let client = runtime.block_on(Client::connect(&addresses, options));
        Ok(Cluster {
            client: client.map_err(not_reached)?,
            runtime,
            deadline,
            end: Cell::new(until),
        })
    }

    /// Waits for a result of the client.
    pub fn wait<T>(
        &self,
        future: impl Future<Output = Result<T, ClientError>>,
    ) -> anyhow::Result<T> {
        self.runtime.block_on(future).map_err(failed)
    }

    /// The rest of the command's time.
    pub fn left(&self) -> Duration {
        self.end().saturating_duration_since(Instant::now())
    }

    /// The end of the command's time, for what keeps to it.
    pub fn end(&self) -> Instant {
        self.end.get()
    }

    /// Gives the command its time once more: a person was asked, or it is another command's session.
    pub fn begin_again(&self) {
        self.end.set(self.until());
    }

    /// The end of a request that begins now.
    fn until(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// The end of what is waited for if a failure is looked into: a fifth of the command's time is for that.
    pub fn until_looked(&self) -> Instant {
        self.end() - self.deadline / 5
    }

    /// The same for a change. It has some time, however long was looked at things before.
    fn until_changed(&self) -> Instant {
        self.until_looked().max(Instant::now() + self.deadline / 5)
    }

    /// The newest map of the node that is asked.
    pub fn map(&self) -> anyhow::Result<Arc<ClusterMap>> {
        self.wait(self.client.refresh())
    }

    /// The region of this name.
    pub fn region(&self, name: &str) -> anyhow::Result<Region> {
        self.wait(self.client.region(name))
    }

    /// Checks that the pool exists and holds regions.
    pub fn check_regions(&self, name: &str) -> anyhow::Result<()> {
        let kind = |map: &ClusterMap| map.pool_named(name).map(|pool| pool.kind.row());
        let known = match kind(&self.client.map()) {
            None => kind(&*self.map()?),
            known => known,
        };
        match known {
            Some(row) if row.service == Some(ServiceId::MEMORY) => Ok(()),
            Some(row) => {
                let holds = row.holds.split(';').next().unwrap_or_default();
                let make = "'staves pool create NAME --kind memory' makes one that holds regions and volumes";
                let text = format!("pool '{name}' holds {holds}, not regions; {make}");
                Err(Failure::Wire(ErrorCode::Refused, text).into())
            }
            None => Err(Failure::NotInMap(format!(
                "there is no pool '{name}'; 'staves pool list' shows those there are, and 'staves pool create {name} --kind memory' makes it"
            ))
            .into()),
        }
    }

    /// Makes a change, wherever the directory's leader is.
    pub fn propose(&self, change: &Change) -> anyhow::Result<()> {
        self.propose_on(change, None)
    }

    /// The same, if the map has not moved on from this revision: refused if it has.
    pub fn propose_on(&self, change: &Change, expected: Option<Revision>) -> anyhow::Result<()> {
        let until = self.until_changed();
        let made = self.wait(self.client.propose_by(expected, change, until));
        let made = made.and_then(|made| {
            made.map_err(|(_, reason)| Failure::Wire(ErrorCode::Refused, reason).into())
        });
        made.map_err(|error| self.undecided(error))
    }

    /// Drains a node, or resumes it.
    pub fn drain(&self, node: NodeId, on: bool) -> anyhow::Result<()> {
        let target = NodeTarget { node };
        let message = match on {
            true => Message::NodeDrain(target),
            false => Message::NodeResume(target),
        };
        let address = self.client.answered_at();
        let answer = self.ask_by(&address, &message, self.until_changed());
        let answer = answer.map_err(|error| self.undecided(error))?;
        done(&message, &answer)
    }

    /// Returns true if this is the node that is asked.
    pub fn asks(&self, node: &Node) -> bool {
        let address = self.client.answered_at();
        let answer = self.ask_by(&address, &Message::Status, self.until());
        let report = answer.and_then(read_status);
        report.is_ok_and(|report| report.answered_by == node.id.0)
    }

    /// Asks a node to stop in good order: itself, not another on its behalf.
    pub fn stop(&self, node: &Node, force: bool) -> anyhow::Result<()> {
        let target = NodeTarget { node: node.id };
        let message = match force {
            true => Message::NodeStopForced(target),
            false => Message::NodeStop(target),
        };
        done(&message, &self.ask_at(node, &message)?)
    }

    /// Has a node do something with one of its disks, which may take longer than a question: `by` then.
    pub fn change_disk(
        &self,
        node: &Node,
        folder: &str,
        action: DiskAction,
        by: Instant,
    ) -> anyhow::Result<()> {
        let message = Message::NodeDisk(DiskChange {
            node: node.id,
            folder: folder.to_owned(),
            action,
        });
        let answer = self.ask_by(&node.native, &message, by);
        done(&message, &answer?)
    }

    /// Returns true if this very node answers at its address, with any of its lives. Looks once, and briefly.
    pub fn answers(&self, node: &Node) -> bool {
        let until = self.until().min(Instant::now() + FACTS);
        let answer = self.ask_by(&node.native, &Message::Status, until);
        let report = answer.and_then(read_status);
        report.is_ok_and(|report| report.answered_by == node.id.0)
    }

    /// The range of keys that a node holds.
    pub fn key_range(&self, node: &Node) -> anyhow::Result<KeyRangeAnswer> {
        let message = Message::KeyRange(NodeTarget { node: node.id });
        match self.ask_at(node, &message)? {
            Message::KeyRangeAnswer(answer) => Ok(answer),
            other => Err(unexpected(&message, &other)),
        }
    }

    /// The state of a node's member of a group.
    pub fn group_state(&self, node: &Node, group: GroupId) -> anyhow::Result<GroupState> {
        let message = Message::GroupState(GroupTarget { group });
        match self.ask_at(node, &message)? {
            Message::GroupStateAnswer(answer) => serde_json::from_slice(&answer.json)
                .context("the node sent a state that this program cannot read"),
            other => Err(unexpected(&message, &other)),
        }
    }

    /// Asks several nodes at once, each by its address. The answers come in their order.
    pub fn ask_all(&self, asks: Vec<(String, Message)>) -> Vec<Result<Message, NetError>> {
        self.ask_all_by(asks, self.until())
    }

    fn ask_all_by(
        &self,
        asks: Vec<(String, Message)>,
        until: Instant,
    ) -> Vec<Result<Message, NetError>> {
        self.runtime.block_on(self.client.ask_all(asks, until))
    }

    fn ask_at(&self, node: &Node, question: &Message) -> anyhow::Result<Message> {
        self.ask_by(&node.native, question, self.until())
    }

    fn ask_by(&self, address: &str, question: &Message, until: Instant) -> anyhow::Result<Message> {
        let asked = self.client.ask_at(address, question, until);
        self.runtime.block_on(asked).map_err(from_net)
    }
}

fn read_status(answer: Message) -> anyhow::Result<StatusReport> {
    match answer {
        Message::StatusAnswer(StatusAnswer { json }) => serde_json::from_slice(&json)
            .context("the node sent a status that this program cannot read"),
        other => Err(unexpected(&Message::Status, &other)),
    }
}

fn done(question: &Message, answer: &Message) -> anyhow::Result<()> {
    match answer {
        Message::Done => Ok(()),
        other => Err(unexpected(question, other)),
    }
}

fn unexpected(question: &Message, answer: &Message) -> anyhow::Error {
    let (question, answer) = (question.opcode().word(), answer.opcode().word());
    anyhow!(
        "the node answered '{question}' with '{answer}': its version and this program's do not fit"
    )
}

/// A node by its name, or by its id: `3`, or `n3` for a node without a name of its own. Ids are given in the order in
/// which nodes join, so a node called `n2` may well have the id 3, and `n2` never means the node with the id 2 that
/// has another name: commands that stop or forget nodes would end the wrong one.
pub fn find_node<'a>(map: &'a ClusterMap, wanted: &str) -> anyhow::Result<&'a Node> {
    let digits = wanted.strip_prefix('n').unwrap_or(wanted);
    let by_id = digits
        .parse()
        .ok()
        .and_then(|id| map.nodes.get(&NodeId(id)))
        // A node without a name is called by its address.
        .filter(|node| digits == wanted || node.name == node.native);
    let nodes = map.nodes.values();
    let named: Vec<&Node> = nodes.filter(|node| node.name == wanted).collect();
    match (&named[..], by_id) {
        ([node], Some(other)) if digits == wanted && other.id != node.id => bail!(
            "'{wanted}' is the id of node '{}' and the name of node {}: give the name of the one or the id of the other",
            other.name,
            node.id
        ),
        ([node], _) => Ok(*node),
        ([], Some(node)) => Ok(node),
        ([], None) => {
            let text =
                format!("there is no node '{wanted}'; 'staves node list' shows those there are");
            Err(Failure::NotInMap(text).into())
        }
        _ => bail!("{} nodes have the name '{wanted}': give an id", named.len()),
    }
}

/// An operation's error as a failure of the command.
pub fn check(answer: &Answer) -> anyhow::Result<()> {
    match answer {
        // What it comes with is in Redis's words, for Redis's clients.
        Answer::Error(ErrorCode::OutOfMemory, _) => {
            let text = "the pool has no memory left on a node that holds the key; nothing was changed: delete keys, or give it more with 'staves pool set NAME --memory SIZE'";
            Err(Failure::Wire(ErrorCode::OutOfMemory, text.into()).into())
        }
        Answer::Error(code, text) => Err(Failure::Wire(*code, text.clone()).into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_model::testing::cluster;

    #[test]
    fn a_node_is_found_by_its_name_before_its_id() {
        // n3 was quicker to join than n2.
        let names = ["n1", "n3", "n2", "5", "twin", "twin"];
        let mut map = cluster(names.len() as u64);
        for (node, name) in map.nodes.values_mut().zip(names) {
            node.name = name.to_owned();
        }
        let id_of = |map: &ClusterMap, wanted: &str| {
            let found = find_node(map, wanted);
            found.map(|node| node.id.0).map_err(|e| e.to_string())
        };
        let found = |wanted: &str| id_of(&map, wanted);
        assert_eq!(found("n2"), Ok(3));
        assert_eq!(found("2"), Ok(2));
        assert!(
            found("n6").is_err_and(|e| e.contains("no node 'n6'")),
            "the node with the id 6 has a name"
        );
        let mut nameless = map.clone();
        let node = nameless.nodes.get_mut(&NodeId(6)).expect("six nodes");
        node.name = node.native.clone();
        assert_eq!(id_of(&nameless, "n6"), Ok(6));
        assert_eq!(found("4"), Ok(4));
        assert!(found("5").is_err_and(|e| e.contains("'twin'") && e.contains("the name of node")));
        assert!(found("twin").is_err_and(|e| e.contains("give an id")));
        assert!(found("n7").is_err_and(|e| e.contains("node list")));
    }
}
