//! Placement of a files pool (row D7) while nodes die, stop, drain and come back.

use staves_model::mutant::Mutant;
use staves_sim::placement::run;

const SEEDS: std::ops::RangeInclusive<u64> = 1..=60;

#[test]
fn d7_no_last_copy_is_given_up_and_a_drained_node_ends_with_nothing() {
    for seed in SEEDS {
        let bad = run(seed, None);
        assert!(bad.is_empty(), "seed {seed}: {bad:?}");
    }
}

fn found(mutant: Mutant, as_what: &str) {
    let shows = |seed| run(seed, Some(mutant)).iter().any(|v| v.contains(as_what));
    assert!({ SEEDS }.any(shows), "{mutant:?} does not show");
}

#[test]
fn d7_a_drain_that_leaves_the_last_copy_is_found() {
    found(Mutant::DrainLeavesTheLastCopy, "P2");
}

#[test]
fn d7_a_flagged_holder_taken_as_staying_is_found() {
    found(Mutant::FlaggedTakenAsStaying, "P2");
}

#[test]
fn d7_spares_left_all_at_once_are_found() {
    found(Mutant::AllSparesLeftAtOnce, "P3");
}

#[test]
fn d7_copies_made_before_those_of_a_drained_node_are_found() {
    found(Mutant::SpreadBeforeFlagged, "P4");
}
