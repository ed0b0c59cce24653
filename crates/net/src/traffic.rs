//! The bytes that this process sends to others.

use std::sync::atomic::{AtomicU64, Ordering};

static SENT: AtomicU64 = AtomicU64::new(0);

/// Bytes that the kernel has taken from this process's connections, of either side, since it started.
/// What all processes of a cluster and its clients have sent is what went over the wire, but for the headers
/// of TCP.
pub fn sent_bytes() -> u64 {
    SENT.load(Ordering::Relaxed)
}

pub(crate) fn sent(bytes: usize) {
    SENT.fetch_add(bytes as u64, Ordering::Relaxed);
}
