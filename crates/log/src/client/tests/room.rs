//! Appends that find no room, and those that a sequencer lets wait.

use super::*;

/// Regression: an append that found no room was sent again until its deadline, and said to be perhaps in the log.
#[test]
fn an_append_that_finds_no_room_anywhere_is_over_and_one_that_may_be_somewhere_is_not() {
    for lost in [0, 1] {
        let mut test = TestAppender::new(AppendMode::Bind);
        test.append(1, 100);
        let (mut refused, mut tried) = (0, Vec::new());
        while test.out.done.is_empty() && refused < 100 {
            let (units, _) = test.sent();
            for unit in units {
                tried.push(unit);
                // One that was not answered may have taken the data.
                if tried.len() > lost {
                    refused += 1;
                    test.step(AppenderEvent::NoRoom(id(0), GroupId(unit)));
                }
            }
            test.wait(200);
        }
        let (error, most) = match lost {
            0 => (AppendError::NoRoom, 6),
            _ => (AppendError::Timeout, 100),
        };
        assert_eq!(test.out.done, [(1, Err(error))], "{tried:?}");
        assert!(refused <= most, "{refused}");
        if lost == 0 {
            let other = tried.windows(2).all(|two| two[0] != two[1]);
            assert!(other, "no unit is asked twice in a row: {tried:?}");
        }
        tried.sort_unstable();
        tried.dedup();
        assert_eq!(tried, [1, 2, 3], "each unit has its turn");
    }
}

/// Regression: each try of an append to a full log took a position, which became junk.
#[test]
fn a_full_log_gives_out_no_positions_for_data_that_no_unit_takes() {
    let mut test = TestAppender::new(AppendMode::Bind);
    let mut asked = 0;
    for op in 0..20 {
        test.append(op, 100);
        let begun = test.now;
        while test.out.done.is_empty() {
            let (units, requests) = test.sent();
            asked += requests.len();
            units
                .iter()
                .for_each(|unit| test.step(AppenderEvent::NoRoom(id(op as u32), GroupId(*unit))));
            if test.out.units.is_empty() {
                test.wait(25);
            }
        }
        assert_eq!(test.out.done, [(op, Err(AppendError::NoRoom))]);
        test.out.done.clear();
        let took = test.now.since(begun);
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
    // The data and the request of the first one left at once. Of each unit it is known for a while that it is full.
    let most = 2 + test.now.since(Time::ZERO).as_secs() as usize;
    assert!((1..=most).contains(&asked), "{asked} of 20 appends");
}

/// Regression: that one unit had no room was said of all.
#[test]
fn the_unit_that_has_room_takes_the_append() {
    for mode in [AppendMode::Bind, AppendMode::Predict] {
        let mut test = TestAppender::new(mode);
        test.append(1, 100);
        let mut tried = Vec::new();
        while let Some(unit) = test.sent().0.first().copied() {
            tried.push(unit);
            if tried.len() < 3 {
                test.step(AppenderEvent::NoRoom(id(0), GroupId(unit)));
            }
        }
        let mut all = tried.clone();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3], "{mode:?}");
        // The sequencer has bound it at the first one, which makes junk of that.
        let (position, unit) = (4, GroupId(tried[0]));
        let id = id(0);
        test.unit(UnitAnswer::Elsewhere { id, position, unit });
        assert!(test.sent().0.is_empty(), "it had no room");
        test.wait(50);
        assert_eq!(test.sent(), (vec![tried[2]], vec![]), "{mode:?}");
        test.unit(UnitAnswer::Ack {
            id,
            position: 5,
            count: 1,
        });
        assert!(matches!(test.out.done[..], [(1, Ok(_))]), "{mode:?}");
        // The next one goes where there is room, with its request.
        test.append(2, 100);
        let (units, asked) = test.sent();
        assert_eq!((units, asked.len()), (vec![tried[2]], 1), "{mode:?}");
    }
}

fn token(position: Position) -> SequencerAnswer {
    SequencerAnswer::Token {
        term: TermStart {
            term: Term(1),
            start: 0,
            sequencer: SEQUENCER,
        },
        binding: Binding {
            position,
            count: 1,
            id: Some(id(0)),
            links: Vec::new(),
        },
    }
}

#[test]
fn a_token_whose_unit_has_no_room_is_not_used_again() {
    let mut test = TestAppender::new(AppendMode::Corfu);
    test.append(1, 100);
    let mut refused = Vec::new();
    for position in 4..7 {
        assert_eq!(test.sent().1.len(), 1, "a token is asked for");
        test.sequencer(token(position));
        let (unit, _) = test.out.units.pop().expect("a write");
        refused.push(unit.0);
        test.step(AppenderEvent::NoRoom(id(0), unit));
        if position < 6 {
            test.wait(200);
            assert_eq!(test.sent().1.len(), 1);
            // It is not junk yet.
            test.sequencer(token(position));
            assert!(test.out.units.is_empty());
            test.wait(200);
        }
    }
    refused.sort_unstable();
    assert_eq!(refused, [1, 2, 3]);
    assert_eq!(test.out.done, [(1, Err(AppendError::NoRoom))]);
}

/// Regression: an append that was once told that the log is full ended so, whatever kept it later.
#[test]
fn the_error_at_the_deadline_is_of_the_last_answers() {
    let id = id(0);
    let full = SequencerAnswer::Full { id };
    let tags = SequencerAnswer::TagsFull { id };
    let busy = SequencerAnswer::Busy { id: Some(id) };
    let ends = |answers: &[&SequencerAnswer], silent: bool| {
        let mut test = TestAppender::new(AppendMode::Bind);
        test.append(1, 100);
        for answer in answers {
            test.sequencer((*answer).clone());
        }
        while test.out.done.is_empty() {
            let retried = !test.sent().1.is_empty();
            if let Some(last) = answers.last().filter(|_| retried && !silent) {
                test.sequencer((*last).clone());
            }
            test.wait(100);
        }
        test.out.done[0].1
    };
    assert_eq!(ends(&[&full], false), Err(AppendError::Full));
    assert_eq!(ends(&[&full, &tags], false), Err(AppendError::TooManyTags));
    assert_eq!(ends(&[&full, &busy], false), Err(AppendError::Timeout));
    assert_eq!(ends(&[&full], true), Err(AppendError::Timeout));
}

/// A refusal that comes late is not ascribed to the unit that the data went to meanwhile.
#[test]
fn a_late_refusal_is_of_the_unit_that_refused() {
    let mut test = TestAppender::new(AppendMode::Bind);
    test.append(1, 100);
    let first = test.sent().0[0];
    let mut second = first;
    while second == first {
        test.wait(600);
        second = test.sent().0.last().copied().unwrap_or(first);
    }
    test.step(AppenderEvent::NoRoom(id(0), GroupId(first)));
    assert!(test.sent().0.is_empty(), "the second may take it");
    let unit = test.appender.in_flight[&0].unit;
    assert_eq!(unit, Some(GroupId(second)), "and is asked again");
    test.append(2, 100);
    assert_ne!(test.sent().0, [first], "it is full");
    test.unit(UnitAnswer::Ack {
        id: id(0),
        position: 5,
        count: 1,
    });
    assert!(matches!(test.out.done[..], [(1, Ok(_))]));
}

/// Regression: the pauses between its tries grew to 4 s, so that it could end at its deadline though the log had room long before.
#[test]
fn an_append_that_waits_for_a_full_log_is_tried_twice_a_second() {
    let id = id(0);
    let mut test = TestAppender::new(AppendMode::Bind);
    test.append(1, 100);
    let mut tries = 0;
    while test.out.done.is_empty() {
        if !test.sent().1.is_empty() {
            tries += 1;
            test.sequencer(SequencerAnswer::Full { id });
        }
        test.wait(100);
    }
    assert!((15..=21).contains(&tries), "{tries} in 10 s");
}
