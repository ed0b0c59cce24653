//! The data bucket's knowledge of one parity bucket: how far it has come, and when what was lost is sent again.

use std::time::Duration;

use staves_model::Time;

/// A way that lost a message is taken for one that loses more, for so long.
const LOSSY_FOR: Duration = Duration::from_secs(1);
/// A member that does not answer is sent the same again after twice the time before, so often: eight times
/// `resend_after` is the longest. A copy that is slow or paused is not buried under what it has anyway.
const RESEND_DOUBLINGS: u32 = 3;
/// From a few microseconds to the same.
const QUICK_DOUBLINGS: u32 = 16;

/// All that a data bucket tells a parity bucket beside deltas.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct News {
    pub last: u64,
    pub stable: u64,
    pub purgeable: u64,
    pub want_extents: u32,
}

/// The data bucket's knowledge of one parity bucket.
#[derive(Clone, Default)]
pub(crate) struct Peer {
    /// It reported to have received everything up to here, in this incarnation and epoch.
    pub prefix: u64,
    /// It reported to have synced everything up to here.
    pub synced: u64,
    /// The time at which that last rose, or nothing was owed to it.
    pub synced_at: Time,
    /// Sent up to here (perhaps lost).
    pub sent: u64,
    /// The stable seq that was last sent.
    pub sent_stable: u64,
    /// The time of the last message to it.
    pub sent_at: Time,
    /// The time at which its prefix last rose, or nothing was owed to it.
    pub moved_at: Time,
    /// The time of its last message.
    pub heard_at: Time,
    /// The time at which all that it has not reported was last sent again.
    pub resent_at: Time,
    /// The number of retransmissions since its prefix last passed what was retransmitted.
    pub resends: u32,
    /// The last seq that had been sent at the time of the last retransmission.
    pub resent_to: u64,
    /// The smoothed time from sending a delta to its report.
    pub round_trip: Duration,
    /// Messages to it are known to get lost, until then.
    pub lossy_until: Time,
    /// Each message is sent so many times meanwhile.
    pub repeats: u32,
    /// It promised that no successor answers before.
    pub promise: Time,
    /// Extents that it has reserved.
    pub granted: u32,
    /// The news that it was last told, and the clock of the first message that counts as having told it.
    pub told: News,
    pub told_at: Time,
    /// It has answered those, and has nothing left to do (rule 19).
    pub rests: bool,
}

impl Peer {
    /// A parity bucket that stands at the cut.
    pub fn at_cut(cut: u64, now: Time) -> Peer {
        Peer {
            prefix: cut,
            synced: cut,
            sent: cut,
            synced_at: now,
            moved_at: now,
            heard_at: now,
            ..Peer::default()
        }
    }

    /// It is told this now. Of two messages with one clock an answer does not say which it is to: then a later one counts.
    pub fn tell(&mut self, now: Time, news: News) {
        if self.told == news {
            return;
        }
        self.wake(now, now);
        self.told = news;
        self.told_at = match self.told_at >= now {
            true => now + Duration::from_nanos(1),
            false => now,
        };
    }

    /// It is to answer again: its silence counts from `since`. True if it rested.
    pub fn wake(&mut self, now: Time, since: Time) -> bool {
        let rested = std::mem::take(&mut self.rests);
        if rested {
            (self.heard_at, self.moved_at) = (since, now);
        }
        rested
    }

    /// It has answered a message of this clock, and says whether it rests.
    pub fn answered(&mut self, clock: Time, rests: bool) {
        if clock >= self.told_at {
            self.rests = rests;
        }
    }

    pub fn is_lossy(&self, now: Time) -> bool {
        now < self.lossy_until
    }

    /// Marks all that it has not reported to be sent again.
    pub fn send_again(&mut self, now: Time) {
        self.resent_to = self.sent;
        self.sent = self.prefix;
        self.resent_at = now;
        self.resends = self.resends.saturating_add(1);
    }

    /// The time that it is given to report what was sent, each time longer. Only where messages do get lost is
    /// a round trip enough: elsewhere who is silent is slow or paused, and has them already.
    fn resend_wait(&self, now: Time, resend_after: Duration) -> Duration {
        let slow = resend_after * (1 << self.resends.min(RESEND_DOUBLINGS));
        if !self.is_lossy(now) || self.round_trip.is_zero() {
            return slow;
        }
        let quick = self.round_trip * 3 / 2 * (1 << self.resends.min(QUICK_DOUBLINGS));
        quick.min(slow)
    }

    /// The time at which what it has not reported is to be sent again. Whatever else was sent meanwhile, heartbeats and
    /// later deltas, does not put it off.
    pub fn due_again(&self, now: Time, resend_after: Duration) -> Option<Time> {
        let since = self.moved_at.max(self.resent_at);
        (self.prefix < self.sent).then(|| since + self.resend_wait(now, resend_after))
    }

    /// Takes in its answer to a message that was sent at `clock`: true if something was lost and is to be
    /// sent again at once. On one connection messages keep their order. So a gap in front of one that
    /// was sent after the last repetition is a new loss; in front of an older one, the repetition is on
    /// its way, and would come ever later if each answer let it be sent once more.
    pub fn reported(&mut self, now: Time, prefix: u64, gap: bool, clock: Time) -> bool {
        self.heard_at = now;
        let gap = gap && clock > self.resent_at;
        let mut lost = gap;
        if prefix > self.prefix {
            self.prefix = prefix;
            self.moved_at = now;
            let took = now.since(clock);
            self.round_trip = match self.round_trip {
                Duration::ZERO => took,
                before => (before * 7 + took) / 8,
            };
            self.repeats = self.repeats.saturating_sub(1);
            // The report is of a retransmission, not of the original.
            lost |= self.resends > 0 && clock >= self.resent_at;
        }
        self.sent = self.sent.max(self.prefix);
        if self.prefix >= self.resent_to {
            self.resends = 0;
        }
        if lost {
            self.lossy_until = now + LOSSY_FOR;
        }
        // A member whose log is full lets go of what it is sent: it is not sent the same each round trip.
        let waits = self.round_trip * (1 << self.resends.min(RESEND_DOUBLINGS));
        gap && now.since(self.resent_at) >= waits
    }
}
