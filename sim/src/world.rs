//! The simulated cluster: nodes with their clocks and memory, the network between them, and the loop.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use staves_group::{Applied, Effects, Member, Options};
use staves_model::{DiskId, Epoch, Group, GroupId, Incarnation, MemberId, NodeId, StopReply, Time};
use staves_store::{Arena, Budget, EXTENT_BYTES, Journal};

use crate::clients::SimClient;
use crate::cover::Coverage;
use crate::directory_state::Directory;
use crate::event::{EventHash, Happening, OpRequest, Packet, Place, Queue};
use crate::ghost::Done;
use crate::group::SimGroup;
use crate::load::{OpenRequest, Seat};
use crate::rng::Rng;
use crate::scale::{LEASE, LOG_BYTES_MAX, MS, NODE_EXTENTS, QUIET};
use crate::scenario::{LateSyncs, Loss, Profile, Room};
use crate::stop_state::{NodeStop, Stops};
use crate::waiting::Waiting;
use crate::watch::Watch;

/// One simulated node, in its part as a member of one group.
pub struct SimNode {
    /// The index of the group whose member this entry is for.
    pub group: usize,
    /// Its id in the directory; set when its process first starts.
    pub id: NodeId,
    /// For which of the members that the node may hold this entry stands.
    pub disk: DiskId,
    /// Its present life.
    pub incarnation: Incarnation,
    /// True if its process runs.
    pub up: bool,
    /// It does nothing before.
    pub paused_until: u64,
    /// Its clock gains so many nanoseconds in a million.
    pub rate_ppm: i64,
    /// Its clock at the beginning.
    pub offset: u64,
    /// Its memory.
    pub arena: Arc<Arena>,
    /// Its budget for the pool.
    pub budget: Arc<Budget>,
    /// Extents that a fault has taken away.
    pub taken: u32,
    /// Its part in the group.
    pub member: Option<Seat>,
    /// The requests that wait there for an answer.
    pub waiting: Waiting,
    /// The newest entry of each group that its process has seen.
    pub known: BTreeMap<usize, Arc<Group>>,
    /// The term of the directory's leader, as far as it knows.
    pub follows: u64,
    /// Its part in the failure detector.
    pub watch: Watch,
    /// Its own stop.
    pub stop: NodeStop,
    /// Its machine is off, too: nobody refuses a connection.
    pub off: bool,
    /// It never starts again.
    pub gone: bool,
}

/// The simulated cluster.
pub struct World {
    /// True time in nanoseconds.
    pub now: u64,
    /// Chance.
    pub rng: Rng,
    /// Events to come.
    pub queue: Queue,
    /// All that happened.
    pub hash: EventHash,
    /// The groups.
    pub groups: Vec<SimGroup>,
    /// The nodes, each with its entry for the first group; behind them those for their other members.
    pub nodes: Vec<SimNode>,
    /// The number of nodes.
    pub(crate) hosts: usize,
    /// The directory's stand-in.
    pub directory: Directory,
    /// The clients.
    pub clients: Vec<SimClient>,
    /// One-way cuts of the network.
    pub cut: BTreeSet<(Place, Place)>,
    /// Requests at buckets that have no answer yet, by node and token.
    pub(crate) open: BTreeMap<(usize, u64), OpenRequest>,
    pub(crate) tokens: u64,
    /// Objects whose history was too tangled to be decided.
    pub undecided: usize,
    /// Broken invariants.
    pub violations: Vec<String>,
    /// The program's own planner proposes, instead of chance.
    pub keeping: bool,
    /// The fate of a group that loses more than its scheme bears.
    pub loss: Loss,
    /// No client begins anything after this.
    pub clients_stop_at: u64,
    /// The rough part is over: no more faults, and it must converge.
    pub healing: bool,
    /// The roughness.
    pub profile: Profile,
    /// The treatment of memory, with m > 1.
    pub room: Room,
    /// Updates that bursts have made.
    pub made: u64,
    /// Faults at each protocol step.
    pub cover: Coverage,
    /// An aimed fault: this node crashes before the next event, and its deltas on the way are lost.
    pub aim: Option<usize>,
    /// Nodes that stop in good order.
    pub stops: Stops,
    /// A data bucket that was cut off, and since when: the second half of that fault.
    pub island: Option<usize>,
    /// Until then the network is sound and the directory suspects nobody: a takeover is being timed.
    pub calm_until: u64,
    /// The end of what each node has purged of each stream: the epoch of its cut, and the seq.
    pub purged: Vec<Vec<(Epoch, u64)>>,
    /// By node: which life in which slot, and the labels of the registers' pages that were there.
    pub done: Vec<Done>,
    /// Print what happens.
    pub trace: bool,
    /// Events so far.
    pub steps: u64,
}

impl SimNode {
    /// A node that has not started yet.
    pub fn new(rng: &mut Rng, seats: usize) -> SimNode {
        // A second member may need as much as the first.
        let bytes = seats.max(2) as u64 * NODE_EXTENTS * EXTENT_BYTES as u64;
        let arena = Arena::new(bytes).expect("a few MiB of memory for a simulated node");
        SimNode {
            group: 0,
            id: NodeId(0),
            disk: DiskId::MEMORY,
            incarnation: Incarnation(0),
            up: false,
            paused_until: 0,
            rate_ppm: 970_000 + rng.below(60_001) as i64,
            offset: rng.below(1000) * MS + 3_600_000 * MS,
            arena,
            budget: Arc::new(Budget::new(NODE_EXTENTS as u32)),
            taken: 0,
            member: None,
            waiting: Waiting::default(),
            known: BTreeMap::new(),
            follows: 1,
            watch: Watch::default(),
            stop: NodeStop::default(),
            off: false,
            gone: false,
        }
    }

    /// Its clock at true time `now`.
    pub fn clock(&self, now: u64) -> Time {
        Time(self.offset + (now / 1000) * self.rate_ppm as u64 / 1000)
    }

    /// The true time at which its clock shows `at`, in nanoseconds.
    pub fn true_time(&self, at: Time) -> u64 {
        at.0.saturating_sub(self.offset) / 1000 * 1_000_000 / self.rate_ppm as u64 * 1000
    }

    /// The identity of its member.
    pub fn member_id(&self) -> MemberId {
        MemberId {
            node: self.id,
            disk: self.disk,
            incarnation: self.incarnation,
        }
    }

    /// True if this life of it runs.
    pub fn lives(&self, incarnation: Incarnation) -> bool {
        self.up && self.incarnation == incarnation
    }
}

impl World {
    /// The node with an id.
    pub fn node_of(&self, id: NodeId) -> Option<usize> {
        self.nodes
            .iter()
            .position(|n| n.id == id && id != NodeId(0))
    }

    /// The entry of a member of a group.
    pub fn entry_of(&self, g: usize, id: MemberId) -> Option<usize> {
        let of =
            |n: &SimNode| n.group == g && n.member_id().place() == id.place() && n.id != NodeId(0);
        self.nodes.iter().position(of)
    }

    /// Something that must not be.
    pub fn violation(&mut self, what: String) {
        if self.trace {
            eprintln!("{:>9.3} VIOLATION {what}", self.now as f64 / MS as f64);
        }
        self.violations.push(what);
    }

    /// True if messages arrive, once and soon.
    pub fn is_sound(&self) -> bool {
        self.healing || self.now < self.calm_until
    }

    /// A line of the trace.
    pub fn note(&self, what: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{:>9.3} {}", self.now as f64 / MS as f64, what());
        }
    }

    /// Bytes that a stream's log may hold in a group.
    pub fn log_bytes_max(&self, g: usize) -> usize {
        self.member_options(g).log_bytes_max
    }

    /// More than the heaviest delta weighs that a group's clients cause, where one alone can fill a log.
    pub(crate) fn delta_max(&self, g: usize) -> usize {
        let load = self.groups[g].load.as_ref();
        load.map_or(0, |load| load.delta_bytes_max())
    }

    /// A seat around a member of a group.
    pub(crate) fn seat_of(&self, g: usize, member: Member) -> Seat {
        match &self.groups[g].load {
            None => Seat::Raw(Box::new(member)),
            Some(load) => Seat::Served(load.bucket(member)),
        }
    }

    /// A node that runs has a seat for the group.
    pub(crate) fn make_seat(&mut self, node: usize, group: GroupId) {
        let n = &self.nodes[node];
        let (g, options) = (n.group, self.member_options(n.group));
        let (arena, budget) = (n.arena.clone(), n.budget.clone());
        let member = Member::new(options, group, n.member_id(), arena, budget);
        self.nodes[node].member = Some(self.seat_of(g, member));
    }

    /// The options of a group's members.
    pub fn member_options(&self, g: usize) -> Options {
        let late = |late: LateSyncs| (late.durability, Journal::late(late.steps));
        let (durability, journal) = self.groups[g].late.map_or_else(Default::default, late);
        let base = Options {
            durability,
            journal,
            quiet_after: (self.loss == Loss::StartsEmpty).then_some(QUIET),
            ..World::options()
        };
        match &self.groups[g].load {
            Some(load) => load.options(base),
            None => base,
        }
    }

    /// A member's options in the simulator.
    pub fn options() -> Options {
        Options {
            lease: LEASE,
            heartbeat_every: Duration::from_millis(15),
            resend_after: Duration::from_millis(25),
            stuck_after: Duration::from_millis(300),
            log_bytes_max: LOG_BYTES_MAX,
            message_bytes_max: 600,
            fetch_pages: 4,
            fetch_window: 4,
            // Less than the window: who sweeps has to wait now and then.
            backfill_budget: Arc::new(Budget::new(12)),
            quiet_after: None,
            // In memory: what is held is synced.
            ..Options::default()
        }
    }

    /// Puts a packet on the network: it may be lost, late, doubled, and overtaken.
    pub fn send(&mut self, from: Place, to: Place, packet: Packet) {
        let (from, to) = (self.host_of(from), self.host_of(to));
        let cut = from != to && self.cut.contains(&(from, to));
        let sound = self.is_sound();
        let lost = from != to && !sound && self.rng.chance(self.profile.lost);
        if cut || lost {
            return;
        }
        // A client's connection never doubles a request.
        let single = matches!(packet, Packet::OpRequest(_));
        let copies = if !sound && self.rng.chance(50) && !single {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let ms = if sound {
                1 + self.rng.below(3)
            } else if self.rng.chance(self.profile.slow) {
                20 + self.rng.below(500)
            } else {
                1 + self.rng.below(12)
            };
            let at = self.now + ms * MS + self.rng.below(MS);
            self.queue
                .push(at, Happening::Deliver(from, to, packet.clone()));
        }
    }

    /// Steps a node's member (but a service's with [`World::step_member`]) and does what it
    /// wants done.
    pub fn with_member(
        &mut self,
        node: usize,
        f: impl FnOnce(&mut Member, Time, &mut Effects, &mut Applied<'_>),
    ) {
        let Some(mut member) = self.nodes[node].member.take() else {
            return;
        };
        let clock = self.nodes[node].clock(self.now);
        let mut out = Effects::default();
        f(&mut member, clock, &mut out, &mut |_, _| {});
        self.nodes[node].member = Some(member);
        self.after_step(node);
        self.carry_out(node, out);
    }

    /// Sends what a step wants sent.
    pub(crate) fn carry_out(&mut self, node: usize, out: Effects) {
        for (id, envelope) in out.sends {
            if let Some(to) = self.node_of(id) {
                self.send(node, to, Packet::Group(envelope));
            }
        }
        let directory = self.leader_of(node);
        for call in out.directory {
            self.send(node, directory, Packet::Call(call));
        }
    }

    pub(crate) fn after_step(&mut self, node: usize) {
        self.check_member(node);
        self.answer_waiting(node);
    }

    /// One event. False if there is none left.
    pub fn step(&mut self) -> bool {
        let Some((at, happening)) = self.queue.pop() else {
            return false;
        };
        self.now = self.now.max(at);
        self.steps += 1;
        self.hash.event(at, &happening);
        if let Some(node) = self.aim.take()
            && !self.healing
        {
            self.aimed_crash(node);
        }
        match happening {
            Happening::Deliver(from, to, packet) => self.deliver(from, to, packet),
            Happening::Tick(node) => self.tick_node(node),
            Happening::Directory => self.tick_directory(),
            Happening::Client(client) => self.act_client(client),
            Happening::Fault => self.fault(),
            Happening::Start(node) => self.start_node(node),
            Happening::Wake(node) => self.wake(node),
            Happening::Confirmed(confirmation) => self.confirmed(confirmation),
            Happening::Elect if self.healing => {}
            Happening::Elect => self.directory_leader_changes(),
            Happening::Stop(node, life) => self.stop_in_order(node, life),
            Happening::TakeoverDue(g, epoch) => self.check_takeover(g, epoch),
        }
        true
    }

    fn deliver(&mut self, from: Place, to: Place, packet: Packet) {
        let first_client = self.first_client();
        if to >= first_client {
            return self.deliver_client(from, to - first_client, packet);
        }
        if self.is_directory(to) {
            return self.deliver_directory(from, to, packet);
        }
        if !self.nodes[to].up {
            return self.refuse(from, to, packet);
        }
        if self.nodes[to].paused_until > self.now {
            let later = self.nodes[to].paused_until + self.rng.below(3 * MS);
            return self.queue.push(later, Happening::Deliver(from, to, packet));
        }
        self.hear_leader(to, from);
        self.deliver_node(to, from, packet);
    }

    // No process listens: the machine says so, if it runs.
    fn refuse(&mut self, from: Place, to: Place, packet: Packet) {
        if self.nodes[to].off {
            return;
        }
        if let Packet::OpRequest(OpRequest { route, attempt, .. }) = &packet {
            let (attempt, by_client) = (*attempt, route.len() == 1);
            if by_client {
                self.send(to, from, Packet::OpRefused { attempt });
            }
            return;
        }
        if !self.detecting() {
            return;
        }
        match packet {
            Packet::Ping { incarnation, sent } => {
                let alive = false;
                let pong = Packet::Pong {
                    incarnation,
                    sent,
                    alive,
                };
                self.send(to, from, pong);
            }
            Packet::StopQuestion { round, .. } => {
                let reply = StopReply::Over;
                self.send(to, from, Packet::StopReply { round, reply });
            }
            Packet::Group(_) => self.send(to, from, Packet::Broken),
            _ => {}
        }
    }
}
