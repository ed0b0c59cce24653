//! `resp_redirect = moved`: clients are sent to the node that serves a key, also past a death.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use staves_model::{NodeId, hash_slot};
use staves_node::config::Redirect;

use staves_testkit::DEADLINE;
use staves_testkit::cluster::TestCluster;
use staves_testkit::resp::{Reply, RespClient};

/// The last node passes on what is not its own, the others redirect: the mode is each node's.
fn cluster() -> TestCluster {
    TestCluster::start_with(3, |at, config| {
        if at < 2 {
            config.resp_redirect = Redirect::Moved;
        }
    })
}

fn moved_to(reply: &Reply) -> Option<(u16, SocketAddr)> {
    let text = reply.is_error()?.strip_prefix("MOVED ")?;
    let (slot, addr) = text.split_once(' ').expect("a slot and an address");
    let slot = slot.parse().expect("a slot");
    Some((slot, addr.parse().expect("an address")))
}

/// A key of every node.
fn key_of_each(cluster: &TestCluster) -> BTreeMap<NodeId, String> {
    let mut keys = BTreeMap::new();
    for number in 0.. {
        let key = format!("key:{number}");
        keys.entry(cluster.nodes[0].owner(&key)).or_insert(key);
        if keys.len() == cluster.nodes.len() {
            break;
        }
    }
    keys
}

#[test]
fn a_key_of_another_node_is_redirected_to_it_and_no_other_is() {
    let cluster = cluster();
    let keys = key_of_each(&cluster);
    let address = |id: &NodeId| cluster.nodes[cluster.position(*id)].addresses.resp;
    for asked in &cluster.nodes[..2] {
        let mut client = asked.client();
        for (owner, key) in &keys {
            let said = client.ask(&format!("SET {key} {}", asked.id));
            if *owner == asked.id {
                assert_eq!(said, Reply::Ok);
            } else {
                let slot = hash_slot(key.as_bytes()).0;
                assert_eq!(moved_to(&said), Some((slot, address(owner))));
                let mut there = RespClient::connect(address(owner));
                assert_eq!(there.ask(&format!("SET {key} v")), Reply::Ok);
            }
        }
    }
    // In the forwarding mode all of them are this node's to answer, also in one command.
    let mut last = cluster.nodes[2].client();
    let all: Vec<&str> = keys.values().map(String::as_str).collect();
    let joined = all.join(" ");
    let Reply::Array(values) = last.ask(&format!("MGET {joined}")) else {
        panic!("MGET is answered with an array");
    };
    assert!(values.iter().all(|v| *v != Reply::Nil), "{values:?}");
    assert_eq!(last.ask(&format!("EXISTS {joined}")), Reply::Int(3));
    assert_eq!(last.ask("DBSIZE"), Reply::Int(3));

    // A command of several slots is refused whole, one of a single slot goes where the slot is.
    let mut first = cluster.nodes[0].client();
    let cross = "CROSSSLOT Keys in request don't hash to the same slot";
    for line in [
        format!("MGET {joined}"),
        format!("DEL {joined}"),
        format!("MSET {} x {} y", all[0], all[1]),
    ] {
        assert_eq!(first.ask(&line), Reply::Error(cross.into()), "{line}");
    }
    for (owner, key) in &keys {
        let said = first.ask(&format!("MSET {{{key}}}a 1 {{{key}}}b 2"));
        match *owner == cluster.nodes[0].id {
            true => assert_eq!(said, Reply::Ok),
            false => assert_eq!(moved_to(&said).map(|m| m.1), Some(address(owner))),
        }
    }
    // Each counts its own: a key, and the two that hash with it.
    assert_eq!(first.ask("DBSIZE"), Reply::Int(3));

    // Redirects keep their place among the answers of a pipeline.
    let lines = keys.values().map(|key| format!("STRLEN {key}"));
    let lines: Vec<String> = lines.chain(["ECHO end".into()]).collect();
    let said = first.pipeline(&lines);
    for ((owner, _), reply) in keys.iter().zip(&said) {
        let here = *owner == cluster.nodes[0].id;
        assert_eq!(here, matches!(reply, Reply::Int(_)), "{reply:?}");
        assert_eq!(moved_to(reply).is_none(), here, "{reply:?}");
    }
    assert_eq!(said.last(), Some(&Reply::text("end")));
}

/// A client that asks a survivor is sent to the dead node until its death is known, then told that nobody
/// serves the slot until an epoch names another node, and then waits for it to open, there or here.
#[test]
fn redirects_follow_a_death() {
    let mut cluster = cluster();
    let keys = key_of_each(&cluster);
    let dead = cluster.nodes[1].id;
    let key = keys[&dead].clone();
    let mut last = cluster.nodes[2].client();
    assert_eq!(last.ask(&format!("SET {key} kept")), Reply::Ok);
    cluster.nodes[1].kill();
    let gone = cluster.nodes[1].addresses.resp;
    let begun = Instant::now();
    let mut client = cluster.nodes[0].client();
    let value = loop {
        assert!(begun.elapsed() < DEADLINE, "never served again");
        let said = client.ask(&format!("GET {key}"));
        match moved_to(&said) {
            Some((_, to)) if to != gone => {
                break RespClient::connect(to).ask(&format!("GET {key}"));
            }
            None if said != Reply::Error("CLUSTERDOWN Hash slot not served".into()) => break said,
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    assert_eq!(value, Reply::text("kept"));
}
