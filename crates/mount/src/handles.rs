//! Open files and listings, by the number that the kernel gives back with each request.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::ahead::Ahead;
use crate::listing::Listing;

/// Most files and folders open at a time.
pub const HANDLES_MAX: usize = 1 << 16;
/// Most names of all open folders; one folder may have more.
const NAMES_MAX: usize = 4_000_000;
/// So few names are not counted before they are taken in: that many of each of [`HANDLES_MAX`] are no more than [`NAMES_MAX`].
const FEW: usize = NAMES_MAX / HANDLES_MAX;

/// An open file.
#[derive(Debug)]
pub struct OpenFile<F> {
    /// Of what is mounted.
    pub file: F,
    /// Its inode.
    pub inode: u64,
    /// Its path.
    pub path: Arc<Path>,
    /// The read-ahead of the file.
    pub ahead: Mutex<Ahead>,
    /// Another version is there now.
    pub stale: AtomicBool,
    /// It was fresh when it was opened, and was not found settled since.
    pub unsettled: AtomicBool,
}

/// All that is open.
#[derive(Debug)]
pub struct Handles<F> {
    files: RwLock<HashMap<u64, Arc<OpenFile<F>>>>,
    /// The content of each open folder at the time that it was opened.
    folders: Mutex<HashMap<u64, Arc<Listing>>>,
    next: AtomicU64,
}

impl<F> Default for Handles<F> {
    fn default() -> Self {
        Handles {
            files: RwLock::default(),
            folders: Mutex::default(),
            next: AtomicU64::new(1),
        }
    }
}

impl<F> Handles<F> {
    /// Takes in an open file; None if too many are open.
    pub fn add_file(&self, open: OpenFile<F>) -> Option<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut files = self.files.write();
        if files.len() >= HANDLES_MAX {
            return None;
        }
        files.insert(number, Arc::new(open));
        Some(number)
    }

    /// Takes in an open folder; None if too many are open, or they have too many names.
    pub fn add_folder(&self, listing: Listing) -> Option<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut folders = self.folders.lock();
        let open = folders.values().map(|open| open.len());
        if folders.len() >= HANDLES_MAX || are_too_many(listing.len(), open) {
            return None;
        }
        folders.insert(number, Arc::new(listing));
        Some(number)
    }

    /// An open file.
    pub fn file(&self, number: u64) -> Option<Arc<OpenFile<F>>> {
        self.files.read().get(&number).cloned()
    }

    /// An open file of an inode, if there is one. Looks at all.
    pub fn open_of(&self, inode: u64) -> Option<Arc<OpenFile<F>>> {
        let files = self.files.read();
        files.values().find(|open| open.inode == inode).cloned()
    }

    /// Open files that were fresh when they were opened, and not found settled since.
    pub fn unsettled(&self) -> Vec<Arc<OpenFile<F>>> {
        let files = self.files.read();
        let unsettled = |open: &&Arc<OpenFile<F>>| open.unsettled.load(Ordering::Relaxed);
        files.values().filter(unsettled).cloned().collect()
    }

    /// An open folder.
    pub fn folder(&self, number: u64) -> Option<Arc<Listing>> {
        self.folders.lock().get(&number).cloned()
    }

    /// A file is closed.
    pub fn close_file(&self, number: u64) {
        // What closing takes is not taken under the lock.
        let closed = self.files.write().remove(&number);
        drop(closed);
    }

    /// A folder is closed.
    pub fn close_folder(&self, number: u64) {
        self.folders.lock().remove(&number);
    }

    /// Another version of an inode's path is there: its handles are of no use any more.
    pub fn outdate(&self, inode: u64) {
        for open in self.files.read().values().filter(|o| o.inode == inode) {
            open.stale.store(true, Ordering::Relaxed);
        }
    }
}

/// True if a folder has too many names to be opened beside others.
fn are_too_many(names: usize, open: impl Iterator<Item = usize>) -> bool {
    if names <= FEW {
        return false;
    }
    let others: usize = open.sum();
    others > 0 && others + names > NAMES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_open_folders_are_bounded_and_one_is_opened_whatever_it_has() {
        let million = 1_000_000;
        let beside = |names, open: &[usize]| !are_too_many(names, open.iter().copied());
        assert!(beside(million, &[million, million, million]));
        assert!(!beside(million, &[million, million, million, 1]));
        assert!(beside(NAMES_MAX + 1, &[]) && !beside(NAMES_MAX, &[1]));
        assert!(beside(FEW, &[NAMES_MAX]), "small ones are opened");
        let small = FEW * HANDLES_MAX;
        assert!(small <= NAMES_MAX, "{small} names of all small ones");
    }
}
