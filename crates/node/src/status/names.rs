//! The names of nodes for people.

use super::NodeStatus;

/// A node's name, with its id where another node has the same name: one that died without a data folder and the one that was
/// started in its place, say.
pub fn full_name(nodes: &[NodeStatus], node: &NodeStatus) -> String {
    let same = nodes.iter().filter(|other| other.name == node.name);
    match same.count() {
        0 | 1 => node.name.clone(),
        _ => format!("{} (node {})", node.name, node.id),
    }
}
