//! The options of the bench of logs: every combination of lists, and what is refused.

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    bench: LogBench,
}

fn parse(line: &str) -> Result<LogBench, String> {
    let words = ["log"].into_iter().chain(line.split_whitespace());
    let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
    Ok(line.bench)
}

#[test]
fn lists_make_every_combination() {
    let bench = parse("--mode bind,predict,corfu --rate 10,20 --clients 1,2 --seconds 3");
    let plans = bench.expect("a good line").plans().expect("good plans");
    assert_eq!(plans.len(), 3 * 2 * 2);
    assert_eq!(plans[0].duration, Duration::from_secs(3));
    assert_eq!((plans[1].rate, plans[1].depth), (Some(20), 0));
    let bench = parse("--batch 1,10,100 --clients 0,2 --cold-readers 0,1 --readers 1");
    let plans = bench.expect("a good line").plans().expect("good plans");
    assert_eq!(plans.len(), 3 * 2 * 2);
    let of = |plan: &LogPlan| (plan.batch, plan.clients, plan.cold_readers);
    assert_eq!(
        (of(&plans[0]), of(&plans[11])),
        ((1, 0, 0), (100, 2, 1)),
        "the last list turns fastest"
    );
    let filled = plans.iter().filter(|plan| plan.fill_bytes == 4 << 20);
    assert_eq!(filled.count(), 12, "the base of a comparison, too");
    let bench = parse("--read-ahead 1").expect("a good line");
    let plans = bench.plans().expect("good plans");
    assert_eq!((plans[0].read_ahead, plans[0].fill_bytes), (1, 0));
    let bench = parse("--depth 1,64 --warm-up 50ms").expect("a good line");
    let plans = bench.plans().expect("good plans");
    assert_eq!((plans[1].rate, plans[1].depth), (None, 64));
    assert_eq!(plans[1].warm_up, Duration::from_millis(50));
}

#[test]
fn wrong_values_are_told_what_would_be_right() {
    for (line, said) in [
        ("--mode quick", "predict"),
        ("--size 0", "1 byte"),
        ("--size 1TiB", "1 byte"),
        ("--rate 0", "1.."),
        ("--rate 5 --depth 2", "cannot be used with"),
        ("--tokens --rate 2", "cannot be used with"),
        ("--batch 0", "1.."),
        ("--batch 1025", "1.."),
        ("--read-ahead 0", "1.."),
    ] {
        let error = parse(line).expect_err(line);
        assert!(error.contains(said), "{line}: {error}");
    }
    for (line, said) in [
        ("--duration 1ms", "100ms"),
        ("--clients 0", "--cold-readers"),
        ("--mode bind,corfu --batch 1,10", "--mode corfu"),
        ("--batch 1024 --size 2KiB", "2097152 bytes"),
    ] {
        let refused = parse(line).expect("a line").plans();
        let error = refused.expect_err(line).to_string();
        assert!(error.contains(said), "{line}: {error}");
    }
}
