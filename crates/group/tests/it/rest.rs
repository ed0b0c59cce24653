//! Rule 19: who owes nothing says nothing, and wakes when there is a reason.

use std::time::Duration;

use staves_group::{DirectoryCall, Effects, Event};
use staves_hunts::{Hunt, hunt};
use staves_model::mutant::Mutant;
use staves_model::{MemberSlot, NodeId};

use crate::test_group::TestGroup;

fn written(m: u8, k: u8) -> TestGroup {
    let mut cluster = TestGroup::new(m, k, 0);
    while !cluster.write(16, b"something") {
        cluster.ticks(1);
    }
    cluster
}

/// The effects of one tick of one member, which nobody gets.
fn tick(cluster: &mut TestGroup, index: usize) -> Effects {
    let mut out = Effects::default();
    let now = cluster.now;
    cluster.members[index].step(now, Event::Tick, &mut out, &mut |_, _| {});
    out
}

#[test]
fn who_owes_nothing_says_nothing_and_a_write_wakes_it() {
    for (m, k) in [(1, 2), (2, 1), (1, 0)] {
        let mut cluster = written(m, k);
        cluster.ticks(30);
        for round in 0..2 {
            for index in 0..cluster.members.len() {
                assert!(cluster.members[index].at_rest(), "{m}+{k}, {index}");
                cluster.now = cluster.now + Duration::from_secs(60);
                let said = tick(&mut cluster, index);
                assert!(said.sends.is_empty() && said.directory.is_empty());
            }
            assert!(cluster.write(16, b"something else"), "round {round}");
            assert!(
                k == 0 || !cluster.members[0].at_rest(),
                "the copies do not know that it is stable"
            );
            cluster.ticks(30);
            assert_eq!(cluster.members[0].stable(), cluster.members[0].last());
        }
        assert!(cluster.calls.is_empty(), "{:?}", cluster.calls);
    }
}

/// I12: a data bucket that rests owes nobody anything.
#[test]
fn a_data_bucket_rests_when_its_parity_has_applied_what_there_is() {
    let mut cluster = written(2, 1);
    cluster.ticks(30);
    assert!(cluster.write(16, b"something else"));
    for _ in 0..30 {
        // Parity with m > 1 applies with its next tick.
        cluster.now = cluster.now + Duration::from_millis(1);
        let out = tick(&mut cluster, 0);
        cluster.carry(out);
        let applied = cluster.members[2].stream(0).is_some_and(|s| s.is_settled());
        assert!(
            applied || !cluster.members[0].at_rest(),
            "it rests, and parity has work left"
        );
        cluster.ticks(1);
    }
    assert!(cluster.members[0].at_rest());
}

#[test]
fn a_read_that_waits_for_a_lease_gets_promises_at_once() {
    let mut cluster = written(1, 2);
    cluster.ticks(200);
    let data = &mut cluster.members[0];
    assert!(data.at_rest() && !data.may_read(cluster.now));
    let mut out = Effects::default();
    data.seek_promises(cluster.now, &mut out);
    let mut again = Effects::default();
    data.seek_promises(cluster.now, &mut again);
    assert!(again.sends.is_empty(), "each is asked once");
    cluster.carry(out);
    assert!(
        cluster.members[0].may_read(cluster.now),
        "the copies promise"
    );
    cluster.ticks(30);
    assert!(cluster.members[0].at_rest());
}

#[test]
fn a_node_that_is_silent_is_found_though_the_group_rests() {
    let mut cluster = written(1, 2);
    cluster.ticks(30);
    cluster.silent = Some(NodeId(3));
    cluster.ticks(200);
    assert!(
        cluster.calls.is_empty(),
        "nobody asked: {:?}",
        cluster.calls
    );
    let since = cluster.now - Duration::from_millis(400);
    let node = NodeId(3);
    cluster.step(0, Event::Silent { node, since });
    cluster.ticks(30);
    assert!(cluster.calls.is_empty(), "0.7 s: {:?}", cluster.calls);
    cluster.ticks(20);
    let stuck = |c: &DirectoryCall| matches!(c, DirectoryCall::Stuck { slots, .. } if slots == &[MemberSlot(2)]);
    assert!(
        cluster.calls.iter().any(stuck),
        "the silent one is reported: {:?}",
        cluster.calls
    );
}

#[test]
fn planted_bugs_of_rest_are_seen() {
    let of = |mutant, test, shows| Hunt {
        mutant,
        test,
        shows,
    };
    hunt(&[
        of(
            Mutant::RestsBeforeApplied,
            "rest::a_data_bucket_rests_when_its_parity_has_applied_what_there_is",
            "it rests, and parity has work left",
        ),
        of(
            Mutant::RestingReadAsksNobody,
            "rest::a_read_that_waits_for_a_lease_gets_promises_at_once",
            "the copies promise",
        ),
        of(
            Mutant::SilenceUnseenAtRest,
            "rest::a_node_that_is_silent_is_found_though_the_group_rests",
            "the silent one is reported",
        ),
    ]);
}
