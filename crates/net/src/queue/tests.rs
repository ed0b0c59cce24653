//! The queue of group traffic to one peer.

use super::*;
use bytes::Bytes;
use staves_model::{
    DiskId, Epoch, GroupId, Incarnation, Label, MemberId, MemberSlot, NodeId, Time,
};
use staves_wire::frame::HEADER_BYTES;
use staves_wire::group::{Delta, PageContent, PagePart};

fn envelope(message: GroupMessage) -> GroupEnvelope {
    GroupEnvelope {
        group: GroupId(1),
        epoch: Epoch(1),
        from: MemberId::new(NodeId(2), Incarnation(2)),
        to: DiskId::MEMORY,
        message,
    }
}

fn delta(len: usize) -> GroupEnvelope {
    let label = Label {
        epoch: Epoch(1),
        seq: 1,
    };
    let delta = Delta {
        label,
        request: None,
        answer: Bytes::new(),
        runs: Vec::new(),
        bytes: Bytes::from(vec![1; len]),
    };
    envelope(GroupMessage::Deltas {
        stream: 0,
        deltas: vec![delta],
        stable: 0,
        purgeable: 0,
        last: 1,
        clock: Time(1),
        want_extents: 0,
    })
}

fn ack() -> GroupEnvelope {
    envelope(GroupMessage::Ack {
        slot: MemberSlot(1),
        stream: 0,
        prefix: 1,
        synced: 1,
        gap: false,
        clock: Time(1),
        promise: true,
        granted_extents: 0,
        rests: false,
    })
}

/// The lengths of the pieces that are taken.
fn taken(queue: &GroupQueue, bytes_max: usize) -> Vec<usize> {
    let mut out = VecDeque::new();
    queue.take(100, bytes_max, || 1, &mut out);
    out.iter().map(Piece::len).collect()
}

#[test]
fn a_promise_does_not_wait_behind_megabytes() {
    let queue = GroupQueue::new(64 << 20);
    (0..8).for_each(|_| queue.put(&delta(1 << 20)));
    queue.put(&ack());
    queue.put(&ack());
    let all = taken(&queue, usize::MAX);
    assert!(all[0] < 1000, "{all:?}");
    assert!(all[1..].iter().sum::<usize>() > 8 << 20, "{all:?}");
    assert_eq!(queue.counts().queued_bytes, 0);
    assert_eq!(queue.counts().sent, 10);
}

#[test]
fn pages_that_a_client_waits_for_pass_those_of_the_sweep() {
    let queue = GroupQueue::new(64 << 20);
    let parts = |count: u32| {
        let part = |page| PagePart {
            page,
            labels: vec![None; 4].into(),
            content: PageContent::Bytes(Bytes::from(vec![1; staves_model::PAGE_BYTES])),
        };
        envelope(GroupMessage::Parts {
            slot: MemberSlot(1),
            parts: (0..count).map(part).collect(),
        })
    };
    (0..8).for_each(|_| queue.put(&parts(64)));
    queue.put(&parts(1));
    let all = taken(&queue, usize::MAX);
    assert!((4096..5000).contains(&all[0]), "{all:?}");
    assert!(all[1..].iter().all(|len| *len > 64 * 4096), "{all:?}");
}

#[test]
fn a_large_message_waits_as_it_is_between_small_ones() {
    let (queue, large) = (GroupQueue::new(64 << 20), delta(1 << 18));
    let GroupMessage::Deltas { deltas, .. } = &large.message else {
        unreachable!("a delta is one");
    };
    let bytes = deltas[0].bytes.clone();
    let all = [ack(), large, ack()];
    all.iter().for_each(|envelope| queue.put(envelope));
    assert_eq!(queue.counts().queued_bytes / 1000, (1 << 18) / 1000);
    let mut encoded = BytesMut::new();
    all.iter()
        .for_each(|envelope| envelope.encode(&mut encoded));
    drop(all);
    assert!(
        !bytes.is_unique(),
        "the queue has a share of it, not a copy"
    );
    let mut out = VecDeque::new();
    queue.take(100, usize::MAX, || 1, &mut out);
    assert!(bytes.is_unique(), "it has left");
    // The last is urgent, and passes.
    assert_eq!(out.len(), 3);
    let headers = 3 * HEADER_BYTES;
    let left: usize = out.iter().map(Piece::len).sum();
    assert_eq!(left, encoded.len() + headers);
    assert_eq!((queue.counts().queued_bytes, queue.counts().frames), (0, 3));
}

#[test]
fn no_more_is_taken_at_a_time_than_asked_for() {
    let queue = GroupQueue::new(64 << 20);
    (0..8).for_each(|_| queue.put(&delta(1 << 20)));
    let first: usize = taken(&queue, 1 << 20).iter().sum();
    assert!(first < 3 << 20, "{first}");
    assert_eq!(taken(&queue, usize::MAX).len(), 14, "two pieces each");
}

#[test]
fn the_urgent_is_bounded_too_and_goes_last() {
    let queue = GroupQueue::new(1 << 20);
    queue.put(&delta(1 << 19));
    while queue.counts().dropped == 0 {
        queue.put(&ack());
    }
    assert!(queue.counts().queued_bytes <= 1 << 20);
    assert_eq!(queue.counts().dropped, 1, "the large one");
}
