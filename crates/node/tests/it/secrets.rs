//! A cluster with a secret: its nodes find each other, and nobody else is one.

use std::path::{Path, PathBuf};

use staves_model::ClusterId;
use staves_net::{Connection, Identity, Options, Secret, Who};
use staves_node::StartError;
use staves_node::config::Config;
use staves_node::status::State;
use staves_testkit::cluster::{Parse, TestNode, config};
use staves_testkit::resp::Reply;
use staves_testkit::wait_until;
use staves_wire::ErrorCode;
use tempfile::TempDir;

/// A file that only its owner may read, with a secret of this letter.
fn file(folder: &Path, letter: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join(letter);
    std::fs::write(&path, letter.repeat(32)).expect("a file");
    let owners = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, owners).expect("it is ours");
    path
}

fn with(mut config: Config, secret: &Path, clients: &Path) -> Config {
    config.secret_file = Some(secret.to_owned());
    config.client_secret_file = Some(clients.to_owned());
    config
}

fn try_open(node: &TestNode, identity: &Identity) -> Result<(), ErrorCode> {
    let addr = node.addresses.native.to_string();
    let options = Options::default();
    let opened = Connection::open(&addr, identity, &options);
    let opened = node.runtime().block_on(opened);
    opened.map(|_| ()).map_err(|error| error.code())
}

#[test]
fn nodes_of_one_secret_are_a_cluster_and_others_are_kept_out() {
    let secrets = tempfile::tempdir().expect("a folder");
    let [nodes, clients, other] = ["n", "c", "o"].map(|letter| file(secrets.path(), letter));
    let folders: [TempDir; 3] = [(); 3].map(|()| tempfile::tempdir().expect("a folder"));
    let mut all = vec![TestNode::start(with(
        config(Some(&folders[0]), &[]),
        &nodes,
        &clients,
    ))];
    for folder in &folders[1..] {
        let joins = config(Some(folder), &[&all[0]]);
        all.push(TestNode::start(with(joins, &nodes, &clients)));
    }
    let healthy = |node: &TestNode| {
        let status = node.status();
        status.nodes.len() == 3 && status.state == State::Healthy
    };
    wait_until("three nodes have all copies", || all.iter().all(healthy));
    // Through every node, to keys of every node, and after one has died and come back.
    for (i, node) in all.iter().enumerate() {
        let mut client = node.client();
        for key in 0..20 {
            assert_eq!(client.ask(&format!("SET {key} {i}")), Reply::Ok);
        }
    }
    all[2].kill();
    let joins = config(Some(&folders[2]), &[&all[0]]);
    all[2] = TestNode::start(with(joins, &nodes, &clients));
    wait_until("it is back", || all.iter().all(healthy));
    assert_eq!(all[2].client().ask("GET 7"), Reply::text("2"));

    let known = |path: &Path| Some(Secret::read(path).expect("a secret"));
    let node = || Identity::node(Who::default());
    let client = || Identity::client(ClusterId(0));
    let denied = Err(ErrorCode::Denied);
    for (identity, allowed) in [
        (node(), denied),
        (node().for_directory(), denied),
        (client(), denied),
        (node().with_secret(known(&clients)), denied),
        (node().for_directory().with_secret(known(&clients)), denied),
        (node().with_secret(known(&other)), denied),
        (client().with_secret(known(&other)), denied),
        (node().with_secret(known(&nodes)), Ok(())),
        (client().with_secret(known(&clients)), Ok(())),
        (client().with_secret(known(&nodes)), Ok(())),
    ] {
        assert_eq!(try_open(&all[0], &identity), allowed, "{identity:?}");
    }
    let refused = all[0].metric("staves_net_connections_refused_total{reason=\"secret\"}");
    assert_eq!(refused, 7);
}

#[test]
fn a_node_without_the_secret_does_not_join_and_says_why() {
    let secrets = tempfile::tempdir().expect("a folder");
    let [nodes, clients] = ["n", "c"].map(|letter| file(secrets.path(), letter));
    let first = TestNode::start(with(config(None, &[]), &nodes, &clients));
    let join = || Config {
        join_ms: "5s".parse_millis(),
        ..config(None, &[&first])
    };
    let refused = |config: Config| {
        let started = TestNode::try_start(config).map(|node| node.id);
        started.expect_err("it is no node of this cluster")
    };
    let error = refused(join());
    assert!(matches!(error, StartError::Denied { .. }), "{error}");
    assert!(error.to_string().contains("--secret-file"), "{error}");
    let mut as_client = join();
    as_client.secret_file = Some(clients.clone());
    let error = refused(as_client);
    let text = error.to_string();
    assert!(
        text.contains("not the secret of this cluster's nodes"),
        "{text}"
    );
    // The other way round: who has a secret does not join those who have none.
    let open = TestNode::start(config(None, &[]));
    let error = refused(with(config(None, &[&open]), &nodes, &clients));
    assert!(error.to_string().contains("asks for no secret"), "{error}");
    // A secret that every client knows makes no rank.
    let error = refused(with(join(), &nodes, &nodes));
    assert!(matches!(error, StartError::OneSecret), "{error}");
    let mut alone = join();
    alone.client_secret_file = Some(clients);
    let error = refused(alone);
    assert!(matches!(error, StartError::Config(_)), "{error}");
}
