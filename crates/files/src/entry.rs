//! Entries of a source, and the reasons that one cannot be read.

/// The reason that a source did not give the bytes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SourceError {
    /// There is no such file, or there is none any more.
    #[error("{path} is not in {place}")]
    NotFound {
        /// The file.
        path: String,
        /// The source.
        place: String,
    },
    /// The file is there in another version.
    #[error("{path} has changed: open it again to read its present version")]
    Changed {
        /// The file.
        path: String,
    },
    /// The file may not be read.
    #[error("{path} may not be read: {reason}")]
    Denied {
        /// The file.
        path: String,
        /// The reason in the source's words.
        reason: String,
    },
    /// Not everybody may read the file, and this process reads for others.
    #[error(
        "{path} is not for everybody to read: who may read it reads it from the source himself"
    )]
    Private {
        /// The file.
        path: String,
    },
    /// The source did not answer, or not in a way that is understood.
    #[error("{place} cannot be read: {reason}")]
    Unreachable {
        /// The source, or the file.
        place: String,
        /// The reason in the system's words.
        reason: String,
    },
    /// There is no such source, as far as this machine sees.
    #[error("'{place}' is no source: {reason}")]
    Absent {
        /// The source.
        place: String,
        /// The thing that is there instead.
        reason: String,
    },
    /// The words for the source name none.
    #[error("'{text}' is no source: {reason}")]
    Malformed {
        /// The words.
        text: String,
        /// The fault of them.
        reason: String,
    },
}

/// The kind of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A file, in its present version.
    File {
        /// As in [`crate::FileVersion::version`].
        version: String,
        /// The last change is so recent that another one might not show in its version: not to be kept in the pool.
        fresh: bool,
    },
    /// A folder.
    Folder,
    /// A symbolic link, and its target.
    Link(Vec<u8>),
    /// A name of which a list knows no more: the source refuses the rest, or has no version of it. An open says why.
    Unreadable,
}

/// The attributes of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stat {
    /// File, folder or link.
    pub kind: Kind,
    /// Bytes of a file.
    pub size: u64,
    /// The time of the last change: seconds and nanoseconds since 1970.
    pub modified: (i64, u32),
    /// True if its owner may execute it.
    pub executable: bool,
    /// True if everybody may read it, and list and enter it if it is a folder. Of an object of a store: always.
    pub for_all: bool,
    /// Names of it, at its source. Of a folder without a count of its own: 1.
    pub links: u32,
    /// True if a file takes less than its bytes at its source: it has holes.
    pub has_holes: bool,
}

impl Stat {
    /// The entry of a list for a name of which no more is known.
    pub(crate) const UNREADABLE: Stat = Stat {
        kind: Kind::Unreadable,
        size: 0,
        modified: (0, 0),
        executable: false,
        for_all: false,
        links: 1,
        has_holes: false,
    };
}

/// The next thing to look for in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    /// Bytes that are there.
    Data,
    /// A hole. Each file ends in one.
    Hole,
}

impl Seek {
    /// The answer for a file without holes: `None` if nothing of it is there from an offset on.
    pub fn in_solid(self, size: u64, from: u64) -> Option<u64> {
        let found = match self {
            Seek::Data => from,
            Seek::Hole => size,
        };
        (from < size).then_some(found)
    }
}

/// The permission to pool the bytes that were read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// It may.
    Yes,
    /// The file's last change is so recent that another one might not show in its version.
    NotYet,
    /// Not everybody may read the file, and a node gives what it keeps, or reads, to any client.
    Never,
}

/// The recipient of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// The user of this process.
    ThisProcess,
    /// Anybody.
    AnyClient,
}
