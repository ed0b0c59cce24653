//! Room: what is refused for want of it, what may use the last of it, and how it comes back.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{BLOCK, commit, filled, made, opened};
use crate::{Journal, JournalError};

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let device = made(11);
    let (mut journal, _) = opened(&device).expect("it opens");
    let max = journal.record_bytes_max();
    let refused = journal.append(&vec![0; max + 1]);
    assert!(
        matches!(refused, Err(JournalError::TooLarge { bytes, max: m }) if bytes == max + 1 && m == max)
    );
    for _ in 0..3 {
        journal.append(&vec![1; max]).expect("a quarter each");
        assert!(matches!(journal.append(b"more"), Err(JournalError::Busy)));
        commit(&mut journal, &device).expect("well");
    }
    let refused = journal.append(b"");
    assert!(
        matches!(
            refused,
            Err(JournalError::Full {
                needed: BLOCK,
                room: 0
            })
        ),
        "{refused:?}"
    );
    let (_, records) = opened(&device).expect("it opens");
    assert_eq!(records.len(), 3);
}

#[test]
fn a_part_is_kept_for_what_empties_the_journal() {
    let device = made(12);
    let (mut journal, _) = opened(&device).expect("it opens");
    let max = journal.record_bytes_max();
    while journal.append(&[7; 3_000]).is_ok() {
        commit(&mut journal, &device).expect("well");
    }
    let kept = journal.append_reserved(&vec![8; max]);
    kept.expect("the reserved part was taken");
    commit(&mut journal, &device).expect("well");
    assert_eq!((journal.room(), journal.room_reserved()), (0, 0));
    let refused = journal.append_reserved(b"");
    assert!(matches!(refused, Err(JournalError::Full { .. })));
    // A full journal is emptied by the record that replaced the others.
    journal.let_go(journal.last());
    commit(&mut journal, &device).expect("well");
    let (journal, records) = opened(&device).expect("it opens");
    assert_eq!(records.into_values().collect::<Vec<_>>(), [vec![8; max]]);
    assert_eq!(journal.room(), 8 * BLOCK, "half, and a quarter is reserved");
}

/// Regression: room came back by eighths of the ring only, or for a record that was refused.
#[test]
fn room_comes_back_with_the_next_records_or_if_it_is_asked_for() {
    let device = made(13);
    let mut journal = filled(&device, &[b"one", b"two", b"three"]);
    let room = journal.room();
    journal.let_go(2);
    assert!(journal.next_commit().is_none(), "no write for that alone");
    journal.append(b"four").expect("room");
    assert_eq!(journal.room(), room - BLOCK);
    commit(&mut journal, &device).expect("well");
    assert_eq!(journal.room(), room, "a block taken and one given back");

    journal.let_go(3);
    journal.want_room();
    commit(&mut journal, &device).expect("well");
    assert_eq!(journal.room(), room + BLOCK);
    // It is remembered until there is some.
    journal.want_room();
    assert!(journal.next_commit().is_none());
    journal.let_go(5);
    commit(&mut journal, &device).expect("well");
    assert_eq!(journal.room(), room + 3 * BLOCK);
    let (journal, records) = opened(&device).expect("it opens");
    assert_eq!((journal.last(), records.len()), (4, 0));
}

/// A promise of room holds for the worst case, whatever batches the records fall into.
#[test]
fn records_within_the_room_are_never_refused() {
    for seed in 0..300 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let device = made(seed);
        let (mut journal, _) = opened(&device).expect("it opens");
        let mut left = journal.room();
        loop {
            let size = [0, 10, 4_000, 4_028, 4_029, 9_000][rng.random_range(0..6)];
            let room = Journal::record_room(size);
            if room > left {
                break;
            }
            left -= room;
            let mut appended = journal.append(&vec![1; size]);
            if matches!(appended, Err(JournalError::Busy)) {
                commit(&mut journal, &device).expect("well");
                appended = journal.append(&vec![1; size]);
            }
            appended.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            assert!(journal.room() >= left, "seed {seed}");
            if rng.random_bool(0.3) {
                commit(&mut journal, &device).expect("well");
            }
        }
    }
    assert_eq!(Journal::record_room(4_028), BLOCK);
    assert_eq!(Journal::record_room(4_029), 2 * BLOCK);
}
