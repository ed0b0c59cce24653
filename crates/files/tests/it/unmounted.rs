//! A folder on which its file system was mounted, and is no more.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use staves_files::{Source, SourceError};
use staves_testkit::tools::skip;

/// Longer than the interval between two looks at the path.
const LOOK: Duration = Duration::from_millis(1100);

/// A mount, until it is dropped.
struct Mounted<'a>(&'a Path);

impl Mounted<'_> {
    fn mount<'a>(what: &[&str], at: &'a Path) -> Option<Mounted<'a>> {
        let said = Command::new("mount").args(what).arg(at).output().ok()?;
        said.status.success().then_some(Mounted(at))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

fn names(source: &Source) -> Result<Vec<Vec<u8>>, SourceError> {
    let names = source.list(b"")?.into_iter().map(|(name, _)| name);
    Ok(names.collect())
}

/// Regression: the empty folder beneath a mount that was taken away, as of a file server that was gone, was taken for the source: all files
/// in memory were gone, and nothing said that the source was away (row D11).
#[test]
fn d11_the_folder_beneath_a_mount_that_is_gone_is_not_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let (other, at) = (dir.path().join("other"), dir.path().join("source"));
    std::fs::create_dir(&other).unwrap();
    std::fs::create_dir(&at).unwrap();
    let kinds = [
        vec!["-t", "tmpfs", "tmpfs"],
        // Of the same device as what is beneath.
        vec!["--bind", other.to_str().unwrap()],
    ];
    for kind in kinds {
        let Some(mounted) = Mounted::mount(&kind, &at) else {
            return skip("nothing can be mounted here");
        };
        std::fs::write(at.join("f"), b"f").unwrap();
        let source = Source::parse(at.to_str().unwrap()).unwrap();
        let before = source.stat(b"f").unwrap();
        assert_eq!(names(&source).unwrap(), [b"f"]);
        drop(mounted);
        std::thread::sleep(LOOK);
        assert_eq!(source.stat(b"f"), Ok(before), "{kind:?}");
        assert_eq!(names(&source).unwrap(), [b"f"]);
        let unknown = source.stat(b"g");
        assert!(
            matches!(unknown, Err(SourceError::Unreachable { .. })),
            "{unknown:?}"
        );
        let outage = source.outage().expect("it is away");
        assert!(outage.why.contains("nothing is mounted"), "{}", outage.why);
        // What is mounted there next is the source, whatever it has.
        let _mounted = Mounted::mount(&["-t", "tmpfs", "tmpfs"], &at).expect("a mount");
        std::fs::write(at.join("g"), b"g").unwrap();
        assert_eq!(source.stat(b"g").unwrap().size, 1);
        assert!(matches!(
            source.stat(b"f"),
            Err(SourceError::NotFound { .. })
        ));
        assert_eq!(source.outage(), None);
    }
}
