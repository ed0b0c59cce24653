//! Frames over a connection that never blocks: what all modes and baselines speak, so that they differ in
//! their protocol alone.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Client to data: new bytes at an offset.
    Update,
    /// The same, and it is the last of its run: whoever may wait may not.
    Last,
    /// Data to client: all updates up to this seq are safe.
    Answer,
    /// Client to data, answered at once by the same.
    Ping,
    /// Data to parity: apply and acknowledge.
    Delta,
    /// Data to parity: queue and acknowledge.
    Prepare,
    /// Data to parity: apply what is queued.
    Commit,
    /// Parity to data: this one is done, or all are up to it.
    Ack,
    /// The same from a parity that misses something below what it has.
    AckGap,
    /// Data to parity: several deltas, each `seq u64 | at u32 | len u32 | bytes`.
    Deltas,
    /// A message of the group protocol, as it is on the wire.
    Group,
}

const KINDS: [Kind; 11] = [
    Kind::Update,
    Kind::Last,
    Kind::Answer,
    Kind::Ping,
    Kind::Delta,
    Kind::Prepare,
    Kind::Commit,
    Kind::Ack,
    Kind::AckGap,
    Kind::Deltas,
    Kind::Group,
];

/// `len u32 | kind u8 | seq u64 | at u32 | bytes`, little endian; len counts what follows it.
#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: Kind,
    pub seq: u64,
    pub at: u32,
    pub bytes: Bytes,
}

const HEAD: usize = 13;
const FRAME_MAX: usize = 4 << 20;

/// One end of a connection.
pub struct Link {
    stream: TcpStream,
    incoming: BytesMut,
    outgoing: BytesMut,
    /// The beginning of the last frame in it, until some of it is written.
    last: usize,
    /// The bytes that were just read.
    scratch: Vec<u8>,
    /// There may be something to read.
    readable: bool,
    /// Frames are not taken from it while this is set: its sender has to wait.
    pub held: bool,
}

impl Link {
    pub fn new(stream: TcpStream) -> anyhow::Result<Link> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Link {
            stream,
            incoming: BytesMut::with_capacity(1 << 16),
            outgoing: BytesMut::with_capacity(1 << 16),
            last: 0,
            scratch: vec![0; 1 << 16],
            readable: true,
            held: false,
        })
    }

    pub fn send(&mut self, kind: Kind, seq: u64, at: u32, bytes: &[u8]) {
        self.send_with(kind, seq, at, |out| out.put_slice(bytes));
    }

    /// The same, with bytes that are made where they are sent from.
    pub fn send_with(&mut self, kind: Kind, seq: u64, at: u32, bytes: impl FnOnce(&mut BytesMut)) {
        let begin = self.outgoing.len();
        self.last = begin;
        self.outgoing.put_u32_le(0);
        self.outgoing.put_u8(kind as u8);
        self.outgoing.put_u64_le(seq);
        self.outgoing.put_u32_le(at);
        bytes(&mut self.outgoing);
        let len = (self.outgoing.len() - begin - 4) as u32;
        self.outgoing[begin..begin + 4].copy_from_slice(&len.to_le_bytes());
    }

    /// Sends the frame that was sent last so many times more.
    pub fn repeat_last(&mut self, times: usize) {
        for _ in 0..times {
            let copy = self.outgoing[self.last..].to_vec();
            self.last = self.outgoing.len();
            self.outgoing.put_slice(&copy);
        }
    }

    /// Writes what can be written now.
    pub fn flush(&mut self) -> anyhow::Result<()> {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(0) => bail!("the peer takes no more bytes"),
                Ok(n) => self.outgoing.advance(n),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e).context("cannot write to a peer"),
            }
        }
        Ok(())
    }

    /// Reads what is there. False if the peer is gone.
    pub fn fill(&mut self) -> anyhow::Result<bool> {
        while self.readable {
            match self.stream.read(&mut self.scratch) {
                Ok(0) => return Ok(false),
                Ok(n) => {
                    self.incoming.put_slice(&self.scratch[..n]);
                    // A short read was all there is; what comes meanwhile wakes the next wait.
                    self.readable = n == self.scratch.len();
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return Ok(false),
                Err(e) => return Err(e).context("cannot read from a peer"),
            }
        }
        Ok(true)
    }

    /// The next whole frame that was read.
    pub fn next(&mut self) -> anyhow::Result<Option<Frame>> {
        let Some(mut head) = self.incoming.get(..4) else {
            return Ok(None);
        };
        let len = head.get_u32_le() as usize;
        if !(HEAD..=FRAME_MAX).contains(&len) {
            bail!("a frame of {len} bytes");
        }
        if self.incoming.len() < 4 + len {
            return Ok(None);
        }
        self.incoming.advance(4);
        let mut frame = self.incoming.split_to(len).freeze();
        let kind = usize::from(frame.get_u8());
        let kind = *KINDS.get(kind).context("a frame of an unknown kind")?;
        Ok(Some(Frame {
            kind,
            seq: frame.get_u64_le(),
            at: frame.get_u32_le(),
            bytes: frame,
        }))
    }
}

/// Waits until something can be read, or written where something is left to write, or the time is over.
pub fn wait(links: &mut [Link], most: Option<Duration>) -> anyhow::Result<()> {
    let mut fds: Vec<PollFd<'_>> = links
        .iter()
        .map(|link| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, !link.held);
            flags.set(PollFlags::OUT, !link.outgoing.is_empty());
            PollFd::new(&link.stream, flags)
        })
        .collect();
    let most = most.map(|d| Timespec {
        tv_sec: d.as_secs() as _,
        tv_nsec: d.subsec_nanos().into(),
    });
    match poll(&mut fds, most.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(e).context("cannot wait for peers"),
    }
    // Whatever it is but room to write: an error or an end is found by reading, too.
    let told: Vec<bool> = fds
        .iter()
        .map(|fd| !(fd.revents() - PollFlags::OUT).is_empty())
        .collect();
    for (link, told) in links.iter_mut().zip(told) {
        link.readable |= told;
    }
    Ok(())
}

/// Short waits end when they should, not up to 50 us later: where messages are lost, a wait is of the
/// size of a round trip. For all modes alike.
pub fn wake_in_time() -> anyhow::Result<()> {
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))
        .context("cannot set the timer slack")
}
