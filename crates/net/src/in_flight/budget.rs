//! The budget of a node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::kept::Keepers;
use super::line::Line;
use super::requests::WaitingRequests;

/// So much of each connection does not count, and is never refused.
pub const OWN_BYTES: usize = 4 << 10;
/// A connection that holds no more than this is small: it may use the reserve.
pub const SMALL_BYTES: usize = 64 << 10;
/// Most bytes beyond the budget for connections that are small; a quarter of the budget, if that is less.
const RESERVE_BYTES_MAX: usize = 8 << 20;
/// The longest sleep of a waiting request before it looks again: what the native door writes out wakes nobody.
const LOOK: Duration = Duration::from_millis(100);
/// In this time a connection that holds memory for which others wait must have moved so much, and a part of what it holds. It is no longer
/// than the longest wait, so that most get what is given back.
const MOVES_WITHIN: Duration = Duration::from_secs(5);

/// The budget of a node.
#[derive(Debug)]
pub struct InFlight {
    pub(super) bytes_max: usize,
    pub(super) moves_within: Duration,
    pub(super) held: AtomicUsize,
    /// Bytes of answers that wait to be written at the native door.
    pub(crate) queued: Arc<AtomicUsize>,
    pub(super) waiting: AtomicUsize,
    /// One part takes more than there is.
    pub(super) overdrawn: AtomicBool,
    pub(super) keepers: Keepers,
    pub(super) less: Notify,
    pub(super) line: Line,
    /// The requests that wait, by number.
    pub requests: WaitingRequests,
}

impl InFlight {
    /// Of so many bytes.
    pub fn new(bytes_max: usize) -> Arc<InFlight> {
        InFlight::bounded(bytes_max, usize::MAX)
    }

    /// Of so many bytes, with so many requests that wait.
    pub fn bounded(bytes_max: usize, requests_max: usize) -> Arc<InFlight> {
        Arc::new(InFlight {
            bytes_max,
            moves_within: MOVES_WITHIN,
            held: AtomicUsize::new(0),
            queued: Arc::default(),
            waiting: AtomicUsize::new(0),
            overdrawn: AtomicBool::new(false),
            keepers: Keepers::default(),
            less: Notify::new(),
            line: Line::default(),
            requests: WaitingRequests::new(requests_max),
        })
    }

    /// Bytes that connections hold, or have begun to read.
    pub fn held_bytes(&self) -> usize {
        self.held.load(Ordering::Relaxed) + self.queued.load(Ordering::Relaxed)
    }

    /// The most that they should hold.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Bytes that may still be taken.
    pub fn free_bytes(&self) -> usize {
        self.bytes_max.saturating_sub(self.held_bytes())
    }

    /// True if so many bytes more may wait to be written at the native door: one answer at least.
    pub(crate) fn may_queue(&self, bytes: usize) -> bool {
        let queued = self.queued.load(Ordering::Relaxed);
        queued == 0 || queued.saturating_add(bytes) <= self.bytes_max + self.reserve_bytes()
    }

    pub(super) fn reserve_bytes(&self) -> usize {
        (self.bytes_max / 4).min(RESERVE_BYTES_MAX)
    }

    /// True if more may be taken.
    pub fn has_room(&self) -> bool {
        self.held_bytes() < self.bytes_max
    }

    /// Bytes that a connection may read at once before it says that it holds them: ten thousand of them may read at the same time.
    pub fn read_bytes(&self, wanted: usize) -> usize {
        match self.has_room() {
            true => wanted,
            false => wanted.min(OWN_BYTES),
        }
    }

    /// The words for a request that is refused.
    pub fn refusal(&self) -> String {
        format!(
            "the memory for requests under way ({} MiB, in_flight_bytes_max) is taken by other connections; nothing was done, \
             ask again",
            self.bytes_max >> 20
        )
    }

    pub(super) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Waits until somebody has given something back, or a short time: look again then. Whoever waits counts as waiting.
    pub async fn room(&self) {
        struct Waits<'a>(&'a AtomicUsize);
        impl Drop for Waits<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waits = Waits(&self.waiting);
        let _ = tokio::time::timeout(LOOK, self.less.notified()).await;
    }

    pub(crate) fn take(&self, bytes: usize) {
        self.held.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.less.notify_waiters();
        }
    }
}
