//! The sequencers of logs that run on this node, and what its units of logs ask sequencers.
//!
//! **Path.** A client's request ([`Sequencers::ask`]) goes to the task of its log ([`seat`]), which drives the machine of `staves-log`; what the
//! machine sends to units and to the log's home goes through the node's router. [`Sequencers::appoint`] gives a log its next term, here,
//! where the last one's node or life is gone. What units ask by themselves is sent by [`send_asks`].
//!
//! **Invariants.** A log has one seat in one life of this node: a seat that ended gives its log's terms so far up. Nothing is kept: a node that
//! ends takes its sequencers with it.

mod appoint;
mod asks;
mod seat;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use staves_client::{Router, Transport};
use staves_directory::Life;
use staves_log::{
    LogId, LogRecord, SequencerAnswer, SequencerId, SequencerReply, SequencerRequest, Term,
};
use staves_model::PoolId;
use tokio::sync::{mpsc, oneshot, watch};

use self::seat::{SeatEvent, SeatState};

pub use self::asks::UnitAsks;
pub(crate) use self::asks::send_asks;

/// Most sequencers of one node. With more, the one that was idle for longest ends.
const SEATS_MAX: usize = 1024;
/// Most seats that have ended, of which the terms are known.
const ENDED_MAX: usize = 65_536;
/// Most events that wait for one sequencer.
const EVENTS_MAX: usize = 8192;
/// A request to a unit or a home is given up after this: the machine sends it again.
const CALL: Duration = Duration::from_secs(2);

/// A log, by pool.
type LogKey = (PoolId, LogId);

/// The front of a seat's task.
#[derive(Clone)]
struct SeatFront {
    events: mpsc::Sender<SeatEvent>,
    state: watch::Receiver<SeatState>,
    used: Instant,
    /// The highest term that it was given.
    begun: Term,
}

/// The seats of this life of the node.
#[derive(Default)]
struct Seats {
    running: BTreeMap<LogKey, SeatFront>,
    /// The highest terms of those that ended: a term is begun once.
    ended: BTreeMap<LogKey, Term>,
}

/// All sequencers of this life of the node.
pub(crate) struct Sequencers {
    id: SequencerId,
    /// The questions of units here.
    asks: Arc<UnitAsks>,
    seats: Mutex<Seats>,
}

impl Sequencers {
    pub(crate) fn new(life: Life, asks: Arc<UnitAsks>) -> Arc<Sequencers> {
        let id = SequencerId {
            node: life.node,
            incarnation: life.incarnation,
        };
        Arc::new(Sequencers {
            id,
            asks,
            seats: Mutex::default(),
        })
    }

    /// This life of the node.
    pub(crate) fn id(&self) -> SequencerId {
        self.id
    }

    /// Asks the sequencer of a log here, by its life. Where there is none, that is the answer. None if it is too busy.
    pub(crate) async fn ask(
        &self,
        pool: PoolId,
        to: SequencerId,
        request: SequencerRequest,
    ) -> Option<SequencerReply> {
        let log = request.log;
        let front = match to == self.id {
            true => self.front(pool, log),
            false => None,
        };
        let Some(front) = front else {
            let term = Term::default();
            let answer = SequencerAnswer::NotSequencer { term };
            return Some(SequencerReply { log, answer });
        };
        let (reply, said) = oneshot::channel();
        let asked = front.events.try_send(SeatEvent::Request(request, reply));
        asked.ok()?;
        said.await.ok()
    }

    fn front(&self, pool: PoolId, log: LogId) -> Option<SeatFront> {
        let mut seats = self.seats.lock();
        let front = seats.running.get_mut(&(pool, log))?;
        front.used = Instant::now();
        Some(front.clone())
    }

    /// The highest term of a log that was begun in this life of the node.
    fn begun(&self, pool: PoolId, log: LogId) -> Term {
        self.seats.lock().begun(&(pool, log))
    }

    /// Begins the term that a log's record commits to this life of the node. None if it was begun before in a seat that has ended, or if there
    /// is no room for another.
    async fn begin<T: Transport>(
        &self,
        router: &Router<T>,
        pool: PoolId,
        record: LogRecord,
    ) -> Option<SeatFront> {
        let (key, term) = ((pool, record.view.log), record.term());
        let front = {
            let mut seats = self.seats.lock();
            if !seats.running.contains_key(&key)
                && (seats.begun(&key) >= term || !seats.make_room())
            {
                return None;
            }
            let seat = || self.seat(router, pool);
            let front = seats.running.entry(key).or_insert_with(seat);
            front.begun = front.begun.max(term);
            front.clone()
        };
        // A seat that ended meanwhile begins nothing: who waits for it sees that, and appoints anew.
        let _ended = front.events.send(SeatEvent::Lead(Box::new(record))).await;
        Some(front)
    }

    fn seat<T: Transport>(&self, router: &Router<T>, pool: PoolId) -> SeatFront {
        let (events, taken) = mpsc::channel(EVENTS_MAX);
        let (tell, state) = watch::channel(SeatState::default());
        let seat = seat::SeatTask::new(router.clone(), (pool, self.id), events.downgrade(), tell);
        tokio::spawn(seat.run(taken));
        SeatFront {
            events,
            state,
            used: Instant::now(),
            begun: Term::default(),
        }
    }
}

impl Seats {
    fn begun(&self, key: &LogKey) -> Term {
        let running = self.running.get(key).map(|seat| seat.begun);
        let ended = self.ended.get(key).copied();
        running.max(ended).unwrap_or_default()
    }

    /// Ends the seat that was idle for longest, if there are as many as there may be.
    fn make_room(&mut self) -> bool {
        if self.running.len() < SEATS_MAX {
            return true;
        }
        if self.ended.len() >= ENDED_MAX {
            return false;
        }
        let idle = self.running.iter().min_by_key(|(_, seat)| seat.used);
        let Some(key) = idle.map(|(key, _)| *key) else {
            return false;
        };
        let begun = self.begun(&key);
        self.running.remove(&key);
        self.ended.insert(key, begun);
        true
    }
}
