//! Elections beside load: voters with the real [`ElectionTimer`], whose processes are held up for longer than the election
//! time-outs allow, then calm, then the death of the leader.
//!
//! Raft itself is a sketch here: terms, votes and heartbeats, as far as they decide how often leaders change.

use staves_model::mutant::{Mutant, plant};
use staves_model::{ElectionTimer, ElectionTimes, ElectionView, Time};

use std::time::Duration;

use crate::rng::Rng;

/// Milliseconds of a step.
const STEP: u64 = 10;
/// Time between two heartbeats of a leader.
const HEARTBEAT: u64 = 100;
/// The program's.
const TIMES: ElectionTimes = ElectionTimes {
    min: Duration::from_millis(450),
    max: Duration::from_millis(600),
};
/// The length of the load; in its second half new terms must be rare.
const LOAD: u64 = 120_000;
/// The calm that takes every back-off away.
const CALM: u64 = 70_000;
/// In the second half of the load elections are so far apart on average, at least.
const TERM_MIN: u64 = 1500;
/// Longest time without a leader that works: a few of the longest back-offs, as hold-ups spoil elections too.
const GAP_MAX: u64 = 20_000;
/// Longest time without a leader after a death in calm: two time-outs, as votes may be split once.
const CALM_GAP_MAX: u64 = 1300;

struct Voter {
    term: u64,
    /// The time at which a leader's heartbeat last arrived.
    heard: u64,
    /// The time at which it last voted for another.
    granted: u64,
    held_until: u64,
    leads: bool,
    timer: ElectionTimer,
}

struct Voters {
    now: u64,
    rng: Rng,
    voters: Vec<Voter>,
    /// The time at which a leader last reached a majority.
    led: u64,
    elections: u64,
}

/// Runs one seed; the violations.
pub fn run(seed: u64, mutant: Option<Mutant>) -> Vec<String> {
    plant(mutant);
    let mut rng = Rng::new(seed);
    let count = rng.pick(&[3, 5]);
    let mut w = Voters {
        now: 0,
        voters: (0..count).map(|_| Voter::new(&mut rng)).collect(),
        rng,
        led: 0,
        elections: 0,
    };
    let mut bad = Vec::new();
    let mut longest = w.run_until(LOAD / 2, true);
    let before = w.elections;
    longest = longest.max(w.run_until(LOAD, true));
    let late = w.elections - before;
    if late > LOAD / 2 / TERM_MIN {
        bad.push(format!(
            "{late} elections in {} s of load: no leader lasts",
            LOAD / 2000
        ));
    }
    if longest > GAP_MAX {
        bad.push(format!("no leader for {longest} ms beside load"));
    }
    w.run_until(LOAD + CALM, false);
    if let Some(leader) = w.voters.iter_mut().find(|v| v.leads) {
        leader.held_until = u64::MAX;
        leader.leads = false;
    }
    w.led = w.now;
    let gap = w.run_until(LOAD + CALM + 10_000, false);
    if gap > CALM_GAP_MAX {
        bad.push(format!("no leader for {gap} ms after a death in calm"));
    }
    plant(None);
    bad
}

impl Voter {
    fn new(rng: &mut Rng) -> Voter {
        Voter {
            term: 1,
            heard: 0,
            granted: 0,
            held_until: 0,
            leads: false,
            timer: ElectionTimer::new(TIMES, Time::ZERO, 1, rng.below(1000)),
        }
    }
}

impl Voters {
    /// Runs on, with hold-ups or without; the longest time without a leader.
    fn run_until(&mut self, end: u64, load: bool) -> u64 {
        let mut longest = 0;
        while self.now < end {
            self.now += STEP;
            if load {
                self.hold_up();
            }
            for at in 0..self.voters.len() {
                if self.voters[at].held_until <= self.now {
                    self.act(at);
                }
            }
            longest = longest.max(self.now - self.led);
        }
        longest
    }

    // About every one and a half seconds each process stands still for longer than the time-outs allow.
    fn hold_up(&mut self) {
        for at in 0..self.voters.len() {
            if self.voters[at].held_until <= self.now && self.rng.chance(1000 * STEP / 1500) {
                self.voters[at].held_until = self.now + 400 + self.rng.below(500);
            }
        }
    }

    fn act(&mut self, at: usize) {
        let (now, draw) = (Time::from_millis(self.now), self.rng.below(1000));
        let voter = &mut self.voters[at];
        let view = ElectionView {
            term: voter.term,
            leader_heard: Time::from_millis(voter.heard),
            vote_granted: Time::from_millis(voter.granted),
            log_is_behind: false,
            alone: false,
        };
        if voter.leads {
            if self.now.is_multiple_of(HEARTBEAT) {
                self.send_heartbeat(at);
            }
            return;
        }
        if voter.timer.stands(now, &view, draw) {
            self.stand(at);
        }
    }

    fn send_heartbeat(&mut self, at: usize) {
        let (now, term) = (self.now, self.voters[at].term);
        if self
            .voters
            .iter()
            .any(|v| v.term > term && v.held_until <= now)
        {
            self.voters[at].leads = false;
            self.voters[at].heard = now;
            return;
        }
        let mut reached = 0;
        for v in self.voters.iter_mut().filter(|v| v.held_until <= now) {
            (v.term, v.heard) = (term, now);
            reached += 1;
        }
        for (other, v) in self.voters.iter_mut().enumerate() {
            v.leads &= other == at || v.held_until > now;
        }
        if reached * 2 > self.voters.len() {
            self.led = now;
        }
    }

    fn stand(&mut self, at: usize) {
        let now = self.now;
        let term = self.voters[at].term + 1;
        self.elections += 1;
        let mut votes = 0;
        for (other, v) in self.voters.iter_mut().enumerate() {
            // Who has just heard a leader follows that one.
            let free = other == at || now - v.heard >= TIMES.vote_lease().as_millis() as u64;
            if v.held_until <= now && v.term < term && free {
                v.term = term;
                v.leads = false;
                votes += 1;
                if other != at {
                    v.granted = now;
                }
            }
        }
        if votes * 2 > self.voters.len() {
            self.voters[at].leads = true;
            self.send_heartbeat(at);
        }
    }
}
