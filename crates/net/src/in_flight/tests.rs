//! Counts of what is held, refusals, and what is given back.

use super::*;

const MIB: usize = 1 << 20;

#[test]
fn parts_are_counted_together_and_given_back() {
    let all = InFlight::new(4 * MIB);
    let [mut a, mut b] = [(); 2].map(|()| InFlightPart::new(all.clone()));
    assert!(a.try_set(3 * MIB + FREE_BYTES));
    assert!(!b.try_set(MIB + FREE_BYTES + 1));
    assert!(b.try_set(MIB + FREE_BYTES));
    assert_eq!((all.held_bytes(), all.has_room()), (4 * MIB, false));
    // Little is never refused, and what is held already neither.
    let mut c = InFlightPart::new(all.clone());
    assert!(c.try_set(FREE_BYTES) && a.try_set(3 * MIB) && !a.try_set(9 * MIB));
    a.set(9 * MIB + FREE_BYTES);
    assert_eq!(all.held_bytes(), 10 * MIB);
    drop(a);
    assert_eq!(all.held_bytes(), MIB);
    b.set(0);
    assert_eq!(all.held_bytes(), 0);
    // Alone it may be larger than the budget.
    assert!(b.try_set(100 * MIB) && !c.try_set(2 * FREE_BYTES));
}

/// Of what comes together not everybody finds all the room that there is.
#[test]
fn as_much_is_taken_as_there_is() {
    let all = InFlight::new(4 * MIB);
    let [mut a, mut b, mut c] = [(); 3].map(|()| InFlightPart::new(all.clone()));
    assert_eq!(a.set_up_to(1), 1);
    assert_eq!(a.set_up_to(3 * MIB + FREE_BYTES), 3 * MIB + FREE_BYTES);
    assert_eq!(b.set_up_to(3 * MIB), MIB + FREE_BYTES);
    assert_eq!(c.set_up_to(3 * MIB), FREE_BYTES);
    assert_eq!(all.held_bytes(), 4 * MIB);
    a.set(0);
    assert_eq!(b.set_up_to(3 * MIB), 3 * MIB);
    assert_eq!(b.set_up_to(1), 1, "what it has it keeps");
    assert_eq!(all.held_bytes(), 3 * MIB - FREE_BYTES);
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
    assert!(small.try_set(FREE_BYTES), "little is never refused");
    assert!(holder.try_set(3 * MIB), "who holds some ends it");
    assert!(!holder.try_set_in_turn(3 * MIB + 1), "and begins nothing");
    holder.set(0);
    assert!(large.try_set_in_turn(4 * MIB) && !small.try_set(MIB));
    large.set(0);
    assert!(small.try_set(MIB), "nobody waits any more");
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
}
