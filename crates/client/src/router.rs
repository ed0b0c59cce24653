//! Routing: operations of any service go, in one batch per node, to the nodes that answer for them, and
//! again, with the same numbers, until each has its answer or the deadline has passed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use staves_model::{ClientId, ClusterMap, Group, Node, NodeId, Revision, ServiceId, Time};
use staves_net::NetError;
use staves_wire::directory::{Evidence, Sign};
use staves_wire::service::{Answer, PoolRef, ServiceAnswers, ServiceRequest};
use staves_wire::{ErrorCode, Message};
use tokio::task::JoinSet;

use crate::error::ClientError;
use crate::numbers::Numbers;
use crate::options::RouterOptions;
use crate::route::{Avoid, newest, owners, pool_of, with_moved};
use crate::turn::{
    BEHIND_BOUND, CallFailure, NodeBatch, RouterTurn, ServiceOp, Todo, TurnEvent, TurnStep,
    answered, plan, try_max,
};

/// A node that could not be asked is passed over for this long.
const AVOIDED: Duration = Duration::from_millis(100);

/// The carrier of a router's requests: a client's own connections, or a node's links (and, for the node
/// itself, its own buckets).
pub trait Transport: Send + Sync + 'static {
    /// The node that asks, if it is one: no request takes the detour over itself.
    fn me(&self) -> Option<NodeId> {
        None
    }

    /// Nodes that it is known not to reach at present, whatever became of requests to them.
    fn unreachable(&self) -> BTreeSet<NodeId> {
        BTreeSet::new()
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

/// Routes operations by the newest of all maps that it has received. Clones are the same router.
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
    /// Of nodes that were passed over, the tries in vain beside them.
    detours: Mutex<BTreeMap<NodeId, usize>>,
    /// The zero of the clock that turns go by.
    began: Instant,
}

/// The answers to the first of some operations.
#[derive(Clone, Debug)]
pub struct SomeAnswers {
    /// In the order of the operations; `None` for what was not begun.
    pub answers: Vec<Option<Answer>>,
    /// Bytes of the largest value that has more than all values together may have: it was not read. 0 if there is none.
    pub needs_bytes: usize,
}

impl SomeAnswers {
    /// The same error for all.
    pub fn all(code: ErrorCode, text: impl Into<String>, count: usize) -> SomeAnswers {
        SomeAnswers {
            answers: vec![Some(Answer::error(code, text)); count],
            needs_bytes: 0,
        }
    }
}

/// The outcome of a batch, by its node.
type NodeOutcome = (NodeId, Result<ServiceAnswers, CallFailure>);

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
            detours: Mutex::default(),
            began: Instant::now(),
        };
        Router {
            inner: Arc::new(inner),
        }
    }

    /// The carrier of its requests.
    pub fn transport(&self) -> &T {
        &self.inner.transport
    }

    /// The map that it routes by.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.inner.map.read().clone()
    }

    /// Receives a map; keeps it if it is newer.
    pub fn set_map(&self, heard: Arc<ClusterMap>) {
        let mut map = self.inner.map.write();
        if heard.revision > map.revision {
            // A node that was away may be back; the map knows better than we. Of others it says nothing new.
            let as_before = |node: &NodeId| {
                let life = |map: &ClusterMap| {
                    let node = map.nodes.get(node)?;
                    Some((node.incarnation, node.state))
                };
                life(&map) == life(&heard)
            };
            self.inner.avoid.lock().retain(|node, _| as_before(node));
            *map = newest(&map, heard);
        }
    }

    /// Does operations of a service on a pool, in one batch per node (row X6). Each is atomic by itself. The
    /// answers come in the order of the operations; one that could not be had is an `Answer::Error`, whose code
    /// says whether the operation may have been done ([`ErrorCode::nothing_done`]).
    pub async fn execute(
        &self,
        service: ServiceId,
        pool: &PoolRef,
        ops: Vec<ServiceOp>,
        deadline: Instant,
    ) -> Result<Vec<Answer>, ClientError> {
        let mut answers = Vec::with_capacity(ops.len());
        let mut ops = ops.into_iter().peekable();
        while ops.peek().is_some() {
            let mut turn = Vec::new();
            let mut bytes = 0;
            while let Some(op) = ops.next_if(|op| self.has_room(turn.len(), bytes + op.weight())) {
                bytes += op.weight();
                turn.push(op);
            }
            let turn = self.turn(service, pool, turn, deadline).await?;
            answers.extend(turn.into_iter().map(answered));
        }
        Ok(answers)
    }

    /// Does the first of these operations until their answers have so many bytes of values, and no more than that. `None` is
    /// the answer of what was not begun, to be asked for before whatever comes behind it. No more than go at once
    /// ([`RouterOptions`]).
    pub async fn execute_some(
        &self,
        service: ServiceId,
        pool: &PoolRef,
        ops: Vec<ServiceOp>,
        answer_bytes_max: usize,
        deadline: Instant,
    ) -> Result<SomeAnswers, ClientError> {
        let of_bytes = Some(answer_bytes_max);
        self.some(service, pool, ops, of_bytes, deadline).await
    }

    async fn turn(
        &self,
        service: ServiceId,
        pool: &PoolRef,
        ops: Vec<ServiceOp>,
        deadline: Instant,
    ) -> Result<Vec<Option<Answer>>, ClientError> {
        let some = self.some(service, pool, ops, None, deadline).await?;
        Ok(some.answers)
    }

    fn has_room(&self, ops: usize, bytes: usize) -> bool {
        let options = &self.inner.options;
        // Half a window, so that two callers can be under way.
        let half = (options.window / 2) as usize;
        let ops_max = options.batch_ops_max.min(half).max(1);
        ops == 0 || (ops < ops_max && bytes <= options.batch_bytes_max)
    }

    /// As many operations as go out at once.
    async fn some(
        &self,
        service: ServiceId,
        pool: &PoolRef,
        ops: Vec<ServiceOp>,
        of_bytes: Option<usize>,
        deadline: Instant,
    ) -> Result<SomeAnswers, ClientError> {
        let inner = &self.inner;
        let (map, numbers, count) = (self.map(), &inner.numbers, ops.len());
        let id = pool_of(&map, service, pool).ok();
        let ops = ops.into_iter().map(|op| (op.windows(&map, id), op));
        let ops: Vec<_> = ops.map(|(windows, op)| (op, windows)).collect();
        let writes = ops.iter().filter(|(op, _)| op.is_write);
        let taken = numbers.take(writes.map(|(_, windows)| *windows));
        let Ok(taken) = tokio::time::timeout_at(deadline.into(), taken).await else {
            let text = "too many writes are waiting for their answers already";
            return Ok(SomeAnswers::all(ErrorCode::Busy, text, count));
        };
        let of = (service, pool.clone(), numbers.client());
        let (options, until) = (inner.options.clone(), self.time(deadline));
        let mut turn = RouterTurn::new(of, options, ops, taken.iter(), until).of_bytes(of_bytes);
        let mut taken = Some(taken);
        let mut avoid = self.avoided();
        let mut tried = false;
        let mut next = turn.step(self.now(), TurnEvent::Go(map, avoid.clone()));
        loop {
            let event = match next {
                TurnStep::Send(batches) => {
                    tried = true;
                    next = self.round(&mut turn, batches).await;
                    continue;
                }
                TurnStep::Look(known, until) => {
                    self.look_for_newer(&known, self.instant(until)).await;
                    self.go(&turn, &mut avoid, std::mem::take(&mut tried))
                }
                TurnStep::Rest(time) => {
                    if !time.is_zero() {
                        tokio::time::sleep(time).await;
                    }
                    self.go(&turn, &mut avoid, std::mem::take(&mut tried))
                }
                TurnStep::Renumber(above, writes) => {
                    writes.iter().for_each(|of| numbers.draw_above(above, *of));
                    // Each operation under the numbers so far has its answer, or was not done.
                    drop(taken.take());
                    let more = numbers.take(writes.into_iter());
                    let until = self.instant(turn.deadline());
                    taken = tokio::time::timeout_at(until.into(), more).await.ok();
                    TurnEvent::Numbered(taken.as_ref().map(|taken| taken.iter().collect()))
                }
                TurnStep::Done(answers) => {
                    let needs_bytes = turn.needs_bytes();
                    return answers.map(|answers| SomeAnswers {
                        answers,
                        needs_bytes,
                    });
                }
                // A round hands over every outcome, unless a task of it ended early.
                TurnStep::Await => {
                    let text = "a task of the router ended early";
                    return Ok(SomeAnswers::all(ErrorCode::Internal, text, count));
                }
            };
            next = turn.step(self.now(), event);
        }
    }

    /// Another try. Where nodes are passed over, it takes another detour than the last.
    fn go(&self, turn: &RouterTurn, avoid: &mut Avoid, tried: bool) -> TurnEvent {
        // Once for each try: a look and a rest that follow it are none, and counted twice the same detour came again.
        if tried {
            self.was_in_vain(avoid, &turn.owners());
        }
        *avoid = self.avoided();
        TurnEvent::Go(self.map(), avoid.clone())
    }

    /// Detours beside these nodes were in vain. Others may have found so already.
    fn was_in_vain(&self, taken: &Avoid, beside: &BTreeSet<NodeId>) {
        if taken.nodes.is_empty() {
            return;
        }
        let mut detours = self.inner.detours.lock();
        for node in beside.intersection(&taken.nodes) {
            let turn = detours.entry(*node).or_default();
            if *turn == taken.turn_of(*node) {
                *turn = turn.wrapping_add(1);
            }
        }
    }

    fn now(&self) -> Time {
        self.time(Instant::now())
    }

    fn time(&self, at: Instant) -> Time {
        Time::ZERO + at.saturating_duration_since(self.inner.began)
    }

    fn instant(&self, at: Time) -> Instant {
        self.inner.began + at.since(Time::ZERO)
    }

    async fn look_for_newer(&self, known: &Arc<ClusterMap>, deadline: Instant) {
        if !Arc::ptr_eq(known, &self.map()) {
            return; // an answer brought something already
        }
        if let Some(newer) = self.inner.transport.newer_map(known, deadline).await {
            self.set_map(newer);
        }
    }

    /// Sends every batch, and hands over the outcomes as they come.
    async fn round(&self, turn: &mut RouterTurn, mut batches: Vec<NodeBatch>) -> TurnStep {
        let map = self.map();
        // One needs no task: the common case.
        let last = batches.pop();
        let mut tasks = JoinSet::new();
        for batch in batches {
            let (router, map) = (self.clone(), map.clone());
            tasks.spawn(async move { router.send(map, batch).await });
        }
        let mut next = TurnStep::Await;
        if let Some(batch) = last {
            let (node, result) = self.send(map, batch).await;
            next = turn.step(self.now(), TurnEvent::Answered(node, result));
        }
        while let Some(Ok((node, result))) = tasks.join_next().await {
            next = turn.step(self.now(), TurnEvent::Answered(node, result));
        }
        next
    }

    async fn send(&self, map: Arc<ClusterMap>, batch: NodeBatch) -> NodeOutcome {
        let node = batch.node;
        let floor = self.inner.numbers.floor(batch.windows);
        let request = ServiceRequest {
            floor,
            ..batch.request
        };
        let deadline = self.instant(batch.deadline);
        let result = self.ask(&map, node, request, deadline).await;
        (node, result.map_err(|error| failure(&error)))
    }

    /// Asks one node, and learns of it and of the map.
    async fn ask(
        &self,
        map: &ClusterMap,
        node: NodeId,
        request: ServiceRequest,
        deadline: Instant,
    ) -> Result<ServiceAnswers, NetError> {
        let count = request.ops.len();
        let to = map.nodes.get(&node);
        let result = match to {
            Some(to) => {
                let transport = &self.inner.transport;
                transport
                    .call(to, Message::Service(request), deadline)
                    .await
            }
            None => Err(NetError::NoAddress { node }),
        };
        let result = result.and_then(|answer| check(answer, node, count));
        self.note(node, result.as_ref().err());
        match &result {
            Ok(answers) => self.learn(map, answers.revision, &answers.moved),
            Err(error) => {
                if let (Some(sign), Some(to)) = (error.sign(), to) {
                    let incarnation = to.incarnation;
                    let evidence = Evidence {
                        node,
                        incarnation,
                        sign,
                    };
                    self.inner.transport.seen(map, evidence);
                }
            }
        }
        result
    }

    /// Passes another client's request on to the nodes that answer for it: once, with the client's own
    /// numbers. What cannot be passed on is answered so that the client tries again.
    pub async fn forward(&self, request: ServiceRequest, deadline: Instant) -> ServiceAnswers {
        self.pass_on(request, Avoid::default(), deadline).await
    }

    /// Asks once more for what this node was asked for first, with the numbers that it had. As in [`Router::execute`], a node
    /// that could not be asked is reached through another.
    pub async fn ask_again(&self, request: ServiceRequest, deadline: Instant) -> ServiceAnswers {
        let avoid = self.avoided();
        let map = self.map();
        let owners = match pool_of(&map, request.service, &request.pool) {
            Ok(pool) => owners(&map, pool, request.ops.iter().map(|op| op.to)),
            Err(_) => BTreeSet::new(),
        };
        let answers = self.pass_on(request, avoid.clone(), deadline).await;
        let in_vain = |a: &Answer| matches!(a, Answer::Error(code, _) if code.worth_retrying());
        if answers.answers.iter().any(in_vain) {
            self.was_in_vain(&avoid, &owners);
        }
        answers
    }

    async fn pass_on(
        &self,
        mut request: ServiceRequest,
        avoid: Avoid,
        deadline: Instant,
    ) -> ServiceAnswers {
        let map = self.map();
        let ops = std::mem::take(&mut request.ops);
        let mut answers = vec![None; ops.len()];
        let (mut moved, mut draw_above, mut needs_bytes) = (Vec::new(), 0, 0);
        match pool_of(&map, request.service, &request.pool) {
            Ok(pool) => {
                request.pool = PoolRef::Id(pool);
                request.revision = map.revision;
                // Where a node stands in for another, it passes on.
                request.forwarded = avoid.nodes.is_empty();
                let todo = ops.into_iter().enumerate();
                let todo = todo.map(|(index, op)| Todo::forwarded(index, op));
                let (batches, rest) = plan(&map, pool, todo.collect(), &avoid);
                for (todo, answer) in rest {
                    answers[todo.index] = Some(answer);
                }
                if request.answer_bytes_max > 0 {
                    let nodes = batches.len().max(1) as u32;
                    request.answer_bytes_max = (request.answer_bytes_max / nodes).max(1);
                }
                for (places, result) in self.pass(&map, &request, batches, deadline).await {
                    match result {
                        Ok(theirs) => {
                            moved.extend(theirs.moved);
                            draw_above = draw_above.max(theirs.draw_above);
                            needs_bytes = needs_bytes.max(theirs.needs_bytes);
                            let mut theirs = theirs.answers.into_iter();
                            let behind_bound = || Answer::error(ErrorCode::Busy, BEHIND_BOUND);
                            for index in places {
                                let answer = theirs.next().unwrap_or_else(behind_bound);
                                answers[index] = Some(answer);
                            }
                        }
                        Err(failure) => {
                            let answer = Answer::error(failure.code, failure.text);
                            places
                                .into_iter()
                                .for_each(|index| answers[index] = Some(answer.clone()));
                        }
                    }
                }
            }
            Err(error) => answers.fill(Some(Answer::error(error.code(), error.to_string()))),
        }
        ServiceAnswers {
            revision: self.map().revision,
            answers: answers.into_iter().map(answered).collect(),
            moved,
            draw_above,
            needs_bytes,
        }
    }

    /// Sends each node its operations, with all else as it is in `request`; the outcomes with the operations' places.
    async fn pass(
        &self,
        map: &Arc<ClusterMap>,
        request: &ServiceRequest,
        batches: BTreeMap<NodeId, Vec<Todo>>,
        deadline: Instant,
    ) -> Vec<(Vec<usize>, Result<ServiceAnswers, CallFailure>)> {
        let mut tasks = JoinSet::new();
        let mut outcomes = Vec::new();
        // Whoever asked here does not reach the node either, and finds another way at once if this one says so.
        let unreachable = self.inner.transport.unreachable();
        let last = batches.len().saturating_sub(1);
        for (turn, (node, todo)) in batches.into_iter().enumerate() {
            let time = try_max(&self.inner.options, &todo);
            let deadline = deadline.min(Instant::now() + time);
            let (places, ops) = todo.into_iter().map(|todo| (todo.index, todo.op)).unzip();
            let request = request.with_ops(ops);
            let (router, map) = (self.clone(), map.clone());
            let in_vain = request.forwarded && unreachable.contains(&node);
            let asked = async move {
                if in_vain {
                    return (places, Err(not_reached(node)));
                }
                let result = router.ask(&map, node, request, deadline).await;
                (places, result.map_err(|error| failure(&error)))
            };
            // One needs no task: the common case.
            match turn == last {
                true => outcomes.push(asked.await),
                false => drop(tasks.spawn(asked)),
            }
        }
        outcomes.extend(tasks.join_all().await);
        outcomes
    }

    /// Remembers nodes that could not be asked, so that others do not find it out anew (row D1).
    fn note(&self, node: NodeId, error: Option<&NetError>) {
        let mut avoid = self.inner.avoid.lock();
        match error {
            None => {
                avoid.remove(&node);
            }
            Some(error) if cannot_be_asked(error) => {
                // To find out that a node is silent is dear, that it refuses is cheap.
                let silent = matches!(error, NetError::Deadline { .. })
                    || error.sign() == Some(Sign::Silent);
                let time = match silent {
                    true => 2 * self.inner.options.try_max,
                    false => AVOIDED,
                };
                avoid.insert(node, Instant::now() + time);
            }
            Some(_) => {}
        }
    }

    fn avoided(&self) -> Avoid {
        let mut nodes = self.inner.transport.unreachable();
        let mut avoid = self.inner.avoid.lock();
        if avoid.is_empty() && nodes.is_empty() {
            return Avoid::default();
        }
        let now = Instant::now();
        avoid.retain(|_, until| *until > now);
        nodes.extend(avoid.keys());
        Avoid {
            nodes,
            me: self.inner.transport.me(),
            turns: self.inner.detours.lock().clone(),
        }
    }

    /// Takes in what an answer says about the map (row D1: the same mistake is not made twice).
    fn learn(&self, routed_by: &ClusterMap, newest: Revision, moved: &[Arc<Group>]) {
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

/// An answer of the right kind, with an answer for each operation, or for the first ones.
fn check(answer: Message, node: NodeId, count: usize) -> Result<ServiceAnswers, NetError> {
    // With none at all, the same would be asked for ever.
    let is_sound = |answers: usize| answers == count || (1..count).contains(&answers);
    match answer {
        Message::ServiceAnswers(answers) if is_sound(answers.answers.len()) => Ok(answers),
        other => Err(NetError::Unexpected {
            addr: format!("node {node}"),
            what: "service",
            got: other.opcode().word(),
        }),
    }
}

/// Returns true if the failure is the node's or its link's, so that another should be asked, and not the
/// request's.
fn cannot_be_asked(error: &NetError) -> bool {
    match error {
        NetError::Refused { packet, .. } => packet.code == ErrorCode::Stopping,
        NetError::TooLarge { .. } | NetError::Unexpected { .. } => false,
        // It is late, but well: another node would ask it, too.
        NetError::Deadline { heard, .. } => !heard,
        _ => true,
    }
}

/// A node that stands in for another does not reach this one.
fn not_reached(node: NodeId) -> CallFailure {
    CallFailure {
        code: ErrorCode::NotServing,
        text: format!("node {node} does not answer the node that was to pass this on"),
        nothing_done: true,
    }
}

/// A failed call as the operation's user sees it: as sure as it is that nothing was done.
fn failure(error: &NetError) -> CallFailure {
    let nothing_done = error.nothing_done();
    let code = match error.code() {
        code if nothing_done == code.nothing_done() => code,
        _ if nothing_done => ErrorCode::NotServing,
        _ => ErrorCode::Unreachable,
    };
    let text = error.to_string();
    CallFailure {
        code,
        text,
        nothing_done,
    }
}
