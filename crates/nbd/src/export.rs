//! Exports as a handshake sees them: names, sizes and abilities.

use crate::constants::transmission_flag as flag;

/// Smallest preferred block that the specification allows.
const BLOCK_PREFERRED_MIN: u32 = 512;
/// Largest preferred block that is advertised: 32 MiB, the payload that every client may send.
const BLOCK_PREFERRED_MAX: u32 = 32 << 20;

/// The exports of a server.
pub trait Exports {
    /// The exports that clients may list, in the order of the answer.
    ///
    /// Names longer than [`STRING_BYTES_MAX`](crate::STRING_BYTES_MAX) are left out: no client can ask for them.
    fn list(&self) -> Vec<ListedExport>;

    /// The export of this name; the empty name is the default export's.
    ///
    /// It is also called for clients that only want to know about an export, so it reserves nothing.
    ///
    /// # Errors
    /// If there is none, or the client may not have it now.
    fn open(&self, name: &str) -> Result<Export, OpenError>;
}

/// An entry of the list of exports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedExport {
    /// The name by which clients open it.
    pub name: String,
    /// Free text for people; may be empty.
    pub description: String,
}

/// An export that a client may open. Its smallest block is one byte.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Export {
    /// Its size.
    pub size_bytes: u64,
    /// Free text for people; may be empty.
    pub description: String,
    /// True if writes are refused.
    pub read_only: bool,
    /// True if a flush on one connection covers the writes of all.
    pub multi_conn: bool,
    /// The length and alignment that suits the export best; made a power of two between 512 bytes and 32 MiB.
    pub block_preferred: u32,
    /// Longest read and longest payload of a write; made `block_preferred` at least.
    pub block_max: u32,
}

/// The reason why an export cannot be opened. The texts are shown to the client's user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// There is no export of this name.
    Unknown,
    /// There is one, and this client may not have it.
    Policy(String),
    /// The server is about to stop.
    Shutdown(String),
}

impl Export {
    /// The same export with block sizes that the specification allows.
    pub(crate) fn with_valid_blocks(mut self) -> Export {
        let preferred = self.block_preferred;
        let preferred = preferred.clamp(BLOCK_PREFERRED_MIN, BLOCK_PREFERRED_MAX);
        self.block_preferred = preferred.next_power_of_two();
        self.block_max = self.block_max.max(self.block_preferred);
        self
    }

    /// The transmission flags of this export.
    pub(crate) fn flags(&self, structured: bool) -> u16 {
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::SEND_CACHE;
        flags |= if self.read_only {
            flag::READ_ONLY
        } else {
            flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO
        };
        if structured {
            flags |= flag::SEND_DF;
        }
        if self.multi_conn {
            flags |= flag::CAN_MULTI_CONN;
        }
        flags
    }
}
