//! The files service's messages: bytes of blocks, asked of a bucket's holders, fetched by its home, given to the others.

use bytes::Bytes;
use staves_model::PoolId;

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
    /// How many; at most [`FILE_BYTES_MAX`], and within one stretch.
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
    /// What is asked for.
    pub read: FileRead,
    /// Where the file ends.
    pub size: u64,
    /// The dataset's name.
    pub dataset: String,
    /// The path within it, as the source has it.
    pub path: Bytes,
    /// What tells the version from others, as the source says it.
    pub version: String,
}

/// Brings bytes that the node may keep. Answered by `Done`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilePut {
    /// The pool.
    pub pool: PoolId,
    /// The version.
    pub file: FileId,
    /// Where the file ends.
    pub size: u64,
    /// The first byte: the start of a part.
    pub from: u64,
    /// Whole parts, but for the file's end.
    pub bytes: Bytes,
    /// A holder passed it on: it is not passed on again.
    pub forwarded: bool,
}

/// Instead of a bucket's number: all of them.
pub const ALL_BUCKETS: u32 = u32::MAX;

/// Asks what a node has of a bucket. Answered by [`FileKeysAnswer`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileKeys {
    /// The pool.
    pub pool: PoolId,
    /// The bucket, or [`ALL_BUCKETS`].
    pub bucket: u32,
}

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

/// What a node has of a bucket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileKeysAnswer {
    /// `false`: it does not hold the bucket, by its map, or was asked for all.
    pub holds: bool,
    /// Its blocks.
    pub keys: Vec<FileKey>,
}

/// Asks a node to look through some of its blocks for damaged ones, and to let go of these. Answered by
/// [`FileChecked`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileCheck {
    /// The pool.
    pub pool: PoolId,
    /// Where in its table to go on: 0, then what the last answer said.
    pub from: u32,
}

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileChecked {
    /// Where to go on; [`CHECKED_ALL`] at the end.
    pub next: u32,
    /// Bytes that were looked at.
    pub bytes: u64,
    /// Blocks that were not what had come in, and are let go of.
    pub damaged: u32,
}

/// Instead of a place in the table: there is no more.
pub const CHECKED_ALL: u32 = u32::MAX;

/// Says now and then that a dataset is in use. Answered by `Done`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileUse {
    /// The dataset's name.
    pub dataset: String,
    /// By whom, for people: a machine and a folder.
    pub by: String,
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
wire_struct!(FileKeys { pool, bucket });
wire_struct!(FileKey {
    file,
    block,
    bytes,
    parts
});
wire_struct!(FileKeysAnswer { holds, keys });
wire_struct!(FileCheck { pool, from });
wire_struct!(FileChecked {
    next,
    bytes,
    damaged
});
wire_struct!(FileUse { dataset, by });
