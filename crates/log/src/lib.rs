//! The log service: a shared, totally ordered log (rows L1 to L5 and L7). State machines without I/O.
//!
//! **Promises.** A position has one value for ever. An acknowledged append is on the disks of all copies of its unit, and readable until it is
//! trimmed. What was acknowledged before an append began lies below it. The tail lies above everything that was acknowledged, and never goes
//! back. An append is in the log once, whatever is lost, doubled or late; a batch is in it whole or not at all. A position below the tail does
//! not stay undecided. A walk along a tag's back-pointers finds every record of it.
//!
//! **Path of an append.** The [`Appender`] sends data to a unit and a request to the sequencer, at once. The [`Sequencer`] gives the next
//! position to the append and sends the binding to that unit ([`AppendMode::Bind`]); or lets it wait for a position of the unit that the client
//! guessed ([`AppendMode::Predict`]); or gives the client a token, with which it writes ([`AppendMode::Corfu`]). Data and binding meet at the
//! [`Unit`]: one [`UnitEntry`] names the slots, the id and the client's mark, and once it is durable client and sequencer are answered.
//!
//! **Path of a read.** The [`LogReader`] finds the unit of a position by arithmetic, or by a map page, or from the sequencer. The unit answers
//! DATA, JUNK or TRIMMED, for ever, or UNWRITTEN, which promises nothing. A reader that brings the sequencer's word on an undecided position
//! has the unit make it junk (row L5). [`LogScan`] reads positions in order, [`StreamWalk`] the records of a tag.
//!
//! **Terms.** A log's *record* is kept by its *home*: the unit that the hash of its name picks. It commits a term of one sequencer, which seals
//! every unit, rebuilds from what they have, and has the home open the term. Whatever a unit obeys carries the term, and no other than its own
//! has effect. [`SequencerSeat`] makes at most one machine for each term of a node's life.
//!
//! **Invariants.** Only [`UnitState::apply`] changes durable state. A reply leaves once the entry that it rests on is durable. Everything that
//! a stranger can grow is bounded; of ids, by sessions ([`SessionId`]) that end when there are too many.
//!
//! **Layout.** `types`, `message` and `entry` first; then `unit` (and its `share`, `sessions` and `slots`), `sequencer`, `client`. `codec` is the wire.
//!
//! **Not here.** Copies of a unit (`staves-group`), threads, sockets and clocks, and the choice of a new sequencer (`staves-node`).

mod client;
mod codec;
mod entry;
mod message;
mod mutant;
mod retention;
mod sequencer;
pub mod service;
mod sessions;
mod share;
mod slots;
mod state;
pub mod store;
mod types;
mod unit;

pub use client::*;
pub use codec::{ASK_REQUESTS_MAX, BucketRequest};
pub use entry::*;
pub use message::*;
pub use retention::*;
pub use sequencer::*;
pub use share::{LOG_SHARE_BYTES, LogShare};
pub use slots::SLOT_BYTES;
pub use state::UnitState;
pub use types::*;
pub use unit::*;

#[cfg(test)]
mod tests;
