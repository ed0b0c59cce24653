//! Rows L2, L4 and L6: `staves bench log` on a real cluster. What it measures is told whatever the machine does; no time is judged.

use serde_json::Value;

use super::Cluster;

fn bench(cluster: &Cluster, args: &str) -> Value {
    let fixed = ["bench", "log", "-o", "json", "--deadline", "30s"];
    let all: Vec<&str> = fixed.into_iter().chain(args.split(' ')).collect();
    let ran = cluster.run(0, &all);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    serde_json::from_str(&ran.stdout).expect("JSON on stdout")
}

fn number(run: &Value, pointer: &str) -> f64 {
    let number = run.pointer(pointer).and_then(Value::as_f64);
    number.unwrap_or_else(|| panic!("{pointer} of {run}"))
}

/// Everything was acknowledged, times are in order, and the counts add up.
fn check(run: &Value) {
    assert!(number(run, "/appends") > 0.0, "{run}");
    assert_eq!(number(run, "/errors"), 0.0, "{run}");
    let times = ["p50", "p90", "p99", "max"].map(|q| number(run, &format!("/latency_us/{q}")));
    assert!(times[0] > 0.0 && times.is_sorted(), "{run}");
    let rate = number(run, "/appends") / number(run, "/seconds");
    assert!(
        (rate - number(run, "/appends_per_second")).abs() < 1.0,
        "{run}"
    );
    assert!(
        number(run, "/positions") >= number(run, "/appends"),
        "{run}"
    );
    assert!(number(run, "/holes") <= number(run, "/positions"), "{run}");
    for figure in ["/holes_per_append", "/client_cpu_us_per_append"] {
        assert!((0.0..1e9).contains(&number(run, figure)), "{run}");
    }
    assert!(number(run, "/server_cpu_us_per_append") >= 0.0, "{run}");
}

/// A run for each batch, without a cold reader and with one, which says what it cost.
fn batches_and_cold_readers(cluster: &Cluster) {
    let report = bench(
        cluster,
        "--depth 2 --batch 1,5 --cold-readers 0,1 --fill 64KiB --seconds 1 --warm-up 50ms",
    );
    let runs = report["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 4, "{report}");
    for (run, (batch, cold)) in runs.iter().zip([(1, 0), (1, 1), (5, 0), (5, 1)]) {
        assert_eq!(
            (&run["batch"], &run["cold_readers"]),
            (&batch.into(), &cold.into())
        );
        assert!(
            number(run, "/appends") > 0.0 && number(run, "/errors") == 0.0,
            "{run}"
        );
        let records = number(run, "/records_per_second") / number(run, "/appends_per_second");
        assert!((records - f64::from(batch)).abs() < 1e-6, "{run}");
        assert_eq!(run["cold_cost"].is_null(), cold == 0, "{run}");
        assert!(number(run, "/holes") < number(run, "/appends"), "{run}");
    }
}

/// Nobody appends: both kinds of readers read the filled log, again and again.
fn readers_alone(cluster: &Cluster) {
    let alone = "--clients 0 --readers 1 --cold-readers 1 --read-ahead 8 --fill 64KiB";
    let report = bench(cluster, &format!("{alone} --seconds 1 --warm-up 50ms"));
    let run = &report["runs"][0];
    assert_eq!(number(run, "/appends"), 0.0, "{run}");
    for reader in ["/read", "/cold_read"] {
        let records = number(run, &format!("{reader}/records_per_second"));
        assert!(records > 0.0, "{run}");
        assert_eq!(number(run, &format!("{reader}/errors")), 0.0, "{run}");
    }
    assert!(number(run, "/client_cpu_us_per_read") > 0.0, "{run}");
}

/// Rows L1, L2, L4 and L6: each way of appending by the clock and as fast as it goes, with readers beside it.
#[test]
fn l6_each_way_of_appending_is_measured() {
    let cluster = Cluster::start(3);
    let pool = "pool create logs --kind log --scheme 1+1 --memory 60MiB --buckets 4";
    let made = cluster.run(0, &pool.split(' ').collect::<Vec<_>>());
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let modes = "--mode bind,predict,corfu --clients 2 --seconds 1 --warm-up 100ms";
    let report = bench(&cluster, &format!("{modes} --rate 40 --readers 1"));
    let runs = report["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 3, "{report}");
    for (run, mode) in runs.iter().zip(["bind", "predict", "corfu"]) {
        check(run);
        assert_eq!((&run["mode"], &run["depth"]), (&mode.into(), &Value::Null));
        // 40 a second for a second; one may fall on an edge of each client's window.
        let due = number(run, "/appends") + number(run, "/unsent");
        assert!((due - 40.0).abs() <= 4.0, "{run}");
        assert!(number(run, "/read/records_per_second") > 0.0, "{run}");
        assert_eq!(number(run, "/read/errors"), 0.0, "{run}");
    }
    let report = bench(
        &cluster,
        "--depth 4 --size 2KiB --seconds 1 --warm-up 50ms --cold-readers 1 --fill 256KiB --rounds 3",
    );
    let run = &report["runs"][0];
    check(run);
    assert_eq!((&run["depth"], &run["rate"]), (&4.into(), &Value::Null));
    assert_eq!(number(run, "/rounds"), 3.0);
    assert!(number(run, "/cold_read/bytes_per_second") > 0.0, "{run}");
    let [low, high] = ["/rounds_p50_us/0", "/rounds_p50_us/1"].map(|at| number(run, at));
    assert!(
        (low..=high).contains(&number(run, "/latency_us/p50")),
        "{run}"
    );
    batches_and_cold_readers(&cluster);
    readers_alone(&cluster);
    let tokens = bench(&cluster, "--tokens --rounds 2");
    let [taken, counted] =
        ["/tokens_per_second", "/counter_per_second"].map(|at| number(&tokens, at));
    assert!(taken > 0.0 && counted > 0.0, "{tokens}");
    assert!(
        (number(&tokens, "/share") - taken / counted).abs() < 1e-6,
        "{tokens}"
    );
    let left = cluster.run(0, &["log", "list", "-o", "json"]);
    let left: Value = serde_json::from_str(&left.stdout).expect("JSON on stdout");
    assert_eq!(left.as_array().map(Vec::len), Some(0), "{left}");
    let none = cluster.run(0, &["bench", "log", "--pool", "none"]);
    assert!(
        none.code != Some(0) && none.stderr.contains("'none'"),
        "{}",
        none.stderr
    );
}
