//! A dataset's source.

use std::sync::Arc;

use bytes::Bytes;

use crate::folder::Folder;
use crate::version::FileVersion;

/// Why a source did not give what was asked for.
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
        /// As the source says it.
        reason: String,
    },
    /// The source did not answer, or not in a way that is understood.
    #[error("{place} cannot be read: {reason}")]
    Unreachable {
        /// The source, or the file.
        place: String,
        /// As the system says it.
        reason: String,
    },
    /// The words for the source name none.
    #[error("'{text}' is no source: {reason}")]
    Malformed {
        /// The words.
        text: String,
        /// What is wrong with them.
        reason: String,
    },
}

/// What a name stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A file, in its present version.
    File {
        /// As in [`FileVersion::version`].
        version: String,
        /// It changed so lately that another change might not show in its version: not to be kept in the pool.
        fresh: bool,
    },
    /// A folder.
    Folder,
    /// A symbolic link, and what it says.
    Link(Vec<u8>),
}

/// What is known of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stat {
    /// File, folder or link.
    pub kind: Kind,
    /// Bytes of a file.
    pub size: u64,
    /// When it was changed last: seconds and nanoseconds since 1970.
    pub modified: (i64, u32),
    /// Whether its owner may execute it.
    pub executable: bool,
}

/// Where a dataset's bytes come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A folder of this machine, perhaps shared with others.
    Folder(Arc<Folder>),
}

impl Source {
    /// From the words that `staves mount` takes: a folder's path.
    pub fn parse(text: &str) -> Result<Source, SourceError> {
        let malformed = |reason: &str| SourceError::Malformed {
            text: text.to_owned(),
            reason: reason.to_owned(),
        };
        if let Some((scheme, _)) = text.split_once("://") {
            let reason = format!("this version reads folders, and not {scheme}");
            return Err(malformed(&reason));
        }
        if !text.starts_with('/') {
            return Err(malformed("give a folder's whole path, from / on"));
        }
        Folder::open(text).map(|folder| Source::Folder(Arc::new(folder)))
    }

    /// What a path stands for. The root is the empty path.
    ///
    /// Blocks the thread for as long as the source takes.
    pub fn stat(&self, path: &[u8]) -> Result<Stat, SourceError> {
        match self {
            Source::Folder(folder) => folder.stat(path),
        }
    }

    /// The names in a folder, in no order. Blocks the thread for as long as the source takes.
    pub fn list(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, Stat)>, SourceError> {
        match self {
            Source::Folder(folder) => folder.list(path),
        }
    }

    /// Bytes of a version of a file, all of them, and whether they may be kept: a file that changed just now may change again
    /// without showing it.
    pub async fn read(
        &self,
        file: &FileVersion,
        from: u64,
        len: usize,
    ) -> Result<(Bytes, bool), SourceError> {
        match self {
            Source::Folder(folder) => {
                let (folder, file) = (folder.clone(), file.clone());
                let place = folder.place().to_owned();
                let read = move || folder.read(&file, from, len);
                let read = tokio::task::spawn_blocking(read).await;
                read.unwrap_or_else(|error| {
                    let reason = error.to_string();
                    Err(SourceError::Unreachable { place, reason })
                })
            }
        }
    }
}
