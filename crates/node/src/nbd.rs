//! The NBD door: volumes as block devices (off unless `nbd` is set).
//!
//! A connection negotiates an export, whose name is the volume's, and then reads and writes it. Its requests run beside each
//! other, each through the node's router, so that any node serves any volume; replies leave as they come. The first write
//! attaches the volume: a new session of the directory, which is told to every bucket before the write goes out, so that
//! nothing that a former writer sent takes effect after it. A connection is a session: where a client connects anew, what its broken
//! connection left on its way does not count any more. A client that starts TLS goes on within it, by the same code.
//!
//! **Layout.** `negotiation`: the choice of a volume. `connection`: its requests; `counted`: their time, and the limit; `replies`: on their way.
//! Sessions and bytes are [`crate::volumes`]', the bytes of the protocol `staves-nbd`'s.

mod connection;
mod counted;
mod negotiation;
mod replies;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use staves_nbd::TlsPolicy;
use staves_net::Refusals;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::accepting::{Accepts, DoorSocket, accept};
use crate::config::Config;
use crate::door::Phase;
use crate::entry::Entry;
use crate::start::StartError;
use crate::tls::{DoorStream, Tls};
use crate::volumes::attachments::Attachments;
use crate::volumes::places::{DoorClient, DoorClients, VolumeDoorState};

/// The door.
struct NbdDoor {
    entry: Arc<Entry>,
    tls: DoorTls,
    attachments: Arc<Attachments>,
    places: DoorClients,
}

/// The door's policy of TLS, and the certificate for it.
struct DoorTls {
    policy: TlsPolicy,
    certificate: Option<Arc<Tls>>,
}

impl DoorTls {
    /// Begins TLS on a connection that has none.
    async fn start(&self, stream: DoorStream) -> io::Result<DoorStream> {
        match (&self.certificate, stream) {
            (Some(tls), DoorStream::Plain(socket)) => tls.accept(socket).await,
            _ => Err(io::Error::other("TLS cannot begin here")),
        }
    }
}

/// The door's socket, where volumes are to be served.
pub(crate) struct NbdSocket {
    socket: DoorSocket,
    tls: DoorTls,
}

impl NbdSocket {
    pub(crate) async fn bind(
        config: &Config,
        certificate: Option<Arc<Tls>>,
    ) -> Result<NbdSocket, StartError> {
        let policy = config.nbd_tls_policy();
        if config.nbd.is_some() && config.tls_client_ca.is_some() && policy != TlsPolicy::Required {
            tracing::warn!(
                "tls_client_ca keeps no client of NBD out that does without TLS; --nbd-tls required does"
            );
        }
        Ok(NbdSocket {
            socket: DoorSocket::bind("NBD", config.nbd.as_ref(), "--nbd").await?,
            tls: DoorTls {
                policy,
                certificate,
            },
        })
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.socket.address()
    }

    /// Begins to serve; the counts, and the task.
    pub(crate) fn serve(
        self,
        clients_max: u32,
        (entry, attachments): (Arc<Entry>, Arc<Attachments>),
        phase: watch::Receiver<Phase>,
    ) -> (Arc<VolumeDoorState>, Option<JoinHandle<()>>) {
        let tls = self.tls;
        let places = DoorClients::new("NBD", clients_max);
        self.socket.serve(places, |listener, places| {
            let door = NbdDoor {
                entry,
                tls,
                attachments,
                places,
            };
            accept(listener, Arc::new(door), phase)
        })
    }
}

impl Accepts for NbdDoor {
    type Place = DoorClient;

    const PROTOCOL: &'static str = "NBD";

    fn not_accepted(&self) -> &Refusals {
        &self.places.state.not_accepted
    }

    /// One that finds none is closed: before its greeting NBD has no words.
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
        if let Err(error) = connection::serve(socket, address, &self, phase).await {
            tracing::debug!(%address, %error, "NBD connection ended");
        }
    }
}
