//! Batches of operations of the native protocol: taken apart by bucket, answered together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use staves_cache::Refused;
use staves_model::{ClusterMap, Group, GroupId, HashSlot, MemberId, PoolId, Revision, Time};
use staves_net::Reply;
use staves_wire::cache::{Answer, CacheAnswers, CacheOp, CacheRequest, Op, PoolRef};
use staves_wire::group::RequestId;
use staves_wire::memory::MemoryAnswers;
use staves_wire::{ErrorCode, Message};
use tokio::sync::oneshot;

use super::ahead;
use super::sides::{Side, Sides};
use crate::host::bucket::Bucket;
use crate::host::{Cell, Host, Naming, Routes, State as CellState, Submitted, Waiter};

/// Answers to one batch of so many bytes are enough: what is left is not done, and asked for again. They all
/// lie in memory at once, here and at the asker, and are one message.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Who gets a batch's answers.
pub(crate) enum Asker {
    /// Another process.
    Wire(Reply),
    /// This node's own router.
    Here(oneshot::Sender<CacheAnswers>),
}

/// A batch on its way to its answers.
pub(crate) struct Batch {
    host: Arc<Host>,
    pool: PoolId,
    asked_by: Revision,
    slots: Vec<HashSlot>,
    /// For a memory pool: the group of each operation, instead of the two above.
    groups: Option<Vec<GroupId>>,
    /// An operation was refused after it had waited: later ones of its bucket must not overtake it.
    disturbed: AtomicBool,
    state: Mutex<State>,
}

struct State {
    answers: Vec<Option<Answer>>,
    /// Answers still to come, and one for whoever hands the operations in.
    missing: usize,
    moved: Vec<Arc<Group>>,
    /// As another node said it.
    draw_above: u64,
    asker: Option<Asker>,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("ops", &self.slots.len())
            .finish_non_exhaustive()
    }
}

impl Batch {
    fn new(
        host: Arc<Host>,
        pool: PoolId,
        asked_by: Revision,
        ops: &[CacheOp],
        asker: Asker,
    ) -> Batch {
        Batch {
            host,
            pool,
            asked_by,
            slots: ops.iter().map(|op| op.slot).collect(),
            groups: None,
            disturbed: AtomicBool::new(false),
            state: Mutex::new(State {
                answers: vec![None; ops.len()],
                missing: ops.len() + 1,
                moved: Vec::new(),
                draw_above: 0,
                asker: Some(asker),
            }),
        }
    }

    /// A batch of operations on data buckets of memory pools.
    pub(crate) fn of_groups(
        host: Arc<Host>,
        asked_by: Revision,
        groups: Vec<GroupId>,
        asker: Asker,
    ) -> Batch {
        let batch = Batch::new(host, PoolId(0), asked_by, &[], asker);
        {
            let mut state = batch.state.lock();
            state.answers = vec![None; groups.len()];
            state.missing = groups.len() + 1;
        }
        Batch {
            groups: Some(groups),
            ..batch
        }
    }

    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// What another node said, for the asker.
    pub(crate) fn also(&self, moved: Vec<Arc<Group>>, draw_above: u64) {
        let mut state = self.state.lock();
        state.moved.extend(moved);
        state.draw_above = state.draw_above.max(draw_above);
    }

    /// An operation's answer; true if it was the last.
    pub(crate) fn put(&self, index: usize, answer: Answer) -> bool {
        let mut state = self.state.lock();
        if let Some(place) = state.answers.get_mut(index)
            && place.is_none()
        {
            *place = Some(answer);
            state.missing -= 1;
        }
        state.missing == 0
    }

    /// All operations were handed in; true if all have their answers.
    pub(crate) fn end_of_ops(&self) -> bool {
        let mut state = self.state.lock();
        state.missing -= 1;
        state.missing == 0
    }

    /// A refusal, as an answer.
    pub(crate) fn refuse(&self, refused: Refused) -> Answer {
        self.disturbed.store(true, Ordering::Release);
        Answer::error(refused.code(), refused.to_string())
    }

    /// Answers those that are complete.
    pub(crate) fn finish_all(batches: Vec<Arc<Batch>>) {
        for batch in batches {
            batch.finish();
        }
    }

    /// Answers, once.
    pub(crate) fn finish(&self) {
        let (answers, mut moved, draw_above, asker) = {
            let mut state = self.state.lock();
            let Some(asker) = state.asker.take() else {
                return;
            };
            let answers = std::mem::take(&mut state.answers);
            let moved = std::mem::take(&mut state.moved);
            (answers, moved, state.draw_above, asker)
        };
        let unanswered = || Answer::error(ErrorCode::Internal, "no answer came for the operation");
        let answers: Vec<Answer> = answers
            .into_iter()
            .map(|a| a.unwrap_or_else(unanswered))
            .collect();
        let routes = self.host.routes();
        moved.extend(self.moved(&routes, &answers));
        let draw_above = draw_above.max(self.draw_above(&routes, &answers));
        let answers = CacheAnswers {
            revision: routes.map.revision,
            answers,
            moved,
            draw_above,
        };
        match asker {
            Asker::Wire(reply) if self.groups.is_some() => {
                reply.send(&Message::MemoryAnswers(MemoryAnswers {
                    revision: answers.revision,
                    answers: answers.answers,
                    moved: answers.moved,
                    draw_above: answers.draw_above,
                }));
            }
            Asker::Wire(reply) => reply.send(&Message::CacheAnswers(answers)),
            // Who asked may have given up.
            Asker::Here(reply) => drop(reply.send(answers)),
        }
    }

    /// The number that a new request must lie above, by the buckets that took one for forgotten.
    fn draw_above(&self, routes: &Routes, answers: &[Answer]) -> u64 {
        let forgotten =
            |(answer, _): &(&Answer, _)| matches!(answer, Answer::Error(ErrorCode::Forgotten, _));
        let slots = answers.iter().zip(&self.slots).filter(forgotten);
        let slots: BTreeSet<HashSlot> = slots.map(|(_, slot)| *slot).collect();
        let pool = routes.pools.get(&self.pool).filter(|_| !slots.is_empty());
        let marks = slots.iter().filter_map(|slot| {
            let pool = pool?;
            let state = pool.cells[pool.bucket_of(*slot) as usize].lock();
            Some(state.bucket.as_ref()?.member().forgotten())
        });
        let named = answers.iter().zip(self.groups.iter().flatten());
        let marks_of_groups = named
            .filter(|(answer, _)| matches!(answer, Answer::Error(ErrorCode::Forgotten, _)))
            .flat_map(|(_, group)| routes.cells_of(*group))
            .filter_map(|cell| Some(cell.lock().bucket.as_ref()?.member().forgotten()));
        marks.chain(marks_of_groups).max().unwrap_or(0)
    }

    /// The newest entries of the groups that the asker took us for wrongly (row D1).
    fn moved(&self, routes: &Routes, answers: &[Answer]) -> Vec<Arc<Group>> {
        let is_wrong = |answer: &Answer| {
            matches!(
                answer,
                Answer::Error(ErrorCode::NotServing | ErrorCode::Unreachable, _)
            )
        };
        let wrong = answers.iter().zip(&self.slots).filter(|(a, _)| is_wrong(a));
        let slots: BTreeSet<HashSlot> = wrong.map(|(_, slot)| *slot).collect();
        let named = answers.iter().zip(self.groups.iter().flatten());
        let named = named.filter(|(a, _)| is_wrong(a)).map(|(_, id)| id);
        let groups = slots
            .iter()
            .filter_map(|slot| routes.map.group_of(self.pool, *slot))
            .chain(named.filter_map(|id| routes.map.groups.get(id)));
        let news: BTreeMap<_, _> = groups
            .filter(|g| g.revision > self.asked_by)
            .map(|g| (g.id, g))
            .collect();
        news.into_values().map(|g| Arc::new(g.clone())).collect()
    }
}

/// Serves a batch: what is for this node's buckets there, the rest by one more node if `pass_on`. The
/// asker is answered now or later.
pub(crate) fn serve(
    host: &Arc<Host>,
    request: CacheRequest,
    deadline: Instant,
    pass_on: bool,
    asker: Asker,
) {
    let routes = host.routes();
    let Some(pool) = routes.pool(&request.pool) else {
        return refuse_all(&routes, &request, asker);
    };
    let batch = Batch::new(host.clone(), pool.id, request.revision, &request.ops, asker);
    let batch = Arc::new(batch);
    let mut hand = Hand {
        host,
        batch: &batch,
        head: Head::of(&request),
        now: host.clock.now(),
        deadline: host.clock.at(deadline),
        clock: ahead::micros_since_1970(),
        sides: Sides::default(),
        answer_bytes: 0,
        touched: Vec::new(),
    };
    let mut elsewhere = Vec::new();
    for (index, op) in request.ops.iter().enumerate() {
        if op.op.as_op().slot() != op.slot {
            let text = format!("the key's hash slot is not {}", op.slot);
            batch.put(index, Answer::error(ErrorCode::Malformed, text));
            continue;
        }
        let bucket = pool.bucket_of(op.slot);
        let cell = &pool.cells[bucket as usize];
        match hand.side(&routes, bucket, cell) {
            Side::Here => hand.submit(bucket, cell, index, op),
            Side::Refused(refused) => drop(batch.put(index, batch.refuse(refused))),
            Side::Elsewhere if pass_on => elsewhere.push(index),
            Side::Elsewhere => {
                let refused = Refused::NotServing;
                let text = format!("node {}: {refused}", host.life.node);
                batch.put(index, Answer::error(refused.code(), text));
            }
        }
    }
    let now = hand.now;
    if !hand.touched.is_empty() {
        hand.touched.iter().for_each(|cell| cell.flush(host, now));
        host.peers.flush();
    }
    if !elsewhere.is_empty() {
        let batch = batch.clone();
        tokio::spawn(pass(batch, pool.id, request, elsewhere, deadline));
    }
    if batch.end_of_ops() {
        batch.finish();
    }
}

/// The same for this node's own router, which has passed it on already.
pub(crate) async fn serve_and_wait(
    host: &Arc<Host>,
    request: CacheRequest,
    deadline: Instant,
) -> CacheAnswers {
    let (count, revision) = (request.ops.len(), request.revision);
    let (asker, answers) = oneshot::channel();
    serve(host, request, deadline, false, Asker::Here(asker));
    let late = |text: &str| CacheAnswers {
        revision,
        answers: vec![Answer::error(ErrorCode::Deadline, text); count],
        moved: Vec::new(),
        draw_above: 0,
    };
    match tokio::time::timeout_at(deadline.into(), answers).await {
        Ok(Ok(answers)) => answers,
        Ok(Err(_)) => late("the request was dropped without an answer"),
        Err(_) => late("the node's own bucket did not answer in time"),
    }
}

/// Why a pool takes no keys.
pub(super) fn no_pool(map: &ClusterMap, pool: &PoolRef) -> String {
    let known = map.pools.values().find(|known| match pool {
        PoolRef::Id(id) => known.id == *id,
        PoolRef::Name(name) => known.name == *name,
    });
    let name = match (pool, known) {
        (_, Some(known)) => known.name.clone(),
        (PoolRef::Id(id), None) => id.to_string(),
        (PoolRef::Name(name), None) => name.clone(),
    };
    let then = match known {
        Some(_) => ": it holds regions; 'staves memory list' shows them",
        None => "; 'staves pool list' shows those there are",
    };
    format!("there is no key-value pool '{name}'{then}")
}

fn refuse_all(routes: &Routes, request: &CacheRequest, asker: Asker) {
    let answer = Answer::error(ErrorCode::NotFound, no_pool(&routes.map, &request.pool));
    let answers = CacheAnswers {
        revision: routes.map.revision,
        answers: vec![answer; request.ops.len()],
        moved: Vec::new(),
        draw_above: 0,
    };
    match asker {
        Asker::Wire(reply) => reply.send(&Message::CacheAnswers(answers)),
        Asker::Here(reply) => drop(reply.send(answers)),
    }
}

/// What all operations of a request have in common.
struct Head {
    client: staves_model::ClientId,
    floor: u64,
    retry: bool,
}

impl Head {
    fn of(request: &CacheRequest) -> Head {
        Head {
            client: request.client,
            floor: request.floor,
            retry: request.retry,
        }
    }
}

/// Hands operations to this node's buckets.
struct Hand<'a> {
    host: &'a Arc<Host>,
    batch: &'a Arc<Batch>,
    head: Head,
    now: Time,
    deadline: Time,
    /// Microseconds since 1970.
    clock: u64,
    sides: Sides,
    /// Of the answers so far, those included that are still to come.
    answer_bytes: usize,
    touched: Vec<Arc<Cell>>,
}

impl Hand<'_> {
    fn side(&mut self, routes: &Routes, bucket: u32, cell: &Cell) -> Side {
        let mut sides = std::mem::take(&mut self.sides);
        let side = sides.of(bucket, || self.is_here(routes, cell));
        self.sides = sides;
        side
    }

    /// Whether the bucket is this node's to answer for, by what it does or by what the map says.
    fn is_here(&self, routes: &Routes, cell: &Cell) -> bool {
        if cell.lock().answers() {
            return true;
        }
        let group = routes.map.groups.get(&cell.group);
        let data = group.and_then(|g| g.member(staves_model::MemberSlot(0)));
        let life = self.host.life;
        let me = MemberId::new(life.node, life.incarnation);
        data.is_some_and(|x| x.id == me) && cell.lock().bucket.is_some()
    }

    fn submit(&mut self, bucket: u32, cell: &Arc<Cell>, index: usize, op: &CacheOp) {
        let batch = self.batch;
        if self.answer_bytes >= ANSWER_BYTES_MAX {
            self.sides.refuse(bucket, Refused::Busy);
            let text = "it was not done: the answers before it are as many bytes as go at once";
            batch.put(index, Answer::error(ErrorCode::Busy, text));
            return;
        }
        let named = op.number > 0 && self.head.client.0 > 0;
        let naming = Naming::Given {
            request: named.then_some(RequestId {
                client: self.head.client,
                number: op.number,
                floor: self.head.floor,
            }),
            retry: self.head.retry,
        };
        let mut wants_flush = false;
        let submitted = {
            let mut state = cell.lock();
            self.answer_bytes += old_value_bytes(&state, &op.op.as_op());
            if let Naming::Given {
                request: Some(request),
                ..
            } = &naming
                && let Some(answer) = ahead::refuse(&state, request, self.head.retry, self.clock)
            {
                Submitted::Given(answer)
            } else if batch.disturbed.load(Ordering::Acquire) {
                Submitted::Refused(Refused::NotServing)
            } else {
                state.submit(
                    self.now,
                    naming,
                    self.deadline,
                    &op.op.as_op(),
                    |answer| answer.to_owned(),
                    |_| Waiter::Batch {
                        batch: batch.clone(),
                        index: index as u32,
                    },
                    &mut wants_flush,
                )
            }
        };
        if wants_flush {
            self.touched.push(cell.clone());
        }
        match submitted {
            Submitted::Given(answer) => {
                if let (Answer::Value(value), Op::Get { .. }) = (&answer, op.op.as_op()) {
                    self.answer_bytes += value.len();
                }
                batch.put(index, answer);
            }
            Submitted::Waits => {}
            Submitted::Refused(refused) => {
                self.sides.refuse(bucket, refused);
                batch.put(index, Answer::error(refused.code(), refused.to_string()));
            }
        }
    }
}

/// Bytes of the old value that a write is to answer.
fn old_value_bytes(state: &CellState, op: &Op<'_>) -> usize {
    match (op, &state.bucket) {
        (
            Op::GetDel { key }
            | Op::Set {
                key, get_old: true, ..
            },
            Some(Bucket::Cache(bucket)),
        ) => bucket.value_bytes(key),
        _ => 0,
    }
}

/// Passes operations on with their client's own numbers: once, and a second time those for which the
/// answer brought a newer map.
async fn pass(
    batch: Arc<Batch>,
    pool: PoolId,
    request: CacheRequest,
    mut elsewhere: Vec<usize>,
    deadline: Instant,
) {
    let router = batch.host.router();
    let mut last = false;
    for turn in 0..2 {
        let map = router.map();
        let request = CacheRequest {
            pool: PoolRef::Id(pool),
            ops: elsewhere
                .iter()
                .map(|index| request.ops[*index].clone())
                .collect(),
            forwarded: true,
            ..request.clone()
        };
        let answers = router.forward(request, deadline).await;
        let again = turn == 0 && !Arc::ptr_eq(&map, &router.map());
        {
            let mut state = batch.state.lock();
            state.moved.extend(answers.moved);
            state.draw_above = state.draw_above.max(answers.draw_above);
        }
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
