//! The records of logs at their home.

use staves_model::{GroupId, Incarnation, NodeId, Time};

use super::super::UnitLimits;
use super::*;
use crate::message::{UnitOp, UnitRequest};
use crate::state::UnitState;

const ME: SequencerId = SequencerId {
    node: NodeId(1),
    incarnation: Incarnation(1),
};

fn record(unit: &mut Unit, request: RecordRequest) -> RecordReply {
    let mut out = UnitEffects::default();
    unit.record(ReplyTo(1), request, &mut out);
    let made = out.entries.last().map_or(0, |new| new.number);
    let delivery = out.records.pop().expect("a reply");
    assert_eq!(delivery.after, made, "it waits for its entry");
    unit.synced(u64::MAX);
    delivery.reply
}

fn is_moved(reply: &RecordReply) -> bool {
    matches!(reply, RecordReply::Refused(RecordRefusal::Moved(_)))
}

fn create(name: &str) -> RecordRequest {
    RecordRequest::Create {
        name: name.into(),
        options: LogOptions::default(),
    }
}

#[test]
fn a_record_changes_by_compare_and_set_and_its_number_is_never_used_again() {
    let mut unit = Unit::new(UnitState::new(GroupId(2)), UnitLimits::default());
    let RecordReply::Record(first) = record(&mut unit, create("a")) else {
        panic!("not created");
    };
    let exists = RecordReply::Refused(RecordRefusal::Exists);
    assert_eq!(record(&mut unit, create("a")), exists);
    let lead = |from: u64, log: LogId| RecordRequest::Lead {
        name: "a".into(),
        log,
        from_term: Term(from),
        sequencer: ME,
        added: vec![GroupId(7)],
    };
    let log = first.view.log;
    let led = record(&mut unit, lead(0, log));
    assert_eq!(record(&mut unit, lead(0, log)), led, "a retry");
    let RecordReply::Record(led) = led else {
        panic!("not led");
    };
    assert_eq!((led.term(), led.view.term), (Term(1), Term(0)));
    assert!(led.to_seal().contains(&GroupId(7)));
    // An unopened term is abandoned by the next, and changes nothing.
    assert!(matches!(
        record(&mut unit, lead(1, log)),
        RecordReply::Record(_)
    ));
    let open = |term: u64| RecordRequest::Open {
        name: "a".into(),
        log,
        term: Term(term),
        start: 4,
    };
    let moved = record(&mut unit, open(1));
    assert!(is_moved(&moved));
    let RecordReply::Record(opened) = record(&mut unit, open(2)) else {
        panic!("not opened");
    };
    assert_eq!((opened.view.term, opened.view.start), (Term(2), 4));
    assert_eq!(opened.view.projection.last(), [GroupId(7)]);
    // A term that was decided on an older record is refused.
    let moved = record(&mut unit, lead(1, log));
    assert!(is_moved(&moved));
    let delete = RecordRequest::Delete { name: "a".into() };
    assert!(matches!(record(&mut unit, delete), RecordReply::Deleted(_)));
    let RecordReply::Record(second) = record(&mut unit, create("a")) else {
        panic!("not created");
    };
    assert_ne!(second.view.log, log);
    assert_eq!(second.view.log.home(), GroupId(2));
    let moved = record(&mut unit, lead(0, log));
    assert!(is_moved(&moved));
}

/// Regression: a name with a line end was taken, and made two lines of every list.
#[test]
fn names_have_no_control_characters() {
    let mut unit = Unit::new(UnitState::new(GroupId(2)), UnitLimits::default());
    let refused = RecordReply::Refused(RecordRefusal::Invalid);
    for name in [
        "",
        "a\nb",
        "\u{1b}[2J",
        "a\u{2028}b",
        "\u{9b}1m",
        &"x".repeat(256),
    ] {
        assert_eq!(record(&mut unit, create(name)), refused, "{name:?}");
    }
    for name in ["a b", "Grüße", "a/b:c", &"x".repeat(255)] {
        let made = record(&mut unit, create(name));
        assert!(matches!(made, RecordReply::Record(_)), "{name:?}");
    }
}

#[test]
fn names_are_listed_in_order_in_parts() {
    let mut unit = Unit::new(UnitState::new(GroupId(2)), UnitLimits::default());
    record(&mut unit, create("b"));
    record(&mut unit, create("a"));
    let list = |after: &str| RecordRequest::List {
        after: after.into(),
        limit: 1,
    };
    let names = |name: &str| RecordReply::Names(vec![name.into()]);
    assert_eq!(record(&mut unit, list("")), names("a"));
    assert_eq!(record(&mut unit, list("a")), names("b"));
}

fn set_cursor(from: Option<Option<Position>>, to: Option<Position>, log: LogId) -> RecordRequest {
    RecordRequest::SetCursor {
        name: "a".into(),
        log,
        cursor: "reader".into(),
        from,
        to,
    }
}

fn with_log() -> (Unit, LogId) {
    let mut unit = Unit::new(UnitState::new(GroupId(2)), UnitLimits::default());
    let RecordReply::Record(made) = record(&mut unit, create("a")) else {
        panic!("not created");
    };
    (unit, made.view.log)
}

/// True if a cursor moves only from where its reader believes it to be.
fn a_cursor_is_compared() -> bool {
    let (mut unit, log) = with_log();
    let set = record(&mut unit, set_cursor(Some(None), Some(5), log));
    assert!(matches!(set, RecordReply::Record(_)));
    // Regression: of two who moved a cursor to the same place both were told that they had.
    let moved = RecordReply::Refused(RecordRefusal::CursorMoved(Some(5)));
    [(None, 5), (Some(4), 9)]
        .into_iter()
        .all(|(from, to)| record(&mut unit, set_cursor(Some(from), Some(to), log)) == moved)
}

/// Regression: a log beyond what the units take was created, and each append to it ended with a deadline that did not say why.
#[test]
fn a_pool_with_as_many_logs_in_use_as_it_takes_has_no_more_of_them() {
    let limits = UnitLimits {
        logs_max: 2,
        ..UnitLimits::default()
    };
    let mut unit = Unit::new(UnitState::new(GroupId(2)), limits);
    let full = RecordReply::Refused(RecordRefusal::Full);
    let mut logs = Vec::new();
    for name in ["a", "b", "c"] {
        let RecordReply::Record(made) = record(&mut unit, create(name)) else {
            panic!("not created");
        };
        logs.push(made.view.log);
    }
    let lead = |name: &str, log| RecordRequest::Lead {
        name: name.into(),
        log,
        from_term: Term(0),
        sequencer: ME,
        added: vec![GroupId(2)],
    };
    for (name, log) in ["a", "b"].into_iter().zip(logs.clone()) {
        let led = record(&mut unit, lead(name, log));
        assert!(matches!(led, RecordReply::Record(_)), "{led:?}");
        let op = UnitOp::Seal {
            term: Term(1),
            options: LogOptions::default(),
        };
        let request = UnitRequest { log, op };
        let mut out = UnitEffects::default();
        unit.step(Time::ZERO, ReplyTo(1), request, &mut out);
    }
    assert_eq!(record(&mut unit, lead("c", logs[2])), full);
    assert_eq!(record(&mut unit, create("d")), full);
    let request = UnitRequest {
        log: logs[0],
        op: UnitOp::Forget,
    };
    unit.step(Time::ZERO, ReplyTo(1), request, &mut UnitEffects::default());
    let led = record(&mut unit, lead("c", logs[2]));
    assert!(matches!(led, RecordReply::Record(_)), "{led:?}");
}

#[test]
fn cursors_are_compared_and_bounded() {
    use crate::mutant::{LogMutant, plant};
    assert!(a_cursor_is_compared());
    plant(Some(LogMutant::CursorNotCompared));
    assert!(!a_cursor_is_compared());
    plant(None);
    let (mut unit, log) = with_log();
    let named = |cursor: String| RecordRequest::SetCursor {
        name: "a".into(),
        log,
        cursor,
        from: Some(None),
        to: Some(0),
    };
    let full = RecordReply::Refused(RecordRefusal::Cursors);
    for n in 0..CURSORS_MAX {
        let set = record(&mut unit, named(format!("c{n}")));
        assert!(matches!(set, RecordReply::Record(_)));
    }
    assert_eq!(record(&mut unit, named("one more".into())), full);
    let (mut unit, _) = with_log();
    for name in ["", "a\nb", &"x".repeat(CURSOR_NAME_BYTES_MAX + 1)] {
        assert_eq!(record(&mut unit, named(name.into())), full);
    }
}

#[test]
fn the_logs_own_rules_trim_no_further_than_its_cursors_unless_they_discard() {
    let (mut unit, log) = with_log();
    record(&mut unit, set_cursor(None, Some(5), log));
    let retain = |position, retention| RecordRequest::Retain {
        name: "a".into(),
        log,
        term: Term(0),
        position,
        retention,
    };
    let none = LogRetention::default();
    let trim = |reply| match reply {
        RecordReply::Record(record) => record.view.trim,
        other => panic!("{other:?}"),
    };
    assert_eq!(trim(record(&mut unit, retain(9, none))), 5);
    let discards = LogRetention {
        records: Some(1),
        when_full: crate::retention::WhenFull::Discard,
        ..LogRetention::default()
    };
    let discard = RecordRequest::SetRetention {
        name: "a".into(),
        log,
        retention: discards,
    };
    record(&mut unit, discard);
    // Regression: a trim by what was kept before took records that were to be kept by now.
    assert_eq!(trim(record(&mut unit, retain(9, none))), 5);
    assert_eq!(trim(record(&mut unit, retain(9, discards))), 9);
}
