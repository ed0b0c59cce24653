//! A simulated cluster driven by hand: for what chance meets too rarely to be found by seeds.
//!
//! The network is sound and the directory proposes nothing by itself. A script says which packets are
//! lost or held back, who dies, which epoch is committed, and what clients do; all checks of the
//! simulator go on as ever. Nothing in a script waits for ever: [`Script::until`] gives up by saying
//! what never came.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use staves_conformance::cache::{KeyLoad, OnKey};
use staves_group::{DirectoryCall, GroupStep};
use staves_model::mutant::{Mutant, plant};
use staves_model::{Change, Epoch, Group, MemberSlot, NewEpoch, NodeId};
use staves_wire::group::{GroupEnvelope, GroupMessage, RequestId, Run, RunKind};

use crate::clients::SimClient;
use crate::event::{ClientRequest, Happening, Packet, Place, client_id};
use crate::history::Operation;
use crate::load::{Load, Served};
use crate::node::{PAGES, REGISTERS};
use crate::run::world;
use crate::scale::MS;
use crate::scenario::Scenario;
use crate::world::World;

/// An event that a script waits for comes within so many milliseconds of simulated time, or never.
const PATIENCE_MS: u64 = 5000;

/// A choice of packets: by sender, receiver and content.
pub type Filter = Box<dyn Fn(Place, Place, &Packet) -> bool>;

/// A cluster and what is to befall it.
pub struct Script {
    /// The cluster.
    pub world: World,
    lost: Vec<Filter>,
    stopped: Vec<Filter>,
    held: Vec<(Place, Place, Packet)>,
}

/// A client's operation: an index into the history, and what it asked.
#[derive(Clone)]
pub struct Asked {
    operation: usize,
    request: ClientRequest,
}

/// A client's operation on a key.
#[derive(Clone, Copy)]
pub struct AskedKey {
    client: usize,
    operation: usize,
}

/// The group message in a packet, with its envelope.
pub fn group_message(packet: &Packet) -> Option<(&GroupEnvelope, &GroupMessage)> {
    match packet {
        Packet::Group(e) => Some((e, &e.message)),
        _ => None,
    }
}

/// True if a packet brings the delta of this seq.
pub fn brings(packet: &Packet, seq: u64) -> bool {
    matches!(group_message(packet), Some((_, GroupMessage::Deltas { deltas, .. }))
        if deltas.iter().any(|d| d.label.seq == seq))
}

/// True if a packet is a parity bucket's acknowledgement.
pub fn is_ack(packet: &Packet) -> bool {
    matches!(group_message(packet), Some((_, GroupMessage::Ack { .. })))
}

/// Runs a script with a bug planted, or none, and says what was violated.
pub fn play(mutant: Option<Mutant>, shape: (usize, usize), act: fn(&mut Script)) -> Vec<String> {
    play_on(mutant, || Script::new(shape.0, shape.1), act)
}

/// The same with the key-value service, at 1+k.
pub fn play_keys(mutant: Option<Mutant>, k: usize, act: fn(&mut Script)) -> Vec<String> {
    play_on(mutant, || Script::with_keys(k), act)
}

fn play_on(
    mutant: Option<Mutant>,
    new: impl FnOnce() -> Script,
    act: fn(&mut Script),
) -> Vec<String> {
    plant(mutant);
    let mut script = new();
    let played = catch_unwind(AssertUnwindSafe(|| {
        act(&mut script);
        script.finish();
    }));
    plant(None);
    if let Err(panic) = played {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string()));
        script
            .world
            .violation(format!("assertion: {}", text.unwrap_or_default()));
    }
    script.world.violations
}

impl Script {
    /// A cluster of m + k + 2 nodes whose first m + k are the members, open and at rest, with every
    /// register of every stream written once.
    pub fn new(m: usize, k: usize) -> Script {
        let mut script = Script::open(m, k, None);
        for stream in 0..m {
            for register in 0..REGISTERS {
                script.write(stream, stream, register);
            }
        }
        script
    }

    /// The same with the key-value service, and nothing written.
    pub fn with_keys(k: usize) -> Script {
        Script::open(1, k, Some(Box::new(Served::<KeyLoad>::default())))
    }

    fn open(m: usize, k: usize, load: Option<Box<dyn Load>>) -> Script {
        let mut world = world(&Scenario {
            seed: 1,
            m,
            k,
            groups: 1,
            mutant: None,
            hunting: false,
            trace: std::env::var_os("STAVES_SIM_TRACE").is_some(),
        });
        world.groups[0].load = load;
        world.calm_until = u64::MAX;
        world.keeping = false;
        let nodes = world.hosts();
        world.bootstrap(nodes);
        for node in 0..nodes {
            world.queue.push(node as u64 * MS, Happening::Tick(node));
        }
        world.queue.push(3 * MS, Happening::Directory);
        let mut script = Script {
            world,
            lost: Vec::new(),
            stopped: Vec::new(),
            held: Vec::new(),
        };
        let members: Vec<Option<usize>> = (0..m + k).map(Some).collect();
        script.commit(&members);
        script.until_open();
        script
    }

    /// The group as the directory has it.
    pub fn group(&self) -> &Group {
        self.world.committed(0)
    }

    /// Packets that `which` names are lost from now on.
    pub fn lose(&mut self, which: impl Fn(Place, Place, &Packet) -> bool + 'static) {
        self.lost.push(Box::new(which));
    }

    /// Packets that `which` names are held back from now on.
    pub fn hold(&mut self, which: impl Fn(Place, Place, &Packet) -> bool + 'static) {
        self.stopped.push(Box::new(which));
    }

    /// The number of packets that are held back.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// The network is whole again. What was held back stays so until [`Script::let_go`].
    pub fn heal(&mut self) {
        self.lost.clear();
        self.stopped.clear();
    }

    /// Packets that were held back arrive now.
    pub fn let_go(&mut self) {
        self.stopped.clear();
        for (from, to, packet) in std::mem::take(&mut self.held) {
            let at = self.world.now;
            self.world
                .queue
                .push(at, Happening::Deliver(from, to, packet));
        }
    }

    /// Cuts a node off from all other nodes and the directory; clients still reach it.
    pub fn isolate(&mut self, node: usize) {
        let clients = self.world.first_client();
        self.lose(move |from, to, _| {
            (from == node) != (to == node) && from < clients && to < clients
        });
    }

    /// Kills a node's process for good, with all that it holds and all that it had just sent.
    pub fn kill(&mut self, node: usize) {
        self.world.nodes[node].up = false;
        self.world.empty_seats(node);
        self.world.queue.remove(
            |h| matches!(h, Happening::Deliver(from, _, Packet::Group(_)) if *from == node),
        );
    }

    /// Commits the next epoch with these nodes by slot: who is a source is retained, others join. The
    /// first retained member leads.
    pub fn commit(&mut self, nodes: &[Option<usize>]) {
        let group = self.group().clone();
        let fresh = group.last_open.epoch == Epoch(0);
        let life = |n: &usize| self.world.nodes[*n].member_id();
        let members: Vec<_> = nodes.iter().map(|n| n.as_ref().map(life)).collect();
        let kept: Vec<Option<MemberSlot>> = members
            .iter()
            .map(|x| x.and_then(|id| group.last_open.slot_of(id)))
            .collect();
        let fit = |s: &usize| members[*s].is_some() && (fresh || kept[*s].is_some());
        let coordinator = (0..members.len())
            .find(fit)
            .expect("a script's epoch keeps somebody who can lead it");
        let new = NewEpoch {
            group: group.id,
            epoch: group.epoch.next(),
            members,
            kept,
            coordinator: MemberSlot(coordinator as u8),
            fresh,
        };
        let change = Change::CommitEpochs(vec![new]);
        if let Err(why) = self.world.directory.map.apply(None, &change) {
            panic!("the directory refuses a script's epoch: {why}");
        }
        self.world.entry_changed(0);
    }

    /// One event.
    pub fn step(&mut self) {
        let Some((at, happening)) = self.world.queue.pop() else {
            panic!("nothing will ever happen again");
        };
        if let Happening::Deliver(from, to, packet) = &happening {
            if self.lost.iter().any(|f| f(*from, *to, packet)) {
                return;
            }
            if self.stopped.iter().any(|f| f(*from, *to, packet)) {
                return self.held.push((*from, *to, packet.clone()));
            }
        }
        self.world.queue.push(at, happening);
        self.world.step();
    }

    /// Goes on for so long.
    pub fn run_ms(&mut self, ms: u64) {
        let end = self.world.now + ms * MS;
        while self.world.now < end {
            self.step();
        }
    }

    /// Goes on until something is so.
    pub fn until(&mut self, what: &str, so: impl Fn(&Script) -> bool) {
        let end = self.world.now + PATIENCE_MS * MS;
        while !so(self) {
            assert!(self.world.now < end, "waited in vain until {what}");
            self.step();
        }
    }

    /// Goes on until the newest epoch is open and every member that runs and is not cut off knows.
    pub fn until_open(&mut self) {
        self.until("the epoch is open", |s| s.group().open);
        self.run_ms(60);
    }

    /// Goes on until every listed member is complete.
    pub fn until_complete(&mut self) {
        self.until("every joiner is complete", |s| {
            s.group().open && s.group().listed().all(|(_, x)| x.complete)
        });
    }

    /// A client begins a write (with a value of its own) or a read; one attempt is sent.
    pub fn ask(&mut self, node: usize, stream: usize, register: usize, write: bool) -> Asked {
        // Operations of one instant count as concurrent.
        self.run_ms(1);
        let c = self.world.clients.len();
        let place = self.world.first_client() + c;
        let operation = self.world.groups[0].history.len();
        let value = (c as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut client = SimClient::default();
        (client.number, client.under_way) = (1, Some(operation));
        self.world.clients.push(client);
        self.world.groups[0].history.push(Operation {
            register: (stream * REGISTERS + register) as u32,
            value: if write { value } else { 0 },
            write,
            called: self.world.now,
            returned: None,
            life: 0,
        });
        let request = ClientRequest {
            client: place,
            group: self.world.groups[0].id,
            stream,
            register,
            id: RequestId {
                client: client_id(place),
                number: 1,
                floor: 1,
            },
            retry: false,
            write: write.then_some(value),
        };
        let asked = Asked { operation, request };
        self.send(node, &asked);
        asked
    }

    fn send(&mut self, node: usize, asked: &Asked) {
        let packet = Packet::Request(asked.request.clone());
        self.world.send(asked.request.client, node, packet);
    }

    /// The client asks again, wherever.
    pub fn retry(&mut self, node: usize, asked: &Asked) {
        let mut again = asked.clone();
        again.request.retry = true;
        self.send(node, &again);
        self.run_ms(5);
    }

    /// True if an operation was answered.
    pub fn answered(&self, asked: &Asked) -> bool {
        self.world.groups[0].history[asked.operation]
            .returned
            .is_some()
    }

    /// Begins a write and goes on until the data bucket has made it; its seq.
    pub fn write_unanswered(
        &mut self,
        node: usize,
        stream: usize,
        register: usize,
    ) -> (Asked, u64) {
        let before = self.last(node);
        let asked = self.ask(node, stream, register, true);
        for _ in 0..100 {
            self.run_ms(5);
            if self.last(node) > before {
                return (asked, self.last(node));
            }
            self.send(node, &asked);
        }
        panic!("node {node} takes no write to register {register}");
    }

    /// Writes, and goes on until it is answered; its seq.
    pub fn write(&mut self, node: usize, stream: usize, register: usize) -> u64 {
        let (asked, seq) = self.write_unanswered(node, stream, register);
        self.until("a write is answered", |s| s.answered(&asked));
        seq
    }

    /// Makes an update of 8 bytes at an offset that no register lies at, which the checks of pages do not
    /// know; for streams of m = 1.
    pub fn write_raw(&mut self, node: usize, offset: u64) {
        self.world.with_member(node, |member, now, out, _| {
            let run = Run {
                offset,
                len: 8,
                kind: RunKind::Bytes,
            };
            let bytes = Bytes::from_static(b"by hand!");
            member.update(None, Bytes::new(), vec![run], bytes);
            member.flush(now, out);
        });
    }

    /// Reads, and goes on until it is answered.
    pub fn read(&mut self, node: usize, stream: usize, register: usize) -> u64 {
        let asked = self.ask(node, stream, register, false);
        self.until("a read is answered", |s| s.answered(&asked));
        self.world.groups[0].history[asked.operation].value
    }

    /// A client begins an operation on a key, in a key-value world; one attempt is sent.
    pub fn ask_key(&mut self, node: usize, key: u64, act: OnKey) -> AskedKey {
        self.run_ms(1);
        let (c, now) = (self.world.clients.len(), self.world.now);
        let load: &mut dyn Any = self.world.groups[0]
            .load
            .as_deref_mut()
            .expect("a key-value world");
        let load = load.downcast_mut::<Served<KeyLoad>>();
        let operation = load.expect("a key-value world").push((0, key), act, now);
        self.world.clients.push(SimClient::with(0, operation));
        let asked = AskedKey {
            client: c,
            operation,
        };
        self.ask_key_again(node, &asked);
        asked
    }

    /// The client asks again, at any node.
    pub fn ask_key_again(&mut self, node: usize, asked: &AskedKey) {
        self.world.ask_service(asked.client, node);
    }

    /// True if a client of a key has its answer.
    pub fn answered_key(&self, asked: &AskedKey) -> bool {
        let load = self.world.groups[0].load.as_ref();
        load.is_some_and(|load| load.is_answered(asked.operation))
    }

    /// Asks until it is answered.
    pub fn on_key(&mut self, node: usize, key: u64, act: OnKey) {
        let asked = self.ask_key(node, key, act);
        for _ in 0..50 {
            self.run_ms(50);
            if self.answered_key(&asked) {
                return;
            }
            self.ask_key_again(node, &asked);
        }
        panic!("node {node} does not answer {act:?}");
    }

    /// The last seq made by a node's data bucket.
    pub fn last(&self, node: usize) -> u64 {
        let member = self.world.nodes[node].member.as_ref();
        member.map_or(0, |m| m.last())
    }

    /// The highest seq of a stream that a node has received without a gap.
    pub fn prefix(&self, node: usize, stream: usize) -> u64 {
        let member = self.world.nodes[node].member.as_ref();
        member
            .and_then(|m| m.stream(stream))
            .map_or(0, |s| s.prefix)
    }

    /// True if a node is a member of the group, as far as it knows.
    pub fn is_member(&self, node: usize) -> bool {
        let member = self.world.nodes[node].member.as_ref();
        member.is_some_and(|m| m.slot().is_some())
    }

    /// The id of a node.
    pub fn id(&self, node: usize) -> NodeId {
        self.world.nodes[node].id
    }

    // Comes to rest, and checks every page of every member, and what clients saw.
    fn finish(&mut self) {
        self.run_ms(400);
        let mut bad = Vec::new();
        for node in 0..self.world.nodes.len() {
            let Some(member) = &self.world.nodes[node].member else {
                continue;
            };
            for page in PAGES {
                bad.extend(self.world.bad_page(node, member, page));
            }
        }
        bad.extend(self.world.bad_history());
        self.world.check_service_history();
        for what in bad {
            self.world.violation(what);
        }
    }
}

/// True if a packet asks the directory to open an epoch.
pub fn is_open_call(packet: &Packet) -> bool {
    matches!(
        packet,
        Packet::Call(DirectoryCall::Step(GroupStep::Open { .. }))
    )
}
