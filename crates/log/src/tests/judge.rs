//! The judge: what was acknowledged and read, and the invariants that it must agree with.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use staves_model::Time;

use super::clients::Begun;
use super::world::World;
use crate::*;

/// The value of a position: the append and its record, or junk.
type Value = Option<(AppendId, u32)>;

/// All that was seen of a log in a run.
#[derive(Default)]
pub(super) struct Judge {
    pub violations: Vec<String>,
    values: BTreeMap<Position, Value>,
    bytes: BTreeMap<(AppendId, u32), Bytes>,
    firsts: BTreeMap<AppendId, Position>,
    acked: BTreeMap<Position, (AppendId, u32)>,
    /// Past the highest acknowledged position.
    pub acked_end: Position,
    /// The highest tail that was told.
    pub tail: Position,
    /// The highest trim that was answered.
    pub trimmed: Position,
    /// The highest trim that anyone asked the home for.
    pub trim_asked: Position,
    ops: u64,
    /// The conditions of appends, by their number.
    pub conditions: BTreeMap<u64, AppendCondition>,
    /// Appends whose condition failed, and those that are in the log.
    pub failed: BTreeSet<u64>,
    pub found: BTreeSet<u64>,
    /// Past the highest acknowledged position of each tag.
    pub tag_ends: BTreeMap<u64, Position>,
    pub latencies_us: Vec<u64>,
}

impl Judge {
    pub(super) fn violated(&mut self, what: String) {
        self.violations.push(what);
    }

    pub(super) fn next_op(&mut self) -> u64 {
        self.ops += 1;
        self.ops
    }

    pub(super) fn note_trim_asked(&mut self, position: Position) {
        self.trim_asked = self.trim_asked.max(position);
    }

    pub(super) fn last_acked(&self, count: usize) -> Vec<Position> {
        self.acked.keys().rev().take(count).copied().collect()
    }

    /// I1 and I6.
    fn seen(&mut self, position: Position, value: Value) {
        if let Some(before) = self.values.insert(position, value)
            && before != value
        {
            let what = format!("I1: position {position} was {before:?}, now {value:?}");
            self.violated(what);
        }
        let Some((id, index)) = value else {
            return;
        };
        let first = position.saturating_sub(u64::from(index));
        if let Some(before) = self.firsts.insert(id, first)
            && before != first
        {
            self.violated(format!("I6: {id:?} is at {before} and {first}"));
        }
    }

    fn seen_bytes(&mut self, id: AppendId, index: u32, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        self.seen_op(&bytes);
        let before = self.bytes.insert((id, index), bytes.clone());
        if before.is_some_and(|before| before != bytes) {
            self.violated(format!(
                "record {index} of {id:?} has other bytes than before"
            ));
        }
    }
}

impl World {
    pub(super) fn judge_ack(&mut self, begun: &Begun, appended: Appended) {
        let Appended {
            id,
            position,
            count,
        } = appended;
        let log = self.record().view.log;
        let holds = self.units.iter().any(|unit| {
            unit.durable.share(log).is_some_and(|share| {
                let known = share.sessions.get(&id) == Some(&(position, count));
                known || share.sessions.is_abandoned(&id) || position < share.trim
            })
        });
        let latency_us = self.now.since(begun.at).as_micros() as u64;
        let (calm, mode) = (self.knobs.calm, self.mode);
        let judge = &mut self.judge;
        if !holds {
            judge.violated(format!(
                "I2: {id:?} acknowledged at {position}, not synced on every copy"
            ));
        }
        for (rule, mark) in [
            (
                "I3: an append begun after an acknowledgement below",
                begun.acked,
            ),
            ("I4: an append begun after the tail was", begun.tail),
            ("I4: an append begun after a trim to", begun.trim),
        ] {
            if position < mark {
                judge.violated(format!("{rule} {mark} got {position}"));
            }
        }
        if count != begun.records {
            let records = begun.records;
            judge.violated(format!("I11: a batch of {records} answered as {count}"));
        }
        let most_us = match mode {
            AppendMode::Corfu => 286_000,
            AppendMode::Predict => 146_500,
            AppendMode::Bind => 144_000,
        };
        if calm && latency_us > most_us {
            judge.violated(format!(
                "I10: an append took {latency_us} us without a fault"
            ));
        }
        judge.latencies_us.push(latency_us);
        for (index, at) in (0..count).zip(position..) {
            judge.seen(at, Some((id, index)));
            judge.acked.insert(at, (id, index));
        }
        judge.acked_end = judge.acked_end.max(position + u64::from(count));
    }

    pub(super) fn judge_read(&mut self, begun: &Begun, result: ReadResult) {
        match result {
            ReadResult::Slot(position, slot) => {
                self.count("reads");
                self.judge_slot(position, slot);
            }
            ReadResult::Tail { tail, .. } => {
                self.count("checks");
                let judge = &mut self.judge;
                if tail < begun.acked {
                    let acked = begun.acked;
                    judge.violated(format!("I4: the tail is {tail}, and {acked} acknowledged"));
                }
                if tail < begun.tail {
                    let before = begun.tail;
                    judge.violated(format!("I4: the tail went back from {before} to {tail}"));
                }
                judge.tail = judge.tail.max(tail);
            }
            ReadResult::Trimmed => {
                if let Some(ReadOp::Trim(position)) = begun.op {
                    self.count("trims");
                    self.judge.trimmed = self.judge.trimmed.max(position);
                }
            }
            ReadResult::Grown(_) => self.count("waits"),
            ReadResult::PastTail(position) if position < begun.acked => {
                let acked = begun.acked;
                let what = format!("I4: {position} is past the tail, and {acked} acknowledged");
                self.judge.violated(what);
            }
            ReadResult::PastTail(_) | ReadResult::TrimPastDecided => {}
        }
    }

    pub(super) fn judge_slot(&mut self, position: Position, slot: SlotAnswer<Bytes>) {
        let tomb = self.punched.contains(&position);
        let judge = &mut self.judge;
        match slot {
            SlotAnswer::Data { head, data } => {
                judge.seen(position, Some((head.id, head.index)));
                judge.seen_bytes(head.id, head.index, data);
            }
            SlotAnswer::Junk => judge.seen(position, None),
            SlotAnswer::Trimmed if position < judge.trim_asked || tomb => {}
            SlotAnswer::Trimmed => {
                judge.violated(format!("I2: {position} is TRIMMED, and never was trimmed"));
            }
            SlotAnswer::Lost | SlotAnswer::Unwritten => {
                judge.violated(format!("a read of {position} ended with {slot:?}"));
            }
        }
    }

    /// True if nothing is in progress.
    pub(super) fn is_at_rest(&self) -> bool {
        let open = self.record().lead.is_none();
        let machine = self.newest().1;
        open && machine.is_some_and(Sequencer::is_at_rest)
            && self.clients.iter().all(|client| client.ops.is_empty())
            && self.units.iter().all(|unit| unit.is_at_rest())
    }

    /// The sequencer's word on a position, asked at once.
    pub(super) fn word(&self, position: Position) -> Option<PositionWord> {
        let machine = self.newest().1?;
        machine.peek_word(position)
    }

    /// The content of a position at rest. None: it is undecided (I5).
    pub(super) fn at_rest(&self, position: Position) -> Option<SlotAnswer<DataPlace>> {
        let view = &self.record().view;
        let positions = u64::from(view.options.page_positions);
        let unit = match self.word(position)? {
            PositionWord::Junk => return Some(SlotAnswer::Junk),
            PositionWord::Trimmed => return Some(SlotAnswer::Trimmed),
            PositionWord::At(unit) => unit,
            PositionWord::Tail | PositionWord::Open { .. } => return None,
            PositionWord::Page => {
                let page = position / positions;
                let owner = view.projection.owner(page * positions)?;
                let share = self.units[owner.0 as usize].durable.share(view.log)?;
                match page_entry(share.pages.get(&page)?, position % positions)? {
                    PageEntry::Unit(unit) => unit,
                    PageEntry::Junk => return Some(SlotAnswer::Junk),
                    PageEntry::Trimmed => return Some(SlotAnswer::Trimmed),
                }
            }
        };
        let share = self.units[unit.0 as usize].durable.share(view.log)?;
        let junk = view.options.mode != AppendMode::Bind && position < view.start;
        share.content(position).or(junk.then_some(SlotAnswer::Junk))
    }

    /// The invariants of a log at rest.
    pub(super) fn judge_rest(&mut self) {
        let tail = self.newest().1.and_then(Sequencer::tail).map_or(0, |t| t.0);
        if self.judge.acked_end > tail {
            let acked = self.judge.acked_end;
            self.judge.violated(format!(
                "I2: acknowledged up to {acked}, the tail is {tail}"
            ));
        }
        let mut contents = BTreeMap::new();
        for position in 0..tail {
            let Some(slot) = self.at_rest(position) else {
                let what = format!("I5: {position} is undecided at rest, below the tail {tail}");
                self.judge.violated(what);
                return;
            };
            let data = &self.data;
            let slot = slot.map_data(|place| {
                let bytes = data.get(place.at as usize).cloned().flatten();
                bytes.unwrap_or_default()
            });
            self.judge_slot(position, slot.clone());
            contents.insert(position, slot);
        }
        for unit in &self.units {
            // A restart replays what is durable.
            if unit.machine.state() != &unit.durable {
                let what = format!("{:?} replayed is another state", unit.durable.unit());
                self.judge.violated(what);
            }
        }
        self.judge_conditions(&contents);
        for tag in 1..3 {
            self.judge_stream(tag, tail, &contents);
        }
    }

    /// I12: the walk along back-pointers finds what a scan finds.
    fn judge_stream(
        &mut self,
        tag: u64,
        tail: Position,
        contents: &BTreeMap<Position, SlotAnswer<Bytes>>,
    ) {
        let bears = |slot: &SlotAnswer<Bytes>| match slot {
            SlotAnswer::Data { head, .. } => head.links.iter().any(|link| link.tag == tag),
            _ => false,
        };
        // What the record says is trimmed may still be there: its sequencer has not heard of it.
        let trim = self.record().view.trim;
        let all = contents.range(trim..).filter(|(_, slot)| bears(slot));
        let all: BTreeSet<Position> = all.map(|(position, _)| *position).collect();
        let Some(last) = self.newest().1.map(|machine| machine.peek_stream(tag)) else {
            return;
        };
        let mut walk = StreamWalk::new(tag, last, tail, trim);
        let mut found = BTreeSet::new();
        let mut steps = 0;
        while let Some(position) = walk.next_read() {
            steps += 1;
            if walk.take(position, &contents[&position]) {
                found.insert(position);
            }
            if steps > 2 * contents.len() {
                self.judge
                    .violated(format!("I12: the walk of {tag} does not end"));
                return;
            }
        }
        if found != all {
            let missing: Vec<&Position> = all.difference(&found).collect();
            self.judge
                .violated(format!("I12: stream {tag} lacks {missing:?}"));
        }
    }

    /// Runs until nothing is in progress, or some time has passed.
    pub(super) fn settle(&mut self, us: u64) {
        let end: Time = self.now + super::world::us(us);
        let mut steps = 0u64;
        while self.now < end && self.judge.violations.is_empty() && self.step() {
            steps += 1;
            if steps.is_multiple_of(64) && self.is_at_rest() {
                break;
            }
        }
        if self.judge.violations.is_empty() && !self.is_at_rest() {
            let record = self.record();
            let machine = self.newest().1;
            let ops: Vec<_> = self.clients.iter().map(|client| &client.ops).collect();
            let what = format!(
                "I5: no rest: {:?} lead {:?} tail {:?} ops {ops:?}",
                record.view.term,
                record.lead,
                machine.and_then(Sequencer::tail)
            );
            self.judge.violated(what);
        }
    }
}
