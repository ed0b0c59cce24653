//! A simulated node: its member of the group, and a small service on it whose registers clients read
//! and write. What the service does is what every service must do: refuse before a seq is given, answer
//! writes once stable, read under a lease and only what cannot be lost.

use std::collections::BTreeSet;

use bytes::{BufMut, Bytes, BytesMut};
use staves_group::{Effects, Event, Member, Recall};
use staves_model::mutant::{Mutant, planted};
use staves_model::{Label, PAGE_BYTES, Time};
use staves_store::{EXTENT_BYTES, EXTENT_PAGES};
use staves_wire::group::{GroupMessage, RequestId, Run, RunKind};

use crate::event::{ClientRequest, Happening, Packet, Place};
use crate::scale::MS;
use crate::scenario::Loss;
use crate::waiting::{Waiting, WaitingRead, WaitingWrite};
use crate::world::World;

/// Registers of a bucket. The second spans two pages; the third lies in an extent of its own, which
/// some writes free and fill again in one delta.
pub const REGISTERS: usize = 3;

/// The byte offset of a register.
pub fn offset(register: usize) -> u64 {
    match register {
        0 => 16,
        1 => 2 * PAGE_BYTES as u64 - 4,
        _ => EXTENT_BYTES as u64 + 256,
    }
}

/// The pages that registers lie in.
pub const PAGES: [u32; 4] = [0, 1, 2, EXTENT_PAGES];

/// Extents that a write to a register needs.
fn extents(register: usize) -> u32 {
    (offset(register) / EXTENT_BYTES as u64) as u32 + 1
}

fn runs_of(register: usize, frees: bool) -> Vec<Run> {
    let put = Run {
        offset: offset(register),
        len: 8,
        kind: RunKind::Bytes,
    };
    if !frees {
        return vec![put];
    }
    let extent = EXTENT_BYTES as u64;
    let free = Run {
        offset: put.offset / extent * extent,
        len: EXTENT_BYTES as u32,
        kind: RunKind::Zero,
    };
    vec![free, put]
}

// The value, and the seq that must be stable before it is given out; none if it cannot be read now.
fn read_register(member: &Member, now: Time, register: usize) -> Option<(u64, u64)> {
    let mut bytes = Vec::with_capacity(8);
    let seq = member.read(now, offset(register), 8, &mut bytes).ok()?;
    let value = bytes.try_into().map_or(0, u64::from_le_bytes);
    Some((value, seq))
}

impl World {
    /// A packet for a node that runs.
    pub fn deliver_node(&mut self, node: usize, from: Place, packet: Packet) {
        match packet {
            Packet::Group(envelope) => {
                let node = self.addressee(node, &envelope);
                let seals = matches!(envelope.message, GroupMessage::Seal { .. });
                if seals && !self.is_sound() && self.rng.chance(self.profile.aimed) {
                    self.restart_with_state(self.host_of(node));
                }
                let parts = matches!(envelope.message, GroupMessage::Parts { .. });
                let before = self.absent(node);
                self.aim_ahead(node, &envelope.message);
                self.step_member(node, Event::Message(envelope));
                self.aim_at_gap(node);
                if parts
                    && self.absent(node) < before
                    && !self.is_sound()
                    && self.rng.chance(self.profile.aimed)
                {
                    self.aim_at_data(self.nodes[node].group);
                }
            }
            Packet::Request(request) => {
                if let Some(g) = self.index_of(request.group) {
                    self.request(self.answering(node, g, request.stream), request);
                }
            }
            Packet::OpRequest(request) => self.request_service(node, request),
            Packet::OpAnswer(answer) => self.pass_back(node, answer),
            Packet::Map(group) => {
                let Some(g) = self.index_of(group.id) else {
                    return;
                };
                let known = &mut self.nodes[node].known;
                if known.get(&g).is_none_or(|k| k.revision < group.revision) {
                    known.insert(g, group.clone());
                }
                for seat in self.seats_in(node, g) {
                    self.take_seat(seat, group.id);
                    self.step_member(seat, Event::Map(group.clone()));
                }
            }
            Packet::Lease {
                incarnation,
                clock,
                granted,
                heard,
            } => {
                let mine = incarnation == self.nodes[node].incarnation;
                for (group, epoch) in heard.into_iter().filter(|_| mine) {
                    self.step_both(node, group, &Event::Heard { epoch, clock });
                }
                for (group, epoch) in granted {
                    let lease = Event::Lease {
                        epoch,
                        incarnation,
                        clock,
                    };
                    self.step_both(node, group, &lease);
                }
            }
            Packet::Cluster(map) => self.see_cluster(node, map),
            Packet::Ping { incarnation, sent } => self.pinged(node, from, incarnation, sent),
            Packet::Pong {
                incarnation,
                sent,
                alive,
            } => self.ponged(node, from, incarnation, sent, alive),
            Packet::Broken => self.request_failed(node, self.nodes[from].id),
            Packet::Complaint(about) => self.request_failed(node, about),
            Packet::Probe {
                suspect,
                incarnation,
            } => self.look_at(node, from, suspect, incarnation),
            Packet::StopQuestion { round, incarnation } => {
                self.stop_questioned(node, from, round, incarnation);
            }
            Packet::StopAnswer {
                incarnation,
                attempt,
                permitted,
            } => self.stop_answered(node, incarnation, attempt, permitted),
            Packet::Report(_)
            | Packet::Back(_)
            | Packet::Answer { .. }
            | Packet::OpRefused { .. }
            | Packet::Call(_)
            | Packet::StopRequest { .. }
            | Packet::StopReply { .. }
            | Packet::LeaseRequest { .. } => {}
        }
    }

    // Aims at the data bucket when a page comes to a joiner with more than the joiner has received: if the
    // data bucket dies now, that version never was.
    fn aim_ahead(&mut self, node: usize, message: &GroupMessage) {
        let GroupMessage::Parts { parts, .. } = message else {
            return;
        };
        let Some(member) = &self.nodes[node].member else {
            return;
        };
        let ahead = parts.iter().any(|p| {
            let known = |(stream, label): (usize, Option<Label>)| {
                label.is_some_and(|l| member.stream(stream).is_some_and(|s| l.seq > s.prefix))
            };
            p.labels.iter().enumerate().any(known)
        });
        if ahead {
            self.cover.count("page ahead of the joiner");
        }
        if ahead && !self.is_sound() && self.rng.chance(300) {
            self.aim_at_data(self.nodes[node].group);
        }
    }

    // Aims at the data bucket when a parity bucket holds something beyond a gap that no other can fill: if
    // the data bucket dies now, what lies beyond the gap must not outlive it.
    fn aim_at_gap(&mut self, node: usize) {
        if self.is_sound() || self.profile.aimed == 0 || !self.only_the_data_fills_a_gap(node) {
            return;
        }
        self.cover.count("gap that only the data bucket fills");
        if self.rng.chance(300) {
            self.aim_at_data(self.nodes[node].group);
        }
    }

    fn only_the_data_fills_a_gap(&self, node: usize) -> bool {
        let g = self.nodes[node].group;
        let missing = |w: &World| {
            let member = w.nodes[node].member.as_deref().filter(|m| m.is_open())?;
            let stream =
                (0..w.groups[g].m).find(|s| member.stream(*s).is_some_and(|s| s.log.has_gap()))?;
            Some((stream, member.stream(stream)?.prefix + 1))
        };
        let Some((stream, seq)) = missing(self) else {
            return false;
        };
        let group = self.committed(g);
        group.open
            && group
                .parity_slots()
                .filter_map(|p| group.member(p))
                .all(|x| {
                    let other = self
                        .entry_of(g, x.id)
                        .and_then(|n| self.nodes[n].member.as_deref());
                    other
                        .and_then(|m| m.stream(stream))
                        .is_none_or(|s| s.prefix < seq)
                })
    }

    fn absent(&self, node: usize) -> u32 {
        self.nodes[node]
            .member
            .as_ref()
            .map_or(0, |m| m.progress().0)
    }

    /// A node's timer.
    pub fn tick_node(&mut self, node: usize) {
        let next = self.now + (10 + self.rng.below(8)) * MS;
        self.queue.push(next, Happening::Tick(node));
        if !self.nodes[node].up || self.nodes[node].paused_until > self.now {
            return;
        }
        self.look_for_silence(node);
        for seat in self.seats_of(node) {
            if self.seat_rests(seat) {
                self.cover.count("rest: no tick");
            } else {
                self.step_member(seat, Event::Tick);
            }
            self.change_wish(seat);
        }
        self.tick_pinger(node);
        self.tick_stop(node);
        let members = self.seats_of(node).into_iter();
        let serving = members.filter_map(|seat| {
            let member = self.nodes[seat].member.as_deref();
            member
                .filter(|m| m.serving())
                .map(|m| (self.group_at(seat).id, m.epoch()))
        });
        let wanted: BTreeSet<_> = serving.collect();
        let wants = !wanted.is_empty() || self.loss == Loss::StartsEmpty;
        if wants && self.rng.chance(500) {
            let incarnation = self.nodes[node].incarnation;
            let clock = self.nodes[node].clock(self.now);
            let wanted = wanted.into_iter().collect();
            let directory = self.leader_of(node);
            self.send(
                node,
                directory,
                Packet::LeaseRequest {
                    incarnation,
                    clock,
                    wanted,
                },
            );
        }
    }

    fn request(&mut self, node: usize, r: ClientRequest) {
        let Some(member) = &self.nodes[node].member else {
            return;
        };
        if !member.serving() || member.slot().is_none_or(|s| s.index() != r.stream) {
            return;
        }
        match r.write {
            None => {
                let read = WaitingRead {
                    client: r.client,
                    number: r.id.number,
                    register: r.register,
                    seen: None,
                };
                self.nodes[node].waiting.reads.push(read);
                self.demand_absent(node, r.register, false);
                self.answer_waiting(node);
            }
            Some(value) => self.write(node, &r, value),
        }
    }

    fn write(&mut self, node: usize, r: &ClientRequest, value: u64) {
        let Some(member) = &self.nodes[node].member else {
            return;
        };
        match member.recall(&r.id) {
            Recall::Done { .. } if !member.may_answer(self.nodes[node].clock(self.now)) => {}
            Recall::Done { .. } => {
                self.cover.count("retry answered again");
                self.answer_write(node, r.client, r.id.number, 0);
            }
            Recall::Waiting { seq, .. } => {
                self.cover.count("retry waits");
                let waiting = &mut self.nodes[node].waiting.writes;
                waiting.push(WaitingWrite {
                    client: r.client,
                    number: r.id.number,
                    seq,
                });
            }
            Recall::Forgotten => self.cover.count("request forgotten"),
            Recall::New => self.new_write(node, r, value),
        }
    }

    fn new_write(&mut self, node: usize, r: &ClientRequest, value: u64) {
        let frees = r.register == 2 && self.rng.chance(300);
        if self.demand_absent(node, r.register, frees) {
            return;
        }
        let (g, coded) = (self.nodes[node].group, self.group_at(node).m > 1);
        let Some(member) = self.nodes[node].member.as_deref_mut() else {
            return;
        };
        let need = extents(r.register);
        if member.usable_extents() < need {
            // The reservation comes with the next acks; until then the client asks again.
            member.want_extents(need.max(member.wanted_extents()));
            if member.pages().is_some_and(|p| p.reserved() < need) {
                self.cover.count("write refused: memory full");
            }
            return;
        }
        if member
            .admit(120 + if frees && coded { PAGE_BYTES } else { 0 })
            .is_err()
        {
            return self.cover.count("write pushed back: log full");
        }
        let id: RequestId = r.id;
        let mut bytes = BytesMut::with_capacity(8);
        bytes.put_u64_le(value);
        let bytes = bytes.freeze();
        let runs = runs_of(r.register, frees);
        let epoch = member.epoch();
        let seq = member.update(Some(id), Bytes::new(), runs.clone(), bytes.clone());
        let twice = self.groups[g]
            .ghost
            .made(r.stream, Label { epoch, seq }, id, runs, bytes);
        if let Some(first) = twice {
            self.violation(format!(
                "I9 request {id:?} was done by {first:?} and again by {epoch:?}.{seq}"
            ));
        }
        let waiting = &mut self.nodes[node].waiting.writes;
        waiting.push(WaitingWrite {
            client: r.client,
            number: r.id.number,
            seq,
        });
        self.with_member(node, |m, now, out, _| m.flush(now, out));
    }

    // Asks for a page that is not here; true if there was one.
    fn demand_absent(&mut self, node: usize, register: usize, frees: bool) -> bool {
        let Some(member) = &self.nodes[node].member else {
            return true;
        };
        let Some(page) = member.absent_in(&runs_of(register, frees)) else {
            return false;
        };
        self.cover.count("page demanded");
        self.with_member(node, |m, now, out, _| m.demand(now, page, 1, out));
        true
    }

    /// Answers whoever may be answered now.
    pub fn answer_waiting(&mut self, node: usize) {
        let waiting = std::mem::take(&mut self.nodes[node].waiting);
        let Some(member) = self.nodes[node].member.as_deref().filter(|m| m.serving()) else {
            return;
        };
        let (stable, now) = (member.stable(), self.nodes[node].clock(self.now));
        if !member.may_answer(now) {
            self.nodes[node].waiting = waiting;
            return self.cover.count("rule 13: a member is quiet");
        }
        let leased = member.may_read(now);
        let lax = planted(Mutant::HeldReadNeedsNoLease);
        let mut still = Waiting::default();
        let mut reads = Vec::new();
        for mut read in waiting.reads {
            if read.seen.is_none() {
                read.seen = read_register(member, now, read.register);
            }
            match read.seen {
                Some((value, seq)) if (leased || lax) && member.releases(seq) => {
                    reads.push((read, value));
                }
                _ => still.reads.push(read),
            }
        }
        let seeks = !leased && !still.reads.is_empty();
        let mut writes = Vec::new();
        for write in waiting.writes {
            if write.seq <= stable {
                writes.push(write)
            } else {
                still.writes.push(write)
            }
        }
        self.nodes[node].waiting = still;
        if seeks {
            self.seek_promises(node);
        }
        for w in writes {
            self.answer_write(node, w.client, w.number, w.seq);
        }
        for (read, value) in reads {
            self.check_read(node);
            self.check_shown_value(node, value);
            let life = self.life(self.nodes[node].group);
            self.send(
                node,
                read.client,
                Packet::Answer {
                    life,
                    number: read.number,
                    value: Some(value),
                },
            );
        }
    }

    // As a service does for reads that wait. Nothing comes of it at once, so nobody is answered.
    fn seek_promises(&mut self, node: usize) {
        let now = self.nodes[node].clock(self.now);
        let mut out = Effects::default();
        if let Some(member) = self.nodes[node].member.as_deref_mut() {
            member.seek_promises(now, &mut out);
        }
        self.carry_out(node, out);
    }

    fn answer_write(&mut self, node: usize, client: Place, number: u64, seq: u64) {
        self.check_ack(node, seq);
        let life = self.life(self.nodes[node].group);
        self.send(
            node,
            client,
            Packet::Answer {
                number,
                life,
                value: None,
            },
        );
    }
}
