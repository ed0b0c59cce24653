//! Elections beside load: voters with the real [`ElectionTimer`], whose processes are held up for longer than the election
//! time-outs allow, then calm, then the death of the leader. And elections where voters are cut off from the others, one after another.
//!
//! Raft itself is a sketch here: terms, votes and heartbeats, as far as they decide how often leaders change.

use staves_model::mutant::{Mutant, plant};
use staves_model::{ElectionTimer, ElectionTimes, ElectionView, NodeId, Time, may_win};

use std::collections::BTreeSet;
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
/// The calm before the leader dies.
const CALM: u64 = 5_000;
/// In the second half of the load elections are so far apart on average, at least.
const TERM_MIN: u64 = 2000;
/// Longest time without a leader that works: hold-ups spoil elections too.
const GAP_MAX: u64 = 3000;
/// Longest time without a leader after a death in calm: two time-outs, as votes may be split once.
const CALM_GAP_MAX: u64 = 1300;
/// Cuts, each of one voter, their length, and the time between two.
const CUTS: u64 = 16;
const CUT: u64 = 3500;
const WHOLE: u64 = 1500;
/// Longest time without a leader while one voter is cut off: as after a death in calm.
const CUT_GAP_MAX: u64 = 1300;

struct Voter {
    term: u64,
    /// The time at which a leader's heartbeat last arrived.
    heard: u64,
    /// The time at which it last voted for another.
    granted: u64,
    held_until: u64,
    /// Neither sends nor receives.
    cut_off: bool,
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
    let mut bad = beside_load(seed);
    bad.extend(beside_cuts(seed));
    plant(None);
    bad
}

/// A voter is cut off again and again, every other time the leader.
fn beside_cuts(seed: u64) -> Vec<String> {
    let mut w = Voters::new(seed);
    let mut bad = Vec::new();
    w.run_until(2 * WHOLE, false);
    for cut in 0..CUTS {
        let leads = (0..w.voters.len()).filter(|at| w.voters[*at].leads);
        let newest = leads.max_by_key(|at| w.voters[*at].term);
        let other = w.rng.below(w.voters.len() as u64) as usize;
        let victim = newest.filter(|_| cut % 2 == 1).unwrap_or(other);
        let (led, elections) = (w.voters[victim].leads, w.elections);
        w.voters[victim].cut_off = true;
        let mut gap = w.run_until(w.now + CUT, false);
        w.voters[victim].cut_off = false;
        gap = gap.max(w.run_until(w.now + WHOLE, false));
        if gap > CUT_GAP_MAX {
            bad.push(format!("no leader for {gap} ms around cut {cut}"));
        }
        if !led && w.elections > elections {
            bad.push(format!("cut {cut} deposed a leader that it did not touch"));
        }
    }
    bad
}

fn beside_load(seed: u64) -> Vec<String> {
    let mut w = Voters::new(seed);
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
    bad
}

impl Voter {
    fn view(&self) -> ElectionView {
        ElectionView {
            term: self.term,
            leader_heard: Time::from_millis(self.heard),
            vote_granted: Time::from_millis(self.granted),
            alone: false,
        }
    }

    fn new(rng: &mut Rng) -> Voter {
        Voter {
            term: 1,
            heard: 0,
            granted: 0,
            held_until: 0,
            cut_off: false,
            leads: false,
            timer: ElectionTimer::new(TIMES, Time::ZERO, rng.below(1000)),
        }
    }
}

impl Voters {
    fn new(seed: u64) -> Voters {
        let mut rng = Rng::new(seed);
        let count = rng.pick(&[3, 5]);
        Voters {
            now: 0,
            voters: (0..count).map(|_| Voter::new(&mut rng)).collect(),
            rng,
            led: 0,
            elections: 0,
        }
    }

    /// True if `from` reaches `to`, which is not held up.
    fn reaches(&self, from: usize, to: usize) -> bool {
        let cut = from != to && (self.voters[from].cut_off || self.voters[to].cut_off);
        !cut && self.voters[to].held_until <= self.now
    }

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
        let view = voter.view();
        if voter.leads {
            if self.now.is_multiple_of(HEARTBEAT) {
                self.send_heartbeat(at);
            }
            return;
        }
        if voter.timer.stands(now, &view, draw) && self.may_win(at) {
            self.stand(at);
        }
    }

    fn send_heartbeat(&mut self, at: usize) {
        let (now, term) = (self.now, self.voters[at].term);
        let reached = (0..self.voters.len()).filter(|to| self.reaches(at, *to));
        let reached: Vec<usize> = reached.collect();
        if reached.iter().any(|to| self.voters[*to].term > term) {
            self.voters[at].leads = false;
            self.voters[at].heard = now;
            return;
        }
        for to in &reached {
            let v = &mut self.voters[*to];
            (v.term, v.heard) = (term, now);
            v.leads &= *to == at;
        }
        if reached.len() * 2 > self.voters.len() {
            self.led = now;
        }
    }

    /// The pre-votes, as the program asks for them.
    fn may_win(&self, at: usize) -> bool {
        let id = |at: usize| NodeId(at as u64);
        let voters: BTreeSet<NodeId> = (0..self.voters.len()).map(id).collect();
        let now = Time::from_millis(self.now);
        let would = |to: &usize| {
            let v = &self.voters[*to];
            self.reaches(at, *to) && !v.leads && v.view().would_vote(now, &TIMES, true)
        };
        let votes = (0..self.voters.len()).filter(|to| *to == at || would(to));
        may_win([&voters], &votes.map(id).collect())
    }

    fn stand(&mut self, at: usize) {
        let now = self.now;
        let term = self.voters[at].term + 1;
        self.elections += 1;
        let mut votes = 0;
        for other in 0..self.voters.len() {
            let reached = self.reaches(at, other);
            let v = &mut self.voters[other];
            // Who has just heard a leader follows that one.
            let free = other == at || now - v.heard >= TIMES.vote_lease().as_millis() as u64;
            if reached && v.term < term && free {
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
