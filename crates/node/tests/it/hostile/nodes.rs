//! Messages between nodes, with contents that make no sense.

use bytes::Bytes;
use serde::Serialize;
use staves_directory::MESSAGE_VERSION;
use staves_model::{
    ClientId, ClusterId, DiskId, Epoch, GroupId, Incarnation, Label, MemberId, MemberSlot, NodeId,
    Time,
};
use staves_wire::Message;
use staves_wire::directory::{Raft, RaftKind};
use staves_wire::group::{Batch, Delta, GroupEnvelope, GroupMessage, RequestId, Run, RunKind};

use super::{NOBODY, NUMBERS, Served};

/// Group messages of nobody, and of lives and epochs that there are not.
pub fn of_groups(served: &Served) -> Vec<Message> {
    let map = served.cluster.nodes[0].map();
    let deltas = |seq: u64, offset: u64| {
        let run = Run {
            offset,
            len: 4,
            kind: RunKind::Bytes,
        };
        let request = RequestId {
            client: ClientId(seq),
            number: seq,
            floor: u64::MAX,
        };
        let delta = Delta {
            label: Label {
                epoch: Epoch(u64::MAX),
                seq,
            },
            request: Some(request),
            answer: Bytes::new(),
            runs: vec![run; 3],
            bytes: Bytes::from_static(b"lieslieslies"),
        };
        GroupMessage::Deltas {
            stream: 255,
            deltas: vec![delta; 3],
            stable: seq,
            purgeable: seq,
            last: seq,
            clock: Time(seq),
            want_extents: u32::MAX,
        }
    };
    let mut messages = Vec::new();
    for n in NUMBERS {
        messages.push(deltas(n, n));
        messages.push(GroupMessage::Ack {
            slot: MemberSlot(n as u8),
            stream: n as u8,
            prefix: n,
            synced: n,
            gap: true,
            clock: Time(n),
            promise: true,
            granted_extents: u32::MAX,
            rests: true,
        });
        let (page, count) = (n as u32, u32::MAX);
        messages.push(GroupMessage::Get {
            page,
            count,
            urgent: true,
            held: vec![Label::default(); 1000],
        });
        messages.push(GroupMessage::Synced {
            slot: MemberSlot(255),
            able: n.is_multiple_of(2),
        });
        messages.push(GroupMessage::Parts {
            slot: MemberSlot(n as u8),
            parts: Vec::new(),
        });
        messages.push(GroupMessage::Sealed {
            slot: MemberSlot(255),
            streams: Vec::new(),
            reserved_extents: u32::MAX,
            restarted: false,
            pages: u32::MAX,
        });
    }
    let mut all = Vec::new();
    for group in map.groups.values() {
        let real = group.members.iter().flatten().next().expect("it is open");
        let senders = [
            (MemberId::new(NOBODY, Incarnation(1)), group.epoch),
            (
                MemberId {
                    node: NodeId(u64::MAX),
                    disk: DiskId(u32::MAX),
                    incarnation: Incarnation(u64::MAX),
                },
                Epoch(u64::MAX),
            ),
            (
                MemberId::new(real.id.node, Incarnation(u64::MAX)),
                group.epoch,
            ),
            (real.id, Epoch(u64::MAX)),
            (real.id, Epoch(0)),
        ];
        for (from, epoch) in senders {
            let envelope = |message: &GroupMessage| GroupEnvelope {
                group: group.id,
                epoch,
                from,
                to: match message {
                    GroupMessage::Get { .. } => DiskId::SECOND,
                    GroupMessage::Parts { .. } => DiskId(u32::MAX),
                    _ => DiskId::MEMORY,
                },
                message: message.clone(),
            };
            let alone = |message| Message::Group(Batch(vec![envelope(message)]));
            all.extend(messages.iter().map(alone));
        }
    }
    all
}

/// Messages between directories, written as they write them (`staves-directory`, `message.rs`).
pub fn of_directories(served: &Served) -> Vec<Message> {
    let map = served.cluster.nodes[0].map();
    let cluster = map.cluster;
    let group = map.groups.values().next().expect("some");
    let real = group.members.iter().flatten().next().expect("it is open");
    let mut letters: Vec<Vec<u8>> = vec![Vec::new(), vec![0xFF; 100], vec![4; 100]];
    let mut letter = |cluster: ClusterId, to: NodeId, body: &[u8]| {
        let mut bytes = encoded(&(MESSAGE_VERSION, cluster, NOBODY, to));
        bytes.extend_from_slice(body);
        letters.push(bytes);
    };
    let (absurd, life) = (Epoch(u64::MAX), Incarnation(u64::MAX));
    let wanted = |n: u32| (0..n).map(|g| (GroupId(g), absurd)).collect::<Vec<_>>();
    let seen = |n: u64| {
        (0..n)
            .map(|node| (NodeId(node), life, 3u32))
            .collect::<Vec<_>>()
    };
    let slots = vec![MemberSlot(255); 10_000];
    let questions = [
        encoded(&(2u32, NOBODY, life, wanted(10_000))),
        encoded(&(2u32, real.id.node, life, wanted(10_000))),
        encoded(&(3u32, NOBODY, seen(10_000))),
        encoded(&(4u32, NOBODY, 0u32, group.id, absurd)),
        encoded(&(4u32, NOBODY, 0u32, GroupId(u32::MAX), Epoch(0))),
        encoded(&(4u32, NOBODY, 1u32, group.id, absurd, MemberSlot(255), life)),
        encoded(&(
            4u32,
            NOBODY,
            1u32,
            group.id,
            group.epoch,
            MemberSlot(255),
            life,
        )),
        encoded(&(4u32, NOBODY, 2u32, group.id, group.epoch, &slots)),
        encoded(&(4u32, real.id.node, 2u32, group.id, group.epoch, &slots)),
        encoded(&(5u32, NOBODY, life)),
        encoded(&(5u32, real.id.node, life)),
        encoded(&(6u32, NOBODY, life)),
        encoded(&(6u32, real.id.node, life)),
    ];
    for question in questions {
        let ask = [&encoded(&3u32)[..], &question, &encoded(&(255u8, u32::MAX))].concat();
        letter(cluster, NodeId(0), &ask);
        letter(cluster, NOBODY, &ask);
        letter(ClusterId(cluster.0 ^ 1), NodeId(0), &ask);
        letter(cluster, NodeId(0), &ask[..ask.len() / 2]);
    }
    letter(cluster, NodeId(0), &encoded(&(5u32, life)));
    for addr in ["", "nowhere:0", "[::"] {
        letter(cluster, NodeId(0), &encoded(&(6u32, NOBODY, life, addr)));
    }
    // Of lists that are as long as can be said, nothing is there.
    for body in 0..8u8 {
        letter(cluster, NodeId(0), &[&[body][..], &[0xFF; 60]].concat());
    }
    let raft = |body: Vec<u8>| {
        Message::Raft(Raft {
            kind: RaftKind::Append,
            body: body.into(),
        })
    };
    letters.into_iter().map(raft).collect()
}

fn encoded(value: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).expect("it encodes")
}
