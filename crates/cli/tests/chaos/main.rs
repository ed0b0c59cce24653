//! Real processes, real faults, checked histories: the quick part of the chaos runs. One after the other,
//! for each of them loads the machine by itself. The rest: `cargo run --release -p staves-chaos`.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use staves_chaos::run::{RunSettings, run};
use staves_chaos::{catalogue, lab, mutants, second};
use staves_model::mutant::Mutant;
use staves_testkit::tools::missing;

/// One lab at a time. `None`, with the reason said, where there can be none.
fn turn() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(why) = lab::impossible() else {
        return Some(turn);
    };
    missing(why);
    None
}

fn settings(seed: u64) -> RunSettings {
    RunSettings {
        program: PathBuf::from(env!("CARGO_BIN_EXE_staves")),
        seed,
        mutant: None,
        wanted: None,
        folder: std::env::temp_dir(),
        keep: false,
    }
}

fn passes(name: &str) {
    assert!(
        catalogue::TESTED.contains(&name),
        "{name} runs twice in .ci/run"
    );
    let Some(_turn) = turn() else {
        return;
    };
    let scenario = catalogue::named(name)
        .expect("it reads")
        .expect("it is there");
    let verdict = run(&scenario, &settings(1), second::of_run).expect("it can be run");
    let wrong = verdict.violations.join("\n");
    assert!(
        wrong.is_empty(),
        "{}\n{wrong}\nsee {:?}",
        verdict.story,
        verdict.folder
    );
    assert!(
        verdict.operations > 500,
        "hardly anything was asked:\n{}",
        verdict.story
    );
}

fn is_found(mutant: &str) {
    let Some(_turn) = turn() else {
        return;
    };
    let hunt = mutants::HUNTS.into_iter().find(|h| h.mutant == mutant);
    let hunt = hunt.expect("it is hunted");
    let hunted = mutants::hunt(&settings(1), &hunt).expect("it can be hunted");
    assert!(
        hunted.found.is_some(),
        "{mutant} was not found by {}: {:?}",
        hunt.scenario,
        hunted.others
    );
}

/// The scenarios of this file are those that `staves-chaos rest` leaves out.
#[test]
fn every_scenario_that_the_rest_leaves_out_is_run_here() {
    let here = include_str!("main.rs");
    for name in catalogue::TESTED {
        assert!(here.contains(&format!("passes(\"{name}\")")), "{name}");
    }
}

/// D5, H3: one of each kind of fault, under load.
#[test]
fn a_bit_of_each_fault() {
    passes("a-bit-of-each");
}

/// Beyond what the scheme bears: every process dies at once. Keys start empty, the directory remembers.
#[test]
fn all_die_at_once() {
    passes("all-restart");
}

/// As many as the scheme bears, at one instant.
#[test]
fn two_die_at_once() {
    passes("kill-two-at-once");
}

/// D9 and D11: nodes die until one is left, and come back; readers of files get right bytes all the time.
#[test]
fn files_are_read_while_nodes_die() {
    passes("files-lose-all-but-one");
}

/// D11: readers of files are cut off from some nodes, and from all.
#[test]
fn files_are_read_while_nodes_cannot_be_reached() {
    passes("files-cut-off");
}

/// D9: files are overwritten by others of the same size, and bits flip in memory: never a mix, never a wrong byte.
#[test]
fn files_that_change_are_never_mixed() {
    passes("files-change");
}

#[test]
fn every_planted_bug_of_the_glue_is_hunted() {
    for mutant in Mutant::GLUE {
        let name = format!("{mutant:?}");
        assert!(mutants::HUNTS.iter().any(|h| h.mutant == name), "{name}");
    }
}

#[test]
fn a_vote_that_is_forgotten_is_found() {
    is_found("VoteNotPersisted");
}

#[test]
fn a_directory_log_that_is_not_synced_is_found() {
    is_found("DirectoryLogNotSynced");
}

#[test]
fn a_send_error_that_is_taken_for_done_is_found() {
    is_found("SendErrorTakenAsDone");
}

#[test]
fn a_life_that_passes_for_the_one_before_is_found() {
    is_found("IncarnationReused");
}

#[test]
fn a_member_that_serves_before_it_caught_up_is_found() {
    is_found("ServeBeforeCatchUp");
}

#[test]
fn an_interrupted_write_under_a_new_number_is_found() {
    is_found("InterruptedUnderNewNumber");
}

#[test]
fn a_lease_that_is_not_looked_at_is_found() {
    is_found("LeaseNotLookedAt");
}

#[test]
fn a_request_table_that_does_not_come_along_is_found() {
    is_found("RequestTableNotRebuilt");
}
