//! Projections and numbers of logs.

use super::*;

#[test]
fn l1_positions_go_round_a_segment_and_linearly_between_segments() {
    let units = [1, 2, 3].map(GroupId);
    let projection = Projection::default().grown(0, &units[..2]);
    let owners = |projection: &Projection, positions: std::ops::Range<u64>| {
        positions
            .map(|position| projection.owner(position).map_or(0, |unit| unit.0))
            .collect::<Vec<_>>()
    };
    assert_eq!(owners(&projection, 0..4), [1, 2, 1, 2]);
    let grown = projection.grown(3, &units);
    assert_eq!(owners(&grown, 0..8), [1, 2, 1, 1, 2, 3, 1, 2]);
    assert_eq!(grown.grown(9, &units), grown, "nothing to add");
    assert_eq!(Projection::default().owner(4), None);
}

#[test]
fn a_number_has_its_home_and_its_count_and_no_more() {
    let log = LogId::new(GroupId(7), 9).expect("within its bits");
    assert_eq!(
        (log.home(), format!("{log:?}")),
        (GroupId(7), "l7.9".into())
    );
    assert_eq!(LogId::new(GroupId(HOMES_MAX), 0), None);
    assert_eq!(LogId::new(GroupId(0), 1 << 40), None);
}

/// Regression: a map page of as many positions as options allowed could have more runs than a unit takes, and its log stood still.
#[test]
fn a_map_page_has_no_more_positions_than_a_unit_takes_runs() {
    let of = |page_positions| LogOptions {
        page_positions,
        ..LogOptions::default()
    };
    let most = crate::service::PAGE_RUNS_MAX as u32;
    assert!(of(most).is_valid() && !of(most + 1).is_valid());
}
