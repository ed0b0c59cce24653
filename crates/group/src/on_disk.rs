//! A member's part on its node's disk, as far as the member knows: what was handed over, what of it is durable, what was saved.

use std::collections::{BTreeMap, VecDeque};

use staves_model::mutant::{Mutant, planted};
use staves_model::{Epoch, Label, MemberId, MemberSlot, Time};

use crate::page_set::PageSet;

/// Most snapshots of a member of which a start may come to begin with one: that of the round under way, and of the one before, which it frees.
pub(crate) const SNAPSHOTS_MAX: usize = 2;

/// The truth of records once they are durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SyncMark {
    /// A stream up to this seq.
    Deltas { stream: usize, seq: u64 },
    /// The snapshot of the epoch to whose cut the member was brought.
    Snapshot(Epoch),
}

/// An acknowledgement that waits for the disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwedAck {
    pub to: MemberId,
    pub last: u64,
    pub asked: u32,
    pub clock: Time,
}

/// The state that a member has on its disk, or on the way there.
#[derive(Clone, Debug)]
pub(crate) struct OnDisk {
    /// The epoch in which it joined.
    pub join: Epoch,
    /// It joined with every page.
    pub whole: bool,
    /// Deltas of each stream up to here were handed over.
    pub recorded: Vec<u64>,
    /// The truth of the records handed over, by their numbers; oldest first.
    pub under_way: VecDeque<(u64, SyncMark)>,
    /// A snapshot is to be handed over behind the deltas.
    pub wants_snapshot: bool,
    /// The epoch of the newest snapshot that is durable.
    pub synced_epoch: Epoch,
    /// The coordinator that is told once that is the epoch at whose cut this member stands.
    pub owed_synced: Option<MemberId>,
    /// By stream: who waits to hear that its deltas are durable.
    pub owed_acks: Vec<Option<OwedAck>>,
    pub round: Option<SaveRound>,
    /// Snapshots that a start may begin with, once all before them is saved and synced: their numbers, and the prefix of each stream. Oldest first.
    pub snapshots: VecDeque<(u64, Vec<u64>)>,
    /// The prefix of each stream at the last snapshot of a round.
    pub last_snapshot: Option<Vec<u64>>,
    /// Deltas of each stream up to here are in pages that were saved.
    pub saved: Vec<u64>,
    /// All pages are in the page file, in a version of this membership.
    pub filled: bool,
    /// It comes from its disk, and has reserved no more than its pages need.
    pub restarted: bool,
}

/// The pages that changed before a round began, and were not copied out yet.
#[derive(Clone, Debug)]
pub(crate) struct SaveRound {
    pub pages: PageSet,
    /// All of its pages, those that were copied out and may not be written yet among them.
    pub all: PageSet,
    /// Deltas of each stream up to here are in its pages, or in those of rounds before.
    pub applied: Vec<u64>,
    /// Every page was here when it began.
    pub whole: bool,
    /// All pages were copied out.
    pub is_out: bool,
    /// Pages of it are not here any more.
    pub forgets: bool,
}

/// The bytes of a page that is to be kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ImageBytes {
    /// All of them are zero.
    Zero,
    /// A copy of them.
    Block(Box<[u8]>),
    /// They are on the disk, as [`SaveLimits::placed`] has them.
    Placed,
}

/// The bounds of what is copied out at once.
#[derive(Clone, Copy, Debug)]
pub struct SaveLimits<'a> {
    /// Most pages.
    pub pages: usize,
    /// Most of them whose bytes are copied.
    pub copies: usize,
    /// Pages that the disk has already with this one label, though not as pages of the member.
    pub placed: &'a BTreeMap<u32, Label>,
}

/// Pages as they are to be kept, in a round of saving.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct SavedPages {
    /// The bucket whose bytes they are; 0 with m = 1, where all are the same.
    pub slot: MemberSlot,
    /// The epoch in which their member joined.
    pub join: Epoch,
    /// With these every page is kept; `None`: the round goes on.
    pub is_whole: Option<bool>,
    /// Pages, their labels, and their bytes.
    pub pages: Vec<(u32, Vec<Label>, ImageBytes)>,
    /// Pages that are not here any more.
    pub forgotten: Vec<u32>,
}

impl OnDisk {
    /// A member that stands at a cut and has nothing on its disk yet.
    pub fn joined(join: Epoch, whole: bool, cuts: Vec<u64>) -> OnDisk {
        OnDisk {
            join,
            whole,
            owed_acks: vec![None; cuts.len()],
            saved: vec![0; cuts.len()],
            recorded: cuts,
            under_way: VecDeque::new(),
            wants_snapshot: true,
            synced_epoch: Epoch(0),
            owed_synced: None,
            round: None,
            snapshots: VecDeque::new(),
            last_snapshot: None,
            filled: whole,
            restarted: false,
        }
    }

    /// A member as its disk has it.
    pub fn recovered(join: Epoch, whole: bool, epoch: Epoch, prefixes: Vec<u64>) -> OnDisk {
        OnDisk {
            wants_snapshot: false,
            synced_epoch: epoch,
            filled: true,
            restarted: true,
            ..OnDisk::joined(join, whole, prefixes)
        }
    }

    /// All beyond a cut is void, also where it is on its way to the disk.
    pub fn drop_beyond(&mut self, stream: usize, cut: u64) {
        self.recorded[stream] = self.recorded[stream].min(cut);
        for (_, mark) in &mut self.under_way {
            if let SyncMark::Deltas { stream: of, seq } = mark
                && *of == stream
                && !planted(Mutant::DroppedDeltaCounts)
            {
                *seq = cut.min(*seq);
            }
        }
    }

    /// Another epoch: a snapshot of it is due, and nobody waits for acknowledgements of the former one.
    pub fn at_cut(&mut self) {
        self.wants_snapshot = true;
        self.owed_acks.fill(None);
    }

    /// The deltas of these streams wait for the disk: whoever sent them is told later.
    pub fn owe_ack(&mut self, stream: usize, owed: OwedAck) {
        self.owed_acks[stream] = Some(owed);
    }

    /// The snapshot of this epoch is durable.
    pub fn has_synced(&self, epoch: Epoch) -> bool {
        self.synced_epoch == epoch || planted(Mutant::ConfirmedUnsynced)
    }

    /// Every page is in the page file, so that it counts as complete.
    pub fn is_filled(&self) -> bool {
        self.filled || planted(Mutant::DoneUnsynced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delta_that_a_cut_dropped_does_not_count_for_its_successor_and_the_planted_bug_is_seen() {
        let synced_after_a_drop = || {
            let mut disk = OnDisk::joined(Epoch(1), true, vec![0]);
            disk.under_way
                .push_back((1, SyncMark::Deltas { stream: 0, seq: 9 }));
            disk.recorded[0] = 9;
            disk.drop_beyond(0, 7);
            assert_eq!(disk.recorded[0], 7, "what is made anew is handed over");
            disk.under_way[0].1
        };
        let upto = |seq| SyncMark::Deltas { stream: 0, seq };
        assert_eq!(synced_after_a_drop(), upto(7));
        staves_model::mutant::plant(Some(Mutant::DroppedDeltaCounts));
        let seen = synced_after_a_drop();
        staves_model::mutant::plant(None);
        assert_eq!(seen, upto(9));
    }
}
