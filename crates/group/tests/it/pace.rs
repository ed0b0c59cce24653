//! The pace of messages to a member that does not answer.

use std::collections::VecDeque;
use std::time::Duration;

use staves_group::{DirectoryCall, Effects, Event};
use staves_model::{Epoch, MemberSlot, NodeId};
use staves_wire::group::{GroupEnvelope, GroupMessage};

use crate::test_group::{TestGroup, options};

/// A copy that is paused finds a few repetitions of the window when it wakes up, not one for each
/// 60 ms; it is reported as early as ever; and once it answers it has everything at once.
#[test]
fn a_silent_copy_is_not_flooded_and_is_found_stuck_in_time() {
    let mut cluster = TestGroup::new(1, 2, 0);
    assert!(!cluster.write(0, b"asks for memory"));
    cluster.silent = Some(NodeId(3));
    for i in 0..20 {
        assert!(cluster.write(i * 8, b"8 bytes."), "there is memory now");
    }
    assert_eq!(
        cluster.kept_back_deltas(),
        20,
        "each is sent once as it is made"
    );
    cluster.ticks(78);
    assert!(cluster.calls.is_empty(), "not stuck before 800 ms");
    cluster.ticks(4);
    let sent = cluster.kept_back_deltas();
    assert!((40..=80).contains(&sent), "{sent} deltas were sent again");
    let stuck = |c: &DirectoryCall| matches!(c, DirectoryCall::Stuck { slots, .. } if slots == &[MemberSlot(2)]);
    assert!(cluster.calls.iter().any(stuck), "{:?}", cluster.calls);

    cluster.silent = None;
    cluster.ticks(50);
    assert_eq!(cluster.members[0].stable(), 20);
    // It answers again, so what is lost now is sent again as soon as ever; more than once, for this way
    // loses messages.
    cluster.silent = Some(NodeId(3));
    assert!(cluster.write(0, b"lost"));
    cluster.kept_back_deltas();
    cluster.ticks(8);
    let again = cluster.kept_back_deltas();
    assert!((1..=6).contains(&again), "sent {again} times again");
}

/// Over a slow way the deltas come one by one, and the heartbeats, which are small, before them: their
/// acks show that the copy lives, not that anything was lost. The window must not be sent again for
/// each 60 ms that the way takes for it.
#[test]
fn a_copy_behind_a_slow_way_is_not_sent_the_window_again_and_again() {
    let mut cluster = TestGroup::new(1, 2, 0);
    assert!(!cluster.write(0, b"asks for memory"));
    let slow = NodeId(3);
    cluster.silent = Some(slow);
    for i in 0..20 {
        assert!(cluster.write(i * 8, b"8 bytes."), "there is memory now");
    }
    let mut way: VecDeque<GroupEnvelope> = VecDeque::new();
    let mut sent = 0;
    for tick in 1..=400 {
        cluster.ticks(1);
        let mut arrived = Vec::new();
        for (to, envelope) in std::mem::take(&mut cluster.kept_back) {
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
            cluster.step(2, Event::Message(envelope));
        }
    }
    assert_eq!(cluster.members[0].stable(), 20, "all of it came");
    assert!((20..=60).contains(&sent), "{sent} deltas were sent");
}

/// A node that lacks processor time answers later and later. It is called stuck only once it answers nothing for far longer.
#[test]
fn a_copy_whose_node_answers_late_is_not_stuck() {
    let mut cluster = TestGroup::new(1, 2, 0);
    assert!(!cluster.write(0, b"asks for memory"));
    let slow = NodeId(3);
    cluster.silent = Some(slow);
    let mut way: VecDeque<(usize, GroupEnvelope)> = VecDeque::new();
    for tick in 0..600 {
        if tick % 10 == 0 {
            assert!(cluster.write(0, b"8 bytes."));
        }
        cluster.ticks(1);
        // It takes up to 1.5 s for an answer; each comes later than the one before.
        let late = (tick / 2).min(150);
        let sent = std::mem::take(&mut cluster.kept_back).into_iter();
        way.extend(sent.map(|(_, envelope)| (tick + late, envelope)));
        while let Some((_, envelope)) = way.pop_front_if(|(at, _)| *at <= tick) {
            cluster.step(2, Event::Message(envelope));
        }
        // A pause in its answers for longer than others are given.
        if tick == 400 {
            way.iter_mut().for_each(|(at, _)| *at += 100);
        }
        assert!(cluster.calls.is_empty(), "it is slow: {:?}", cluster.calls);
    }
    cluster.ticks(700);
    let stuck = |c: &DirectoryCall| matches!(c, DirectoryCall::Stuck { slots, .. } if slots == &[MemberSlot(2)]);
    assert!(cluster.calls.iter().any(stuck), "{:?}", cluster.calls);
}

#[test]
fn a_change_of_epoch_waits_longer_for_a_node_that_answers_late() {
    let mut cluster = TestGroup::new(1, 2, 1);
    assert!(!cluster.write(0, b"asks for memory"));
    cluster.silent = Some(NodeId(3));
    assert!(cluster.write(0, b"8 bytes."));
    let late = std::mem::take(&mut cluster.kept_back);
    cluster.ticks(50);
    for (_, envelope) in late {
        cluster.step(2, Event::Message(envelope));
    }
    cluster.replace(1, 4);
    cluster.tell_map();
    cluster.ticks(150);
    let calls = &cluster.calls;
    assert!(calls.is_empty(), "an answer takes half a second: {calls:?}");
    cluster.ticks(100);
    let stuck = |c: &DirectoryCall| matches!(c, DirectoryCall::Stuck { slots, .. } if slots == &[MemberSlot(2)]);
    assert!(cluster.calls.iter().any(stuck), "{:?}", cluster.calls);
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
/// answered at once. The others must not have the window sent again each 5 ms. (Each repetition goes up
/// to six times over a way that loses messages.)
#[test]
fn a_gap_is_filled_once_and_then_waited_for() {
    let mut cluster = TestGroup::new(1, 2, 0);
    assert!(!cluster.write(0, b"asks for memory"));
    cluster.silent = Some(NodeId(3));
    for i in 0..20 {
        assert!(cluster.write(i * 8, b"8 bytes."), "there is memory now");
    }
    let mut came: Vec<GroupEnvelope> = Vec::new();
    for (_, envelope) in std::mem::take(&mut cluster.kept_back) {
        came.extend(one_by_one(envelope));
    }
    let mut came = came.into_iter().skip(1);
    let mut sent = 0;
    for tick in 0..38 {
        cluster.ticks(1);
        if tick % 2 == 0
            && let Some(envelope) = came.next()
        {
            cluster.step(2, Event::Message(envelope));
        }
        sent += cluster.kept_back_deltas();
    }
    assert!((20..=240).contains(&sent), "{sent} deltas were sent again");
}

/// A way to node 3 that takes a millisecond and has just lost a message, which both ends know by now.
fn lossy() -> TestGroup {
    let mut cluster = TestGroup::new(1, 2, 0);
    assert!(!cluster.write(0, b"asks for memory"));
    cluster.silent = Some(NodeId(3));
    assert!(cluster.write(0, b"lost"));
    cluster.kept_back.clear();
    assert!(cluster.write(8, b"arrives"));
    arrive(&mut cluster);
    let again = cluster.kept_back.len();
    assert_eq!(again, 1, "the gap is told, and filled at once");
    arrive(&mut cluster);
    assert_eq!(cluster.members[0].stable(), 2);
    cluster
}

/// Delivers the messages on their way to node 3 a millisecond later.
fn arrive(cluster: &mut TestGroup) {
    cluster.now = cluster.now + Duration::from_millis(1);
    for (_, envelope) in std::mem::take(&mut cluster.kept_back) {
        cluster.step(2, Event::Message(envelope));
    }
}

/// On a link that loses messages, silence after a round trip means one more loss; each message repeats what is
/// not reported, so that one that arrives is enough; and after more silence it goes more than once.
#[test]
fn where_messages_get_lost_they_are_repeated_soon() {
    let mut cluster = lossy();
    assert_eq!(
        cluster.members[0].resend_at(cluster.now),
        None,
        "nothing is owed"
    );
    assert!(cluster.write(0, b"lost too"));
    cluster.kept_back.clear();
    for silences in 1..=2 {
        let at = cluster.members[0]
            .resend_at(cluster.now)
            .expect("it is owed");
        let bound = Duration::from_millis(10);
        assert!(at > cluster.now && at.since(cluster.now) < bound, "{at:?}");
        cluster.now = at;
        cluster.step(0, Event::Tick);
        let sent = cluster.kept_back_deltas();
        assert!((1..=4 * silences).contains(&sent), "{sent} times again");
        assert!(silences == 1 || sent > 1, "once more is not enough");
    }
    assert!(cluster.write(8, b"arrives"));
    assert!(!cluster.kept_back.is_empty());
    arrive(&mut cluster);
    assert_eq!(
        cluster.members[0].stable(),
        4,
        "it carried what was lost, too"
    );
}

/// A way that loses nothing any more is given time again, however quick it is.
#[test]
fn a_way_that_lost_a_message_is_believed_again_later() {
    let mut cluster = lossy();
    cluster.ticks(120);
    arrive(&mut cluster);
    cluster.kept_back.clear();
    assert!(cluster.write(0, b"slow, not lost"));
    assert_eq!(cluster.kept_back_deltas(), 1);
    let at = cluster.members[0]
        .resend_at(cluster.now)
        .expect("it is owed");
    assert_eq!(at.since(cluster.now), Duration::from_millis(60));
}

/// Heartbeats may overtake deltas: that something is missing before one says nothing.
#[test]
fn a_heartbeat_is_never_answered_with_a_gap() {
    let mut cluster = TestGroup::new(1, 2, 0);
    assert!(!cluster.write(0, b"asks for memory"));
    cluster.silent = Some(NodeId(3));
    assert!(cluster.write(0, b"on its way"));
    assert!(cluster.write(8, b"on its way"));
    let later = cluster.kept_back.pop().expect("two are on their way").1;
    let mut heartbeat = later.clone();
    if let GroupMessage::Deltas { deltas, .. } = &mut heartbeat.message {
        deltas.clear();
    }
    for (envelope, told) in [(later, true), (heartbeat, false)] {
        let mut out = Effects::default();
        let event = Event::Message(envelope);
        cluster.members[2].step(cluster.now, event, &mut out, &mut |_, _| {});
        let acks = out.sends.iter().filter_map(|(_, e)| match e.message {
            GroupMessage::Ack { gap, prefix, .. } => Some((gap, prefix)),
            _ => None,
        });
        assert_eq!(acks.collect::<Vec<_>>(), [(told, 0)]);
    }
}

/// GROUP rule 13: an answer of the directory that is of an epoch to which a member has not come is not for
/// this member. Its node may be listed there for another one, or as a joiner.
#[test]
fn only_who_came_to_the_epoch_has_heard() {
    let quiet_after = Some(Duration::from_millis(600));
    let mut options = options();
    options.quiet_after = quiet_after;
    let mut cluster = TestGroup::with(options, 1, 1, 0);
    let answers = |cluster: &mut TestGroup, epoch| {
        cluster.ticks(60);
        assert!(
            !cluster.members[0].may_answer(cluster.now),
            "it is quiet by now"
        );
        let clock = cluster.now;
        cluster.step(0, Event::Heard { epoch, clock });
        cluster.members[0].may_answer(cluster.now)
    };
    let epoch = cluster.members[0].epoch();
    assert!(answers(&mut cluster, epoch));
    assert!(
        !answers(&mut cluster, epoch.next()),
        "it is of a life before"
    );
    assert!(
        answers(&mut cluster, Epoch(0)),
        "the group has not begun yet"
    );
}

/// A member that stood still itself finds all others silent when it wakes, and must not report them: their messages wait.
#[test]
fn who_stood_still_calls_nobody_stuck() {
    let mut cluster = TestGroup::new(1, 2, 0);
    cluster.ticks(5);
    cluster.now = cluster.now + Duration::from_secs(3);
    cluster.step(0, Event::Tick);
    assert!(cluster.calls.is_empty(), "{:?}", cluster.calls);
    // One that is silent from then on is found.
    cluster.silent = Some(NodeId(3));
    cluster.members[0].want_extents(2);
    cluster.ticks(90);
    let stuck = |c: &DirectoryCall| matches!(c, DirectoryCall::Stuck { slots, .. } if slots == &[MemberSlot(2)]);
    assert!(cluster.calls.iter().any(stuck), "{:?}", cluster.calls);
}

/// A member that gets a quarter of the processor time that it needs takes four times as long to call others stuck: their
/// messages wait too. It does so in the end.
#[test]
fn who_lacks_processor_time_calls_others_stuck_later() {
    let starved = |cluster: &mut TestGroup, ticks: usize| {
        for _ in 0..ticks {
            cluster.now = cluster.now + Duration::from_millis(190);
            cluster.ticks(1);
        }
        let stuck = |c: &DirectoryCall| matches!(c, DirectoryCall::Stuck { .. });
        cluster.calls.iter().filter(|c| stuck(c)).count()
    };
    let mut cluster = TestGroup::new(1, 2, 0);
    cluster.ticks(5);
    cluster.silent = Some(NodeId(3));
    cluster.members[0].want_extents(2);
    assert_eq!(starved(&mut cluster, 12), 0, "2.4 s, of which 0.6 count");
    assert!(starved(&mut cluster, 12) > 0);
    // The coordinator of an epoch, too.
    let mut cluster = TestGroup::new(1, 2, 1);
    cluster.ticks(5);
    cluster.silent = Some(NodeId(2));
    cluster.replace(2, 4);
    cluster.tell_map();
    assert_eq!(starved(&mut cluster, 12), 0, "2.4 s, of which 0.6 count");
    assert!(starved(&mut cluster, 12) > 0);
}
