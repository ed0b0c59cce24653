//! The cluster's map for those who ask for it, and what it says of a node.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use staves_model::{ClusterMap, MemberId, Revision};
use staves_net::Reply;
use staves_wire::admin::{KeyRangeAnswer, KeySpan, NodeTarget};
use staves_wire::directory::{GetMap, MapAnswer};
use staves_wire::hello::Role;
use staves_wire::{ErrorCode, ErrorPacket, Message};
use tokio::sync::watch;

use super::room::{NO_ROOM, RoomWait, goes_ahead};
use super::time_left;
use crate::gate::WaitingPlaces;
use crate::running::Running;

/// Longest that a newer map is waited for.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Most requests at a time that wait for a newer map, or with a large answer for room; others are told at once that there is none.
const WAITING_MAX: usize = 1024;
/// Most of one connection: fewer than would keep it from being read, so that its end is noticed.
const OF_ONE_MAX: u32 = 2;

/// The answers with maps.
#[derive(Debug)]
pub(crate) struct MapAnswers {
    /// The newest one that somebody asked for: to encode it costs more than to send it.
    encoded: Mutex<Option<MapAnswer>>,
    pub(super) waiting: WaitingPlaces,
}

impl Default for MapAnswers {
    fn default() -> MapAnswers {
        MapAnswers {
            encoded: Mutex::default(),
            waiting: WaitingPlaces::new(WAITING_MAX),
        }
    }
}

impl MapAnswers {
    fn answer(&self, map: &ClusterMap, known: Revision) -> MapAnswer {
        if map.revision <= known {
            return MapAnswer::new(map, known);
        }
        let mut encoded = self.encoded.lock();
        if let Some(answer) = encoded.as_ref()
            && answer.revision == map.revision
        {
            return answer.clone();
        }
        encoded.insert(MapAnswer::new(map, known)).clone()
    }
}

pub(super) fn get(running: &Arc<Running>, role: Role, ask: GetMap, mut reply: Reply) {
    let ahead = goes_ahead(role);
    let map = running.directory.map();
    let now = map.borrow().clone();
    let waits = now.revision <= ask.known && ask.wait_ms > 0;
    if !waits || reply.mark_costly() > OF_ONE_MAX {
        let answer = running.maps.answer(&now, ask.known);
        if reply.may_queue(bytes_of(&answer, ahead)) {
            return reply.send(&Message::MapAnswer(answer));
        }
        reply.mark_costly();
    }
    let running = running.clone();
    tokio::spawn(async move {
        let Some(place) = running.maps.waiting.take() else {
            return match waits {
                true => reply.send(&Message::MapAnswer(MapAnswer::new(&now, now.revision))),
                false => reply.error(ErrorCode::Busy, NO_ROOM),
            };
        };
        if waits {
            tokio::select! {
                biased;
                () = reply.gone() => return,
                () = wait_for_newer(map, &ask, time_left(&reply)) => {}
            }
        }
        let wait = RoomWait::at(place, &reply);
        send(&running, (ask.known, ahead), reply, &wait).await;
    });
}

/// Until there is a newer map than the asker knows, or it waits no more.
async fn wait_for_newer(mut map: watch::Receiver<Arc<ClusterMap>>, ask: &GetMap, left: Duration) {
    let wait = Duration::from_millis(ask.wait_ms.into());
    let wait = wait.min(WAIT_MAX).min(left);
    let newer = map.wait_for(|map| map.revision > ask.known);
    let _ = tokio::time::timeout(wait, newer).await;
}

/// Sends the newest map once there is room for it.
async fn send(running: &Running, (known, ahead): (Revision, bool), reply: Reply, wait: &RoomWait) {
    loop {
        let newest = running.directory.map().borrow().clone();
        let answer = running.maps.answer(&newest, known);
        let bytes = bytes_of(&answer, ahead);
        if reply.may_queue(bytes) {
            return reply.send(&Message::MapAnswer(answer));
        }
        if !wait.room(&reply, bytes).await {
            return reply.error(ErrorCode::Busy, NO_ROOM);
        }
    }
}

/// The bytes that there is to be room for.
fn bytes_of(answer: &MapAnswer, ahead: bool) -> usize {
    let map = answer.map.as_ref().filter(|_| !ahead);
    map.map_or(0, |map| map.len())
}

/// The keys that a node holds, by the map (row X5).
pub(super) fn key_range(running: &Running, target: NodeTarget) -> Result<Message, ErrorPacket> {
    let map = running.directory.map().borrow().clone();
    let Some(node) = map.nodes.get(&target.node) else {
        let text = format!("there is no node {}", target.node);
        return Err(ErrorPacket::new(ErrorCode::NotFound, text));
    };
    let slots = usize::from(staves_model::HASH_SLOTS);
    let mut spans: Vec<KeySpan> = Vec::new();
    for pool in map.pools.values().filter(|pool| pool.kind.row().has_slots) {
        for (bucket, group) in pool.groups.iter().enumerate() {
            let Some(held) = map
                .groups
                .get(group)
                .and_then(|g| g.slot_of(MemberId::new(node.id, node.incarnation)))
            else {
                continue;
            };
            let first = (bucket * slots).div_ceil(pool.groups.len()) as u16;
            let last = (((bucket + 1) * slots).div_ceil(pool.groups.len()) - 1) as u16;
            let data = held.index() < usize::from(pool.scheme.m);
            match spans.last_mut() {
                Some(span)
                    if span.pool == pool.id && span.data == data && span.last.0 + 1 == first =>
                {
                    span.last.0 = last;
                }
                _ => spans.push(KeySpan {
                    pool: pool.id,
                    first: staves_model::HashSlot(first),
                    last: staves_model::HashSlot(last),
                    data,
                }),
            }
        }
    }
    Ok(Message::KeyRangeAnswer(KeyRangeAnswer {
        node: node.id,
        incarnation: node.incarnation,
        spans,
    }))
}
