//! Files of datasets: where their bytes come from (the *source*), and what tells one version of a file from another.
//!
//! **Promises.** [`Source::read`] gives the bytes of the version that was asked for, or an error: never those of
//! another, and never a mix, as far as the source tells its versions apart (see [`FileVersion`]). Nothing outside of the dataset is read,
//! whatever a path says.
//!
//! **Path of the data.** A mount lists and stats files at the source itself, and so learns versions. The bytes come from
//! the pool, by the version's [digest](FileVersion::id); what the pool does not have, a bucket's home reads from the source
//! here, or, where it cannot reach it, the mount does.
//!
//! **Layout.** `entry`: what a source has, and errors. `source`: what all sources have in common. `folder`: one of this machine, asked by a few threads of its own
//! (`crossing`: what in it is not read; `folder/witness`: which changes leave the bytes alone). `remote`: buckets and web servers, asked
//! by the thread of `driver`. `outage`: when a source counts as away; `stat_cache`: what is known of names then (`answers`: as far as memory goes). `attach`: how a mount is given a node's memory.
//!
//! **Not here.** Memory (`staves-store`), holders (`staves-model`), mounts.

mod answers;
pub mod attach;
mod crossing;
mod driver;
mod entry;
mod folder;
mod outage;
mod remote;
mod source;
mod stat_cache;
mod version;

pub use self::entry::{Keep, Kind, Seek, SourceError, Stat};
pub use self::folder::Folder;
pub use self::outage::{ANSWER_AGE_MAX, OUTAGE_MAX, Outage};
pub use self::remote::Remote;
pub use self::source::Source;
pub use self::stat_cache::NameLimits;
pub use self::version::FileVersion;
