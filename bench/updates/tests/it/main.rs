//! The bench runs, small: every protocol makes its updates safe, also when messages are lost.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The bound on one run of the bench. It takes a second where nothing else runs.
const PATIENCE: Duration = Duration::from_secs(120);

/// The report of one run with these flags.
fn report(args: &[&str]) -> Value {
    let mut child = Command::new(env!("CARGO_BIN_EXE_staves-bench-updates"))
        .args(["--json", "--bytes", "64", "--runs", "1"])
        .args(args)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the bench starts");
    let began = Instant::now();
    while child.try_wait().expect("it can be waited for").is_none() {
        if began.elapsed() > PATIENCE {
            child.kill().expect("it can be killed");
            panic!("the bench with {args:?} has not ended after {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let ran = child.wait_with_output().expect("its output");
    assert!(ran.status.success(), "{:?}", ran.status);
    serde_json::from_slice(&ran.stdout).expect("JSON on stdout")
}

/// The points of a report that belong to one protocol; each took some time.
fn points<'a>(report: &'a Value, mode: &str) -> Vec<&'a Value> {
    let points = report["points"].as_array().expect("points");
    let of_mode: Vec<_> = points.iter().filter(|p| p["mode"] == mode).collect();
    for point in &of_mode {
        assert!(point["ms"].as_f64() > Some(0.0), "{point}");
    }
    of_mode
}

/// Rows H4 and H9: the baselines (one-phase commit, two-phase commit) run beside the watermark protocols and ours.
#[test]
fn h4_h9_every_protocol_makes_updates_safe() {
    let report = report(&["--figure", "5"]);
    let baselines = ["one-phase", "serial-two-phase", "parallel-two-phase"];
    for mode in baselines
        .into_iter()
        .chain(["applied", "logged", "immediate"])
    {
        let counts: Vec<_> = points(&report, mode)
            .iter()
            .map(|p| p["updates"].as_u64())
            .collect();
        let expected = [1, 10, 50, 100, 200, 300, 500].map(Some);
        assert_eq!(counts, expected, "{mode}");
    }
}

/// Row H9: with up to 70 of 100 messages lost, all updates become safe.
#[test]
fn h9_updates_become_safe_while_messages_are_lost() {
    let report = report(&["--figure", "6"]);
    for mode in ["applied", "logged"] {
        let lost: Vec<_> = points(&report, mode)
            .iter()
            .map(|p| p["lost_percent"].as_u64())
            .collect();
        assert_eq!(lost, [0, 5, 10, 30, 50, 70].map(Some), "{mode}");
    }
}
