//! Clients' histories of keys and of [chunks](chunk) of memory, and the search for one order of the operations on each that
//! explains all of it (I8, I9).
//!
//! **Promises.** The checker is the search of Wing and Gong with Lowe's memory of (operations done,
//! state), bounded: it says fine, bad or undecided, and never guesses. A history is a file of JSON
//! lines that other checkers can read as well.
//!
//! **Path of the data.** A simulator makes [`Call`]s itself; whoever watches real processes writes
//! [`Record`]s, one for each operation, which [`record::check`] sorts by key and gives to [`check`].
//!
//! **What it does not do.** Operations on several keys: each key stands for itself. Expiry.

pub mod chunk;
mod content;
pub mod record;
mod search;

pub use content::Content;
pub use record::Record;
pub use search::{Call, Operation, Seen, Step, Stuck, Verdict, check};
