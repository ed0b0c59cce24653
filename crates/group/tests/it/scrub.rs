//! A page of parity that was seen to be wrong is made anew, while it is written (I4).

use staves_model::PAGE_BYTES;

use crate::coded::{check_parity, load};
use crate::test_group::TestGroup;

const PAGE: u32 = 5;

#[test]
fn i4_a_page_of_parity_is_made_anew_under_writes() {
    let mut cluster = TestGroup::new(2, 2, 0);
    load(&mut cluster, 2, 20);
    let now = cluster.now;
    let labels = |cluster: &TestGroup, index: usize| {
        cluster.members[index].sum(PAGE).map(|part| part.labels)
    };
    let seen = labels(&cluster, 2).expect("it is here");
    let own = labels(&cluster, 0).expect("it is here");
    assert!(
        !cluster.members[0].mend(now, PAGE, &own),
        "data is not parity's to make"
    );
    let at = u64::from(PAGE) * PAGE_BYTES as u64;
    assert!(cluster.write_at(0, at, b"newer"));
    cluster.ticks(20);
    assert!(
        !cluster.members[2].mend(now, PAGE, &seen),
        "it is another by now"
    );

    let seen = labels(&cluster, 2).expect("it is here");
    assert!(cluster.members[2].mend(now, PAGE, &seen));
    assert!(
        !cluster.members[2].mend(now, PAGE, &seen),
        "it is gone already"
    );
    assert!(!cluster.members[2].complete());
    cluster.keep_parts = true;
    assert!(cluster.write_at(1, at + 50, b"let go while the page is away"));
    cluster.ticks(20);
    assert_eq!(labels(&cluster, 2), None);
    cluster.keep_parts = false;
    assert!(cluster.write_at(0, at + 9, b"and while it comes"));
    cluster.ticks(40);
    assert!(cluster.members[2].complete());
    assert_eq!(labels(&cluster, 2), labels(&cluster, 3));
    check_parity(&cluster, &[0, 1], &[2, 3], 20);
}

/// Regression: where a node fetches nothing that nobody waits for (`rebuild_pages_max` is 0), a page of parity
/// that was to be made anew never was.
#[test]
fn a_page_is_made_anew_where_nothing_is_fetched_unasked() {
    let mut cluster = TestGroup::new(2, 1, 0);
    load(&mut cluster, 2, 20);
    cluster.backfill_budget.set_limit(0);
    let seen = cluster.members[2].sum(PAGE).expect("it is here").labels;
    assert!(cluster.members[2].mend(cluster.now, PAGE, &seen));
    cluster.ticks(100);
    assert!(cluster.members[2].complete());
    check_parity(&cluster, &[0, 1], &[2], 20);
}
