//! A connection of a door, with TLS or without, and its halves.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_rustls::server::TlsStream;

/// A connection. Within TLS what was written is only sent for certain once it was flushed.
pub(crate) enum DoorStream {
    /// Bytes as they are.
    Plain(TcpStream),
    /// Bytes within TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

/// The side from which a connection is read.
pub(crate) enum DoorReader {
    /// Bytes as they are.
    Plain(OwnedReadHalf),
    /// Bytes within TLS.
    Tls(SharedTls),
}

/// The side to which a connection is written.
pub(crate) enum DoorWriter {
    /// Bytes as they are.
    Plain(OwnedWriteHalf),
    /// Bytes within TLS.
    Tls(SharedTls),
}

/// Both sides of TLS have one state. It is locked for one step, never across a wait.
type SharedTls = Arc<Mutex<TlsStream<TcpStream>>>;

impl DoorStream {
    /// The two sides, each for a task of its own.
    pub(crate) fn into_split(self) -> (DoorReader, DoorWriter) {
        match self {
            DoorStream::Plain(socket) => {
                let (reading, writing) = socket.into_split();
                (DoorReader::Plain(reading), DoorWriter::Plain(writing))
            }
            DoorStream::Tls(stream) => {
                let shared = Arc::new(Mutex::new(*stream));
                (DoorReader::Tls(shared.clone()), DoorWriter::Tls(shared))
            }
        }
    }
}

impl DoorReader {
    /// Returns whether the other side has closed the connection, whatever is still to be read.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            DoorReader::Plain(reading) => is_read_closed(reading.as_ref()),
            DoorReader::Tls(shared) => is_read_closed(shared.lock().get_ref().0),
        }
    }
}

fn is_read_closed(socket: &TcpStream) -> bool {
    let ready = pin!(socket.ready(Interest::READABLE));
    let ready = ready.poll(&mut Context::from_waker(Waker::noop()));
    matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed())
}

impl AsyncRead for DoorStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            DoorStream::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            DoorStream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncRead for DoorReader {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            DoorReader::Plain(reading) => Pin::new(reading).poll_read(cx, buf),
            DoorReader::Tls(shared) => Pin::new(&mut *shared.lock()).poll_read(cx, buf),
        }
    }
}

/// Calls a method of [`AsyncWrite`] on what lies in either variant.
macro_rules! on_either {
    ($self:ident: $kind:ident, $tls:ident => $inner:expr, $method:ident($($arg:expr),*)) => {
        match $self.get_mut() {
            $kind::Plain(plain) => Pin::new(plain).$method($($arg),*),
            $kind::Tls($tls) => Pin::new($inner).$method($($arg),*),
        }
    };
}

macro_rules! writes {
    ($kind:ident, $tls:ident => $inner:expr) => {
        impl AsyncWrite for $kind {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                on_either!(self: $kind, $tls => $inner, poll_write(cx, bytes))
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                on_either!(self: $kind, $tls => $inner, poll_write_vectored(cx, slices))
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                on_either!(self: $kind, $tls => $inner, poll_flush(cx))
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                on_either!(self: $kind, $tls => $inner, poll_shutdown(cx))
            }
        }
    };
}

writes!(DoorStream, stream => stream);
writes!(DoorWriter, shared => &mut *shared.lock());
