//! The errors of a journal that takes no record.

/// A record that was not taken.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// There is no room until older records are let go. Nothing has changed.
    #[error(
        "the journal has room for {room} more bytes and the record takes {needed}: older records must be let go first"
    )]
    Full {
        /// The bytes of the ring that the record would take.
        needed: u64,
        /// The bytes that are free for it.
        room: u64,
    },
    /// The batch that waits for the one under way is full. Nothing has changed.
    #[error("as much waits for the disk already as one batch takes")]
    Busy,
    /// A record beyond [`Journal::record_bytes_max`].
    #[error("a record of {bytes} bytes, where {max} are the most")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The largest that is taken.
        max: usize,
    },
    /// A write or a sync failed: nothing that was not synced before can be trusted, and no sync is tried again.
    #[error("the journal has failed and takes nothing more: {0}")]
    Failed(String),
}
