//! The NBD door: volumes as block devices (off unless `nbd` is set).
//!
//! A connection negotiates an export, whose name is the volume's, and then reads and writes it. Its requests run beside each
//! other, each through the node's router, so that any node serves any volume; replies leave as they come. The first write
//! attaches the volume: a new session of the directory, which is told to every bucket before the write goes out, so that
//! nothing that a former writer sent takes effect after it. A connection is a session: where a client connects anew, what its broken
//! connection left on its way does not count any more.
//!
//! **Layout.** `negotiation`: the choice of a volume. `connection`: its requests; `counted`: their memory and time; `replies`: on their way. `attachment`: sessions. `blocks`: bytes, through the router; `allocation`: which of them take up memory. The bytes of the
//! protocol are `staves-nbd`'s.

mod allocation;
mod attachment;
mod blocks;
mod connection;
mod counted;
mod negotiation;
mod replies;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use staves_net::Descriptors;
use staves_wire::hello::Role;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use self::attachment::{Attachments, SWEEP};
use crate::config::Config;
use crate::door::Phase;
use crate::door::state::NbdState;
use crate::entry::Entry;
use crate::start::{self, StartError};

/// After the operating system refused to accept (no file descriptors, most often).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The door.
struct NbdDoor {
    entry: Arc<Entry>,
    state: Arc<NbdState>,
    attachments: Attachments,
    clients_max: u32,
    descriptors: Descriptors,
}

impl NbdDoor {
    fn new(clients_max: u32, entry: Arc<Entry>) -> Arc<NbdDoor> {
        Arc::new(NbdDoor {
            entry,
            state: Arc::default(),
            attachments: Attachments::default(),
            clients_max,
            descriptors: Descriptors::of_process(),
        })
    }

    /// A place for a connection that was accepted, if there is one.
    fn place(&self, socket: &TcpStream) -> Option<NbdPlace> {
        let open = self.state.connections.fetch_add(1, Ordering::Relaxed);
        let place = NbdPlace(self.state.clone());
        let has_place = open < self.clients_max && self.descriptors.allow(Role::Client, socket);
        if has_place {
            self.state.connections_total.fetch_add(1, Ordering::Relaxed);
            return Some(place);
        }
        self.state.rejected.add(|unsaid| {
            tracing::warn!(
                open,
                unsaid,
                "an NBD client was refused: clients_max are connected, or no file descriptor is left for clients"
            );
        });
        None
    }
}

/// The door's socket, where volumes are to be served.
pub(crate) struct NbdSocket(Option<TcpListener>);

impl NbdSocket {
    pub(crate) async fn bind(config: &Config) -> Result<NbdSocket, StartError> {
        Ok(NbdSocket(match &config.nbd {
            Some(at) => Some(start::bind("NBD", at, "--nbd").await?),
            None => None,
        }))
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.0.as_ref().map(start::address)
    }

    /// Begins to serve; the counts, and the task.
    pub(crate) fn serve(
        self,
        clients_max: u32,
        entry: Arc<Entry>,
        phase: watch::Receiver<Phase>,
    ) -> (Arc<NbdState>, Option<JoinHandle<()>>) {
        let door = NbdDoor::new(clients_max, entry);
        let state = door.state.clone();
        let task = self
            .0
            .map(|listener| tokio::spawn(accept(listener, door, phase)));
        (state, task)
    }
}

/// A connection's place among the clients. Counts it out, however it ends.
struct NbdPlace(Arc<NbdState>);

impl Drop for NbdPlace {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Accepts until told to stop; then ends once the connections have.
async fn accept(listener: TcpListener, door: Arc<NbdDoor>, mut phase: watch::Receiver<Phase>) {
    let mut connections = JoinSet::new();
    let sweeper = tokio::spawn(sweep(door.clone()));
    let follower = tokio::spawn(follow(door.clone()));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = phase.wait_for(|p| *p >= Phase::Leaving) => break,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((socket, address)) => {
                // One that finds no place is closed: before its greeting NBD has no words.
                if let Some(place) = door.place(&socket) {
                    connections.spawn(serve(socket, address, door.clone(), phase.clone(), place));
                }
            }
            Err(error) => {
                door.state.not_accepted.add(|unsaid| {
                    tracing::warn!(%error, unsaid, "an NBD connection could not be accepted");
                });
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
    sweeper.abort();
    follower.abort();
}

/// Frees volumes that the directory takes for attached here, and that nobody here has.
async fn sweep(door: Arc<NbdDoor>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        if let Some(running) = door.entry.get() {
            door.attachments.sweep(running).await;
        }
    }
}

/// Goes by the newest limits of volumes, drops the figures of deleted ones, and ends sessions that are over: a connection that waits reads
/// no map itself.
async fn follow(door: Arc<NbdDoor>) {
    let mut known = None;
    loop {
        let Some(running) = door.entry.get() else {
            tokio::time::sleep(SWEEP).await;
            continue;
        };
        let mut map = running.directory.map();
        let newest = map.borrow_and_update().clone();
        door.state.volumes.follow(&newest);
        if known.replace(newest.revision) != Some(newest.revision) {
            door.attachments.follow(&newest, running);
        }
        // Looked at again without a change: a connection may have opened a volume by an older map.
        if let Ok(Err(_)) = tokio::time::timeout(SWEEP, map.changed()).await {
            return;
        }
    }
}

async fn serve(
    socket: TcpStream,
    address: SocketAddr,
    door: Arc<NbdDoor>,
    phase: watch::Receiver<Phase>,
    _place: NbdPlace,
) {
    if let Err(error) = connection::serve(socket, address, &door, phase).await {
        tracing::debug!(%address, %error, "NBD connection ended");
    }
}
