//! The counts of the RESP door, with its connections.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64};

use parking_lot::Mutex;
use staves_net::Refusals;
use staves_resp::ClientFacts;

/// The door's counts and connections.
#[derive(Debug, Default)]
pub(crate) struct DoorState {
    pub(crate) connections_total: AtomicU64,
    pub(crate) connections: AtomicU32,
    /// Clients beyond `clients_max` or the descriptors.
    pub(crate) rejected: Refusals,
    /// The system gave no socket.
    pub(crate) not_accepted: Refusals,
    pub(crate) commands_total: AtomicU64,
    pub(crate) read_bytes_total: AtomicU64,
    pub(crate) written_bytes_total: AtomicU64,
    /// Operations that took the way by another node, or round a takeover.
    pub(crate) detoured_total: AtomicU64,
    /// Connections as CLIENT LIST shows them.
    pub(crate) clients: Mutex<BTreeMap<u64, ClientFacts>>,
}
