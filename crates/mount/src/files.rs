//! The interface of a mounted tree: files that can be listed, opened and read.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::listing::Listing;

/// A version of a file: a digest of all that identifies it. Equal versions of a path are equal bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Version(pub [u64; 2]);

/// The kind of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Bytes.
    File,
    /// Names.
    Folder,
    /// A symbolic link, and its target. It is shown, never followed.
    Link(PathBuf),
}

/// The attributes of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stat {
    /// The kind.
    pub kind: Kind,
    /// Its bytes; of a folder anything.
    pub size: u64,
    /// The time of the last change.
    pub modified: SystemTime,
    /// Permissions, 0o777 at most. The user who mounts is shown as the owner.
    pub mode: u16,
    /// The version; of a folder anything.
    pub version: Version,
    /// The last change is so recent that another one might not show in its version: bytes read now are not kept for later.
    pub fresh: bool,
    /// A file takes less than its bytes: it has holes.
    pub has_holes: bool,
    /// Names of it, at its source; of a folder 1 if that is not known.
    pub links: u32,
}

/// The next thing to look for in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    /// Bytes that are there.
    Data,
    /// A hole. Each file ends in one.
    Hole,
}

/// The totals for `df`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Used {
    /// Bytes.
    pub bytes: u64,
    /// Files.
    pub files: u64,
}

/// The reason that an entry cannot be shown or read. The text names the thing, the reason and the remedy; it is logged,
/// while the program that asked sees an errno.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FileError {
    /// There is no such entry: ENOENT. Not logged.
    #[error("there is no such file")]
    NotFound,
    /// The source has another version of the file than was opened: ESTALE, from now on.
    #[error("{0}")]
    Stale(String),
    /// Nobody answered within the time that one waits: ETIMEDOUT, and the next read tries again.
    #[error("{0}")]
    TimedOut(String),
    /// The source refuses: EACCES.
    #[error("{0}")]
    Denied(String),
    /// Anything else: EIO.
    #[error("{0}")]
    Io(String),
}

/// A read-only tree of files.
///
/// Calls come from several threads at once and may block, but not for ever: an implementation MUST answer each within
/// a bounded time, with [`FileError::TimedOut`] at the latest; a program that reads cannot be killed meanwhile. Paths are
/// relative to the root, which is the empty path, and have neither `.` nor `..`.
pub trait Files: Send + Sync + 'static {
    /// An open file: one version of it.
    type File: Send + Sync + 'static;

    /// The attributes of an entry, not following links.
    ///
    /// # Errors
    /// See [`FileError`].
    fn stat(&self, path: &Path) -> Result<Stat, FileError>;

    /// The entries of a folder, in any order, each name once. They are in memory as a whole: an implementation MUST bound how many they are.
    ///
    /// # Errors
    /// See [`FileError`].
    fn list(&self, path: &Path) -> Result<Listing, FileError>;

    /// Opens the version of a file that is there now.
    ///
    /// # Errors
    /// See [`FileError`].
    fn open(&self, path: &Path) -> Result<Self::File, FileError>;

    /// The attributes of an open file. They MUST stay the same as long as the file is open.
    fn stat_open<'a>(&self, file: &'a Self::File) -> &'a Stat;

    /// Reads bytes of the version that was opened. Fewer than asked for are read only at its end.
    ///
    /// # Errors
    /// [`FileError::Stale`] if that version cannot be read any more. An implementation MUST NOT give bytes of another.
    fn read(&self, file: &Self::File, offset: u64, into: &mut [u8]) -> Result<usize, FileError>;

    /// The next data or hole of an open file at or behind an offset; `None` if nothing of it is there from that on. One that knows no
    /// holes has data up to its end.
    ///
    /// # Errors
    /// See [`FileError`].
    fn seek(&self, file: &Self::File, from: u64, what: Seek) -> Result<Option<u64>, FileError> {
        let size = self.stat_open(file).size;
        let found = match what {
            Seek::Data => from,
            Seek::Hole => size,
        };
        Ok((from < size).then_some(found))
    }

    /// Reads bytes of an open file that are at hand: all, or none, and whether it did. It MUST NOT block. Where not all of them are,
    /// [`Files::read`] is called, perhaps on another thread.
    fn read_now(&self, file: &Self::File, offset: u64, into: &mut [u8]) -> bool {
        let _ = (file, offset, into);
        false
    }

    /// Says that these bytes are likely to be read next. It MUST NOT block.
    fn will_read(&self, file: &Self::File, offset: u64, bytes: u64) {
        let _ = (file, offset, bytes);
    }

    /// True while nobody answers for any file, as far as is known: who asks in vain may ask again until that is over. False: one file, or
    /// folder, is at fault, and others are well. It MUST NOT block.
    fn is_away(&self) -> bool {
        true
    }

    /// The totals; nothing if they are unknown.
    fn used(&self) -> Used {
        Used::default()
    }
}
