//! The world of one run: its clock, its network, its actors.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use staves_model::{GroupId, Incarnation, NodeId, Time};

use super::clients::SimClient;
use super::judge::Judge;
use super::nodes::SimSequencer;
use super::retention::RetainAsked;
use super::rng::SimRng;
use super::units::SimUnit;
use crate::*;

/// Sequencer nodes.
pub(super) const NODES: usize = 3;
/// Clients.
pub(super) const CLIENTS: usize = 4;
/// The log.
pub(super) const NAME: &str = "log";

/// A microsecond count as a duration.
pub(super) fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// One end of the network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Actor {
    Client(usize),
    Node(usize),
    Unit(usize),
    Home,
}

/// A message on its way.
#[derive(Clone, Debug)]
pub(super) enum Letter {
    /// To a unit: the sender's number, and the request.
    ToUnit(u64, UnitRequest),
    /// From a unit.
    UnitReply(u64, UnitReply),
    /// To one life of a sequencer.
    ToSequencer(u64, Incarnation, SequencerRequest),
    SequencerReply(u64, SequencerReply),
    ToHome(RecordRequest),
    HomeReply(RecordReply),
    Lead(Box<LogRecord>),
}

/// An event to come.
#[derive(Clone, Debug)]
pub(super) enum Due {
    Letter {
        from: Actor,
        to: Actor,
        letter: Letter,
    },
    Tick(Actor),
    /// One member of a unit has synced an entry: unit, life, entry, member.
    Sync(usize, u32, u64, usize),
    Up(Actor),
    Heal(Actor, Actor),
    CrashNode(usize),
    Depose(usize),
    Fault,
}

/// The knobs of a run, drawn from its seed.
#[derive(Clone, Debug, Default)]
pub(super) struct Knobs {
    /// No faults at all, and a wide area network.
    pub calm: bool,
    pub loss: u64,
    pub twice: u64,
    pub slow: u64,
    pub crash_at_entry: u64,
    pub trims: u64,
    pub appends: u64,
    pub weights: [u64; 9],
    pub window: usize,
    pub parked_max: usize,
    /// Clients try again after so many microseconds.
    pub retry: u64,
    pub append_deadline: u64,
    /// Some appends have conditions, and some readers wait for the log to grow.
    pub conditions: bool,
    /// Only some of the last records are kept, and readers have cursors.
    pub retention: bool,
    /// Clients begin another session after so many microseconds.
    pub session_age: u64,
    /// Bounds of sessions and of appends that are known.
    pub sessions_max: usize,
    pub ids_max: usize,
    pub end: Time,
}

/// A run.
pub(super) struct World {
    pub now: Time,
    serial: u64,
    due: BTreeMap<(Time, u64), Due>,
    pub rng: SimRng,
    pub mode: AppendMode,
    pub knobs: Knobs,
    /// Nothing new is begun.
    pub quiet: bool,
    pub units: Vec<SimUnit>,
    /// Units that belong to the log.
    pub used: usize,
    pub nodes: Vec<SimSequencer>,
    pub clients: Vec<SimClient>,
    pub home: Unit,
    pub cut: BTreeMap<(Actor, Actor), u32>,
    /// Delays from an actor: to one, or to all.
    pub slowed: BTreeMap<(Actor, Option<Actor>), u64>,
    /// Until then only this client appends, the others read the tail.
    pub hush: (Time, usize),
    pub suspicion: u32,
    /// The data of records by place; none once it is freed.
    pub data: Vec<Option<Bytes>>,
    pub judge: Judge,
    pub stats: BTreeMap<&'static str, u64>,
    pub trace: bool,
    routes: VecDeque<Option<(Actor, u64)>>,
    first_route: u64,
    pub punched: BTreeSet<Position>,
}

impl World {
    pub(super) fn new(mode: AppendMode, seed: u64) -> World {
        let mut rng = SimRng::new(seed);
        let used = 2 + rng.below(2) as usize;
        let knobs = Knobs::draw(&mut rng, mode, seed, used);
        let home = Unit::new(UnitState::new(GroupId(1000)), UnitLimits::default());
        let mut world = World {
            now: Time::ZERO,
            serial: 0,
            due: BTreeMap::new(),
            rng,
            mode,
            knobs,
            quiet: false,
            units: Vec::new(),
            used,
            nodes: Vec::new(),
            clients: Vec::new(),
            home,
            cut: BTreeMap::new(),
            slowed: BTreeMap::new(),
            hush: (Time::ZERO, 0),
            suspicion: 0,
            data: Vec::new(),
            judge: Judge::default(),
            stats: BTreeMap::new(),
            trace: false,
            routes: VecDeque::new(),
            first_route: 0,
            punched: BTreeSet::new(),
        };
        world.populate();
        world
    }

    fn populate(&mut self) {
        for unit in 0..self.used + 2 {
            let sim = SimUnit::new(unit, self.unit_limits());
            self.units.push(sim);
        }
        self.nodes = (0..NODES).map(SimSequencer::new).collect();
        self.create();
        for client in 0..CLIENTS {
            self.clients.push(SimClient::new(client));
        }
        let mut ticks: Vec<Actor> = (0..CLIENTS).map(Actor::Client).collect();
        ticks.extend((0..NODES).map(Actor::Node));
        ticks.extend((0..self.units.len()).map(Actor::Unit));
        for actor in ticks {
            let after = self.rng.below(1000);
            self.after(after, Due::Tick(actor));
        }
        self.after(1, Due::Tick(Actor::Home));
        if !self.knobs.calm {
            self.after(6000, Due::Fault);
        }
    }

    fn create(&mut self) {
        let options = LogOptions {
            page_positions: 4,
            ..LogOptions::of(self.mode)
        };
        let options = match (self.knobs.calm, self.mode) {
            (true, _) | (_, AppendMode::Bind | AppendMode::Predict) => options,
            (false, AppendMode::Corfu) => LogOptions {
                hole_us: 8_000,
                read_hole_us: 2_000,
                ..options
            },
        };
        let create = RecordRequest::Create {
            name: NAME.into(),
            options,
        };
        self.at_home(create);
        self.keep_some();
        self.lead(0, (0..self.used).map(unit_id).collect());
    }

    /// Executes a request at the home at once.
    pub(super) fn at_home(&mut self, request: RecordRequest) -> Option<RecordReply> {
        let mut out = UnitEffects::default();
        self.home.record(ReplyTo(0), request, &mut out);
        for entry in &out.entries {
            self.home.synced(entry.number);
        }
        out.records.pop().map(|delivery| delivery.reply)
    }

    /// The log's record.
    pub(super) fn record(&self) -> &LogRecord {
        &self.home.state().records()[NAME]
    }

    /// Commits a term of a node.
    pub(super) fn lead(&mut self, node: usize, added: Vec<UnitId>) {
        let record = self.record();
        let request = RecordRequest::Lead {
            name: NAME.into(),
            log: record.view.log,
            from_term: record.term(),
            sequencer: self.nodes[node].id(),
            added,
        };
        if let Some(RecordReply::Record(record)) = self.at_home(request) {
            self.send(Actor::Home, Actor::Node(node), Letter::Lead(record));
        }
        self.suspicion = 0;
    }

    pub(super) fn after(&mut self, us: u64, due: Due) {
        self.serial += 1;
        let at = self.now + Duration::from_micros(us.max(1));
        self.due.insert((at, self.serial), due);
    }

    pub(super) fn count(&mut self, what: &'static str) {
        *self.stats.entry(what).or_default() += 1;
    }

    /// Sends a message: it may be lost, doubled or late.
    pub(super) fn send(&mut self, from: Actor, to: Actor, letter: Letter) {
        if self.trace {
            println!("{:?} {from:?} -> {to:?} {letter:?}", self.now);
        }
        if self.knobs.calm {
            let wide = matches!(from, Actor::Client(_)) != matches!(to, Actor::Client(_));
            let way = if wide { 70_000 } else { 200 };
            let after = way + self.rng.below(200);
            return self.after(after, Due::Letter { from, to, letter });
        }
        if self.cut.contains_key(&(from, to)) {
            return;
        }
        let home = from == Actor::Home || to == Actor::Home;
        let loss = self.knobs.loss / if home { 4 } else { 1 };
        if self.rng.chance(loss) {
            return;
        }
        let mut after = 100 + self.rng.below(400);
        if self.rng.chance(self.knobs.slow) {
            after += self.rng.below(25_000);
        }
        let slowed = self.slowed.get(&(from, Some(to)));
        if let Some(more) = slowed.or(self.slowed.get(&(from, None))).copied() {
            after += self.rng.below(more);
        }
        if self.rng.chance(self.knobs.twice) {
            let later = after
                + match self.rng.chance(125) {
                    // Later than many a session.
                    true => self.rng.below(120_000),
                    false => self.rng.below(20_000),
                };
            let letter = letter.clone();
            self.after(later, Due::Letter { from, to, letter });
        }
        self.after(after, Due::Letter { from, to, letter });
    }

    /// A name for a requester.
    pub(super) fn route(&mut self, from: Actor, number: u64) -> ReplyTo {
        self.routes.push_back(Some((from, number)));
        ReplyTo(self.first_route + self.routes.len() as u64 - 1)
    }

    /// The requester of a name: each is answered once.
    pub(super) fn take_route(&mut self, to: ReplyTo) -> Option<(Actor, u64)> {
        let index = (to.0 - self.first_route) as usize;
        let route = self.routes[index].take();
        if route.is_none() {
            self.judge.violated(format!("{to:?} was answered twice"));
        }
        route
    }

    /// Takes the next event. False if there is none.
    pub(super) fn step(&mut self) -> bool {
        let Some(((at, _), due)) = self.due.pop_first() else {
            return false;
        };
        self.now = at;
        match due {
            Due::Letter { from, to, letter } => self.receive(from, to, letter),
            Due::Tick(actor) => self.tick(actor),
            Due::Sync(unit, life, number, member) => self.member_synced(unit, life, number, member),
            Due::Up(actor) => self.start(actor),
            Due::Heal(from, to) => self.heal(from, to),
            Due::CrashNode(node) if !self.quiet => self.crash_node(node),
            Due::Depose(node) if !self.quiet => self.depose(node),
            Due::CrashNode(_) | Due::Depose(_) => {}
            Due::Fault => self.fault(),
        }
        true
    }

    fn receive(&mut self, from: Actor, to: Actor, letter: Letter) {
        match (to, letter) {
            (Actor::Unit(unit), letter) => self.unit_receives(unit, from, letter),
            (Actor::Node(node), letter) => self.node_receives(node, from, letter),
            (Actor::Client(client), letter) => self.client_receives(client, letter),
            (Actor::Home, Letter::ToHome(request)) => {
                if let RecordRequest::Trim { position, .. } = &request {
                    self.judge.note_trim_asked(*position);
                }
                let retain = RetainAsked::of(&request, self.record());
                let reply = self.at_home(request);
                self.judge_retained(retain);
                if let Some(reply) = reply {
                    self.send(Actor::Home, from, Letter::HomeReply(reply));
                }
            }
            (Actor::Home, _) => {}
        }
    }

    fn tick(&mut self, actor: Actor) {
        let every = match actor {
            Actor::Home => {
                self.watch_sequencer();
                2500
            }
            Actor::Unit(unit) => {
                self.unit_tick(unit);
                2000
            }
            Actor::Node(node) => {
                self.node_tick(node);
                700
            }
            Actor::Client(client) => {
                self.client_tick(client);
                if self.knobs.calm { 8000 } else { 1000 }
            }
        };
        let jitter = self.rng.below(every / 4);
        self.after(every + jitter, Due::Tick(actor));
    }
}

/// The id of a unit of the world.
pub(super) fn unit_id(unit: usize) -> UnitId {
    GroupId(unit as u32)
}

/// The index of a node.
pub(super) fn node_index(node: NodeId) -> usize {
    node.0 as usize - 1
}
