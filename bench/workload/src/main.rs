//! Makes a database in the shape of a genome, queries of it with mutations, and regions: the same bytes each
//! time, and on any machine.
//!
//! ```text
//! staves-bench-workload [--megabases 1200] [--chromosomes 12] [--queries 2000] [--regions 20000] [--seed 1] DIR
//! ```
//!
//! `DIR/genome.fa`: chromosomes of different lengths, about half of them repeats. `DIR/queries.fa`: reads of 100 to 250 bases from
//! anywhere in it, on both strands. `DIR/regions.txt`: stretches of 100 to 1,000 bases, for `samtools faidx -r`.

mod genome;
mod random;

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::genome::{Families, chromosome_bases, query};
use crate::random::Random;

const USAGE: &str = "usage: staves-bench-workload [--megabases N] [--chromosomes N] [--queries N] [--regions N] [--seed N] DIR";
/// Bases of a line, as genome archives have them.
const LINE: usize = 60;

struct Args {
    megabases: u64,
    chromosomes: u64,
    queries: u64,
    regions: u64,
    seed: u64,
    dir: PathBuf,
}

fn parse() -> Result<Args, Box<dyn Error>> {
    let mut parsed = Args {
        megabases: 1200,
        chromosomes: 12,
        queries: 2000,
        regions: 20_000,
        seed: 1,
        dir: PathBuf::new(),
    };
    let mut args = std::env::args_os().skip(1);
    while let Some(arg) = args.next() {
        let number = match arg.to_str() {
            Some("--megabases") => &mut parsed.megabases,
            Some("--chromosomes") => &mut parsed.chromosomes,
            Some("--queries") => &mut parsed.queries,
            Some("--regions") => &mut parsed.regions,
            Some("--seed") => &mut parsed.seed,
            Some(other) if other.starts_with('-') => return Err(USAGE.into()),
            _ => {
                parsed.dir = arg.into();
                continue;
            }
        };
        *number = args
            .next()
            .and_then(|n| n.to_str()?.parse().ok())
            .ok_or(USAGE)?;
    }
    if parsed.dir.as_os_str().is_empty() {
        return Err(USAGE.into());
    }
    if parsed.chromosomes == 0 || parsed.megabases < parsed.chromosomes {
        return Err("a chromosome has a megabase at least: ask for fewer chromosomes, or for more megabases".into());
    }
    Ok(parsed)
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let args = parse()?;
    std::fs::create_dir_all(&args.dir)?;
    let out =
        |name| File::create(args.dir.join(name)).map(|f| BufWriter::with_capacity(1 << 20, f));
    let (mut genome, mut queries, mut regions) =
        (out("genome.fa")?, out("queries.fa")?, out("regions.txt")?);
    let mut random = Random::new(args.seed);
    let families = Families::new(&mut random);
    // Each chromosome has its part of the queries and regions, by its length.
    let bases = chromosome_bases(args.megabases * 1_000_000, args.chromosomes);
    let all: u64 = bases.iter().sum();
    let mut told = 0;
    let mut shuffled = Vec::new();
    for (i, &bases) in bases.iter().enumerate() {
        let name = format!("chr{}", i + 1);
        let sequence = families.chromosome(&mut random, bases as usize);
        writeln!(genome, ">{name}")?;
        for line in sequence.chunks(LINE) {
            genome.write_all(line)?;
            genome.write_all(b"\n")?;
        }
        for number in args.queries * told / all..args.queries * (told + bases) / all {
            let read = query(&mut random, &sequence);
            writeln!(queries, ">q{number}\n{}", String::from_utf8(read)?)?;
        }
        for _ in args.regions * told / all..args.regions * (told + bases) / all {
            let length = 100 + random.below(901);
            let from = 1 + random.below(bases - length);
            shuffled.push(format!("{name}:{from}-{}", from + length - 1));
        }
        told += bases;
    }
    random.shuffle(&mut shuffled);
    for region in shuffled {
        writeln!(regions, "{region}")?;
    }
    for mut file in [genome, queries, regions] {
        file.flush()?;
    }
    Ok(())
}
