//! Redis's protocol without sockets: requests of clients, and the answers to them.
//!
//! **Promises.** A stream of bytes in RESP2, RESP3 or inline form becomes [`Command`]s, in order, however
//! it is cut into reads; bytes that are no RESP end in one error in Redis's words and harm no other
//! connection. Commands that are not supported are refused by name, never ignored. Nothing a client sends makes the
//! door hold more than [`Limits`] allow, and nothing panics.
//!
//! **Path of the data.** The driver owns one buffer of unread input, a [`Parser`], a [`Session`] and an
//! [`Output`] for each connection:
//!
//! ```text
//! bytes -> Parser::next -> Frame -> Command::of -+-> Data: the driver asks the buckets -> Output::join
//!                                                +-> KeyCount: the driver asks all nodes -> Output::integer
//!                                                +-> Local: Session::answer(facts)
//!                                                +-> Refused: Output::error
//! ```
//!
//! Arguments are slices of the input buffer up to the moment that the driver hands an operation to
//! another thread or node. Answers leave in the order of their commands; that order is the driver's to
//! keep, with the [`Protocol`] and [`Join`] of each command that waits.
//!
//! **Layout.** `parse`: bytes to arguments. `table`: the commands. `command`: arguments to operations.
//! `session`: local commands and the connection's state, with `info`, `cluster`, `command_docs` (COMMAND) and
//! `facts`. `redirect`: who serves a slot, and whether clients are sent there. `output`: answers to
//! bytes. `reply_queue`: answers in the order of their commands. `loading`: a connection before the node has joined.
//! `client`: a small blocking client.
//!
//! **Not here.** Sockets, waiting, routing, the values themselves. Transactions, scripts, blocking
//! commands, publish and subscribe, expiry: their commands do not exist yet.

pub mod client;
mod cluster;
mod command;
mod command_docs;
mod facts;
mod info;
mod loading;
mod output;
mod parse;
mod redirect;
mod reply_queue;
mod session;
mod subcommand;
mod table;
#[cfg(test)]
mod tests;
mod transaction;

pub use command::{Command, Ops};
pub use facts::{Brief, ClientFacts, Facts, ServerInfo};
pub use loading::LoadingConnection;
pub use output::{Join, Output, Protocol, error_word};
pub use parse::{Args, Frame, Limits, Parser, ProtocolError};
pub use redirect::{Redirect, cross_slot, elsewhere};
pub use reply_queue::{PartialReply, ReplyQueue};
pub use session::{After, Session};
pub use table::{COMMANDS, CommandEntry, CommandGroup, CommandName, Subcommand};
pub use transaction::{Mark, NOT_DONE, Transaction};
