//! A sequencer by itself: a term's way to its opening, the wait queues, and what is sent again.

mod bounds;
mod sessions;

use std::time::Duration;

use staves_model::{GroupId, Incarnation, NodeId};

use super::*;
use crate::message::{RecordRefusal, SealedItem};
use crate::types::*;

const ME: SequencerId = SequencerId {
    node: NodeId(1),
    incarnation: Incarnation(4),
};
const UNITS: [GroupId; 3] = [GroupId(1), GroupId(2), GroupId(3)];

fn committed(mode: AppendMode) -> LogRecord {
    let view = LogView {
        log: LogId(5),
        options: LogOptions::of(mode),
        term: Term(0),
        sequencer: None,
        start: 0,
        projection: Default::default(),
        trim: 0,
    };
    let lead = Leadership {
        term: Term(1),
        sequencer: ME,
        added: UNITS.to_vec(),
    };
    LogRecord {
        name: "a".into(),
        view,
        lead: Some(lead),
        cursors: Default::default(),
        retention: Default::default(),
    }
}

/// An append of a session of an earlier term.
fn id(seq: u32) -> AppendId {
    let session = SessionId {
        term: Term(0),
        count: 3,
    };
    AppendId { session, seq }
}

struct TestSequencer {
    machine: Sequencer,
    now: Time,
    out: SequencerEffects,
}

impl TestSequencer {
    fn committed(mode: AppendMode) -> TestSequencer {
        let mut out = SequencerEffects::default();
        let now = Time::from_millis(1);
        let limits = SequencerLimits::default();
        let machine = Sequencer::new(now, ME, committed(mode), limits, &mut out);
        TestSequencer {
            machine: machine.expect("it is led"),
            now,
            out,
        }
    }

    fn active(mode: AppendMode) -> TestSequencer {
        let mut test = TestSequencer::committed(mode);
        for unit in UNITS {
            test.report(unit, 1, 0);
        }
        for unit in UNITS {
            test.items(unit, Vec::new());
        }
        test.opened(0);
        test.out = SequencerEffects::default();
        test
    }

    fn unit(&mut self, unit: GroupId, answer: UnitAnswer) {
        let log = LogId(5);
        let event = SequencerEvent::Unit(unit, UnitReply { log, answer });
        self.machine.step(self.now, event, &mut self.out);
        self.machine.check().expect("bounds");
    }

    fn report(&mut self, unit: GroupId, term: u64, claimed: Position) {
        let sealed = UnitAnswer::Sealed {
            term: Term(term),
            claimed,
            trim: 0,
            pages: 0,
            floor: SessionId::default(),
        };
        self.unit(unit, sealed);
    }

    fn items(&mut self, unit: GroupId, items: Vec<SealedItem>) {
        let answer = UnitAnswer::SealedItems {
            term: Term(1),
            cursor: crate::message::SealCursor::START,
            items,
            next: None,
        };
        self.unit(unit, answer);
    }

    fn opened(&mut self, start: Position) {
        let mut record = self.machine.record().clone();
        if let Some(lead) = record.lead.take() {
            record.view.term = lead.term;
            record.view.sequencer = Some(ME);
            record.view.start = start;
            record.view.projection = Projection::default().grown(start, &lead.added).into();
        }
        let event = SequencerEvent::Home(RecordReply::Record(Box::new(record)));
        self.machine.step(self.now, event, &mut self.out);
    }

    fn seq(&mut self, seq: u32, unit: GroupId) -> SequencerAnswer {
        let id = id(seq);
        let op = SequencerOp::Seq {
            id,
            count: 1,
            tags: Vec::new(),
            unit,
            low: 0,
            lost: None,
            condition: None,
        };
        let request = SequencerRequest { log: LogId(5), op };
        let event = SequencerEvent::Request(ReplyTo(0), request);
        self.machine.step(self.now, event, &mut self.out);
        self.machine.check().expect("bounds");
        self.out.replies.pop().expect("a reply").1.answer
    }

    fn wait(&mut self, us: u64) {
        self.now = self.now + Duration::from_micros(us);
        self.machine
            .step(self.now, SequencerEvent::Tick, &mut self.out);
    }

    /// The positions that were sent to units, and whether they are an append's.
    fn bound(&mut self) -> Vec<(u32, Position, bool)> {
        let units = std::mem::take(&mut self.out.units);
        let bound = units
            .into_iter()
            .filter_map(|(unit, request)| match request.op {
                UnitOp::Bind { binding, .. } => {
                    Some((unit.0, binding.position, binding.id.is_some()))
                }
                _ => None,
            });
        bound.collect()
    }
}

#[test]
fn l7_a_term_opens_once_every_unit_is_sealed_and_starts_above_all_claims() {
    let mut test = TestSequencer::committed(AppendMode::Bind);
    assert_eq!(test.out.units.len(), 3);
    test.report(UNITS[0], 1, 7);
    test.report(UNITS[1], 0, 90);
    test.report(UNITS[1], 1, 9);
    test.out.units.clear();
    test.wait(20_000);
    let asked: Vec<GroupId> = test.out.units.iter().map(|(unit, _)| *unit).collect();
    assert_eq!(asked, [UNITS[2]], "the one that is missing is asked again");
    assert!(matches!(
        test.seq(1, UNITS[0]),
        SequencerAnswer::Busy { .. }
    ));
    test.report(UNITS[2], 1, 4);
    for unit in UNITS {
        test.items(unit, Vec::new());
    }
    let open = test.out.home.last();
    assert!(matches!(open, Some(RecordRequest::Open { start: 9, .. })));
    assert!(!test.machine.is_active());
    test.opened(9);
    assert!(matches!(
        test.seq(1, UNITS[0]),
        SequencerAnswer::Bound { position: 9, .. }
    ));
    let word = test.machine.peek_word(8);
    assert_eq!(
        word,
        Some(crate::message::PositionWord::Junk),
        "nobody claims it"
    );
    // A higher term ends it for good.
    test.unit(UNITS[0], UnitAnswer::Stale { term: Term(2) });
    assert!(test.machine.is_deposed());
    test.opened(9);
    assert!(test.machine.is_deposed());
}

#[test]
fn l3_a_queue_waits_for_its_units_turn_and_skips_after_the_time_out() {
    let mut test = TestSequencer::active(AppendMode::Predict);
    // Positions 0, 1, 2 are of units 1, 2, 3.
    assert!(matches!(
        test.seq(1, UNITS[2]),
        SequencerAnswer::Queued { .. }
    ));
    assert_eq!(test.bound(), []);
    test.seq(2, UNITS[0]);
    assert_eq!(test.bound(), [(1, 0, true)], "its turn is now");
    test.wait(1_000);
    test.seq(3, UNITS[1]);
    assert_eq!(test.bound(), [(2, 1, true), (3, 2, true)]);
    // Now it is the turn of the first unit; the second is waited for, too long.
    test.seq(4, UNITS[1]);
    test.wait(1_499);
    assert_eq!(test.bound(), []);
    test.wait(1);
    assert_eq!(test.bound(), [(1, 3, false), (2, 4, true)]);
}

#[test]
fn a_binding_is_sent_again_until_it_is_decided() {
    let mut test = TestSequencer::active(AppendMode::Bind);
    test.seq(1, UNITS[1]);
    assert_eq!(test.bound(), [(2, 0, true)]);
    test.wait(9_999);
    assert_eq!(test.bound(), []);
    test.wait(1);
    assert_eq!(test.bound(), [(2, 0, true)]);
    // A retry that names another unit learns where it is bound.
    let again = test.seq(1, UNITS[2]);
    assert!(matches!(again, SequencerAnswer::Bound { unit, .. } if unit == UNITS[1]));
    assert_eq!(test.bound(), [(2, 0, true)]);
    let id = id(1);
    test.unit(
        UNITS[1],
        UnitAnswer::Decided(Decision {
            term: Term(1),
            unit: UNITS[1],
            position: 0,
            count: 1,
            id: Some(id),
            data: true,
            bytes: 1,
        }),
    );
    test.wait(20_000);
    assert_eq!(test.bound(), []);
    assert!(matches!(
        test.seq(1, UNITS[2]),
        SequencerAnswer::Done { position: 0, .. }
    ));
}

/// True if a second report of junk leaves an append bound where it is by then.
fn junk_is_compared_by_position() -> bool {
    let mut test = TestSequencer::active(AppendMode::Bind);
    test.seq(1, UNITS[0]);
    let junk = UnitAnswer::Decided(Decision {
        term: Term(1),
        unit: UNITS[0],
        position: 0,
        count: 1,
        id: Some(id(1)),
        data: false,
        bytes: 0,
    });
    test.unit(UNITS[0], junk.clone());
    test.seq(1, UNITS[0]);
    test.unit(UNITS[0], junk);
    let again = test.seq(1, UNITS[1]);
    matches!(again, SequencerAnswer::Bound { position: 1, .. })
}

/// True if a confirmation confirms the check that it was asked for, and not a later one.
fn a_check_needs_its_own_confirmation() -> bool {
    let mut test = TestSequencer::active(AppendMode::Bind);
    let mut answered = Vec::new();
    for to in [ReplyTo(1), ReplyTo(2)] {
        let op = SequencerOp::Check { tag: None };
        let request = SequencerRequest { log: LogId(5), op };
        let event = SequencerEvent::Request(to, request);
        test.machine.step(test.now, event, &mut test.out);
    }
    for nonce in [1, 2] {
        let term = Term(1);
        test.unit(UNITS[0], UnitAnswer::Confirmed { term, nonce });
        answered.push(test.out.replies.len());
    }
    answered == [1, 2]
}

#[test]
fn bugs_that_need_a_rare_order_are_found_by_script() {
    use crate::mutant::{LogMutant, plant};
    assert!(junk_is_compared_by_position() && a_check_needs_its_own_confirmation());
    plant(Some(LogMutant::PositionNotCompared));
    assert!(!junk_is_compared_by_position());
    plant(Some(LogMutant::CheckByOlder));
    assert!(!a_check_needs_its_own_confirmation());
    plant(None);
}

#[test]
fn a_seat_begins_a_term_once() {
    let (now, mut out) = (Time::from_millis(1), SequencerEffects::default());
    let mut seat = SequencerSeat::new(ME);
    let limits = SequencerLimits::default;
    seat.lead(now, committed(AppendMode::Bind), limits(), &mut out);
    let (log, answer) = (LogId(5), UnitAnswer::Stale { term: Term(2) });
    let event = SequencerEvent::Unit(UNITS[0], UnitReply { log, answer });
    seat.step(now, event, &mut out);
    assert!(seat.machine().is_none());
    seat.lead(now, committed(AppendMode::Bind), limits(), &mut out);
    assert!(seat.machine().is_none(), "it never resumes");
    let mut other = SequencerSeat::new(SequencerId {
        incarnation: Incarnation(5),
        ..ME
    });
    other.lead(now, committed(AppendMode::Bind), limits(), &mut out);
    assert!(other.machine().is_none(), "it was another life's");
}

/// Regression: the bindings of a log that was deleted were sent again for ever.
#[test]
fn a_sequencer_whose_unit_knows_nothing_of_the_log_asks_its_home() {
    let mut test = TestSequencer::active(AppendMode::Bind);
    test.seq(1, UNITS[0]);
    test.wait(600_000);
    test.out.home.clear();
    for _ in 0..3 {
        test.unit(UNITS[0], UnitAnswer::NotSealed { term: Term(0) });
    }
    let name = "a".to_owned();
    assert_eq!(test.out.home, [RecordRequest::View { name }]);
    let gone = RecordReply::Refused(RecordRefusal::NotFound);
    let event = SequencerEvent::Home(gone);
    test.machine.step(test.now, event, &mut test.out);
    assert!(test.machine.is_deposed());
}

/// A log of two records, of which a cursor has passed none, refuses a third until the cursor moves on.
#[test]
fn a_full_log_waits_for_its_cursor() {
    use crate::retention::{LogRetention, WhenFull};
    let mut test = TestSequencer::active(AppendMode::Bind);
    let mut record = test.machine.record().clone();
    record.retention = LogRetention {
        records: Some(2),
        when_full: WhenFull::Refuse,
        ..LogRetention::default()
    };
    record.cursors.insert("reader".into(), 0);
    let home = |test: &mut TestSequencer, record: &LogRecord| {
        let reply = RecordReply::Record(Box::new(record.clone()));
        let event = SequencerEvent::Home(reply);
        test.machine.step(test.now, event, &mut test.out);
    };
    home(&mut test, &record);
    test.wait(1);
    let mut refused = None;
    for seq in 0..6 {
        let SequencerAnswer::Bound { id, position, .. } = test.seq(seq, UNITS[0]) else {
            refused = Some(seq);
            break;
        };
        let decision = Decision {
            term: Term(1),
            unit: UNITS[0],
            position,
            count: 1,
            id: Some(id),
            data: true,
            bytes: 10,
        };
        test.unit(UNITS[0], UnitAnswer::Decided(decision));
    }
    assert_eq!(refused, Some(3), "two are kept, and one makes the log full");
    test.out.home.clear();
    test.wait(1_000_000);
    let asked = test.out.home.pop();
    assert!(matches!(
        asked,
        Some(RecordRequest::Retain { position: 1, .. })
    ));
    record.cursors.insert("reader".into(), 3);
    record.view.trim = 1;
    home(&mut test, &record);
    assert!(matches!(
        test.seq(3, UNITS[0]),
        SequencerAnswer::Bound { .. }
    ));
}
