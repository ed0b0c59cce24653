//! Verdicts of death, and the reports that lead to them or do not.

mod lone;
mod pinged;
mod slow;

use super::*;
use crate::change::Change;
use crate::mutant::Mutant;
use crate::testing::*;

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

struct Court {
    map: ClusterMap,
    detector: Detector,
    now: Time,
}

impl Court {
    fn of(nodes: u64) -> Court {
        let map = cluster(nodes);
        Court {
            map,
            detector: Detector::new(DetectorConfig::default()),
            now: at(1000),
        }
    }

    /// Hears `reporter`'s word and gives the verdicts and the nodes asked to probe.
    fn hear(&mut self, words: &[(u64, u64, Sign)]) -> (Vec<u64>, Vec<(u64, Vec<u64>)>) {
        let reports: Vec<Report> = words
            .iter()
            .map(|(reporter, suspect, finding)| Report {
                reporter: NodeId(*reporter),
                seen: Evidence {
                    node: NodeId(*suspect),
                    incarnation: self.map.nodes[&NodeId(*suspect)].incarnation,
                    sign: *finding,
                },
            })
            .collect();
        let mut out = Findings::default();
        self.detector.step(self.now, &self.map, &reports, &mut out);
        let by = |p: &Probe| (p.suspect.0, p.by.iter().map(|n| n.0).collect());
        (
            out.verdicts.iter().map(|v| v.node.0).collect(),
            out.probes.iter().map(by).collect(),
        )
    }

    fn wait(&mut self, ms: u64) {
        self.now = self.now + Duration::from_millis(ms);
    }
}

use Sign::{Alive, Failed, Refused, Silent, Slow};

/// Row D5: a death is confirmed by a second node before anything is done.
#[test]
fn one_word_asks_others_and_two_confirm() {
    let mut court = Court::of(5);
    assert_eq!(
        court.hear(&[(1, 3, Silent)]),
        (vec![], vec![(3, vec![4, 5, 2])])
    );
    court.wait(50);
    assert_eq!(
        court.hear(&[(1, 3, Silent)]),
        (vec![], vec![]),
        "not asked again so soon"
    );
    assert_eq!(court.hear(&[(4, 3, Refused)]), (vec![3], vec![]));
    assert_eq!(court.hear(&[(5, 3, Failed)]), (vec![], vec![]), "said once");
    court.wait(250);
    assert_eq!(
        court.hear(&[]),
        (vec![3], vec![]),
        "said again while the map does not know"
    );
    let down = node_down(&court.map, 3);
    court.map.apply(None, &down).expect("up");
    court.wait(250);
    assert_eq!(court.hear(&[(1, 3, Silent)]), (vec![], vec![]), "known");
}

/// Failed requests, however many complain, are a reason to look: the suspect may merely be unable to
/// serve them (found by the simulator: clients of a lost bucket had a healthy node declared dead again
/// and again).
#[test]
fn failed_requests_alone_kill_nobody() {
    let mut court = Court::of(4);
    for _ in 0..20 {
        let (dead, asked) = court.hear(&[(1, 3, Failed), (2, 3, Failed)]);
        assert_eq!((dead, asked), (vec![], vec![(3, vec![4, 1, 2])]));
        assert!(court.hear(&[(4, 3, Alive), (1, 3, Alive)]).0.is_empty());
        court.wait(1500);
    }
    court.hear(&[(1, 3, Failed), (2, 3, Failed)]);
    assert_eq!(court.hear(&[(4, 3, Refused)]).0, vec![3], "one has looked");
}

/// However long they go on: who reaches the native port may say so without end, with a node that is well and slow to say that it is.
#[test]
fn complaints_that_do_not_end_kill_nobody_while_nobody_has_looked() {
    let mut court = Court::of(4);
    for _ in 0..50 {
        let (dead, _) = court.hear(&[(1, 3, Failed), (2, 3, Failed)]);
        assert!(dead.is_empty(), "{dead:?}");
        court.wait(100);
    }
    let (dead, _) = court.hear(&[(1, 3, Failed), (2, 3, Failed), (4, 3, Silent)]);
    assert_eq!(dead, vec![3], "one has looked");
}

/// A and B cut, both reach C: nobody is dead, however long it lasts.
#[test]
fn a_partial_partition_kills_nobody() {
    let mut court = Court::of(3);
    for _ in 0..100 {
        let (dead, _) = court.hear(&[(1, 2, Silent), (2, 1, Silent)]);
        assert!(dead.is_empty());
        court.wait(50);
        let (dead, _) = court.hear(&[(3, 1, Alive), (3, 2, Alive)]);
        assert!(dead.is_empty());
        court.wait(50);
    }
    // Then B dies indeed: C's own word turns, and the alive it said before is its word no longer.
    court.hear(&[(1, 2, Silent), (3, 2, Silent)]);
    assert_eq!(court.hear(&[(1, 2, Silent), (3, 2, Silent)]).0, vec![2]);
}

/// Regression: requests that fail, of which there are many where clients ask, took the place of pings without an answer, and the two nodes
/// were apart at one moment and not at the next.
#[test]
fn a_request_that_failed_hides_no_silence() {
    let mut court = Court::of(3);
    court.hear(&[(1, 2, Silent)]);
    court.wait(100);
    court.hear(&[(1, 2, Failed)]);
    assert_eq!(court.detector.cuts().len(), 1);
    court.hear(&[(1, 2, Alive)]);
    assert!(court.detector.cuts().is_empty());
}

/// Regression: two words were enough before the others had looked, and all nodes of a ring were declared dead in turn, with
/// the bytes of whole buckets.
#[test]
fn two_who_do_not_hear_it_are_not_enough_before_others_have_looked() {
    let mut court = Court::of(5);
    let next = |n: u64| n % 5 + 1;
    for _ in 0..100 {
        // Each is not heard by the next, whose pings it does not answer for that one either.
        let cut: Vec<_> = (1..=5)
            .flat_map(|n| [(n, next(n), Silent), (next(n), n, Silent)])
            .collect();
        let (dead, probes) = court.hear(&cut);
        assert!(dead.is_empty(), "{dead:?}");
        court.wait(50);
        let near = |a: u64, b: u64| a == next(b) || b == next(a);
        let asked = probes
            .into_iter()
            .flat_map(|(suspect, by)| by.into_iter().map(move |by| (by, suspect)));
        let found: Vec<_> = asked
            .filter(|(by, suspect)| !near(*by, *suspect))
            .map(|(by, suspect)| (by, suspect, Alive))
            .collect();
        assert!(court.hear(&found).0.is_empty());
        court.wait(50);
    }
    assert_eq!(court.detector.cuts().len(), 5);
    court.hear(&[(1, 2, Silent), (3, 2, Silent)]);
    court.wait(2000);
    court.hear(&[(1, 2, Silent), (3, 2, Silent)]);
    court.wait(299);
    assert!(
        court.hear(&[(1, 2, Silent)]).0.is_empty(),
        "the time to look"
    );
    court.wait(1);
    assert_eq!(court.hear(&[(1, 2, Silent)]).0, vec![2], "nobody found it");
}

/// However many are cut from it: who is heard by one is not dead.
#[test]
fn one_that_hears_it_outweighs_many_that_do_not() {
    let mut court = Court::of(5);
    for _ in 0..20 {
        court.hear(&[(4, 2, Alive), (1, 2, Silent)]);
        let words = [
            (4, 2, Alive),
            (1, 2, Silent),
            (3, 2, Failed),
            (5, 2, Silent),
        ];
        assert!(court.hear(&words).0.is_empty());
        court.wait(100);
    }
    court.wait(950);
    court.hear(&[(1, 2, Silent), (3, 2, Silent)]);
    let words = [
        (1, 2, Silent),
        (3, 2, Silent),
        (4, 2, Silent),
        (5, 2, Silent),
    ];
    assert_eq!(court.hear(&words).0, vec![2], "not heard lately");
}

#[test]
fn a_refused_connection_outweighs_an_earlier_sign_of_life() {
    let mut court = Court::of(4);
    court.hear(&[(1, 2, Silent), (4, 2, Alive)]);
    court.wait(10);
    assert!(
        court.hear(&[(1, 2, Refused)]).0.is_empty(),
        "one is not two"
    );
    assert_eq!(court.hear(&[(3, 2, Refused)]).0, vec![2]);
    let mut court = Court::of(4);
    court.hear(&[(1, 2, Refused)]);
    court.wait(10);
    court.hear(&[(4, 2, Alive)]);
    assert!(
        court.hear(&[(3, 2, Silent)]).0.is_empty(),
        "it lived after that"
    );
}

#[test]
fn where_two_are_not_left_one_decides_but_not_in_haste() {
    let mut court = Court::of(2);
    assert!(court.hear(&[(1, 2, Silent)]).0.is_empty());
    court.wait(300);
    assert_eq!(court.hear(&[]).0, vec![2]);
    let mut court = Court::of(2);
    assert_eq!(court.hear(&[(1, 2, Refused)]).0, vec![2]);
    // Two of four die at once: the others do not wait for the words of the dead.
    let mut court = Court::of(4);
    let words = [(1, 2, Silent), (1, 3, Silent), (4, 2, Silent)];
    assert!(court.hear(&words).0.is_empty());
    court.wait(300);
    assert_eq!(court.hear(&words).0, vec![2]);
}

/// A pause of the one who judges must not look like the death of everybody else.
#[test]
fn who_wakes_from_a_pause_condemns_nobody() {
    let mut court = Court::of(5);
    let all_silent: Vec<_> = (2..=5).map(|n| (1, n, Silent)).collect();
    assert!(court.hear(&all_silent).0.is_empty());
    court.wait(100);
    let all_alive: Vec<_> = (2..=5).map(|n| (1, n, Alive)).collect();
    assert!(court.hear(&all_alive).0.is_empty());
    court.wait(300);
    assert_eq!(court.hear(&[]), (vec![], vec![]));
    assert!(court.detector.cases.is_empty(), "the words were taken back");
}

#[test]
fn old_words_and_words_of_other_lives_and_strangers_count_for_nothing() {
    let mut court = Court::of(4);
    court.hear(&[(1, 2, Silent)]);
    court.wait(1001);
    assert!(
        court.hear(&[(3, 2, Silent)]).0.is_empty(),
        "the first word is too old"
    );
    court.map.apply(None, &node_up(Some(2))).expect("known");
    assert!(
        court.hear(&[(4, 2, Silent)]).0.is_empty(),
        "the second was of another life"
    );
    assert!(court.hear(&[(2, 2, Silent)]).0.is_empty(), "of itself");
    let mut out = Findings::default();
    let stranger = Report {
        reporter: NodeId(77),
        seen: Evidence {
            node: NodeId(2),
            incarnation: court.map.nodes[&NodeId(2)].incarnation,
            sign: Refused,
        },
    };
    court
        .detector
        .step(court.now, &court.map, &[stranger], &mut out);
    assert!(out.verdicts.is_empty(), "a stranger's word");
}

#[test]
fn each_round_of_probes_asks_others_and_cases_end() {
    let mut court = Court::of(9);
    let (_, first) = court.hear(&[(1, 5, Silent)]);
    court.wait(150);
    let (_, second) = court.hear(&[(1, 5, Silent)]);
    assert_eq!(first, vec![(5, vec![6, 7, 8])]);
    assert_eq!(second, vec![(5, vec![9, 2, 3])]);
    court.wait(1001);
    assert_eq!(court.hear(&[]), (vec![], vec![]));
    assert!(court.detector.cases.is_empty());
    let mut court = Court::of(60);
    for reporter in 2..=60 {
        court.hear(&[(reporter, 1, Silent)]);
    }
    assert!(court.detector.cases[&NodeId(1)].words.len() <= REPORTERS_MAX);
}

/// A node that came back twice is slow rather than dead: words against it must stand, longer after each return; a refused connection
/// needs no patience, a quiet minute makes it as good as others, and another life has done nothing yet.
#[test]
fn who_came_back_twice_is_given_longer() {
    let life = |court: &Court| court.map.nodes[&NodeId(3)].incarnation;
    let back = |court: &mut Court| {
        let (node, incarnation) = (NodeId(3), life(court));
        let down = Change::NodeDown { node, incarnation };
        court.map.apply(None, &down).expect("up");
        court.hear(&[]);
        court.wait(100);
        let back = Change::NodeBack { node, incarnation };
        court.map.apply(None, &back).expect("down");
        court.hear(&[]);
        court.wait(100);
    };
    // The time for which three nodes must say that it is silent, in steps of 100 ms.
    let patience = |court: &mut Court| {
        for waited in 0.. {
            let silent = [
                (1, 3, Silent),
                (2, 3, Silent),
                (4, 3, Silent),
                (5, 3, Silent),
            ];
            if court.hear(&silent).0 == [3] {
                court.wait(2000);
                court.hear(&[]);
                return waited * 100;
            }
            court.wait(100);
        }
        unreachable!("without end")
    };
    let mut court = Court::of(5);
    let base = patience(&mut court);
    back(&mut court);
    assert_eq!(patience(&mut court), base, "once is forgiven");
    for longer in [500, 1000, 2000, 4000, 4000] {
        back(&mut court);
        assert_eq!(patience(&mut court), longer.max(base));
    }
    assert_eq!(
        court.hear(&[(1, 3, Refused), (2, 3, Silent)]).0,
        [3],
        "it is gone"
    );
    court.wait(2000);
    court.hear(&[]);
    court.map.apply(None, &node_up(Some(3))).expect("anew");
    assert_eq!(patience(&mut court), base, "another life");
    for _ in 0..3 {
        back(&mut court);
    }
    assert!(patience(&mut court) > base);
    court.wait(60_000);
    court.hear(&[]);
    assert_eq!(patience(&mut court), base, "a quiet minute");
}

#[cfg(feature = "mutants")]
#[test]
fn a_detector_that_forgets_returns_is_seen() {
    crate::mutant::plant(Some(Mutant::ReturnsForgotten));
    let seen = std::panic::catch_unwind(who_came_back_twice_is_given_longer);
    crate::mutant::plant(None);
    assert!(seen.is_err(), "it is as patient with it as ever");
}
