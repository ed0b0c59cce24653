//! The export: paths by their handles, open files and listings, each kept for a while.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::handle::{self, Handle};
use super::paths::Paths;
use super::recent::Recent;
use super::vain::Vain;
use crate::ahead::Ahead;
use crate::complaints::Complaints;
use crate::files::{FileError, Files, Kind, Stat};
use crate::listing::Listing;

/// Paths of which the attributes are cached.
const SEEN_MAX: usize = 1 << 16;
/// Files that stay open: NFSv3 has no close.
const OPEN_MAX: usize = 256;
/// Listings that are kept for clients that read them in pieces.
const LISTINGS_MAX: usize = 4;
/// The lifetime of such a listing.
pub(super) const LISTING: Duration = Duration::from_secs(60);
/// Longest wait for another's look at a folder; a client asks again then.
const TURN: Duration = Duration::from_secs(20);
/// Longest name of a file, as on other file systems; clients bear no longer ones.
pub const NAME_BYTES_MAX: usize = 255;

/// Status of an answer (RFC 1813, section 2.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status(pub u32);

impl Status {
    pub const NOENT: Status = Status(2);
    pub const IO: Status = Status(5);
    pub const ACCES: Status = Status(13);
    pub const NOTDIR: Status = Status(20);
    pub const ISDIR: Status = Status(21);
    pub const INVAL: Status = Status(22);
    pub const ROFS: Status = Status(30);
    pub const NAMETOOLONG: Status = Status(63);
    pub const STALE: Status = Status(70);
    pub const BADHANDLE: Status = Status(10001);
    pub const TOOSMALL: Status = Status(10005);
    /// Try again later.
    pub const JUKEBOX: Status = Status(10008);
}

/// Files, and what is known of them.
pub struct Export<S: Files> {
    files: S,
    /// Digest of the dataset's name: handles of another one are refused.
    dataset: u64,
    pub(super) lifetime: Duration,
    read_ahead_bytes: u64,
    complaints: Complaints,
    pub(super) paths: Paths,
    /// The cached attributes of paths, and their times.
    seen: Mutex<Recent<Arc<Path>, (Instant, Stat)>>,
    open: Mutex<Recent<u64, Arc<OpenFile<S::File>>>>,
    pub(super) listings: Mutex<Recent<Arc<Path>, Arc<PlacedListing>>>,
    vain: Vain,
    /// Each folder is looked at by one at a time, of a few at a time: a large one takes tens of MB and all that the source can do.
    turns: [Mutex<()>; LISTINGS_MAX],
}

/// A file that was read recently.
struct OpenFile<F> {
    file: F,
    ahead: Mutex<Ahead>,
    /// The time of the last check of its version.
    checked: Mutex<Instant>,
}

/// The content of a folder.
#[derive(Debug)]
pub struct PlacedListing {
    /// The look at its folder.
    began: Instant,
    pub(super) made: Instant,
    pub(super) names: Arc<Listing>,
    /// Its names are in the table of paths, or were.
    pub(super) is_noted: AtomicBool,
    /// Places in the listing, and which name is there. A place is a digest of the name: it stays the same whatever
    /// comes and goes around it, and so a listing can be gone on with by any server.
    places: Vec<(u64, usize)>,
}

/// Places of `.` and `..`.
pub const DOTS: [u64; 2] = [1, 2];

impl PlacedListing {
    fn new(names: Listing, began: Instant) -> PlacedListing {
        let place = |name: &OsStr| (xxh3_64(name.as_bytes()) >> 1).max(3);
        let shown = |(_, (name, _)): &(usize, (&OsStr, _))| name.len() <= NAME_BYTES_MAX;
        let named = names.iter().enumerate().filter(shown);
        let mut places: Vec<_> = named.map(|(at, (name, _))| (place(name), at)).collect();
        let name = |at: usize| names.get(at).map(|(name, _)| name);
        places.sort_unstable_by(|(a, x), (b, y)| a.cmp(b).then_with(|| name(*x).cmp(&name(*y))));
        let mut last = DOTS[1];
        for (place, _) in &mut places {
            // Two names in 2^63 that have the same digest.
            *place = (*place).max(last + 1);
            last = *place;
        }
        PlacedListing {
            began,
            made: Instant::now(),
            names: Arc::new(names),
            is_noted: AtomicBool::new(false),
            places,
        }
    }

    /// The entries behind a place.
    pub fn after(&self, place: u64) -> impl Iterator<Item = (u64, &OsStr, &Stat)> {
        let from = self.places.partition_point(|(at, _)| *at <= place);
        let names = self.places[from..].iter();
        names.filter_map(|(place, at)| self.names.get(*at).map(|(name, stat)| (*place, name, stat)))
    }
}

impl<S: Files> Export<S> {
    /// Nothing is open yet.
    pub fn new(files: S, name: &str, lifetime: Duration, read_ahead_bytes: u64) -> Export<S> {
        Export {
            files,
            dataset: xxh3_64_with_seed(name.as_bytes(), 1),
            lifetime,
            read_ahead_bytes,
            complaints: Complaints::default(),
            paths: Paths::new(),
            seen: Mutex::new(Recent::new(SEEN_MAX)),
            open: Mutex::new(Recent::new(OPEN_MAX)),
            listings: Mutex::new(Recent::new(LISTINGS_MAX)),
            vain: Vain::new(lifetime),
            turns: Default::default(),
        }
    }

    /// The mounted tree.
    pub fn files(&self) -> &S {
        &self.files
    }

    /// The number that distinguishes this file system from others.
    pub fn dataset(&self) -> u64 {
        self.dataset
    }

    /// The handle of what was seen at a path.
    pub fn handle(&self, path: &Path, stat: &Stat) -> Handle {
        let number = handle::number(path, stat);
        self.paths.put(number, path.into());
        Handle::new(self.dataset, path, number)
    }

    /// Says an error in the protocol's words, and in the log.
    fn fail(&self, path: &Path, error: &FileError) -> Status {
        self.complaints.log(path, error);
        match error {
            FileError::NotFound => Status::NOENT,
            FileError::Stale(_) => Status::STALE,
            // Clients ask again for ever, and their programs wait: only for what will be over.
            FileError::TimedOut(_) if self.vain.failed(path) && !self.files.is_away() => Status::IO,
            FileError::TimedOut(_) => Status::JUKEBOX,
            FileError::Denied(_) => Status::ACCES,
            FileError::Io(_) => Status::IO,
        }
    }

    /// An error, of what a client has a handle of: where there is nothing any more, the handle is stale.
    pub(super) fn fail_known(&self, path: &Path, error: &FileError) -> Status {
        match self.fail(path, error) {
            Status::NOENT => Status::STALE,
            status => status,
        }
    }

    /// The attributes at a path, at most one lifetime old: clients ask for the same again and again.
    fn see(&self, path: &Path) -> Result<Stat, FileError> {
        let path: Arc<Path> = path.into();
        let seen = self.seen.lock().get(&path);
        if let Some((when, stat)) = seen
            && when.elapsed() < self.lifetime
        {
            return Ok(stat);
        }
        let now = Instant::now();
        let stat = self.files.stat(&path)?;
        self.seen.lock().put(path, (now, stat.clone()));
        Ok(stat)
    }

    /// The entry of a handle, if it is there still.
    pub fn stat(&self, handle: &Handle) -> Result<(Arc<Path>, Stat), Status> {
        let path = self.path(handle)?;
        self.enter(&path)?;
        let stat = self.see(&path);
        let stat = stat.map_err(|error| self.fail_known(&path, &error))?;
        match handle::number(&path, &stat) == handle.number() {
            true => Ok((path, stat)),
            false => Err(Status::STALE),
        }
    }

    /// A folder's path.
    pub fn folder(&self, handle: &Handle) -> Result<Arc<Path>, Status> {
        let (path, stat) = self.stat(handle)?;
        match stat.kind {
            Kind::Folder => Ok(path),
            _ => Err(Status::NOTDIR),
        }
    }

    /// The attributes at a path now.
    pub fn look_up(&self, path: &Path) -> Result<Stat, Status> {
        self.enter(path)?;
        let stat = self.see(path);
        stat.map_err(|error| self.fail(path, &error))
    }

    /// Refuses paths in folders, below the exported one, that not everybody may enter: a client's identity is unknown.
    fn enter(&self, path: &Path) -> Result<(), Status> {
        let folders = path.ancestors().skip(1);
        for folder in folders.filter(|folder| !folder.as_os_str().is_empty()) {
            let stat = self.see(folder);
            let stat = stat.map_err(|error| self.fail(folder, &error))?;
            if stat.kind != Kind::Folder {
                return Err(Status::NOTDIR);
            }
            if stat.mode & 0o001 == 0 {
                return Err(Status::ACCES);
            }
        }
        Ok(())
    }

    /// Refuses what not everybody may read.
    pub fn may_read(&self, path: &Path, stat: &Stat) -> Result<(), Status> {
        match path.as_os_str().is_empty() || stat.mode & 0o004 != 0 {
            true => self.enter(path),
            false => Err(Status::ACCES),
        }
    }

    /// Reads bytes of the version that a handle stands for. `answer` is told what is known of the file and how many bytes
    /// there will be, and gives the room for them.
    pub fn read<'a>(
        &self,
        handle: &Handle,
        offset: u64,
        len: u64,
        answer: impl FnOnce(&Stat, usize) -> &'a mut [u8],
    ) -> Result<(), Status> {
        let open = self.open(handle)?;
        let stat = self.files.stat_open(&open.file);
        let bytes = len.min(stat.size.saturating_sub(offset));
        let ahead = open
            .ahead
            .lock()
            .step(offset.min(stat.size), bytes, stat.size);
        if let Some(range) = ahead {
            let bytes = range.end - range.start;
            self.files.will_read(&open.file, range.start, bytes);
        }
        let into = answer(stat, bytes as usize);
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let read = match self.files.read(&open.file, at, &mut into[done..]) {
                Ok(0) => Err(FileError::Stale(
                    "it is shorter than it was: open it again".into(),
                )),
                other => other,
            };
            done += read.map_err(|error| {
                let path = self.paths.get(handle.number());
                let path = path.unwrap_or_else(|| Path::new("").into());
                let status = self.fail_known(&path, &error);
                if status == Status::STALE {
                    self.open.lock().remove(&handle.number());
                    self.seen.lock().remove(&path);
                }
                status
            })?;
        }
        Ok(())
    }

    /// A file in the version that a handle stands for.
    fn open(&self, handle: &Handle) -> Result<Arc<OpenFile<S::File>>, Status> {
        let known = self.open.lock().get(&handle.number());
        if let Some(open) = known {
            match self.check(handle, &open) {
                Ok(()) => return Ok(open),
                Err(status) => {
                    self.open.lock().remove(&handle.number());
                    return Err(status);
                }
            }
        }
        let path = self.path(handle)?;
        let file = match self.files.open(&path) {
            Ok(file) => file,
            // What is no file cannot be opened, and errors differ.
            Err(error) => {
                return Err(match self.stat(handle)?.1.kind {
                    Kind::Folder => Status::ISDIR,
                    Kind::Link(_) => Status::INVAL,
                    Kind::File => self.fail_known(&path, &error),
                });
            }
        };
        let stat = self.files.stat_open(&file);
        // Looking at it was one look for all.
        let seen = (Instant::now(), stat.clone());
        self.seen.lock().put(path.clone(), seen);
        if handle::number(&path, stat) != handle.number() {
            return Err(Status::STALE);
        }
        self.may_read(&path, stat)?;
        let open = Arc::new(OpenFile {
            file,
            ahead: Mutex::new(Ahead::new(self.read_ahead_bytes)),
            checked: Mutex::new(Instant::now()),
        });
        // What is read ahead of it must not be given once it is not fresh any more.
        if !self.files.stat_open(&open.file).fresh {
            self.open.lock().put(handle.number(), open.clone());
        }
        Ok(open)
    }

    /// Checks once a lifetime that the source has the same version still. A source that does not answer is no hindrance: a file that
    /// was open is read on.
    fn check(&self, handle: &Handle, open: &OpenFile<S::File>) -> Result<(), Status> {
        {
            let mut checked = open.checked.lock();
            if checked.elapsed() < self.lifetime {
                return Ok(());
            }
            // One asks for all.
            *checked = Instant::now();
        }
        match self.stat(handle) {
            Ok((path, stat)) => self.may_read(&path, &stat),
            Err(status @ (Status::STALE | Status::ACCES)) => Err(status),
            Err(_) => Ok(()),
        }
    }

    /// The content of a folder: at the beginning of a listing as it is now, from then on as it was. A folder is looked at once for
    /// all who ask at the same time.
    pub fn list(&self, path: &Arc<Path>, place: u64) -> Result<Arc<PlacedListing>, Status> {
        match place {
            0 => self.list_within(path, Duration::ZERO),
            _ => self.list_within(path, LISTING),
        }
    }

    /// The content of a folder, at most so old.
    pub(super) fn list_within(
        &self,
        path: &Arc<Path>,
        age_max: Duration,
    ) -> Result<Arc<PlacedListing>, Status> {
        let asked = Instant::now();
        let will_do = |listing: &Arc<PlacedListing>| {
            listing.began >= asked || listing.made.elapsed() < age_max
        };
        let known = || self.listings.lock().get(path).filter(will_do);
        if let Some(listing) = known() {
            return Ok(listing);
        }
        let turn = xxh3_64(path.as_os_str().as_bytes()) as usize % LISTINGS_MAX;
        let Some(_turn) = self.turns[turn].try_lock_for(TURN) else {
            return Err(Status::JUKEBOX);
        };
        if let Some(listing) = known() {
            return Ok(listing);
        }
        let began = Instant::now();
        let names = self.files.list(path);
        let names = names.map_err(|error| self.fail_known(path, &error))?;
        let listing = Arc::new(PlacedListing::new(names, began));
        self.listings.lock().put(path.clone(), listing.clone());
        Ok(listing)
    }
}

#[cfg(test)]
mod tests;
