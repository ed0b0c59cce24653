//! The HTTP door: logs for programs of any language, for scripts and for browsers (off unless `http` is set).
//!
//! A connection is served by hyper, HTTP/1.1 without TLS, one request after the other. [`routes`] takes a request apart and has the node's
//! log gateway do it; an answer is JSON, or JSON lines, and so is every error, with the words and codes of the other doors. `follow` is a
//! stream of server-sent events.
//!
//! **Bounds.** Connections; the time of a request's head and body, and of a silent connection; the bytes of both; the memory of bodies and
//! answers. A client that takes nothing of its answer, or little while others wait for the memory, loses its connection.
//!
//! **Browsers.** Only this node's own names are answered, and no page of another origin: there are no passwords, and a page that a person
//! looks at must not write to logs.
//!
//! **Layout.** `connection`: a connection. `socket`: writes that are not taken. `bodies`: what comes. `routes`, `query`, `records`, `cursors`: requests. `answers`:
//! what goes. `events`: followers.

mod answers;
mod bodies;
mod connection;
mod cursors;
mod events;
mod query;
mod records;
mod routes;
mod socket;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use staves_net::Refusals;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::accepting::{Accepts, DoorSocket, accept};
use crate::admin::HostNames;
use crate::config::Config;
use crate::door::Phase;
use crate::log_gateway::LogGateway;
use crate::pieces;
use crate::start::StartError;
use crate::volumes::places::{DoorClient, DoorClients, VolumeDoorState};

/// Most connections, where `clients_max` is not less: each may have some tens of KiB that are not counted.
const CONNECTIONS_MAX: u32 = 1024;

/// The times that a client has.
#[derive(Clone, Copy, Debug)]
struct HttpTimes {
    /// For the head of a request; also the longest silence between two.
    head: Duration,
    /// For the body.
    body: Duration,
    /// To take anything of what waits for it.
    take: Duration,
}

impl Default for HttpTimes {
    fn default() -> HttpTimes {
        HttpTimes {
            head: Duration::from_secs(15),
            body: Duration::from_secs(30),
            take: pieces::TAKE_MAX,
        }
    }
}

/// The door.
struct HttpDoor {
    logs: Arc<LogGateway>,
    names: HostNames,
    places: DoorClients,
    times: HttpTimes,
}

/// The door's socket, where logs are to be served by HTTP.
pub(crate) struct HttpSocket(DoorSocket);

impl HttpSocket {
    pub(crate) async fn bind(config: &Config) -> Result<HttpSocket, StartError> {
        let bound = DoorSocket::bind("HTTP", config.http.as_ref(), "--http").await;
        bound.map(HttpSocket)
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.0.address()
    }

    /// Begins to serve; the counts, and the task.
    pub(crate) fn serve(
        self,
        clients_max: u32,
        (logs, names): (Arc<LogGateway>, HostNames),
        phase: watch::Receiver<Phase>,
    ) -> (Arc<VolumeDoorState>, Option<JoinHandle<()>>) {
        let places = DoorClients::new("HTTP", clients_max.min(CONNECTIONS_MAX));
        self.0.serve(places, |listener, places| {
            let door = HttpDoor {
                logs,
                names,
                places,
                times: HttpTimes::default(),
            };
            serve_all(listener, Arc::new(door), phase)
        })
    }
}

async fn serve_all(listener: TcpListener, door: Arc<HttpDoor>, phase: watch::Receiver<Phase>) {
    accept(listener, door, phase).await;
}

impl Accepts for HttpDoor {
    type Place = DoorClient;

    const PROTOCOL: &'static str = "HTTP";

    fn not_accepted(&self) -> &Refusals {
        &self.places.state.not_accepted
    }

    fn place(&self, socket: &TcpStream) -> Option<DoorClient> {
        self.places.take(socket)
    }

    async fn serve(
        self: Arc<Self>,
        socket: TcpStream,
        address: SocketAddr,
        phase: watch::Receiver<Phase>,
        _place: DoorClient,
    ) {
        if let Err(error) = connection::serve(socket, self, phase).await {
            tracing::debug!(%address, %error, "HTTP connection ended");
        }
    }
}
