//! Planted bugs of the glue, and the scenario that must find each.

use std::path::Path;

use crate::catalogue;
use crate::run::{RunSettings, run};

/// Most runs that a bug may hide in.
pub const RUNS_MAX: u32 = 3;

/// A bug, and how it is found.
#[derive(Clone, Copy, Debug)]
pub struct Hunt {
    /// Its name in `staves_model::mutant`.
    pub mutant: &'static str,
    /// The scenario that finds it.
    pub scenario: &'static str,
    /// Words of the violation that it must show as, any of these: another would be found by chance, or
    /// for another reason.
    pub shows: &'static [&'static str],
}

const fn hunt_for(
    mutant: &'static str,
    scenario: &'static str,
    shows: &'static [&'static str],
) -> Hunt {
    Hunt {
        mutant,
        scenario,
        shows,
    }
}

const WRONG_ANSWERS: &[&str] = &["is not linearizable"];

/// A snapshot or a clone that changes, or has what its volume had not.
const WRONG_COPIES: &[&str] = &["' is not linearizable", "held there at no time"];

/// Positions that are given out twice, or below what the log had reached.
const LOG_LOWER: &[&str] = &["I1: ", "I2: ", "I3: ", "I4: ", "I6: "];
/// A record that was acknowledged and is not in its log.
const LOG_LOST: &[&str] = &["I2: "];

/// All of them. Where votes are forgotten Raft finds its log ahead of them: where its assertions are
/// compiled in it panics, elsewhere nobody leads any more. A life that passes for the one before leaves
/// groups waiting for members that are not there any more.
pub const HUNTS: [Hunt; 15] = [
    hunt_for(
        "VoteNotPersisted",
        "all-restart",
        &["went back from term", "panicked", "not healthy"],
    ),
    hunt_for(
        "DirectoryLogNotSynced",
        "all-restart",
        &["went back from map revision"],
    ),
    hunt_for("SendErrorTakenAsDone", "kill-two-in-turn", WRONG_ANSWERS),
    hunt_for(
        "IncarnationReused",
        "all-restart",
        &["not healthy", "could not be read"],
    ),
    hunt_for("ServeBeforeCatchUp", "catch-up", WRONG_ANSWERS),
    hunt_for("InterruptedUnderNewNumber", "heard-but-deaf", WRONG_ANSWERS),
    hunt_for("LeaseNotLookedAt", "cut-off-but-asked", WRONG_ANSWERS),
    // Of the memory service; what hunts it here is the history of a volume.
    hunt_for(
        "OldSessionWrites",
        "volume-moves",
        &[
            "a session that was over",
            "of the volume is not linearizable",
        ],
    ),
    // The same, by the histories of snapshots.
    hunt_for(
        "SharedPlaceOverwritten",
        "snapshots-in-trouble",
        WRONG_COPIES,
    ),
    hunt_for("DropFreesShared", "snapshots-in-trouble", WRONG_COPIES),
    hunt_for("RequestTableNotRebuilt", "moved-while-deaf", WRONG_ANSWERS),
    // Of logs, by the histories of their records.
    hunt_for("LogTailOfOneUnit", "log-sequencer-killed", LOG_LOWER),
    hunt_for("LogGivenPerUnit", "log-sequencer-killed", LOG_LOWER),
    hunt_for("LogBoundIsAck", "log-unit-killed", LOG_LOST),
    hunt_for("LogNoFence", "log-in-trouble", LOG_LOWER),
];

/// The result of a hunt.
#[derive(Clone, Debug, Default)]
pub struct Hunted {
    /// After how many runs.
    pub runs: u32,
    /// The violation that showed the bug; `None` if nothing did.
    pub found: Option<String>,
    /// The other complaints of the last run.
    pub others: Vec<String>,
}

/// Runs the scenario with the bug planted until it is found.
pub fn hunt(settings: &RunSettings, hunt: &Hunt) -> anyhow::Result<Hunted> {
    let Some(scenario) = catalogue::named(hunt.scenario)? else {
        anyhow::bail!("there is no scenario '{}'", hunt.scenario);
    };
    let mut hunted = Hunted::default();
    while hunted.runs < RUNS_MAX && hunted.found.is_none() {
        hunted.runs += 1;
        let settings = RunSettings {
            seed: settings.seed + u64::from(hunted.runs),
            mutant: Some(hunt.mutant.to_owned()),
            wanted: Some(hunt.shows),
            ..settings.clone()
        };
        let verdict = run(&scenario, &settings, |_: &Path| Vec::new())?;
        if let Some(folder) = verdict.folder.filter(|_| !settings.keep) {
            // It was meant to fail: nobody will look.
            std::fs::remove_dir_all(folder)?;
        }
        let shows = |text: &String| hunt.shows.iter().any(|words| text.contains(words));
        let (found, others): (Vec<String>, _) = verdict.violations.into_iter().partition(shows);
        hunted.found = found.into_iter().next();
        hunted.others = others;
    }
    Ok(hunted)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_hunt_has_its_scenario() {
        for hunt in super::HUNTS {
            let scenario = crate::catalogue::named(hunt.scenario).expect("it reads");
            assert!(scenario.is_some(), "{}", hunt.scenario);
            assert!(!hunt.shows.is_empty(), "{}", hunt.mutant);
        }
    }
}
