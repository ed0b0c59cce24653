//! The sequencers of logs that run on this node, and what its units of logs ask sequencers.
//!
//! **Path.** A client's request ([`Sequencers::ask`]) goes to the task of its log ([`seat`]), which drives the machine of `staves-log`; what the
//! machine sends to units and to the log's home goes through the node's router. [`Sequencers::appoint`] gives a log its next term, here,
//! where the last one's node or life is gone. What units ask by themselves is sent by [`send_asks`].
//!
//! **Invariants.** A log has one seat in one life of this node, and a term is begun once ([`seats`]). Nothing is kept: a node that ends takes its
//! sequencers with it.

mod appoint;
mod asks;
mod drain;
mod figures;
mod seat;
mod seats;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use staves_client::{Router, Transport};
use staves_directory::Life;
use staves_log::{
    LogId, LogRecord, SequencerAnswer, SequencerId, SequencerOp, SequencerReply, SequencerRequest,
    Term,
};
use staves_model::{ClusterMap, PoolId};
use tokio::sync::{mpsc, oneshot, watch};

use self::figures::LogEnds;
use self::seat::{SeatEvent, SeatState};
use self::seats::{LogKey, SeatFront, Seats};

pub(crate) use self::appoint::AppointDemand;
pub use self::asks::UnitAsks;
pub(crate) use self::asks::send_asks;
pub(crate) use self::drain::move_when_drained;
pub(crate) use self::figures::{LogFigures, ServedLog};

/// Most events that wait for one sequencer.
const EVENTS_MAX: usize = 8192;
/// Most logs that metrics name one by one.
const SERVED_MAX: usize = 128;
/// A request to a unit or a home is given up after this: the machine sends it again.
const CALL: Duration = Duration::from_secs(2);

/// All sequencers of this life of the node.
pub(crate) struct Sequencers {
    id: SequencerId,
    /// The questions of units here.
    asks: Arc<UnitAsks>,
    seats: Arc<Mutex<Seats>>,
    figures: Arc<LogFigures>,
}

/// A request that was made.
enum SequencerAsk {
    Waits(oneshot::Receiver<SequencerReply>),
    /// There is no such sequencer here.
    Nobody(SequencerReply),
    Busy,
}

/// The reply of a sequencer that is too busy for a request.
fn busy(request: &SequencerRequest) -> SequencerReply {
    let id = match request.op {
        SequencerOp::Seq { id, .. } => Some(id),
        _ => None,
    };
    let (log, answer) = (request.log, SequencerAnswer::Busy { id });
    SequencerReply { log, answer }
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
            seats: Arc::default(),
            figures: Arc::default(),
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
        match self.begin_ask(pool, to, request) {
            SequencerAsk::Waits(said) => said.await.ok(),
            SequencerAsk::Nobody(reply) => Some(reply),
            SequencerAsk::Busy => None,
        }
    }

    /// The same for several requests, which are asked in order. Those that found it too busy are told so; None if one alone did.
    pub(crate) async fn ask_several(
        &self,
        pool: PoolId,
        to: SequencerId,
        requests: Vec<SequencerRequest>,
    ) -> Option<Vec<SequencerReply>> {
        let asked = requests.into_iter().map(|request| {
            let busy = busy(&request);
            (busy, self.begin_ask(pool, to, request))
        });
        let asked: Vec<_> = asked.collect();
        let is_one = asked.len() == 1;
        let mut replies = Vec::with_capacity(asked.len());
        for (busy, asked) in asked {
            let reply = match asked {
                SequencerAsk::Waits(said) => said.await.ok(),
                SequencerAsk::Nobody(reply) => Some(reply),
                SequencerAsk::Busy => None,
            };
            let busy = (!is_one).then_some(busy);
            replies.push(reply.or(busy)?);
        }
        Some(replies)
    }

    fn begin_ask(&self, pool: PoolId, to: SequencerId, request: SequencerRequest) -> SequencerAsk {
        let log = request.log;
        let front = match to == self.id {
            true => self.front(pool, log),
            false => None,
        };
        let Some(front) = front else {
            let term = Term::default();
            let answer = SequencerAnswer::NotSequencer { term };
            return SequencerAsk::Nobody(SequencerReply { log, answer });
        };
        let (reply, said) = oneshot::channel();
        let asked = front.events.try_send(SeatEvent::Request(request, reply));
        asked.map_or(SequencerAsk::Busy, |()| SequencerAsk::Waits(said))
    }

    fn front(&self, pool: PoolId, log: LogId) -> Option<SeatFront> {
        let mut seats = self.seats.lock();
        seats.used(&(pool, log)).filter(|f| f.is_alive()).cloned()
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
        let make = || self.seat(router, pool, &record.name);
        let front = self.seats.lock().begin(key, term, make)?;
        // A seat that ended meanwhile begins nothing: who waits for it sees that, and appoints anew.
        let _ended = front.events.send(SeatEvent::Lead(Box::new(record))).await;
        Some(front)
    }

    fn seat<T: Transport>(&self, router: &Router<T>, pool: PoolId, name: &str) -> SeatFront {
        let (events, taken) = mpsc::channel(EVENTS_MAX);
        let (tell, state) = watch::channel(SeatState::default());
        let ends = Arc::<LogEnds>::default();
        let figures = (self.figures.clone(), ends.clone());
        let to = (events.downgrade(), tell);
        let seat = seat::SeatTask::new(router.clone(), (pool, self.id), to, figures);
        tokio::spawn(seat.run(taken));
        SeatFront {
            events,
            state,
            name: name.into(),
            ends,
            used: Instant::now(),
            begun: Term::default(),
        }
    }

    /// The figures of all sequencers.
    pub(crate) fn figures(&self) -> &LogFigures {
        &self.figures
    }

    /// The number of sequencers whose term is open here.
    pub(crate) fn active(&self) -> usize {
        let seats = self.seats.lock();
        let active = |front: &SeatFront| front.state.borrow().active;
        seats.running().filter(|(_, front)| active(front)).count()
    }

    /// The logs whose sequencers are here, those that were used last.
    pub(crate) fn served(&self, map: &ClusterMap) -> Vec<ServedLog> {
        let seats = self.seats.lock();
        let active = |front: &SeatFront| front.state.borrow().active;
        let mut all: Vec<_> = seats.running().filter(|(_, front)| active(front)).collect();
        all.sort_by_key(|(_, front)| std::cmp::Reverse(front.used));
        all.truncate(SERVED_MAX);
        let of = |(key, front): (&LogKey, &SeatFront)| {
            let pool = map.pools.get(&key.0)?;
            Some(ServedLog::new(&pool.name, &front.name, &front.ends))
        };
        let mut served: Vec<_> = all.into_iter().filter_map(of).collect();
        served.sort_by(|a, b| (&a.pool, &a.name).cmp(&(&b.pool, &b.name)));
        served
    }

    /// Some of the logs whose sequencers run here, with their names: those behind one, and then the others from the first on. So one that cannot be
    /// moved keeps no other.
    fn to_move(&self, behind: Option<LogKey>, most: usize) -> Vec<(LogKey, String)> {
        self.seats.lock().in_turn(behind, most)
    }

    /// Ends the seat of a log whose sequencer is elsewhere.
    fn end(&self, key: LogKey) {
        self.seats.lock().end(key);
    }
}
