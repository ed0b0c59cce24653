//! The memory for requests and answers of clients that are under way: one budget for all connections of a node, whatever
//! their door.
//!
//! A connection says how much it holds, and asks before it takes more: an unfinished value counts as a whole from its
//! first bytes on, so that those that were begun can be ended. A page of each connection is not counted, nor refused. Small
//! requests go on while large ones have taken the budget: a reserve is theirs alone, so that ten thousand small ones have a
//! bound too. Who holds anything while others wait has to move:
//! a connection that hardly takes or gives a byte then is closed. Who has waited longest goes first, after half a second: what
//! is given back meanwhile is kept for it, so that a large value finds room beside many smaller ones.

mod kept;
mod line;
mod requests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use self::kept::Keepers;
pub use self::kept::KeptBuffers;
use self::line::{Line, LinePlace};
pub use self::requests::{WaitingPart, WaitingRequests};

/// So much of each connection does not count, and is never refused.
pub const OWN_BYTES: usize = 4 << 10;
/// And so much of one request of the native door.
const REQUEST_OWN_BYTES: usize = 512;
/// A connection that holds no more than this is small: it may use the reserve.
pub const SMALL_BYTES: usize = 64 << 10;
/// Most bytes beyond the budget for connections that are small; a quarter of the budget, if that is less.
const RESERVE_BYTES_MAX: usize = 8 << 20;
/// Parts are counted in steps of so many bytes, so that not each byte more is counted anew.
const STEP_BYTES: usize = 4 << 10;
/// The shortest and the longest wait of a request for room, in milliseconds. Of those who wait for each other, one is to go first.
const ROOM_WAIT_MS: std::ops::Range<u64> = 3000..6000;
/// The longest sleep of a waiting request before it looks again: what the native door writes out wakes nobody.
const LOOK: Duration = Duration::from_millis(100);
/// In this time a connection that holds memory for which others wait must have moved so much, and a part of what it holds. It is no longer
/// than the longest wait, so that most get what is given back.
const MOVES_WITHIN: Duration = Duration::from_secs(5);
const MOVES_BYTES: usize = 32 << 10;
/// That part of it: a value that fills the memory is there in ten minutes, or its client is closed.
const MOVES_PART: usize = 128;

/// The budget of a node.
#[derive(Debug)]
pub struct InFlight {
    bytes_max: usize,
    moves_within: Duration,
    held: AtomicUsize,
    /// Bytes of answers that wait to be written at the native door.
    pub(crate) queued: Arc<AtomicUsize>,
    waiting: AtomicUsize,
    /// One part takes more than there is.
    overdrawn: AtomicBool,
    keepers: Keepers,
    less: Notify,
    line: Line,
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

    fn reserve_bytes(&self) -> usize {
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

    fn is_waited_for(&self) -> bool {
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

/// The part of a budget that one connection holds.
#[derive(Debug)]
pub struct InFlightPart {
    of: Arc<InFlight>,
    /// So much is not counted.
    own: usize,
    counted: usize,
    /// It may take more than there is, to end what it has begun.
    overdraws: bool,
    moved: usize,
    moving_since: Instant,
    /// The end of the wait for room, and the place in the line.
    waits_until: Option<Instant>,
    place: Option<LinePlace>,
}

impl InFlightPart {
    /// Nothing yet, of a connection.
    pub fn new(of: Arc<InFlight>) -> InFlightPart {
        InFlightPart::with_own(of, OWN_BYTES)
    }

    /// Nothing yet, of one request of a connection that may have hundreds under way.
    pub fn of_request(of: Arc<InFlight>) -> InFlightPart {
        InFlightPart::with_own(of, REQUEST_OWN_BYTES)
    }

    fn with_own(of: Arc<InFlight>, own: usize) -> InFlightPart {
        InFlightPart {
            of,
            own,
            counted: 0,
            overdraws: false,
            moved: 0,
            moving_since: Instant::now(),
            waits_until: None,
            place: None,
        }
    }

    /// The bytes that count, of so many that it holds.
    #[inline]
    fn counted_of(&self, bytes: usize) -> usize {
        let counted = bytes.saturating_sub(self.own);
        let steps = counted.checked_next_multiple_of(STEP_BYTES);
        steps.unwrap_or(counted)
    }

    /// For one whose begun work ends only with more memory, where there is none: true if it may take it all the same. One at a time may,
    /// so that of many that wait for each other always one goes on.
    pub fn may_overdraw(&mut self) -> bool {
        let free = || !self.of.overdrawn.swap(true, Ordering::AcqRel);
        self.overdraws = self.overdraws || free();
        self.overdraws
    }

    /// It has ended what it had begun: another may.
    #[inline]
    pub fn overdraws_no_more(&mut self) {
        if std::mem::take(&mut self.overdraws) {
            self.of.overdrawn.store(false, Ordering::Release);
            self.of.less.notify_waiters();
        }
    }

    /// It holds so many bytes now, whether there was room for them or not.
    #[inline]
    pub fn set(&mut self, bytes: usize) {
        let counted = self.counted_of(bytes);
        if counted == self.counted {
            return;
        }
        if self.counted == 0 {
            (self.moved, self.moving_since) = (0, Instant::now());
        }
        match counted.checked_sub(self.counted) {
            Some(more) => self.of.take(more),
            None => self.of.give_back(self.counted - counted),
        }
        self.counted = counted;
    }

    /// It is to hold so many bytes, if there is room for them. One that has nobody beside it, or little more than small ones,
    /// has room for any number: a request may be larger than the budget.
    #[inline]
    pub fn try_set(&mut self, bytes: usize) -> bool {
        let bytes_max = self.of.bytes_max;
        let small_max = bytes_max.saturating_add(self.of.reserve_bytes());
        self.try_set_below(bytes, bytes_max, small_max)
    }

    /// As [`InFlightPart::try_set`], for answers. Those that only lie there, behind one that is still to come, leave half of the budget
    /// for what ends such waits, or all would wait for each other.
    #[inline]
    pub fn try_set_answers(&mut self, bytes: usize, behind: bool) -> bool {
        if !behind {
            return self.try_set(bytes);
        }
        let half = self.of.bytes_max / 2;
        self.try_set_below(bytes, half, half)
    }

    fn try_set_below(&mut self, bytes: usize, max: usize, small_max: usize) -> bool {
        let counted = self.counted_of(bytes);
        if counted > self.counted {
            let small = counted <= SMALL_BYTES;
            if self.counted == 0 && !small && self.of.line.is_before(self.place.as_ref()) {
                return false;
            }
            let more = counted - self.counted;
            let queued = self.of.queued.load(Ordering::Relaxed);
            let reserve = self.of.reserve_bytes();
            let max = if small { small_max } else { max };
            let max = max.saturating_sub(queued);
            let fits = |held: usize| {
                let alone = held - self.counted + queued <= reserve;
                (alone && !small || held.saturating_add(more) <= max)
                    .then(|| held.saturating_add(more))
            };
            let held = &self.of.held;
            if held
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
                .is_err()
            {
                return false;
            }
            // It is taken: `set` has nothing left to take.
            if self.counted == 0 {
                (self.moved, self.moving_since) = (0, Instant::now());
            }
            self.counted = counted;
        }
        self.set(bytes);
        true
    }

    /// As [`InFlightPart::try_set`], but whatever it holds already, nobody who has waited for longer is passed. It waits no more
    /// then.
    pub fn try_set_in_turn(&mut self, bytes: usize) -> bool {
        let grows = self.counted_of(bytes) > self.counted && bytes > SMALL_BYTES;
        if grows && self.of.line.is_before(self.place.as_ref()) {
            return false;
        }
        let set = self.try_set(bytes);
        if set {
            self.leave_line();
        }
        set
    }

    /// It is to hold so many bytes, or as many of them as there is room for. The bytes that it may hold.
    pub fn set_up_to(&mut self, bytes: usize) -> usize {
        let small = bytes.min(SMALL_BYTES);
        if self.counted_of(small) > self.counted {
            self.try_set(small);
        }
        let more = self.counted_of(bytes).saturating_sub(self.counted);
        let queued = self.of.queued.load(Ordering::Relaxed);
        let max = self.of.bytes_max.saturating_sub(queued);
        let some = |held: usize| more.min(max.saturating_sub(held) / STEP_BYTES * STEP_BYTES);
        let take = |held: usize| (some(held) > 0).then(|| held + some(held));
        let held = &self.of.held;
        if let Ok(before) = held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            if self.counted == 0 {
                (self.moved, self.moving_since) = (0, Instant::now());
            }
            self.counted += some(before);
        }
        bytes.min(self.bytes_max())
    }

    /// The bytes that it may hold without a question.
    #[inline]
    pub fn bytes_max(&self) -> usize {
        self.own + self.counted
    }

    /// So many bytes came or went.
    #[inline]
    pub fn moved(&mut self, bytes: usize) {
        self.moved += bytes;
    }

    /// A request found no room, and gets in line. True if it has waited long enough, and is to be refused.
    pub fn is_refused(&mut self) -> bool {
        self.place.get_or_insert_with(|| self.of.line.enter());
        let until = || Instant::now() + Duration::from_millis(rand::random_range(ROOM_WAIT_MS));
        *self.waits_until.get_or_insert_with(until) <= Instant::now()
    }

    /// A request found room, or was refused.
    #[inline]
    pub fn waits_no_more(&mut self) {
        self.waits_until = None;
        self.leave_line();
    }

    fn leave_line(&mut self) {
        if let Some(place) = self.place.take() {
            self.of.line.leave(&place);
        }
    }

    /// Ends if this connection holds what others wait for, and does not move.
    pub async fn stuck(&mut self) {
        loop {
            tokio::time::sleep_until(self.moving_since + self.of.moves_within).await;
            let least = MOVES_BYTES.max(self.counted / MOVES_PART);
            if self.counted > 0 && self.moved < least && self.of.is_waited_for() {
                return;
            }
            (self.moved, self.moving_since) = (0, Instant::now());
        }
    }

    /// True if any of the budget is its.
    #[inline]
    pub fn is_counted(&self) -> bool {
        self.counted > 0
    }

    /// The budget.
    pub fn of(&self) -> &InFlight {
        &self.of
    }
}

impl Drop for InFlightPart {
    fn drop(&mut self) {
        self.overdraws_no_more();
        self.leave_line();
        self.of.give_back(self.counted);
    }
}

#[cfg(test)]
mod tests;
