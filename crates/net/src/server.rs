//! The accepting side: a listener, and one task for each connection that reads requests, hands them
//! to the handler in the order in which they came, and writes whatever answers are ready.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use staves_wire::group::GroupEnvelope;
use staves_wire::hello::{Hello, Role};
use staves_wire::{ErrorCode, ErrorPacket, Message};

use crate::descriptors::Descriptors;
use crate::identity::Identity;
use crate::newcomers::{Newcomer, Newcomers};
use crate::options::Options;
use crate::refusals::RefusedConnections;
use crate::reply::Reply;
use crate::session::serve;

/// The other side of an accepted connection.
#[derive(Clone, Debug)]
pub struct PeerInfo {
    /// The address that it connected from.
    pub addr: SocketAddr,
    /// Its hello.
    pub hello: Hello,
    /// The connection's number, unique in this process.
    pub connection: u64,
}

/// The handler of a server's messages. Called on the connection's task, in the order of arrival: it
/// MUST return soon (hand over, do not work), and MUST NOT block.
pub trait Handler: Send + Sync + 'static {
    /// Admits or rejects the connection. Version and cluster have been checked.
    fn admit(&self, _hello: &Hello) -> Result<(), ErrorPacket> {
        Ok(())
    }

    /// The runtime that serves the connection; `None` is the one that accepted it.
    fn runtime(&self, _hello: &Hello) -> Option<Handle> {
        None
    }

    /// Messages of the group protocol. Only nodes may send them.
    fn group(&self, peer: &PeerInfo, batch: Vec<GroupEnvelope>);

    /// True if requests of this connection, or of others, left something to be sent at the end of the turn. Messages of the
    /// group protocol do in any case.
    fn owes_end_of_turn(&self) -> bool {
        false
    }

    /// All that had come was handed over, and other connections had their turn: sends what it led to.
    fn end_turn(&self) {}

    /// A request. Whoever has the reply answers, now or later, from any thread. Pings are answered
    /// before they get here.
    fn request(&self, peer: &PeerInfo, request: Message, reply: Reply);
}

/// The state that all connections of a server share.
pub(crate) struct ServerShared<H> {
    pub(crate) identity: Identity,
    pub(crate) options: Options,
    pub(crate) handler: H,
    pub(crate) refused: Arc<RefusedConnections>,
    connections: AtomicU64,
    /// Room for connections of clients, of nodes, and of tools where clients have taken theirs.
    rooms: [Arc<Semaphore>; 3],
}

impl<H> ServerShared<H> {
    /// The next connection's number.
    pub(crate) fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed)
    }

    /// The place of a connection of this role, or the reason why there is none.
    pub(crate) fn place(
        &self,
        role: Role,
        socket: &impl AsRawFd,
    ) -> Result<OwnedSemaphorePermit, ErrorPacket> {
        let Options {
            descriptors,
            connections_max,
            nodes_max,
            ..
        } = &self.options;
        let (room, max) = match role {
            Role::Node => (&self.rooms[1], nodes_max),
            Role::Admin if self.rooms[0].available_permits() == 0 => (&self.rooms[2], &TOOLS_MAX),
            Role::Client | Role::Admin => (&self.rooms[0], connections_max),
        };
        let busy = |text: String| ErrorPacket::new(ErrorCode::Busy, text);
        if !descriptors.allow(role, socket) {
            self.refused.descriptors.add(|unsaid| {
                let Descriptors { limit, reserve } = descriptors;
                tracing::warn!(
                    limit,
                    reserve,
                    unsaid,
                    "no file descriptor left for clients: one was refused"
                );
            });
            return Err(busy(format!(
                "this node has no file descriptor left for another client, of {} in all: close connections, ask another \
                 node, or start it with a higher limit ('ulimit -n')",
                descriptors.limit
            )));
        }
        room.clone().try_acquire_owned().map_err(|_| {
            self.refused.too_many.add(|unsaid| {
                tracing::warn!(?role, max, unsaid, "too many connections: one was refused");
            });
            busy(format!(
                "this node has {max} connections of this kind, which is the most that it takes: close some, or ask another node"
            ))
        })
    }
}

/// An open port. It closes when this is dropped.
pub struct Server {
    addr: SocketAddr,
    refused: Arc<RefusedConnections>,
    /// Told to read nothing more, and to answer what there is.
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Opens a port.
    pub async fn bind<H: Handler>(
        addr: impl ToSocketAddrs,
        identity: Identity,
        options: Options,
        handler: H,
    ) -> io::Result<Server> {
        Server::on(TcpListener::bind(addr).await?, identity, options, handler)
    }

    /// Serves a port that is open already.
    pub fn on<H: Handler>(
        listener: TcpListener,
        identity: Identity,
        options: Options,
        handler: H,
    ) -> io::Result<Server> {
        let addr = listener.local_addr()?;
        let (stop, stopping) = watch::channel(false);
        let rooms = [options.connections_max, options.nodes_max, TOOLS_MAX];
        let rooms = rooms.map(|max| Arc::new(Semaphore::new(max)));
        let refused = Arc::<RefusedConnections>::default();
        let shared = Arc::new(ServerShared {
            identity,
            options,
            handler,
            refused: refused.clone(),
            connections: AtomicU64::new(1),
            rooms,
        });
        let accepting = tokio::spawn(accept(listener, shared, stopping));
        Ok(Server {
            addr,
            refused,
            stop,
            accepting,
        })
    }

    /// The address that it listens at, with the port that it got.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// The connections that it refused.
    pub fn refused(&self) -> Arc<RefusedConnections> {
        self.refused.clone()
    }

    /// Stops in good order: takes no more connections and no more requests, answers those that it has
    /// within `grace`, then closes.
    pub async fn stop(mut self, grace: Duration) {
        self.stop.send_replace(true);
        if tokio::time::timeout(grace, &mut self.accepting)
            .await
            .is_err()
        {
            tracing::info!(addr = %self.addr, "connections with requests under way were closed");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its set of connections goes with it.
        self.accepting.abort();
    }
}

/// Connections of tools that are let in where clients have taken all of theirs.
const TOOLS_MAX: usize = 64;
/// After the operating system refused to accept (no file descriptors, most often).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

async fn accept<H: Handler>(
    listener: TcpListener,
    shared: Arc<ServerShared<H>>,
    mut stopping: watch::Receiver<bool>,
) {
    let mut newcomers = Newcomers::new(shared.options.greeting_max);
    let mut sessions = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.changed() => break,
            Some(_) = sessions.join_next() => continue,
        };
        match accepted {
            Ok((socket, addr)) => {
                let (newcomer, displaced) = newcomers.enter(addr.ip());
                if displaced {
                    let max = shared.options.greeting_max;
                    shared.refused.silent.add(|unsaid| {
                        tracing::warn!(%addr, max, unsaid, "too many connections have not said hello: the oldest was closed for one more");
                    });
                }
                let (shared, stopping) = (shared.clone(), stopping.clone());
                sessions.spawn(async move {
                    session(socket, addr, shared, stopping, newcomer).await;
                });
            }
            Err(error) => {
                shared.refused.not_accepted.add(|unsaid| {
                    tracing::warn!(%error, unsaid, "a connection could not be accepted");
                });
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while sessions.join_next().await.is_some() {}
}

async fn session<H: Handler>(
    socket: TcpStream,
    addr: SocketAddr,
    shared: Arc<ServerShared<H>>,
    stopping: watch::Receiver<bool>,
    newcomer: Newcomer,
) {
    match serve(socket, addr, shared, stopping, newcomer).await {
        Ok(()) => tracing::debug!(%addr, "connection ended"),
        Err(reason) => tracing::debug!(%addr, %reason, "connection ended"),
    }
}
