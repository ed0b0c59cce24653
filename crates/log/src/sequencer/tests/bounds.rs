//! Bounds on what strangers can have a sequencer do, and the answers at them.

use super::*;

fn tagged(test: &mut TestSequencer, seq: u32, tags: &[u64]) -> SequencerAnswer {
    let op = SequencerOp::Seq {
        id: id(seq),
        count: 1,
        tags: tags.to_vec(),
        unit: UNITS[0],
        low: 0,
        lost: None,
        condition: None,
    };
    let request = SequencerRequest { log: LogId(5), op };
    let event = SequencerEvent::Request(ReplyTo(0), request);
    test.machine.step(test.now, event, &mut test.out);
    test.out.replies.pop().expect("a reply").1.answer
}

/// Regression: a log with as many tags as it remembers took no append at all, and nobody learned why.
#[test]
fn a_log_with_all_its_tags_takes_appends_without_new_ones_and_says_so_of_others() {
    let mut test = TestSequencer::active(AppendMode::Bind);
    test.machine.limits.tags_max = 3;
    let is_bound = |answer| matches!(answer, SequencerAnswer::Bound { .. });
    assert!(is_bound(tagged(&mut test, 1, &[7, 8])));
    let full = |seq| SequencerAnswer::TagsFull { id: id(seq) };
    assert_eq!(tagged(&mut test, 2, &[9, 10]), full(2));
    assert!(is_bound(tagged(&mut test, 2, &[9])));
    assert_eq!(tagged(&mut test, 3, &[10]), full(3));
    assert!(is_bound(tagged(&mut test, 3, &[7, 9])));
    assert!(is_bound(tagged(&mut test, 4, &[])));
}

/// Regression: a unit that was silent was sent the seal of a term fifty times a second, by each log of its pool.
#[test]
fn a_term_that_waits_for_a_silent_unit_asks_it_ever_more_seldom() {
    let mut test = TestSequencer::committed(AppendMode::Bind);
    test.report(UNITS[0], 1, 0);
    test.report(UNITS[1], 1, 0);
    let calls = |test: &mut TestSequencer, ms: u64| {
        test.out.units.clear();
        (0..ms).for_each(|_| test.wait(1000));
        test.out.units.len()
    };
    assert!((3..=5).contains(&calls(&mut test, 200)));
    calls(&mut test, 1000);
    let later = calls(&mut test, 5000);
    assert!((9..=11).contains(&later), "{later} in 5 s");
    // A unit that answers is asked for the rest at once.
    test.report(UNITS[2], 1, 0);
    assert!((2..=5).contains(&(calls(&mut test, 100) / 3)));
}

/// Regression: whoever said that a log's record had changed had it read at the log's home as often as he said so.
#[test]
fn a_record_that_is_said_to_change_is_read_in_a_rhythm() {
    let mut test = TestSequencer::active(AppendMode::Bind);
    test.wait(100_000);
    test.out.home.clear();
    for _ in 0..80 {
        let op = SequencerOp::ReadRecord;
        let request = SequencerRequest { log: LogId(5), op };
        let event = SequencerEvent::Request(ReplyTo(0), request);
        test.machine.step(test.now, event, &mut test.out);
        test.wait(1000);
    }
    let reads = test.out.home.len();
    assert_eq!(reads, 2);
    assert!(!test.machine.is_at_rest(), "the last change is to be read");
    test.wait(50_000);
    assert_eq!(test.out.home.len(), reads + 1);
    test.wait(50_000);
    assert_eq!(test.out.home.len(), reads + 1, "once");
}
