//! Each planted bug is found, by some seed in one of the ways of appending. Those that need a rare order are found by a script (`sequencer/tests.rs`).

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
    (NoFence, &[Bind], 3),
    (SealMissing, &[Bind], 1),
    (SealUnsynced, &[Bind], 220),
    (SealOfOlderTerm, &[Bind], 6),
    (AckUnsynced, &[Bind], 1),
    (ReadUnsynced, &[Bind], 1134),
    (DecidedUnsynced, &[Bind], 17),
    (JunkUnsynced, &[Corfu], 305),
    (TailOfOneUnit, &[Bind], 1),
    (TailTrimmed, &[Corfu], 113),
    (IdsNotRebuilt, &[Bind], 41),
    (LowsNotRebuilt, &[Bind], 127),
    (TagsNotRebuilt, &[Bind], 1),
    (IdsTrimmed, &[Bind], 2660),
    (NoLow, &[Bind], 4),
    (SessionReused, &[Bind], 3),
    (FloorNotRaised, &[Bind], 11),
    (FloorLostAtSeal, &[Bind], 10),
    (DroppedAccepted, &[Bind], 10),
    (RetryBindsAnew, &[Bind], 4),
    (NewToken, &[Corfu], 18),
    (TokenRestamped, &[Corfu], 5),
    (CheckUnconfirmed, &[Predict], 1380),
    (CheckWithoutPrefix, &[Predict], 25),
    (ReaderSkips, &[Corfu], 0),
    (FillOfOldTerm, &[Predict], 52),
    (FillUntold, &[Corfu], 0),
    (DataOverJunk, &[Bind], 68),
    (PageEarly, &[Bind], 2),
    (UnclaimedLeft, &[Bind], 4),
    (PerUnit, &[Predict], 0),
    (ActsBeforeOpen, &[Bind], 0),
    (BoundIsAck, &[Bind], 1),
    (TrimAhead, &[Bind], 27),
    (JunkBelowTrim, &[Corfu], 4),
    (TrimmedAsJunkInPage, &[Bind], 113),
    (PunchForgets, &[Bind], 3),
    (BatchInParts, &[Bind], 0),
    (NoDeadline, &[Corfu], 3),
    (NoResend, &[Bind], 34),
    (PendingOverSeal, &[Bind], 10),
    (WrongOwnerJunk, &[Corfu], 1181),
    (ForeignUnit, &[Bind], 0),
    (CopyPastPrefix, &[Corfu], 79),
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
