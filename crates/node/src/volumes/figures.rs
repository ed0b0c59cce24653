//! The figures of a volume at this node's doors.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::histogram::{BOUNDS_US, LatencyHistogram};

/// A kind of request on a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeOp {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
    /// Bytes that the client does not need any more.
    Discard,
    /// Zeroes without a payload.
    Zero,
}

impl VolumeOp {
    /// All of them, in the order of the page of metrics.
    pub const ALL: [VolumeOp; 5] = [
        VolumeOp::Read,
        VolumeOp::Write,
        VolumeOp::Flush,
        VolumeOp::Discard,
        VolumeOp::Zero,
    ];

    /// The bytes that count for the volume's limit; `None` for what is not limited. Discards and zeroes carry none.
    pub(crate) const fn limited_bytes(self, bytes: u64) -> Option<u64> {
        match self {
            VolumeOp::Read | VolumeOp::Write => Some(bytes),
            VolumeOp::Discard | VolumeOp::Zero => Some(0),
            VolumeOp::Flush => None,
        }
    }

    /// Its word, as a label.
    pub const fn word(self) -> &'static str {
        match self {
            VolumeOp::Read => "read",
            VolumeOp::Write => "write",
            VolumeOp::Flush => "flush",
            VolumeOp::Discard => "discard",
            VolumeOp::Zero => "zero",
        }
    }
}

/// The counts of requests of one kind.
#[derive(Debug, Default)]
pub(crate) struct VolumeOpFigures {
    pub(crate) bytes_total: AtomicU64,
    pub(crate) errors_total: AtomicU64,
    seconds: LatencyHistogram,
}

impl VolumeOpFigures {
    /// Counts a request that ended. Only one that was done counts its bytes.
    pub(crate) fn done(&self, bytes: u64, took: Duration, is_ok: bool) {
        match is_ok {
            true => self.bytes_total.fetch_add(bytes, Ordering::Relaxed),
            false => self.errors_total.fetch_add(1, Ordering::Relaxed),
        };
        self.seconds.observe(took);
    }

    /// Requests that ended, with an error or without.
    pub(crate) fn requests_total(&self) -> u64 {
        self.seconds.counts().iter().sum()
    }
}

/// The counts of a volume, for each kind of request.
#[derive(Debug, Default)]
pub(crate) struct VolumeFigures {
    ops: [VolumeOpFigures; VolumeOp::ALL.len()],
}

impl VolumeFigures {
    /// The counts of one kind.
    pub(crate) fn of(&self, op: VolumeOp) -> &VolumeOpFigures {
        &self.ops[op as usize]
    }

    /// The facts of the kinds that had a request.
    pub(super) fn facts(&self, volume: &str) -> VolumeFacts {
        let facts = VolumeOp::ALL.iter().map(|op| {
            let of = self.of(*op);
            let buckets = of.seconds.counts();
            VolumeOpFacts {
                op: *op,
                requests: buckets.iter().sum(),
                bytes: of.bytes_total.load(Ordering::Relaxed),
                errors: of.errors_total.load(Ordering::Relaxed),
                microseconds: of.seconds.sum_us(),
                buckets: buckets.to_vec(),
            }
        });
        VolumeFacts {
            volume: volume.to_owned(),
            ops: facts.filter(|facts| facts.requests > 0).collect(),
        }
    }

    /// Writes the histograms of a volume, in Prometheus's text format.
    pub(crate) fn put_seconds(&self, name: &str, volume: &str, page: &mut String) -> fmt::Result {
        for op in VolumeOp::ALL {
            let seconds = &self.of(op).seconds;
            let labels = format!("volume=\"{volume}\",op=\"{}\"", op.word());
            let mut total = 0;
            for (at, count) in seconds.counts().iter().enumerate() {
                total += count;
                let bound = BOUNDS_US.get(at).map(|us| (*us as f64 / 1e6).to_string());
                let bound = bound.as_deref().unwrap_or("+Inf");
                writeln!(page, "{name}_bucket{{{labels},le=\"{bound}\"}} {total}")?;
            }
            let sum = seconds.sum_us() as f64 / 1e6;
            writeln!(page, "{name}_sum{{{labels}}} {sum}")?;
            writeln!(page, "{name}_count{{{labels}}} {total}")?;
        }
        Ok(())
    }
}

/// A node's report of a volume that it serves, since its start.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeFacts {
    /// The volume's name.
    pub volume: String,
    /// The kinds of requests that it had.
    pub ops: Vec<VolumeOpFacts>,
}

/// The counts of requests of one kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeOpFacts {
    /// The kind.
    pub op: VolumeOp,
    /// Requests that ended.
    pub requests: u64,
    /// Bytes of those that were done.
    pub bytes: u64,
    /// Those that ended with an error.
    pub errors: u64,
    /// The time that all took together.
    pub microseconds: u64,
    /// The count of each bucket of [`BOUNDS_US`], and of longer ones.
    pub buckets: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_for_its_kind_and_the_page_adds_buckets_up() {
        let figures = VolumeFigures::default();
        let write = figures.of(VolumeOp::Write);
        write.done(4096, Duration::from_micros(200), true);
        write.done(4096, Duration::from_secs(40), false);
        assert_eq!(
            (
                write.requests_total(),
                figures.of(VolumeOp::Read).requests_total()
            ),
            (2, 0)
        );
        let facts = figures.facts("v");
        let [of] = &facts.ops[..] else {
            panic!("{facts:?}");
        };
        assert_eq!(
            (of.op, of.requests, of.bytes, of.errors),
            (VolumeOp::Write, 2, 4096, 1)
        );
        let mut page = String::new();
        figures.put_seconds("s", "v", &mut page).expect("a string");
        for line in [
            "s_bucket{volume=\"v\",op=\"write\",le=\"0.0001\"} 0\n",
            "s_bucket{volume=\"v\",op=\"write\",le=\"0.0003\"} 1\n",
            "s_bucket{volume=\"v\",op=\"write\",le=\"10\"} 1\n",
            "s_bucket{volume=\"v\",op=\"write\",le=\"+Inf\"} 2\n",
            "s_sum{volume=\"v\",op=\"write\"} 40.0002\n",
            "s_count{volume=\"v\",op=\"write\"} 2\n",
            "s_count{volume=\"v\",op=\"zero\"} 0\n",
        ] {
            assert!(page.contains(line), "{line}{page}");
        }
    }
}
