//! The bounds and times of a sequencer.

use std::time::Duration;

use crate::sessions::SessionBounds;
use crate::unit::{IDS_MAX, SESSIONS_MAX};

/// The bounds and times of a sequencer.
#[derive(Clone, Debug)]
pub struct SequencerLimits {
    /// Most bindings that are undecided.
    pub window: usize,
    /// Most appends that wait for their unit's turn (predict), over all units.
    pub queue_max: usize,
    /// The longest that one waits before positions of other units are skipped for it (row L3).
    pub queue_wait: Duration,
    /// Most tail checks and trims in progress.
    pub asked_max: usize,
    /// Most waits for the log to grow.
    pub waits_max: usize,
    /// A check or a trim is given up after this time.
    pub asked_wait: Duration,
    /// Most sessions that are known; the lowest ends for another. No more than units keep, so that units follow.
    pub sessions_max: usize,
    /// Most appends that are known; the sessions of the lowest end for another.
    pub ids_max: usize,
    /// Most tags that are remembered.
    pub tags_max: usize,
    /// Most map pages that wait to be written.
    pub unwritten_pages_max: u64,
    /// A binding is sent again after this time (bind, predict).
    pub resend: Duration,
    /// The same in corfu, where it first goes to the client: longer than the client's round trip.
    pub resend_token: Duration,
    /// Seals, pages, trims and the opening of the term are sent again after this time.
    pub call_again: Duration,
    /// Seals and the opening of the term that nobody answers are sent again after twice the time before, and this time at most.
    pub call_again_max: Duration,
    /// The log's record is read again after this time at the earliest, however often it is said to have changed.
    pub view_again: Duration,
    /// The log's record is read in this rhythm while it has rules for what is kept, and trims that they ask for are sent in a tenth of it.
    pub record_every: Duration,
    /// The decided prefix is sent to units in this rhythm.
    pub prefix_every: Duration,
}

impl SequencerLimits {
    pub(super) fn session_bounds(&self) -> SessionBounds {
        SessionBounds {
            sessions: self.sessions_max,
            ids: self.ids_max,
        }
    }
}

impl Default for SequencerLimits {
    fn default() -> SequencerLimits {
        SequencerLimits {
            window: 4096,
            queue_max: 4096,
            queue_wait: Duration::from_micros(1_500),
            asked_max: 1024,
            waits_max: 1024,
            asked_wait: Duration::from_secs(1),
            sessions_max: SESSIONS_MAX,
            ids_max: IDS_MAX,
            tags_max: 1 << 20,
            unwritten_pages_max: 4,
            resend: Duration::from_millis(10),
            resend_token: Duration::from_millis(200),
            call_again: Duration::from_millis(20),
            call_again_max: Duration::from_millis(500),
            view_again: Duration::from_millis(50),
            record_every: Duration::from_secs(10),
            prefix_every: Duration::from_millis(5),
        }
    }
}
