//! Readahead within a block: the parts behind a miss, which a reader in order will ask for next, fetched while no reader
//! waits for them.
//!
//! **Path of the data.** A miss is fetched from the source as it was asked for, in whole parts, and then reported here
//! ([`BlockReadahead::missed`]). If the reader seems to go on in order, the block waits in a short queue; a worker fetches its
//! missing parts and keeps them. A read of such parts is reported as well ([`BlockReadahead::read`]): it adds credit.
//!
//! **Promise.** At most [`AMPLIFICATION`] times the bytes that were asked for are fetched of a file, as far as that is ours to
//! decide: parts are whole. So each file has a budget. A miss credits the bytes it may cost and is charged those it did cost; only
//! the difference is spent on readahead. A reader that jumps about at random never has much; one that reads in order adds
//! credit with every read of parts that were fetched ahead, and soon gets each block whole.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use staves_files::{FileVersion, Keep, Source};
use staves_model::PoolId;
use staves_store::blocks::{BLOCK_BYTES, BLOCK_PARTS, BlockKey, PART_BYTES};
use staves_wire::files::FileId;
use tokio::sync::Notify;

use super::fetch::{hold, log};
use super::{Files, FilesPool, STRETCH_BYTES};

/// The most bytes that are fetched for each byte that is asked for.
pub(super) const AMPLIFICATION: u64 = 4;
/// The most credit of a budget, in bytes: old reads are no reason to fetch without end now.
const CREDIT_MAX: u64 = 4 << 20;
/// The most files with a budget; beyond, one is forgotten and begins anew.
const FILES_MAX: usize = 256;
/// The most blocks of a file whose fetched-ahead parts are recorded; the oldest is forgotten.
const AHEAD_MAX: usize = 64;
/// The most blocks that wait for readahead; the oldest is dropped.
const WAITING_MAX: usize = 64;
/// The most readaheads that a node fetches at a time.
const AT_ONCE: usize = 2;
/// With more readers than this at the source, or waiting for it, readaheads are dropped.
const READERS_MAX: usize = 8;
/// The parts that a reader must read in order before the rest of a block is fetched for it: 128 KiB. A reader of 64 KiB that jumps
/// (tools that fetch regions of a genome do) is not charged for parts that it will not read.
const RUN_MIN: u32 = (128 << 10) / PART_BYTES as u32;
/// The separate places of a block that must have been read before its rest is fetched for a reader who jumps, by no more than
/// [`JUMP_MAX`]: an index that is mapped and read by page faults is wanted whole in the end, and costs a round trip for each 16 KiB
/// otherwise.
const RUNS_MIN: u32 = 3;
/// A page fault asks for 16 KiB, in whole parts for no more than this. Who asks for more gets what it asks for.
const JUMP_MAX: u64 = 32 << 10;
/// A readahead that waited so long is dropped.
const AGE_MAX: Duration = Duration::from_secs(2);
/// The bound on a source's answer for a readahead.
const FETCH: Duration = Duration::from_secs(10);

/// A block whose missing parts may be fetched ahead.
pub(super) struct ReadaheadRequest {
    pool: PoolId,
    block: u32,
    version: FileVersion,
    file: FileId,
    source: Source,
    since: Instant,
}

impl ReadaheadRequest {
    pub(super) fn new(
        pool: PoolId,
        block: u32,
        version: FileVersion,
        file: FileId,
        source: Source,
    ) -> ReadaheadRequest {
        ReadaheadRequest {
            pool,
            block,
            version,
            file,
            source,
            since: Instant::now(),
        }
    }
}

/// The readahead of a node.
#[derive(Default)]
pub(super) struct BlockReadahead {
    state: Mutex<ReadaheadState>,
    more: Notify,
}

#[derive(Default)]
struct ReadaheadState {
    budgets: BTreeMap<FileId, ReadaheadBudget>,
    waiting: VecDeque<ReadaheadRequest>,
}

/// The budget of one file.
#[derive(Default)]
struct ReadaheadBudget {
    /// The bytes that may be fetched ahead.
    credit: u64,
    /// The parts that were fetched ahead and not read yet, by block.
    ahead: VecDeque<(u32, u32)>,
}

impl ReadaheadBudget {
    fn credit(&mut self, bytes: u64) {
        self.credit = (self.credit + bytes).min(CREDIT_MAX);
    }

    /// Records a miss: readers asked for `asked` bytes, and `fetched` were fetched for them.
    fn missed(&mut self, asked: u64, fetched: u64) {
        self.credit((asked * AMPLIFICATION).saturating_sub(fetched));
    }

    /// Takes credit for so many bytes of readahead; false if there is not enough.
    fn take(&mut self, bytes: u64) -> bool {
        let left = self.credit.checked_sub(bytes);
        self.credit = left.unwrap_or(self.credit);
        left.is_some()
    }

    fn fetched_ahead(&mut self, block: u32, parts: u32) {
        if self.ahead.len() == AHEAD_MAX {
            self.ahead.pop_front();
        }
        self.ahead.push_back((block, parts));
    }

    /// Records a read of these parts: parts that had been fetched ahead add credit, each once, and never more
    /// than was read of them.
    fn read(&mut self, block: u32, parts: u32, bytes: u64) {
        let mut paid = 0;
        for (_, left) in self.ahead.iter_mut().filter(|(b, _)| *b == block) {
            paid += (*left & parts).count_ones();
            *left &= !parts;
        }
        self.ahead.retain(|(_, left)| *left != 0);
        self.credit(bytes.min(u64::from(paid) * PART_BYTES as u64) * AMPLIFICATION);
    }
}

impl ReadaheadState {
    fn budget(&mut self, file: FileId) -> &mut ReadaheadBudget {
        if self.budgets.len() >= FILES_MAX && !self.budgets.contains_key(&file) {
            self.budgets.pop_first(); // digests: as good as by lot
        }
        self.budgets.entry(file).or_default()
    }
}

impl BlockReadahead {
    /// Records a fetched miss. If its reader seems to go on in order, `wanted` is the readahead of its last block.
    pub(super) fn missed(
        &self,
        file: FileId,
        asked: u64,
        fetched: u64,
        wanted: Option<ReadaheadRequest>,
    ) {
        let mut state = self.state.lock();
        state.budget(file).missed(asked, fetched);
        let Some(wanted) = wanted else {
            return;
        };
        let is = |w: &ReadaheadRequest| w.file == file && w.block == wanted.block;
        if state.waiting.iter().any(is) {
            return;
        }
        if state.waiting.len() == WAITING_MAX {
            state.waiting.pop_front();
        }
        state.waiting.push_back(wanted);
        drop(state);
        self.more.notify_one();
    }

    /// Records a read from memory, all within one stretch.
    pub(super) fn read(&self, file: FileId, from: u64, len: u64) {
        let mut state = self.state.lock();
        let Some(budget) = state.budgets.get_mut(&file) else {
            return;
        };
        if budget.ahead.is_empty() {
            return;
        }
        for (block, parts) in parts_of(from, len) {
            budget.read(block, parts, len);
        }
    }

    /// The newest request that waits and is not too old.
    fn next(&self) -> Option<ReadaheadRequest> {
        let mut state = self.state.lock();
        state.waiting.retain(|w| w.since.elapsed() < AGE_MAX);
        state.waiting.pop_back()
    }

    /// Forgets a file, which has another version by now.
    fn forget(&self, file: FileId) {
        let mut state = self.state.lock();
        state.budgets.remove(&file);
        state.waiting.retain(|w| w.file != file);
    }
}

/// Fetches readaheads, until the task is aborted.
pub(super) async fn run(files: Arc<Files>) {
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        while tasks.len() >= AT_ONCE {
            tasks.join_next().await;
        }
        let Some(wanted) = files.readahead.next() else {
            tokio::select! {
                () = files.readahead.more.notified() => {}
                Some(_) = tasks.join_next() => {}
            }
            continue;
        };
        if let Ok(pool) = files.pool(wanted.pool) {
            let files = files.clone();
            tasks.spawn(async move { fetch(&files, &pool, wanted).await });
        }
    }
}

/// From the first part that is missing to the last: one read of the source.
async fn fetch(files: &Files, pool: &FilesPool, wanted: ReadaheadRequest) {
    let room = files.room.spare_flight(BLOCK_BYTES as u32);
    if room.is_none() || pool.flights.readers() > READERS_MAX {
        return;
    }
    let (file, size) = (wanted.file, wanted.version.size);
    let start = u64::from(wanted.block) * BLOCK_BYTES as u64;
    let line = pool.flights.line_up((file, start / STRETCH_BYTES), false);
    // A reader of it may wait for the source.
    let Ok(_turn) = tokio::time::timeout(FETCH, line.turn()).await else {
        return;
    };
    let block_bytes = (size - start).min(BLOCK_BYTES as u64);
    let missing = all_parts(block_bytes) & !pool.blocks.parts(key(file, wanted.block));
    if missing == 0 {
        return;
    }
    let first = missing.trailing_zeros() as usize;
    let end = BLOCK_PARTS.min(32 - missing.leading_zeros() as usize);
    let from = start + (first * PART_BYTES) as u64;
    let len = ((end * PART_BYTES) as u64).min(block_bytes) - (first * PART_BYTES) as u64;
    if !files.readahead.state.lock().budget(file).take(len) {
        return;
    }
    let read = wanted
        .source
        .read_for_others(&wanted.version, from, len as usize);
    let (bytes, keep) = match tokio::time::timeout(FETCH, read).await {
        Ok(Ok(read)) => read,
        Ok(Err(error)) => {
            log(&error);
            return files.readahead.forget(file);
        }
        Err(_) => return,
    };
    let counts = &pool.counts;
    counts.fetched_bytes.fetch_add(len, Ordering::Relaxed);
    counts.ahead_bytes.fetch_add(len, Ordering::Relaxed);
    counts.fetches.fetch_add(1, Ordering::Relaxed);
    if keep == Keep::Yes {
        let mut state = files.readahead.state.lock();
        state.budget(file).fetched_ahead(wanted.block, missing);
        drop(state);
        hold(files, pool, file, size, from, &bytes);
    }
}

/// The block of the read's end, if it has a rest and its reader seems to go on: [`RUN_MIN`] parts up to there
/// are in memory or were asked for just now; or if it jumps and readers have been at [`RUNS_MIN`] places of the block.
pub(super) fn goes_on(
    pool: &FilesPool,
    file: FileId,
    size: u64,
    from: u64,
    len: u64,
) -> Option<u32> {
    let end = from + len;
    let (block, asked) = parts_of(end - 1, 1).last()?;
    let there = |block| pool.blocks.parts(key(file, block));
    let own = |b: u32| {
        parts_of(from, len)
            .filter(|(of, _)| *of == b)
            .fold(0, |all, (_, parts)| all | parts)
    };
    let before = block.checked_sub(1).map_or(0, |b| there(b) | own(b));
    let parts = there(block) | own(block);
    let run = run_up_to(before, parts, asked);
    let left = size - u64::from(block) * BLOCK_BYTES as u64;
    let whole = there(block) == all_parts(left.min(BLOCK_BYTES as u64));
    let wanted = run >= RUN_MIN || len <= JUMP_MAX && runs_in(parts) >= RUNS_MIN;
    (wanted && !whole).then_some(block)
}

/// The number of stretches without a gap among these parts.
fn runs_in(parts: u32) -> u32 {
    (parts & !(parts << 1)).count_ones()
}

/// The number of parts without a gap that end with `last`, one part of a block, given those that are there of it and of the block before.
fn run_up_to(before: u32, there: u32, last: u32) -> u32 {
    let both = u64::from(there) << 32 | u64::from(before);
    let above = 31 - last.trailing_zeros();
    (both << above).leading_ones()
}

fn key(file: FileId, block: u32) -> BlockKey {
    BlockKey {
        file: [file.high, file.low],
        block,
    }
}

pub(super) fn all_parts(block_bytes: u64) -> u32 {
    first_parts(block_bytes.div_ceil(PART_BYTES as u64))
}

/// The first so many parts of a block.
fn first_parts(count: u64) -> u32 {
    ((1u64 << count) - 1) as u32
}

/// The blocks that a range touches, each with the parts of it.
fn parts_of(from: u64, len: u64) -> impl Iterator<Item = (u32, u32)> {
    let (block, part) = (BLOCK_BYTES as u64, PART_BYTES as u64);
    let end = from + len;
    (from / block..end.div_ceil(block)).map(move |b| {
        let start = from.max(b * block) - b * block;
        let stop = end.min((b + 1) * block) - b * block;
        let parts = all_parts(stop) & !first_parts(start / part);
        (b as u32, parts)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: u64 = PART_BYTES as u64;
    const BLOCK: u64 = BLOCK_BYTES as u64;

    #[test]
    fn parts_of_a_range() {
        let of = |from, len| parts_of(from, len).collect::<Vec<_>>();
        assert_eq!(of(0, 1), [(0, 1)]);
        assert_eq!(of(PART - 1, 2), [(0, 0b11)]);
        assert_eq!(of(BLOCK - 1, 2), [(0, 1 << 31), (1, 1)]);
        assert_eq!(of(2 * PART, BLOCK), [(0, 0xffff_fffc), (1, 0b11)]);
        assert_eq!(all_parts(BLOCK), u32::MAX);
        assert_eq!(all_parts(PART + 1), 0b11);
    }

    #[test]
    fn a_run_ends_with_what_was_asked_for_and_may_begin_in_the_block_before() {
        assert_eq!(run_up_to(0, 0b1, 0b1), 1);
        assert_eq!(run_up_to(u32::MAX, 0b1, 0b1), 33);
        assert_eq!(run_up_to(0xf000_0000, 0b111, 0b100), 7);
        assert_eq!(run_up_to(u32::MAX, 0b1110, 0b1000), 3, "a gap");
        assert_eq!(run_up_to(0, u32::MAX, 1 << 31), 32);
        assert_eq!(
            run_up_to(0, u32::MAX, 1 << 3),
            4,
            "what lies behind counts for nothing"
        );
    }

    #[test]
    fn places_of_a_block_are_counted_once() {
        assert_eq!(runs_in(0), 0);
        assert_eq!(runs_in(u32::MAX), 1);
        assert_eq!(runs_in(0b1), 1);
        assert_eq!(runs_in(0b1011_0001 | 1 << 31), 4);
    }

    /// A reader of an index jumps about in it, 16 KiB at a time, until it has read all of it. Regression: each jump took a round trip to
    /// the source, 2,048 for 32 MiB.
    #[test]
    fn who_reads_all_of_a_file_here_and_there_gets_the_rest_of_its_blocks() {
        const STEP: u64 = 16 << 10;
        let (blocks, steps) = (128, 128 * BLOCK / STEP);
        let mut budget = ReadaheadBudget::default();
        let mut there = vec![0u32; blocks];
        let (mut asked, mut fetched, mut misses) = (0, 0, 0);
        for step in 0..steps {
            let from = step * (step + 1) / 2 % steps * STEP; // each once
            let (block, parts) = parts_of(from, STEP).next().unwrap();
            asked += STEP;
            if there[block as usize] & parts == parts {
                budget.read(block, parts, STEP);
                continue;
            }
            misses += 1;
            fetched += STEP;
            budget.missed(STEP, STEP);
            let have = &mut there[block as usize];
            *have |= parts;
            let rest = u64::from((!*have).count_ones()) * PART;
            if runs_in(*have) >= RUNS_MIN && budget.take(rest) {
                fetched += rest;
                budget.fetched_ahead(block, !*have);
                *have = u32::MAX;
            }
            assert!(fetched <= asked * AMPLIFICATION);
        }
        assert!(misses < 700, "{misses} of {steps} were misses");
    }

    /// A reader goes through a file by 8 KiB; all but a few of its blocks come whole, and no more is fetched than
    /// may be.
    #[test]
    fn who_goes_on_gets_whole_blocks() {
        let (step, mut budget) = (8192, ReadaheadBudget::default());
        let (mut asked, mut fetched, mut whole) = (0, 0, 0);
        for block in 0..40 {
            let mut there = 0u32;
            for at in (0..BLOCK).step_by(step as usize) {
                asked += step;
                let (_, parts) = parts_of(at, step).next().unwrap();
                if there & parts == parts {
                    budget.read(block, parts, step);
                    continue;
                }
                fetched += PART;
                there |= parts;
                budget.missed(step, PART);
                let rest = !there;
                let bytes = u64::from(rest.count_ones()) * PART;
                if budget.take(bytes) {
                    fetched += bytes;
                    budget.fetched_ahead(block, rest);
                    whole += u64::from(at == 0);
                    there = u32::MAX;
                }
                assert!(fetched <= asked * AMPLIFICATION);
            }
        }
        assert!(whole >= 38, "{whole} of 40 came whole after one miss");
    }

    /// Reads of parts that others asked for add no credit; nor do those that find the same twice.
    #[test]
    fn only_what_was_fetched_ahead_pays_and_once() {
        let mut budget = ReadaheadBudget::default();
        budget.read(7, u32::MAX, BLOCK);
        assert_eq!(budget.credit, 0);
        budget.fetched_ahead(7, 0b110);
        budget.read(7, 0b011, 2 * PART);
        budget.read(7, 0b011, 2 * PART);
        assert_eq!(budget.credit, PART * AMPLIFICATION);
        assert!(!budget.take(PART * AMPLIFICATION + 1) && budget.take(PART));
        budget.fetched_ahead(8, 0b11);
        budget.credit = 0;
        budget.read(8, 0b11, 100);
        assert_eq!(
            budget.credit,
            100 * AMPLIFICATION,
            "a few bytes of two parts"
        );
        for block in 0..1000 {
            budget.fetched_ahead(block, 1);
            budget.missed(1 << 20, 1);
        }
        assert_eq!((budget.ahead.len(), budget.credit), (AHEAD_MAX, CREDIT_MAX));
    }
}
