//! The speed of the code on this machine: row H9, multiplication rate and figure 7.
//!
//! Encoding, deltas and decoding beside a copy and an XOR of the same buffers, by one thread. What is compared is measured in
//! turns: a round goes through all of it before the next begins, so that what disturbs one disturbs all, and the
//! median of the rounds counts.
//!
//! Rates are of the bytes that are *read*: m buffers for an encoding or a decoding, one for a delta, a copy
//! or an XOR. *Hot* uses the same few buffers again and again; *cold* goes through more of them, in no order, than any cache holds.
//! Buffers begin at multiples of a page, as a bucket's pages do.
//!
//! `staves bench erasure` runs it with our own code alone; the program `staves-bench-peers` (feature `peers`) with
//! other crates beside it: whatever is a [`Library`] can be.

mod buffers;
mod rate;
mod report;
mod staves;

use std::time::Duration;

use staves_erasure::{Code, Kernel, invert};

use buffers::Buffers;
use rate::Race;
pub use report::{Inversion, Report, Row, Single};
pub use staves::Staves;

/// Sources and outputs of one operation: buffers of one length.
pub struct Set<'a> {
    /// The buffers that are read.
    pub sources: Vec<&'a [u8]>,
    /// The buffers that are written.
    pub outputs: Vec<&'a mut [u8]>,
}

/// Something that codes, under a name.
pub trait Library {
    /// The name in the report.
    fn name(&self) -> String;
    /// Its code for m+k buffers of so many bytes; none if it has none.
    fn coder(&self, m: usize, k: usize, bytes: usize) -> Option<Box<dyn Coder>>;
}

/// A library's code of one shape, and whatever it keeps from one time to the next.
pub trait Coder {
    /// The m sources are data, the k outputs become parity.
    fn encode(&mut self, set: &mut Set<'_>);
    /// As many data buffers as there are outputs, the first ones, are lost: the sources are the other data,
    /// then as many parity buffers. The outputs become the lost ones.
    fn decode(&mut self, set: &mut Set<'_>);
    /// True if it decodes from the sources themselves, not from buffers of its own that stay hot.
    fn decodes_in_place(&self) -> bool {
        true
    }
}

/// The plan of a measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The kernel of our own code.
    pub kernel: Kernel,
    /// Shapes (m, k).
    pub shapes: Vec<(usize, usize)>,
    /// Bytes of a buffer.
    pub sizes: Vec<usize>,
    /// Bytes that cold buffers take in all; 0: none are cold.
    pub cold_bytes: usize,
    /// Rounds, of which the median counts.
    pub rounds: usize,
    /// The time for each operation in each round.
    pub round: Duration,
}

/// The reason that it cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// This machine lacks its instructions.
    #[error(
        "this machine does not run the kernel {0}; leave the choice to the program, or name another"
    )]
    Kernel(Kernel),
    /// The code has no such shape.
    #[error(transparent)]
    Shape(#[from] staves_erasure::CodeError),
    /// Not k parity for k lost buffers.
    #[error("{m}+{k}: k must be 1 to m, since up to k data buckets are lost and made again")]
    Parity {
        /// Data buckets.
        m: usize,
        /// Parity buckets.
        k: usize,
    },
    /// A figure out of its bounds.
    #[error("{what} must be {from} to {upto}, not {given}")]
    Bounds {
        /// The parameter.
        what: &'static str,
        /// The least.
        from: usize,
        /// The most.
        upto: usize,
        /// The given value.
        given: usize,
    },
}

/// Bytes of one buffer, at most.
pub const SIZE_MAX: usize = 64 << 20;
/// Bytes of all cold buffers, at most.
pub const COLD_MAX: usize = 64 << 30;
/// Rounds, at most.
pub const ROUNDS_MAX: usize = 1000;

impl Plan {
    fn check(&self) -> Result<(), Refused> {
        if !self.kernel.is_available() {
            return Err(Refused::Kernel(self.kernel));
        }
        let within = |what, from, upto, given| match (from..=upto).contains(&given) {
            true => Ok(()),
            false => Err(Refused::Bounds {
                what,
                from,
                upto,
                given,
            }),
        };
        for (m, k) in self.shapes.iter().copied() {
            Code::new(m, k)?;
            if k == 0 || k > m {
                return Err(Refused::Parity { m, k });
            }
        }
        for size in &self.sizes {
            within("the bytes of a buffer", 1, SIZE_MAX, *size)?;
        }
        within("the bytes of cold buffers", 0, COLD_MAX, self.cold_bytes)?;
        within("the rounds", 1, ROUNDS_MAX, self.rounds)
    }
}

/// Measures our own code and, beside it, the others. `progress` is told what is measured next.
pub fn run(
    plan: &Plan,
    others: &[&dyn Library],
    mut progress: impl FnMut(&str),
) -> Result<Report, Refused> {
    plan.check()?;
    let ours = Staves::new(plan.kernel);
    let mut libraries: Vec<&dyn Library> = vec![&ours];
    libraries.extend(others);
    let mut report = Report {
        kernel: plan.kernel.to_string(),
        cold_bytes: plan.cold_bytes,
        rounds: plan.rounds,
        single: Vec::new(),
        codes: Vec::new(),
        inversion: Vec::new(),
    };
    let cold = (plan.cold_bytes > 0).then_some(plan.cold_bytes);
    for working_set in std::iter::once(0).chain(cold) {
        for size in plan.sizes.iter().copied() {
            let what = if working_set > 0 { "cold" } else { "hot" };
            progress(&format!("{size} bytes, {what}"));
            report.single.push(single(plan, size, working_set));
            for (m, k) in plan.shapes.iter().copied() {
                let rows = shape(plan, &libraries, (m, k), size, working_set);
                report.codes.extend(rows);
            }
        }
    }
    progress("inversion");
    report.inversion = inversion(plan);
    Ok(report)
}

/// One buffer into another: a copy, a sum, and a delta times a coefficient that is not 1.
fn single(plan: &Plan, size: usize, working_set: usize) -> Single {
    let mut buffers = Buffers::new(size, 2, working_set);
    let code = Code::new(4, 2).expect("4+2 is a shape");
    let code = code.with_kernel(plan.kernel);
    let mut race = Race::new(plan, size);
    race.add(|set| set.outputs[0].copy_from_slice(set.sources[0]));
    race.add(|set| xor(set.outputs[0], set.sources[0]));
    race.add(|set| code.apply(1, 1, set.sources[0], set.outputs[0]));
    let rates = race.run(&mut buffers, &[(0, 1, 1); 3]);
    Single {
        bytes: size,
        cold: working_set > 0,
        memcpy: rates[0],
        xor: rates[1],
        delta: rates[2],
    }
}

/// The best kernel's, which multiplies nothing where the coefficient is 1: a loop over bytes is compiled
/// for the oldest machine of this kind, and would be an easy rival.
fn xor(output: &mut [u8], source: &[u8]) {
    Kernel::best().combine(&[1], &[source], &mut [output], true);
}

/// Every library's encoding, decoding of one buffer, and of k.
fn shape(
    plan: &Plan,
    libraries: &[&dyn Library],
    (m, k): (usize, usize),
    size: usize,
    working_set: usize,
) -> Vec<Row> {
    // Data, parity, and what is made again of them.
    let mut buffers = Buffers::new(size, m + k + k, working_set);
    let mut race = Race::new(plan, m * size);
    let mut ranges = Vec::new();
    let mut names = Vec::new();
    for library in libraries {
        let three = || library.coder(m, k, size);
        let (Some(mut encode), Some(mut one), Some(mut all)) = (three(), three(), three()) else {
            continue;
        };
        let decodes = working_set == 0 || one.decodes_in_place();
        names.push((library.name(), decodes));
        race.add(move |set| encode.encode(set));
        ranges.push((0, m, k));
        if decodes {
            // Sources from the first buffer that is not lost; made again behind the parity.
            race.add(move |set| one.decode(set));
            ranges.push((1, m, 1));
            race.add(move |set| all.decode(set));
            ranges.push((k, m, k));
        }
    }
    let mut rates = race.run(&mut buffers, &ranges).into_iter();
    let mut next = || rates.next().expect("a rate for each operation");
    let row = |(library, decodes): (String, bool)| Row {
        library,
        m,
        k,
        bytes: size,
        cold: working_set > 0,
        encode: next(),
        decode_one: decodes.then(&mut next),
        decode_k: decodes.then(&mut next),
    };
    names.into_iter().map(row).collect()
}

/// Figure 7: microseconds to invert a matrix of m x m.
fn inversion(plan: &Plan) -> Vec<Inversion> {
    let one = |m: usize| {
        // The part of a code's parity that decodes when all data is lost: it has an inverse.
        let code = Code::new(m, m).expect("a small code");
        let matrix: Vec<u8> = (0..m * m).map(|i| code.coefficient(i / m, i % m)).collect();
        let mut scratch = matrix.clone();
        let per_second = rate::times_a_second(plan, || {
            scratch.copy_from_slice(&matrix);
            invert(std::hint::black_box(&mut scratch), m).expect("the matrix has an inverse");
        });
        Inversion {
            m,
            microseconds: 1e6 / per_second,
        }
    };
    [4, 8, 16].into_iter().map(one).collect()
}

#[cfg(test)]
mod tests;
