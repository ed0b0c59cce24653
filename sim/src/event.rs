//! The events of the simulated cluster, and the queue that orders them.

use std::collections::BTreeMap;
use std::sync::Arc;

use staves_group::DirectoryCall;
use staves_model::detector::Report;
use staves_model::{
    ClientId, ClusterMap, Epoch, Group, GroupId, Incarnation, NodeId, Revision, StopReply, Time,
};
use staves_wire::group::{GroupEnvelope, RequestId};
use staves_wire::service::{ServiceAnswers, ServiceRequest};

/// A leader's question to a quorum.
#[derive(Clone, Copy, Debug)]
pub struct Confirmation {
    pub(crate) term: u64,
    /// The time of the question.
    pub begun: u64,
    /// The time at which the quorum answers, if it follows this leader then.
    pub(crate) given: u64,
}

/// A place on the network: nodes first, then the directory's two leaders, then clients.
pub type Place = usize;

/// A message on the simulated network.
#[derive(Clone, Debug)]
pub enum Packet {
    /// Between members.
    Group(GroupEnvelope),
    /// A client's request to a node.
    Request(ClientRequest),
    /// A node's answer to a client: the request's number, and the value if it was a read.
    Answer {
        /// The number of the request.
        number: u64,
        /// The life of the group that answers; for the judges alone.
        life: usize,
        /// The value that was read.
        value: Option<u64>,
    },
    /// A client's request to a service.
    OpRequest(OpRequest),
    /// A node's answers to it.
    OpAnswer(OpAnswer),
    /// No process listens where a client's request was sent.
    OpRefused {
        /// The attempt that the request was.
        attempt: u32,
    },
    /// A node's call to the directory.
    Call(DirectoryCall),
    /// A node asks for leases for the data buckets that it serves.
    LeaseRequest {
        /// Its life.
        incarnation: Incarnation,
        /// Its clock.
        clock: Time,
        /// The leases that it asks for.
        wanted: Vec<(GroupId, Epoch)>,
    },
    /// The directory grants.
    Lease {
        /// To this life.
        incarnation: Incarnation,
        /// The clock of the request.
        clock: Time,
        /// The leases that it grants.
        granted: Vec<(GroupId, Epoch)>,
        /// The groups for which the answer counts as having heard the directory, and from which epoch on (rule 13).
        heard: Vec<(GroupId, Epoch)>,
    },
    /// The directory shows a node its entry of a group, now or as it was.
    Map(Arc<Group>),
    /// The directory shows a node the cluster.
    Cluster(Arc<ClusterMap>),
    /// Is this life of you there?
    Ping {
        /// The life that is meant.
        incarnation: Incarnation,
        /// The time of the ping.
        sent: u64,
    },
    /// It is; or no such process listens.
    Pong {
        /// The life that was meant.
        incarnation: Incarnation,
        /// The time at which the ping was sent.
        sent: u64,
        /// True if it is there.
        alive: bool,
    },
    /// A connection to this sender's machine broke.
    Broken,
    /// A client complains of a node.
    Complaint(NodeId),
    /// A node tells the directory what it found of another.
    Report(Report),
    /// The directory wants to know how a node is.
    Probe {
        /// The suspect.
        suspect: NodeId,
        /// Its life.
        incarnation: Incarnation,
    },
    /// A node that was declared dead says that this life goes on.
    Back(Incarnation),
    /// A node asks for a permit to stop.
    StopRequest {
        /// Its life.
        incarnation: Incarnation,
        /// The count of its requests.
        attempt: u32,
    },
    /// A leader asks a node for its stop state.
    StopQuestion {
        /// On behalf of whom.
        round: u64,
        /// The life that is meant.
        incarnation: Incarnation,
    },
    /// The state.
    StopReply {
        /// To which question.
        round: u64,
        /// It.
        reply: StopReply,
    },
    /// The permit, or none.
    StopAnswer {
        /// To this life.
        incarnation: Incarnation,
        /// To which request.
        attempt: u32,
        /// True if it may stop.
        permitted: bool,
    },
}

/// A client's request for a register.
#[derive(Clone, Debug)]
pub struct ClientRequest {
    /// The place that the answer goes to.
    pub client: Place,
    /// The group.
    pub group: GroupId,
    /// The data bucket's member slot.
    pub stream: usize,
    /// The register in it.
    pub register: usize,
    /// The request's name; the number is also that of a read.
    pub id: RequestId,
    /// It was sent before.
    pub retry: bool,
    /// The value to write, or nothing: a read.
    pub write: Option<u64>,
}

/// A client's request to a service.
#[derive(Clone, Debug)]
pub struct OpRequest {
    /// The places that the answer goes back through: the client, and the node that passed the request on.
    pub route: Vec<Place>,
    /// The request, of one operation.
    pub request: ServiceRequest,
    /// The client's count of requests: one that asks again no longer listens to older answers.
    pub attempt: u32,
    /// The operation's index in the history; for the judges alone.
    pub operation: usize,
}

/// The answer to it.
#[derive(Clone, Debug)]
pub struct OpAnswer {
    /// The places that it still goes to.
    pub route: Vec<Place>,
    /// The attempt that it answers.
    pub attempt: u32,
    /// The life of the group that answers; for the judges alone.
    pub life: usize,
    /// The answers.
    pub answers: ServiceAnswers,
}

/// An event.
#[derive(Clone, Debug)]
pub enum Happening {
    /// A packet arrives.
    Deliver(Place, Place, Packet),
    /// A node's timer.
    Tick(usize),
    /// The directory looks at the map and acts.
    Directory,
    /// A client acts.
    Client(usize),
    /// The next fault.
    Fault,
    /// A crashed node's process starts again.
    Start(usize),
    /// A process that had stopped goes on, with what it held.
    Wake(usize),
    /// A quorum has answered a leader of the directory that had asked whether it leads.
    Confirmed(Confirmation),
    /// Another node leads the directory.
    Elect,
    /// A life of a node that has a permit stops.
    Stop(usize, Incarnation),
    /// An epoch of a group that everybody was free to open must be open by now.
    TakeoverDue(usize, Epoch),
}

/// Events in order of time; those of one time in the order in which they were put in.
#[derive(Default)]
pub struct Queue {
    events: BTreeMap<(u64, u64), Happening>,
    count: u64,
}

impl Queue {
    /// Puts an event in.
    pub fn push(&mut self, at: u64, happening: Happening) {
        self.count += 1;
        self.events.insert((at, self.count), happening);
    }

    /// Takes the next event out.
    pub fn pop(&mut self) -> Option<(u64, Happening)> {
        self.events.pop_first().map(|((at, _), h)| (at, h))
    }

    /// Drops the events that `gone` names.
    pub fn remove(&mut self, gone: impl Fn(&Happening) -> bool) {
        self.events.retain(|_, h| !gone(h));
    }
}

/// A hash over all events, so that two runs of one seed can be compared.
#[derive(Clone, Copy)]
pub struct EventHash(u64);

impl Default for EventHash {
    fn default() -> EventHash {
        EventHash(0xcbf2_9ce4_8422_2325)
    }
}

impl EventHash {
    /// Takes in a number.
    pub fn add(&mut self, n: u64) {
        self.0 = (self.0 ^ n)
            .wrapping_mul(0x0000_0100_0000_01B3)
            .rotate_left(23);
    }

    /// The hash so far.
    pub fn get(self) -> u64 {
        self.0
    }

    /// Takes in an event.
    pub fn event(&mut self, at: u64, happening: &Happening) {
        self.add(at);
        match happening {
            Happening::Deliver(from, to, packet) => {
                self.add(1);
                self.add((*from as u64) << 32 | *to as u64);
                self.packet(packet);
            }
            Happening::Tick(n) => self.add(2 | (*n as u64) << 8),
            Happening::Directory => self.add(3),
            Happening::Client(n) => self.add(4 | (*n as u64) << 8),
            Happening::Fault => self.add(5),
            Happening::Start(n) => self.add(6 | (*n as u64) << 8),
            Happening::Wake(n) => self.add(9 | (*n as u64) << 8),
            Happening::Confirmed(c) => self.add(8 ^ c.begun << 8),
            Happening::Elect => self.add(38),
            Happening::Stop(n, life) => self.add(39 ^ life.0 << 8 ^ (*n as u64) << 40),
            Happening::TakeoverDue(g, e) => self.add(7 | e.0 << 8 | (*g as u64) << 48),
        }
    }

    fn packet(&mut self, packet: &Packet) {
        match packet {
            Packet::Group(e) => {
                self.add(10 | e.epoch.0 << 8);
                self.message(e);
            }
            Packet::Request(r) => self.add(11 ^ r.id.number << 8 ^ r.write.unwrap_or(0)),
            Packet::Answer { number, value, .. } => self.add(12 ^ number << 8 ^ value.unwrap_or(0)),
            Packet::OpRequest(r) => {
                self.add(17 ^ r.request.floor << 8 ^ u64::from(r.attempt) << 40);
            }
            Packet::OpAnswer(r) => {
                self.add(18 ^ u64::from(r.attempt) << 8);
                for answer in &r.answers.answers {
                    for byte in answer.to_bytes().iter().take(16) {
                        self.add(u64::from(*byte));
                    }
                }
            }
            Packet::OpRefused { attempt } => self.add(19 ^ u64::from(*attempt) << 8),
            Packet::Call(_) => self.add(13),
            Packet::LeaseRequest { clock, .. } => self.add(14 ^ clock.0 << 8),
            Packet::Lease {
                clock,
                granted,
                heard,
                ..
            } => {
                self.add(
                    15 ^ clock.0 << 8 ^ (granted.len() as u64) << 4 ^ u64::from(!heard.is_empty()),
                );
            }
            Packet::Cluster(map) => self.add(30 ^ map.revision.0 << 8),
            Packet::Ping { sent, .. } => self.add(31 ^ sent << 8),
            Packet::Pong { sent, alive, .. } => self.add(32 ^ sent << 8 ^ u64::from(*alive)),
            Packet::Broken => self.add(33),
            Packet::Complaint(node) => self.add(34 ^ node.0 << 8),
            Packet::Report(r) => self.add(35 ^ r.seen.node.0 << 8 ^ (r.seen.sign as u64) << 40),
            Packet::Probe { suspect, .. } => self.add(36 ^ suspect.0 << 8),
            Packet::Back(incarnation) => self.add(37 ^ incarnation.0 << 8),
            Packet::StopRequest { attempt, .. } => self.add(40 ^ u64::from(*attempt) << 8),
            Packet::StopQuestion { round, .. } => self.add(41 ^ round << 8),
            Packet::StopReply { round, .. } => self.add(42 ^ round << 8),
            Packet::StopAnswer { permitted, .. } => self.add(43 ^ u64::from(*permitted) << 8),
            Packet::Map(g) => self.add(16 ^ g.revision.0 << 8),
        }
    }

    fn message(&mut self, e: &GroupEnvelope) {
        use staves_wire::group::GroupMessage as M;
        match &e.message {
            M::Deltas {
                deltas,
                stable,
                last,
                ..
            } => {
                self.add(20 ^ (deltas.len() as u64) << 8 ^ stable << 16 ^ last << 40);
            }
            M::Ack {
                slot,
                prefix,
                promise,
                ..
            } => {
                self.add(21 ^ u64::from(slot.0) << 8 ^ prefix << 16 ^ u64::from(*promise) << 60);
            }
            M::Seal { released, .. } => self.add(22 ^ u64::from(*released) << 8),
            M::Sealed { slot, .. } => self.add(23 ^ u64::from(slot.0) << 8),
            M::Sync { slot, .. } => self.add(24 ^ u64::from(slot.0) << 8),
            M::Synced { slot, .. } => self.add(25 ^ u64::from(slot.0) << 8),
            M::Get { page, count, .. } => {
                self.add(26 ^ u64::from(*page) << 8 ^ u64::from(*count) << 40)
            }
            M::Parts { slot, parts } => {
                self.add(27 ^ u64::from(slot.0) << 8 ^ (parts.len() as u64) << 16)
            }
        }
    }
}

/// A client's view of a group, and of when.
pub type SeenMap = (Revision, Arc<Group>);

/// The id of the client in a place.
pub fn client_id(place: Place) -> ClientId {
    ClientId(place as u64)
}
