//! The key-value worlds: each node's seat holds the real service (`staves_cache::Bucket`) around its
//! member, with so little memory and so short a log that writes are refused, large values go in pieces
//! and segments are compacted within a few seconds.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use staves_cache::{Bucket, Cache, Options};
use staves_group::Member;
use staves_memory::Memory;
use staves_service::Limits;

use crate::event::Place;
use crate::kv_history::{Act, Seen};

/// Keys of a key-value world. What clients do to each: see [`crate::kv_client`].
pub const KEYS: usize = 5;
/// Bytes that a stream's log may hold: two bulky values, or a few chunks.
pub const LOG_BYTES_MAX: usize = 90_000;
/// A longer record goes in chunks.
pub const INLINE_BYTES_MAX: usize = 40_000;
/// Bytes of a chunk, each of which takes one of a node's few extents.
const CHUNK_BYTES: usize = 20_000;
/// Requests that may wait at a bucket for the copies, and as many to begin.
pub const WAITING_MAX: usize = 8;

/// The service's options: thresholds so small that every path is taken.
pub fn options() -> Options {
    Options {
        value_bytes_max: 1 << 18,
        inline_bytes_max: INLINE_BYTES_MAX,
        chunk_bytes: CHUNK_BYTES,
        chunks_per_step: 2,
        compaction_bytes_max: LOG_BYTES_MAX - 1000,
        waste_percent_max: 30,
        limits: limits(),
    }
}

/// Bounds of every service's buckets, small as well.
pub fn limits() -> Limits {
    Limits {
        waiting_max: WAITING_MAX,
        parked_max: WAITING_MAX,
        grant_wait: Duration::from_millis(120),
        refused_for: Duration::from_millis(150),
        ..Limits::default()
    }
}

/// A node's part in the group: a member alone, or one with the key-value service around it.
pub enum Seat {
    /// A member whose registers clients write directly.
    Raw(Box<Member>),
    /// The service.
    Kv(Box<Bucket>),
    /// The memory service.
    Memory(Box<staves_memory::Bucket>),
}

/// What a world's clients use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// Registers of the member itself.
    Registers,
    /// Keys and values.
    Keys,
    /// Memory.
    Memory,
}

impl Seat {
    /// A new process's.
    pub fn new(member: Member, service: Service) -> Seat {
        match service {
            Service::Registers => Seat::Raw(Box::new(member)),
            Service::Keys => Seat::Kv(Box::new(Cache::bucket(options(), member))),
            Service::Memory => Seat::Memory(Box::new(Memory::bucket(limits(), member))),
        }
    }

    /// The same around what its process held before: the service begins anew.
    pub(crate) fn begin_again(self) -> Seat {
        match self {
            Seat::Raw(member) => Seat::Raw(member),
            Seat::Kv(bucket) => Seat::new(bucket.into_member(), Service::Keys),
            Seat::Memory(bucket) => Seat::new(bucket.into_member(), Service::Memory),
        }
    }

    /// The service, in a key-value world.
    pub fn bucket(&self) -> Option<&Bucket> {
        match self {
            Seat::Raw(_) | Seat::Memory(_) => None,
            Seat::Kv(bucket) => Some(bucket),
        }
    }
}

impl Deref for Seat {
    type Target = Member;

    fn deref(&self) -> &Member {
        match self {
            Seat::Raw(member) => member,
            Seat::Kv(bucket) => bucket.member(),
            Seat::Memory(bucket) => bucket.member(),
        }
    }
}

impl DerefMut for Seat {
    fn deref_mut(&mut self) -> &mut Member {
        match self {
            Seat::Raw(member) => member,
            Seat::Kv(bucket) => bucket.member_mut(),
            Seat::Memory(bucket) => bucket.member_mut(),
        }
    }
}

/// An operation of the history.
#[derive(Clone, Debug)]
pub struct KvOperation {
    /// Which key.
    pub key: usize,
    /// What was asked.
    pub act: Act,
    /// When.
    pub called: u64,
    /// When it was answered; `None` if it never was, or nobody can tell whether it took effect.
    pub returned: Option<u64>,
    /// The life of the group that answered.
    pub life: usize,
    /// What was answered.
    pub seen: Option<Seen>,
    /// It was refused for lack of memory, so it certainly did not take effect.
    pub refused: bool,
}

impl KvOperation {
    /// One that is begun now.
    pub fn new(key: usize, act: Act, now: u64) -> KvOperation {
        KvOperation {
            key,
            act,
            called: now,
            returned: None,
            life: 0,
            seen: None,
            refused: false,
        }
    }
}

impl KvOperation {
    /// As one life of the group saw it, if it did.
    pub(crate) fn in_life(&self, span: (usize, u64, u64)) -> Option<KvOperation> {
        // Refused: it took no effect there, nor later.
        if self.refused && self.life <= span.0 {
            return None;
        }
        let (called, returned) =
            crate::loss::in_life(span, (self.called, self.returned, self.life))?;
        Some(KvOperation {
            called,
            returned,
            ..self.clone()
        })
    }
}

/// A request at a bucket that has no answer yet.
pub(crate) struct Open {
    pub client: Place,
    pub number: u64,
    pub attempt: u32,
    pub operation: usize,
    /// On the node's clock.
    pub deadline: staves_model::Time,
}

/// What a key-value world knows beside the nodes.
#[derive(Default)]
pub struct KvWorld {
    /// What clients saw.
    pub history: Vec<KvOperation>,
    /// Keys whose history was too tangled to be decided.
    pub undecided: usize,
    pub(crate) open: BTreeMap<(usize, u64), Open>,
    pub(crate) tokens: u64,
}
