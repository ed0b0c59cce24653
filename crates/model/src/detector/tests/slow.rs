//! Nodes that answer late.

use super::*;
use crate::mutant::plant;

/// A court whose cluster has one group of this scheme, on nodes 1 to so many.
fn with_group(scheme: &str, members: u64) -> Court {
    let mut court = Court::of(members);
    court.map = cluster_with_pool(members, scheme, 1);
    let all: Vec<u64> = (1..=members).collect();
    start(&mut court.map, &all);
    court
}

/// Hears these words for so long, and gives those that were judged, each once.
fn judged(court: &mut Court, words: &[(u64, u64, Sign)], ms: u64) -> Vec<u64> {
    let mut found = Vec::new();
    for _ in 0..ms / 100 {
        for node in court.hear(words).0 {
            if !found.contains(&node) {
                found.push(node);
            }
        }
        court.wait(100);
    }
    found
}

/// Regression: two nodes on links of 2 Mbit/s, which lived and had all, counted as dead after 2 s, and a third one's death then lost a region
/// of 4+2 for good.
#[test]
fn the_slow_stay_where_their_loss_could_not_be_borne() {
    let slow = |node| [(1, node, Slow), (2, node, Slow), (3, node, Slow)];
    let both: Vec<_> = slow(5).into_iter().chain(slow(6)).collect();
    let mut court = with_group("4+2", 6);
    assert_eq!(judged(&mut court, &both, 1000), vec![5], "one is borne");
    // The map shows it now.
    let down = node_down(&court.map, 5);
    court.map.apply(None, &down).expect("it is up");
    assert!(judged(&mut court, &slow(6), 4000).is_empty(), "no more");
    assert_eq!(judged(&mut court, &slow(6), 500), vec![6], "in the end");
    let mut court = with_group("4+2", 6);
    let gone = [(1, 4, Refused), (2, 4, Refused)];
    assert_eq!(judged(&mut court, &gone, 200), vec![4]);
    let down = node_down(&court.map, 4);
    court.map.apply(None, &down).expect("it is up");
    assert_eq!(judged(&mut court, &slow(5), 3000), Vec::<u64>::new());
    let silent = [(1, 5, Silent), (2, 5, Silent)];
    assert_eq!(judged(&mut court, &silent, 1500), vec![5], "it is dead now");
}

/// Regression: who had been slow for long when another died followed that one at once, and its group was gone.
#[test]
fn the_slow_stay_for_their_time_from_the_last_loss_on() {
    let slow = [(2, 4, Slow), (3, 4, Slow)];
    let mut court = with_group("3+1", 4);
    assert!(judged(&mut court, &slow, 4000).is_empty());
    let gone = [(2, 1, Refused), (3, 1, Refused)];
    let both: Vec<_> = gone.into_iter().chain(slow).collect();
    assert_eq!(judged(&mut court, &both, 200), vec![1]);
    let down = node_down(&court.map, 1);
    court.map.apply(None, &down).expect("it is up");
    assert!(judged(&mut court, &slow, 4000).is_empty());
    assert_eq!(judged(&mut court, &slow, 1500), vec![4], "in the end");
}

/// A copy that is not the last goes: all wait for it.
#[test]
fn the_slow_go_where_their_loss_is_borne() {
    let slow = [(1, 3, Slow), (2, 3, Slow)];
    assert_eq!(judged(&mut with_group("1+2", 3), &slow, 3000), vec![3]);
    assert_eq!(judged(&mut Court::of(3), &slow, 3000), vec![3], "no data");
    let mut court = with_group("1+1", 2);
    assert!(judged(&mut court, &[(1, 2, Slow)], 5000).is_empty());
}

#[test]
fn a_detector_that_takes_the_slow_for_dead_is_seen() {
    plant(Some(Mutant::SlowIsDead));
    let seen = std::panic::catch_unwind(the_slow_stay_where_their_loss_could_not_be_borne);
    plant(None);
    assert!(seen.is_err());
}
