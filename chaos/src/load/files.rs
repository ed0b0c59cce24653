//! Readers of a dataset: two mounts, one beside clients and one beside the first node, and the client library.
//!
//! Every 512 bytes of a file say which file, which version and which offset they are, and the rest follows from
//! these: wrong bytes, bytes of another place and mixed versions show by themselves. Files are overwritten by
//! others of the same size, those of even number in place and the others by renaming, and a count for each file says whether
//! it is being overwritten just now (odd) or in which version it is (even, the double of it).

pub mod block;
mod mount;
mod source;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use staves_client::{Client, ClientOptions, SourceError};

use self::mount::Mount;
pub use self::source::{FILE_BYTES, FILES, Source};
use super::{PAUSE, REST, Shared};
use crate::judge::Stall;
use crate::lab::Lab;

/// The pool and the dataset.
pub const NAME: &str = "chaos-files";
/// Memory of each node for it: less than all files take, so that blocks are evicted, too.
pub const MEMORY: &str = "12MiB";
/// Reads of a file that was opened once.
const READS: usize = 12;
/// Most bytes of one read.
const READ_MAX: u64 = 128 << 10;
/// After this a new version is seen by whoever opens the file: a mount remembers names for one second.
const SEEN_AFTER: Duration = Duration::from_secs(10);
/// Readers on each way.
const READERS: u64 = 2;
/// Complaints that are reported one by one.
const COMPLAINTS_MAX: u64 = 10;
/// Most that a file has to be opened anew at the end until it is read whole.
const TRIES: u32 = 200;

/// The readers' counts, but for complaints.
#[derive(Default)]
struct Tally {
    /// Reads that were answered, and checked.
    reads: AtomicU64,
    /// Reads and openings that were refused because the file had changed.
    stale: AtomicU64,
    complaints: AtomicU64,
    longest_us: AtomicU64,
    longest_from_ns: AtomicU64,
}

impl Tally {
    /// The longest time that one reader waited for one read, and when it began.
    fn longest(&self) -> (Duration, u64) {
        let longest = Duration::from_micros(self.longest_us.load(Ordering::Relaxed));
        (longest, self.longest_from_ns.load(Ordering::Relaxed))
    }

    fn took(&self, took: Duration, from_ns: u64) {
        let us = took.as_micros() as u64;
        if self.longest_us.fetch_max(us, Ordering::Relaxed) < us {
            self.longest_from_ns.store(from_ns, Ordering::Relaxed);
        }
    }
}

/// The dataset of a run, its mounts and what was read. Unmounted when dropped.
pub struct Files {
    /// The source.
    pub source: Arc<Source>,
    tally: Arc<Tally>,
    mounts: Vec<Mount>,
}

/// The way in which a file is read.
#[derive(Clone)]
enum Way {
    /// Through a mount, by its place among them and its folder.
    Mount(&'static str, std::path::PathBuf),
    /// Through the client library.
    Client(Vec<String>),
}

/// The reason that bytes were not read.
#[derive(Debug)]
enum Failed {
    /// Another version is there.
    Stale,
    /// Something else.
    Other(String),
}

impl Files {
    /// Writes the source, into the run's folder.
    pub fn new(folder: &std::path::Path, shared: &Arc<Shared>) -> anyhow::Result<Files> {
        Ok(Files {
            source: Arc::new(Source::make(&folder.join("source"), shared)?),
            tally: Arc::default(),
            mounts: Vec::new(),
        })
    }

    /// Mounts it where clients are and where the first node is. False where nothing can be mounted.
    pub fn mount(
        &mut self,
        program: &std::path::Path,
        lab: &Lab,
        doors: &[String],
    ) -> anyhow::Result<bool> {
        let device = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse");
        if device.is_err() {
            return Ok(false);
        }
        let mut near = lab.command(0);
        near.arg(program);
        for (name, command) in [("far", Command::new(program)), ("near", near)] {
            let mount = Mount::start(command, name, self.source.folder(), doors)?;
            self.mounts.push(mount);
        }
        Ok(true)
    }

    fn ways(&self, doors: &[String]) -> Vec<Way> {
        let mounts = self.mounts.iter();
        let mounts = mounts.map(|m| Way::Mount(m.name(), m.point().to_owned()));
        mounts.chain([Way::Client(doors.to_vec())]).collect()
    }

    /// Starts readers on threads of their own, in the caller's namespace.
    pub fn start(&self, shared: &Arc<Shared>, seed: u64) -> Vec<JoinHandle<()>> {
        let doors = shared.native_doors();
        let mut threads = Vec::new();
        for (at, way) in self.ways(&doors).into_iter().enumerate() {
            for number in 0..READERS {
                let process = at as u64 * READERS + number;
                let rng = SmallRng::seed_from_u64(seed ^ (process + 1) << 40);
                let reader = self.reader(shared, rng, way.clone());
                threads.push(std::thread::spawn(move || reader.run()));
            }
        }
        threads
    }

    fn reader(&self, shared: &Arc<Shared>, rng: SmallRng, way: Way) -> Reader {
        Reader {
            shared: shared.clone(),
            source: self.source.clone(),
            tally: self.tally.clone(),
            rng,
            way,
        }
    }

    /// Reads that were answered, and such that were refused because the file had changed.
    pub fn counts(&self) -> (usize, usize) {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed) as usize;
        (count(&self.tally.reads), count(&self.tally.stale))
    }

    /// The longest that any reader waited for one read.
    pub fn worst_stall(&self) -> Stall {
        let (length, from) = self.tally.longest();
        Stall {
            key: "a read of files".into(),
            from,
            length,
        }
    }

    /// Reads all files once more, each way; what is wrong is complained of.
    pub fn read_all(&self, shared: &Arc<Shared>) {
        for way in self.ways(&shared.native_doors()) {
            let reader = self.reader(shared, SmallRng::seed_from_u64(0), way);
            reader.read_all();
        }
    }

    /// Mounts whose process ended though nobody ended it, with its last words. Each is reported once.
    pub fn ended_by_themselves(&mut self) -> Vec<String> {
        self.mounts.iter_mut().filter_map(Mount::ended).collect()
    }
}

struct Reader {
    shared: Arc<Shared>,
    source: Arc<Source>,
    tally: Arc<Tally>,
    rng: SmallRng,
    way: Way,
}

/// A way, ready to open files.
enum Door {
    Mount(std::path::PathBuf),
    Client(tokio::runtime::Runtime, staves_client::Dataset),
}

/// An open file: reads of it.
type Open<'a> = Box<dyn Fn(u64, u64) -> Result<Vec<u8>, Failed> + 'a>;

impl Door {
    fn new(way: &Way, folder: &std::path::Path) -> anyhow::Result<Door> {
        match way {
            Way::Mount(_, point) => Ok(Door::Mount(point.clone())),
            Way::Client(doors) => {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(1)
                    .enable_all()
                    .build()?;
                let text = folder.to_str().context("the source's path is not UTF-8")?;
                let data = runtime.block_on(async {
                    let client = Client::connect(doors, ClientOptions::default()).await?;
                    client.dataset(NAME, NAME, text).await
                });
                Ok(Door::Client(runtime, data.context("no dataset")?))
            }
        }
    }

    fn open(&self, number: usize) -> Result<Open<'_>, Failed> {
        let name = source::name(number);
        match self {
            Door::Mount(point) => {
                let file = std::fs::File::open(point.join(name)).map_err(of_system)?;
                // What the kernel has kept was read before.
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
                    .map_err(|e| of_system(e.into()))?;
                Ok(Box::new(move |from, len| {
                    use std::os::unix::fs::FileExt;
                    let mut bytes = vec![0; len as usize];
                    let read = file.read_exact_at(&mut bytes, from);
                    read.map(|()| bytes).map_err(of_system)
                }))
            }
            Door::Client(runtime, data) => {
                let file = data.open(name.as_bytes()).map_err(of_source)?;
                Ok(Box::new(move |from, len| {
                    let read = runtime.block_on(data.read_at(&file, from, len as usize));
                    read.map(Vec::from).map_err(of_source)
                }))
            }
        }
    }
}

fn of_system(error: std::io::Error) -> Failed {
    match rustix::io::Errno::from_io_error(&error) {
        Some(rustix::io::Errno::STALE) => Failed::Stale,
        _ => Failed::Other(error.to_string()),
    }
}

fn of_source(error: SourceError) -> Failed {
    match error {
        SourceError::Changed { .. } => Failed::Stale,
        error => Failed::Other(error.to_string()),
    }
}

impl Reader {
    fn name(&self) -> &'static str {
        match self.way {
            Way::Mount(name, _) => name,
            Way::Client(_) => "client",
        }
    }

    fn complain(&self, what: String) {
        if self.tally.complaints.fetch_add(1, Ordering::Relaxed) < COMPLAINTS_MAX {
            self.shared
                .complain(format!("a reader ({}): {what}", self.name()));
        }
    }

    fn run(mut self) {
        let door = match Door::new(&self.way, self.source.folder()) {
            Ok(door) => door,
            Err(error) => return self.complain(format!("cannot begin: {error:#}")),
        };
        while !self.shared.stopped() {
            let number = self.rng.random_range(0..FILES);
            let well = self.visit(&door, number);
            std::thread::sleep(if well { REST } else { PAUSE });
        }
    }

    /// Opens a file and reads here and there, or in order. Whether it was there all the time.
    fn visit(&mut self, door: &Door, number: usize) -> bool {
        let before = self.source.state(number);
        let began = self.shared.now();
        let open = match self.timed(|| door.open(number)) {
            Ok(open) => open,
            Err(failed) => return self.excused(number, before.count, began, failed),
        };
        let steady =
            before.count.is_multiple_of(2) && self.source.state(number).count == before.count;
        let in_order = self.rng.random_bool(0.3);
        let mut version = None;
        let mut at = 0;
        for _ in 0..READS {
            let from = match in_order {
                true => at,
                false => self.rng.random_range(0..FILE_BYTES / block::BYTES) * block::BYTES,
            };
            let most = READ_MAX.min(FILE_BYTES - from) / block::BYTES;
            let blocks = match in_order {
                true => most,
                false => self.rng.random_range(1..=most),
            };
            if blocks == 0 {
                break; // all was read in order
            }
            let len = blocks * block::BYTES;
            at = from + len;
            let began = self.shared.now();
            let bytes = match self.timed(|| open(from, len)) {
                Ok(bytes) => bytes,
                Err(failed) => return self.excused(number, before.count, began, failed),
            };
            self.tally.reads.fetch_add(1, Ordering::Relaxed);
            self.look_at(number, from, &bytes, steady, &mut version);
        }
        if let (Some(version), true) = (version, steady) {
            self.look_at_version(number, version, &before);
        }
        true
    }

    fn timed<T>(&self, what: impl FnOnce() -> T) -> T {
        let (from, began) = (self.shared.now(), Instant::now());
        let done = what();
        self.tally.took(began.elapsed(), from);
        done
    }

    /// A file that changed may say so. False, for a rest after it.
    fn excused(&self, number: usize, count: u64, began: u64, failed: Failed) -> bool {
        let now = self.source.state(number);
        let lately = now.count > 0 && now.changed_ns + SEEN_AFTER.as_nanos() as u64 > began;
        match failed {
            Failed::Stale if now.count != count || lately => {
                self.tally.stale.fetch_add(1, Ordering::Relaxed);
            }
            failed => self.complain(format!(
                "file {number} was not read though its source is there: {failed:?} at {:.3} s (its count is {}, was {count})",
                began as f64 / 1e9,
                now.count
            )),
        }
        false
    }

    /// Bytes that were read: those of the file and the place, and all of one version, which is known from then on. A file that was
    /// being overwritten in place as it was opened had no version then: nothing is asked of it.
    fn look_at(
        &self,
        number: usize,
        from: u64,
        bytes: &[u8],
        steady: bool,
        version: &mut Option<u32>,
    ) {
        if !steady && source::in_place(number) {
            return;
        }
        for (at, bytes) in bytes.chunks(block::BYTES as usize).enumerate() {
            let offset = from + at as u64 * block::BYTES;
            match block::version(bytes, number as u32, offset) {
                Ok(found) if *version.get_or_insert(found) == found => {}
                Ok(found) => {
                    return self.complain(format!(
                        "file {number} is a mix: version {found} at {offset}, {} before",
                        version.unwrap_or(found)
                    ));
                }
                Err(wrong) => {
                    return self.complain(format!("file {number} at {offset}: {wrong}"));
                }
            }
        }
    }

    fn look_at_version(&self, number: usize, version: u32, before: &source::State) {
        let newest = (before.count / 2) as u32;
        let settled = before.changed_ns + (SEEN_AFTER.as_nanos() as u64) < before.now_ns;
        if version > newest || (settled && version < newest) {
            self.complain(format!(
                "file {number} was opened in version {version}, when {newest} was there"
            ));
        }
    }

    fn read_all(&self) {
        let door = match Door::new(&self.way, self.source.folder()) {
            Ok(door) => door,
            Err(error) => return self.complain(format!("cannot read at the end: {error:#}")),
        };
        for number in 0..FILES {
            if let Err(why) = self.read_whole(&door, number) {
                self.complain(format!("file {number} at the end: {why}"));
            }
        }
    }

    /// Reads a file in its newest version, as soon as it is seen.
    fn read_whole(&self, door: &Door, number: usize) -> Result<(), String> {
        let newest = (self.source.state(number).count / 2) as u32;
        let mut last = String::new();
        for _ in 0..TRIES {
            let whole = door.open(number).and_then(|open| open(0, FILE_BYTES));
            match whole.map(|bytes| block::version_of_all(&bytes, number as u32)) {
                Ok(Ok(version)) if version == newest => return Ok(()),
                Ok(Ok(version)) => last = format!("still in version {version}, not {newest}"),
                Ok(Err(wrong)) => return Err(wrong),
                Err(Failed::Stale) => last = "it is still said to have changed".into(),
                Err(Failed::Other(why)) => return Err(why),
            }
            std::thread::sleep(PAUSE);
        }
        Err(last)
    }
}
