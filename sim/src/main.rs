//! Runs seeds of the simulator: `staves-sim [--seed N] [--runs N] [--seconds N] [--shape M+K | --wide] [--groups N] [--mutant NAME] [--hunting | --varied] [--trace] [--cover]`.

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use staves_model::Scheme;
use staves_model::mutant::Mutant;
use staves_sim::cover::Coverage;
use staves_sim::run::{groups_of, hunts, run, shape_of, wide_shape_of};
use staves_sim::scenario::Scenario;

struct Arguments {
    seed: u64,
    runs: u64,
    seconds: Option<u64>,
    shape: Option<Scheme>,
    wide: bool,
    groups: Option<usize>,
    mutant: Option<Mutant>,
    trace: bool,
    hunting: bool,
    varied: bool,
    cover: bool,
}

const USAGE: &str = "usage: staves-sim [--seed N] [--runs N] [--seconds N] [--shape M+K | --wide] [--groups N] [--mutant NAME] [--hunting | --varied] [--trace] [--cover]";

fn arguments() -> Result<Arguments, String> {
    let fresh = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(1, |d| d.as_nanos() as u64 % 1_000_000_000_000);
    let mut a = Arguments {
        seed: fresh,
        runs: 100,
        seconds: None,
        shape: None,
        wide: false,
        groups: None,
        mutant: None,
        trace: false,
        hunting: false,
        varied: false,
        cover: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value; {USAGE}"));
        let number = |v: String| {
            v.parse()
                .map_err(|_| format!("'{v}' is not a number; {USAGE}"))
        };
        match word.as_str() {
            "--seed" => a.seed = number(value()?)?,
            "--runs" => a.runs = number(value()?)?,
            "--seconds" => a.seconds = Some(number(value()?)?),
            "--shape" => a.shape = Some(value()?.parse()?),
            "--wide" => a.wide = true,
            "--groups" => a.groups = Some(number(value()?)? as usize),
            "--mutant" => {
                let name = value()?;
                let found = Mutant::ALL
                    .iter()
                    .chain(&Mutant::SERVICE)
                    .chain(&Mutant::ADDED)
                    .chain(&Mutant::MEMORY)
                    .chain(&Mutant::CODED)
                    .chain(&Mutant::DIRECTORY)
                    .chain(&Mutant::TURN)
                    .chain(&Mutant::DURABLE)
                    .find(|m| format!("{m:?}").eq_ignore_ascii_case(&name));
                a.mutant = Some(*found.ok_or(format!("no planted bug is called '{name}'"))?);
            }
            "--hunting" => a.hunting = true,
            "--varied" => a.varied = true,
            "--trace" => a.trace = true,
            "--cover" => a.cover = true,
            _ => return Err(format!("unknown argument '{word}'; {USAGE}")),
        }
    }
    Ok(a)
}

fn main() -> ExitCode {
    let a = match arguments() {
        Ok(a) => a,
        Err(why) => {
            eprintln!("staves-sim: {why}");
            return ExitCode::from(2);
        }
    };
    // An assertion that fails is reported as a violation of its seed; the backtrace is for --trace.
    if !a.trace {
        std::panic::set_hook(Box::new(|_| {}));
    }
    let (begun, mut cover, mut bad) = (Instant::now(), Coverage::default(), 0);
    let (mut undecided, mut objects) = (0, 0);
    let (mut runs, mut steps, mut operations, mut hash) = (0, 0, 0, 0u64);
    let in_time = |runs: u64| match a.seconds {
        Some(s) => begun.elapsed() < Duration::from_secs(s),
        None => runs < a.runs,
    };
    println!("first seed {}", a.seed);
    while in_time(runs) {
        let seed = a.seed + runs;
        let any = if a.wide {
            wide_shape_of(seed)
        } else {
            shape_of(seed)
        };
        let (m, k) = a
            .shape
            .map_or(any, |s| (usize::from(s.m), usize::from(s.k)));
        let scenario = Scenario {
            seed,
            m,
            k,
            groups: a.groups.unwrap_or_else(|| groups_of(seed)),
            mutant: a.mutant,
            hunting: a.hunting || (a.varied && hunts(seed)),
            trace: a.trace,
        };
        let report = run(&scenario);
        undecided += report.undecided;
        objects += report.objects;
        if let Some(what) = report.violations.first() {
            bad += 1;
            let hunting = if scenario.hunting { ", hunting" } else { "" };
            println!("seed {seed} ({m}+{k}{hunting}): {what}");
        }
        cover.merge(&report.cover);
        steps += report.steps;
        operations += report.operations;
        hash = hash.rotate_left(1) ^ report.hash;
        runs += 1;
    }
    if a.cover {
        println!("{}", cover.table());
    }
    let blind = cover.blind_spots();
    if runs >= 200 && a.shape.is_none() && !a.wide && !blind.is_empty() {
        println!("blind spots: {blind:?}");
        bad += 1;
    }
    if undecided * 100 > objects {
        println!("{undecided} of {objects} objects have histories too tangled to be decided");
        bad += 1;
    }
    println!(
        "{runs} runs, {operations} operations, {} faults, {steps} events, {bad} bad, hash {hash:016x}, {:.1} s",
        cover.faults(),
        begun.elapsed().as_secs_f64()
    );
    if bad == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
