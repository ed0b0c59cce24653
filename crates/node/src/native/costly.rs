//! Requests that cost much: each takes its turn at the [gate](crate::gate).
//!
//! An answer that may be large waits for [room](super::room) beside those that nobody has taken, without a turn, and without being there:
//! it is let go and made again. So no more of them are in memory than are counted, and the one of whose turn it is.

use std::sync::Arc;

use bytes::Bytes;
use staves_model::ServiceId;
use staves_net::Reply;
use staves_wire::admin::StatusAnswer;
use staves_wire::hello::Role;
use staves_wire::service::PoolRef;
use staves_wire::{ErrorCode, ErrorPacket, Message};

use super::room::{NO_ROOM, RoomWait, goes_ahead};
use super::{PATIENCE, batch, files, group, maps, propose, time_left, unasked};
use crate::gate::{CostlyTurn, GateRefusal};
use crate::running::Running;

/// Of [`super::RequestCost::Much`]: from its wait for a turn to its answer.
pub(super) async fn work(running: Arc<Running>, role: Role, request: Message, mut reply: Reply) {
    let ahead = goes_ahead(role);
    let mut wait = None;
    loop {
        let mut turn = match turn(&running, role, &reply).await {
            Some(Ok(turn)) => turn,
            Some(Err(refusal)) => return reply.error(ErrorCode::Busy, refusal.to_string()),
            None => return,
        };
        let bytes = match look(&running, &request, &mut turn, &reply).await {
            Some(Ok(answer)) => match reply.send_if_room(&answer, ahead) {
                Ok(()) => return,
                Err((unsent, bytes)) => {
                    reply = unsent;
                    bytes
                }
            },
            Some(Err(ErrorPacket { code, text })) => return reply.error(code, text),
            None => return act(&running, role, request, reply).await,
        };
        drop(turn);
        if wait.is_none() {
            wait = RoomWait::begin(&running, &reply);
        }
        let comes = match &wait {
            Some(wait) => wait.room(&reply, bytes).await,
            None => false,
        };
        if !comes {
            return reply.error(ErrorCode::Busy, NO_ROOM);
        }
    }
}

/// The next turn. `None`: whoever closes its connection has nothing worked off behind it.
async fn turn(
    running: &Running,
    role: Role,
    reply: &Reply,
) -> Option<Result<CostlyTurn, GateRefusal>> {
    let wait_max = time_left(reply).min(PATIENCE);
    tokio::select! {
        biased;
        () = reply.gone() => None,
        turn = running.gates.of(role).enter(wait_max) => Some(turn),
    }
}

/// Answers requests that only look, and may be asked again: their answers may be large. `None`: it is no such request.
async fn look(
    running: &Running,
    request: &Message,
    turn: &mut CostlyTurn,
    reply: &Reply,
) -> Option<Result<Message, ErrorPacket>> {
    let files = &running.files;
    Some(match request {
        Message::FileKeys(ask) => files.keys(ask).map(Message::FileKeysAnswer),
        Message::FileChanges(ask) => files.changes(*ask).map(Message::FileChangesAnswer),
        Message::CacheStats(stats) => cache_stats(running, &stats.pool),
        Message::Status => {
            let json = Bytes::from(running.status_json());
            Ok(Message::StatusAnswer(StatusAnswer { json }))
        }
        Message::GroupState(target) => group::state(&running.host, *target),
        Message::GroupSums(ask) => {
            let sums = group::sums(&running.host, *ask, turn, || reply.is_gone());
            sums.await.map(Message::GroupSumsAnswer)
        }
        Message::KeyRange(target) => maps::key_range(running, *target),
        _ => return None,
    })
}

/// Does whatever changes something, or lets damaged blocks go, and answers by a few words.
async fn act(running: &Arc<Running>, role: Role, request: Message, reply: Reply) {
    match request {
        Message::FileCheck(ask) => files::check(running, ask, reply).await,
        Message::FileUse(told) => files::used(running, told, reply),
        Message::FileAway(told) => files::away(running, told, reply),
        Message::GroupMend(_) if role == Role::Client => {
            reply.error(
                ErrorCode::Denied,
                "clients do not mend pages: 'staves scrub' does",
            );
        }
        Message::GroupMend(ask) => group::mend(&running.host, &ask, reply),
        Message::Propose(proposal) => propose(running, role, proposal, reply),
        other => unasked(&other, reply),
    }
}

fn cache_stats(running: &Running, pool: &PoolRef) -> Result<Message, ErrorPacket> {
    let routes = running.host.routes();
    let Some(pool) = routes.pool(ServiceId::CACHE, pool) else {
        let text = batch::no_pool(&routes.map, ServiceId::CACHE, pool);
        return Err(ErrorPacket::new(ErrorCode::NotFound, text));
    };
    let stats = running.host.cache_stats(pool.id);
    Ok(Message::CacheStatsAnswer(stats))
}
