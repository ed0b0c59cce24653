//! The report: the median round, batches, cold readers and readers alone.

use super::super::append::AppendResults;
use super::super::read::ReadResults;
use super::*;

fn round(us: u64, holes: u64) -> LogRound {
    let mut appends = AppendResults::default();
    for _ in 0..100 {
        appends.latency.add(us * 1000);
    }
    appends.acked = 120;
    LogRound {
        appends,
        elapsed: Duration::from_secs(2),
        positions: 120 + holes,
        client_cpu: Duration::from_millis(10),
        server_cpu: None,
        answered: 100,
        ..LogRound::default()
    }
}

fn plan() -> LogPlan {
    LogPlan {
        mode: LogMode::Predict,
        size_bytes: 1024,
        batch: 1,
        clients: 4,
        rate: Some(60),
        depth: 0,
        threads: 1,
        readers: 0,
        cold_readers: 0,
        read_ahead: 32,
        fill_bytes: 0,
        warm_up: Duration::ZERO,
        duration: Duration::from_secs(2),
    }
}

/// Row L6: batches count by their records, and cold readers by what they cost.
#[test]
fn l6_batches_and_cold_readers_are_reported() {
    let run = |plan: &LogPlan, round| LogRun::new(plan, vec![round]).expect("a round");
    let batches = LogPlan {
        batch: 10,
        ..plan()
    };
    let cold = LogPlan {
        cold_readers: 1,
        ..batches.clone()
    };
    let mut slower = round(900, 1080);
    slower.elapsed = Duration::from_secs(4);
    let other = LogPlan {
        size_bytes: 1,
        ..cold.clone()
    };
    let mut report = LogReport {
        runs: vec![
            run(&batches, round(300, 1090)),
            run(&cold, slower),
            run(&other, round(1, 1)),
        ],
    };
    report.compare();
    let json = serde_json::to_value(&report).expect("JSON");
    for (pointer, expected) in [
        ("/runs/0/appends_per_second", 50.0),
        ("/runs/0/records_per_second", 500.0),
        ("/runs/0/bytes_per_second", 512_000.0),
        ("/runs/0/holes", 10.0),
        ("/runs/1/holes", 0.0),
        ("/runs/1/cold_cost/appends_percent", 50.0),
        ("/runs/1/cold_cost/p50_percent", 200.0),
    ] {
        let got = json.pointer(pointer).and_then(serde_json::Value::as_f64);
        assert_eq!(got, Some(expected), "{pointer} of {json}");
    }
    let costs = json["runs"].as_array().expect("runs").iter();
    let costs: Vec<bool> = costs.map(|run| run["cold_cost"].is_null()).collect();
    assert_eq!(costs, [true, false, true], "the last has no base");
    assert!(report.table().contains("50.0 %"), "{}", report.table());
}

/// Row L6: readers alone are reported by what they read, and by the processor time of it.
#[test]
fn l6_readers_alone_are_reported() {
    let reader = |records| LogRound {
        reads: ReadResults {
            records,
            bytes: records * 1024,
            ..ReadResults::default()
        },
        client_cpu: Duration::from_millis(records),
        ..LogRound::default()
    };
    let alone = LogPlan {
        clients: 0,
        readers: 1,
        ..plan()
    };
    let rounds = vec![reader(900), reader(100), reader(300)];
    let run = LogRun::new(&alone, rounds).expect("rounds");
    assert!(run.sentence().contains("150 records/s read"), "{run:?}");
    let json = serde_json::to_value(&run).expect("JSON");
    assert_eq!(json["read"]["records_per_second"], 150.0, "{json}");
    assert_eq!(json["client_cpu_us_per_read"], 1000.0, "{json}");
    assert!(json["client_cpu_us_per_append"].is_null(), "{json}");
}

/// Row L6: the median round, with holes for each append and CPU time.
#[test]
fn l6_the_median_round_is_reported_with_its_holes() {
    let plan = plan();
    let rounds = vec![round(900, 1), round(100, 2), round(300, 30)];
    let run = LogRun::new(&plan, rounds).expect("there are rounds");
    let json = serde_json::to_value(&run).expect("JSON");
    for (pointer, expected) in [
        ("/appends", 100.0),
        ("/appends_per_second", 50.0),
        ("/holes", 30.0),
        ("/holes_per_append", 0.25),
        ("/latency_us/max", 300.0),
        ("/rounds", 3.0),
        ("/client_cpu_us_per_append", 100.0),
    ] {
        let got = json.pointer(pointer).and_then(serde_json::Value::as_f64);
        assert_eq!(got, Some(expected), "{pointer} of {json}");
    }
    assert_eq!(
        (&json["mode"], &json["depth"]),
        (&"predict".into(), &().into())
    );
    assert!(json["server_cpu_us_per_append"].is_null(), "{json}");
    let table = LogReport { runs: vec![run] }.table();
    assert!(
        table.contains("HOLES/APPEND") && table.contains("0.250"),
        "{table}"
    );
    assert!(LogRun::new(&plan, Vec::new()).is_none());
}
