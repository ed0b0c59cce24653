//! A node that joins gets its share of a volume: foretold, waited for, and then there is nothing left to move.

use std::time::Instant;

use serde_json::Value;
use staves_testkit::free_ports;
use staves_testkit::nbd::NbdClient;

use super::volumes::{make, start};
use super::{Cluster, Node, PATIENCE};

const BUCKET: u64 = 64 << 20;

fn add_node(cluster: &mut Cluster) {
    let ports = free_ports(3);
    let at = cluster.nodes.len();
    cluster.nodes.push(Node {
        native: format!("127.0.0.1:{}", ports[0]),
        resp: ports[1],
        admin: ports[2],
        data: cluster.folder.path().join(at.to_string()),
        home: None,
        child: None,
    });
    cluster.up(at);
}

fn plan(cluster: &Cluster, of: &[&str]) -> Value {
    let rest = ["--plan", "-o", "json"];
    let ran = cluster.run(0, &[&["volume", "rebalance"], of, &rest].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).expect("JSON")
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().expect("a number")
}

#[test]
fn a_node_that_joins_gets_its_share_of_a_volume_as_it_was_foretold() {
    let (mut cluster, ports) = start(3);
    make(&cluster, "1+1", "640MiB");
    let address = ([127, 0, 0, 1], ports[0]).into();
    let mut client = NbdClient::connect(address, "disk").expect("it connects");
    for bucket in 0..10 {
        client
            .write(bucket * BUCKET, &[7; 1 << 20])
            .expect("written");
    }
    let before = plan(&cluster, &["disk"]);
    assert_eq!(before["moves"], serde_json::json!([]), "{before}");
    let held: u64 = before["nodes"].as_array().map_or(0, |nodes| {
        nodes.iter().map(|n| number(n, "bytes_now")).sum()
    });
    assert!(held >= 20 << 20, "10 MiB, twice: {before}");
    add_node(&mut cluster);
    let new = cluster.nodes[3].native.clone();
    let until = Instant::now() + PATIENCE;
    let foretold = loop {
        let seen = plan(&cluster, &["--pool", "memory"]);
        if number(&seen, "bytes_left") > 0 {
            break seen;
        }
        assert!(Instant::now() < until, "{seen}");
    };
    let moves = foretold["moves"].as_array().expect("a list").iter();
    let fills = moves.flat_map(|moved| moved["fills"].as_array().into_iter().flatten());
    assert!(fills.clone().any(|to| to == new.as_str()), "{foretold}");
    let share = |of: &Value, name: &str| {
        let nodes = of["nodes"].as_array().expect("a list").iter();
        let mut it = nodes.filter(|node| node["name"] == new.as_str());
        it.next().map_or(0, |node| number(node, name))
    };
    let buckets = share(&foretold, "buckets_then");
    assert!((2..=8).contains(&buckets), "some 5 of 20: {foretold}");
    let wait = ["volume", "rebalance", "disk", "--wait", "60s", "-o", "json"];
    let ran = cluster.run(1, &wait);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let done: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(done["result"], "in place", "{done}");
    assert_eq!(share(&done, "buckets_now"), buckets, "{done}");
    let after = plan(&cluster, &["disk"]);
    assert_eq!(
        (&after["moves"], number(&after, "bytes_left")),
        (&serde_json::json!([]), 0)
    );
    let ran = cluster.run(0, &["volume", "rebalance", "disk"]);
    let nothing = "volume 'disk': all is where it is to be; there was nothing to move";
    assert!(ran.stdout.starts_with(nothing), "{}", ran.stdout);
    let ran = cluster.run(0, &["volume", "rebalance", "no-such", "--plan"]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert_eq!(client.read(9 * BUCKET, 4096).expect("read"), [7; 4096]);
}
