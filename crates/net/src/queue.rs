//! Group traffic to one peer: coalesced, bounded, and the oldest of it let go when there is too much. The group protocol
//! bears the loss of any message, and says again what matters; what is old has been overtaken.
//!
//! Small messages are encoded as they are said, one behind another. A large one waits as it is, for its bytes are those of the
//! sender's log, whoever else they go to, and is encoded when it leaves: a queue that waits takes no memory for them.
//!
//! While much waits, what is short and urgent (acknowledgements with their promises, heartbeats) goes
//! past it: a peer that is sent half a gigabyte must not lose its lease for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::BytesMut;
use parking_lot::Mutex;
use staves_wire::frame::FRAME_BODY_MAX;
use staves_wire::group::{GroupEnvelope, GroupMessage};
use tokio::sync::Notify;

use crate::outbox::Piece;

/// A block that has reached this many bytes is not added to. A block is one frame, unless one
/// envelope by itself is larger.
const BLOCK_BYTES: usize = 256 << 10;

/// A message that carries more than this is encoded when it leaves.
const ENCODED_LATE: usize = 16 << 10;

/// Room for all that a large message has beside what it carries, most often.
const FIELDS_BYTES: usize = 1 << 10;

/// While no more than this waits, everything keeps its order: it leaves in one write anyway.
const PASS_BEYOND: usize = 64 << 10;

/// Most blocks whose memory is kept.
const SPARE_MAX: usize = 2;

/// So many pages are few: a chunk of a region, for which a client may wait.
const PARTS_URGENT_MAX: usize = 16;

/// Messages that leave together.
enum Block {
    Encoded {
        bytes: BytesMut,
        envelopes: u64,
    },
    /// A large one, of about so many bytes.
    Late(Box<GroupEnvelope>, usize),
}

impl Block {
    fn len(&self) -> usize {
        match self {
            Block::Encoded { bytes, .. } => bytes.len(),
            Block::Late(_, weight) => *weight,
        }
    }

    fn envelopes(&self) -> u64 {
        match self {
            Block::Encoded { envelopes, .. } => *envelopes,
            Block::Late(..) => 1,
        }
    }

    fn into_bytes(self) -> BytesMut {
        match self {
            Block::Encoded { bytes, .. } => bytes,
            Block::Late(envelope, weight) => {
                let mut bytes = BytesMut::with_capacity(weight + FIELDS_BYTES);
                envelope.encode(&mut bytes);
                bytes
            }
        }
    }
}

#[derive(Default)]
struct Blocks {
    /// The messages that go before the others.
    urgent: VecDeque<Block>,
    queue: VecDeque<Block>,
    /// Of both.
    bytes: usize,
    /// Memory of blocks that have been written: large pieces cost much to find and to give back.
    spare: Vec<BytesMut>,
    sent: u64,
    dropped: u64,
}

/// The queue. It outlives connections.
pub(crate) struct GroupQueue {
    blocks: Mutex<Blocks>,
    frames: AtomicU64,
    bytes_max: usize,
    wake: Arc<Notify>,
    /// Something was put in, and nobody has seen to its being written.
    unsaid: AtomicBool,
}

/// Counts of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct QueueCounts {
    pub(crate) queued_bytes: usize,
    pub(crate) sent: u64,
    pub(crate) frames: u64,
    pub(crate) dropped: u64,
}

impl GroupQueue {
    pub(crate) fn new(bytes_max: usize) -> GroupQueue {
        GroupQueue {
            blocks: Mutex::default(),
            frames: AtomicU64::new(0),
            bytes_max,
            wake: Arc::default(),
            unsaid: AtomicBool::new(false),
        }
    }

    /// The signal that wakes the writer.
    pub(crate) fn wake(&self) -> Arc<Notify> {
        self.wake.clone()
    }

    /// Puts an envelope in, and lets the oldest go if that makes too much. The writer is not woken:
    /// whoever puts in sees to that ([`GroupQueue::take_unsaid`]) once it has said all.
    pub(crate) fn put(&self, envelope: &GroupEnvelope) {
        let mut guard = self.blocks.lock();
        let blocks = &mut *guard;
        let passes = blocks.bytes > PASS_BEYOND && is_urgent(&envelope.message);
        let queue = match passes {
            true => &mut blocks.urgent,
            false => &mut blocks.queue,
        };
        let weight = envelope.message.weight();
        if weight > ENCODED_LATE {
            queue.push_back(Block::Late(Box::new(envelope.clone()), weight));
            blocks.bytes += weight;
        } else {
            blocks.bytes += append(queue, &mut blocks.spare, envelope, weight);
        }
        while blocks.bytes > self.bytes_max && blocks.urgent.len() + blocks.queue.len() > 1 {
            let oldest = blocks
                .queue
                .pop_front()
                .or_else(|| blocks.urgent.pop_front());
            blocks.let_go(oldest);
        }
        drop(guard);
        self.unsaid.store(true, Ordering::Release);
    }

    /// True if anything was put in since the last call.
    pub(crate) fn take_unsaid(&self) -> bool {
        self.unsaid.load(Ordering::Relaxed) && self.unsaid.swap(false, Ordering::Acquire)
    }

    /// Takes back the memory of a block that has been written.
    pub(crate) fn take_back(&self, mut bytes: BytesMut) {
        let of_use = (BLOCK_BYTES..=2 * BLOCK_BYTES).contains(&bytes.capacity());
        let mut blocks = self.blocks.lock();
        if of_use && blocks.spare.len() < SPARE_MAX {
            bytes.clear();
            blocks.spare.push(bytes);
        }
    }

    /// True if nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.lock().bytes == 0
    }

    /// Lets all of it go: the peer cannot be reached, and by the time that it can, this is old.
    pub(crate) fn clear(&self) {
        let mut blocks = self.blocks.lock();
        while let Some(block) = blocks.next() {
            blocks.let_go(Some(block));
        }
    }

    /// Takes up to `pieces_max` frames to write, with their headers, until they have `bytes_max` bytes or
    /// more. A block is always taken whole.
    pub(crate) fn take(
        &self,
        pieces_max: usize,
        bytes_max: usize,
        mut next_request: impl FnMut() -> u64,
        out: &mut VecDeque<Piece>,
    ) {
        let full = out.len() + pieces_max;
        let mut taken = 0;
        while out.len() < full && taken < bytes_max {
            let mut blocks = self.blocks.lock();
            let Some(block) = blocks.next() else {
                return;
            };
            blocks.bytes -= block.len();
            blocks.sent += block.envelopes();
            // Checksums are computed, and large ones encoded, outside the lock.
            drop(blocks);
            let mut body = block.into_bytes();
            taken += body.len();
            let frames = body.len().div_ceil(FRAME_BODY_MAX) as u64;
            self.frames.fetch_add(frames, Ordering::Relaxed);
            let request = next_request();
            while body.len() > FRAME_BODY_MAX {
                out.push_back(Piece::group(request, true, body.split_to(FRAME_BODY_MAX)));
            }
            out.push_back(Piece::group(request, false, body));
        }
    }

    pub(crate) fn counts(&self) -> QueueCounts {
        let blocks = self.blocks.lock();
        QueueCounts {
            queued_bytes: blocks.bytes,
            sent: blocks.sent,
            frames: self.frames.load(Ordering::Relaxed),
            dropped: blocks.dropped,
        }
    }
}

/// Encodes an envelope behind the others and says how many bytes that made.
fn append(
    queue: &mut VecDeque<Block>,
    spare: &mut Vec<BytesMut>,
    envelope: &GroupEnvelope,
    weight: usize,
) -> usize {
    let has_room =
        |block: &Block| matches!(block, Block::Encoded { bytes, .. } if bytes.len() < BLOCK_BYTES);
    if !queue.back().is_some_and(has_room) {
        queue.push_back(Block::Encoded {
            bytes: spare.pop().unwrap_or_default(),
            envelopes: 0,
        });
    }
    let Some(Block::Encoded { bytes, envelopes }) = queue.back_mut() else {
        unreachable!("one that is encoded was just seen at the end, or put there");
    };
    let before = bytes.len();
    // Once, instead of growing under what is put in.
    bytes.reserve(weight);
    envelope.encode(bytes);
    *envelopes += 1;
    bytes.len() - before
}

impl Blocks {
    fn next(&mut self) -> Option<Block> {
        self.urgent.pop_front().or_else(|| self.queue.pop_front())
    }

    fn let_go(&mut self, block: Option<Block>) {
        if let Some(block) = block {
            self.bytes -= block.len();
            self.dropped += block.envelopes();
        }
    }
}

/// True for short messages that are useless if they come late. Deltas keep their order among themselves: one that
/// came before its predecessor would only be asked for again.
fn is_urgent(message: &GroupMessage) -> bool {
    match message {
        GroupMessage::Deltas { deltas, .. } => deltas.is_empty(),
        GroupMessage::Ack { .. } | GroupMessage::Seal { .. } | GroupMessage::Synced { .. } => true,
        // A client waits for these; the sweep asks for many pages at a time.
        GroupMessage::Get { urgent, .. } => *urgent,
        GroupMessage::Parts { parts, .. } => parts.len() <= PARTS_URGENT_MAX,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
