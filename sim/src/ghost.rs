//! The judges' own account of a group: every delta that was made, and the pages that were seen.

use std::collections::BTreeMap;

use bytes::Bytes;
use staves_model::{Epoch, Incarnation, Label, MemberSlot, PAGE_BYTES};
use staves_wire::group::{RequestId, Run, RunKind};

/// Every delta that was made and may still count: what each version of each page must hold.
#[derive(Default)]
pub struct Ghost {
    pub(crate) streams: BTreeMap<usize, BTreeMap<u64, Made>>,
    pub(crate) acked: BTreeMap<usize, u64>,
    pub(crate) cuts: BTreeMap<Epoch, BTreeMap<usize, u64>>,
    pub(crate) life: Epoch,
}

/// The registers' pages of a member, as they were at the last check.
#[derive(Clone, Default)]
pub struct Done {
    pub(crate) life: Option<(Incarnation, MemberSlot)>,
    pub(crate) pages: BTreeMap<u32, Vec<Label>>,
}

pub(crate) struct Made {
    pub(crate) request: RequestId,
    pub(crate) label: Label,
    pub(crate) runs: Vec<Run>,
    pub(crate) bytes: Bytes,
}

impl Ghost {
    /// The group starts from nothing in this epoch: what was before counts no more.
    pub fn begin_life(&mut self, epoch: Epoch) {
        *self = Ghost {
            cuts: std::mem::take(&mut self.cuts),
            life: epoch,
            ..Ghost::default()
        };
    }

    /// The epoch in which this life of the group began; 0 for the first.
    pub fn life(&self) -> Epoch {
        self.life
    }

    /// A data bucket made a delta. One of an older epoch than a known one of its seq counts for nothing.
    /// Returns the delta that had done the same request already (I9).
    pub fn made(
        &mut self,
        stream: usize,
        label: Label,
        request: RequestId,
        runs: Vec<Run>,
        bytes: Bytes,
    ) -> Option<Label> {
        let mut later = self.cuts.range(label.epoch.next()..);
        // Of a data bucket that does not know yet that it is deposed, and was cut off before this.
        let is_beyond =
            |cuts: &BTreeMap<usize, u64>| cuts.get(&stream).is_some_and(|c| label.seq > *c);
        if label.epoch < self.life || later.any(|(_, cuts)| is_beyond(cuts)) {
            return None;
        }
        let stream = self.streams.entry(stream).or_default();
        // Below its own seq, what counts is the maker's own history.
        let same = |m: &&Made| {
            let name = |r: &RequestId| (r.client, r.number);
            name(&m.request) == name(&request) && m.label.epoch <= label.epoch
        };
        let twice = stream
            .range(..label.seq)
            .map(|(_, m)| m)
            .find(same)
            .map(|m| m.label);
        if stream.get(&label.seq).is_none_or(|m| m.label < label) {
            stream.insert(
                label.seq,
                Made {
                    request,
                    label,
                    runs,
                    bytes,
                },
            );
            return twice;
        }
        None
    }

    /// The newest delta up to `upto` that touches a page, if it still counts.
    pub fn newest_of(&self, stream: usize, page: u32, upto: u64) -> Option<Label> {
        let made = self.streams.get(&stream)?;
        made.range(..=upto)
            .rev()
            .map(|(_, m)| m)
            .find(|m| m.touches(page))
            .map(|m| m.label)
    }

    /// The delta that counts at a seq.
    pub fn label_at(&self, stream: usize, seq: u64) -> Option<Label> {
        self.streams.get(&stream)?.get(&seq).map(|m| m.label)
    }

    /// A data page as of a label; `None` if the label is of a delta that counts no more.
    pub fn page(&self, stream: usize, page: u32, label: Label) -> Option<Vec<u8>> {
        let mut content = vec![0u8; PAGE_BYTES];
        if label.seq == 0 {
            return Some(content);
        }
        let made = self.streams.get(&stream)?;
        if made.get(&label.seq)?.label != label {
            return None;
        }
        for m in made.range(..=label.seq).map(|(_, m)| m) {
            m.apply(page, &mut content);
        }
        Some(content)
    }
}

impl Made {
    fn touches(&self, page: u32) -> bool {
        let (start, end) = (
            u64::from(page) * PAGE_BYTES as u64,
            (u64::from(page) + 1) * PAGE_BYTES as u64,
        );
        self.runs
            .iter()
            .any(|r| r.offset < end && r.offset + u64::from(r.len) > start)
    }

    fn apply(&self, page: u32, content: &mut [u8]) {
        let (start, mut at) = (u64::from(page) * PAGE_BYTES as u64, 0);
        for run in &self.runs {
            for i in 0..u64::from(run.len) {
                let offset = run.offset + i;
                let inside = offset >= start && offset < start + PAGE_BYTES as u64;
                let byte = match run.kind {
                    RunKind::Zero => 0,
                    RunKind::Bytes => self.bytes[at + i as usize],
                };
                if inside {
                    content[(offset - start) as usize] = byte;
                }
                if run.kind == RunKind::Zero && !inside {
                    break;
                }
            }
            if run.kind == RunKind::Zero {
                let end = run.offset + u64::from(run.len);
                if run.offset <= start && start < end {
                    content.fill(0);
                }
            } else {
                at += run.len as usize;
            }
        }
    }
}
