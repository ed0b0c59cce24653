//! Files as a folder: a read-only FUSE mount over anything that can list, open and read (row D8); and the same by NFS
//! for hosts without FUSE (`nfs`, which has its own opening).
//!
//! **Promises.** Unmodified programs see a folder: they open, read, seek and map its files. A read gives
//! the bytes of the version that was opened, or fails: with ESTALE once the source has another, with ETIMEDOUT if
//! no answer came in time (the mounted tree bounds that; the next read tries again), else with EIO. Two versions are
//! never mixed, not in one page cache either. A program that opens a file anew gets the new version, after
//! [`Options::lifetime`] at the latest. Every change is refused with EROFS.
//!
//! **Path of the data.** The kernel sends a request (`requests`, `serve`), which one of a few threads takes. A name becomes an inode
//! (`inodes`), an open file a handle (`handles`). A read goes to [`Files::read`], into the thread's own buffer, and from there
//! to the kernel, which keeps the pages for all programs: the next read of them never reaches this process. A reader in
//! order is detected (`ahead`), and [`Files::will_read`] gets the range to fetch. A few of those threads may wait for bytes
//! that are not at hand; beyond them other threads wait (`waiters`), and bytes at hand are read all the same.
//!
//! **Invariants.** An inode is one version of one path; its size and bytes never change. So the kernel may keep its pages
//! across opens, but for those that it read while the file was fresh (its next change might not show). A new version is
//! another inode; the handles of the old one are refused, and the kernel is asked to drop its pages (`outdated`).
//! Everything is bounded: inodes, handles, waiting reads, the size of a request; threads have a buffer each.
//!
//! **When the process dies** the kernel answers "transport endpoint is not connected"; the next [`mount()`] at the
//! same folder takes that away. At SIGTERM, [`Mounted::serve`] unmounts. A process takes away its own mount only, never one that came to
//! the same folder after it.
//!
//! **Layout.** `files`: the interface of a mounted tree, the only one to implement. `folder`: a local folder, mounted
//! as it is. `listing`: the names in one. `mount`: from a folder to a served mount. `points`: the kernel's table of mounts.
//!
//! **Not here.** The origin of bytes, the bounds on waiting for them, the memory that keeps them.

mod ahead;
mod complaints;
mod files;
mod folder;
mod handles;
mod inodes;
mod listing;
mod mount;
mod nfs;
mod outdated;
mod points;
mod requests;
mod serve;
mod waiters;

pub use files::{FileError, Files, Kind, Seek, Stat, Used, Version};
pub use folder::{Folder, FolderFile};
pub use listing::Listing;
pub use mount::{EndSignals, MountError, Mounted, Options, mount, ready, unmount};
#[doc(hidden)]
pub use nfs::nfs_answers;
pub use nfs::{NfsError, NfsOptions, NfsServer, serve_nfs};
