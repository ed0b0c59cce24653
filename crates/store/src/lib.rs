//! The memory of pages: one arena per node, budgets within it, and the pages of one bucket.
//!
//! **Promises.** Memory is bounded before it is used: a bucket reserves extents from its pool's
//! [`Budget`] and from the [`Arena`], and a write within the reservation cannot fail. That is what
//! lets a group refuse a write everywhere or nowhere (a delta that was made is never refused).
//! A write that would pass the reservation changes nothing and says [`Full`]. What was never
//! written reads as zeroes. What a bucket gives back is zero before anyone else sees it.
//!
//! **Path of the data.** At start a node makes one [`Arena`], a memfd mapped once, whose memory the
//! kernel provides as it is touched. A pool on the node has a [`Budget`]. Each bucket has
//! [`Pages`]: a table from offset to [`Extent`]. [`Pages::reserve`] takes extents out of the arena;
//! [`Pages::write`] puts them into the table as offsets are first written; [`Pages::zero`] takes
//! them out again, into the bucket's own reservation; dropping the [`Pages`] gives all back.
//!
//! **Contract.** A member of a group needs of its storage no more than this, which a disk must keep as well: [`Pages`]
//! are reserved ([`Pages::reserve`]), written ([`Pages::write`], [`Pages::add`], [`Pages::set_page`]), read ([`Pages::page`],
//! [`Pages::slice`]) and freed ([`Pages::zero`]); [`Journal::sync`] reports how far a stream would survive a loss of power.
//!
//! **Invariants.** An extent has exactly one owner: the arena's free list or one [`Extent`] value,
//! which is neither `Clone` nor forgeable. So `&Extent` reads and `&mut Extent` writes are as sound
//! as those of a `Box<[u8]>`, and no lock is taken to touch bytes. `used <= reserved` for each
//! bucket; the sum of the reservations is within each budget and within the arena.
//!
//! **Layout.** `extent`: the mapping and the one place with `unsafe`. `arena`: the free list.
//! `budget`: a count. `pages`: a bucket's page table; read it for what services see.
//!
//! **Not here.** What the bytes mean, labels, logs (`staves-group` and the services). Disks.

mod arena;
pub mod blocks;
mod budget;
mod extent;
mod heap;
mod journal;
mod pages;

pub use arena::Arena;
pub use budget::Budget;
pub use extent::{Extent, MapError};
#[cfg(feature = "heap")]
pub use heap::by_size::{HeapBySize, SMALL_MAX, is_small_piece};
pub use heap::{share_heaps, trim_heap};
pub use journal::{Journal, LateSyncs};
pub use pages::{Full, Idle, KeptOn, NotKept, PageKeeper, Pages, Residency, Unread};

pub use staves_model::{EXTENT_BYTES, EXTENT_PAGES};

/// Most extents of one bucket (32 GiB), so that an offset that a peer made up cannot make us
/// allocate a page table without end.
pub const BUCKET_EXTENTS_MAX: u32 = 1 << 17;

/// Extents that hold so many bytes, rounded up.
pub fn extents_for(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(EXTENT_BYTES as u64)).unwrap_or(u32::MAX)
}
