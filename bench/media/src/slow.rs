//! Files as a slow medium gives them: a wrapper that sleeps.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use staves_mount::{FileError, Files, Stat, Used};

use crate::model::{Head, store};

/// Which medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Model {
    /// A disk with one head: 8 ms for a jump, 150 MB/s. Names and attributes cost nothing.
    Disk,
    /// An object store: 5 ms for each request, 100 MB/s each, any number at a time.
    Store,
}

/// What was asked of a medium.
#[derive(Debug, Default)]
pub struct Figures {
    /// Reads.
    pub reads: AtomicU64,
    /// Bytes of them.
    pub bytes: AtomicU64,
    /// Nanoseconds that they take by the model, one after the other.
    pub modelled_ns: AtomicU64,
}

/// The wrapper.
pub struct Slow<F> {
    files: F,
    model: Model,
    head: Mutex<Head>,
    began: Instant,
    /// By how much the store's answers came too late in all: as much sooner do the next ones come.
    late_ns: AtomicU64,
    figures: Arc<Figures>,
}

/// A file of it. The head knows it by its number.
pub struct SlowFile<T> {
    file: T,
    number: u64,
}

impl<F: Files> Slow<F> {
    /// Files at the pace of a medium.
    pub fn new(files: F, model: Model, figures: Arc<Figures>) -> Slow<F> {
        Slow {
            files,
            model,
            head: Mutex::default(),
            began: Instant::now(),
            late_ns: AtomicU64::new(0),
            figures,
        }
    }

    /// A request without bytes.
    fn ask(&self) {
        if self.model == Model::Store {
            self.answer_after(store(0));
        }
    }

    /// A store's answer, so late that it is right on average: the system wakes us up some time after we asked for.
    fn answer_after(&self, cost: Duration) {
        let since = Instant::now();
        let late = Duration::from_nanos(self.late_ns.swap(0, Ordering::Relaxed));
        sleep(cost.saturating_sub(late));
        let late = (since.elapsed() + late).saturating_sub(cost);
        self.late_ns
            .fetch_add(late.as_nanos() as u64, Ordering::Relaxed);
    }

    fn wait(&self, file: u64, offset: u64, bytes: u64) {
        let cost = match self.model {
            Model::Store => {
                let cost = store(bytes);
                self.answer_after(cost);
                cost
            }
            Model::Disk => self.turn(file, offset, bytes),
        };
        let figures = &self.figures;
        figures.reads.fetch_add(1, Ordering::Relaxed);
        figures.bytes.fetch_add(bytes, Ordering::Relaxed);
        figures
            .modelled_ns
            .fetch_add(cost.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The head is held as long as it works: reads come one after the other.
    fn turn(&self, file: u64, offset: u64, bytes: u64) -> Duration {
        let mut head = self.head.lock();
        let before = head.busy;
        let done = head.read(self.began.elapsed(), file, offset, bytes);
        sleep(done.saturating_sub(self.began.elapsed()));
        head.late = self.began.elapsed().saturating_sub(done);
        head.busy - before
    }
}

impl<F: Files> Files for Slow<F> {
    type File = SlowFile<F::File>;

    fn stat(&self, path: &Path) -> Result<Stat, FileError> {
        self.ask();
        self.files.stat(path)
    }

    fn list(&self, path: &Path) -> Result<Vec<(OsString, Stat)>, FileError> {
        self.ask();
        self.files.list(path)
    }

    fn open(&self, path: &Path) -> Result<Self::File, FileError> {
        let file = self.files.open(path)?;
        // The same file is the same place, however often it is opened.
        let [number, _] = self.files.stat_open(&file).version.0;
        Ok(SlowFile { file, number })
    }

    fn stat_open<'a>(&self, file: &'a Self::File) -> &'a Stat {
        self.files.stat_open(&file.file)
    }

    fn read(&self, file: &Self::File, offset: u64, into: &mut [u8]) -> Result<usize, FileError> {
        self.wait(file.number, offset, into.len() as u64);
        self.files.read(&file.file, offset, into)
    }

    fn used(&self) -> Used {
        self.files.used()
    }
}
