//! The records of a queue's stream.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use staves_log::Position;

use super::super::fields::{take_array, take_byte, take_u32, take_u64};

/// The first bytes of each record: a queue's, of the first version.
const MAGIC: [u8; 2] = *b"Q\x01";
const PUSH: u8 = 0;
/// Most items of one record.
pub(super) const CLAIMS_MAX: usize = 1024;
/// The bytes of a pushed item's record before the item.
pub(super) const PUSH_HEAD_BYTES: usize = 7;

/// The number of a consumer, drawn at random.
pub(super) type ConsumerId = [u8; 16];

/// A record of a queue's stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum QueueRecord {
    /// A new item: its position is its number.
    Push { deliveries_max: u32, item: Bytes },
    /// A change of items that are there. It takes effect on each of them by itself, or not.
    Change(QueueChange),
}

/// The kind of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueueStep {
    /// A lease of items that nobody holds.
    Take,
    /// The end of items that the consumer holds.
    Acknowledge,
    /// A longer lease of items that the consumer holds.
    Renew,
    /// The end of a lease: the items are there for others, after a time.
    GiveBack,
    /// The end of dead items.
    Discard,
    /// A new life of dead items.
    Revive,
}

const STEPS: [QueueStep; 6] = [
    QueueStep::Take,
    QueueStep::Acknowledge,
    QueueStep::Renew,
    QueueStep::GiveBack,
    QueueStep::Discard,
    QueueStep::Revive,
];

/// A change of items.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct QueueChange {
    pub step: QueueStep,
    /// The wall clock of its consumer, in milliseconds since 1970.
    pub at_ms: u64,
    /// The length of a lease, or of the pause before an item is there again.
    pub for_ms: u32,
    pub consumer: ConsumerId,
    pub claims: Vec<ItemClaim>,
}

/// An item of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ItemClaim {
    pub item: Position,
    /// The position of the take that the consumer holds it by; 0 if it holds nothing.
    pub token: Position,
}

impl QueueRecord {
    pub(super) fn encoded(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_slice(&MAGIC);
        match self {
            QueueRecord::Push {
                deliveries_max,
                item,
            } => {
                out.put_u8(PUSH);
                out.put_u32_le(*deliveries_max);
                out.extend_from_slice(item);
            }
            QueueRecord::Change(change) => {
                let kind = STEPS.iter().position(|step| *step == change.step);
                out.put_u8(kind.map_or(u8::MAX, |kind| kind as u8 + 1));
                out.put_u64_le(change.at_ms);
                out.put_u32_le(change.for_ms);
                out.put_slice(&change.consumer);
                out.put_u32_le(change.claims.len() as u32);
                for claim in &change.claims {
                    out.put_u64_le(claim.item);
                    out.put_u64_le(claim.token);
                }
            }
        }
        out.freeze()
    }

    /// None if it is no record of a queue.
    pub(super) fn decoded(mut record: Bytes) -> Option<QueueRecord> {
        if take_array(&mut record)? != MAGIC {
            return None;
        }
        let kind = take_byte(&mut record)?;
        if kind == PUSH {
            let deliveries_max = take_u32(&mut record)?;
            let item = record;
            return Some(QueueRecord::Push {
                deliveries_max,
                item,
            });
        }
        let step = *STEPS.get(usize::from(kind) - 1)?;
        let at_ms = take_u64(&mut record)?;
        let for_ms = take_u32(&mut record)?;
        let consumer = take_array(&mut record)?;
        let count = take_u32(&mut record)? as usize;
        if count > CLAIMS_MAX || record.len() != 16 * count {
            return None;
        }
        let claim = |_| ItemClaim {
            item: record.get_u64_le(),
            token: record.get_u64_le(),
        };
        let claims = (0..count).map(claim).collect();
        Some(QueueRecord::Change(QueueChange {
            step,
            at_ms,
            for_ms,
            consumer,
            claims,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_nothing_else_is_one() {
        let push = QueueRecord::Push {
            deliveries_max: 3,
            item: Bytes::from_static(b"an item"),
        };
        assert_eq!(QueueRecord::decoded(push.encoded()), Some(push.clone()));
        for step in STEPS {
            let claim = |item| ItemClaim { item, token: 9 };
            let change = QueueRecord::Change(QueueChange {
                step,
                at_ms: 1,
                for_ms: 2,
                consumer: [3; 16],
                claims: vec![claim(4), claim(5)],
            });
            let record = change.encoded();
            assert_eq!(QueueRecord::decoded(record.clone()), Some(change));
            for end in 0..record.len() {
                assert_eq!(QueueRecord::decoded(record.slice(..end)), None, "{end}");
            }
        }
        for end in 0..PUSH_HEAD_BYTES {
            assert_eq!(QueueRecord::decoded(push.encoded().slice(..end)), None);
        }
        assert_eq!(QueueRecord::decoded(Bytes::from_static(b"Q\x01\x09")), None);
        assert_eq!(QueueRecord::decoded(Bytes::from_static(b"another")), None);
    }
}
