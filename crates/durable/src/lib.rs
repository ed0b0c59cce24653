//! The bytes that a node keeps of its members on a disk: between the group protocol and the journal and page file.
//!
//! **Promises.** After a start the disk has each member that was whole as some prefix of its records leave it, and that prefix has all that was
//! reported as durable to it before. A member that was being filled is gone after a start, and joins anew.
//!
//! **Path of a record.** A member's step leaves records ([`staves_group::Effects::records`]). [`DiskStore::hand_over`] appends them to the journal
//! in their order; where that has no room they wait. Whoever drives the journal says up to where it is synced, and [`DiskStore::synced`] says which
//! members are to be told ([`staves_group::Event::Synced`]).
//!
//! **Path of a page.** [`save`] goes through one round of a member: a snapshot into the journal, then the pages that changed, some at a time, into the page file, each
//! once every delta in it is durable (D-5). [`DiskStore::needed_from`] is the record from which on the journal is still needed (D-8).
//!
//! **A start.** [`open`] replays the journal into members, drops those that were not whole, and says what there is. Their pages are read when they are
//! made ([`DiskStore::kept_pages`]).
//!
//! **Not here.** Threads, locks and clocks (`staves-node`).

mod checkpoint;
mod open;
mod placed;
mod save;
mod store;

pub use checkpoint::read_kept;
pub use open::{
    DiskFiles, DiskOpenError, DiskSizes, OpenedDisk, create, create_files, create_with, open,
    open_pages_again,
};
pub use save::{SaveDriver, SaveError, save, strike};
pub use store::{AppendRecord, DiskStore, room_of};
