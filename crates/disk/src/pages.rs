//! Pages on a disk: each at a place of a page file, and a journal of its own that says which is where.
//!
//! **Promises.** After a start the pages, the members' headers and the mark of the journal are those of one checkpoint: the last one that was
//! finished, or the one that was under way. A page that is read is the one that was written, or there is an error ([`PageError`]): its check sum is
//! in the table. A checkpoint that has no room changes nothing ([`PageFileError::Full`]). Once a write or a sync has failed nothing more is
//! taken (rule D-9).
//!
//! **Path of a page.** [`PageFile::begin`] gives each page of a [`Checkpoint`] a fresh place; [`PageWork::perform`] writes them there, syncs, writes the
//! rows of the table that say so, syncs those; [`PageFile::finish`] counts them. The places that they had before are free from then on. Nothing is
//! written in place (rule D-6): a torn page is one that no row names. Whoever drives it holds no lock while it writes, so pages are read meanwhile.
//!
//! **The table is a log.** A checkpoint is one record of it, so it is there whole or not at all. With each some of the rows that have not changed
//! are written again, in their order, four bytes for each byte of change: once all have been, whatever was written before
//! the first of them is let go. So the log has the table some three times over, there is no pause in which it is written anew, and a
//! start reads it and nothing else, and goes on with the sweep where it stood.
//!
//! **Not here.** The meaning of labels and headers (`staves-group`); when a page may be written (rule D-5); scrubbing.

mod checkpoint;
mod format;
mod journaled;
mod limits;
mod located;
mod machine;
mod mark;
mod member;
mod room;
mod start;
mod sweep;
mod work;

pub use self::checkpoint::{Checkpoint, PageBytes, PageFileError, PageImage, PageVersion};
pub use self::format::PAGES_VERSION;
pub use self::located::{Located, PageError};
pub use self::machine::PageFile;
pub use self::start::PagesOpenError;
pub use self::work::{PageWork, PagesPerformed};
