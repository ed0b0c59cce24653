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

use tokio::net::TcpStream;
use tokio::sync::watch;

use self::state::DoorState;
use crate::accepting::Accepts;
use crate::config::Config;
use crate::entry::Entry;
use staves_net::{Descriptors, Refusals};
use staves_resp::Limits;
use staves_wire::hello::Role;

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

/// The limits of what is read. A command may have the largest value, or as many bytes as all clients' requests together.
fn limits(config: &Config) -> Limits {
    // So that a value which is too large is refused by its name, not by the protocol's.
    let more = 1 << 20;
    let command = config.value_bytes().max(config.in_flight_bytes());
    Limits {
        bulk_bytes_max: (config.value_bytes() + more).min(512 << 20),
        command_bytes_max: command + 2 * more,
        ..Limits::default()
    }
}

impl Door {
    pub(crate) fn new(config: &Config, entry: Arc<Entry>) -> Arc<Door> {
        Arc::new(Door {
            entry,
            state: Arc::default(),
            clients_max: config.clients_max,
            descriptors: Descriptors::of_process(),
            limits: limits(config),
        })
    }
}

impl Accepts for Door {
    type Place = ClientPlace;

    const PROTOCOL: &'static str = "RESP";

    fn not_accepted(&self) -> &Refusals {
        &self.state.not_accepted
    }

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

    fn refuse(socket: TcpStream) {
        // A socket that was just accepted has room for them, and the client may have gone.
        if let Ok(mut socket) = socket.into_std() {
            let _ = socket.write_all(b"-ERR max number of clients reached\r\n");
        }
    }

    async fn serve(
        self: Arc<Self>,
        mut socket: TcpStream,
        address: SocketAddr,
        mut phase: watch::Receiver<Phase>,
        _place: ClientPlace,
    ) {
        let state = &self.state;
        let id = state.connections_total.fetch_add(1, Ordering::Relaxed) + 1;
        let _ = socket.set_nodelay(true);
        let ended = |error: io::Error| tracing::debug!(%address, %error, "RESP connection ended");
        let waited = loading::wait(&mut socket, &self.entry, self.limits, &mut phase).await;
        let (input, transaction) = match waited {
            Ok(Some(left)) => left,
            Ok(None) => return,
            Err(error) => return ended(error),
        };
        let Some(running) = self.entry.get() else {
            return;
        };
        let local = socket.local_addr().map_or(String::new(), |a| a.to_string());
        let (running, limits, from) = (running.clone(), self.limits, address.to_string());
        let connection = connection::Connection::new(running, limits, id, from, local, transaction);
        if let Err(error) = connection.run(socket, input, phase).await {
            ended(error);
        }
        state.clients.lock().remove(&id);
    }
}

/// A connection's place among the clients. Counts it out, however it ends.
pub(crate) struct ClientPlace(Arc<DoorState>);

impl Drop for ClientPlace {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Size;

    /// Regression: of one MSET of 4 x 240 MiB a node of 256 MiB took 2.1 GiB: a command had 1 GiB, whatever the node's memory.
    #[test]
    fn a_command_has_the_largest_value_or_what_all_requests_may_take() {
        let small = Config {
            memory: Size(256 << 20),
            ..Config::default()
        };
        assert_eq!(limits(&small).command_bytes_max, 258 << 20);
        let short = Config {
            value_bytes_max: Size(1 << 20),
            ..small
        };
        assert_eq!(limits(&short).command_bytes_max, 34 << 20);
        assert_eq!(limits(&short).bulk_bytes_max, 2 << 20);
    }
}
