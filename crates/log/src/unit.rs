//! The machine of a unit: what it does with requests, and what it keeps in memory only.
//!
//! A request makes entries, which take effect in the machine's state at once and are durable once the driver reports it
//! ([`Unit::synced`]); each reply names the last entry that it rests on. Soft state (data without a position, bindings without data) goes with
//! the machine: a new head of the group starts without it, and clients' retries and the sequencer's bring it again.

mod append;
mod bind;
mod home;
mod reads;
mod seal;
mod timers;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use staves_model::Time;

use crate::entry::Entry;
use crate::message::{
    AppendCondition, RecordReply, SequencerOp, SequencerRequest, UnitAnswer, UnitOp, UnitReply,
    UnitRequest,
};
use crate::sessions::SessionBounds;
use crate::state::UnitState;
use crate::types::{
    AppendId, Binding, DataPlace, LogId, Low, Position, RECORD_BYTES_MAX, SequencerId,
};

/// Data of more bytes is sent without a request to the sequencer, for it arrives later than that: the unit asks, once it has the data
/// (rule 15).
pub const LARGE_APPEND_BYTES: u64 = 32 << 10;

/// Most sessions of one log that a unit or a sequencer knows.
pub const SESSIONS_MAX: usize = 16_384;
/// Most appends of one log that a unit or a sequencer knows.
pub const IDS_MAX: usize = 1 << 17;

/// The bounds of a unit.
#[derive(Clone, Debug)]
pub struct UnitLimits {
    /// Most logs that have a share.
    pub logs_max: usize,
    /// Most records of logs whose home it is.
    pub records_max: usize,
    /// Most appends whose data is kept without a position.
    pub parked_max: usize,
    /// Most bytes of them (one append may pass it).
    pub parked_bytes_max: u64,
    /// Most bindings of one log that wait for data.
    pub pending_max: usize,
    /// Most sessions of one log that are known; the lowest ends for another.
    pub sessions_max: usize,
    /// Most appends of one log that are known; the sessions of the lowest end for another.
    pub ids_max: usize,
    /// Data without a position is dropped after this time.
    pub park_expiry: Duration,
    /// The unit asks the sequencer for a position of data that has none after this time.
    pub ask_after: Duration,
}

impl Default for UnitLimits {
    fn default() -> UnitLimits {
        UnitLimits {
            logs_max: 65_536,
            records_max: 65_536,
            parked_max: 4096,
            parked_bytes_max: 4 * u64::from(RECORD_BYTES_MAX),
            pending_max: 4096,
            sessions_max: SESSIONS_MAX,
            ids_max: IDS_MAX,
            park_expiry: Duration::from_secs(2),
            ask_after: Duration::from_millis(4),
        }
    }
}

impl UnitLimits {
    pub(crate) fn session_bounds(&self) -> SessionBounds {
        SessionBounds {
            sessions: self.sessions_max,
            ids: self.ids_max,
        }
    }
}

/// The driver's name of a requester. Each is answered once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ReplyTo(pub u64);

/// An entry to be made durable, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewEntry {
    /// Its number, from 1 for each life of the machine.
    pub number: u64,
    /// The entry.
    pub entry: Entry,
    /// Places that nothing names any more from it on.
    pub freed: Vec<DataPlace>,
}

/// A reply to a requester.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivery<R> {
    /// The requester.
    pub to: ReplyTo,
    /// The entry that must be durable before it leaves; 0 for none.
    pub after: u64,
    /// The reply.
    pub reply: R,
}

/// A request that the unit itself makes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnitAsk {
    /// The sequencer.
    pub to: SequencerId,
    /// The entry that must be durable before it leaves; 0 for none.
    pub after: u64,
    /// The request.
    pub request: SequencerRequest,
}

/// The output of a step.
#[derive(Default, Debug)]
pub struct UnitEffects {
    /// Entries to be made durable, in order.
    pub entries: Vec<NewEntry>,
    /// Replies.
    pub replies: Vec<Delivery<UnitReply<DataPlace>>>,
    /// Replies to requests for records.
    pub records: Vec<Delivery<RecordReply>>,
    /// Requests to sequencers. They may be lost.
    pub asks: Vec<UnitAsk>,
    /// Places of data that came and is not kept; no entry has named them.
    pub dropped: Vec<DataPlace>,
}

/// An append's data without a position.
#[derive(Debug)]
struct ParkedData {
    low: Low,
    tags: Vec<u64>,
    condition: Option<AppendCondition>,
    sequencer: SequencerId,
    places: Vec<DataPlace>,
    to: ReplyTo,
    since: Time,
    asked: Time,
}

impl ParkedData {
    fn bytes(&self) -> u64 {
        bytes_of(&self.places)
    }
}

fn bytes_of(places: &[DataPlace]) -> u64 {
    places.iter().map(|place| u64::from(place.bytes)).sum()
}

/// A binding without data.
#[derive(Debug)]
struct PendingBinding {
    binding: Binding,
    sequencer: SequencerId,
    to: Option<ReplyTo>,
    since: Time,
}

/// The soft state of one log.
#[derive(Default, Debug)]
struct SoftLog {
    parked: BTreeMap<AppendId, ParkedData>,
    pending: BTreeMap<Position, PendingBinding>,
    /// The positions of the appends in `pending`.
    pending_ids: BTreeMap<AppendId, Position>,
    /// Appends whose binding became junk here before the data came.
    junked: VecDeque<AppendId>,
    /// The last entry of the log.
    last: u64,
    /// The lowest position that an entry which is not yet durable touches.
    touched: Position,
}

impl SoftLog {
    fn add_pending(&mut self, pending: PendingBinding) {
        let position = pending.binding.position;
        if let Some(id) = pending.binding.id {
            self.pending_ids.insert(id, position);
        }
        self.pending.insert(position, pending);
    }

    fn take_pending(&mut self, position: Position) -> Option<PendingBinding> {
        let pending = self.pending.remove(&position)?;
        if let Some(id) = pending.binding.id
            && self.pending_ids.get(&id) == Some(&position)
        {
            self.pending_ids.remove(&id);
        }
        Some(pending)
    }

    fn is_idle(&self, synced: u64) -> bool {
        self.parked.is_empty() && self.pending.is_empty() && self.last <= synced
    }
}

/// The machine of a unit.
#[derive(Debug)]
pub struct Unit {
    limits: UnitLimits,
    state: UnitState,
    soft: BTreeMap<LogId, SoftLog>,
    parked: usize,
    parked_bytes: u64,
    /// Entries made so far.
    made: u64,
    /// Entries that are durable.
    synced: u64,
    /// The last entry of a record.
    last_record: u64,
    /// Logs that were deleted before this unit knew them.
    forgotten: VecDeque<LogId>,
}

impl Unit {
    /// A unit that begins to serve with what its group has kept.
    pub fn new(state: UnitState, limits: UnitLimits) -> Unit {
        Unit {
            limits,
            state,
            soft: BTreeMap::new(),
            parked: 0,
            parked_bytes: 0,
            made: 0,
            synced: 0,
            last_record: 0,
            forgotten: VecDeque::new(),
        }
    }

    /// Its state, with entries that are not yet durable.
    pub fn state(&self) -> &UnitState {
        &self.state
    }

    /// Appends whose data is kept without a position, and their bytes.
    pub fn parked(&self) -> (usize, u64) {
        (self.parked, self.parked_bytes)
    }

    /// All entries up to this one are durable.
    pub fn synced(&mut self, number: u64) {
        self.synced = self.synced.max(number.min(self.made));
    }

    /// Executes a request to a log.
    pub fn step(
        &mut self,
        now: Time,
        to: ReplyTo,
        request: UnitRequest<Vec<DataPlace>>,
        out: &mut UnitEffects,
    ) {
        let log = request.log;
        match request.op {
            UnitOp::Park(park) => self.park(now, to, log, park, out),
            UnitOp::Write {
                term,
                binding,
                low,
                data,
            } => self.write(to, log, (term, binding, low), data, out),
            UnitOp::Read {
                position,
                term,
                start,
                word,
            } => {
                let asked = reads::AskedSlot {
                    position,
                    term,
                    start,
                };
                self.read(now, to, log, asked, word, out);
            }
            UnitOp::ReadPage { page } => self.read_page(to, log, page, out),
            UnitOp::Punch { position } => self.punch(to, log, position, out),
            UnitOp::Seal { term, options } => self.seal(to, log, term, options, out),
            UnitOp::Sealed {
                term,
                floor,
                cursor,
            } => self.sealed_items(to, log, term, floor, cursor, out),
            UnitOp::Bind { term, binding } => self.bind(now, log, term, binding, Some(to), out),
            UnitOp::Confirm { term, nonce } => self.confirm(to, log, term, nonce, out),
            UnitOp::WritePage { term, page, runs } => {
                self.write_page(to, log, term, page, runs, out);
            }
            UnitOp::Trim { position } => self.trim(to, log, position, out),
            UnitOp::Prefix {
                term,
                position,
                floor,
            } => self.prefix(to, log, term, (position, floor), out),
            UnitOp::Forget => self.forget(to, log, out),
        }
    }

    /// Makes an entry, and returns its number. `touched` is the lowest position that it decides.
    fn make(&mut self, log: LogId, entry: Entry, touched: Position, out: &mut UnitEffects) -> u64 {
        let number = self.push(entry, out);
        let synced = self.synced;
        let soft = self.soft.entry(log).or_default();
        soft.touched = match soft.last > synced {
            true => soft.touched.min(touched),
            false => touched,
        };
        soft.last = number;
        number
    }

    fn push(&mut self, entry: Entry, out: &mut UnitEffects) -> u64 {
        self.made += 1;
        let number = self.made;
        let mut freed = Vec::new();
        self.state.apply(&entry, &mut freed);
        out.entries.push(NewEntry {
            number,
            entry,
            freed,
        });
        number
    }

    /// The entry that an answer about the log's present state rests on; 0 if all is durable.
    fn settled(&self, log: LogId) -> u64 {
        let last = self.soft.get(&log).map_or(0, |soft| soft.last);
        if last > self.synced { last } else { 0 }
    }

    /// The same for the content of one position.
    fn settled_at(&self, log: LogId, position: Position) -> u64 {
        match self.soft.get(&log) {
            Some(soft) if soft.touched <= position => self.settled(log),
            _ => 0,
        }
    }

    fn reply(
        &self,
        to: ReplyTo,
        log: LogId,
        after: u64,
        answer: UnitAnswer<DataPlace>,
        out: &mut UnitEffects,
    ) {
        let reply = UnitReply { log, answer };
        out.replies.push(Delivery { to, after, reply });
    }

    fn ask(&self, to: SequencerId, log: LogId, after: u64, op: SequencerOp, out: &mut UnitEffects) {
        let request = SequencerRequest { log, op };
        out.asks.push(UnitAsk { to, after, request });
    }

    /// Checks the bounds and what soft state must agree with.
    ///
    /// # Errors
    /// The broken rule.
    pub fn check(&self) -> Result<(), String> {
        let parked: usize = self.soft.values().map(|soft| soft.parked.len()).sum();
        let of = |soft: &SoftLog| soft.parked.values().map(ParkedData::bytes).sum::<u64>();
        let bytes: u64 = self.soft.values().map(of).sum();
        let pending = |soft: &SoftLog| soft.pending.len() > self.limits.pending_max;
        if (parked, bytes) != (self.parked, self.parked_bytes) {
            return Err("the count of parked appends is wrong".into());
        }
        if parked > self.limits.parked_max || self.soft.values().any(pending) {
            return Err("I9: soft state is past its bound".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
