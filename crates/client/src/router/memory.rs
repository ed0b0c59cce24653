//! Operations on the bytes of data buckets: routed as those on keys are, but each for itself. They keep no
//! order among each other, so those for one bucket go out at once, and each is asked again alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use staves_model::{ClientId, ClusterMap, GroupId, MemberSlot, NodeId};
use staves_net::NetError;
use staves_wire::cache::Answer;
use staves_wire::directory::Evidence;
use staves_wire::memory::{Action, MemoryAnswers, MemoryOp, MemoryRequest};
use staves_wire::{ErrorCode, Message};
use tokio::task::JoinSet;

use super::{REDRAWS_MAX, Router, Transport, forward_code, is_forgotten, unless_tried};
use crate::numbers::Windows;
use crate::route::{Avoid, Target, data_bucket};

/// An operation that has no answer yet.
struct Todo {
    index: usize,
    /// It was sent, and may have been done.
    tried: bool,
    op: MemoryOp,
    /// Why it has no answer yet.
    trouble: Option<(ErrorCode, String)>,
}

impl Todo {
    /// Where its number counts.
    fn windows(&self) -> Windows {
        match self.op.number {
            0 => Windows::NONE,
            _ => Windows::of(self.op.group),
        }
    }
}

/// What all batches of a round say alike.
#[derive(Clone, Copy)]
struct Head {
    client: ClientId,
    /// As another client said it; our own is that of the windows that a batch's writes count in.
    floor: Option<u64>,
    retry: bool,
    forwarded: bool,
}

type Outcome = (Vec<Todo>, Result<MemoryAnswers, NetError>);

impl<T: Transport> Router<T> {
    /// Does operations on data buckets, in one batch per node. Each is atomic by itself, and they may take
    /// effect in any order. The answers come in the order of the operations; one that could not be had is an
    /// `Answer::Error`, whose code says whether the operation may have been done ([`ErrorCode::nothing_done`]).
    pub async fn memory(
        &self,
        ops: Vec<(GroupId, MemberSlot, Action)>,
        deadline: Instant,
    ) -> Vec<Answer> {
        let mut answers = Vec::with_capacity(ops.len());
        let mut ops = ops.into_iter().peekable();
        while ops.peek().is_some() {
            let (mut turn, mut bytes) = (Vec::new(), 0);
            while let Some(op) = ops.next_if(|(_, _, action)| {
                turn.is_empty() || self.has_room_for(turn.len(), bytes + weight(action))
            }) {
                bytes += weight(&op.2);
                turn.push(op);
            }
            answers.extend(self.memory_turn(turn, deadline).await);
        }
        answers
    }

    fn has_room_for(&self, ops: usize, bytes: usize) -> bool {
        let options = &self.inner.options;
        // Half a window, so that two callers can be under way.
        let half = (options.window / 2) as usize;
        ops < options.batch_ops_max.min(half).max(1) && bytes <= options.batch_bytes_max
    }

    /// As many operations as go out at once.
    async fn memory_turn(
        &self,
        ops: Vec<(GroupId, MemberSlot, Action)>,
        deadline: Instant,
    ) -> Vec<Answer> {
        let count = ops.len();
        let writes = ops.iter().filter(|(_, _, action)| action.is_write());
        let writes = writes.map(|(group, _, _)| Windows::of(*group));
        let taken = self.inner.numbers.take(writes);
        let Ok(taken) = tokio::time::timeout_at(deadline.into(), taken).await else {
            let text = "too many writes are waiting for their answers already";
            return vec![Answer::error(ErrorCode::Busy, text); count];
        };
        let mut numbers = taken.iter();
        let todo = ops
            .into_iter()
            .enumerate()
            .map(|(index, (group, slot, action))| {
                let number = match action.is_write() {
                    true => numbers.next().unwrap_or(0),
                    false => 0,
                };
                Todo {
                    index,
                    tried: false,
                    op: MemoryOp {
                        number,
                        group,
                        slot,
                        action,
                    },
                    trouble: None,
                }
            });
        let mut turn = Turn {
            router: self,
            todo: todo.collect(),
            answers: vec![None; count],
            deadline,
            looked: false,
            too_low: Vec::new(),
            draw_above: 0,
        };
        let mut taken = taken;
        for redraw in 0.. {
            turn.run().await;
            let again = !turn.too_low.is_empty();
            if !again || redraw == REDRAWS_MAX || Instant::now() >= deadline {
                break;
            }
            self.inner.numbers.draw_above(turn.draw_above);
            // Whatever had the numbers so far has its answer, or was not done.
            drop(taken);
            let more = turn.too_low.iter().map(Todo::windows);
            let more = self.inner.numbers.take(more);
            let Ok(more) = tokio::time::timeout_at(deadline.into(), more).await else {
                break;
            };
            taken = more;
            turn.number_again(taken.iter());
        }
        turn.finish()
    }

    /// Passes another client's operations on to the nodes that answer for them: once, with the client's own
    /// numbers. What cannot be passed on is answered so that the client tries again.
    pub async fn forward_memory(&self, request: MemoryRequest, deadline: Instant) -> MemoryAnswers {
        let mut answers = vec![None; request.ops.len()];
        let (mut moved, mut draw_above) = (Vec::new(), 0);
        let map = self.map();
        let head = Head {
            client: request.client,
            floor: Some(request.floor),
            retry: request.retry,
            forwarded: true,
        };
        let todo = request.ops.into_iter().enumerate().map(|(index, op)| Todo {
            index,
            tried: false,
            op,
            trouble: None,
        });
        let (batches, rest) = plan(&map, todo.collect(), &Avoid::default());
        for (todo, answer) in rest {
            answers[todo.index] = Some(answer);
        }
        for (todo, result) in self.memory_round(&map, head, batches, deadline).await {
            match result {
                Ok(theirs) => {
                    self.hear_of(&map, theirs.revision, &theirs.moved);
                    moved.extend(theirs.moved);
                    draw_above = draw_above.max(theirs.draw_above);
                    for (todo, answer) in todo.into_iter().zip(theirs.answers) {
                        answers[todo.index] = Some(answer);
                    }
                }
                Err(error) => {
                    let answer = Answer::error(forward_code(&error), error.to_string());
                    for todo in todo {
                        answers[todo.index] = Some(answer.clone());
                    }
                }
            }
        }
        MemoryAnswers {
            revision: self.map().revision,
            answers: answers.into_iter().map(answered).collect(),
            moved,
            draw_above,
        }
    }

    /// Sends every batch and waits for what becomes of each.
    async fn memory_round(
        &self,
        map: &Arc<ClusterMap>,
        head: Head,
        mut batches: BTreeMap<NodeId, Vec<Todo>>,
        deadline: Instant,
    ) -> Vec<Outcome> {
        if batches.len() == 1
            && let Some((node, todo)) = batches.pop_first()
        {
            // The common case needs no task.
            return vec![
                self.memory_batch(map.clone(), head, node, todo, deadline)
                    .await,
            ];
        }
        let mut tasks = JoinSet::new();
        for (node, todo) in batches {
            let (router, map) = (self.clone(), map.clone());
            tasks.spawn(async move { router.memory_batch(map, head, node, todo, deadline).await });
        }
        tasks.join_all().await
    }

    async fn memory_batch(
        &self,
        map: Arc<ClusterMap>,
        head: Head,
        node: NodeId,
        todo: Vec<Todo>,
        deadline: Instant,
    ) -> Outcome {
        let bytes: usize = todo.iter().map(|todo| weight(&todo.op.action)).sum();
        // 32 MB a second is slow; slower is not waited for.
        let transfer = Duration::from_micros(bytes as u64 / 32);
        let deadline = deadline.min(Instant::now() + self.inner.options.try_max + transfer);
        let request = Message::Memory(MemoryRequest {
            revision: map.revision,
            client: head.client,
            floor: head.floor.unwrap_or_else(|| {
                let windows = todo.iter().map(Todo::windows);
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
        (todo, result)
    }
}

/// One turn of operations on its way to the answers.
struct Turn<'a, T> {
    router: &'a Router<T>,
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
    async fn run(&mut self) {
        let options = &self.router.inner.options;
        let mut wait = options.backoff_min;
        loop {
            let map = self.router.map();
            self.attempt(&map).await;
            // A try that begins with next to no time left would only make it uncertain whether
            // anything was done.
            if self.todo.is_empty() || Instant::now() + wait >= self.deadline {
                return;
            }
            self.look_for_newer(&map).await;
            self.looked = true;
            if Arc::ptr_eq(&map, &self.router.map()) {
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(options.backoff_max);
            } else {
                wait = options.backoff_min;
            }
            if Instant::now() + options.backoff_min >= self.deadline {
                return;
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
    async fn attempt(&mut self, map: &Arc<ClusterMap>) {
        let numbers = &self.router.inner.numbers;
        let head = Head {
            client: numbers.client(),
            floor: None,
            retry: false,
            forwarded: false,
        };
        let avoid = self.router.avoided();
        let (batches, rest) = plan(map, std::mem::take(&mut self.todo), &avoid);
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
        for (todo, result) in self
            .router
            .memory_round(map, head, batches, self.deadline)
            .await
        {
            match result {
                Ok(theirs) => {
                    self.router.hear_of(map, theirs.revision, &theirs.moved);
                    self.draw_above = self.draw_above.max(theirs.draw_above);
                    for (todo, answer) in todo.into_iter().zip(theirs.answers) {
                        let new = todo.op.number > 0 && !todo.tried;
                        if theirs.draw_above > 0 && new && is_forgotten(&answer) {
                            self.too_low.push(todo);
                        } else {
                            self.settle(todo, answer);
                        }
                    }
                }
                Err(error) => {
                    let answer = Answer::error(forward_code(&error), error.to_string());
                    for mut todo in todo {
                        todo.tried |= !error.nothing_done();
                        self.settle(todo, answer.clone());
                    }
                }
            }
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
                let code = match code.nothing_done() {
                    true => code,
                    false => ErrorCode::NotServing,
                };
                Answer::error(code, format!("the deadline passed: {text}"))
            };
            self.answers[todo.index] = Some(answer);
        }
        self.answers.into_iter().map(answered).collect()
    }
}

fn answered(answer: Option<Answer>) -> Answer {
    let unanswered = || Answer::error(ErrorCode::Internal, "no answer came for the operation");
    answer.unwrap_or_else(unanswered)
}

/// Which operations go to which node; and what is answered for those that go nowhere.
#[allow(clippy::type_complexity)] // two lists, named where they are taken
fn plan(
    map: &ClusterMap,
    todo: Vec<Todo>,
    avoid: &Avoid,
) -> (BTreeMap<NodeId, Vec<Todo>>, Vec<(Todo, Answer)>) {
    let mut batches: BTreeMap<NodeId, Vec<Todo>> = BTreeMap::new();
    let mut rest = Vec::new();
    for todo in todo {
        let (group, slot) = (todo.op.group, todo.op.slot);
        let Some(entry) = map.groups.get(&group) else {
            let text = format!("group {group} is gone: its region was deleted");
            rest.push((todo, Answer::error(ErrorCode::NotFound, text)));
            continue;
        };
        match data_bucket(map, entry, slot, avoid) {
            Target::Node(node) => batches.entry(node).or_default().push(todo),
            Target::Wait => {
                let vacant = entry.open && entry.member(slot).is_none();
                let why = match vacant {
                    true => {
                        ": its node was lost, and there is none with room to rebuild it on; \
                             add a node, or give the pool more memory"
                    }
                    false => " at present",
                };
                let text = format!("nobody answers for data bucket {slot} of group {group}{why}");
                rest.push((todo, Answer::error(ErrorCode::NotServing, text)));
            }
            Target::Lost => {
                let text = format!(
                    "group {group} is lost: more of its nodes failed than its scheme bears"
                );
                rest.push((todo, Answer::error(ErrorCode::Lost, text)));
            }
        }
    }
    (batches, rest)
}

/// An answer of the right kind, with as many answers as there were operations.
fn check(answer: Message, node: NodeId, count: usize) -> Result<MemoryAnswers, NetError> {
    match answer {
        Message::MemoryAnswers(answers) if answers.answers.len() == count => Ok(answers),
        other => Err(NetError::Unexpected {
            addr: format!("node {node}"),
            what: "memory",
            got: other.opcode().word(),
        }),
    }
}

/// Bytes that go one way or the other.
fn weight(action: &Action) -> usize {
    let (_, len) = action.range();
    len as usize + 48
}
