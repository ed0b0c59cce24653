//! A client by itself: the requests that it sends, its bounds and its deadlines.

mod room;
mod rounds;

use std::time::Duration;

use bytes::Bytes;
use staves_model::{GroupId, Incarnation, NodeId, Time};

use super::*;
use crate::message::*;
use crate::types::*;

const SEQUENCER: SequencerId = SequencerId {
    node: NodeId(1),
    incarnation: Incarnation(1),
};

const SESSION: SessionId = SessionId {
    term: Term(1),
    count: 3,
};

fn view(mode: AppendMode, term: u64) -> LogView {
    let units = [1, 2, 3].map(GroupId);
    LogView {
        log: LogId(5),
        options: LogOptions::of(mode),
        term: Term(term),
        sequencer: Some(SEQUENCER),
        start: 0,
        projection: Projection::default().grown(0, &units).into(),
        trim: 0,
    }
}

fn append(op: u64, records: Records) -> AppenderEvent {
    AppenderEvent::Append {
        op,
        records,
        tags: Vec::new(),
        condition: None,
    }
}

struct TestAppender {
    appender: Appender,
    now: Time,
    out: AppenderEffects,
}

impl TestAppender {
    fn new(mode: AppendMode) -> TestAppender {
        let limits = AppendLimits {
            in_flight_max: 2,
            ..AppendLimits::default()
        };
        let mut test = TestAppender {
            appender: Appender::new(6, view(mode, 1), limits),
            now: Time::from_millis(1),
            out: AppenderEffects::default(),
        };
        test.step(AppenderEvent::Tick);
        test.open_session(7, SESSION);
        test.out = AppenderEffects::default();
        test
    }

    fn open_session(&mut self, nonce: u64, session: SessionId) {
        self.sequencer(SequencerAnswer::SessionOpened { nonce, session });
    }

    fn step(&mut self, event: AppenderEvent) {
        self.appender.step(self.now, event, &mut self.out);
    }

    fn append(&mut self, op: u64, bytes: usize) {
        let records = Records::one(vec![7; bytes].into());
        self.step(append(op, records));
    }

    fn wait(&mut self, ms: u64) {
        self.now = self.now + Duration::from_millis(ms);
        self.step(AppenderEvent::Tick);
    }

    /// The units that data went to, the appends that the sequencer was asked for, and their mark.
    fn sent(&mut self) -> (Vec<u32>, Vec<(u32, Low)>) {
        let units = std::mem::take(&mut self.out.units);
        let parked = units.iter().filter(|u| matches!(u.1.op, UnitOp::Park(_)));
        let parked = parked.map(|(unit, _)| unit.0).collect();
        let asked = std::mem::take(&mut self.out.sequencers);
        let asked = asked
            .into_iter()
            .filter_map(|(_, request)| match request.op {
                SequencerOp::Seq { id, low, .. } => Some((id.seq, low)),
                _ => None,
            });
        (parked, asked.collect())
    }

    fn sequencer(&mut self, answer: SequencerAnswer) {
        let log = LogId(5);
        self.step(AppenderEvent::Sequencer(SequencerReply { log, answer }));
    }

    fn unit(&mut self, answer: UnitAnswer) {
        let log = LogId(5);
        self.step(AppenderEvent::Unit(UnitReply { log, answer }));
    }
}

fn id(seq: u32) -> AppendId {
    let session = SESSION;
    AppendId { session, seq }
}

#[test]
fn l2_data_and_request_leave_at_once_and_large_data_alone() {
    let mut test = TestAppender::new(AppendMode::Bind);
    test.append(1, 100);
    let (parked, asked) = test.sent();
    assert_eq!((parked.len(), asked), (1, vec![(0, 0)]));
    test.append(2, 33 << 10);
    let (parked, asked) = test.sent();
    assert_eq!((parked.len(), asked), (1, vec![]));
    // By token the data waits for it.
    let mut test = TestAppender::new(AppendMode::Corfu);
    test.append(1, 100);
    assert!(test.out.units.is_empty());
    test.sequencer(SequencerAnswer::Token {
        term: TermStart {
            term: Term(1),
            start: 0,
            sequencer: SEQUENCER,
        },
        binding: Binding {
            position: 4,
            count: 1,
            id: Some(id(0)),
            links: Vec::new(),
        },
    });
    let (unit, request) = test.out.units.pop().expect("a write");
    assert_eq!(unit, GroupId(2), "the owner of position 4");
    assert!(matches!(request.op, UnitOp::Write { .. }));
}

#[test]
fn a_retry_keeps_its_id_and_its_data_follows_the_binding() {
    let mut test = TestAppender::new(AppendMode::Bind);
    test.append(1, 100);
    let first = test.sent().0[0];
    test.wait(500);
    assert_eq!(test.sent().1, [(0, 0)], "the same append");
    let unit = GroupId(first % 3 + 1);
    let position = 9;
    let bound = SequencerAnswer::Bound {
        id: id(0),
        position,
        unit,
    };
    test.sequencer(bound);
    assert_eq!(test.sent(), (vec![unit.0], vec![]));
    assert!(
        test.out.done.is_empty(),
        "the sequencer's word is no acknowledgement"
    );
    let ack = UnitAnswer::Ack {
        id: id(0),
        position,
        count: 1,
    };
    test.unit(ack.clone());
    test.unit(ack);
    let appended = Appended {
        id: id(0),
        position,
        count: 1,
    };
    assert_eq!(test.out.done, [(1, Ok(appended))]);
}

#[test]
fn appends_are_bounded_and_given_up_below_the_mark() {
    let mut test = TestAppender::new(AppendMode::Bind);
    for op in 1..=3 {
        test.append(op, 100);
    }
    assert_eq!(test.out.done, [(3, Err(AppendError::Busy))]);
    let records = Records {
        lens: vec![1, 1],
        bytes: Bytes::from_static(b"abc"),
    };
    test.step(append(4, records));
    let lengths = AppendError::Invalid(AppendBound::Lengths { sum: 2, len: 3 });
    assert_eq!(test.out.done[1], (4, Err(lengths)));
    test.wait(10_000);
    let timeouts = [
        (1, Err(AppendError::Timeout)),
        (2, Err(AppendError::Timeout)),
    ];
    assert_eq!(test.out.done[2..], timeouts);
    let low = test.appender.low(SESSION);
    assert_eq!(low, 2, "what was given up is refused");
    // Both of a late answer's appends are gone.
    test.unit(UnitAnswer::Abandoned { id: id(0) });
    assert_eq!(test.out.done.len(), 4);
}

#[test]
fn a_new_term_sends_what_is_in_flight_anew() {
    let mut test = TestAppender::new(AppendMode::Bind);
    test.append(1, 100);
    test.sent();
    test.unit(UnitAnswer::Stale { term: Term(2) });
    assert!(test.out.view_wanted);
    test.step(AppenderEvent::View(Box::new(view(AppendMode::Bind, 2))));
    assert_eq!(test.sent().1, [(0, 0)]);
    test.step(AppenderEvent::View(Box::new(view(AppendMode::Bind, 1))));
    assert_eq!(test.appender.view().term, Term(2), "it never goes back");
}

#[test]
fn l5_a_reader_brings_the_sequencers_word_and_never_passes_what_is_undecided() {
    let (log, now) = (LogId(5), Time::from_millis(1));
    let limits = ReadLimits::default();
    let mut reader = LogReader::new(view(AppendMode::Corfu, 1), limits.clone());
    let mut out = ReaderEffects::default();
    reader.step(now, ReaderEvent::Begin(1, ReadOp::Read(4)), &mut out);
    assert_eq!(out.units.pop().map(|(_, unit, _)| unit), Some(GroupId(2)));
    let slot = |slot| {
        let answer = UnitAnswer::Slot {
            position: 4,
            slot,
            stale: None,
        };
        ReaderEvent::Unit(1, UnitReply { log, answer })
    };
    reader.step(now, slot(SlotAnswer::Unwritten), &mut out);
    assert!(out.done.is_empty());
    let asked = out.sequencers.pop().map(|(_, _, request)| request.op);
    assert_eq!(asked, Some(SequencerOp::Where { position: 4 }));
    let binding = Binding {
        position: 4,
        count: 1,
        id: Some(id(0)),
        links: Vec::new(),
    };
    let term = TermStart {
        term: Term(1),
        start: 0,
        sequencer: SEQUENCER,
    };
    let answer = SequencerAnswer::Word {
        term,
        position: 4,
        word: PositionWord::Open {
            unit: GroupId(2),
            binding: binding.clone(),
        },
    };
    let word = ReaderEvent::Sequencer(1, SequencerReply { log, answer });
    reader.step(now, word, &mut out);
    let (_, _, request) = out.units.pop().expect("a read with the word");
    let brought = matches!(request.op, UnitOp::Read { word: Some((_, b)), .. } if b == binding);
    assert!(brought);
    reader.step(now, slot(SlotAnswer::Junk), &mut out);
    assert_eq!(
        out.done.pop(),
        Some((1, Ok(ReadResult::Slot(4, SlotAnswer::Junk))))
    );
    // A read without an answer ends.
    reader.step(now, ReaderEvent::Begin(2, ReadOp::Tail(None)), &mut out);
    reader.step(now + limits.deadline, ReaderEvent::Tick, &mut out);
    assert_eq!(out.done.pop(), Some((2, Err(ReadFailure::Timeout))));
}

#[test]
fn an_append_whose_session_expires_ends_with_an_error_and_the_next_has_another_session() {
    let mut test = TestAppender::new(AppendMode::Bind);
    test.append(1, 100);
    test.sent();
    test.unit(UnitAnswer::SessionOver { id: id(0) });
    assert_eq!(test.out.done, [(1, Err(AppendError::Expired))]);
    test.out.done.clear();
    let asked = std::mem::take(&mut test.out.sequencers);
    let asked = asked.into_iter().map(|(_, request)| request.op).next();
    assert_eq!(asked, Some(SequencerOp::OpenSession { nonce: 8 }));
    // What begins meanwhile is not sent, and so it is sent in the next session.
    test.append(2, 100);
    assert_eq!(test.sent(), (vec![], vec![]));
    let next = SessionId {
        count: 5,
        ..SESSION
    };
    test.open_session(
        7,
        SessionId {
            count: 4,
            ..SESSION
        },
    );
    assert!(
        !test.appender.has_session(),
        "an answer to a question before"
    );
    test.open_session(8, next);
    assert_eq!(test.sent().1, [(1, 1)]);
    let id = AppendId {
        session: next,
        seq: 1,
    };
    let (position, count) = (4, 1);
    let appended = Appended {
        id,
        position,
        count,
    };
    test.unit(UnitAnswer::Ack {
        id,
        position,
        count,
    });
    assert_eq!(test.out.done, [(2, Ok(appended))]);
}

#[test]
fn a_session_that_was_used_for_long_is_given_up_once_another_is_here() {
    let mut test = TestAppender::new(AppendMode::Bind);
    test.append(1, 100);
    test.sent();
    test.now = test.now + AppendLimits::default().session_age;
    test.append(2, 100);
    let asked = test.out.sequencers.iter().map(|(_, request)| &request.op);
    let opens = asked.filter(|op| matches!(op, SequencerOp::OpenSession { .. }));
    assert_eq!(opens.count(), 1);
    assert_eq!(test.sent().1, [(1, 0)], "in the one that it has");
    test.open_session(
        8,
        SessionId {
            count: 5,
            ..SESSION
        },
    );
    assert!(
        test.out.sequencers.is_empty(),
        "two of its appends are in flight"
    );
    for seq in 0..2 {
        let (id, position, count) = (id(seq), seq.into(), 1);
        test.unit(UnitAnswer::Ack {
            id,
            position,
            count,
        });
    }
    let ended = test.out.sequencers.pop().map(|(_, request)| request.op);
    assert_eq!(ended, Some(SequencerOp::EndSession { session: SESSION }));
    let mut out = AppenderEffects::default();
    test.appender.end_session(&mut out);
    assert!(!test.appender.has_session() && out.sequencers.len() == 1);
}
