//! `staves volume top`: the rates of volumes, round after round.

use std::time::Instant;

use serde_json::{Value, json};
use staves_client::VolumeStat;
use staves_node::config::Millis;
use staves_node::status::{NodeStatus, full_name};
use staves_node::volumes::VolumeOp;

use super::rates::{OpRate, VolumeRate, VolumeRates};
use super::shown::{attached, writer_json};
use staves_cli_common::cluster::Cluster;
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, Column, bytes, columns};

// No doc comment: clap would take it for the command's description.
#[derive(clap::Args, Debug)]
pub struct TopOptions {
    /// The volumes; all of them if none is named
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// The time from one round to the next
    #[arg(long, value_name = "TIME", default_value = "1s")]
    interval: Millis,
    /// End after so many rounds
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

pub fn run(session: &Cluster, options: &TopOptions, out: Format) -> anyhow::Result<()> {
    for name in &options.names {
        session.wait(session.client.volume(name))?;
    }
    let mut top = VolumeTop {
        session,
        names: &options.names,
        rates: VolumeRates::default(),
        last: Instant::now(),
    };
    top.round()?;
    let mut failure = None;
    for _ in 0..options.count.unwrap_or(u64::MAX) {
        std::thread::sleep(options.interval.duration());
        session.begin_again();
        // A cluster that does not answer at present is asked again.
        failure = match top.round() {
            Ok(round) => match output::next_answer(out, &round.json(), |_| round.table())? {
                true => None,
                false => return Ok(()),
            },
            Err(error) => {
                output::say(format_args!(
                    "staves: warning: no figures this time: {error:#}"
                ));
                Some(error)
            }
        };
    }
    failure.map_or(Ok(()), Err)
}

/// Looks at the volumes again and again.
struct VolumeTop<'a> {
    session: &'a Cluster,
    names: &'a [String],
    rates: VolumeRates,
    last: Instant,
}

impl VolumeTop<'_> {
    fn round(&mut self) -> anyhow::Result<TopRound> {
        let session = self.session;
        // The map first: it is fetched from another node if the one that was asked has ended.
        let stats = session.wait(session.client.volumes())?;
        let report = session.status()?;
        let now = Instant::now();
        let mut rates = self.rates.next(&report, now);
        let seconds = now.duration_since(self.last).as_secs_f64();
        self.last = now;
        let wanted =
            |stat: &VolumeStat| self.names.is_empty() || self.names.contains(&stat.region.name);
        let rows = stats.into_iter().filter(wanted).map(|stat| TopRow {
            rate: rates.remove(&stat.region.name).unwrap_or_default(),
            stat,
        });
        let absent = report.nodes.iter().filter(|node| node.facts.is_none());
        Ok(TopRound {
            seconds,
            rows: rows.collect(),
            absent: absent
                .map(|node| AbsentNode::new(&report.nodes, node))
                .collect(),
        })
    }
}

/// A node whose figures are missing.
struct AbsentNode {
    id: u64,
    name: String,
    state: &'static str,
}

impl AbsentNode {
    fn new(nodes: &[NodeStatus], node: &NodeStatus) -> AbsentNode {
        AbsentNode {
            id: node.id,
            name: full_name(nodes, node),
            state: node.state(),
        }
    }
}

/// One round.
struct TopRound {
    seconds: f64,
    rows: Vec<TopRow>,
    absent: Vec<AbsentNode>,
}

impl TopRound {
    fn json(&self) -> Value {
        let absent = self
            .absent
            .iter()
            .map(|node| json!({"node": node.id, "node_name": node.name, "state": node.state}));
        json!({
            "seconds": self.seconds,
            "volumes": self.rows.iter().map(TopRow::json).collect::<Vec<_>>(),
            "absent": absent.collect::<Vec<_>>(),
        })
    }

    fn table(&self) -> String {
        let mut text = columns(COLUMNS, &self.rows);
        if !self.absent.is_empty() {
            let absent = self.absent.iter();
            let absent: Vec<String> = absent
                .map(|n| format!("{} ({})", n.name, n.state))
                .collect();
            text += &format!("\nwithout the figures of {}", absent.join(", "));
        }
        text + "\n"
    }
}

/// A volume in a round.
struct TopRow {
    stat: VolumeStat,
    rate: VolumeRate,
}

impl TopRow {
    fn of(&self, op: VolumeOp) -> OpRate {
        self.rate.get(&op).cloned().unwrap_or_default()
    }

    /// Requests that are neither reads nor writes, each second.
    fn others(&self) -> f64 {
        let others = [VolumeOp::Flush, VolumeOp::Discard, VolumeOp::Zero];
        others
            .map(|op| self.of(op).requests_per_second)
            .iter()
            .sum()
    }

    fn json(&self) -> Value {
        let (read, write) = (self.of(VolumeOp::Read), self.of(VolumeOp::Write));
        let errors = self.rate.values().map(|op| op.errors_per_second);
        json!({
            "volume": self.stat.region.name,
            "attached_to": writer_json(&self.stat),
            "reads_per_second": read.requests_per_second,
            "writes_per_second": write.requests_per_second,
            "others_per_second": self.others(),
            "errors_per_second": errors.sum::<f64>(),
            "read_bytes_per_second": read.bytes_per_second,
            "written_bytes_per_second": write.bytes_per_second,
            "read_p50_seconds": read.quantile(0.5),
            "read_p99_seconds": read.quantile(0.99),
            "write_p50_seconds": write.quantile(0.5),
            "write_p99_seconds": write.quantile(0.99),
        })
    }
}

const COLUMNS: &[Column<TopRow>] = &[
    ("volume", |row| row.stat.region.name.clone()),
    ("reads/s ", |row| {
        rate(row.of(VolumeOp::Read).requests_per_second)
    }),
    ("read/s ", |row| {
        bytes(row.of(VolumeOp::Read).bytes_per_second as u64)
    }),
    ("p50 ", |row| time(row.of(VolumeOp::Read).quantile(0.5))),
    ("p99 ", |row| time(row.of(VolumeOp::Read).quantile(0.99))),
    ("writes/s ", |row| {
        rate(row.of(VolumeOp::Write).requests_per_second)
    }),
    ("written/s ", |row| {
        bytes(row.of(VolumeOp::Write).bytes_per_second as u64)
    }),
    ("p50 ", |row| time(row.of(VolumeOp::Write).quantile(0.5))),
    ("p99 ", |row| time(row.of(VolumeOp::Write).quantile(0.99))),
    ("others/s ", |row| rate(row.others())),
    ("attached to", |row| attached(&row.stat)),
];

fn rate(per_second: f64) -> String {
    output::number(per_second.round() as u64)
}

fn time(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(s) if s < 0.001 => format!("{:.0} us", s * 1e6),
        Some(s) if s < 1.0 => format!("{:.1} ms", s * 1e3),
        Some(s) => format!("{s:.1} s"),
    }
}
