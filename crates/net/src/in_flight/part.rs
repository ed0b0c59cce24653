//! The part of the memory for requests that one connection, or one request, holds.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::{Duration, Instant};

use super::budget::{InFlight, OWN_BYTES, SMALL_BYTES};
use super::line::LinePlace;

/// And so much of one request of the native door.
const REQUEST_OWN_BYTES: usize = 512;
/// And one that holds no more than this is little, of a command of which another node is to answer a part: what that has fits beside it.
const LITTLE_BYTES: usize = SMALL_BYTES / 2;
/// Parts are counted in steps of so many bytes, so that not each byte more is counted anew.
const STEP_BYTES: usize = 4 << 10;
/// The shortest and the longest wait of a request for room, in milliseconds. Of those who wait for each other, one is to go first.
const ROOM_WAIT_MS: std::ops::Range<u64> = 3000..6000;
const MOVES_BYTES: usize = 32 << 10;
/// That part of it: a value that fills the memory is there in ten minutes, or its client is closed.
const MOVES_PART: usize = 128;

/// Answers behind which others lie until those have left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Behind {
    /// They can leave.
    Nothing,
    /// A part of the same command is still to come, and its client has taken all before it.
    Itself,
    /// One of another command is still to come, or to be taken.
    Others,
}

/// The part of a budget that one connection holds.
#[derive(Debug)]
pub struct InFlightPart {
    of: Arc<InFlight>,
    /// So much is not counted.
    own: usize,
    counted: usize,
    /// Of those, taken without a question ([`InFlightPart::set`]): whether there is room for them shows at the next question.
    unasked: usize,
    /// It may take more than there is, to end what it has begun.
    overdraws: bool,
    pub(super) moved: usize,
    pub(super) moving_since: Instant,
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
            unasked: 0,
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
        if let Some(more) = counted.checked_sub(self.counted) {
            self.of.take(more);
            self.unasked += more;
        } else {
            let less = self.counted - counted;
            self.of.give_back(less);
            self.unasked = self.unasked.saturating_sub(less);
        }
        self.counted = counted;
    }

    /// It holds so many bytes now, and goes on to hold as many as it was given if those are more.
    #[inline]
    pub fn grow_to(&mut self, bytes: usize) {
        if self.counted_of(bytes) > self.counted {
            self.set(bytes);
        }
    }

    /// It is to hold so many bytes, if there is room for them. One that has nobody beside it, or little more than small ones,
    /// has room for any number: a request may be larger than the budget.
    #[inline]
    pub fn try_set(&mut self, bytes: usize) -> bool {
        let bytes_max = self.of.bytes_max;
        let small_max = bytes_max.saturating_add(self.of.reserve_bytes());
        self.try_set_below(bytes, bytes_max, small_max)
    }

    /// As [`InFlightPart::try_set`], for answers. Those that only lie there leave a part of the budget for what ends such waits, or
    /// all would wait for each other.
    #[inline]
    pub fn try_set_answers(&mut self, bytes: usize, behind: Behind) -> bool {
        let half = self.of.bytes_max / 2;
        match behind {
            Behind::Nothing => self.try_set(bytes),
            // Little ones go on while large ones have taken the memory; the other half of the reserve is for what they wait for.
            Behind::Itself if self.counted_of(bytes) <= LITTLE_BYTES => {
                let small_max = self.of.bytes_max + self.of.reserve_bytes() / 2;
                self.try_set_below(bytes, half, small_max)
            }
            Behind::Itself | Behind::Others => self.try_set_below(bytes, half, half),
        }
    }

    fn try_set_below(&mut self, bytes: usize, max: usize, small_max: usize) -> bool {
        let counted = self.counted_of(bytes);
        if counted <= self.counted - self.unasked {
            self.set(bytes);
            return true;
        }
        let small = counted <= SMALL_BYTES;
        if self.counted == 0 && !small && self.of.line.is_before(self.place.as_ref()) {
            return false;
        }
        let queued = self.of.queued.load(Ordering::Relaxed);
        let reserve = self.of.reserve_bytes();
        let max = if small { small_max } else { max };
        let max = max.saturating_sub(queued);
        let fits = |held: usize| {
            let others = held - self.counted;
            let alone = others + queued <= reserve;
            let all = others.saturating_add(counted);
            (alone && !small || all <= max).then_some(all)
        };
        let held = &self.of.held;
        let before = held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        if before.is_err() {
            return false;
        }
        if self.counted == 0 {
            (self.moved, self.moving_since) = (0, Instant::now());
        }
        (self.counted, self.unasked) = (counted, 0);
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
