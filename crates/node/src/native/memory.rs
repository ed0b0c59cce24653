//! Batches of operations on data buckets of memory pools: as those on keys, but each for itself.

use std::sync::Arc;
use std::time::Instant;

use staves_model::ClusterMap;
use staves_wire::ErrorCode;
use staves_wire::cache::Answer;
use staves_wire::group::RequestId;
use staves_wire::memory::{MemoryAnswers, MemoryOp, MemoryRequest};
use tokio::sync::oneshot;

use super::ahead;
use super::batch::{Asker, Batch};
use crate::host::{Host, Routes, Waiter};

/// Serves a batch: what is for this node's data buckets there, the rest by one more node if `pass_on`. The
/// asker is answered now or later.
pub(crate) fn serve(
    host: &Arc<Host>,
    request: MemoryRequest,
    deadline: Instant,
    pass_on: bool,
    asker: Asker,
) {
    let routes = host.routes();
    let groups = request.ops.iter().map(|op| op.group).collect();
    let batch = Arc::new(Batch::of_groups(
        host.clone(),
        request.revision,
        groups,
        asker,
    ));
    let (now, clock) = (host.clock.now(), ahead::micros_since_1970());
    let (mut elsewhere, mut touched) = (Vec::new(), Vec::new());
    for (index, op) in request.ops.iter().enumerate() {
        let cell = match place(&routes, &request, op) {
            Ok(cell) => cell,
            Err(answer) => {
                batch.put(index, answer);
                continue;
            }
        };
        let named = op.number > 0 && request.client.0 > 0;
        let id = named.then_some(RequestId {
            client: request.client,
            number: op.number,
            floor: request.floor,
        });
        let waiter = || Waiter::Batch {
            batch: batch.clone(),
            index: index as u32,
        };
        let mut state = cell.lock();
        if !state.answers_for(op.slot) {
            elsewhere.push(index);
            continue;
        }
        let too_high = id.and_then(|id| ahead::refuse(&state, &id, request.retry, clock));
        if let Some(answer) = too_high {
            batch.put(index, answer);
            continue;
        }
        let deadline = host.clock.at(deadline);
        if let Some(answer) = state.submit_memory(now, id, deadline, op, waiter) {
            batch.put(index, answer);
        }
        let says_something = state.is_dirty();
        drop(state);
        if says_something {
            touched.push(cell.clone());
        }
    }
    if !touched.is_empty() {
        touched.iter().for_each(|cell| cell.flush(host, now));
        host.peers.flush();
    }
    match pass_on {
        _ if elsewhere.is_empty() => {}
        true => drop(tokio::spawn(pass(
            batch.clone(),
            request,
            elsewhere,
            deadline,
        ))),
        false => {
            let me = host.life.node;
            let text = format!(
                "node {me} does not answer for the data bucket; ask the node that the newer map names"
            );
            let answer = Answer::error(ErrorCode::NotServing, text);
            for index in elsewhere {
                batch.put(index, answer.clone());
            }
        }
    }
    if batch.end_of_ops() {
        batch.finish();
    }
}

/// The same for this node's own router, which has passed it on already.
pub(crate) async fn serve_and_wait(
    host: &Arc<Host>,
    request: MemoryRequest,
    deadline: Instant,
) -> MemoryAnswers {
    let (count, revision) = (request.ops.len(), request.revision);
    let (asker, answers) = oneshot::channel();
    serve(host, request, deadline, false, Asker::Here(asker));
    match tokio::time::timeout_at(deadline.into(), answers).await {
        Ok(Ok(answers)) => MemoryAnswers {
            revision: answers.revision,
            answers: answers.answers,
            moved: answers.moved,
            draw_above: answers.draw_above,
        },
        _ => {
            let text = "the node's own bucket did not answer in time";
            MemoryAnswers {
                revision,
                answers: vec![Answer::error(ErrorCode::Deadline, text); count],
                moved: Vec::new(),
                draw_above: 0,
            }
        }
    }
}

/// The cell that answers for an operation's data bucket, or that of the group, or what is wrong with it.
fn place<'a>(
    routes: &'a Routes,
    request: &MemoryRequest,
    op: &MemoryOp,
) -> Result<&'a Arc<crate::host::Cell>, Answer> {
    let group = op.group;
    let mut cells = routes.cells_of(group);
    let Some(home) = cells.next() else {
        let (code, text) = match request.revision > routes.map.revision {
            true => (
                ErrorCode::NotServing,
                format!("group {group} is not known to this node yet"),
            ),
            false => (
                ErrorCode::NotFound,
                format!("group {group} is gone: its region was deleted"),
            ),
        };
        return Err(Answer::error(code, text));
    };
    if !is_memory(&routes.map, op) {
        let text = format!("group {group} has no data bucket {} of a region", op.slot);
        return Err(Answer::error(ErrorCode::Malformed, text));
    }
    let shadow = cells.next().filter(|_| !home.lock().answers_for(op.slot));
    let shadow = shadow.filter(|cell| cell.lock().answers_for(op.slot));
    Ok(shadow.unwrap_or(home))
}

fn is_memory(map: &ClusterMap, op: &MemoryOp) -> bool {
    map.groups.get(&op.group).is_some_and(|group| {
        let pool = map.pools.get(&group.pool);
        op.slot.0 < group.m && pool.is_some_and(|pool| !pool.is_cache())
    })
}

/// Passes operations on with their client's own numbers: once, and a second time those for which the
/// answer brought a newer map.
async fn pass(
    batch: Arc<Batch>,
    request: MemoryRequest,
    mut elsewhere: Vec<usize>,
    deadline: Instant,
) {
    let router = batch.host().router();
    let mut last = false;
    for turn in 0..2 {
        let map = router.map();
        let ops = elsewhere.iter().map(|index| request.ops[*index].clone());
        let request = MemoryRequest {
            forwarded: true,
            ops: ops.collect(),
            ..request.clone()
        };
        let answers = router.forward_memory(request, deadline).await;
        let again = turn == 0 && !Arc::ptr_eq(&map, &router.map());
        batch.also(answers.moved, answers.draw_above);
        let mut left = Vec::new();
        for (index, answer) in elsewhere.into_iter().zip(answers.answers) {
            match answer {
                Answer::Error(ErrorCode::NotServing, _) if again => left.push(index),
                answer => last |= batch.put(index, answer),
            }
        }
        elsewhere = left;
        if elsewhere.is_empty() {
            break;
        }
    }
    if last {
        batch.finish();
    }
}
