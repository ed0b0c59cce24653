//! One run: a seed, a shape, perhaps a planted bug; the rough part, then healing, then the checks at rest.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use staves_model::mutant::{Mutant, plant};
use staves_model::{DiskId, PAGE_BYTES};

use crate::clients::SimClient;
use crate::cover::Coverage;
use crate::directory_state::Directory;
use crate::event::{EventHash, Happening, Queue};
use crate::ghost::Done;
use crate::group::SimGroup;
use crate::history::{Operation, in_life, violations};
use crate::load::service_of;
use crate::node::PAGES;
use crate::rng::Rng;
use crate::scale::MS;
use crate::scenario::{GroupShape, Loss, Profile, Room, Scenario};
use crate::stop_state::Stops;
use crate::world::{SimNode, World};

/// Every run does at least so many client operations before it heals, but where the group is lost.
pub const OPERATIONS_MIN: usize = 60;
/// Every run meets at least so many faults before it heals.
pub const FAULTS_MIN: u64 = 8;
/// The rough part lasts at least so long, in milliseconds of simulated time.
const ROUGH_MS: u64 = 6000;
/// After this the rough part ends, whatever the minima say.
const ROUGH_MS_MAX: u64 = 60_000;
/// Clients go on for so long while it heals.
const HEALING_CLIENTS_MS: u64 = 1500;
/// It must have converged by then.
const HEALING_MS_MAX: u64 = 20_000;

/// The result of a run.
pub struct Report {
    /// Broken invariants.
    pub violations: Vec<String>,
    /// A hash over all events.
    pub hash: u64,
    /// Events.
    pub steps: u64,
    /// Client operations.
    pub operations: usize,
    /// Objects whose history was too tangled to be decided.
    pub undecided: usize,
    /// Objects of the service that operations were done on.
    pub objects: usize,
    /// Faults and steps met.
    pub cover: Coverage,
}

/// The shape that a seed of a batch is run with: each of the small ones often, wide and odd ones too.
pub fn shape_of(seed: u64) -> (usize, usize) {
    const OFTEN: [(usize, usize); 5] = [(1, 2), (1, 1), (2, 1), (1, 2), (1, 3)];
    match seed / 5 % 4 {
        0 | 1 => OFTEN[(seed % 5) as usize],
        _ => wide_shape_of(seed),
    }
}

/// The number of groups that a seed of a batch is run with: of every third seed two or three.
pub fn groups_of(seed: u64) -> usize {
    match seed / 2 % 9 {
        2 | 5 => 2,
        8 => 3,
        _ => 1,
    }
}

/// True for the seeds of a varied batch whose faults are aimed: every third one.
pub fn hunts(seed: u64) -> bool {
    (seed / 20) % 3 == 2
}

/// A shape with m > 1, by seed.
pub fn wide_shape_of(seed: u64) -> (usize, usize) {
    let mut rng = Rng::new(seed);
    match rng.below(20) {
        0..4 => (2, 1),
        4..10 => (2, 2),
        10..14 => (4, 2),
        14..15 => (8, 3),
        _ => (2 + rng.below(5) as usize, 1 + rng.below(4) as usize),
    }
}

/// Planted bugs that only a pool that may start empty can show are hunted in such worlds alone.
fn of_rule_13(s: &Scenario) -> bool {
    let bugs = [Mutant::QuietMemberGoesOn, Mutant::HeardWhileGone];
    s.mutant.is_some_and(|m| bugs.contains(&m))
}

/// Planted bugs of the directory's machines are hunted where these are at work.
fn of_directory(s: &Scenario) -> bool {
    s.mutant.is_some_and(|m| Mutant::DIRECTORY.contains(&m))
}

fn of_stops(s: &Scenario) -> bool {
    let bugs = [
        Mutant::PermitNotRecorded,
        Mutant::PermitsForgottenByNewLeader,
        Mutant::YoungLeaderTrusts,
        Mutant::PermitUnconfirmed,
        Mutant::StopJudgedByOneGroup,
        Mutant::DrainOfStopTakenBackLate,
    ];
    s.mutant.is_some_and(|m| bugs.contains(&m))
}

/// Of a thousand stops, during how many the leader changes. A young leader refuses more than a missing record lets through.
fn elects(s: &Scenario) -> u64 {
    match s.mutant {
        Some(Mutant::PermitNotRecorded | Mutant::StopJudgedByOneGroup) => 0,
        _ => 400,
    }
}

/// The losses of a seed's group beyond its scheme. Only the program's own planner knows
/// what to do then.
fn loss_of(s: &Scenario) -> Loss {
    match (s.seed % 4, s.seed / 4 % 3) {
        _ if of_rule_13(s) => Loss::StartsEmpty,
        _ if s.mutant == Some(Mutant::LostReadWaits) => Loss::Waits,
        // Memory never starts empty.
        (3, 0) if has_memory(s) => Loss::Waits,
        (3, 0) => Loss::StartsEmpty,
        (3, 1) => Loss::Waits,
        _ => Loss::Bounded,
    }
}

fn has_memory(s: &Scenario) -> bool {
    let others = GroupShape::others(s).into_iter();
    let mut services = others.map(|other| other.service).chain([service_of(s)]);
    services.any(|service| service.is_some_and(|service| service.has_regions))
}

/// Some groups with m > 1 have no more nodes than members, and one of those starts late.
fn is_cramped(s: &Scenario) -> bool {
    s.m > 1 && s.k > 0 && s.seed % 8 == 7
}

fn hunting() -> Profile {
    Profile {
        lost: 250,
        slow: 150,
        suspected: 20,
        switched: 10,
        fault_gap: 60,
        map_seen: 400,
        think: 40,
        aimed: 100,
        islands: 400,
    }
}

fn profile(rng: &mut Rng, seed: u64) -> Profile {
    let plain = Profile {
        lost: 60,
        slow: 40,
        suspected: 6,
        switched: 5,
        fault_gap: 250,
        map_seen: 400,
        think: 40,
        aimed: 0,
        islands: 0,
    };
    if seed.is_multiple_of(3) {
        return plain;
    }
    Profile {
        lost: rng.pick(&[10, 60, 250]),
        slow: rng.pick(&[10, 40, 150]),
        suspected: rng.pick(&[4, 20, 60]),
        switched: rng.pick(&[0, 10, 60]),
        fault_gap: rng.pick(&[60, 250, 700]),
        map_seen: rng.pick(&[400, 60, 30]),
        think: rng.pick(&[10, 40, 300]),
        aimed: rng.pick(&[0, 30, 100]),
        islands: rng.pick(&[0, 0, 400]),
    }
}

pub(crate) fn world(s: &Scenario) -> World {
    let mut rng = Rng::new(s.seed);
    let profile = if s.hunting {
        hunting()
    } else {
        profile(&mut rng, s.seed)
    };
    let groups = SimGroup::of(s);
    let width = groups.iter().map(|g| g.m + g.k).max().unwrap_or(0);
    let hosts = width + if is_cramped(s) { 0 } else { 2 };
    let nodes = sim_nodes(&mut rng, &groups, hosts);
    World {
        now: 0,
        rng,
        queue: Queue::default(),
        hash: EventHash::default(),
        purged: nodes
            .iter()
            .map(|n| vec![Default::default(); groups[n.group].m])
            .collect(),
        done: vec![Done::default(); nodes.len()],
        groups,
        nodes,
        hosts,
        directory: Directory::default(),
        clients: (0..3).map(|_| SimClient::default()).collect(),
        cut: BTreeSet::new(),
        open: Default::default(),
        tokens: 0,
        undecided: 0,
        violations: Vec::new(),
        keeping: s.seed % 4 == 3 || loss_of(s) != Loss::Bounded || of_directory(s),
        loss: loss_of(s),
        clients_stop_at: u64::MAX,
        healing: false,
        profile,
        room: Room::default(),
        made: 0,
        cover: Coverage::default(),
        aim: None,
        stops: Stops::new(s.seed, of_stops(s), elects(s)),
        island: None,
        calm_until: 0,
        trace: s.trace,
        steps: 0,
    }
}

/// The hosts, each as the seat of the first group's first member there, and then their other seats, group by group.
fn sim_nodes(rng: &mut Rng, groups: &[SimGroup], hosts: usize) -> Vec<SimNode> {
    let seats: usize = groups.iter().map(SimGroup::seats).sum();
    let mut nodes: Vec<SimNode> = (0..hosts).map(|_| SimNode::new(rng, seats)).collect();
    let disks = [DiskId::MEMORY, DiskId::SECOND];
    for (g, of) in groups.iter().enumerate() {
        for disk in disks.into_iter().take(of.seats()).skip(usize::from(g == 0)) {
            for host in 0..hosts {
                let shadow = nodes[host].shadow();
                nodes.push(SimNode {
                    group: g,
                    disk,
                    ..shadow
                });
            }
        }
    }
    nodes
}

/// Runs a scenario. The same scenario gives the same report. An assertion of the machines that fails is
/// a violation too.
pub fn run(scenario: &Scenario) -> Report {
    plant(scenario.mutant);
    let mut w = world(scenario);
    w.room = Room::of(scenario);
    w.make_tight(scenario.seed);
    let result = catch_unwind(AssertUnwindSafe(|| go(&mut w)));
    if let Err(panic) = result {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string()));
        w.violation(format!("assertion: {}", text.unwrap_or_default()));
    }
    plant(None);
    let operations = w.operations();
    Report {
        violations: w.violations,
        hash: w.hash.get(),
        steps: w.steps,
        operations,
        undecided: w.undecided,
        objects: w.groups.iter().map(SimGroup::objects).sum(),
        cover: w.cover,
    }
}

fn go(w: &mut World) {
    if w.groups.len() > 1 {
        w.cover.count("several groups");
    }
    let nodes = w.hosts();
    // One node joins later, while the cluster already serves.
    w.bootstrap(nodes - 1);
    w.queue
        .push((300 + w.rng.below(2000)) * MS, Happening::Start(nodes - 1));
    for node in 0..nodes {
        let at = w.rng.below(15 * MS);
        w.queue.push(at, Happening::Tick(node));
    }
    w.queue.push(3 * MS, Happening::Directory);
    w.queue.push(600 * MS, Happening::Fault);
    for c in 0..w.clients.len() {
        w.queue.push((1 + c as u64) * MS, Happening::Client(c));
    }
    let rough = |w: &World| {
        let minima = w.operations() >= OPERATIONS_MIN && w.cover.faults() >= FAULTS_MIN;
        let minima = minima || w.any_doomed();
        w.now < ROUGH_MS * MS || (!minima && w.now < ROUGH_MS_MAX * MS)
    };
    while rough(w) && w.violations.is_empty() && w.step() {}
    if w.violations.is_empty() {
        heal(w);
    }
    for what in w.bad_history() {
        w.violation(what);
    }
    w.check_service_history();
}

// No more faults: everything that is listed must come to rest whole (I11).
fn heal(w: &mut World) {
    w.note(|| "HEALING".into());
    w.healing = true;
    w.cut.clear();
    w.directory.stalled_until = 0;
    w.directory.former = None;
    w.settle_operator();
    for node in &mut w.nodes {
        node.paused_until = 0;
    }
    w.heal_short_of_memory();
    w.heal_network();
    for node in 0..w.nodes.len() {
        w.raise_limit(node);
    }
    let (end, stop) = (w.now + HEALING_MS_MAX * MS, w.now + HEALING_CLIENTS_MS * MS);
    w.clients_stop_at = stop;
    let mut rest_since = None;
    while w.now < end && w.violations.is_empty() && w.step() {
        if w.now <= stop || !w.converged() {
            rest_since = None;
            continue;
        }
        let since = *rest_since.get_or_insert(w.now);
        if w.now > since + 300 * MS {
            return at_rest(w);
        }
    }
    if w.violations.is_empty() {
        let open: Vec<bool> = w
            .clients
            .iter()
            .map(|c| c.under_way.is_some() || c.router.is_busy())
            .collect();
        let (group, members) = (w.restless(), w.describe());
        w.violation(format!(
            "I11 no rest: {group}; clients wait: {open:?}; {members}"
        ));
    }
}

// What is there is what the history allows: each register and object is read once more.
fn at_rest(w: &mut World) {
    for g in w.all_groups() {
        for what in w.bad_at_rest(g) {
            w.violation(what);
        }
    }
    for g in w.all_groups() {
        if w.doomed(g) {
            w.cover.count("at rest, and lost");
        } else if w.groups[g].load.is_some() {
            w.service_at_rest(g);
        } else {
            registers_at_rest(w, g);
        }
    }
}

fn registers_at_rest(w: &mut World, g: usize) {
    let now = w.now;
    for stream in 0..w.groups[g].m {
        for register in 0..crate::node::REGISTERS {
            if let Some(value) = w.peek(g, stream, register) {
                let register = (stream * crate::node::REGISTERS + register) as u32;
                let life = w.life(g);
                w.groups[g].history.push(Operation {
                    register,
                    value,
                    write: false,
                    called: now,
                    returned: Some(now + 1),
                    life,
                });
            }
        }
    }
}

impl World {
    /// I4: parity is the code of the data byte for byte, and prefixes match.
    fn bad_at_rest(&self, g: usize) -> Vec<String> {
        let (group, m, doomed) = (self.committed(g), self.groups[g].m, self.doomed(g));
        let mut bad = Vec::new();
        for (slot, x) in group.listed() {
            let Some(node) = self.entry_of(g, x.id) else {
                continue;
            };
            let Some(member) = &self.nodes[node].member else {
                if !doomed {
                    bad.push(format!("I4 node {node} of slot {slot} holds nothing"));
                }
                continue;
            };
            for page in PAGES {
                bad.extend(self.bad_page(node, member, page));
                if slot.index() < m || doomed {
                    continue;
                }
                let of = group.bucket_slot(slot).index();
                for stream in (0..m).filter(|s| of >= m || of == *s) {
                    let data = self.data_label(g, stream, page);
                    let column = if of < m { 0 } else { stream };
                    let here = member.table().map(|t| t.label(page, column));
                    if data != here {
                        bad.push(format!(
                            "I4 page {page} of slot {slot} is at {here:?}, its data at {data:?}"
                        ));
                    }
                }
            }
        }
        if !doomed {
            bad.extend(self.bad_parity(g));
        }
        bad
    }

    /// The groups that have not come to rest, for a violation's text.
    pub(crate) fn restless(&self) -> String {
        let restless = self.all_groups().filter(|g| !self.has_converged(*g));
        let groups: Vec<_> = restless.map(|g| self.committed(g)).collect();
        format!("{groups:?}")
    }

    /// The answers that no order of each life's operations explains.
    pub(crate) fn bad_history(&self) -> Vec<String> {
        self.all_groups()
            .flat_map(|g| self.bad_history_of(g))
            .collect()
    }

    fn bad_history_of(&self, g: usize) -> Vec<String> {
        let spans = self.spans(g);
        let seen = |span| {
            let as_seen = move |o: &Operation| {
                let (called, returned) = in_life(span, (o.called, o.returned, o.life))?;
                Some(Operation {
                    called,
                    returned,
                    ..o.clone()
                })
            };
            let history = self.groups[g].history.iter();
            history.filter_map(as_seen).collect::<Vec<_>>()
        };
        spans
            .into_iter()
            .flat_map(|s| violations(&seen(s)))
            .collect()
    }

    fn data_member(&self, g: usize, stream: usize) -> Option<&staves_group::Member> {
        let x = self.committed(g).members.get(stream).copied().flatten()?;
        self.entry_of(g, x.id)
            .and_then(|n| self.nodes[n].member.as_deref())
    }

    // I4, literally: every page of every parity bucket against the code of the data buckets' pages.
    fn bad_parity(&self, g: usize) -> Option<String> {
        let (group, of) = (self.committed(g), &self.groups[g]);
        let member = |slot: usize| {
            let x = group.members.get(slot).copied().flatten()?;
            self.nodes[self.entry_of(g, x.id)?].member.as_deref()
        };
        let page_of = |slot: usize, page: u32| {
            let there = member(slot).and_then(|m| m.pages()?.page(page));
            there.map_or_else(|| vec![0; PAGE_BYTES], <[u8]>::to_vec)
        };
        let table = |slot| member(slot).and_then(|m| m.table());
        let end = (0..group.members.len()).filter_map(table).map(|t| t.end());
        for page in 0..end.max().unwrap_or(0) {
            let data: Vec<Vec<u8>> = (0..of.m).map(|d| page_of(d, page)).collect();
            for slot in group.parity_slots() {
                let row = group.bucket_slot(slot).index() - of.m;
                let mut coded = vec![0; PAGE_BYTES];
                for (d, bytes) in data.iter().enumerate() {
                    of.code.apply(row, d, bytes, &mut coded);
                }
                if page_of(slot.index(), page) != coded {
                    return Some(format!(
                        "I4 page {page} of slot {slot} is not the code of the data"
                    ));
                }
            }
        }
        None
    }

    fn data_label(&self, g: usize, stream: usize, page: u32) -> Option<staves_model::Label> {
        Some(self.data_member(g, stream)?.table()?.label(page, 0))
    }

    fn peek(&self, g: usize, stream: usize, register: usize) -> Option<u64> {
        let mut bytes = Vec::new();
        self.data_member(g, stream)?.pages()?.read_into(
            crate::node::offset(register),
            8,
            &mut bytes,
        );
        bytes.try_into().ok().map(u64::from_le_bytes)
    }

    pub(crate) fn describe(&self) -> String {
        let each = |(i, n): (usize, &SimNode)| {
            let m = n.member.as_ref()?;
            let slot = m.slot()?;
            let s = m.stream(slot.index().min(self.groups[n.group].m - 1))?;
            Some(format!(
                "node {i} of {:?} slot {slot} {:?} synced {:?} open {} prefix {} stable {} absent {} extents {} of {} rests {}",
                m.id(),
                m.epoch(),
                m.installed(),
                m.is_open(),
                s.prefix,
                s.stable,
                m.progress().0,
                m.usable_extents(),
                m.wanted_extents(),
                m.at_rest(),
            ))
        };
        self.nodes
            .iter()
            .enumerate()
            .filter_map(each)
            .collect::<Vec<_>>()
            .join("; ")
    }
}
