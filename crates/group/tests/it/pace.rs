//! How often a member that does not answer is spoken to.

use staves_group::DirectoryCall;
use staves_model::{MemberSlot, NodeId};

use crate::town::Town;

/// A copy that is paused finds a few repetitions of the window when it wakes up, not one for each
/// 60 ms; it is reported as early as ever; and once it answers it has everything at once.
#[test]
fn a_silent_copy_is_not_flooded_and_is_found_stuck_in_time() {
    let mut town = Town::new(1, 2, 0);
    assert!(!town.write(0, b"asks for memory"));
    town.silent = Some(NodeId(3));
    for i in 0..20 {
        assert!(town.write(i * 8, b"8 bytes."), "there is memory now");
    }
    assert_eq!(
        town.kept_back_deltas(),
        20,
        "each is sent once as it is made"
    );
    town.ticks(78);
    assert!(town.calls.is_empty(), "not stuck before 800 ms");
    town.ticks(4);
    let sent = town.kept_back_deltas();
    assert!((40..=80).contains(&sent), "{sent} deltas were sent again");
    let stuck = |c: &DirectoryCall| matches!(c, DirectoryCall::Stuck { slots, .. } if slots == &[MemberSlot(2)]);
    assert!(town.calls.iter().any(stuck), "{:?}", town.calls);

    town.silent = None;
    town.ticks(50);
    assert_eq!(town.members[0].stable(), 20);
    // It answers again, so what is lost now is sent again as soon as ever.
    town.silent = Some(NodeId(3));
    assert!(town.write(0, b"lost"));
    town.kept_back_deltas();
    town.ticks(8);
    assert_eq!(town.kept_back_deltas(), 1);
}
