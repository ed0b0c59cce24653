//! Striking a node for good: only one that is certainly gone, unless it is forced.

use std::time::{Duration, Instant};

use staves_model::{Change, ClusterMap, Node, NodeState};
use staves_wire::ErrorCode;

use staves_cli_common::cluster::Cluster;
use staves_cli_common::codes::Own;
use staves_cli_common::failure::Failure;

/// The interval at which a node that must go first is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Strikes a node, and says what it was when it was struck.
///
/// The directory takes a node for down only after the detection time and a second node's word, so one
/// that was killed this moment is refused as well: nobody knows yet that it is dead. A node that is
/// taken for dead and still answers was only cut off.
pub fn forget(cluster: &Cluster, node: &Node, force: bool) -> anyhow::Result<&'static str> {
    let up = node.state == NodeState::Up;
    let answers = cluster.answers(node);
    if force && cluster.asks(node) {
        return Err(asked_itself(cluster, node)?.into());
    }
    if !force && (up || answers) {
        if !answers {
            cluster.can_decide()?;
        }
        return Err(refused(node, up, answers).into());
    }
    if up && answers {
        cluster.stop(node, true)?;
    }
    if up {
        wait_until_gone(cluster, node)?;
    }
    cluster.propose(&Change::ForgetNode { node: node.id })?;
    Ok(match (up, answers) {
        (true, true) => "it was up and has been stopped",
        (true, false) => "it did not answer, and the cluster has found it dead since",
        (false, true) => "it was taken for dead, but answered; its process ends by itself",
        (false, false) => "it was down",
    })
}

fn refused(node: &Node, up: bool, answers: bool) -> Failure {
    let Node {
        id, name, native, ..
    } = node;
    let why = match (up, answers) {
        (true, true) => {
            format!("is up and answers at {native}: stop it first ('staves node stop {id}')")
        }
        (true, false) => format!(
            "does not answer at {native}, but was heard within the detection time: ask again when \
             'staves status' says that it is down"
        ),
        _ => format!("was taken for dead, but answers at {native}: stop its process first"),
    };
    let text = format!(
        "node {id} ({name}) {why}; nothing was changed (--force stops it, waits until it is gone, and strikes it)"
    );
    Failure::Own(Own::NeedsForce, text)
}

/// The failure of a node that is asked to forget itself: it would stop, and the change would not be made.
fn asked_itself(cluster: &Cluster, node: &Node) -> anyhow::Result<Failure> {
    let Node { id, name, .. } = node;
    let map = cluster.map()?;
    let mut others = map.nodes.values().filter(|other| other.id != *id);
    let remedy = match others.find(|other| other.state == NodeState::Up) {
        Some(other) => format!("ask another node, for example --cluster {}", other.native),
        None => "no other node is up that could be asked".to_owned(),
    };
    let text = format!(
        "node {id} ({name}) is the one that is asked, and would be gone before it is struck; {remedy}; \
         nothing was changed"
    );
    Ok(Failure::Wire(ErrorCode::Refused, text))
}

/// Waits until the directory takes the node for down and no group lists it.
fn wait_until_gone(cluster: &Cluster, node: &Node) -> anyhow::Result<()> {
    let until: Instant = cluster.until_looked();
    loop {
        let map = cluster.map()?;
        if is_gone(&map, node) {
            return Ok(());
        }
        if Instant::now() + LOOK >= until {
            cluster.can_decide()?;
            return Err(Failure::late(format!(
                "node {} ({}) is not gone by the deadline: it is still up, or buckets are still moving \
                 away from it; nothing was struck, so ask again, with a longer --deadline",
                node.id, node.name
            ))
            .into());
        }
        std::thread::sleep(LOOK);
    }
}

fn is_gone(map: &ClusterMap, node: &Node) -> bool {
    let down = map
        .nodes
        .get(&node.id)
        .is_none_or(|node| node.state == NodeState::Down);
    down && !map.groups.values().any(|group| group.names(node.id))
}
