//! Delays of packets between namespaces, on this machine's kernel.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use staves_chaos::lab::{self, Lab};
use staves_chaos::wan::{self, measure::measure};
use staves_testkit::tools::missing;

/// False, with the reason reported, where no packet can be delayed.
fn is_possible() -> bool {
    let why = lab::impossible().or_else(wan::impossible);
    let possible = why.is_none();
    why.into_iter().for_each(missing);
    possible
}

fn rules(lab: &Lab, at: usize) -> usize {
    let mut save = lab.command(at);
    let out = save.args(["iptables-legacy-save", "-t", "mangle"]).output();
    let out = out.expect("iptables-legacy-save runs");
    let text = String::from_utf8(out.stdout).expect("text");
    text.lines().filter(|line| line.contains("NFQUEUE")).count()
}

/// Starts a delay between all nodes of a lab, and waits until it is there.
fn delaying(lab: &Lab, nodes: usize) -> (Child, BufReader<std::process::ChildStdout>) {
    let places = (0..nodes).map(|at| format!("{}={}", lab.place(at).display(), lab.address(at)));
    let mut child = Command::new(env!("CARGO_BIN_EXE_staves-chaos"))
        .args(["wan", "--one-way", "5ms"])
        .args(places)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    out.read_line(&mut line).expect("it can be read");
    assert_eq!(line, "delaying\n");
    (child, out)
}

/// Packets are never early; how late they are is the machine's affair.
#[test]
fn a_round_trip_takes_both_delays_longer() {
    if !is_possible() {
        return;
    }
    let measured = measure(Duration::from_millis(10)).expect("it can be measured");
    eprintln!("{measured}");
    assert!(measured.range.0 >= Duration::from_millis(20), "{measured}");
    assert!(measured.median < Duration::from_secs(1), "{measured}");
    assert!(measured.counts.delayed > 200, "{measured}");
    assert_eq!(measured.counts.dropped, 0, "{measured}");
}

#[test]
fn a_delay_ends_with_the_process_that_began_it_and_takes_its_rules_away() {
    if !is_possible() {
        return;
    }
    let lab = Lab::new(3).expect("a lab");
    let (mut child, mut out) = delaying(&lab, 3);
    assert_eq!([rules(&lab, 0), rules(&lab, 2)], [2, 2]);
    // The end of a pipe closes however its process ends.
    drop(child.stdin.take());
    let mut told = String::new();
    out.read_to_string(&mut told).expect("it can be read");
    assert!(child.wait().expect("it ends").success(), "{told}");
    assert!(told.contains("packets delayed"), "{told}");
    assert_eq!([rules(&lab, 0), rules(&lab, 2)], [0, 0]);
}

#[test]
fn rules_of_a_killed_process_are_replaced_by_the_next() {
    if !is_possible() {
        return;
    }
    let lab = Lab::new(2).expect("a lab");
    let (mut killed, _) = delaying(&lab, 2);
    killed.kill().expect("SIGKILL");
    killed.wait().expect("it ends");
    assert_eq!(rules(&lab, 0), 1, "nobody could take it away");
    let (mut child, _out) = delaying(&lab, 2);
    assert_eq!(rules(&lab, 0), 1, "the former one is not there twice");
    drop(child.stdin.take());
    child.wait().expect("it ends");
    assert_eq!(rules(&lab, 0), 0);
}

#[test]
fn the_next_lab_sweeps_the_namespaces_of_a_killed_run_with_their_rules() {
    if !is_possible() {
        return;
    }
    let mut gone = Command::new("true").spawn().expect("true");
    let name = format!("stv{}x0-n1", gone.id());
    gone.wait().expect("it ends");
    let ip = |args: &[&str]| {
        let done = Command::new("ip").args(args).status().expect("ip runs");
        assert!(done.success(), "{args:?}");
    };
    ip(&["netns", "add", &name]);
    let rule = "iptables-legacy -w -t mangle -A INPUT -j NFQUEUE --queue-num 1600";
    ip(&[
        &["netns", "exec", &name][..],
        &rule.split(' ').collect::<Vec<_>>(),
    ]
    .concat());
    let _lab = Lab::new(1).expect("a lab");
    File::open(format!("/run/netns/{name}")).expect_err("it is swept");
}

/// The reason is told, with the package.
#[test]
fn without_its_tool_a_delay_says_what_is_missing() {
    let out = Command::new(env!("CARGO_BIN_EXE_staves-chaos"))
        .args([
            "wan",
            "--one-way",
            "5ms",
            "/proc/1/ns/net=10.0.0.1",
            "/proc/1/ns/net=10.0.0.2",
        ])
        .env("PATH", "/nowhere")
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let said = String::from_utf8(out.stderr).expect("text");
    assert!(
        !out.status.success() && said.contains("install iptables (Debian)"),
        "{said}"
    );
}
