//! Runs of fresh seeds in each way of appending, and seeds that failed once.

use std::collections::BTreeMap;

use super::conditions::CONDITIONAL_SEEDS;
use super::retention::RETAINED_SEEDS;
use super::world::World;
use crate::AppendMode::{self, Bind, Corfu, Predict};

/// The outcome of a run.
pub(super) struct RunOutcome {
    pub violation: Option<String>,
    pub stats: BTreeMap<&'static str, u64>,
    pub latencies_us: Vec<u64>,
}

/// One run of a seed.
pub(super) fn run(mode: AppendMode, seed: u64, trace: bool) -> RunOutcome {
    let mut world = World::new(mode, seed);
    world.trace = trace;
    while world.now < world.knobs.end && world.judge.violations.is_empty() {
        world.step();
    }
    world.quiet = true;
    let again = world.rng.below(2);
    for round in 0..=again {
        (world.knobs.loss, world.knobs.twice, world.knobs.slow) = (0, 0, 0);
        world.slowed.clear();
        world.settle(if world.knobs.calm { 3_000_000 } else { 500_000 });
        if world.judge.violations.is_empty() {
            world.judge_rest();
        }
        // One more change of term at rest: what was decided must be found again.
        if round < again && world.judge.violations.is_empty() {
            world.new_term(false);
        }
    }
    RunOutcome {
        violation: world.judge.violations.first().cloned(),
        stats: world.stats,
        latencies_us: world.judge.latencies_us,
    }
}

fn runs(mode: AppendMode, seeds: std::ops::Range<u64>) -> BTreeMap<&'static str, u64> {
    let mut stats = BTreeMap::new();
    for seed in seeds {
        let outcome = run(mode, seed, false);
        if let Some(violation) = outcome.violation {
            panic!("{mode:?} seed {seed}: {violation}");
        }
        for (what, count) in outcome.stats {
            *stats.entry(what).or_default() += count;
        }
    }
    stats
}

/// Seeds of each test: `STAVES_LOG_SEEDS` sets another number.
fn seeds() -> std::ops::Range<u64> {
    let set = std::env::var("STAVES_LOG_SEEDS").ok();
    let (from, count) = match set.as_deref().and_then(|set| set.split_once('+')) {
        Some((from, count)) => (from.parse().ok(), count.parse().ok()),
        None => (Some(0), set.and_then(|set| set.parse().ok())),
    };
    let from = from.unwrap_or(0);
    from..from + count.unwrap_or(400)
}

#[test]
fn l1_bound_appends_keep_the_order_of_the_log_in_every_fault() {
    println!("{:?}", runs(Bind, seeds()));
}

#[test]
fn l3_predicted_appends_keep_the_order_of_the_log_in_every_fault() {
    println!("{:?}", runs(Predict, seeds()));
}

#[test]
fn l7_appends_by_token_keep_the_order_of_the_log_in_every_fault() {
    println!("{:?}", runs(Corfu, seeds()));
}

/// I13, in each way of appending.
#[test]
fn conditional_appends_hold_or_fail_for_good_in_every_fault() {
    for mode in [Bind, Predict, Corfu] {
        let seeds = seeds();
        let stats = runs(
            mode,
            CONDITIONAL_SEEDS + seeds.start..CONDITIONAL_SEEDS + seeds.end,
        );
        println!("{mode:?}: {stats:?}");
        for what in ["failed conditions", "waits"] {
            assert!(stats.get(what).is_some_and(|count| *count > 100), "{what}");
        }
    }
}

/// I14, in each way of appending.
#[test]
fn background_trims_leave_what_is_kept_and_what_cursors_have_not_passed() {
    for mode in [Bind, Predict, Corfu] {
        let seeds = seeds();
        let stats = runs(
            mode,
            RETAINED_SEEDS + seeds.start..RETAINED_SEEDS + seeds.end,
        );
        println!("{mode:?}: {stats:?}");
        let trims = stats.get("background trims");
        assert!(trims.is_some_and(|count| *count > 100), "{trims:?}");
    }
}

/// A unit kept a tag's last positions in the order in which data came.
#[test]
fn seed_22_a_unit_keeps_the_highest_positions_of_a_tag() {
    assert_eq!(run(Bind, 22, false).violation, None);
}

/// The middle latency of appends without faults, over 70 ms one way.
fn middle_us(mode: AppendMode) -> u64 {
    let calm = (0..64).step_by(8);
    let mut all: Vec<u64> = calm
        .flat_map(|seed| run(mode, seed, false).latencies_us)
        .collect();
    all.sort_unstable();
    assert!(all.len() > 100, "{mode:?}: only {} appends", all.len());
    all[all.len() / 2]
}

#[test]
fn l2_an_append_takes_one_round_trip_and_by_token_two() {
    let [bind, predict, corfu] = [Bind, Predict, Corfu].map(middle_us);
    println!("bind {bind} us, predict {predict} us, corfu {corfu} us");
    assert!((140_000..143_000).contains(&bind), "{bind}");
    assert!((140_000..145_000).contains(&predict), "{predict}");
    assert!((280_000..286_000).contains(&corfu), "{corfu}");
}

#[test]
fn a_seed_that_is_named_is_told_step_by_step() {
    let Ok(seed) = std::env::var("STAVES_LOG_SEED") else {
        return;
    };
    let mode = match std::env::var("STAVES_LOG_MODE").as_deref() {
        Ok("corfu") => Corfu,
        Ok("predict") => Predict,
        _ => Bind,
    };
    let outcome = run(mode, seed.parse().expect("a number"), true);
    println!("{:?}", outcome.violation);
}
