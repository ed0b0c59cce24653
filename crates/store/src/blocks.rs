//! Blocks of files in RAM, read by other processes of the machine without a message.
//!
//! A block is 256 KiB of one version of one file; it never changes under its [`BlockKey`], it only comes,
//! part by part, and goes. A part is 8 KiB: what a miss fetches at least. Every 4 KiB have a
//! CRC32C that is made when they come in and checked each time that they are read, after they were copied.
//!
//! **Path of the data.** [`Blocks::new`] makes a memfd: a header, a table, frames of a part each. The node
//! puts parts in ([`Blocks::put`]) and reads them ([`BlockMapping::read`], by [`Blocks::mapping`]). A mount on the same machine is given the
//! descriptor, opened anew for reading only ([`Blocks::descriptor`]), maps it ([`BlockMapping::open`]) and reads the same way.
//!
//! **Promises.** A read gives the bytes that were put under that key, or says [`Miss`]: never others, whatever is put and evicted
//! meanwhile, and whatever befell the memory. Frames in use never pass the limit. What is evicted goes in the order of S3-FIFO,
//! blocks of which another node has a copy before those that are the last, pinned ones never.
//!
//! **How.** One lock orders all that put and evict; what is done to many blocks takes it for some at a time. Readers take none: an entry of the table has a sequence number, odd while it
//! changes; a reader that finds it changed once it has copied begins again. A frame is written only while no entry names it, and it
//! is no entry's before the number of the one that named it went up.

mod block;
mod buckets;
mod changes;
mod entry;
mod many;
mod policy;
mod shared;
#[cfg(test)]
mod tests;
mod writer;

pub use self::block::{BLOCK_BYTES, BLOCK_PARTS, BlockKey, Copies, PART_BYTES, SUM_BYTES};
pub use self::changes::Changed;
pub use self::shared::{BlockMapping, Miss};
pub use self::writer::{Blocks, Checked, Figures, Listed, PutError};
