//! The accepting side: a listener, and one task for each connection that reads requests, hands them
//! to the handler in the order in which they came, and writes whatever answers are ready.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use staves_wire::ErrorPacket;
use staves_wire::Message;
use staves_wire::group::GroupEnvelope;
use staves_wire::hello::Hello;

use crate::identity::Identity;
use crate::options::Options;
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

    /// A request. Whoever has the reply answers, now or later, from any thread. Pings are answered
    /// before they get here.
    fn request(&self, peer: &PeerInfo, request: Message, reply: Reply);
}

/// The state that all connections of a server share.
pub(crate) struct ServerShared<H> {
    pub(crate) identity: Identity,
    pub(crate) options: Options,
    pub(crate) handler: H,
    /// Bytes of answers that wait to be written, of all connections.
    pub(crate) queued: Arc<AtomicUsize>,
    connections: AtomicU64,
}

impl<H> ServerShared<H> {
    /// The next connection's number.
    pub(crate) fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed)
    }
}

/// An open port. It closes when this is dropped.
pub struct Server {
    addr: SocketAddr,
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
        let shared = Arc::new(ServerShared {
            identity,
            options,
            handler,
            queued: Arc::default(),
            connections: AtomicU64::new(1),
        });
        let accepting = tokio::spawn(accept(listener, shared, stopping));
        Ok(Server {
            addr,
            stop,
            accepting,
        })
    }

    /// The address that it listens at, with the port that it got.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
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

/// After the operating system refused to accept (no file descriptors, most often).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

async fn accept<H: Handler>(
    listener: TcpListener,
    shared: Arc<ServerShared<H>>,
    mut stopping: watch::Receiver<bool>,
) {
    let room = Arc::new(Semaphore::new(shared.options.connections_max));
    let mut sessions = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.changed() => break,
            Some(_) = sessions.join_next() => continue,
        };
        match accepted {
            Ok((socket, addr)) => {
                let Ok(permit) = room.clone().try_acquire_owned() else {
                    tracing::warn!(%addr, max = shared.options.connections_max, "too many connections: one was refused");
                    continue;
                };
                let (shared, stopping) = (shared.clone(), stopping.clone());
                sessions.spawn(async move {
                    session(socket, addr, shared, stopping).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
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
) {
    match serve(socket, addr, shared, stopping).await {
        Ok(()) => tracing::debug!(%addr, "connection ended"),
        Err(reason) => tracing::debug!(%addr, %reason, "connection ended"),
    }
}
