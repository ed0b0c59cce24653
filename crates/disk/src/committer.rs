//! The thread of a journal: it writes and syncs for all that wait.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::device::Device;
use crate::journal::{Journal, JournalError};
use crate::placed::RecordBytes;

/// A journal, its device, and a thread that commits whatever was appended, again and again. Dropping it commits what there is, marks the end and
/// waits for the thread, as [`close`](Self::close) does; the outcome is lost then.
#[derive(Debug)]
pub struct Committer {
    shared: Arc<CommitQueue>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct CommitQueue {
    state: Mutex<QueueState>,
    /// There is something to commit, or the end has come.
    work: Condvar,
    /// A commit has ended.
    ended: Condvar,
    /// [`Journal::synced`], for those who need no lock for it.
    synced: AtomicU64,
    commits: AtomicU64,
    commits_us: AtomicU64,
}

#[derive(Debug)]
struct QueueState {
    journal: Journal,
    closing: bool,
}

impl Committer {
    /// Starts the thread. `told` hears from it, after each commit, up to which record all is durable, or once why nothing is any more. It holds up the
    /// next commit while it runs; if it panics, the journal has failed.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn start(
        journal: Journal,
        device: Box<dyn Device>,
        told: impl Fn(Result<u64, &str>) + Send + 'static,
    ) -> std::io::Result<Committer> {
        Committer::start_with(journal, device, None, told)
    }

    /// The same of a journal whose records have blocks in a page file, which nobody else syncs through the same handle: a system tells of an error once for each.
    ///
    /// # Errors
    /// As [`Committer::start`].
    pub fn start_with(
        journal: Journal,
        device: Box<dyn Device>,
        pages: Option<Box<dyn Device>>,
        told: impl Fn(Result<u64, &str>) + Send + 'static,
    ) -> std::io::Result<Committer> {
        let shared = Arc::new(CommitQueue {
            synced: AtomicU64::new(journal.synced()),
            commits: AtomicU64::new(0),
            commits_us: AtomicU64::new(0),
            state: Mutex::new(QueueState {
                journal,
                closing: false,
            }),
            work: Condvar::new(),
            ended: Condvar::new(),
        });
        let its = shared.clone();
        let thread = std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || its.run((&*device, pages.as_deref()), &told))?;
        Ok(Committer {
            shared,
            thread: Some(thread),
        })
    }

    /// Appends a record; returns its number. It is on its way to the disk then.
    ///
    /// # Errors
    /// See [`Journal::append`].
    pub fn append(&self, record: &[u8]) -> Result<u64, JournalError> {
        // Also where there was no room: what was let go comes back by a commit.
        self.change(|journal| journal.append(record))
    }

    /// Appends a record with blocks in the page file. See [`Journal::append_placed`].
    ///
    /// # Errors
    /// See [`Journal::append`].
    pub fn append_placed(
        &self,
        record: &RecordBytes<'_>,
        frees: bool,
    ) -> Result<u64, JournalError> {
        self.change(|journal| journal.append_placed(record, frees))
    }

    /// Appends a record that may fill the reserved room. See [`Journal::append_reserved`].
    ///
    /// # Errors
    /// See [`Journal::append`].
    pub fn append_reserved(&self, record: &[u8]) -> Result<u64, JournalError> {
        self.change(|journal| journal.append_reserved(record))
    }

    /// Lets go of all records below a number. See [`Journal::let_go`].
    ///
    /// # Panics
    /// If one of them is not durable.
    pub fn let_go(&self, below: u64) {
        self.change(|journal| journal.let_go(below));
    }

    /// Asks for the room of what was let go. See [`Journal::want_room`].
    pub fn want_room(&self) {
        self.change(Journal::want_room);
    }

    fn change<T>(&self, change: impl FnOnce(&mut Journal) -> T) -> T {
        let outcome = change(&mut self.shared.state.lock().journal);
        self.shared.work.notify_one();
        outcome
    }

    /// Looks at the journal: at its room, its last record, its failure. Whoever appends waits meanwhile.
    pub fn look<T>(&self, look: impl FnOnce(&Journal) -> T) -> T {
        look(&self.shared.state.lock().journal)
    }

    /// The number up to which all records are durable.
    pub fn synced(&self) -> u64 {
        self.shared.synced.load(Ordering::Acquire)
    }

    /// The commits since the thread began, and the time that their writes and syncs took together.
    pub fn commits(&self) -> (u64, Duration) {
        let count = self.shared.commits.load(Ordering::Relaxed);
        let took = self.shared.commits_us.load(Ordering::Relaxed);
        (count, Duration::from_micros(took))
    }

    /// Waits until a record is durable. False when the time is over.
    ///
    /// # Errors
    /// The journal has failed: the record may be durable or not.
    pub fn wait(&self, number: u64, timeout: Duration) -> Result<bool, JournalError> {
        // None is later than any time that there is.
        let until = Instant::now().checked_add(timeout);
        let mut state = self.shared.state.lock();
        let mut is_over = false;
        while self.synced() < number && !is_over {
            if let Some(why) = state.journal.failed() {
                return Err(JournalError::Failed(why.into()));
            }
            match until {
                Some(until) => {
                    is_over = self.shared.ended.wait_until(&mut state, until).timed_out()
                }
                None => self.shared.ended.wait(&mut state),
            }
        }
        Ok(self.synced() >= number)
    }

    /// Commits what there is, marks the journal's end on disk and ends the thread; the device is given back to the system. Called by
    /// `told`, on the thread itself, it waits for nothing: all that is done once `told` has returned.
    ///
    /// # Errors
    /// The journal has failed.
    pub fn close(mut self) -> Result<(), JournalError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), JournalError> {
        let mut state = self.shared.state.lock();
        state.closing = true;
        state.journal.mark_end();
        drop(state);
        self.shared.work.notify_one();
        let own = std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(|its| its.thread().id() != own) {
            // Its panics are caught: they are the journal's failure.
            let _ = thread.join();
        }
        self.look(|journal| match journal.failed() {
            Some(why) => Err(JournalError::Failed(why.into())),
            None => Ok(()),
        })
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// A journal's device, and that of the page file beside it.
type Devices<'a> = (&'a dyn Device, Option<&'a dyn Device>);

impl CommitQueue {
    fn run(&self, devices: Devices<'_>, told: &dyn Fn(Result<u64, &str>)) {
        if catch_unwind(AssertUnwindSafe(|| self.commit_all(devices, told))).is_ok() {
            return;
        }
        let why = "its thread panicked";
        self.state.lock().journal.fail(why.into());
        self.ended.notify_all();
        // The panic may have been that of `told`: one more changes nothing.
        let _ = catch_unwind(AssertUnwindSafe(|| told(Err(why))));
    }

    fn commit_all(&self, (device, pages): Devices<'_>, told: &dyn Fn(Result<u64, &str>)) {
        let mut state = self.state.lock();
        loop {
            let Some(commit) = state.journal.next_commit() else {
                if state.closing || state.journal.failed().is_some() {
                    return;
                }
                self.work.wait(&mut state);
                continue;
            };
            let began = Instant::now();
            let performed = MutexGuard::unlocked(&mut state, || commit.perform_with(device, pages));
            #[allow(clippy::cast_possible_truncation)] // half a million years
            let took = began.elapsed().as_micros() as u64;
            self.commits.fetch_add(1, Ordering::Relaxed);
            self.commits_us.fetch_add(took, Ordering::Relaxed);
            // It fails as the journal does, which is looked at below.
            let _ = state.journal.finish(performed);
            let synced = state.journal.synced();
            let failed = state.journal.failed().map(str::to_owned);
            self.synced.store(synced, Ordering::Release);
            self.ended.notify_all();
            MutexGuard::unlocked(&mut state, || {
                told(failed.as_deref().map_or(Ok(synced), Err))
            });
        }
    }
}
