//! One batch of a connection's operations on its way to other nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use staves_client::SomeAnswers;
use staves_client::turn::ServiceOp;
use staves_model::mutant::{Mutant, planted};
use staves_model::{ClientId, PoolId, ServiceId};
use staves_wire::ErrorCode;
use staves_wire::group::RequestId;
use staves_wire::service::{Answer, NumberedOp, PoolRef, ServiceRequest};

use super::super::completions::{RemoteAnswers, RemoteOp, RemoteResult};
use crate::forward::resume;
use crate::host::Host;

/// The place of an operation's answer.
pub(super) type ReplyPlace = (u64, u32, u32);
/// A bucket, and the client under whose numbers it was asked: each bucket has one of its own, and a pool may be made anew
/// with other buckets.
type NumberedBy = (u32, ClientId);
/// An operation that may have been done under this number.
type Begun = (ReplyPlace, ServiceOp, RequestId);

/// Asks other nodes for these operations, and for so many bytes of answers.
pub(super) async fn forward_batch(
    host: &Arc<Host>,
    pool: PoolId,
    batch: Vec<((u64, u32), RemoteOp)>,
    answer_bytes_max: usize,
) -> RemoteAnswers {
    let now = host.clock.now();
    let latest = batch.iter().map(|(_, wanted)| wanted.deadline).max();
    let deadline = Instant::now() + latest.unwrap_or(now).since(now);
    let mut results = Vec::with_capacity(batch.len());
    let mut numbered: BTreeMap<NumberedBy, Vec<Begun>> = BTreeMap::new();
    let mut fresh: Vec<((u64, u32), RemoteOp)> = Vec::new();
    for (at, wanted) in batch {
        let place = (at.0, at.1, wanted.bucket);
        match wanted
            .request
            .filter(|_| !planted(Mutant::InterruptedUnderNewNumber))
        {
            Some(request) => {
                let waiting = numbered.entry((wanted.bucket, request.client)).or_default();
                waiting.push((place, wanted.op, request));
            }
            None if wanted.deadline <= now => {
                let text = "the deadline passed before its turn came; nothing was done";
                results.push(back(place, Answer::error(ErrorCode::Busy, text)));
            }
            None => fresh.push((at, wanted)),
        }
    }
    // First those that may have taken effect: what the connection sent later must find them done.
    for ((bucket, _), ops) in numbered {
        results.extend(resume_interrupted(host, pool, bucket, ops, deadline).await);
    }
    let (mut left, mut needs_bytes) = (Vec::new(), 0);
    if !fresh.is_empty() {
        let ops = fresh.iter().map(|(_, wanted)| wanted.op.clone()).collect();
        let (router, pool) = (host.router(), PoolRef::Id(pool));
        let answers = router.execute_some(ServiceId::CACHE, &pool, ops, answer_bytes_max, deadline);
        let some = answers
            .await
            .unwrap_or_else(|error| SomeAnswers::all(error.code(), error.to_string(), fresh.len()));
        needs_bytes = some.needs_bytes;
        for ((place, wanted), answer) in fresh.into_iter().zip(some.answers) {
            match answer {
                Some(answer) => results.push(back((place.0, place.1, wanted.bucket), answer)),
                None => left.push((place, wanted)),
            }
        }
    }
    RemoteAnswers {
        results,
        left,
        needs_bytes,
        reserved_bytes: 0,
    }
}

/// Asks again for interrupted writes of one bucket, under their numbers.
async fn resume_interrupted(
    host: &Arc<Host>,
    pool: PoolId,
    bucket: u32,
    ops: Vec<Begun>,
    deadline: Instant,
) -> Vec<RemoteResult> {
    let Some((_, _, first)) = ops.first() else {
        return Vec::new();
    };
    let client = first.client;
    let routes = host.routes();
    let cell = routes
        .pools
        .get(&pool)
        .and_then(|p| p.cells.get(bucket as usize));
    let floor = match cell {
        Some(cell) => cell.lock().lane.floor(),
        None => first.floor,
    };
    let mut places = Vec::new();
    let mut wanted = Vec::new();
    for (place, op, request) in ops {
        places.push((place, request));
        wanted.push(NumberedOp {
            number: request.number,
            to: op.to,
            body: op.body,
        });
    }
    let request = ServiceRequest {
        revision: routes.map.revision,
        service: ServiceId::CACHE,
        pool: PoolRef::Id(pool),
        client,
        floor,
        retry: true,
        forwarded: true,
        ops: wanted,
        answer_bytes_max: super::BATCH_BYTES_MAX as u32,
        strict: false,
    };
    let answers = resume(host.router(), request, deadline).await;
    if let Some(cell) = cell {
        let mut state = cell.lock();
        places
            .iter()
            .for_each(|(_, request)| state.lane.answered(request));
    }
    let places = places.into_iter().map(|(place, _)| place);
    places.zip(answers).map(|(h, a)| back(h, a)).collect()
}

pub(super) fn back((place, part, bucket): ReplyPlace, answer: Answer) -> RemoteResult {
    RemoteResult {
        place,
        part,
        bucket,
        answer,
    }
}
