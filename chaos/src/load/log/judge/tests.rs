//! Each rule finds what breaks it, and nothing else.

use super::super::history::{content, seen};
use super::*;

const LOG: &[&str] = &["l"];

fn append(writer: u32, first: u64, (call, returned): (u64, u64), position: u64) -> LogAppend {
    LogAppend {
        log: 0,
        writer,
        first,
        count: 1,
        call,
        outcome: AppendOutcome::Acked { position, returned },
    }
}

fn unanswered(writer: u32, first: u64, call: u64) -> LogAppend {
    LogAppend {
        outcome: AppendOutcome::Unknown,
        ..append(writer, first, (call, 0), 0)
    }
}

fn read(position: u64, seen: SlotSeen, call: u64) -> LogRead {
    LogRead {
        log: 0,
        position,
        seen,
        call,
        returned: call + 1,
    }
}

fn tail(tail: u64, call: u64) -> LogTail {
    LogTail {
        log: 0,
        tail,
        call,
        returned: call + 1,
    }
}

fn history(appends: Vec<LogAppend>, reads: Vec<LogRead>) -> LogHistory {
    LogHistory {
        appends,
        reads,
        ..LogHistory::default()
    }
}

fn is_found(history: &LogHistory, words: &str) {
    let wrong = history.judge(LOG);
    assert!(
        wrong.iter().any(|text| text.contains(words)),
        "{words}: {wrong:?}"
    );
}

#[test]
fn what_is_right_is_not_complained_about() {
    let mut good = history(
        vec![
            append(1, 0, (10, 20), 0),
            unanswered(2, 0, 12),
            append(1, 1, (21, 40), 2),
            // At the same time as the one before: either order is right.
            append(3, 0, (22, 41), 1),
            unanswered(3, 1, 50),
        ],
        vec![
            read(0, SlotSeen::Record((1, 0)), 15),
            read(3, SlotSeen::PastTail, 30),
            read(3, SlotSeen::Junk, 60),
            read(4, SlotSeen::Record((2, 0)), 61),
            read(0, SlotSeen::Trimmed, 90),
        ],
    );
    good.tails = vec![tail(1, 20), tail(5, 70)];
    good.trims = vec![LogTrim {
        log: 0,
        to: 1,
        call: 80,
        returned: None,
    }];
    assert_eq!(good.judge(LOG), Vec::<String>::new());
}

#[test]
fn a_value_that_changes_or_is_lost_is_found() {
    let one = || vec![append(1, 0, (1, 2), 0)];
    is_found(
        &history(one(), vec![read(0, SlotSeen::Junk, 9)]),
        "I2: record 0 of writer 1 was acknowledged at position 0, which reads as junk",
    );
    let trimmed = history(one(), vec![read(0, SlotSeen::Trimmed, 9)]);
    is_found(&trimmed, "I2: nobody had trimmed");
    let both = vec![
        read(5, SlotSeen::Junk, 9),
        read(5, SlotSeen::Record((2, 0)), 12),
    ];
    is_found(
        &history(vec![unanswered(2, 0, 1)], both),
        "I1: position 5 was junk",
    );
    let torn = history(one(), vec![read(5, SlotSeen::Torn, 9)]);
    is_found(&torn, "I1: torn");
    let past = history(one(), vec![read(0, SlotSeen::PastTail, 9)]);
    is_found(&past, "is past the tail");
}

#[test]
fn a_record_that_is_there_twice_or_came_from_nowhere_is_found() {
    let twice = vec![
        read(1, SlotSeen::Record((1, 0)), 9),
        read(3, SlotSeen::Record((1, 0)), 9),
    ];
    is_found(
        &history(vec![unanswered(1, 0, 1)], twice),
        "I6: record 0 of writer 1 is at positions 1 and 3",
    );
    let two = vec![append(1, 0, (1, 2), 4), append(2, 0, (1, 2), 4)];
    is_found(&history(two, Vec::new()), "were both acknowledged");
    let early = vec![read(1, SlotSeen::Record((1, 0)), 2)];
    is_found(
        &history(vec![unanswered(1, 0, 8)], early.clone()),
        "nobody had appended",
    );
    let mut refused = unanswered(1, 0, 1);
    refused.outcome = AppendOutcome::Refused;
    is_found(&history(vec![refused], early), "was refused, and is in");
}

#[test]
fn order_in_real_time_is_kept() {
    let lower = vec![append(1, 0, (1, 2), 7), append(2, 0, (3, 4), 5)];
    is_found(&history(lower, Vec::new()), "I3: an append that began");
    let mut below_tail = history(vec![append(1, 0, (20, 22), 5)], Vec::new());
    below_tail.tails = vec![tail(9, 3)];
    is_found(&below_tail, "I4: an append");
    let mut low_tail = history(vec![append(1, 0, (1, 2), 5)], Vec::new());
    low_tail.tails = vec![tail(5, 9)];
    is_found(&low_tail, "I4: the tail is below 6");
    let mut back = history(Vec::new(), Vec::new());
    back.tails = vec![tail(9, 3), tail(8, 5)];
    is_found(&back, "I4: the tail is below 9");
}

#[test]
fn a_batch_in_pieces_is_found() {
    let mut batch = unanswered(1, 0, 1);
    batch.count = 2;
    let whole = vec![
        read(4, SlotSeen::Record((1, 0)), 9),
        read(5, SlotSeen::Record((1, 1)), 9),
    ];
    let good = history(vec![batch.clone()], whole);
    assert_eq!(good.judge(LOG), Vec::<String>::new());
    let half = vec![
        read(4, SlotSeen::Record((1, 0)), 9),
        read(5, SlotSeen::Junk, 9),
    ];
    is_found(&history(vec![batch], half), "I11: a batch");
}

#[test]
fn the_bytes_of_a_record_name_it() {
    for name in [(0, 0), (7, 49), (u32::MAX, u64::MAX >> 1)] {
        assert_eq!(seen(2, &content(2, name)), SlotSeen::Record(name));
        assert_eq!(seen(1, &content(2, name)), SlotSeen::Torn);
    }
    let mut flipped = content(0, (1, 49));
    *flipped.last_mut().expect("it has bytes") ^= 1;
    assert_eq!(seen(0, &flipped), SlotSeen::Torn);
    assert_eq!(seen(0, b""), SlotSeen::Torn);
}
