//! The kinds of metrics: their types, labels and sources, and a node's state at one moment.

use std::sync::Arc;

use staves_net::PeerStats;

use crate::disk::DiskFacts;
use crate::door::state::DoorState;
use crate::host::figures::Figures;
use crate::log::ServedLog;
use crate::running::Running;
use crate::status::PoolFacts;
use crate::volumes::{ServedVolume, VolumeOp, VolumeOpFigures};

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
    pub(super) value: Value,
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

pub(super) type Count = fn(&Scrape<'_>) -> u64;

pub(super) enum Value {
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
pub(super) struct Scrape<'a> {
    pub(super) running: &'a Running,
    pub(super) door: &'a DoorState,
    pub(super) figures: Figures,
    pub(super) directory: staves_directory::Status,
    /// The directory's leader, if one has answered recently.
    pub(super) leader: Option<u64>,
    pub(super) links: Vec<PeerStats>,
    /// Memory that the pools with buckets take.
    pub(super) pools: Vec<PoolFacts>,
    pub(super) disk: DiskFacts,
    pub(super) volumes: Vec<Arc<ServedVolume>>,
    /// The logs whose sequencers are here, those that were used last.
    pub(super) logs: Vec<ServedLog>,
}
