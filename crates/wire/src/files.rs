//! The files service's messages: bytes of blocks, asked of a bucket's holders, fetched by its home, given to the others.

use bytes::Bytes;
use staves_model::{Incarnation, PoolId};

use crate::codec::wire_struct;

/// Most bytes that one message asks for or brings: a stretch of blocks.
pub const FILE_BYTES_MAX: u32 = 1 << 20;

/// A version of a file: a digest of its dataset's name, its path and all that tells it from other versions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId {
    /// The digest's first half.
    pub high: u64,
    /// The second.
    pub low: u64,
}

/// Asks for bytes of a version of a file, if the node has all of them. Answered by [`FileBytes`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileRead {
    /// The pool.
    pub pool: PoolId,
    /// The version.
    pub file: FileId,
    /// The first byte.
    pub from: u64,
    /// The length; at most [`FILE_BYTES_MAX`], and within one stretch.
    pub len: u32,
}

/// The bytes; `None` if the node does not have all of them (to [`FileFetch`]: if it cannot reach the source, or
/// found another version there).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileBytes {
    /// As asked for.
    pub bytes: Option<Bytes>,
}

/// The same, fetched from the source by the node if it has not all of them. For a bucket's home.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileFetch {
    /// The range.
    pub read: FileRead,
    /// The file's length.
    pub size: u64,
    /// The dataset's name.
    pub dataset: String,
    /// The path within it, as the source has it.
    pub path: Bytes,
    /// The version, in the source's own words.
    pub version: String,
}

/// Brings bytes that the node may keep. Answered by `Done`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilePut {
    /// The pool.
    pub pool: PoolId,
    /// The version.
    pub file: FileId,
    /// The file's length.
    pub size: u64,
    /// The first byte: the start of a part.
    pub from: u64,
    /// Whole parts, but for the file's end.
    pub bytes: Bytes,
    /// A holder passed it on: it is not passed on again.
    pub forwarded: bool,
}

/// Most blocks of a [`FileKeysAnswer`].
pub const FILE_KEYS_MAX: usize = 1024;

/// Asks what a node has of a bucket. Answered by [`FileKeysAnswer`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileKeys {
    /// The pool.
    pub pool: PoolId,
    /// The bucket.
    pub bucket: u32,
    /// The places of the bucket before this one, from the highest on. [`FROM_LAST`], then the last answer's `next`.
    pub before: u32,
}

/// Instead of a place in a bucket: begin with its last one.
pub const FROM_LAST: u32 = u32::MAX;

/// A block that a node has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileKey {
    /// The version of the file.
    pub file: FileId,
    /// The block's place in it.
    pub block: u32,
    /// Bytes of the block.
    pub bytes: u32,
    /// A bit for each part that is there.
    pub parts: u32,
}

/// Some of what a node has of a bucket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileKeysAnswer {
    /// `false`: it does not hold the bucket, by its map.
    pub holds: bool,
    /// At most [`FILE_KEYS_MAX`]. A block that was moved while somebody asked may be told twice.
    pub keys: Vec<FileKey>,
    /// The place to go on from; 0 at the end.
    pub next: u32,
}

/// Asks a node to look through some of its blocks for damaged ones, and to let go of these. Answered by
/// [`FileChecked`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileCheck {
    /// The pool.
    pub pool: PoolId,
    /// The entry of its table to go on from: 0, then the last answer's `next`.
    pub from: u32,
}

/// The result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileChecked {
    /// The entry to go on from; [`CHECKED_ALL`] at the end.
    pub next: u32,
    /// Bytes that were looked at.
    pub bytes: u64,
    /// Blocks that were not what had come in, and are let go of.
    pub damaged: u32,
}

/// Instead of a place in the table: there is no more.
pub const CHECKED_ALL: u32 = u32::MAX;

/// Most entries of a [`FileChangesAnswer`].
pub const FILE_CHANGES_MAX: usize = 4096;

/// Asks what changed in the table of a node's blocks. Answered by [`FileChangesAnswer`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileChanges {
    /// The pool.
    pub pool: PoolId,
    /// After the change of this number; 0 for all.
    pub since: u64,
    /// The entry of its table to go on from: 0, then the last answer's `next`.
    pub from: u32,
}

/// Some of what changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileChangesAnswer {
    /// The node's life: numbers are of one life.
    pub incarnation: Incarnation,
    /// The newest change's number. Whoever has come to the end may ask, next time, for what came after the number in the first
    /// answer.
    pub number: u64,
    /// The entry to go on from; [`CHECKED_ALL`] at the end.
    pub next: u32,
    /// At most [`FILE_CHANGES_MAX`].
    pub entries: Vec<FileChange>,
}

/// An entry that changed: what is there now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileChange {
    /// Its place in the table.
    pub entry: u32,
    /// The block; without any part if nothing is there.
    pub key: FileKey,
}

/// Parts of a version of a file that a node had whose life is over: asks their bucket's home which of them it does
/// not have, or to fetch those again. Answered by [`FileLostAnswer`]; no bytes come back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileLost {
    /// The pool.
    pub pool: PoolId,
    /// The version.
    pub file: FileId,
    /// The stretch of it.
    pub stretch: u32,
    /// The parts.
    pub parts: FileParts,
    /// The source to fetch them from; `None`: they are only asked after.
    pub named: Option<FileNamed>,
}

/// A version of a file, named so that it can be fetched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileNamed {
    /// The file's length.
    pub size: u64,
    /// The dataset's name.
    pub dataset: String,
    /// The path within it, as the source has it.
    pub path: Bytes,
    /// The version, in the source's own words.
    pub version: String,
}

/// The parts that the home lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileLostAnswer {
    /// Those of the parts that it has not; if it was to fetch them, for want of room, or the source has another version by now or
    /// cannot be read there.
    pub missing: FileParts,
}

/// Parts of a stretch: a bit for each, the first block's first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileParts {
    /// The first two blocks'.
    pub low: u64,
    /// The other two's.
    pub high: u64,
}

impl From<u128> for FileParts {
    fn from(bits: u128) -> FileParts {
        FileParts {
            low: bits as u64,
            high: (bits >> 64) as u64,
        }
    }
}

impl From<FileParts> for u128 {
    fn from(parts: FileParts) -> u128 {
        u128::from(parts.high) << 64 | u128::from(parts.low)
    }
}

/// Says now and then that a dataset is in use. Answered by `Done`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileUse {
    /// The dataset's name.
    pub dataset: String,
    /// By whom, for people: a machine and a folder.
    pub by: String,
}

/// Says the same of a dataset whose source gives the mount no answer now. Answered by `Done`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileAway {
    /// The dataset's name.
    pub dataset: String,
    /// As in [`FileUse`].
    pub by: String,
    /// The length of the outage until now, in milliseconds.
    pub for_ms: u64,
    /// The source's last error, for people.
    pub why: String,
}

// On the wire.

wire_struct!(FileId { high, low });
wire_struct!(FileRead {
    pool,
    file,
    from,
    len
});
wire_struct!(FileBytes { bytes });
wire_struct!(FileFetch {
    read,
    size,
    dataset,
    path,
    version
});
wire_struct!(FilePut {
    pool,
    file,
    size,
    from,
    bytes,
    forwarded
});
wire_struct!(FileKeys {
    pool,
    bucket,
    before
});
wire_struct!(FileKey {
    file,
    block,
    bytes,
    parts
});
wire_struct!(FileKeysAnswer { holds, keys, next });
wire_struct!(FileCheck { pool, from });
wire_struct!(FileChecked {
    next,
    bytes,
    damaged
});
wire_struct!(FileChanges { pool, since, from });
wire_struct!(FileChangesAnswer {
    incarnation,
    number,
    next,
    entries
});
wire_struct!(FileChange { entry, key });
wire_struct!(FileLost {
    pool,
    file,
    stretch,
    parts,
    named
});
wire_struct!(FileNamed {
    size,
    dataset,
    path,
    version
});
wire_struct!(FileLostAnswer { missing });
wire_struct!(FileParts { low, high });
wire_struct!(FileUse { dataset, by });
wire_struct!(FileAway {
    dataset,
    by,
    for_ms,
    why
});
