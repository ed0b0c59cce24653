//! Write-back volumes: their writes are answered once every listed member holds them, and a flush once every one has synced them.

use serde::{Deserialize, Serialize};

/// A volume with write-back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Writeback {
    /// Sessions up to this one are over, because something that they had not flushed may be gone; 0 for none.
    pub over: u64,
}

/// The fate of what was answered and not flushed, if a group goes on with certain members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unflushed {
    /// They hold all of it.
    Kept,
    /// Others may hold it, who are to be waited for.
    Awaited,
    /// Nobody has all of it any more.
    GivenUp,
}
