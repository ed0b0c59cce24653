//! Counts of what is held, refusals, and what is given back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::{Duration, Instant};

use super::line::GOES_FIRST;
use super::*;

const MIB: usize = 1 << 20;

#[test]
fn parts_are_counted_together_and_given_back() {
    let all = InFlight::new(4 * MIB);
    let [mut a, mut b] = [(); 2].map(|()| InFlightPart::new(all.clone()));
    assert!(a.try_set(2 * MIB + OWN_BYTES));
    assert!(!b.try_set(2 * MIB + OWN_BYTES + 1));
    assert!(b.try_set(2 * MIB + OWN_BYTES));
    assert_eq!((all.held_bytes(), all.has_room()), (4 * MIB, false));
    // Little is never refused, and what is held already neither.
    let mut c = InFlightPart::new(all.clone());
    assert!(c.try_set(OWN_BYTES) && a.try_set(2 * MIB) && !a.try_set(9 * MIB));
    a.set(9 * MIB + OWN_BYTES);
    assert_eq!(all.held_bytes(), 11 * MIB);
    drop(a);
    assert_eq!(all.held_bytes(), 2 * MIB);
    b.set(0);
    assert_eq!(all.held_bytes(), 0);
    // Alone it may be larger than the budget.
    assert!(b.try_set(100 * MIB) && !c.try_set(2 * OWN_BYTES));
}

/// Of what comes together not everybody finds all the room that there is.
#[test]
fn as_much_is_taken_as_there_is() {
    let all = InFlight::new(4 * MIB);
    let [mut a, mut b, mut c] = [(); 3].map(|()| InFlightPart::new(all.clone()));
    assert_eq!(a.set_up_to(1), 1);
    assert_eq!(a.set_up_to(3 * MIB + OWN_BYTES), 3 * MIB + OWN_BYTES);
    assert_eq!(b.set_up_to(3 * MIB), MIB + OWN_BYTES);
    assert_eq!(c.set_up_to(3 * MIB), SMALL_BYTES, "of the reserve");
    let small = SMALL_BYTES - OWN_BYTES;
    assert_eq!(all.held_bytes(), 4 * MIB + small);
    a.set(0);
    assert_eq!(b.set_up_to(3 * MIB), 3 * MIB);
    assert_eq!(b.set_up_to(1), 1, "what it has it keeps");
    assert_eq!(all.held_bytes(), 3 * MIB - OWN_BYTES + small);
}

/// Thousands of small ones go on beside large ones, and end at a bound that is theirs.
#[test]
fn small_ones_have_a_reserve_and_no_more() {
    let all = InFlight::new(4 * MIB);
    let mut large = InFlightPart::new(all.clone());
    assert!(large.try_set(4 * MIB + OWN_BYTES));
    let mut small = Vec::new();
    loop {
        let mut part = InFlightPart::new(all.clone());
        if !part.try_set(SMALL_BYTES) {
            break assert!(part.try_set(OWN_BYTES) && !part.try_set(SMALL_BYTES + 1));
        }
        small.push(part);
    }
    let held = all.held_bytes();
    assert!(
        held > 4 * MIB + MIB - SMALL_BYTES && held <= 5 * MIB,
        "{held}"
    );
    // With nothing but small ones beside it a large one is as good as alone.
    large.set(0);
    assert!(all.held_bytes() <= MIB && large.try_set(100 * MIB));
    // What waits to be written counts as held: one after the other would be alone with all that was answered before.
    large.set(0);
    all.queued.store(2 * MIB, Ordering::Relaxed);
    assert!(!large.try_set(100 * MIB));
}

/// Of those who cannot end what they have begun, one at a time goes on.
#[test]
fn one_at_a_time_takes_more_than_there_is() {
    let all = InFlight::new(4 * MIB);
    let [mut a, mut b] = [(); 2].map(|()| InFlightPart::new(all.clone()));
    assert!(a.may_overdraw() && a.may_overdraw() && !b.may_overdraw());
    a.overdraws_no_more();
    assert!(b.may_overdraw() && !a.may_overdraw());
    drop(b);
    assert!(a.may_overdraw());
}

/// A large value finds room beside smaller ones that come all the time.
#[tokio::test]
async fn who_has_waited_longest_goes_first() {
    let all = InFlight::new(4 * MIB);
    let [mut holder, mut large, mut small] = [(); 3].map(|()| InFlightPart::new(all.clone()));
    assert!(holder.try_set(2 * MIB));
    assert!(!large.try_set_in_turn(4 * MIB) && !large.is_refused());
    assert!(small.try_set(MIB), "it has hardly waited");
    small.set(0);
    tokio::time::sleep(GOES_FIRST).await;
    assert!(!small.try_set(MIB), "what is left is kept for it");
    assert!(small.try_set(OWN_BYTES), "little is never refused");
    assert!(holder.try_set(3 * MIB), "who holds some ends it");
    assert!(!holder.try_set_in_turn(3 * MIB + 1), "and begins nothing");
    holder.set(0);
    assert!(large.try_set_in_turn(4 * MIB) && !small.try_set(MIB));
    large.set(0);
    assert!(small.try_set(2 * MIB), "nobody waits any more");
    // Who gives up, or goes, is not waited for.
    assert!(!large.try_set_in_turn(8 * MIB) && !large.is_refused());
    tokio::time::sleep(GOES_FIRST).await;
    assert!(!holder.try_set(MIB));
    large.waits_no_more();
    assert!(holder.try_set(MIB));
    holder.set(0);
    assert!(!large.try_set_in_turn(8 * MIB) && !large.is_refused());
    tokio::time::sleep(GOES_FIRST).await;
    drop(large);
    assert!(holder.try_set(MIB));
}

/// Regression: connections whose answers lay behind one that another node was to give held all the memory, and none was left for that one.
#[tokio::test]
async fn answers_that_lie_behind_another_leave_half_of_the_memory() {
    let all = InFlight::new(4 * MIB);
    let [mut a, mut b, mut c] = [(); 3].map(|()| InFlightPart::new(all.clone()));
    assert!(a.try_set_answers(2 * MIB + OWN_BYTES, Behind::Others));
    assert!(!b.try_set_answers(MIB, Behind::Others));
    assert!(
        !c.try_set_answers(8 << 10, Behind::Others),
        "nor has it the reserve of small ones"
    );
    assert!(
        a.try_set_answers(2 * MIB, Behind::Others),
        "it may have less"
    );
    // Little of a command of which a part is still to come has half of the reserve.
    assert!(!c.try_set_answers(MIB, Behind::Itself));
    assert!(b.try_set(2 * MIB) && c.try_set_answers(32 << 10, Behind::Itself));
    assert!(!c.try_set_answers(48 << 10, Behind::Itself));
    drop((b, c));
    assert!(
        a.try_set_answers(8 * MIB, Behind::Others),
        "nobody is beside it"
    );
}

#[tokio::test]
async fn who_holds_what_others_wait_for_has_to_move() {
    let mut all = Arc::into_inner(InFlight::new(MIB)).expect("nobody else has it");
    all.moves_within = Duration::from_millis(20);
    let all = Arc::new(all);
    let [mut a, mut b] = [(); 2].map(|()| InFlightPart::new(all.clone()));
    a.set(2 * MIB);
    let long = 10 * all.moves_within;
    let stuck = tokio::time::timeout(long, a.stuck()).await;
    assert!(stuck.is_err(), "nobody waits");
    assert!(!b.try_set(MIB));
    let waits = async {
        loop {
            all.room().await;
        }
    };
    tokio::select! {
        () = a.stuck() => {}
        () = waits => {}
    }
    drop(a);
    assert!(b.try_set(MIB));
    // Who holds more must move more: a trickle that keeps a small value alive does not keep a large one.
    let mut c = InFlightPart::new(all.clone());
    b.set(0);
    c.set(128 * MIB);
    for (bytes, closed) in [(4 * MIB, false), (MIB / 2, true)] {
        (c.moved, c.moving_since) = (0, Instant::now());
        c.moved(bytes);
        let waits = async {
            loop {
                all.room().await;
            }
        };
        let in_time = tokio::time::timeout(all.moves_within * 3 / 2, c.stuck());
        let stuck = tokio::select! {
            stuck = in_time => stuck.is_ok(),
            () = waits => false,
        };
        assert_eq!(stuck, closed, "{bytes} bytes of 128 MiB");
    }
}

/// Regression: who had taken more than there was without a question was told at the next that there was room, for it grew no more then.
#[test]
fn what_was_taken_without_a_question_is_asked_for_at_the_next() {
    let all = InFlight::new(4 * MIB);
    let [mut a, mut b] = [(); 2].map(|()| InFlightPart::new(all.clone()));
    assert!(a.try_set(3 * MIB));
    b.set(2 * MIB);
    assert!(!b.try_set(2 * MIB), "they are not there");
    assert!(!b.try_set(3 * MIB / 2), "nor are so many");
    assert!(b.try_set(MIB) && b.try_set(MIB), "so many are");
    // What was given stays given, and covers what comes.
    b.grow_to(MIB / 2);
    assert_eq!(b.bytes_max() / MIB, 1);
    assert!(a.try_set(3 * MIB));
    b.grow_to(2 * MIB);
    assert!(!b.try_set(2 * MIB));
    drop(a);
    assert!(b.try_set(2 * MIB));
}
