//! A group of units, and requests to the one that serves.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::time::Duration;

use bytes::Bytes;
use staves_conformance::{Reply, TestCluster};
use staves_model::{Incarnation, NodeId};
use staves_service::Limits;
use staves_wire::service::Answer;

use crate::codec::BucketRequest;
use crate::message::{
    Decision, ParkedAppend, Records, SlotAnswer, TermStart, UnitAnswer, UnitOp, UnitReply,
    UnitRequest,
};
use crate::service::{LogUnit, UnitCall};
use crate::types::{
    AppendId, AppendMode, Binding, LogId, LogOptions, Low, Position, SequencerId, SessionId, Term,
};
use crate::unit::UnitLimits;

pub const LOG: LogId = LogId(77);
pub const SEQUENCER: SequencerId = SequencerId {
    node: NodeId(5),
    incarnation: Incarnation(1),
};

pub fn id(seq: u64) -> AppendId {
    let session = SessionId {
        term: Term(1),
        count: 3,
    };
    let seq = seq as u32;
    AppendId { session, seq }
}

pub fn bytes_of(seed: u64, len: usize) -> Bytes {
    staves_conformance::bytes(seed, len).into()
}

pub fn options() -> LogOptions {
    LogOptions {
        hole_us: 10_000_000,
        ..LogOptions::of(AppendMode::Bind)
    }
}

pub struct Bench {
    pub cluster: TestCluster<LogUnit>,
    pub term: u64,
    /// The mark of the client.
    pub low: Low,
    /// The copies that writes wait for.
    pub copies_min: Arc<AtomicU8>,
}

impl Bench {
    /// Three nodes of which so many are members, with so many extents each.
    pub fn new(nodes: usize, extents: u32) -> Bench {
        let group = staves_group::Options {
            log_bytes_max: 600 << 10,
            ..staves_group::Options::default()
        };
        let copies_min = group.copies_min.clone();
        let limits = Limits {
            grant_wait: Duration::from_millis(60),
            ..Limits::default()
        };
        let limits_of_unit = UnitLimits {
            park_expiry: Duration::from_secs(60),
            ask_after: Duration::from_secs(60),
            ..UnitLimits::default()
        };
        let bucket = |member| LogUnit::bucket(limits.clone(), limits_of_unit.clone(), member).0;
        let cluster = TestCluster::new((1, 1), nodes.max(2), extents, group, bucket);
        Bench {
            cluster,
            term: 1,
            low: 0,
            copies_min,
        }
    }

    pub fn send_call(&mut self, call: &UnitCall) -> u64 {
        let again = UnitCall::from_body(&call.clone().into_body());
        assert_eq!(again.as_ref(), Ok(call));
        self.cluster.submit_to(0, None, call)
    }

    pub fn send(&mut self, log: LogId, op: UnitOp) -> u64 {
        let request = BucketRequest::Unit(UnitRequest { log, op });
        self.send_call(&UnitCall::Request(request))
    }

    pub fn reply(&mut self, token: u64) -> Reply {
        self.cluster.wait_for(token)
    }

    pub fn answer(&mut self, token: u64) -> UnitAnswer {
        match self.reply(token) {
            Ok(Answer::Value(bytes)) => UnitReply::decode(bytes).unwrap().answer,
            other => panic!("{other:?}"),
        }
    }

    pub fn call(&mut self, log: LogId, op: UnitOp) -> UnitAnswer {
        let token = self.send(log, op);
        self.answer(token)
    }

    pub fn seal(&mut self, log: LogId, term: u64) {
        let term = Term(term);
        let options = options();
        let sealed = self.call(log, UnitOp::Seal { term, options });
        assert!(matches!(sealed, UnitAnswer::Sealed { .. }), "{sealed:?}");
    }

    pub fn start(&self) -> TermStart {
        TermStart {
            term: Term(self.term),
            start: 0,
            sequencer: SEQUENCER,
        }
    }

    pub fn park(&mut self, log: LogId, id: AppendId, bytes: Bytes) -> u64 {
        self.park_records(log, id, Records::one(bytes))
    }

    pub fn park_records(&mut self, log: LogId, id: AppendId, data: Records) -> u64 {
        let low = self.low;
        let park = ParkedAppend {
            id,
            low,
            count: data.count(),
            tags: Vec::new(),
            condition: None,
            sequencer: SEQUENCER,
            data,
        };
        self.send(log, UnitOp::Park(park))
    }

    pub fn send_bind(&mut self, log: LogId, position: Position, count: u32, id: AppendId) -> u64 {
        let term = self.start();
        let binding = Binding {
            position,
            count,
            id: Some(id),
            links: Vec::new(),
        };
        self.send(log, UnitOp::Bind { term, binding })
    }

    pub fn bind(&mut self, log: LogId, position: Position, id: AppendId) -> Decision {
        self.bind_many(log, position, 1, id)
    }

    pub fn bind_many(
        &mut self,
        log: LogId,
        position: Position,
        count: u32,
        id: AppendId,
    ) -> Decision {
        let token = self.send_bind(log, position, count, id);
        match self.answer(token) {
            UnitAnswer::Decided(decision) => decision,
            other => panic!("{other:?}"),
        }
    }

    pub fn slot(&mut self, log: LogId, position: Position) -> SlotAnswer {
        let op = UnitOp::Read {
            position,
            term: Term(self.term),
            start: 0,
            word: None,
        };
        match self.call(log, op) {
            UnitAnswer::Slot { slot, .. } => slot,
            other => panic!("{other:?}"),
        }
    }

    pub fn read(&mut self, log: LogId, position: Position) -> Option<Bytes> {
        match self.slot(log, position) {
            SlotAnswer::Data { data, .. } => Some(data),
            _ => None,
        }
    }

    pub fn trim(&mut self, log: LogId, position: Position) {
        self.call(log, UnitOp::Trim { position });
    }

    /// Appends one record. False if it is refused for want of room.
    pub fn append(&mut self, log: LogId, position: Position, bytes: Bytes) -> bool {
        self.append_as(log, position, id(position), bytes)
    }

    /// The same with another id.
    pub fn append_as(
        &mut self,
        log: LogId,
        position: Position,
        id: AppendId,
        bytes: Bytes,
    ) -> bool {
        let park = self.park(log, id, bytes);
        let has_answer = self.cluster.answers.contains_key(&park);
        if !has_answer {
            self.cluster.ticks(4);
        }
        match self.cluster.answers.get(&park) {
            Some(Ok(Answer::Error(..))) => {
                self.cluster.answers.remove(&park);
                return false;
            }
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        assert!(self.bind(log, position, id).data);
        let ack = self.answer(park);
        assert!(matches!(ack, UnitAnswer::Ack { .. }), "{ack:?}");
        true
    }

    pub fn unit(&mut self) -> &LogUnit {
        self.cluster.bucket().service()
    }

    pub fn last(&mut self) -> u64 {
        self.cluster.bucket().member().last()
    }

    pub fn live_bytes(&mut self) -> u64 {
        self.unit().live_bytes()
    }

    /// Extents that the bucket has.
    pub fn used(&mut self) -> u32 {
        let pages = self.cluster.bucket().member().pages();
        pages.map_or(0, |pages| pages.used())
    }

    pub fn check(&mut self) {
        self.cluster.deliver();
        self.cluster.check();
    }
}
