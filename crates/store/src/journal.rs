//! The mark up to which a member's deltas would survive a loss of power.

use std::collections::{BTreeMap, VecDeque};

/// The sync of one member's storage: its deltas, by stream.
///
/// A member asks with each step and never waits: a sync that is under way is reported by a later call.
#[derive(Clone, Debug, Default)]
pub enum Journal {
    /// Memory: what is received counts as synced at once.
    #[default]
    Memory,
    /// A disk: whoever drives the member says what is synced.
    Disk,
    /// A stand-in for a disk, for tests: each sync ends some calls after it began.
    Late(LateSyncs),
}

/// Syncs under way.
#[derive(Clone, Debug)]
pub struct LateSyncs {
    calls: usize,
    begun: BTreeMap<usize, VecDeque<u64>>,
}

impl Journal {
    /// A journal whose syncs end so many calls after they began.
    pub fn late(calls: usize) -> Journal {
        Journal::Late(LateSyncs {
            calls,
            begun: BTreeMap::new(),
        })
    }

    /// Begins to sync a stream up to `held`, and returns up to where it is synced.
    #[inline]
    pub fn sync(&mut self, stream: usize, held: u64) -> u64 {
        match self {
            Journal::Memory => held,
            Journal::Disk => 0,
            Journal::Late(late) => {
                let begun = late.begun.entry(stream).or_default();
                begun.push_back(held);
                let ended = begun.len() > late.calls;
                ended.then(|| begun.pop_front()).flatten().unwrap_or(0)
            }
        }
    }

    /// Drops what lies beyond a cut, also from the syncs under way.
    pub fn drop_beyond(&mut self, stream: usize, cut: u64) {
        if let Journal::Late(late) = self {
            let begun = late.begun.entry(stream).or_default();
            begun.iter_mut().for_each(|held| *held = cut.min(*held));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_synced_at_once_and_a_disk_some_calls_later() {
        assert_eq!(Journal::Memory.sync(0, 7), 7);
        let mut disk = Journal::late(2);
        assert_eq!(
            [1, 2, 3, 3, 3].map(|held| disk.sync(0, held)),
            [0, 0, 1, 2, 3]
        );
        assert_eq!(disk.sync(1, 9), 0, "each stream by itself");
    }

    #[test]
    fn a_sync_under_way_says_nothing_of_what_a_cut_dropped() {
        let mut disk = Journal::late(2);
        disk.sync(0, 5);
        disk.sync(0, 6);
        disk.drop_beyond(0, 3);
        assert_eq!([3, 4, 4].map(|held| disk.sync(0, held)), [3, 3, 3]);
    }
}
