//! A unit against whoever may send it anything: what it takes is bounded, and what is over stays over.

use super::*;

/// Regression: a binding at any position had the next term begin above it.
#[test]
fn a_binding_far_beyond_all_that_was_given_out_is_not_taken() {
    let mut test = TestUnit::new(AppendMode::Bind, UnitLimits::default());
    test.bind(12, 1);
    for (position, count) in [(1 << 50, 1), (u64::MAX, 1), (u64::MAX - 1, 1024)] {
        let binding = Binding {
            position,
            count,
            ..binding(position, 2)
        };
        assert_eq!(
            test.read(position, Some(binding.clone())),
            SlotAnswer::Unwritten
        );
        let term = start(1);
        let bind = test.ask(UnitOp::Bind { term, binding });
        assert!(!matches!(
            test.answer(bind),
            Some((_, UnitAnswer::Decided(_)))
        ));
        test.wait(50);
    }
    let (term, runs) = (Term(1), vec![junk_page()]);
    for page in [u64::MAX, 1 << 40] {
        let runs = runs.clone();
        let written = test.ask(UnitOp::WritePage { term, page, runs });
        let busy = UnitAnswer::Busy { id: None };
        assert_eq!(test.answer(written).map(|answer| answer.1), Some(busy));
    }
    let share = test.unit.state().share(LOG).expect("it is sealed");
    assert_eq!((share.claimed, share.pages.len()), (13, 0));
    test.bind(13 + (1 << 23), 3);
    test.wait(50);
    let share = test.unit.state().share(LOG).expect("it is sealed");
    assert_eq!(share.claimed, 14 + (1 << 23), "its sequencer may be ahead");
}

fn junk_page() -> PageRun {
    let count = LogOptions::default().page_positions;
    let entry = PageEntry::Junk;
    PageRun { count, entry }
}

/// Regression: a seal that came later than the log's deletion left an empty share for ever.
/// Regression: a record that was on its way was said to be given up, and then came.
#[test]
fn a_punch_of_a_position_that_is_undecided_is_not_said_to_be_done() {
    let mut test = TestUnit::new(AppendMode::Bind, UnitLimits::default());
    let punch = |test: &mut TestUnit, position| {
        let to = test.ask(UnitOp::Punch { position });
        test.answer(to).map(|(_, answer)| answer)
    };
    let unwritten = |position| {
        Some(UnitAnswer::Slot {
            position,
            slot: SlotAnswer::Unwritten,
            stale: None,
        })
    };
    assert_eq!(punch(&mut test, 12), unwritten(12));
    test.bind(12, 1);
    assert_eq!(
        punch(&mut test, 12),
        unwritten(12),
        "bound, and without data"
    );
    test.park(1, 9);
    let punched = |position| Some(UnitAnswer::Punched { position });
    assert_eq!(punch(&mut test, 12), punched(12));
    assert_eq!(test.read(12, None), SlotAnswer::Trimmed);
    assert_eq!(punch(&mut test, 12), punched(12), "again");
    test.ask(UnitOp::Trim { position: 20 });
    assert_eq!(punch(&mut test, 15), punched(15), "trimmed");
}

#[test]
fn a_seal_of_a_log_that_was_forgotten_is_refused() {
    let options = LogOptions::default();
    let seal = |test: &mut TestUnit, term| {
        let to = test.ask(UnitOp::Seal { term, options });
        test.answer(to).map(|answer| answer.1)
    };
    let gone = Some(UnitAnswer::Stale {
        term: Term(u64::MAX),
    });
    let mut test = TestUnit::new(AppendMode::Bind, UnitLimits::default());
    test.ask(UnitOp::Forget);
    assert_eq!(seal(&mut test, Term(2)), gone);
    // It is so for whoever serves next, and where the log was never known.
    test.unit = Unit::new(test.unit.state().clone(), UnitLimits::default());
    assert_eq!(seal(&mut test, Term(3)), gone);
    test.unit = Unit::new(UnitState::new(GroupId(2)), UnitLimits::default());
    test.ask(UnitOp::Forget);
    assert_eq!(seal(&mut test, Term(1)), gone);
    assert!(test.unit.state().shares().is_empty());
}

fn of(count: u32) -> AppendId {
    let session = SessionId {
        term: Term(1),
        count,
    };
    AppendId { session, seq: 0 }
}

fn over(count: u32) -> Option<UnitAnswer<DataPlace>> {
    Some(UnitAnswer::SessionOver { id: of(count) })
}

fn ack(count: u32, position: Position) -> Option<UnitAnswer<DataPlace>> {
    let (id, count) = (of(count), 1);
    Some(UnitAnswer::Ack {
        id,
        position,
        count,
    })
}

/// A table of two sessions, and what becomes of the lowest.
#[test]
fn a_session_that_is_dropped_for_another_is_over_and_its_late_appends_are_refused() {
    let limits = UnitLimits {
        sessions_max: 2,
        ..UnitLimits::default()
    };
    let mut test = TestUnit::new(AppendMode::Bind, limits);
    let mut append = |count: u32, position: Position| {
        let park = test.ask(UnitOp::Park(ParkedAppend {
            id: of(count),
            low: 0,
            count: 1,
            tags: Vec::new(),
            condition: None,
            sequencer: ME,
            data: vec![DataPlace {
                at: position,
                bytes: 9,
            }],
        }));
        let binding = Binding {
            id: Some(of(count)),
            ..binding(position, 0)
        };
        let term = start(1);
        test.ask(UnitOp::Bind { term, binding });
        test.sync();
        test.answer(park).map(|answer| answer.1)
    };
    assert_eq!(append(4, 10), ack(4, 10));
    assert_eq!(append(5, 11), ack(5, 11));
    assert_eq!(append(6, 12), ack(6, 12), "the lowest ends for it");
    assert_eq!(append(4, 13), over(4));
    assert_eq!(append(3, 14), over(3), "one that was never here as well");
    assert_eq!(append(5, 15), ack(5, 11), "a retry");
    // The sequencer's floor comes with its prefix.
    let prefix = UnitOp::Prefix {
        term: Term(1),
        position: 13,
        floor: of(5).session,
    };
    test.ask(prefix);
    let late = test.park(1, 9);
    let expected = UnitAnswer::SessionOver { id: id(1) };
    assert_eq!(test.answer(late).map(|answer| answer.1), Some(expected));
    let share = test.unit.state().share(LOG).expect("it is sealed");
    assert_eq!(
        (share.sessions.lows().len(), share.sessions.floor().count),
        (1, 5)
    );
}
