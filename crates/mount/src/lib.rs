//! Files as a folder: a read-only FUSE mount over anything that can list, open and read (row D8); and the same by NFS
//! for hosts without FUSE (`nfs`, which has its own opening).
//!
//! **Promises.** Programs that know nothing of us see a folder: they open, read, seek and map its files. A read gives
//! the bytes of the version that was opened, or fails: with ESTALE once the source has another, with ETIMEDOUT if
//! nobody answered in time (what is mounted bounds that; the next read tries again), else with EIO. Two versions are
//! never mixed, not in one page cache either. Whoever opens anew gets the new version, after [`Options::lifetime`] at
//! the latest. Whatever would change something gets EROFS.
//!
//! **Path of the data.** The kernel sends a request (`requests`, `serve`), which one of a few threads takes. A name becomes an inode
//! (`inodes`), an open file a handle (`handles`). A read goes to [`Files::read`], into the thread's own buffer, and from there
//! to the kernel, which keeps the pages for everybody: the next read of them never reaches us. Who reads in order is noticed
//! (`ahead`), and [`Files::will_read`] told what to fetch. What is not at hand is waited for by few of those threads; where more would, by others (`waiters`):
//! what is at hand is read all the same.
//!
//! **Invariants.** An inode is one version of one path; its size and bytes never change. So the kernel may keep its pages
//! across opens, but for those that it read while the file was fresh (its next change might not show). A new version is another inode; the handles of the old one are refused, and the kernel is told to let its
//! pages go (`outdated`). Everything is bounded: inodes, handles, what waits, the size of a request; threads have a buffer each.
//!
//! **When the process dies** the kernel says "transport endpoint is not connected" to whoever comes; the next [`mount()`] at the
//! same folder takes that away. At SIGTERM, [`Mounted::serve`] unmounts. A process takes away its own mount only, never one that came to
//! the same folder after it.
//!
//! **Layout.** `files`: what can be mounted, the only thing to implement. `folder`: a local folder, mounted
//! as it is. `listing`: what is in one. `mount`: from a folder to a served mount. `points`: the kernel's table of mounts.
//!
//! **Not here.** Where bytes come from, how long one waits for them, what is kept in memory.

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

pub use files::{FileError, Files, Kind, Stat, Used, Version};
pub use folder::{Folder, FolderFile};
pub use listing::Listing;
pub use mount::{MountError, Mounted, Options, mount, ready, unmount};
#[doc(hidden)]
pub use nfs::nfs_answers;
pub use nfs::{NfsError, NfsOptions, NfsServer, serve_nfs};
