//! Connections: accepted, served by a few threads each, and closed to make room.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::net::sockopt;

use super::export::Export;
use super::rpc::{self, RpcCall};
use super::xdr::{Garbage, XdrReader, XdrWriter};
use crate::files::Files;

/// Calls of a connection that are answered at a time.
const THREADS: usize = 8;
/// A client that does not take an answer for so long is cut off.
const WRITE: Duration = Duration::from_secs(30);
/// A peer that is silent for so long is asked whether it is still there.
const SILENT: Duration = Duration::from_secs(60);

/// The state that all connections share.
pub struct RpcServer<S: Files> {
    export: Export<S>,
    connections: Mutex<Vec<Arc<NfsConnection>>>,
    connections_max: usize,
    began: Instant,
    over: AtomicBool,
}

#[derive(Debug)]
struct NfsConnection {
    peer: SocketAddr,
    stream: TcpStream,
    reads: Mutex<BufReader<TcpStream>>,
    writes: Mutex<TcpStream>,
    /// Milliseconds from the server's beginning to the last call, or to when it came.
    used_ms: AtomicU64,
    has_called: AtomicBool,
}

/// The place of the connection that has to go for another: of the address that has the most of them, one that has called nothing
/// yet, and of several the one that has been idle for longest. So who opens connections and is silent cuts nobody off who works.
fn whom_to_close<'c>(of: impl Iterator<Item = &'c NfsConnection> + Clone) -> Option<usize> {
    let mut of_address: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for connection in of.clone() {
        *of_address.entry(connection.peer.ip()).or_default() += 1;
    }
    let order = |c: &NfsConnection| {
        let share = of_address.get(&c.peer.ip()).copied();
        let has_called = c.has_called.load(Ordering::Relaxed);
        (
            Reverse(share),
            has_called,
            c.used_ms.load(Ordering::Relaxed),
        )
    };
    let first = of.enumerate().min_by_key(|(_, c)| order(c));
    first.map(|(at, _)| at)
}

impl<S: Files> RpcServer<S> {
    /// Nobody is connected yet.
    pub fn new(export: Export<S>, connections_max: usize) -> Arc<RpcServer<S>> {
        Arc::new(RpcServer {
            export,
            connections: Mutex::default(),
            connections_max: connections_max.max(1),
            began: Instant::now(),
            over: AtomicBool::new(false),
        })
    }

    /// Accepts connections until it is over.
    pub fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while !self.over.load(Ordering::Relaxed) {
            let served = listener
                .accept()
                .and_then(|(s, peer)| self.take_in(s, peer));
            if let Err(error) = served
                && !self.over.load(Ordering::Relaxed)
            {
                tracing::warn!(%error, "an NFS client could not be taken in");
                // Too many open files, or the like: that does not pass at once.
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }

    fn take_in(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(WRITE))?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, SILENT)?;
        let connection = Arc::new(NfsConnection {
            peer,
            reads: Mutex::new(BufReader::new(stream.try_clone()?)),
            writes: Mutex::new(stream.try_clone()?),
            stream,
            used_ms: AtomicU64::new(self.now_ms()),
            has_called: AtomicBool::new(false),
        });
        self.make_room(connection.clone());
        for _ in 0..THREADS {
            let (server, own) = (self.clone(), connection.clone());
            let started = Builder::new().name("nfs".into()).spawn(move || {
                server.serve(&own);
                server.forget(&own);
            });
            if let Err(error) = started {
                self.forget(&connection);
                return Err(error);
            }
        }
        Ok(())
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Takes a connection in; if there are too many, one is closed. Clients of NFS connect again by themselves.
    fn make_room(&self, connection: Arc<NfsConnection>) {
        let mut all = self.connections.lock();
        if all.len() >= self.connections_max
            && let Some(idle) = whom_to_close(all.iter().map(|c| &**c))
        {
            let closed = all.swap_remove(idle);
            closed.close();
            tracing::warn!(peer = %closed.peer, max = self.connections_max,
                "too many NFS clients: one that was idle is cut off");
        }
        all.push(connection);
        // Connections that came in while it ended.
        if self.over.load(Ordering::Relaxed) {
            all.iter().for_each(|c| c.close());
        }
    }

    fn forget(&self, connection: &Arc<NfsConnection>) {
        connection.close();
        let mut all = self.connections.lock();
        all.retain(|other| !Arc::ptr_eq(other, connection));
    }

    /// Runs one thread of a connection: it takes the next call, leaves the rest to the others, and answers.
    fn serve(&self, connection: &NfsConnection) {
        let (mut record, mut reply) = (Vec::new(), XdrWriter::default());
        loop {
            match rpc::read_record(&mut *connection.reads.lock(), &mut record) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::debug!(peer = %connection.peer, %error, "an NFS client is cut off");
                    return;
                }
            }
            connection.used_ms.store(self.now_ms(), Ordering::Relaxed);
            connection.has_called.store(true, Ordering::Relaxed);
            if respond(&self.export, &record, &mut reply).is_err() {
                tracing::debug!(peer = %connection.peer, "an NFS client sends what is no call");
                return;
            }
            if let Err(error) = connection.writes.lock().write_all(reply.bytes()) {
                tracing::debug!(peer = %connection.peer, %error, "an NFS client takes no answer");
                return;
            }
        }
    }

    /// Closes all connections, and takes no more.
    pub fn end(&self, listener: &TcpListener) {
        self.over.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
        self.connections.lock().iter().for_each(|c| c.close());
    }
}

/// Answers the call that a record is.
pub fn respond<S: Files>(
    export: &Export<S>,
    record: &[u8],
    reply: &mut XdrWriter,
) -> Result<(), Garbage> {
    let mut args = XdrReader::new(record);
    let call = RpcCall::take(&mut args)?;
    rpc::answer(&call, reply, |reply| export.call(&call, &mut args, reply));
    Ok(())
}

impl NfsConnection {
    /// Its threads see the end, whatever they wait for.
    fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
