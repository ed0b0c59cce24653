//! The log service: a shared, totally ordered log over units.

mod entry;
mod message;
mod types;

pub use entry::*;
pub use message::*;
pub use types::*;
