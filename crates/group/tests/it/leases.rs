//! The end of a data bucket's right to answer reads: leases are counted from the asking, and shortened by twice what a clock's
//! rate may be off.

use std::time::Duration;

use staves_group::Event;
use staves_hunts::{Hunt, hunt};
use staves_model::mutant::Mutant;
use staves_model::{Incarnation, NodeId, Time, shortened};

use crate::test_group::{TestGroup, options};

/// Clocks are off by less than 3 %: who counts too slowly, and whose leader counts too fast, has 94 of a lease's 100 ms.
#[test]
fn no_lease_outlasts_the_slowest_clock() {
    let lease = options().lease;
    let usable = shortened(lease);
    assert!(usable <= lease * 94 / 100, "{usable:?} of {lease:?}");
    let mut group = TestGroup::new(1, 1, 0);
    // Without its copy it has no promises.
    group.silent = Some(NodeId(2));
    while group.members[0].may_read(group.now) {
        group.ticks(1);
    }
    let asked = group.now;
    group.ticks(3);
    let granted = Event::Lease {
        epoch: group.group.epoch,
        incarnation: Incarnation(10),
        clock: asked,
    };
    group.step(0, granted);
    let reads = |at: Time| group.members[0].may_read(at);
    assert!(reads(asked + usable - Duration::from_millis(1)));
    assert!(!reads(asked + usable), "longer than its clock can tell");
}

#[test]
fn a_planted_bug_of_leases_is_seen() {
    hunt(&[
        Hunt {
            mutant: Mutant::LeaseNotShortened,
            test: "leases::no_lease_outlasts_the_slowest_clock",
            shows: "longer than its clock can tell",
        },
        Hunt {
            mutant: Mutant::OwnPauseCounted,
            test: "pace::who_lacks_processor_time_calls_others_stuck_later",
            shows: "of which 0.6 count",
        },
        Hunt {
            mutant: Mutant::SlownessForgotten,
            test: "pace::a_copy_whose_node_answers_late_is_not_stuck",
            shows: "it is slow",
        },
    ]);
}
