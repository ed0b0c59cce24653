//! The group protocol's messages as bytes, and the rules that a delta or a page must keep so that the
//! machines never index past an end.

use bytes::{BufMut, BytesMut};
use staves_model::{Label, MemberId, PAGE_BYTES};

use super::{
    Batch, Delta, DoneRequest, GroupEnvelope, GroupMessage, Labels, PageContent, PagePart,
    RequestId, Run, RunKind, SealedStream, SyncStream,
};
use crate::codec::{DecodeError, Reader, Wire, put_len, take_count, take_kept};
use crate::codec::{wire_enum, wire_struct};

wire_struct!(RequestId {
    client,
    number,
    floor
});
wire_enum!(RunKind { 0 => Bytes, 1 => Zero });
wire_struct!(SealedStream {
    stream,
    prefix,
    deltas,
    requests,
    forgot
});
wire_struct!(SyncStream {
    stream,
    cut,
    deltas,
    requests,
    forgot
});
wire_struct!(MemberId {
    node,
    disk,
    incarnation
});
wire_struct!(GroupEnvelope {
    group,
    epoch,
    from,
    to,
    message
});

wire_enum!(GroupMessage {
    0 => Deltas { stream, deltas, stable, purgeable, last, clock, want_extents },
    1 => Ack { slot, stream, prefix, synced, gap, clock, promise, granted_extents, rests },
    2 => Seal { group, released },
    3 => Sealed { slot, streams, reserved_extents, restarted, pages },
    4 => Sync { group, slot, streams, reserve_extents, pages },
    5 => Synced { slot, able },
    6 => Get { page, count, urgent, held },
    7 => Parts { slot, parts },
});

wire_struct!(Run { offset, len, kind } check_run);
wire_struct!(Delta { label, request, answer: take_kept, runs, bytes } check_delta);
wire_struct!(DoneRequest {
    request,
    seq,
    answer: take_kept
});

fn check_run(run: &Run) -> Result<(), DecodeError> {
    match run.offset.checked_add(u64::from(run.len)) {
        Some(_) => Ok(()),
        None => Err(DecodeError::Invalid {
            what: "a run",
            reason: "it ends beyond 2^64",
        }),
    }
}

fn check_delta(delta: &Delta) -> Result<(), DecodeError> {
    let runs = delta.runs.iter().filter(|run| run.kind == RunKind::Bytes);
    let named: u64 = runs.map(|run| u64::from(run.len)).sum();
    if named == delta.bytes.len() as u64 {
        return Ok(());
    }
    Err(DecodeError::Invalid {
        what: "a delta",
        reason: "its runs do not name as many bytes as it carries",
    })
}

wire_struct!(PagePart {
    page,
    labels,
    content
});

/// As a list of a label or nothing for each stream.
impl Wire for Labels {
    fn put(&self, out: &mut BytesMut) {
        put_len(self.streams(), out);
        self.iter().for_each(|label| label.put(out));
    }

    fn take(from: &mut Reader) -> Result<Labels, DecodeError> {
        let streams = take_count(from)?;
        let mut one = None;
        for stream in 0..streams {
            let label: Option<Label> = Wire::take(from)?;
            let Some(label) = label else { continue };
            let Some((first, before)) = one.replace((stream, label)) else {
                continue;
            };
            // More than one, which is rare.
            let mut labels = vec![None; stream + 1];
            (labels[first], labels[stream]) = (Some(before), Some(label));
            for _ in stream + 1..streams {
                labels.push(Wire::take(from)?);
            }
            return Ok(labels.into());
        }
        Ok(match one {
            Some((stream, label)) => Labels::of_one(stream, label, streams),
            None => vec![None; streams].into(),
        })
    }
}

impl Wire for PageContent {
    fn put(&self, out: &mut BytesMut) {
        match self {
            PageContent::Zero => out.put_u8(0),
            PageContent::Held => out.put_u8(1),
            PageContent::Bytes(bytes) => {
                debug_assert_eq!(bytes.len(), PAGE_BYTES, "a page is {PAGE_BYTES} bytes");
                out.put_u8(2);
                out.extend_from_slice(bytes);
            }
        }
    }

    fn take(from: &mut Reader) -> Result<PageContent, DecodeError> {
        match u8::take(from)? {
            0 => Ok(PageContent::Zero),
            1 => Ok(PageContent::Held),
            2 => from.slice("a page", PAGE_BYTES).map(PageContent::Bytes),
            tag => Err(DecodeError::Tag {
                what: "PageContent",
                tag: u64::from(tag),
            }),
        }
    }
}

impl GroupEnvelope {
    /// Appends its bytes. Envelopes one after another are the body of a `Group` message, so that a
    /// peer's queue is encoded as it fills.
    pub fn encode(&self, out: &mut BytesMut) {
        self.put(out);
    }
}

impl Wire for Batch {
    fn put(&self, out: &mut BytesMut) {
        for envelope in &self.0 {
            envelope.put(out);
        }
    }

    fn take(from: &mut Reader) -> Result<Batch, DecodeError> {
        let mut batch = Vec::new();
        while from.left() > 0 {
            batch.push(GroupEnvelope::take(from)?);
        }
        Ok(Batch(batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_model::Epoch;

    /// Labels of none, one, several or all streams have one form each, whatever they were made of.
    #[test]
    fn labels_are_what_the_list_of_them_is() {
        for known in 0..1u32 << 5 {
            let label = |stream: u64| Label {
                epoch: Epoch(3),
                seq: stream + 1,
            };
            let list = (0..5).map(|s| (known >> s & 1 == 1).then(|| label(s)));
            let list: Vec<Option<Label>> = list.collect();
            let labels = Labels::from(list.clone());
            let mut bytes = BytesMut::new();
            labels.put(&mut bytes);
            let mut plain = BytesMut::new();
            list.put(&mut plain);
            assert_eq!(bytes, plain, "{known:05b}");
            let read = Labels::take(&mut Reader::new(bytes.freeze())).expect("sound");
            assert_eq!(read, labels, "{known:05b}");
            assert_eq!(labels.iter().collect::<Vec<_>>(), list);
            assert_eq!((labels.streams(), labels.get(5)), (5, None));
        }
        assert_eq!(
            Labels::of_one(1, Label::default(), 3),
            vec![None, Some(Label::default()), None].into()
        );
    }
}
