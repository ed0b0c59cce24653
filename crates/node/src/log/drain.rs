//! The sequencers of a node that is drained go to others while they serve, so that its end is no surprise to appends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use staves_client::{Router, Transport};
use staves_log::{RecordRefusal, RecordReply};
use staves_model::{ClusterMap, NodeId};
use staves_net::Peers;
use staves_wire::Message;
use staves_wire::log::LogAppoint;

use super::Sequencers;
use super::seats::LogKey;

/// The pause between two looks.
const LOOK: Duration = Duration::from_millis(250);
/// The deadline of one move.
const MOVE: Duration = Duration::from_secs(5);
/// Sequencers that are moved at once.
const MOVES_AT_ONCE: usize = 16;

/// Moves the sequencers away whenever the node is drained, for ever.
pub(crate) async fn move_when_drained<T: Transport>(
    router: Router<T>,
    peers: Peers,
    logs: Arc<Sequencers>,
) {
    let mut last = None;
    loop {
        tokio::time::sleep(LOOK).await;
        let map = router.map();
        let me = logs.id().node;
        if !map.nodes.get(&me).is_some_and(|node| node.draining) {
            continue;
        }
        let moves = logs.to_move(last, MOVES_AT_ONCE);
        last = moves.last().map(|(key, _)| *key).or(last);
        let moves = moves.into_iter();
        let moves = moves.filter_map(|(key, name)| {
            let to = target(&map, me, key)?;
            let (peers, logs) = (peers.clone(), logs.clone());
            Some(tokio::spawn(async move {
                if is_moved(&peers, to, key, name).await {
                    logs.end(key);
                }
            }))
        });
        for task in moves.collect::<Vec<_>>() {
            let _ended = task.await;
        }
    }
}

/// The node that takes a log's sequencer: the homes in turn, by the log.
fn target(map: &ClusterMap, me: NodeId, (_, log): LogKey) -> Option<NodeId> {
    let homes = map.homes().filter(|home| home.id != me);
    let homes: Vec<NodeId> = homes.map(|home| home.id).collect();
    let turn = log.0.checked_rem(homes.len() as u64)?;
    homes.get(turn as usize).copied()
}

/// True if the sequencer is another's by now, or the log is gone.
async fn is_moved(peers: &Peers, to: NodeId, (pool, log): LogKey, name: String) -> bool {
    let request = LogAppoint {
        pool,
        name,
        take: true,
        above: 0,
    };
    let deadline = Instant::now() + MOVE;
    let said = peers
        .call(to, &Message::LogAppoint(request), deadline)
        .await;
    let reply = match said {
        Ok(Message::LogSaid(said)) => RecordReply::decode(said.body).ok(),
        Ok(_) => None,
        Err(error) => {
            tracing::debug!(%to, %error, "the sequencer of a log was not moved");
            None
        }
    };
    match reply {
        Some(RecordReply::Record(record)) => {
            let is_its = record.view.sequencer.is_some_and(|id| id.node == to);
            record.view.log != log || is_its && record.lead.is_none()
        }
        Some(RecordReply::Refused(RecordRefusal::NotFound)) => true,
        _ => false,
    }
}
