//! The nodes of a log: that of its sequencer, and those of its units.

use std::time::Duration;

use anyhow::{Context, bail};
use staves_client::{Client, ClientOptions};
use staves_model::{ClusterMap, MemberSlot, NodeId, NodeState};

use super::{LOGS, POOL};
use crate::load::{Shared, runtime};

/// The bound on one look.
const LOOK: Duration = Duration::from_secs(5);

/// The addresses of a log's nodes, as the directory has them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogPlaces {
    /// The node of its sequencer.
    pub sequencer: String,
    /// The nodes that answer for units of the pool.
    pub units: Vec<String>,
}

/// The nodes of a log.
///
/// # Errors
/// No node answers, or the log has no sequencer at present.
pub fn find(shared: &Shared, log: usize) -> anyhow::Result<LogPlaces> {
    runtime()?.block_on(async {
        let options = ClientOptions {
            deadline: LOOK,
            ..ClientOptions::default()
        };
        let client = Client::connect(&shared.native_doors(), options).await?;
        let stat = client.log_stat(Some(POOL), LOGS[log].0).await?;
        let sequencer = stat.sequencer.context("it has no sequencer")?;
        let map = client.refresh().await?;
        let named = map.nodes.values().find(|node| node.name == sequencer);
        let sequencer = named.context("the map has no such node")?.native.clone();
        let pool = map.pool_named(POOL).context("there is no pool")?;
        let heads = map
            .groups_of(pool)
            .filter_map(|group| group.member(MemberSlot(0)));
        let mut units: Vec<String> = heads
            .filter_map(|head| native(&map, head.id.node))
            .collect();
        units.sort();
        units.dedup();
        if units.is_empty() {
            bail!("no unit has a node that is up");
        }
        Ok(LogPlaces { sequencer, units })
    })
}

fn native(map: &ClusterMap, node: NodeId) -> Option<String> {
    let node = map.nodes.get(&node)?;
    (node.state == NodeState::Up).then(|| node.native.clone())
}
