//! The planted bugs of the group protocol (docs/reference/group-protocol.md), those that the service above adds, and those of the glue between the
//! machines and the world. The first two must be found by the simulator, the last by the chaos runs on
//! real processes or by tests that are run with the bug (`staves_hunts`). docs/reference/planted-bugs.md has the table.
//! They are compiled in only with the feature `mutants`, which only tests turn on.

macro_rules! mutants {
    ($($(#[$doc:meta])* $group:ident: [$($name:ident = $number:literal,)*])*) => {
        /// A planted bug. The numbers up to 28 are of the group protocol.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)] // the names say it
        pub enum Mutant {
            $($($name = $number,)*)*
        }

        impl Mutant {
            $($(#[$doc])* pub const $group: [Mutant; [$($number),*].len()] = [$(Mutant::$name),*];)*

            /// All of them.
            pub const EVERY: &[Mutant] = &[$($(Mutant::$name,)*)*];

            /// The bug of this name.
            pub fn named(name: &str) -> Option<Mutant> {
                Mutant::EVERY.iter().copied().find(|mutant| format!("{mutant:?}") == name)
            }
        }
    };
}

mutants! {
    /// Those of the group protocol.
    ALL: [
        AckHighestReceived = 1,
        ReadUnstable = 2,
        PromiseFromReceipt = 3,
        SealBeforePromiseEnds = 4,
        RestartForgetsPromise = 5,
        SealingKeepsPromising = 6,
        OpenWithoutLeaseWait = 7,
        NewDirectoryLeaderSkipsWait = 8,
        LeaseWithoutEpoch = 9,
        OldEpochAccepted = 10,
        FenceByLabel = 11,
        GoOnWithSealMissing = 12,
        OpenBeforeAllHoldCut = 13,
        ServeBeforeOpen = 14,
        SourcesFromCommitted = 15,
        PurgeWhileNotOpen = 16,
        JoinerNotCounted = 17,
        SourceListedAsJoiner = 18,
        LateOldMapDrops = 19,
        KeepBeyondCut = 20,
        PartsBeforeCutApplied = 21,
        PageAheadTakenAsDone = 22,
        PartOlderThanGone = 23,
        LabelsBySeqAlone = 24,
        ReturningTrustsPrefix = 25,
        RetryAnsweredBeforeStable = 26,
        RequestTableNotRebuilt = 27,
        OldIncarnationCounted = 28,
    ]
    /// Those of the key-value service (`staves-cache`).
    SERVICE: [
        CopyForgetsIndex = 101,
        LargeNamedBeforeWritten = 102,
        NoOpNotRemembered = 104,
        GetShowsUnstable = 105,
        ToldOnceApplied = 106,
        WrittenBeyondItsPlace = 107,
    ]
    /// Those of the memory service (`staves-memory`).
    MEMORY: [
        LostReadWaits = 501,
        OldPlaceNeedsNoMemory = 502,
        ReadShowsUnstable = 503,
    ]
    /// Those of placement by capacity (`capacity.rs`).
    PLACEMENT: [
        OrphanKeptForItsShare = 601,
        SharesOfOneSize = 602,
        FlaggedTakenAsStaying = 603,
        SpreadBeforeFlagged = 604,
        AnyBucketSpread = 605,
        AllSparesLeftAtOnce = 606,
        DrainLeavesTheLastCopy = 607,
    ]
    /// Those of groups with m > 1.
    CODED: [
        MixedPageVersions = 401,
        RecipeOfOtherSources = 402,
        DeltaAppliedTwice = 403,
        LaggingSourceTakenAsCurrent = 404,
        MissingPageTakenAsZero = 405,
        ParityTakenAsXor = 406,
        ParityPurgesUnstable = 407,
        DonePagesReset = 408,
        VacantStreamForgotten = 409,
        EqualLabelsTakenAsOne = 410,
        MemoryOfTheLargestAsked = 411,
        GrantedToAll = 412,
        MissingPagesMemoryGivenBack = 413,
        SecondTakenAsNode = 414,
        SecondsMailToFirst = 415,
        TwinSettledEarly = 416,
    ]
    /// Those of groups whose storage syncs late.
    DURABLE: [
        AnsweredAtHeld = 901,
        PurgedAtHeld = 902,
        SyncedBeyondGap = 903,
        ConfirmedUnsynced = 904,
    ]
    /// Those of the glue.
    GLUE: [
        VoteNotPersisted = 301,
        DirectoryLogNotSynced = 302,
        SendErrorTakenAsDone = 303,
        IncarnationReused = 304,
        ServeBeforeCatchUp = 305,
        InterruptedUnderNewNumber = 306,
        LeaseNotLookedAt = 307,
    ]
    /// Those of the group protocol that the simulator adds.
    ADDED: [
        HeldReadNeedsNoLease = 201,
        LeaseUnconfirmed = 202,
        QuietMemberGoesOn = 203,
        HeardWhileGone = 204,
    ]
    /// Those of the client's turn (`staves-client`).
    TURN: [
        TurnWithoutEnd = 801,
        RetriedUnderNewNumber = 802,
    ]
    /// Those of the directory's machines.
    DIRECTORY: [
        MissedPingReported = 701,
        PauseBlamedOnOthers = 702,
        LoneWordBelieved = 703,
        LeaseFromOldRead = 704,
        PermitNotRecorded = 705,
        PermitsForgottenByNewLeader = 706,
        YoungLeaderTrusts = 707,
        PermitUnconfirmed = 708,
        StopJudgedByOneGroup = 711,
        LeasesSoughtFromTheFirstGroup = 712,
        DrainOfStopTakenBackLate = 713,
        StandsUnasked = 714,
    ]
    /// Those of files, of the directory's adapter and of the node's glue that a test of their own crate sees
    /// (`staves_hunts`).
    TESTED: [
        PinnedGoesOnConflict = 1001,
        PinnedGoesInTurn = 1002,
        FrameLeaked = 1003,
        ChangeNotNoted = 1004,
        ChangesNumberedLate = 1005,
        DigestNotChecked = 1011,
        FetchedWithoutLook = 1012,
        TurnNotAwaited = 1013,
        UnheldPutKept = 1014,
        ListJumpsAhead = 1015,
        LostFetchedWithoutLook = 1016,
        AllCopiesSpare = 1017,
        OpenWithoutTerm = 1021,
        OtherTermApplied = 1022,
        LeaderBookOpensAtOnce = 1023,
        TruncateLeavesOne = 1024,
        TruncateNotStored = 1025,
        PurgeNotStored = 1026,
        SnapshotWithoutMembership = 1027,
        InstalledWithoutIndex = 1028,
        LeaseConfirmedByNobody = 1029,
        LeaseNotShortened = 1031,
        LeaseFromAnswer = 1041,
        ContactFromAnswer = 1042,
        ContactWithoutAnswer = 1043,
        BatchOvertakes = 1044,
        LateWriteSaidNotDone = 1045,
        QueuedBucketPassed = 1046,
        WaitingBucketPassed = 1047,
        NumberKeptByTheGone = 1048,
        MapsWordBelieved = 1061,
        RetryNotMarked = 1062,
        OvertakenDoneLater = 1063,
        AnswersBeyondBound = 1064,
        OwnPauseCounted = 1072,
        RestsBeforeApplied = 1074,
        RestingReadAsksNobody = 1075,
        SilenceUnseenAtRest = 1076,
        DemandNotSent = 1077,
        SlownessForgotten = 1078,
        WaitsWithoutBound = 1079,
        LoadOpenToAll = 1080,
    ]
    /// Those of the judgement of the detector and of the planner, which their own tests see.
    PATIENCE: [
        ReturnsForgotten = 1071,
        StartsHurried = 1073,
        NarrowNotSeen = 1081,
        NarrowAtOnce = 1082,
        ReporterBelieved = 1083,
        FirstServesBehindCut = 1084,
        BareUntilCalm = 1085,
        SlowIsDead = 1086,
        RestsPastDeadline = 1087,
        HalfMadeKept = 1088,
        StarvedKept = 1089,
        NarrowKept = 1090,
    ]
    /// Those of a disk's journal, which its own tests see.
    JOURNAL: [
        JournalUnsynced = 1121,
        JournalSyncTriedAgain = 1122,
        JournalTailTrusted = 1123,
        JournalRoomAtOnce = 1124,
        JournalUnchecked = 1125,
        JournalDamageIsItsEnd = 1126,
        JournalTailReadAgain = 1127,
        JournalOldLifeCounts = 1128,
        JournalOneHeaderPerLife = 1129,
        JournalHeaderTrusted = 1130,
        JournalTornProofUnseen = 1131,
        JournalEndNotMarked = 1132,
        JournalReserveTaken = 1133,
        JournalChainIgnored = 1134,
        PagesUnsynced = 1135,
        PagesInPlace = 1136,
        PagesUnchecked = 1137,
        PagesSweepOverrides = 1138,
        PagesSweptLetGo = 1139,
        PagesPlaceLeaked = 1140,
        PagesFailureForgotten = 1141,
        PagesSweepForgotten = 1142,
        PagesNoSpare = 1143,
        PlacedUnsynced = 1171,
        PlacedUnchecked = 1172,
        PlacesReleasedEarly = 1173,
        PlacedOfAnyLabel = 1174,
        OldSessionWrites = 1144,
        FreedNotZeroed = 1145,
        FenceOfSome = 1146,
        PlaceShowsUnstable = 1147,
        OlderDiskRetained = 1148,
        DroppedDeltaCounts = 1149,
        DoneUnsynced = 1150,
        PageBeforeJournal = 1151,
        TruncatedUnapplied = 1152,
        CopyLetGoToItsEnd = 1153,
        LeastOfRestartedCounts = 1154,
        UnsavedLetGo = 1155,
        BadPagesClaimed = 1156,
        GivenUpUnsaid = 1157,
        RedoByNewestLabel = 1163,
        OneLabelLetsGo = 1164,
        TruncatedByFirstStream = 1165,
        OtherBucketsPagesKept = 1166,
        SharedPlaceOverwritten = 1181,
        CopyFencesNothing = 1182,
        DropFreesShared = 1183,
        SharedOutlivesDetach = 1201,
        DoorLeavesForAll = 1202,
        FlushAnsweredAtHeld = 1191,
        GiveUpKeepsSessions = 1192,
        BrokenLivesAtOnce = 1193,
        FlushOfOldSession = 1194,
        FlushWithoutLease = 1195,
        CopyAnsweredAtHeld = 1196,
    ]
    /// Those of the log (`staves_log`'s own list has more) that the chaos runs see.
    LOG: [
        LogTailOfOneUnit = 1301,
        LogGivenPerUnit = 1302,
        LogBoundIsAck = 1303,
        LogNoFence = 1304,
    ]
    /// Those of the bytes of regions (`region.rs`).
    REGION: [
        LoadTakesAll = 1101,
        GrowthGoesRoundAnew = 1102,
        GrowthBeginsInFront = 1103,
        StretchesOverlap = 1104,
    ]
}

#[cfg(any(test, feature = "mutants"))]
mod planted {
    use super::Mutant;
    use std::cell::Cell;
    use std::sync::OnceLock;

    /// Of the whole process: none, or the one that the environment names.
    static EVERYWHERE: OnceLock<Option<Mutant>> = OnceLock::new();

    thread_local! {
        static PLANTED: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Plants a bug in everything that runs on this thread, or takes it out again.
    pub fn plant(mutant: Option<Mutant>) {
        PLANTED.with(|p| p.set(mutant));
    }

    /// The bug that `STAVES_MUTANT` names, if any: it is in the whole process, for good. The error is a name that
    /// no bug has.
    pub fn plant_from_environment() -> Result<Option<Mutant>, String> {
        let Ok(name) = std::env::var("STAVES_MUTANT") else {
            return Ok(None);
        };
        let unknown = || format!("STAVES_MUTANT: there is no bug '{name}'");
        Mutant::named(&name).map(Some).ok_or_else(unknown)
    }

    #[inline]
    fn everywhere() -> Option<Mutant> {
        let named = || plant_from_environment().unwrap_or_else(|unknown| panic!("{unknown}"));
        *EVERYWHERE.get_or_init(named)
    }

    /// True if this bug is planted on this thread, or in the process.
    #[inline]
    pub fn planted(mutant: Mutant) -> bool {
        PLANTED.with(|p| p.get() == Some(mutant)) || everywhere() == Some(mutant)
    }
}

#[cfg(not(any(test, feature = "mutants")))]
mod planted {
    /// Nothing is ever planted in the program.
    #[inline(always)]
    pub fn planted(_: super::Mutant) -> bool {
        false
    }

    /// Nothing is ever planted in the program: it does not even look.
    #[inline(always)]
    pub fn plant_from_environment() -> Result<Option<super::Mutant>, String> {
        Ok(None)
    }
}

pub use planted::*;
