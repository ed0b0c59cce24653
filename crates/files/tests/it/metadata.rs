//! Changes of a file that leave its bytes alone, and changes of its bytes that look like those.

use std::fs::{File, FileTimes, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{XattrFlags, setxattr};
use staves_files::{FileVersion, Kind, Source, SourceError};

/// A file counts as changing until two seconds after its last change.
const SETTLED: Duration = Duration::from_millis(2100);
const SIZE: u64 = 8192;

struct Watched {
    dir: tempfile::TempDir,
    source: Source,
}

impl Watched {
    async fn with_file(name: &str) -> Watched {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(name), [1; SIZE as usize]).unwrap();
        tokio::time::sleep(SETTLED).await;
        let source = Source::parse(dir.path().to_str().unwrap()).unwrap();
        Watched { dir, source }
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// The version that is there now; as a program opens it if `opened`.
    async fn version(&self, name: &str, opened: bool) -> String {
        let (source, path) = (self.source.clone(), name.as_bytes().to_vec());
        let stat = tokio::task::spawn_blocking(move || match opened {
            true => source.stat_to_open(&path),
            false => source.stat(&path),
        });
        match stat.await.unwrap().unwrap().kind {
            Kind::File { version, .. } => version,
            other => panic!("{other:?}"),
        }
    }

    async fn read(&self, name: &str, version: &str) -> Result<u8, SourceError> {
        let file = FileVersion {
            dataset: "d".into(),
            path: name.as_bytes().to_vec(),
            version: version.to_owned(),
            size: SIZE,
        };
        let read = self.source.read(&file, 0, 4096).await;
        read.map(|(bytes, _)| bytes[0])
    }
}

/// Sets the time of a file's bytes back to what it was, as some programs do once they have written.
fn written(path: &Path, byte: u8) {
    let before = std::fs::metadata(path).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(&[byte; SIZE as usize], 0).unwrap();
    let times = FileTimes::new().set_modified(before.modified().unwrap());
    file.set_times(times).unwrap();
    drop(file);
    let after = std::fs::metadata(path).unwrap();
    assert_eq!(
        (before.mtime(), before.mtime_nsec(), before.size()),
        (after.mtime(), after.mtime_nsec(), after.size())
    );
    assert_ne!(
        (before.ctime(), before.ctime_nsec()),
        (after.ctime(), after.ctime_nsec())
    );
}

/// True if the tests' files are on a file system whose kernel sees every write; else the test is to be skipped.
fn sees_writes() -> bool {
    const OVERLAYFS: u32 = 0x794C_7630;
    let is_overlay =
        rustix::fs::statfs(std::env::temp_dir()).is_ok_and(|seen| seen.f_type as u32 == OVERLAYFS);
    if is_overlay {
        staves_testkit::tools::skip("temporary files are on overlayfs: set TMPDIR");
    }
    !is_overlay
}

/// Regression: a backup that makes hard links ended jobs that were reading the files (issue 12).
#[tokio::test]
async fn modes_links_names_and_attributes_make_no_new_version() {
    if !sees_writes() {
        return;
    }
    let watched = Watched::with_file("f").await;
    let first = watched.version("f", true).await;
    assert_eq!(watched.read("f", &first).await, Ok(1));
    let (path, moved) = (watched.at("f"), watched.at("g"));
    let changes: [(&str, &dyn Fn()); 4] = [
        ("chmod", &|| {
            std::fs::set_permissions(&path, Permissions::from_mode(0o604)).unwrap();
        }),
        ("ln", &|| std::fs::hard_link(&path, &moved).unwrap()),
        ("rm", &|| std::fs::remove_file(&moved).unwrap()),
        ("setxattr", &|| {
            // Not every file system has attributes.
            let _ = setxattr(&path, "user.backup", b"1", XattrFlags::empty());
        }),
    ];
    for (what, change) in changes {
        change();
        assert_eq!(watched.version("f", false).await, first, "{what}");
        assert_eq!(watched.read("f", &first).await, Ok(1), "{what}");
        assert_eq!(watched.version("f", true).await, first, "{what}");
    }
    // It is another file by its name, and one who reads it under the old one reads on.
    std::fs::rename(&path, &moved).unwrap();
    assert_eq!(watched.version("g", true).await, first);
    assert_eq!(watched.read("f", &first).await, Ok(1));
    assert_eq!(watched.read("g", &first).await, Ok(1));
}

/// The time of the last change of any kind is the only sign of such a write (row D9).
#[tokio::test]
async fn d9_a_write_whose_time_was_set_back_is_another_version() {
    if !sees_writes() {
        return;
    }
    let watched = Watched::with_file("f").await;
    let first = watched.version("f", true).await;
    assert_eq!(watched.read("f", &first).await, Ok(1));
    written(&watched.at("f"), 2);
    assert!(watched.read("f", &first).await.is_err());
    let second = watched.version("f", false).await;
    assert_ne!(second, first);
    assert_eq!(watched.read("f", &second).await, Ok(2));

    // After changes that were none of the bytes, too; and by whoever has it open still.
    tokio::time::sleep(SETTLED).await;
    let second = watched.version("f", true).await;
    std::fs::hard_link(watched.at("f"), watched.at("g")).unwrap();
    assert_eq!(watched.version("f", false).await, second);
    let writer = File::options().write(true).open(watched.at("g")).unwrap();
    std::fs::remove_file(watched.at("g")).unwrap();
    assert_ne!(watched.version("f", false).await, second, "it has a writer");
    drop(writer);
    assert_ne!(watched.version("f", false).await, second);

    // A process that has not watched it takes no change for harmless: it cannot tell a write from a new name.
    tokio::time::sleep(SETTLED).await;
    let known = watched.version("f", true).await;
    let fresh = || Watched {
        source: Source::parse(watched.dir.path().to_str().unwrap()).unwrap(),
        dir: tempfile::tempdir().unwrap(),
    };
    std::fs::hard_link(watched.at("f"), watched.at("h")).unwrap();
    let linked = fresh().version("f", true).await;
    assert_ne!(linked, known);
    written(&watched.at("f"), 4);
    let rewritten = fresh();
    let version = rewritten.version("f", true).await;
    assert!(version != known && version != linked);
    assert!(rewritten.read("f", &known).await.is_err());
    assert_eq!(rewritten.read("f", &version).await, Ok(4));

    // One that nobody looked at before is what its times say.
    tokio::time::sleep(SETTLED).await;
    let third = watched.version("f", false).await;
    written(&watched.at("f"), 3);
    assert_ne!(watched.version("f", false).await, third);
    assert!(watched.read("f", &third).await.is_err());
}
