//! Each planted bug is found, by some seed in one of the ways of appending. Two that need a rare order are found by a script (`sequencer/tests.rs`).

use super::conditions::CONDITIONAL_SEEDS;
use super::retention::RETAINED_SEEDS;
use super::runs::run;
use crate::AppendMode::{self, Bind, Corfu, Predict};
use crate::mutant::LogMutant::{self, *};
use crate::mutant::plant;

/// Most seeds of a hunt, in each way of appending.
const SEEDS_MAX: u64 = 4000;

/// A bug, the ways of appending in which it can show, and a seed with which it does.
type Hunt = (LogMutant, &'static [AppendMode], u64);

const HUNTS: &[Hunt] = &[
    (NoFence, &[Bind], 2),
    (SealMissing, &[Bind], 1),
    (SealUnsynced, &[Bind], 66),
    (SealOfOlderTerm, &[Bind], 1),
    (AckUnsynced, &[Bind], 1),
    (ReadUnsynced, &[Bind], 476),
    (DecidedUnsynced, &[Bind], 11),
    (JunkUnsynced, &[Predict], 170),
    (TailOfOneUnit, &[Bind], 0),
    (TailTrimmed, &[Corfu], 65),
    (IdsNotRebuilt, &[Bind], 7),
    (LowsNotRebuilt, &[Bind], 51),
    (TagsNotRebuilt, &[Bind], 0),
    (IdsTrimmed, &[Bind], 263),
    (NoLow, &[Bind], 3),
    (SameIncarnation, &[Bind], 1),
    (RetryBindsAnew, &[Bind], 2),
    (NewToken, &[Corfu], 4),
    (TokenRestamped, &[Corfu], 4),
    (CheckUnconfirmed, &[Predict], 945),
    (CheckWithoutPrefix, &[Predict], 9),
    (ReaderSkips, &[Corfu], 0),
    (FillOfOldTerm, &[Predict], 11),
    (FillUntold, &[Corfu], 0),
    (DataOverJunk, &[Bind], 1),
    (PageEarly, &[Bind], 1),
    (UnclaimedLeft, &[Bind], 2),
    (PerUnit, &[Predict], 0),
    (ActsBeforeOpen, &[Bind], 0),
    (BoundIsAck, &[Bind], 1),
    (TrimAhead, &[Bind], 9),
    (JunkBelowTrim, &[Corfu], 3),
    (TrimmedAsJunkInPage, &[Bind], 98),
    (PunchForgets, &[Bind], 1),
    (BatchInParts, &[Bind], 0),
    (NoDeadline, &[Corfu], 3),
    (NoResend, &[Bind], 3),
    (PendingOverSeal, &[Bind], 3),
    (WrongOwnerJunk, &[Corfu], 737),
    (ForeignUnit, &[Bind], 0),
    (CopyPastPrefix, &[Corfu], 46),
    (ConditionBeforeId, &[Bind], CONDITIONAL_SEEDS),
    (ConditionByBound, &[Bind], CONDITIONAL_SEEDS),
    (ConditionSkipsOpen, &[Bind], CONDITIONAL_SEEDS),
    (ConditionIgnoresTrim, &[Bind], CONDITIONAL_SEEDS + 2280),
    (ConditionNotParked, &[Bind], CONDITIONAL_SEEDS),
    (ConditionNotAtTurn, &[Predict], CONDITIONAL_SEEDS),
    (TailsNotRebuilt, &[Bind], CONDITIONAL_SEEDS),
    (WaitByNext, &[Bind], CONDITIONAL_SEEDS),
    (RetentionPastCursor, &[Bind], RETAINED_SEEDS),
    (RetentionCountsOpen, &[Bind], RETAINED_SEEDS),
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
