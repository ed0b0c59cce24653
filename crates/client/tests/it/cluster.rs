//! A cluster of scripted nodes: real ports and the real protocol, one shared table for all data, and a
//! map that the test changes as it likes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use staves_client::{Client, ClientOptions};
use staves_model::{
    Change, ClientId, ClusterId, ClusterMap, GroupId, HashSlot, Incarnation, Member, MemberId,
    MemberSlot, NodeId, PoolId, testing,
};
use staves_net::{Handler, Identity, Options, PeerInfo, Reply, Server, Who};
pub use staves_testkit::{block_on, wait_until_async};
use staves_wire::cache::{CacheStatsAnswer, Op, OwnedOp};
use staves_wire::directory::{Evidence, MapAnswer};
use staves_wire::files::FileBytes;
use staves_wire::group::GroupEnvelope;
use staves_wire::service::{Address, Answer, NumberedOp, ServiceAnswers, ServiceRequest};
use staves_wire::{ErrorCode, Message};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub const CLUSTER: ClusterId = ClusterId(7);
pub const GROUPS: u32 = 8;

/// A node's behaviour at the next cache requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mood {
    /// Answers.
    Well,
    /// Does what it is asked, and says nothing.
    Mute,
    /// "Busy."
    Busy,
}

/// The state that the test looks at, and that all nodes share.
#[derive(Default)]
pub struct World {
    pub map: Arc<ClusterMap>,
    pub values: BTreeMap<Bytes, Bytes>,
    /// Writes done, by name, with their answers: a retry is answered again.
    pub done: BTreeMap<(ClientId, u64), Answer>,
    /// Cache requests by node: how many operations, whether it was said to be a retry.
    pub asked: Vec<(NodeId, usize, bool)>,
    /// Requests that came to the wrong node.
    pub astray: usize,
    pub evidence: Vec<Evidence>,
    pub moods: BTreeMap<NodeId, Mood>,
    /// Nodes pass on what is not theirs.
    pub forwarding: bool,
    pub floors: Vec<(u64, u64)>,
    /// Nodes do no more operations of a batch than this.
    pub answers_max: Option<usize>,
    /// Slots whose bucket has forgotten clients with numbers up to this.
    pub marks: BTreeMap<HashSlot, u64>,
    /// The bytes of files that nodes answer with, and the number of such requests.
    pub files: Option<Bytes>,
    pub files_asked: usize,
    /// Bytes of files that nodes were given, and those that wait for an answer, if none is given.
    pub files_put: usize,
    pub puts_held: Option<Vec<Reply>>,
    /// A change that somebody else makes just before the next one.
    pub made_before: Option<Change>,
}

#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<World>>);

pub struct Cluster {
    pub world: Shared,
    servers: BTreeMap<NodeId, Server>,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().expect("no test panics while it holds it")
    }
}

impl World {
    /// A new revision of the map.
    pub fn change(&mut self, edit: impl FnOnce(&mut ClusterMap)) {
        let mut map = ClusterMap::clone(&self.map);
        map.revision = map.revision.next();
        edit(&mut map);
        self.map = Arc::new(map);
    }

    /// Another node answers for the group from now on.
    pub fn give(&mut self, group: GroupId, to: NodeId) {
        self.change(|map| {
            let revision = map.revision;
            let group = map.groups.get_mut(&group).expect("the group");
            group.members[0] = Some(member(to.0));
            group.epoch = group.epoch.next();
            group.open = true;
            group.revision = revision;
        });
    }

    /// The group of a key's bucket.
    pub fn group_of(&self, key: &[u8]) -> GroupId {
        let slot = staves_model::hash_slot(key);
        self.map.group_of(PoolId(1), slot).expect("a group").id
    }

    pub fn owner(&self, key: &[u8]) -> NodeId {
        let group = &self.map.groups[&self.group_of(key)];
        group.member(MemberSlot(0)).expect("an owner").id.node
    }
}

fn member(node: u64) -> Member {
    Member {
        id: MemberId::new(NodeId(node), Incarnation(node)),
        complete: true,
    }
}

impl Cluster {
    /// Nodes 1 to n; group 1 belongs to node 1, group 2 to node 2, and so on, round and round.
    pub async fn start(n: u64) -> Cluster {
        let mut cluster = Cluster {
            world: Shared::default(),
            servers: BTreeMap::new(),
        };
        let mut map = testing::cluster(n);
        for node in map.nodes.values_mut() {
            node.native = cluster.serve(node.id.0, "127.0.0.1:0").await;
        }
        let pool = testing::create_pool("cache", "1+0", GROUPS, true);
        map.apply(None, &pool).expect("a new pool");
        for group in 1..=GROUPS {
            testing::start_group(&mut map, group, &[u64::from(group - 1) % n + 1]);
        }
        cluster.world.lock().map = Arc::new(map);
        cluster
    }

    pub async fn serve(&mut self, id: u64, addr: &str) -> String {
        let who = Who {
            cluster: CLUSTER,
            node: NodeId(id),
            incarnation: Incarnation(id),
        };
        let script = Script {
            node: NodeId(id),
            world: self.world.clone(),
        };
        let server = Server::bind(addr, Identity::node(who), Options::default(), script).await;
        let server = server.expect("a free port on loopback");
        let addr = server.local_addr().to_string();
        self.servers.insert(NodeId(id), server);
        addr
    }

    pub fn addr(&self, id: u64) -> String {
        self.servers[&NodeId(id)].local_addr().to_string()
    }

    pub fn kill(&mut self, id: u64) {
        self.servers.remove(&NodeId(id));
    }

    /// A client that knows only node 1.
    pub async fn client(&self) -> Client {
        let options = ClientOptions {
            deadline: Duration::from_secs(20),
            ..ClientOptions::default()
        };
        self.client_with(options).await
    }

    pub async fn client_with(&self, options: ClientOptions) -> Client {
        Client::connect(&[self.addr(1)], options)
            .await
            .expect("node 1 answers")
    }
}

/// A way to an address that can be cut without either end noticing. It lasts as long as the test.
pub struct Relay {
    pub addr: String,
    cut: Arc<AtomicBool>,
}

impl Relay {
    pub async fn to(addr: String) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let here = listener.local_addr().expect("its address").to_string();
        let cut = Arc::new(AtomicBool::new(false));
        let is_cut = cut.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(&addr).await.expect("the server");
                let (near, far) = (near.into_split(), far.into_split());
                for (mut from, mut into) in [(near.0, far.1), (far.0, near.1)] {
                    let is_cut = is_cut.clone();
                    tokio::spawn(async move {
                        let mut bytes = vec![0; 65536];
                        while let Ok(n @ 1..) = from.read(&mut bytes).await {
                            if is_cut.load(Ordering::Relaxed) {
                                std::future::pending::<()>().await;
                            }
                            if into.write_all(&bytes[..n]).await.is_err() {
                                return;
                            }
                        }
                    });
                }
            }
        });
        Relay { addr: here, cut }
    }

    pub fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }
}

struct Script {
    node: NodeId,
    world: Shared,
}

impl Handler for Script {
    fn group(&self, _: &PeerInfo, _: Vec<GroupEnvelope>) {}

    fn request(&self, _: &PeerInfo, request: Message, reply: Reply) {
        let mut world = self.world.lock();
        match request {
            Message::GetMap(ask) => {
                let answer = MapAnswer::new(&world.map, ask.known);
                reply.send(&Message::MapAnswer(answer));
            }
            Message::Propose(proposal) => world.propose(&proposal, reply),
            Message::Service(request) => self.cache(&mut world, request, reply),
            Message::CacheStats(_) => {
                let is_here = |key: &&Bytes| world.owner(key) == self.node;
                let keys = world.values.keys().filter(is_here).count();
                let answer = CacheStatsAnswer {
                    keys: keys as u64,
                    ..Default::default()
                };
                reply.send(&Message::CacheStatsAnswer(answer));
            }
            Message::FileRead(_) | Message::FileFetch(_) => {
                world.files_asked += 1;
                let bytes = world.files.clone();
                reply.send(&Message::FileBytes(FileBytes { bytes }));
            }
            Message::FilePut(put) => {
                world.files_put += put.bytes.len();
                match &mut world.puts_held {
                    Some(held) => held.push(reply),
                    None => reply.send(&Message::Done),
                }
            }
            Message::Report(report) => {
                world.evidence.extend(report.seen);
                reply.send(&Message::Done);
            }
            other => reply.error(ErrorCode::Unsupported, other.opcode().word()),
        }
    }
}

impl Script {
    fn cache(&self, world: &mut World, request: ServiceRequest, reply: Reply) {
        world
            .asked
            .push((self.node, request.ops.len(), request.retry));
        let mood = world.moods.get(&self.node).copied().unwrap_or(Mood::Well);
        if mood == Mood::Busy {
            return reply.error(ErrorCode::Busy, "not now");
        }
        let mut moved = BTreeSet::new();
        let mut answers = Vec::new();
        for op in &request.ops {
            if world.answers_max.is_some_and(|max| answers.len() >= max) {
                answers.push(Answer::error(ErrorCode::Busy, "no more at once"));
                continue;
            }
            let group = op.to.group(&world.map, PoolId(1)).expect("a group");
            let mine = group.open
                && group
                    .member(MemberSlot(0))
                    .is_some_and(|m| m.id.node == self.node);
            let id = group.id;
            if mine || (world.forwarding && !request.forwarded) {
                answers.push(apply(world, &request, op));
            } else {
                moved.insert(id);
                answers.push(Answer::error(ErrorCode::NotServing, "not here, not now"));
            }
        }
        if !moved.is_empty() {
            world.astray += 1;
        }
        let moved = moved
            .iter()
            .map(|id| Arc::new(world.map.groups[id].clone()))
            .collect();
        let forgotten = request
            .ops
            .iter()
            .zip(&answers)
            .filter(|(_, answer)| matches!(answer, Answer::Error(ErrorCode::Forgotten, _)));
        let marks = forgotten.filter_map(|(op, _)| world.marks.get(&hash_slot_of(op)).copied());
        let answers = ServiceAnswers {
            revision: world.map.revision,
            draw_above: marks.max().unwrap_or(0),
            answers,
            moved,
            needs_bytes: 0,
        };
        match mood {
            Mood::Mute => std::mem::forget(reply),
            _ => reply.send(&Message::ServiceAnswers(answers)),
        }
    }
}

fn hash_slot_of(op: &NumberedOp) -> HashSlot {
    match op.to {
        Address::Slot(slot) => slot,
        other => panic!("{other}"),
    }
}

fn apply(world: &mut World, request: &ServiceRequest, op: &NumberedOp) -> Answer {
    let name = (request.client, op.number);
    if op.number > 0 {
        world.floors.push((op.number, request.floor));
        if let Some(answer) = world.done.get(&name) {
            return answer.clone();
        }
        if world
            .marks
            .get(&hash_slot_of(op))
            .is_some_and(|mark| op.number <= *mark)
        {
            return Answer::error(ErrorCode::Forgotten, "nobody can tell any more");
        }
    }
    let answer = match &Op::from_body(&op.body).expect("an operation").to_owned() {
        OwnedOp::Get { key } => match world.values.get(key) {
            Some(value) => Answer::Value(value.clone()),
            None => Answer::Nil,
        },
        OwnedOp::Set { key, value, .. } => {
            world.values.insert(key.clone(), value.clone());
            Answer::Ok
        }
        OwnedOp::Del { key } => Answer::Int(i64::from(world.values.remove(key).is_some())),
        OwnedOp::IncrBy { key, by } => {
            let old = world.values.get(key).map_or(0, |value| {
                std::str::from_utf8(value)
                    .expect("text")
                    .parse()
                    .expect("a number")
            });
            let new: i64 = old + by;
            world.values.insert(key.clone(), new.to_string().into());
            Answer::Int(new)
        }
        _ => Answer::error(ErrorCode::Unsupported, "not in the script"),
    };
    if op.number > 0 {
        world.done.insert(name, answer.clone());
    }
    answer
}

pub fn set(key: &str, value: &str) -> OwnedOp {
    OwnedOp::Set {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
        condition: Default::default(),
        get_old: false,
    }
}

pub fn get(key: &str) -> OwnedOp {
    OwnedOp::Get {
        key: Bytes::copy_from_slice(key.as_bytes()),
    }
}

pub fn incr(key: &str) -> OwnedOp {
    OwnedOp::IncrBy {
        key: Bytes::copy_from_slice(key.as_bytes()),
        by: 1,
    }
}
