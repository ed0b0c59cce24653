//! The RESP door: accepts Redis's clients and serves each on a task of its own (port 6379).
//!
//! A connection's task reads what has come, takes it apart, and asks this node's buckets right there:
//! if they answer, all of it happens without a task switch, and all answers to what came in one read
//! leave in one write. What must wait, for copies or for another node, comes back by the connection's
//! mailbox and finds its place in the order of the commands.

mod connection;
mod detour;
mod mailbox;
mod places;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub(crate) use self::mailbox::Mailbox;
use crate::node::Running;
use crate::resp::ClientFacts;

/// After the operating system refused to accept (no file descriptors, most often).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How far the door is from its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Phase {
    /// It takes connections.
    Open,
    /// It takes no new ones.
    Leaving,
    /// It closes those that it has, once they have their answers.
    Closing,
}

/// The door's counts, and who stands in it.
#[derive(Debug, Default)]
pub(crate) struct DoorState {
    pub(crate) connections_total: AtomicU64,
    pub(crate) connections: AtomicU32,
    pub(crate) rejected_total: AtomicU64,
    pub(crate) commands_total: AtomicU64,
    pub(crate) read_bytes_total: AtomicU64,
    pub(crate) written_bytes_total: AtomicU64,
    /// Operations that took the way by another node, or round a takeover.
    pub(crate) detoured_total: AtomicU64,
    /// Connections as CLIENT LIST shows them.
    pub(crate) clients: Mutex<BTreeMap<u64, ClientFacts>>,
}

/// Accepts until told to stop; then ends once the connections have.
pub(crate) async fn accept(
    listener: TcpListener,
    running: Arc<Running>,
    mut phase: watch::Receiver<Phase>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = phase.wait_for(|p| *p >= Phase::Leaving) => break,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((socket, addr)) => {
                let (running, phase) = (running.clone(), phase.clone());
                connections.spawn(serve(socket, addr, running, phase));
            }
            Err(error) => {
                tracing::warn!(%error, "a RESP connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn serve(
    mut socket: TcpStream,
    addr: SocketAddr,
    running: Arc<Running>,
    phase: watch::Receiver<Phase>,
) {
    let door = &running.door;
    let open = door.connections.fetch_add(1, Ordering::Relaxed);
    let _leave = Leave(running.clone());
    if open >= running.clients_max {
        door.rejected_total.fetch_add(1, Ordering::Relaxed);
        let _ = socket
            .write_all(b"-ERR max number of clients reached\r\n")
            .await;
        return;
    }
    let id = door.connections_total.fetch_add(1, Ordering::Relaxed) + 1;
    let _ = socket.set_nodelay(true);
    let local = socket.local_addr().map_or(String::new(), |a| a.to_string());
    let connection = connection::Connection::new(running.clone(), id, addr.to_string(), local);
    if let Err(error) = connection.run(socket, phase).await {
        tracing::debug!(%addr, %error, "RESP connection ended");
    }
    running.door.clients.lock().remove(&id);
}

/// Counts a connection out, however it ends.
struct Leave(Arc<Running>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.door.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
