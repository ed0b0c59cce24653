//! The health of a disk: whether it gets on, and what becomes of it once it has failed.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{NodeDisk, closed};

/// Two looks at the progress that lie further apart count as this.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// A disk that syncs nothing for so long does not answer.
const DOES_NOT_ANSWER: Duration = Duration::from_secs(8);

/// The progress of the journal, as it was looked at.
#[derive(Default)]
pub(super) struct Progress {
    synced: u64,
    looked: Option<Instant>,
    stands_still: Duration,
}

impl Progress {
    /// The time for which it has stood still though it had something to do. One in which nobody looked, because the process stood still, hardly counts.
    fn look(&mut self, now: Instant, synced: u64, is_busy: bool) -> Duration {
        let since = self.looked.replace(now);
        let since = since.map_or(Duration::ZERO, |since| now.duration_since(since));
        let moved = std::mem::replace(&mut self.synced, synced) != synced;
        match is_busy && !moved {
            true => self.stands_still += since.min(LOOK_MAX),
            false => self.stands_still = Duration::ZERO,
        }
        self.stands_still
    }
}

impl NodeDisk {
    /// A page that is needed cannot be had: nothing that follows from it may leave the process, which ends here. The next start looks at every page, and has
    /// those that are not good filled from other nodes.
    pub(crate) fn ends_process(&self, why: &str) -> ! {
        // Whoever hears that it has failed may end the process first.
        if let Err(error) = closed::suspect(&self.folder) {
            tracing::error!(%error, "the disk cannot be marked as one to look at");
        }
        self.fail(why);
        eprintln!(
            "error: the disk {} has failed: {why}; start the node again, and it looks at every page",
            self.folder.display()
        );
        std::process::exit(1)
    }

    /// It takes new members.
    pub(crate) fn is_home(&self) -> bool {
        self.failed.get().is_none() && !self.is_draining() && !self.is_closed()
    }

    /// It is taken out, and has no members: the thread that saves pages ends, and the journal's with the last that knows of it.
    pub(crate) fn close(&self) {
        self.set_closed(true);
        self.saver.wake();
    }

    pub(crate) fn set_closed(&self, on: bool) {
        self.closed.store(on, Ordering::Relaxed);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Looks whether the journal gets on, now and then: one that stands still for long has a disk that does not answer.
    pub(crate) fn look_at_progress(&self, now: Instant) {
        // One that has failed syncs nothing any more, and its buckets are given up: that is no reason to end the node.
        if self.failure().is_some() {
            return;
        }
        let Some(journal) = self.journal.get() else {
            return;
        };
        let (last, synced) = journal.look(|journal| (journal.last(), journal.synced()));
        let stands_still = self.progress.lock().look(now, synced, synced < last);
        if stands_still >= DOES_NOT_ANSWER {
            // Whoever reads a page of it hangs, with the lock of a bucket.
            self.end_node("it has not answered for too long");
        }
    }

    /// D-9: nothing is tried again. What is on it is given up, or, if it is the only one, the node ends and returns as another life.
    pub(crate) fn fail(&self, why: &str) {
        if self.failed.set(why.to_owned()).is_ok() {
            tracing::error!(disk = %self.folder.display(), %why, "a disk has failed");
        }
        self.synced.notify_all();
        self.saver.wake();
        self.failing.notify_one();
    }

    /// It fails in such a way that the node cannot go on without it: its buckets must not be given up, or whoever touches it waits for ever.
    pub(crate) fn end_node(&self, why: &str) {
        self.ends_node.store(true, Ordering::Relaxed);
        self.fail(why);
    }

    pub(crate) fn ends_node(&self) -> bool {
        self.ends_node.load(Ordering::Relaxed)
    }

    /// The reason why it is not used any more, if it is not.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }
}
