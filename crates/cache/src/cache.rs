//! The cache as a service on groups: the index over a bucket's pages, and what an operation does to them.

use bytes::Bytes;
use staves_group::Member;
use staves_model::mutant::{Mutant, planted};
use staves_model::{ServiceId, Time};
use staves_service::{
    AnswerRef, BucketContext, BucketEffects, KeyHash, OpHeader, Outcome, Refused, Service,
};
use staves_store::Pages;
use staves_wire::DecodeError;
use staves_wire::cache::{Op, OwnedOp};
use staves_wire::group::Delta;
use staves_wire::service::{Address, Answer, Body};

use crate::command::{self, Verdict};
use crate::edit::Edit;
use crate::kv::{Kv, Value, record_at};
use crate::large::LargeWrite;
use crate::write::NewValue;
use crate::{Bucket, Options};

/// Counters since the bucket was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Reads.
    pub reads: u64,
    /// Reads (`Get`) that found a value.
    pub hits: u64,
    /// Writes that took effect.
    pub writes: u64,
    /// Those of them that wrote a record over the one before it.
    pub in_place: u64,
    /// Compactions.
    pub compactions: u64,
}

/// The state of one bucket of a cache pool.
pub struct Cache {
    pub(crate) options: Options,
    pub(crate) kv: Kv,
    /// The pages that `kv` indexes; `None` while pages are being fetched.
    indexed: Option<u64>,
    pub(crate) large: Option<LargeWrite>,
    /// Chunks of large values that were given up.
    pub(crate) orphans: Vec<u32>,
    /// The log had no room for giving them back.
    pub(crate) orphans_wait: bool,
    /// The memory of the last edit, for the next.
    pub(crate) spare_edit: Edit,
    pub(crate) stats: Stats,
}

impl Cache {
    /// A bucket of a cache pool around a member of a group.
    pub fn bucket(options: Options, member: Member) -> Bucket {
        let limits = options.limits.clone();
        let cache = Cache {
            options,
            kv: Kv::default(),
            indexed: None,
            large: None,
            orphans: Vec::new(),
            orphans_wait: false,
            spare_edit: Edit::default(),
            stats: Stats::default(),
        };
        Bucket::new(cache, limits, member)
    }

    /// Every key with its value, in order; nothing while pages are being fetched. Copies them all: for the
    /// simulator and for tests.
    pub fn entries(&self, member: &Member) -> Vec<(Bytes, Bytes)> {
        let Some(pages) = self.indexed_pages(member) else {
            return Vec::new();
        };
        let entry = |(key_hash, offset): (KeyHash, u64)| {
            let key = record_at(pages, offset)?.key;
            let value = self.kv.find(pages, key_hash, key)?.value.to_bytes();
            Some((Bytes::copy_from_slice(key), value))
        };
        let sorted = self.kv.index.sorted();
        let mut all: Vec<_> = sorted.into_iter().filter_map(entry).collect();
        all.sort_unstable();
        all
    }

    /// Keys, as far as this member knows.
    pub fn keys(&self) -> u64 {
        self.kv.count()
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> u64 {
        self.kv.payload()
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    fn indexed_pages<'p>(&self, member: &'p Member) -> Option<&'p Pages> {
        member.pages().filter(|_| self.indexed.is_some())
    }
}

impl Service for Cache {
    const ID: ServiceId = ServiceId::CACHE;
    type Op<'a> = Op<'a>;
    type OwnedOp = OwnedOp;
    const FORGOTTEN: &'static str = "ERR outcome unknown: the retry came too late to tell whether the first try took effect; read the key";
    const MENDABLE: bool = false;
    const EXISTS_EMPTY: bool = false;

    fn with_body<R>(body: &Body, take: impl FnOnce(Op<'_>) -> R) -> Result<R, DecodeError> {
        Ok(take(Op::from_body(body)?))
    }

    fn check_address(op: Op<'_>, to: Address) -> Result<(), String> {
        match Address::Slot(op.slot()) == to {
            true => Ok(()),
            false => Err(format!("the key is not in {to}")),
        }
    }

    fn to_owned(op: Op<'_>) -> OwnedOp {
        op.to_owned()
    }

    fn as_op(op: &OwnedOp) -> Op<'_> {
        op.as_op()
    }

    #[inline]
    fn is_write(op: Op<'_>) -> bool {
        op.is_write()
    }

    fn op_bytes(op: Op<'_>) -> usize {
        op.key().len() + op.value().map_or(0, <[u8]>::len)
    }

    #[inline]
    fn key_hash(op: Op<'_>) -> Option<KeyHash> {
        Some(KeyHash::of(op.key()))
    }

    fn malformed(&self, op: Op<'_>) -> Option<Answer> {
        command::too_large(&op, self.options.value_bytes_max)
    }

    fn answer_bytes(&self, member: &Member, op: Op<'_>) -> usize {
        let (Op::Get { key }
        | Op::GetDel { key }
        | Op::Set {
            key, get_old: true, ..
        }) = op
        else {
            return 0;
        };
        let pages = self.indexed_pages(member);
        let found = pages.and_then(|pages| self.kv.find(pages, KeyHash::of(key), key));
        found.map_or(0, |found| found.value.len())
    }

    #[inline]
    fn read_in_place<'p>(
        &mut self,
        member: &'p Member,
        key_hash: Option<KeyHash>,
        op: Op<'_>,
    ) -> Option<AnswerRef<'p>> {
        let (Op::Get { key }, Some(key_hash)) = (op, key_hash) else {
            return None;
        };
        let answer = match self
            .kv
            .find(member.pages()?, key_hash, key)
            .map(|f| f.value)
        {
            None => AnswerRef::Nil,
            Some(Value::Inline(bytes)) => AnswerRef::Value(bytes),
            Some(Value::Large(..)) => return None,
        };
        self.stats.reads += 1;
        self.stats.hits += u64::from(answer != AnswerRef::Nil);
        Some(answer)
    }

    fn execute(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        header: &OpHeader,
        key_hash: Option<KeyHash>,
        op: Op<'_>,
        out: &mut BucketEffects,
    ) -> Outcome {
        if op.is_write()
            && let Some(again) = context.recall(header)
        {
            return again;
        }
        let key_hash = key_hash.unwrap_or_else(|| KeyHash::of(op.key()));
        // A write that changes nothing goes through the stream like any other: its answer is then known
        // to every copy, and a second copy of the request that comes late does not take effect after all.
        let kept = op.is_write() && header.request.is_some() && !planted(Mutant::NoOpNotRemembered);
        let may_read = |context: &BucketContext| kept || context.member().may_read(now);
        if !op.is_write() && !may_read(context) {
            return Outcome::Blocked { starved: false };
        }
        if let Some(stop) = self.stops_append(context, now, header, key_hash, op, kept) {
            return stop;
        }
        let Some(pages) = context.member().pages() else {
            return Outcome::Refuse(Refused::NotServing);
        };
        let found = self.kv.find(pages, key_hash, op.key());
        let old = found.map(|found| found.place);
        let value = found.map(|found| found.value);
        let key = op.key();
        let new = NewValue { key_hash, key, old };
        match command::decide(&op, value, self.options.value_bytes_max) {
            Verdict::Keep(_) if !may_read(context) => Outcome::Blocked { starved: false },
            Verdict::Keep(answer) => {
                self.stats.reads += 1;
                self.stats.hits +=
                    u64::from(matches!((op, &answer), (Op::Get { .. }, Answer::Value(_))));
                match kept {
                    true => context.record(header, answer, 0),
                    false if planted(Mutant::GetShowsUnstable) => Outcome::read(0, answer),
                    false => Outcome::read(context.unstable_seq(key_hash), answer),
                }
            }
            Verdict::Put(value, answer) => {
                match self.write(context, now, header, new, value, answer, out) {
                    // Refused for want of memory.
                    Outcome::Answer {
                        answer: full @ Answer::Error(..),
                        ..
                    } if kept => context.record(header, full, 0),
                    outcome => outcome,
                }
            }
            Verdict::Remove(answer) => self.remove(context, header, new, answer),
        }
    }

    fn note(&mut self, pages: &Pages, delta: &Delta) {
        if self.indexed.is_some() && !planted(Mutant::CopyForgetsIndex) {
            self.kv.note(pages, &delta.runs, &delta.bytes);
        }
    }

    // The index belongs to certain pages, all of them here; it is made when that comes true.
    fn follow_pages(&mut self, member: &Member) -> bool {
        let pages = member.pages().filter(|_| member.complete());
        let generation = pages.map(Pages::generation);
        if generation == self.indexed {
            return false;
        }
        self.kv = pages.map(Kv::scan).unwrap_or_default();
        self.indexed = generation;
        true
    }

    #[inline]
    fn is_ready(&self) -> bool {
        self.indexed.is_some()
    }

    fn start(&mut self) {
        self.kv.segments.reopen();
        self.orphans = self.kv.segments.unnamed_chunks();
    }

    // Chunks of what is in progress are found, and given back, by the next bucket that serves.
    fn stop(&mut self, out: &mut BucketEffects) {
        if let Some(large) = self.large.take() {
            let refused = Err(Refused::NotServing);
            out.answers.push((large.token(), refused));
        }
        self.orphans.clear();
    }

    fn advance(&mut self, context: &mut BucketContext, now: Time, out: &mut BucketEffects) {
        self.give_back_orphans(context);
        self.advance_large(context, now, out);
    }

    fn maintain(&mut self, context: &mut BucketContext, now: Time) -> bool {
        self.housekeeping(context, now)
    }

    #[inline]
    fn holds(&self, key_hash: KeyHash) -> bool {
        self.large
            .as_ref()
            .is_some_and(|large| large.key_hash() == key_hash)
    }

    fn in_progress(&self) -> usize {
        usize::from(self.large.is_some())
    }

    // A large write that waits for the log or for memory is continued by the acks of the copies.
    fn has_work(&self) -> bool {
        let ready = self.large.as_ref().is_some_and(|large| !large.waits());
        ready || (!self.orphans.is_empty() && !self.orphans_wait)
    }

    fn count(&self, member: &Member, serving: bool, add: &mut dyn FnMut(&'static str, u64)) {
        let pages = member.pages().filter(|_| member.is_data());
        let room = |pages: &Pages| pages.reserved() > pages.used() || self.kv.segments.has_room();
        add(
            "cache_buckets_with_room",
            u64::from(pages.is_some_and(room)),
        );
        add("cache_reads", self.stats.reads);
        add("cache_hits", self.stats.hits);
        add("cache_writes", self.stats.writes);
        if serving {
            add("cache_keys", self.keys());
            add("cache_live_bytes", self.bytes());
        }
    }

    /// The index agrees with the pages, and every chunk is accounted for.
    fn check(&self, member: &Member, serving: bool) -> Result<(), String> {
        let indexed = |pages: &&Pages| self.indexed == Some(pages.generation());
        let Some(pages) = member.pages().filter(indexed) else {
            return Ok(());
        };
        self.kv.check(pages)?;
        if !serving {
            return Ok(());
        }
        let written = self.large.as_ref().map_or(&[][..], LargeWrite::chunks);
        let known = |c: &u32| self.orphans.contains(c) || written.contains(c);
        match self.kv.segments.unnamed_chunks().iter().find(|c| !known(c)) {
            Some(lost) => Err(format!(
                "chunk {lost} belongs to no value and to no write in progress"
            )),
            None => Ok(()),
        }
    }
}
