//! The messages that wait to be written to one connection, and the writer that writes all of them at once.
//!
//! Anyone may put a message in from any thread: it is encoded at once, under a short lock, behind the
//! messages that wait already, into a chunk that they share. The writer takes all chunks and gives
//! them to the kernel in one vectored write: the more messages, the fewer system calls each costs.
//! A sender that has put in its last message may write at once, on its own thread ([`Outbox::write_now`]),
//! and so spares the waking of the writer; the writer gets the bytes that the kernel does not take then.
//!
//! Large messages, of whatever kind, wait apart and leave frame by frame, after whatever small ones there are by then: a
//! value of half a gigabyte holds up a promise by one frame, not by itself.
//!
//! A request that has waited here says a deadline that is nearer by as much, and one whose deadline has
//! passed is not sent: nobody waits for what it would do.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use parking_lot::Mutex;
use staves_wire::Message;
use staves_wire::frame::{self, Envelope, HEADER_BYTES, Header};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;

use crate::queue::GroupQueue;
use crate::seal::{RECORD_BYTES_MAX, SEAL_BYTES, Sealer};
use crate::turn::end_of_turn;

/// A chunk that has reached this many bytes is not added to.
const CHUNK_BYTES: usize = 64 << 10;
/// Most bytes of memory that a connection keeps for its next chunk.
const SPARE_BYTES: usize = 4 << 10;
/// A message with more than this waits apart from the small ones.
const BULK_BYTES: usize = 64 << 10;
/// Most bytes of each kind taken out at a time (and one chunk, or one frame, more), and so the longest
/// that a message just put in waits for others, and the most that a caller of `write_now` writes.
const TAKE_BYTES: usize = 1 << 20;
/// Most bytes of large messages taken out at a time: those of one frame, or of more that are smaller. The end of a message
/// leaves with the frame before it, if it is short: until then the memory of both is held.
const BULK_TAKE_BYTES: usize = frame::FRAME_BODY_MAX + BULK_BYTES;
/// Room for all that a large message has beside its values, most often.
const FIELDS_BYTES: usize = 4 << 10;
/// A message that waited less than this counts as not having waited.
const WAITED_MIN: Duration = Duration::from_millis(10);
/// Most pieces taken out at a time.
const PIECES_MAX: usize = 512;
/// Most slices of one vectored write (Linux takes 1,024).
const SLICES_MAX: usize = 1024;

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
    chunks: VecDeque<OutboxChunk>,
    /// Large messages, one after another.
    bulk: VecDeque<OutboxChunk>,
    /// An empty chunk whose memory is used again.
    spare: Option<BytesMut>,
    closed: bool,
}

/// Frames, and since when they wait.
struct OutboxChunk {
    bytes: BytesMut,
    since: Instant,
    /// Bytes of it that have left: the rest has to follow.
    begun: usize,
}

impl OutboxChunk {
    fn new(bytes: BytesMut) -> OutboxChunk {
        OutboxChunk {
            bytes,
            since: Instant::now(),
            begun: 0,
        }
    }

    /// True if it may be added to.
    fn has_room(&self) -> bool {
        self.bytes.len() < CHUNK_BYTES && self.since.elapsed() < WAITED_MIN
    }
}

/// The bytes that were taken out to be written, and the progress.
#[derive(Default)]
struct Writing {
    /// Seals what is taken out, where there is a secret.
    sealer: Option<Sealer>,
    rest: VecDeque<Piece>,
    /// Bytes of the first piece that the kernel has.
    done: usize,
    /// Bytes that the kernel has taken since the beginning, whoever gave them to it.
    written: u64,
}

/// The end of a round of writing.
enum Wrote {
    /// All of it.
    All,
    /// As much as is written in one go; there may be more.
    Enough,
    /// The kernel takes no more for now; what it had taken by then, since the beginning.
    Blocked(u64),
}

/// The queue before a connection's writer.
pub(crate) struct Outbox {
    frames: Mutex<Frames>,
    /// Held by whoever writes.
    writing: Mutex<Writing>,
    /// Group traffic to a peer, which outlives the connection.
    group: Option<Arc<GroupQueue>>,
    /// Wakes the writer.
    wake: Arc<Notify>,
    /// Wakes who waits for room.
    room: Notify,
    /// Bytes that wait or are being written; group traffic counts for itself.
    queued: AtomicUsize,
    queued_max: usize,
    /// The same of all connections of a server together.
    total: Arc<AtomicUsize>,
    next_request: AtomicU64,
}

impl Outbox {
    pub(crate) fn new(
        queued_max: usize,
        group: Option<Arc<GroupQueue>>,
        sealer: Option<Sealer>,
    ) -> Outbox {
        Outbox::among(Arc::default(), queued_max, group, sealer)
    }

    /// One of several that count together what waits in them.
    pub(crate) fn among(
        total: Arc<AtomicUsize>,
        queued_max: usize,
        group: Option<Arc<GroupQueue>>,
        sealer: Option<Sealer>,
    ) -> Outbox {
        Outbox {
            frames: Mutex::default(),
            writing: Mutex::new(Writing {
                sealer,
                ..Writing::default()
            }),
            wake: group
                .as_ref()
                .map_or_else(Default::default, |group| group.wake()),
            group,
            room: Notify::new(),
            queued: AtomicUsize::new(0),
            queued_max,
            total,
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
        let weight = message.carried_bytes();
        if weight > BULK_BYTES {
            return self.put_bulk(envelope, message, weight, bytes_max);
        }
        let mut frames = self.frames.lock();
        if frames.closed {
            return Err(NotPut::Closed);
        }
        let is_first = frames.is_empty();
        let mut chunk = frames.chunk();
        let before = chunk.bytes.len();
        // Once, instead of growing under what is put in.
        chunk.bytes.reserve(weight);
        frame::encode(envelope, message, &mut chunk.bytes);
        let added = chunk.bytes.len() - before;
        let too_large = added > bytes_max.saturating_add(frames_overhead(added));
        // How large it is shows only here, unless it carries values.
        let bulk =
            (!too_large && added > BULK_BYTES).then(|| BytesMut::from(&chunk.bytes[before..]));
        if too_large || bulk.is_some() {
            chunk.bytes.truncate(before);
        }
        if !chunk.bytes.is_empty() {
            frames.chunks.push_back(chunk);
        }
        frames.bulk.extend(bulk.map(OutboxChunk::new));
        if too_large {
            return Err(NotPut::TooLarge(added));
        }
        // Before anybody can take them out: less than nothing would look full, and wake nobody.
        self.more(added);
        drop(frames);
        // Who was woken for the first takes out all.
        if is_first {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Puts a frame in behind the others. It is let go if the connection is over.
    pub(crate) fn put_frame(&self, frame: &[u8]) {
        let mut frames = self.frames.lock();
        if frames.closed {
            return;
        }
        let is_first = frames.is_empty();
        let added = frame.len();
        if added > BULK_BYTES {
            frames
                .bulk
                .push_back(OutboxChunk::new(BytesMut::from(frame)));
        } else {
            // Behind the others, as its own memory may be far more than its bytes.
            let mut chunk = frames.chunk();
            chunk.bytes.reserve(added);
            chunk.bytes.extend_from_slice(frame);
            frames.chunks.push_back(chunk);
        }
        self.more(added);
        drop(frames);
        if is_first {
            self.wake.notify_one();
        }
    }

    /// A large message is encoded outside the lock: others have something to say meanwhile.
    fn put_bulk(
        &self,
        envelope: Envelope,
        message: &Message,
        weight: usize,
        bytes_max: usize,
    ) -> Result<(), NotPut> {
        let mut bytes = BytesMut::with_capacity(weight + frames_overhead(weight) + FIELDS_BYTES);
        frame::encode(envelope, message, &mut bytes);
        let added = bytes.len();
        if added > bytes_max.saturating_add(frames_overhead(added)) {
            return Err(NotPut::TooLarge(added));
        }
        let mut frames = self.frames.lock();
        if frames.closed {
            return Err(NotPut::Closed);
        }
        let is_first = frames.is_empty();
        frames.bulk.push_back(OutboxChunk::new(bytes));
        self.more(added);
        drop(frames);
        if is_first {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Bytes that wait here or are being written.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// True if no more should be put in for now.
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
        frames.bulk.clear();
        drop(frames);
        self.room.notify_waiters();
        self.wake.notify_one();
    }

    /// True if the connection is over.
    pub(crate) fn is_closed(&self) -> bool {
        self.frames.lock().closed
    }

    /// Waits until it is.
    pub(crate) async fn closed(&self) {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if self.is_closed() {
                return;
            }
            room.await;
        }
    }

    /// True if all that was put in has been written.
    pub(crate) fn is_empty(&self) -> bool {
        self.queued.load(Ordering::Relaxed) == 0
    }

    /// Takes out what is to be written next: the small messages, the group's, and a frame of a large one.
    fn take(&self, pieces: &mut VecDeque<Piece>) {
        let mut late = 0;
        let mut taken = 0;
        let mut frames = self.frames.lock();
        while taken < TAKE_BYTES
            && pieces.len() < PIECES_MAX / 2
            && let Some(chunk) = frames.chunks.pop_front()
        {
            let before = chunk.bytes.len();
            let bytes = aged(chunk.bytes, chunk.since.elapsed());
            late += before - bytes.len();
            taken += before;
            if !bytes.is_empty() {
                pieces.push_back(Piece::frames(bytes));
            }
        }
        let (mut bulk, mut room) = (Vec::new(), BULK_TAKE_BYTES);
        while let Some(piece) = frames.next_bulk(room, &mut late) {
            room = room.saturating_sub(piece.len());
            bulk.push(piece);
        }
        drop(frames);
        if let Some(group) = &self.group {
            group.take(PIECES_MAX / 2, TAKE_BYTES, || self.next_request(), pieces);
        }
        pieces.extend(bulk);
        if late > 0 {
            self.less(late);
        }
    }

    fn nothing_waits(&self) -> bool {
        let group = self.group.as_ref();
        self.frames.lock().is_empty() && group.is_none_or(|group| group.is_empty())
    }

    /// So many bytes wait.
    fn more(&self, bytes: usize) {
        self.queued.fetch_add(bytes, Ordering::Relaxed);
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that wait in this and in those that count with it.
    pub(crate) fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    /// So many bytes wait no longer.
    fn less(&self, bytes: usize) {
        self.total.fetch_sub(bytes, Ordering::Relaxed);
        let before = self.queued.fetch_sub(bytes, Ordering::Relaxed);
        if before >= self.queued_max && before - bytes < self.queued_max {
            self.room.notify_waiters();
        }
    }

    fn written(&self, mut piece: Piece) {
        if piece.is_group() {
            if let Some(group) = &self.group {
                group.take_back(piece.body);
            }
            return;
        }
        self.less(piece.counts);
        // It is kept for as long as the connection lasts. A short frame of a large message shares the memory of all of it.
        if !piece.bulk && piece.body.capacity() <= SPARE_BYTES {
            piece.body.clear();
            self.frames.lock().spare = Some(piece.body);
        }
    }

    /// Writes what was put in, as far as the kernel takes it at once.
    fn write_some(&self, writing: &mut Writing, socket: &OwnedWriteHalf) -> io::Result<Wrote> {
        let mut taken = false;
        loop {
            if writing.rest.is_empty() {
                if !std::mem::replace(&mut taken, true) {
                    self.take(&mut writing.rest);
                    writing.seal();
                }
                // Taken before, or all of it was late: there may be more behind it.
                if writing.rest.is_empty() {
                    return Ok(match self.nothing_waits() {
                        true => Wrote::All,
                        false => Wrote::Enough,
                    });
                }
            }
            match socket.try_write_vectored(&writing.slices()) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    crate::traffic::sent(bytes);
                    writing.advance(bytes, |piece| self.written(piece));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Wrote::Blocked(writing.written));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes on the caller's thread what the kernel takes at once, and leaves the rest, and any
    /// trouble, to the writer.
    pub(crate) fn write_now(&self, socket: &OwnedWriteHalf) {
        let all = match self.writing.try_lock() {
            Some(mut writing) => {
                matches!(self.write_some(&mut writing, socket), Ok(Wrote::All))
            }
            None => false,
        };
        if !all {
            self.wake.notify_one();
        }
    }

    /// Writes a last word behind what was begun, if the kernel takes it at once.
    pub(crate) fn write_last(&self, socket: &OwnedWriteHalf, frame: BytesMut) {
        let mut writing = self.writing.lock();
        writing.rest.push_back(Piece::bulk(frame));
        writing.seal();
        // If it fails, the other side has left.
        let _ = socket.try_write_vectored(&writing.slices());
    }

    /// Writes whatever is put in, until writing fails or no progress is made for `stall_max`: neither
    /// here nor by whoever writes on a thread of its own.
    pub(crate) async fn run(&self, socket: &OwnedWriteHalf, stall_max: Duration) -> io::Error {
        // How many bytes the kernel had taken when it took no more, and since when.
        let mut stalled_at = None;
        loop {
            let wrote = self.write_some(&mut self.writing.lock(), socket);
            match wrote {
                Ok(Wrote::All) => {
                    stalled_at = None;
                    self.wake.notified().await;
                    end_of_turn().await;
                }
                Ok(Wrote::Enough) => {
                    stalled_at = None;
                    // Others have a turn before the next megabytes.
                    tokio::task::yield_now().await;
                }
                Ok(Wrote::Blocked(written)) => {
                    let since = match stalled_at {
                        Some((before, since)) if before == written => since,
                        _ => stalled_at.insert((written, Instant::now())).1,
                    };
                    let left = stall_max.saturating_sub(since.elapsed());
                    match tokio::time::timeout(left, socket.writable()).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => return error,
                        Err(_) if self.writing.lock().written > written => {}
                        Err(_) => return stalled(stall_max),
                    }
                }
                Err(error) => return error,
            }
        }
    }
}

fn stalled(stall_max: Duration) -> io::Error {
    let text = format!(
        "the other side took nothing for {} ms",
        stall_max.as_millis()
    );
    io::Error::new(io::ErrorKind::TimedOut, text)
}

impl Writing {
    /// Seals what is in `rest` and is not sealed yet.
    fn seal(&mut self) {
        if let Some(sealer) = &mut self.sealer {
            for piece in self.rest.iter_mut().filter(|p| p.seals.is_empty()) {
                let seals = piece.records().map(|parts| sealer.seal(parts)).collect();
                piece.seals = seals;
            }
        }
    }

    fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut slices = Vec::with_capacity(self.rest.len() * 2);
        let mut skip = self.done;
        for piece in &self.rest {
            for part in piece.parts() {
                let skipped = skip.min(part.len());
                skip -= skipped;
                if skipped < part.len() {
                    slices.push(IoSlice::new(&part[skipped..]));
                }
            }
        }
        slices.truncate(SLICES_MAX);
        slices
    }

    fn advance(&mut self, bytes: usize, mut written: impl FnMut(Piece)) {
        self.done += bytes;
        self.written += bytes as u64;
        while let Some(first) = self.rest.front() {
            if self.done < first.len() {
                return;
            }
            self.done -= first.len();
            if let Some(piece) = self.rest.pop_front() {
                written(piece);
            }
        }
    }
}

impl Frames {
    /// The chunk that the next message is put in, and that goes back behind the others then.
    fn chunk(&mut self) -> OutboxChunk {
        match self.chunks.back() {
            Some(last) if last.has_room() => self.chunks.pop_back(),
            _ => None,
        }
        .unwrap_or_else(|| OutboxChunk::new(self.spare.take().unwrap_or_default()))
    }

    fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.bulk.is_empty()
    }

    /// The next frame of the large message whose turn it is, if it fits. Those whose deadline passed before they
    /// began are let go, and counted.
    fn next_bulk(&mut self, room: usize, late: &mut usize) -> Option<Piece> {
        loop {
            let front = self.bulk.front_mut()?;
            let end = match front.bytes.first_chunk().map(Header::decode) {
                Some(Ok(header)) => HEADER_BYTES + header.body_len as usize,
                // What was encoded here decodes; were it not so, it had to leave as it is.
                _ => front.bytes.len(),
            };
            let end = end.min(front.bytes.len());
            if end > room && room < BULK_TAKE_BYTES {
                return None;
            }
            let mut frame = front.bytes.split_to(end);
            let before = frame.len();
            if front.begun == 0 {
                frame = aged(frame, front.since.elapsed());
                if frame.is_empty() {
                    *late += before + front.bytes.len();
                    self.bulk.pop_front();
                    continue;
                }
            }
            front.begun += before;
            let mut piece = Piece::bulk(frame);
            // The memory of all of it is held until the last frame is written.
            if front.bytes.is_empty() {
                piece.counts = front.begun;
                self.bulk.pop_front();
            }
            return Some(piece);
        }
    }
}

/// Frames after they have waited: the deadlines that they say are nearer by that, and those of which it
/// has passed are gone. A message's frames all say the same, so they go together.
fn aged(frames: BytesMut, waited: Duration) -> BytesMut {
    if waited < WAITED_MIN {
        return frames;
    }
    let waited_ms = u32::try_from(waited.as_millis()).unwrap_or(u32::MAX);
    let mut kept = BytesMut::with_capacity(frames.len());
    let mut rest = &frames[..];
    while let Some(Ok(mut header)) = rest.first_chunk().map(Header::decode) {
        let (frame, behind) = rest.split_at(HEADER_BYTES + header.body_len as usize);
        rest = behind;
        if header.deadline_ms == 0 {
            kept.put_slice(frame);
        } else if header.deadline_ms > waited_ms {
            header.deadline_ms -= waited_ms;
            kept.put_slice(&header.encode());
            kept.put_slice(&frame[HEADER_BYTES..]);
        }
    }
    kept
}

/// The bytes of headers for a message with `encoded` bytes; the limit is on the body.
fn frames_overhead(encoded: usize) -> usize {
    encoded.div_ceil(frame::FRAME_BODY_MAX + HEADER_BYTES) * HEADER_BYTES
}

/// Bytes on their way out: a chunk of frames, or the body of a group frame and its header before it.
pub(crate) struct Piece {
    header: Option<[u8; HEADER_BYTES]>,
    body: BytesMut,
    /// The seals before its records, if they are sealed.
    seals: Vec<[u8; SEAL_BYTES]>,
    /// Of a large message.
    bulk: bool,
    /// Bytes that wait no longer once it is written.
    counts: usize,
}

impl Piece {
    fn frames(body: BytesMut) -> Piece {
        Piece {
            header: None,
            counts: body.len(),
            body,
            seals: Vec::new(),
            bulk: false,
        }
    }

    fn bulk(body: BytesMut) -> Piece {
        Piece {
            bulk: true,
            counts: 0,
            ..Piece::frames(body)
        }
    }

    /// A frame of group traffic.
    pub(crate) fn group(request: u64, more: bool, body: BytesMut) -> Piece {
        Piece {
            header: Some(frame::group_header(request, more, &body)),
            body,
            seals: Vec::new(),
            bulk: false,
            counts: 0,
        }
    }

    fn is_group(&self) -> bool {
        self.header.is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.seals.len() * SEAL_BYTES + self.bare_len()
    }

    /// Its bytes without the seals.
    fn bare_len(&self) -> usize {
        self.header.map_or(0, |h| h.len()) + self.body.len()
    }

    /// Its bytes from one place to another.
    fn range(&self, from: usize, to: usize) -> [&[u8]; 2] {
        let header = self.header.as_ref().map_or(&[][..], |h| &h[..]);
        let of = |part: &'_ [u8], begins: usize| {
            let clamp = |at: usize| at.saturating_sub(begins).min(part.len());
            clamp(from)..clamp(to)
        };
        [
            &header[of(header, 0)],
            &self.body[of(&self.body, header.len())],
        ]
    }

    /// Its bytes, record by record, without the seals.
    fn records(&self) -> impl Iterator<Item = [&[u8]; 2]> {
        let records = (0..self.bare_len()).step_by(RECORD_BYTES_MAX);
        records.map(|from| self.range(from, from + RECORD_BYTES_MAX))
    }

    /// All that is written of it, in order.
    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let whole = self.seals.is_empty().then(|| self.range(0, usize::MAX));
        let records = self.seals.iter().zip(self.records());
        let sealed = records.flat_map(|(seal, [header, body])| [&seal[..], header, body]);
        whole.into_iter().flatten().chain(sealed)
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        // What was never written waits no longer.
        let left = self.queued.load(Ordering::Relaxed);
        self.total.fetch_sub(left, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
