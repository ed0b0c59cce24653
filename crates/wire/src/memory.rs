//! The memory service's messages: operations on the bytes of one data bucket each, in batches. Their
//! answers are those of the cache, with the same fields.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use staves_model::{ClientId, Group, GroupId, MemberSlot, Revision};

use crate::cache::{Answer, take_ops};
use crate::codec::{DecodeError, Reader, Wire, wire_enum, wire_struct};

/// What is done to the bytes of one data bucket. Offsets count from the bucket's first byte
/// (`staves_model::Place`); what is touched lies within one chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// `Value`: the bytes. What was never written reads as zeroes.
    Read {
        /// The first byte.
        offset: u64,
        /// How many; at least one.
        len: u32,
    },
    /// `Ok`.
    Write {
        /// Where the first byte goes.
        offset: u64,
        /// The bytes; at least one.
        bytes: Bytes,
    },
    /// `Int`: the word that was there, which is `expected` if and only if it was replaced.
    CompareSwap {
        /// The word's first byte, a multiple of 8.
        offset: u64,
        /// What must be there.
        expected: u64,
        /// What is there then.
        new: u64,
    },
    /// `Int`: the word that was there.
    FetchAdd {
        /// The word's first byte, a multiple of 8.
        offset: u64,
        /// What is added to it; past 64 bits it wraps around.
        by: u64,
    },
}

impl Action {
    /// Whether it may change anything, and so needs a request number.
    pub fn is_write(&self) -> bool {
        !matches!(self, Action::Read { .. })
    }

    /// The bytes that it touches: the first, and how many.
    pub fn range(&self) -> (u64, u64) {
        match self {
            Action::Read { offset, len } => (*offset, u64::from(*len)),
            Action::Write { offset, bytes } => (*offset, bytes.len() as u64),
            Action::CompareSwap { offset, .. } | Action::FetchAdd { offset, .. } => (*offset, 8),
        }
    }
}

/// One operation of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryOp {
    /// The client's number for it, the same in each retry (`RequestId::number`); 0 for a read.
    pub number: u64,
    /// The group.
    pub group: GroupId,
    /// The data bucket.
    pub slot: MemberSlot,
    /// What to do.
    pub action: Action,
}

/// A batch of operations for data buckets of one node. Each is atomic by itself; the batch is not, and
/// its operations may take effect in any order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryRequest {
    /// The map revision that the sender routed by (in the frame header's `epoch`).
    pub revision: Revision,
    /// Who asks.
    pub client: ClientId,
    /// Every request of this client below this number has been answered to it.
    pub floor: u64,
    /// An earlier try may have taken effect.
    pub retry: bool,
    /// A node passed it on for a client: it is not passed on again.
    pub forwarded: bool,
    /// The operations.
    pub ops: Vec<MemoryOp>,
}

/// The answers to a [`MemoryRequest`], in the order of its operations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryAnswers {
    /// The answering node's map revision (in the frame header's `epoch`): higher than the asker's means
    /// that there is a newer map to fetch.
    pub revision: Revision,
    /// One for each operation.
    pub answers: Vec<Answer>,
    /// The newest entries of the groups for which the request came to the wrong node.
    pub moved: Vec<Arc<Group>>,
    /// Where an answer is `forgotten`: its bucket tells new requests from forgotten ones only by numbers
    /// above this. 0 if none is.
    pub draw_above: u64,
}

// On the wire.

wire_enum!(Action {
    0 => Read { offset, len },
    1 => Write { offset, bytes },
    2 => CompareSwap { offset, expected, new },
    3 => FetchAdd { offset, by },
});

wire_struct!(MemoryOp {
    number,
    group,
    slot,
    action
});

impl Wire for MemoryRequest {
    fn put(&self, out: &mut BytesMut) {
        self.client.put(out);
        self.floor.put(out);
        self.retry.put(out);
        self.forwarded.put(out);
        self.ops.put(out);
    }

    fn take(from: &mut Reader) -> Result<MemoryRequest, DecodeError> {
        Ok(MemoryRequest {
            revision: Revision(0), // in the header
            client: Wire::take(from)?,
            floor: Wire::take(from)?,
            retry: Wire::take(from)?,
            forwarded: Wire::take(from)?,
            ops: take_ops(from)?,
        })
    }
}

impl Wire for MemoryAnswers {
    fn put(&self, out: &mut BytesMut) {
        self.answers.put(out);
        self.moved.put(out);
        self.draw_above.put(out);
    }

    fn take(from: &mut Reader) -> Result<MemoryAnswers, DecodeError> {
        Ok(MemoryAnswers {
            revision: Revision(0), // in the header
            answers: take_ops(from)?,
            moved: take_ops(from)?,
            draw_above: Wire::take(from)?,
        })
    }
}
