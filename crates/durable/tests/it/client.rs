//! The client: it writes registers, remembers which writes were acknowledged, and looks whether they are there.

use bytes::Bytes;
use rand::Rng;
use staves_group::{Effects, Member, Recall};
use staves_model::{ClientId, Epoch, GroupId, MemberId, PAGE_BYTES};
use staves_store::EXTENT_BYTES;
use staves_wire::group::{RequestId, Run, RunKind};

use crate::cluster::{Cluster, note};

/// Registers of a data bucket, each on a page of its own. Those of another bucket of the group lie at the same places.
pub const REGISTERS: u64 = 22;
/// Registers of an extent.
const IN_EXTENT: u64 = 2;

/// The place of a register. The extents come into use one by one.
pub fn place(register: u64) -> u64 {
    let register = register % REGISTERS;
    let (extent, at) = (register / IN_EXTENT, register % IN_EXTENT);
    extent * EXTENT_BYTES as u64 + at * PAGE_BYTES as u64
}

/// A register as the client knows it.
#[derive(Clone, Debug, Default)]
pub struct Register {
    /// The highest version that was acknowledged, and its request.
    pub acked: u64,
    pub request: u64,
    /// The highest that was tried.
    pub tried: u64,
    /// The session of the highest that was acknowledged, and the highest that was flushed, with write-back.
    pub session: u64,
    pub flushed: u64,
}

/// A write that has no answer yet.
pub struct Pending {
    pub group: GroupId,
    pub register: u64,
    pub version: u64,
    pub request: u64,
    pub seq: u64,
    pub at: MemberId,
    pub epoch: Epoch,
    pub session: u64,
}

/// The register that is written in place of one, and the extents that are to be reserved for it.
fn fitting(member: &Member, m: u8, register: u64) -> (u64, u32) {
    if m > 1 {
        let needed = (register / IN_EXTENT) as u32 + 1;
        return (register, needed.max(member.wanted_extents()));
    }
    let pages = member.pages().expect("it serves");
    // The lowest free place comes next.
    let register = register.min(u64::from(pages.used()) * IN_EXTENT);
    let extent = place(register) / EXTENT_BYTES as u64 * EXTENT_BYTES as u64;
    (register, pages.used() + u32::from(!pages.exists(extent)))
}

impl Cluster {
    /// The node that answers for a stream of a group now, if any does.
    pub fn server(&self, group: GroupId, stream: u8) -> Option<usize> {
        let entry = &self.directory.groups[&group];
        let id = entry
            .member(staves_model::MemberSlot(stream))
            .filter(|_| entry.open)?
            .id;
        let at = id.node.0 as usize - 1;
        let process = self.nodes[at].process.as_ref()?;
        let member = &process.members[&group];
        (process.life == id.incarnation && member.serving() && member.epoch() == entry.epoch)
            .then_some(at)
    }

    /// The client writes a register of a group.
    pub fn write(&mut self, group: GroupId) {
        let stream = match self.m {
            1 => 0,
            m => self.rng.random_range(0..m),
        };
        let server = self.server(group, stream);
        let Some((at, session)) = server.and_then(|at| Some((at, self.session_of(at, group)?)))
        else {
            return;
        };
        // Some extents are not in use before late.
        let below = self.rng.random_range(0..REGISTERS);
        let register = self.rng.random_range(0..=below);
        let process = self.nodes[at].process.as_mut().expect("it serves");
        let member = process.members.get_mut(&group).expect("it serves");
        let (register, needed) = fitting(member, self.m, register);
        let register = u64::from(stream) * REGISTERS + register;
        if member.usable_extents() < needed {
            member.want_extents(needed);
        }
        let has_extents = member.usable_extents() >= needed;
        let mut out = Effects::default();
        let (offset, bytes) = self.value(register);
        let run = Run {
            offset,
            len: bytes.len() as u32,
            kind: RunKind::Bytes,
        };
        let process = self.nodes[at].process.as_mut().expect("it serves");
        let member = process.members.get_mut(&group).expect("it serves");
        let room = has_extents && member.admit(bytes.len().max(500) + 100).is_ok();
        if room && member.absent_in(&[run]).is_none() {
            let version = self.next_version;
            let request = version;
            let id = RequestId {
                client: ClientId(9),
                number: request,
                floor: request.saturating_sub(8),
            };
            let seq = member.update(Some(id), Bytes::new(), vec![run], bytes.into());
            let entry = self
                .registers
                .get_mut(&(group, register))
                .expect("a register");
            entry.tried = version;
            self.pending.push(Pending {
                group,
                register,
                version,
                request,
                seq,
                at: member.me(),
                epoch: member.epoch(),
                session,
            });
        }
        member.flush(self.now, &mut out);
        self.carry(at, out);
        self.answers();
    }

    /// In every other run deltas put whole pages, and the journal has their places alone.
    pub fn puts_pages(&self) -> bool {
        self.m == 1 && self.seed % 2 == 1
    }

    fn value(&mut self, register: u64) -> (u64, Vec<u8>) {
        self.next_version += 1;
        let version = self.next_version.to_le_bytes();
        let bytes = match self.rng.random_range(0..20) {
            0 => [&version[..], &[0; 492]].concat(),
            // A whole page may go to the page file at once.
            1..6 if self.puts_pages() => version.repeat(PAGE_BYTES / 8),
            _ => version.to_vec(),
        };
        (place(register), bytes)
    }

    /// Writes that are answered now.
    pub fn answers(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain(|p| {
            let node = &self.nodes[p.at.node.0 as usize - 1];
            let Some(process) = &node.process else {
                return false;
            };
            let member = &process.members[&p.group];
            // A member that goes on through an epoch has all up to the cut.
            let same = process.life == p.at.incarnation && member.epoch() >= p.epoch;
            let stream = (p.register / REGISTERS) as u8;
            if member.slot().is_some_and(|slot| slot.0 != stream) && self.m > 1 {
                return false; // it has another bucket now
            }
            if !same || !member.serving() {
                return same;
            }
            if member.last() < p.seq {
                return false;
            }
            if member.stable() < p.seq {
                return true;
            }
            let register = self.registers.get_mut(&(p.group, p.register));
            let register = register.expect("a register");
            if p.version > register.acked {
                (register.acked, register.request) = (p.version, p.request);
                register.session = p.session;
            }
            self.acked += 1;
            note(|| {
                format!(
                    "{} register {}: version {} at seq {} acknowledged",
                    p.group, p.register, p.version, p.seq
                )
            });
            false
        });
        self.pending = pending;
    }

    /// All that was acknowledged is there, at whoever serves.
    pub fn check(&self) {
        for group in self.directory.groups.keys() {
            for stream in 0..self.m {
                if let Some(at) = self.server(*group, stream) {
                    self.check_at(at, *group, stream);
                }
            }
        }
    }

    fn check_at(&self, at: usize, group: GroupId, stream: u8) {
        let process = self.nodes[at].process.as_ref().expect("it runs");
        let member = &process.members[&group];
        let pages = member.pages().expect("it is a member");
        let of = (group, u64::from(stream) * REGISTERS)..(group, u64::from(stream + 1) * REGISTERS);
        for ((_, register), known) in self.registers.range(of) {
            let offset = place(*register);
            let run = Run {
                offset,
                len: 8,
                kind: RunKind::Bytes,
            };
            if member.absent_in(&[run]).is_some() {
                continue; // not shown before it is here
            }
            let bytes = pages.slice(offset, 8).try_into().expect("8 bytes");
            if process.unread.load(std::sync::atomic::Ordering::Relaxed) {
                return; // it is shown to nobody
            }
            let found = u64::from_le_bytes(bytes);
            if self.may_be_gone(group, known) {
                assert!(
                    found >= known.flushed && found <= known.tried,
                    "LOST: group {group} register {register} at node {} in epoch {:?} is {found}, and {} was flushed",
                    at + 1,
                    member.epoch(),
                    known.flushed
                );
                continue;
            }
            assert!(
                found >= known.acked && found <= known.tried,
                "LOST: group {group} register {register} at node {} in epoch {:?} is {found}, and {} was acknowledged ({} tried)",
                at + 1,
                member.epoch(),
                known.acked,
                known.tried
            );
            if known.acked > 0 && known.request + 8 > self.next_version {
                let id = RequestId {
                    client: ClientId(9),
                    number: known.request,
                    floor: 0,
                };
                let recalled = member.recall(&id);
                assert!(
                    recalled != Recall::New,
                    "FORGOTTEN: request {} of group {group}",
                    known.request
                );
            }
        }
    }

    /// Copies that are complete have the same bytes, once all is quiet.
    pub fn check_copies(&self) {
        if self.m > 1 {
            return self.check_code();
        }
        for (group, entry) in &self.directory.groups {
            let member = |slot: usize| {
                let id = entry.members[slot]?.id;
                let process = self.nodes[id.node.0 as usize - 1].process.as_ref()?;
                process.members.get(group)?.pages()
            };
            let first = member(0).expect("it serves");
            for slot in 1..entry.members.len() {
                let Some(other) = member(slot) else { continue };
                for register in 0..REGISTERS {
                    let at = place(register);
                    let same = first.slice(at, PAGE_BYTES) == other.slice(at, PAGE_BYTES);
                    assert!(same, "UNEQUAL: group {group}, slot {slot}, page {register}");
                }
            }
        }
    }
}
