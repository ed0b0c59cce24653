//! Batches of seeds without a planted bug: every run is clean, does its minimum, and nothing is blind.

use staves_sim::cover::Coverage;
use staves_sim::run::{FAULTS_MIN, OPERATIONS_MIN, Report, groups_of, run, shape_of};
use staves_sim::scenario::Scenario;

/// Seeds of the batch.
const SEEDS: u64 = 320;
/// The batch is shared among so many threads.
const THREADS: u64 = 4;

fn scenario(seed: u64) -> Scenario {
    let (m, k) = shape_of(seed);
    Scenario {
        seed,
        m,
        k,
        groups: groups_of(seed),
        mutant: None,
        hunting: false,
        trace: false,
    }
}

fn check(seed: u64, report: &Report) -> Result<(), String> {
    let (m, k) = shape_of(seed);
    let what = if let Some(what) = report.violations.first() {
        what.clone()
    } else if report.operations < OPERATIONS_MIN && report.cover.of("lost for good") == 0 {
        format!("only {} operations", report.operations)
    } else if report.cover.faults() < FAULTS_MIN {
        format!("only {} faults", report.cover.faults())
    } else {
        return Ok(());
    };
    Err(format!(
        "seed {seed} ({m}+{k}): {what}; see it with: staves-sim --seed {seed} --runs 1 --trace"
    ))
}

/// The batch, or in fresh-seed mode the batch that begins at `STAVES_SIM_SEED`.
#[test]
fn a_batch_is_clean_and_nothing_is_blind() {
    let first = match std::env::var("STAVES_SIM_SEED") {
        Ok(seed) => seed
            .parse()
            .unwrap_or_else(|_| panic!("STAVES_SIM_SEED is '{seed}', and must be a number")),
        Err(_) => 1,
    };
    println!("first seed {first}");
    let part = |thread: u64| {
        let (mut cover, mut bad) = (Coverage::default(), Vec::new());
        for seed in (first + thread..first + SEEDS).step_by(THREADS as usize) {
            let report = run(&scenario(seed));
            bad.extend(check(seed, &report).err().map(|why| (seed, why)));
            cover.merge(&report.cover);
        }
        (cover, bad)
    };
    let mut cover = Coverage::default();
    let mut bad = Vec::new();
    std::thread::scope(|threads| {
        let parts: Vec<_> = (0..THREADS)
            .map(|t| threads.spawn(move || part(t)))
            .collect();
        for part in parts {
            let (c, b) = part.join().expect("a run reports panics as violations");
            cover.merge(&c);
            bad.extend(b);
        }
    });
    bad.sort();
    if let Some((_, why)) = bad.first() {
        panic!("{} of {SEEDS} seeds failed, the first: {why}", bad.len());
    }
    let blind = cover.blind_spots();
    assert!(
        blind.is_empty(),
        "blind spots: {blind:?}\n{}",
        cover.table()
    );
}

#[test]
fn the_same_seed_is_the_same_run_and_another_seed_another() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 1..=10 {
        let (once, again) = (run(&scenario(seed)), run(&scenario(seed)));
        assert_eq!(
            (once.hash, once.steps, once.operations),
            (again.hash, again.steps, again.operations),
            "seed {seed} ran differently the second time"
        );
        assert!(seen.insert(once.hash), "seed {seed} ran like another seed");
    }
}
