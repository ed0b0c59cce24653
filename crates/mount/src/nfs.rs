//! The same files by NFS, version 3, for hosts without FUSE (RFC 1813, over TCP): NFS and its MOUNT protocol at one port.
//!
//! **Path of the data.** A client connects (`server`), which gives it a few threads. They take calls from the stream in turn
//! (`rpc`), decode what they ask (`xdr`) and answer them (`procedures`). A handle leads to a path (`handle`, `paths`), a path to an open
//! file (`export`), and the file's bytes go right into the answer.
//!
//! **Invariants.** A handle is one version of one path, and is computed from them: it is the same after a restart, and at
//! any other server of the dataset. Once the source has another version, it is stale. Everything is bounded: calls, answers,
//! connections, what is kept in mind. Nothing that a client sends ends the server, or another's connection.
//!
//! **Why not a library.** Those that there are take calls of any length into memory, refuse the 257th call of a client that has
//! 256 under way, or forget their handles at the end; what is left without writing is as much code as their use would be.
//!
//! **Not here.** Permissions: NFSv3 knows names, but proves none. Any client that reaches the port may read all of it.

mod export;
mod handle;
mod paths;
mod procedures;
mod recent;
mod rpc;
mod server;
mod vain;
mod xdr;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::export::Export;
use self::server::RpcServer;
use crate::files::Files;

/// The options of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NfsOptions {
    /// The dataset's name: handles are of one dataset.
    pub name: String,
    /// The lifetime of cached attributes.
    pub lifetime: Duration,
    /// Bytes that [`Files::will_read`] announces ahead of a reader in order; 0 for none.
    pub read_ahead_bytes: u64,
    /// Clients at a time; an idle one makes room for one more. Each may take some 3 MB.
    pub connections_max: usize,
}

impl Default for NfsOptions {
    fn default() -> NfsOptions {
        NfsOptions {
            name: "files".into(),
            lifetime: Duration::from_secs(1),
            read_ahead_bytes: 8 << 20,
            connections_max: 32,
        }
    }
}

/// The reason that nothing is served.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} NFS at {address}: {reason}")]
pub struct NfsError {
    what: &'static str,
    address: SocketAddr,
    reason: io::Error,
}

/// A server. Dropping it closes all connections.
pub struct NfsServer {
    address: SocketAddr,
    ends: Option<(Box<dyn End>, JoinHandle<()>)>,
}

/// A server, whatever it serves.
trait End: Send + Sync {
    fn end(&self);
}

struct Running<S: Files> {
    server: Arc<RpcServer<S>>,
    listener: Arc<TcpListener>,
}

impl<S: Files> End for Running<S> {
    fn end(&self) {
        self.server.end(&self.listener);
    }
}

/// Serves files at an address.
///
/// # Errors
/// The address cannot be listened at.
pub fn serve_nfs<S: Files>(
    files: S,
    address: SocketAddr,
    options: &NfsOptions,
) -> Result<NfsServer, NfsError> {
    let failed = |what| {
        move |reason| NfsError {
            what,
            address,
            reason,
        }
    };
    let listener = TcpListener::bind(address).map_err(failed("listen for"))?;
    let bound = listener.local_addr().map_err(failed("listen for"))?;
    let (lifetime, ahead) = (options.lifetime, options.read_ahead_bytes);
    let export = Export::new(files, &options.name, lifetime, ahead);
    let server = RpcServer::new(export, options.connections_max);
    let listener = Arc::new(listener);
    let running = Running {
        server: server.clone(),
        listener: listener.clone(),
    };
    let accepting = Builder::new().name("nfs-accept".into());
    let accepting = accepting.spawn(move || server.accept(&listener));
    let accepting = accepting.map_err(failed("start the threads of"))?;
    Ok(NfsServer {
        address: bound,
        ends: Some((Box::new(running), accepting)),
    })
}

/// The answer to a client that sends these bytes and nothing more, without a connection: for fuzzing.
#[doc(hidden)]
pub fn nfs_answers<S: Files>(files: S, options: &NfsOptions, mut sent: &[u8]) -> Vec<Vec<u8>> {
    let (lifetime, ahead) = (options.lifetime, options.read_ahead_bytes);
    let export = Export::new(files, &options.name, lifetime, ahead);
    let (mut record, mut reply) = (Vec::new(), xdr::XdrWriter::default());
    let mut answers = Vec::new();
    while let Ok(true) = rpc::read_record(&mut sent, &mut record)
        && server::respond(&export, &record, &mut reply).is_ok()
    {
        answers.push(reply.bytes().to_vec());
    }
    answers
}

impl NfsServer {
    /// The address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the process receives SIGTERM, SIGINT or SIGHUP.
    ///
    /// # Errors
    /// Signals cannot be waited for.
    pub fn serve(self) -> Result<(), NfsError> {
        let address = self.address;
        let failed = |reason| NfsError {
            what: "wait for signals and serve",
            address,
            reason,
        };
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(failed)?;
        signals.forever().next();
        Ok(())
    }
}

impl Drop for NfsServer {
    fn drop(&mut self) {
        if let Some((running, accepting)) = self.ends.take() {
            running.end();
            let _ = accepting.join();
        }
    }
}
