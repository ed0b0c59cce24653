//! The planted bugs of the turn, and the tests that see them.

use staves_hunts::{Hunt, hunt};
use staves_model::mutant::Mutant;

#[test]
fn planted_bugs_of_the_turn_are_seen() {
    let of = |mutant, test, shows| Hunt {
        mutant,
        test,
        shows,
    };
    let interrupted =
        "turn::tests::a_write_that_was_interrupted_goes_to_the_new_node_under_its_number";
    hunt(&[
        of(
            Mutant::MapsWordBelieved,
            interrupted,
            "ErrorCode::Unreachable",
        ),
        of(
            Mutant::RetryNotMarked,
            interrupted,
            "assertion failed: request.retry",
        ),
        of(
            Mutant::OvertakenDoneLater,
            "turn::tests::forgotten_writes_are_done_under_higher_numbers_but_not_after_later_ones",
            "assertion `left == right` failed",
        ),
    ]);
}
