//! From a committed term to an open one: seal every unit, rebuild from what they have, have the term opened (rules 2 to 4).

use std::collections::{BTreeMap, BTreeSet};

use staves_model::Time;

use super::map::OpenMap;
use super::{ActiveTerm, IdPlace, Phase, Sequencer, SequencerEffects};
use crate::message::{RecordRequest, SealCursor, SealedItem, UnitAnswer, UnitOp};
use crate::mutant::{LogMutant, planted};
use crate::sessions::{SessionBounds, SessionTable};
use crate::share::keep_last;
use crate::types::{AppendMode, LogRecord, PageEntry, Position, SessionId, UnitId};

/// The report of one unit.
#[derive(Clone, Debug)]
struct SealReport {
    claimed: Position,
    trim: Position,
    pages: u64,
    /// The part of its list that is asked for; none once all is here.
    cursor: Option<SealCursor>,
}

/// The reports of the units of a term, and what they add up to.
#[derive(Clone, Default, Debug)]
pub(super) struct SealRound {
    units: BTreeSet<UnitId>,
    reports: BTreeMap<UnitId, SealReport>,
    sessions: SessionTable<(Position, u32)>,
    tags: BTreeMap<u64, Vec<Position>>,
    claims: Vec<(UnitId, Position, u32)>,
}

impl SealRound {
    pub fn new(units: BTreeSet<UnitId>) -> SealRound {
        SealRound {
            units,
            ..SealRound::default()
        }
    }

    fn missing(&self) -> impl Iterator<Item = UnitId> + '_ {
        let units = self.units.iter().copied();
        units.filter(|unit| !self.reports.contains_key(unit))
    }

    fn all_reported(&self) -> bool {
        let missing = self.missing().count();
        let some = planted(LogMutant::SealMissing) && self.units.len() > 1;
        missing == 0 || some && missing == 1
    }

    fn is_complete(&self) -> bool {
        self.all_reported() && self.reports.values().all(|report| report.cursor.is_none())
    }

    /// Takes a unit's report in. Sessions that one unit has dropped nobody takes any more.
    fn note_report(&mut self, unit: UnitId, report: SealReport, floor: SessionId) {
        self.reports.insert(unit, report);
        if !planted(LogMutant::FloorNotRebuilt) {
            self.sessions.raise_floor(floor);
        }
    }

    fn take_items(&mut self, unit: UnitId, items: Vec<SealedItem>, bounds: SessionBounds) {
        for item in items {
            match item {
                SealedItem::Id {
                    id,
                    position,
                    count,
                } => {
                    if !self.sessions.is_abandoned(&id) {
                        self.sessions.insert(id, (position, count));
                    }
                }
                SealedItem::Low { session, low } => {
                    if !self.sessions.is_over(session) {
                        self.sessions.raise(session, low);
                    }
                }
                SealedItem::Tag { tag, positions } => {
                    self.tags.entry(tag).or_default().extend(positions);
                }
                SealedItem::Claim { position, count } => self.claims.push((unit, position, count)),
            }
        }
        self.sessions.bound(bounds);
    }

    fn highest(&self, of: impl Fn(&SealReport) -> u64) -> u64 {
        self.reports.values().map(of).max().unwrap_or(0)
    }

    /// The first map page that is not durable: pages are written in order, so the highest one ends those that are.
    fn page(&self, page_positions: u64, trim: Position) -> u64 {
        let pages = self.highest(|report| report.pages);
        pages.max(trim.checked_div(page_positions).unwrap_or(0))
    }
}

impl Sequencer {
    fn page_positions(&self) -> u64 {
        let options = &self.record.view.options;
        match options.mode {
            AppendMode::Bind => u64::from(options.page_positions),
            AppendMode::Predict | AppendMode::Corfu => 0,
        }
    }

    /// Claims below are not needed: their map pages are durable. Without a map, none are.
    fn claims_floor(&self, round: &SealRound) -> Position {
        match self.page_positions() {
            0 => Position::MAX,
            positions => round.highest(|report| report.pages) * positions,
        }
    }

    /// Sends what the phase waits for, first or again.
    pub(super) fn call(&mut self, now: Time, out: &mut SequencerEffects) {
        self.called = now;
        let (term, options) = (self.term, self.record.view.options);
        match &self.phase {
            Phase::Sealing(round) => {
                for unit in round.missing() {
                    self.send(unit, UnitOp::Seal { term, options }, out);
                }
                if round.all_reported() {
                    for unit in round.reports.keys() {
                        self.ask_items(*unit, round, out);
                    }
                }
            }
            Phase::Opening(_, start) => {
                let open = RecordRequest::Open {
                    name: self.record.name.clone(),
                    log: self.log(),
                    term,
                    start: *start,
                };
                out.home.push(open);
            }
            Phase::Active(_) | Phase::Deposed(_) => {}
        }
    }

    fn ask_items(&self, unit: UnitId, round: &SealRound, out: &mut SequencerEffects) {
        let cursor = round.reports.get(&unit).and_then(|report| report.cursor);
        if let Some(cursor) = cursor {
            let op = UnitOp::Sealed {
                term: self.term,
                floor: self.claims_floor(round),
                cursor,
            };
            self.send(unit, op, out);
        }
    }

    /// A unit answers to a seal. Only answers to this term count.
    pub(super) fn sealed(
        &mut self,
        now: Time,
        unit: UnitId,
        answer: UnitAnswer,
        out: &mut SequencerEffects,
    ) {
        let (own, bounds) = (self.term, self.limits.session_bounds());
        let Phase::Sealing(round) = &mut self.phase else {
            return;
        };
        match answer {
            UnitAnswer::Sealed {
                term,
                claimed,
                trim,
                pages,
                floor,
            } => {
                let older = planted(LogMutant::SealOfOlderTerm) && term < own;
                if term != own && !older
                    || !round.units.contains(&unit)
                    || round.reports.contains_key(&unit)
                {
                    return;
                }
                let report = SealReport {
                    claimed,
                    trim,
                    pages,
                    cursor: (!older).then_some(SealCursor::START),
                };
                round.note_report(unit, report, floor);
                // The floor of claims is known once all have reported.
                if round.all_reported() {
                    self.call(now, out);
                }
            }
            UnitAnswer::SealedItems {
                term,
                cursor,
                items,
                next,
            } => {
                let report = round.reports.get_mut(&unit);
                let asked = report.filter(|r| term == own && r.cursor == Some(cursor));
                let Some(report) = asked else {
                    return;
                };
                report.cursor = next;
                round.take_items(unit, items, bounds);
                if next.is_some() {
                    let round = round.clone_heads();
                    self.ask_items(unit, &round, out);
                }
            }
            _ => {}
        }
        self.open_when_complete(now, out);
    }

    fn open_when_complete(&mut self, now: Time, out: &mut SequencerEffects) {
        self.unheard = 0;
        let positions = self.page_positions();
        let view = &self.record.view;
        let Phase::Sealing(round) = &mut self.phase else {
            return;
        };
        if !round.is_complete() {
            return;
        }
        let claimed = match planted(LogMutant::TailOfOneUnit) {
            true => round.reports.values().next().map_or(0, |r| r.claimed),
            false => round.highest(|report| report.claimed),
        };
        let mut start = view.start.max(claimed);
        if planted(LogMutant::TailTrimmed) {
            start = claimed;
        } else if !planted(LogMutant::TailOfOneUnit) {
            // Trims and pages end no higher than claims; should one, its positions were given out all the same.
            let trim = round.highest(|report| report.trim).max(view.trim);
            let pages = round.highest(|report| report.pages) * positions;
            start = start.max(trim).max(pages);
        }
        let round = std::mem::take(round);
        self.phase = Phase::Opening(round, start);
        if planted(LogMutant::ActsBeforeOpen) {
            let mut record = self.record.clone();
            record.view.start = start;
            record.view.term = self.term;
            self.activate(now, record, out);
        }
        self.call(now, out);
    }

    /// The term is open: the sequencer acts from here on.
    pub(super) fn activate(&mut self, now: Time, record: LogRecord, out: &mut SequencerEffects) {
        let Phase::Opening(round, _) = &mut self.phase else {
            return;
        };
        let round = std::mem::take(round);
        let last_start = self.record.view.start;
        self.record = record;
        let active = self.rebuilt(now, round, last_start);
        let lost = last_start.max(active.trim)..self.record.view.start;
        self.unclaimed = active.map.junk_within(lost);
        self.phase = Phase::Active(Box::new(active));
        self.write_page(now, out);
        self.send_trim(out);
    }

    fn rebuilt(&self, now: Time, round: SealRound, last_start: Position) -> ActiveTerm {
        let view = &self.record.view;
        let trim = round.highest(|report| report.trim).max(view.trim);
        let mut tags = round.tags.clone();
        for positions in tags.values_mut() {
            positions.sort_unstable();
            keep_last(positions);
        }
        let durable = |(position, count): (Position, u32)| IdPlace::Durable(position, count);
        let mut active = ActiveTerm {
            next: view.start,
            map: self.rebuilt_map(&round, trim, last_start),
            sessions: round.sessions.clone().map(durable),
            tags,
            trim,
            untrimmed: view.projection.units().into_iter().collect(),
            last_prefix: now,
            last_call: now,
            ..ActiveTerm::default()
        };
        if planted(LogMutant::IdsNotRebuilt) {
            active.sessions.forget_ids();
        }
        if planted(LogMutant::TagsNotRebuilt) {
            active.tags.clear();
        }
        active.note_sealed(view.start);
        if planted(LogMutant::LowsNotRebuilt) {
            active.sessions.forget_lows();
        }
        active
    }

    /// Claimed positions are their unit's. The rest is trimmed, or junk for ever: nothing below a start is given out again.
    fn rebuilt_map(&self, round: &SealRound, trim: Position, last_start: Position) -> OpenMap {
        let positions = self.page_positions();
        let page = round.page(positions, trim);
        let mut map = OpenMap::new(positions, page);
        if positions == 0 {
            return map;
        }
        let start = self.record.view.start;
        let first = map.first();
        let end = match planted(LogMutant::UnclaimedLeft) {
            true => start.min(last_start),
            false => start,
        };
        let trimmed = match planted(LogMutant::TrimmedAsJunkInPage) {
            true => first,
            false => trim.clamp(first, end.max(first)),
        };
        // Of nobody's positions there may be any number: they are runs.
        map.set(first, trimmed - first, PageEntry::Trimmed);
        map.set(trimmed, end.saturating_sub(trimmed), PageEntry::Junk);
        for (unit, position, count) in &round.claims {
            map.set(*position, u64::from(*count), PageEntry::Unit(*unit));
        }
        map
    }
}

impl SealRound {
    /// The reports alone.
    fn clone_heads(&self) -> SealRound {
        SealRound {
            units: self.units.clone(),
            reports: self.reports.clone(),
            ..SealRound::default()
        }
    }
}
