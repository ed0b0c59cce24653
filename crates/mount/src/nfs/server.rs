//! Connections: accepted, served by a few threads each, and closed to make room.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
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
/// Between two looks at the number of threads.
const THREADS_LOOK: Duration = Duration::from_millis(10);
/// A peer that is silent for so long is asked whether it is still there.
const SILENT: Duration = Duration::from_secs(60);

/// The state that all connections share.
pub struct RpcServer<S: Files> {
    export: Export<S>,
    connections: Mutex<Vec<Arc<NfsConnection>>>,
    connections_max: usize,
    /// Threads of all connections, of closed ones too: a call goes on until it has its answer.
    threads: AtomicUsize,
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
    /// Its threads that have not ended.
    threads: AtomicUsize,
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
            threads: AtomicUsize::new(0),
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
            threads: AtomicUsize::new(THREADS),
        });
        self.make_room(connection.clone());
        self.wait_for_threads();
        for _ in 0..THREADS {
            let (server, own) = (self.clone(), connection.clone());
            self.threads.fetch_add(1, Ordering::Relaxed);
            let started = Builder::new().name("nfs".into()).spawn(move || {
                let is_over = server.serve(&own);
                // Others may still have an answer to give to who has only said all that it had to say.
                if own.threads.fetch_sub(1, Ordering::AcqRel) == 1 || !is_over {
                    server.forget(&own);
                }
                server.threads.fetch_sub(1, Ordering::Relaxed);
            });
            if let Err(error) = started {
                self.threads.fetch_sub(1, Ordering::Relaxed);
                self.forget(&connection);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits until there are few enough threads for another connection's: those of closed ones wait for their source, and whoever
    /// connects again and again would have any number of them.
    fn wait_for_threads(&self) {
        let threads_max = self.connections_max * THREADS;
        while self.threads.load(Ordering::Relaxed) > threads_max
            && !self.over.load(Ordering::Relaxed)
        {
            std::thread::sleep(THREADS_LOOK);
        }
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

    /// Runs one thread of a connection: it takes the next call, leaves the rest to the others, and answers. True if no more calls come;
    /// false if the connection is of no use any more.
    fn serve(&self, connection: &NfsConnection) -> bool {
        let (mut record, mut reply) = (Vec::new(), XdrWriter::default());
        loop {
            match rpc::read_record(&mut *connection.reads.lock(), &mut record) {
                Ok(true) => {}
                Ok(false) => return true,
                Err(error) => {
                    tracing::debug!(peer = %connection.peer, %error, "an NFS client is cut off");
                    return false;
                }
            }
            connection.used_ms.store(self.now_ms(), Ordering::Relaxed);
            connection.has_called.store(true, Ordering::Relaxed);
            if respond(&self.export, &record, &mut reply).is_err() {
                tracing::debug!(peer = %connection.peer, "an NFS client sends what is no call");
                return false;
            }
            if let Err(error) = connection.writes.lock().write_all(reply.bytes()) {
                tracing::debug!(peer = %connection.peer, %error, "an NFS client takes no answer");
                return false;
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
