//! The directory: the cluster's one replicated truth, embedded in every node.
//!
//! **Promises.** A change that [`Directory::propose`] reports as done is on the disks of a majority of the
//! voters and in every later map. Every node sees the same maps in the same order, sooner or later
//! ([`Directory::map`]). A lease that [`Directory::lease`] grants is honoured by every leader, this one and
//! later ones, until it ends at its holder. An epoch that it opens ([`Directory::call`]) has no holder of an
//! older lease against it. Without a majority nothing changes, and no answer says otherwise.
//!
//! **Path of the data.** A request goes from any node to the leader (`ask`), which answers it (`lead`,
//! `join`, `lease_batcher`, `stops`) or orders a [`Proposal`] by Raft: into the log of a majority (`store`, over `network` and the
//! node's [`Transport`]), then, on every node, into the map (`machine`), which its [`Directory::map`] shows.
//! The leader's driver (`leader`) hands time, map and reports to the pure machines of `staves-model` (`planner`:
//! epochs and placement, `detector`: deaths, `lease`: the lease book) and proposes what they want;
//! `membership` makes Raft's voters and learners follow the map, as `voters` plans it; a leader that leaves
//! hands its leadership over (`leadership_transfer`); where leaders do not last, candidacies are held back
//! (`elections`). Every node's `pinger` brings the detector its evidence.
//!
//! **Invariants.**
//! - Vote and log entries are on disk before they are acknowledged; a node without a data folder has a new
//!   id at each start, so that a forgotten vote is never cast twice.
//! - What a leader decides on volatile knowledge (leases, evidence) is ordered with its term, and the map
//!   refuses it in any other ([`Proposal::term`]).
//! - Leases are granted only by a leader that a quorum confirmed after the request came (`lease_batcher`).
//! - One change of Raft's membership at a time, always through a joint configuration.
//! - Every request names the node and the cluster that it is for; a process that took an address over
//!   answers for itself only.
//! - Everything waits with a deadline, and every queue and table is bounded.
//!
//! **How many nodes.** One voter with one or two nodes, three from three, five from five. So two nodes bear the
//! loss of the second but not of the first (its return resumes them); three is the least that bears the
//! loss of any one. Voters that die are replaced while three others can vote; the set shrinks as nodes go. If a
//! majority of the voters is lost at once, the directory waits for one of them to return.
//!
//! **Not here.** The rules of the map, placement and verdicts (`staves-model`); connections
//! (`staves-net`, behind [`Transport`]); messages between members of a group (`staves-group`).
//!
//! **Layout.** Read `directory`, `start`, `ask`, `lead`, `calls`; then `leader`, `membership`, `voters`, `leadership_transfer`; then
//! `store`, `machine`, `network`, which are openraft's side.

mod ask;
mod calls;
mod directory;
mod elections;
mod error;
mod fatal;
mod folder_owner;
mod join;
mod lead;
mod leader;
mod leader_state;
mod leadership_transfer;
mod lease_batcher;
mod machine;
mod membership;
mod message;
mod network;
mod options;
mod pinger;
mod restored;
mod start;
mod stops;
mod store;
#[cfg(test)]
mod tests;
mod transport;
mod types;
mod voters;
mod waiting;

pub use directory::{Directory, Granted, HANG, Left, Life, Status};
pub use error::{DirectoryError, StoreError};
pub use message::{CALLS_MAX, CallAnswer, VERSION as MESSAGE_VERSION};
pub use options::{Options, Times};
pub use store::damage::panic_becomes_an_error;
pub use store::make_folder;
pub use transport::{CallFuture, Transport, TransportError};
pub use types::{Applied, Proposal};
