//! The way back from a handle to its path.
//!
//! A table has the paths of handles that were given out, or shown, lately. Of one that is not there, the name is looked for in the
//! listings that are kept for clients, and then in folders that are listed for it. What such a listing has comes into the table: a client
//! that shows one handle of a folder shows others, and to list it for each would take a second each where it is large.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::export::{Export, LISTING, PlacedListing, Status};
use super::handle::{self, Handle};
use super::recent::Recent;
use crate::files::{FileError, Files};

/// Bytes that paths of the table may take, twice: enough for 250,000 names with paths of 150 bytes.
const TABLE_BYTES_MAX: usize = 64 << 20;
/// Bytes that a path takes there beside its own, some.
const ENTRY_BYTES: usize = 100;
/// The most names of a listing that come into the table.
const NAMES_MAX: usize = TABLE_BYTES_MAX / ENTRY_BYTES / 2;

/// Paths by the numbers of their handles.
#[derive(Debug)]
pub struct Paths(Mutex<Recent<u64, Arc<Path>>>);

impl Paths {
    /// None yet.
    pub fn new() -> Paths {
        Paths(Mutex::new(Recent::new(TABLE_BYTES_MAX)))
    }

    /// Remembers one.
    pub fn put(&self, number: u64, path: Arc<Path>) {
        let bytes = ENTRY_BYTES + path.as_os_str().len();
        self.0.lock().put_of(number, path, bytes);
    }

    /// One that is remembered.
    pub fn get(&self, number: u64) -> Option<Arc<Path>> {
        self.0.lock().get(&number)
    }
}

impl<S: Files> Export<S> {
    /// A handle's path, which may be another version's by now.
    pub fn path(&self, handle: &Handle) -> Result<Arc<Path>, Status> {
        let known = self.paths.get(handle.number());
        if let Some(path) = known.filter(|path| handle.is_of(self.dataset(), path)) {
            return Ok(path);
        }
        let path = match self.path_in_kept(handle) {
            Some(path) => path,
            None => self.find(handle)?.ok_or(Status::STALE)?,
        };
        self.paths.put(handle.number(), path.clone());
        Ok(path)
    }

    /// The path, if a listing has it that is kept.
    fn path_in_kept(&self, handle: &Handle) -> Option<Arc<Path>> {
        let kept: Vec<_> = {
            let listings = self.listings.lock();
            let of_now = listings.iter();
            let of_now = of_now.filter(|(_, listing)| listing.made.elapsed() < LISTING);
            of_now
                .map(|(folder, listing)| (folder.clone(), listing.clone()))
                .collect()
        };
        kept.iter().find_map(|(folder, listing)| {
            let found = handle.find_in(self.dataset(), folder, &listing.names)?;
            self.note_names(folder, listing);
            Some(found.into())
        })
    }

    /// Finds the path by listing folders, the last one for all who look for its names.
    fn find(&self, handle: &Handle) -> Result<Option<Arc<Path>>, Status> {
        let mut list = |folder: &Path, is_last: bool| {
            if is_last {
                let folder: Arc<Path> = folder.into();
                return match self.list_within(&folder, self.lifetime) {
                    Ok(listing) => {
                        self.note_names(&folder, &listing);
                        Ok(Some(listing.names.clone()))
                    }
                    Err(Status::STALE) => Ok(None),
                    Err(status) => Err(status),
                };
            }
            match self.files().list(folder) {
                Ok(names) => Ok(Some(Arc::new(names))),
                Err(FileError::NotFound) => Ok(None),
                Err(error) => Err(self.fail_known(folder, &error)),
            }
        };
        let found = handle.find(self.dataset(), &mut list)?;
        Ok(found.map(Into::into))
    }

    /// Puts what a listing has into the table, once.
    fn note_names(&self, folder: &Path, listing: &PlacedListing) {
        let fits = listing.names.len() <= NAMES_MAX;
        if !fits || listing.is_noted.swap(true, Ordering::Relaxed) {
            return;
        }
        for (name, stat) in listing.names.iter() {
            let path = folder.join(name);
            self.paths.put(handle::number(&path, stat), path.into());
        }
    }
}
