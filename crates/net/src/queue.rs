//! Group traffic to one peer: encoded as it is said, coalesced, bounded, and the oldest of it let go
//! when there is too much. The group protocol bears the loss of any message, and says again what
//! matters; what is old has been overtaken.
//!
//! While much waits, what is short and urgent (acknowledgements with their promises, heartbeats) goes
//! past it: a peer that is sent half a gigabyte must not lose its lease for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::BytesMut;
use parking_lot::Mutex;
use staves_wire::frame::FRAME_BODY_MAX;
use staves_wire::group::{GroupEnvelope, GroupMessage};
use tokio::sync::Notify;

use crate::outbox::Piece;

/// A block that has reached this many bytes is not added to. A block is one frame, unless one
/// envelope by itself is larger.
const BLOCK_BYTES: usize = 256 << 10;

/// While no more than this waits, everything keeps its order: it leaves in one write anyway.
const PASS_BEYOND: usize = 64 << 10;

/// Most blocks whose memory is kept.
const SPARE_MAX: usize = 2;

/// So many pages are few: a chunk of a region, for which a client may wait.
const PARTS_URGENT_MAX: usize = 16;

#[derive(Default)]
struct Block {
    bytes: BytesMut,
    envelopes: u64,
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
    frames: u64,
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
    pub(crate) frames: u64,
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
        let full = |block: &Block| block.bytes.len() >= BLOCK_BYTES;
        if queue.back().is_none_or(full) {
            queue.push_back(Block {
                bytes: blocks.spare.pop().unwrap_or_default(),
                envelopes: 0,
            });
        }
        if let Some(block) = queue.back_mut() {
            let before = block.bytes.len();
            // Once, instead of growing under what is put in.
            block.bytes.reserve(envelope.message.weight());
            envelope.encode(&mut block.bytes);
            block.envelopes += 1;
            blocks.bytes += block.bytes.len() - before;
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
            taken += block.bytes.len();
            blocks.bytes -= block.bytes.len();
            blocks.sent += block.envelopes;
            blocks.frames += block.bytes.len().div_ceil(FRAME_BODY_MAX) as u64;
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
            frames: blocks.frames,
            dropped: blocks.dropped,
        }
    }
}

impl Blocks {
    fn next(&mut self) -> Option<Block> {
        self.urgent.pop_front().or_else(|| self.queue.pop_front())
    }

    fn let_go(&mut self, block: Option<Block>) {
        if let Some(block) = block {
            self.bytes -= block.bytes.len();
            self.dropped += block.envelopes;
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
mod tests {
    use super::*;
    use bytes::Bytes;
    use staves_model::{
        DiskId, Epoch, GroupId, Incarnation, Label, MemberId, MemberSlot, NodeId, Time,
    };
    use staves_wire::group::{Delta, PageContent, PagePart};

    fn envelope(message: GroupMessage) -> GroupEnvelope {
        GroupEnvelope {
            group: GroupId(1),
            epoch: Epoch(1),
            from: MemberId::new(NodeId(2), Incarnation(2)),
            to: DiskId::MEMORY,
            message,
        }
    }

    fn delta(len: usize) -> GroupEnvelope {
        let label = Label {
            epoch: Epoch(1),
            seq: 1,
        };
        let delta = Delta {
            label,
            request: None,
            answer: Bytes::new(),
            runs: Vec::new(),
            bytes: Bytes::from(vec![1; len]),
        };
        envelope(GroupMessage::Deltas {
            stream: 0,
            deltas: vec![delta],
            stable: 0,
            purgeable: 0,
            last: 1,
            clock: Time(1),
            want_extents: 0,
        })
    }

    fn ack() -> GroupEnvelope {
        envelope(GroupMessage::Ack {
            slot: MemberSlot(1),
            stream: 0,
            prefix: 1,
            synced: 1,
            gap: false,
            clock: Time(1),
            promise: true,
            granted_extents: 0,
            rests: false,
        })
    }

    /// The lengths of the pieces that are taken.
    fn taken(queue: &GroupQueue, bytes_max: usize) -> Vec<usize> {
        let mut out = VecDeque::new();
        queue.take(100, bytes_max, || 1, &mut out);
        out.iter().map(Piece::len).collect()
    }

    #[test]
    fn a_promise_does_not_wait_behind_megabytes() {
        let queue = GroupQueue::new(64 << 20);
        (0..8).for_each(|_| queue.put(&delta(1 << 20)));
        queue.put(&ack());
        queue.put(&ack());
        let all = taken(&queue, usize::MAX);
        assert!(all[0] < 1000, "{all:?}");
        assert!(all[1..].iter().sum::<usize>() > 8 << 20, "{all:?}");
        assert_eq!(queue.counts().queued_bytes, 0);
        assert_eq!(queue.counts().sent, 10);
    }

    #[test]
    fn pages_that_a_client_waits_for_pass_those_of_the_sweep() {
        let queue = GroupQueue::new(64 << 20);
        let parts = |count: u32| {
            let part = |page| PagePart {
                page,
                labels: vec![None; 4].into(),
                content: PageContent::Bytes(Bytes::from(vec![1; staves_model::PAGE_BYTES])),
            };
            envelope(GroupMessage::Parts {
                slot: MemberSlot(1),
                parts: (0..count).map(part).collect(),
            })
        };
        (0..8).for_each(|_| queue.put(&parts(64)));
        queue.put(&parts(1));
        let all = taken(&queue, usize::MAX);
        assert!((4096..5000).contains(&all[0]), "{all:?}");
        assert!(all[1..].iter().all(|len| *len > 64 * 4096), "{all:?}");
    }

    #[test]
    fn no_more_is_taken_at_a_time_than_asked_for() {
        let queue = GroupQueue::new(64 << 20);
        (0..8).for_each(|_| queue.put(&delta(1 << 20)));
        let first: usize = taken(&queue, 1 << 20).iter().sum();
        assert!(first < 3 << 20, "{first}");
        assert_eq!(taken(&queue, usize::MAX).len(), 14, "two pieces each");
    }

    #[test]
    fn the_urgent_is_bounded_too_and_goes_last() {
        let queue = GroupQueue::new(1 << 20);
        queue.put(&delta(1 << 19));
        while queue.counts().dropped == 0 {
            queue.put(&ack());
        }
        assert!(queue.counts().queued_bytes <= 1 << 20);
        assert_eq!(queue.counts().dropped, 1, "the large one");
    }
}
