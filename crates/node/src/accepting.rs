//! The socket of a door and its loop: accepts connections, serves each on a task of its own, and ends once they have.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use staves_net::Refusals;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::config::Endpoint;
use crate::door::Phase;
use crate::start::{self, StartError};
use crate::volumes::places::{DoorClients, VolumeDoorState};

/// After the operating system refused to accept (no file descriptors, most often).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The socket of a door for volumes, which is open where the configuration has an address for it.
pub(crate) struct DoorSocket(Option<TcpListener>);

impl DoorSocket {
    /// Opens it at the address that `flag` sets.
    pub(crate) async fn bind(
        door: &'static str,
        at: Option<&Endpoint>,
        flag: &'static str,
    ) -> Result<DoorSocket, StartError> {
        Ok(DoorSocket(match at {
            Some(at) => Some(start::bind(door, at, flag).await?),
            None => None,
        }))
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.0.as_ref().map(start::address)
    }

    /// Begins to serve where it is open; the counts, and the task.
    pub(crate) fn serve<F: Future<Output = ()> + Send + 'static>(
        self,
        places: DoorClients,
        serve: impl FnOnce(TcpListener, DoorClients) -> F,
    ) -> (Arc<VolumeDoorState>, Option<JoinHandle<()>>) {
        let state = places.state.clone();
        let task = self.0.map(|listener| tokio::spawn(serve(listener, places)));
        (state, task)
    }
}

/// A door that takes connections.
pub(crate) trait Accepts: Send + Sync + 'static {
    /// The place of a connection among the others, held while it is served.
    type Place: Send + 'static;

    /// The protocol, for the log.
    const PROTOCOL: &'static str;

    /// The count of sockets that the system did not give.
    fn not_accepted(&self) -> &Refusals;

    /// A place for a connection that was accepted, if there is one.
    fn place(&self, socket: &TcpStream) -> Option<Self::Place>;

    /// The last words to a connection that finds no place; without any it is closed.
    fn refuse(_socket: TcpStream) {}

    /// Serves a connection to its end.
    fn serve(
        self: Arc<Self>,
        socket: TcpStream,
        address: SocketAddr,
        phase: watch::Receiver<Phase>,
        place: Self::Place,
    ) -> impl Future<Output = ()> + Send;
}

/// Accepts until told to stop; then ends once the connections have.
pub(crate) async fn accept<D: Accepts>(
    listener: TcpListener,
    door: Arc<D>,
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
            Ok((socket, address)) => match door.place(&socket) {
                Some(place) => {
                    let phase = phase.clone();
                    connections.spawn(door.clone().serve(socket, address, phase, place));
                }
                None => D::refuse(socket),
            },
            Err(error) => {
                door.not_accepted().add(|unsaid| {
                    let protocol = D::PROTOCOL;
                    tracing::warn!(protocol, %error, unsaid, "a connection could not be accepted");
                });
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}
