//! Row X7: `staves bench cache` against real servers.

use serde_json::Value;
use staves_testkit::free_port;

use super::*;

/// The first run's figures: everything was answered and found, and the counts add up.
fn check(report: &Value, run: usize) -> &Value {
    let run = &report["runs"][run];
    let count = |pointer: &str| {
        run.pointer(pointer)
            .and_then(Value::as_u64)
            .unwrap_or(u64::MAX)
    };
    assert!(
        count("/requests") > 0 && count("/requests") != u64::MAX,
        "{report}"
    );
    for figure in ["/errors", "/misses"] {
        assert_eq!(count(figure), 0, "{figure}: {run}");
    }
    for figure in ["requests", "operations"] {
        let of = |side: &str| count(&format!("{side}/{figure}"));
        assert_eq!(of("/reads") + of("/writes"), of(""), "{figure}: {run}");
    }
    assert_eq!(
        count("/operations"),
        count("/requests") * count("/batch"),
        "{run}"
    );
    let time = |name: &str| run["latency_us"][name].as_f64().expect("a time");
    let times = ["p50", "p99", "p99_9", "max"].map(time);
    assert!(times[0] > 0.0 && times.is_sorted(), "{run}");
    let rate = run["operations_per_second"].as_f64().expect("a rate");
    let by_hand = count("/operations") as f64 / run["seconds"].as_f64().expect("a time");
    assert!((rate - by_hand).abs() < 1.0, "{run}");
    // The server did something for its answers, and cannot have used more than the machine has.
    let cpu = run["server_cpu_seconds"].as_f64().expect("it says");
    assert!((0.0..1000.0).contains(&cpu), "{run}");
    run
}

fn bench(args: &[&str]) -> Value {
    let fixed = [
        "bench",
        "cache",
        "-o",
        "json",
        "--keys",
        "500",
        "--duration",
        "1s",
        "--deadline",
        "30s",
    ];
    let all = [
        &fixed[..],
        &["--warm-up", "50ms", "--connections", "4"],
        args,
    ]
    .concat();
    let ran = staves(&all);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    serde_json::from_str(&ran.stdout).expect("JSON on stdout")
}

/// Row X7: sizes, mixes and batches, against a real cluster.
#[test]
fn the_bench_measures_a_cluster_over_both_protocols() {
    let cluster = Cluster::start(2);
    let native = &cluster.nodes[0].native;
    let lists = ["--sizes", "100", "--mix", "80:20,0:100", "--batch", "1,20"];
    let rate = ["--sizes", "2KiB", "--rate", "50", "--threads", "2"];
    for protocol in ["resp", "native"] {
        let common = ["--cluster", native, "--protocol", protocol];
        let common = [&common[..], &["--zipf", "0.99"]].concat();
        let report = bench(&[&common[..], &lists].concat());
        assert_eq!(report["runs"].as_array().map(Vec::len), Some(4), "{report}");
        for i in 0..4 {
            let run = check(&report, i);
            assert_eq!(run["unsent"], 0, "{run}");
            let reads = run["reads"]["requests"].as_u64().expect("a count");
            let writes_only = run["reads_percent"] == 0;
            assert_eq!(reads == 0, writes_only, "{run}");
        }
        let report = bench(&[&common[..], &rate].concat());
        let run = check(&report, 0);
        let count = |name: &str| run[name].as_f64().expect("a count");
        // 50 a second for a second; one may fall on an edge of each connection's window.
        let due = count("requests") + count("unsent");
        assert!((due - 50.0).abs() <= 4.0, "{run}");
    }
    let keys = || {
        let ran = cluster.run(0, &["cache", "stats", "-o", "json"]);
        let told: Value = serde_json::from_str(&ran.stdout).expect("JSON on stdout");
        told["total"]["keys"].as_u64()
    };
    assert_eq!(keys(), Some(0), "nothing is left behind");
    let kept = ["--cluster", native, "--sizes", "2KiB", "--keep"];
    bench(&kept);
    assert_eq!(keys(), Some(500));
    // With values of the last size: random bytes, so told in hexadecimal.
    let ran = cluster.run(1, &["cache", "get", "bench:0000000499", "-o", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let told: Value = serde_json::from_str(&ran.stdout).expect("JSON on stdout");
    assert_eq!(told["value_hex"].as_str().map(str::len), Some(2 * 2048));
    let ran = cluster.run(
        0,
        &["bench", "cache", "--protocol", "native", "--pool", "none"],
    );
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert!(ran.stderr.contains("pool 'none'"), "{}", ran.stderr);
}

/// A process that is killed at the end of the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(program: &str, args: &[&str], port: u16) -> Server {
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let server = Server(command.spawn().expect("the server starts"));
    let until = Instant::now() + PATIENCE;
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < until, "{program} does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

#[test]
fn the_bench_measures_redis_and_memcached_too() {
    let lists = ["--mix", "50:50", "--batch", "1,30", "--pipeline", "1,8"];
    if runs("redis-server", &["--version"]) {
        let port = free_port();
        let args = [
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--port",
        ];
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().to_str().expect("text");
        let _server = start(
            "redis-server",
            &[&args[..], &[&port.to_string(), "--dir", dir]].concat(),
            port,
        );
        let address = format!("127.0.0.1:{port}");
        let report = bench(&[&["--server", &address][..], &lists].concat());
        for i in 0..4 {
            check(&report, i);
        }
    }
    if runs("memcached", &["--version"]) {
        let port = free_port();
        let args = [
            "-l",
            "127.0.0.1",
            "-U",
            "0",
            "-u",
            "root",
            "-p",
            &port.to_string(),
        ];
        let _server = start("memcached", &args, port);
        let address = format!("127.0.0.1:{port}");
        let common = ["--server", &address, "--protocol", "memcached"];
        let report = bench(&[&common[..], &lists].concat());
        for i in 0..4 {
            check(&report, i);
        }
    }
}
