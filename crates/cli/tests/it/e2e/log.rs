//! Logs from the shell: made, appended to, read past a killed node, trimmed, deleted.

mod queue;

use super::Cluster;

impl Cluster {
    pub(super) fn log(&self, i: usize, args: &[&str], input: &str) -> String {
        let out = self.pipe(i, &[&["log"], args].concat(), input.as_bytes());
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{args:?}: {text}");
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// The one line that is said, of a command that prints nothing.
    pub(super) fn no_log(&self, args: &[&str], input: &str) -> String {
        let out = self.pipe(0, &[&["log"], args].concat(), input.as_bytes());
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && out.stdout.is_empty(), "{args:?}");
        assert_eq!(text.trim_end().lines().count(), 1, "{text}");
        text
    }
}

pub(super) fn make_pool(cluster: &Cluster, medium: &str) {
    let pool = "pool create logs --kind log --scheme 1+1 --memory 60MiB --buckets 4 --medium";
    let pool: Vec<&str> = pool.split(' ').chain([medium]).collect();
    let made = cluster.run(0, &pool);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
}

/// Each has one clear error. The log has four records.
fn wrong_requests(cluster: &Cluster) {
    let unknown = cluster.no_log(&["read", "others"], "");
    assert!(unknown.contains("no log 'others'"), "{unknown}");
    let past = cluster.no_log(&["read", "events", "--from", "9"], "");
    assert!(
        past.contains("past its tail, 4") && past.contains("--follow"),
        "{past}"
    );
    let long = cluster.no_log(&["create", &"x".repeat(256)], "");
    assert!(long.contains("1 to 255 bytes"), "{long}");
    let large = cluster.no_log(&["append", "events"], &"x".repeat((1 << 20) + 1));
    assert!(
        large.contains("line 1 has more than 1048576 bytes"),
        "{large}"
    );
    for name in ["a\nb", "\u{1b}[2J"] {
        let control = cluster.no_log(&["create", name], "");
        assert!(control.contains("control characters"), "{control}");
    }
    let made = cluster.run(
        0,
        &[
            "pool",
            "create",
            "kv",
            "--memory",
            "8MiB",
            "--buckets",
            "8",
            "--scheme",
            "1+1",
        ],
    );
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let other = cluster.no_log(&["create", "l", "--pool", "kv"], "");
    assert!(
        other.contains("'kv'") && other.contains("it holds keys"),
        "{other}"
    );
}

#[test]
fn records_go_in_and_come_out_in_order() {
    let cluster = Cluster::start(3);
    let none = cluster.no_log(&["create", "events"], "");
    assert!(none.contains("--kind log"), "{none}");
    make_pool(&cluster, "ram");
    cluster.log(0, &["create", "events"], "");
    assert_eq!(cluster.log(1, &["append", "events"], "a\nb\n"), "0\n1\n");
    assert_eq!(cluster.log(2, &["tail", "events"], ""), "2\n");
    let last = cluster.log(0, &["append", "events", "-o", "json"], "c");
    assert_eq!(last.trim_end(), r#"{"position":2}"#);
    assert_eq!(cluster.log(1, &["read", "events"], ""), "a\nb\nc\n");
    let one = cluster.log(
        1,
        &[
            "read", "events", "--from", "1", "--count", "1", "-o", "json",
        ],
        "",
    );
    assert_eq!(one.trim_end(), r#"{"position":1,"value":"b"}"#);
    // Past the tail, and beyond it once somebody appends.
    let follow = ["read", "events", "--follow", "--from", "2", "--count", "2"];
    let followed = std::thread::scope(|scope| {
        let reader = scope.spawn(|| cluster.log(1, &follow, ""));
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert_eq!(cluster.log(0, &["append", "events"], "d\n"), "3\n");
        reader.join().expect("it ends")
    });
    assert_eq!(followed, "c\nd\n");
    wrong_requests(&cluster);
    let shown = cluster.log(0, &["show", "events", "-o", "json"], "");
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(shown["tail"], 4);

    cluster.log(0, &["trim", "events", "--to", "1"], "");
    let trimmed = cluster.no_log(&["read", "events", "--from", "0"], "");
    assert!(trimmed.contains("is trimmed: read from 1 on"), "{trimmed}");
    assert_eq!(cluster.log(0, &["read", "events"], ""), "b\nc\nd\n");
    let list = cluster.log(0, &["list", "-o", "json"], "");
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    assert_eq!(
        (&list[0]["log"], &list[0]["trim"]),
        (&"events".into(), &1.into())
    );
    let kept = cluster.no_log(&["delete", "events"], "");
    assert!(kept.contains("--yes"), "{kept}");
    cluster.log(0, &["delete", "events", "--yes"], "");
    let gone = cluster.no_log(&["show", "events"], "");
    assert!(gone.contains("no log 'events'"), "{gone}");
}

#[test]
fn streams_conditions_cursors_and_what_is_kept_from_the_shell() {
    let cluster = Cluster::start(3);
    make_pool(&cluster, "ram");
    cluster.log(0, &["create", "events"], "");
    cluster.log(0, &["append", "events", "--tag", "7"], "a\nb\n");
    cluster.log(1, &["append", "events", "--tag", "8", "--tag", "9"], "c\n");
    cluster.log(2, &["append", "events", "--tag", "7"], "d\n");
    let read = |tag: &str| cluster.log(1, &["read", "events", "--tag", tag], "");
    assert_eq!(
        (read("7"), read("9"), read("1")),
        ("a\nb\nd\n".into(), "c\n".into(), String::new())
    );
    // Only if nothing came in between.
    let late = [
        "append",
        "events",
        "--tag",
        "7",
        "--if-tail",
        "2",
        "--if-tag",
        "7",
    ];
    let failed = cluster.no_log(&late, "e\n");
    assert!(
        failed.contains("the tail of tag 7 in log 'events' is 4") && failed.contains("--if-tail 4"),
        "{failed}"
    );
    let now = [
        "append",
        "events",
        "--tag",
        "7",
        "--if-tail",
        "4",
        "--if-tag",
        "7",
    ];
    assert_eq!(cluster.log(0, &now, "e\nf\n"), "4\n5\n");
    cluster.log(0, &["punch", "events", "--at", "1"], "");
    // Regression: a read of the whole log ended there.
    assert_eq!(cluster.log(0, &["read", "events"], "").lines().count(), 5);
    assert_eq!(read("7"), "a\nd\ne\nf\n");
    let follow = ["read", "events", "--tag", "8", "--follow", "--count", "2"];
    let followed = std::thread::scope(|scope| {
        let reader = scope.spawn(|| cluster.log(1, &follow, ""));
        std::thread::sleep(std::time::Duration::from_millis(300));
        cluster.log(0, &["append", "events"], "not of it\n");
        cluster.log(0, &["append", "events", "--tag", "8"], "g\n");
        reader.join().expect("it ends")
    });
    assert_eq!(followed, "c\ng\n");
    cursors(&cluster);
    only_some_are_kept(&cluster);
}

fn only_some_are_kept(cluster: &Cluster) {
    cluster.log(
        0,
        &[
            "set",
            "events",
            "--keep-records",
            "3",
            "--when-full",
            "discard",
        ],
        "",
    );
    for _ in 0..10 {
        cluster.log(0, &["append", "events"], "x\n");
    }
    cluster.wait_for("old records are trimmed", 0, |_| {
        cluster.log(0, &["read", "events"], "").lines().count() == 3
    });
    let show = cluster.log(0, &["show", "events"], "");
    assert!(
        show.contains("the last 3 records; cursors or not"),
        "{show}"
    );
}

fn cursors(cluster: &Cluster) {
    let cursor = |args: &[&str]| cluster.log(0, &[&["cursor"], args].concat(), "");
    cursor(&["set", "events", "reader", "3", "--if-new"]);
    assert_eq!(cursor(&["get", "events", "reader"]), "3\n");
    let late = ["cursor", "set", "events", "reader", "6", "--if-at", "2"];
    let late = cluster.no_log(&late, "");
    assert!(
        late.contains("is at 3") && late.contains("--if-at 3"),
        "{late}"
    );
    cursor(&["set", "events", "reader", "4", "--if-at", "3"]);
    cursor(&["set", "events", "other", "1"]);
    let list = cursor(&["list", "events", "-o", "json"]);
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    assert_eq!(
        (&list[1]["cursor"], &list[1]["position"]),
        (&"reader".into(), &4.into())
    );
    cursor(&["delete", "events", "other"]);
    let none = cluster.no_log(&["cursor", "get", "events", "other"], "");
    assert!(none.contains("no cursor 'other'"), "{none}");
}

#[test]
fn a_log_on_disk_outlives_the_end_of_all_nodes() {
    let disk = "export STAVES_DISK=96MiB STAVES_DISK_MEMORY=4MiB".to_owned();
    let mut cluster = Cluster::start_after(&vec![disk; 3]);
    make_pool(&cluster, "disk");
    cluster.log(0, &["create", "events"], "");
    let records: String = (0..3000).map(|n| format!("record {n}\n")).collect();
    let positions = cluster.log(0, &["append", "events"], &records);
    assert_eq!(positions.lines().count(), 3000);
    for i in 0..3 {
        cluster.end(i, "-KILL");
    }
    for i in 0..3 {
        cluster.up(i);
    }
    cluster.wait_for("all are back", 0, |s| s["state"] == "healthy");
    assert_eq!(cluster.log(1, &["read", "events"], ""), records);
    let more = cluster.log(2, &["append", "events"], "one more\n");
    let last = positions
        .lines()
        .last()
        .and_then(|last| last.parse::<u64>().ok());
    assert!(more.trim_end().parse::<u64>().ok() > last, "{more}");
    assert!(
        cluster
            .log(1, &["read", "events"], "")
            .ends_with("one more\n")
    );
}

/// Regression: a list ended at the first pool that did not answer, and 'node show' took units for hash slots.
#[test]
fn a_pool_that_is_lost_does_not_hide_the_others() {
    let mut cluster = Cluster::start(3);
    make_pool(&cluster, "ram");
    let one = "pool create one --kind log --scheme 1+0 --memory 60MiB --buckets 4";
    let made = cluster.run(0, &one.split(' ').collect::<Vec<_>>());
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    for (name, pool) in [("a", "logs"), ("b", "one"), ("c", "one"), ("d", "one")] {
        cluster.log(0, &["create", name, "--pool", pool], "");
    }
    let node = cluster.run(0, &["node", "show", "1"]);
    let shows = |words: &[&str]| {
        let mut lines = node.stdout.lines();
        lines.any(|line| {
            line.split_whitespace()
                .take(words.len())
                .eq(words.iter().copied())
        })
    };
    assert!(
        shows(&["POOL", "OF", "LOGS"]) && !shows(&["logs", "0-4095"]),
        "{}",
        node.stdout
    );
    cluster.end(2, "-KILL");
    cluster.wait_for("it is gone", 0, |s| s["state"] == "critical");
    let list = cluster.run(0, &["log", "list"]);
    assert!(
        list.stdout.lines().any(|line| line.starts_with("a ")),
        "{}",
        list.stdout
    );
    assert_ne!(list.code, Some(0));
    let says = "the list may lack logs: of pool 'one' ";
    assert!(list.stderr.contains(says), "{}", list.stderr);
    assert!(!list.stderr.contains("'logs'"), "{}", list.stderr);
}

/// Regression: after its deadline it was said that the append may be in the log.
#[test]
fn an_append_without_room_says_so() {
    let cluster = Cluster::start(1);
    let create = |memory| {
        let pool = "pool create logs --kind log --scheme 1+0 --buckets 1 --memory";
        let pool: Vec<&str> = pool.split(' ').chain([memory]).collect();
        cluster.run(0, &pool)
    };
    let small = create("1MiB");
    assert!(
        small.stderr.contains("give it 2560KiB or more"),
        "{}",
        small.stderr
    );
    let made = create("2560KiB");
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    cluster.log(0, &["create", "events"], "");
    assert_eq!(cluster.log(0, &["append", "events"], "a\n"), "0\n");
    let lines = format!("{}\n", "x".repeat(200 << 10)).repeat(12);
    let out = cluster.pipe(0, &["log", "append", "events"], lines.as_bytes());
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        said.contains("no unit of the log had room") && said.contains("(out-of-memory)"),
        "{said}"
    );
    // All that was acknowledged is there, and nothing else.
    let acked = String::from_utf8_lossy(&out.stdout).lines().count();
    let read = cluster.log(0, &["read", "events"], "");
    assert_eq!(read.lines().count(), acked + 1);
}

/// Appends of a shell, one process after the other, while the sequencer goes from node to node: nothing is lost, and each move is answered.
#[test]
fn a_sequencer_is_moved_while_records_are_appended() {
    let cluster = Cluster::start(3);
    make_pool(&cluster, "ram");
    let made = cluster.log(
        0,
        &["create", "events", "--sequencer-node", "2", "-o", "json"],
        "",
    );
    let made: serde_json::Value = serde_json::from_str(&made).expect("JSON");
    assert_eq!(
        (&made["term"], &made["result"]),
        (&1.into(), &"created".into())
    );
    let stop = std::sync::atomic::AtomicBool::new(false);
    let acked = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut acked = Vec::new();
            for n in 0.. {
                if stop.load(std::sync::atomic::Ordering::Acquire) {
                    break;
                }
                let lines = format!("{n}a\n{n}b\n");
                let positions =
                    cluster.log(n % 3, &["append", "events", "--deadline", "30s"], &lines);
                acked.extend(
                    positions
                        .lines()
                        .map(str::to_owned)
                        .zip([format!("{n}a"), format!("{n}b")]),
                );
            }
            acked
        });
        for node in ["1", "3", "2", "1"] {
            std::thread::sleep(std::time::Duration::from_millis(300));
            let moved = cluster.log(0, &["move", "events", "--to", node], "");
            assert!(moved.contains("its sequencer is on "), "{moved}");
        }
        let sealed = cluster.log(1, &["seal", "events"], "");
        assert!(sealed.contains("in term "), "{sealed}");
        stop.store(true, std::sync::atomic::Ordering::Release);
        writer.join().expect("all were appended")
    });
    assert!(acked.len() >= 2, "{acked:?}");
    for (position, text) in &acked {
        let read = ["read", "events", "--from", position, "--count", "1"];
        assert_eq!(cluster.log(0, &read, "").trim_end(), text, "{position}");
    }
    let unknown = cluster.no_log(&["move", "events", "--to", "77"], "");
    assert!(unknown.contains("77"), "{unknown}");
    let zone = cluster.no_log(&["create", "l", "--sequencer-zone", "z9"], "");
    assert!(zone.contains("no node of zone 'z9'"), "{zone}");
}
