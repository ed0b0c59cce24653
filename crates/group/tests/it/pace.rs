//! How often a member that does not answer is spoken to.

use std::collections::VecDeque;

use staves_group::{DirectoryCall, Event};
use staves_model::{MemberSlot, NodeId};
use staves_wire::group::{GroupEnvelope, GroupMessage};

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

/// Over a slow way the deltas come one by one, and the heartbeats, which are small, before them: their
/// acks show that the copy lives, not that anything was lost. The window must not be sent again for
/// each 60 ms that the way takes for it.
#[test]
fn a_copy_behind_a_slow_way_is_not_sent_the_window_again_and_again() {
    let mut town = Town::new(1, 2, 0);
    assert!(!town.write(0, b"asks for memory"));
    let slow = NodeId(3);
    town.silent = Some(slow);
    for i in 0..20 {
        assert!(town.write(i * 8, b"8 bytes."), "there is memory now");
    }
    let mut way: VecDeque<GroupEnvelope> = VecDeque::new();
    let mut sent = 0;
    for tick in 1..=400 {
        town.ticks(1);
        let mut arrived = Vec::new();
        for (to, envelope) in std::mem::take(&mut town.kept_back) {
            let GroupMessage::Deltas { deltas, .. } = &envelope.message else {
                continue;
            };
            assert_eq!(to, slow);
            sent += deltas.len();
            match deltas.is_empty() {
                true => arrived.push(envelope),
                false => way.extend(one_by_one(envelope)),
            }
        }
        if tick % 7 == 0 {
            arrived.extend(way.pop_front());
        }
        for envelope in arrived {
            town.step(2, Event::Message(envelope));
        }
    }
    assert_eq!(town.members[0].stable(), 20, "all of it came");
    assert!((20..=60).contains(&sent), "{sent} deltas were sent");
}

/// The same message with each of its deltas by itself.
fn one_by_one(envelope: GroupEnvelope) -> impl Iterator<Item = GroupEnvelope> {
    let GroupMessage::Deltas { deltas, .. } = envelope.message.clone() else {
        panic!("it carries deltas")
    };
    deltas.into_iter().map(move |delta| {
        let mut one = envelope.clone();
        if let GroupMessage::Deltas { deltas, .. } = &mut one.message {
            *deltas = vec![delta];
        }
        one
    })
}

/// Row H3: a delta is lost, and what follows comes over a slow way: each ack tells of the gap, and the first is
/// answered at once. The others must not have the window sent again each 5 ms.
#[test]
fn a_gap_is_filled_once_and_then_waited_for() {
    let mut town = Town::new(1, 2, 0);
    assert!(!town.write(0, b"asks for memory"));
    town.silent = Some(NodeId(3));
    for i in 0..20 {
        assert!(town.write(i * 8, b"8 bytes."), "there is memory now");
    }
    let mut came: Vec<GroupEnvelope> = Vec::new();
    for (_, envelope) in std::mem::take(&mut town.kept_back) {
        came.extend(one_by_one(envelope));
    }
    let mut came = came.into_iter().skip(1);
    let mut sent = 0;
    for tick in 0..38 {
        town.ticks(1);
        if tick % 2 == 0
            && let Some(envelope) = came.next()
        {
            town.step(2, Event::Message(envelope));
        }
        sent += town.kept_back_deltas();
    }
    assert!((20..=80).contains(&sent), "{sent} deltas were sent again");
}
