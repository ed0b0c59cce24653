//! Commands against a node that answers from a table.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::Value;
use staves_model::{NodeId, NodeState, Scheme};
use staves_node::status::{AgainFacts, LackFacts};

use crate::fake::{Fake, SOON};
use crate::{Ran, staves, staves_with};

pub fn at(fake: &Fake, args: &[&str]) -> Ran {
    staves_with(&[("STAVES_CLUSTER", &fake.addr)], args)
}

fn json(ran: &Ran) -> Value {
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).expect("JSON on stdout")
}

#[test]
fn status_opens_with_one_sentence() {
    let fake = Fake::start();
    let ran = at(&fake, &["status"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let first = ran.stdout.lines().next();
    let sentence =
        "Healthy: 3 nodes up; every bucket has all its copies; any 1 more node may be lost.";
    assert_eq!(first, Some(sentence));
    assert!(
        ran.stdout.contains("node-3") && ran.stdout.contains("cache"),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.lines().all(|line| line == line.trim_end()));
    let report = json(&at(&fake, &["status", "-o", "json"]));
    assert_eq!(
        (report["state"].as_str(), report["tolerates"].as_u64()),
        (Some("healthy"), Some(1))
    );
    assert_eq!(report["nodes"][0]["facts"]["keys"], 0);
    assert_eq!(
        report["nodes"][1]["facts"],
        Value::Null,
        "its address answers nobody"
    );
}

#[test]
fn a_degraded_cluster_is_5_for_check_only() {
    let fake = Fake::start();
    fake.with(|state| {
        state.map.nodes.get_mut(&NodeId(2)).expect("n2").state = NodeState::Down;
    });
    assert_eq!(at(&fake, &["status"]).code, Some(0));
    let check = at(&fake, &["status", "--check"]);
    assert_eq!(check.code, Some(5));
    assert!(
        check
            .stdout
            .starts_with("Degraded: 2 nodes up, node-2 down; "),
        "{}",
        check.stdout
    );
}

#[test]
fn a_critical_cluster_is_6_and_names_whom_it_misses() {
    let fake = Fake::start();
    fake.with(|state| state.no_leader = true);
    assert_eq!(at(&fake, &["status"]).code, Some(0));
    let check = at(&fake, &["status", "--check"]);
    assert_eq!(check.code, Some(6), "{}", check.stderr);
    assert!(
        check
            .stdout
            .starts_with("Critical: 3 nodes up by the last map"),
        "{}",
        check.stdout
    );
    assert!(check.stderr.ends_with("(critical)\n"), "{}", check.stderr);
    assert!(
        check.stdout.contains("\n 2  node-2  silent"),
        "{}",
        check.stdout
    );
    // What cannot be decided now says the same, and not that a deadline passed.
    for (args, code) in [
        (
            &["pool", "set", "cache", "--memory", "64MiB"][..],
            "deadline",
        ),
        (&["node", "drain", "2"], "deadline"),
        (&["node", "drain", "2", "--force"], "no-quorum"),
        (&["node", "forget", "2"], "no-quorum"),
        (&["node", "forget", "2", "--force"], "no-quorum"),
    ] {
        let ran = at(&fake, &[args, &["--deadline", "3s"]].concat());
        assert_eq!(ran.code, Some(4), "{args:?}: {}", ran.stderr);
        let said =
            "the directory has no majority: of its 3 voters node-2 and node-3 do not answer; ";
        assert!(ran.stderr.contains(said), "{args:?}: {}", ran.stderr);
        assert!(
            ran.stderr.ends_with(&format!("({code})\n")),
            "{}",
            ran.stderr
        );
    }
}

#[test]
fn an_unreachable_cluster_is_4_and_named() {
    // A port that was free a moment ago.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address").to_string();
    drop(listener);
    let ran = staves(&["status", "--cluster", &addr]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(4), ""));
    assert!(ran.stderr.contains(&addr), "{}", ran.stderr);
}

#[test]
fn the_first_address_that_answers_is_asked() {
    let fake = Fake::start();
    let both = format!("127.0.0.1:1,{}", fake.addr);
    assert_eq!(staves(&["status", "--cluster", &both]).code, Some(0));
}

#[test]
fn a_silent_cluster_is_4_by_the_deadline_and_named() {
    let fake = Fake::start();
    fake.with(|state| state.silent = true);
    for command in [
        &["status"][..],
        &["cache", "get", "k"],
        &["pool", "delete", "cache"],
    ] {
        let began = Instant::now();
        let ran = at(&fake, &[command, &["--deadline", "300ms"]].concat());
        assert_eq!(
            (ran.code, ran.stdout.as_str()),
            (Some(4), ""),
            "{command:?}: {}",
            ran.stderr
        );
        assert!(ran.stderr.contains(&fake.addr), "{}", ran.stderr);
        assert!(began.elapsed() < SOON);
    }
    // A port that accepts and says nothing.
    let mute = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = mute.local_addr().expect("an address").to_string();
    let ran = staves(&["status", "--deadline", "300ms", "--cluster", &addr]);
    assert_eq!(ran.code, Some(4));
    assert!(ran.stderr.contains(&addr), "{}", ran.stderr);
}

#[test]
fn keys_are_put_got_and_deleted() {
    let fake = Fake::start();
    let put = at(&fake, &["cache", "put", "k", "value"]);
    assert_eq!(
        (put.code, put.stdout.as_str()),
        (Some(0), "set\n"),
        "{}",
        put.stderr
    );
    // Nothing is added to a value that goes to a pipe.
    assert_eq!(at(&fake, &["cache", "get", "k"]).stdout, "value");
    assert_eq!(
        json(&at(&fake, &["cache", "get", "k", "-o", "json"]))["value"],
        "value"
    );
    assert_eq!(
        at(&fake, &["cache", "put", "k", "x", "--if-absent"]).code,
        Some(1)
    );
    assert_eq!(
        at(&fake, &["cache", "put", "other", "x", "--if-present"]).code,
        Some(3)
    );
    assert_eq!(
        at(&fake, &["cache", "put", "k", "x", "--if-present"]).code,
        Some(0)
    );
    let deleted = at(&fake, &["cache", "delete", "k", "nothing"]);
    assert_eq!(
        (deleted.code, deleted.stdout.as_str()),
        (Some(0), "1 deleted\n")
    );
    assert_eq!(at(&fake, &["cache", "delete", "k"]).code, Some(3));
    let missing = at(&fake, &["cache", "get", "k"]);
    assert_eq!((missing.code, missing.stdout.as_str()), (Some(3), ""));
    assert_eq!(missing.stderr, "staves: key 'k' has no value (not-found)\n");
}

#[test]
fn an_empty_value_can_come_from_standard_input() {
    let fake = Fake::start();
    assert_eq!(at(&fake, &["cache", "put", "k"]).code, Some(0));
    let got = at(&fake, &["cache", "get", "k"]);
    assert_eq!((got.code, got.stdout.as_str()), (Some(0), ""));
}

#[test]
fn a_write_that_cannot_be_done_now_is_asked_again_under_its_number() {
    let fake = Fake::start();
    fake.with(|state| state.not_serving = 3);
    assert_eq!(at(&fake, &["cache", "put", "k", "v"]).code, Some(0));
    let numbers = fake.with(|state| state.numbers.clone());
    assert!(numbers.len() == 4 && numbers[0] > 0, "{numbers:?}");
    assert!(
        numbers.iter().all(|number| *number == numbers[0]),
        "{numbers:?}"
    );
    fake.with(|state| state.not_serving = u32::MAX);
    let ran = at(&fake, &["cache", "put", "k", "v", "--deadline", "300ms"]);
    assert_eq!(ran.code, Some(4));
    assert!(
        ran.stderr.contains("bucket 0 has no primary right now"),
        "{}",
        ran.stderr
    );
}

#[test]
fn pools_are_made_changed_and_deleted() {
    let fake = Fake::start();
    fake.with(|state| state.not_leader = 2);
    let created = at(
        &fake,
        &["pool", "create", "p", "--memory", "64MiB", "--buckets", "4"],
    );
    assert_eq!(created.code, Some(0), "{}", created.stderr);
    assert_eq!(
        at(
            &fake,
            &[
                "pool", "set", "p", "--scheme", "1+0", "--memory", "32MiB", "--yes"
            ]
        )
        .code,
        Some(0)
    );
    fake.with(|state| {
        let pool = state.map.pool_named("p").expect("made");
        assert_eq!(
            (pool.scheme, pool.node_budget_bytes),
            (Scheme { m: 1, k: 0 }, 32 << 20)
        );
        assert_eq!((pool.groups.len(), pool.may_start_empty), (4, true));
    });
    let shown = json(&at(&fake, &["pool", "show", "p", "-o", "json"]));
    assert_eq!(
        (shown["scheme"].as_str(), shown["starting"].as_u64()),
        (Some("1+0"), Some(4))
    );
    assert!(
        at(&fake, &["pool", "list"])
            .stdout
            .lines()
            .any(|line| line.starts_with("p "))
    );
    let twice = at(&fake, &["pool", "create", "p", "--memory", "64MiB"]);
    assert_eq!(twice.code, Some(1));
    assert!(
        twice.stderr.contains("pool 'p' exists already"),
        "{}",
        twice.stderr
    );
    assert_eq!(at(&fake, &["pool", "delete", "p", "--yes"]).code, Some(0));
    for args in [
        &["pool", "delete", "p"][..],
        &["pool", "show", "p"],
        &["pool", "set", "p", "--memory", "1MiB"],
    ] {
        assert_eq!(at(&fake, args).code, Some(3), "{args:?}");
    }
}

/// Regression: copies and parity were taken away without a word.
#[test]
fn a_pool_that_is_to_bear_nothing_any_more_is_asked_about() {
    let fake = Fake::start();
    let set = |more: &[&str]| {
        at(
            &fake,
            &[&["pool", "set", "cache", "--scheme"], more].concat(),
        )
    };
    let scheme = || fake.with(|state| state.map.pool_named("cache").expect("made").scheme.k);
    let asked = set(&["1+0"]);
    assert_eq!((asked.code, scheme()), (Some(1), 1), "{}", asked.stderr);
    for part in ["bear no loss at all with 1+0", "--yes", "(not-confirmed)"] {
        assert!(asked.stderr.contains(part), "{part}: {}", asked.stderr);
    }
    assert_eq!(set(&["1+2"]).code, Some(0));
    let less = set(&["1+1"]);
    assert_eq!((less.code, scheme()), (Some(0), 1));
    let warning =
        "staves: warning: pool 'cache' bears the loss of 1 node with 1+1, and not of 2 any more\n";
    assert_eq!(less.stderr, warning);
    assert_eq!((set(&["1+0", "--yes"]).code, scheme()), (Some(0), 0));
}

/// Regression: what somebody else had deleted meanwhile was "refused", and not one that is not there.
#[test]
fn what_is_gone_when_it_is_changed_is_not_found() {
    let fake = Fake::start();
    fake.with(|state| state.gone_at_propose = true);
    let ran = at(&fake, &["pool", "set", "cache", "--memory", "1GiB"]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    let text =
        "staves: pool 'cache' does not exist: `staves pool list` shows those that do (not-found)\n";
    assert_eq!(ran.stderr, text);
}

/// Two nodes of one name: said, with what to do.
#[test]
fn nodes_of_one_name_are_told_of() {
    let fake = Fake::start();
    assert!(!at(&fake, &["node", "list"]).stdout.contains("same name"));
    fake.with(|state| {
        let node = state.map.nodes.get_mut(&NodeId(3)).expect("a node");
        node.name = "node-1".into();
    });
    for command in [&["node", "list"][..], &["status"]] {
        let said = at(&fake, command).stdout;
        let told = "nodes 1 and 3 have the same name, node-1: commands take the id";
        assert!(said.contains(told), "{said}");
    }
}

/// The progress of fetching again what a lost node had of files.
#[test]
fn what_is_fetched_again_after_a_loss_is_told() {
    let fake = Fake::start();
    fake.with(|state| {
        state.fetching_again = Some(AgainFacts {
            node: 3,
            bytes: 148 << 20,
            done_bytes: 41 << 20,
        });
    });
    let said = at(&fake, &["status"]).stdout;
    let told = "fetching again what only node-3 had of files: 41.0 MiB of 148 MiB";
    assert!(said.lines().any(|line| line == told), "{said}");
    let report = json(&at(&fake, &["status", "-o", "json"]));
    let again = &report["nodes"][0]["facts"]["fetching_again"];
    assert_eq!(again["done_bytes"], 41 << 20);
}

/// Pinned files that are not in memory, each with the reason.
#[test]
fn pinned_files_that_are_not_in_memory_are_told() {
    let fake = Fake::start();
    fake.with(|state| {
        state.lacking = vec![LackFacts {
            dataset: "genomes".into(),
            path: "hg38.fa".into(),
            why: "the source is not reached".into(),
        }];
    });
    let said = at(&fake, &["status"]).stdout;
    let told = "hg38.fa of genomes is pinned, and node-1 has not all of its part in memory: the source is not reached";
    assert!(said.lines().any(|line| line == told), "{said}");
}

#[test]
fn a_pool_is_deleted_only_if_somebody_confirms() {
    let fake = Fake::start();
    // There is no terminal to ask on.
    let asked = at(&fake, &["pool", "delete", "cache"]);
    assert_eq!(asked.code, Some(1));
    assert!(asked.stderr.contains("--yes"), "{}", asked.stderr);
    assert!(
        asked.stderr.ends_with("(not-confirmed)\n"),
        "{}",
        asked.stderr
    );
    assert!(fake.with(|state| state.map.pool_named("cache").is_some()));
}

#[test]
fn pools_that_promise_more_than_a_node_has_are_told() {
    let fake = Fake::start();
    let create = |name: &str, more: &[&str]| {
        let args = ["pool", "create", name, "--memory", "300MiB"];
        at(&fake, &[&args[..], more].concat())
    };
    let fits = create("a", &[]);
    assert_eq!((fits.code, fits.stderr.as_str()), (Some(0), ""));
    let over = create("b", &[]);
    assert_eq!(over.code, Some(0));
    let said = "all pools together may take 1.1 GiB of each node, and node 1 (node-1) has 1.0 GiB";
    assert!(
        over.stderr.starts_with(&format!("staves: warning: {said}")),
        "{}",
        over.stderr
    );
    let over = create("c", &["-o", "json"]);
    assert_eq!(over.stderr, "");
    assert!(json(&over)["warning"].is_string(), "{}", over.stdout);
}

/// Regression: a pool of 4+2 made on three nodes, and one on five, were healthy without a word.
#[test]
fn a_pool_that_asks_for_more_nodes_is_warned_of() {
    let fake = Fake::start();
    fake.with(|state| state.knows_all = true);
    let strict = || at(&fake, &["status", "--check", "--strict"]);
    assert_eq!(strict().code, Some(0), "{}", strict().stdout);
    let memory = ["--kind", "memory", "--memory", "64MiB"];
    let create = |name, scheme| {
        let args = ["pool", "create", name, "--scheme", scheme];
        at(&fake, &[&args[..], &memory].concat())
    };
    let made = create("wide", "4+2");
    let says =
        "pool 'wide' has less than the 4+2 that it asks for, which takes 6 nodes, and 3 hold";
    assert_eq!(made.code, Some(0));
    assert!(made.stderr.contains(says), "{}", made.stderr);
    let narrow = create("narrow", "2+1");
    assert_eq!((narrow.code, narrow.stderr.as_str()), (Some(0), ""));
    let status = at(&fake, &["status", "--check"]);
    let mut lines = status.stdout.lines();
    assert!(
        lines.any(|line| line.starts_with(&format!("warning: {says}"))),
        "{}",
        status.stdout
    );
    assert_eq!(status.code, Some(0), "{}", status.stdout);
    let strict = strict();
    assert_eq!(strict.code, Some(5), "{}", strict.stderr);
    assert!(strict.stderr.ends_with("(degraded)\n"), "{}", strict.stderr);
    let set = at(&fake, &["pool", "set", "cache", "--scheme", "1+3"]);
    let says = "pool 'cache' has less than the 1+3 that it asks for, which takes 4 nodes";
    assert!(set.stderr.contains(says), "{}", set.stderr);
}

#[test]
fn a_full_pool_is_told_in_our_words() {
    let fake = Fake::start();
    fake.with(|state| state.full = true);
    let ran = at(&fake, &["cache", "put", "k", "v"]);
    let said = "staves: the pool has no memory left on a node that holds the key; nothing was changed: delete keys, or give it more with \
                'staves pool set NAME --memory SIZE' (out-of-memory)\n";
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), said));
}

#[test]
fn nodes_are_shown_drained_and_stopped() {
    let fake = Fake::start();
    assert_eq!(
        json(&at(&fake, &["node", "list", "-o", "json"]))
            .as_array()
            .map(Vec::len),
        Some(3)
    );
    let shown = at(&fake, &["node", "show", "node-1"]);
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    assert!(
        shown.stdout.contains("0-8191") && shown.stdout.contains("primary"),
        "{}",
        shown.stdout
    );
    // Regression: 'n3' meant the node with the id 3, though it had another name, and `node stop n3` ended it.
    for verb in ["stop", "forget", "drain", "show"] {
        let other = at(&fake, &["node", verb, "n3"]);
        assert_eq!(other.code, Some(3), "{}", other.stderr);
    }
    for wanted in ["3", "node-3"] {
        assert_eq!(
            at(&fake, &["node", "drain", wanted, "--wait", "1s"]).code,
            Some(0)
        );
        assert!(fake.with(|state| state.map.nodes[&NodeId(3)].draining));
        assert_eq!(at(&fake, &["node", "resume", wanted]).code, Some(0));
        assert!(!fake.with(|state| state.map.nodes[&NodeId(3)].draining));
    }
    // The first node holds buckets that nobody takes here.
    let waited = at(&fake, &["node", "drain", "1", "--wait", "300ms"]);
    assert_eq!(waited.code, Some(4));
    assert!(
        waited.stderr.contains("2 buckets to move"),
        "{}",
        waited.stderr
    );
    assert_eq!(at(&fake, &["node", "stop", "1"]).code, Some(0));
    let none = at(&fake, &["node", "drain", "9"]);
    assert_eq!(none.code, Some(3));
    assert!(
        none.stderr.contains("there is no node '9'"),
        "{}",
        none.stderr
    );
}

/// Regression: who waited for a drain that another took back waited in vain until the end.
#[test]
fn a_drain_that_is_taken_back_is_not_waited_for() {
    let fake = Fake::start();
    let waited = std::thread::scope(|scope| {
        let waits = scope.spawn(|| at(&fake, &["node", "drain", "1", "--wait", "60s"]));
        let begun = Instant::now();
        while !fake.with(|state| state.map.nodes[&NodeId(1)].draining) {
            assert!(begun.elapsed() < Duration::from_secs(30), "no drain begins");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(at(&fake, &["node", "resume", "1"]).code, Some(0));
        waits.join().expect("no panic")
    });
    assert_eq!(waited.code, Some(1), "{}", waited.stderr);
    let says = "node 1 (node-1) drains no more: its drain was taken back, or it was forgotten, with 2 buckets left to move";
    assert!(waited.stderr.contains(says), "{}", waited.stderr);
}

fn needs_force(ran: &Ran) -> &str {
    assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.ends_with("(needs-force)\n"), "{}", ran.stderr);
    &ran.stderr
}

#[test]
fn a_drain_that_could_never_finish_needs_force() {
    let fake = Fake::start();
    let drain = |node: &str, more: &[&str]| at(&fake, &[&["node", "drain", node], more].concat());
    let is_draining = |id| fake.with(|state| state.map.nodes[&NodeId(id)].draining);
    assert_eq!(drain("2", &[]).code, Some(0));
    let second = drain("3", &[]);
    let told =
        "node 2 (node-2) drains, too: 2 buckets of pool 'cache' (1+1) would stay with fewer copies";
    assert!(needs_force(&second).contains(told), "{}", second.stderr);
    assert!(!is_draining(3));
    assert_eq!(drain("3", &["--force"]).code, Some(0));
    let last = drain("1", &[]);
    assert!(
        needs_force(&last).contains("no other node is up and not draining"),
        "{}",
        last.stderr
    );
    assert!(!is_draining(1));
    assert_eq!(drain("1", &["--force"]).code, Some(0));
    assert!(is_draining(1));
    // Who drains already may be told so again.
    assert_eq!(drain("1", &[]).code, Some(0));
    let held = drain("3", &[]);
    assert_eq!(held.code, Some(0), "{}", held.stderr);
    assert!(
        held.stdout.contains("drained; it holds nothing"),
        "{}",
        held.stdout
    );

    // There is somebody, but without the room.
    assert_eq!(at(&fake, &["node", "resume", "1"]).code, Some(0));
    assert_eq!(at(&fake, &["node", "resume", "2"]).code, Some(0));
    assert_eq!(at(&fake, &["node", "resume", "3"]).code, Some(0));
    fake.with(|state| state.used_bytes = 1 << 40);
    let full = drain("2", &[]);
    assert!(
        needs_force(&full).contains("takes about 1.0 TiB"),
        "{}",
        full.stderr
    );
    assert!(!is_draining(2));
    assert_eq!(drain("2", &["--force"]).code, Some(0));
}

#[test]
fn only_a_node_that_is_gone_is_forgotten() {
    let fake = Fake::start();
    let forget = |node: &str| at(&fake, &["node", "forget", node]);
    let is_known = |id| fake.with(|state| state.map.nodes.contains_key(&NodeId(id)));
    // Its own address answers.
    let lives = forget("1");
    assert!(
        needs_force(&lives).contains("is up and answers at"),
        "{}",
        lives.stderr
    );
    // Nobody answers at its address, but nobody has found it dead yet either.
    let killed = forget("3");
    assert!(
        needs_force(&killed).contains("within the detection time"),
        "{}",
        killed.stderr
    );
    // Taken for dead, and it answers.
    fake.with(|state| state.map.nodes.get_mut(&NodeId(1)).expect("n1").state = NodeState::Down);
    let cut_off = forget("1");
    assert!(
        needs_force(&cut_off).contains("was taken for dead, but answers"),
        "{}",
        cut_off.stderr
    );
    assert!(is_known(1) && is_known(3));
    // Forced, it is waited for: here nobody ever finds it dead.
    let forced = ["node", "forget", "3", "--force", "--deadline", "400ms"];
    let waited = at(&fake, &forced);
    assert_eq!(waited.code, Some(4), "{}", waited.stderr);
    assert!(
        waited.stderr.contains("is not gone by the deadline"),
        "{}",
        waited.stderr
    );
    assert!(is_known(3));

    fake.with(|state| state.map.nodes.get_mut(&NodeId(3)).expect("n3").state = NodeState::Down);
    let gone = forget("3");
    assert_eq!(
        (gone.code, gone.stdout.as_str()),
        (
            Some(0),
            "node 3 (node-3): forgotten; it was down; its id is not used again; 2 nodes are left\n"
        ),
        "{}",
        gone.stderr
    );
    assert!(!is_known(3));
}

#[test]
fn a_node_is_not_asked_to_strike_itself() {
    let fake = Fake::start();
    // Who is asked to strike itself would be gone before.
    let itself = at(&fake, &["node", "forget", "1", "--force"]);
    assert_eq!(itself.code, Some(1), "{}", itself.stdout);
    assert!(
        itself
            .stderr
            .contains("ask another node, for example --cluster 127.0.0.1:1;"),
        "{}",
        itself.stderr
    );
    assert!(fake.with(|state| state.map.nodes.contains_key(&NodeId(1))));
}

#[test]
fn groups_and_figures_are_listed() {
    let fake = Fake::start();
    let groups = json(&at(&fake, &["group", "list", "-o", "json"]));
    assert_eq!(groups.as_array().map(Vec::len), Some(2));
    assert_eq!(groups[0]["state"], "open");
    let id = groups[0]["group"].to_string();
    assert!(
        at(&fake, &["group", "show", &id])
            .stdout
            .contains("node-2 (2)")
    );
    assert_eq!(at(&fake, &["group", "show", "999"]).code, Some(3));
    assert_eq!(
        at(&fake, &["group", "list", "--pool", "nothing"]).code,
        Some(3)
    );
    at(&fake, &["cache", "put", "k", "v"]);
    let stats = json(&at(&fake, &["cache", "stats", "-o", "json"]));
    assert_eq!(
        (
            stats["total"]["keys"].as_u64(),
            stats["nodes"][1]["stats"].is_null()
        ),
        (Some(1), true)
    );
    assert_eq!(
        at(&fake, &["cache", "stats", "--pool", "nothing"]).code,
        Some(3)
    );
}

/// A full disk is not a pass; a reader that has gone is none of our business.
#[test]
fn an_answer_that_cannot_be_written_is_a_failure() {
    let to = |stdout: std::process::Stdio, args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_staves"));
        let out = command.args(args).env_clear().stdout(stdout).output();
        let out = out.expect("the program runs");
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        (out.status.code(), text)
    };
    let full = || std::fs::File::options().write(true).open("/dev/full");
    for args in [
        &["explain"][..],
        &["config", "example"],
        &["explain", "lost", "-o", "json"],
    ] {
        let (code, text) = to(full().expect("a full disk").into(), args);
        assert_eq!(code, Some(1), "{args:?}: {text}");
        assert!(
            text.contains("cannot write the answer to standard output"),
            "{text}"
        );
    }
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    assert_eq!(to(writer.into(), &["explain"]), (Some(0), String::new()));
}

/// Regression: `status --check 2>&1 | head -1` ended with 101, for the error found nobody who read it.
#[test]
fn nobody_who_reads_changes_no_exit_code() {
    let fake = Fake::start();
    fake.with(|state| {
        state.map.nodes.get_mut(&NodeId(2)).expect("n2").state = NodeState::Down;
    });
    let over = ["pool", "create", "a", "--memory", "1GiB"];
    for (args, code) in [
        (&["status", "--check"][..], 5),
        (&["status", "--check", "-o", "json"], 5),
        (&["pool", "show", "none"], 3),
        (&["status", "--what"], 2),
        (&["status", "--what", "-o", "json"], 2),
        (&over, 0),
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_staves"));
        command
            .args(args)
            .env_clear()
            .env("STAVES_CLUSTER", &fake.addr);
        let both = writer.try_clone().expect("a pipe");
        let ended = command.stdout(both).stderr(writer).status();
        assert_eq!(ended.expect("it runs").code(), Some(code), "{args:?}");
    }
}

/// Regression: a node whose log was read by a program that ended (`staves up 2>&1 | head -1`) ended at its next line.
#[test]
fn a_node_whose_log_nobody_reads_goes_on() {
    let ports = staves_testkit::free_ports(3);
    let door = |at: usize| format!("127.0.0.1:{}", ports[at]);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut node = std::process::Command::new(env!("CARGO_BIN_EXE_staves"))
        .args(["up", "--memory", "16MiB", "--log", "debug"])
        .args([
            "--listen",
            &door(0),
            "--resp",
            &door(1),
            "--admin",
            &door(2),
        ])
        .args(["--parent-pid", &std::process::id().to_string()])
        .env_clear()
        .stderr(writer)
        .spawn()
        .expect("it starts");
    let until = Instant::now() + SOON;
    let answers = || staves(&["status", "--cluster", &door(0)]).code == Some(0);
    while !answers() && Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let (answers, ended) = (answers(), node.try_wait().expect("it is a child"));
    node.kill().expect("it is a child");
    node.wait().expect("it is a child");
    assert!(
        answers && ended.is_none(),
        "answers: {answers}, ended: {ended:?}"
    );
}

#[test]
fn what_makes_no_sense_for_a_memory_pool_or_a_group_is_refused() {
    let fake = Fake::start();
    let pool = ["pool", "create", "m", "--kind", "memory", "--scheme", "2+1"];
    let ran = at(
        &fake,
        &[&pool[..], &["--memory", "1MiB", "--buckets", "8"]].concat(),
    );
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("takes no --buckets"), "{}", ran.stderr);
    let ran = at(&fake, &["group", "show", "abc"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("groups have numbers"), "{}", ran.stderr);
}
