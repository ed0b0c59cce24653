//! The Rust client against real nodes: past a death, with the map that it has and with a new one.

use staves_client::Client;

use staves_testkit::cluster::TestCluster;

const KEYS: u32 = 200;

fn write_and_read(cluster: &TestCluster, client: &Client, life: &str) {
    cluster.nodes[0].runtime().block_on(async {
        for number in 0..KEYS {
            let (key, value) = (format!("rust:{number}"), format!("{life} {number}"));
            client.put(key.clone(), value.clone()).await.expect("put");
            let got = client.get(key).await.expect("get");
            assert_eq!(got.as_deref(), Some(value.as_bytes()));
        }
    });
}

/// Regression: a group that lost its middle member retains a slot which its new, narrower epoch does not
/// have. Maps with such a group were refused by whoever decoded them, and so by every client.
#[test]
fn the_client_follows_a_death_and_a_new_client_finds_the_cluster_after_it() {
    let mut cluster = TestCluster::start(3);
    let before = cluster.native_client();
    write_and_read(&cluster, &before, "whole");
    cluster.nodes[2].kill();
    write_and_read(&cluster, &before, "one dead");
    let after = cluster.native_client();
    write_and_read(&cluster, &after, "found");
    cluster.nodes[0].runtime().block_on(async {
        let map = before.refresh().await.expect("the newest map decodes");
        let narrow = map.groups.values().filter(|g| g.members.len() == 2);
        assert!(narrow.count() > 0, "an epoch of two members was opened");
    });
}
