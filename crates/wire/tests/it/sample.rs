//! Makes any message there is, from a number. The same number makes the same message for ever: golden
//! bytes rest on it.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use staves_model::{
    ClientId, ClusterId, DiskId, Epoch, Group, GroupId, HashSlot, Incarnation, Label, LastOpen,
    Member, MemberId, MemberSlot, NodeId, PAGE_BYTES, PoolId, Revision, ServiceId, Time,
};
use staves_wire::admin::{
    DiskAction, DiskChange, GroupMend, GroupStateAnswer, GroupSums, GroupSumsAnswer, GroupTarget,
    KeyRangeAnswer, KeySpan, NodeTarget, PageSum, StatusAnswer,
};
use staves_wire::cache::{CacheStats, CacheStatsAnswer, Condition, OwnedOp};
use staves_wire::directory::*;
use staves_wire::files::{
    FileAway, FileBytes, FileChange, FileChanges, FileChangesAnswer, FileCheck, FileChecked,
    FileFetch, FileId, FileKey, FileKeys, FileKeysAnswer, FileLost, FileLostAnswer, FileNamed,
    FileParts, FilePut, FileRead, FileUse,
};
use staves_wire::group::{
    Batch, Delta, DoneRequest, GroupEnvelope, GroupMessage, PageContent, PagePart, RequestId, Run,
    RunKind, SealedStream, SyncStream,
};
use staves_wire::hello::{Challenge, Hello, Ping, Pong, Prove, Proven, Role, Welcome};
use staves_wire::memory::Action;
use staves_wire::service::{Address, Answer, NumberedOp, PoolRef, ServiceAnswers, ServiceRequest};
use staves_wire::{ErrorCode, ErrorPacket, Message, Opcode};

/// SplitMix64: small, and ours, so that no update of a crate changes golden bytes.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn u32(&mut self) -> u32 {
        self.next() as u32
    }

    pub fn yes(&mut self) -> bool {
        self.below(2) == 0
    }

    pub fn bytes(&mut self, max: u64) -> Bytes {
        let len = self.below(max + 1);
        (0..len).map(|_| self.next() as u8).collect()
    }

    pub fn text(&mut self) -> String {
        let words = [
            "",
            "a",
            "node-7",
            "10.0.0.7:1600",
            "häuser",
            "the map has moved on",
        ];
        words[self.below(words.len() as u64) as usize].to_owned()
    }

    fn option<T>(&mut self, make: impl FnOnce(&mut Rng) -> T) -> Option<T> {
        self.yes().then(|| make(self))
    }

    fn list<T>(&mut self, max: u64, make: impl Fn(&mut Rng) -> T) -> Vec<T> {
        let len = self.below(max + 1);
        (0..len).map(|_| make(self)).collect()
    }

    fn epoch(&mut self) -> Epoch {
        Epoch(self.below(1000))
    }

    pub fn node(&mut self) -> NodeId {
        NodeId(self.below(100))
    }

    fn disk(&mut self) -> DiskId {
        DiskId(self.below(2) as u32)
    }

    fn member(&mut self) -> MemberId {
        MemberId {
            node: self.node(),
            disk: self.disk(),
            incarnation: self.incarnation(),
        }
    }

    pub fn incarnation(&mut self) -> Incarnation {
        Incarnation(self.next())
    }

    fn slot(&mut self) -> MemberSlot {
        MemberSlot(self.below(40) as u8)
    }

    fn hash_slot(&mut self) -> HashSlot {
        HashSlot(self.below(16_384) as u16)
    }

    fn label(&mut self) -> Label {
        Label {
            epoch: self.epoch(),
            seq: self.next(),
        }
    }
}

/// Kinds of operations of the cache, and of the memory service.
const CACHE_OPS: u64 = 8;
const MEMORY_OPS: u64 = 13;

/// The number of kinds of a message that `message` makes; each has golden bytes.
pub fn kinds(opcode: Opcode) -> u64 {
    match opcode {
        Opcode::Hello | Opcode::Raft | Opcode::Proposed => 3,
        Opcode::Error => ErrorCode::ALL.len() as u64,
        Opcode::Group => 8,
        Opcode::Service => CACHE_OPS + MEMORY_OPS,
        Opcode::ServiceAnswers => 5,
        Opcode::FileBytes | Opcode::FileLost => 2,
        _ => 1,
    }
}

/// One message of that opcode and kind.
pub fn message(rng: &mut Rng, opcode: Opcode, kind: u64) -> Message {
    if let Some(message) = crate::log_sample::message(rng, opcode) {
        return message;
    }
    match opcode {
        Opcode::Hello => Message::Hello(hello(rng, kind)),
        Opcode::Welcome => Message::Welcome(Welcome {
            cluster: ClusterId(rng.next()),
            node: rng.node(),
            incarnation: rng.incarnation(),
            version: 1,
            features: rng.next(),
            message_bytes_max: rng.next(),
            in_flight_max: rng.u32(),
        }),
        Opcode::Challenge => Message::Challenge(Challenge {
            nonce: rng.bytes(32),
        }),
        Opcode::Prove => Message::Prove(Prove {
            proof: rng.bytes(32),
        }),
        Opcode::Proven => Message::Proven(Proven {
            proof: rng.bytes(32),
            welcome: rng.bytes(40),
        }),
        Opcode::Ping => Message::Ping(Ping {
            clock: Time(rng.next()),
        }),
        Opcode::Pong => Message::Pong(Pong {
            clock: Time(rng.next()),
            node: rng.node(),
            incarnation: rng.incarnation(),
        }),
        Opcode::Error => {
            Message::Error(ErrorPacket::new(ErrorCode::ALL[kind as usize], rng.text()))
        }
        Opcode::Done => Message::Done,
        Opcode::Group => Message::Group(batch(rng, kind)),
        Opcode::Service => Message::Service(service(rng, kind)),
        Opcode::ServiceAnswers => Message::ServiceAnswers(ServiceAnswers {
            revision: Revision(rng.next()),
            answers: std::iter::once(answer(rng, kind))
                .chain(rng.list(3, |r| {
                    let kind = r.below(5);
                    answer(r, kind)
                }))
                .collect(),
            moved: rng.list(2, group),
            draw_above: rng.next(),
            needs_bytes: rng.u32(),
        }),
        Opcode::CacheStats => Message::CacheStats(CacheStats { pool: pool(rng) }),
        Opcode::CacheStatsAnswer => Message::CacheStatsAnswer(CacheStatsAnswer {
            buckets: rng.u32(),
            keys: rng.next(),
            live_bytes: rng.next(),
            used_bytes: rng.next(),
            budget_bytes: rng.next(),
            reads: rng.next(),
            hits: rng.next(),
            writes: rng.next(),
        }),
        Opcode::GroupState => Message::GroupState(GroupTarget {
            group: GroupId(rng.u32()),
        }),
        Opcode::GroupStateAnswer => Message::GroupStateAnswer(GroupStateAnswer {
            json: rng.bytes(40),
        }),
        Opcode::GroupSums => Message::GroupSums(GroupSums {
            group: GroupId(rng.u32()),
            slot: rng.slot(),
            page: rng.u32(),
            count: rng.u32(),
        }),
        Opcode::GroupSumsAnswer => Message::GroupSumsAnswer(GroupSumsAnswer {
            slot: rng.slot(),
            epoch: rng.epoch(),
            end: rng.u32(),
            sums: rng.list(3, |r| PageSum {
                page: r.u32(),
                labels: r.list(3, |r| r.option(Rng::label)),
                sum: r.bytes(64),
            }),
        }),
        Opcode::GroupMend => Message::GroupMend(GroupMend {
            group: GroupId(rng.u32()),
            slot: rng.slot(),
            page: rng.u32(),
            labels: rng.list(3, |r| r.option(Rng::label)),
        }),
        Opcode::Status => Message::Status,
        Opcode::StatusAnswer => Message::StatusAnswer(StatusAnswer {
            json: rng.bytes(40),
        }),
        Opcode::NodeDrain => Message::NodeDrain(NodeTarget { node: rng.node() }),
        Opcode::NodeResume => Message::NodeResume(NodeTarget { node: rng.node() }),
        Opcode::NodeStop => Message::NodeStop(NodeTarget { node: rng.node() }),
        Opcode::NodeStopForced => Message::NodeStopForced(NodeTarget { node: rng.node() }),
        Opcode::NodeDisk => Message::NodeDisk(DiskChange {
            node: rng.node(),
            folder: rng.text(),
            action: match kind % 4 {
                0 => DiskAction::Add(rng.next()),
                1 => DiskAction::Drain,
                2 => DiskAction::Resume,
                _ => DiskAction::Remove,
            },
        }),
        Opcode::KeyRange => Message::KeyRange(NodeTarget { node: rng.node() }),
        Opcode::KeyRangeAnswer => Message::KeyRangeAnswer(KeyRangeAnswer {
            node: rng.node(),
            incarnation: rng.incarnation(),
            spans: rng.list(4, |r| KeySpan {
                pool: PoolId(r.u32()),
                first: r.hash_slot(),
                last: r.hash_slot(),
                data: r.yes(),
            }),
        }),
        _ => files(rng, opcode, kind),
    }
}

fn files(rng: &mut Rng, opcode: Opcode, kind: u64) -> Message {
    match opcode {
        Opcode::FileRead => Message::FileRead(file_read(rng)),
        Opcode::FileBytes => Message::FileBytes(FileBytes {
            bytes: (kind == 0).then(|| rng.bytes(60)),
        }),
        Opcode::FileFetch => Message::FileFetch(FileFetch {
            read: file_read(rng),
            size: rng.next(),
            dataset: rng.text(),
            path: rng.bytes(30),
            version: rng.text(),
        }),
        Opcode::FilePut => Message::FilePut(FilePut {
            pool: PoolId(rng.u32()),
            file: file_id(rng),
            size: rng.next(),
            from: rng.next(),
            bytes: rng.bytes(60),
            forwarded: rng.yes(),
        }),
        Opcode::FileKeys => Message::FileKeys(FileKeys {
            pool: PoolId(rng.u32()),
            bucket: rng.u32(),
            before: rng.u32(),
        }),
        Opcode::FileKeysAnswer => Message::FileKeysAnswer(FileKeysAnswer {
            holds: rng.yes(),
            keys: rng.list(3, file_key),
            next: rng.u32(),
        }),
        Opcode::FileCheck => Message::FileCheck(FileCheck {
            pool: PoolId(rng.u32()),
            from: rng.u32(),
        }),
        Opcode::FileChecked => Message::FileChecked(FileChecked {
            next: rng.u32(),
            bytes: rng.next(),
            damaged: rng.u32(),
        }),
        _ => changed_files(rng, opcode, kind),
    }
}

fn changed_files(rng: &mut Rng, opcode: Opcode, kind: u64) -> Message {
    match opcode {
        Opcode::FileChanges => Message::FileChanges(FileChanges {
            pool: PoolId(rng.u32()),
            since: rng.next(),
            from: rng.u32(),
        }),
        Opcode::FileChangesAnswer => Message::FileChangesAnswer(FileChangesAnswer {
            incarnation: rng.incarnation(),
            number: rng.next(),
            next: rng.u32(),
            entries: rng.list(3, |r| FileChange {
                entry: r.u32(),
                key: file_key(r),
            }),
        }),
        Opcode::FileLost => Message::FileLost(FileLost {
            pool: PoolId(rng.u32()),
            file: file_id(rng),
            stretch: rng.u32(),
            parts: file_parts(rng),
            named: (kind == 0).then(|| FileNamed {
                size: rng.next(),
                dataset: rng.text(),
                path: rng.bytes(30),
                version: rng.text(),
            }),
        }),
        Opcode::FileLostAnswer => Message::FileLostAnswer(FileLostAnswer {
            missing: file_parts(rng),
        }),
        Opcode::FileUse => Message::FileUse(FileUse {
            dataset: rng.text(),
            by: rng.text(),
        }),
        Opcode::FileAway => Message::FileAway(FileAway {
            dataset: rng.text(),
            by: rng.text(),
            for_ms: rng.next(),
            why: rng.text(),
        }),
        _ => directory(rng, opcode, kind),
    }
}

fn file_id(rng: &mut Rng) -> FileId {
    FileId {
        high: rng.next(),
        low: rng.next(),
    }
}

fn file_key(rng: &mut Rng) -> FileKey {
    FileKey {
        file: file_id(rng),
        block: rng.u32(),
        bytes: rng.u32(),
        parts: rng.u32(),
    }
}

fn file_parts(rng: &mut Rng) -> FileParts {
    FileParts {
        low: rng.next(),
        high: rng.next(),
    }
}

fn file_read(rng: &mut Rng) -> FileRead {
    FileRead {
        pool: PoolId(rng.u32()),
        file: file_id(rng),
        from: rng.next(),
        len: rng.u32(),
    }
}

fn hello(rng: &mut Rng, kind: u64) -> Hello {
    Hello {
        cluster: ClusterId(rng.next()),
        node: rng.node(),
        incarnation: rng.incarnation(),
        role: [Role::Node, Role::Client, Role::Admin][kind as usize],
        version_min: 1,
        version_max: rng.next() as u8,
        features: rng.next(),
        credentials: rng.bytes(20),
    }
}

fn directory(rng: &mut Rng, opcode: Opcode, kind: u64) -> Message {
    match opcode {
        Opcode::Raft => Message::Raft(Raft {
            kind: [RaftKind::Append, RaftKind::Vote, RaftKind::Snapshot][kind as usize],
            body: rng.bytes(40),
        }),
        Opcode::RaftAnswer => Message::RaftAnswer(RaftAnswer {
            body: rng.bytes(40),
        }),
        Opcode::Propose => Message::Propose(Propose {
            expected: rng.option(|r| Revision(r.next())),
            change: rng.bytes(40),
        }),
        Opcode::Proposed => Message::Proposed(match kind {
            0 => Proposed::Applied {
                revision: Revision(rng.next()),
                outcome: rng.bytes(40),
            },
            1 => Proposed::Refused {
                revision: Revision(rng.next()),
                reason: rng.text(),
            },
            _ => Proposed::NotLeader {
                leader: rng.option(|r| (r.node(), r.text())),
            },
        }),
        Opcode::GetMap => Message::GetMap(GetMap {
            known: Revision(rng.next()),
            wait_ms: rng.u32(),
        }),
        Opcode::MapAnswer => Message::MapAnswer(MapAnswer {
            revision: Revision(rng.next()),
            map: rng.option(|r| r.bytes(40)),
        }),
        Opcode::Report => Message::Report(Report {
            from: rng.node(),
            incarnation: rng.incarnation(),
            seen: rng.list(4, |r| {
                let kind = r.below(4);
                Evidence {
                    node: r.node(),
                    incarnation: r.incarnation(),
                    sign: sign(kind),
                }
            }),
        }),
        other => panic!("no sample is made of {other:?}: add it here, so that it is tested"),
    }
}

fn sign(kind: u64) -> Sign {
    match kind {
        0 => Sign::Silent,
        1 => Sign::Refused,
        2 => Sign::Failed,
        _ => Sign::Alive,
    }
}

fn pool(rng: &mut Rng) -> PoolRef {
    if rng.yes() {
        PoolRef::Id(PoolId(rng.u32()))
    } else {
        PoolRef::Name(rng.text())
    }
}

fn service(rng: &mut Rng, kind: u64) -> ServiceRequest {
    let of_cache = kind < CACHE_OPS;
    let (service, first, kinds) = match of_cache {
        true => (ServiceId::CACHE, kind, CACHE_OPS),
        false => (ServiceId::MEMORY, kind - CACHE_OPS, MEMORY_OPS),
    };
    let op = |rng: &mut Rng, kind| match of_cache {
        true => cache_op(rng, kind),
        false => memory_op(rng, kind),
    };
    let first = op(rng, first);
    let mut ops = rng.list(3, |r| {
        let kind = r.below(kinds);
        op(r, kind)
    });
    ops.insert(0, first);
    ServiceRequest {
        revision: Revision(rng.next()),
        service,
        pool: pool(rng),
        client: ClientId(rng.next()),
        floor: rng.next(),
        retry: rng.yes(),
        forwarded: rng.yes(),
        ops,
        answer_bytes_max: rng.u32(),
        strict: rng.yes(),
    }
}

fn cache_op(rng: &mut Rng, kind: u64) -> NumberedOp {
    let key = rng.bytes(20);
    let conditions = [Condition::Always, Condition::IfAbsent, Condition::IfPresent];
    let op = match kind {
        0 => OwnedOp::Get { key },
        1 => OwnedOp::Set {
            key,
            value: rng.bytes(60),
            condition: conditions[rng.below(3) as usize],
            get_old: rng.yes(),
        },
        2 => OwnedOp::Del { key },
        3 => OwnedOp::Exists { key },
        4 => OwnedOp::IncrBy {
            key,
            by: rng.next() as i64,
        },
        5 => OwnedOp::Append {
            key,
            value: rng.bytes(60),
        },
        6 => OwnedOp::StrLen { key },
        _ => OwnedOp::GetDel { key },
    };
    NumberedOp {
        to: Address::Slot(rng.hash_slot()),
        ..op.numbered(rng.next())
    }
}

fn volume_op(rng: &mut Rng, kind: u64, offset: u64) -> Action {
    match kind {
        5 => Action::Put {
            image: rng.u32(),
            session: rng.next(),
            offset,
            bytes: rng.bytes(60),
        },
        6 => Action::Zero {
            image: rng.u32(),
            session: rng.next(),
            offset,
            len: rng.u32(),
        },
        7 => Action::Fence {
            image: rng.u32(),
            session: rng.next(),
        },
        8 => Action::Allocated {
            image: rng.u32(),
            offset,
            len: rng.u32(),
        },
        9 => Action::Copy {
            of: rng.u32(),
            session: rng.next(),
            image: rng.u32(),
        },
        10 => Action::Drop { image: rng.u32() },
        12 => Action::Sync {
            image: rng.u32(),
            session: rng.next(),
        },
        _ => Action::Changed {
            image: rng.u32(),
            since: rng.u32(),
            offset,
            len: rng.u32(),
        },
    }
}

fn memory_op(rng: &mut Rng, kind: u64) -> NumberedOp {
    let offset = rng.next();
    let action = match kind {
        0 => Action::Read {
            image: rng.u32(),
            offset,
            len: rng.u32(),
        },
        1 => Action::Write {
            offset,
            bytes: rng.bytes(60),
        },
        4 => Action::Load {
            offset,
            bytes: rng.bytes(60),
        },
        5..=11 => volume_op(rng, kind, offset),
        2 => Action::CompareSwap {
            offset,
            expected: rng.next(),
            new: rng.next(),
        },
        _ => Action::FetchAdd {
            offset,
            by: rng.next(),
        },
    };
    NumberedOp {
        number: rng.next(),
        to: Address::Bucket(GroupId(rng.u32()), rng.slot()),
        body: action.into_body(&mut BytesMut::new()),
    }
}

pub fn answer(rng: &mut Rng, kind: u64) -> Answer {
    match kind {
        0 => Answer::Nil,
        1 => Answer::Ok,
        2 => Answer::Int(rng.next() as i64),
        3 => Answer::Value(rng.bytes(60)),
        _ => {
            let code = ErrorCode::ALL[rng.below(ErrorCode::ALL.len() as u64) as usize];
            Answer::error(code, rng.text())
        }
    }
}

fn batch(rng: &mut Rng, kind: u64) -> Batch {
    let first = envelope(rng, kind);
    let mut all = rng.list(2, |r| {
        let kind = r.below(8);
        envelope(r, kind)
    });
    all.insert(0, first);
    Batch(all)
}

pub fn envelope(rng: &mut Rng, kind: u64) -> GroupEnvelope {
    GroupEnvelope {
        group: GroupId(rng.u32()),
        epoch: rng.epoch(),
        from: rng.member(),
        to: rng.disk(),
        message: group_message(rng, kind),
    }
}

fn group_message(rng: &mut Rng, kind: u64) -> GroupMessage {
    let slot = rng.slot();
    let (want_extents, pages) = (rng.u32(), rng.u32());
    match kind {
        0 => GroupMessage::Deltas {
            stream: rng.below(32) as u8,
            deltas: rng.list(3, delta),
            stable: rng.next(),
            purgeable: rng.next(),
            last: rng.next(),
            clock: Time(rng.next()),
            want_extents,
        },
        1 => GroupMessage::Ack {
            slot,
            stream: rng.below(32) as u8,
            prefix: rng.next(),
            synced: rng.next(),
            gap: rng.yes(),
            clock: Time(rng.next()),
            promise: rng.yes(),
            granted_extents: rng.u32(),
            rests: rng.yes(),
        },
        2 => GroupMessage::Seal {
            group: group(rng),
            released: rng.u32(),
        },
        3 => GroupMessage::Sealed {
            slot,
            streams: rng.list(2, |r| SealedStream {
                stream: r.below(32) as u8,
                prefix: r.next(),
                deltas: r.list(3, delta),
                requests: r.list(3, done_request),
                forgot: r.yes(),
            }),
            reserved_extents: want_extents,
            restarted: true,
            pages,
        },
        4 => GroupMessage::Sync {
            group: group(rng),
            slot,
            streams: rng.list(2, |r| SyncStream {
                stream: r.below(32) as u8,
                cut: r.next(),
                deltas: r.list(3, delta),
                requests: r.list(3, done_request),
                forgot: r.yes(),
            }),
            reserve_extents: want_extents,
            pages,
        },
        5 => GroupMessage::Synced {
            slot,
            able: rng.yes(),
        },
        6 => GroupMessage::Get {
            page: rng.u32(),
            count: rng.u32(),
            urgent: rng.yes(),
            held: rng.list(3, Rng::label),
        },
        _ => GroupMessage::Parts {
            slot,
            parts: rng.list(3, part),
        },
    }
}

fn request_id(rng: &mut Rng) -> RequestId {
    RequestId {
        client: ClientId(rng.next()),
        number: rng.next(),
        floor: rng.next(),
    }
}

fn delta(rng: &mut Rng) -> Delta {
    let mut bytes = Vec::new();
    let runs = rng.list(3, |r| Run {
        offset: r.below(1 << 40),
        len: r.below(50) as u32,
        kind: if r.yes() {
            RunKind::Bytes
        } else {
            RunKind::Zero
        },
    });
    for run in runs.iter().filter(|run| run.kind == RunKind::Bytes) {
        bytes.extend((0..run.len).map(|_| rng.next() as u8));
    }
    Delta {
        label: rng.label(),
        request: rng.option(request_id),
        answer: rng.bytes(3),
        runs,
        bytes: bytes.into(),
    }
}

fn done_request(rng: &mut Rng) -> DoneRequest {
    DoneRequest {
        request: request_id(rng),
        seq: rng.next(),
        answer: rng.bytes(3),
    }
}

fn part(rng: &mut Rng) -> PagePart {
    PagePart {
        page: rng.u32(),
        labels: rng.list(3, |r| r.option(Rng::label)).into(),
        content: match rng.below(3) {
            0 => PageContent::Zero,
            1 => PageContent::Held,
            _ => PageContent::Bytes(Bytes::from(vec![rng.next() as u8; PAGE_BYTES])),
        },
    }
}

fn group(rng: &mut Rng) -> Arc<Group> {
    let member = |r: &mut Rng| Member {
        id: r.member(),
        complete: r.yes(),
    };
    let m = 1 + rng.below(2) as u8;
    let width = usize::from(m) + 1 + rng.below(2) as usize;
    let members = |r: &mut Rng| (0..width).map(|_| r.option(member)).collect::<Vec<_>>();
    Arc::new(Group {
        id: GroupId(rng.u32()),
        pool: PoolId(rng.u32()),
        bucket: rng.u32(),
        m,
        epoch: rng.epoch(),
        open: rng.yes(),
        coordinator: MemberSlot(rng.below(width as u64) as u8),
        members: members(rng),
        kept: (0..width)
            .map(|_| rng.option(|r| MemberSlot(r.below(width as u64) as u8)))
            .collect(),
        fresh: rng.yes(),
        last_open: LastOpen {
            epoch: rng.epoch(),
            members: members(rng),
        },
        lost: rng.yes(),
        revision: Revision(rng.next()),
    })
}
