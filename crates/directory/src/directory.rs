//! The handle that a node holds: requests to the leader, answers to other nodes, and a view of the map.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use openraft::ServerState;
use parking_lot::Mutex;
use staves_model::{
    ClusterId, ClusterMap, DirectoryCall, Epoch, Evidence, GroupId, Incarnation, LeaseRequest,
    NodeId, Outcome, OwnStop, Revision, StopState, StopTimes, Time,
};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::error::DirectoryError;
use crate::folder_owner::{self, FolderOwner};
use crate::leader_state::LeaderState;
use crate::machine::Machine;
use crate::message::{CallAnswer, LeaderRequest, LeaderResponse, PendingLease};
use crate::network::{Network, SeenAt};
use crate::options::Options;
use crate::restored::Restored;
use crate::store::Store;
use crate::transport::Transport;
use crate::types::{Applied, Metrics, Proposal, Raft};

/// Lease requests on their way to the batcher. More are to be made again later.
const LEASE_QUEUE: usize = 64;

/// One node's part of the directory. Clones share it.
#[derive(Clone)]
pub struct Directory {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub options: Options,
    pub transport: Arc<dyn Transport>,
    pub store: Store,
    pub map_watch: watch::Receiver<Arc<ClusterMap>>,
    /// The state machine until Raft takes it over.
    pub machine: Mutex<Option<Machine>>,
    pub core: OnceLock<Core>,
    /// This life; 0 until the cluster gave one.
    pub incarnation: AtomicU64,
    /// The leader's volatile state; `None` while this node does not lead.
    pub leader_state: Mutex<Option<LeaderState>>,
    pub lease_queue: mpsc::Sender<PendingLease>,
    pub lease_requests: Mutex<Option<mpsc::Receiver<PendingLease>>>,
    pub seen_at: SeenAt,
    /// Nodes that do not answer this node's pings: requests go through others.
    pub unreachable: Arc<Mutex<BTreeSet<NodeId>>>,
    /// Nodes that do not answer pings, with the time of each one's last answer.
    pub silent: Mutex<BTreeMap<NodeId, Time>>,
    /// Raised with each request that failed, so that the next one takes another path.
    pub misses: AtomicUsize,
    /// This node leaves: it does not propose itself as back.
    pub leaving: AtomicBool,
    /// The state of this node's own stop.
    pub own_stop: Mutex<OwnStop>,
    /// Set when this life is over.
    pub over: watch::Sender<Option<Arc<DirectoryError>>>,
    /// The process that held the data folder before this one.
    pub former: Option<FolderOwner>,
    /// This node leads and hands the lead over: it orders nothing meanwhile.
    pub handing_over: AtomicBool,
    /// This node leads and hears nobody: it says nothing as the leader meanwhile, so that others elect one.
    pub mute: Arc<AtomicBool>,
    /// The data folder was copied or restored, and this node has not caught up yet.
    pub restored: Mutex<Option<Restored>>,
    /// The time of the last message from a leader, in nanoseconds of [`Inner::now`].
    pub leader_heard: AtomicU64,
    /// The time at which this node last gave its vote to another, likewise.
    pub vote_granted: AtomicU64,
    /// The time of the last [`Directory::works`], likewise; 0 before the first.
    pub worked: AtomicU64,
    /// The runtime that the directory was started on.
    pub runtime: OnceLock<Handle>,
    pub tasks: Mutex<Vec<JoinHandle<()>>>,
    origin: Instant,
}

/// The parts that exist once this node has an id.
pub(crate) struct Core {
    pub raft: Raft,
    pub network: Network,
    pub me: NodeId,
    pub cluster: ClusterId,
}

impl Core {
    /// The voters. During a change of them, both sets.
    pub fn voters(&self) -> BTreeSet<NodeId> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        metrics.membership_config.membership().voter_ids().collect()
    }
}

/// The directory may have threads of its own, that live when all others hang: a node that has done nothing for so long is not alive.
/// One that is only starved of processor time is back sooner.
pub const HANG: Duration = Duration::from_secs(3);

/// This node's identity, in this life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Life {
    /// The cluster.
    pub cluster: ClusterId,
    /// Its id.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
}

/// Leases as the leader granted them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Granted {
    /// The asker's clock when it asked: the lease counts from here, shortened (`staves_model::shortened`).
    pub clock: Time,
    /// Of those wanted, what was granted.
    pub granted: Vec<(GroupId, Epoch)>,
    /// Groups for which this answer counts as having heard the directory, ascending, and from which epoch
    /// on (GROUP rule 13; `staves_model::lease::heard_from`).
    pub heard: Vec<(GroupId, Epoch)>,
    /// The leader's map: if it is newer than the asker's, a refusal may be explained there.
    pub revision: Revision,
}

/// The outcome of leaving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// The directory goes on without this node.
    HandedOver,
    /// This node was the only one that can vote: the directory waits for its return.
    LastVoter,
}

/// The directory as this node sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// This node; 0 before it has an id.
    pub node: NodeId,
    /// Its life; 0 before it has one.
    pub incarnation: Incarnation,
    /// Its cluster; 0 before it has one.
    pub cluster: ClusterId,
    /// The leader, as far as known.
    pub leader: Option<NodeId>,
    /// Raft's term.
    pub term: u64,
    /// The voters. During a change of them, both sets.
    pub voters: Vec<NodeId>,
    /// The voters are being changed: until it is done, majorities of both sets are needed.
    pub changing_voters: bool,
    /// The nodes that only follow.
    pub learners: Vec<NodeId>,
    /// The log's last index.
    pub last_log: u64,
    /// The last index that the map has taken in.
    pub applied: u64,
    /// At the leader: how long ago a majority last agreed that it leads.
    pub quorum_silent_ms: Option<u64>,
    /// The map's revision.
    pub revision: Revision,
    /// The reason for which Raft stopped on this node, if it did (its data folder failed): the node should be restarted.
    pub failed: Option<String>,
}

impl Directory {
    /// Opens the data folder. Nothing runs before [`Directory::start`], but [`Directory::handle`] may be
    /// wired up already, and must be: the cluster talks to this node while it starts.
    pub fn open(
        options: Options,
        transport: Arc<dyn Transport>,
    ) -> Result<Directory, DirectoryError> {
        options.raft()?;
        let folder = options.data_dir.as_deref();
        let former = folder.and_then(folder_owner::read);
        let store = Store::open(folder)?;
        if let Some(folder) = folder {
            // The former address stays until it is known that nobody answers there.
            let native = former.as_ref().map_or(&options.node.native, |f| &f.native);
            let (pid, native) = (std::process::id(), native.clone());
            folder_owner::write(folder, &FolderOwner { pid, native });
        }
        let (map_tx, map_watch) = watch::channel(Arc::default());
        let machine =
            Machine::load(store.clone(), map_tx).map_err(|reason| options.unreadable(reason))?;
        let (lease_queue, lease_requests) = mpsc::channel(LEASE_QUEUE);
        let inner = Inner {
            options,
            transport,
            store,
            map_watch,
            machine: Mutex::new(Some(machine)),
            core: OnceLock::new(),
            incarnation: AtomicU64::new(0),
            leader_state: Mutex::new(None),
            lease_queue,
            lease_requests: Mutex::new(Some(lease_requests)),
            seen_at: SeenAt::default(),
            unreachable: Arc::default(),
            silent: Mutex::default(),
            misses: AtomicUsize::new(0),
            leaving: AtomicBool::new(false),
            own_stop: Mutex::default(),
            over: watch::Sender::new(None),
            former,
            handing_over: AtomicBool::new(false),
            mute: Arc::default(),
            restored: Mutex::default(),
            leader_heard: AtomicU64::new(0),
            vote_granted: AtomicU64::new(0),
            worked: AtomicU64::new(0),
            runtime: OnceLock::new(),
            tasks: Mutex::default(),
            origin: Instant::now(),
        };
        Ok(Directory {
            inner: Arc::new(inner),
        })
    }

    /// Makes the cluster, joins it, or comes back to it; returns once this node's own map shows its new
    /// life. It may take an election; it gives up after `Times::join`.
    pub async fn start(&self) -> Result<Life, DirectoryError> {
        let mut over = self.over();
        tokio::select! {
            started = self.inner.clone().start() => started,
            Ok(why) = over.wait_for(Option::is_some) => {
                let why = why.as_ref().map(|why| why.to_string());
                Err(not_running(why.unwrap_or_default()))
            }
        }
    }

    /// Answers another node's request (what its `Transport::call` carried).
    pub async fn handle(&self, request: Bytes) -> Bytes {
        self.inner.clone().handle(&request).await
    }

    /// The map, and each newer one as it comes. Empty (cluster 0) before the start.
    pub fn map(&self) -> watch::Receiver<Arc<ClusterMap>> {
        self.inner.map_watch.clone()
    }

    /// The leader, as far as this node knows.
    pub fn leader(&self) -> Option<NodeId> {
        self.inner.metrics().and_then(|m| m.current_leader)
    }

    /// The node that the directory belongs to says that it still does its work. Once it has said so, it must again and again: after
    /// [`HANG`] without a word this node answers no ping, and is declared dead.
    pub fn works(&self) {
        let now = self.inner.now().0;
        self.inner.worked.store(now, Ordering::Relaxed);
    }

    /// True if it has not said so for longer than that.
    pub fn hangs(&self) -> bool {
        self.inner.hangs()
    }

    /// Proposes a change; returns once it took effect and a majority has it on disk.
    ///
    /// [`DirectoryError::Unknown`] means that the answer was lost: the change may have taken effect.
    pub async fn propose(
        &self,
        proposal: Proposal,
        deadline: Duration,
    ) -> Result<(Outcome, Revision), DirectoryError> {
        let request = LeaderRequest::Propose(proposal);
        match self.inner.ask(request, deadline).await? {
            LeaderResponse::Applied(Applied::Done { outcome, revision }) => Ok((outcome, revision)),
            LeaderResponse::Applied(Applied::Refused { refusal, .. }) => Err(refusal.into()),
            other => Err(unexpected("a proposal", &other)),
        }
    }

    /// Asks for leases of this node's data buckets. `clock` is the caller's clock now, before the call.
    pub async fn lease(
        &self,
        clock: Time,
        wanted: Vec<(GroupId, Epoch)>,
        deadline: Duration,
    ) -> Result<Granted, DirectoryError> {
        let (node, incarnation) = self.inner.life()?;
        let request = LeaderRequest::Lease(LeaseRequest {
            node,
            incarnation,
            wanted,
        });
        match self.inner.ask(request, deadline).await? {
            LeaderResponse::Leased {
                granted,
                heard,
                revision,
            } => Ok(Granted {
                clock,
                granted,
                heard,
                revision,
            }),
            LeaderResponse::Over { address } => {
                let why = match address {
                    Some(address) => DirectoryError::Displaced { node, address },
                    None => DirectoryError::Removed { node },
                };
                let reason = why.to_string();
                self.inner.end_life(why);
                Err(DirectoryError::NotRunning { reason })
            }
            other => Err(unexpected("leases", &other)),
        }
    }

    /// The reason for which this life is over, once it is: from the leader, in answer to a request for leases
    /// ([`DirectoryError::Displaced`], [`DirectoryError::Removed`]), or Raft has ended on this node
    /// ([`DirectoryError::NotRunning`]). The process must stop then.
    pub fn over(&self) -> watch::Receiver<Option<Arc<DirectoryError>>> {
        self.inner.over.subscribe()
    }

    /// The cluster that the data folder belongs to, if it belongs to one.
    pub fn cluster_of_folder(&self) -> Option<ClusterId> {
        self.inner.store.identity().map(|identity| identity.cluster)
    }

    /// Reports evidence that this node, or a client of it, has of others (row D5).
    pub async fn report(
        &self,
        seen: Vec<Evidence>,
        deadline: Duration,
    ) -> Result<(), DirectoryError> {
        let (from, _) = self.inner.life()?;
        self.noted(LeaderRequest::Report { from, seen }, deadline)
            .await
    }

    /// Makes calls of members, at most [`CALLS_MAX`](crate::CALLS_MAX): an epoch opens once no other lease stands against it
    /// (GROUP rule 11), a member of this node is marked as complete (rule 16), members that hold an epoch up are
    /// reported. The answers are in the order of the calls; what was done before is done.
    pub async fn call(
        &self,
        calls: Vec<DirectoryCall>,
        deadline: Duration,
    ) -> Result<Vec<CallAnswer>, DirectoryError> {
        let (from, _) = self.inner.life()?;
        let asked = calls.len();
        let request = LeaderRequest::Calls { from, calls };
        let name = request.name();
        match self.inner.ask(request, deadline).await? {
            LeaderResponse::Called(answers) if answers.len() == asked => Ok(answers),
            other => Err(unexpected(name, &other)),
        }
    }

    /// Gives up this node's vote and leadership, and announces its stop. The caller then calls
    /// [`Directory::stop`], whatever the outcome.
    pub async fn leave(&self, deadline: Duration) -> Result<Left, DirectoryError> {
        let (node, incarnation) = self.inner.life()?;
        self.inner.leaving.store(true, Ordering::Release);
        let request = LeaderRequest::Leave { node, incarnation };
        match self.inner.ask(request, deadline).await? {
            LeaderResponse::Noted => Ok(Left::HandedOver),
            LeaderResponse::LastVoter => Ok(Left::LastVoter),
            other => Err(unexpected("leaving", &other)),
        }
    }

    /// Requests a permit to stop; the leader's refusal, if the node's groups could not bear it. A permitted node counts
    /// as gone for a while, so that the next request is judged without it.
    pub async fn may_stop(&self, deadline: Duration) -> Result<Option<String>, DirectoryError> {
        let (node, incarnation) = self.inner.life()?;
        let request = LeaderRequest::Stop { node, incarnation };
        // Ended however this function is left, by a dropped future too.
        struct Asks<'a>(&'a Inner, bool);
        impl Drop for Asks<'_> {
            fn drop(&mut self) {
                self.0.own_stop.lock().answered(self.0.now(), self.1);
            }
        }
        self.inner.own_stop.lock().ask();
        let mut asks = Asks(&self.inner, false);
        match self.inner.ask(request, deadline).await? {
            LeaderResponse::Noted => {
                asks.1 = true;
                Ok(None)
            }
            LeaderResponse::Refused(why) => Ok(Some(why)),
            other => Err(unexpected("whether the node may stop", &other)),
        }
    }

    /// Stops at once, as a crash would, but closes the data folder in order.
    pub async fn stop(&self) {
        let tasks = std::mem::take(&mut *self.inner.tasks.lock());
        for task in &tasks {
            task.abort();
        }
        for task in tasks {
            let _ = task.await;
        }
        if let Some(core) = self.inner.core.get() {
            let _ = core.raft.shutdown().await;
        }
        self.inner.store.close().await;
    }

    /// The directory as this node sees it now.
    pub fn status(&self) -> Status {
        let inner = &self.inner;
        let core = inner.core.get();
        let metrics = inner.metrics();
        let membership = metrics
            .as_ref()
            .map(|m| m.membership_config.membership().clone());
        let voters = core.map(Core::voters).unwrap_or_default();
        Status {
            node: core.map_or(NodeId(0), |c| c.me),
            incarnation: Incarnation(inner.incarnation.load(Ordering::Acquire)),
            cluster: core.map_or(ClusterId(0), |c| c.cluster),
            leader: metrics.as_ref().and_then(|m| m.current_leader),
            term: metrics.as_ref().map_or(0, |m| m.current_term),
            voters: voters.into_iter().collect(),
            changing_voters: membership
                .as_ref()
                .is_some_and(|m| m.get_joint_config().len() > 1),
            learners: membership
                .iter()
                .flat_map(|m| m.learner_ids().collect::<Vec<_>>())
                .collect(),
            last_log: metrics.as_ref().and_then(|m| m.last_log_index).unwrap_or(0),
            applied: metrics
                .as_ref()
                .and_then(|m| m.last_applied)
                .map_or(0, |id| id.index),
            quorum_silent_ms: metrics.as_ref().and_then(|m| m.millis_since_quorum_ack),
            revision: inner.map_watch.borrow().revision,
            failed: metrics
                .and_then(|m| m.running_state.err())
                .map(|e| e.to_string()),
        }
    }

    /// Nodes that this one does not reach: it pings them, they do not answer, and that was reported.
    pub fn unreachable(&self) -> BTreeSet<NodeId> {
        self.inner.unreachable.lock().clone()
    }

    /// Nodes that this one pings and that do not answer, each with the time of its silence. Silence alone is no death.
    pub fn silent(&self) -> Vec<(NodeId, Duration)> {
        let (now, silent) = (self.inner.now(), self.inner.silent.lock());
        let for_so_long = |(node, answered): (&NodeId, &Time)| (*node, now.since(*answered));
        silent.iter().map(for_so_long).collect()
    }

    async fn noted(
        &self,
        request: LeaderRequest,
        deadline: Duration,
    ) -> Result<(), DirectoryError> {
        let name = request.name();
        match self.inner.ask(request, deadline).await? {
            LeaderResponse::Noted => Ok(()),
            LeaderResponse::Applied(Applied::Done { .. }) => Ok(()),
            LeaderResponse::Applied(Applied::Refused { refusal, .. }) => Err(refusal.into()),
            other => Err(unexpected(name, &other)),
        }
    }
}

pub(crate) fn unexpected(waiting_for: &str, answer: &LeaderResponse) -> DirectoryError {
    not_running(format!("the leader answered {waiting_for} with {answer:?}"))
}

impl Inner {
    /// This node's clock.
    pub fn now(&self) -> Time {
        Time(self.origin.elapsed().as_nanos() as u64)
    }

    /// True if the node that the directory belongs to hangs ([`Directory::works`]).
    pub fn hangs(&self) -> bool {
        let worked = self.worked.load(Ordering::Relaxed);
        worked != 0 && self.now().since(Time(worked)) > HANG
    }

    /// This node's account of its own stop.
    pub fn stop_state(&self) -> StopState {
        let own_stop = self.own_stop.lock();
        own_stop.state(self.now(), &StopTimes::default())
    }

    pub fn metrics(&self) -> Option<Metrics> {
        self.core
            .get()
            .map(|core| core.raft.metrics().borrow().clone())
    }

    /// Raft's term if this node leads in it, as far as it knows. One that hangs does not: another takes over.
    pub fn leads(&self) -> Option<u64> {
        let core = self.core.get()?;
        let metrics = core.raft.metrics();
        let m = metrics.borrow();
        let leads = m.state == ServerState::Leader && m.running_state.is_ok() && !self.hangs();
        leads.then_some(m.current_term)
    }

    pub fn map(&self) -> Arc<ClusterMap> {
        self.map_watch.borrow().clone()
    }

    pub fn core(&self) -> Result<&Core, DirectoryError> {
        self.core
            .get()
            .ok_or_else(|| not_running("it has not joined a cluster yet"))
    }

    /// This node's id and life.
    pub fn life(&self) -> Result<(NodeId, Incarnation), DirectoryError> {
        let me = self.core()?.me;
        match self.incarnation.load(Ordering::Acquire) {
            0 => Err(not_running("the cluster has not given it a life yet")),
            i => Ok((me, Incarnation(i))),
        }
    }

    /// This life is over; the first reason stands.
    pub fn end_life(&self, why: DirectoryError) {
        self.over.send_if_modified(|over| {
            let first = over.is_none();
            over.get_or_insert(Arc::new(why));
            first
        });
    }

    /// Runs a task until [`Directory::stop`].
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.lock().push(tokio::spawn(task));
    }
}

pub(crate) fn not_running(reason: impl Into<String>) -> DirectoryError {
    let reason = reason.into();
    DirectoryError::NotRunning { reason }
}
