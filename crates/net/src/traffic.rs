//! The bytes that this process sends to others.

use std::sync::atomic::{AtomicU64, Ordering};

static SENT: AtomicU64 = AtomicU64::new(0);

/// Bytes that the kernel has taken from this process's connections, of either side, since it started.
/// The sum over all processes of a cluster and its clients is the traffic of the wire, without the headers
/// of TCP.
pub fn sent_bytes() -> u64 {
    SENT.load(Ordering::Relaxed)
}

pub(crate) fn sent(bytes: usize) {
    SENT.fetch_add(bytes as u64, Ordering::Relaxed);
}
