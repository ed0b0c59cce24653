//! A dataset's source.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::entry::{Keep, Reader, Seek, SourceError, Stat};
use crate::folder::{self, Folder};
use crate::outage::Outage;
use crate::remote::Remote;
use crate::remote::address::Address;
use crate::stat_cache::NameLimits;
use crate::version::FileVersion;

/// The origin of a dataset's bytes.
#[derive(Clone, Debug)]
pub enum Source {
    /// A folder of this machine, perhaps shared with others.
    Folder(Arc<Folder>),
    /// A bucket of an object store, or a folder of a web server.
    Remote(Arc<Remote>),
}

impl Source {
    /// From the words that `staves mount` takes: a folder's path, `s3://BUCKET/PREFIX`, `http://HOST/PATH` or
    /// `https://HOST/PATH`. Sends no request yet: see [`Source::check`].
    pub fn parse(text: &str) -> Result<Source, SourceError> {
        Source::parse_within(text, NameLimits::default())
    }

    /// The same, with bounds for what is known of its names.
    pub fn parse_within(text: &str, limits: NameLimits) -> Result<Source, SourceError> {
        if let Some(address) = Address::parse(text)? {
            let remote = Remote::open(address, limits);
            return remote.map(|remote| Source::Remote(Arc::new(remote)));
        }
        if !text.starts_with('/') {
            return Err(SourceError::Malformed {
                text: text.to_owned(),
                reason: "give a folder's whole path, from / on, or s3://BUCKET/PREFIX, http://… or https://…".into(),
            });
        }
        Ok(Source::Folder(Arc::new(Folder::within(text, limits))))
    }

    /// The words by which other machines find the same: a folder's path without links, a bucket's address with the
    /// endpoint of this process's environment.
    pub fn address(text: &str) -> Result<String, SourceError> {
        if let Some(address) = Address::parse(text)? {
            return crate::remote::completed(address).map(|address| address.to_string());
        }
        folder::whole_path(text)
    }

    /// Checks that the folder exists, or that the server has anything there and admits this process.
    pub async fn check(&self) -> Result<(), SourceError> {
        match self {
            Source::Folder(folder) => folder.check().await,
            Source::Remote(remote) => remote.check().await,
        }
    }

    /// The outage of the source, while it answers this process nothing at all, as far as it was asked.
    pub fn outage(&self) -> Option<Outage> {
        match self {
            Source::Folder(folder) => folder.outage(),
            Source::Remote(remote) => remote.outage(),
        }
    }

    /// Asks the source for a sign of life, unless it gave one within a time: so an outage is known though nobody reads, and its end.
    /// A runtime's clock must run.
    pub async fn probe(&self, idle: Duration) {
        match self {
            Source::Folder(folder) => folder.probe(idle).await,
            Source::Remote(remote) => remote.probe(idle).await,
        }
    }

    /// The usual time of its answers, as far as that is known: zero for folders.
    pub fn usual(&self) -> Duration {
        match self {
            Source::Folder(_) => Duration::ZERO,
            Source::Remote(remote) => remote.usual(),
        }
    }

    /// The entry at a path. The root is the empty path.
    ///
    /// Blocks the thread for as long as the source takes, but not for ever.
    pub fn stat(&self, path: &[u8]) -> Result<Stat, SourceError> {
        match self {
            Source::Folder(folder) => folder.stat(path),
            Source::Remote(remote) => remote.stat(path),
        }
    }

    /// The same for a file that is about to be read: one that a program has open for writing counts as fresh, where the
    /// file system reports that.
    pub fn stat_to_open(&self, path: &[u8]) -> Result<Stat, SourceError> {
        match self {
            Source::Folder(folder) => folder.stat_to_open(path),
            Source::Remote(remote) => remote.stat(path),
        }
    }

    /// The names in a folder, in no order. One with too many names is refused. Blocks the thread for as long
    /// as the source takes, but not for ever.
    pub fn list(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, Stat)>, SourceError> {
        self.list_at_most(path, usize::MAX)
    }

    /// The same for callers that make something smaller of them: each is added to `into` as it comes.
    pub fn gather<T: Clone + Send + 'static>(
        &self,
        path: &[u8],
        into: T,
        add: impl Fn(&mut T, &[u8], Stat) + Send + Sync + 'static,
    ) -> Result<T, SourceError> {
        self.gather_at_most(path, usize::MAX, into, add)
    }

    /// The same for callers with little memory: a folder with more names is refused.
    pub fn list_at_most(
        &self,
        path: &[u8],
        names_max: usize,
    ) -> Result<Vec<(Vec<u8>, Stat)>, SourceError> {
        let add = |all: &mut Vec<_>, name: &[u8], stat| all.push((name.to_vec(), stat));
        self.gather_at_most(path, names_max, Vec::new(), add)
    }

    /// Both: each name is added to `into` as it comes, and a folder with more names is refused.
    pub fn gather_at_most<T: Clone + Send + 'static>(
        &self,
        path: &[u8],
        names_max: usize,
        mut into: T,
        add: impl Fn(&mut T, &[u8], Stat) + Send + Sync + 'static,
    ) -> Result<T, SourceError> {
        match self {
            Source::Folder(folder) => folder.gather(path, names_max, into, add),
            Source::Remote(remote) => {
                for (name, stat) in remote.list(path, names_max)? {
                    add(&mut into, name.as_bytes(), stat);
                }
                Ok(into)
            }
        }
    }

    /// The next data or hole of a version of a file, at or behind an offset; `None` if there is none from there on. Where the source
    /// does not answer, or knows no holes, all of a file is data. Blocks the thread for as long as the source takes, but not for ever.
    pub fn seek(
        &self,
        file: &FileVersion,
        from: u64,
        what: Seek,
    ) -> Result<Option<u64>, SourceError> {
        let solid = what.in_solid(file.size, from);
        match self {
            Source::Folder(folder) if solid.is_some() => match folder.seek(file, from, what) {
                Err(SourceError::Unreachable { .. }) => Ok(solid),
                found => found,
            },
            _ => Ok(solid),
        }
    }

    /// Bytes of a version of a file, all of them, and whether they may be kept. A runtime's clock must run.
    pub async fn read(
        &self,
        file: &FileVersion,
        from: u64,
        len: usize,
    ) -> Result<(Bytes, Keep), SourceError> {
        self.read_for(file, from, len, Reader::ThisProcess).await
    }

    /// The same for clients of this process: bytes that not everybody may read are refused before they are read.
    pub async fn read_for_others(
        &self,
        file: &FileVersion,
        from: u64,
        len: usize,
    ) -> Result<(Bytes, Keep), SourceError> {
        self.read_for(file, from, len, Reader::AnyClient).await
    }

    async fn read_for(
        &self,
        file: &FileVersion,
        from: u64,
        len: usize,
        reader: Reader,
    ) -> Result<(Bytes, Keep), SourceError> {
        match self {
            Source::Folder(folder) => folder.read(file, from, len, reader).await,
            Source::Remote(remote) => remote.read(file, from, len).await,
        }
    }
}
