//! The entries of a unit as its pages have them: each change of its state, and checkpoints that stand for many of them.

use super::HEAD_BYTES_MAX;
use super::codec::{CodeError, CodeReader, CodeWriter, Coded, coded, decode, encode};
use super::ledger::CheckpointOf;
use crate::entry::Entry;
use crate::share::LogShare;
use crate::types::{LogId, LogRecord, Position};

/// Heads of more bytes lie where data do.
pub(crate) const HEAD_INLINE_BYTES_MAX: usize = 16 << 10;
/// The first byte of the head of an entry whose own head lies where data do.
const OUTLINED: u8 = 255;

/// The head in place of one that lies where data do: its checksum. Once the entry is dead, others may have written over the data.
pub(crate) fn outlined(head: &[u8]) -> [u8; 5] {
    let [a, b, c, d] = crc32c::crc32c(head).to_le_bytes();
    [OUTLINED, a, b, c, d]
}

/// Returns whether a head stands in place of one that lies where data do.
pub(crate) fn is_outlined(head: &[u8]) -> bool {
    head.len() == 5 && head.first() == Some(&OUTLINED)
}

const _: () = assert!(HEAD_INLINE_BYTES_MAX < HEAD_BYTES_MAX);

/// One entry in the pages of a unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum StoredEntry {
    /// A change.
    Change(Entry),
    /// A log's share, but for its records and map pages, whose own entries stay; and the numbers of those pages.
    Share(LogId, ShareState),
    /// A log's record at its home, and the number of logs that were ever created there.
    Record(u64, Box<LogRecord>),
    /// A part of the checkpoint of the state after an entry.
    Part(CheckpointOf, u64, Vec<u8>),
    /// The checkpoint of the state after an entry, by the entries with its parts.
    Parted(CheckpointOf, u64, Vec<u64>),
}

/// A share without records and map pages, with the numbers of the pages that it has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ShareState {
    pub share: LogShare,
    pub pages: Vec<u64>,
}

impl ShareState {
    /// The checkpoint of a share.
    pub(crate) fn of(share: &LogShare) -> ShareState {
        let mut state = LogShare {
            term: share.term,
            options: share.options,
            start: share.start,
            sessions: share.sessions.clone(),
            claimed: share.claimed,
            trim: share.trim,
            tags: share.tags.clone(),
            prefix: share.prefix,
            ..LogShare::default()
        };
        for (position, junk) in share.slots.without_data() {
            state.slots.put_without_data(position, junk);
        }
        let pages = share.pages.keys().copied().collect();
        ShareState {
            share: state,
            pages,
        }
    }
}

impl Coded for ShareState {
    fn put(&self, out: &mut CodeWriter) {
        let share = &self.share;
        share.term.put(out);
        share.options.put(out);
        share.start.put(out);
        share.sessions.put(out);
        (share.claimed, share.trim).put(out);
        share.tags.put(out);
        share.prefix.put(out);
        let without: Vec<(Position, Option<u32>)> = share.slots.without_data().collect();
        without.put(out);
        self.pages.put(out);
    }

    fn take(from: &mut CodeReader<'_>) -> Result<ShareState, CodeError> {
        let mut share = LogShare {
            term: Coded::take(from)?,
            options: Coded::take(from)?,
            start: Coded::take(from)?,
            sessions: Coded::take(from)?,
            ..LogShare::default()
        };
        (share.claimed, share.trim) = Coded::take(from)?;
        share.tags = Coded::take(from)?;
        share.prefix = Coded::take(from)?;
        for (position, junk) in Vec::<(Position, Option<u32>)>::take(from)? {
            share.slots.put_without_data(position, junk);
        }
        let pages: Vec<u64> = Coded::take(from)?;
        // Their contents are in entries of their own.
        share.pages = pages.iter().map(|page| (*page, Vec::new())).collect();
        Ok(ShareState { share, pages })
    }
}

coded!(enum StoredEntry, StoredEntry, "entry in a unit's pages" {
    1 => Change(entry),
    2 => Share(log, state),
    3 => Record(created, record),
    4 => Part(of, base, bytes),
    5 => Parted(of, base, parts),
});

coded!(enum CheckpointOf, CheckpointOf, "owner of a checkpoint" {
    1 => Log(log),
    2 => Name(name),
});

impl StoredEntry {
    /// Its bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        encode(self).head
    }

    /// The entry of some bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<StoredEntry, CodeError> {
        decode(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{AppendId, DataPlace, SessionId, TagLink, Term};

    #[test]
    fn entries_are_read_as_they_were_written() {
        let session = SessionId {
            term: Term(2),
            count: 3,
        };
        let (id, low) = (AppendId { session, seq: 9 }, 5);
        let links = vec![TagLink {
            tag: 4,
            back: vec![1, 2],
        }];
        let log = LogId(77);
        let commit = Entry::Commit {
            log,
            position: 40,
            id,
            low,
            links,
            places: vec![DataPlace {
                at: 1 << 20,
                bytes: 8,
            }],
        };
        let mut share = LogShare::default();
        share.apply(&commit, &mut Vec::new());
        let junk = Entry::Junk {
            log,
            position: 50,
            count: 5,
        };
        share.apply(&junk, &mut Vec::new());
        let all = [
            StoredEntry::Change(commit),
            StoredEntry::Share(log, ShareState::of(&share)),
        ];
        for entry in all {
            let bytes = entry.to_bytes();
            assert_eq!(StoredEntry::from_bytes(&bytes), Ok(entry));
            for end in 0..bytes.len() {
                assert!(StoredEntry::from_bytes(&bytes[..end]).is_err());
            }
        }
    }
}
