//! `staves bench erasure` with other crates beside our code, in the same run and on the same buffers:
//! `cargo run --release -p staves-bench-erasure --features peers [-- --json]`.
//!
//! `reed-solomon-erasure` works in the same field, with kernels in C that are compiled for a machine named by
//! RUST_REED_SOLOMON_ERASURE_ARCH (`native` is the fairest). `reed-solomon-simd` works in one of 2^16 elements with another
//! algorithm, for many more buffers than these. Run it on a machine with nothing else to do.

use std::time::Duration;

use reed_solomon_erasure::galois_8::ReedSolomon;
use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};
use staves_bench_erasure::{Coder, Library, Plan, Set, run};
use staves_erasure::Kernel;

fn main() {
    let plan = Plan {
        kernel: Kernel::best(),
        shapes: vec![(4, 2), (8, 3), (10, 4)],
        sizes: vec![4 << 10, 64 << 10, 1 << 20],
        cold_bytes: 2 << 30,
        rounds: 9,
        round: Duration::from_millis(20),
    };
    let others: [&dyn Library; 2] = [&SameField, &WideField];
    let report = match run(&plan, &others, |what| eprintln!("{what}")) {
        Ok(report) => report,
        Err(why) => {
            eprintln!("staves-bench-peers: {why}");
            std::process::exit(1);
        }
    };
    if std::env::args().any(|a| a == "--json") {
        let text = serde_json::to_string_pretty(&report).expect("a report is plain data");
        println!("{text}");
    } else {
        println!("{report}");
    }
}

struct SameField;

impl Library for SameField {
    fn name(&self) -> String {
        "reed-solomon-erasure".into()
    }

    fn coder(&self, m: usize, k: usize, _bytes: usize) -> Option<Box<dyn Coder>> {
        let code = ReedSolomon::new(m, k).ok()?;
        let shards = Vec::new();
        Some(Box::new(Same { code, shards }))
    }
}

struct Same {
    code: ReedSolomon,
    /// It makes lost buffers only among buffers of its own.
    shards: Vec<(Vec<u8>, bool)>,
}

impl Coder for Same {
    fn encode(&mut self, set: &mut Set<'_>) {
        self.code
            .encode_sep(&set.sources, &mut set.outputs)
            .expect("buffers of one length");
    }

    fn decode(&mut self, set: &mut Set<'_>) {
        let lost = set.outputs.len();
        if self.shards.is_empty() {
            let made = set.outputs.iter().map(|o| (o.to_vec(), false));
            let there = set.sources.iter().map(|s| (s.to_vec(), true));
            self.shards = made.chain(there).collect();
            let empty = self.code.parity_shard_count() - lost;
            let bytes = self.shards[0].0.len();
            self.shards
                .extend((0..empty).map(|_| (vec![0; bytes], false)));
        }
        for shard in &mut self.shards[..lost] {
            shard.1 = false;
        }
        self.code
            .reconstruct_data(&mut self.shards)
            .expect("m are there");
    }

    fn decodes_in_place(&self) -> bool {
        false
    }
}

struct WideField;

impl Library for WideField {
    fn name(&self) -> String {
        "reed-solomon-simd".into()
    }

    fn coder(&self, m: usize, k: usize, bytes: usize) -> Option<Box<dyn Coder>> {
        Some(Box::new(Wide {
            encoder: ReedSolomonEncoder::new(m, k, bytes).ok()?,
            decoder: ReedSolomonDecoder::new(m, k, bytes).ok()?,
            m,
        }))
    }
}

/// It reads into buffers of its own, and what it made must be copied out: that is its interface.
struct Wide {
    encoder: ReedSolomonEncoder,
    decoder: ReedSolomonDecoder,
    m: usize,
}

impl Coder for Wide {
    fn encode(&mut self, set: &mut Set<'_>) {
        for source in &set.sources {
            self.encoder.add_original_shard(source).expect("m of them");
        }
        let made = self.encoder.encode().expect("all m were added");
        for (output, made) in set.outputs.iter_mut().zip(made.recovery_iter()) {
            output.copy_from_slice(made);
        }
    }

    fn decode(&mut self, set: &mut Set<'_>) {
        let lost = set.outputs.len();
        for (at, source) in set.sources.iter().enumerate() {
            let member = at + lost;
            let added = match member < self.m {
                true => self.decoder.add_original_shard(member, source),
                false => self.decoder.add_recovery_shard(member - self.m, source),
            };
            added.expect("a new one");
        }
        let made = self.decoder.decode().expect("m are there");
        for (at, made) in made.restored_original_iter() {
            set.outputs[at].copy_from_slice(made);
        }
    }
}
