//! The timer of a voter's candidacies in the directory.
//!
//! It stands when the leader has been silent for a time that is drawn anew at each try, and, where elections follow each other too
//! quickly, for longer. Raft's times are chosen for a quick failover. Where every process is held up for longer than they allow (too
//! many on too few cores, a throttled container), followers depose one leader after the other, none
//! lives long enough to order anything, and nothing is repaired. So a node counts new terms: the first few
//! cost nothing, and each further one that follows before the last has lasted doubles the silence of the
//! leader that this node bears before it stands for election. A term that lasts takes one step back.
//!
//! This decides only about this node's own candidacy: votes, and so safety, are as Raft has them.

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

/// Longer than this between two looks this node stood still itself: the leader's word may lie unread.
const HELD: Duration = Duration::from_millis(150);

/// The silences of a leader after which voters stand for election.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ElectionTimes {
    /// The shortest.
    pub min: Duration,
    /// The longest.
    pub max: Duration,
}

impl ElectionTimes {
    /// The time after a leader's last word for which a voter gives its vote to nobody.
    pub fn vote_lease(&self) -> Duration {
        self.min * 2 / 3
    }
}

/// A voter's view of elections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ElectionView {
    /// The newest term.
    pub term: u64,
    /// The time of the leader's last word, also of an earlier leader's.
    pub leader_heard: Time,
    /// The time at which this node last gave its vote to another.
    pub vote_granted: Time,
    /// True if a voter refused this node's candidacy because its log is longer.
    pub log_is_behind: bool,
    /// True if no other node votes.
    pub alone: bool,
}

/// One voter's timer.
#[derive(Clone, Debug)]
pub struct ElectionTimer {
    times: ElectionTimes,
    /// The silence that is borne this time, between the least and the longest.
    patience: Duration,
    /// The time from which on silence counts, at the earliest: that at which this node began, and later if it stood still since,
    /// for it may not have heard yet of a leader that there is.
    begun: Time,
    /// The time of the last look.
    looked: Time,
    /// The time at which this node last stood.
    stood: Option<Time>,
    term: u64,
    /// The time when that term was first seen.
    since: Time,
    /// The time from which on it is counted how long the term has lasted.
    counted: Time,
    level: u32,
    /// In thousandths: so that not all nodes stand at the same instant.
    jitter: u64,
}

impl ElectionTimer {
    /// Of a voter that starts now, in this term. `draw` is a number below 1000 drawn at random, here and below.
    pub fn new(times: ElectionTimes, now: Time, term: u64, draw: u64) -> ElectionTimer {
        let mut timer = ElectionTimer {
            times,
            patience: times.max,
            begun: now,
            looked: now,
            stood: None,
            term,
            since: now,
            counted: now,
            level: 0,
            jitter: 0,
        };
        timer.draw(draw);
        timer
    }

    /// True if this voter is to stand for election now; it counts as having stood then.
    pub fn stands(&mut self, now: Time, view: &ElectionView, draw: u64) -> bool {
        self.see(now, view.term, draw);
        let unseen = now.since(self.looked).saturating_sub(HELD);
        self.looked = now;
        if !unseen.is_zero() {
            self.begun = (self.begun.max(view.leader_heard) + unseen).min(now);
        }
        // Whoever has a vote has let go of the leader before: only the random part is left to wait.
        let retry = self.patience.saturating_sub(self.times.vote_lease());
        let behind = if view.log_is_behind {
            self.times.max
        } else {
            Duration::ZERO
        };
        let again = self
            .stood
            .map_or(Time::ZERO, |stood| stood + retry + behind);
        let silent = view.leader_heard.max(self.begun) + self.patience;
        let due = match view.alone {
            true => again,
            false => silent.max(again).max(view.vote_granted + retry),
        };
        if now < due || !self.may_stand(now, view.leader_heard) {
            return false;
        }
        self.stood = Some(now);
        self.draw(draw);
        true
    }

    fn draw(&mut self, draw: u64) {
        let spread = self.times.max.saturating_sub(self.times.min);
        self.patience = self.times.min + spread * draw as u32 / 1000;
    }

    /// Takes in the newest term that this node has seen.
    fn see(&mut self, now: Time, term: u64, draw: u64) {
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
            (self.term, self.since, self.jitter) = (term, now, draw / 2);
        }
        self.counted = now;
    }

    /// The least silence of the leader, and the least age of the term, before this node stands.
    fn min_silence(&self) -> Duration {
        match self.level.checked_sub(FREE + 1) {
            None => Duration::ZERO,
            Some(doublings) => {
                FIRST * (1 << doublings.min(DOUBLINGS_MAX)) * (1000 + self.jitter as u32) / 1000
            }
        }
    }

    /// True if the back-off allows it, with the leader's last message received at `heard`.
    fn may_stand(&self, now: Time, heard: Time) -> bool {
        now.since(self.since.max(heard)) >= self.min_silence()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: ElectionTimes = ElectionTimes {
        min: Duration::from_millis(450),
        max: Duration::from_millis(600),
    };

    fn timer() -> ElectionTimer {
        ElectionTimer::new(TIMES, at(0), 1, 0)
    }

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    #[test]
    fn a_few_terms_cost_nothing() {
        let mut timer = timer();
        for term in 2..=5 {
            timer.see(at(term * 600), term, 0);
            assert!(timer.may_stand(at(term * 600), at(term * 600)));
        }
    }

    /// Each follower's time-out is 600 ms, and every leader is held up for 700 ms now and then.
    #[test]
    fn leaders_that_follow_each_other_quickly_are_borne_with_longer_and_longer() {
        let mut timer = timer();
        let (mut now, mut term, mut silence) = (0, 1, 0);
        let mut terms_late = 0;
        while now < 120_000 {
            now += 50;
            silence = if now % 1500 < 700 { silence + 50 } else { 0 };
            let heard = at(now - silence);
            if silence >= 600 && timer.may_stand(at(now), heard) {
                term += 1;
                terms_late += u64::from(now > 30_000);
            }
            timer.see(at(now), term, 0);
        }
        assert!(term > 5, "it was put to the test");
        assert!(terms_late <= 90_000 / 6_000, "{terms_late} terms");
    }

    /// Regression: when a term had lasted and was taken back, the wait began anew, and a cluster whose leader died
    /// early in its term was without one for up to 9.6 s.
    #[test]
    fn a_silent_leader_is_borne_no_longer_than_the_longest_delay() {
        for died in (0..12_000).step_by(50) {
            let mut timer = timer();
            (2..50).for_each(|term| timer.see(at(term), term, 998));
            let (mut now, longest) = (100, timer.min_silence());
            while now <= died || !timer.may_stand(at(now), at(died.max(100))) {
                now += 25;
                timer.see(at(now), 49, 998);
            }
            let silent = at(now).since(at(died.max(100)));
            assert!(silent <= longest, "{silent:?} after {died} ms");
        }
    }

    #[test]
    fn the_delay_is_bounded_and_passes() {
        let mut timer = timer();
        (2..50).for_each(|term| timer.see(at(term * 10), term, 998));
        assert!(timer.min_silence() <= Duration::from_millis(7_200));
        assert!(!timer.may_stand(at(1000), at(1000)));
        assert!(timer.may_stand(at(9000), at(1000)));
        timer.see(at(60_000), 49, 0);
        assert_eq!(timer.min_silence(), Duration::ZERO);
    }

    fn view(heard: u64) -> ElectionView {
        ElectionView {
            term: 1,
            leader_heard: at(heard),
            vote_granted: at(0),
            log_is_behind: false,
            alone: false,
        }
    }

    /// The first millisecond at which it stands, looked at from `begin` on.
    fn stands_at(timer: &mut ElectionTimer, begin: u64, view: &ElectionView) -> u64 {
        (begin..begin + 60_000)
            .find(|ms| timer.stands(at(*ms), view, 0))
            .expect("it stands")
    }

    #[test]
    fn a_voter_stands_after_the_silence_that_it_drew() {
        for (draw, silence) in [(0, 450), (500, 525), (999, 600)] {
            let mut timer = ElectionTimer::new(TIMES, at(9_000), 1, draw);
            assert_eq!(
                stands_at(&mut timer, 9_000, &view(10_000)),
                10_000 + silence
            );
        }
    }

    /// After a candidacy, its own or another's, only the random part is waited for again.
    #[test]
    fn a_candidacy_that_failed_is_repeated_sooner() {
        let mut timer = ElectionTimer::new(TIMES, at(10_000), 1, 0);
        let stood = stands_at(&mut timer, 10_000, &view(10_000));
        assert_eq!(stands_at(&mut timer, stood + 1, &view(10_000)), stood + 150);
        let granted = ElectionView {
            vote_granted: at(11_000),
            ..view(10_000)
        };
        assert_eq!(stands_at(&mut timer, stood + 151, &granted), 11_150);
    }

    #[test]
    fn a_voter_whose_log_is_shorter_leaves_others_the_time_to_stand() {
        let mut timer = ElectionTimer::new(TIMES, at(10_000), 1, 0);
        let stood = stands_at(&mut timer, 10_000, &view(10_000));
        let behind = ElectionView {
            log_is_behind: true,
            ..view(10_000)
        };
        assert_eq!(stands_at(&mut timer, stood + 1, &behind), stood + 150 + 600);
    }

    #[test]
    fn who_votes_alone_waits_for_nobody() {
        let alone = ElectionView {
            alone: true,
            ..view(0)
        };
        let mut timer = ElectionTimer::new(TIMES, at(5_000), 1, 0);
        assert_eq!(stands_at(&mut timer, 5_000, &alone), 5_000);
        // Its vote is being written down.
        assert_eq!(stands_at(&mut timer, 5_001, &alone), 5_150);
    }

    #[test]
    fn who_has_just_begun_may_not_have_heard_yet_of_a_leader() {
        let mut timer = ElectionTimer::new(TIMES, at(5_000), 1, 0);
        assert_eq!(stands_at(&mut timer, 5_000, &view(0)), 5_450);
    }

    /// The leader's words lie unread in the sockets of a process that was stopped: it must not depose the leader when it goes on.
    #[test]
    fn who_stood_still_hears_first() {
        let mut timer = ElectionTimer::new(TIMES, at(5_000), 1, 0);
        assert!(!timer.stands(at(5_010), &view(5_005), 0));
        assert!(!timer.stands(at(9_000), &view(5_005), 0));
        assert_eq!(stands_at(&mut timer, 9_001, &view(5_005)), 9_000 + 300 - 5);
    }

    /// If every look is late, somebody must stand all the same.
    #[test]
    fn who_is_always_late_stands_in_the_end() {
        let mut timer = ElectionTimer::new(TIMES, at(5_000), 1, 0);
        let late = (5_000..65_000).step_by(400);
        let stood = late
            .clone()
            .find(|ms| timer.stands(at(*ms), &view(5_000), 0));
        assert_eq!(stood, Some(6_200), "at the fourth look");
    }
}
