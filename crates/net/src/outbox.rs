//! What waits to be written to one connection, and the writer that writes all of it at once.
//!
//! Anyone may put a message in from any thread: it is encoded at once, under a short lock, behind the
//! messages that wait already, into a chunk that they share. The writer takes all chunks and gives
//! them to the kernel in one vectored write: the more is said, the fewer system calls each word costs.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use staves_wire::Message;
use staves_wire::frame::{self, Envelope, HEADER_BYTES};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

use crate::queue::GroupQueue;

/// A chunk that has reached this many bytes is not added to.
const CHUNK_BYTES: usize = 64 << 10;
/// Most pieces of one vectored write (Linux takes 1,024).
const PIECES_MAX: usize = 512;

/// A message was not put in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotPut {
    /// The connection is over.
    Closed,
    /// It has this many bytes, which is more than the other side takes.
    TooLarge(usize),
}

#[derive(Default)]
struct Frames {
    chunks: VecDeque<BytesMut>,
    /// An empty chunk whose memory is used again.
    spare: Option<BytesMut>,
    closed: bool,
}

/// The queue before a connection's writer.
pub(crate) struct Outbox {
    frames: Mutex<Frames>,
    /// Group traffic to a peer, which outlives the connection.
    group: Option<Arc<GroupQueue>>,
    /// Wakes the writer.
    wake: Arc<Notify>,
    /// Wakes who waits for room.
    room: Notify,
    /// Bytes that wait or are being written; group traffic counts for itself.
    queued: AtomicUsize,
    queued_max: usize,
    next_request: AtomicU64,
}

impl Outbox {
    pub(crate) fn new(queued_max: usize, group: Option<Arc<GroupQueue>>) -> Outbox {
        Outbox {
            frames: Mutex::default(),
            wake: group
                .as_ref()
                .map_or_else(Default::default, |group| group.wake()),
            group,
            room: Notify::new(),
            queued: AtomicUsize::new(0),
            queued_max,
            // Row X1: request ids begin at random.
            next_request: AtomicU64::new(rand::random()),
        }
    }

    /// The next request id.
    pub(crate) fn next_request(&self) -> u64 {
        self.next_request.fetch_add(1, Ordering::Relaxed)
    }

    /// Puts a message in behind the others.
    pub(crate) fn put(
        &self,
        envelope: Envelope,
        message: &Message,
        bytes_max: usize,
    ) -> Result<(), NotPut> {
        let mut frames = self.frames.lock();
        if frames.closed {
            return Err(NotPut::Closed);
        }
        let mut chunk = match frames.chunks.back() {
            Some(chunk) if chunk.len() < CHUNK_BYTES => frames.chunks.pop_back(),
            _ => None,
        }
        .or_else(|| frames.spare.take())
        .unwrap_or_default();
        let before = chunk.len();
        frame::encode(envelope, message, &mut chunk);
        let added = chunk.len() - before;
        let too_large = added > bytes_max.saturating_add(frames_overhead(added));
        if too_large {
            chunk.truncate(before);
        }
        if !chunk.is_empty() {
            frames.chunks.push_back(chunk);
        }
        drop(frames);
        if too_large {
            return Err(NotPut::TooLarge(added));
        }
        self.queued.fetch_add(added, Ordering::Relaxed);
        self.wake.notify_one();
        Ok(())
    }

    /// Whether more should not be put in for now.
    pub(crate) fn is_full(&self) -> bool {
        self.queued.load(Ordering::Relaxed) >= self.queued_max
    }

    /// Waits until it is not full (or the connection is over).
    pub(crate) async fn wait_for_room(&self) {
        while self.is_full() {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if self.frames.lock().closed {
                return;
            }
            // It may have become so before we listened.
            if self.is_full() {
                room.await;
            }
        }
    }

    /// Nothing more is taken; what waits is thrown away.
    pub(crate) fn close(&self) {
        let mut frames = self.frames.lock();
        frames.closed = true;
        frames.chunks.clear();
        drop(frames);
        self.room.notify_waiters();
        self.wake.notify_one();
    }

    /// Whether all that was put in has been written.
    pub(crate) fn is_empty(&self) -> bool {
        self.queued.load(Ordering::Relaxed) == 0
    }

    fn take(&self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut frames = self.frames.lock();
        while pieces.len() < PIECES_MAX / 2
            && let Some(chunk) = frames.chunks.pop_front()
        {
            pieces.push(Piece::frames(chunk));
        }
        drop(frames);
        if let Some(group) = &self.group {
            group.take(PIECES_MAX / 2, || self.next_request(), &mut pieces);
        }
        pieces
    }

    fn written(&self, pieces: Vec<Piece>) {
        let bytes: usize = pieces
            .iter()
            .filter(|p| !p.is_group())
            .map(|p| p.body.len())
            .sum();
        let before = self.queued.fetch_sub(bytes, Ordering::Relaxed);
        if before >= self.queued_max && before - bytes < self.queued_max {
            self.room.notify_waiters();
        }
        let reusable = |p: &Piece| !p.is_group() && p.body.capacity() <= 2 * CHUNK_BYTES;
        if let Some(mut piece) = pieces.into_iter().find(reusable) {
            piece.body.clear();
            self.frames.lock().spare = Some(piece.body);
        }
    }

    /// Writes whatever is put in, until writing fails or no progress is made for `stall_max`.
    pub(crate) async fn run(
        &self,
        socket: &mut (impl AsyncWrite + Unpin),
        stall_max: Duration,
    ) -> io::Error {
        loop {
            let pieces = self.take();
            if pieces.is_empty() {
                self.wake.notified().await;
                continue;
            }
            if let Err(error) = write_pieces(socket, &pieces, stall_max).await {
                return error;
            }
            self.written(pieces);
        }
    }
}

/// What headers add to a message of which `encoded` bytes came out; the limit is on the body.
fn frames_overhead(encoded: usize) -> usize {
    encoded.div_ceil(frame::FRAME_BODY_MAX + HEADER_BYTES) * HEADER_BYTES
}

/// Bytes on their way out: a chunk of frames, or the body of a group frame and its header before it.
pub(crate) struct Piece {
    header: Option<[u8; HEADER_BYTES]>,
    body: BytesMut,
}

impl Piece {
    fn frames(body: BytesMut) -> Piece {
        Piece { header: None, body }
    }

    /// A frame of group traffic.
    pub(crate) fn group(request: u64, more: bool, body: BytesMut) -> Piece {
        Piece {
            header: Some(frame::group_header(request, more, &body)),
            body,
        }
    }

    fn is_group(&self) -> bool {
        self.header.is_some()
    }
}

async fn write_pieces(
    socket: &mut (impl AsyncWrite + Unpin),
    pieces: &[Piece],
    stall_max: Duration,
) -> io::Result<()> {
    let mut slices = Vec::with_capacity(pieces.len() * 2);
    for piece in pieces {
        slices.extend(piece.header.as_ref().map(|header| IoSlice::new(header)));
        slices.push(IoSlice::new(&piece.body));
    }
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let write = tokio::time::timeout(stall_max, socket.write_vectored(rest));
        let written = match write.await {
            Ok(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => written?,
            Err(_) => {
                let text = format!(
                    "the other side took nothing for {} ms",
                    stall_max.as_millis()
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
        };
        IoSlice::advance_slices(&mut rest, written);
    }
    Ok(())
}
