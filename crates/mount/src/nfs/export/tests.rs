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

/// Regression: a handle of which the table had no path any more, as after a restart, cost a listing of its folder at each read.
#[test]
fn many_handles_of_a_folder_are_found_with_one_listing() {
    const NAMES: usize = 3000;
    let source = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(source.path().join("sub")).expect("a folder");
    for i in 0..NAMES {
        std::fs::write(source.path().join(format!("sub/{i}")), "1").expect("a file");
    }
    let export = || {
        let slow = Slow {
            folder: Folder::open(source.path()).expect("it opens"),
            lists: AtomicU32::new(0),
        };
        Export::new(slow, "data", Duration::from_secs(1), 0)
    };
    let before = export();
    let path = |i: usize| Path::new("sub").join(format!("{i}"));
    let handle = |i| before.handle(&path(i), &before.look_up(&path(i)).expect("it is there"));
    let handles: Vec<Handle> = (0..NAMES).map(handle).collect();

    let after = export();
    let looks = || after.files().lists.load(Ordering::SeqCst);
    for (i, handle) in handles.iter().enumerate() {
        assert_eq!(after.path(handle).as_deref(), Ok(&*path(i)));
    }
    assert_eq!(looks(), 2, "each folder once");
    // Of a name that came later it looks again; one that is gone is looked for once in the life of a listing.
    std::fs::write(source.path().join("sub/new"), "1").expect("a file");
    let new = before.handle(
        Path::new("sub/new"),
        &before.look_up(&path(0)).expect("one"),
    );
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(after.path(&new).as_deref(), Ok(Path::new("sub/new")));
    let gone = |i: usize| before.handle(&path(NAMES + i), &before.look_up(&path(0)).expect("one"));
    let earlier = looks();
    for i in 0..20 {
        assert_eq!(after.path(&gone(i)), Err(Status::STALE));
    }
    assert!(looks() <= earlier + 25, "{} after {earlier}", looks());

    // A client that goes through a listing has its names found in that, whatever the table has.
    let listed = export();
    listed.list(&Path::new("sub").into(), 0).expect("a listing");
    for (i, handle) in handles.iter().enumerate().rev() {
        assert_eq!(listed.path(handle).as_deref(), Ok(&*path(i)));
    }
    assert_eq!(listed.files().lists.load(Ordering::SeqCst), 1);
}

/// Regression: 65,536 names fitted into the table.
#[test]
fn as_many_names_fit_into_the_table_as_a_folder_may_have() {
    let paths = Paths::new();
    let path = |i: u64| format!("a/folder/of/many/samples/{i:0100}");
    for i in 0..250_000 {
        paths.put(i, Path::new(&path(i)).into());
    }
    for i in 0..250_000 {
        let known = paths.get(i);
        assert_eq!(known.as_deref(), Some(Path::new(&path(i))));
    }
}
