//! Rates of volumes: the difference between two reports of each node.

use std::collections::BTreeMap;
use std::time::Instant;

use staves_node::status::{NodeFacts, StatusReport};
use staves_node::volumes::histogram::quantile;
use staves_node::volumes::{VolumeOp, VolumeOpFacts};

/// A node's life: its id and incarnation.
type NodeLife = (u64, u64);

/// The last report of each node, and when it came.
#[derive(Default)]
pub struct VolumeRates {
    last: BTreeMap<NodeLife, NodeReport>,
}

/// A node's counts of its volumes at one moment.
struct NodeReport {
    at: Instant,
    counts: BTreeMap<(String, VolumeOp), VolumeOpFacts>,
}

impl NodeReport {
    fn new(facts: &NodeFacts, at: Instant) -> NodeReport {
        let volumes = facts.volumes.iter();
        let counts = volumes.flat_map(|v| v.ops.iter().map(|op| ((v.volume.clone(), op.op), op)));
        NodeReport {
            at,
            counts: counts.map(|(key, op)| (key, op.clone())).collect(),
        }
    }
}

/// The requests of one kind on a volume, over all nodes.
#[derive(Clone, Default, Debug, PartialEq)]
pub struct OpRate {
    pub requests_per_second: f64,
    pub bytes_per_second: f64,
    pub errors_per_second: f64,
    /// The counts of the histogram's buckets since the last report.
    buckets: Vec<u64>,
}

impl OpRate {
    /// The time in seconds that this part of the requests did not exceed; `None` if there was none.
    pub fn quantile(&self, part: f64) -> Option<f64> {
        quantile(&self.buckets, part)
    }

    fn add(&mut self, before: Option<&VolumeOpFacts>, now: &VolumeOpFacts, seconds: f64) {
        let since = |of: fn(&VolumeOpFacts) -> u64| {
            let grown = of(now).saturating_sub(before.map_or(0, of));
            grown as f64 / seconds.max(1e-3)
        };
        self.requests_per_second += since(|op| op.requests);
        self.bytes_per_second += since(|op| op.bytes);
        self.errors_per_second += since(|op| op.errors);
        if self.buckets.len() < now.buckets.len() {
            self.buckets.resize(now.buckets.len(), 0);
        }
        let before = before.map_or(&[][..], |op| &op.buckets);
        for (at, (sum, count)) in self.buckets.iter_mut().zip(&now.buckets).enumerate() {
            let before = before.get(at).copied().unwrap_or(0);
            *sum += count.saturating_sub(before);
        }
    }
}

/// The rates of one volume, by kind of request.
pub type VolumeRate = BTreeMap<VolumeOp, OpRate>;

impl VolumeRates {
    /// The rates since the last report of each node, by volume. A node that is seen for the first time, or in a new life, counts from the next one on:
    /// its counts began at a time that is not known.
    pub fn next(&mut self, report: &StatusReport, at: Instant) -> BTreeMap<String, VolumeRate> {
        let mut rates: BTreeMap<String, VolumeRate> = BTreeMap::new();
        for facts in report.nodes.iter().filter_map(|node| node.facts.as_ref()) {
            let life = (facts.node, facts.incarnation);
            let now = NodeReport::new(facts, at);
            if let Some(before) = self.last.get(&life) {
                let seconds = at.saturating_duration_since(before.at).as_secs_f64();
                for (key, counts) in &now.counts {
                    let (volume, op) = key;
                    let rate = rates.entry(volume.clone()).or_default();
                    let rate = rate.entry(*op).or_default();
                    rate.add(before.counts.get(key), counts, seconds);
                }
            }
            self.last.insert(life, now);
        }
        let known = |id: u64| report.nodes.iter().any(|node| node.id == id);
        self.last.retain(|(node, _), _| known(*node));
        rates
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    /// A report with one node of this life, whose volume `v` has had so many reads.
    fn report(incarnation: u64, reads: Option<u64>) -> StatusReport {
        let ops = |reads: u64| {
            json!([{"volume": "v", "ops": [{
                "op": "read", "requests": reads, "bytes": reads * 4096, "errors": 0, "microseconds": 0,
                "buckets": [0, 0, reads],
            }]}])
        };
        let facts = reads
            .map(|reads| json!({"node": 1, "incarnation": incarnation, "volumes": ops(reads)}));
        let node = json!({
            "id": 1, "name": "n", "up": true, "draining": false, "zone": null, "native": "", "resp": "", "admin": "",
            "memory_bytes": 0, "durable": true, "votes": true, "leads_directory": false, "primaries": 0, "copies": 0,
            "filling": 0, "facts": facts,
        });
        let map = staves_model::ClusterMap::default();
        let directory = staves_node::status::DirectoryFacts::default();
        let mut report = StatusReport::new(&map, staves_model::NodeId(1), directory, []);
        report.nodes = vec![serde_json::from_value(node).expect("a row")];
        report
    }

    #[test]
    fn rates_are_differences_and_a_node_seen_anew_makes_no_peak() {
        let began = Instant::now();
        let mut rates = VolumeRates::default();
        let mut at = |second: u64, incarnation: u64, reads: Option<u64>| {
            let now = began + Duration::from_secs(second);
            let all = rates.next(&report(incarnation, reads), now);
            let read = all.get("v").and_then(|v| v.get(&VolumeOp::Read)).cloned();
            read.map(|read| {
                (
                    read.requests_per_second,
                    read.bytes_per_second,
                    read.quantile(1.0),
                )
            })
        };
        assert_eq!(at(0, 1, Some(1_000_000)), None, "since when?");
        assert_eq!(
            at(2, 1, Some(1_000_100)),
            Some((50.0, 204_800.0, Some(0.001)))
        );
        assert_eq!(at(3, 1, Some(1_000_100)), Some((0.0, 0.0, None)));
        assert_eq!(at(4, 1, None), None, "it did not answer");
        assert_eq!(
            at(5, 1, Some(1_000_140)),
            Some((20.0, 81_920.0, Some(0.001)))
        );
        assert_eq!(at(6, 2, Some(50)), None, "it was started anew");
        assert_eq!(at(7, 2, Some(60)), Some((10.0, 40_960.0, Some(0.001))));
    }
}
