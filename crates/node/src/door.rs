//! The RESP door: accepts Redis's clients and serves each on a task of its own (port 6379).
//!
//! A connection's task reads what has come, takes it apart, and asks this node's buckets right there:
//! if they answer, all of it happens without a task switch, and all answers to what came in one read
//! leave in one write. What must wait, for copies or for another node, comes back by the connection's
//! queue of completions and finds its place in the order of the commands. Until the node has joined its cluster, a
//! connection waits in the [`loading`].

pub(crate) mod completions;
mod connection;
mod loading;
mod remote;
pub(crate) mod state;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::state::DoorState;
use crate::config::Config;
use crate::entry::Entry;
use staves_net::Descriptors;
use staves_resp::Limits;
use staves_wire::hello::Role;

/// After the operating system refused to accept (no file descriptors, most often).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The phase of the door's life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Phase {
    /// It takes connections, and tells them that the node has not joined its cluster yet.
    Joining,
    /// It takes connections.
    Open,
    /// It takes no new ones.
    Leaving,
    /// It closes those that it has, once they have their answers.
    Closing,
}

/// The door's settings.
pub(crate) struct Door {
    pub(crate) entry: Arc<Entry>,
    pub(crate) state: Arc<DoorState>,
    clients_max: u32,
    descriptors: Descriptors,
    limits: Limits,
}

impl Door {
    pub(crate) fn new(config: &Config, entry: Arc<Entry>) -> Arc<Door> {
        let value_bytes_max = config.value_bytes();
        Arc::new(Door {
            entry,
            state: Arc::default(),
            clients_max: config.clients_max,
            descriptors: Descriptors::of_process(),
            limits: Limits {
                // So that a value which is too large is refused by its name, not by the protocol's.
                bulk_bytes_max: (value_bytes_max + (1 << 20)).min(512 << 20),
                ..Limits::default()
            },
        })
    }

    /// A place for a connection that was accepted, if there is one.
    fn place(&self, socket: &TcpStream) -> Option<ClientPlace> {
        let state = &self.state;
        let open = state.connections.fetch_add(1, Ordering::Relaxed);
        let place = ClientPlace(state.clone());
        let (max, limit) = (self.clients_max, self.descriptors.limit);
        let why = match open < max {
            true if self.descriptors.allow(Role::Client, socket) => return Some(place),
            true => "no file descriptor left for clients",
            false => "clients_max are connected",
        };
        state.rejected.add(|unsaid| {
            tracing::warn!(
                open,
                max,
                descriptors = limit,
                unsaid,
                "{why}: a RESP client was refused"
            );
        });
        None
    }
}

/// Accepts until told to stop; then ends once the connections have.
pub(crate) async fn accept(
    listener: TcpListener,
    door: Arc<Door>,
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
                let (door, phase) = (door.clone(), phase.clone());
                let Some(place) = door.place(&socket) else {
                    refuse(socket);
                    continue;
                };
                connections.spawn(serve(socket, addr, door, phase, place));
            }
            Err(error) => {
                door.state.not_accepted.add(|unsaid| {
                    tracing::warn!(%error, unsaid, "a RESP connection could not be accepted");
                });
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
    door: Arc<Door>,
    mut phase: watch::Receiver<Phase>,
    _place: ClientPlace,
) {
    let state = &door.state;
    let id = state.connections_total.fetch_add(1, Ordering::Relaxed) + 1;
    let _ = socket.set_nodelay(true);
    let ended = |error: io::Error| tracing::debug!(%addr, %error, "RESP connection ended");
    let waited = loading::wait(&mut socket, &door.entry, door.limits, &mut phase).await;
    let (input, transaction) = match waited {
        Ok(Some(left)) => left,
        Ok(None) => return,
        Err(error) => return ended(error),
    };
    let Some(running) = door.entry.get() else {
        return;
    };
    let local = socket.local_addr().map_or(String::new(), |a| a.to_string());
    let (running, limits, addr) = (running.clone(), door.limits, addr.to_string());
    let connection = connection::Connection::new(running, limits, id, addr, local, transaction);
    if let Err(error) = connection.run(socket, input, phase).await {
        ended(error);
    }
    state.clients.lock().remove(&id);
}

/// The last words to a client that is not let in.
fn refuse(socket: TcpStream) {
    // A socket that was just accepted has room for them, and the client may have gone.
    if let Ok(mut socket) = socket.into_std() {
        let _ = socket.write_all(b"-ERR max number of clients reached\r\n");
    }
}

/// A connection's place among the clients. Counts it out, however it ends.
struct ClientPlace(Arc<DoorState>);

impl Drop for ClientPlace {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
