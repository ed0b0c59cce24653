//! Clients: appends, reads, tail checks, trims; a crash begins a new life.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use staves_model::Time;

use super::world::{Actor, Letter, World, node_index, us};
use crate::mutant::{LogMutant, planted};
use crate::*;

/// The marks that held at an operation's begin.
#[derive(Clone, Debug)]
pub(super) struct Begun {
    pub at: Time,
    pub acked: Position,
    pub tail: Position,
    pub trim: Position,
    pub op: Option<ReadOp>,
    pub scan: bool,
    pub records: u32,
    pub tags: Vec<u64>,
    pub condition: Option<AppendCondition>,
}

/// A client.
pub(super) struct SimClient {
    pub up: bool,
    pub life: u64,
    pub appender: Option<Appender>,
    pub reader: Option<LogReader>,
    pub ops: BTreeMap<u64, Begun>,
    pub scan: Position,
}

impl SimClient {
    pub(super) fn new(_client: usize) -> SimClient {
        SimClient {
            up: true,
            life: 0,
            appender: None,
            reader: None,
            ops: BTreeMap::new(),
            scan: 0,
        }
    }

    fn appends(&self) -> usize {
        self.ops.values().filter(|begun| begun.op.is_none()).count()
    }
}

/// The content of a record, by which a reader knows it.
fn content(client: u64, op: u64, index: u32) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u64_le(client);
    out.put_u64_le(op);
    out.put_u32_le(index);
    out.freeze()
}

impl World {
    fn client_started(&mut self, client: usize, view: LogView) {
        let retry = us(self.knobs.retry);
        let sim = &mut self.clients[client];
        let appends = AppendLimits {
            retry,
            deadline: us(self.knobs.append_deadline),
            session_age: us(self.knobs.session_age),
            ..AppendLimits::default()
        };
        let reads = ReadLimits {
            retry,
            poll: retry / 4,
            wait: retry * 2,
            wait_again: retry / 4,
            deadline: us(self.knobs.retry * 14),
            ..ReadLimits::default()
        };
        let chance = client as u64 + 1 + (sim.life << 32);
        sim.appender = Some(Appender::new(chance, view.clone(), appends));
        sim.reader = Some(LogReader::new(view, reads));
    }

    pub(super) fn crash_client(&mut self, client: usize) {
        let sim = &mut self.clients[client];
        sim.up = false;
        sim.life += 1;
        (sim.appender, sim.reader) = (None, None);
        sim.ops.clear();
        self.count("client crashes");
    }

    pub(super) fn client_receives(&mut self, client: usize, letter: Letter) {
        if !self.clients[client].up {
            return;
        }
        if let Letter::HomeReply(RecordReply::Record(record)) = &letter
            && record.view.term > Term::default()
            && self.clients[client].appender.is_none()
        {
            return self.client_started(client, record.view.clone());
        }
        let (now, sim) = (self.now, &mut self.clients[client]);
        let (Some(appender), Some(reader)) = (&mut sim.appender, &mut sim.reader) else {
            return;
        };
        let mut appends = AppenderEffects::default();
        let mut reads = ReaderEffects::default();
        match letter {
            Letter::UnitReply(0, reply) => {
                appender.step(now, AppenderEvent::Unit(reply), &mut appends);
            }
            Letter::UnitReply(number, reply) => {
                reader.step(now, ReaderEvent::Unit(number, reply), &mut reads);
            }
            Letter::SequencerReply(0, reply) => {
                appender.step(now, AppenderEvent::Sequencer(reply), &mut appends);
            }
            Letter::SequencerReply(number, reply) => {
                reader.step(now, ReaderEvent::Sequencer(number, reply), &mut reads);
            }
            Letter::HomeReply(RecordReply::Record(record)) => {
                let view = Box::new(record.view);
                appender.step(now, AppenderEvent::View(view.clone()), &mut appends);
                reader.step(now, ReaderEvent::View(view), &mut reads);
            }
            _ => {}
        }
        self.appender_effects(client, appends);
        self.reader_effects(client, reads);
    }

    fn appender_effects(&mut self, client: usize, out: AppenderEffects) {
        let from = Actor::Client(client);
        for (unit, request) in out.units {
            let to = Actor::Unit(unit.0 as usize);
            self.send(from, to, Letter::ToUnit(0, request));
        }
        for (to, request) in out.sequencers {
            let letter = Letter::ToSequencer(0, to.incarnation, request);
            self.send(from, Actor::Node(node_index(to.node)), letter);
        }
        if out.view_wanted {
            self.send(from, Actor::Home, World::view_request());
        }
        for (op, result) in out.done {
            let Some(begun) = self.clients[client].ops.remove(&op) else {
                continue;
            };
            match result {
                Ok(appended) => {
                    self.count("acks");
                    self.judge_ack(&begun, appended);
                    self.note_tags(&begun, appended);
                }
                Err(AppendError::ConditionFailed { tail }) => {
                    self.judge_failed(op, &begun, tail);
                }
                Err(AppendError::Timeout) => self.count("given up"),
                Err(AppendError::Expired) => self.count("expired"),
                Err(error) => self.judge.violated(format!("append of {client}: {error}")),
            }
        }
    }

    fn reader_effects(&mut self, client: usize, out: ReaderEffects) {
        let from = Actor::Client(client);
        for (number, unit, request) in out.units {
            let to = Actor::Unit(unit.0 as usize);
            self.send(from, to, Letter::ToUnit(number, request));
        }
        for (number, to, request) in out.sequencers {
            let letter = Letter::ToSequencer(number, to.incarnation, request);
            self.send(from, Actor::Node(node_index(to.node)), letter);
        }
        if out.view_wanted {
            self.send(from, Actor::Home, World::view_request());
        }
        for (number, result) in out.done {
            let Some(begun) = self.clients[client].ops.remove(&number) else {
                continue;
            };
            let Ok(result) = result else {
                self.count("reads given up");
                continue;
            };
            let decided = matches!(result, ReadResult::Slot(..));
            let scan = &mut self.clients[client].scan;
            if begun.scan && decided && begun.op == Some(ReadOp::Read(*scan)) {
                *scan += 1;
            }
            self.judge_read(&begun, result);
        }
    }

    pub(super) fn client_tick(&mut self, client: usize) {
        if !self.clients[client].up {
            return;
        }
        let (now, sim) = (self.now, &mut self.clients[client]);
        let (Some(appender), Some(reader)) = (&mut sim.appender, &mut sim.reader) else {
            return self.send(Actor::Client(client), Actor::Home, World::view_request());
        };
        let mut appends = AppenderEffects::default();
        let mut reads = ReaderEffects::default();
        appender.step(now, AppenderEvent::Tick, &mut appends);
        reader.step(now, ReaderEvent::Tick, &mut reads);
        self.appender_effects(client, appends);
        self.reader_effects(client, reads);
        if !self.quiet {
            self.begin_ops(client);
        }
    }

    fn begin_ops(&mut self, client: usize) {
        let hushed = self.now < self.hush.0 && client != self.hush.1;
        let sim = &self.clients[client];
        // Without faults an append takes one trip, once its client has a session.
        let ready = sim.appender.as_ref().is_some_and(Appender::has_session);
        let rush = match hushed || self.knobs.calm && !ready {
            true => 0,
            false => self.knobs.appends,
        };
        let (appends, others) = (sim.appends(), sim.ops.len() - sim.appends());
        if appends < 3 && self.rng.chance(rush) {
            self.begin_append(client);
        }
        if others < 1 && self.rng.chance(500) {
            self.begin_read(client, hushed);
        }
    }

    fn begun(&self, op: Option<ReadOp>, records: u32) -> Begun {
        Begun {
            at: self.now,
            acked: self.judge.acked_end,
            tail: self.judge.tail,
            trim: self.judge.trimmed,
            op,
            scan: false,
            records,
            tags: Vec::new(),
            condition: None,
        }
    }

    fn begin_append(&mut self, client: usize) {
        let count = match self.mode {
            AppendMode::Bind => 1 + self.rng.below(6) as u32 / 4,
            AppendMode::Predict | AppendMode::Corfu => 1,
        };
        let tags = match self.rng.below(4) {
            0 => vec![],
            1 => vec![1, 2],
            tag => vec![tag - 1],
        };
        let op = self.judge.next_op();
        let records: Vec<Bytes> = (0..count).map(|i| content(client as u64, op, i)).collect();
        let records = Records {
            lens: records.iter().map(|record| record.len() as u32).collect(),
            bytes: records.concat().into(),
        };
        let mut begun = self.begun(None, count);
        let condition = self.draw_condition();
        (begun.tags, begun.condition) = (tags.clone(), condition);
        self.judge.conditions.extend(condition.map(|c| (op, c)));
        let now = self.now;
        let sim = &mut self.clients[client];
        sim.ops.insert(op, begun);
        let mut out = AppenderEffects::default();
        if let Some(appender) = &mut sim.appender {
            let event = AppenderEvent::Append {
                op,
                records,
                tags,
                condition,
            };
            appender.step(now, event, &mut out);
        }
        self.appender_effects(client, out);
    }

    fn begin_read(&mut self, client: usize, hushed: bool) {
        let Some(op) = self.draw_read(client, hushed) else {
            return;
        };
        let number = self.judge.next_op();
        let mut begun = self.begun(Some(op), 0);
        let now = self.now;
        let sim = &mut self.clients[client];
        begun.scan = op == ReadOp::Read(sim.scan);
        sim.ops.insert(number, begun);
        let mut out = ReaderEffects::default();
        if let Some(reader) = &mut sim.reader {
            reader.step(now, ReaderEvent::Begin(number, op), &mut out);
        }
        self.reader_effects(client, out);
    }

    fn draw_read(&mut self, client: usize, hushed: bool) -> Option<ReadOp> {
        self.move_cursor(client);
        if let Some(wait) = self.draw_wait() {
            return Some(wait);
        }
        let scan = self.clients[client].scan;
        let top = self.judge.acked_end + 3;
        let kind = match hushed {
            true => 75,
            false if self.rng.chance(self.knobs.trims) => 93,
            false => self.rng.below(100),
        };
        Some(match kind {
            0..=44 => ReadOp::Read(scan),
            45..=69 => ReadOp::Read(top.saturating_sub(self.rng.below(8))),
            70..=91 => ReadOp::Tail(None),
            92..=95 if !self.knobs.calm => {
                let read = scan.min(self.judge.acked_end);
                let all = planted(LogMutant::TrimAhead) || self.rng.chance(200);
                let far = if all { top + self.rng.below(4) } else { read };
                ReadOp::Trim(self.rng.pick(&[far, read, read / 2]))
            }
            96..=97 if !self.knobs.calm => {
                let last: Vec<Position> = self.judge.last_acked(6);
                if last.is_empty() {
                    return None;
                }
                let position = self.rng.pick(&last);
                self.punched.insert(position);
                ReadOp::Punch(position)
            }
            _ => return None,
        })
    }
}
