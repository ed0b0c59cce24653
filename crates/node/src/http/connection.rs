//! A connection.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::HttpDoor;
use super::routes;
use super::socket::PatientSocket;
use crate::door::Phase;
use crate::log_gateway::LogGateway;
use crate::volumes::places::keep_alive;

/// Most bytes of a request's head, and of an answer between the service and the socket.
const BUFFER_BYTES: usize = 16 << 10;
/// Most headers of a request.
const HEADERS_MAX: usize = 64;
/// The time that the request under way may take when the node closes.
const LAST_REQUEST: Duration = Duration::from_millis(300);

/// A client's connection.
pub(super) struct HttpConnection {
    pub(super) door: Arc<HttpDoor>,
    /// The address of this node at which it came in.
    pub(super) local: IpAddr,
    closing: Notify,
}

impl HttpConnection {
    pub(super) fn logs(&self) -> &Arc<LogGateway> {
        &self.door.logs
    }

    /// Ends the connection: an answer is not taken.
    pub(super) fn close(&self) {
        self.closing.notify_one();
    }
}

/// Serves a client until it leaves, or must.
pub(super) async fn serve(
    socket: TcpStream,
    door: Arc<HttpDoor>,
    mut phase: watch::Receiver<Phase>,
) -> io::Result<()> {
    let _ = socket.set_nodelay(true);
    keep_alive(&socket)?;
    let times = door.times;
    let connection = Arc::new(HttpConnection {
        local: socket.local_addr()?.ip(),
        door,
        closing: Notify::new(),
    });
    let answering = connection.clone();
    let service = service_fn(move |request| {
        let connection = answering.clone();
        async move { Ok::<_, Infallible>(routes::answer(&connection, request).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(times.head)
        .max_buf_size(BUFFER_BYTES)
        .max_headers(HEADERS_MAX);
    let socket = TokioIo::new(PatientSocket::new(socket, times.take));
    let mut served = pin!(http.serve_connection(socket, service));
    tokio::select! {
        ended = &mut served => return ended.map_err(io::Error::other),
        () = connection.closing.notified() => return Ok(()),
        _ = phase.wait_for(|p| *p >= Phase::Closing) => {}
    }
    served.as_mut().graceful_shutdown();
    let _ = timeout(LAST_REQUEST, served).await;
    Ok(())
}
