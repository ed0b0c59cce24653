//! Planted bugs of the glue, and the scenario that must find each.

use std::path::Path;

use crate::catalogue;
use crate::run::{Told, run};

/// Bug and scenario. What finds a bug once in a few runs is tried that often.
pub const HUNTS: [(&str, &str); 7] = [
    ("VoteNotPersisted", "all-restart"),
    ("DirectoryLogNotWritten", "all-restart"),
    ("SendErrorTakenAsDone", "kill-two-in-turn"),
    ("ServeBeforeCatchUp", "catch-up"),
    ("InterruptedUnderNewNumber", "heard-but-deaf"),
    ("LeaseNotLookedAt", "cut-off-but-asked"),
    ("RequestTableNotRebuilt", "heard-but-deaf"),
];

/// Runs the scenario with the bug planted until it is found: after how many runs, and by what; `None` if
/// it never was. A run that cannot even be done with the bug in it has found it as well.
pub fn hunt(
    told: &Told,
    mutant: &str,
    scenario: &str,
    runs_max: u32,
) -> anyhow::Result<Option<(u32, String)>> {
    let Some(scenario) = catalogue::named(scenario)? else {
        anyhow::bail!("there is no scenario '{scenario}'");
    };
    for number in 1..=runs_max {
        let told = Told {
            seed: told.seed + u64::from(number),
            mutant: Some(mutant.to_owned()),
            ..told.clone()
        };
        let verdict = run(&scenario, &told, |_: &Path| Vec::new())?;
        if let Some(folder) = verdict.folder.filter(|_| !told.keep) {
            // It was meant to fail: nobody will look.
            std::fs::remove_dir_all(folder)?;
        }
        if let Some(found) = verdict.violations.into_iter().next() {
            return Ok(Some((number, found)));
        }
    }
    Ok(None)
}
