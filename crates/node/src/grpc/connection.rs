//! A connection and its sessions.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use staves_model::RegionId;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tonic::{Code, Status};

use super::GrpcDoor;
use super::calls::ConnectionCalls;
use super::failure::{no_session, settled, status};
use crate::door::Phase;
use crate::running::Running;
use crate::volumes::ServedVolume;
use crate::volumes::attachment::{ATTACH_MAX, Attachment};
use crate::volumes::attachments::{Attachments, WhenTaken};
use crate::volumes::blocks::VolumeBytes;
use crate::volumes::places::keep_alive;

/// The time for the first call of a connection: one that says nothing keeps no place.
const FIRST_CALL_MAX: Duration = Duration::from_secs(30);
/// The time that calls under way may take when the node closes.
const LAST_CALLS: Duration = Duration::from_millis(300);
/// Most calls of a connection under way.
const CALLS_MAX: u32 = 64;
/// Bytes that a client may send ahead of what is read: of one call, and of all.
const WINDOW_BYTES: u32 = 128 << 10;
/// Most bytes of a call's headers.
const HEADERS_BYTES_MAX: u32 = 8 << 10;
/// Bytes of an answer that lie between the service and the socket.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// A client is asked so often whether it lives, and given so long: the volumes of one that has gone are free then.
const PING: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(15));
/// Most volumes that a connection has attached at a time.
const SESSIONS_MAX: usize = 64;

/// Serves a client until it leaves, or must.
pub(super) async fn serve(
    socket: TcpStream,
    address: SocketAddr,
    door: Arc<GrpcDoor>,
    mut phase: watch::Receiver<Phase>,
) -> io::Result<()> {
    let _ = socket.set_nodelay(true);
    keep_alive(&socket)?;
    let client = SocketAddr::new(address.ip().to_canonical(), address.port());
    let connection = Arc::new(GrpcConnection::new(door, client));
    let _ends = ConnectionEnd(connection.clone());
    let calls = ConnectionCalls::new(&connection);
    let service = service_fn(move |request| {
        let calls = calls.clone();
        async move { Ok::<_, Infallible>(calls.answer(request).await) }
    });
    let served = http2().serve_connection(TokioIo::new(socket), service);
    let mut served = pin!(served);
    tokio::select! {
        ended = &mut served => return ended.map_err(io::Error::other),
        () = connection.closes() => return Ok(()),
        _ = phase.wait_for(|p| *p >= Phase::Closing) => {}
    }
    served.as_mut().graceful_shutdown();
    let _ = timeout(LAST_CALLS, served).await;
    Ok(())
}

fn http2() -> http2::Builder<TokioExecutor> {
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .max_concurrent_streams(CALLS_MAX)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1);
    http
}

/// A client's connection.
pub(super) struct GrpcConnection {
    pub(super) door: Arc<GrpcDoor>,
    client: SocketAddr,
    /// By volume; `None` once the connection has ended.
    sessions: Mutex<Option<BTreeMap<String, GrpcSession>>>,
    /// Names its sessions for the directory.
    attached_total: AtomicU64,
    has_called: AtomicBool,
    /// It is to end.
    closing: Notify,
}

/// A volume that a connection has attached.
#[derive(Clone)]
pub(super) struct GrpcSession {
    pub(super) number: u64,
    pub(super) attachment: Arc<Attachment>,
    pub(super) bytes: VolumeBytes,
    pub(super) served: Arc<ServedVolume>,
}

impl GrpcConnection {
    fn new(door: Arc<GrpcDoor>, client: SocketAddr) -> GrpcConnection {
        GrpcConnection {
            door,
            client,
            sessions: Mutex::new(Some(BTreeMap::new())),
            attached_total: AtomicU64::new(0),
            has_called: AtomicBool::new(false),
            closing: Notify::new(),
        }
    }

    /// The node, once it has joined its cluster.
    pub(super) fn running(&self) -> Result<&Arc<Running>, Status> {
        let entry = &self.door.entry;
        let not_yet = || settled(Code::Unavailable, entry.not_yet());
        entry.get().ok_or_else(not_yet)
    }

    /// A call has come.
    pub(super) fn called(&self) {
        self.has_called.store(true, Ordering::Relaxed);
    }

    /// Ends the connection.
    pub(super) fn close(&self) {
        self.closing.notify_one();
    }

    /// Waits until the connection is to end: nobody calls, or an answer is not taken.
    async fn closes(&self) {
        if timeout(FIRST_CALL_MAX, self.closing.notified())
            .await
            .is_err()
            && self.has_called.load(Ordering::Relaxed)
        {
            self.closing.notified().await;
        }
    }

    /// Begins a session.
    pub(super) async fn attach(
        &self,
        (name, id): (&str, RegionId),
        taken: WhenTaken,
    ) -> Result<u64, Status> {
        let running = self.running()?;
        self.check_room(name)?;
        let number = self.attached_total.fetch_add(1, Ordering::Relaxed) + 1;
        let client = format!("{}/{number}", self.client);
        let attachments = &self.door.attachments;
        let attachment = attachments.join(id, client, taken);
        // Until it is one of the sessions, it ends with the call.
        let mut begun = SessionGuard::new(attachments, &attachment);
        let attached = attachment.session_for(running, (0, 0)).await;
        let number = attached.map_err(|error| status(&error))?;
        let session = GrpcSession {
            number,
            attachment: attachment.clone(),
            bytes: VolumeBytes::new(running.clone(), id),
            served: running.volumes.open(&running.host.routes().map, id),
        };
        let mut sessions = self.sessions.lock();
        let Some(sessions) = sessions.as_mut() else {
            return Err(Status::cancelled("the connection has ended"));
        };
        if let Some(former) = sessions.insert(name.to_owned(), session) {
            attachments.abandon(&former.attachment);
        }
        begun.keep();
        Ok(number)
    }

    /// Refuses one volume too many. Sessions that are over do not count, and are forgotten.
    fn check_room(&self, name: &str) -> Result<(), Status> {
        let mut sessions = self.sessions.lock();
        let Some(sessions) = sessions.as_mut() else {
            return Ok(());
        };
        sessions.retain(|_, session| {
            let is_over = session.attachment.is_over();
            if is_over {
                self.door.attachments.abandon(&session.attachment);
            }
            !is_over
        });
        if sessions.len() < SESSIONS_MAX || sessions.contains_key(name) {
            return Ok(());
        }
        let text = format!(
            "this connection has {SESSIONS_MAX} volumes attached, which is the most: detach one, or use another connection"
        );
        Err(settled(Code::ResourceExhausted, text))
    }

    /// A session of this connection that is not over.
    pub(super) fn session(&self, volume: &str, number: u64) -> Result<GrpcSession, Status> {
        let sessions = self.sessions.lock();
        let session = sessions.as_ref().and_then(|all| all.get(volume));
        let session = session.filter(|s| s.number == number && !s.attachment.is_over());
        session.cloned().ok_or_else(|| no_session(volume, number))
    }

    /// Ends a session. False if it is not one of this connection any more.
    pub(super) async fn detach(&self, volume: &str, number: u64) -> Result<bool, Status> {
        let running = self.running()?;
        let session = {
            let mut sessions = self.sessions.lock();
            let all = sessions.as_mut();
            let is_it = |all: &&mut BTreeMap<String, GrpcSession>| {
                all.get(volume).is_some_and(|s| s.number == number)
            };
            all.filter(is_it).and_then(|all| all.remove(volume))
        };
        let Some(session) = session else {
            return Ok(false);
        };
        let was_over = session.attachment.is_over();
        self.door
            .attachments
            .leave(running, &session.attachment)
            .await;
        Ok(!was_over)
    }

    /// The sessions that are not over: volumes and numbers.
    pub(super) fn sessions(&self) -> Vec<(String, u64)> {
        let sessions = self.sessions.lock();
        let all = sessions.iter().flatten();
        all.filter(|(_, session)| !session.attachment.is_over())
            .map(|(volume, session)| (volume.clone(), session.number))
            .collect()
    }
}

/// The rule for a volume that somebody else has, of an attaching call.
pub(super) fn when_taken(wait_ms: u32, takes_over: bool) -> WhenTaken {
    match takes_over {
        true => WhenTaken::TakeOver,
        false => {
            let wait = Duration::from_millis(wait_ms.into()).min(ATTACH_MAX);
            WhenTaken::WaitUntil(Instant::now() + wait)
        }
    }
}

/// Ends the sessions of a connection with it, however it ends.
struct ConnectionEnd(Arc<GrpcConnection>);

impl Drop for ConnectionEnd {
    fn drop(&mut self) {
        let ConnectionEnd(connection) = self;
        let sessions = connection.sessions.lock().take();
        for session in sessions.into_iter().flatten() {
            connection.door.attachments.abandon(&session.1.attachment);
        }
    }
}

/// Ends a session unless it is kept: its call went without an answer.
pub(super) struct SessionGuard<'a> {
    attachments: &'a Attachments,
    attachment: &'a Arc<Attachment>,
    kept: bool,
}

impl<'a> SessionGuard<'a> {
    pub(super) fn new(attachments: &'a Attachments, attachment: &'a Arc<Attachment>) -> Self {
        SessionGuard {
            attachments,
            attachment,
            kept: false,
        }
    }

    /// The call has its answer.
    pub(super) fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for SessionGuard<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.attachments.abandon(self.attachment);
        }
    }
}
