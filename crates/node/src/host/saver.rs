//! The threads of a node's disk. The journal's says what is durable; the other saves pages: members whose records the journal needs longest first, before it is full.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use staves_disk::{Committer, Device, PageFileError};
use staves_durable::{DiskStore, SaveDriver, SaveError, save, strike};
use staves_group::{Effects, Member};
use staves_model::GroupId;

use super::Host;
use crate::disk::readers;
use crate::disk::{DrivenJournal, FULL_PART, NodeDisk, append_to};

/// The interval at which it looks.
const LOOK: Duration = Duration::from_millis(250);
/// A member that the disk has, and for which no group has a place, is kept for so long after a start.
const UNWANTED_KEPT: Duration = Duration::from_secs(60);
/// Of the pages that may be in memory one in so many is let go beyond need, so that this is not done for each.
const SPARE_PART: u64 = 16;
/// Pages that a member lets go in its turn.
const PAGES_AT_ONCE: u32 = 256;
/// Turns of all members in which none went: in the first of them pages may have been used since the last look.
const IDLE_TURNS: usize = 2;
/// Changes are saved after this time in any case, so that a start has little to redo.
const SAVED_AFTER: Duration = Duration::from_secs(20);

/// Starts the journal's thread.
pub(crate) fn drive(
    disk: &Arc<NodeDisk>,
    driven: DrivenJournal,
    host: &Arc<Host>,
) -> std::io::Result<()> {
    let (weak, host) = (Arc::downgrade(disk), Arc::downgrade(host));
    let told = move |outcome: Result<u64, &str>| tell(&weak, &host, outcome);
    let committer = Committer::start_with(driven.journal, driven.device, Some(driven.pages), told)?;
    let fresh = disk.journal.set(committer).is_ok();
    debug_assert!(fresh, "a journal is driven once");
    Ok(())
}

/// The journal's thread says up to where all is durable.
fn tell(disk: &Weak<NodeDisk>, host: &Weak<Host>, outcome: Result<u64, &str>) {
    let (Some(disk), Some(host)) = (disk.upgrade(), host.upgrade()) else {
        return;
    };
    let synced = match outcome {
        Ok(synced) => synced,
        Err(why) => return disk.fail(why),
    };
    let told = {
        let mut store = disk.store.lock();
        let told = store.synced(synced);
        let journal = disk.journal.get();
        if let Some(journal) = journal {
            store.released(journal.look(|journal| journal.released()));
        }
        if store.waits()
            && let Some(journal) = journal
        {
            let appended = store.append_waiting(&mut append_to(journal));
            disk.note(appended);
        }
        told
    };
    if disk.note_room() {
        disk.saver.wake();
    }
    disk.synced.notify_all();
    if told.is_empty() {
        return;
    }
    let (routes, now) = (host.routes(), host.clock.now());
    for (group, count) in told {
        for cell in routes.cells_of(group) {
            cell.synced(&host, &disk, now, count);
        }
    }
    host.peers.flush();
}

/// Starts the thread that saves pages, once the buckets are there. It ends with the disk, or once that has failed.
pub(crate) fn start(disk: &Arc<NodeDisk>, host: &Arc<Host>) -> std::io::Result<()> {
    let (weak_disk, weak_host) = (Arc::downgrade(disk), Arc::downgrade(host));
    let run = move || {
        let mut saved_all = Instant::now();
        while look(&weak_disk, &weak_host, &mut saved_all) {}
    };
    let thread = std::thread::Builder::new().name("saver".into());
    thread.spawn(run)?;
    start_readers(disk, host)
}

/// Starts the threads that read pages for operations that wait.
fn start_readers(disk: &Arc<NodeDisk>, host: &Arc<Host>) -> std::io::Result<()> {
    let host = Arc::downgrade(host);
    readers::start(disk, move |disk, wanted, read| {
        let Some(host) = host.upgrade() else {
            return;
        };
        for cell in host.routes().cells_of(wanted.group) {
            cell.read(&host, disk, wanted, read);
        }
        host.peers.flush();
    })
}

/// One look, and its rest. False at the end.
fn look(disk: &Weak<NodeDisk>, host: &Weak<Host>, saved_all: &mut Instant) -> bool {
    let (Some(strong), Some(host)) = (disk.upgrade(), host.upgrade()) else {
        return false;
    };
    let Some(journal) = strong.journal.get() else {
        return false;
    };
    if strong.failure().is_some() || strong.is_closed() {
        return false;
    }
    let mut saver = Saver {
        disk: &strong,
        host: &host,
    };
    if let Err(why) = saver.save_due(journal, saved_all) {
        strong.fail(&why);
        return false;
    }
    // The disk and the host may go meanwhile.
    let rest = strong.saver.clone();
    drop((strong, host));
    rest.rest(LOOK);
    true
}

struct Saver<'a> {
    disk: &'a Arc<NodeDisk>,
    host: &'a Arc<Host>,
}

impl Saver<'_> {
    fn save_due(&mut self, journal: &Committer, saved_all: &mut Instant) -> Result<(), String> {
        let serves = self
            .disk
            .serves_since
            .lock()
            .get_or_insert_with(Instant::now)
            .elapsed();
        self.host.end_unwanted(self.disk, serves >= UNWANTED_KEPT);
        note(strike(self, journal.synced()))?;
        self.disk.copy_forward()?;
        let is_late = !self.let_go() || saved_all.elapsed() >= SAVED_AFTER;
        if is_late {
            *saved_all = Instant::now();
        }
        for (group, only_for_room) in self.due(journal, is_late) {
            // Behind the records of another, which cannot be let go now, it would free nothing, and take room.
            let is_oldest = self.with_store(|store| store.is_oldest(group));
            let for_room = is_oldest && self.is_full(journal);
            if only_for_room && !for_room {
                continue;
            }
            note(save(self, group, for_room).map(drop))?;
            self.let_go();
            self.release(journal, &[group]);
            if self.disk.failure().is_some() {
                break;
            }
        }
        let all: Vec<GroupId> = self.with_store(|store| store.groups().collect());
        self.release(journal, &all);
        self.let_go();
        Ok(())
    }

    /// Lets pages go beyond those that may be in memory, of all members in turn. What is not saved yet stays: false if that is too much.
    fn let_go(&mut self) -> bool {
        let residency = self.disk.residency.clone();
        if !residency.is_over() {
            return true;
        }
        let enough = residency.max() - residency.max() / SPARE_PART;
        let groups: Vec<GroupId> = self.with_store(|store| store.groups().collect());
        // Those first that were not the last ones; some at a time, so that none loses all.
        let hand = self.disk.hand.load(Ordering::Relaxed);
        let first = groups.partition_point(|group| group.0 <= hand);
        let mut idle = 0;
        for group in groups.iter().cycle().skip(first) {
            if residency.pages() <= enough || idle > IDLE_TURNS * groups.len() {
                break;
            }
            let mut gone = 0;
            self.look_at(*group, |member| gone = member.let_go(PAGES_AT_ONCE));
            idle = if gone == 0 { idle + 1 } else { 0 };
            self.disk.hand.store(group.0, Ordering::Relaxed);
        }
        let _ = self.disk.note_room();
        !residency.is_over()
    }

    /// Members that are to be saved now, those first whose records lie furthest back; and whether for the sake of the journal's room alone.
    fn due(&mut self, journal: &Committer, is_late: bool) -> Vec<(GroupId, bool)> {
        let is_full = self.is_full(journal);
        let groups: Vec<GroupId> = self.with_store(|store| store.groups().collect());
        let mut due = Vec::new();
        for group in groups {
            let (mut is_here, mut changed, mut waits) = (false, false, false);
            self.look_at(group, |member| {
                is_here = true;
                changed = member.unsaved() > 0;
                waits = member.wants_save();
            });
            let wanted = waits || (is_late && changed);
            if wanted || (is_full && is_here) {
                due.push((group, !wanted));
            }
        }
        self.with_store(|store| due.sort_by_key(|(group, _)| store.needed_from_of(*group)));
        due
    }

    /// The journal is to let go of records, for the sake of its ring or of places in the page file.
    fn is_full(&mut self, journal: &Committer) -> bool {
        let is_full = taken(journal) > journal.look(|journal| journal.ring_bytes()) / FULL_PART;
        is_full || self.with_store(|store| store.is_short_of_places())
    }

    fn look_at(&mut self, group: GroupId, look: impl FnOnce(&mut Member)) {
        let mut look = Some(look);
        self.with_member(group, &mut |member, _| {
            if let Some(look) = look.take() {
                look(member);
            }
        });
    }

    /// Lets go of the records that no start needs.
    fn release(&mut self, journal: &Committer, groups: &[GroupId]) {
        for group in groups.iter().copied() {
            let mut before = None;
            self.look_at(group, |member| before = member.needed_from());
            if let Some(before) = before {
                self.with_store(|store| store.release(group, before));
            }
        }
        // First what is synced: a record that comes later is not let go by it.
        let all = journal.synced() + 1;
        let needed = self.with_store(|store| store.needed_from());
        let from = needed.map_or(all, |from| from.min(all));
        if from > journal.look(|journal| journal.kept_from()) {
            journal.let_go(from);
            journal.want_room();
        }
        let _ = self.disk.note_room();
    }
}

/// If there is no room for pages, all goes on without: they count as changed, and the journal keeps what they lack. One that was written again while it
/// was saved is saved the next time. Other errors are the disk's.
fn note(outcome: Result<(), SaveError>) -> Result<(), String> {
    match outcome {
        Err(SaveError::Pages { group, error }) if is_written_again(&error) => {
            tracing::debug!(%group, %error, "a page was written again while it was saved");
            Ok(())
        }
        Err(SaveError::Pages { group, error }) if !matches!(error, PageFileError::Failed(_)) => {
            tracing::warn!(%group, %error, "pages cannot be saved now");
            Ok(())
        }
        outcome => outcome.map_err(|error| error.to_string()),
    }
}

/// True if the journal has let go of the version of a page that was to be saved: a newer one is in its place.
fn is_written_again(error: &PageFileError) -> bool {
    matches!(error, PageFileError::NotHeld { .. })
}

/// Bytes of the ring that hold records.
fn taken(journal: &Committer) -> u64 {
    journal.look(|journal| journal.ring_bytes() - journal.room_reserved())
}

impl SaveDriver for Saver<'_> {
    fn with_member(
        &mut self,
        group: GroupId,
        act: &mut dyn FnMut(&mut Member, &mut Effects),
    ) -> bool {
        let routes = self.host.routes();
        let mut cells = routes.cells_of(group);
        cells
            .next()
            .is_some_and(|cell| cell.with_member(self.host, self.disk, act))
    }

    fn with_store<R>(&mut self, act: impl FnOnce(&mut DiskStore) -> R) -> R {
        act(&mut self.disk.store.lock())
    }

    fn append_waiting(&mut self) {
        self.disk.hand_over([]);
    }

    fn wait(&mut self, group: GroupId, records: u64) -> Result<bool, String> {
        self.disk.wait(group, records)
    }

    fn pages(&self) -> &dyn Device {
        &self.disk.pages
    }

    fn table(&self) -> &dyn Device {
        &self.disk.table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: pages that were overwritten while they were saved were warned of as ones without room.
    #[test]
    fn a_page_that_was_written_again_is_no_lack_of_room() {
        let (group, page) = (7, 3);
        assert!(is_written_again(&PageFileError::NotHeld { group, page }));
        let failed = PageFileError::Failed("a sync".into());
        assert!(!is_written_again(&failed));
        let pages = |error| {
            Err(SaveError::Pages {
                group: GroupId(group),
                error,
            })
        };
        assert_eq!(note(pages(PageFileError::NotHeld { group, page })), Ok(()));
        assert!(note(pages(failed)).is_err());
    }
}
