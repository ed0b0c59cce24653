//! A unit by itself: junk, data that meets its binding, what replies wait for, and bounds.

mod hostile;

use std::time::Duration;

use staves_model::{GroupId, Incarnation, NodeId, Time};

use super::*;
use crate::message::*;
use crate::types::*;

const LOG: LogId = LogId(5);
const ME: SequencerId = SequencerId {
    node: NodeId(1),
    incarnation: Incarnation(1),
};

fn start(term: u64) -> TermStart {
    TermStart {
        term: Term(term),
        start: 10,
        sequencer: ME,
    }
}

fn id(seq: u32) -> AppendId {
    let session = SessionId {
        term: Term(1),
        count: 3,
    };
    AppendId { session, seq }
}

fn binding(position: Position, seq: u32) -> Binding {
    Binding {
        position,
        count: 1,
        id: Some(id(seq)),
        links: Vec::new(),
    }
}

/// A unit that is sealed for term 1, and everything that it was asked.
struct TestUnit {
    unit: Unit,
    now: Time,
    asked: u64,
    out: UnitEffects,
}

impl TestUnit {
    fn new(mode: AppendMode, limits: UnitLimits) -> TestUnit {
        let mut test = TestUnit {
            unit: Unit::new(UnitState::new(GroupId(2)), limits),
            now: Time::from_millis(1),
            asked: 0,
            out: UnitEffects::default(),
        };
        let options = LogOptions::of(mode);
        test.ask(UnitOp::Seal {
            term: Term(1),
            options,
        });
        test.sync();
        test.out = UnitEffects::default();
        test
    }

    fn ask(&mut self, op: UnitOp<Vec<DataPlace>>) -> ReplyTo {
        self.asked += 1;
        let to = ReplyTo(self.asked);
        let request = UnitRequest { log: LOG, op };
        self.unit.step(self.now, to, request, &mut self.out);
        self.unit.check().expect("bounds");
        to
    }

    fn park(&mut self, seq: u32, bytes: u32) -> ReplyTo {
        let at = u64::from(seq);
        self.ask(UnitOp::Park(ParkedAppend {
            id: id(seq),
            low: 0,
            count: 1,
            tags: Vec::new(),
            condition: None,
            sequencer: ME,
            data: vec![DataPlace { at, bytes }],
        }))
    }

    fn bind(&mut self, position: Position, seq: u32) -> ReplyTo {
        let (term, binding) = (start(1), binding(position, seq));
        self.ask(UnitOp::Bind { term, binding })
    }

    fn read(&mut self, position: Position, word: Option<Binding>) -> SlotAnswer<DataPlace> {
        let word = word.map(|binding| (start(1), binding));
        let to = self.ask(UnitOp::Read {
            position,
            term: Term(1),
            start: 10,
            word,
        });
        match self.answer(to) {
            Some((_, UnitAnswer::Slot { slot, .. })) => slot,
            other => panic!("{other:?}"),
        }
    }

    fn wait(&mut self, ms: u64) {
        self.now = self.now + Duration::from_millis(ms);
        self.unit.tick(self.now, &mut self.out);
    }

    fn sync(&mut self) {
        self.unit.synced(u64::MAX);
    }

    /// The answer to a request, and the entry that it waits for.
    fn answer(&self, to: ReplyTo) -> Option<(u64, UnitAnswer<DataPlace>)> {
        let mut replies = self.out.replies.iter().filter(|reply| reply.to == to);
        let first = replies.next()?;
        assert_eq!(replies.next(), None, "answered twice");
        Some((first.after, first.reply.answer.clone()))
    }
}

fn decision(position: Position, seq: u32, data: bool) -> UnitAnswer<DataPlace> {
    UnitAnswer::Decided(Decision {
        term: Term(1),
        unit: GroupId(2),
        position,
        count: 1,
        id: Some(id(seq)),
        data,
        bytes: if data { 9 } else { 0 },
    })
}

fn is_data(slot: &SlotAnswer<DataPlace>, seq: u32) -> bool {
    matches!(slot, SlotAnswer::Data { head, .. } if head.id == id(seq))
}

#[test]
fn l2_data_and_binding_meet_in_one_entry_that_both_answers_wait_for() {
    for data_first in [true, false] {
        let mut test = TestUnit::new(AppendMode::Bind, UnitLimits::default());
        let (park, bind) = match data_first {
            true => (test.park(1, 9), test.bind(12, 1)),
            false => {
                let bind = test.bind(12, 1);
                (test.park(1, 9), bind)
            }
        };
        let commits = test.out.entries.iter();
        let commits: Vec<u64> = commits
            .filter(|new| matches!(new.entry, Entry::Commit { .. }))
            .map(|new| new.number)
            .collect();
        let [commit] = commits[..] else {
            panic!("{commits:?}");
        };
        let (position, count) = (12, 1);
        let ack = UnitAnswer::Ack {
            id: id(1),
            position,
            count,
        };
        assert_eq!(test.answer(park), Some((commit, ack)));
        assert_eq!(test.answer(bind), Some((commit, decision(12, 1, true))));
        assert!(is_data(&test.read(12, None), 1));
        // The read rests on what is not durable yet; one below does not.
        assert_eq!(
            test.out.replies.last().map(|reply| reply.after),
            Some(commit)
        );
        assert_eq!(test.read(11, None), SlotAnswer::Unwritten);
        assert_eq!(test.out.replies.last().map(|reply| reply.after), Some(0));
    }
}

#[test]
fn l5_a_hole_is_filled_by_its_reader() {
    let mut test = TestUnit::new(AppendMode::Bind, UnitLimits::default());
    assert_eq!(test.read(12, None), SlotAnswer::Unwritten);
    // The sequencer's word counts as the binding, and waits its time.
    assert_eq!(test.read(12, Some(binding(12, 1))), SlotAnswer::Unwritten);
    test.wait(1);
    assert_eq!(test.read(12, Some(binding(12, 1))), SlotAnswer::Unwritten);
    test.wait(1);
    assert_eq!(test.read(12, Some(binding(12, 1))), SlotAnswer::Junk);
    // The sequencer, which asked nothing, is told.
    let told = test.out.asks.last().map(|ask| ask.request.op.clone());
    assert!(matches!(told, Some(SequencerOp::Decided(decision)) if !decision.data));
    // A word of another term is none.
    let op = UnitOp::Read {
        position: 13,
        term: Term(1),
        start: 10,
        word: Some((start(2), binding(13, 2))),
    };
    test.ask(op);
    test.wait(20);
    assert_eq!(test.read(13, None), SlotAnswer::Unwritten);
}

#[test]
fn l5_a_hole_is_filled_in_the_background_past_its_time() {
    let mut test = TestUnit::new(AppendMode::Bind, UnitLimits::default());
    let bind = test.bind(12, 1);
    test.wait(7);
    assert_eq!(test.answer(bind), None);
    test.wait(1);
    let (after, answer) = test.answer(bind).expect("an answer");
    assert_eq!(answer, decision(12, 1, false));
    assert!(after > 0, "junk is told once it is durable");
    assert_eq!(test.read(12, None), SlotAnswer::Junk);
}

#[test]
fn l5_a_late_writer_loses_cleanly() {
    // Bound appends: the unit asks for another position for the same append, at once.
    let mut test = TestUnit::new(AppendMode::Bind, UnitLimits::default());
    test.bind(12, 1);
    test.wait(8);
    let park = test.park(1, 9);
    let asked = test.out.asks.last().map(|ask| ask.request.op.clone());
    assert!(matches!(asked, Some(SequencerOp::Seq { id: of, .. }) if of == id(1)));
    test.bind(15, 1);
    assert!(is_data(&test.read(15, None), 1));
    assert_eq!(test.read(12, None), SlotAnswer::Junk);
    let ack = test.answer(park).expect("an answer").1;
    assert!(matches!(ack, UnitAnswer::Ack { position: 15, .. }));
    // Tokens: the writer is told that it lost.
    let mut test = TestUnit::new(AppendMode::Corfu, UnitLimits::default());
    test.bind(12, 1);
    test.wait(400);
    let write = test.ask(UnitOp::Write {
        term: start(1),
        binding: binding(12, 1),
        low: Low::default(),
        data: vec![DataPlace { at: 1, bytes: 9 }],
    });
    let lost = UnitAnswer::Lost {
        id: id(1),
        position: 12,
    };
    assert_eq!(test.answer(write).expect("an answer").1, lost);
    assert_eq!(test.out.dropped, [DataPlace { at: 1, bytes: 9 }]);
}

#[test]
fn an_append_is_durable_once_and_a_seal_forgets_bindings_only() {
    let mut test = TestUnit::new(AppendMode::Bind, UnitLimits::default());
    test.park(1, 9);
    test.bind(12, 1);
    test.bind(13, 1);
    assert_eq!(test.read(13, None), SlotAnswer::Junk);
    test.bind(14, 2);
    test.park(3, 9);
    let options = LogOptions::default();
    let seal = test.ask(UnitOp::Seal {
        term: Term(2),
        options,
    });
    let (after, sealed) = test.answer(seal).expect("an answer");
    let claimed = matches!(sealed, UnitAnswer::Sealed { claimed: 14, .. });
    assert!(claimed && after > 0, "{sealed:?}");
    let late = test.bind(16, 3);
    let stale = UnitAnswer::Stale { term: Term(2) };
    assert_eq!(test.answer(late).expect("an answer").1, stale);
    test.wait(20);
    assert_eq!(test.read(14, None), SlotAnswer::Unwritten);
    // The parked data is still here.
    let binding = binding(16, 3);
    let term = start(2);
    test.ask(UnitOp::Bind { term, binding });
    assert!(is_data(&test.read(16, None), 3));
}

#[test]
fn parked_data_is_bounded_and_expires() {
    let limits = UnitLimits {
        parked_max: 2,
        ..UnitLimits::default()
    };
    let mut test = TestUnit::new(AppendMode::Bind, limits);
    let (first, again) = (test.park(1, 9), test.park(1, 9));
    assert_eq!(test.answer(first), Some((0, UnitAnswer::Superseded)));
    test.park(2, 9);
    let third = test.park(3, 9);
    let busy = UnitAnswer::Busy { id: Some(id(3)) };
    assert_eq!(test.answer(third), Some((0, busy)));
    assert_eq!(test.unit.parked(), (2, 18));
    test.wait(4);
    assert_eq!(test.out.asks.len(), 2, "each asks for its position");
    test.wait(1996);
    let expired = UnitAnswer::Expired { id: id(1) };
    assert_eq!(test.answer(again), Some((0, expired)));
    assert_eq!(test.unit.parked(), (0, 0));
    assert_eq!(test.out.dropped.len(), 4);
}

#[test]
fn a_copy_answers_below_the_prefix_that_its_head_told_it() {
    let mut test = TestUnit::new(AppendMode::Bind, UnitLimits::default());
    test.park(1, 9);
    test.bind(12, 1);
    let mut copy = UnitState::new(GroupId(2));
    let options = LogOptions::default();
    let (log, term) = (LOG, Term(1));
    copy.apply(&Entry::Seal { log, term, options }, &mut Vec::new());
    let prefix = UnitOp::Prefix {
        term,
        position: 13,
        floor: SessionId::default(),
    };
    let entries = std::mem::take(&mut test.out.entries);
    for new in &entries {
        copy.apply(&new.entry, &mut Vec::new());
    }
    assert_eq!(copy.read_at_copy(LOG, 12), None);
    test.ask(prefix);
    for new in &test.out.entries {
        copy.apply(&new.entry, &mut Vec::new());
    }
    let slot = copy.read_at_copy(LOG, 12).expect("known");
    assert!(is_data(&slot, 1));
    assert_eq!(copy.read_at_copy(LOG, 11), None, "it may be another unit's");
    assert_eq!(&copy, test.unit.state());
}

#[test]
fn a_sealed_unit_tells_everything_in_bounded_parts() {
    let mut test = TestUnit::new(AppendMode::Bind, UnitLimits::default());
    for seq in 0..1500 {
        test.park(seq, 1);
        test.bind(u64::from(seq) * 2, seq);
    }
    test.sync();
    let (mut ids, mut claims, mut cursor) = (0, 0, Some(SealCursor::START));
    let mut parts = 0;
    while let Some(at) = cursor {
        parts += 1;
        let to = test.ask(UnitOp::Sealed {
            term: Term(1),
            floor: 100,
            cursor: at,
        });
        let Some((0, UnitAnswer::SealedItems { items, next, .. })) = test.answer(to) else {
            panic!("no items");
        };
        assert!(items.len() <= SEALED_ITEMS_MAX);
        cursor = next;
        for item in items {
            match item {
                SealedItem::Id { .. } => ids += 1,
                SealedItem::Claim { position, .. } => {
                    assert!(position >= 100);
                    claims += 1;
                }
                SealedItem::Low { .. } | SealedItem::Tag { .. } => {}
            }
        }
    }
    assert_eq!((ids, claims, parts), (1500, 1450, 3));
}
