//! The gRPC door: volumes and logs for programs (off unless `grpc` is set).
//!
//! A connection is served by hyper, HTTP/2 without TLS; its calls run beside each other. Reads go to the volume's buckets through
//! the node's router, so that any node serves any volume. Writes need a session, which `Attach` begins and which belongs to the
//! connection: it ends with it, or when a write ends without an answer, so that nothing of it takes effect after what its client does next.
//!
//! **Layout.** `connection`: a connection and its sessions. `calls`: requests on their way to a service. `bodies`: their messages, and the memory that
//! those take. `service`: the calls on volumes; `states`: what the map says of them. `counted`: their limit and time. `consistency`: members compared. `logs`, `cursors`: the calls on logs.
//! `failure`, `log_failure`: gRPC's codes. The messages are `staves-grpc`'s; sessions and bytes are [`crate::volumes`]'.

mod bodies;
mod calls;
mod connection;
mod consistency;
mod counted;
mod cursors;
mod failure;
mod log_failure;
mod logs;
mod service;
mod states;

use std::net::SocketAddr;
use std::sync::Arc;

use staves_net::Refusals;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use self::calls::StandardServices;
use crate::accepting::{Accepts, DoorSocket, accept};
use crate::config::Config;
use crate::door::Phase;
use crate::entry::Entry;
use crate::log_gateway::LogGateway;
use crate::start::StartError;
use crate::volumes::attachments::Attachments;
use crate::volumes::places::{DoorClient, DoorClients, VolumeDoorState};

/// Most connections, where `clients_max` is not less: each may have hundreds of KiB under way that are not counted yet.
const CONNECTIONS_MAX: u32 = 1024;

/// Most comparisons of members that a node carries out at a time.
const CHECKS_MAX: usize = 4;

/// The door.
struct GrpcDoor {
    entry: Arc<Entry>,
    attachments: Arc<Attachments>,
    logs: Arc<LogGateway>,
    places: DoorClients,
    standard: StandardServices,
    /// Places for comparisons of members.
    checks: Arc<Semaphore>,
}

/// The door's socket, where volumes and logs are to be served by gRPC.
pub(crate) struct GrpcSocket(DoorSocket);

impl GrpcSocket {
    pub(crate) async fn bind(config: &Config) -> Result<GrpcSocket, StartError> {
        let bound = DoorSocket::bind("gRPC", config.grpc.as_ref(), "--grpc").await;
        bound.map(GrpcSocket)
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.0.address()
    }

    /// Begins to serve; the counts, and the task.
    pub(crate) fn serve(
        self,
        clients_max: u32,
        (entry, attachments, logs): (Arc<Entry>, Arc<Attachments>, Arc<LogGateway>),
        phase: watch::Receiver<Phase>,
    ) -> (Arc<VolumeDoorState>, Option<JoinHandle<()>>) {
        let places = DoorClients::new("gRPC", clients_max.min(CONNECTIONS_MAX));
        self.0.serve(places, |listener, places| {
            let door = GrpcDoor {
                entry,
                attachments,
                logs,
                places,
                standard: StandardServices::new(),
                checks: Arc::new(Semaphore::new(CHECKS_MAX)),
            };
            serve_all(listener, Arc::new(door), phase)
        })
    }
}

/// Accepts until told to stop, and reports meanwhile how the node is.
async fn serve_all(listener: TcpListener, door: Arc<GrpcDoor>, phase: watch::Receiver<Phase>) {
    let health = tokio::spawn(calls::report_health(door.clone(), phase.clone()));
    accept(listener, door, phase).await;
    health.abort();
}

impl Accepts for GrpcDoor {
    type Place = DoorClient;

    const PROTOCOL: &'static str = "gRPC";

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
        if let Err(error) = connection::serve(socket, address, self, phase).await {
            tracing::debug!(%address, %error, "gRPC connection ended");
        }
    }
}
