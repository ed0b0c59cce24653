//! Commands at a node that does not reach a majority, and at the moment at which it loses it.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use staves_model::NodeId;

use crate::commands::at;
use crate::fake::Fake;

/// A node without a leader, whose two others take connections and say nothing.
fn cut_off() -> (Fake, TcpListener) {
    let fake = Fake::start();
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address").to_string();
    fake.with(|state| {
        state.no_leader = true;
        for id in [2, 3] {
            let node = state.map.nodes.get_mut(&NodeId(id)).expect("three nodes");
            node.native = address.clone();
        }
    });
    (fake, silent)
}

/// Regression: a look at the nodes before a change, 1 s if some are silent, came on top of the deadline.
#[test]
fn what_cannot_be_decided_ends_by_the_deadline() {
    let (cut_off, _silent) = cut_off();
    cut_off.with_dataset("/tmp");
    for command in [
        "pool set cache --memory 64MiB",
        "pool delete cache --yes",
        "node drain 2",
        "node drain 2 --force",
        "node forget 2 --force",
        "files drop data --yes",
    ] {
        let mut words: Vec<&str> = command.split(' ').collect();
        words.extend(["--deadline", "2s"]);
        // Elsewhere the machine may be busy.
        let took = |_| {
            let began = Instant::now();
            let ran = at(&cut_off, &words);
            assert_eq!(ran.code, Some(4), "{command}: {}", ran.stderr);
            let said = "the directory has no majority";
            assert!(ran.stderr.contains(said), "{command}: {}", ran.stderr);
            began.elapsed()
        };
        let least = (0..5)
            .map(took)
            .find(|took| *took < Duration::from_millis(2500));
        assert!(least.is_some(), "{command} takes longer than it may");
    }
}

#[test]
fn a_node_that_answers_others_and_not_the_command_is_told() {
    let fake = Fake::start();
    let check = at(&fake, &["status", "--check"]);
    assert_eq!(check.code, Some(0), "{}", check.stderr);
    let said = "\nwarning: node-2, node-3 did not answer this command within 1 s, though other nodes hear from there: ";
    assert!(check.stdout.contains(said), "{}", check.stdout);
    let strict = at(&fake, &["status", "--check", "--strict"]);
    assert_eq!(strict.code, Some(5), "{}", strict.stderr);
}
