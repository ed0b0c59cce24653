//! Messages between two members of one group that this node holds.
//!
//! A member is stepped under its cell's lock, and the other one has a lock of its own: so what is said waits here
//! until a task brings it over. It takes the way of any message but for the network.

use std::collections::VecDeque;

use parking_lot::Mutex;
use staves_wire::group::GroupEnvelope;
use tokio::sync::Notify;

/// Most bytes that may wait, as for a peer on the network. What comes beyond is lost, which the protocol bears.
const BYTES_MAX: usize = 64 << 20;
/// Weight of a message beyond its contents, in bytes.
const MESSAGE_BYTES: usize = 64;
/// Messages that are brought over before others have their turn.
const AT_ONCE: usize = 64;

/// Messages that wait, in the order in which they were sent.
#[derive(Default)]
pub(super) struct OwnMail {
    waiting: Mutex<Waiting>,
    wake: Notify,
}

#[derive(Default)]
struct Waiting {
    envelopes: VecDeque<GroupEnvelope>,
    bytes: usize,
}

fn weight(envelope: &GroupEnvelope) -> usize {
    MESSAGE_BYTES + envelope.message.weight()
}

impl OwnMail {
    /// Takes a message, if there is room.
    pub(super) fn put(&self, envelope: GroupEnvelope) {
        let mut waiting = self.waiting.lock();
        let bytes = waiting.bytes + weight(&envelope);
        if bytes > BYTES_MAX {
            return;
        }
        waiting.bytes = bytes;
        waiting.envelopes.push_back(envelope);
        drop(waiting);
        self.wake.notify_one();
    }

    /// The messages that are to be brought over next, once there are any.
    pub(super) async fn next_batch(&self) -> Vec<GroupEnvelope> {
        loop {
            let batch: Vec<_> = std::iter::from_fn(|| self.take()).take(AT_ONCE).collect();
            if !batch.is_empty() {
                return batch;
            }
            self.wake.notified().await;
        }
    }

    fn take(&self) -> Option<GroupEnvelope> {
        let mut waiting = self.waiting.lock();
        let envelope = waiting.envelopes.pop_front()?;
        waiting.bytes -= weight(&envelope);
        Some(envelope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use staves_model::{DiskId, Epoch, GroupId, Incarnation, MemberId, MemberSlot, NodeId};
    use staves_wire::group::{GroupMessage, PageContent, PagePart};

    fn envelope(pages: usize) -> GroupEnvelope {
        let part = |page| PagePart {
            page,
            labels: Vec::new().into(),
            content: PageContent::Bytes(Bytes::from_static(&[0; 4096])),
        };
        GroupEnvelope {
            group: GroupId(1),
            epoch: Epoch(1),
            from: MemberId::new(NodeId(1), Incarnation(1)),
            to: DiskId::SECOND,
            message: GroupMessage::Parts {
                slot: MemberSlot(pages as u8),
                parts: (0..pages as u32).map(part).collect(),
            },
        }
    }

    #[test]
    fn what_waits_is_bounded_and_comes_in_order() {
        let mail = OwnMail::default();
        for pages in [1, 2] {
            mail.put(envelope(pages));
        }
        assert_eq!(
            (mail.take(), mail.take()),
            (Some(envelope(1)), Some(envelope(2)))
        );
        assert_eq!(mail.take(), None);
        let many = 2 * BYTES_MAX / weight(&envelope(100));
        (0..many).for_each(|_| mail.put(envelope(100)));
        let waits = std::iter::from_fn(|| mail.take()).count();
        assert!(waits > many / 4 && waits < many, "{waits} of {many}");
        mail.put(envelope(1));
        assert_eq!(mail.take(), Some(envelope(1)), "there is room again");
    }
}
