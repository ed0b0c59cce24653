//! A page of parity that was seen to be wrong is made anew, while it is written (I4).

use staves_model::PAGE_BYTES;

use crate::coded::{check_parity, load};
use crate::town::Town;

const PAGE: u32 = 5;

#[test]
fn i4_a_page_of_parity_is_made_anew_under_writes() {
    let mut town = Town::new(2, 2, 0);
    load(&mut town, 2, 20);
    let now = town.now;
    let labels = |town: &Town, index: usize| town.members[index].sum(PAGE).map(|part| part.labels);
    let seen = labels(&town, 2).expect("it is here");
    let own = labels(&town, 0).expect("it is here");
    assert!(
        !town.members[0].mend(now, PAGE, &own),
        "data is not parity's to make"
    );
    let at = u64::from(PAGE) * PAGE_BYTES as u64;
    assert!(town.write_at(0, at, b"newer"));
    town.ticks(20);
    assert!(
        !town.members[2].mend(now, PAGE, &seen),
        "it is another by now"
    );

    let seen = labels(&town, 2).expect("it is here");
    assert!(town.members[2].mend(now, PAGE, &seen));
    assert!(
        !town.members[2].mend(now, PAGE, &seen),
        "it is gone already"
    );
    assert!(!town.members[2].complete());
    town.keep_parts = true;
    assert!(town.write_at(1, at + 50, b"let go while the page is away"));
    town.ticks(20);
    assert_eq!(labels(&town, 2), None);
    town.keep_parts = false;
    assert!(town.write_at(0, at + 9, b"and while it comes"));
    town.ticks(40);
    assert!(town.members[2].complete());
    assert_eq!(labels(&town, 2), labels(&town, 3));
    check_parity(&town, &[0, 1], &[2, 3], 20);
}

/// Regression: where a node fetches nothing that nobody waits for (`rebuild_pages_max` is 0), a page of parity
/// that was to be made anew never was.
#[test]
fn a_page_is_made_anew_where_nothing_is_fetched_unasked() {
    let mut town = Town::new(2, 1, 0);
    load(&mut town, 2, 20);
    town.fill_budget.set_limit(0);
    let seen = town.members[2].sum(PAGE).expect("it is here").labels;
    assert!(town.members[2].mend(town.now, PAGE, &seen));
    town.ticks(100);
    assert!(town.members[2].complete());
    check_parity(&town, &[0, 1], &[2], 20);
}
