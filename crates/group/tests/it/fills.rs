//! Pages that a joiner lacks, where not all of its sources answer.

use staves_group::Effects;
use staves_model::NodeId;

use crate::coded::load;
use crate::test_group::TestGroup;

/// Regression: a joiner that a cut keeps from one of its sources asked that one in its turn again and again, and most pages waited until
/// others were asked for the same.
#[test]
fn a_source_that_gives_nothing_is_asked_after_the_others() {
    let mut cluster = TestGroup::new(2, 2, 1);
    load(&mut cluster, 2, 20);
    cluster.backfill_budget.set_limit(0);
    cluster.replace(3, 5);
    cluster.tell_map();
    cluster.ticks(5);
    assert!(cluster.group.open);
    cluster.silent = Some(NodeId(2));
    let mut demand = |page| {
        let mut out = Effects::default();
        cluster.members[4].demand(cluster.now, page, 1, &mut out);
        cluster.carry(out);
        let table = cluster.members[4].table().expect("it has joined");
        let at_once = table.is_here(page);
        cluster.ticks(2);
        at_once
    };
    let first = (0..60).filter(|page| demand(*page)).count();
    assert!(first < 50, "{first} of 60: it is asked as the others are");
    let later = (60..120).filter(|page| demand(*page)).count();
    assert_eq!(later, 60, "of 60");
}
