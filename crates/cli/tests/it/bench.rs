//! `staves bench` against servers that misbehave in known ways.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{Ran, staves};

/// Bytes of a SET with a value of 8 bytes and a key of the bench.
const SET_BYTES: usize = 50;

/// The server's behaviour at the request of this number (from 0, over all connections).
type Behaviour = fn(u64) -> Act;

enum Act {
    Say(&'static str),
    /// Rest so long first, and answer nothing else meanwhile.
    Stall(Duration),
    Close,
    Silence,
}

/// A server that takes every 50 bytes for a SET. It ends with the test's process.
fn server(behaviour: Behaviour) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    let count = Arc::new(AtomicU64::new(0));
    let one_at_a_time = Arc::new(Mutex::new(()));
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let (count, turn) = (count.clone(), one_at_a_time.clone());
            std::thread::spawn(move || serve(socket, behaviour, &count, &turn));
        }
    });
    address
}

fn serve(mut socket: TcpStream, behaviour: Behaviour, count: &AtomicU64, turn: &Mutex<()>) {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match socket.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
        }
        while bytes.len() >= SET_BYTES {
            // INFO, which asks for processor time, is shorter and never answered.
            assert!(bytes.starts_with(b"*3\r\n$3\r\nSET\r\n"));
            bytes.drain(..SET_BYTES);
            let _turn = turn.lock().expect("nobody panics");
            let answer = match behaviour(count.fetch_add(1, Ordering::SeqCst)) {
                Act::Say(text) => text,
                Act::Stall(time) => {
                    std::thread::sleep(time);
                    "+OK\r\n"
                }
                Act::Close => return,
                Act::Silence => "",
            };
            if socket.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}

/// Writes of 8 bytes only: what the server above understands.
fn bench(server: &str, args: &[&str]) -> Vec<String> {
    let me = std::process::id().to_string();
    let fixed = [
        "bench", "cache", "-o", "json", "--mix", "0:100", "--sizes", "8",
    ];
    let rest = [
        "--keys",
        "100",
        "--warm-up",
        "1ms",
        "--keep",
        "--server-pid",
        &me,
        "--server",
        server,
    ];
    [&fixed[..], &rest, args]
        .concat()
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn run(server: &str, args: &[&str]) -> Value {
    let args = bench(server, args);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let ran = staves(&args);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    json(&ran)
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}\n{}", ran.stdout, ran.stderr))
}

fn number(run: &Value, pointer: &str) -> f64 {
    let number = run.pointer(pointer).and_then(Value::as_f64);
    number.unwrap_or_else(|| panic!("{pointer} is no number in {run}"))
}

fn stalls_if(now: bool) -> Act {
    match now {
        true => Act::Stall(Duration::from_millis(600)),
        false => Act::Say("+OK\r\n"),
    }
}

#[test]
fn with_a_rate_a_stall_is_felt_by_all_that_were_due_meanwhile() {
    let args = [
        "--duration",
        "2s",
        "--connections",
        "2",
        "--pipeline",
        "500",
        "--rate",
        "200",
    ];
    let report = run(&server(|at| stalls_if(at == 50)), &args);
    let run = &report["runs"][0];
    let (requests, unsent) = (number(run, "/requests"), number(run, "/unsent"));
    // 400 were due in two seconds, whatever the server did; one may fall on an edge.
    assert!((requests + unsent - 400.0).abs() <= 1.0, "{run}");
    // 120 of them fell into the stall, the last of them late by nothing much: a tenth of all by 0.3 s and more.
    assert!(number(run, "/latency_us/p99") > 500_000.0, "{run}");
    assert!(number(run, "/latency_us/max") >= 600_000.0 * 0.99, "{run}");
    let late_share = 1.0 - 120.0 / 400.0;
    assert!(
        number(run, "/latency_us/mean") > 600_000.0 / 2.0 * (1.0 - late_share) * 0.8,
        "{run}"
    );
}

#[test]
fn without_a_rate_a_stall_is_felt_by_those_under_way_only() {
    let args = [
        "--duration",
        "1500ms",
        "--connections",
        "2",
        "--pipeline",
        "1",
    ];
    let report = run(&server(|at| stalls_if(at == 2000)), &args);
    let run = &report["runs"][0];
    assert!(number(run, "/requests") > 300.0, "{run}");
    assert!(number(run, "/latency_us/max") >= 590_000.0, "{run}");
    assert!(number(run, "/latency_us/p99") < 500_000.0, "{run}");
}

#[test]
fn refusals_are_counted_and_told_and_not_taken_for_operations() {
    let behaviour: Behaviour = |at| {
        Act::Say(if at % 4 == 3 {
            "-OOM full\r\n"
        } else {
            "+OK\r\n"
        })
    };
    let args = [
        "--duration",
        "500ms",
        "--connections",
        "1",
        "--pipeline",
        "8",
    ];
    let report = run(&server(behaviour), &args);
    let run = &report["runs"][0];
    let (done, errors) = (number(run, "/requests"), number(run, "/errors"));
    assert!(errors >= 2.0 && (done - errors * 3.0).abs() <= 3.0, "{run}");
    assert_eq!(run["errors_by_kind"][0]["kind"], "OOM", "{run}");
    assert_eq!(run["errors_by_kind"][0]["example"], "OOM full", "{run}");
    assert_eq!(number(run, "/writes/requests"), done, "{run}");
    assert_eq!(number(run, "/reads/requests"), 0.0, "{run}");
}

#[test]
fn a_lost_connection_is_an_error_and_is_made_again() {
    let behaviour: Behaviour = |at| match at {
        20 => Act::Close,
        _ => Act::Say("+OK\r\n"),
    };
    let args = ["--duration", "4s", "--connections", "1", "--pipeline", "4"];
    let report = run(&server(behaviour), &args);
    let run = &report["runs"][0];
    assert_eq!(run["errors_by_kind"][0]["kind"], "connection", "{run}");
    assert!((1.0..=4.0).contains(&number(run, "/errors")), "{run}");
    assert!(number(run, "/requests") > 40.0, "it went on: {run}");
}

#[test]
fn silence_ends_at_the_deadline_as_errors() {
    let args = [
        "--duration",
        "300ms",
        "--connections",
        "2",
        "--pipeline",
        "3",
        "--deadline",
        "400ms",
    ];
    let began = Instant::now();
    let report = run(&server(|_| Act::Silence), &args);
    let run = &report["runs"][0];
    assert_eq!(number(run, "/requests"), 0.0, "{run}");
    assert_eq!(number(run, "/errors"), 6.0, "{run}");
    assert_eq!(run["errors_by_kind"][0]["kind"], "timeout", "{run}");
    assert!(began.elapsed() < Duration::from_secs(30));
}

#[test]
fn ctrl_c_tells_what_was_measured_until_then() {
    let address = server(|_| Act::Say("+OK\r\n"));
    let child = Command::new(env!("CARGO_BIN_EXE_staves"))
        .args(bench(
            &address,
            &[
                "--duration",
                "10min",
                "--connections",
                "2",
                "--pipeline",
                "1,2",
            ],
        ))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    std::thread::sleep(Duration::from_secs(2));
    let sent = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(sent.expect("kill runs").success());
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let ran = Ran {
        code: output.status.code(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    };
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    let said = "the bench was interrupted; ";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
    let report = json(&ran);
    assert_eq!(report["interrupted"], true);
    assert_eq!(report["runs"].as_array().map(Vec::len), Some(1), "{report}");
    let seconds = number(&report["runs"][0], "/seconds");
    assert!(seconds > 0.0 && seconds < 60.0, "{report}");
    assert!(number(&report["runs"][0], "/requests") > 0.0, "{report}");
}

#[test]
fn wrong_input_is_one_clear_error() {
    let nobody = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    let nobody = nobody.expect("a free port").to_string();
    for (args, code, said) in [
        (&["--mix", "80:30"][..], 2, "adds up to 110"),
        (&["--sizes", "0"], 2, "1 byte"),
        (&["--zipf", "0.99", "--keys", "1"], 2, "2 keys"),
        (&["--pool", "other"], 2, "--protocol native"),
        (&["--threads", "8", "--connections", "4"], 2, "8 threads"),
        (&["--server-pid", "4294967295"], 2, "no such process"),
        (&["--protocol", "memcached"], 2, "--server"),
        (&["--server", &nobody], 4, &nobody),
        (
            &["--protocol", "memcached", "--server", &nobody],
            4,
            &nobody,
        ),
        (&["--protocol", "native", "--cluster", &nobody], 4, &nobody),
        (&["--cluster", &nobody], 4, &nobody),
    ] {
        let mut all = vec!["bench", "cache", "--deadline", "2s"];
        if !args.contains(&"--server") && !args.contains(&"--protocol") && code == 2 {
            all.extend(["--server", &nobody]);
        }
        all.extend(args);
        let ran = staves(&all);
        assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(said), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{args:?}");
    }
}
