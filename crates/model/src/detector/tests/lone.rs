//! Nodes that miss all others.

use super::*;

/// Regression: the directory's leader, on a slow link, took all others for dead by its own word alone, again and again, and went on leading:
/// nothing was answered through any node for as long as the link was slow.
#[test]
fn who_alone_misses_all_others_condemns_nobody_for_long_and_leads_no_more() {
    let mut court = Court::of(5);
    let all: Vec<_> = (2..=5).map(|n| (1, n, Silent)).collect();
    let mut waited = 0;
    while court.hear(&all).0.is_empty() {
        assert_eq!(court.detector.hears_nobody(NodeId(1)), waited >= 1300);
        assert!(!court.detector.hears_nobody(NodeId(2)));
        court.wait(100);
        waited += 100;
    }
    assert_eq!(waited, 5000, "all the same, if it lasts");
    // Where an answer comes now and then nobody is condemned, and it is seen all the same.
    let mut court = Court::of(5);
    for round in 0..100 {
        let seldom = round % 10 == 9;
        let sign = if seldom { Alive } else { Silent };
        let words: Vec<_> = (2..=5).map(|n| (1, n, sign)).collect();
        assert!(court.hear(&words).0.is_empty());
        assert_eq!(court.detector.hears_nobody(NodeId(1)), round >= 13);
        court.wait(100);
    }
    court.wait(3000);
    court.hear(&[]);
    assert!(!court.detector.hears_nobody(NodeId(1)), "over");
    // Refused connections are no slow link.
    let mut court = Court::of(5);
    let gone: Vec<_> = (2..=5).map(|n| (1, n, Refused)).collect();
    court.hear(&gone);
    court.wait(300);
    assert_eq!(court.hear(&gone).0, vec![2, 3, 4, 5]);
}

/// Regression: the same with a node that is dead indeed, or with another that is slow: what others said of those hid it.
#[test]
fn who_misses_all_others_is_seen_beside_dead_and_slow_ones() {
    let misses = |by: u64| {
        (1..=5)
            .filter(move |n| *n != by)
            .map(move |n| (by, n, Silent))
    };
    let dead: Vec<_> = misses(1).chain([(2, 5, Silent), (3, 5, Silent)]).collect();
    let mut court = Court::of(5);
    court.hear(&dead);
    court.wait(300);
    assert_eq!(court.hear(&dead).0, vec![5], "two others say so");
    let slow: Vec<_> = misses(1).chain(misses(5)).collect();
    let mut court = Court::of(5);
    for waited in 0..100 {
        assert!(court.hear(&slow).0.is_empty(), "two lone words");
        assert_eq!(court.detector.hears_nobody(NodeId(1)), waited >= 13);
        court.wait(100);
    }
    let gone: Vec<_> = misses(1).chain([(2, 5, Refused)]).collect();
    let mut court = Court::of(5);
    assert_eq!(court.hear(&gone).0, vec![5]);
    for _ in 0..20 {
        court.wait(100);
        assert!(court.hear(&gone).0.iter().all(|n| *n == 5));
    }
    assert!(court.detector.hears_nobody(NodeId(1)));
}

/// Regression: where one of three had restarted, a leader on a slow link did not see that it was alone until that one was back, for which it
/// had to be ordered by this very leader.
#[test]
fn one_that_comes_back_counts_among_those_whom_the_leader_misses() {
    for rejoining in [0, 1] {
        let mut court = Court::of(3);
        let down = node_down(&court.map, 3);
        court.map.apply(None, &down).expect("it was up");
        court.detector.see_rejoining(rejoining);
        for waited in 0..40 {
            let dead = court.hear(&[(1, 2, Silent)]).0;
            assert!(dead.is_empty() || rejoining == 0, "its word alone");
            let alone = court.detector.hears_nobody(NodeId(1));
            assert_eq!(alone, rejoining == 1 && waited >= 13);
            court.wait(100);
        }
    }
}

/// A node that hears one of them misses not all.
#[test]
fn who_hears_one_is_not_alone() {
    let mut court = Court::of(4);
    for _ in 0..20 {
        court.hear(&[(1, 2, Silent), (1, 3, Silent)]);
        assert!(!court.detector.hears_nobody(NodeId(1)));
        court.wait(100);
    }
}
