//! Routing: operations go, in one batch per node, to the nodes that answer for them, and again, with
//! the same numbers, until each has its answer or the deadline has passed.

mod memory;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use staves_model::{ClientId, ClusterMap, Group, HashSlot, Node, NodeId, PoolId, Revision};
use staves_net::NetError;
use staves_wire::cache::{Answer, CacheAnswers, CacheOp, CacheRequest, OwnedOp, PoolRef};
use staves_wire::directory::Evidence;
use staves_wire::{ErrorCode, Message};
use tokio::task::JoinSet;

use crate::error::ClientError;
use crate::numbers::{Numbers, Windows};
use crate::options::RouterOptions;
use crate::route::{Avoid, Target, newest, pool_of, target, with_moved};

/// How many times the writes of one turn are given higher numbers.
const REDRAWS_MAX: u32 = 4;
/// A node that could not be asked is passed over for this long.
const AVOIDED: Duration = Duration::from_millis(100);

/// What carries a router's requests: a client's own connections, or a node's links (and, for the node
/// itself, its own buckets).
pub trait Transport: Send + Sync + 'static {
    /// The node that asks, if it is one: no request takes the detour over itself.
    fn me(&self) -> Option<NodeId> {
        None
    }

    /// Asks one node.
    fn call(
        &self,
        node: &Node,
        request: Message,
        deadline: Instant,
    ) -> impl Future<Output = Result<Message, NetError>> + Send;

    /// A map newer than this one, from wherever maps come from. `None` if there is none yet: it MUST
    /// return by the deadline, and SHOULD return soon.
    fn newer_map(
        &self,
        known: &Arc<ClusterMap>,
        deadline: Instant,
    ) -> impl Future<Output = Option<Arc<ClusterMap>>> + Send;

    /// An answer said that there is a newer map than the one at hand. Not waited for.
    fn behind(&self, _router: &Router<Self>, _newest: Revision)
    where
        Self: Sized,
    {
    }

    /// A request to a node failed in a way that says something of the node's life (row D5).
    fn seen(&self, _map: &ClusterMap, _evidence: Evidence) {}
}

/// Routes operations by a map that it keeps the newest of all that it hears. Clones are the same router.
pub struct Router<T> {
    inner: Arc<Inner<T>>,
}

impl<T> Clone for Router<T> {
    fn clone(&self) -> Router<T> {
        Router {
            inner: self.inner.clone(),
        }
    }
}

struct Inner<T> {
    transport: T,
    options: RouterOptions,
    map: RwLock<Arc<ClusterMap>>,
    numbers: Numbers,
    /// Nodes that could not be asked, and until when they are passed over.
    avoid: Mutex<BTreeMap<NodeId, Instant>>,
}

/// An operation that has no answer yet.
struct Todo {
    index: usize,
    /// It was sent, and may have been done.
    tried: bool,
    op: CacheOp,
    /// Where its number counts, if it is a write of our own.
    windows: Windows,
    /// Why it has no answer yet.
    trouble: Option<(ErrorCode, String)>,
}

impl Todo {
    /// It found a bound reached, and was not done.
    fn found_busy(&self) -> bool {
        matches!(self.trouble, Some((ErrorCode::Busy, _)))
    }

    /// A write that cannot have been done under its number yet.
    fn is_new(&self) -> bool {
        self.op.number > 0 && !self.tried
    }
}

fn is_forgotten(answer: &Answer) -> bool {
    matches!(answer, Answer::Error(ErrorCode::Forgotten, _))
}

/// What became of one batch.
struct Outcome {
    todo: Vec<Todo>,
    result: Result<CacheAnswers, NetError>,
}

impl<T: Transport> Router<T> {
    /// A router for one life of a client: `client` must never have been used before.
    pub fn new(
        transport: T,
        client: ClientId,
        map: Arc<ClusterMap>,
        options: RouterOptions,
    ) -> Router<T> {
        let numbers = Numbers::new(client, options.window);
        let (map, avoid) = (RwLock::new(map), Mutex::default());
        let inner = Inner {
            transport,
            options,
            map,
            numbers,
            avoid,
        };
        Router {
            inner: Arc::new(inner),
        }
    }

    /// What carries its requests.
    pub fn transport(&self) -> &T {
        &self.inner.transport
    }

    /// The map that it routes by.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.inner.map.read().clone()
    }

    /// Hears of a map; keeps it if it is newer.
    pub fn set_map(&self, heard: Arc<ClusterMap>) {
        let mut map = self.inner.map.write();
        if heard.revision > map.revision {
            *map = newest(&map, heard);
            // Who was away may be back; the map knows better than we.
            self.inner.avoid.lock().clear();
        }
    }

    /// Does operations on any keys, in one batch per node (row X6). Each is atomic by itself. The answers
    /// come in the order of the operations; one that could not be had is an `Answer::Error`, whose code
    /// says whether the operation may have been done ([`ErrorCode::nothing_done`]).
    pub async fn execute(
        &self,
        pool: &PoolRef,
        ops: Vec<OwnedOp>,
        deadline: Instant,
    ) -> Result<Vec<Answer>, ClientError> {
        let mut answers = Vec::with_capacity(ops.len());
        let mut ops = ops.into_iter().peekable();
        while ops.peek().is_some() {
            let mut turn = Vec::new();
            let mut bytes = 0;
            while let Some(op) = ops.next_if(|op| self.has_room(turn.len(), bytes, op)) {
                bytes += weight(&op);
                turn.push(op);
            }
            answers.extend(self.turn(pool, turn, deadline).await?);
        }
        Ok(answers)
    }

    fn has_room(&self, ops: usize, bytes: usize, next: &OwnedOp) -> bool {
        let options = &self.inner.options;
        // Half a window, so that two callers can be under way.
        let ops_max = options
            .batch_ops_max
            .min((options.window / 2) as usize)
            .max(1);
        ops == 0 || (ops < ops_max && bytes + weight(next) <= options.batch_bytes_max)
    }

    /// As many operations as go out at once.
    async fn turn(
        &self,
        pool: &PoolRef,
        ops: Vec<OwnedOp>,
        deadline: Instant,
    ) -> Result<Vec<Answer>, ClientError> {
        let count = ops.len();
        let slots: Vec<HashSlot> = ops.iter().map(|op| op.as_op().slot()).collect();
        let windows = self.windows(pool, &ops, &slots);
        let writes = windows.iter().copied().filter(|w| *w != Windows::NONE);
        let taken = self.inner.numbers.take(writes);
        let Ok(taken) = tokio::time::timeout_at(deadline.into(), taken).await else {
            let text = "too many writes are waiting for their answers already";
            return Ok(vec![Answer::error(ErrorCode::Busy, text); count]);
        };
        let mut numbers = taken.iter();
        let todo = ops.into_iter().enumerate().map(|(index, op)| {
            let (slot, windows) = (slots[index], windows[index]);
            let number = match windows {
                Windows::NONE => 0,
                _ => numbers.next().unwrap_or(0),
            };
            Todo {
                index,
                tried: false,
                op: CacheOp { number, slot, op },
                windows,
                trouble: None,
            }
        });
        let mut turn = Turn {
            router: self,
            pool,
            todo: todo.collect(),
            answers: vec![None; count],
            deadline,
            looked: false,
            too_low: Vec::new(),
            draw_above: 0,
        };
        let mut taken = taken;
        for redraw in 0.. {
            turn.run().await?;
            turn.give_up_overtaken(&slots);
            let again = !turn.too_low.is_empty();
            if !again || redraw == REDRAWS_MAX || Instant::now() >= deadline {
                break;
            }
            self.inner.numbers.draw_above(turn.draw_above);
            // Whatever had the numbers so far has its answer, or was not done.
            drop(taken);
            let more = turn.too_low.iter().map(|todo| todo.windows);
            let more = self.inner.numbers.take(more);
            let Ok(more) = tokio::time::timeout_at(deadline.into(), more).await else {
                break;
            };
            taken = more;
            turn.number_again(taken.iter());
        }
        Ok(turn.finish())
    }

    /// In which windows the number of each operation counts: none, if it is no write.
    fn windows(&self, pool: &PoolRef, ops: &[OwnedOp], slots: &[HashSlot]) -> Vec<Windows> {
        let map = self.map();
        let pool = pool_of(&map, pool).ok();
        let of = |(op, slot): (&OwnedOp, &HashSlot)| match op.as_op().is_write() {
            false => Windows::NONE,
            true => pool
                .and_then(|pool| map.group_of(pool, *slot))
                .map_or(Windows::ALL, |group| Windows::of(group.id)),
        };
        ops.iter().zip(slots).map(of).collect()
    }

    /// Passes another client's request on to the nodes that answer for it: once, with the client's own
    /// numbers. What cannot be passed on is answered so that the client tries again.
    pub async fn forward(&self, request: CacheRequest, deadline: Instant) -> CacheAnswers {
        let count = request.ops.len();
        let mut answers = vec![None; count];
        let mut moved = Vec::new();
        let map = self.map();
        let pool = match pool_of(&map, &request.pool) {
            Ok(pool) => pool,
            Err(error) => {
                let answer = Answer::error(error.code(), error.to_string());
                return CacheAnswers {
                    revision: map.revision,
                    answers: vec![answer; count],
                    moved,
                    draw_above: 0,
                };
            }
        };
        let mut draw_above = 0;
        let head = Head {
            pool,
            client: request.client,
            floor: Some(request.floor),
            retry: request.retry,
            forwarded: true,
        };
        let todo = request.ops.into_iter().enumerate();
        let todo = todo
            .map(|(index, op)| Todo {
                index,
                tried: false,
                op,
                windows: Windows::NONE,
                trouble: None,
            })
            .collect();
        let (batches, rest) = plan(&map, pool, todo, &Avoid::default());
        for (todo, answer) in rest {
            answers[todo.index] = Some(answer);
        }
        for outcome in self.round(&map, &head, batches, deadline).await {
            match outcome.result {
                Ok(theirs) => {
                    self.hear(&map, &theirs);
                    moved.extend(theirs.moved);
                    draw_above = draw_above.max(theirs.draw_above);
                    for (todo, answer) in outcome.todo.into_iter().zip(theirs.answers) {
                        answers[todo.index] = Some(answer);
                    }
                }
                Err(error) => {
                    for todo in outcome.todo {
                        let code = forward_code(&error);
                        answers[todo.index] = Some(Answer::error(code, error.to_string()));
                    }
                }
            }
        }
        let unanswered = || Answer::error(ErrorCode::Internal, "no answer came for the operation");
        let answers = answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(unanswered));
        CacheAnswers {
            revision: self.map().revision,
            answers: answers.collect(),
            moved,
            draw_above,
        }
    }

    /// Sends every batch and waits for what becomes of each.
    async fn round(
        &self,
        map: &Arc<ClusterMap>,
        head: &Head,
        mut batches: BTreeMap<NodeId, Vec<Todo>>,
        deadline: Instant,
    ) -> Vec<Outcome> {
        if batches.len() == 1
            && let Some((node, todo)) = batches.pop_first()
        {
            // The common case needs no task.
            return vec![self.batch(map.clone(), *head, node, todo, deadline).await];
        }
        let mut tasks = JoinSet::new();
        for (node, todo) in batches {
            let (router, map, head) = (self.clone(), map.clone(), *head);
            tasks.spawn(async move { router.batch(map, head, node, todo, deadline).await });
        }
        tasks.join_all().await
    }

    async fn batch(
        &self,
        map: Arc<ClusterMap>,
        head: Head,
        node: NodeId,
        todo: Vec<Todo>,
        deadline: Instant,
    ) -> Outcome {
        let bytes: usize = todo.iter().map(|todo| weight(&todo.op.op)).sum();
        // 32 MB a second is slow; slower is not waited for.
        let transfer = Duration::from_micros(bytes as u64 / 32);
        let deadline = deadline.min(Instant::now() + self.inner.options.try_max + transfer);
        let request = Message::Cache(CacheRequest {
            revision: map.revision,
            pool: PoolRef::Id(head.pool),
            client: head.client,
            floor: head.floor.unwrap_or_else(|| {
                let windows = todo.iter().map(|todo| todo.windows);
                let windows = windows.fold(Windows::NONE, Windows::and);
                self.inner.numbers.floor(windows)
            }),
            retry: head.retry || todo.iter().any(|todo| todo.tried),
            forwarded: head.forwarded,
            ops: todo.iter().map(|todo| todo.op.clone()).collect(),
        });
        let result = match map.nodes.get(&node) {
            Some(to) => self.inner.transport.call(to, request, deadline).await,
            None => Err(NetError::NoAddress { node }),
        };
        let result = result.and_then(|answer| check(answer, node, todo.len()));
        self.note(node, result.as_ref().err());
        if let Err(error) = &result
            && let Some(sign) = error.sign()
            && let Some(to) = map.nodes.get(&node)
        {
            let evidence = Evidence {
                node,
                incarnation: to.incarnation,
                sign,
            };
            self.inner.transport.seen(&map, evidence);
        }
        Outcome { todo, result }
    }

    /// Remembers who could not be asked, so that others do not find it out anew (row D1).
    fn note(&self, node: NodeId, error: Option<&NetError>) {
        let mut avoid = self.inner.avoid.lock();
        match error {
            None => {
                avoid.remove(&node);
            }
            Some(error) if cannot_be_asked(error) => {
                // To find out that a node is silent is dear, that it refuses is cheap.
                let silent = matches!(error, NetError::Deadline { .. });
                let time = if silent {
                    2 * self.inner.options.try_max
                } else {
                    AVOIDED
                };
                avoid.insert(node, Instant::now() + time);
            }
            Some(_) => {}
        }
    }

    fn avoided(&self) -> Avoid {
        let mut avoid = self.inner.avoid.lock();
        if avoid.is_empty() {
            return Avoid::default();
        }
        let now = Instant::now();
        avoid.retain(|_, until| *until > now);
        Avoid {
            nodes: avoid.keys().copied().collect(),
            me: self.inner.transport.me(),
        }
    }

    /// Learns what an answer says about the map (row D1: the same mistake is not made twice).
    fn hear(&self, routed_by: &ClusterMap, answers: &CacheAnswers) {
        self.hear_of(routed_by, answers.revision, &answers.moved);
    }

    fn hear_of(&self, routed_by: &ClusterMap, newest: Revision, moved: &[Arc<Group>]) {
        if !moved.is_empty() {
            let mut map = self.inner.map.write();
            if let Some(newer) = with_moved(&map, moved) {
                *map = newer;
            }
        }
        if newest > routed_by.revision && newest > self.map().revision {
            self.inner.transport.behind(self, newest);
        }
    }
}

/// What all batches of a round say alike.
#[derive(Clone, Copy)]
struct Head {
    pool: PoolId,
    client: ClientId,
    /// As another client said it; our own is that of the windows that a batch's writes count in.
    floor: Option<u64>,
    retry: bool,
    forwarded: bool,
}

/// One turn of operations on its way to the answers.
struct Turn<'a, T> {
    router: &'a Router<T>,
    pool: &'a PoolRef,
    todo: Vec<Todo>,
    answers: Vec<Option<Answer>>,
    deadline: Instant,
    /// A newer map was looked for.
    looked: bool,
    /// Writes that no bucket has done, and that want numbers above `draw_above`.
    too_low: Vec<Todo>,
    draw_above: u64,
}

impl<T: Transport> Turn<'_, T> {
    async fn run(&mut self) -> Result<(), ClientError> {
        let options = &self.router.inner.options;
        let mut wait = options.backoff_min;
        loop {
            let map = self.router.map();
            let before = self.todo.len();
            match pool_of(&map, self.pool) {
                Ok(pool) => self.attempt(&map, pool).await,
                // Perhaps it was just made; look once at a newer map.
                Err(_) if !self.looked => {}
                Err(error) => return Err(error),
            }
            // A try that begins with next to no time left would only make it uncertain whether
            // anything was done.
            if self.todo.is_empty() || Instant::now() + wait >= self.deadline {
                return Ok(());
            }
            if self.todo.len() < before && self.todo.iter().all(Todo::found_busy) {
                // As much was done as goes at once: no newer map is wanted, nor a longer wait.
                wait = options.backoff_min;
            } else {
                self.look_for_newer(&map).await;
                self.looked = true;
            }
            if Arc::ptr_eq(&map, &self.router.map()) {
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(options.backoff_max);
            } else {
                wait = options.backoff_min;
            }
            if Instant::now() + options.backoff_min >= self.deadline {
                return Ok(());
            }
        }
    }

    async fn look_for_newer(&self, map: &Arc<ClusterMap>) {
        if !Arc::ptr_eq(map, &self.router.map()) {
            return; // an answer brought something already
        }
        let inner = &self.router.inner;
        if let Some(newer) = inner.transport.newer_map(map, self.deadline).await {
            self.router.set_map(newer);
        }
    }

    /// Sends what is to do, once, and settles what came of it.
    async fn attempt(&mut self, map: &Arc<ClusterMap>, pool: PoolId) {
        let numbers = &self.router.inner.numbers;
        let head = Head {
            pool,
            client: numbers.client(),
            floor: None,
            retry: false,
            forwarded: false,
        };
        let avoid = self.router.avoided();
        let (batches, rest) = plan(map, pool, std::mem::take(&mut self.todo), &avoid);
        if !rest.is_empty() {
            // Whoever was passed over is asked again: nobody else is left.
            self.router.inner.avoid.lock().clear();
        }
        for (mut todo, answer) in rest {
            match answer {
                // The map at hand may be an old one, which nobody is asked by that could tell.
                Answer::Error(ErrorCode::Lost, text) if !self.looked => {
                    todo.trouble = Some((ErrorCode::Lost, text));
                    self.todo.push(todo);
                }
                answer => self.settle(todo, answer),
            }
        }
        for outcome in self.router.round(map, &head, batches, self.deadline).await {
            match outcome.result {
                Ok(answers) => {
                    self.router.hear(map, &answers);
                    self.draw_above = self.draw_above.max(answers.draw_above);
                    // What is many bytes takes its time, and what comes behind it has to wait for it.
                    let bytes: usize = answers.answers.iter().map(value_bytes).sum();
                    self.deadline += Duration::from_micros(bytes as u64 / 8);
                    let says_how_far = answers.draw_above > 0;
                    for (todo, answer) in outcome.todo.into_iter().zip(answers.answers) {
                        if says_how_far && todo.is_new() && is_forgotten(&answer) {
                            self.too_low.push(todo);
                        } else {
                            self.settle(todo, answer);
                        }
                    }
                }
                Err(error) => self.failed(outcome.todo, &error),
            }
        }
    }

    fn failed(&mut self, todo: Vec<Todo>, error: &NetError) {
        let code = forward_code(error);
        for mut todo in todo {
            todo.tried |= !error.nothing_done();
            let code = match code {
                // Of others in its batch, too: a read is asked again.
                ErrorCode::AnswerGone if todo.op.number == 0 => ErrorCode::Unreachable,
                code => code,
            };
            self.settle(todo, Answer::error(code, error.to_string()));
        }
    }

    /// An answer, or a reason to ask again.
    fn settle(&mut self, mut todo: Todo, answer: Answer) {
        match answer {
            Answer::Error(code, text) if code.worth_retrying() || code == ErrorCode::Deadline => {
                todo.tried |= !code.nothing_done();
                todo.trouble = Some((code, text));
                self.todo.push(todo);
            }
            answer => {
                let tried = todo.tried && todo.op.number > 0;
                self.answers[todo.index] = Some(unless_tried(tried, answer));
            }
        }
    }

    /// A write is not done after one that was sent behind it, to the same hash slot, and has its answer.
    fn give_up_overtaken(&mut self, slots: &[HashSlot]) {
        let answers = &mut self.answers;
        self.too_low.retain(|todo| {
            let behind = answers.iter().zip(slots).skip(todo.index + 1);
            let overtaken = behind
                .filter(|(_, slot)| **slot == todo.op.slot)
                .any(|(answer, _)| answer.is_some());
            if overtaken {
                let text = "it was not done, for its number was too low, and a later operation of the batch was";
                answers[todo.index] = Some(Answer::error(ErrorCode::NotServing, text));
            }
            !overtaken
        });
        self.too_low.sort_by_key(|todo| todo.index);
    }

    /// Writes whose numbers were too low are to do again, as new ones.
    fn number_again(&mut self, numbers: impl Iterator<Item = u64>) {
        for (mut todo, number) in self.too_low.drain(..).zip(numbers) {
            todo.op.number = number;
            self.todo.push(todo);
        }
    }

    /// Time is up: what has no answer gets one that says why.
    fn finish(mut self) -> Vec<Answer> {
        for todo in self.too_low.drain(..) {
            let text = "it was not done: the bucket has forgotten clients with higher numbers than it had, \
                        and there was no time to ask again with another";
            self.answers[todo.index] = Some(Answer::error(ErrorCode::NotServing, text));
        }
        for todo in self.todo.drain(..) {
            let (code, text) = todo
                .trouble
                .unwrap_or((ErrorCode::Unreachable, "nobody to ask".into()));
            let answer = if todo.tried && todo.op.number > 0 {
                let text = format!(
                    "the deadline passed, and the write may or may not have been done: {text}"
                );
                Answer::error(ErrorCode::Deadline, text)
            } else {
                // Nothing was done, or it was a read: say what stood in the way.
                let code = if code.nothing_done() {
                    code
                } else {
                    ErrorCode::NotServing
                };
                Answer::error(code, format!("the deadline passed: {text}"))
            };
            self.answers[todo.index] = Some(answer);
        }
        let unanswered = || Answer::error(ErrorCode::Internal, "no answer came for the operation");
        self.answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(unanswered))
            .collect()
    }
}

/// Which operations go to which node; and what is answered for those that go nowhere.
#[allow(clippy::type_complexity)] // two lists, named where they are taken
fn plan(
    map: &ClusterMap,
    pool: PoolId,
    todo: Vec<Todo>,
    avoid: &Avoid,
) -> (BTreeMap<NodeId, Vec<Todo>>, Vec<(Todo, Answer)>) {
    let mut batches: BTreeMap<NodeId, Vec<Todo>> = BTreeMap::new();
    let mut rest = Vec::new();
    let mut targets: BTreeMap<HashSlot, Target> = BTreeMap::new();
    for todo in todo {
        let slot = todo.op.slot;
        let to = *targets
            .entry(slot)
            .or_insert_with(|| target(map, pool, slot, avoid));
        match to {
            Target::Node(node) => batches.entry(node).or_default().push(todo),
            Target::Wait => {
                let text = format!("nobody answers for hash slot {slot} at present");
                rest.push((todo, Answer::error(ErrorCode::NotServing, text)));
            }
            Target::Lost => {
                let text = format!(
                    "the bucket of hash slot {slot} is lost: more of its nodes failed than its scheme bears"
                );
                rest.push((todo, Answer::error(ErrorCode::Lost, text)));
            }
        }
    }
    (batches, rest)
}

/// What is the map's word and not the bucket's own tells nothing of a write that was sent before.
fn unless_tried(tried: bool, answer: Answer) -> Answer {
    match answer {
        Answer::Error(ErrorCode::Lost | ErrorCode::NotFound, text) if tried => {
            let text = format!("the write may or may not have been done: {text}");
            Answer::error(ErrorCode::Unreachable, text)
        }
        answer => answer,
    }
}

/// An answer of the right kind, with as many answers as there were operations.
fn check(answer: Message, node: NodeId, count: usize) -> Result<CacheAnswers, NetError> {
    match answer {
        Message::CacheAnswers(answers) if answers.answers.len() == count => Ok(answers),
        other => Err(NetError::Unexpected {
            addr: format!("node {node}"),
            what: "cache",
            got: other.opcode().word(),
        }),
    }
}

/// Whether the failure is the node's or the way's to it, so that another should be asked, and not the
/// request's.
fn cannot_be_asked(error: &NetError) -> bool {
    match error {
        NetError::Refused { packet, .. } => packet.code == ErrorCode::Stopping,
        NetError::TooLarge { .. } | NetError::Unexpected { .. } => false,
        // It is late, but well: whoever else is asked would ask it, too.
        NetError::Deadline { heard, .. } => !heard,
        _ => true,
    }
}

/// How a failed call looks to whoever waits for the operation: as sure as it is that nothing was done.
fn forward_code(error: &NetError) -> ErrorCode {
    match error.code() {
        code if error.nothing_done() == code.nothing_done() => code,
        _ if error.nothing_done() => ErrorCode::NotServing,
        _ => ErrorCode::Unreachable,
    }
}

fn value_bytes(answer: &Answer) -> usize {
    match answer {
        Answer::Value(value) => value.len(),
        _ => 0,
    }
}

fn weight(op: &OwnedOp) -> usize {
    let op = op.as_op();
    op.key().len() + op.value().map_or(0, <[u8]>::len) + 32
}
