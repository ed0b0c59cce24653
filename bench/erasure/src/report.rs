//! The report, for programs (serde) and for people ([`std::fmt::Display`]).

use std::fmt;

use serde::Serialize;

/// All that one run measured. Rates are gigabytes (10^9) read a second.
#[derive(Serialize, Debug)]
pub struct Report {
    /// The kernel of our own code.
    pub kernel: String,
    /// Bytes that cold buffers took in all.
    pub cold_bytes: usize,
    /// Rounds, of which the median counts.
    pub rounds: usize,
    /// One buffer into another.
    pub single: Vec<Single>,
    /// Codes.
    pub codes: Vec<Row>,
    /// Figure 7.
    pub inversion: Vec<Inversion>,
}

/// One buffer into another.
#[derive(Serialize, Debug)]
pub struct Single {
    /// Bytes of a buffer.
    pub bytes: usize,
    /// True if no cache held the buffers.
    pub cold: bool,
    /// A copy.
    pub memcpy: f64,
    /// A sum.
    pub xor: f64,
    /// A sum with a multiple: what a parity bucket does with a delta.
    pub delta: f64,
}

/// One library's code of one shape.
#[derive(Serialize, Debug)]
pub struct Row {
    /// The library.
    pub library: String,
    /// Data buckets.
    pub m: usize,
    /// Parity buckets.
    pub k: usize,
    /// Bytes of a buffer.
    pub bytes: usize,
    /// True if no cache held the buffers.
    pub cold: bool,
    /// All parity of all data.
    pub encode: f64,
    /// One lost data buffer of m others; none if the library cannot be measured in this way.
    pub decode_one: Option<f64>,
    /// k lost data buffers of m others.
    pub decode_k: Option<f64>,
}

/// The time of inverting a matrix.
#[derive(Serialize, Debug)]
pub struct Inversion {
    /// Its rows and columns.
    pub m: usize,
    /// The time.
    pub microseconds: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heat = |cold| if cold { "cold" } else { "hot" };
        writeln!(
            f,
            "kernel {}; GB/s of bytes read, median of {} rounds; cold: {} MiB of buffers",
            self.kernel,
            self.rounds,
            self.cold_bytes >> 20
        )?;
        writeln!(
            f,
            "\n{:>9}  {:4} {:>8} {:>8} {:>8}",
            "bytes", "", "memcpy", "xor", "delta"
        )?;
        for s in &self.single {
            writeln!(
                f,
                "{:>9}  {:4} {:>8.2} {:>8.2} {:>8.2}",
                s.bytes,
                heat(s.cold),
                s.memcpy,
                s.xor,
                s.delta
            )?;
        }
        writeln!(
            f,
            "\n{:>9}  {:4} {:>6} {:>8} {:>9} {:>9}  library",
            "bytes", "", "scheme", "encode", "decode 1", "decode k"
        )?;
        let rate = |rate: Option<f64>| rate.map_or_else(|| "-".into(), |r| format!("{r:.2}"));
        for row in &self.codes {
            writeln!(
                f,
                "{:>9}  {:4} {:>6} {:>8.2} {:>9} {:>9}  {}",
                row.bytes,
                heat(row.cold),
                format!("{}+{}", row.m, row.k),
                row.encode,
                rate(row.decode_one),
                rate(row.decode_k),
                row.library
            )?;
        }
        write!(f, "\ninversion")?;
        for one in &self.inversion {
            write!(f, "  {0}x{0} {1:.2} us", one.m, one.microseconds)?;
        }
        Ok(())
    }
}
