//! Seeds that failed once. A fault of the simulator or of the protocol that a seed has shown is pasted
//! here with the shape that it ran with and what was wrong. A change of the simulator gives seeds
//! another meaning; what must not come back for sure also has a script or a unit test, named beside it.

use staves_sim::run::run;
use staves_sim::scenario::Scenario;

/// Seed, m, k, and what was wrong.
const FAILED: &[(u64, usize, usize, &str)] = &[
    (
        745_027_081_586,
        1,
        1,
        "a late copy of a request that changed nothing reached the bucket after its process began \
         anew, and the simulator took it for one that the bucket should remember",
    ),
    (
        147,
        2,
        1,
        "a committed start from nothing was taken back: members that it had listed, and that had let \
         go of what they held, were kept as sources (also \
         change::tests::a_start_from_nothing_is_not_taken_back)",
    ),
    (
        27,
        1,
        1,
        "both members of a former life came back after the group had begun anew, heard the \
         directory, and went on answering until they saw the map",
    ),
    (
        5497,
        4,
        2,
        "a data bucket changed its wish for memory twice in one moment, the messages came in the other \
         order, and parity gave back what it had granted for the second (also \
         coded::the_larger_of_two_wishes_of_one_moment_counts in crates/group)",
    ),
    (
        77_000_138,
        2,
        1,
        "a data bucket that had wished for less was still told that it had as much as before, wished for more again, and \
         used what parity gave back meanwhile (also coded::what_is_held_at_a_lower_wish_is_not_granted_to_a_higher_one in \
         crates/group)",
    ),
    (
        88_200_001_575,
        3,
        1,
        "a data bucket that was quiet when an epoch without parity opened kept its full log, and refused every write from then \
         on: nobody was left whose acknowledgement would have let it go",
    ),
    (
        895_131_641_535,
        4,
        2,
        "a node had held two members of a group that began anew with one of them: the directory's answers counted for the \
         other one too, which went on acknowledging (also only_who_came_to_the_epoch_has_heard in crates/group)",
    ),
    (
        643_733_261_059,
        2,
        2,
        "a read waited at a node for the place of one data bucket; the next epoch gave the node the place of another, whose \
         bytes it was answered with (also who_waits_for_one_data_bucket_is_not_served_by_another in crates/memory)",
    ),
    (
        566_945_429_827,
        2,
        1,
        "a read of a region whose bytes are gone was kept for later instead of answered: nothing would ever bring them",
    ),
    (
        974_466_149_112,
        2,
        1,
        "the simulator timed a takeover whose two joiners were one node, which had memory for one of them",
    ),
];

/// The same of worlds with two groups.
const FAILED_WITH_TWO_GROUPS: &[(u64, usize, usize, &str)] = &[
    (
        9,
        1,
        1,
        "a large value found no memory, which another group had, and no room in the log for its refusal: its request waited \
         past its deadline",
    ),
    (
        46,
        1,
        1,
        "a data bucket that began anew over what it had held did not know which of its last writes the copy lacked, and \
         showed them",
    ),
    (
        77,
        3,
        1,
        "an acknowledgement said that its parity bucket rests while its grant of memory was void, as the data bucket had lowered \
         its wish at the same moment: the group came to rest without the memory that it wanted, and clients waited",
    ),
];

#[test]
fn seeds_that_failed_once_are_clean() {
    let of_one = FAILED.iter().map(|failed| (1, failed));
    let of_two = FAILED_WITH_TWO_GROUPS.iter().map(|failed| (2, failed));
    for (groups, (seed, m, k, story)) in of_one.chain(of_two) {
        let report = run(&Scenario {
            seed: *seed,
            m: *m,
            k: *k,
            groups,
            mutant: None,
            hunting: false,
            trace: false,
        });
        assert_eq!(
            report.violations,
            Vec::<String>::new(),
            "seed {seed} ({m}+{k}, {groups} groups) fails again; it was: {story}"
        );
    }
}
