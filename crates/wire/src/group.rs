//! Messages of the group protocol (docs/reference/group-protocol.md): the structs that `staves-group` steps on.

mod codec;
mod record;

use bytes::Bytes;
use staves_model::{ClientId, DiskId, Epoch, Group, GroupId, Label, MemberId, MemberSlot, Time};
use std::sync::Arc;

pub use record::{JournalRecord, MemberRecord, MemberSnapshot, SnapshotStream};

/// A client's name for one of its requests. A retry carries the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId {
    /// The client.
    pub client: ClientId,
    /// The client's own number for it, from 1, growing.
    pub number: u64,
    /// Every request of this client below this number has been answered to it: members may forget them.
    pub floor: u64,
}

/// The effect of a delta's run on its byte range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunKind {
    /// m = 1: puts the delta's next `len` bytes. m > 1: XORs them (times the coefficient, at parity).
    Bytes,
    /// m = 1 only: the range (whole extents) becomes zero and its memory is given back. Carries no bytes.
    /// With m > 1 what is there is taken out of parity, as `Bytes`.
    Zero,
}

/// One byte range that a delta touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Byte offset in the bucket.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// Put, or zero.
    pub kind: RunKind,
}

/// One logged update: all its runs take effect together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delta {
    /// Epoch and number; never changed.
    pub label: Label,
    /// The request that it fulfils, if the client is answered for this delta.
    pub request: Option<RequestId>,
    /// The answer, kept in the request table for retries.
    pub answer: Bytes,
    /// The byte ranges, in order.
    pub runs: Vec<Run>,
    /// The bytes of its `Bytes` runs, one after another.
    pub bytes: Bytes,
}

impl Delta {
    /// The delta's share of a log's bound, in bytes.
    pub fn weight(&self) -> usize {
        64 + self.runs.len() * 16 + self.bytes.len() + self.answer.len()
    }
}

/// An entry of a stream's request table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DoneRequest {
    /// Client and number; `floor` as the client last gave it.
    pub request: RequestId,
    /// The delta that did it.
    pub seq: u64,
    /// Its answer.
    pub answer: Bytes,
}

/// A sealed member's part of one data bucket's stream (GROUP rule 8).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SealedStream {
    /// The data bucket's member slot in the last open epoch.
    pub stream: u8,
    /// Every delta up to here was received.
    pub prefix: u64,
    /// The log: the deltas it still has, gaps and all, in order of seq.
    pub deltas: Vec<Delta>,
    /// The request table as of `prefix`.
    pub requests: Vec<DoneRequest>,
    /// The request table has dropped an entry that its client had not released.
    pub forgot: bool,
}

/// The part of one stream that a member needs to stand at the cut (GROUP rule 10).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SyncStream {
    /// The data bucket's member slot.
    pub stream: u8,
    /// The cut: the last seq that is kept.
    pub cut: u64,
    /// Deltas up to the cut that members may lack.
    pub deltas: Vec<Delta>,
    /// The request table as of the cut.
    pub requests: Vec<DoneRequest>,
    /// See `SealedStream::forgot`.
    pub forgot: bool,
}

/// One page, or its absence, on its way to a joiner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PagePart {
    /// Page index in the bucket.
    pub page: u32,
    /// The label of each stream, as far as this member's page says something of it.
    pub labels: Labels,
    /// The page's content.
    pub content: PageContent,
}

/// A page's label of each stream, if it has one. A data bucket's page knows its own stream only, and there
/// are hundreds of thousands of such pages a second: it takes no memory but its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Labels(Known);

/// One value has one form: `All` where not just one label is known.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Known {
    One {
        stream: usize,
        label: Label,
        streams: usize,
    },
    All(Vec<Option<Label>>),
}

impl Labels {
    /// The labels of a page of one data bucket of so many.
    pub fn of_one(stream: usize, label: Label, streams: usize) -> Labels {
        assert!(stream < streams, "stream {stream} of {streams}");
        Labels(Known::One {
            stream,
            label,
            streams,
        })
    }

    /// Streams, those of which nothing is known among them.
    pub fn streams(&self) -> usize {
        match &self.0 {
            Known::One { streams, .. } => *streams,
            Known::All(labels) => labels.len(),
        }
    }

    /// A stream's label, if it is known.
    pub fn get(&self, stream: usize) -> Option<Label> {
        match &self.0 {
            Known::One {
                stream: one, label, ..
            } => (*one == stream).then_some(*label),
            Known::All(labels) => labels.get(stream).copied().flatten(),
        }
    }

    /// Of each stream in order.
    pub fn iter(&self) -> impl Iterator<Item = Option<Label>> + '_ {
        (0..self.streams()).map(|stream| self.get(stream))
    }
}

impl From<Vec<Option<Label>>> for Labels {
    fn from(labels: Vec<Option<Label>>) -> Labels {
        let mut known = labels.iter().enumerate();
        let mut known = known.by_ref().filter_map(|(s, label)| Some((s, (*label)?)));
        match (known.next(), known.next()) {
            (Some((stream, label)), None) => Labels::of_one(stream, label, labels.len()),
            _ => Labels(Known::All(labels)),
        }
    }
}

/// The content of a page, as a giver sends it to a joiner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PageContent {
    /// All zero.
    Zero,
    /// Just what the joiner holds under the labels that it named (GROUP rule 17).
    Held,
    /// These 4,096 bytes.
    Bytes(Bytes),
}

/// A message of the group protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupMessage {
    /// Data to parity. With no delta it is the heartbeat.
    Deltas {
        /// The data bucket's member slot.
        stream: u8,
        /// In order of seq.
        deltas: Vec<Delta>,
        /// Updates up to here may be answered and applied.
        stable: u64,
        /// Every listed member has synced up to here: purge it.
        purgeable: u64,
        /// The data bucket's last seq: a parity that is behind it asks for the gap.
        last: u64,
        /// The sender's clock, echoed by the ack.
        clock: Time,
        /// The extents that the bucket wants reserved at every member.
        want_extents: u32,
    },
    /// Parity to data.
    Ack {
        /// The parity's member slot.
        slot: MemberSlot,
        /// The data bucket of the stream.
        stream: u8,
        /// Every delta up to here was received.
        prefix: u64,
        /// Every delta up to here is on stable storage; in memory the same as `prefix`.
        synced: u64,
        /// There is a gap above `prefix`: send again from there.
        gap: bool,
        /// The clock of the message that this answers.
        clock: Time,
        /// "No successor of yours answers for one lease from when I sent this."
        promise: bool,
        /// The extents that this member has reserved.
        granted_extents: u32,
        /// This member has nothing left to do for the stream: unless the data bucket has something new to say, neither
        /// of the two needs to say anything more.
        rests: bool,
    },
    /// Coordinator to retained members.
    Seal {
        /// The epoch to seal for.
        group: Arc<Group>,
        /// Streams (one bit each) whose data bucket has sealed already: promises made to it are released.
        released: u32,
    },
    /// Retained member to coordinator, once its promises ran out.
    Sealed {
        /// Its member slot in the epoch being made.
        slot: MemberSlot,
        /// Its part of each stream that it keeps.
        streams: Vec<SealedStream>,
        /// Extents that it has reserved, so that joiners reserve as many as they need.
        reserved_extents: u32,
        /// It comes from its disk, and what it had reserved is forgotten: it has what its own pages need, and others' deltas may need more.
        restarted: bool,
        /// Pages that exist (the end of its page table).
        pages: u32,
    },
    /// Coordinator to all listed members.
    Sync {
        /// The epoch being made.
        group: Arc<Group>,
        /// The receiver's member slot.
        slot: MemberSlot,
        /// Per stream: the cut and what leads to it.
        streams: Vec<SyncStream>,
        /// Extents to reserve.
        reserve_extents: u32,
        /// Pages that exist at the cut.
        pages: u32,
    },
    /// Member to coordinator: it holds the cut, and parity has applied it.
    Synced {
        /// Its member slot.
        slot: MemberSlot,
        /// False: it could not reserve the memory that the bucket needs; leave it out.
        able: bool,
    },
    /// Joiner to members: give me these pages (first, and how many after it).
    Get {
        /// First page.
        page: u32,
        /// The number of pages.
        count: u32,
        /// A client waits for it.
        urgent: bool,
        /// The labels of the joiner's own old pages, `count` of them, or none if it has none (m = 1).
        held: Vec<Label>,
    },
    /// Member to joiner.
    Parts {
        /// The giver's member slot; the receiver's own for pages that the joiner which makes the pass over
        /// the sources has made for it (m > 1).
        slot: MemberSlot,
        /// The pages that it has of those asked for, or made.
        parts: Vec<PagePart>,
    },
}

impl GroupMessage {
    /// About how many bytes it takes up on the wire: never far less, if it is large.
    pub fn weight(&self) -> usize {
        const PART_BYTES: usize = 32 + staves_model::PAGE_BYTES;
        match self {
            GroupMessage::Deltas { deltas, .. } => deltas.iter().map(Delta::weight).sum(),
            GroupMessage::Parts { parts, .. } => {
                let labels = |part: &PagePart| part.labels.streams() * 17;
                parts.iter().map(|part| PART_BYTES + labels(part)).sum()
            }
            _ => 0,
        }
    }
}

/// A message with what fences it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupEnvelope {
    /// The group.
    pub group: GroupId,
    /// The sender's epoch.
    pub epoch: Epoch,
    /// The sender.
    pub from: MemberId,
    /// The receiver's disk: a node may hold two members of a group.
    pub to: DiskId,
    /// The message.
    pub message: GroupMessage,
}

/// The messages of one node to another about all groups that they share, in the order in which they were
/// said.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch(pub Vec<GroupEnvelope>);
