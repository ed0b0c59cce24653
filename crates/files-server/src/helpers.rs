//! Has other nodes fetch bytes that this one cannot: some machines alone may reach a source, or some nodes alone may have
//! its credentials.
//!
//! Another holder of the bucket may have the bytes; else a node that reaches the source reads them there, and passes them on to the
//! bucket's holders as all that it fetches (`fetch.rs`). It alone knows whether they may be kept: so
//! its answer is dropped, and this node waits for the bytes that it passes on.

use std::time::{Duration, Instant};

use staves_model::{ClusterMap, NodeId};
use staves_wire::Message;
use staves_wire::files::{FileBytes, FileFetch};

use super::{Files, FilesPool, bucket_of};

/// Nodes that are asked to fetch a stretch; the next time it is others.
const ASKED_MAX: usize = 8;
/// The bound on each helper: a source may be slow.
const ASK: Duration = Duration::from_secs(10);
/// The bound on a holder's answer about its blocks.
const READ: Duration = Duration::from_secs(1);
/// The bound on the arrival of fetched bytes, and the number of looks for them.
const ARRIVE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(10);

/// The result of help.
pub(super) enum Helped {
    /// Somebody had it, or fetched it: it is there, if there was room.
    Fetched,
    /// No node that was asked did.
    Not,
    /// There is no node to ask.
    Alone,
}

/// `helper`: who did so last; from there on, in the circle of ids, nodes are asked.
pub(super) async fn help(
    files: &Files,
    pool: &FilesPool,
    ask: &FileFetch,
    is_there: impl Fn() -> bool,
    helper: &mut NodeId,
) -> Helped {
    let map = files.map();
    let others = others(&map, files.life.node, *helper);
    if others.is_empty() {
        return Helped::Alone;
    }
    let read = &ask.read;
    for node in &others {
        let holds = map.pools.get(&pool.id).and_then(|p| p.holdings());
        let holds = holds.is_some_and(|h| {
            let holders = h.holders(bucket_of(h, read.file, read.from));
            holders.iter().any(|holder| holder.node == *node)
        });
        if holds
            && let Some(bytes) = answer(files, *node, &Message::FileRead(read.clone()), READ).await
        {
            pool.keep(read.file, ask.size, read.from, &bytes, files.moment());
            return Helped::Fetched;
        }
    }
    for node in others.iter().take(ASKED_MAX) {
        *helper = *node;
        if answer(files, *node, &Message::FileFetch(ask.clone()), ASK)
            .await
            .is_none()
        {
            continue;
        }
        let until = Instant::now() + ARRIVE;
        while !is_there() && Instant::now() < until {
            tokio::time::sleep(LOOK).await;
        }
        return Helped::Fetched;
    }
    // Next time those behind them.
    *helper = NodeId(helper.0.wrapping_add(1));
    Helped::Not
}

/// The nodes that are up but this one, from an id on.
fn others(map: &ClusterMap, me: NodeId, first: NodeId) -> Vec<NodeId> {
    let (from, up_to) = (map.nodes.range(first..), map.nodes.range(..first));
    let nodes = from.chain(up_to).map(|(_, node)| node);
    let up = nodes.filter(|n| n.id != me && map.is_up(n.id, n.incarnation));
    up.map(|node| node.id).collect()
}

async fn answer(
    files: &Files,
    node: NodeId,
    ask: &Message,
    patience: Duration,
) -> Option<bytes::Bytes> {
    match files.peers.call(node, ask, Instant::now() + patience).await {
        Ok(Message::FileBytes(FileBytes { bytes })) => bytes,
        Ok(_) => None,
        Err(error) => {
            tracing::debug!(%node, %error, "it does not fetch for this node");
            None
        }
    }
}
