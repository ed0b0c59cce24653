//! Connections of the native protocol: between nodes, and from clients to nodes.
//!
//! **Promises.** Many requests at once on a connection, answers in any order, each request with a
//! deadline that travels with it, and an error that names the address and what was waited for.
//! Nothing waits for ever: connecting, greeting, silence, a side that takes nothing, all have bounds
//! ([`Options`]). Nothing grows without bound: requests under way, their bytes, bytes that wait to be
//! written; a server pushes back by not reading, a client by waiting. A message that is malformed or
//! too large is refused by itself; damage, or a stranger, ends its own connection only.
//!
//! **Path of the data.** [`Connection::call`] encodes a request into the connection's outbox, from
//! which its one task writes everything that waits in one vectored write. The accepting side's task
//! ([`Server`]) reads as much as there is, hands each message to the [`Handler`] in order of arrival,
//! and writes what has been answered by then, together. A [`Reply`] may be answered later from any
//! thread. Between nodes, [`Peers`] holds a link to each: [`Peers::send_group`] encodes group
//! messages into the link's queue without waiting (bounded; the oldest are let go), and
//! [`Peers::call`] asks.
//!
//! **What it does not do.** It does not retry and does not route: the layers above know what may be
//! asked twice. It does not decide that a node is dead: it passes on what it saw ([`Evidence`]). It
//! does not encrypt: a shared secret ([`Secret`]) keeps strangers out, not listeners.
//!
//! **Layout.** `outbox`, `queue`: what waits to be written. `connection`: the asking side. `server`,
//! `session`, `reply`: the answering side. `traffic`: bytes counted. `peers`: links between nodes. `dialer`: connections by address. `descriptors`, `newcomers`, `refusals`:
//! who is let in. `in_flight`: the memory of all requests under way, and the number of those that wait. `secret`: proofs of it, `small_file`: its file, and others that people name. `identity`, `options`, `error`.

mod connection;
mod descriptors;
mod dialer;
mod error;
mod identity;
mod in_flight;
mod newcomers;
mod options;
mod outbox;
mod peers;
mod queue;
mod refusals;
mod reply;
mod seal;
mod secret;
mod server;
mod session;
mod small_file;
mod traffic;
mod turn;

pub use connection::Connection;
pub use descriptors::Descriptors;
pub use dialer::Dialer;
pub use error::NetError;
pub use identity::{Identity, Who};
pub use in_flight::{
    Behind, InFlight, InFlightPart, KeptBuffers, OWN_BYTES, SMALL_BYTES, WaitingPart,
    WaitingRequests,
};
pub use newcomers::{Newcomer, Newcomers};
pub use options::Options;
pub use peers::{Evidence, PeerOptions, PeerStats, Peers};
pub use refusals::{Refusals, RefusedConnections};
pub use reply::Reply;
pub use secret::{Secret, SecretError, Secrets};
pub use server::{Handler, PeerInfo, Server};
pub use small_file::read_small_file;
pub use traffic::sent_bytes;
pub use turn::{end_of_turn, thread_rests};
