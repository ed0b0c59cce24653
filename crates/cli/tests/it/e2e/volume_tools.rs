//! The tools of those who run volumes: figures, rates, limits and checks, with real nodes.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use staves_testkit::nbd::NbdClient;

use super::descriptors::{figure, page};
use super::volumes::{make, start};
use super::{Cluster, PATIENCE};

fn connect(port: u16) -> NbdClient {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    NbdClient::connect(address, "disk").expect("it connects")
}

/// Waits until the page of metrics of a node is as it should be.
fn until_page(cluster: &Cluster, i: usize, holds: impl Fn(&str) -> bool) {
    let until = Instant::now() + PATIENCE;
    loop {
        let text = page(cluster.nodes[i].admin, "/metrics");
        if holds(&text) {
            return;
        }
        assert!(Instant::now() < until, "{text}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_node_counts_the_requests_of_each_volume_until_it_is_deleted() {
    let (cluster, ports) = start(2);
    make(&cluster, "1+1", "4MiB");
    let mut client = connect(ports[0]);
    for at in 0..5u64 {
        client.write(at << 12, &[7; 4096]).expect("written");
    }
    client.read(0, 8192).expect("read");
    client.flush().expect("flushed");
    client.trim(0, 65536).expect("trimmed");
    client.zero(65536, 4096).expect("zeroed");
    let beyond = client.write(4 << 20, &[1; 512]);
    assert!(beyond.is_err(), "it lies beyond the end");
    let text = page(cluster.nodes[0].admin, "/metrics");
    let of = |name: &str, op: &str| {
        let name = format!("staves_volume_{name}{{volume=\"disk\",op=\"{op}\"}} ");
        figure(&text, &name)
    };
    let counts = [
        ("read", 1, 8192),
        ("write", 5, 5 * 4096),
        ("flush", 1, 0),
        ("discard", 1, 65536),
        ("zero", 1, 4096),
    ];
    for (op, requests, bytes) in counts {
        assert_eq!(of("requests_total", op), requests, "{op}");
        assert_eq!(of("bytes_total", op), bytes, "{op}");
        assert_eq!(of("errors_total", op), 0, "{op}");
        assert_eq!(of("request_seconds_count", op), requests, "{op}");
    }
    let all = "staves_volume_request_seconds_bucket{volume=\"disk\",op=\"write\",le=\"+Inf\"} ";
    assert_eq!(figure(&text, all), 5);
    assert!(text.contains("# TYPE staves_volume_request_seconds histogram\n"));
    let other = page(cluster.nodes[1].admin, "/metrics");
    assert!(
        !other.contains("volume=\"disk\""),
        "nobody has it from there"
    );
    drop(client);
    let detached = |text: &str| text.contains("staves_nbd_connections 0\n");
    until_page(&cluster, 0, detached);
    let deleted = cluster.run(0, &["volume", "delete", "disk", "--yes"]);
    assert_eq!(deleted.code, Some(0), "{}", deleted.stderr);
    until_page(&cluster, 0, |text| !text.contains("volume=\"disk\""));
}

/// The rounds of `volume top` as JSON.
fn rounds(printed: &str) -> Vec<serde_json::Value> {
    let lines = printed.lines();
    let parsed = lines.map(|line| serde_json::from_str(line).expect("a line of JSON"));
    parsed.collect()
}

/// Checks a round in which `disk` was written in blocks of 4 KiB and read in blocks of 8, and another volume was idle.
fn is_round_of_both(last: &serde_json::Value) {
    let number = |name: &str| last["volumes"][0][name].as_f64().unwrap_or(-1.0);
    assert_eq!(last["volumes"][0]["volume"], "disk");
    let (reads, writes) = (number("reads_per_second"), number("writes_per_second"));
    assert!(reads > 1.0 && writes > 1.0, "{last}");
    let near = |a: f64, b: f64| (a - b).abs() < 1.0;
    assert!(
        near(number("written_bytes_per_second"), writes * 4096.0),
        "{last}"
    );
    assert!(
        near(number("read_bytes_per_second"), reads * 8192.0),
        "{last}"
    );
    for kind in ["read", "write"] {
        let (p50, p99) = (format!("{kind}_p50_seconds"), format!("{kind}_p99_seconds"));
        assert!(number(&p50) > 0.0 && number(&p50) <= number(&p99), "{last}");
    }
    assert!(
        last["volumes"][0]["attached_to"]["node"].is_number(),
        "{last}"
    );
    assert_eq!(last["volumes"][1]["reads_per_second"], 0.0, "{last}");
    assert_eq!(
        last["volumes"][1]["read_p50_seconds"],
        serde_json::Value::Null
    );
    assert_eq!(last["absent"], serde_json::json!([]));
}

#[test]
fn top_shows_what_volumes_do_through_all_nodes_and_names_who_is_away() {
    let (mut cluster, ports) = start(3);
    make(&cluster, "1+1", "8MiB");
    let idle = ["volume", "create", "idle", "--size", "1MiB"];
    assert_eq!(cluster.run(0, &idle).code, Some(0));
    let ended = AtomicBool::new(false);
    let (top, of_one) = std::thread::scope(|scope| {
        for (i, port) in ports[1..].iter().enumerate() {
            let (ended, mut client) = (&ended, connect(*port));
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    // The second one is a reader.
                    let done = match i {
                        0 => client.write(0, &[1; 4096]),
                        _ => client.read(0, 8192).map(drop),
                    };
                    done.expect("it is served");
                }
            });
        }
        let top = "volume top --interval 300ms --count 3 -o json".split(' ');
        let top = cluster.run(0, &top.collect::<Vec<_>>());
        let of_one = cluster.run(0, &["volume", "top", "disk", "--count", "1"]);
        ended.store(true, Ordering::Relaxed);
        (top, of_one)
    });
    assert_eq!(top.code, Some(0), "{}", top.stderr);
    let rounds_seen = rounds(&top.stdout);
    assert_eq!(rounds_seen.len(), 3, "{}", top.stdout);
    is_round_of_both(&rounds_seen[2]);
    assert!(
        of_one.stdout.contains("disk") && !of_one.stdout.contains("idle"),
        "{}",
        of_one.stdout
    );
    cluster.end(2, "-KILL");
    let after = cluster.run(0, &["volume", "top", "--count", "2", "-o", "json"]);
    assert_eq!(after.code, Some(0), "{}", after.stderr);
    let rounds_after = rounds(&after.stdout);
    let named = |round: &serde_json::Value| round["absent"][0]["node_name"].is_string();
    assert!(
        rounds_after.len() == 2 && rounds_after.iter().all(named),
        "{}",
        after.stdout
    );
    let unknown = cluster.run(0, &["volume", "top", "no", "--count", "1"]);
    assert_eq!(unknown.code, Some(3), "{}", unknown.stderr);
}

fn limit(cluster: &Cluster, args: &[&str]) -> serde_json::Value {
    let all = [&["volume", "limit", "disk", "-o", "json"], args].concat();
    let ran = cluster.run(0, &all);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).expect("JSON")
}

/// Writes blocks of so many bytes for a while: their number, and the time that passed.
fn write_for(client: &mut NbdClient, bytes: usize, time: Duration) -> (f64, f64) {
    let (began, block) = (Instant::now(), vec![3; bytes]);
    let mut count = 0;
    while began.elapsed() < time {
        client.write(0, &block).expect("written");
        count += 1;
    }
    (f64::from(count), began.elapsed().as_secs_f64())
}

#[test]
fn a_limited_volume_does_no_more_than_its_limit_and_a_new_limit_counts_at_once() {
    let (cluster, ports) = start(2);
    make(&cluster, "1+1", "4MiB");
    let set = limit(&cluster, &["--iops", "40", "--burst", "500ms"]);
    assert_eq!(
        (&set["limit"]["iops"], &set["limit"]["burst_seconds"]),
        (&40.into(), &0.5.into())
    );
    let mut client = connect(ports[1]);
    let (done, seconds) = write_for(&mut client, 512, Duration::from_secs(3));
    assert!(
        done <= 40.0 * (seconds + 0.5) + 2.0,
        "{done} in {seconds} s"
    );
    assert!(done >= 20.0, "{done} in {seconds} s");
    let waits = page(cluster.nodes[1].admin, "/metrics");
    assert!(figure(&waits, "staves_volume_limit_waits_total{volume=\"disk\"} ") > 0);
    // Bytes, and for the connection that there is.
    limit(
        &cluster,
        &["--bytes-per-second", "1MiB", "--burst", "100ms"],
    );
    client.write(0, &[1; 4 << 10]).expect("written");
    std::thread::sleep(Duration::from_secs(1));
    let (done, seconds) = write_for(&mut client, 64 << 10, Duration::from_secs(2));
    let bytes = done * f64::from(64 << 10);
    assert!(
        bytes <= f64::from(1 << 20) * (seconds + 0.1) + 131_072.0,
        "{done} in {seconds} s"
    );
    let listed = cluster.run(0, &["volume", "list"]);
    assert!(listed.stdout.contains("1.0 MiB/s"), "{}", listed.stdout);
    // Of a minute's requests most wait when the limit is taken away.
    limit(&cluster, &["--iops", "1", "--burst", "10ms"]);
    std::thread::sleep(Duration::from_secs(1));
    let began = Instant::now();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            (0..100).for_each(|_| client.write(0, &[5; 512]).expect("written"));
        });
        std::thread::sleep(Duration::from_millis(1500));
        assert!(!writer.is_finished(), "the limit does not count");
        let set = limit(&cluster, &["--none"]);
        assert_eq!(set["limit"], serde_json::Value::Null);
    });
    assert!(
        began.elapsed() < Duration::from_secs(50),
        "{:?}",
        began.elapsed()
    );
    for wrong in [&["--iops", "0"][..], &["--iops", "5", "--burst", "2m"]] {
        let all = [&["volume", "limit", "disk"], wrong].concat();
        let ran = cluster.run(0, &all);
        assert!(
            ran.code == Some(1) && ran.stderr.contains("because"),
            "{}",
            ran.stderr
        );
    }
}

#[test]
fn a_limited_volume_is_taken_away_from_a_client_that_waits() {
    let (cluster, ports) = start(1);
    make(&cluster, "1+0", "4MiB");
    let mut client = connect(ports[0]);
    client.write(0, &[1; 512]).expect("written");
    limit(
        &cluster,
        &["--bytes-per-second", "64KiB", "--burst", "10ms"],
    );
    std::thread::sleep(Duration::from_secs(1));
    // Half a minute to pay for.
    client.write(0, &vec![2; 2 << 20]).expect("written");
    let began = Instant::now();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| client.write(0, &[3; 512]));
        std::thread::sleep(Duration::from_millis(500));
        let detached = cluster.run(0, &["volume", "detach", "disk"]);
        assert_eq!(detached.code, Some(0), "{}", detached.stderr);
        let ended = writer.join().expect("a thread");
        assert!(
            ended.is_err_and(|why| why.number().is_none()),
            "its connection ends"
        );
    });
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
}

/// The result of a check, its exit code and what it says, once the volume is whole.
fn check(cluster: &Cluster) -> (Option<i32>, serde_json::Value, String) {
    let until = Instant::now() + PATIENCE;
    loop {
        let ran = cluster.run(0, &["volume", "check", "disk", "-o", "json"]);
        let found: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
        if found["result"] != "incomplete" || Instant::now() > until {
            return (ran.code, found, ran.stderr);
        }
        assert_eq!(
            ran.code,
            Some(1),
            "what was not compared is no pass: {}",
            ran.stderr
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Row B5: the mirrors of a volume are compared while it is served; a bit that changed in one of them is found, and so is a mirror that is not there.
#[test]
fn b5_a_check_compares_all_copies_of_a_volume() {
    let (mut cluster, ports) = start(2);
    make(&cluster, "1+1", "4MiB");
    let (code, found, said) = check(&cluster);
    assert_eq!(
        (code, &found["result"]),
        (Some(0), &"nothing-written".into()),
        "{said}"
    );
    let page: Vec<u8> = (0..4096).map(|i| (i % 241) as u8 | 1).collect();
    let mut client = connect(ports[0]);
    client.write(8192, &page).expect("written");
    client.write(1 << 20, &[9; 65536]).expect("written");
    // Another volume's faults are not this one's.
    let other = ["volume", "create", "other", "--size", "1MiB"];
    assert_eq!(cluster.run(0, &other).code, Some(0));
    let (code, found, said) = check(&cluster);
    assert_eq!(
        (code, &found["result"], &found["groups"]),
        (Some(0), &"clean".into(), &1.into()),
        "{said}"
    );
    assert!(found["pages_checked"].as_u64() > Some(0), "{found}");
    let shown = cluster.run(0, &["volume", "check", "disk"]);
    assert!(shown.stdout.contains("pages checked"), "{}", shown.stdout);
    let volume = cluster.run(0, &["volume", "show", "disk", "-o", "json"]);
    let volume: serde_json::Value = serde_json::from_str(&volume.stdout).expect("JSON");
    let copy = cluster.node_of(&volume["groups"][0].to_string(), 1);
    cluster.flip(copy, &page, 77);
    let (code, found, said) = check(&cluster);
    assert_eq!(
        (code, &found["result"]),
        (Some(1), &"wrong".into()),
        "{said}"
    );
    assert_eq!(found["differences"], 1, "{found}");
    assert!(said.contains("wrong bytes"), "{said}");
    // It changes nothing: a scrub does.
    assert_eq!(check(&cluster).0, Some(1));
    let mended = cluster.run(0, &["scrub", "--pool", "memory"]);
    assert_eq!(mended.code, Some(0), "{}", mended.stderr);
    assert_eq!(check(&cluster).0, Some(0));
    drop(client);
    cluster.end(1, "-KILL");
    let alone = cluster.run(0, &["volume", "check", "disk", "-o", "json"]);
    let found: serde_json::Value = serde_json::from_str(&alone.stdout).unwrap_or_default();
    assert_eq!(
        (alone.code, &found["result"]),
        (Some(1), &"incomplete".into()),
        "{}",
        alone.stderr
    );
    let unknown = cluster.run(0, &["volume", "check", "no"]);
    assert_eq!(unknown.code, Some(3), "{}", unknown.stderr);
}
