//! Files as a slow medium gives them: a wrapper that sleeps.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use staves_mount::{FileError, Files, Listing, Stat, Used};

use crate::model::{Head, store};

/// The medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Model {
    /// A disk with one head: 8 ms for a jump, 150 MB/s. Names and attributes cost nothing.
    Disk,
    /// An object store: 5 ms for each request, 100 MB/s each, any number at a time.
    Store,
    /// This process's own memory: the most that any file system in a process can give.
    Ram,
}

/// The requests to a medium.
#[derive(Debug, Default)]
pub struct Figures {
    /// Requests for names and attributes.
    pub asks: AtomicU64,
    /// Reads.
    pub reads: AtomicU64,
    /// Bytes of them.
    pub bytes: AtomicU64,
    /// Nanoseconds that they take by the model, one after the other.
    pub modelled_ns: AtomicU64,
}

/// A medium, which several mounts may share: a server's disk has one head, however many clients it has.
pub struct Medium {
    model: Model,
    head: Mutex<Head>,
    began: Instant,
    /// By how much the store's answers came too late in all: as much sooner do the next ones come.
    late_ns: AtomicU64,
    /// The content in memory, by number.
    ram: Mutex<BTreeMap<u64, Arc<Vec<u8>>>>,
    /// The requests so far.
    pub figures: Figures,
}

/// The wrapper.
pub struct Slow<F> {
    files: F,
    medium: Arc<Medium>,
}

/// A file of it. The head knows it by its number.
pub struct SlowFile<T> {
    file: T,
    number: u64,
    ram: Option<Arc<Vec<u8>>>,
}

impl Medium {
    /// A medium that nothing was asked of yet.
    pub fn new(model: Model) -> Medium {
        Medium {
            model,
            head: Mutex::default(),
            began: Instant::now(),
            late_ns: AtomicU64::new(0),
            ram: Mutex::default(),
            figures: Figures::default(),
        }
    }

    /// A request without bytes.
    fn ask(&self) {
        self.figures.asks.fetch_add(1, Ordering::Relaxed);
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
            Model::Ram => Duration::ZERO,
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

impl<F: Files> Slow<F> {
    /// Files at the pace of a medium.
    pub fn new(files: F, medium: Arc<Medium>) -> Slow<F> {
        Slow { files, medium }
    }

    /// All bytes of a file, read when it is first opened.
    fn load(&self, file: &F::File, number: u64) -> Result<Arc<Vec<u8>>, FileError> {
        let mut ram = self.medium.ram.lock();
        if let Some(known) = ram.get(&number) {
            return Ok(known.clone());
        }
        let mut bytes = vec![0; self.files.stat_open(file).size as usize];
        let read = self.files.read(file, 0, &mut bytes)?;
        bytes.truncate(read);
        Ok(ram.entry(number).or_insert(Arc::new(bytes)).clone())
    }
}

impl<F: Files> Files for Slow<F> {
    type File = SlowFile<F::File>;

    fn stat(&self, path: &Path) -> Result<Stat, FileError> {
        self.medium.ask();
        self.files.stat(path)
    }

    fn list(&self, path: &Path) -> Result<Listing, FileError> {
        self.medium.ask();
        self.files.list(path)
    }

    fn open(&self, path: &Path) -> Result<Self::File, FileError> {
        let file = self.files.open(path)?;
        // The same file is the same place, however often it is opened.
        let [number, _] = self.files.stat_open(&file).version.0;
        let ram = match self.medium.model {
            Model::Ram => Some(self.load(&file, number)?),
            _ => None,
        };
        Ok(SlowFile { file, number, ram })
    }

    fn stat_open<'a>(&self, file: &'a Self::File) -> &'a Stat {
        self.files.stat_open(&file.file)
    }

    fn read(&self, file: &Self::File, offset: u64, into: &mut [u8]) -> Result<usize, FileError> {
        self.medium.wait(file.number, offset, into.len() as u64);
        if let Some(ram) = &file.ram {
            let left = ram.get(offset as usize..).unwrap_or_default();
            let len = left.len().min(into.len());
            into[..len].copy_from_slice(&left[..len]);
            return Ok(len);
        }
        self.files.read(&file.file, offset, into)
    }

    fn used(&self) -> Used {
        self.files.used()
    }
}

#[cfg(test)]
mod tests {
    use staves_mount::Folder;

    use super::*;

    #[test]
    fn several_mounts_share_a_medium_and_memory_gives_the_bytes_of_the_folder() {
        let folder = std::env::temp_dir().join(format!("staves-slow-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        let bytes: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(folder.join("file"), &bytes).expect("a file can be written");
        for model in [Model::Disk, Model::Ram] {
            let medium = Arc::new(Medium::new(model));
            for _ in 0..2 {
                let files = Folder::open(&folder).expect("it is there");
                let slow = Slow::new(files, medium.clone());
                let open = slow.open(Path::new("file")).expect("it is there");
                let mut into = vec![0; 1000];
                let read = slow.read(&open, 99_500, &mut into).expect("it is read");
                assert_eq!(&into[..read], &bytes[99_500..], "{model:?}");
            }
            let figures = &medium.figures;
            assert_eq!(figures.reads.load(Ordering::Relaxed), 2, "{model:?}");
            assert_eq!(medium.ram.lock().len(), usize::from(model == Model::Ram));
        }
        std::fs::remove_dir_all(folder).expect("the folder goes");
    }
}
