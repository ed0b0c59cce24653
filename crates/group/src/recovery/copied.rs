//! Records that are written again, so that the journal can let go of those before.

use staves_wire::group::{Delta, MemberRecord, MemberSnapshot, SnapshotStream};

use super::RecoveredMember;
use crate::requests::RequestTable;
use crate::stream::{CUT_MAX, Stream};

/// A delta that was written again.
pub(super) struct CopiedDelta {
    pub(super) number: u64,
    pub(super) stream: usize,
    pub(super) purgeable: u64,
    pub(super) delta: Delta,
}

impl RecoveredMember {
    /// A member whose log is that of the copied deltas before a snapshot: as many as are left of them.
    pub(super) fn of_copied(
        mut copied: Vec<CopiedDelta>,
        snapshot: &MemberSnapshot,
    ) -> Result<Option<RecoveredMember>, String> {
        let among = copied.len().saturating_sub(snapshot.copied as usize);
        let copied = copied.split_off(among);
        let Some(first) = copied.first() else {
            return Ok(None);
        };
        let mut member = RecoveredMember {
            from: first.number,
            streams: Vec::with_capacity(snapshot.streams.len()),
            snapshot: snapshot.clone(),
            held: Vec::new(),
        };
        for (stream, at) in snapshot.streams.iter().enumerate() {
            let first = copied.iter().find(|copied| copied.stream == stream);
            let before = first.map_or(at.prefix, |first| first.delta.label.seq.saturating_sub(1));
            let begins = Stream::at_cut(before.min(CUT_MAX), RequestTable::load(&[]));
            member.streams.push(begins);
        }
        for copied in copied {
            member.take(copied.stream, copied.purgeable, copied.delta)?;
        }
        Ok(Some(member))
    }

    /// Hardly less than the bytes of [`copy_forward`](Self::copy_forward).
    pub fn copy_bytes(&self) -> usize {
        const SNAPSHOT_BYTES: usize = 4096;
        let of = |s: &Stream| s.log.bytes() + s.requests.bytes();
        SNAPSHOT_BYTES + self.streams.iter().map(of).sum::<usize>()
    }

    /// Its log and a snapshot, to be written again: once they are durable no record before them is needed.
    pub fn copy_forward(&self) -> Vec<MemberRecord> {
        let mut records = Vec::new();
        for (stream, s) in (0..).zip(&self.streams) {
            let purgeable = s.purgeable;
            records.extend(s.log.all().cloned().map(|delta| MemberRecord::Copied {
                stream,
                purgeable,
                delta,
            }));
        }
        let of = |s: &Stream| SnapshotStream {
            prefix: s.prefix,
            requests: s.requests.dump(),
        };
        let snapshot = MemberSnapshot {
            copied: u32::try_from(records.len()).unwrap_or(u32::MAX),
            streams: self.streams.iter().map(of).collect(),
            ..self.snapshot.clone()
        };
        records.push(MemberRecord::Snapshot(snapshot));
        records
    }
}
