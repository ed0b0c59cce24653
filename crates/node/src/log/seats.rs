//! The seats of a node's sequencers, and the terms of those that ended.
//!
//! **Invariants.** A term is begun once in a life of the node. A term is begun by an appointment that has committed it itself, so that only
//! appointments which began before a seat ended can still want to begin a term of it: the end of a seat is remembered until the last of those is over.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use staves_log::{LogId, Term};
use staves_model::PoolId;
use tokio::sync::{mpsc, watch};

use super::figures::LogEnds;
use super::seat::{SeatEvent, SeatState};

/// Most sequencers of one node. With more, the one that was idle for longest ends.
pub(super) const SEATS_MAX: usize = 1024;
/// Most seats that ended while one appointment was under way.
const ENDED_MAX: usize = 65_536;
/// Most appointments at once.
const APPOINTMENTS_MAX: usize = 1024;

/// A log, by pool.
pub(super) type LogKey = (PoolId, LogId);

/// The front of a seat's task.
#[derive(Clone)]
pub(super) struct SeatFront {
    pub events: mpsc::Sender<SeatEvent>,
    pub state: watch::Receiver<SeatState>,
    /// The log's name.
    pub name: Arc<str>,
    pub ends: Arc<LogEnds>,
    pub used: Instant,
    /// The highest term that it was given.
    pub begun: Term,
}

impl SeatFront {
    /// False if its task has ended before its time.
    pub fn is_alive(&self) -> bool {
        !self.events.is_closed()
    }

    /// True if a term runs here, or will as soon as the task gets to it.
    pub fn runs(&self, term: Term) -> bool {
        let state = *self.state.borrow();
        self.is_alive() && (state.term == term || (self.begun >= term && state.taken < term))
    }
}

/// The end of a seat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct EndedSeat {
    begun: Term,
    /// The number of the end: appointments have lower ones if they began before.
    number: u64,
}

/// The seats of this life of the node.
#[derive(Default)]
pub(super) struct Seats {
    running: BTreeMap<LogKey, SeatFront>,
    ended: BTreeMap<LogKey, EndedSeat>,
    /// Ends, the oldest first.
    ends: VecDeque<(u64, LogKey)>,
    /// The appointments under way, by number.
    appointments: BTreeSet<u64>,
    next: u64,
}

/// An appointment under way.
pub(super) struct Appointment {
    seats: Arc<Mutex<Seats>>,
    number: u64,
}

impl Appointment {
    /// Begins one. None if there are as many as there may be.
    pub fn new(seats: &Arc<Mutex<Seats>>) -> Option<Appointment> {
        let number = seats.lock().appointment()?;
        Some(Appointment {
            seats: seats.clone(),
            number,
        })
    }
}

impl Drop for Appointment {
    fn drop(&mut self) {
        self.seats.lock().appointed(self.number);
    }
}

impl Seats {
    /// The seat of a log.
    pub fn front(&self, key: &LogKey) -> Option<&SeatFront> {
        self.running.get(key)
    }

    /// The same, as used now.
    pub fn used(&mut self, key: &LogKey) -> Option<&SeatFront> {
        let front = self.running.get_mut(key)?;
        front.used = Instant::now();
        Some(front)
    }

    /// All that run.
    pub fn running(&self) -> impl Iterator<Item = (&LogKey, &SeatFront)> {
        self.running.iter()
    }

    /// Some of those with a term, and their logs' names: first those behind a log.
    pub fn in_turn(&self, behind: Option<LogKey>, most: usize) -> Vec<(LogKey, String)> {
        let later = match behind {
            Some(behind) => self.running.range((Excluded(behind), Unbounded)),
            None => self.running.range(..),
        };
        let earlier = behind.map(|behind| self.running.range(..=behind));
        let all = later.chain(earlier.into_iter().flatten());
        let has_term = |front: &SeatFront| front.state.borrow().term > Term::default();
        let all = all.filter(|(_, front)| has_term(front));
        let all = all.map(|(key, front)| (*key, front.name.to_string()));
        all.take(most).collect()
    }

    /// The seat that a term is to be begun in, made if there is none. None if the term was begun before in a seat that has ended, or if
    /// there is no room for another.
    pub fn begin(
        &mut self,
        key: LogKey,
        term: Term,
        make: impl FnOnce() -> SeatFront,
    ) -> Option<SeatFront> {
        if self.running.get(&key).is_some_and(|seat| !seat.is_alive()) {
            self.end(key);
        }
        if !self.running.contains_key(&key) {
            let ended = self.ended.get(&key).map(|ended| ended.begun);
            if ended >= Some(term) || !self.make_room() {
                return None;
            }
        }
        let front = self.running.entry(key).or_insert_with(make);
        front.begun = front.begun.max(term);
        Some(front.clone())
    }

    fn appointment(&mut self) -> Option<u64> {
        if self.appointments.len() >= APPOINTMENTS_MAX {
            return None;
        }
        self.next += 1;
        self.appointments.insert(self.next);
        Some(self.next)
    }

    /// An appointment is over.
    fn appointed(&mut self, number: u64) {
        self.appointments.remove(&number);
        self.forget();
    }

    /// Forgets the ends that nobody can come too late for.
    fn forget(&mut self) {
        let oldest = self.appointments.first().copied();
        while let Some((end, key)) = self.ends.front().copied() {
            if oldest.is_some_and(|oldest| oldest < end) {
                break;
            }
            self.ends.pop_front();
            // It may have begun and ended anew since.
            if self.ended.get(&key).is_some_and(|of| of.number == end) {
                self.ended.remove(&key);
            }
        }
    }

    /// Ends the seat that was idle for longest, if there are as many as there may be.
    fn make_room(&mut self) -> bool {
        if self.running.len() < SEATS_MAX {
            return true;
        }
        if self.ends.len() >= ENDED_MAX {
            return false;
        }
        let idle = self.running.iter().min_by_key(|(_, seat)| seat.used);
        let Some(key) = idle.map(|(key, _)| *key) else {
            return false;
        };
        self.end(key);
        true
    }

    /// Ends the seat of a log.
    pub fn end(&mut self, key: LogKey) {
        if let Some(seat) = self.running.remove(&key) {
            self.next += 1;
            let (begun, number) = (seat.begun, self.next);
            self.ended.insert(key, EndedSeat { begun, number });
            self.ends.push_back((number, key));
            self.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn front() -> SeatFront {
        let (events, taken) = mpsc::channel(1);
        // Its task runs for ever.
        std::mem::forget(taken);
        let (_, state) = watch::channel(SeatState::default());
        SeatFront {
            events,
            state,
            name: "l".into(),
            ends: Arc::default(),
            used: Instant::now(),
            begun: Term::default(),
        }
    }

    fn key(log: u64) -> LogKey {
        (PoolId(1), LogId(log))
    }

    /// Regression: the terms of 65,536 ended seats were kept for good, and no more sequencers were made.
    #[test]
    fn any_number_of_logs_have_their_turn() {
        let seats = Arc::new(Mutex::new(Seats::default()));
        for log in 0..(ENDED_MAX + 2 * SEATS_MAX) as u64 {
            let _appointment = Appointment::new(&seats).expect("few are under way");
            let begun = seats.lock().begin(key(log), Term(1), front);
            assert!(begun.is_some(), "log {log}");
        }
        let seats = seats.lock();
        assert_eq!(seats.running.len(), SEATS_MAX);
        assert_eq!((seats.ended.len(), seats.ends.len()), (0, 0));
    }

    #[test]
    fn a_term_of_a_seat_that_ended_is_not_begun_again_by_who_was_late() {
        let seats = Arc::new(Mutex::new(Seats::default()));
        let late = Appointment::new(&seats).expect("the first");
        let begin = |log, term| seats.lock().begin(key(log), Term(term), front).is_some();
        assert!(begin(0, 5) && begin(0, 5), "a seat that runs sorts it out");
        for log in 1..=SEATS_MAX as u64 {
            let _appointment = Appointment::new(&seats).expect("few are under way");
            assert!(begin(log, 1));
        }
        assert!(seats.lock().front(&key(0)).is_none(), "it had to go");
        assert!(!begin(0, 5) && !begin(0, 4), "begun before");
        assert!(begin(0, 6), "the next term is a new one");
        drop(late);
        let seats = seats.lock();
        assert_eq!((seats.ended.len(), seats.ends.len()), (0, 0));
    }

    /// Regression: a term whose task had panicked was taken to run, and its log stood still.
    #[test]
    fn a_seat_whose_task_has_ended_runs_nothing_and_gives_way_to_the_next_term() {
        let seats = Arc::new(Mutex::new(Seats::default()));
        let (events, taken) = mpsc::channel(1);
        let dying = || SeatFront { events, ..front() };
        let _appointment = Appointment::new(&seats).expect("the first");
        let begun = seats.lock().begin(key(0), Term(3), dying);
        let begun = begun.expect("there is room");
        assert!(begun.runs(Term(3)));
        drop(taken);
        assert!(!begun.runs(Term(3)));
        let again = seats.lock().begin(key(0), Term(3), front);
        assert!(again.is_none(), "no machine of a term comes twice");
        let next = seats.lock().begin(key(0), Term(4), front);
        assert!(next.expect("a new one").runs(Term(4)));
    }

    /// Regression: the first sixteen logs that could not be moved kept a drain from all others.
    #[test]
    fn logs_that_cannot_be_moved_keep_no_others() {
        let mut seats = Seats::default();
        let (told, state) = watch::channel(SeatState::default());
        told.send_modify(|state| state.term = Term(1));
        for log in 0..40 {
            let state = state.clone();
            let front = || SeatFront { state, ..front() };
            assert!(seats.begin(key(log), Term(1), front).is_some());
        }
        let turn = |behind: Option<u64>| {
            let logs = seats.in_turn(behind.map(key), 16);
            let logs = logs.into_iter().map(|((_, log), _)| log.0);
            logs.collect::<Vec<_>>()
        };
        assert_eq!(turn(None), (0..16).collect::<Vec<_>>());
        assert_eq!(turn(Some(15)), (16..32).collect::<Vec<_>>());
        let last = turn(Some(31));
        assert_eq!(last, (32..40).chain(0..8).collect::<Vec<_>>());
        told.send_modify(|state| state.term = Term(0));
        assert!(turn(None).is_empty(), "none has a term");
    }

    #[test]
    fn appointments_at_once_are_bounded() {
        let seats = Arc::new(Mutex::new(Seats::default()));
        let mut all: Vec<_> = (0..APPOINTMENTS_MAX)
            .map(|_| Appointment::new(&seats).expect("there is room"))
            .collect();
        assert!(Appointment::new(&seats).is_none());
        all.pop();
        assert!(Appointment::new(&seats).is_some());
    }
}
