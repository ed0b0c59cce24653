//! A unit as a service on groups: the machine of a unit over the pages of one bucket.
//!
//! **Path of an operation.** Its data are held in memory, or staged in pages that nothing names if they are more than 256 KiB. The machine
//! executes it, and makes entries; they become one delta, with their data. Every answer waits until the entry that it rests on is on the disks of all
//! members, and, unless it is that of a change which the operation itself made, for a lease.
//!
//! **Room.** The machine's state has an entry as soon as it is made, so nothing is executed before there is room for all that it can make,
//! and for the data that are held. A write that finds none is refused and changes nothing. Two extents are kept for what gives room back: trims,
//! seals and the cleaner.
//!
//! **Roles.** A copy has the same state without a machine, and follows each delta. What the machine keeps in memory alone (held data,
//! bindings that wait) is gone when the bucket ceases to serve; who waits for it is told to ask again.
//!
//! **Not here.** The machine (`unit`), the bytes of entries (`store`), the bucket around the service (`staves-service`). Who sends the unit's own
//! requests to sequencers: the node, from [`AskQueue`].

mod asks;
mod calls;
mod clock;
mod held;
mod room;
mod run;
mod stats;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use staves_group::Member;
use staves_model::{ServiceId, Time};
use staves_service::{
    Bucket, BucketContext, BucketEffects, KeyHash, Limits, OpHeader, Outcome, Refused, Service,
};
use staves_store::Pages;
use staves_wire::group::Delta;
use staves_wire::service::{Address, Answer, Body};
use staves_wire::{DecodeError, ErrorCode};

use self::held::HeldData;
use self::run::StagedAppend;
use crate::codec::BucketRequest;
use crate::message::UnitOp;
use crate::state::UnitState;
use crate::store::{CheckpointParts, DATA_BYTES_MAX, PageDamage, UnitPages};
use crate::types::{PAGE_POSITIONS_MAX, UnitId};
use crate::unit::{Unit, UnitLimits};

pub use asks::AskQueue;
pub use calls::UnitCall;

/// The number of the service on the wire.
pub const LOG_SERVICE: ServiceId = ServiceId::LOG;
/// Most bytes of the records of one append.
pub const APPEND_BYTES_MAX: usize = DATA_BYTES_MAX;
/// Most runs of a map page: their entry is made in one delta.
pub const PAGE_RUNS_MAX: usize = PAGE_POSITIONS_MAX as usize;
/// Most requests that wait for others, or for the clock.
const WAITING_MAX: usize = 8192;

/// The machine of a unit that serves, or the state of a copy.
#[derive(Debug)]
enum UnitRole {
    Copy(UnitState),
    Serving(Box<Unit>),
}

impl UnitRole {
    fn state(&self) -> &UnitState {
        match self {
            UnitRole::Copy(state) => state,
            UnitRole::Serving(unit) => unit.state(),
        }
    }
}

/// The unit of one bucket.
pub struct LogUnit {
    limits: UnitLimits,
    unit: UnitId,
    role: UnitRole,
    pages: UnitPages,
    /// The pages that all of this is about; `None` while pages are being fetched.
    indexed: Option<u64>,
    damage: Option<PageDamage>,
    held: HeldData,
    /// Appends whose data is being staged, by the token of their request.
    staging: BTreeMap<u64, StagedAppend>,
    /// A checkpoint that is being made.
    parts: Option<CheckpointParts>,
    /// Requests that wait, by token.
    waiting: BTreeMap<u64, OpHeader>,
    /// The machine's entries that may not be synced, by the delta that has them.
    unsynced: VecDeque<(u64, u64)>,
    /// The last delta before this member began to serve.
    floor: Option<u64>,
    ticked: Time,
    asks: Arc<AskQueue>,
    /// Until then no append waits for room: a short time ago no member had any.
    short_until: Option<Time>,
    /// The time of the last append.
    appended: Time,
    /// Requests to sequencers that wait for a delta.
    asks_later: VecDeque<(u64, crate::unit::UnitAsk)>,
    stats: UnitStats,
    /// The most extents that members have reserved, where a test has the rest used by others.
    #[cfg(test)]
    reserved_max: std::cell::Cell<u32>,
}

/// Counters since the bucket was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UnitStats {
    /// Entries that were made.
    pub entries: u64,
    /// Appends that were made, their records and the bytes of these.
    pub appends: u64,
    /// See `appends`.
    pub records: u64,
    /// See `appends`.
    pub record_bytes: u64,
    /// Positions that were made junk.
    pub junk: u64,
    /// Records that were read, and their bytes.
    pub reads: u64,
    /// See `reads`.
    pub read_bytes: u64,
    /// Segments that were cleaned or freed, by deltas.
    pub cleanings: u64,
    /// Checkpoints of logs and of records.
    pub checkpoints: u64,
    /// Operations that found no room.
    pub refused: u64,
}

impl LogUnit {
    /// A bucket around a member of a group; and the unit's requests to sequencers, for the node to send.
    pub fn bucket(
        limits: Limits,
        unit_limits: UnitLimits,
        member: Member,
    ) -> (Bucket<LogUnit>, Arc<AskQueue>) {
        let asks = Arc::new(AskQueue::default());
        let unit = LogUnit {
            limits: unit_limits,
            unit: member.id(),
            role: UnitRole::Copy(UnitState::new(member.id())),
            pages: UnitPages::default(),
            indexed: None,
            damage: None,
            held: HeldData::default(),
            staging: BTreeMap::new(),
            parts: None,
            waiting: BTreeMap::new(),
            unsynced: VecDeque::new(),
            floor: None,
            ticked: Time::ZERO,
            asks: asks.clone(),
            short_until: None,
            appended: Time::ZERO,
            asks_later: VecDeque::new(),
            stats: UnitStats::default(),
            #[cfg(test)]
            reserved_max: std::cell::Cell::new(u32::MAX),
        };
        (Bucket::new(unit, limits, member), asks)
    }

    /// The state, as far as this member knows.
    pub fn state(&self) -> &UnitState {
        self.role.state()
    }

    /// Counters.
    pub fn stats(&self) -> UnitStats {
        self.stats
    }

    /// Bytes that live entries and their data take up.
    pub fn live_bytes(&self) -> u64 {
        self.pages.log.live_bytes()
    }

    fn unit_mut(&mut self) -> Option<&mut Unit> {
        match &mut self.role {
            UnitRole::Serving(unit) => Some(unit),
            UnitRole::Copy(_) => None,
        }
    }

    fn forget_soft(&mut self) {
        self.held = HeldData::after(self.pages.ledger.last_data());
        self.staging.clear();
        self.parts = None;
        self.pages.log.give_up_staged();
        self.unsynced.clear();
        self.asks_later.clear();
        self.floor = None;
    }

    fn refuse_all(&mut self, out: &mut BucketEffects) {
        let all = std::mem::take(&mut self.waiting).into_keys();
        let all = all.map(|token| (token, Err(Refused::Interrupted)));
        out.answers.extend(all);
    }
}

/// The answer where the bucket's pages are not a unit's.
fn damaged(damage: &PageDamage) -> Answer {
    Answer::error(ErrorCode::Lost, damage.to_string())
}

impl Service for LogUnit {
    type Op<'a> = &'a UnitCall;
    type OwnedOp = UnitCall;
    const ID: ServiceId = LOG_SERVICE;
    const FORGOTTEN: &'static str = "outcome unknown: the retry came too late to tell whether the first try took effect; send the append again under its id";
    const MENDABLE: bool = false;
    const EXISTS_EMPTY: bool = false;

    fn with_body<R>(body: &Body, take: impl FnOnce(&UnitCall) -> R) -> Result<R, DecodeError> {
        Ok(take(&UnitCall::from_body(body)?))
    }

    fn check_address(_op: &UnitCall, to: Address) -> Result<(), String> {
        match to {
            Address::Bucket(..) => Ok(()),
            to => Err(format!("the units of logs are not in {to}")),
        }
    }

    fn to_owned(op: &UnitCall) -> UnitCall {
        op.clone()
    }

    fn as_op(op: &UnitCall) -> &UnitCall {
        op
    }

    fn is_write(op: &UnitCall) -> bool {
        op.is_write()
    }

    fn op_bytes(op: &UnitCall) -> usize {
        256 + op.records().map_or(0, |records| records.bytes.len())
    }

    fn malformed(&self, op: &UnitCall) -> Option<Answer> {
        let bytes = op.records().map_or(0, |records| records.bytes.len());
        if bytes > APPEND_BYTES_MAX {
            let text = format!(
                "an append of {bytes} bytes: a unit takes {APPEND_BYTES_MAX} at most; split it"
            );
            return Some(Answer::error(ErrorCode::TooLarge, text));
        }
        let too_many = match op {
            UnitCall::Request(BucketRequest::Unit(request)) => match &request.op {
                UnitOp::WritePage { runs, .. } => runs.len() > PAGE_RUNS_MAX,
                _ => false,
            },
            _ => false,
        };
        let text = "a request with more parts than a unit takes in one entry";
        too_many.then(|| Answer::error(ErrorCode::TooLarge, text))
    }

    fn answer_bytes(&self, _member: &Member, op: &UnitCall) -> usize {
        calls::value_bytes(self.role.state(), op)
    }

    fn execute(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        header: &OpHeader,
        _key_hash: Option<KeyHash>,
        op: &UnitCall,
        out: &mut BucketEffects,
    ) -> Outcome {
        if let Some(damage) = &self.damage {
            return Outcome::at_once(damaged(damage));
        }
        if context.member().is_lost() {
            return Outcome::at_once(calls::lost());
        }
        if LogUnit::is_write(op)
            && let Some(again) = context.recall(header)
        {
            return again;
        }
        if self.waiting.len() >= WAITING_MAX {
            return Outcome::Refuse(Refused::Busy);
        }
        self.catch_up(context);
        self.run(context, now, header, op, out)
    }

    fn note(&mut self, _pages: &Pages, delta: &Delta) {
        let UnitRole::Copy(state) = &mut self.role else {
            return;
        };
        if self.indexed.is_some() && self.damage.is_none() {
            let followed = self.pages.follow(&delta.runs, &delta.bytes, state);
            self.damage = followed.err();
        }
    }

    // The state belongs to certain pages, all of them here; it is read from them when that comes true.
    fn follow_pages(&mut self, member: &Member) -> bool {
        let pages = member.pages().filter(|_| member.complete());
        let generation = pages.map(Pages::generation);
        if generation == self.indexed {
            return false;
        }
        let (mut state, mut damage) = (UnitState::new(self.unit), None);
        self.pages = UnitPages::default();
        match pages.map(|pages| UnitPages::open(pages, self.unit)) {
            Some(Ok(found)) => (self.pages, state) = found,
            Some(Err(why)) => damage = Some(why),
            None => {}
        }
        (self.role, self.damage) = (UnitRole::Copy(state), damage);
        self.indexed = generation;
        self.forget_soft();
        true
    }

    fn is_ready(&self) -> bool {
        self.indexed.is_some()
    }

    fn start(&mut self) {
        if let UnitRole::Copy(state) = &mut self.role {
            let state = std::mem::replace(state, UnitState::new(self.unit));
            let unit = Unit::new(state, self.limits.clone());
            self.role = UnitRole::Serving(Box::new(unit));
        }
        self.pages.log.start();
        self.forget_soft();
    }

    fn stop(&mut self, out: &mut BucketEffects) {
        if let UnitRole::Serving(unit) = &self.role {
            self.role = UnitRole::Copy(unit.state().clone());
        }
        self.refuse_all(out);
        self.forget_soft();
    }

    fn advance(&mut self, context: &mut BucketContext, now: Time, out: &mut BucketEffects) {
        if self.damage.is_none() && !context.member().is_lost() {
            self.catch_up(context);
            self.tick(context, now, out);
        }
        self.expire(now, out);
    }

    fn maintain(&mut self, context: &mut BucketContext, now: Time) -> bool {
        let is_well = self.damage.is_none() && !context.member().is_lost();
        // The unit's clock goes on while anything waits for it.
        let has_more = is_well && self.tidy(context, now);
        has_more || matches!(&self.role, UnitRole::Serving(unit) if unit.has_timers())
    }

    fn in_progress(&self) -> usize {
        self.waiting.len()
    }

    fn count(&self, _member: &Member, serving: bool, add: &mut dyn FnMut(&'static str, u64)) {
        self.stats.count(add);
        if serving {
            add("log_waiting", self.waiting.len() as u64);
            add("log_live_bytes", self.live_bytes());
        }
    }

    /// The state is that which the pages have.
    fn check(&self, member: &Member, serving: bool) -> Result<(), String> {
        let indexed = |pages: &&Pages| self.indexed == Some(pages.generation());
        let Some(pages) = member.pages().filter(indexed) else {
            return Ok(());
        };
        if let Some(damage) = &self.damage {
            return Err(damage.to_string());
        }
        self.pages.log.check(pages)?;
        let (_, state) = UnitPages::open(pages, self.unit).map_err(|why| why.to_string())?;
        if state != *self.role.state() {
            return Err(format!(
                "the pages have {state:?}, and the unit {:?}",
                self.role.state()
            ));
        }
        match &self.role {
            UnitRole::Serving(unit) if serving => unit.check(),
            _ => Ok(()),
        }
    }
}
