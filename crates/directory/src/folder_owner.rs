//! The process that has a data folder open: one line in its file `holder`, the process's id and its native address.
//!
//! The lock on `directory.redb` keeps two processes from one folder; this file only names the holder. In a
//! *copy* of the folder it names the original's address, so that a process on the copy can find out if that
//! one still runs ([`crate::start`]). A file that cannot be read counts as none.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The file's name in the data folder.
const FILE: &str = "holder";
/// Longest line that is taken for one.
const LINE_BYTES_MAX: usize = 1024;

/// The content of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FolderOwner {
    pub pid: u32,
    /// The native address that it advertises.
    pub native: String,
}

/// Reads the folder's file.
pub(crate) fn read(folder: &Path) -> Option<FolderOwner> {
    let path = folder.join(FILE);
    // To open anything else may wait for a writer.
    let is_file = std::fs::metadata(&path).is_ok_and(|found| found.is_file());
    let file = is_file.then(|| File::open(&path).ok()).flatten()?;
    let mut text = String::new();
    let most = LINE_BYTES_MAX as u64 + 1;
    file.take(most).read_to_string(&mut text).ok()?;
    let line = text.lines().next().filter(|l| l.len() <= LINE_BYTES_MAX)?;
    let (pid, native) = line.split_once(' ')?;
    let pid = pid.parse().ok()?;
    let native = native.to_owned();
    Some(FolderOwner { pid, native })
}

/// Writes it anew. A node starts even if it cannot be written.
pub(crate) fn write(folder: &Path, holder: &FolderOwner) {
    let path: PathBuf = folder.join(FILE);
    let text = format!("{} {}\n", holder.pid, holder.native);
    if let Err(error) = std::fs::write(&path, text) {
        tracing::warn!(%error, path = %path.display(), "cannot be written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back_and_nonsense_says_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(read(folder.path()), None);
        let holder = FolderOwner {
            pid: 7,
            native: "10.0.0.1:1600".into(),
        };
        write(folder.path(), &holder);
        assert_eq!(read(folder.path()), Some(holder));
        for nonsense in ["", "7", "x y", &format!("7 {}", "a".repeat(2000))] {
            std::fs::write(folder.path().join(FILE), nonsense).expect("written");
            assert_eq!(read(folder.path()), None, "{nonsense}");
        }
    }
}
