//! Memory as a service on groups.

use std::collections::BTreeMap;

use staves_group::Member;
use staves_model::{BUCKET_CHUNKS_MAX, CHUNK_BYTES, PAGE_BYTES, ServiceId, Time};
use staves_service::{BucketContext, BucketEffects, KeyHash, Limits, OpHeader, Outcome, Service};
use staves_wire::DecodeError;
use staves_wire::memory::{Action, ChunkBits};
use staves_wire::service::{Address, Answer, Body};

use crate::places::Places;
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
    /// Bytes were zeroed since the last look for what can be given back.
    pub(crate) freed: bool,
    pub(crate) places: Places,
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

    /// Bytes of the chunks that were ever written, of all images, as far as a serving member knows; what several have counts once.
    pub fn written_bytes(member: &Member) -> u64 {
        let table = member.table().filter(|_| member.serving());
        let Some(pages) = table.filter(|pages| pages.is_here(chunks::HEAD_PAGE)) else {
            return 0;
        };
        let places = match chunks::images(pages).next() {
            None => chunks::FIRST.taken(pages).count(),
            Some(_) => {
                // A mark for each place, and not a set of them: there may be a million entries, and whoever counts holds the bucket.
                let mut marks = vec![false; usize::from(chunks::PLACE_MAX) + 1];
                let all = chunks::tables(pages).flat_map(|table| table.taken(pages));
                all.for_each(|(_, place)| marks[usize::from(place)] = true);
                marks.iter().filter(|mark| **mark).count()
            }
        };
        places as u64 * CHUNK_BYTES
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
            Action::Write { bytes, .. }
            | Action::Load { bytes, .. }
            | Action::Put { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }

    fn malformed(&self, op: &Action) -> Option<Answer> {
        execute::malformed(op)
    }

    fn answer_bytes(&self, _member: &Member, op: &Action) -> usize {
        match op {
            Action::Read { len, .. } => *len as usize,
            Action::Allocated { .. } | Action::Changed { .. } => ChunkBits::bytes_of(op.chunks()),
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

    fn maintain(&mut self, context: &mut BucketContext, _now: Time) -> bool {
        // Not before the other members have it: they give back what they are told to.
        if self.freed && context.member().stable() == context.member().last() {
            self.freed = false;
            execute::give_back(context, &mut self.places);
        }
        self.freed
    }

    fn count(&self, member: &Member, serving: bool, add: &mut dyn FnMut(&'static str, u64)) {
        add("memory_reads", self.stats.reads);
        add("memory_writes", self.stats.writes);
        if serving {
            add("memory_written_bytes", Memory::written_bytes(member));
        }
    }

    /// Each place is that of one chunk, in whatever images, and one that is free is all zeroes.
    fn check(&self, member: &Member, serving: bool) -> Result<(), String> {
        let table = member.table().filter(|_| serving);
        let Some(table) = table.filter(|table| chunks::are_here(table)) else {
            return Ok(());
        };
        self.places.check(member, table)?;
        let mut seen: BTreeMap<u16, u32> = BTreeMap::new();
        for of in chunks::tables(table) {
            if seen.insert(of.place(), BUCKET_CHUNKS_MAX).is_some() {
                let place = of.place();
                return Err(format!("place {place} has a table, and something else"));
            }
        }
        for (chunk, place) in chunks::tables(table).flat_map(|of| of.taken(table)) {
            if *seen.entry(place).or_insert(chunk) != chunk {
                return Err(format!(
                    "chunk {chunk} has place {place}, which another has"
                ));
            }
        }
        let pages = table.pages();
        let end = pages.end_page() as u64 * PAGE_BYTES as u64 / CHUNK_BYTES;
        let free = (1..end).filter(|place| !seen.contains_key(&(*place as u16)));
        for place in free {
            let bytes = pages.slice(place * CHUNK_BYTES, CHUNK_BYTES as usize);
            let is_here = |page: u64| table.is_here(page as u32);
            let first = place * CHUNK_BYTES / PAGE_BYTES as u64;
            let all_here = (first..first + CHUNK_BYTES / PAGE_BYTES as u64).all(is_here);
            if all_here && bytes.iter().any(|b| *b != 0) {
                return Err(format!("place {place} is free, and not zero"));
            }
        }
        Ok(())
    }
}
