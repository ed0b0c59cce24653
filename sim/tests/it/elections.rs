//! Elections beside load: leaders last, and calm takes every delay back.

use staves_model::mutant::Mutant;
use staves_sim::elections::run;

const SEEDS: std::ops::RangeInclusive<u64> = 1..=40;

#[test]
fn leaders_last_beside_load_and_a_death_in_calm_costs_a_time_out() {
    for seed in SEEDS {
        let bad = run(seed, None);
        assert!(bad.is_empty(), "seed {seed}: {bad:?}");
    }
}

fn found(mutant: Mutant, as_what: &str) {
    let shows = |seed| run(seed, Some(mutant)).iter().any(|v| v.contains(as_what));
    assert!(SEEDS.take(5).any(shows), "{mutant:?} does not show");
}

#[test]
fn a_back_off_that_never_grows_is_found() {
    found(Mutant::BackoffNeverGrows, "no leader lasts");
}

#[test]
fn a_back_off_that_never_resets_is_found() {
    found(Mutant::BackoffNeverResets, "after a death in calm");
}
