//! The native door: what other nodes, clients and people's tools ask of this node (port 1600).
//!
//! The handler is called on the connections' tasks and returns at once: group messages and cache
//! requests step their buckets right there, everything that waits goes to a task that ends by the
//! asker's deadline.

mod ahead;
mod batch;
mod files;
mod group;
mod sides;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use staves_directory::{Directory, DirectoryError, Proposal};
use staves_model::{Change, ClusterMap, MemberId, NodeId, NodeState, PoolKind, Scheme, ServiceId};
use staves_net::{Connection, Handler, NetError, PeerInfo, Reply};
use staves_store::EXTENT_BYTES;
use staves_wire::admin::{KeyRangeAnswer, KeySpan, NodeTarget, StatusAnswer};
use staves_wire::directory::{
    GetMap, MapAnswer, Probe, ProbeAnswer, Propose, Proposed, RaftAnswer, Report, Sign,
};
use staves_wire::group::GroupEnvelope;
use staves_wire::hello::Role;
use staves_wire::service::{PoolRef, ServiceRequest};
use staves_wire::{ErrorCode, Message};

use self::batch::Asker;
pub(crate) use self::batch::{Batch, serve_and_wait};
use crate::config::Size;
use crate::entry::Entry;
use crate::node::Running;

/// The deadline of a request that has none.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time that a node has to answer a probe.
const PROBE: Duration = Duration::from_millis(200);
/// Longest that a newer map is waited for.
const MAP_WAIT_MAX: Duration = Duration::from_secs(30);

/// The handler of the native door. The directory is there from the start: the cluster talks to a node
/// while it joins. All else comes with `running`.
pub(crate) struct NativeDoor {
    pub(crate) directory: Directory,
    pub(crate) running: Arc<Entry>,
}

impl Handler for NativeDoor {
    fn group(&self, _peer: &PeerInfo, batch: Vec<GroupEnvelope>) {
        // While the node starts it is no member of anything; whoever thinks so says it again.
        let Some(running) = self.running.get() else {
            return;
        };
        running.host.receive(batch);
        running.host.peers.flush();
    }

    fn request(&self, peer: &PeerInfo, request: Message, reply: Reply) {
        if let Message::Raft(raft) = request {
            let directory = self.directory.clone();
            tokio::spawn(async move {
                let body = directory.handle(raft.body).await;
                reply.send(&Message::RaftAnswer(RaftAnswer { body }));
            });
            return;
        }
        let Some(running) = self.running.get() else {
            return reply.error(ErrorCode::NotServing, self.running.not_yet());
        };
        answer(running, peer, request, reply);
    }
}

fn answer(running: &Arc<Running>, peer: &PeerInfo, request: Message, reply: Reply) {
    match request {
        Message::Service(request) => service(running, request, reply),
        Message::FileRead(ask) => files::read(running, ask, reply),
        Message::FileFetch(ask) => files::fetch(running, ask, reply),
        Message::FilePut(ask) => files::put(running, ask, reply),
        Message::FileKeys(ask) => files::keys(running, &ask, reply),
        Message::FileChanges(ask) => files::changes(running, ask, reply),
        Message::FileLost(ask) => files::lost(running, ask, reply),
        Message::FileCheck(ask) => files::check(running, ask, reply),
        Message::FileUse(told) => files::used(running, told, reply),
        Message::CacheStats(stats) => cache_stats(running, &stats.pool, reply),
        Message::GetMap(ask) => get_map(running, ask, reply),
        Message::Status => {
            let json = Bytes::from(running.status_json());
            reply.send(&Message::StatusAnswer(StatusAnswer { json }));
        }
        Message::GroupState(target) => group::state(&running.host, target, reply),
        Message::GroupSums(ask) => group::sums(&running.host, ask, reply),
        Message::GroupMend(_) if peer.hello.role == Role::Client => {
            reply.error(
                ErrorCode::Denied,
                "clients do not mend pages: 'staves scrub' does",
            );
        }
        Message::GroupMend(ask) => group::mend(&running.host, &ask, reply),
        Message::KeyRange(target) => key_range(running, target, reply),
        Message::NodeStop(target) => node_stop(running, target, false, reply),
        Message::NodeStopForced(target) => node_stop(running, target, true, reply),
        Message::NodeDrain(NodeTarget { node }) => drain(running, node, true, reply),
        Message::NodeResume(NodeTarget { node }) => drain(running, node, false, reply),
        Message::Propose(proposal) => propose(running, peer, proposal, reply),
        Message::Report(report) => hear(running, report, reply),
        Message::Probe(probe) => look(running, probe, reply),
        other => {
            let text = format!(
                "'{}' is not asked of a node on its own: nodes say it through the directory's messages",
                other.opcode().word()
            );
            reply.error(ErrorCode::Unsupported, text);
        }
    }
}

/// Operations of a service on groups.
fn service(running: &Running, request: ServiceRequest, reply: Reply) {
    let pass_on = !request.forwarded;
    if running.is_stopping() && pass_on {
        return reply.error(ErrorCode::Stopping, "this node is stopping: ask another");
    }
    let until = Instant::now() + running.host.options().request;
    let deadline = reply.deadline().map_or(until, |d| d.min(until));
    let asker = Asker::Wire(reply);
    batch::serve(&running.host, request, deadline, pass_on, asker);
}

/// The time that this request may take.
fn time_left(reply: &Reply) -> Duration {
    let left = reply
        .deadline()
        .map(|d| d.saturating_duration_since(Instant::now()));
    left.unwrap_or(PATIENCE).min(Duration::from_secs(60))
}

fn cache_stats(running: &Running, pool: &PoolRef, reply: Reply) {
    match running.host.routes().pool(ServiceId::CACHE, pool) {
        Some(pool) => reply.send(&Message::CacheStatsAnswer(
            running.host.cache_stats(pool.id),
        )),
        None => {
            let text = batch::no_pool(&running.host.routes().map, ServiceId::CACHE, pool);
            reply.error(ErrorCode::NotFound, text);
        }
    }
}

fn get_map(running: &Running, ask: GetMap, reply: Reply) {
    let mut map = running.directory.map();
    let now = map.borrow().clone();
    if now.revision > ask.known || ask.wait_ms == 0 {
        return reply.send(&Message::MapAnswer(MapAnswer::new(&now, ask.known)));
    }
    let wait = Duration::from_millis(ask.wait_ms.into()).min(MAP_WAIT_MAX);
    tokio::spawn(async move {
        let newer = map.wait_for(|map| map.revision > ask.known);
        let newest = match tokio::time::timeout(wait, newer).await {
            Ok(Ok(map)) => map.clone(),
            _ => now,
        };
        reply.send(&Message::MapAnswer(MapAnswer::new(&newest, ask.known)));
    });
}

/// Sends the keys that a node holds, by the map (row X5).
fn key_range(running: &Running, target: NodeTarget, reply: Reply) {
    let map = running.directory.map().borrow().clone();
    let Some(node) = map.nodes.get(&target.node) else {
        return reply.error(
            ErrorCode::NotFound,
            format!("there is no node {}", target.node),
        );
    };
    let slots = usize::from(staves_model::HASH_SLOTS);
    let mut spans: Vec<KeySpan> = Vec::new();
    for pool in map.pools.values().filter(|pool| pool.is_cache()) {
        for (bucket, group) in pool.groups.iter().enumerate() {
            let Some(held) = map
                .groups
                .get(group)
                .and_then(|g| g.slot_of(MemberId::new(node.id, node.incarnation)))
            else {
                continue;
            };
            let first = (bucket * slots).div_ceil(pool.groups.len()) as u16;
            let last = (((bucket + 1) * slots).div_ceil(pool.groups.len()) - 1) as u16;
            let data = held.index() < usize::from(pool.scheme.m);
            match spans.last_mut() {
                Some(span)
                    if span.pool == pool.id && span.data == data && span.last.0 + 1 == first =>
                {
                    span.last.0 = last;
                }
                _ => spans.push(KeySpan {
                    pool: pool.id,
                    first: staves_model::HashSlot(first),
                    last: staves_model::HashSlot(last),
                    data,
                }),
            }
        }
    }
    reply.send(&Message::KeyRangeAnswer(KeyRangeAnswer {
        node: node.id,
        incarnation: node.incarnation,
        spans,
    }));
}

fn node_stop(running: &Arc<Running>, target: NodeTarget, force: bool, reply: Reply) {
    let running = running.clone();
    if target.node == running.host.life.node {
        tokio::spawn(async move {
            if !force && let Some(why) = must_stay(&running, time_left(&reply)).await {
                return reply.error(ErrorCode::Refused, why);
            }
            running.ask_to_stop();
            reply.send(&Message::Done);
        });
        return;
    }
    tokio::spawn(async move {
        let deadline = Instant::now() + time_left(&reply);
        let request = match force {
            true => Message::NodeStopForced(target),
            false => Message::NodeStop(target),
        };
        match running
            .host
            .peers
            .call(target.node, &request, deadline)
            .await
        {
            Ok(answer) => reply.send(&answer),
            Err(NetError::Refused { packet, .. }) => reply.error(packet.code, packet.text),
            Err(error) => reply.error(error.code(), error.to_string()),
        }
    });
}

/// Why this node must not stop now, if what it holds would be lost. Without a leader of the directory nobody
/// knows who else stops, and the map may be an old one: then only a node that holds nothing may go.
async fn must_stay(running: &Running, patience: Duration) -> Option<String> {
    let map = running.directory.map().borrow().clone();
    let me = running.host.life.node;
    // A member of a region may be listed and not be here yet: the leader knows what that means.
    if !running.host.holds_anything() && !is_of_a_region(&map, me) {
        return None;
    }
    match running.directory.may_stop(patience.mul_f32(0.7)).await {
        Ok(refusal) => refusal,
        Err(error) => {
            tracing::warn!(%error, "asked to stop, and no leader says whether it may");
            let map = running.directory.map().borrow().clone();
            unjudged(&map, me)
        }
    }
}

/// Returns true if the map names the node in a group of a region.
fn is_of_a_region(map: &ClusterMap, me: NodeId) -> bool {
    let of_a_region = |group: &staves_model::Group| {
        let pool = map.pools.get(&group.pool);
        group.names(me) && pool.is_some_and(|pool| matches!(pool.kind, PoolKind::Memory { .. }))
    };
    map.groups.values().any(of_a_region)
}

/// Why a node must not stop of which no leader says that it may.
fn unjudged(map: &ClusterMap, me: NodeId) -> Option<String> {
    let node = map.nodes.get(&me)?;
    let holds = |group: &staves_model::Group| group.names(me);
    map.groups.values().any(holds).then(|| {
        format!(
            "node {me} ({}) cannot be stopped: it holds buckets, and no leader of the directory says whether others hold \
             them as well, so that this node's map may be an old one; bring the directory's \
             voters back ('staves status' names them); nothing was changed (--force stops all the same)",
            node.name
        )
    })
}

fn drain(running: &Arc<Running>, node: NodeId, on: bool, reply: Reply) {
    let running = running.clone();
    tokio::spawn(async move {
        let proposal = Proposal::unconditional(Change::Drain { node, on });
        match running.directory.propose(proposal, time_left(&reply)).await {
            Ok(_) => reply.send(&Message::Done),
            Err(error) => directory_error(reply, &error),
        }
    });
}

fn propose(running: &Arc<Running>, peer: &PeerInfo, proposal: Propose, reply: Reply) {
    let change = match postcard::from_bytes::<Change>(&proposal.change) {
        Ok(change) => change,
        Err(error) => {
            return reply.error(
                ErrorCode::Malformed,
                format!("the change does not decode: {error}"),
            );
        }
    };
    if let Err(text) = may_propose(peer.hello.role, &change) {
        return reply.error(ErrorCode::Denied, text);
    }
    let map = running.directory.map().borrow().clone();
    if let Err(reason) = check_pool(&map, &change) {
        let revision = map.revision;
        return reply.send(&Message::Proposed(Proposed::Refused { revision, reason }));
    }
    let running = running.clone();
    tokio::spawn(async move {
        let proposal = Proposal {
            expected: proposal.expected,
            term: None,
            change,
        };
        match running.directory.propose(proposal, time_left(&reply)).await {
            Ok((outcome, revision)) => match postcard::to_allocvec(&outcome) {
                Ok(bytes) => reply.send(&Message::Proposed(Proposed::Applied {
                    revision,
                    outcome: Bytes::from(bytes),
                })),
                Err(error) => reply.error(
                    ErrorCode::Internal,
                    format!("the change was made; its outcome does not encode: {error}"),
                ),
            },
            // Somebody else was quicker: there is no such thing any more.
            Err(DirectoryError::Refused(refusal)) if refusal.is_missing() => {
                reply.error(ErrorCode::NotFound, refusal.to_string());
            }
            Err(DirectoryError::Refused(refusal)) => {
                let revision = running.directory.map().borrow().revision;
                let reason = refusal.to_string();
                reply.send(&Message::Proposed(Proposed::Refused { revision, reason }));
            }
            Err(error) => directory_error(reply, &error),
        }
    });
}

/// What a person's tool may change. Epochs, lives and members are the directory's own to decide.
fn may_propose(role: Role, change: &Change) -> Result<(), &'static str> {
    let peoples = matches!(
        change,
        Change::CreatePool { .. }
            | Change::SetPool { .. }
            | Change::DeletePool { .. }
            | Change::Drain { .. }
            | Change::ForgetNode { .. }
            | Change::DropDataset { .. }
            | Change::PinFiles(_)
            | Change::UnpinFiles { .. }
    );
    // What an application may make for itself, it may make through any door.
    let own = matches!(
        change,
        Change::CreateRegion { .. }
            | Change::GrowRegion { .. }
            | Change::LoadRegion { .. }
            | Change::DeleteRegion { .. }
            | Change::SetDataset { .. }
    );
    match role {
        _ if own => Ok(()),
        _ if !peoples => Err(
            "only pools may be changed, and nodes drained, resumed or forgotten: all else the \
             directory decides",
        ),
        Role::Client => Err("applications may not change the cluster: say hello as a tool"),
        Role::Admin | Role::Node => Ok(()),
    }
}

/// What a pool may be in this version.
fn check_pool(map: &ClusterMap, change: &Change) -> Result<(), String> {
    let (name, kind, scheme, budget) = match change {
        Change::CreatePool {
            name,
            kind,
            scheme,
            node_budget_bytes,
            ..
        } => (name, kind, Some(*scheme), Some(*node_budget_bytes)),
        Change::SetPool {
            name,
            scheme,
            node_budget_bytes,
        } => {
            let kind = map.pool_named(name).map_or(&PoolKind::Cache, |p| &p.kind);
            (name, kind, *scheme, *node_budget_bytes)
        }
        Change::CreateRegion { pool, name, .. } => return check_region(map, pool, name),
        _ => return Ok(()),
    };
    let largest = map
        .nodes
        .values()
        .map(|n| n.memory_bytes)
        .max()
        .unwrap_or(0);
    if let Some(budget) = budget.filter(|budget| *budget > largest) {
        return Err(format!(
            "pool '{name}' cannot have {} of each node: the largest node has {}",
            Size(budget),
            Size(largest)
        ));
    }
    if let (PoolKind::Cache, Some(budget)) = (kind, budget) {
        holds_its_buckets(map, change, name, budget)?;
    }
    match (kind, scheme) {
        (PoolKind::Cache, Some(scheme)) if scheme.m != 1 => Err(format!(
            "pool '{name}' cannot have the scheme {scheme}: a key-value pool keeps whole copies, so \
             give it 1+k, for example 1+2"
        )),
        (PoolKind::Files(_), Some(scheme)) if scheme != Scheme { m: 1, k: 0 } => Err(format!(
            "pool '{name}' cannot have the scheme {scheme}: files come from their source again, so that a files pool has none"
        )),
        (PoolKind::Memory { .. }, Some(scheme))
            if !staves_group::supported(scheme.m.into(), scheme.width()) =>
        {
            Err(format!(
                "pool '{name}' cannot have the scheme {scheme}: there is no code for it; give it one like 4+2, with up to 32+8"
            ))
        }
        _ => Ok(()),
    }
}

/// Each bucket takes an extent from the start: a budget below that could never be written to.
fn holds_its_buckets(
    map: &ClusterMap,
    change: &Change,
    name: &str,
    budget: u64,
) -> Result<(), String> {
    let known = map.pool_named(name);
    let (buckets, scheme) = match change {
        Change::CreatePool {
            buckets, scheme, ..
        } => (*buckets as usize, *scheme),
        Change::SetPool { scheme, .. } => match known {
            Some(pool) => (pool.groups.len(), scheme.unwrap_or(pool.scheme)),
            None => return Ok(()),
        },
        _ => return Ok(()),
    };
    let nodes = map.nodes.len().max(1);
    let of_each = (buckets * scheme.width().min(nodes)).div_ceil(nodes);
    let least = of_each as u64 * EXTENT_BYTES as u64;
    if budget >= least {
        return Ok(());
    }
    let fewer = match known {
        None => ", or fewer buckets",
        Some(_) => "",
    };
    Err(format!(
        "pool '{name}' cannot do with {} of each node: {of_each} of its members lie on each of {nodes} \
         nodes and take {} each from the start; give it {} or more{fewer}",
        Size(budget),
        Size(EXTENT_BYTES as u64),
        Size(least)
    ))
}

/// A region whose groups could not begin is refused at once, not when it is first used.
fn check_region(map: &ClusterMap, pool: &str, region: &str) -> Result<(), String> {
    let Some(pool) = map.pool_named(pool) else {
        return Ok(()); // the directory says so
    };
    let able = map
        .nodes
        .values()
        .filter(|n| n.state == NodeState::Up && !n.draining);
    let (able, scheme) = (able.count(), pool.scheme);
    if able < usize::from(scheme.m) {
        return Err(format!(
            "region '{region}' cannot begin: pool '{}' with its scheme {scheme} needs {} nodes, and {able} take buckets",
            pool.name, scheme.m
        ));
    }
    Ok(())
}

fn directory_error(reply: Reply, error: &DirectoryError) {
    let code = match error {
        DirectoryError::Refused(refusal) if refusal.is_missing() => ErrorCode::NotFound,
        DirectoryError::Refused(_) | DirectoryError::Options { .. } => ErrorCode::Refused,
        DirectoryError::NoLeader { .. } => ErrorCode::NoQuorum,
        DirectoryError::Unknown { .. } => ErrorCode::Deadline,
        _ => ErrorCode::Internal,
    };
    reply.error(code, error.to_string());
}

/// Passes observations of other nodes on to the directory's leader (row D5).
fn hear(running: &Arc<Running>, report: Report, reply: Reply) {
    for evidence in report.seen {
        running.witness.heard(evidence);
    }
    reply.send(&Message::Done);
}

/// Looks whether a life of a node is there, on another's behalf.
fn look(running: &Arc<Running>, probe: Probe, reply: Reply) {
    let identity = running.identity.clone();
    tokio::spawn(async move {
        let options = staves_net::Options {
            connect_timeout: PROBE,
            ..staves_net::Options::default()
        };
        let sign = match Connection::open(&probe.addr, &identity, &options).await {
            Ok(connection) => {
                let welcome = connection.welcome();
                let same = welcome.node == probe.node && welcome.incarnation == probe.incarnation;
                if same { Sign::Alive } else { Sign::Refused }
            }
            Err(error) => error
                .sign()
                .unwrap_or(Sign::Silent(PROBE.as_millis() as u32)),
        };
        reply.send(&Message::ProbeAnswer(ProbeAnswer {
            node: probe.node,
            sign,
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_change_pools_and_nothing_changes_epochs() {
        let pool = Change::DeletePool { name: "x".into() };
        let epochs = Change::CommitEpochs(Vec::new());
        assert!(may_propose(Role::Admin, &pool).is_ok());
        assert!(may_propose(Role::Client, &pool).is_err());
        for role in [Role::Admin, Role::Client, Role::Node] {
            assert!(may_propose(role, &epochs).is_err());
        }
    }

    /// Regression: without a leader of the directory a stop was judged by the node's own map, however old.
    #[test]
    fn without_a_leader_only_a_node_that_holds_nothing_stops() {
        let mut map = ClusterMap::default();
        let cluster = staves_model::ClusterId(1);
        let mut apply = |change: Change| map.apply(None, &change).map(|_| ()).expect("sound");
        apply(Change::Bootstrap { cluster });
        for n in 1..=2 {
            apply(Change::NodeUp {
                id: None,
                name: format!("n{n}"),
                zone: None,
                native: format!("10.0.0.{n}:1600"),
                resp: format!("10.0.0.{n}:6379"),
                admin: format!("10.0.0.{n}:1680"),
                memory_bytes: 1 << 30,
                durable: true,
            });
        }
        let pool = |name: &str, may_start_empty| Change::CreatePool {
            name: name.into(),
            kind: PoolKind::Cache,
            scheme: "1+1".parse().expect("a scheme"),
            medium: staves_model::Medium::Ram,
            node_budget_bytes: 1 << 20,
            buckets: 1,
            may_start_empty,
        };
        for (name, may_start_empty) in [("cache", true), ("kept", false)] {
            map.apply(None, &pool(name, may_start_empty)).expect("new");
            let group = *map.groups.keys().next_back().expect("one");
            let life = |n| Some(MemberId::new(NodeId(n), map.nodes[&NodeId(n)].incarnation));
            let epoch = staves_model::NewEpoch {
                group,
                epoch: staves_model::Epoch(1),
                members: vec![life(1), life(2)],
                kept: vec![None; 2],
                leader: staves_model::MemberSlot(0),
                fresh: true,
            };
            map.apply(None, &Change::CommitEpochs(vec![epoch]))
                .expect("sound");
            let why = unjudged(&map, NodeId(1));
            let why = why.expect("it holds a bucket");
            assert!(why.contains("node 1 (n1)") && why.contains("--force"));
            assert_eq!(unjudged(&map, NodeId(3)), None);
        }
    }

    #[test]
    fn a_cache_pool_keeps_whole_copies() {
        let set = |scheme: &str| Change::SetPool {
            name: "cache".into(),
            scheme: Some(scheme.parse().expect("a scheme")),
            node_budget_bytes: None,
        };
        let map = ClusterMap::default();
        assert!(check_pool(&map, &set("1+0")).is_ok());
        let refusal = check_pool(&map, &set("2+1")).expect_err("two data buckets");
        assert!(
            refusal.contains("'cache'") && refusal.contains("1+k"),
            "{refusal}"
        );
    }

    #[test]
    fn a_pool_has_room_for_an_extent_of_each_bucket() {
        let node = |n: u64| Change::NodeUp {
            id: None,
            name: format!("n{n}"),
            zone: None,
            native: format!("10.0.0.{n}:1600"),
            resp: format!("10.0.0.{n}:6379"),
            admin: format!("10.0.0.{n}:1680"),
            memory_bytes: 1 << 30,
            durable: true,
        };
        let mut map = ClusterMap::default();
        let cluster = staves_model::ClusterId(1);
        map.apply(None, &Change::Bootstrap { cluster })
            .expect("a cluster");
        let create = |budget: u64| Change::CreatePool {
            name: "p".into(),
            kind: PoolKind::Cache,
            scheme: "1+1".parse().expect("a scheme"),
            medium: staves_model::Medium::Ram,
            node_budget_bytes: budget,
            buckets: 64,
            may_start_empty: true,
        };
        // 64 buckets with two members each, or with one while there is one node.
        for (nodes, of_each) in [(1, 64), (2, 64), (3, 43), (4, 32)] {
            map.apply(None, &node(nodes)).expect("a node");
            let least = of_each * EXTENT_BYTES as u64;
            assert_eq!(check_pool(&map, &create(least)), Ok(()), "{nodes} nodes");
            let refusal = check_pool(&map, &create(least - 1)).expect_err("too small");
            let named = refusal.contains(&format!("{} or more, or fewer buckets", Size(least)));
            assert!(named && refusal.contains("'p'"), "{refusal}");
        }
        map.apply(None, &create(1 << 29)).expect("a pool");
        let set = |budget: u64| Change::SetPool {
            name: "p".into(),
            scheme: None,
            node_budget_bytes: Some(budget),
        };
        assert_eq!(check_pool(&map, &set(32 * EXTENT_BYTES as u64)), Ok(()));
        let refusal = check_pool(&map, &set(4096)).expect_err("too small");
        assert!(refusal.ends_with("give it 8MiB or more"), "{refusal}");
    }

    #[test]
    fn a_pool_asks_for_no_more_than_the_largest_node_has() {
        let set = Change::SetPool {
            name: "cache".into(),
            scheme: None,
            node_budget_bytes: Some(1),
        };
        let refusal = check_pool(&ClusterMap::default(), &set).expect_err("there is no node");
        assert!(
            refusal.contains("'cache'") && refusal.contains("largest node"),
            "{refusal}"
        );
    }
}
