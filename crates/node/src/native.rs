//! The native door: what other nodes, clients and people's tools ask of this node (port 1600).
//!
//! The handler is called on the connections' tasks and returns at once: group messages and cache requests step their buckets right there,
//! what costs much goes through the [gate](crate::gate), and everything that waits goes to a task that ends by the asker's deadline.

pub(crate) mod batch;
mod cost;
mod costly;
mod disks;
mod files;
pub(crate) mod group;
mod log;
pub(crate) mod maps;
mod numbers;
mod room;
mod sides;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use staves_directory::{Directory, DirectoryError, Proposal};
use staves_model::policy::{self, StopUnjudged};
use staves_model::{Change, NodeId, NodeState, PoolId, ServiceId};
use staves_net::{Handler, NetError, PeerInfo, Reply};
use staves_wire::admin::NodeTarget;
use staves_wire::directory::{Propose, Proposed, RaftAnswer, Report};
use staves_wire::group::GroupEnvelope;
use staves_wire::hello::{Hello, Role};
use staves_wire::service::ServiceRequest;
use staves_wire::{ErrorCode, Message};
use tokio::runtime::Handle;

use self::batch::Asker;
use self::cost::RequestCost;
use crate::entry::Entry;
use crate::running::Running;

/// The deadline of a request that has none.
const PATIENCE: Duration = Duration::from_secs(5);

/// The handler of the native door. The directory is there from the start: the cluster talks to a node
/// while it joins. All else comes with `running`.
pub(crate) struct NativeDoor {
    pub(crate) directory: Directory,
    pub(crate) running: Arc<Entry>,
    /// The runtime that serves all other connections than the directory's. The door itself is on the directory's.
    pub(crate) ordinary: Handle,
}

impl Handler for NativeDoor {
    fn runtime(&self, hello: &Hello) -> Option<Handle> {
        (!hello.is_of_directory()).then(|| self.ordinary.clone())
    }

    fn group(&self, _peer: &PeerInfo, batch: Vec<GroupEnvelope>) {
        // While the node starts it is no member of anything; whoever thinks so says it again.
        if let Some(running) = self.running.get() {
            running.host.receive(batch);
        }
    }

    fn owes_end_of_turn(&self) -> bool {
        self.running.get().is_some_and(|r| r.host.has_put_off())
    }

    fn end_turn(&self) {
        if let Some(running) = self.running.get() {
            running.host.end_turn();
        }
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

/// Each request goes the way of its [cost](cost::cost).
fn answer(running: &Arc<Running>, peer: &PeerInfo, request: Message, mut reply: Reply) {
    match cost::cost(request.opcode()) {
        RequestCost::Own => at_once(running, peer.hello.role, request, reply),
        RequestCost::Waits => {
            reply.mark_costly();
            apart(running, peer.hello.role, request, reply);
        }
        RequestCost::Much => {
            reply.mark_costly();
            let work = costly::work(running.clone(), peer.hello.role, request, reply);
            tokio::spawn(work);
        }
    }
}

/// Of [`RequestCost::Own`].
fn at_once(running: &Arc<Running>, role: Role, request: Message, mut reply: Reply) {
    if role == Role::Client
        && cost::is_of_a_service(request.opcode())
        && let Err(text) = reply.take_place()
    {
        return reply.error(ErrorCode::Busy, text);
    }
    match request {
        Message::Service(request) => service(running, request, reply),
        Message::FileRead(ask) => files::read(running, ask, reply),
        Message::FileFetch(ask) => files::fetch(running, ask, reply),
        Message::FilePut(ask) => files::put(running, ask, reply),
        Message::GetMap(ask) => maps::get(running, role, ask, reply),
        Message::LogAsk(ask) => log::ask(running, ask, reply),
        // Passed on to the directory's leader (row D5).
        Message::Report(Report { seen, .. }) => {
            seen.into_iter().for_each(|e| running.witness.heard(e));
            reply.send(&Message::Done);
        }
        other => unasked(&other, reply),
    }
}

/// Of [`RequestCost::Waits`].
fn apart(running: &Arc<Running>, role: Role, request: Message, reply: Reply) {
    match request {
        Message::FileLost(ask) => files::lost(running, ask, reply),
        Message::LogAppoint(ask) => log::appoint(running, ask, reply),
        _ if role == Role::Client => reply.error(ErrorCode::Denied, NOT_A_TOOL),
        Message::NodeStop(target) => node_stop(running, target, false, reply),
        Message::NodeStopForced(target) => node_stop(running, target, true, reply),
        Message::NodeDrain(NodeTarget { node }) => drain(running, node, true, reply),
        Message::NodeResume(NodeTarget { node }) => drain(running, node, false, reply),
        Message::NodeDisk(ask) => disks::change(running, ask, reply),
        other => unasked(&other, reply),
    }
}

const NOT_A_TOOL: &str = "applications may not change the cluster: say hello as a tool";

fn unasked(request: &Message, reply: Reply) {
    let text = format!(
        "'{}' is not asked of a node on its own: nodes say it through the directory's messages",
        request.opcode().word()
    );
    reply.error(ErrorCode::Unsupported, text);
}

/// Operations of a service on groups.
fn service(running: &Running, request: ServiceRequest, reply: Reply) {
    let pass_on = !request.forwarded;
    if running.is_stopping() && pass_on {
        return reply.error(ErrorCode::Stopping, "this node is stopping: ask another");
    }
    let until = Instant::now() + running.host.options().request;
    let deadline = reply.deadline().map_or(until, |d| d.min(until));
    batch::serve(
        &running.host,
        request,
        deadline,
        pass_on,
        Asker::Wire(reply),
    );
}

/// The time that this request may take.
fn time_left(reply: &Reply) -> Duration {
    let now = Instant::now();
    let left = reply.deadline().map(|d| d.saturating_duration_since(now));
    left.unwrap_or(PATIENCE).min(Duration::from_secs(60))
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

/// The reason why this node must not stop now, if its data would be lost. Without a leader of the directory nobody
/// knows who else stops, and the map may be an old one: then only a node that holds nothing may go.
async fn must_stay(running: &Running, patience: Duration) -> Option<String> {
    let map = running.directory.map().borrow().clone();
    let me = running.host.life.node;
    // A member of a region may be listed and not be here yet: the leader knows what that means.
    if !running.host.holds_anything() && !map.is_of_a_region(me) {
        return None;
    }
    match running.directory.may_stop(patience.mul_f32(0.7)).await {
        Ok(refusal) => refusal.filter(|_| !loses_nothing_alone(running)),
        Err(error) => {
            tracing::warn!(%error, "asked to stop, and no leader says whether it may");
            let map = running.directory.map().borrow().clone();
            StopUnjudged::of(&map, me).map(|stop| stop.to_string())
        }
    }
}

/// True if no other node is up and each group that would be lost with this one is of a cache without keys, as the pool of a new cluster is.
fn loses_nothing_alone(running: &Running) -> bool {
    let map = running.directory.map().borrow().clone();
    let me = running.host.life.node;
    let is_other = |node: &&staves_model::Node| node.id != me && node.state == NodeState::Up;
    if map.nodes.values().any(|node| is_other(&node)) {
        return false;
    }
    let broken = map.after_stop(me, |_| false).broken;
    let pools: BTreeSet<PoolId> = broken
        .iter()
        .filter_map(|id| Some(map.groups.get(id)?.pool))
        .collect();
    let is_empty = |id| running.host.is_empty_cache(&map, id);
    !pools.is_empty() && pools.into_iter().all(is_empty)
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

fn propose(running: &Arc<Running>, role: Role, proposal: Propose, reply: Reply) {
    let change = match postcard::from_bytes::<Change>(&proposal.change) {
        Ok(change) => change,
        Err(error) => {
            let text = format!("the change does not decode: {error}");
            return reply.error(ErrorCode::Malformed, text);
        }
    };
    if let Err(text) = may_propose(role, &change) {
        return reply.error(ErrorCode::Denied, text);
    }
    let map = running.directory.map().borrow().clone();
    let checked = policy::check_change(&map, &change).map_err(|refusal| refusal.to_string());
    if let Err(reason) = checked.and_then(|()| check_service(running, &change)) {
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

/// Rejects a pool of a service that this node lacks: it would never open.
fn check_service(running: &Running, change: &Change) -> Result<(), String> {
    let Change::CreatePool { kind, name, .. } = change else {
        return Ok(());
    };
    let lacks = |service: &ServiceId| running.host.service(*service).is_none();
    kind.service().filter(lacks).map_or(Ok(()), |service| {
        Err(format!(
            "pool '{name}' is of {service:?}, which this node does not have: give it another kind"
        ))
    })
}

/// Checks that a person's tool may make a change. Epochs, lives and members are the directory's own to decide.
fn may_propose(role: Role, change: &Change) -> Result<(), &'static str> {
    let peoples = matches!(
        change,
        Change::CreatePool { .. }
            | Change::SetPool { .. }
            | Change::SetCopiesMin { .. }
            | Change::DeletePool { .. }
            | Change::Drain { .. }
            | Change::ForgetNode { .. }
            | Change::DropDataset { .. }
            | Change::PinFiles(_)
            | Change::UnpinFiles { .. }
            | Change::LimitVolume { .. }
    );
    // What an application may make for itself, it may make through any door.
    let own = matches!(
        change,
        Change::CreateRegion { .. }
            | Change::GrowRegion { .. }
            | Change::LoadRegion { .. }
            | Change::WriteRegion { .. }
            | Change::DeleteRegion { .. }
            | Change::CreateVolume { .. }
            | Change::MakeRegion { .. }
            | Change::MakeSharedVolume { .. }
            | Change::MakeWriteback { .. }
            | Change::ExtendRegion { .. }
            | Change::DetachVolume { .. }
            | Change::CopyVolumes { .. }
            | Change::SetDataset { .. }
    );
    match role {
        _ if own => Ok(()),
        _ if !peoples => Err(
            "only pools may be changed, and nodes drained, resumed or forgotten: all else the \
             directory decides",
        ),
        Role::Client => Err(NOT_A_TOOL),
        Role::Admin | Role::Node => Ok(()),
    }
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

#[cfg(test)]
mod tests;
