//! A member neither panics nor fills its memory, whatever a listed peer sends.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use staves_group::Event;
use staves_model::{
    ClientId, DiskId, Epoch, Group, GroupId, Incarnation, Label, Member, MemberId, MemberSlot,
    NodeId, PAGE_BYTES, Time, twin,
};
use staves_store::EXTENT_BYTES;
use staves_wire::group::{
    Batch, Delta, DoneRequest, GroupEnvelope, GroupMessage, PageContent, PagePart, RequestId, Run,
    RunKind, SealedStream, SyncStream,
};
use staves_wire::{Message, Opcode};

use crate::test_group::{TestGroup, life, options};

/// Numbers where things go wrong, and small ones.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0..24u64,
        1 => prop::sample::select(vec![
            1 << 20, 1 << 32, (1 << 61) - 1, 1 << 61, 1 << 62, u64::MAX / 2, u64::MAX - 1, u64::MAX,
        ]),
    ]
}

fn number32() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 0..130u32, 1 => prop::sample::select(vec![1 << 16, 1 << 23, 1 << 28, u32::MAX])]
}

fn epoch() -> impl Strategy<Value = Epoch> {
    prop_oneof![12 => 1..5u64, 1 => number()].prop_map(Epoch)
}

fn slot() -> impl Strategy<Value = MemberSlot> {
    prop_oneof![8 => 0..4u8, 1 => any::<u8>()].prop_map(MemberSlot)
}

fn label() -> impl Strategy<Value = Label> {
    (epoch(), number()).prop_map(|(epoch, seq)| Label { epoch, seq })
}

fn run() -> impl Strategy<Value = Run> {
    let extent = EXTENT_BYTES as u64;
    let offset = prop_oneof![
        8 => 0..3 * extent,
        1 => (0..40u64).prop_map(move |e| e * extent),
        1 => Just((1 << 35) - extent),
        1 => number(),
    ];
    let kind = prop_oneof![6 => Just(RunKind::Bytes), 1 => Just(RunKind::Zero)];
    let len = prop_oneof![8 => 0..200u32, 1 => (1..4u32).prop_map(|e| e << 18)];
    (offset, len, kind).prop_map(|(offset, len, kind)| Run { offset, len, kind })
}

fn request() -> impl Strategy<Value = RequestId> {
    (0..5u64, number(), number()).prop_map(|(client, number, floor)| RequestId {
        client: ClientId(client),
        number,
        floor,
    })
}

fn delta() -> impl Strategy<Value = Delta> {
    let (request, runs) = (
        prop::option::of(request()),
        prop::collection::vec(run(), 0..3),
    );
    (label(), request, runs, 0..100usize).prop_map(|(label, request, runs, answer)| {
        let bytes = runs.iter().filter(|r| r.kind == RunKind::Bytes);
        let bytes = bytes.map(|r| r.len as usize).sum();
        Delta {
            label,
            request,
            answer: Bytes::from(vec![1; answer]),
            runs,
            bytes: Bytes::from(vec![7; bytes]),
        }
    })
}

/// Deltas, some of them in the order in which honest ones come.
fn deltas() -> impl Strategy<Value = Vec<Delta>> {
    let some = prop::collection::vec(delta(), 0..8);
    (some, prop::option::of(0..12u64)).prop_map(|(mut deltas, from)| {
        for (delta, from) in deltas
            .iter_mut()
            .zip(from.into_iter().cycle())
            .enumerate()
            .map(|(i, (d, f))| (d, f + i as u64))
        {
            delta.label = Label {
                epoch: Epoch(1),
                seq: from,
            };
        }
        deltas
    })
}

fn done() -> impl Strategy<Value = Vec<DoneRequest>> {
    let one = (request(), number()).prop_map(|(request, seq)| DoneRequest {
        request,
        seq,
        answer: Bytes::from_static(b"done"),
    });
    prop::collection::vec(one, 0..6)
}

/// An entry of the directory as a liar may have it: of this group or another, with other members, in
/// other slots.
fn group() -> impl Strategy<Value = Arc<Group>> {
    let member = prop_oneof![
        6 => (1..5u64).prop_map(|n| Some(life(n))),
        1 => Just(None),
        1 => (1..5u64, number()).prop_map(|(n, i)| Some(Member {
            id: MemberId::new(NodeId(n), Incarnation(i)),
            complete: true,
        })),
    ];
    let members = prop_oneof![
        3 => Just((1..4u64).map(|n| Some(life(n))).collect::<Vec<_>>()),
        1 => prop::collection::vec(member, 1..6),
    ];
    let kept = prop::collection::vec(prop::option::weighted(0.8, 0..3u8), 6);
    let flags = (any::<bool>(), prop::bool::weighted(0.1));
    (
        members,
        kept,
        1..4u8,
        epoch(),
        flags,
        0..6u8,
        prop::bool::weighted(0.9),
    )
        .prop_map(|(members, kept, m, epoch, (open, fresh), leader, ours)| {
            let width = members.len();
            let mut group = TestGroup::new(1, 1, 0).group;
            group.id = GroupId(if ours { 1 } else { 2 });
            group.m = m.min(width as u8);
            group.kept = kept
                .into_iter()
                .take(width)
                .map(|k| k.map(MemberSlot))
                .collect();
            group.kept.resize(width, None);
            group.last_open.members = (1..4).map(|n| Some(life(n))).collect();
            group.members = members;
            group.coordinator = MemberSlot(leader % width as u8);
            (group.epoch, group.open, group.fresh) = (epoch, open, fresh);
            Arc::new(group)
        })
}

fn part() -> impl Strategy<Value = PagePart> {
    let labels = prop::collection::vec(prop::option::weighted(0.9, label()), 1..3);
    let content = prop_oneof![
        Just(PageContent::Zero),
        Just(PageContent::Held),
        Just(PageContent::Bytes(Bytes::from(vec![9; PAGE_BYTES]))),
    ];
    (number32(), labels, content).prop_map(|(page, labels, content)| PagePart {
        page,
        labels: labels.into(),
        content,
    })
}

fn data_message() -> impl Strategy<Value = GroupMessage> {
    (
        0..3u8,
        deltas(),
        (number(), number()),
        number(),
        number(),
        number32(),
    )
        .prop_map(
            |(stream, deltas, (stable, purgeable), last, clock, want_extents)| {
                GroupMessage::Deltas {
                    stream,
                    deltas,
                    stable,
                    purgeable,
                    last,
                    clock: Time(clock),
                    want_extents,
                }
            },
        )
}

fn ack() -> impl Strategy<Value = GroupMessage> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (
        slot(),
        0..3u8,
        (number(), number()),
        flags,
        number(),
        number32(),
    )
        .prop_map(
            |(slot, stream, (prefix, synced), (gap, promise, rests), clock, granted_extents)| {
                GroupMessage::Ack {
                    slot,
                    stream,
                    prefix,
                    synced,
                    gap,
                    clock: Time(clock),
                    promise,
                    granted_extents,
                    rests,
                }
            },
        )
}

fn sealed() -> impl Strategy<Value = GroupMessage> {
    let stream = (0..3u8, number(), deltas(), done(), any::<bool>()).prop_map(
        |(stream, prefix, deltas, requests, forgot)| SealedStream {
            stream,
            prefix,
            deltas,
            requests,
            forgot,
        },
    );
    let streams = prop::collection::vec(stream, 0..3);
    (slot(), streams, number32(), number32()).prop_map(|(slot, streams, want_extents, pages)| {
        GroupMessage::Sealed {
            slot,
            streams,
            reserved_extents: want_extents,
            restarted: false,
            pages,
        }
    })
}

fn sync() -> impl Strategy<Value = GroupMessage> {
    let stream = (number(), deltas(), done(), any::<bool>());
    let streams = prop::collection::vec(stream, 1..3);
    (group(), slot(), streams, number32(), number32()).prop_map(
        |(group, slot, streams, want_extents, pages)| {
            let numbered = streams.into_iter().enumerate();
            let sync = numbered.map(|(i, (cut, deltas, requests, forgot))| SyncStream {
                stream: i as u8,
                cut,
                deltas,
                requests,
                forgot,
            });
            GroupMessage::Sync {
                streams: sync.take(usize::from(group.m)).collect(),
                group,
                slot,
                reserve_extents: want_extents,
                pages,
            }
        },
    )
}

fn message() -> impl Strategy<Value = GroupMessage> {
    prop_oneof![
        4 => data_message(),
        3 => ack(),
        2 => (group(), any::<u32>()).prop_map(|(group, released)| GroupMessage::Seal { group, released }),
        2 => sealed(),
        3 => sync(),
        1 => (slot(), any::<bool>()).prop_map(|(slot, able)| GroupMessage::Synced {
            slot,
            able,
        }),
        1 => (number32(), number32(), prop::collection::vec(label(), 0..4)).prop_map(
            |(page, count, held)| GroupMessage::Get { page, count, urgent: false, held }
        ),
        3 => (slot(), prop::collection::vec(part(), 0..5))
            .prop_map(|(slot, parts)| GroupMessage::Parts { slot, parts }),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    /// As it is, or made plausible for whoever hears it.
    Say(Box<GroupEnvelope>, bool),
    Tick,
    Map,
    Write(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let aimed = prop::bool::weighted(0.7);
    let said = (epoch(), 1..5u64, message(), aimed);
    let envelope = said.prop_map(|(epoch, from, message, aimed)| {
        let envelope = GroupEnvelope {
            group: GroupId(1),
            epoch,
            from: life(from).id,
            to: DiskId::MEMORY,
            message,
        };
        Step::Say(Box::new(envelope), aimed)
    });
    prop_oneof![
        16 => envelope,
        1 => Just(Step::Tick),
        1 => Just(Step::Map),
        2 => (0..2000u64).prop_map(Step::Write),
    ]
}

/// As it comes out of a frame; what no frame can carry is not sent.
fn over_the_wire(envelope: &GroupEnvelope) -> Option<GroupEnvelope> {
    let mut bytes = BytesMut::new();
    envelope.encode(&mut bytes);
    match Message::decode(Opcode::Group, 0, bytes.freeze()) {
        Ok(Message::Group(Batch(batch))) => batch.into_iter().next(),
        _ => None,
    }
}

/// A member in one of the roles that there are; its index in the cluster.
fn role(role: usize) -> (TestGroup, usize) {
    let (m, k) = [(1, 2), (2, 1)][role % 2];
    let mut cluster = TestGroup::new(m, k, 1);
    for i in 0..6 {
        cluster.write(i * 4096, b"what the joiner has to fetch");
    }
    cluster.ticks(2);
    match role / 2 {
        0 => (cluster, 0),
        1 => (cluster, 2),
        2 => {
            // A joiner that nobody gives anything.
            cluster.keep_parts = true;
            cluster.replace(2, 4);
            cluster.tell_map();
            cluster.ticks(80);
            (cluster, 3)
        }
        _ => {
            // The leader of an epoch whose other members do not answer.
            cluster.replace(2, 4);
            cluster.silent = Some(NodeId(2));
            let leader = cluster.group.coordinator.index();
            cluster.tell_map();
            (cluster, leader)
        }
    }
}

/// Makes a message one that the member takes for its data bucket's, its copy's or its leader's.
fn aim(cluster: &TestGroup, index: usize, envelope: &mut GroupEnvelope) {
    let member = &cluster.members[index];
    let prefix = member.stream(0).map_or(0, |s| s.prefix);
    let listed = |slot: MemberSlot| cluster.group.member(slot).copied();
    envelope.epoch = member.epoch();
    let from = match &mut envelope.message {
        GroupMessage::Deltas { stream, deltas, .. } => {
            *stream = 0;
            let epoch = member.epoch();
            for (delta, seq) in deltas.iter_mut().zip(prefix + 1..) {
                delta.label = Label { epoch, seq };
            }
            listed(MemberSlot(0))
        }
        GroupMessage::Ack { slot, stream, .. } => {
            *stream = 0;
            listed(*slot)
        }
        GroupMessage::Sealed { slot, .. } | GroupMessage::Synced { slot, .. } => {
            envelope.epoch = cluster.group.epoch;
            listed(*slot)
        }
        GroupMessage::Seal { group, .. } => {
            let open = u64::from(group.open);
            let next = next_of(cluster, index, member.epoch().0.saturating_add(open));
            *group = Arc::new(next);
            group.member(group.coordinator).copied()
        }
        GroupMessage::Sync {
            group,
            slot,
            streams,
            ..
        } => {
            let next = next_of(cluster, index, member.epoch().0);
            *slot = next.slot_of(life(index as u64 + 1).id).unwrap_or(*slot);
            streams.resize_with(usize::from(next.m), || streams_at(prefix));
            for (i, s) in streams.iter_mut().enumerate() {
                s.stream = i as u8;
                if s.cut < 12 {
                    s.cut = prefix + s.cut % 3;
                }
                for (delta, seq) in s.deltas.iter_mut().zip(prefix + 1..) {
                    delta.label = Label {
                        epoch: next.epoch,
                        seq,
                    };
                }
            }
            *group = Arc::new(next);
            group.member(group.coordinator).copied()
        }
        GroupMessage::Parts { slot, .. } => listed(*slot),
        GroupMessage::Get { .. } => None,
    };
    if let Some(from) = from {
        envelope.from = from.id;
    }
}

fn streams_at(cut: u64) -> SyncStream {
    SyncStream {
        stream: 0,
        cut,
        deltas: vec![],
        requests: vec![],
        forgot: false,
    }
}

/// An epoch in which everybody that is listed is retained.
fn next_of(cluster: &TestGroup, index: usize, epoch: u64) -> Group {
    let mut group = cluster.group.clone();
    (group.epoch, group.open, group.fresh) = (Epoch(epoch), false, false);
    group.kept = (0..group.members.len())
        .map(|s| Some(MemberSlot(s as u8)))
        .collect();
    group.coordinator = MemberSlot(u8::from(index == 0));
    group
}

fn check(cluster: &TestGroup, index: usize) -> Result<(), TestCaseError> {
    let member = &cluster.members[index];
    for stream in (0..2).filter_map(|s| member.stream(s)) {
        // One delta is always let in, whatever it weighs; a sync brings what other logs had.
        let heaviest = stream.log.all().map(Delta::weight).max().unwrap_or(0);
        let logs = if member.is_open() { 1 } else { 4 };
        let most = logs * options().log_bytes_max + 2 * heaviest;
        prop_assert!(
            stream.log.bytes() <= most,
            "I10: {} bytes",
            stream.log.bytes()
        );
        let weight: usize = stream.log.all().map(Delta::weight).sum();
        prop_assert_eq!(weight, stream.log.bytes());
        prop_assert!(stream.applied <= stream.prefix);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn no_peer_can_make_a_member_panic_or_swell(
        (what, steps) in (0..8usize, prop::collection::vec(step(), 1..40))
    ) {
        let (mut cluster, index) = role(what);
        for step in steps {
            let event = match step {
                Step::Say(mut envelope, aimed) => {
                    if aimed {
                        aim(&cluster, index, &mut envelope);
                    }
                    match over_the_wire(&envelope) {
                        Some(envelope) => Event::Message(envelope),
                        None => continue,
                    }
                }
                Step::Tick => {
                    cluster.now = cluster.now + std::time::Duration::from_millis(100);
                    Event::Tick
                }
                Step::Map => Event::Map(Arc::new(cluster.group.clone())),
                Step::Write(offset) => {
                    if index == 0 {
                        cluster.write(offset, b"12345678");
                    }
                    continue;
                }
            };
            let mut out = staves_group::Effects::default();
            cluster.members[index].step(cluster.now, event, &mut out, &mut |_, _| {});
            check(&cluster, index)?;
        }
    }
}

/// A leader that names a cut to which nothing leads is not followed, and the member stays as it was.
#[test]
fn a_cut_out_of_reach_is_refused() {
    let (mut cluster, _) = role(0);
    cluster.replace(2, 4);
    let group = Arc::new(cluster.group.clone());
    let say = |message| GroupEnvelope {
        group: GroupId(1),
        epoch: group.epoch,
        from: life(1).id,
        to: DiskId::MEMORY,
        message,
    };
    let seal = say(GroupMessage::Seal {
        group: group.clone(),
        released: u32::MAX,
    });
    cluster.silent = Some(NodeId(1));
    cluster.step(1, Event::Message(seal));
    assert_eq!(cluster.members[1].epoch(), group.epoch, "it sealed");
    let prefix = cluster.members[1].stream(0).expect("a stream").prefix;
    for cut in [prefix - 1, prefix + 1, 1 << 60] {
        let sync = say(GroupMessage::Sync {
            group: group.clone(),
            slot: MemberSlot(1),
            streams: vec![SyncStream {
                stream: 0,
                cut,
                deltas: vec![],
                requests: vec![],
                forgot: false,
            }],
            reserve_extents: 2,
            pages: 64,
        });
        cluster.step(1, Event::Message(sync));
        assert!(cluster.members[1].installed() < group.epoch);
        assert_eq!(
            cluster.members[1].stream(0).expect("a stream").prefix,
            prefix
        );
    }
}

fn deltas_from_data(cluster: &TestGroup, seq: u64, offset: u64) -> Event {
    let run = Run {
        offset,
        len: 4,
        kind: RunKind::Bytes,
    };
    let epoch = cluster.group.epoch;
    Event::Message(GroupEnvelope {
        group: GroupId(1),
        epoch,
        from: life(1).id,
        to: DiskId::MEMORY,
        message: GroupMessage::Deltas {
            stream: 0,
            deltas: vec![Delta {
                label: Label { epoch, seq },
                request: None,
                answer: Bytes::new(),
                runs: vec![run],
                bytes: Bytes::from_static(b"more"),
            }],
            stable: seq,
            purgeable: seq,
            last: seq,
            clock: cluster.now,
            want_extents: 2,
        },
    })
}

/// A copy whose data bucket writes where nothing was reserved stops, and says nothing more; so it is
/// found stuck. It keeps what it had.
#[test]
fn a_delta_beyond_the_reservation_stops_a_copy() {
    let (mut cluster, _) = role(0);
    let applied = cluster.members[1].stream(0).expect("a stream").applied;
    cluster.silent = Some(NodeId(1));
    cluster.kept_back.clear();
    let event = deltas_from_data(&cluster, applied + 1, 3 << 18);
    cluster.step(1, event);
    assert_eq!(
        cluster.members[1].stream(0).expect("a stream").applied,
        applied
    );
    assert!(
        cluster.kept_back.is_empty(),
        "no ack: {:?}",
        cluster.kept_back
    );
}

/// A page whose giver says that it carries a seq which never comes is asked for again.
#[test]
fn a_part_with_an_absurd_seq_does_not_wait_for_ever() {
    let (mut cluster, joiner) = role(4);
    assert!(cluster.members[joiner].progress().0 > 0, "pages are absent");
    let (epoch, now) = (cluster.group.epoch, cluster.now);
    let lie = |seq| {
        Event::Message(GroupEnvelope {
            group: GroupId(1),
            epoch,
            from: life(2).id,
            to: DiskId::MEMORY,
            message: GroupMessage::Parts {
                slot: MemberSlot(1),
                parts: vec![PagePart {
                    page: 0,
                    labels: vec![Some(Label { epoch, seq })].into(),
                    content: PageContent::Zero,
                }],
            },
        })
    };
    cluster.step(joiner, lie(1 << 50));
    let waits = |cluster: &TestGroup| {
        cluster.members[joiner]
            .table()
            .is_some_and(|t| t.is_waiting(0))
    };
    assert!(waits(&cluster));
    while cluster.now.since(now) < std::time::Duration::from_millis(1500) {
        cluster.ticks(1);
    }
    assert!(!waits(&cluster));
}

/// A message answers one request, page after page. What no request asked for is not taken, and not kept either.
#[test]
fn parts_that_answer_no_request_are_not_taken() {
    let (mut cluster, joiner) = role(4);
    let epoch = cluster.group.epoch;
    let parts = |pages: &[u32]| {
        let part = |page: &u32| PagePart {
            page: *page,
            labels: vec![Some(Label {
                epoch,
                seq: 1 << 50,
            })]
            .into(),
            content: PageContent::Zero,
        };
        Event::Message(GroupEnvelope {
            group: GroupId(1),
            epoch,
            from: life(2).id,
            to: DiskId::MEMORY,
            message: GroupMessage::Parts {
                slot: MemberSlot(1),
                parts: pages.iter().map(part).collect(),
            },
        })
    };
    let waits = |cluster: &TestGroup| {
        let table = cluster.members[joiner].table();
        table.is_some_and(|t| (0..6).any(|page| t.is_waiting(page)))
    };
    for lie in [&[0, 5000][..], &[3, 0], &[0, 0], &[]] {
        cluster.step(joiner, parts(lie));
        assert!(!waits(&cluster), "{lie:?}");
    }
    cluster.step(joiner, parts(&[0, 3]));
    assert!(waits(&cluster), "two of those that it asked for");
}

/// Regression: parts of a twin, which nobody asks, were taken for those of a row that no code has.
#[test]
fn a_part_from_a_twin_is_not_built_upon() {
    let mut cluster = TestGroup::new(2, 1, 2);
    cluster.write(0, b"");
    assert!(cluster.write(0, b"what the joiner has to fetch"));
    cluster.ticks(2);
    cluster.keep_parts = true;
    let beside = twin(2, MemberSlot(0));
    cluster.exchange(&[(1, 4), (beside.index(), 5)]);
    cluster.ticks(70);
    let joiner = 3;
    assert!(cluster.group.open && cluster.members[joiner].progress().0 > 0);
    let unwritten = Some(Label::default());
    for (node, slot) in [(5, beside), (3, MemberSlot(2))] {
        let part = PagePart {
            page: 0,
            labels: vec![unwritten; 2].into(),
            content: PageContent::Zero,
        };
        let envelope = GroupEnvelope {
            group: GroupId(1),
            epoch: cluster.group.epoch,
            from: life(node).id,
            to: DiskId::MEMORY,
            message: GroupMessage::Parts {
                slot,
                parts: vec![part],
            },
        };
        cluster.step(joiner, Event::Message(envelope));
    }
    let table = cluster.members[joiner].table().expect("a member");
    assert!(!table.is_here(0) && !table.is_waiting(0), "made of a lie");
}
