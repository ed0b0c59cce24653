//! A dataset as what a mount shows.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use staves_client::{Dataset, OpenFile, SourceError};
use staves_mount::{FileError, Files, Kind, Stat, Version};
use tokio::runtime::Handle;

use super::ahead::Ahead;

pub struct Tree {
    data: Dataset,
    runtime: Handle,
}

/// An open file.
pub struct TreeFile {
    open: OpenFile,
    stat: Stat,
    ahead: Ahead,
}

impl Tree {
    pub fn new(data: Dataset, runtime: Handle) -> Tree {
        Tree { data, runtime }
    }

    fn shown(&self, path: &[u8], stat: staves_client::Stat) -> Stat {
        let (kind, version) = match stat.kind {
            staves_client::Kind::Folder => (Kind::Folder, Version([0; 2])),
            staves_client::Kind::Link(to) => {
                (Kind::Link(OsString::from_vec(to).into()), Version([0; 2]))
            }
            staves_client::Kind::File { version, .. } => {
                let id = self.data.version(path, stat.size, version).id();
                (Kind::File, Version([id.high, id.low]))
            }
        };
        let (secs, nanos) = stat.modified;
        let since = Duration::new(secs.max(0) as u64, nanos);
        Stat {
            mode: match kind {
                Kind::File if !stat.executable => 0o444,
                _ => 0o555,
            },
            kind,
            size: stat.size,
            modified: UNIX_EPOCH + since,
            version,
        }
    }
}

impl Files for Tree {
    type File = TreeFile;

    fn stat(&self, path: &Path) -> Result<Stat, FileError> {
        let path = path.as_os_str().as_bytes();
        let stat = self.data.stat(path).map_err(shown_error)?;
        Ok(self.shown(path, stat))
    }

    fn list(&self, path: &Path) -> Result<Vec<(OsString, Stat)>, FileError> {
        let folder = path.as_os_str().as_bytes();
        let names = self.data.list(folder).map_err(shown_error)?;
        let shown = names.into_iter().map(|(name, stat)| {
            let name = OsStr::from_bytes(&name);
            let stat = self.shown(path.join(name).as_os_str().as_bytes(), stat);
            (name.to_owned(), stat)
        });
        Ok(shown.collect())
    }

    fn open(&self, path: &Path) -> Result<TreeFile, FileError> {
        let path = path.as_os_str().as_bytes();
        let (open, stat) = self.data.open_with_stat(path).map_err(shown_error)?;
        Ok(TreeFile {
            stat: self.shown(path, stat),
            open,
            ahead: Ahead::default(),
        })
    }

    fn stat_open<'a>(&self, file: &'a TreeFile) -> &'a Stat {
        &file.stat
    }

    fn read(&self, file: &TreeFile, offset: u64, into: &mut [u8]) -> Result<usize, FileError> {
        let left = file.open.size().saturating_sub(offset);
        let len = usize::try_from(left).map_or(into.len(), |left| left.min(into.len()));
        let into = &mut into[..len];
        if len == 0 || self.data.read_here(&file.open, offset, into) {
            return Ok(len);
        }
        let bytes = self.runtime.block_on(async {
            match file.ahead.take(offset, len).await {
                Some(bytes) => Ok(bytes),
                None => self.data.read_at(&file.open, offset, len).await,
            }
        });
        let bytes = bytes.map_err(shown_error)?;
        into[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn will_read(&self, file: &TreeFile, offset: u64, bytes: u64) {
        file.ahead
            .fetch(&self.runtime, &self.data, &file.open, offset, bytes);
    }
}

fn shown_error(error: SourceError) -> FileError {
    let text = error.to_string();
    match error {
        SourceError::NotFound { .. } => FileError::NotFound,
        SourceError::Changed { .. } => FileError::Stale(text),
        SourceError::Denied { .. } | SourceError::Private { .. } => FileError::Denied(text),
        SourceError::Unreachable { .. } => FileError::TimedOut(text),
        SourceError::Absent { .. } | SourceError::Malformed { .. } => FileError::Io(text),
    }
}
