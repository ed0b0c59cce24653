//! The doors of NBD, gRPC and HTTP, as the rest of the node sees them: their addresses and counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use staves_net::InFlight;

use crate::volumes::places::VolumeDoorState;

/// The part of the memory for requests that requests on logs have, and the least of it.
const MEMORY_PART: usize = 4;
const MEMORY_BYTES_MIN: usize = 8 << 20;

/// The doors, whether they are open or not.
pub(crate) struct ClientDoors {
    pub(crate) nbd: Arc<VolumeDoorState>,
    pub(crate) grpc: Arc<VolumeDoorState>,
    pub(crate) http: Arc<VolumeDoorState>,
    /// The addresses that clients are given, of those that are served.
    pub(crate) addresses: DoorAddresses,
    /// The requests on logs of gRPC and HTTP.
    pub(crate) logs: Arc<LogDoorFigures>,
}

/// Addresses at which doors are served, `host:port`.
#[derive(Clone, Default, Debug)]
pub(crate) struct DoorAddresses {
    pub(crate) nbd: Option<String>,
    pub(crate) grpc: Option<String>,
    pub(crate) http: Option<String>,
}

/// The figures of the requests on logs, and their memory.
#[derive(Debug)]
pub(crate) struct LogDoorFigures {
    pub(crate) appended_records: AtomicU64,
    pub(crate) appended_bytes: AtomicU64,
    pub(crate) read_records: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    /// At present.
    pub(crate) followers: AtomicU64,
    /// Logs that are open at present.
    pub(crate) open: AtomicU64,
    /// The memory for messages, apart from that of the requests that they cause: those need memory, too.
    pub(crate) memory: Arc<InFlight>,
}

impl LogDoorFigures {
    /// Of a node with so many bytes for requests in all.
    pub(crate) fn new(in_flight_bytes: usize) -> Arc<LogDoorFigures> {
        let memory = (in_flight_bytes / MEMORY_PART).max(MEMORY_BYTES_MIN);
        Arc::new(LogDoorFigures {
            appended_records: AtomicU64::new(0),
            appended_bytes: AtomicU64::new(0),
            read_records: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            followers: AtomicU64::new(0),
            open: AtomicU64::new(0),
            memory: InFlight::new(memory),
        })
    }

    pub(crate) fn appended(&self, records: usize, bytes: usize) {
        let (records, bytes) = (records as u64, bytes as u64);
        self.appended_records.fetch_add(records, Ordering::Relaxed);
        self.appended_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, records: usize, bytes: usize) {
        let (records, bytes) = (records as u64, bytes as u64);
        self.read_records.fetch_add(records, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
