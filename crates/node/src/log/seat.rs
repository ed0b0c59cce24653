//! The task of one log's sequencer: it drives the machine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use staves_client::log_calls::{self as calls, UnitBatches};
use staves_client::{Router, Transport};
use staves_log::{
    LogRecord, RecordReply, RecordRequest, ReplyTo, Sequencer, SequencerEffects, SequencerEvent,
    SequencerId, SequencerLimits, SequencerReply, SequencerRequest, SequencerSeat, Term, UnitId,
    UnitOp, UnitReply,
};
use staves_model::{PoolId, Time};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use super::CALL;
use super::figures::{LogEnds, LogFigures};

/// The clock of a machine at work.
const TICK: Duration = Duration::from_millis(2);
/// The same of one that rests: its bound on what it sends again.
const REST: Duration = Duration::from_millis(500);
/// A machine that rested for so long is at rest.
const RESTED: Duration = Duration::from_millis(50);
/// Most events of one round, whose requests go out together.
const ROUND_EVENTS_MAX: usize = 256;
/// Most requests to one unit under way, a quarter of the numbers that the node's router gives to writes: what finds no place is sent again by the
/// machine.
const CALLS_MAX: usize = 512;
/// Most requests that wait for the machine's reply.
const REPLIES_MAX: usize = 8192;

/// An input of the task.
pub(super) enum SeatEvent {
    /// A request of a client, a reader or a unit.
    Request(SequencerRequest, oneshot::Sender<SequencerReply>),
    /// A term was committed.
    Lead(Box<LogRecord>),
    /// The replies of one unit, in order.
    Unit(UnitId, Vec<UnitReply>),
    Home(RecordReply),
}

/// The state of the machine, as those who wait for it see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct SeatState {
    /// The term of the machine that is not deposed; 0 if there is none.
    pub term: Term,
    /// Its term is open.
    pub active: bool,
    /// The highest term that the task has taken.
    pub taken: Term,
}

/// The state of the task.
pub(super) struct SeatTask<T> {
    router: Router<T>,
    pool: PoolId,
    began: Instant,
    seat: SequencerSeat,
    /// The log's name, for its home.
    name: String,
    next: u64,
    replies: BTreeMap<u64, oneshot::Sender<SequencerReply>>,
    units: BTreeMap<UnitId, Arc<Semaphore>>,
    /// The task's own end of its events: it does not keep the task alive.
    events: mpsc::WeakSender<SeatEvent>,
    state: watch::Sender<SeatState>,
    figures: Arc<LogFigures>,
    ends: Arc<LogEnds>,
    stirred: Instant,
    taken: Term,
}

impl<T: Transport> SeatTask<T> {
    pub(super) fn new(
        router: Router<T>,
        (pool, id): (PoolId, SequencerId),
        (events, state): (mpsc::WeakSender<SeatEvent>, watch::Sender<SeatState>),
        (figures, ends): (Arc<LogFigures>, Arc<LogEnds>),
    ) -> SeatTask<T> {
        SeatTask {
            router,
            pool,
            began: Instant::now(),
            seat: SequencerSeat::new(id),
            name: String::new(),
            next: 0,
            replies: BTreeMap::new(),
            units: BTreeMap::new(),
            events,
            state,
            figures,
            ends,
            stirred: Instant::now(),
            taken: Term::default(),
        }
    }

    /// Runs until nobody holds its front any more.
    pub(super) async fn run(mut self, mut events: mpsc::Receiver<SeatEvent>) {
        let mut round = Vec::with_capacity(ROUND_EVENTS_MAX);
        let mut ticked = Instant::now();
        loop {
            let mut out = SequencerEffects::default();
            let pause = self.pause();
            tokio::select! {
                count = events.recv_many(&mut round, ROUND_EVENTS_MAX) => {
                    if count == 0 {
                        return;
                    }
                    for event in round.drain(..) {
                        self.take(event, &mut out);
                    }
                }
                () = tokio::time::sleep_until((ticked + pause).into()) => {}
            }
            // However much comes: much is sent by the clock alone.
            if ticked.elapsed() >= pause {
                let now = self.now();
                self.seat.step(now, SequencerEvent::Tick, &mut out);
                ticked = Instant::now();
            }
            self.send(out);
            self.tell();
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.began.elapsed()
    }

    fn pause(&self) -> Duration {
        let rests = self.seat.machine().is_none_or(Sequencer::is_at_rest);
        match rests && self.stirred.elapsed() > RESTED {
            true => REST,
            false => TICK,
        }
    }

    fn take(&mut self, event: SeatEvent, out: &mut SequencerEffects) {
        let now = self.now();
        self.stirred = Instant::now();
        let event = match event {
            SeatEvent::Request(request, reply) => {
                if self.replies.len() >= REPLIES_MAX {
                    // Dropped: its sender asks again.
                    return;
                }
                self.figures.asked(&request.op);
                self.next += 1;
                self.replies.insert(self.next, reply);
                SequencerEvent::Request(ReplyTo(self.next), request)
            }
            SeatEvent::Lead(record) => {
                self.name.clone_from(&record.name);
                if record.term() > self.taken {
                    self.taken = record.term();
                    self.figures.terms_total.fetch_add(1, Ordering::Relaxed);
                }
                let limits = SequencerLimits::default();
                return self.seat.lead(now, *record, limits, out);
            }
            SeatEvent::Unit(unit, replies) => {
                for reply in replies {
                    self.seat.step(now, SequencerEvent::Unit(unit, reply), out);
                }
                return;
            }
            SeatEvent::Home(reply) => SequencerEvent::Home(reply),
        };
        self.seat.step(now, event, out);
    }

    fn send(&mut self, out: SequencerEffects) {
        for (to, reply) in out.replies {
            self.figures.answered(&reply);
            if let Some(sender) = self.replies.remove(&to.0) {
                let _gone = sender.send(reply);
            }
        }
        // Bindings are answered once they are on all disks, and so apart from what is answered at once.
        let mut bindings = UnitBatches::default();
        for (unit, request) in out.units {
            let mut alone = UnitBatches::default();
            let is_binding = matches!(request.op, UnitOp::Bind { .. });
            let batches = if is_binding {
                &mut bindings
            } else {
                &mut alone
            };
            batches.push(unit, (), request);
            self.ask_units(alone);
        }
        self.ask_units(bindings);
        for request in out.home {
            self.ask_home(request);
        }
    }

    fn ask_units(&mut self, mut batches: UnitBatches<()>) {
        let Some(events) = self.events.upgrade() else {
            return;
        };
        for (unit, batch) in batches.take() {
            let calls = self.units.entry(unit);
            let calls = calls.or_insert_with(|| Arc::new(Semaphore::new(CALLS_MAX)));
            let Ok(permit) = calls.clone().try_acquire_many_owned(batch.len()) else {
                continue;
            };
            let (router, pool, events) = (self.router.clone(), self.pool, events.clone());
            tokio::spawn(async move {
                let _permit: OwnedSemaphorePermit = permit;
                let deadline = Instant::now() + CALL;
                let asked = calls::ask_batch(&router, pool, unit, batch, deadline).await;
                let mut replies = Vec::with_capacity(asked.len());
                for (_, reply) in asked {
                    match reply {
                        Ok(reply) => replies.push(reply),
                        Err(error) => {
                            tracing::debug!(%unit, %error, "a unit did not answer its sequencer");
                        }
                    }
                }
                if !replies.is_empty() {
                    let _ended = events.send(SeatEvent::Unit(unit, replies)).await;
                }
            });
        }
    }

    fn ask_home(&self, request: RecordRequest) {
        let Some(events) = self.events.upgrade() else {
            return;
        };
        let (router, pool, name) = (self.router.clone(), self.pool, self.name.clone());
        tokio::spawn(async move {
            let deadline = Instant::now() + CALL;
            let map = router.map();
            let reply = match calls::home_of(&map, pool, &name) {
                Ok(home) => calls::ask_home(&router, pool, home, request, deadline).await,
                Err(error) => Err(error),
            };
            match reply {
                Ok(reply) => {
                    let _ended = events.send(SeatEvent::Home(reply)).await;
                }
                Err(error) => tracing::debug!(%name, %error, "a home did not answer its sequencer"),
            }
        });
    }

    fn tell(&mut self) {
        let machine = self.seat.machine();
        if let Some((tail, trim)) = machine.and_then(Sequencer::ends) {
            self.ends.set(tail, trim);
        }
        let state = SeatState {
            term: machine.map(Sequencer::term).unwrap_or_default(),
            active: machine.is_some_and(Sequencer::is_active),
            taken: self.taken,
        };
        self.state.send_if_modified(|told| {
            let changed = *told != state;
            *told = state;
            changed
        });
        // Of requests that nobody waits for any more, the machine's replies may still come; they find nobody.
        if self.replies.len() > REPLIES_MAX / 2 {
            self.replies.retain(|_, reply| !reply.is_closed());
        }
    }
}
