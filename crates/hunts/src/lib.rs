//! Hunts for planted bugs among the tests of a program: a test is run anew, in a process that has the bug, and must fail as it is
//! meant to. So any test can be shown to see a bug, whatever threads it uses, and a hunt is a row of a table.

use std::process::Command;

use staves_model::mutant::Mutant;

/// The runs that a bug may hide in.
const RUNS_MAX: u32 = 3;

/// A bug, and the test that sees it.
#[derive(Clone, Copy, Debug)]
pub struct Hunt {
    /// The bug.
    pub mutant: Mutant,
    /// The test's full name in its program.
    pub test: &'static str,
    /// A part of the failure that it must show as: another would be seen by chance, or for another reason.
    pub shows: &'static str,
}

/// Runs each test of this program with its bug.
///
/// # Panics
/// With the bugs that were not seen, and with what came of their tests.
pub fn hunt(hunts: &[Hunt]) {
    let missed: Vec<String> = hunts.iter().filter_map(|hunt| miss(hunt).err()).collect();
    assert!(missed.is_empty(), "not seen:\n{}", missed.join("\n"));
}

fn miss(hunt: &Hunt) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut text = String::new();
    for _ in 0..RUNS_MAX {
        let run = Command::new(&program)
            .args(["--exact", hunt.test, "--nocapture"])
            .env("STAVES_MUTANT", format!("{:?}", hunt.mutant))
            .output()
            .map_err(|e| e.to_string())?;
        text = [run.stdout, run.stderr]
            .map(|t| String::from_utf8_lossy(&t).into_owned())
            .concat();
        if text.contains("running 0 tests") {
            return Err(format!("{:?}: there is no test {}", hunt.mutant, hunt.test));
        }
        if !run.status.success() && text.contains(hunt.shows) {
            return Ok(());
        }
    }
    let Hunt {
        mutant,
        test,
        shows,
    } = hunt;
    Err(format!("{mutant:?} by {test} as '{shows}':\n{text}"))
}
