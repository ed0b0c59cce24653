//! The sequencer's clock: what is sent again, map pages, the decided prefix.

use staves_model::Time;

use super::map::push_run;
use super::{ActiveTerm, Phase, Sequencer, SequencerEffects};
use crate::message::{SequencerAnswer, UnitOp};
use crate::mutant::{LogMutant, planted};
use crate::types::{AppendMode, PageEntry, PageRun, Position};

/// The time after which a call is repeated doubles so often at most.
const CALL_DOUBLINGS_MAX: u32 = 16;

impl Sequencer {
    pub(super) fn tick(&mut self, now: Time, out: &mut SequencerEffects) {
        if !self.is_active() {
            let doubled = self.limits.call_again * (1 << self.unheard.min(CALL_DOUBLINGS_MAX));
            if now.since(self.called) >= doubled.min(self.limits.call_again_max) {
                self.unheard += 1;
                self.call(now, out);
            }
            return;
        }
        self.view_if_due(now, out);
        self.resend_bindings(now, out);
        self.skip_for_oldest(now, out);
        self.write_page(now, out);
        self.send_prefix(now, out);
        self.give_up_asked(now, out);
        self.end_waits(now, out);
        self.keep_records(now, out);
        if let Phase::Active(active) = &mut self.phase
            && now.since(active.last_call) >= self.limits.call_again
        {
            active.last_call = now;
            self.send_trim(out);
            self.record_trim_again(out);
        }
    }

    /// Bindings are sent again until they are decided: a new head of a unit's group knows none (rule 12).
    fn resend_bindings(&mut self, now: Time, out: &mut SequencerEffects) {
        let term = self.term_start();
        let wait = match self.record.view.options.mode {
            AppendMode::Bind | AppendMode::Predict => self.limits.resend,
            AppendMode::Corfu => self.limits.resend_token,
        };
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
        let mut due = Vec::new();
        for open in active.open.values_mut() {
            if now.since(open.sent) >= wait && !planted(LogMutant::NoResend) {
                open.sent = now;
                due.push((open.unit, open.binding.clone()));
            }
        }
        for (unit, binding) in due {
            self.send(unit, UnitOp::Bind { term, binding }, out);
        }
    }

    /// Writes the next map page once all of it is decided, and again until it is durable.
    pub(super) fn write_page(&mut self, now: Time, out: &mut SequencerEffects) {
        let again = self.limits.call_again;
        let term = self.term;
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
        let Some(end) = active.map.page_end() else {
            return;
        };
        let waits = active.page_sent.is_some_and(|at| now.since(at) < again);
        let runs = match planted(LogMutant::PageEarly) && end <= active.next {
            true => Some(active.page_early(end)),
            false if end <= active.prefix() => active.map.runs(),
            false => None,
        };
        let Some(runs) = runs.filter(|_| !waits) else {
            return;
        };
        active.page_sent = Some(now);
        let (page, first) = (active.map.page(), active.map.first());
        if let Some(owner) = self.record.view.projection.owner(first) {
            self.send(owner, UnitOp::WritePage { term, page, runs }, out);
        }
    }

    pub(super) fn page_written(&mut self, now: Time, page: u64, out: &mut SequencerEffects) {
        if let Phase::Active(active) = &mut self.phase {
            let early = active
                .map
                .page_end()
                .is_none_or(|end| end > active.prefix());
            if page != active.map.page() || early {
                return;
            }
            active.map.page_written();
            active.page_sent = None;
        }
        self.write_page(now, out);
    }

    /// Tells units the decided prefix, for their copies (rule 19).
    fn send_prefix(&mut self, now: Time, out: &mut SequencerEffects) {
        let term = self.term;
        let units = self.record.view.projection.units();
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
        let position = active.prefix();
        let due = now.since(active.last_prefix) >= self.limits.prefix_every;
        if position == active.prefix_sent || !due {
            return;
        }
        // The floor goes along: it alone is no reason for an entry at every unit.
        let floor = active.sessions.floor();
        (active.prefix_sent, active.last_prefix) = (position, now);
        for unit in units {
            let op = UnitOp::Prefix {
                term,
                position,
                floor,
            };
            self.send(unit, op, out);
        }
    }

    /// Checks and trims have a deadline: those who asked ask again.
    fn give_up_asked(&mut self, now: Time, out: &mut SequencerEffects) {
        let wait = self.limits.asked_wait;
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
        let mut late = Vec::new();
        active.checks.retain(|_, check| {
            let over = now.since(check.since) >= wait;
            late.extend(over.then_some(check.to));
            !over
        });
        active.trims.retain(|trim| {
            let over = now.since(trim.since) >= wait;
            late.extend(over.then_some(trim.to));
            !over
        });
        for to in late {
            self.reply(to, SequencerAnswer::Busy { id: None }, out);
        }
    }
}

impl ActiveTerm {
    /// The planted bug's page: open positions as those of the unit that they are bound to.
    fn page_early(&self, end: Position) -> Vec<PageRun> {
        let mut runs = Vec::new();
        for position in self.map.first()..end {
            let open = self.open.range(..=position).next_back();
            let open = open.filter(|(_, open)| position < open.binding.end());
            let bound = open.map(|(_, open)| PageEntry::Unit(open.unit));
            let entry = self.map.get(position).or(bound);
            push_run(&mut runs, entry.unwrap_or(PageEntry::Junk));
        }
        runs
    }
}
