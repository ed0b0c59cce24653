//! Elections beside load and cuts: leaders last, and a cut or a death costs no more than one election.

use staves_model::mutant::Mutant;
use staves_sim::elections::run;

const SEEDS: std::ops::RangeInclusive<u64> = 1..=24;

#[test]
fn leaders_last_beside_load_and_cuts_and_a_death_costs_a_time_out() {
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
fn a_candidacy_of_one_who_asked_nobody_is_found() {
    found(Mutant::StandsUnasked, "no leader lasts");
    found(
        Mutant::StandsUnasked,
        "deposed a leader that it did not touch",
    );
}
