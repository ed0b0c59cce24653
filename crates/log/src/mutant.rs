//! The planted bugs of the log: each breaks one rule, and the simulator must find it. Some are also hunted on real processes (`staves_model::mutant`).

/// A planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) enum LogMutant {
    /// A unit does not fence terms.
    NoFence,
    /// The sequencer opens with a seal missing.
    SealMissing,
    /// A seal is reported before it is synced.
    SealUnsynced,
    /// A seal's answer to an older term counts.
    SealOfOlderTerm,
    /// An append is acknowledged before it is synced.
    AckUnsynced,
    /// A read returns an entry that is not synced.
    ReadUnsynced,
    /// A decision is reported before it is synced.
    DecidedUnsynced,
    /// Junk is reported before it is synced.
    JunkUnsynced,
    /// The tail is that of one unit.
    TailOfOneUnit,
    /// A trim lowers the highest claim.
    TailTrimmed,
    /// Ids are not rebuilt.
    IdsNotRebuilt,
    /// Clients' marks are not rebuilt.
    LowsNotRebuilt,
    /// Tags are not rebuilt.
    TagsNotRebuilt,
    /// A trim drops ids.
    IdsTrimmed,
    /// Clients' marks are ignored.
    NoLow,
    /// Sequencers number sessions without their term.
    SessionReused,
    /// A session is dropped, and the floor stays.
    FloorNotRaised,
    /// A seal lowers a unit's floor.
    FloorLostAtSeal,
    /// The floor is not rebuilt.
    FloorNotRebuilt,
    /// A session that is over is taken for a new one.
    DroppedAccepted,
    /// Any junk makes an id loose.
    PositionNotCompared,
    /// A retry that names another unit is bound anew.
    RetryBindsAnew,
    /// A client takes a new token though the one it had was not lost.
    NewToken,
    /// A token is used in a later term.
    TokenRestamped,
    /// A tail is reported unconfirmed.
    CheckUnconfirmed,
    /// An older confirmation confirms every check.
    CheckByOlder,
    /// A tail is reported before all below are decided.
    CheckWithoutPrefix,
    /// A reader passes what is unwritten.
    ReaderSkips,
    /// A reader's word of an old term counts.
    FillOfOldTerm,
    /// A unit fills a position that nobody announced.
    FillUntold,
    /// Data replaces junk.
    DataOverJunk,
    /// A map page is written before all of it is decided.
    PageEarly,
    /// Positions that nobody claims are left out of the map.
    UnclaimedLeft,
    /// Positions are given out per unit (predict).
    PerUnit,
    /// A sequencer acts before its term is open.
    ActsBeforeOpen,
    /// The sequencer's word is the acknowledgement.
    BoundIsAck,
    /// A trim passes the decided prefix.
    TrimAhead,
    /// A trimmed position is answered as junk.
    JunkBelowTrim,
    /// A map page has junk where it was trimmed.
    TrimmedAsJunkInPage,
    /// A punched record leaves no tomb.
    PunchForgets,
    /// A batch is made durable in parts.
    BatchInParts,
    /// A binding without data waits for ever.
    NoDeadline,
    /// Bindings are sent once.
    NoResend,
    /// Bindings outlive a seal.
    PendingOverSeal,
    /// A unit answers readers with an old map that positions below its start, which it lacks, are junk.
    WrongOwnerJunk,
    /// Appends go to units outside of the term.
    ForeignUnit,
    /// A copy answers past the prefix that its head has sent.
    CopyPastPrefix,
    /// A condition is judged before it is known that the append is in the log.
    ConditionBeforeId,
    /// A condition fails by what is only bound.
    ConditionByBound,
    /// A condition holds though an undecided position may break it.
    ConditionSkipsOpen,
    /// A condition holds though what breaks it was trimmed.
    ConditionIgnoresTrim,
    /// A unit's own request for a position has no condition.
    ConditionNotParked,
    /// A condition is not judged again when the append's turn comes (predict).
    ConditionNotAtTurn,
    /// The tails of tags are not rebuilt.
    TailsNotRebuilt,
    /// One who waits is answered once a position is given out, decided or not.
    WaitByNext,
    /// A cursor is moved from wherever it is.
    CursorNotCompared,
    /// A background trim passes the oldest cursor.
    RetentionPastCursor,
    /// Records that are not decided count as kept.
    RetentionCountsOpen,
}

pub(crate) use planted::*;

#[cfg(not(test))]
mod planted {
    use staves_model::mutant::{Mutant, planted as is_in_process};

    use super::LogMutant;

    /// Nothing is ever planted in the program; builds with the feature `mutants` of `staves-model` can have these.
    #[inline(always)]
    pub(crate) fn planted(mutant: LogMutant) -> bool {
        match mutant {
            LogMutant::TailOfOneUnit => is_in_process(Mutant::LogTailOfOneUnit),
            LogMutant::PerUnit => is_in_process(Mutant::LogGivenPerUnit),
            LogMutant::BoundIsAck => is_in_process(Mutant::LogBoundIsAck),
            LogMutant::NoFence => is_in_process(Mutant::LogNoFence),
            _ => false,
        }
    }
}

#[cfg(test)]
mod planted {
    use std::cell::Cell;

    use super::LogMutant;

    thread_local! {
        static PLANTED: Cell<Option<LogMutant>> = const { Cell::new(None) };
    }

    /// Plants a bug in everything that runs on this thread, or takes it out again.
    pub(crate) fn plant(mutant: Option<LogMutant>) {
        PLANTED.with(|p| p.set(mutant));
    }

    /// True if the bug is planted on this thread.
    pub(crate) fn planted(mutant: LogMutant) -> bool {
        PLANTED.with(|p| p.get() == Some(mutant))
    }
}
