//! NBD's protocol without sockets, the server's side: requests of clients, and the answers to them.
//!
//! **Promises.** A stream of bytes of the fixed newstyle protocol becomes a choice of an export and then [`Request`]s, in
//! order, however it is cut into reads. A request that is wrong but framed is refused with the number that the specification
//! gives it, and harms no other request; bytes that are no NBD end in one [`ProtocolError`]. Nothing a client sends makes the
//! door hold more than [`OPTION_BYTES_MAX`] of an option, [`ANSWERS_BYTES_MAX`] and one list of answers, or one payload of at most the
//! export's `block_max`; and nothing panics.
//!
//! **Path of the data.** The driver owns one buffer of unread input and one of output for each connection:
//!
//! ```text
//! Handshake::greeting -> out
//! bytes -> Handshake::next(exports) -+-> More: `out` is sent, more bytes are read
//!                                    +-> Ended: `out` is sent, the connection closed
//!                                    +-> StartTls: `out` is sent, TLS begins, and another Handshake goes on within it
//!                                    +-> Began: a Transmission, and the export's name
//! bytes -> Transmission::next -+-> Header: a write is announced; the driver takes a budget for its payload
//!                              +-> Request: the driver asks the volume -> Replies::read_head, done, error, ...
//!                              +-> Refused: Replies::error
//! ```
//!
//! A write's payload is cut out of the input buffer without a copy; a read's payload never enters this crate: a reply's head is
//! written, and the driver sends the bytes behind it.
//!
//! **Invariants.** `out` is empty again before the next [`Handshake::next`]: a client may not send an option before the
//! answer to the one before, and one that does is disconnected when its answers pile up. Each request has one reply, with the request's cookie; the
//! order is the driver's to choose. Nothing that came before TLS counts within it: neither agreements nor bytes. A [`Replies`] is a copy of what was agreed and may be used on any thread.
//!
//! **Layout.** `constants`: numbers of the specification. `export`: the volumes as a handshake sees them. `handshake`: options
//! one by one; `option`: the answer to each. `request`: one request's head, checked. `transmission`: requests and
//! payloads. `tls`: the policy of TLS. `reply`: answers to bytes, `text` in them. `error`: NBD's error numbers, and the reasons that end a connection.
//!
//! **Not here.** Sockets, waiting, budgets, the bytes of volumes, TLS itself. Extended headers, resizing, other metadata than
//! `base:allocation`: options that ask for them are refused.

mod constants;
mod error;
mod export;
mod handshake;
mod option;
mod reply;
mod request;
mod text;
mod tls;
mod transmission;

pub use error::{NbdError, ProtocolError};
pub use export::{Export, Exports, ListedExport, OpenError};
pub use handshake::{
    ANSWERS_BYTES_MAX, Handshake, HandshakeStep, OPTION_BYTES_MAX, OPTION_SKIP_BYTES_MAX,
    OPTIONS_MAX,
};
pub use option::LIST_BYTES_MAX;
pub use reply::{EXTENTS_MAX, ReadRange, Replies};
pub use request::{NbdCommand, Request};
pub use text::STRING_BYTES_MAX;
pub use tls::TlsPolicy;
pub use transmission::{Incoming, REQUEST_HEAD_BYTES, Transmission};
