//! The words of the log commands: errors that name what is wrong, results for programs, and ends that are said.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Cluster;
use super::log::make_pool;

impl Cluster {
    /// A log command whose ends are pipes.
    fn begin_log(&self, i: usize, args: &[&str]) -> Child {
        Command::new(env!("CARGO_BIN_EXE_staves"))
            .args([
                "--cluster",
                &self.nodes[i].native,
                "--deadline",
                "30s",
                "log",
            ])
            .args(args)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs")
    }
}

/// Waits for a program by itself, and says what it says on stderr. Kills it at the end of the time.
fn ended(mut child: Child, within: Duration) -> (bool, String) {
    let until = Instant::now() + within;
    let status = loop {
        match child.try_wait().expect("a child") {
            Some(status) => break Some(status),
            None if Instant::now() > until => break None,
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let _gone = child.kill();
    let _status = child.wait();
    let mut said = String::new();
    let stderr = child.stderr.take();
    let _utf8 = stderr.map(|mut stderr| stderr.read_to_string(&mut said));
    (status.is_some_and(|status| !status.success()), said)
}

/// Regression: the error named 16 MiB, a bound that was not broken, whatever was wrong with an append.
fn bounds_are_named(cluster: &Cluster) {
    let many: Vec<String> = (0..9).map(|tag| format!("--tag={tag}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let many = cluster.no_log(&[&["append", "events"], &many[..]].concat(), "x\n");
    assert!(many.contains("with 9 tags: it has 8 at most"), "{many}");
    let twice = ["append", "events", "--tag", "7", "--tag", "7"];
    let twice = cluster.no_log(&twice, "x\n");
    assert!(twice.contains("tag 7 twice"), "{twice}");
    assert!(!twice.contains("MiB"), "{twice}");
}

/// Regression: it said "changed".
fn nothing_to_set_is_an_error(cluster: &Cluster) {
    let none = cluster.run(0, &["log", "set", "events"]);
    assert_eq!(none.code, Some(2), "{}", none.stderr);
    for option in ["--keep-records", "--keep-for", "--keep-all", "--when-full"] {
        assert!(none.stderr.contains(option), "{}", none.stderr);
    }
}

/// Regression: the result was a sentence.
fn results_are_words(cluster: &Cluster) {
    let json = |args: &[&str]| -> serde_json::Value {
        let text = cluster.log(0, &[args, &["-o", "json"]].concat(), "");
        serde_json::from_str(&text).expect("JSON")
    };
    let moved = json(&["move", "events", "--to", "2"]);
    assert_eq!(moved["result"], "moved", "{moved}");
    let term = moved["term"].as_u64().expect("a term");
    assert!(moved["sequencer"].is_string(), "{moved}");
    let sealed = json(&["seal", "events"]);
    assert_eq!(sealed["result"], "sealed", "{sealed}");
    assert!(sealed["term"].as_u64() > Some(term), "{sealed}");
    let punched = json(&["punch", "events", "--at", "0"]);
    assert_eq!(
        (&punched["result"], &punched["position"]),
        (&"punched".into(), &0.into())
    );
}

/// Regression: it waited for input for ever.
fn an_append_that_nobody_reads_ends(cluster: &Cluster) {
    let mut child = cluster.begin_log(1, &["append", "events"]);
    let mut stdin = child.stdin.take().expect("a pipe");
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    // The end of the line comes later.
    stdin.write_all(b"one").expect("written");
    std::thread::sleep(Duration::from_millis(200));
    stdin.write_all(b" line\n").expect("written");
    let mut position = String::new();
    stdout.read_line(&mut position).expect("a position");
    drop(stdout);
    let (failed, said) = ended(child, Duration::from_secs(40));
    assert!(failed && said.contains("nobody reads"), "{said}");
    let read = ["read", "events", "--from", position.trim_end()];
    assert_eq!(cluster.log(0, &read, ""), "one line\n");
    drop(stdin);
}

/// Regression: it said nothing for up to 47 s, for the sequencer of the deleted log answered on.
fn a_follower_of_a_deleted_log_is_told(cluster: &Cluster) {
    let begin = |args: &[&str]| {
        let mut child = cluster.begin_log(2, args);
        let mut first = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        first.read_line(&mut line).expect("a record");
        assert_eq!(line, "tagged\n");
        child
    };
    let at = cluster.log(0, &["append", "events", "--tag", "7"], "tagged\n");
    let all = begin(&["read", "events", "--follow", "--from", at.trim_end()]);
    let tagged = begin(&["read", "events", "--follow", "--tag", "7"]);
    cluster.log(0, &["delete", "events", "--yes"], "");
    for follower in [all, tagged] {
        let (failed, said) = ended(follower, Duration::from_secs(20));
        assert!(failed && said.contains("no log 'events'"), "{said}");
    }
}

#[test]
fn log_commands_say_what_is_wrong_and_when_they_end() {
    let cluster = Cluster::start(3);
    make_pool(&cluster, "ram");
    cluster.log(0, &["create", "events"], "");
    assert_eq!(cluster.log(0, &["append", "events"], "zero\n"), "0\n");
    bounds_are_named(&cluster);
    nothing_to_set_is_an_error(&cluster);
    results_are_words(&cluster);
    an_append_that_nobody_reads_ends(&cluster);
    a_follower_of_a_deleted_log_is_told(&cluster);
}
