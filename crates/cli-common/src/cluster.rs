//! Requests to a cluster over the native protocol.
//!
//! One connection to the first node of `--cluster` that answers; that node serves what is asked or passes
//! it on. Everything ends by the deadline, which counts from the command's start.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use staves_model::{
    Change, ClientId, ClusterId, ClusterMap, GroupId, Node, NodeId, Outcome, Revision, ServiceId,
};
use staves_net::{Connection, Identity, NetError, Options};
use staves_node::config::Endpoint;
use staves_node::group_state::GroupState;
use staves_node::status::StatusReport;
use staves_wire::admin::{GroupTarget, KeyRangeAnswer, NodeTarget, StatusAnswer};
use staves_wire::cache::{CacheStats, CacheStatsAnswer, OwnedOp};
use staves_wire::directory::{GetMap, MapAnswer, Propose, Proposed};
use staves_wire::service::{Answer, PoolRef, ServiceAnswers, ServiceRequest};
use staves_wire::{ErrorCode, Message};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::codes::Code;
use crate::failure::{self, Failure, from_net};

/// The number of hints to the leader that a proposal follows.
const HOPS: usize = 4;
/// Rest before something that cannot be had right now is asked for again.
const REST: Duration = Duration::from_millis(50);
/// Longest wait for each further node's facts.
const FACTS: Duration = Duration::from_millis(1000);

/// The remedy if no node answers.
pub const HINT: &str = "is a node running there? See --cluster and STAVES_CLUSTER";

/// A cluster, through one of its nodes.
pub struct Cluster {
    runtime: Runtime,
    connection: Connection,
    deadline: Duration,
    /// Connections to further nodes, by address.
    opened: RefCell<BTreeMap<String, Connection>>,
}

impl Cluster {
    /// Connects to the first of these addresses that answers. One that does not leaves as much time to each of the others.
    pub fn connect(addresses: &[Endpoint], deadline: Duration) -> anyhow::Result<Cluster> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the program's runtime")?;
        let until = Instant::now() + deadline;
        let mut misses = Vec::new();
        for (at, address) in addresses.iter().enumerate() {
            let address = address.to_string();
            let left = until.saturating_duration_since(Instant::now());
            let share = left / (addresses.len() - at) as u32;
            match runtime.block_on(open(&address, Instant::now() + share)) {
                Ok(connection) => {
                    return Ok(Cluster {
                        runtime,
                        connection,
                        deadline,
                        opened: RefCell::default(),
                    });
                }
                Err(error) => misses.push(error.to_string()),
            }
        }
        let text = format!("{}; {HINT}", misses.join("; "));
        Err(Failure::Wire(ErrorCode::Unreachable, text).into())
    }

    /// The status of the cluster, with the facts of each node that answers in time.
    pub fn status(&self) -> anyhow::Result<StatusReport> {
        self.status_by(self.until())
    }

    fn status_by(&self, until: Instant) -> anyhow::Result<StatusReport> {
        self.runtime.block_on(async {
            let mut report = ask_status(&self.connection, until).await?;
            let until = until.min(Instant::now() + FACTS);
            let mut others = JoinSet::new();
            let mut asked = Vec::new();
            for node in report.nodes.iter().filter(|n| n.up && n.facts.is_none()) {
                asked.push(node.id);
                let address = node.native.clone();
                others.spawn(async move {
                    let connection = open(&address, until).await.map_err(from_net)?;
                    ask_status(&connection, until).await
                });
            }
            while let Some(answer) = others.join_next().await {
                // A node that does not answer is told without its figures.
                if let Ok(Ok(other)) = answer {
                    report.absorb(other);
                }
            }
            report.silent(&asked);
            Ok(report)
        })
    }

    /// The node's newest map.
    pub fn map(&self) -> anyhow::Result<ClusterMap> {
        let question = Message::GetMap(GetMap {
            known: Revision(0),
            wait_ms: 0,
        });
        match self.ask(&question)? {
            Message::MapAnswer(MapAnswer { map: Some(map), .. }) => postcard::from_bytes(&map)
                .context("the node sent a map that this program cannot read"),
            // Nothing is newer than revision 0: there is no cluster yet.
            Message::MapAnswer(MapAnswer { map: None, .. }) => Ok(ClusterMap::default()),
            other => Err(unexpected(&question, &other)),
        }
    }

    /// Makes a change, wherever the directory's leader is.
    pub fn propose(&self, change: &Change) -> anyhow::Result<Outcome> {
        self.propose_on(change, None)
    }

    /// The same, if the map has not moved on from this revision: refused if it has.
    pub fn propose_on(
        &self,
        change: &Change,
        expected: Option<Revision>,
    ) -> anyhow::Result<Outcome> {
        let until = self.until();
        self.propose_by(change, expected, self.until_looked())
            .map_err(|error| self.undecided(error, until))
    }

    fn propose_by(
        &self,
        change: &Change,
        expected: Option<Revision>,
        until: Instant,
    ) -> anyhow::Result<Outcome> {
        let change =
            Bytes::from(postcard::to_allocvec(change).context("the change does not encode")?);
        let proposal = Message::Propose(Propose { expected, change });
        self.runtime.block_on(async {
            let mut connection = self.connection.clone();
            let mut hops = 0;
            loop {
                let answer = match connection.call(&proposal, until).await {
                    // In the words for people: who was asked, and what, says nothing here.
                    Err(NetError::Refused { packet, .. }) if packet.code == ErrorCode::NotFound => {
                        return Err(Failure::NotFound(packet.text).into());
                    }
                    answer => answer.map_err(from_net)?,
                };
                let leader = match answer {
                    Message::Proposed(Proposed::Applied { outcome, .. }) => {
                        return postcard::from_bytes(&outcome)
                            .context("the change was made; its outcome cannot be read");
                    }
                    Message::Proposed(Proposed::Refused { reason, .. }) => {
                        return Err(Failure::Wire(ErrorCode::Refused, reason).into());
                    }
                    Message::Proposed(Proposed::NotLeader { leader }) => leader,
                    other => return Err(unexpected(&proposal, &other)),
                };
                // A hint is followed at once, but not for ever: two nodes may name each other.
                hops += 1;
                if hops > HOPS || leader.is_none() {
                    rest(until, "the directory has no leader").await?;
                }
                if let Some((_, address)) = leader
                    && let Ok(next) = open(&address, until).await
                {
                    connection = next;
                }
            }
        })
    }

    /// Drains a node, or resumes it.
    pub fn drain(&self, node: NodeId, on: bool) -> anyhow::Result<()> {
        let target = NodeTarget { node };
        let message = if on {
            Message::NodeDrain(target)
        } else {
            Message::NodeResume(target)
        };
        let until = self.until();
        self.done(&message, self.until_looked())
            .map_err(|error| self.undecided(error, until))
    }

    /// Fails if the directory can decide nothing, and says whom it misses.
    pub fn can_decide(&self) -> anyhow::Result<()> {
        match self.status()?.undecided() {
            None => Ok(()),
            Some(why) => {
                let code = ErrorCode::NoQuorum;
                Err(no_majority(code, &why, "nothing was changed"))
            }
        }
    }

    /// The reason why a change was not answered for: most often, the directory has no majority.
    fn undecided(&self, error: anyhow::Error, until: Instant) -> anyhow::Error {
        let (code, then) = match failure::code(&error) {
            Code::Wire(ErrorCode::NoQuorum | ErrorCode::NotLeader) => {
                (ErrorCode::NoQuorum, "nothing was changed")
            }
            Code::Wire(code @ (ErrorCode::Deadline | ErrorCode::Unreachable)) => {
                (code, "the change may still be made once it has")
            }
            _ => return error,
        };
        let report = self.status_by(until.max(Instant::now() + REST));
        match report.ok().and_then(|report| report.undecided()) {
            Some(why) => no_majority(code, &why, then),
            None => error,
        }
    }

    /// Returns whether this is the node that is asked.
    pub fn asks(&self, node: &Node) -> bool {
        self.connection.welcome().node == node.id
    }

    /// Asks a node to stop in good order: itself, not another on its behalf.
    pub fn stop(&self, node: &Node, force: bool) -> anyhow::Result<()> {
        let target = NodeTarget { node: node.id };
        let message = match force {
            true => Message::NodeStopForced(target),
            false => Message::NodeStop(target),
        };
        match self.ask_at(&node.native, &message)? {
            Message::Done => Ok(()),
            other => Err(unexpected(&message, &other)),
        }
    }

    /// Returns whether this very node answers at its address, with any of its lives. Looks once, and briefly.
    pub fn answers(&self, node: &Node) -> bool {
        let until = self.until().min(Instant::now() + FACTS);
        let opened = self.runtime.block_on(open(&node.native, until));
        opened.is_ok_and(|connection| connection.welcome().node == node.id)
    }

    /// Until when the command may take.
    pub fn until(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// Until when something may take whose failure is looked into: a fifth of the deadline is for that.
    pub fn until_looked(&self) -> Instant {
        Instant::now() + self.deadline * 4 / 5
    }

    /// The range of keys that a node holds.
    pub fn key_range(&self, node: &Node) -> anyhow::Result<KeyRangeAnswer> {
        let message = Message::KeyRange(NodeTarget { node: node.id });
        match self.ask_at(&node.native, &message)? {
            Message::KeyRangeAnswer(answer) => Ok(answer),
            other => Err(unexpected(&message, &other)),
        }
    }

    /// Does operations, in order, each until it is answered or the deadline passes. What a node cannot
    /// do at the moment is asked again under the same number, and so takes effect once.
    pub fn execute(&self, pool: &str, ops: Vec<OwnedOp>) -> anyhow::Result<Vec<Answer>> {
        let until = self.until();
        let client = ClientId(rand::random());
        let mut number = 0;
        let ops = ops.into_iter().map(|op| {
            let write = op.as_op().is_write();
            number += u64::from(write);
            op.numbered(if write { number } else { 0 })
        });
        let mut request = ServiceRequest {
            revision: Revision(0),
            service: ServiceId::CACHE,
            pool: PoolRef::Name(pool.to_owned()),
            client,
            floor: 1,
            retry: false,
            forwarded: false,
            ops: ops.collect(),
        };
        self.runtime.block_on(async {
            loop {
                let message = Message::Service(request.clone());
                let answers = match self.connection.call(&message, until).await {
                    Ok(Message::ServiceAnswers(ServiceAnswers { answers, .. })) => answers,
                    Ok(other) => return Err(unexpected(&message, &other)),
                    Err(error) => return Err(from_net(error)),
                };
                let again = answers.iter().find_map(|answer| match answer {
                    Answer::Error(code, text) if code.worth_retrying() => Some(text),
                    _ => None,
                });
                match again {
                    None => return Ok(answers),
                    Some(text) => rest(until, text).await?,
                }
                request.retry = true;
            }
        })
    }

    /// The figures of each of these nodes' part of a pool; `None` for those that do not answer.
    pub fn cache_stats<'a>(
        &self,
        pool: &str,
        nodes: impl Iterator<Item = &'a Node>,
    ) -> Vec<(&'a Node, Option<CacheStatsAnswer>)> {
        let until = self.until();
        let question = Message::CacheStats(CacheStats {
            pool: PoolRef::Name(pool.to_owned()),
        });
        self.runtime.block_on(async {
            let mut asked = Vec::new();
            for node in nodes {
                let (address, question) = (node.native.clone(), question.clone());
                let answer = tokio::spawn(async move {
                    open(&address, until).await?.call(&question, until).await
                });
                asked.push((node, answer));
            }
            let mut answers = Vec::new();
            for (node, answer) in asked {
                let figures = match answer.await {
                    Ok(Ok(Message::CacheStatsAnswer(figures))) => Some(figures),
                    _ => None,
                };
                answers.push((node, figures));
            }
            answers
        })
    }

    /// The state of a node's member of a group.
    pub fn group_state(&self, node: &Node, group: GroupId) -> anyhow::Result<GroupState> {
        let message = Message::GroupState(GroupTarget { group });
        match self.ask_at(&node.native, &message)? {
            Message::GroupStateAnswer(answer) => serde_json::from_slice(&answer.json)
                .context("the node sent a state that this program cannot read"),
            other => Err(unexpected(&message, &other)),
        }
    }

    /// Asks several nodes at once, each by its address; what each answers, in their order. Connections are kept for
    /// the next time.
    pub fn ask_all(&self, asks: Vec<(String, Message)>) -> Vec<Result<Message, NetError>> {
        let until = self.until();
        let mut opened = self.opened.borrow_mut();
        self.runtime.block_on(async {
            let mut under_way = Vec::new();
            for (address, question) in asks {
                let known = opened.get(&address).cloned();
                let to = address.clone();
                let asked = tokio::spawn(async move {
                    let connection = match known {
                        Some(connection) => connection,
                        None => open(&to, until).await?,
                    };
                    let answer = connection.call(&question, until).await?;
                    Ok((connection, answer))
                });
                under_way.push((address, asked));
            }
            let mut answers = Vec::new();
            for (address, asked) in under_way {
                let answer = match asked.await {
                    Ok(Ok((connection, answer))) => {
                        opened.insert(address, connection);
                        Ok(answer)
                    }
                    Ok(Err(error)) => {
                        opened.remove(&address);
                        Err(error)
                    }
                    Err(ended) => std::panic::resume_unwind(ended.into_panic()),
                };
                answers.push(answer);
            }
            answers
        })
    }

    fn ask(&self, question: &Message) -> anyhow::Result<Message> {
        self.runtime
            .block_on(self.connection.call(question, self.until()))
            .map_err(from_net)
    }

    fn ask_at(&self, address: &str, question: &Message) -> anyhow::Result<Message> {
        let until = self.until();
        let asked = async { open(address, until).await?.call(question, until).await };
        self.runtime.block_on(asked).map_err(from_net)
    }

    fn done(&self, question: &Message, until: Instant) -> anyhow::Result<()> {
        let answer = self.runtime.block_on(self.connection.call(question, until));
        match answer.map_err(from_net)? {
            Message::Done => Ok(()),
            other => Err(unexpected(question, &other)),
        }
    }
}

fn no_majority(code: ErrorCode, why: &str, then: &str) -> anyhow::Error {
    let remedy = "bring its voters back with their data folders";
    Failure::Wire(code, format!("{why}; {then}; {remedy}")).into()
}

async fn open(address: &str, until: Instant) -> Result<Connection, NetError> {
    let connect_timeout = until.saturating_duration_since(Instant::now());
    let options = Options {
        connect_timeout,
        ..Options::default()
    };
    Connection::open(address, &Identity::admin(ClusterId(0)), &options).await
}

async fn ask_status(connection: &Connection, until: Instant) -> anyhow::Result<StatusReport> {
    match connection
        .call(&Message::Status, until)
        .await
        .map_err(from_net)?
    {
        Message::StatusAnswer(StatusAnswer { json }) => {
            serde_json::from_slice(&json).with_context(|| {
                format!(
                    "{} sent a status that this program cannot read",
                    connection.addr()
                )
            })
        }
        other => Err(unexpected(&Message::Status, &other)),
    }
}

/// Waits a moment, or fails because the deadline is near.
async fn rest(until: Instant, why: &str) -> Result<(), Failure> {
    if until.saturating_duration_since(Instant::now()) <= REST {
        return Err(Failure::late(format!("gave up at the deadline: {why}")));
    }
    tokio::time::sleep(REST).await;
    Ok(())
}

fn unexpected(question: &Message, answer: &Message) -> anyhow::Error {
    let (question, answer) = (question.opcode().word(), answer.opcode().word());
    anyhow!(
        "the node answered '{question}' with '{answer}': its version and this program's do not fit"
    )
}

/// A node by its name, or by its id (`3`, or `n3` where no node is called so). Ids are given in the order
/// in which nodes join, so a node called `n2` may well have the id 3: the name counts.
pub fn find_node<'a>(map: &'a ClusterMap, wanted: &str) -> anyhow::Result<&'a Node> {
    let digits = wanted.strip_prefix('n').unwrap_or(wanted);
    let by_id = digits
        .parse()
        .ok()
        .and_then(|id| map.nodes.get(&NodeId(id)));
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
            Err(Failure::NotFound(text).into())
        }
        _ => bail!("{} nodes have the name '{wanted}': give an id", named.len()),
    }
}

/// An operation's error as a failure of the command.
pub fn check(answer: &Answer) -> anyhow::Result<()> {
    match answer {
        // What it comes with is in Redis's words, for Redis's clients.
        Answer::Error(ErrorCode::OutOfMemory, _) => {
            let text = "the pool has no memory left; nothing was changed";
            Err(Failure::Wire(ErrorCode::OutOfMemory, text.into()).into())
        }
        Answer::Error(code, text) => Err(Failure::Wire(*code, text.clone()).into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_model::{Incarnation, NodeState};

    #[test]
    fn a_node_is_found_by_its_name_before_its_id() {
        let mut map = ClusterMap::default();
        let mut join = |id: u64, name: &str| {
            let node = Node {
                id: NodeId(id),
                incarnation: Incarnation(id),
                name: name.to_owned(),
                zone: None,
                native: String::new(),
                resp: String::new(),
                admin: String::new(),
                memory_bytes: 0,
                durable: true,
                state: NodeState::Up,
                draining: false,
            };
            map.nodes.insert(node.id, node);
        };
        // n3 was quicker to join than n2.
        [
            (1, "n1"),
            (2, "n3"),
            (3, "n2"),
            (4, "5"),
            (5, "twin"),
            (6, "twin"),
        ]
        .into_iter()
        .for_each(|(id, name)| join(id, name));
        let found = |wanted: &str| {
            find_node(&map, wanted)
                .map(|node| node.id.0)
                .map_err(|e| e.to_string())
        };
        assert_eq!(found("n2"), Ok(3));
        assert_eq!(found("2"), Ok(2));
        assert_eq!(found("n6"), Ok(6), "no node is called so");
        assert_eq!(found("4"), Ok(4));
        assert!(found("5").is_err_and(|e| e.contains("'twin'") && e.contains("the name of node")));
        assert!(found("twin").is_err_and(|e| e.contains("give an id")));
        assert!(found("n7").is_err_and(|e| e.contains("node list")));
    }
}
