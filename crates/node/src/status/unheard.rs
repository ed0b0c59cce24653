//! Nodes that do not hear each other, though both are there: the network between them is cut.

use serde::{Deserialize, Serialize};

use super::names::full_name;
use super::{NodeStatus, StatusReport};

/// A silence that is no hiccup.
const SILENCE_MS: u64 = 1_000;
/// Most pairs that are listed.
const PAIRS_MAX: usize = 6;

/// A node that does not answer another's pings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SilentNode {
    /// The node.
    pub node: u64,
    /// For so long.
    pub ms: u64,
}

/// A node that does not answer another one's pings, as that one reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnheardNode {
    /// The node that hears nothing.
    pub by: u64,
    /// The node that it hears nothing of.
    pub node: u64,
    /// For so long, in milliseconds.
    pub ms: u64,
}

impl UnheardNode {
    /// All that one node does not hear.
    pub(super) fn all_of(by: u64, silent: &[SilentNode]) -> Vec<UnheardNode> {
        let of = |one: &SilentNode| UnheardNode {
            by,
            node: one.node,
            ms: one.ms,
        };
        silent.iter().map(of).collect()
    }
}

/// The pairs of which both answered the asker, and one does not hear the other.
pub(super) fn cut_links(report: &StatusReport) -> Option<String> {
    let there = |id: u64| {
        let mut nodes = report.nodes.iter();
        nodes.find(|node| node.id == id && node.up && node.facts.is_some())
    };
    let name = |node: &NodeStatus| full_name(&report.nodes, node);
    let of = |one: &UnheardNode| {
        let (by, node) = (there(one.by)?, there(one.node)?);
        let silent = one.ms >= SILENCE_MS;
        silent.then(|| {
            let s = one.ms / 1000;
            format!("{} has not heard from {} for {s} s", name(by), name(node))
        })
    };
    let pairs: Vec<String> = report.unheard.iter().filter_map(of).collect();
    let more = match pairs.len().saturating_sub(PAIRS_MAX) {
        0 => String::new(),
        more => format!(" and {more} more such"),
    };
    let listed: Vec<&str> = pairs.iter().take(PAIRS_MAX).map(String::as_str).collect();
    (!pairs.is_empty()).then(|| {
        format!(
            "{}{more}, though all of them answer this command: the network between them is cut, perhaps one way. What one such node holds, clients \
             of the other may ask for in vain: look to the network, or ask another node",
            listed.join(", ")
        )
    })
}
