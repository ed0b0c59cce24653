//! Pages that operations wait for are read beside their buckets, several at a time: no bucket stands still for a disk, nor a thread that others need.
//!
//! A bucket says which pages it lacks ([`Effects::reads`](staves_group::Effects)) and parks the operation. A reader finds out where they lie, reads without any lock, and gives
//! them to the bucket if they lie there still; then the bucket goes on. A page that cannot be read so is read by the bucket itself, which says what becomes of it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use staves_disk::{BLOCK_BYTES, Device, Located};
use staves_model::{Epoch, GroupId};
use staves_store::Pages;

use super::NodeDisk;

/// Threads of a disk that read. A disk answers many reads at a time faster than one by one.
pub(crate) const READERS: usize = 8;
/// Most pages of one access, and of one turn of a reader.
const AT_ONCE: usize = 64;
/// The longest that a reader sleeps without a look whether its disk is there yet.
const SLEEP: Duration = Duration::from_millis(500);

/// Pages of a group's member that joined in an epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    pub(crate) group: GroupId,
    pub(crate) join: Epoch,
    pages: Vec<u32>,
}

/// A page as it was read.
pub(crate) struct ReadPage {
    page: u32,
    /// Its place then; `None` if it had none.
    located: Option<Located>,
    /// Its bytes, if they are good.
    bytes: Option<Vec<u8>>,
}

/// Pages that are to be read from a disk.
#[derive(Default)]
pub(crate) struct ReadQueue {
    state: Mutex<QueueState>,
    wake: Condvar,
}

#[derive(Default)]
struct QueueState {
    waiting: VecDeque<Wanted>,
    /// Those, and those that are being read. As many as the operations that buckets park need, at most.
    pages: BTreeSet<(GroupId, u32)>,
}

impl ReadQueue {
    /// Has pages read, but for those that are being read already.
    pub(crate) fn put(&self, group: GroupId, join: Epoch, pages: impl Iterator<Item = u32>) {
        let mut state = self.state.lock();
        let mut fresh: Vec<u32> = pages
            .filter(|page| state.pages.insert((group, *page)))
            .collect();
        fresh.sort_unstable();
        for pages in fresh.chunks(AT_ONCE) {
            let pages = pages.to_vec();
            state.waiting.push_back(Wanted { group, join, pages });
            self.wake.notify_one();
        }
    }

    /// The next ones, if there are any before long.
    pub(crate) fn take(&self) -> Option<Wanted> {
        let mut state = self.state.lock();
        if state.waiting.is_empty() {
            self.wake.wait_for(&mut state, SLEEP);
        }
        state.waiting.pop_front()
    }

    /// They were read, and may be wanted anew.
    pub(crate) fn done(&self, wanted: &Wanted) {
        let mut state = self.state.lock();
        for page in &wanted.pages {
            state.pages.remove(&(wanted.group, *page));
        }
    }
}

impl NodeDisk {
    /// Reads pages, those that lie one behind the other with one access.
    pub(crate) fn read_pages(&self, wanted: &Wanted) -> Vec<ReadPage> {
        let (group, join) = (wanted.group, wanted.join);
        let mut located: Vec<(u32, Located)> = Vec::with_capacity(wanted.pages.len());
        let mut read = Vec::with_capacity(wanted.pages.len());
        {
            let store = self.store.lock();
            for page in wanted.pages.iter().copied() {
                match store.locate(group, page, join) {
                    Some(place) => located.push((page, place)),
                    None => read.push(ReadPage {
                        page,
                        located: None,
                        bytes: None,
                    }),
                }
            }
        }
        let follows = |a: &(u32, Located), b: &(u32, Located)| a.1.is_before(b.1);
        for run in located.chunk_by(follows) {
            read_run(&self.pages, run, &mut read);
        }
        read
    }

    /// Gives pages that were read to the member that wants them. Those that could not be read are read now, or the bucket is given up.
    pub(crate) fn give_pages(&self, wanted: &Wanted, pages: &Pages, read: &[ReadPage]) {
        let is_same = pages.kept_on().is_some_and(|(_, join)| join == wanted.join);
        for one in read.iter().filter(|_| is_same) {
            let now = || {
                self.store
                    .lock()
                    .locate(wanted.group, one.page, wanted.join)
            };
            match &one.bytes {
                Some(bytes) => pages.give(one.page, &mut |into| {
                    let is_there = one.located.is_some() && now() == one.located;
                    if is_there {
                        into.copy_from_slice(bytes);
                    }
                    is_there
                }),
                None => drop(pages.page(one.page)),
            }
        }
    }
}

fn read_run(device: &dyn Device, run: &[(u32, Located)], read: &mut Vec<ReadPage>) {
    let places: Vec<Located> = run.iter().map(|(_, located)| *located).collect();
    let mut bytes = vec![0; run.len() * BLOCK_BYTES];
    let good = Located::read_run(&places, device, &mut bytes);
    let good = good.unwrap_or_else(|_| vec![false; run.len()]);
    let pages = run.iter().zip(bytes.chunks_exact(BLOCK_BYTES)).zip(good);
    read.extend(pages.map(|(((page, located), bytes), good)| ReadPage {
        page: *page,
        located: Some(*located),
        bytes: good.then(|| bytes.to_vec()),
    }));
}

/// Starts the threads that read from a disk, which end with it. `give` brings what was read to the bucket, and has it go on.
pub(crate) fn start(
    disk: &Arc<NodeDisk>,
    give: impl Fn(&Arc<NodeDisk>, &Wanted, &[ReadPage]) + Clone + Send + 'static,
) -> std::io::Result<()> {
    for _ in 0..READERS {
        let (queue, disk) = (disk.reads.clone(), Arc::downgrade(disk));
        let give = give.clone();
        let run = move || while turn(&queue, &disk, &give) {};
        let thread = std::thread::Builder::new().name("reader".into());
        thread.spawn(run)?;
    }
    Ok(())
}

/// One turn of a reader. False at the end.
fn turn(
    queue: &ReadQueue,
    disk: &Weak<NodeDisk>,
    give: &impl Fn(&Arc<NodeDisk>, &Wanted, &[ReadPage]),
) -> bool {
    let wanted = queue.take();
    let Some(disk) = disk.upgrade().filter(|disk| !disk.is_closed()) else {
        return false;
    };
    if let Some(wanted) = wanted {
        let read = disk.read_pages(&wanted);
        // First, so that the bucket may ask for them again.
        queue.done(&wanted);
        give(&disk, &wanted, &read);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_once_however_many_wait_for_it() {
        let queue = ReadQueue::default();
        let group = GroupId(3);
        let put = |pages: std::ops::Range<u32>| queue.put(group, Epoch(7), pages);
        put(0..2);
        put(1..3);
        let taken = [queue.take(), queue.take()].map(|wanted| wanted.expect("two"));
        assert_eq!(taken[0].pages, [0, 1]);
        assert_eq!(taken[1].pages, [2]);
        put(0..2);
        queue.done(&taken[0]);
        put(0..2);
        assert_eq!(queue.take().expect("anew").pages, [0, 1]);
        put(100..100 + 2 * AT_ONCE as u32 + 1);
        let parts = [(); 3].map(|()| queue.take().map_or(0, |wanted| wanted.pages.len()));
        assert_eq!(parts, [AT_ONCE, AT_ONCE, 1]);
    }
}
