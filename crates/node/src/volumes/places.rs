//! The places for clients at a door for volumes, and the watch over those who have gone without a word.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use staves_net::{Descriptors, Refusals};
use staves_wire::hello::Role;
use tokio::net::TcpStream;

/// A client that says nothing is asked whether it lives after so long, so often, and then its volume is free.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(5), 3);
/// And one that does not acknowledge what was sent to it is not asked: it is given so long.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(25);

/// The counts of a door for volumes.
#[derive(Debug, Default)]
pub(crate) struct VolumeDoorState {
    pub(crate) connections: AtomicU32,
    pub(crate) connections_total: AtomicU64,
    pub(crate) rejected: Refusals,
    pub(crate) not_accepted: Refusals,
    pub(crate) reads_total: AtomicU64,
    pub(crate) writes_total: AtomicU64,
    pub(crate) read_bytes_total: AtomicU64,
    pub(crate) written_bytes_total: AtomicU64,
}

impl VolumeDoorState {
    pub(crate) fn count_read(&self, bytes: u64) {
        self.reads_total.fetch_add(1, Ordering::Relaxed);
        self.read_bytes_total.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_write(&self, bytes: u64) {
        self.writes_total.fetch_add(1, Ordering::Relaxed);
        self.written_bytes_total.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The places of a door.
pub(crate) struct DoorClients {
    /// Its name, for people.
    door: &'static str,
    pub(crate) state: Arc<VolumeDoorState>,
    clients_max: u32,
    descriptors: Descriptors,
}

impl DoorClients {
    pub(crate) fn new(door: &'static str, clients_max: u32) -> DoorClients {
        DoorClients {
            door,
            state: Arc::default(),
            clients_max,
            descriptors: Descriptors::of_process(),
        }
    }

    /// A place for a connection that was accepted, if there is one.
    pub(crate) fn take(&self, socket: &TcpStream) -> Option<DoorClient> {
        let open = self.state.connections.fetch_add(1, Ordering::Relaxed);
        let place = DoorClient(self.state.clone());
        let has_place = open < self.clients_max && self.descriptors.allow(Role::Client, socket);
        if has_place {
            self.state.connections_total.fetch_add(1, Ordering::Relaxed);
            return Some(place);
        }
        self.state.rejected.add(|unsaid| {
            tracing::warn!(
                open,
                unsaid,
                "a client of the {} door was refused: as many as may are connected, or no file descriptor is left for clients",
                self.door
            );
        });
        None
    }
}

/// A connection's place among the clients. Counts it out, however it ends.
pub(crate) struct DoorClient(Arc<VolumeDoorState>);

impl Drop for DoorClient {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sees to it that a client that has gone without a word is not taken for there.
pub(crate) fn keep_alive(socket: &TcpStream) -> io::Result<()> {
    let (idle, between, times) = KEEPALIVE;
    let options = socket2::TcpKeepalive::new()
        .with_time(idle)
        .with_interval(between)
        .with_retries(times);
    let socket = socket2::SockRef::from(socket);
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
    socket.set_tcp_keepalive(&options)
}
