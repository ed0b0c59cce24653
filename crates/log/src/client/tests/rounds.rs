//! Appends that begin at one time.

use super::*;

/// They are one message, one binding and one write there.
#[test]
fn appends_of_one_time_go_to_one_unit_and_others_to_the_next() {
    let mut test = TestAppender::new(AppendMode::Bind);
    test.appender.limits.in_flight_max = 64;
    let mut round = |appends: u64, bytes| {
        (0..appends).for_each(|op| test.append(op, bytes));
        test.now = test.now + Duration::from_micros(1);
        test.sent().0
    };
    let small = [round(3, 100), round(3, 100), round(3, 100)];
    for units in &small {
        assert!(units.iter().all(|unit| *unit == units[0]), "{small:?}");
    }
    let mut each = small.map(|units| units[0]);
    each.sort_unstable();
    assert_eq!(each, [1, 2, 3], "all units in turn");
    // Many bytes of one time are written by several.
    let large = round(4, 32 << 10);
    assert_eq!(large[0], large[1], "{large:?}");
    assert!(large[2] != large[1] && large[3] == large[2], "{large:?}");
}
