//! The back-off of elections on a machine that is too slow for their time-outs.
//!
//! Raft's times are chosen for a quick failover. Where every process is held up for longer than they allow (too
//! many on too few cores, a throttled container), followers depose one leader after the other, none
//! lives long enough to order anything, and nothing is repaired. So a node counts new terms: the first few
//! cost nothing, and each further one that follows before the last has lasted doubles the silence of the
//! leader that this node bears before it stands for election. A term that lasts takes one step back.
//!
//! This only ever delays this node's own candidacy: votes, and so safety, are as Raft has them.

use std::time::Duration;

use crate::mutant::{Mutant, planted};
use crate::time::Time;

/// Terms in quick succession that are nothing unusual: two leaders that die, each with a split vote.
const FREE: u32 = 4;
/// The silence that is borne at the first term beyond; it doubles with each further one.
const FIRST: Duration = Duration::from_millis(300);
/// Most doublings: 4.8 s.
const DOUBLINGS_MAX: u32 = 4;
/// A term that lasted so long takes one step back.
const LASTED: Duration = Duration::from_secs(6);

/// One node's back-off.
#[derive(Clone, Debug)]
pub struct ElectionBackoff {
    term: u64,
    /// The time when that term was first seen.
    since: Time,
    /// The time from which on it is counted how long the term has lasted.
    counted: Time,
    level: u32,
    /// In thousandths: so that not all nodes stand at the same instant.
    jitter: u64,
}

impl ElectionBackoff {
    /// Without a delay, in this term.
    pub fn new(now: Time, term: u64) -> ElectionBackoff {
        ElectionBackoff {
            term,
            since: now,
            counted: now,
            level: 0,
            jitter: 0,
        }
    }

    /// Takes in the newest term that this node has seen, and a number below 1000 drawn at random for it.
    pub fn see(&mut self, now: Time, term: u64, jitter: u64) {
        let lasted = now.since(self.counted).as_nanos() / LASTED.as_nanos();
        if term == self.term && lasted == 0 {
            return;
        }
        if !planted(Mutant::BackoffNeverResets) {
            let steps = u32::try_from(lasted).unwrap_or(u32::MAX);
            self.level = self.level.saturating_sub(steps);
        }
        if term != self.term {
            let grows = u32::from(!planted(Mutant::BackoffNeverGrows));
            self.level = (self.level + grows).min(FREE + 1 + DOUBLINGS_MAX);
            (self.term, self.since, self.jitter) = (term, now, jitter);
        }
        self.counted = now;
    }

    /// The least silence of the leader, and the least age of the term, before this node stands.
    pub fn min_silence(&self) -> Duration {
        match self.level.checked_sub(FREE + 1) {
            None => Duration::ZERO,
            Some(doublings) => {
                FIRST * (1 << doublings.min(DOUBLINGS_MAX)) * (1000 + self.jitter as u32) / 1000
            }
        }
    }

    /// True if this node may stand for election, with the leader's last message received at `heard`.
    pub fn may_stand(&self, now: Time, heard: Time) -> bool {
        now.since(self.since.max(heard)) >= self.min_silence()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    #[test]
    fn a_few_terms_cost_nothing() {
        let mut backoff = ElectionBackoff::new(at(0), 1);
        for term in 2..=5 {
            backoff.see(at(term * 600), term, 0);
            assert!(backoff.may_stand(at(term * 600), at(term * 600)));
        }
    }

    /// Each follower's time-out is 600 ms, and every leader is held up for 700 ms now and then.
    #[test]
    fn leaders_that_follow_each_other_quickly_are_borne_with_longer_and_longer() {
        let mut backoff = ElectionBackoff::new(at(0), 1);
        let (mut now, mut term, mut silence) = (0, 1, 0);
        let mut terms_late = 0;
        while now < 120_000 {
            now += 50;
            silence = if now % 1500 < 700 { silence + 50 } else { 0 };
            let heard = at(now - silence);
            if silence >= 600 && backoff.may_stand(at(now), heard) {
                term += 1;
                terms_late += u64::from(now > 30_000);
            }
            backoff.see(at(now), term, 0);
        }
        assert!(term > 5, "it was put to the test");
        assert!(terms_late <= 90_000 / 6_000, "{terms_late} terms");
    }

    /// Regression: when a term had lasted and was taken back, the wait began anew, and a cluster whose leader died
    /// early in its term was without one for up to 9.6 s.
    #[test]
    fn a_silent_leader_is_borne_no_longer_than_the_longest_delay() {
        for died in (0..12_000).step_by(50) {
            let mut backoff = ElectionBackoff::new(at(0), 1);
            (2..50).for_each(|term| backoff.see(at(term), term, 499));
            let (mut now, longest) = (100, backoff.min_silence());
            while now <= died || !backoff.may_stand(at(now), at(died.max(100))) {
                now += 25;
                backoff.see(at(now), 49, 499);
            }
            let silent = at(now).since(at(died.max(100)));
            assert!(silent <= longest, "{silent:?} after {died} ms");
        }
    }

    #[test]
    fn the_delay_is_bounded_and_passes() {
        let mut backoff = ElectionBackoff::new(at(0), 1);
        (2..50).for_each(|term| backoff.see(at(term * 10), term, 499));
        assert!(backoff.min_silence() <= Duration::from_millis(7_200));
        assert!(!backoff.may_stand(at(1000), at(1000)));
        assert!(backoff.may_stand(at(9000), at(1000)));
        backoff.see(at(60_000), 49, 0);
        assert_eq!(backoff.min_silence(), Duration::ZERO);
    }
}
