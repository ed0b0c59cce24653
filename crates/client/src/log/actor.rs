//! The task of one client of one log: it drives the machines of appends and of reads.

mod errors;
mod sending;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use staves_log::{
    AppendCondition, AppendError, AppendId, AppendLimits, Appended, Appender, AppenderEffects,
    AppenderEvent, LogReader, LogRecord, LogView, Position, ReadLimits, ReadOp, ReadResult,
    ReaderEffects, ReaderEvent, Records, SequencerId, SequencerReply, SequencerRequest, UnitId,
    UnitReply,
};
use staves_model::{PoolId, Time};
use staves_wire::ErrorCode;
use tokio::sync::{mpsc, oneshot};

use self::sending::append_of;
use super::calls::{UnitBatches, soon};
use super::presence::LogPresence;
use super::{appoint, calls};
use crate::client::Client;
use crate::error::ClientError;

/// The clock of the machines, while anything is in flight.
const TICK: Duration = Duration::from_millis(2);
/// The same while all that is in flight waits for the log to grow.
const WAIT_TICK: Duration = Duration::from_millis(25);
/// The pause between two looks for a newer term.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Most events of one round, whose appends go out together.
const ROUND_EVENTS_MAX: usize = 256;

/// The sender of the result.
type AnswerTo<T> = oneshot::Sender<Result<T, ClientError>>;

/// Records to append.
pub(super) struct AppendAsk {
    pub records: Records,
    pub tags: Vec<u64>,
    pub condition: Option<AppendCondition>,
}

/// The end of an append.
pub(super) enum AppendOutcome {
    Done(Appended),
    /// It is not in the log. The tail of the condition's stream, or of the log.
    ConditionFailed(Position),
}

/// A request of the log's user.
pub(super) enum Ask {
    Append(AppendAsk, AnswerTo<AppendOutcome>),
    Read(ReadOp, AnswerTo<ReadResult>),
    /// The end of the log's session, so that the log need not remember it.
    Close(AnswerTo<()>),
}

/// An answer that came.
enum Heard {
    /// Of a unit to a read, by its number.
    Unit(u64, UnitReply),
    /// Of a sequencer to a read, by its number.
    Read(u64, Vec<SequencerReply>),
    /// Of a unit to appends.
    Appended(Vec<UnitReply>),
    /// Of a sequencer to appends.
    Placed(Vec<SequencerReply>),
    View(Result<Box<LogView>, ClientError>),
    /// A unit had no room for an append.
    NoRoom(AppendId, UnitId, ClientError),
    /// A request found nobody.
    Trouble(ClientError),
}

/// The first event of a round.
enum RoundEvent {
    Ask(Ask),
    Heard(Heard),
    Tick,
}

/// The state of the task.
pub(super) struct Actor {
    client: Client,
    pool: PoolId,
    name: String,
    began: Instant,
    /// The time of the round that is being made.
    round: Time,
    appender: Appender,
    reader: LogReader,
    next: u64,
    appends: BTreeMap<u64, AnswerTo<AppendOutcome>>,
    reads: BTreeMap<u64, AnswerTo<ReadResult>>,
    /// Those of the reads that only wait for the log to grow.
    waits: BTreeSet<u64>,
    /// A view is being fetched.
    looking: bool,
    /// A view is wanted.
    wanted: bool,
    look_at: Instant,
    trouble: Option<ClientError>,
    /// Requests of this round's appends.
    to_units: UnitBatches<Option<AppendId>>,
    to_sequencers: Vec<(SequencerId, SequencerRequest)>,
    presence: Arc<LogPresence>,
    heard: (mpsc::UnboundedSender<Heard>, mpsc::UnboundedReceiver<Heard>),
}

impl Actor {
    pub(super) fn new(
        client: Client,
        pool: PoolId,
        record: LogRecord,
        (patience, presence): (Duration, Arc<LogPresence>),
    ) -> Actor {
        let (name, view) = (record.name, record.view);
        let appends = AppendLimits {
            deadline: patience,
            ..AppendLimits::default()
        };
        let reads = ReadLimits {
            deadline: patience,
            ..ReadLimits::default()
        };
        Actor {
            client,
            pool,
            name,
            began: Instant::now(),
            round: Time::ZERO,
            appender: Appender::new(rand::random(), view.clone(), appends),
            reader: LogReader::new(view, reads),
            next: 0,
            appends: BTreeMap::new(),
            reads: BTreeMap::new(),
            waits: BTreeSet::new(),
            looking: false,
            wanted: true,
            look_at: Instant::now(),
            trouble: None,
            to_units: UnitBatches::default(),
            to_sequencers: Vec::new(),
            presence,
            heard: mpsc::unbounded_channel(),
        }
    }

    /// Runs until the last handle is gone. What is in flight then is not waited for.
    pub(super) async fn run(mut self, mut asks: mpsc::Receiver<Ask>) {
        let mut ticked = Instant::now();
        loop {
            let busy = !self.appends.is_empty() || !self.reads.is_empty();
            let rests = self.appends.is_empty() && self.reads.len() == self.waits.len();
            let tick = if rests { WAIT_TICK } else { TICK };
            let event = tokio::select! {
                ask = asks.recv() => match ask {
                    Some(ask) => RoundEvent::Ask(ask),
                    None => return self.close(oneshot::channel().0),
                },
                Some(heard) = self.heard.1.recv() => RoundEvent::Heard(heard),
                () = tokio::time::sleep_until((ticked + tick).into()), if busy => RoundEvent::Tick,
            };
            self.round = Time::ZERO + self.began.elapsed();
            match event {
                RoundEvent::Ask(ask) => self.begin(ask),
                RoundEvent::Heard(heard) => self.hear(heard),
                RoundEvent::Tick => {}
            }
            self.take_what_waits(&mut asks);
            // However much comes: what is late is found by the clock alone.
            if ticked.elapsed() >= tick {
                self.tick();
                ticked = Instant::now();
            }
            self.send_appends();
            self.look();
        }
    }

    /// Takes events that came meanwhile: their requests go out with those of this round.
    fn take_what_waits(&mut self, asks: &mut mpsc::Receiver<Ask>) {
        for _ in 0..ROUND_EVENTS_MAX {
            if let Ok(heard) = self.heard.1.try_recv() {
                self.hear(heard);
            } else if let Ok(ask) = asks.try_recv() {
                self.begin(ask);
            } else {
                break;
            }
        }
    }

    /// The time of this round: what begins in it goes out together.
    fn now(&self) -> Time {
        self.round
    }

    fn begin(&mut self, ask: Ask) {
        self.next += 1;
        let number = self.next;
        match ask {
            Ask::Append(append, done) => {
                self.appends.insert(number, done);
                self.step(AppenderEvent::Append {
                    op: number,
                    records: append.records,
                    tags: append.tags,
                    condition: append.condition,
                });
            }
            Ask::Close(done) => self.close(done),
            Ask::Read(op, done) => {
                self.reads.insert(number, done);
                if let ReadOp::Wait { .. } = op {
                    self.waits.insert(number);
                }
                self.step_reader(ReaderEvent::Begin(number, op));
            }
        }
    }

    /// Ends the client's session. What finds no sequencer is forgotten by itself, when there are too many.
    fn close(&mut self, done: AnswerTo<()>) {
        let mut out = AppenderEffects::default();
        self.appender.end_session(&mut out);
        let client = self.client.clone();
        let asks: Vec<_> = out
            .sequencers
            .into_iter()
            .map(|(to, request)| self.log_ask(to, &[request]))
            .collect();
        tokio::spawn(async move {
            for ask in asks {
                let _unheard = client
                    .ask(ask.node, staves_wire::Message::LogAsk(ask), soon())
                    .await;
            }
            let _gone = done.send(Ok(()));
        });
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Unit(read, reply) => self.step_reader(ReaderEvent::Unit(read, reply)),
            Heard::Read(read, replies) => {
                for reply in replies {
                    self.step_reader(ReaderEvent::Sequencer(read, reply));
                }
            }
            Heard::Appended(replies) => {
                for reply in replies {
                    self.step(AppenderEvent::Unit(reply));
                }
            }
            Heard::Placed(replies) => {
                for reply in replies {
                    self.step(AppenderEvent::Sequencer(reply));
                }
            }
            Heard::NoRoom(id, unit, error) => {
                self.trouble = Some(error);
                self.step(AppenderEvent::NoRoom(id, unit));
            }
            Heard::Trouble(error) => {
                self.wanted = true;
                self.trouble = Some(error);
            }
            Heard::View(view) => {
                self.looking = false;
                self.look_at = Instant::now() + LOOK_AGAIN;
                match view {
                    Ok(view) => self.learn(view),
                    Err(error) if error.code() == ErrorCode::NotFound => self.fail_all(&error),
                    Err(error) => {
                        self.wanted = true;
                        self.trouble = Some(error);
                    }
                }
            }
        }
    }

    fn learn(&mut self, view: Box<LogView>) {
        if view.log != self.appender.view().log {
            return self.fail_all(&calls::made_anew(&self.name));
        }
        let newer = view.term > self.appender.view().term;
        self.step(AppenderEvent::View(view.clone()));
        self.step_reader(ReaderEvent::View(view));
        if newer {
            self.trouble = None;
        }
    }

    fn fail_all(&mut self, error: &ClientError) {
        self.appender.give_up_all();
        for (_, done) in std::mem::take(&mut self.appends) {
            let _gone = done.send(Err(error.clone()));
        }
        self.waits.clear();
        for (_, done) in std::mem::take(&mut self.reads) {
            let _gone = done.send(Err(error.clone()));
        }
    }

    fn tick(&mut self) {
        self.step(AppenderEvent::Tick);
        let full = self.appender.is_full();
        self.presence.full.store(full, Ordering::Relaxed);
        self.step_reader(ReaderEvent::Tick);
    }

    fn step(&mut self, event: AppenderEvent) {
        let mut out = AppenderEffects::default();
        self.appender.step(self.now(), event, &mut out);
        self.wanted |= out.view_wanted;
        for (unit, request) in out.units {
            self.to_units.push(unit, append_of(&request), request);
        }
        self.to_sequencers.extend(out.sequencers);
        for (op, result) in out.done {
            let result = match result {
                Ok(appended) => Ok(AppendOutcome::Done(appended)),
                Err(AppendError::ConditionFailed { tail }) => {
                    Ok(AppendOutcome::ConditionFailed(tail))
                }
                Err(error) => Err(self.append_error(error)),
            };
            if let Some(done) = self.appends.remove(&op) {
                let _gone = done.send(result);
            }
        }
    }

    fn step_reader(&mut self, event: ReaderEvent) {
        let mut out = ReaderEffects::default();
        self.reader.step(self.now(), event, &mut out);
        self.wanted |= out.view_wanted;
        for (read, unit, request) in out.units {
            self.read_unit(read, unit, request);
        }
        for (read, sequencer, request) in out.sequencers {
            let ask = self.log_ask(sequencer, &[request]);
            self.ask_sequencer(sequencer, ask, move |replies| Heard::Read(read, replies));
        }
        for (op, result) in out.done {
            let result = result.map_err(|error| self.read_error(error));
            self.waits.remove(&op);
            if let Some(done) = self.reads.remove(&op) {
                let _gone = done.send(result);
            }
        }
    }

    /// Looks for a newer term, if one is wanted and none is looked for.
    fn look(&mut self) {
        let idle = self.appends.is_empty() && self.reads.is_empty();
        if !self.wanted || self.looking || idle || Instant::now() < self.look_at {
            return;
        }
        (self.wanted, self.looking) = (false, true);
        let (client, pool, name) = (self.client.clone(), self.pool, self.name.clone());
        let (known, heard) = (self.appender.view().term, self.heard.0.clone());
        tokio::spawn(async move {
            let view = appoint::view(&client, pool, &name, known).await;
            let _gone = heard.send(Heard::View(view.map(Box::new)));
        });
    }
}
