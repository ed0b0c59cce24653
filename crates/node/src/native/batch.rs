//! Batches of operations of the native protocol, of any service: taken apart by bucket, answered together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use staves_model::mutant::{Mutant, planted};
use staves_model::{ClientId, ClusterMap, Group, PoolId, Revision, ServiceId, Time};
use staves_net::{FREE_BYTES, InFlight, InFlightPart, Reply};
use staves_service::Refused;
use staves_wire::cache::Op;
use staves_wire::group::RequestId;
use staves_wire::memory::Action;
use staves_wire::service::{Address, Answer, NumberedOp, PoolRef, ServiceAnswers, ServiceRequest};
use staves_wire::{ErrorCode, Message};
use tokio::sync::oneshot;

use super::numbers;
use super::sides::{Side, Sides};
use crate::forward::NodeRouter;
use crate::host::{Cell, CellState, Host, PoolRoutes, Routes, Waiter};

/// Answers to one batch of so many bytes are enough: what is left is not done, and asked for again. They all
/// lie in memory at once, here and at the asker, and are one message.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// The memory for answers is taken in steps of so many bytes.
const STEP_BYTES: usize = 1 << 20;
/// The part of a client's batch that is passed on takes so much memory, and is answered by as many bytes; of each node at least one value comes,
/// however large.
const PASSED_BYTES: usize = 4 << 20;

/// The receiver of a batch's answers.
pub(crate) enum Asker {
    /// Another process.
    Wire(Reply),
    /// This node's own router.
    Here(oneshot::Sender<ServiceAnswers>),
}

impl Asker {
    /// True if it is a client: it waits while the memory for requests is taken. What nodes ask for clients counts where the client
    /// is.
    fn is_client(&self) -> bool {
        matches!(self, Asker::Wire(reply) if reply.is_of_client())
    }

    /// It waits for memory. True if that is in vain, for its connection has ended.
    fn waits(&mut self) -> bool {
        match self {
            Asker::Wire(reply) => {
                reply.mark_costly();
                reply.is_gone()
            }
            Asker::Here(_) => false,
        }
    }

    /// Most bytes of a batch's answers, of which its asker wants so many, and those of them that are its already.
    fn answer_bytes_max(&self, part: &mut InFlightPart, wanted: u32) -> (usize, usize) {
        let max = match wanted {
            0 => ANSWER_BYTES_MAX,
            _ if planted(Mutant::AnswersBeyondBound) => ANSWER_BYTES_MAX,
            wanted => ANSWER_BYTES_MAX.min(wanted as usize),
        };
        let taken = match self {
            Asker::Wire(_) => part.set_up_to(max.min(STEP_BYTES)),
            Asker::Here(_) => max,
        };
        (max, taken)
    }
}

/// A batch on its way to its answers.
pub(crate) struct Batch {
    /// The host has the buckets, at which batches wait.
    host: Weak<Host>,
    /// None if there is no such pool.
    pool: Option<PoolId>,
    asked_by: Revision,
    addresses: Vec<Address>,
    /// An operation was refused after it had waited: later ones of its bucket must not overtake it.
    disturbed: AtomicBool,
    state: Mutex<BatchState>,
}

struct BatchState {
    answers: Vec<Option<Answer>>,
    /// Answers still to come, and one for the task that hands the operations in.
    missing: usize,
    moved: Vec<Arc<Group>>,
    /// As another node sent it.
    draw_above: u64,
    asker: Option<Asker>,
    /// Bytes of the values that have come, and those that are expected in all; their memory until the answers have left.
    value_bytes: usize,
    expected_bytes: usize,
    part: InFlightPart,
}

impl BatchState {
    /// The memory that it needs.
    fn bytes(&self) -> usize {
        self.value_bytes.max(self.expected_bytes)
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("ops", &self.addresses.len())
            .finish_non_exhaustive()
    }
}

impl Batch {
    fn new(
        host: &Arc<Host>,
        pool: Option<PoolId>,
        request: &ServiceRequest,
        asker: Asker,
        (part, expected_bytes): (InFlightPart, usize),
    ) -> Batch {
        let count = request.ops.len();
        Batch {
            host: Arc::downgrade(host),
            pool,
            asked_by: request.revision,
            addresses: request.ops.iter().map(|op| op.to).collect(),
            disturbed: AtomicBool::new(false),
            state: Mutex::new(BatchState {
                answers: vec![None; count],
                missing: count + 1,
                moved: Vec::new(),
                draw_above: 0,
                asker: Some(asker),
                value_bytes: 0,
                expected_bytes,
                part,
            }),
        }
    }

    /// An operation's answer; true if it was the last.
    pub(crate) fn put(&self, index: usize, answer: Answer) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Some(place) = state.answers.get_mut(index)
            && place.is_none()
        {
            state.value_bytes += answer.value_bytes();
            *place = Some(answer);
            state.missing -= 1;
            state.part.set(state.bytes());
        }
        state.missing == 0
    }

    /// The operations from this one on are not begun, and get no answers.
    fn end_before(&self, index: usize) {
        let mut state = self.state.lock();
        state.missing -= state.answers.len() - index;
        state.answers.truncate(index);
    }

    /// Takes memory for so many bytes of answers in all, as far as there is any. Those that it has.
    fn take_up_to(&self, bytes: usize) -> usize {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let taken = state.part.set_up_to(bytes);
        state.expected_bytes = state.expected_bytes.max(taken);
        taken
    }

    /// Takes memory for one more value of so many bytes, if there is any.
    fn has_room_for(&self, value_bytes: usize) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let bytes = state.expected_bytes.max(state.value_bytes + value_bytes);
        state.part.try_set(bytes)
    }

    /// Of the memory that it took, no more than so much is needed.
    fn expects(&self, bytes: usize) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.expected_bytes = state.expected_bytes.min(bytes);
        state.part.set(state.bytes());
    }

    /// Waits for memory for so many bytes more than it has, a short time. True if it got it.
    async fn room(&self, in_flight: &InFlight, bytes: usize, deadline: Instant) -> bool {
        loop {
            {
                let mut guard = self.state.lock();
                let state = &mut *guard;
                if state.part.try_set(state.bytes() + bytes) {
                    state.expected_bytes = state.bytes() + bytes;
                    return true;
                }
                let in_vain = state.asker.as_mut().is_none_or(Asker::waits);
                if in_vain || state.part.is_refused() || Instant::now() >= deadline {
                    return false;
                }
            }
            in_flight.room().await;
        }
    }

    /// Nothing of it was done, and nobody answered: its asker and its memory, to begin it again later.
    fn take_back(&self) -> Option<(Asker, InFlightPart)> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let nothing = InFlightPart::new(self.host.upgrade()?.options().in_flight.clone());
        let asker = state.asker.take()?;
        let mut part = std::mem::replace(&mut state.part, nothing);
        // Who waits holds nothing of what others wait for.
        part.set(0);
        Some((asker, part))
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
        // A node that ends answers nobody.
        let Some(host) = self.host.upgrade() else {
            return;
        };
        let routes = host.routes();
        moved.extend(self.moved(&routes, &answers));
        let draw_above = draw_above.max(self.draw_above(&routes, &answers));
        let answers = ServiceAnswers {
            revision: routes.map.revision,
            answers,
            moved,
            draw_above,
        };
        match asker {
            Asker::Wire(reply) => reply.send(&Message::ServiceAnswers(answers)),
            // The asker may have given up.
            Asker::Here(reply) => drop(reply.send(answers)),
        }
        // By now they count where they wait to be written, or are the asker's.
        self.state.lock().part.set(0);
    }

    /// The addresses of operations that were answered with one of these errors, each once.
    fn answered_with<'a>(
        &'a self,
        answers: &'a [Answer],
        codes: &'a [ErrorCode],
    ) -> BTreeSet<Address> {
        let is_so = |(answer, _): &(&Answer, &Address)| matches!(answer, Answer::Error(code, _) if codes.contains(code));
        let of = answers.iter().zip(&self.addresses).filter(is_so);
        of.map(|(_, to)| *to).collect()
    }

    /// The number that a new request must lie above, by the buckets that took one for forgotten.
    fn draw_above(&self, routes: &Routes, answers: &[Answer]) -> u64 {
        let forgotten = self.answered_with(answers, &[ErrorCode::Forgotten]);
        let groups = forgotten
            .into_iter()
            .filter_map(|to| self.group(routes, to));
        let cells = groups.flat_map(|group| routes.cells_of(group.id));
        let marks =
            cells.filter_map(|cell| Some(cell.lock().bucket.as_ref()?.member().forgotten()));
        marks.max().unwrap_or(0)
    }

    /// The newest entries of the groups that the asker took us for wrongly (row D1).
    fn moved(&self, routes: &Routes, answers: &[Answer]) -> Vec<Arc<Group>> {
        let wrong = [ErrorCode::NotServing, ErrorCode::Unreachable];
        let wrong = self.answered_with(answers, &wrong).into_iter();
        let groups = wrong.filter_map(|to| self.group(routes, to));
        let news: BTreeMap<_, _> = groups
            .filter(|g| g.revision > self.asked_by)
            .map(|g| (g.id, g))
            .collect();
        news.into_values().map(|g| Arc::new(g.clone())).collect()
    }

    fn group<'a>(&self, routes: &'a Routes, to: Address) -> Option<&'a Group> {
        to.group(&routes.map, self.pool?)
    }
}

/// A batch to be served.
struct AskedBatch {
    request: ServiceRequest,
    deadline: Instant,
    pass_on: bool,
    asker: Asker,
    /// The memory for its answers, and what was short for the first of them.
    part: InFlightPart,
    short_bytes: usize,
}

/// Serves a batch: what is for this node's buckets there, the rest by one more node if `pass_on`. The
/// asker is answered now or later.
pub(crate) fn serve(
    host: &Arc<Host>,
    request: ServiceRequest,
    deadline: Instant,
    pass_on: bool,
    asker: Asker,
) {
    let asked = AskedBatch {
        request,
        deadline,
        pass_on,
        asker,
        part: InFlightPart::new(host.options().in_flight.clone()),
        short_bytes: 0,
    };
    if let Some(asked) = begin(host, asked, false) {
        tokio::spawn(begin_later(host.clone(), asked));
    }
}

/// Serves a batch once there is memory for its first answer, or says after a short time that there is none.
async fn begin_later(host: Arc<Host>, mut asked: AskedBatch) {
    loop {
        if asked.asker.waits() {
            return;
        }
        host.options().in_flight.room().await;
        let last = asked.part.is_refused() || Instant::now() >= asked.deadline;
        if last || asked.part.try_set(asked.short_bytes) {
            match begin(&host, asked, last) {
                Some(again) => asked = again,
                None => return,
            }
        }
    }
}

/// Gives the batch back, of which nothing was done, if there is no memory for its first answer. The `last` time it is refused.
fn begin(host: &Arc<Host>, asked: AskedBatch, last: bool) -> Option<AskedBatch> {
    let AskedBatch {
        request,
        deadline,
        pass_on,
        asker,
        mut part,
        ..
    } = asked;
    let (routes, is_client) = (host.routes(), asker.is_client());
    let pool = routes.pool(request.service, &request.pool);
    let id = pool.map(|pool| pool.id);
    let (answer_bytes_max, taken_bytes) =
        asker.answer_bytes_max(&mut part, request.answer_bytes_max);
    let batch = Batch::new(host, id, &request, asker, (part, taken_bytes));
    let batch = Arc::new(batch);
    let mut hand = Hand {
        host,
        batch: &batch,
        request: &request,
        now: host.clock.now(),
        deadline: host.clock.at(deadline),
        sides: Sides::default(),
        answer_bytes: 0,
        answer_bytes_max,
        taken_bytes,
        is_client,
        short_bytes: 0,
        touched: Vec::new(),
    };
    let mut elsewhere = Vec::new();
    for (index, op) in request.ops.iter().enumerate() {
        if request.answer_bytes_max > 0 && hand.is_full() {
            batch.end_before(index);
            break;
        }
        let cell = match pool {
            Some(pool) => cell_of(&routes, pool, &request, op),
            None => Err(no_such_pool(&routes, &request)),
        };
        let side = match cell {
            Ok(cell) => hand.submit(&routes, cell, index, op),
            Err(answer) => {
                batch.put(index, answer);
                continue;
            }
        };
        if index == 0 && !last && hand.short_bytes > 0 {
            let short_bytes = hand.short_bytes;
            let (asker, part) = batch.take_back()?;
            return Some(AskedBatch {
                request,
                deadline,
                pass_on,
                asker,
                part,
                short_bytes,
            });
        }
        match side {
            Side::Here => {}
            Side::Refused(refused) => drop(batch.put(index, batch.refuse(refused))),
            Side::Elsewhere if pass_on => elsewhere.push(index),
            Side::Elsewhere => {
                batch.put(index, not_here(host, op.to));
            }
        }
    }
    hand.end();
    let bytes_left = hand.bytes_left();
    if !elsewhere.is_empty() {
        pass_some(
            host,
            &batch,
            request,
            elsewhere,
            (is_client, bytes_left),
            deadline,
        );
    }
    if batch.end_of_ops() {
        batch.finish();
    }
    None
}

/// Has the router do what other nodes have, once there is memory for it.
fn pass_some(
    host: &Arc<Host>,
    batch: &Arc<Batch>,
    request: ServiceRequest,
    elsewhere: Vec<usize>,
    (is_client, bytes_left): (bool, usize),
    deadline: Instant,
) {
    let (host, batch) = (host.clone(), batch.clone());
    let bytes_max = match is_client {
        true => bytes_left.min(PASSED_BYTES),
        false => bytes_left,
    };
    let request = ServiceRequest {
        answer_bytes_max: bytes_max.max(1) as u32,
        ..request
    };
    tokio::spawn(async move {
        let in_flight = &host.options().in_flight;
        if !is_client || batch.room(in_flight, PASSED_BYTES, deadline).await {
            return pass(host.router().clone(), batch, request, elsewhere, deadline).await;
        }
        let refuse = |last, index| batch.put(index, no_room(in_flight)) || last;
        if elsewhere.into_iter().fold(false, refuse) {
            batch.finish();
        }
    });
}

fn no_room(in_flight: &InFlight) -> Answer {
    Answer::error(ErrorCode::Busy, in_flight.refusal())
}

/// The same for this node's own router, which has passed it on already.
pub(crate) async fn serve_and_wait(
    host: &Arc<Host>,
    request: ServiceRequest,
    deadline: Instant,
) -> ServiceAnswers {
    let (count, revision) = (request.ops.len(), request.revision);
    let (asker, answers) = oneshot::channel();
    serve(host, request, deadline, false, Asker::Here(asker));
    let late = |text: &str| ServiceAnswers {
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

/// The reason why a pool takes no operations of a service.
pub(super) fn no_pool(map: &ClusterMap, service: ServiceId, pool: &PoolRef) -> String {
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
        Some(known) => format!(": it holds {}", known.kind.row().holds),
        None => "; 'staves pool list' shows those there are".to_owned(),
    };
    format!("there is no {} pool '{name}'{then}", service.word())
}

fn not_here(host: &Host, to: Address) -> Answer {
    let me = host.life.node;
    let text = format!("node {me} does not answer for {to}; ask the node that the newer map names");
    Answer::error(ErrorCode::NotServing, text)
}

fn no_such_pool(routes: &Routes, request: &ServiceRequest) -> Answer {
    match request.revision > routes.map.revision {
        true => Answer::error(
            ErrorCode::NotServing,
            "the pool is not known to this node yet",
        ),
        false => {
            let text = no_pool(&routes.map, request.service, &request.pool);
            Answer::error(ErrorCode::NotFound, text)
        }
    }
}

/// The cell of an operation's data bucket; of the node's two, the one that answers for it.
fn cell_of<'a>(
    routes: &'a Routes,
    pool: &'a PoolRoutes,
    request: &ServiceRequest,
    op: &NumberedOp,
) -> Result<&'a Arc<Cell>, Answer> {
    let to = op.to;
    let (group, slot) = match to {
        Address::Slot(slot) => {
            let cell = pool.cells.get(pool.bucket_of(slot) as usize);
            let none = || Answer::error(ErrorCode::Malformed, format!("the pool has no {to}"));
            return cell.ok_or_else(none);
        }
        Address::Bucket(group, slot) => (group, slot),
    };
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
    let entry = routes.map.groups.get(&group);
    if !entry.is_some_and(|entry| entry.pool == pool.id && slot.0 < entry.m) {
        let text = format!("the pool has no {to}");
        return Err(Answer::error(ErrorCode::Malformed, text));
    }
    if routes.is_empty(group) && writes_bytes(op) {
        let text = "it was not done: the map says that nothing was ever written to this part of the region, so it has to \
                    be marked as written first";
        return Err(Answer::error(ErrorCode::NotServing, text));
    }
    let shadow = cells.next().filter(|_| !home.lock().answers_for(slot));
    let shadow = shadow.filter(|cell| cell.lock().answers_for(slot));
    Ok(shadow.unwrap_or(home))
}

/// True if an operation may change bytes of a region.
fn writes_bytes(op: &NumberedOp) -> bool {
    Action::from_body(&op.body).is_ok_and(|action| action.is_write())
}

/// True if an operation changes nothing, as far as that is known of its service.
fn is_read(service: ServiceId, op: &NumberedOp) -> bool {
    match service {
        ServiceId::CACHE => Op::from_body(&op.body).is_ok_and(|op| !op.is_write()),
        ServiceId::MEMORY => Action::from_body(&op.body).is_ok_and(|action| !action.is_write()),
        _ => false,
    }
}

/// Hands operations to this node's buckets.
struct Hand<'a> {
    host: &'a Arc<Host>,
    batch: &'a Arc<Batch>,
    request: &'a ServiceRequest,
    now: Time,
    deadline: Time,
    sides: Sides,
    /// Of the answers so far, those included that are still to come.
    answer_bytes: usize,
    answer_bytes_max: usize,
    /// Those for which there is memory.
    taken_bytes: usize,
    is_client: bool,
    /// Bytes of a value that was read and let go: there is no memory for it.
    short_bytes: usize,
    touched: Vec<Arc<Cell>>,
}

impl Hand<'_> {
    /// The operations are handed in: what they made goes to the copies.
    fn end(&mut self) {
        self.batch.expects(self.answer_bytes);
        if !self.touched.is_empty() {
            let (host, now) = (self.host, self.now);
            self.touched.iter().for_each(|cell| cell.flush(host, now));
            host.peers.flush();
        }
    }

    fn bytes_left(&self) -> usize {
        self.answer_bytes_max.saturating_sub(self.answer_bytes)
    }

    /// True if the answers have as many bytes as go at once.
    fn is_full(&mut self) -> bool {
        if self.answer_bytes >= self.taken_bytes && self.taken_bytes < self.answer_bytes_max {
            let wanted = self.answer_bytes_max.min(self.answer_bytes + STEP_BYTES);
            self.taken_bytes = self.batch.take_up_to(wanted);
        }
        self.short_bytes > 0 || self.answer_bytes >= self.taken_bytes
    }

    /// Hands an operation to a bucket, if it is this node's to answer for. Its answer is noted in the batch then,
    /// now or later.
    fn submit(&mut self, routes: &Routes, cell: &Arc<Cell>, index: usize, op: &NumberedOp) -> Side {
        let (host, ordered, slot) = (self.host, op.to.keeps_order(), op.to.slot());
        let mut state = cell.lock();
        let is_here = || state.answers_for(slot) || host.is_to_answer(routes, cell, slot, &state);
        let side = match ordered {
            true => self.sides.of(cell.group, is_here),
            false if is_here() => Side::Here,
            false => Side::Elsewhere,
        };
        if side != Side::Here {
            return side;
        }
        if self.is_full() {
            if ordered {
                self.sides.refuse(cell.group, Refused::Busy);
            }
            let text = "it was not done: the answers before it are as many bytes as go at once";
            self.batch.put(index, Answer::error(ErrorCode::Busy, text));
            return Side::Here;
        }
        let mut wants_flush = false;
        let in_flight = &host.options().in_flight;
        state.lend(in_flight);
        let submitted = self.submit_here(&mut state, index, op, &mut wants_flush);
        state.count_waiting(in_flight);
        drop(state);
        if wants_flush {
            self.touched.push(cell.clone());
        }
        match submitted {
            Ok(Some(answer)) if self.is_too_much(op, &answer) => {
                self.short_bytes = answer.value_bytes();
                if ordered {
                    self.sides.refuse(cell.group, Refused::Busy);
                }
                self.batch.put(index, no_room(in_flight));
            }
            Ok(Some(answer)) => drop(self.batch.put(index, answer)),
            Ok(None) => {}
            Err(refused) => {
                if ordered {
                    self.sides.refuse(cell.group, refused);
                }
                let answer = Answer::error(refused.code(), refused.to_string());
                self.batch.put(index, answer);
            }
        }
        Side::Here
    }

    /// True if there is no memory for a value that a client has read. What it has taken out by a write is answered in any case.
    fn is_too_much(&self, op: &NumberedOp, answer: &Answer) -> bool {
        let bytes = answer.value_bytes();
        let large = self.is_client && bytes > FREE_BYTES;
        large && is_read(self.request.service, op) && !self.batch.has_room_for(bytes)
    }

    fn submit_here(
        &mut self,
        state: &mut CellState,
        index: usize,
        op: &NumberedOp,
        wants_flush: &mut bool,
    ) -> Result<Option<Answer>, Refused> {
        let (batch, request) = (self.batch, self.request);
        let named = op.number > 0 && request.client != ClientId(0);
        let name = named.then_some(RequestId {
            client: request.client,
            number: op.number,
            floor: request.floor,
        });
        let member = state.bucket.as_ref().map(|bucket| bucket.member());
        let too_high = member
            .zip(name)
            .and_then(|(member, name)| numbers::refuse(member, &name, request.retry));
        if let Some(answer) = too_high {
            return Ok(Some(answer));
        }
        // What waits for its bucket's earlier operations is not done before them.
        let disturbed = batch.disturbed.load(Ordering::Acquire);
        if op.to.keeps_order() && disturbed && !planted(Mutant::BatchOvertakes) {
            return Err(Refused::NotServing);
        }
        let waiter = || Waiter::Batch {
            batch: batch.clone(),
            index: index as u32,
        };
        let (now, deadline) = (self.now, self.deadline);
        let (submitted, answer_bytes) =
            state.submit_body(now, name, deadline, op, waiter, wants_flush);
        self.answer_bytes += answer_bytes;
        submitted
    }
}

/// Passes operations on with their client's own numbers: once, and a second time those for which the
/// answer brought a newer map.
async fn pass(
    router: NodeRouter,
    batch: Arc<Batch>,
    request: ServiceRequest,
    mut elsewhere: Vec<usize>,
    deadline: Instant,
) {
    let mut last = false;
    for turn in 0..2 {
        let map = router.map();
        let ops = elsewhere.iter().map(|index| request.ops[*index].clone());
        let again = request.with_ops(ops.collect());
        let answers = router.forward(again, deadline).await;
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

#[cfg(test)]
mod tests;
