//! Listings that many ask for at the same time.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::folder::{Folder, FolderFile};

/// A folder that takes its time to be listed, and counts that.
struct Slow {
    folder: Folder,
    lists: AtomicU32,
}

impl Files for Slow {
    type File = FolderFile;

    fn stat(&self, path: &Path) -> Result<Stat, FileError> {
        self.folder.stat(path)
    }

    fn list(&self, path: &Path) -> Result<Listing, FileError> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        let listing = self.folder.list(path);
        std::thread::sleep(Duration::from_millis(200));
        listing
    }

    fn open(&self, path: &Path) -> Result<FolderFile, FileError> {
        self.folder.open(path)
    }

    fn stat_open<'a>(&self, file: &'a FolderFile) -> &'a Stat {
        self.folder.stat_open(file)
    }

    fn read(&self, file: &FolderFile, offset: u64, into: &mut [u8]) -> Result<usize, FileError> {
        self.folder.read(file, offset, into)
    }
}

/// Regression: each call for the beginning of a listing looked at the folder by itself: 240 calls for one of 50,000 names took 2 GB, and
/// nobody else was answered for minutes. One that asks later sees what has changed until then.
#[test]
fn a_folder_is_looked_at_once_for_all_who_ask_at_the_same_time() {
    const ASK: usize = 16;
    let source = tempfile::tempdir().expect("a folder");
    std::fs::write(source.path().join("one"), "1").expect("a file");
    let folder = Folder::open(source.path()).expect("it opens");
    let lists = AtomicU32::new(0);
    let slow = Slow { folder, lists };
    let export = Export::new(slow, "data", Duration::from_secs(1), 0);
    let (root, together): (Arc<Path>, _) = (Path::new("").into(), Barrier::new(ASK));
    let names = |export: &Export<Slow>| {
        let listing = export.list(&root, 0).expect("it is listed");
        listing.after(0).count()
    };
    std::thread::scope(|scope| {
        for _ in 0..ASK {
            scope.spawn(|| {
                together.wait();
                assert_eq!(names(&export), 1);
            });
        }
    });
    let looks = export.files().lists.load(Ordering::SeqCst);
    assert!(looks <= ASK as u32 / 4, "{looks} looks");
    std::fs::write(source.path().join("two"), "2").expect("a file");
    assert_eq!(names(&export), 2);
}
