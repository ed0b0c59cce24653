//! The timer of a voter's candidacies in the directory.
//!
//! It stands when the leader has been silent for a time that is drawn anew at each try. The times are chosen for a quick failover.
//!
//! A candidate that cannot win does harm, for it raises the term. Cut off from the others it raises it again and again, and deposes
//! the leader as soon as it is back; where every process is held up for longer than the times allow (too many on too few cores, a
//! throttled container), one that was held up itself deposes a leader that all others know. So a voter asks the others first
//! whether they would vote for it ([`ElectionView::would_vote`]), and stands only if a majority would ([`may_win`]): Raft's pre-vote.
//!
//! This decides only about this node's own candidacy: votes, and so safety, are as Raft has them.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::ids::NodeId;
use crate::mutant::{Mutant, planted};
use crate::time::Time;

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
    /// True if no other node votes.
    pub alone: bool,
}

impl ElectionView {
    /// True if this voter would vote now for a candidate that has all of its log: no leader is there, as far as it knows, nor one on
    /// whom it has just voted.
    pub fn would_vote(&self, now: Time, times: &ElectionTimes, has_all: bool) -> bool {
        let newest = self.leader_heard.max(self.vote_granted);
        has_all && now.since(newest) >= times.vote_lease()
    }
}

/// True if these would be enough votes: a majority of each set of voters.
pub fn may_win<'a>(
    sets: impl IntoIterator<Item = &'a BTreeSet<NodeId>>,
    votes: &BTreeSet<NodeId>,
) -> bool {
    let majority = |set: &BTreeSet<NodeId>| set.intersection(votes).count() * 2 > set.len();
    planted(Mutant::StandsUnasked) || sets.into_iter().all(majority)
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
}

impl ElectionTimer {
    /// Of a voter that starts now. `draw` is a number below 1000 drawn at random, here and below.
    pub fn new(times: ElectionTimes, now: Time, draw: u64) -> ElectionTimer {
        let mut timer = ElectionTimer {
            times,
            patience: times.max,
            begun: now,
            looked: now,
            stood: None,
        };
        timer.draw(draw);
        timer
    }

    /// True if this voter is to stand for election now, should a majority wish it; it counts as having stood then.
    pub fn stands(&mut self, now: Time, view: &ElectionView, draw: u64) -> bool {
        let unseen = now.since(self.looked).saturating_sub(HELD);
        self.looked = now;
        if !unseen.is_zero() {
            self.begun = (self.begun.max(view.leader_heard) + unseen).min(now);
        }
        // Whoever has a vote has let go of the leader before: only the random part is left to wait.
        let retry = self.patience.saturating_sub(self.times.vote_lease());
        let again = self.stood.map_or(Time::ZERO, |stood| stood + retry);
        let silent = view.leader_heard.max(self.begun) + self.patience;
        let due = match view.alone {
            true => again,
            false => silent.max(again).max(view.vote_granted + retry),
        };
        if now < due {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: ElectionTimes = ElectionTimes {
        min: Duration::from_millis(450),
        max: Duration::from_millis(600),
    };

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    fn view(heard: u64) -> ElectionView {
        ElectionView {
            term: 1,
            leader_heard: at(heard),
            vote_granted: at(0),
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
            let mut timer = ElectionTimer::new(TIMES, at(9_000), draw);
            assert_eq!(
                stands_at(&mut timer, 9_000, &view(10_000)),
                10_000 + silence
            );
        }
    }

    /// After a candidacy, its own or another's, only the random part is waited for again.
    #[test]
    fn a_candidacy_that_failed_is_repeated_sooner() {
        let mut timer = ElectionTimer::new(TIMES, at(10_000), 0);
        let stood = stands_at(&mut timer, 10_000, &view(10_000));
        assert_eq!(stands_at(&mut timer, stood + 1, &view(10_000)), stood + 150);
        let granted = ElectionView {
            vote_granted: at(11_000),
            ..view(10_000)
        };
        assert_eq!(stands_at(&mut timer, stood + 151, &granted), 11_150);
    }

    #[test]
    fn who_votes_alone_waits_for_nobody() {
        let alone = ElectionView {
            alone: true,
            ..view(0)
        };
        let mut timer = ElectionTimer::new(TIMES, at(5_000), 0);
        assert_eq!(stands_at(&mut timer, 5_000, &alone), 5_000);
        // Its vote is being written down.
        assert_eq!(stands_at(&mut timer, 5_001, &alone), 5_150);
    }

    #[test]
    fn who_has_just_begun_may_not_have_heard_yet_of_a_leader() {
        let mut timer = ElectionTimer::new(TIMES, at(5_000), 0);
        assert_eq!(stands_at(&mut timer, 5_000, &view(0)), 5_450);
    }

    /// The leader's words lie unread in the sockets of a process that was stopped: it must not depose the leader when it goes on.
    #[test]
    fn who_stood_still_hears_first() {
        let mut timer = ElectionTimer::new(TIMES, at(5_000), 0);
        assert!(!timer.stands(at(5_010), &view(5_005), 0));
        assert!(!timer.stands(at(9_000), &view(5_005), 0));
        assert_eq!(stands_at(&mut timer, 9_001, &view(5_005)), 9_000 + 300 - 5);
    }

    /// If every look is late, somebody must stand all the same.
    #[test]
    fn who_is_always_late_stands_in_the_end() {
        let mut timer = ElectionTimer::new(TIMES, at(5_000), 0);
        let late = (5_000..65_000).step_by(400);
        let stood = late
            .clone()
            .find(|ms| timer.stands(at(*ms), &view(5_000), 0));
        assert_eq!(stood, Some(6_200), "at the fourth look");
    }

    /// A voter that was cut off, or whose log is behind, must not depose a leader that others know.
    #[test]
    fn a_voter_keeps_to_its_leader_its_vote_and_its_log() {
        let ready = view(10_000);
        assert!(!ready.would_vote(at(10_299), &TIMES, true));
        assert!(ready.would_vote(at(10_300), &TIMES, true));
        assert!(!ready.would_vote(at(10_300), &TIMES, false));
        let voted = ElectionView {
            vote_granted: at(10_200),
            ..ready
        };
        assert!(!voted.would_vote(at(10_300), &TIMES, true));
    }

    /// While the voters change, majorities of both sets are needed.
    #[test]
    fn without_a_majority_of_each_set_nobody_stands() {
        let set = |ids: &[u64]| ids.iter().map(|id| NodeId(*id)).collect::<BTreeSet<_>>();
        let (old, new) = (set(&[1, 2, 3]), set(&[3, 4, 5]));
        assert!(!may_win([&old], &set(&[1])));
        assert!(may_win([&old], &set(&[1, 3])));
        assert!(!may_win([&old, &new], &set(&[1, 3, 9])));
        assert!(may_win([&old, &new], &set(&[1, 3, 4])));
        assert!(!may_win([&set(&[1, 2])], &set(&[1])), "half is no majority");
    }
}
