//! The bytes of a connection, until they are messages.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use staves_wire::frame::{Decoder, Incoming};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;

use crate::connection::{READ_BYTES, SEALED_READ_BYTES, Turn};
use crate::in_flight::{InFlight, InFlightPart, KeptBuffers};
use crate::seal::Opener;

/// A socket that is read, before the hello and after.
pub(super) trait Readable: AsyncRead + Unpin {
    /// Waits until something comes.
    async fn comes(&self) -> io::Result<()>;
}

impl Readable for TcpStream {
    async fn comes(&self) -> io::Result<()> {
        self.readable().await
    }
}

impl Readable for OwnedReadHalf {
    async fn comes(&self) -> io::Result<()> {
        self.readable().await
    }
}

/// Bytes that came and what they are becoming.
pub(super) struct Input {
    pub(super) decoder: Decoder,
    pub(super) buffer: BytesMut,
    /// The arrival of the newest of them. All read and waiting messages count as being as old as that.
    pub(super) read_at: Instant,
    pub(super) turn: Turn,
    pub(super) in_flight: Arc<InFlight>,
    /// Unfinished messages of a client.
    pub(super) part: InFlightPart,
    pub(super) kept: KeptBuffers,
    /// Opens what comes, once a secret is proven.
    pub(super) opener: Option<Opener>,
}

impl Input {
    /// Room for the message that is being read, as far as it is known.
    pub(super) async fn wait_for_room(&mut self, more: usize) -> Result<(), String> {
        while !self.has_room(more) {
            if self.part.is_refused() {
                return Err(self.part.of().refusal());
            }
            self.part.of().room().await;
        }
        self.part.waits_no_more();
        Ok(())
    }

    pub(super) fn has_room(&mut self, more: usize) -> bool {
        let held = self.held_bytes();
        self.part.try_set(held + more)
    }

    /// The bytes that have come and are no message yet.
    fn held_bytes(&self) -> usize {
        let sealed = self.opener.as_ref().map_or(0, |opener| opener.sealed.len());
        self.decoder.unfinished_bytes() + self.buffer.len() + sealed
    }

    /// Gives back the buffers of a connection that rests.
    fn give_buffers_back(&mut self) {
        let sealed = self.opener.as_ref();
        let rests = self.buffer.is_empty() && sealed.is_none_or(|opener| opener.sealed.is_empty());
        if rests && self.kept.lets_go() {
            self.buffer = BytesMut::new();
            if let Some(opener) = &mut self.opener {
                opener.sealed = BytesMut::new();
            }
        }
    }

    /// So much beside what has come and is no message yet.
    pub(super) fn holds(&mut self, more: usize) {
        let held = self.held_bytes();
        self.part.set(held + more);
    }

    /// The next message that has come by now.
    pub(super) fn decoded(&mut self) -> Result<Option<Incoming>, String> {
        if let Some(opener) = &mut self.opener {
            let opened = opener.open(&mut self.buffer);
            opened.map_err(|error| error.to_string())?;
        }
        let incoming = self.decoder.next(&mut self.buffer);
        let incoming = incoming.map_err(|error| error.to_string())?;
        if incoming.is_some() {
            self.holds(0);
        }
        Ok(incoming)
    }

    pub(super) async fn next(
        &mut self,
        socket: &mut impl Readable,
        idle_max: Duration,
        is_client: bool,
    ) -> Result<Option<Incoming>, String> {
        loop {
            let incoming = self.decoded()?;
            if incoming.is_some() {
                return Ok(incoming);
            }
            let more = self.decoder.wanted().saturating_sub(self.buffer.len());
            if is_client && let Err(text) = self.wait_for_room(more).await {
                self.part.waits_no_more();
                return self.decoder.give_up().map(Some).ok_or(text);
            }
            if is_client {
                self.give_buffers_back();
            }
            let (in_flight, kept) = (&self.in_flight, &mut self.kept);
            kept.has_grown_to(self.buffer.capacity());
            let (buffer, read_max) = match &mut self.opener {
                Some(opener) => (&mut opener.sealed, SEALED_READ_BYTES),
                None => (&mut self.buffer, usize::MAX),
            };
            let read = async {
                let read_bytes = match is_client {
                    true => {
                        // Others may have taken the memory while nothing came.
                        socket.comes().await?;
                        in_flight.read_bytes(READ_BYTES)
                    }
                    false => READ_BYTES,
                };
                let most = more.max(read_bytes).min(read_max);
                buffer.reserve(most);
                kept.has_grown_to(buffer.capacity());
                socket.read_buf(&mut buffer.limit(most)).await
            };
            let read = async {
                tokio::select! {
                    read = read => read,
                    () = self.part.stuck(), if self.part.is_counted() => Err(io::ErrorKind::TimedOut.into()),
                }
            };
            match tokio::time::timeout(idle_max, read).await {
                Ok(Ok(0)) => return Ok(None),
                Ok(Ok(bytes)) => {
                    self.read_at = Instant::now();
                    // At once, so that those who read next see it.
                    let holds = self.held_bytes();
                    self.part.grow_to(holds);
                    self.part.moved(bytes);
                    self.turn.took(bytes).await;
                }
                Ok(Err(error)) => return Err(format!("reading failed: {error}")),
                Err(_) => return Err(format!("nothing came for {} ms", idle_max.as_millis())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use staves_testkit::block_on;
    use staves_wire::frame::{Envelope, Limits, encode};
    use staves_wire::hello::Ping;
    use staves_wire::{Message, directory::Propose};
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::seal::{RECORD_BYTES_MAX, Sealer};

    /// Regression: a client that had sent 150 kB, sealed, and rested kept more than a hundred, of which nothing was counted.
    #[test]
    fn a_sealed_connection_that_rests_holds_no_buffer() {
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let addr = listener.local_addr().expect("an address");
            let mut client = TcpStream::connect(addr).await.expect("it listens");
            let (mut socket, _) = listener.accept().await.expect("a connection");
            let key = [7; 32];
            let mut sealer = Sealer::new(key);
            let mut frames = BytesMut::new();
            let large = Message::Propose(Propose {
                expected: None,
                change: vec![1; 150_000].into(),
            });
            encode(Envelope::default(), &large, &mut frames);
            let ping = Message::Ping(Ping {
                clock: staves_model::Time::ZERO,
            });
            encode(Envelope::default(), &ping, &mut frames);
            tokio::spawn(async move {
                for record in frames.chunks(RECORD_BYTES_MAX) {
                    let seal = sealer.seal([record, b""]);
                    client.write_all(&seal).await.expect("it is read");
                    client.write_all(record).await.expect("it is read");
                }
                tokio::time::sleep(Duration::from_secs(60)).await;
                drop(client);
            });
            let in_flight = InFlight::new(32 << 20);
            let mut input = Input {
                decoder: Decoder::new(Limits::default()),
                buffer: BytesMut::new(),
                read_at: Instant::now(),
                turn: Turn::default(),
                in_flight: in_flight.clone(),
                part: InFlightPart::new(in_flight.clone()),
                kept: KeptBuffers::new(in_flight),
                opener: Some(Opener::new(key, BytesMut::new())),
            };
            for _ in 0..2 {
                let next = input.next(&mut socket, Duration::from_secs(30), true).await;
                assert!(matches!(next, Ok(Some(Incoming::Message(_)))), "{next:?}");
            }
            let rests = input.next(&mut socket, Duration::from_millis(50), true);
            rests.await.expect_err("nothing comes");
            let sealed = &input.opener.as_ref().expect("sealed").sealed;
            // Of one whose beginning was read it says how much is left behind it.
            assert_eq!((sealed.capacity(), input.buffer.capacity()), (0, 0));
        });
    }
}
