//! What applications link to use a cluster, and what a node uses to pass requests on.
//!
//! **Promises.** An operation goes straight to the node that answers for its key, in one batch with all
//! others for that node (row X6); it is asked again through failovers until its deadline, a write
//! always with the same number, so that it takes effect at most once; and what is not known at the
//! deadline is said not to be known. A map that is too old costs one detour: the answer brings the
//! newer entry, and the same mistake is not made twice. A node that does not answer is passed over for
//! another; the list of nodes that one begins with need not be complete (row D1), and trouble with a
//! node is reported (row D5).
//!
//! **Path of the data.** [`Client::execute`] hands operations to the [`Router`], which numbers the
//! writes within a bounded window, looks up each key's node in its map, and sends batches through a
//! [`Transport`]: the client's own connections here, a node's links and own buckets in the daemon.
//! Answers that say "not here, not now" go round again, by a newer map if one can be had.
//!
//! **What it does not do.** No caching of values. No transactions: a batch is a way to travel, not a unit.
//! No retry of a write under a new number: if its outcome is unknown, only its user can tell whether to
//! write again.
//!
//! **Layout.** `client`: what applications hold. `router`: batches and retries. `route`: which node, by
//! which map. `numbers`: names for writes. `links`: connections, and where maps come from.

mod client;
mod error;
mod links;
mod numbers;
mod options;
mod route;
mod router;

pub use client::Client;
pub use error::ClientError;
pub use options::{ClientOptions, RouterOptions};
pub use router::{Router, Transport};
