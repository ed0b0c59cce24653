//! The memory for requests and answers of clients that are under way: one budget for all connections of a node, whatever
//! their door.
//!
//! A connection says how much it holds, and asks before it takes more: an unfinished value counts as a whole from its
//! first bytes on, so that those that were begun can be ended. A page of each connection is not counted, nor refused. Small
//! requests go on while large ones have taken the budget: a reserve is theirs alone, so that ten thousand small ones have a
//! bound too. Who holds anything while others wait has to move:
//! a connection that hardly takes or gives a byte then is closed. Who has waited longest goes first, after half a second: what
//! is given back meanwhile is kept for it, so that a large value finds room beside many smaller ones.

mod budget;
mod kept;
mod line;
mod part;
mod requests;

pub use self::budget::{InFlight, OWN_BYTES, SMALL_BYTES};
pub use self::kept::KeptBuffers;
pub use self::part::{Behind, InFlightPart};
pub use self::requests::{WaitingPart, WaitingRequests};

#[cfg(test)]
mod tests;
