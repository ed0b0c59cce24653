//! The memory of a sequencer, and its bounds: sessions, positions that nobody claims, decisions on what it never bound.

use super::*;
use crate::message::PositionWord::{At, Junk};

/// Regression: the map of a term that left many positions unclaimed had an item for each of them.
#[test]
fn positions_that_nobody_claims_are_one_run() {
    let (mut test, far) = (TestSequencer::committed(AppendMode::Bind), 1 << 50);
    test.report(UNITS[0], 1, far);
    test.report(UNITS[1], 1, 9);
    test.report(UNITS[2], 1, 0);
    let claim = |position| SealedItem::Claim { position, count: 1 };
    test.items(UNITS[0], vec![claim(far - 1)]);
    test.items(UNITS[1], vec![claim(8)]);
    test.items(UNITS[2], Vec::new());
    test.opened(far);
    assert_eq!(test.machine.unclaimed(), far - 2);
    let word = |position| test.machine.peek_word(position);
    assert_eq!(word(8), Some(At(UNITS[1])));
    assert_eq!(word(far / 2), Some(Junk));
    assert_eq!(word(far - 1), Some(At(UNITS[0])));
}

/// Regression: whoever reported decisions of appends that were never bound filled the sequencer's memory.
#[test]
fn a_decision_on_an_append_that_was_not_bound_is_not_remembered() {
    let mut test = TestSequencer::active(AppendMode::Bind);
    test.seq(1, UNITS[0]);
    for seq in 1..100 {
        let decision = Decision {
            term: Term(1),
            unit: UNITS[0],
            position: 70,
            count: 1,
            id: Some(id(seq)),
            data: true,
            bytes: 9,
        };
        test.unit(UNITS[0], UnitAnswer::Decided(decision));
    }
    assert_eq!(test.machine.peek_known(), 1);
    assert!(matches!(
        test.seq(1, UNITS[0]),
        SequencerAnswer::Bound { position: 0, .. }
    ));
}

impl TestSequencer {
    fn request(&mut self, op: SequencerOp) -> SequencerAnswer {
        let request = SequencerRequest { log: LogId(5), op };
        let event = SequencerEvent::Request(ReplyTo(0), request);
        self.machine.step(self.now, event, &mut self.out);
        self.out.replies.pop().expect("a reply").1.answer
    }

    fn open_session(&mut self) -> SessionId {
        match self.request(SequencerOp::OpenSession { nonce: 9 }) {
            SequencerAnswer::SessionOpened { nonce: 9, session } => session,
            other => panic!("{other:?}"),
        }
    }

    fn seq_of(&mut self, session: SessionId, seq: u32) -> SequencerAnswer {
        self.request(SequencerOp::Seq {
            id: AppendId { session, seq },
            count: 1,
            tags: Vec::new(),
            unit: UNITS[0],
            low: 0,
            lost: None,
            condition: None,
        })
    }
}

#[test]
fn a_session_is_numbered_by_its_term_and_the_lowest_ends_for_another() {
    let mut test = TestSequencer::active(AppendMode::Bind);
    test.machine.limits.sessions_max = 2;
    let [first, second] = [test.open_session(), test.open_session()];
    assert_eq!((first.term, first.count, second.count), (Term(1), 1, 2));
    assert!(matches!(
        test.seq_of(first, 0),
        SequencerAnswer::Bound { .. }
    ));
    let third = test.open_session();
    assert!(matches!(
        test.seq_of(first, 0),
        SequencerAnswer::SessionOver { .. }
    ));
    assert!(matches!(
        test.seq_of(second, 0),
        SequencerAnswer::Bound { .. }
    ));
    // One that its client has ended goes once it is the lowest.
    test.request(SequencerOp::EndSession { session: third });
    assert!(matches!(
        test.seq_of(second, 1),
        SequencerAnswer::Bound { .. }
    ));
    test.request(SequencerOp::EndSession { session: second });
    assert!(matches!(
        test.seq_of(third, 0),
        SequencerAnswer::SessionOver { .. }
    ));
    assert_eq!(test.machine.peek_known(), 0);
    // Numbers that this term has not given out are nobody's, and of a later one somebody else's.
    let unknown = SessionId { count: 9, ..first };
    assert!(matches!(
        test.seq_of(unknown, 0),
        SequencerAnswer::Abandoned { .. }
    ));
    let later = SessionId {
        term: Term(2),
        count: 1,
    };
    assert!(matches!(
        test.seq_of(later, 0),
        SequencerAnswer::NotSequencer { term: Term(2) }
    ));
    assert!(matches!(
        test.seq_of(test_session(4), 4100),
        SequencerAnswer::Abandoned { .. }
    ));
}

fn test_session(count: u32) -> SessionId {
    let term = Term(1);
    SessionId { term, count }
}

/// True if a session that one unit alone has dropped is over for the next sequencer.
fn the_floor_is_rebuilt() -> bool {
    let mut test = TestSequencer::committed(AppendMode::Bind);
    for unit in UNITS {
        let term = Term(0);
        let count = if unit == UNITS[1] { 3 } else { 0 };
        test.unit(
            unit,
            UnitAnswer::Sealed {
                term: Term(1),
                claimed: 0,
                trim: 0,
                pages: 0,
                floor: SessionId { term, count },
            },
        );
    }
    for unit in UNITS {
        test.items(unit, Vec::new());
    }
    test.opened(0);
    matches!(test.seq(1, UNITS[0]), SequencerAnswer::SessionOver { .. })
}

#[test]
fn the_highest_floor_of_all_units_is_the_next_sequencers() {
    use crate::mutant::{LogMutant, plant};
    assert!(the_floor_is_rebuilt());
    plant(Some(LogMutant::FloorNotRebuilt));
    assert!(!the_floor_is_rebuilt());
    plant(None);
}
