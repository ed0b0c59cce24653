//! Planted bugs of members on a disk: the storms see each.

use staves_hunts::{Hunt, hunt};
use staves_model::mutant::Mutant;

#[test]
fn planted_bugs_are_found() {
    use Mutant::*;
    let row = |mutant, test, shows| Hunt {
        mutant,
        test,
        shows,
    };
    let pair = "storms::nothing_acknowledged_is_lost_by_a_pair";
    let three = "storms::nothing_acknowledged_is_lost_by_two_copies_of_three_nodes";
    let two_and_one = "storms::nothing_acknowledged_is_lost_by_two_and_one";
    let two_and_two = "storms::nothing_acknowledged_is_lost_by_two_and_two";
    let swaps = "storms::nothing_acknowledged_is_lost_where_nodes_go_on_without_disks_that_failed";
    let coded_back = "writeback::nothing_flushed_is_lost_by_coded_groups_with_write_back";
    let back = "writeback::nothing_flushed_is_lost_by_a_pair_with_write_back";
    hunt(&[
        row(FlushAnsweredAtHeld, back, "was flushed"),
        row(FlushOfOldSession, coded_back, "was flushed"),
        row(GiveUpKeepsSessions, back, "LOST"),
        row(BrokenLivesAtOnce, back, "LOST"),
        row(AnsweredAtHeld, pair, "LOST"),
        row(ConfirmedUnsynced, pair, "NOT HEALED"),
        row(DoneUnsynced, three, "NOT HEALED"),
        row(TruncatedUnapplied, pair, "UNEQUAL"),
        row(CopyLetGoToItsEnd, pair, "LOST"),
        row(LeastOfRestartedCounts, pair, "UNABLE"),
        row(UnsavedLetGo, pair, "LOST"),
        row(BadPagesClaimed, three, "NOT HEALED"),
        row(GivenUpUnsaid, swaps, "NOT HEALED"),
        row(PlacedUnsynced, pair, "LOST"),
        row(PlacedOfAnyLabel, pair, "LOST"),
        row(PageBeforeJournal, pair, "NOT HEALED"),
        row(RedoByNewestLabel, two_and_one, "LOST"),
        row(OneLabelLetsGo, two_and_one, "LOST"),
        row(TruncatedByFirstStream, two_and_one, "LOST"),
        row(OtherBucketsPagesKept, two_and_two, "a page of another slot"),
    ]);
}
