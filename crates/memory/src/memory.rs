//! Memory as a service on groups.

use staves_group::Member;
use staves_model::{ServiceId, Time};
use staves_service::{BucketContext, BucketEffects, KeyHash, Limits, OpHeader, Outcome, Service};
use staves_wire::DecodeError;
use staves_wire::memory::Action;
use staves_wire::service::{Address, Answer, Body};

use crate::{Bucket, chunks, execute};

/// Counters since the bucket was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Reads that were answered.
    pub reads: u64,
    /// Writes that took effect.
    pub writes: u64,
}

/// The state of one bucket of a memory pool: all of it lies in the pages.
#[derive(Default)]
pub struct Memory {
    pub(crate) stats: Stats,
}

impl Memory {
    /// A bucket of a memory pool around a member of a group.
    pub fn bucket(limits: Limits, member: Member) -> Bucket {
        Bucket::new(Memory::default(), limits, member)
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Bytes of the chunks that were ever written, as far as a serving member knows.
    pub fn written_bytes(member: &Member) -> u64 {
        let pages = member.pages().filter(|_| member.serving());
        let chunks = pages.map_or(0, |pages| chunks::taken(pages).count());
        chunks as u64 * staves_model::CHUNK_BYTES
    }
}

impl Service for Memory {
    const ID: ServiceId = ServiceId::MEMORY;
    type Op<'a> = &'a Action;
    type OwnedOp = Action;
    const FORGOTTEN: &'static str = "outcome unknown: the retry came too late to tell whether the first try took effect; read the bytes";
    const MENDABLE: bool = true;
    const EXISTS_EMPTY: bool = true;

    fn with_body<R>(body: &Body, take: impl FnOnce(&Action) -> R) -> Result<R, DecodeError> {
        Ok(take(&Action::from_body(body)?))
    }

    fn check_address(_op: &Action, to: Address) -> Result<(), String> {
        match to {
            Address::Bucket(..) => Ok(()),
            to => Err(format!("a region's bytes are not in {to}")),
        }
    }

    fn to_owned(op: &Action) -> Action {
        op.clone()
    }

    fn as_op(op: &Action) -> &Action {
        op
    }

    fn is_write(op: &Action) -> bool {
        op.is_write()
    }

    fn op_bytes(op: &Action) -> usize {
        match op {
            Action::Write { bytes, .. } | Action::Load { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }

    fn malformed(&self, op: &Action) -> Option<Answer> {
        execute::malformed(op)
    }

    fn answer_bytes(&self, _member: &Member, op: &Action) -> usize {
        match op {
            Action::Read { len, .. } => *len as usize,
            _ => 0,
        }
    }

    fn execute(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        header: &OpHeader,
        _key_hash: Option<KeyHash>,
        op: &Action,
        out: &mut BucketEffects,
    ) -> Outcome {
        self.execute_action(context, now, header, op, &mut out.effects)
    }

    fn count(&self, member: &Member, serving: bool, add: &mut dyn FnMut(&'static str, u64)) {
        add("memory_reads", self.stats.reads);
        add("memory_writes", self.stats.writes);
        if serving {
            add("memory_written_bytes", Memory::written_bytes(member));
        }
    }

    /// The places taken are the first ones, each once.
    fn check(&self, member: &Member, serving: bool) -> Result<(), String> {
        let table = member.table();
        let table_here = table.is_some_and(|t| t.is_here(chunks::TABLE_PAGE));
        let Some(pages) = member.pages().filter(|_| serving && table_here) else {
            return Ok(());
        };
        let mut places: Vec<u16> = chunks::taken(pages).map(|(_, place)| place).collect();
        places.sort_unstable();
        match places.iter().zip(1..).all(|(place, next)| *place == next) {
            true => Ok(()),
            false => Err(format!("the places taken are {places:?}")),
        }
    }
}
