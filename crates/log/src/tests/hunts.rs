//! Each planted bug is found, by some seed in one of the ways of appending. Two that need a rare order are found by a script (`sequencer/tests.rs`).

use super::runs::run;
use crate::AppendMode::{self, Bind, Corfu, Predict};
use crate::mutant::LogMutant::{self, *};
use crate::mutant::plant;

/// Most seeds of a hunt, in each way of appending.
const SEEDS_MAX: u64 = 4000;

/// A bug, the ways of appending in which it can show, and a seed with which it does.
type Hunt = (LogMutant, &'static [AppendMode], u64);

const ALL: &[AppendMode] = &[Bind, Corfu, Predict];

const HUNTS: &[Hunt] = &[
    (NoFence, ALL, 0),
    (SealMissing, ALL, 0),
    (SealUnsynced, ALL, 0),
    (SealOfOlderTerm, ALL, 0),
    (AckUnsynced, ALL, 0),
    (ReadUnsynced, ALL, 0),
    (DecidedUnsynced, ALL, 0),
    (JunkUnsynced, ALL, 0),
    (TailOfOneUnit, ALL, 0),
    (TailTrimmed, ALL, 0),
    (IdsNotRebuilt, ALL, 0),
    (LowsNotRebuilt, ALL, 0),
    (TagsNotRebuilt, ALL, 0),
    (IdsTrimmed, ALL, 0),
    (NoLow, ALL, 0),
    (SameIncarnation, ALL, 0),
    (RetryBindsAnew, ALL, 0),
    (NewToken, &[Corfu], 0),
    (TokenRestamped, &[Corfu], 0),
    (CheckUnconfirmed, ALL, 0),
    (CheckWithoutPrefix, ALL, 0),
    (ReaderSkips, ALL, 0),
    (FillOfOldTerm, ALL, 0),
    (FillUntold, ALL, 0),
    (DataOverJunk, ALL, 0),
    (PageEarly, &[Bind], 0),
    (UnclaimedLeft, &[Bind], 0),
    (PerUnit, &[Predict], 0),
    (ActsBeforeOpen, ALL, 0),
    (BoundIsAck, &[Bind], 0),
    (TrimAhead, ALL, 0),
    (JunkBelowTrim, ALL, 0),
    (TrimmedAsJunkInPage, &[Bind], 0),
    (PunchForgets, ALL, 0),
    (BatchInParts, &[Bind], 0),
    (NoDeadline, ALL, 0),
    (NoResend, ALL, 0),
    (PendingOverSeal, ALL, 0),
    (WrongOwnerJunk, &[Corfu, Predict], 0),
    (ForeignUnit, ALL, 0),
    (CopyPastPrefix, ALL, 0),
];

/// The first run that shows a bug.
fn find(hunt: &Hunt) -> Option<(AppendMode, u64, String)> {
    let (mutant, modes, from) = hunt;
    plant(Some(*mutant));
    let mut found = None;
    'hunt: for seed in *from..*from + SEEDS_MAX {
        for mode in *modes {
            if let Some(violation) = run(*mode, seed, false).violation {
                found = Some((*mode, seed, violation));
                break 'hunt;
            }
        }
    }
    plant(None);
    found
}

#[test]
fn every_planted_bug_is_found() {
    let mut missed = Vec::new();
    let only = std::env::var("STAVES_LOG_HUNT").ok();
    let wanted = |hunt: &&Hunt| {
        only.as_ref()
            .is_none_or(|only| format!("{:?}", hunt.0) == *only)
    };
    for hunt in HUNTS.iter().filter(wanted) {
        match find(hunt) {
            Some((mode, seed, violation)) => {
                println!("{:?}: {mode:?} seed {seed}: {violation}", hunt.0);
            }
            None => missed.push(hunt.0),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
