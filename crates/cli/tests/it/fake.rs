//! A node that answers the program out of a map and a table of keys, without a cluster behind it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use staves_model::testing::{cluster, create_files_pool, start_group};
use staves_model::{Change, ClusterId, ClusterMap, Incarnation, Medium, NodeId, PoolKind, Scheme};
use staves_net::{Handler, Identity, Options, PeerInfo, Reply, Server, Who};
use staves_node::status::{
    AgainFacts, DirectoryFacts, LackFacts, NodeFacts, PoolFacts, StatusReport,
};
use staves_wire::admin::{KeyRangeAnswer, KeySpan, StatusAnswer};
use staves_wire::cache::{CacheStatsAnswer, Op, OwnedOp};
use staves_wire::directory::{MapAnswer, Propose, Proposed};
use staves_wire::files::{CHECKED_ALL, FileChange, FileChangesAnswer, FileKey};
use staves_wire::group::GroupEnvelope;
use staves_wire::service::{Answer, NumberedOp, ServiceAnswers, ServiceRequest};
use staves_wire::{ErrorCode, Message};
use tokio::runtime::Runtime;

/// The state that the node answers from, and its faults.
#[derive(Default)]
pub struct State {
    pub map: ClusterMap,
    pub keys: BTreeMap<Bytes, Bytes>,
    /// So many batches of operations are answered with "not serving" first.
    pub not_serving: u32,
    /// So many proposals are answered with "ask that one" first, and the address is its own.
    pub not_leader: u32,
    /// Pages that the first node says it uses.
    pub used_bytes: u64,
    /// Blocks that the first node reports as being fetched again.
    pub fetching_again: Option<AgainFacts>,
    /// Pinned files that the first node says it has not all of.
    pub lacking: Vec<LackFacts>,
    /// It has heard of all nodes how they are.
    pub knows_all: bool,
    /// Nobody leads the directory, and nothing can be changed.
    pub no_leader: bool,
    /// The target of a change is gone when the change comes.
    pub gone_at_propose: bool,
    /// No write finds room.
    pub full: bool,
    /// Nothing is answered at all.
    pub silent: bool,
    /// Blocks of files that it says it has; nothing is said where there is none.
    pub blocks: Option<Vec<FileKey>>,
    /// The numbers of the writes that came, in order.
    pub numbers: Vec<u64>,
    /// Requests that nobody answers, kept so that they are not refused either.
    held: Vec<Reply>,
}

pub struct Fake {
    pub addr: String,
    pub state: Arc<Mutex<State>>,
    _server: Server,
    _runtime: Runtime,
}

struct Door {
    addr: String,
    state: Arc<Mutex<State>>,
}

impl Fake {
    /// A node of a cluster of three with a pool `cache` of two buckets, 1+1, all whole.
    pub fn start() -> Fake {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
            .expect("a free port");
        let addr = listener.local_addr().expect("an address").to_string();
        let state = Arc::new(Mutex::new(State {
            map: map(&addr),
            ..State::default()
        }));
        let who = Who {
            cluster: ClusterId(7),
            node: NodeId(1),
            incarnation: Incarnation(1),
        };
        let door = Door {
            addr: addr.clone(),
            state: state.clone(),
        };
        let server = runtime.block_on(async {
            Server::on(listener, Identity::node(who), Options::default(), door).expect("serves")
        });
        Fake {
            addr,
            state,
            _server: server,
            _runtime: runtime,
        }
    }

    /// Makes a pool `files` that nobody is home of, with a dataset `data`.
    pub fn with_dataset(&self, source: &str) {
        self.with(|state| {
            let pool = create_files_pool("files", 8, 1 << 29);
            let dataset = Change::SetDataset {
                pool: "files".into(),
                name: "data".into(),
                source: source.to_owned(),
            };
            for change in [pool, dataset] {
                state.map.apply(None, &change).expect("a sound change");
            }
        });
    }

    pub fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().expect("not poisoned"))
    }
}

/// Three nodes, of which only the first has a live address, and a whole pool.
fn map(addr: &str) -> ClusterMap {
    let mut map = cluster(3);
    for node in map.nodes.values_mut() {
        node.name = format!("node-{}", node.id);
        node.native = match node.id {
            NodeId(1) => addr.to_owned(),
            _ => "127.0.0.1:1".into(),
        };
    }
    let mut apply = |change: Change| {
        map.apply(None, &change).expect("a sound change");
    };
    apply(Change::CreatePool {
        name: "cache".into(),
        kind: PoolKind::Cache,
        scheme: Scheme { m: 1, k: 1 },
        medium: Medium::Ram,
        node_budget_bytes: 1 << 29,
        buckets: 2,
        may_start_empty: true,
    });
    let groups: Vec<u32> = map.groups.keys().map(|id| id.0).collect();
    for group in groups {
        start_group(&mut map, group, &[1, 2]);
    }
    map
}

impl Handler for Door {
    fn group(&self, _: &PeerInfo, _: Vec<GroupEnvelope>) {}

    fn request(&self, _: &PeerInfo, request: Message, reply: Reply) {
        let mut state = self.state.lock().expect("not poisoned");
        let undecided = state.no_leader && matches!(request, Message::Propose(_));
        let unsaid = state.blocks.is_none() && matches!(request, Message::FileChanges(_));
        if state.silent || undecided || unsaid {
            return state.held.push(reply);
        }
        reply.send(&self.answer(&mut state, request));
    }
}

impl Door {
    fn answer(&self, state: &mut State, request: Message) -> Message {
        match request {
            Message::NodeDrain(_) if state.no_leader => {
                Message::error(ErrorCode::NoQuorum, "no directory leader answered")
            }
            Message::Status => status(state),
            Message::GetMap(_) => Message::MapAnswer(MapAnswer {
                revision: state.map.revision,
                map: Some(postcard::to_allocvec(&state.map).expect("encodes").into()),
            }),
            Message::Propose(proposal) => self.propose(state, proposal),
            Message::Service(request) => cache(state, request),
            Message::CacheStats(_) => Message::CacheStatsAnswer(CacheStatsAnswer {
                buckets: 2,
                keys: state.keys.len() as u64,
                ..CacheStatsAnswer::default()
            }),
            Message::NodeDrain(target) => drain(state, target.node, true),
            Message::NodeResume(target) => drain(state, target.node, false),
            Message::NodeStop(_) => Message::Done,
            Message::FileChanges(_) => {
                let keys = state.blocks.clone().expect("looked at before");
                let entries = (0..)
                    .zip(keys)
                    .map(|(entry, key)| FileChange { entry, key });
                Message::FileChangesAnswer(FileChangesAnswer {
                    incarnation: Incarnation(1),
                    number: 1,
                    next: CHECKED_ALL,
                    entries: entries.collect(),
                })
            }
            Message::KeyRange(target) => Message::KeyRangeAnswer(KeyRangeAnswer {
                node: target.node,
                incarnation: Incarnation(1),
                spans: vec![KeySpan {
                    pool: *state.map.pools.keys().next().expect("a pool"),
                    first: staves_model::HashSlot(0),
                    last: staves_model::HashSlot(8191),
                    data: true,
                }],
            }),
            other => Message::error(ErrorCode::Unsupported, other.opcode().word()),
        }
    }

    fn propose(&self, state: &mut State, Propose { expected, change }: Propose) -> Message {
        if state.not_leader > 0 {
            state.not_leader -= 1;
            let leader = Some((NodeId(1), self.addr.clone()));
            return Message::Proposed(Proposed::NotLeader { leader });
        }
        let change: Change = postcard::from_bytes(&change).expect("a change");
        if state.gone_at_propose {
            let name = "cache".into();
            let refusal = staves_model::Refusal::UnknownPool { name };
            assert!(refusal.is_missing(), "a node answers so");
            return Message::error(ErrorCode::NotFound, refusal.to_string());
        }
        let result = state.map.apply(expected, &change);
        let revision = state.map.revision;
        Message::Proposed(match result {
            Ok(outcome) => Proposed::Applied {
                revision,
                outcome: postcard::to_allocvec(&outcome).expect("encodes").into(),
            },
            Err(refusal) => Proposed::Refused {
                revision,
                reason: refusal.to_string(),
            },
        })
    }
}

fn drain(state: &mut State, node: NodeId, on: bool) -> Message {
    match state.map.apply(None, &Change::Drain { node, on }) {
        Ok(_) => Message::Done,
        Err(refusal) => Message::error(ErrorCode::Refused, refusal.to_string()),
    }
}

fn status(state: &State) -> Message {
    let directory = DirectoryFacts {
        leader: Some(1).filter(|_| !state.no_leader),
        voters: vec![1, 2, 3],
        term: 1,
        ..DirectoryFacts::default()
    };
    let pools = state.map.pools.values().take(1).map(|pool| PoolFacts {
        pool: pool.name.clone(),
        used_bytes: state.used_bytes,
        ..PoolFacts::default()
    });
    let facts = NodeFacts {
        node: 1,
        pools: pools.collect(),
        keys: state.keys.len() as u64,
        used_bytes: state.used_bytes,
        fetching_again: state.fetching_again.clone(),
        lacking: state.lacking.clone(),
        ..NodeFacts::default()
    };
    let mut all = vec![facts];
    if state.knows_all {
        all.extend([2, 3].map(|node| NodeFacts {
            node,
            ..NodeFacts::default()
        }));
    }
    let report = StatusReport::new(&state.map, NodeId(1), directory, all);
    let json = serde_json::to_vec(&report).expect("serializes");
    Message::StatusAnswer(StatusAnswer { json: json.into() })
}

fn cache(state: &mut State, request: ServiceRequest) -> Message {
    state.numbers.extend(
        request
            .ops
            .iter()
            .map(|op| op.number)
            .filter(|number| *number > 0),
    );
    let refused = state.not_serving > 0;
    state.not_serving = state.not_serving.saturating_sub(1);
    let operation = |op: &NumberedOp| Op::from_body(&op.body).expect("an operation").to_owned();
    let answers = request.ops.iter().map(|op| match operation(op) {
        _ if refused => Answer::error(ErrorCode::NotServing, "bucket 0 has no primary right now"),
        OwnedOp::Get { key } => state
            .keys
            .get(&key)
            .cloned()
            .map_or(Answer::Nil, Answer::Value),
        OwnedOp::Set { .. } if state.full => {
            Answer::error(ErrorCode::OutOfMemory, "OOM used memory > 'maxmemory'")
        }
        OwnedOp::Set {
            key,
            value,
            condition,
            ..
        } => {
            use staves_wire::cache::Condition::{Always, IfAbsent, IfPresent};
            match (condition, state.keys.contains_key(&key)) {
                (Always, _) | (IfAbsent, false) | (IfPresent, true) => {
                    state.keys.insert(key, value);
                    Answer::Ok
                }
                _ => Answer::Nil,
            }
        }
        OwnedOp::Del { key } => Answer::Int(i64::from(state.keys.remove(&key).is_some())),
        _ => Answer::error(ErrorCode::Unsupported, "not in the fake"),
    });
    let answers = answers.collect();
    Message::ServiceAnswers(ServiceAnswers {
        revision: state.map.revision,
        answers,
        moved: vec![],
        draw_above: 0,
        needs_bytes: 0,
    })
}

/// The time within which a program that should end soon has ended.
pub const SOON: Duration = Duration::from_secs(4);
