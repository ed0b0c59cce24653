//! Metrics: every name, type, unit and meaning in one list, [`all`]. The page that is served and the
//! reference are both made from it. Names are stable; what is asked for is counted then.

mod logs;
mod page;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use staves_net::PeerStats;

use crate::disk::DiskFacts;
use crate::door::state::DoorState;
use crate::host::figures::Figures;
use crate::log::ServedLog;
use crate::running::Running;
use crate::status::PoolFacts;
use crate::volumes::{ServedVolume, VolumeOp, VolumeOpFigures};

pub(crate) use self::page::text;

/// One metric of a node.
pub struct Metric {
    /// Its name on the page.
    pub name: &'static str,
    /// Prometheus's type.
    pub kind: MetricKind,
    /// The unit of its value.
    pub unit: &'static str,
    /// Its meaning, in a sentence.
    pub help: &'static str,
    value: Value,
}

/// Prometheus's types, as far as they are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetricKind {
    /// Only grows, from the node's start.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Durations in buckets, each of which counts those below it too.
    Histogram,
}

impl MetricKind {
    /// The word on the page.
    pub fn word(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

impl Metric {
    /// The labels by which it is split, each with its values (`NAME` for those of a cluster's pools, datasets, volumes or logs); none
    /// where it is one number.
    pub fn labels(&self) -> Vec<(&'static str, Vec<&'static str>)> {
        match self.value {
            Value::One(_) => Vec::new(),
            Value::By(label, parts) => vec![(label, parts.iter().map(|(of, _)| *of).collect())],
            Value::ByPool(_) => vec![("pool", vec!["NAME"])],
            Value::ByDataset(_) => vec![("dataset", vec!["NAME"])],
            Value::ByVolume(_) => vec![("volume", vec!["NAME"])],
            Value::ByLog(_) => vec![("pool", vec!["NAME"]), ("log", vec!["NAME"])],
            Value::ByVolumeOp(_) | Value::VolumeSeconds => {
                let ops = VolumeOp::ALL.map(VolumeOp::word).to_vec();
                vec![("volume", vec!["NAME"]), ("op", ops)]
            }
        }
    }
}

type Count = fn(&Scrape<'_>) -> u64;

enum Value {
    One(Count),
    By(&'static str, &'static [(&'static str, Count)]),
    ByPool(fn(&PoolFacts) -> u64),
    ByDataset(fn(&Running) -> Vec<(String, u64)>),
    ByVolume(fn(&ServedVolume) -> u64),
    ByLog(fn(&ServedLog) -> u64),
    ByVolumeOp(fn(&VolumeOpFigures) -> u64),
    /// The time of requests, in histograms.
    VolumeSeconds,
}

/// A node's state at one moment.
struct Scrape<'a> {
    running: &'a Running,
    door: &'a DoorState,
    figures: Figures,
    directory: staves_directory::Status,
    /// The directory's leader, if one has answered recently.
    leader: Option<u64>,
    links: Vec<PeerStats>,
    /// Memory that the pools with buckets take.
    pools: Vec<PoolFacts>,
    disk: DiskFacts,
    volumes: Vec<Arc<ServedVolume>>,
    /// The logs whose sequencers are here, those that were used last.
    logs: Vec<ServedLog>,
}

/// All metrics, in the order of the page.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    METRICS.iter().chain(logs::METRICS)
}

const METRICS: &[Metric] = &[
    Metric {
        name: "staves_resp_commands_total",
        kind: MetricKind::Counter,
        unit: "commands",
        help: "Commands taken on the RESP door.",
        value: Value::One(|s| now(&s.door.commands_total)),
    },
    Metric {
        name: "staves_resp_connections_total",
        kind: MetricKind::Counter,
        unit: "connections",
        help: "Connections accepted on the RESP door.",
        value: Value::One(|s| now(&s.door.connections_total)),
    },
    Metric {
        name: "staves_resp_connections_rejected_total",
        kind: MetricKind::Counter,
        unit: "connections",
        help: "Connections refused because clients_max were open, or all file descriptors but the reserve.",
        value: Value::One(|s| s.door.rejected.total()),
    },
    Metric {
        name: "staves_resp_connections",
        kind: MetricKind::Gauge,
        unit: "connections",
        help: "Connections open on the RESP door.",
        value: Value::One(|s| u64::from(s.door.connections.load(Ordering::Relaxed))),
    },
    Metric {
        name: "staves_nbd_connections",
        kind: MetricKind::Gauge,
        unit: "connections",
        help: "Connections open on the NBD door.",
        value: Value::One(|s| u64::from(s.running.clients.nbd.connections.load(Ordering::Relaxed))),
    },
    Metric {
        name: "staves_nbd_connections_total",
        kind: MetricKind::Counter,
        unit: "connections",
        help: "Connections accepted on the NBD door.",
        value: Value::One(|s| now(&s.running.clients.nbd.connections_total)),
    },
    Metric {
        name: "staves_nbd_connections_rejected_total",
        kind: MetricKind::Counter,
        unit: "connections",
        help: "NBD connections refused because clients_max were open, or all file descriptors but the reserve.",
        value: Value::One(|s| s.running.clients.nbd.rejected.total()),
    },
    Metric {
        name: "staves_nbd_requests_total",
        kind: MetricKind::Counter,
        unit: "requests",
        help: "Requests done on the NBD door.",
        value: Value::By(
            "kind",
            &[
                ("read", |s| now(&s.running.clients.nbd.reads_total)),
                ("write", |s| now(&s.running.clients.nbd.writes_total)),
            ],
        ),
    },
    Metric {
        name: "staves_nbd_bytes_total",
        kind: MetricKind::Counter,
        unit: "bytes",
        help: "Bytes of volumes read and written on the NBD door.",
        value: Value::By(
            "kind",
            &[
                ("read", |s| now(&s.running.clients.nbd.read_bytes_total)),
                ("write", |s| now(&s.running.clients.nbd.written_bytes_total)),
            ],
        ),
    },
    Metric {
        name: "staves_volume_requests_total",
        kind: MetricKind::Counter,
        unit: "requests",
        help: "Requests of each volume that ended at this node's doors, NBD's and gRPC's, with an error or without. A volume is listed once a client has opened it here, until it is deleted.",
        value: Value::ByVolumeOp(VolumeOpFigures::requests_total),
    },
    Metric {
        name: "staves_volume_bytes_total",
        kind: MetricKind::Counter,
        unit: "bytes",
        help: "Bytes of those that were done: read, written, discarded or zeroed.",
        value: Value::ByVolumeOp(|op| now(&op.bytes_total)),
    },
    Metric {
        name: "staves_volume_errors_total",
        kind: MetricKind::Counter,
        unit: "requests",
        help: "Those of them that ended with an error.",
        value: Value::ByVolumeOp(|op| now(&op.errors_total)),
    },
    Metric {
        name: "staves_volume_request_seconds",
        kind: MetricKind::Histogram,
        unit: "seconds",
        help: "The time from when a request had come whole to when its answer was ready to be sent.",
        value: Value::VolumeSeconds,
    },
    Metric {
        name: "staves_volume_limit_waits_total",
        kind: MetricKind::Counter,
        unit: "requests",
        help: "Requests of each volume that waited at this node for the volume's limit. That wait is not in their time.",
        value: Value::ByVolume(|volume| now(&volume.throttle.waits_total)),
    },
    Metric {
        name: "staves_grpc_connections",
        kind: MetricKind::Gauge,
        unit: "connections",
        help: "Connections open on the gRPC door.",
        value: Value::One(|s| {
            u64::from(s.running.clients.grpc.connections.load(Ordering::Relaxed))
        }),
    },
    Metric {
        name: "staves_grpc_connections_total",
        kind: MetricKind::Counter,
        unit: "connections",
        help: "Connections accepted on the gRPC door.",
        value: Value::One(|s| now(&s.running.clients.grpc.connections_total)),
    },
    Metric {
        name: "staves_grpc_connections_rejected_total",
        kind: MetricKind::Counter,
        unit: "connections",
        help: "gRPC connections refused because as many as may were open (clients_max, 1,024 at most), or all file descriptors but the reserve.",
        value: Value::One(|s| s.running.clients.grpc.rejected.total()),
    },
    Metric {
        name: "staves_grpc_requests_total",
        kind: MetricKind::Counter,
        unit: "requests",
        help: "Requests done on the gRPC door.",
        value: Value::By(
            "kind",
            &[
                ("read", |s| now(&s.running.clients.grpc.reads_total)),
                ("write", |s| now(&s.running.clients.grpc.writes_total)),
            ],
        ),
    },
    Metric {
        name: "staves_grpc_bytes_total",
        kind: MetricKind::Counter,
        unit: "bytes",
        help: "Bytes of volumes read and written on the gRPC door.",
        value: Value::By(
            "kind",
            &[
                ("read", |s| now(&s.running.clients.grpc.read_bytes_total)),
                ("write", |s| {
                    now(&s.running.clients.grpc.written_bytes_total)
                }),
            ],
        ),
    },
    Metric {
        name: "staves_http_connections",
        kind: MetricKind::Gauge,
        unit: "connections",
        help: "Connections open on the HTTP door.",
        value: Value::One(|s| {
            u64::from(s.running.clients.http.connections.load(Ordering::Relaxed))
        }),
    },
    Metric {
        name: "staves_http_connections_total",
        kind: MetricKind::Counter,
        unit: "connections",
        help: "Connections accepted on the HTTP door.",
        value: Value::One(|s| now(&s.running.clients.http.connections_total)),
    },
    Metric {
        name: "staves_http_connections_rejected_total",
        kind: MetricKind::Counter,
        unit: "connections",
        help: "HTTP connections refused because as many as may were open (clients_max, 1,024 at most), or all file descriptors but the reserve.",
        value: Value::One(|s| s.running.clients.http.rejected.total()),
    },
    Metric {
        name: "staves_log_records_total",
        kind: MetricKind::Counter,
        unit: "records",
        help: "Records of logs appended and read on the gRPC and HTTP doors.",
        value: Value::By(
            "kind",
            &[
                ("append", |s| now(&s.running.clients.logs.appended_records)),
                ("read", |s| now(&s.running.clients.logs.read_records)),
            ],
        ),
    },
    Metric {
        name: "staves_log_bytes_total",
        kind: MetricKind::Counter,
        unit: "bytes",
        help: "Bytes of those records.",
        value: Value::By(
            "kind",
            &[
                ("append", |s| now(&s.running.clients.logs.appended_bytes)),
                ("read", |s| now(&s.running.clients.logs.read_bytes)),
            ],
        ),
    },
    Metric {
        name: "staves_log_followers",
        kind: MetricKind::Gauge,
        unit: "clients",
        help: "Clients that follow a log on the gRPC and HTTP doors.",
        value: Value::One(|s| now(&s.running.clients.logs.followers)),
    },
    Metric {
        name: "staves_log_handles",
        kind: MetricKind::Gauge,
        unit: "logs",
        help: "Logs that are open for the gRPC and HTTP doors.",
        value: Value::One(|s| now(&s.running.clients.logs.open)),
    },
    Metric {
        name: "staves_log_in_flight_bytes",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Memory that requests on logs, and their answers, hold at the gRPC and HTTP doors.",
        value: Value::One(|s| s.running.clients.logs.memory.held_bytes() as u64),
    },
    Metric {
        name: "staves_in_flight_bytes",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Bytes of requests and answers of clients that are under way, at all doors, beyond 4 KiB of each connection.",
        value: Value::One(|s| s.running.in_flight.held_bytes() as u64),
    },
    Metric {
        name: "staves_in_flight_bytes_max",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Most of them, before large requests wait.",
        value: Value::One(|s| s.running.in_flight.bytes_max() as u64),
    },
    Metric {
        name: "staves_log_bytes",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Updates that not every copy has received yet, in the logs of all buckets of this node.",
        value: Value::One(|s| s.running.host.options().group.node_logs.held_bytes() as u64),
    },
    Metric {
        name: "staves_request_table_bytes",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Bytes that the requests take which the node remembers for retries, and their answers, about.",
        value: Value::One(|_| staves_group::request_table_bytes() as u64),
    },
    Metric {
        name: "staves_in_flight_requests",
        kind: MetricKind::Gauge,
        unit: "requests",
        help: "Requests of clients that wait at this node, at both doors.",
        value: Value::One(|s| s.running.in_flight.requests.waiting() as u64),
    },
    Metric {
        name: "staves_in_flight_requests_max",
        kind: MetricKind::Gauge,
        unit: "requests",
        help: "Most of them, before others are refused.",
        value: Value::One(|s| s.running.in_flight.requests.max() as u64),
    },
    Metric {
        name: "staves_in_flight_requests_refused_total",
        kind: MetricKind::Counter,
        unit: "requests",
        help: "Requests of clients that were refused because as many waited as may.",
        value: Value::One(|s| s.running.in_flight.requests.refused_total()),
    },
    Metric {
        name: "staves_resp_read_bytes_total",
        kind: MetricKind::Counter,
        unit: "bytes",
        help: "Bytes read on the RESP door.",
        value: Value::One(|s| now(&s.door.read_bytes_total)),
    },
    Metric {
        name: "staves_resp_written_bytes_total",
        kind: MetricKind::Counter,
        unit: "bytes",
        help: "Bytes written on the RESP door.",
        value: Value::One(|s| now(&s.door.written_bytes_total)),
    },
    Metric {
        name: "staves_resp_detoured_operations_total",
        kind: MetricKind::Counter,
        unit: "operations",
        help: "Operations that took the way by another node or round a takeover.",
        value: Value::One(|s| now(&s.door.detoured_total)),
    },
    Metric {
        name: "staves_cache_buckets",
        kind: MetricKind::Gauge,
        unit: "buckets",
        help: "Buckets on this node, by what they do.",
        value: Value::By(
            "role",
            &[
                ("serving", |s| s.figures.serving),
                ("opening", |s| s.figures.waiting_to_serve),
                ("copy", |s| s.figures.parity),
            ],
        ),
    },
    Metric {
        name: "staves_cache_keys",
        kind: MetricKind::Gauge,
        unit: "keys",
        help: "Keys in the data buckets that this node serves.",
        value: Value::One(|s| s.figures.counter("cache_keys")),
    },
    Metric {
        name: "staves_cache_live_bytes",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Bytes of keys and values in the data buckets that this node serves.",
        value: Value::One(|s| s.figures.counter("cache_live_bytes")),
    },
    Metric {
        name: "staves_cache_reads_total",
        kind: MetricKind::Counter,
        unit: "operations",
        help: "Reads answered by this node's buckets.",
        value: Value::One(|s| s.figures.counter("cache_reads")),
    },
    Metric {
        name: "staves_cache_hits_total",
        kind: MetricKind::Counter,
        unit: "operations",
        help: "Reads that found a value.",
        value: Value::One(|s| s.figures.counter("cache_hits")),
    },
    Metric {
        name: "staves_cache_writes_total",
        kind: MetricKind::Counter,
        unit: "operations",
        help: "Writes that took effect in this node's buckets.",
        value: Value::One(|s| s.figures.counter("cache_writes")),
    },
    Metric {
        name: "staves_cache_requests_waiting",
        kind: MetricKind::Gauge,
        unit: "requests",
        help: "Requests that wait at a bucket for its copies or for its epoch.",
        value: Value::One(|s| s.figures.requests_waiting),
    },
    Metric {
        name: "staves_memory_written_bytes",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Bytes of the chunks of regions that were ever written, in the data buckets that this node serves.",
        value: Value::One(|s| s.figures.counter("memory_written_bytes")),
    },
    Metric {
        name: "staves_memory_reads_total",
        kind: MetricKind::Counter,
        unit: "operations",
        help: "Reads of regions answered by this node's data buckets.",
        value: Value::One(|s| s.figures.counter("memory_reads")),
    },
    Metric {
        name: "staves_memory_writes_total",
        kind: MetricKind::Counter,
        unit: "operations",
        help: "Writes to regions that took effect in this node's data buckets.",
        value: Value::One(|s| s.figures.counter("memory_writes")),
    },
    Metric {
        name: "staves_group_unstable_updates",
        kind: MetricKind::Gauge,
        unit: "updates",
        help: "Updates that not every copy has acknowledged.",
        value: Value::One(|s| s.figures.unstable),
    },
    Metric {
        name: "staves_group_missing_pages",
        kind: MetricKind::Gauge,
        unit: "pages of 4 KiB",
        help: "Pages that buckets of this node have yet to fetch.",
        value: Value::One(|s| s.figures.missing_pages),
    },
    Metric {
        name: "staves_group_filling_pages",
        kind: MetricKind::Gauge,
        unit: "pages of 4 KiB",
        help: "Pages of the buckets that are being filled.",
        value: Value::One(|s| s.figures.filling_pages),
    },
    Metric {
        name: "staves_group_filled_pages_per_second",
        kind: MetricKind::Gauge,
        unit: "pages of 4 KiB each second",
        help: "Pages that lately came in to buckets that are being filled.",
        value: Value::One(|s| s.running.host.fill_rate()),
    },
    Metric {
        name: "staves_store_used_bytes",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Bytes of pages that each pool of keys or regions has taken.",
        value: Value::ByPool(|pool| pool.used_bytes),
    },
    Metric {
        name: "staves_store_budget_bytes",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Bytes of pages that each of them may take.",
        value: Value::ByPool(|pool| pool.budget_bytes),
    },
    Metric {
        name: "staves_store_arena_bytes",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Bytes of pages that this node has for all pools.",
        value: Value::One(|s| s.running.host.arena().bytes()),
    },
    Metric {
        name: "staves_disk_bytes",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Bytes of pages that this node's disk takes for pools on disk; 0 without a disk.",
        value: Value::One(|s| s.disk.bytes),
    },
    Metric {
        name: "staves_disk_used_bytes",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Bytes of pages that the disk keeps.",
        value: Value::One(|s| s.disk.used_bytes),
    },
    Metric {
        name: "staves_disk_memory_bytes",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Bytes of the disk's pages that may be in memory.",
        value: Value::One(|s| s.disk.memory_bytes),
    },
    Metric {
        name: "staves_disk_in_memory_bytes",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Bytes of the disk's pages that are in memory.",
        value: Value::One(|s| s.disk.in_memory_bytes),
    },
    Metric {
        name: "staves_disk_page_reads_total",
        kind: MetricKind::Counter,
        unit: "pages",
        help: "Pages that were read from the disk because they were needed.",
        value: Value::One(|s| s.disk.page_reads),
    },
    Metric {
        name: "staves_disk_bad_pages_total",
        kind: MetricKind::Counter,
        unit: "pages",
        help: "Pages that could not be read from the disk, or were not what was written; their buckets were filled again.",
        value: Value::One(|s| s.disk.bad_pages),
    },
    Metric {
        name: "staves_disk_journal_bytes",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Bytes of the disk's journal.",
        value: Value::One(|s| s.disk.journal_bytes),
    },
    Metric {
        name: "staves_disk_journal_taken_bytes",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Bytes of it that hold records which a start would need; at half of it updates wait.",
        value: Value::One(|s| s.disk.journal_taken_bytes),
    },
    Metric {
        name: "staves_disk_journal_written_bytes_total",
        kind: MetricKind::Counter,
        unit: "bytes",
        help: "Bytes written to the journal since the disk was made.",
        value: Value::One(|s| s.disk.journal_written_bytes),
    },
    Metric {
        name: "staves_disk_syncs_total",
        kind: MetricKind::Counter,
        unit: "syncs",
        help: "Writes and syncs of the journal.",
        value: Value::One(|s| s.disk.syncs),
    },
    Metric {
        name: "staves_disk_syncs_microseconds_total",
        kind: MetricKind::Counter,
        unit: "microseconds",
        help: "Time that these took together.",
        value: Value::One(|s| s.disk.syncs_us),
    },
    Metric {
        name: "staves_disk_waiting_buckets",
        kind: MetricKind::Gauge,
        unit: "buckets",
        help: "Buckets that the disk has and that are served by nobody here.",
        value: Value::One(|s| s.disk.waiting),
    },
    Metric {
        name: "staves_files_used_bytes",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Bytes of blocks of files that are in memory.",
        value: Value::One(|s| s.files(|p| p.used_bytes())),
    },
    Metric {
        name: "staves_files_budget_bytes",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Bytes of blocks of files that may be in memory: what buckets leave of the pools' budgets.",
        value: Value::One(|s| s.files(|p| p.budget_bytes())),
    },
    Metric {
        name: "staves_files_hits_total",
        kind: MetricKind::Counter,
        unit: "reads",
        help: "Reads of files that other nodes and mounts asked for and that were in memory.",
        value: Value::One(|s| s.files(|p| p.counts.hits.load(Ordering::Relaxed))),
    },
    Metric {
        name: "staves_files_asked_bytes_total",
        kind: MetricKind::Counter,
        unit: "bytes",
        help: "Bytes of files that were asked for and not in memory.",
        value: Value::One(|s| s.files(|p| p.counts.asked_bytes.load(Ordering::Relaxed))),
    },
    Metric {
        name: "staves_files_fetches_total",
        kind: MetricKind::Counter,
        unit: "reads",
        help: "Reads of sources.",
        value: Value::One(|s| s.files(|p| p.counts.fetches.load(Ordering::Relaxed))),
    },
    Metric {
        name: "staves_files_fetched_bytes_total",
        kind: MetricKind::Counter,
        unit: "bytes",
        help: "Bytes read from sources.",
        value: Value::One(|s| s.files(|p| p.counts.fetched_bytes.load(Ordering::Relaxed))),
    },
    Metric {
        name: "staves_files_ahead_bytes_total",
        kind: MetricKind::Counter,
        unit: "bytes",
        help: "Those of them that nobody had asked for: rests of blocks.",
        value: Value::One(|s| s.files(|p| p.counts.ahead_bytes.load(Ordering::Relaxed))),
    },
    Metric {
        name: "staves_files_again_bytes_total",
        kind: MetricKind::Counter,
        unit: "bytes",
        help: "Bytes read from sources because only a node that is gone had them in memory.",
        value: Value::One(|s| s.files(|p| p.counts.again_bytes.load(Ordering::Relaxed))),
    },
    Metric {
        name: "staves_files_remembered_blocks",
        kind: MetricKind::Gauge,
        unit: "blocks",
        help: "Blocks of another node that this node remembers, to have them fetched again if that node is lost.",
        value: Value::One(|s| s.files(|p| p.counts.remembered_blocks.load(Ordering::Relaxed))),
    },
    Metric {
        name: "staves_files_remembered_bytes",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Bytes of those blocks that are known to be there, in whole parts of 8 KiB.",
        value: Value::One(|s| s.files(|p| p.counts.remembered_bytes.load(Ordering::Relaxed))),
    },
    Metric {
        name: "staves_files_losses_total",
        kind: MetricKind::Counter,
        unit: "nodes",
        help: "Nodes that were lost and whose blocks of files this node has seen to.",
        value: Value::One(|s| s.running.files.losses()),
    },
    Metric {
        name: "staves_files_lost_bytes",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Bytes of files that a lost node alone had, and that this node still has others fetch again.",
        value: Value::One(|s| {
            let again = s.running.files.fetching_again();
            again.map_or(0, |again| again.bytes - again.done_bytes)
        }),
    },
    Metric {
        name: "staves_files_source_away_seconds",
        kind: MetricKind::Gauge,
        unit: "seconds",
        help: "For how long the source of each dataset has given no answer to this node or to a mount that reports to it; 0 if it answers.",
        value: Value::ByDataset(|running| running.files.away_seconds()),
    },
    Metric {
        name: "staves_files_evicted_blocks_total",
        kind: MetricKind::Counter,
        unit: "blocks",
        help: "Blocks of files that were evicted.",
        value: Value::One(|s| s.files(|p| p.blocks.figures().evicted)),
    },
    Metric {
        name: "staves_files_scrubbed_bytes_total",
        kind: MetricKind::Counter,
        unit: "bytes",
        help: "Bytes of blocks whose checksums were compared without a reader.",
        value: Value::One(|s| s.files(|p| p.counts.scrubbed_bytes.load(Ordering::Relaxed))),
    },
    Metric {
        name: "staves_files_damaged_blocks_total",
        kind: MetricKind::Counter,
        unit: "blocks",
        help: "Blocks that were dropped because their bytes were not what came in.",
        value: Value::One(|s| s.files(|p| p.blocks.figures().damaged)),
    },
    Metric {
        name: "staves_directory_term",
        kind: MetricKind::Gauge,
        unit: "term",
        help: "The directory's term.",
        value: Value::One(|s| s.directory.term),
    },
    Metric {
        name: "staves_directory_leads",
        kind: MetricKind::Gauge,
        unit: "0 or 1",
        help: "Whether this node leads the directory.",
        value: Value::One(|s| u64::from(s.leader == Some(s.running.host.life.node.0))),
    },
    Metric {
        name: "staves_directory_leader_known",
        kind: MetricKind::Gauge,
        unit: "0 or 1",
        help: "Whether this node knows a leader of the directory that a majority follows.",
        value: Value::One(|s| u64::from(s.leader.is_some())),
    },
    Metric {
        name: "staves_directory_voters",
        kind: MetricKind::Gauge,
        unit: "nodes",
        help: "Nodes that vote.",
        value: Value::One(|s| s.directory.voters.len() as u64),
    },
    Metric {
        name: "staves_directory_log_index",
        kind: MetricKind::Gauge,
        unit: "index",
        help: "The last entry of the directory's log.",
        value: Value::One(|s| s.directory.last_log),
    },
    Metric {
        name: "staves_directory_map_revision",
        kind: MetricKind::Gauge,
        unit: "revision",
        help: "The revision of this node's map.",
        value: Value::One(|s| s.directory.revision.0),
    },
    Metric {
        name: "staves_net_links",
        kind: MetricKind::Gauge,
        unit: "links",
        help: "Other nodes that this one has a link to.",
        value: Value::One(|s| s.links.len() as u64),
    },
    Metric {
        name: "staves_net_links_up",
        kind: MetricKind::Gauge,
        unit: "links",
        help: "Links that are connected.",
        value: Value::One(|s| s.links.iter().filter(|l| l.connected).count() as u64),
    },
    Metric {
        name: "staves_net_queued_bytes",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Bytes of group traffic that wait to be sent.",
        value: Value::One(|s| s.links.iter().map(|l| l.queued_bytes as u64).sum()),
    },
    Metric {
        name: "staves_net_group_sent_total",
        kind: MetricKind::Counter,
        unit: "messages",
        help: "Group messages handed to the kernel.",
        value: Value::One(|s| s.links.iter().map(|l| l.group_sent).sum()),
    },
    Metric {
        name: "staves_net_group_frames_total",
        kind: MetricKind::Counter,
        unit: "frames",
        help: "Frames that carried them: what one turn of a thread has to say to a node leaves in one.",
        value: Value::One(|s| s.links.iter().map(|l| l.group_frames).sum()),
    },
    Metric {
        name: "staves_net_group_dropped_total",
        kind: MetricKind::Counter,
        unit: "messages",
        help: "Group messages let go for want of room or of a connection.",
        value: Value::One(|s| s.links.iter().map(|l| l.group_dropped).sum()),
    },
    Metric {
        name: "staves_net_connections_refused_total",
        kind: MetricKind::Counter,
        unit: "connections",
        help: "Connections refused on the native door (silent: they had not said hello when they were closed), and sockets that the system did not give to any door, by the reason.",
        value: Value::By(
            "reason",
            &[
                ("descriptors", |s| s.running.refused.descriptors.total()),
                ("protocol", |s| s.running.refused.protocol.total()),
                ("secret", |s| s.running.refused.secret.total()),
                ("silent", |s| s.running.refused.silent.total()),
                ("too-many", |s| s.running.refused.too_many.total()),
                ("not-accepted", |s| {
                    s.running.refused.not_accepted.total() + s.door.not_accepted.total()
                }),
            ],
        ),
    },
    Metric {
        name: "staves_process_descriptors_max",
        kind: MetricKind::Gauge,
        unit: "descriptors",
        help: "Most file descriptors that the process may have, a reserve for nodes and tools included.",
        value: Value::One(|_| staves_net::Descriptors::of_process().limit),
    },
];

fn now(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests;
