//! The native protocol of Staves: what nodes and clients say to each other on port 1600, and how that
//! is written as bytes. Pure: no sockets, no clock, no randomness.
//!
//! **Promises.** Every message has exactly one encoding, pinned by golden bytes in `tests/it/`; a
//! change to any of them is a new version ([`frame::VERSION_MAX`]); `docs/PROTOCOL.md` says what a
//! newer version may add and what an older one does with it. Bytes from anywhere decode or are
//! refused with the reason: never a panic, never more memory than a small multiple of the bytes that
//! came, never past a limit. What is damaged is seen (CRC32C over header and body).
//!
//! **Path of the data.** A [`Message`] is encoded by [`frame::encode`] into one frame or several and
//! leaves in `staves-net`. On the other side a [`frame::Decoder`] takes frames off the connection's
//! bytes, puts those of one message together, and [`Message::decode`] looks into it; values, deltas
//! and pages are slices of the bytes that were read, not copies.
//!
//! **Layout.** [`message`]: all messages and their opcodes in one table; read it first. One file for
//! each part that has something to say: [`hello`], [`group`], [`service`] with [`cache`] and [`memory`], [`log`], [`files`], [`directory`],
//! [`admin`], [`error`], with the structs and, at the file's end, how they are written. [`frame`]: headers, large
//! messages in pieces, limits. [`encoded`]: answers that are encoded as they are given. `codec`: the rules of encoding, and the macros that apply them.
//!
//! **Not here.** Connections, deadlines, who answers what: `staves-net` and above. What the directory
//! says to itself (Raft, `Change`, `ClusterMap`) is carried as bytes. Compression and encryption.

pub mod admin;
pub mod cache;
mod chunk_bits;
mod codec;
pub mod directory;
pub mod encoded;
pub mod error;
pub mod files;
pub mod frame;
pub mod group;
pub mod hello;
pub mod log;
pub mod memory;
mod memory_body;
pub mod message;
pub mod service;

pub use codec::{DecodeError, TEXT_BYTES_MAX};
pub use error::{ErrorCode, ErrorPacket, cut_text};
pub use message::{Kind, Message, Opcode, Size};
