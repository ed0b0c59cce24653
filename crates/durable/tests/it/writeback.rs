//! Write-back: a directory that keeps what was not flushed or ends sessions, a client that flushes, and storms over both.

use std::collections::{BTreeMap, BTreeSet};

use rand::Rng;
use staves_group::Event;
use staves_model::mutant::{Mutant, planted};
use staves_model::{GroupId, Incarnation, MemberId, MemberSlot, NodeId, Time, Unflushed};

use crate::client::{REGISTERS, Register};
use crate::cluster::{Cluster, note};
use crate::directory::Directory;
use crate::storms::{Weather, seeds, storm_over};

/// The directory's part of write-back.
#[derive(Default)]
pub struct Writeback {
    /// The last life of each node, whether it is believed to run or not.
    pub last_lives: BTreeMap<u64, Incarnation>,
    /// Nodes whose member of the last open epoch is there in a later life.
    pub broken: BTreeMap<GroupId, BTreeSet<NodeId>>,
    /// The newest session of each group, and the one up to which all are over.
    pub sessions: BTreeMap<GroupId, u64>,
    pub over: BTreeMap<GroupId, u64>,
    /// The times for which a data bucket of a group may have a lease, and now.
    leased_until: BTreeMap<GroupId, Time>,
    now: Time,
    /// Nodes that are believed to be dead have been so for long enough.
    pub is_tired: bool,
    pub given_up: u64,
}

/// A flush of a stream that has no answer yet.
pub struct Flush {
    group: GroupId,
    stream: u8,
    seq: u64,
    at: MemberId,
    session: u64,
    /// Registers, and the versions that it says are safe.
    covers: Vec<(u64, u64)>,
}

impl Writeback {
    pub fn broke(&mut self, group: GroupId, node: u64) {
        if !planted(Mutant::BrokenLivesAtOnce) {
            self.broken.entry(group).or_default().insert(NodeId(node));
        }
    }

    pub fn leases(&self, group: GroupId) -> bool {
        let until = self.leased_until.get(&group);
        until.is_some_and(|until| self.now < *until)
    }
}

impl Directory {
    /// The fate of what a group has not flushed, if certain members are kept.
    pub fn fate(&self, group: GroupId, keeps: BTreeSet<MemberId>) -> Unflushed {
        let Some(writeback) = &self.writeback else {
            return Unflushed::Kept;
        };
        let may_live = |id: MemberId| {
            let last = writeback.last_lives.get(&id.node.0) == Some(&id.incarnation);
            last && (self.runs(id) || !writeback.is_tired)
        };
        let broken = writeback.broken.get(&group);
        let keeps = |id| keeps.contains(&id);
        Unflushed::of(&self.groups[&group], broken, keeps, may_live)
    }

    /// An epoch is committed; if what was not flushed is given up with it, all sessions so far are over.
    pub fn give_up_unflushed(&mut self, group: GroupId, fate: Unflushed) {
        let Some(writeback) = &mut self.writeback else {
            return;
        };
        if fate == Unflushed::GivenUp && !planted(Mutant::GiveUpKeepsSessions) {
            let session = writeback.sessions.entry(group).or_default();
            *session += 1;
            writeback.over.insert(group, *session);
            writeback.given_up += 1;
            note(|| format!("{group}: what was not flushed is given up"));
        }
    }
}

impl Cluster {
    /// A node hears with its map which sessions are over.
    pub fn tell_sessions(&mut self, at: usize, group: GroupId) {
        let writeback = self.directory.writeback.as_ref();
        let over = writeback.and_then(|writeback| writeback.over.get(&group));
        if let (Some(over), Some(process)) = (over, &mut self.nodes[at].process) {
            process.over.insert(group, *over);
        }
    }

    /// The session in which the client writes at a node; `None` if that refuses it, and the client begins another.
    pub fn session_of(&mut self, at: usize, group: GroupId) -> Option<u64> {
        let Some(writeback) = &mut self.directory.writeback else {
            return Some(0);
        };
        let newest = writeback.sessions.entry(group).or_default();
        let mine = self.sessions.entry(group).or_default();
        let over = |of: &BTreeMap<GroupId, u64>| of.get(&group).copied().unwrap_or(0);
        let refused = |process: &crate::process::Process| over(&process.over) >= *mine;
        if self.nodes[at].process.as_ref().is_none_or(refused) || self.rng.random_bool(0.02) {
            *newest += 1;
            *mine = *newest;
            return None;
        }
        Some(*mine)
    }

    /// True if what was acknowledged last of a register, and was not flushed, may be gone: its session is over.
    pub fn may_be_gone(&self, group: GroupId, known: &Register) -> bool {
        let writeback = self.directory.writeback.as_ref();
        let over = writeback.and_then(|writeback| writeback.over.get(&group));
        over.is_some_and(|over| *over >= known.session)
    }

    /// The directory grants leases to data buckets that it believes to run, and opens no successor before they end.
    pub fn grant_leases(&mut self) {
        if self.directory.writeback.is_none() {
            return;
        }
        let now = self.now;
        for entry in self.directory.groups.clone().into_values() {
            let data = entry.listed().filter(|(slot, _)| slot.0 < entry.m);
            let data: Vec<MemberId> = data.map(|(_, x)| x.id).collect();
            let all_run = data.iter().all(|id| self.directory.runs(*id));
            if !entry.open || !all_run || self.rng.random_bool(0.5) {
                continue;
            }
            if let Some(writeback) = &mut self.directory.writeback {
                let until = now + std::time::Duration::from_millis(50);
                writeback.leased_until.insert(entry.id, until);
            }
            for id in data {
                let lease = Event::Lease {
                    epoch: entry.epoch,
                    incarnation: id.incarnation,
                    clock: now,
                };
                self.step(id.node.0 as usize - 1, entry.id, lease);
            }
        }
        if let Some(writeback) = &mut self.directory.writeback {
            writeback.now = now;
        }
    }

    /// A client flushes a stream at whoever serves it, by that one's word.
    pub fn flush(&mut self, group: GroupId) {
        let at = self.rng.random_range(0..self.nodes.len());
        let stream = self.rng.random_range(0..self.m);
        let (Some(writeback), Some(process)) = (&self.directory.writeback, &self.nodes[at].process)
        else {
            return;
        };
        let member = &process.members[&group];
        if !member.serving() || member.slot() != Some(MemberSlot(stream)) {
            return;
        }
        let session = self.sessions.get(&group).copied().unwrap_or(0);
        let over = process.over.get(&group).copied().unwrap_or(0);
        if over >= session && !planted(Mutant::FlushOfOldSession) {
            return; // it is refused
        }
        // All of its own session, and of others what has not been given up.
        let given_up = writeback.over.get(&group).copied().unwrap_or(0);
        let of = (group, u64::from(stream) * REGISTERS)..(group, u64::from(stream + 1) * REGISTERS);
        let known = self.registers.range(of);
        let covers = known
            .filter(|(_, known)| known.session == session || known.session > given_up)
            .map(|((_, register), known)| (*register, known.acked));
        self.flushes.push(Flush {
            group,
            stream,
            seq: member.last(),
            at: member.me(),
            session,
            covers: covers.collect(),
        });
        self.answer_flushes();
    }

    /// Flushes that are answered now.
    pub fn answer_flushes(&mut self) {
        let mut flushes = std::mem::take(&mut self.flushes);
        flushes.retain(|flush| {
            let Some(process) = &self.nodes[flush.at.node.0 as usize - 1].process else {
                return false;
            };
            let member = &process.members[&flush.group];
            let is_same =
                member.me() == flush.at && member.slot() == Some(MemberSlot(flush.stream));
            if !is_same || !member.serving() {
                return is_same;
            }
            if member.last() < flush.seq {
                return false;
            }
            let may_read = member.may_read(self.now) || planted(Mutant::FlushWithoutLease);
            if member.flushed() < flush.seq || !may_read {
                return true;
            }
            note(|| {
                let (group, stream, session) = (flush.group, flush.stream, flush.session);
                format!("{group} stream {stream}: flushed in session {session}")
            });
            for (register, version) in &flush.covers {
                let known = self.registers.get_mut(&(flush.group, *register));
                let known = known.expect("a register");
                known.flushed = known.flushed.max(*version);
            }
            self.flushed += 1;
            false
        });
        self.flushes = flushes;
    }

    /// Events besides with write-back: flushes, and nodes that are believed to be dead.
    pub fn step_of_writeback(&mut self, at: usize, group: GroupId) {
        if self.directory.writeback.is_none() {
            return;
        }
        let id = self.nodes[at].id;
        match self.rng.random_range(0..1000) {
            0..90 => self.flush(group),
            90..93 if self.nodes.len() > 1 => {
                note(|| format!("node {id} is believed to be dead"));
                self.directory.lives.remove(&id);
            }
            93..153 => self.see(at),
            153..156 => {
                // Long enough for whoever is not back.
                self.set_tired(true);
                self.look();
                self.set_tired(false);
            }
            _ => {}
        }
    }

    fn set_tired(&mut self, is_tired: bool) {
        if let Some(writeback) = &mut self.directory.writeback {
            writeback.is_tired = is_tired;
        }
    }

    /// A node that was believed to be dead is found to live on.
    fn see(&mut self, at: usize) {
        let (id, process) = (self.nodes[at].id, &self.nodes[at].process);
        if let Some(life) = process.as_ref().map(|process| process.life) {
            self.directory.lives.insert(id, life);
        }
    }

    pub fn see_all(&mut self) {
        if self.directory.writeback.is_some() {
            (0..self.nodes.len()).for_each(|at| self.see(at));
        }
    }
}

/// Runs of some seeds: writes that were acknowledged, flushes that were answered, and how often something was given up.
fn storms(from: u64, count: u64, weather: Weather) -> (u64, u64, u64) {
    let mut all = (0, 0, 0);
    for seed in seeds(from, count) {
        let (nodes, shape) = (weather.nodes, (weather.m, weather.width));
        let c = storm_over(Cluster::with(seed, nodes, 2, shape, true), weather);
        let given_up = c.directory.writeback.map_or(0, |w| w.given_up);
        all = (all.0 + c.acked, all.1 + c.flushed, all.2 + given_up);
    }
    all
}

fn check_counts((acked, flushed, given_up): (u64, u64, u64)) {
    println!("{acked} writes, {flushed} flushes, {given_up} times given up");
    assert!(acked > 100, "{acked} writes");
    assert!(flushed > 20, "{flushed} flushes");
    assert!(given_up > 5, "{given_up} times");
}

const PAIR: Weather = Weather {
    nodes: 2,
    m: 1,
    width: 2,
    steps: 1500,
    swaps: false,
};

#[test]
fn nothing_flushed_is_lost_by_a_pair_with_write_back() {
    check_counts(storms(11_000_001, 25, PAIR));
}

#[test]
fn nothing_flushed_is_lost_by_three_nodes_with_write_back() {
    let two = Weather { nodes: 3, ..PAIR };
    let three = Weather {
        nodes: 4,
        width: 3,
        ..PAIR
    };
    check_counts(storms(12_000_001, 12, two));
    check_counts(storms(13_000_001, 18, three));
}

#[test]
fn nothing_flushed_is_lost_by_coded_groups_with_write_back() {
    let two_and_one = Weather {
        nodes: 4,
        m: 2,
        ..PAIR
    };
    let two_and_one = Weather {
        width: 3,
        ..two_and_one
    };
    let two_and_two = Weather {
        nodes: 5,
        width: 4,
        ..two_and_one
    };
    check_counts(storms(14_000_001, 8, two_and_one));
    check_counts(storms(15_000_001, 9, two_and_two));
}

#[test]
fn nothing_flushed_is_lost_where_nodes_with_write_back_go_on_without_disks_that_failed() {
    let pair = Weather {
        swaps: true,
        ..PAIR
    };
    let three = Weather { nodes: 3, ..pair };
    check_counts(storms(16_000_001, 10, pair));
    check_counts(storms(17_000_001, 10, three));
}
