//! The choice of the next block to evict: S3-FIFO (Yang and others, SOSP 2023), once for spare copies and once for last ones.
//!
//! New blocks enter a small queue, a tenth of the frames. Who leaves it unread since is gone, and remembered as a ghost for a while; who was
//! read moves to the main queue, and so does who comes back while a ghost. The main queue gives each read one more turn.

use std::collections::{HashSet, VecDeque};

use staves_model::mutant::{Mutant, planted};

use super::block::Copies;

/// The small queue's part of the frames.
const SMALL_PART: usize = 10;
/// Reads that are counted, beyond the first.
const READS_MAX: u8 = 3;

/// A place in a queue: an entry of the table, and which of its stays in queues it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct QueuePlace {
    entry: u32,
    turn: u32,
}

/// The policy's state of an entry.
#[derive(Clone, Copy, Debug, Default)]
struct KnownBlock {
    turn: u32,
    /// Key bits for the ghosts; 0: nobody is in the entry.
    tag: u64,
    frames: u8,
    reads: u8,
    /// The time at which it was read last: reads of one moment count as one, for a program that goes through a file
    /// reads each block many times.
    moment: u32,
    main: bool,
    spare: bool,
    pinned: bool,
}

/// The queues of spare copies, or of last ones. What an entry is not in any more is passed over.
#[derive(Debug, Default)]
struct Queues {
    small: VecDeque<QueuePlace>,
    main: VecDeque<QueuePlace>,
    small_frames: usize,
    main_frames: usize,
}

#[derive(Debug)]
pub(super) struct Policy {
    known: Vec<KnownBlock>,
    spare: Queues,
    last: Queues,
    ghosts: VecDeque<u64>,
    ghost_set: HashSet<u64>,
    /// Blocks that are there; so many ghosts are remembered.
    held: usize,
}

impl Policy {
    pub(super) fn new(entries: usize) -> Policy {
        Policy {
            known: vec![KnownBlock::default(); entries],
            spare: Queues::default(),
            last: Queues::default(),
            ghosts: VecDeque::new(),
            ghost_set: HashSet::new(),
            held: 0,
        }
    }

    fn queues(&mut self, spare: bool) -> &mut Queues {
        match spare {
            true => &mut self.spare,
            false => &mut self.last,
        }
    }

    /// A block came into an entry.
    pub(super) fn insert(&mut self, entry: u32, tag: u64, copies: Copies, moment: u32) {
        let main = self.ghost_set.remove(&tag);
        let known = &mut self.known[entry as usize];
        debug_assert_eq!(known.tag, 0, "entry {entry} is taken");
        *known = KnownBlock {
            turn: known.turn.wrapping_add(1),
            tag,
            moment,
            main,
            spare: copies == Copies::Spare,
            ..KnownBlock::default()
        };
        self.held += 1;
        self.enqueue(entry);
    }

    /// To the end of the queue where it belongs.
    fn enqueue(&mut self, entry: u32) {
        let known = self.known[entry as usize];
        let turn = known.turn;
        let most = 2 * self.known.len();
        let queues = self.queues(known.spare);
        queues.count(known.main, isize::from(known.frames));
        let queue = match known.main {
            true => &mut queues.main,
            false => &mut queues.small,
        };
        queue.push_back(QueuePlace { entry, turn });
        if queue.len() > most {
            let mut whole = std::mem::take(queue);
            whole.retain(|place| !self.is_void(*place));
            let queues = self.queues(known.spare);
            match known.main {
                true => queues.main = whole,
                false => queues.small = whole,
            }
        }
    }

    /// Returns whether nobody is in that place of a queue any more.
    fn is_void(&self, place: QueuePlace) -> bool {
        let known = &self.known[place.entry as usize];
        known.tag == 0 || known.turn != place.turn
    }

    /// The block took one frame more.
    pub(super) fn grew(&mut self, entry: u32) {
        let known = &mut self.known[entry as usize];
        known.frames += 1;
        let (main, spare) = (known.main, known.spare);
        self.queues(spare).count(main, 1);
    }

    /// The block was read.
    pub(super) fn read(&mut self, entry: u32, moment: u32) {
        let known = &mut self.known[entry as usize];
        if known.tag != 0 && known.moment != moment {
            known.moment = moment;
            known.reads = (known.reads + 1).min(READS_MAX);
        }
    }

    /// Returns whether it must stay.
    pub(super) fn pin(&mut self, entry: u32, on: bool) {
        let known = &mut self.known[entry as usize];
        if known.tag != 0 && known.pinned != on {
            known.pinned = on;
            if !on {
                // Its turns in the queue may have been passed over while it was pinned.
                self.requeue(entry, |_| {});
            }
        }
    }

    /// Returns whether another node has a copy.
    pub(super) fn is_spare(&self, entry: u32) -> bool {
        self.known[entry as usize].spare
    }

    /// The one of these to let go of first, none of them being next in a queue; `None` if all are pinned.
    pub(super) fn least(&self, entries: impl Iterator<Item = u32>) -> Option<u32> {
        let worth = |e: &u32| {
            let known = &self.known[*e as usize];
            (!known.spare, known.reads, known.moment)
        };
        entries
            .filter(|e| !self.known[*e as usize].pinned || planted(Mutant::PinnedGoesOnConflict))
            .min_by_key(worth)
    }

    /// Another node has a copy of the block now, or has none any more.
    pub(super) fn set_copies(&mut self, entry: u32, copies: Copies) {
        let spare = copies == Copies::Spare;
        let known = &self.known[entry as usize];
        if known.tag != 0 && known.spare != spare {
            self.requeue(entry, |known| known.spare = spare);
        }
    }

    /// Into the queue where it now belongs, at its end; who finds it in another passes over it.
    fn requeue(&mut self, entry: u32, change: impl FnOnce(&mut KnownBlock)) {
        let known = &mut self.known[entry as usize];
        let (main, spare, frames) = (known.main, known.spare, known.frames);
        // The old place in the queue is void.
        known.turn = known.turn.wrapping_add(1);
        change(known);
        self.queues(spare).count(main, -isize::from(frames));
        self.enqueue(entry);
    }

    /// The entry is empty again.
    pub(super) fn remove(&mut self, entry: u32) {
        let known = &mut self.known[entry as usize];
        let KnownBlock {
            main,
            spare,
            frames,
            ..
        } = *known;
        *known = KnownBlock {
            turn: known.turn,
            ..KnownBlock::default()
        };
        self.held -= 1;
        self.queues(spare).count(main, -isize::from(frames));
    }

    /// The next entry to evict, if any may go: spare copies before last ones. Removed by the caller.
    pub(super) fn victim(&mut self, frames_max: usize) -> Option<u32> {
        let entry = match self.victim_of(true, frames_max) {
            Some(entry) => entry,
            None => self.victim_of(false, frames_max)?,
        };
        let known = self.known[entry as usize];
        if !known.main {
            self.haunt(known.tag);
        }
        Some(entry)
    }

    fn victim_of(&mut self, spare: bool, frames_max: usize) -> Option<u32> {
        // Each turn drops a void place, takes a read away or moves a block once: so it ends.
        loop {
            let queues = self.queues(spare);
            let from_small = !queues.small.is_empty()
                && (queues.small_frames * SMALL_PART >= frames_max || queues.main.is_empty());
            let place = match from_small {
                true => queues.small.pop_front()?,
                false => queues.main.pop_front()?,
            };
            if self.is_void(place) {
                continue;
            }
            let known = &mut self.known[place.entry as usize];
            if known.pinned && !planted(Mutant::PinnedGoesInTurn) {
                continue;
            }
            if known.reads == 0 {
                return Some(place.entry);
            }
            if from_small {
                known.reads = 0;
                self.requeue(place.entry, |known| known.main = true);
            } else {
                known.reads -= 1;
                self.queues(spare).main.push_back(place);
            }
        }
    }

    fn haunt(&mut self, tag: u64) {
        if self.ghost_set.insert(tag) {
            self.ghosts.push_back(tag);
        }
        while self.ghosts.len() > self.held {
            let gone = self.ghosts.pop_front();
            gone.map(|tag| self.ghost_set.remove(&tag));
        }
    }

    /// Frames of spare copies, and of last ones.
    pub(super) fn frames(&self) -> (usize, usize) {
        let of = |q: &Queues| q.small_frames + q.main_frames;
        (of(&self.spare), of(&self.last))
    }
}

impl Queues {
    fn count(&mut self, main: bool, frames: isize) {
        let at = match main {
            true => &mut self.main_frames,
            false => &mut self.small_frames,
        };
        *at = at
            .checked_add_signed(frames)
            .expect("frames leave the queue that they came into");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use super::*;

    /// Blocks that there is room for, and those that are read again and again.
    const ROOM: u32 = 1000;
    const HOT: u32 = 200;

    /// Blocks of one frame each: a hot one, by lot, after each five of a scan that begins anew when it has been through `scanned`
    /// others. The part of the hot reads that found theirs, in percent, once it has gone on for a while.
    fn hot_hits(scanned: u32, mut read: impl FnMut(u32, u32) -> bool) -> u32 {
        let (mut lot, mut at, mut hits) = (1u32, 0, 0);
        let (warm, counted) = (20_000, 20_000);
        for step in 0..warm + counted {
            let moment = step / 100;
            for _ in 0..5 {
                at = (at + 1) % scanned;
                read(HOT + at, moment);
            }
            lot = lot.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let hit = read((lot >> 8) % HOT, moment);
            hits += u32::from(hit && step >= warm);
        }
        hits * 100 / counted
    }

    fn of_policy(scanned: u32) -> u32 {
        let mut policy = Policy::new(ROOM as usize * 5);
        let mut free: Vec<u32> = (0..ROOM).collect();
        let (mut entry_of, mut block_in) = (HashMap::new(), HashMap::new());
        hot_hits(scanned, |block, moment| {
            if let Some(entry) = entry_of.get(&block) {
                policy.read(*entry, moment);
                return true;
            }
            let entry = free.pop().unwrap_or_else(|| {
                let victim = policy.victim(ROOM as usize).expect("nothing is pinned");
                policy.remove(victim);
                entry_of.remove(&block_in[&victim]);
                victim
            });
            policy.insert(entry, u64::from(block) + 1, Copies::Last, moment);
            policy.grew(entry);
            entry_of.insert(block, entry);
            block_in.insert(entry, block);
            false
        })
    }

    /// The same, were the one that was read longest ago to go.
    fn of_lru(scanned: u32) -> u32 {
        let (mut read_at, mut by_time, mut time) = (HashMap::new(), BTreeMap::new(), 0u64);
        hot_hits(scanned, |block, _| {
            time += 1;
            let before = read_at.insert(block, time);
            before.map(|before| by_time.remove(&before));
            by_time.insert(time, block);
            if by_time.len() > ROOM as usize {
                let (_, gone) = by_time.pop_first().expect("some");
                read_at.remove(&gone);
            }
            before.is_some()
        })
    }

    /// A scan of more than there is room for, however much more, leaves the blocks that others read all the time.
    #[test]
    fn a_scan_leaves_what_is_read_all_the_time() {
        // With little more than there is room for, the scan comes back to a block nearly as soon as others to a hot one.
        for (scanned, least) in [
            (1200, 65),
            (1500, 65),
            (2500, 95),
            (10_000, 95),
            (100_000, 95),
        ] {
            let (ours, lru) = (of_policy(scanned), of_lru(scanned));
            println!("{scanned} scanned: {ours} % of hot reads hit, by age {lru} %");
            assert!(
                ours >= least && ours > lru + 5,
                "{scanned}: {ours} and {lru}"
            );
        }
    }
}
