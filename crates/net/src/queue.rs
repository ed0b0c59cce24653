//! Group traffic to one peer: encoded as it is said, coalesced, bounded, and the oldest of it let go
//! when there is too much. The group protocol bears the loss of any message, and says again what
//! matters; what is old has been overtaken.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::BytesMut;
use parking_lot::Mutex;
use staves_wire::frame::FRAME_BODY_MAX;
use staves_wire::group::GroupEnvelope;
use tokio::sync::Notify;

use crate::outbox::Piece;

/// A block that has reached this many bytes is not added to. A block is one frame, unless one
/// envelope by itself is larger.
const BLOCK_BYTES: usize = 256 << 10;

struct Block {
    bytes: BytesMut,
    envelopes: u64,
}

#[derive(Default)]
struct Blocks {
    queue: VecDeque<Block>,
    bytes: usize,
    sent: u64,
    dropped: u64,
}

/// The queue. It outlives connections.
pub(crate) struct GroupQueue {
    blocks: Mutex<Blocks>,
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
    pub(crate) dropped: u64,
}

impl GroupQueue {
    pub(crate) fn new(bytes_max: usize) -> GroupQueue {
        GroupQueue {
            blocks: Mutex::default(),
            bytes_max,
            wake: Arc::default(),
            unsaid: AtomicBool::new(false),
        }
    }

    /// What wakes the writer.
    pub(crate) fn wake(&self) -> Arc<Notify> {
        self.wake.clone()
    }

    /// Puts an envelope in, and lets the oldest go if that makes too much. The writer is not woken:
    /// whoever puts in sees to that ([`GroupQueue::take_unsaid`]) once it has said all.
    pub(crate) fn put(&self, envelope: &GroupEnvelope) {
        let mut blocks = self.blocks.lock();
        let mut block = match blocks.queue.back() {
            Some(block) if block.bytes.len() < BLOCK_BYTES => blocks.queue.pop_back(),
            _ => None,
        }
        .unwrap_or(Block {
            bytes: BytesMut::new(),
            envelopes: 0,
        });
        let before = block.bytes.len();
        envelope.encode(&mut block.bytes);
        block.envelopes += 1;
        blocks.bytes += block.bytes.len() - before;
        blocks.queue.push_back(block);
        while blocks.bytes > self.bytes_max && blocks.queue.len() > 1 {
            let oldest = blocks.queue.pop_front();
            blocks.let_go(oldest);
        }
        drop(blocks);
        self.unsaid.store(true, Ordering::Release);
    }

    /// Whether anything was put in since this was last asked.
    pub(crate) fn take_unsaid(&self) -> bool {
        self.unsaid.load(Ordering::Relaxed) && self.unsaid.swap(false, Ordering::Acquire)
    }

    /// Lets all of it go: the peer cannot be reached, and by the time that it can, this is old.
    pub(crate) fn clear(&self) {
        let mut blocks = self.blocks.lock();
        while let Some(block) = blocks.queue.pop_front() {
            blocks.let_go(Some(block));
        }
    }

    /// Takes up to `pieces_max` frames to write, with their headers. A block is always taken whole.
    pub(crate) fn take(
        &self,
        pieces_max: usize,
        mut next_request: impl FnMut() -> u64,
        out: &mut VecDeque<Piece>,
    ) {
        let full = out.len() + pieces_max;
        while out.len() < full {
            let mut blocks = self.blocks.lock();
            let Some(block) = blocks.queue.pop_front() else {
                return;
            };
            blocks.bytes -= block.bytes.len();
            blocks.sent += block.envelopes;
            // The checksums are computed outside the lock.
            drop(blocks);
            let request = next_request();
            let mut body = block.bytes;
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
            dropped: blocks.dropped,
        }
    }
}

impl Blocks {
    fn let_go(&mut self, block: Option<Block>) {
        if let Some(block) = block {
            self.bytes -= block.bytes.len();
            self.dropped += block.envelopes;
        }
    }
}
