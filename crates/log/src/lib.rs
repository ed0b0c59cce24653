//! The log service: a shared, totally ordered log over units.

mod client;
mod codec;
mod entry;
mod message;
mod mutant;
mod sequencer;
mod share;
mod slots;
mod state;
mod types;
mod unit;

pub use client::*;
pub use codec::BucketRequest;
pub use entry::*;
pub use message::*;
pub use sequencer::*;
pub use share::{LOG_SHARE_BYTES, LogShare};
pub use slots::SLOT_BYTES;
pub use state::UnitState;
pub use types::*;
pub use unit::*;

#[cfg(test)]
mod tests;
