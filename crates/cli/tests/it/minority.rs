//! Commands at a node that does not reach a majority, and at the moment at which it loses it.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use staves_model::{Incarnation, NodeId};

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

/// Regression: what a majority had made meanwhile was said not to exist; and of a region that no node could be reached.
#[test]
fn what_an_old_map_lacks_is_not_said_to_be_nowhere() {
    let (cut_off, _silent) = cut_off();
    let whole = Fake::start();
    let may_be_old = [
        &format!("as far as {} knows, there is no ", cut_off.addr),
        "; its map may be old: the directory has no leader that answers, of 3 voters; ",
    ];
    for command in [
        "cache get k --pool p2",
        "cache put k v --pool p2",
        "cache stats --pool p2",
        "memory create r --size 1MiB --pool p2",
        "memory show r",
        "memory read r",
        "memory delete r --yes",
        "files show d",
        "files drop d --yes",
        "pool show p2",
        "pool set p2 --memory 64MiB",
        "group list --pool p2",
        "group show 999",
        "node show n9",
        "scrub --pool p2",
    ] {
        let mut words: Vec<&str> = command.split(' ').collect();
        words.extend(["--deadline", "2s"]);
        let ran = at(&cut_off, &words);
        assert_eq!(ran.code, Some(4), "{command}: {}", ran.stderr);
        for part in may_be_old {
            assert!(ran.stderr.contains(part), "{command}: {}", ran.stderr);
        }
        assert!(ran.stderr.ends_with("(no-quorum)\n"), "{}", ran.stderr);
        let ran = at(&whole, &words);
        assert_eq!(ran.code, Some(3), "{command}: {}", ran.stderr);
        assert!(ran.stderr.ends_with("(not-found)\n"), "{}", ran.stderr);
    }
    // What a bucket itself says is so.
    let none = at(&cut_off, &["cache", "get", "k", "--deadline", "2s"]);
    assert_eq!(none.code, Some(3), "{}", none.stderr);
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

/// Regression: a node that had come back without what it held was said to be down.
#[test]
fn a_member_whose_node_has_restarted_is_not_said_to_be_down() {
    let fake = Fake::start();
    fake.with(|state| {
        let node = state.map.nodes.get_mut(&NodeId(2)).expect("three nodes");
        node.incarnation = Incarnation(node.incarnation.0 + 1);
        for group in state.map.groups.values_mut() {
            group.lost = true;
        }
    });
    let list = at(&fake, &["group", "list"]).stdout;
    assert!(list.contains("node-2(restarted)"), "{list}");
    assert!(!list.contains("(down)"), "{list}");
    let id = fake.with(|state| state.map.groups.keys().next().expect("a group").to_string());
    let show = at(&fake, &["group", "show", &id]).stdout;
    let row = show.lines().find(|line| line.contains("node-2 (2)"));
    assert!(row.is_some_and(|row| row.contains("restarted")), "{show}");
}
