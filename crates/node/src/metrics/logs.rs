//! The metrics of logs: what units and sequencers of this node do.

use super::{Metric, MetricKind, Value, now};

pub(super) const METRICS: &[Metric] = &[
    Metric {
        name: "staves_log_appends_total",
        kind: MetricKind::Counter,
        unit: "appends",
        help: "Appends to logs that units of this node have made: each is one or more records.",
        value: Value::One(|s| s.figures.counter("log_appends")),
    },
    Metric {
        name: "staves_log_appended_records_total",
        kind: MetricKind::Counter,
        unit: "records",
        help: "Records of these appends.",
        value: Value::One(|s| s.figures.counter("log_records")),
    },
    Metric {
        name: "staves_log_appended_bytes_total",
        kind: MetricKind::Counter,
        unit: "bytes",
        help: "Bytes of these records.",
        value: Value::One(|s| s.figures.counter("log_record_bytes")),
    },
    Metric {
        name: "staves_log_reads_total",
        kind: MetricKind::Counter,
        unit: "records",
        help: "Records of logs that units of this node were asked for and had.",
        value: Value::One(|s| s.figures.counter("log_reads")),
    },
    Metric {
        name: "staves_log_read_bytes_total",
        kind: MetricKind::Counter,
        unit: "bytes",
        help: "Bytes of these records.",
        value: Value::One(|s| s.figures.counter("log_read_bytes")),
    },
    Metric {
        name: "staves_log_junk_positions_total",
        kind: MetricKind::Counter,
        unit: "positions",
        help: "Positions of logs that units of this node have made empty for ever: their append did not come in time, or was guessed to another unit.",
        value: Value::One(|s| s.figures.counter("log_junk")),
    },
    Metric {
        name: "staves_log_live_bytes",
        kind: MetricKind::Gauge,
        unit: "bytes",
        help: "Bytes that records, and what is kept of clients, take up in the units that this node serves.",
        value: Value::One(|s| s.figures.counter("log_live_bytes")),
    },
    Metric {
        name: "staves_log_without_room_total",
        kind: MetricKind::Counter,
        unit: "requests",
        help: "Requests to units of this node that were refused because their pool had no room.",
        value: Value::One(|s| s.figures.counter("log_refused")),
    },
    Metric {
        name: "staves_log_requests_waiting",
        kind: MetricKind::Gauge,
        unit: "requests",
        help: "Requests that wait at a unit of this node: appends for their position, reads for their record.",
        value: Value::One(|s| s.figures.counter("log_waiting")),
    },
    Metric {
        name: "staves_log_sequencers",
        kind: MetricKind::Gauge,
        unit: "sequencers",
        help: "Logs whose sequencer is at work on this node.",
        value: Value::One(|s| s.running.host.logs.active() as u64),
    },
    Metric {
        name: "staves_log_terms_total",
        kind: MetricKind::Counter,
        unit: "terms",
        help: "Terms of logs that were begun on this node: each is a change of a log's sequencer.",
        value: Value::One(|s| now(&s.running.host.logs.figures().terms_total)),
    },
    Metric {
        name: "staves_log_sequencer_requests_total",
        kind: MetricKind::Counter,
        unit: "requests",
        help: "Requests that sequencers of this node took: for a position, for the unit of one, for the tail, to trim, and units' reports.",
        value: Value::By(
            "kind",
            &[
                ("position", |s| {
                    now(&s.running.host.logs.figures().position_requests_total)
                }),
                ("lookup", |s| {
                    now(&s.running.host.logs.figures().lookups_total)
                }),
                ("tail", |s| now(&s.running.host.logs.figures().tails_total)),
                ("trim", |s| now(&s.running.host.logs.figures().trims_total)),
                ("report", |s| {
                    now(&s.running.host.logs.figures().reports_total)
                }),
            ],
        ),
    },
    Metric {
        name: "staves_log_tokens_total",
        kind: MetricKind::Counter,
        unit: "positions",
        help: "Positions that were given out before their data, to clients of logs of mode corfu.",
        value: Value::One(|s| now(&s.running.host.logs.figures().tokens_total)),
    },
    Metric {
        name: "staves_log_sequencer_busy_total",
        kind: MetricKind::Counter,
        unit: "requests",
        help: "Requests that were told to come again: the term was not open yet, or as much waited as may.",
        value: Value::One(|s| now(&s.running.host.logs.figures().busy_total)),
    },
    Metric {
        name: "staves_log_tail",
        kind: MetricKind::Gauge,
        unit: "position",
        help: "The next position of each log whose sequencer is here, as far as it has given them out; of the 128 that were used last.",
        value: Value::ByLog(|log| log.tail),
    },
    Metric {
        name: "staves_log_trim",
        kind: MetricKind::Gauge,
        unit: "position",
        help: "The first position of each of them that is not trimmed.",
        value: Value::ByLog(|log| log.trim),
    },
];
