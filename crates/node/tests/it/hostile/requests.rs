//! Requests of clients and tools, with contents that make no sense.

use bytes::{Bytes, BytesMut};
use staves_files::FileVersion;
use staves_model::{
    Change, ClientId, Epoch, GroupId, HashSlot, Holder, Holdings, Incarnation, Label, Medium,
    MemberSlot, NodeId, Pin, PoolId, PoolKind, Revision, Scheme, ServiceId,
};
use staves_wire::Message;
use staves_wire::admin::{GroupMend, GroupSums, GroupTarget, NodeTarget};
use staves_wire::cache::{CacheStats, Condition, OwnedOp};
use staves_wire::directory::{Evidence, GetMap, Propose, Report, Sign};
use staves_wire::files::{
    FileAway, FileChanges, FileCheck, FileFetch, FileId, FileKeys, FileLost, FileNamed, FileParts,
    FilePut, FileRead, FileUse,
};
use staves_wire::memory::Action;
use staves_wire::service::{Address, Body, NumberedOp, PoolRef, ServiceRequest};

use super::{NOBODY, NUMBERS, Served};
use crate::files::POOL;

pub fn fetch(read: &FileRead, size: u64) -> Message {
    Message::FileFetch(FileFetch {
        read: read.clone(),
        size,
        dataset: "data".into(),
        path: Bytes::from_static(b"a"),
        version: "v".into(),
    })
}

pub fn cache(served: &Served) -> Vec<Message> {
    let map = served.cluster.nodes[0].map();
    let id = |name: &str| PoolRef::Id(map.pool_named(name).expect("there").id);
    let long = PoolRef::Name("x".repeat(60_000));
    let pools = [
        id("cache"),
        id("memory"),
        id(POOL),
        PoolRef::Id(PoolId(u32::MAX)),
        long,
    ];
    let (key, value) = (Bytes::from_static(b"x"), Bytes::from(vec![7; 100_000]));
    let ops = [
        OwnedOp::Get { key: Bytes::new() },
        OwnedOp::Get {
            key: Bytes::from(vec![b'k'; 64 << 10]),
        },
        OwnedOp::IncrBy {
            key: key.clone(),
            by: i64::MIN,
        },
        OwnedOp::Append {
            key: key.clone(),
            value: value.clone(),
        },
        OwnedOp::Set {
            key,
            value,
            condition: Condition::IfPresent,
            get_old: true,
        },
    ];
    let mut all = Vec::new();
    for pool in &pools {
        for number in NUMBERS {
            let op = |op: &OwnedOp| NumberedOp {
                to: Address::Slot(HashSlot(16_383)),
                ..op.clone().numbered(number)
            };
            all.push(Message::Service(ServiceRequest {
                revision: Revision(number),
                service: ServiceId::CACHE,
                pool: pool.clone(),
                client: ClientId(number),
                floor: u64::MAX,
                retry: number.is_multiple_of(2),
                forwarded: number > 1,
                answer_bytes_max: number as u32,
                strict: false,
                ops: ops.iter().map(op).collect(),
            }));
        }
        all.push(Message::CacheStats(CacheStats { pool: pool.clone() }));
    }
    all
}

pub fn memory(groups: &[GroupId]) -> Vec<Message> {
    let mut ops = Vec::new();
    for group in groups.iter().chain(&[GroupId(0), GroupId(u32::MAX)]) {
        for slot in [0, 1, 2, 31, 32, 254, 255].map(MemberSlot) {
            for offset in NUMBERS
                .into_iter()
                .skip(2)
                .chain([(64 << 20) - 1, 64 << 20])
            {
                let actions = [
                    Action::Read {
                        image: 0,
                        offset,
                        len: u32::MAX,
                    },
                    Action::Read {
                        image: 0,
                        offset,
                        len: 0,
                    },
                    Action::Allocated {
                        image: 0,
                        offset,
                        len: u32::MAX,
                    },
                    Action::Allocated {
                        image: 0,
                        offset,
                        len: 0,
                    },
                    Action::Write {
                        offset,
                        bytes: Bytes::from_static(b"lies"),
                    },
                    Action::Write {
                        offset,
                        bytes: Bytes::new(),
                    },
                    Action::CompareSwap {
                        offset,
                        expected: 0,
                        new: u64::MAX,
                    },
                    Action::FetchAdd {
                        offset,
                        by: u64::MAX,
                    },
                ];
                let number = offset | 1;
                ops.extend(actions.map(|action| NumberedOp {
                    number,
                    to: Address::Bucket(*group, slot),
                    body: action.into_body(&mut BytesMut::new()),
                }));
            }
        }
    }
    // Bodies that are no operation; addresses and services that do not fit.
    let body = |head: &'static [u8]| Body {
        head: Bytes::from_static(head),
        payload: Bytes::from_static(b"more"),
    };
    let odd = [&[][..], &[99], &[0; 9], &[1; 9], &[2; 30]].map(body);
    let slots = [0, 7, 16_383].map(|slot| Address::Slot(HashSlot(slot)));
    let some = groups.iter().map(|g| Address::Bucket(*g, MemberSlot(0)));
    let odd: Vec<NumberedOp> = (slots.into_iter().chain(some))
        .flat_map(|to| {
            odd.clone().map(|body| NumberedOp {
                number: 1,
                to,
                body,
            })
        })
        .collect();
    let request = |(service, pool): (u8, u32), forwarded, ops: &[NumberedOp]| {
        Message::Service(ServiceRequest {
            revision: Revision(u64::MAX),
            service: ServiceId(service),
            pool: PoolRef::Id(PoolId(pool)),
            client: ClientId(u64::MAX),
            floor: u64::MAX,
            retry: false,
            forwarded,
            answer_bytes_max: 0,
            strict: false,
            ops: ops.to_vec(),
        })
    };
    let mut all = Vec::new();
    for service in [0, 1, 2, 3, 255] {
        for pool in [0, 1, 2, 3, 4, u32::MAX] {
            all.push(request((service, pool), true, &odd));
            all.push(request((service, pool), false, &[]));
            if service == 2 {
                all.push(request((service, pool), true, &ops));
                all.push(request((service, pool), false, &ops));
            }
        }
    }
    all
}

pub fn of_files(served: &Served) -> Vec<Message> {
    let map = served.cluster.nodes[0].map();
    let id = |name: &str| map.pool_named(name).expect("there").id;
    let file = FileId { high: 1, low: 2 };
    let mut all = Vec::new();
    for pool in [id(POOL), id("cache"), PoolId(u32::MAX)] {
        for from in NUMBERS
            .into_iter()
            .chain([(1 << 50) - (1 << 18), 1 << 50, 1 << 18])
        {
            for len in [0, 1, 8192, (1 << 20) - 1, 1 << 20, u32::MAX] {
                let read = FileRead {
                    pool,
                    file,
                    from,
                    len,
                };
                all.extend([
                    fetch(&read, 0),
                    fetch(&read, u64::MAX),
                    Message::FileRead(read),
                ]);
                if [0, 1, 8192, 1 << 20].contains(&len) {
                    for size in [from, u64::MAX] {
                        let bytes = Bytes::from(vec![3; len as usize]);
                        let forwarded = len.is_multiple_of(2);
                        all.push(Message::FilePut(FilePut {
                            pool,
                            file,
                            size,
                            from,
                            bytes,
                            forwarded,
                        }));
                    }
                }
            }
        }
        for number in [0, 1, 1 << 30, u32::MAX / 4, u32::MAX - 1, u32::MAX] {
            let since = u64::from(number) << 32;
            all.push(Message::FileKeys(FileKeys {
                pool,
                bucket: number,
                before: number / 2,
            }));
            all.push(Message::FileCheck(FileCheck { pool, from: number }));
            all.push(Message::FileChanges(FileChanges {
                pool,
                since,
                from: number,
            }));
            let lost = |named| {
                let parts = FileParts {
                    low: u64::MAX,
                    high: u64::MAX,
                };
                Message::FileLost(FileLost {
                    pool,
                    file,
                    stretch: number,
                    parts,
                    named,
                })
            };
            all.extend([lost(None), lost(Some(named("data", b"a", u64::MAX)))]);
        }
        all.push(Message::FileKeys(FileKeys {
            pool,
            bucket: 0,
            before: 0,
        }));
        // Paths that lead out of the dataset, with their own digests.
        for path in [
            &b"../../../../etc/passwd"[..],
            b"/etc/passwd",
            b"a/../a",
            b"",
            b"a\0b",
            &[b'x'; 60_000],
        ] {
            let FileNamed {
                dataset,
                path,
                size,
                version,
            } = named("data", path, 100);
            let whole = FileVersion {
                dataset: dataset.clone(),
                path: path.to_vec(),
                size,
                version: version.clone(),
            };
            let read = FileRead {
                pool,
                file: whole.id(),
                from: 0,
                len: 100,
            };
            all.push(Message::FileFetch(FileFetch {
                read,
                size,
                dataset,
                path,
                version,
            }));
        }
    }
    let long = || "y".repeat(60_000);
    all.push(Message::FileUse(FileUse {
        dataset: long(),
        by: long(),
    }));
    for why in [long(), String::new()] {
        all.push(Message::FileAway(FileAway {
            dataset: "data".into(),
            by: "nowhere".into(),
            for_ms: u64::MAX,
            why,
        }));
    }
    all
}

fn named(dataset: &str, path: &[u8], size: u64) -> FileNamed {
    FileNamed {
        size,
        dataset: dataset.into(),
        path: Bytes::copy_from_slice(path),
        version: "v".into(),
    }
}

pub fn of_tools(groups: &[GroupId]) -> Vec<Message> {
    let mut all = vec![
        Message::GetMap(GetMap {
            known: Revision(u64::MAX),
            wait_ms: 1,
        }),
        Message::Report(report(10_000)),
    ];
    for node in [NOBODY, NodeId(0), NodeId(u64::MAX), NodeId(1 << 63)] {
        let target = NodeTarget { node };
        all.extend([
            Message::KeyRange(target),
            Message::NodeDrain(target),
            Message::NodeResume(target),
        ]);
        all.extend([Message::NodeStop(target), Message::NodeStopForced(target)]);
    }
    let label = |n: u64| {
        Some(Label {
            epoch: Epoch(n),
            seq: n,
        })
    };
    for group in groups
        .iter()
        .copied()
        .chain([GroupId(0), GroupId(u32::MAX)])
    {
        all.push(Message::GroupState(GroupTarget { group }));
        for slot in [0, 1, 2, 40, 255].map(MemberSlot) {
            for page in [0, 1 << 20, u32::MAX] {
                all.push(Message::GroupSums(GroupSums {
                    group,
                    slot,
                    page,
                    count: u32::MAX,
                }));
                let labels = vec![label(u64::MAX); 300];
                all.push(Message::GroupMend(GroupMend {
                    group,
                    slot,
                    page,
                    labels,
                }));
            }
        }
    }
    all
}

fn report(many: u64) -> Report {
    let of = |n: u64| Evidence {
        node: NodeId(u64::MAX - n),
        incarnation: Incarnation(n),
        sign: Sign::Silent,
    };
    Report {
        from: NOBODY,
        incarnation: Incarnation(u64::MAX),
        seen: (0..many).map(of).collect(),
    }
}

pub fn proposals() -> Vec<Message> {
    let pool =
        |name: &str, kind: PoolKind, m: u8, k: u8, bytes: u64, buckets: u32| Change::CreatePool {
            name: name.into(),
            kind,
            scheme: Scheme { m, k },
            medium: Medium::Ram,
            node_budget_bytes: bytes,
            buckets,
            may_start_empty: true,
        };
    let (long, holder) = (
        "n".repeat(60_000),
        Holder {
            node: NOBODY,
            incarnation: Incarnation(1),
            leaving: false,
        },
    );
    let held = Holdings {
        buckets: vec![vec![holder; 3]; 8],
        ..Holdings::default()
    };
    let pin = |path: &[u8], size: u64| Pin {
        dataset: "data".into(),
        path: path.to_vec(),
        size,
        version: "v".into(),
    };
    let (drain, dataset) = (
        Change::Drain {
            node: NOBODY,
            on: true,
        },
        "data".to_owned(),
    );
    let changes = [
        pool("p", PoolKind::Cache, 255, 255, u64::MAX, u32::MAX),
        pool("p", PoolKind::Cache, 1, 255, 1 << 20, 1 << 31),
        pool("p", PoolKind::Cache, 0, 0, 0, 0),
        pool("", PoolKind::Cache, 1, 0, 1 << 26, 16),
        pool(&long, PoolKind::Cache, 1, 0, 1 << 26, 16),
        pool(
            "p",
            PoolKind::Memory {
                regions: Vec::new(),
            },
            32,
            8,
            1 << 26,
            u32::MAX,
        ),
        pool("p", PoolKind::Files(held), 1, 0, 1 << 26, 8),
        pool("p", PoolKind::Files(Holdings::default()), 1, 0, 1 << 26, 3),
        Change::SetPool {
            name: "cache".into(),
            scheme: Some(Scheme { m: 2, k: 255 }),
            node_budget_bytes: Some(0),
        },
        Change::CreateRegion {
            pool: "memory".into(),
            name: "s".into(),
            size_bytes: u64::MAX,
        },
        Change::CreateRegion {
            pool: "cache".into(),
            name: "s".into(),
            size_bytes: 1,
        },
        Change::CreateRegion {
            pool: "memory".into(),
            name: long.clone(),
            size_bytes: 1,
        },
        Change::GrowRegion {
            name: "r".into(),
            size_bytes: u64::MAX,
        },
        Change::GrowRegion {
            name: "r".into(),
            size_bytes: 0,
        },
        Change::DeleteRegion { name: long.clone() },
        Change::SetDataset {
            pool: POOL.into(),
            name: long.clone(),
            source: "/".into(),
        },
        Change::SetDataset {
            pool: POOL.into(),
            name: "d".into(),
            source: long.clone(),
        },
        Change::SetDataset {
            pool: POOL.into(),
            name: "data".into(),
            source: "/etc".into(),
        },
        Change::DropDataset { name: long },
        Change::PinFiles(vec![pin(b"a", u64::MAX), pin(b"b", u64::MAX)]),
        Change::PinFiles(vec![pin(&[0; 5000], 1)]),
        Change::PinFiles((0..2000u32).map(|n| pin(&n.to_le_bytes(), 1)).collect()),
        Change::UnpinFiles {
            dataset,
            paths: vec![Vec::new(); 10_000],
        },
        Change::ForgetNode { node: NOBODY },
        drain,
        Change::CommitEpochs(Vec::new()),
    ];
    let mut all = Vec::new();
    for change in changes {
        let change = Bytes::from(postcard::to_allocvec(&change).expect("it encodes"));
        for expected in [None, Some(Revision(u64::MAX))] {
            all.push(Message::Propose(Propose {
                expected,
                change: change.clone(),
            }));
        }
        // Cut off, and with counts that nothing stands behind.
        let cut = change.slice(..change.len() / 2);
        let counts = [&change[..1], &[0xFF; 9]].concat().into();
        all.extend([cut, counts].map(|change| {
            Message::Propose(Propose {
                expected: None,
                change,
            })
        }));
    }
    all
}
