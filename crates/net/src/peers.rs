//! A node's links to the other nodes: one connection each way, kept up, and brought back when it
//! breaks.
//!
//! A link carries group traffic, which may be lost, and calls, which are answered or fail. What a link
//! learns of its peer's life (refused, reset, silent, there again) is told to whoever detects failures
//! (row D5).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use staves_model::NodeId;
use staves_wire::Message;
use staves_wire::directory::Sign;
use staves_wire::group::GroupEnvelope;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::connection::Connection;
use crate::error::NetError;
use crate::identity::Identity;
use crate::options::Options;
use crate::queue::GroupQueue;

/// The bounds of links.
#[derive(Clone, Debug)]
pub struct PeerOptions {
    /// Of each connection.
    pub connection: Options,
    /// Most bytes of group traffic that wait for one peer; beyond, the oldest is let go.
    pub group_bytes_max: usize,
    /// The wait before the second try to connect; it doubles with each.
    pub backoff_min: Duration,
    /// The longest wait.
    pub backoff_max: Duration,
}

impl Default for PeerOptions {
    fn default() -> PeerOptions {
        PeerOptions {
            connection: Options {
                connect_timeout: Duration::from_millis(500),
                // A node's groups that rest hear of the other node by this alone.
                ping_after: Duration::from_millis(200),
                silence_max: Duration::from_secs(2),
                ..Options::default()
            },
            group_bytes_max: 64 << 20,
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_millis(500),
        }
    }
}

/// Told what a link sees of its peer. Called on the link's task; must not block.
pub type Evidence = Arc<dyn Fn(NodeId, Sign) + Send + Sync>;

/// A link's counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerStats {
    /// The peer.
    pub node: NodeId,
    /// The address.
    pub addr: String,
    /// True if the link is up.
    pub connected: bool,
    /// The reason of the last failure to connect, if any.
    pub trouble: Option<String>,
    /// Bytes of group traffic that wait.
    pub queued_bytes: usize,
    /// Group messages handed to the kernel.
    pub group_sent: u64,
    /// Frames that carried them.
    pub group_frames: u64,
    /// Group messages let go, for want of room or of a connection.
    pub group_dropped: u64,
}

/// All links of this node. Clones are the same links.
#[derive(Clone)]
pub struct Peers {
    shared: Arc<PeersShared>,
}

struct PeersShared {
    identity: Identity,
    options: PeerOptions,
    evidence: Evidence,
    links: RwLock<BTreeMap<NodeId, Arc<PeerLink>>>,
}

struct PeerLink {
    node: NodeId,
    addr: watch::Sender<String>,
    state: watch::Sender<LinkState>,
    group: Arc<GroupQueue>,
    /// The last time that the node was heard, but for the connection that there is now.
    heard: Arc<Mutex<Instant>>,
    task: JoinHandle<()>,
}

impl Drop for PeerLink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone)]
enum LinkState {
    Connecting,
    Up(Connection),
    Failed(NetError),
}

impl Peers {
    /// No links yet.
    pub fn new(identity: Identity, options: PeerOptions, evidence: Evidence) -> Peers {
        let links = RwLock::default();
        Peers {
            shared: Arc::new(PeersShared {
                identity,
                options,
                evidence,
                links,
            }),
        }
    }

    /// The node is at this address (now): a link is made, or made anew. Must be called on a runtime.
    pub fn set_addr(&self, node: NodeId, addr: &str) {
        let known = self.shared.links.read().get(&node).cloned();
        if let Some(link) = known {
            link.addr.send_if_modified(|old| {
                let modified = old != addr;
                if modified {
                    addr.clone_into(old);
                }
                modified
            });
            return;
        }
        let mut links = self.shared.links.write();
        links
            .entry(node)
            .or_insert_with(|| Arc::new(self.link(node, addr)));
    }

    /// The node is gone: so is its link, and whoever waits for it is told.
    pub fn remove(&self, node: NodeId) {
        self.shared.links.write().remove(&node);
    }

    /// The nodes that there are links to.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.shared.links.read().keys().copied().collect()
    }

    /// Says something of the group protocol to a node: encoded at once, written at the next
    /// [`Peers::flush`], lost if the kernel does not take it soon. From any thread. False if there is no
    /// link to the node.
    pub fn send_group(&self, node: NodeId, envelope: &GroupEnvelope) -> bool {
        match self.shared.links.read().get(&node) {
            Some(link) => {
                link.group.put(envelope);
                true
            }
            None => false,
        }
    }

    /// Writes what [`Peers::send_group`] was given, on this thread as far as the kernel takes it at once:
    /// one system call per node, however many messages, and no waiting for the link's own task to wake.
    pub fn flush(&self) {
        for link in self.shared.links.read().values() {
            if link.group.take_unsaid() {
                match &*link.state.borrow() {
                    LinkState::Up(connection) => connection.write_now(),
                    _ => link.group.wake().notify_one(),
                }
            }
        }
    }

    /// Asks a node and waits for its answer. A node that cannot be reached right now fails at once, so
    /// that another can be asked.
    pub async fn call(
        &self,
        node: NodeId,
        request: &Message,
        deadline: Instant,
    ) -> Result<Message, NetError> {
        self.connection(node, request, deadline)
            .await?
            .call(request, deadline)
            .await
    }

    /// Waits while the link is being made; takes its failure for an answer.
    async fn connection(
        &self,
        node: NodeId,
        request: &Message,
        deadline: Instant,
    ) -> Result<Connection, NetError> {
        let started = Instant::now();
        let (mut state, addr) = {
            let links = self.shared.links.read();
            let link = links.get(&node).ok_or(NetError::NoAddress { node })?;
            if let LinkState::Up(connection) = &*link.state.borrow() {
                return Ok(connection.clone()); // as nearly always
            }
            (link.state.subscribe(), link.addr.borrow().clone())
        };
        let settled = state.wait_for(|state| !matches!(state, LinkState::Connecting));
        match tokio::time::timeout_at(deadline.into(), settled).await {
            Ok(Ok(settled)) => match &*settled {
                LinkState::Up(connection) => Ok(connection.clone()),
                LinkState::Failed(error) => Err(error.clone()),
                LinkState::Connecting => Err(NetError::NoAddress { node }),
            },
            // The link was removed meanwhile.
            Ok(Err(_)) => Err(NetError::NoAddress { node }),
            Err(_) => Err(NetError::Deadline {
                addr,
                what: request.opcode().word(),
                waited_ms: started.elapsed().as_millis() as u64,
                sent: false,
                heard: false,
            }),
        }
    }

    /// For how long each node that there is a link to has said nothing on it, though it was asked.
    pub fn silences(&self) -> Vec<(NodeId, Duration)> {
        let links = self.shared.links.read();
        let silent = |(node, link): (&NodeId, &Arc<PeerLink>)| (*node, link.silent_for());
        links.iter().map(silent).collect()
    }

    /// Counts of all links.
    pub fn stats(&self) -> Vec<PeerStats> {
        let links: Vec<Arc<PeerLink>> = self.shared.links.read().values().cloned().collect();
        links.iter().map(|link| link.stats()).collect()
    }

    fn link(&self, node: NodeId, addr: &str) -> PeerLink {
        let (addr, addr_seen) = watch::channel(addr.to_owned());
        let (state, _) = watch::channel(LinkState::Connecting);
        let group = Arc::new(GroupQueue::new(self.shared.options.group_bytes_max));
        let heard = Arc::new(Mutex::new(Instant::now()));
        let keeper = Keeper {
            node,
            heard: heard.clone(),
            addr: addr_seen,
            state: state.clone(),
            group: group.clone(),
            identity: self.shared.identity.clone(),
            options: self.shared.options.clone(),
            evidence: self.shared.evidence.clone(),
        };
        let task = tokio::spawn(keeper.run());
        PeerLink {
            node,
            addr,
            state,
            group,
            heard,
            task,
        }
    }
}

impl PeerLink {
    fn silent_for(&self) -> Duration {
        let before = self.heard.lock().elapsed();
        match &*self.state.borrow() {
            LinkState::Up(connection) => before.min(connection.silent_for()),
            _ => before,
        }
    }

    fn stats(&self) -> PeerStats {
        let counts = self.group.counts();
        let state = self.state.borrow().clone();
        PeerStats {
            node: self.node,
            addr: self.addr.borrow().clone(),
            connected: matches!(state, LinkState::Up(_)),
            trouble: match state {
                LinkState::Failed(error) => Some(error.to_string()),
                _ => None,
            },
            queued_bytes: counts.queued_bytes,
            group_sent: counts.sent,
            group_frames: counts.frames,
            group_dropped: counts.dropped,
        }
    }
}

/// Keeps one link up.
struct Keeper {
    node: NodeId,
    heard: Arc<Mutex<Instant>>,
    addr: watch::Receiver<String>,
    state: watch::Sender<LinkState>,
    group: Arc<GroupQueue>,
    identity: Identity,
    options: PeerOptions,
    evidence: Evidence,
}

impl Keeper {
    async fn run(mut self) {
        let mut wait = self.options.backoff_min;
        loop {
            let addr = self.addr.borrow_and_update().clone();
            let started = Instant::now();
            match self.open(&addr).await {
                Ok(connection) => {
                    (self.evidence)(self.node, Sign::Alive);
                    self.state.send_replace(LinkState::Up(connection.clone()));
                    self.hold(connection).await;
                    // A peer that takes connections and drops them is not asked all the time.
                    if started.elapsed() >= self.options.backoff_max {
                        wait = self.options.backoff_min;
                    }
                }
                Err(error) => {
                    // What waits would be old by the time that it could be said.
                    self.group.clear();
                    if let Some(sign) = error.sign() {
                        (self.evidence)(self.node, sign);
                    }
                    self.state.send_replace(LinkState::Failed(error));
                }
            }
            let moved = tokio::time::timeout(wait, self.addr.changed()).await;
            match moved {
                Ok(Ok(())) => {
                    wait = self.options.backoff_min;
                    self.state.send_replace(LinkState::Connecting);
                }
                Ok(Err(_)) => return, // the link is gone
                Err(_) => wait = (wait * 2).min(self.options.backoff_max),
            }
        }
    }

    async fn open(&self, addr: &str) -> Result<Connection, NetError> {
        let group = Some(self.group.clone());
        let options = &self.options.connection;
        let connection = Connection::open_with(addr, &self.identity, options, group).await?;
        let found = connection.welcome().node;
        if found == self.node {
            return Ok(connection);
        }
        Err(NetError::WrongNode {
            addr: addr.to_owned(),
            wanted: self.node,
            found,
        })
    }

    /// Until the connection ends, or the peer has moved.
    async fn hold(&mut self, connection: Connection) {
        let error = tokio::select! {
            error = connection.ended() => error,
            _ = self.addr.changed() => {
                self.addr.mark_changed(); // seen again by `run`, which goes there at once
                connection.close();
                connection.ended().await
            }
        };
        let heard = Instant::now().checked_sub(connection.silent_for());
        *self.heard.lock() = heard.unwrap_or_else(Instant::now);
        tracing::debug!(node = %self.node, %error, "link broke");
        if let Some(sign) = error.sign() {
            (self.evidence)(self.node, sign);
        }
        self.state.send_replace(LinkState::Connecting);
    }
}
