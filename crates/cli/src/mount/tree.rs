//! A dataset as what a mount shows.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use staves_client::{Dataset, OpenFile, SourceError};
use staves_mount::{FileError, Files, Kind, Listing, Seek, Stat, Version};
use tokio::runtime::Handle;

use super::ahead::{Ahead, AheadBudget};

pub struct Tree {
    data: Dataset,
    runtime: Handle,
    room: AheadBudget,
}

/// An open file.
pub struct TreeFile {
    open: OpenFile,
    stat: Stat,
    ahead: Ahead,
}

impl Tree {
    pub fn new(data: Dataset, runtime: Handle, read_ahead_bytes: u64) -> Tree {
        let room = AheadBudget::new(read_ahead_bytes);
        Tree {
            data,
            runtime,
            room,
        }
    }
}

/// The attributes that a mount shows, of those of a source.
fn shown(data: &Dataset, path: &[u8], stat: staves_client::Stat) -> Stat {
    let unreadable = stat.kind == staves_client::Kind::Unreadable;
    let fresh = unreadable || matches!(stat.kind, staves_client::Kind::File { fresh: true, .. });
    let (kind, version) = match stat.kind {
        staves_client::Kind::Folder => (Kind::Folder, Version([0; 2])),
        staves_client::Kind::Link(to) => {
            (Kind::Link(OsString::from_vec(to).into()), Version([0; 2]))
        }
        staves_client::Kind::Unreadable => (Kind::File, Version([0; 2])),
        staves_client::Kind::File { version, .. } => {
            let id = data.version(path, stat.size, version).id();
            (Kind::File, Version([id.high, id.low]))
        }
    };
    let (secs, nanos) = stat.modified;
    let since = Duration::new(secs.max(0) as u64, nanos);
    Stat {
        mode: match kind {
            Kind::File if unreadable => 0,
            Kind::File if !stat.executable => 0o444,
            _ => 0o555,
        } & if stat.for_all { 0o777 } else { 0o700 },
        kind,
        size: stat.size,
        modified: UNIX_EPOCH + since,
        version,
        fresh,
        has_holes: stat.has_holes,
        links: stat.links,
    }
}

impl Files for Tree {
    type File = TreeFile;

    fn stat(&self, path: &Path) -> Result<Stat, FileError> {
        let path = path.as_os_str().as_bytes();
        let stat = self.data.stat(path).map_err(shown_error)?;
        Ok(shown(&self.data, path, stat))
    }

    fn is_away(&self) -> bool {
        self.data.is_away()
    }

    fn list(&self, path: &Path) -> Result<Listing, FileError> {
        let (data, folder) = (self.data.clone(), path.to_owned());
        let add = move |all: &mut Listing, name: &[u8], stat| {
            let name = OsStr::from_bytes(name);
            let path = folder.join(name);
            all.push(name, shown(&data, path.as_os_str().as_bytes(), stat));
        };
        let names = self
            .data
            .gather(path.as_os_str().as_bytes(), Listing::default(), add);
        names.map_err(shown_error)
    }

    fn open(&self, path: &Path) -> Result<TreeFile, FileError> {
        let path = path.as_os_str().as_bytes();
        let (open, stat) = self.data.open_with_stat(path).map_err(shown_error)?;
        Ok(TreeFile {
            stat: shown(&self.data, path, stat),
            open,
            ahead: self.room.file(),
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
        let read = self.runtime.block_on(async {
            let (mut done, end) = (0, offset + len as u64);
            while done < len {
                let at = offset + done as u64;
                let bytes = match file.ahead.take(at..end).await {
                    Some(bytes) => bytes?,
                    None => self.data.read_at(&file.open, at, len - done).await?,
                };
                into[done..done + bytes.len()].copy_from_slice(&bytes);
                done += bytes.len();
            }
            Ok(done)
        });
        read.map_err(shown_error)
    }

    fn seek(&self, file: &TreeFile, from: u64, what: Seek) -> Result<Option<u64>, FileError> {
        let sought = match what {
            Seek::Data => staves_client::Seek::Data,
            Seek::Hole => staves_client::Seek::Hole,
        };
        match self.data.seek(&file.open, from, sought) {
            // Deleted: what of it is in memory is read on, and all of that is data.
            Err(SourceError::NotFound { .. }) => Ok(sought.in_solid(file.open.size(), from)),
            found => found.map_err(shown_error),
        }
    }

    /// Reads from a node's memory on this machine, without a wait.
    fn read_now(&self, file: &TreeFile, offset: u64, into: &mut [u8]) -> bool {
        self.data.read_here(&file.open, offset, into)
    }

    /// Fetches ahead, unless the bytes are in a node's memory on this machine.
    fn will_read(&self, file: &TreeFile, offset: u64, bytes: u64) {
        let (data, open) = (&self.data, &file.open);
        let range = offset..offset.saturating_add(bytes);
        let here = |at| data.read_here(open, at, &mut [0]);
        let get = |range: Range<u64>| {
            let (data, open) = (data.clone(), open.clone());
            let len = (range.end - range.start) as usize;
            async move { data.read_at(&open, range.start, len).await }
        };
        file.ahead
            .fetch(&self.runtime, range, open.size(), here, get);
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
