//! Addresses of nodes, as links find them.

use super::*;
use crate::fatal::tests::Alone;

fn two_nodes() -> ClusterMap {
    let mut map = staves_model::testing::cluster(0);
    for name in ["a", "b"] {
        let node = staves_model::testing::new_node(name, 1);
        map.apply(None, &node).expect("sound");
    }
    map
}

/// Regression: a process on a copy of a node's folder, refused and gone, left its address with all that it had asked,
/// and they sought the node there for the rest of its life.
#[tokio::test]
async fn a_node_that_is_not_where_it_said_is_sought_where_the_map_has_it() {
    let node = NodeId(2);
    let map = two_nodes();
    let life = map.nodes[&node].incarnation;
    let (_window, map) = watch::channel(Arc::new(map));
    let mut network = Network {
        transport: Arc::new(Alone),
        map,
        seen_at: SeenAt::default(),
        cluster: ClusterId(7),
        me: NodeId(1),
        unreachable: Arc::default(),
        mute: Arc::default(),
    };
    let said = ("copy:1600".to_owned(), life);
    network.seen_at.lock().insert(node, said);
    assert_eq!(network.address(node, ""), "copy:1600");
    let mut link = network.new_client(node, &BasicNode::new("b:1600")).await;
    let option = RPCOption::new(Duration::from_secs(20));
    let asked = link
        .call::<RaftError<NodeId>>(PeerRequest::Ping { incarnation: life }, option)
        .await;
    assert!(asked.is_err(), "nobody listens there");
    assert_eq!(network.address(node, ""), "b:1600");
}
