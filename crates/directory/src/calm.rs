//! Patience on a machine that is too slow for the election time-outs.
//!
//! Raft's times are chosen for a quick failover. Where every process is held up for longer than they allow (too
//! many on too few cores, a throttled container), followers depose one leader after the other, none
//! lives long enough to order anything, and nothing is repaired. So a node counts the terms that come: the first few
//! cost nothing, and with each further one that follows before the last has lasted, this node lets the
//! leader be silent for twice as long before it may stand for election. A term that lasts takes it back.
//!
//! This only ever delays this node's own candidacy: votes, and so safety, are as Raft has them. A
//! leader that leaves asks its heir to stand at once (`succession`), however patient that one is.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::Rng;
use staves_model::Time;

use crate::directory::Inner;

/// Terms in quick succession that are nothing unusual: two leaders that die, each with a split vote.
const FREE: u32 = 4;
/// The silence that is borne at the first term beyond; it doubles with each further one.
const FIRST: Duration = Duration::from_millis(300);
/// Most doublings: 4.8 s.
const DOUBLINGS_MAX: u32 = 4;
/// A term that lasted so long takes one back.
const LASTED: Duration = Duration::from_secs(6);
/// How often a node that is patient looks whether the silence has lasted.
const LOOK: Duration = Duration::from_millis(25);

/// How patient this node is.
#[derive(Debug)]
struct Calm {
    term: u64,
    /// When that term was first seen.
    since: Time,
    /// From when on it is counted how long it has lasted.
    counted: Time,
    level: u32,
    /// In thousandths: so that not all nodes stand at the same instant.
    jitter: u64,
}

impl Calm {
    fn new(now: Time, term: u64) -> Calm {
        Calm {
            term,
            since: now,
            counted: now,
            level: 0,
            jitter: 0,
        }
    }

    /// The newest term that this node knows of.
    fn see(&mut self, now: Time, term: u64, jitter: u64) {
        let lasted = now.since(self.counted).as_nanos() / LASTED.as_nanos();
        if term == self.term && lasted == 0 {
            return;
        }
        self.level = self
            .level
            .saturating_sub(u32::try_from(lasted).unwrap_or(u32::MAX));
        if term != self.term {
            self.level = (self.level + 1).min(FREE + 1 + DOUBLINGS_MAX);
            (self.term, self.since, self.jitter) = (term, now, jitter);
        }
        self.counted = now;
    }

    /// How long after the last word of a leader, and after the last new term, this node may stand.
    fn patience(&self) -> Duration {
        match self.level.checked_sub(FREE + 1) {
            None => Duration::ZERO,
            Some(doublings) => {
                FIRST * (1 << doublings.min(DOUBLINGS_MAX)) * (1000 + self.jitter as u32) / 1000
            }
        }
    }

    fn may_stand(&self, now: Time, heard: Time) -> bool {
        now.since(self.since.max(heard)) >= self.patience()
    }
}

/// Holds this node's candidacies back as [`Calm`] says, as long as Raft runs.
pub(crate) async fn run(inner: Arc<Inner>) {
    let Some(core) = inner.core.get() else { return };
    let mut metrics = core.raft.metrics();
    let term = metrics.borrow_and_update().current_term;
    let mut calm = Calm::new(inner.now(), term);
    loop {
        let term = metrics.borrow_and_update().current_term;
        let jitter = rand::rng().random_range(0..500);
        calm.see(inner.now(), term, jitter);
        let heard = Time(inner.leader_heard.load(Ordering::Relaxed));
        core.raft
            .runtime_config()
            .elect(calm.may_stand(inner.now(), heard));
        if calm.patience().is_zero() {
            if metrics.changed().await.is_err() {
                return;
            }
        } else {
            tokio::time::sleep(LOOK).await;
            if metrics.has_changed().is_err() {
                return;
            }
        }
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
        let mut calm = Calm::new(at(0), 1);
        for term in 2..=5 {
            calm.see(at(term * 600), term, 0);
            assert!(calm.may_stand(at(term * 600), at(term * 600)));
        }
    }

    /// Each follower's time-out is 600 ms, and every leader is held up for 700 ms now and then.
    #[test]
    fn leaders_that_follow_each_other_quickly_are_borne_with_longer_and_longer() {
        let mut calm = Calm::new(at(0), 1);
        let (mut now, mut term, mut silence) = (0, 1, 0);
        let mut terms_late = 0;
        while now < 120_000 {
            now += 50;
            silence = if now % 1500 < 700 { silence + 50 } else { 0 };
            let heard = at(now - silence);
            if silence >= 600 && calm.may_stand(at(now), heard) {
                term += 1;
                terms_late += u64::from(now > 30_000);
            }
            calm.see(at(now), term, 0);
        }
        assert!(term > 5, "it was put to the test");
        assert!(terms_late <= 90_000 / 6_000, "{terms_late} terms");
    }

    /// Regression: when a term had lasted and was taken back, the wait began anew, and a cluster whose leader died
    /// early in its term was without one for up to 9.6 s.
    #[test]
    fn a_silent_leader_is_borne_no_longer_than_the_longest_patience() {
        for died in (0..12_000).step_by(50) {
            let mut calm = Calm::new(at(0), 1);
            (2..50).for_each(|term| calm.see(at(term), term, 499));
            let (mut now, longest) = (100, calm.patience());
            while now <= died || !calm.may_stand(at(now), at(died.max(100))) {
                now += 25;
                calm.see(at(now), 49, 499);
            }
            let silent = at(now).since(at(died.max(100)));
            assert!(silent <= longest, "{silent:?} after {died} ms");
        }
    }

    #[test]
    fn patience_is_bounded_and_passes() {
        let mut calm = Calm::new(at(0), 1);
        (2..50).for_each(|term| calm.see(at(term * 10), term, 499));
        assert!(calm.patience() <= Duration::from_millis(7_200));
        assert!(!calm.may_stand(at(1000), at(1000)));
        assert!(calm.may_stand(at(9000), at(1000)));
        calm.see(at(60_000), 49, 0);
        assert_eq!(calm.patience(), Duration::ZERO);
    }
}
