//! TLS for doors: the node's certificate, loaded and checked at the start, and the connections within TLS.
//!
//! One certificate serves all doors. A door hands a connection that asked for TLS to [`Tls::accept`], and gets a [`DoorStream`] that
//! it reads and writes as before. Versions 1.2 and 1.3, with `ring`; sessions are not resumed, so that each connection shows its
//! certificate anew.
//!
//! **Layout.** `files`: certificates and keys. `stream`: a connection, with TLS or without, and its halves.

mod files;
mod stream;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::server::{NoClientAuth, NoServerSessionStorage, WebPkiClientVerifier};
use staves_net::Refusals;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

pub(crate) use self::files::TlsFiles;
pub use self::files::{TlsError, TlsFile};
pub(crate) use self::stream::{DoorReader, DoorStream, DoorWriter};

/// The time for a client's whole handshake. Its bytes are bounded by rustls: 64 KiB.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// The node's side of TLS.
pub(crate) struct Tls {
    acceptor: TlsAcceptor,
    failed: Refusals,
}

impl Tls {
    /// Reads the files and checks that they fit together.
    pub(crate) fn load(files: &TlsFiles<'_>) -> Result<Tls, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients = match files.client_ca {
            Some(path) => {
                let roots = Arc::new(files::authorities(path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
                verifier
                    .build()
                    .map_err(|e| TlsFile::ClientCa.refused(path, e))?
            }
            None => Arc::new(NoClientAuth),
        };
        let (chain, key) = (files::chain(files.cert)?, files::key(files.key)?);
        let versions = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| TlsFile::Certificate.refused(files.cert, e))?;
        let config = versions
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, key);
        let mut config = config.map_err(|error| files.unfit(error))?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Tls {
            acceptor: Arc::new(config).into(),
            failed: Refusals::default(),
        })
    }

    /// Begins TLS with a client, which must be done within [`HANDSHAKE_MAX`]. An alert names the reason of a refusal.
    pub(crate) async fn accept(&self, socket: TcpStream) -> io::Result<DoorStream> {
        let client = socket.peer_addr()?;
        let handshake = timeout(HANDSHAKE_MAX, self.acceptor.accept(socket)).await;
        let done = handshake.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        match done {
            Ok(stream) => Ok(DoorStream::Tls(Box::new(stream))),
            Err(error) => {
                self.failed.add(|unsaid| {
                    tracing::warn!(%client, %error, unsaid, "TLS did not begin with a client");
                });
                Err(error)
            }
        }
    }
}
