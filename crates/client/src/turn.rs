//! One turn of operations on their way to their answers: sent, redirected, retried, given up. A plain
//! machine: the [`Router`](crate::Router) drives it on tokio, the simulator in one thread.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use staves_model::mutant::{Mutant, planted};
use staves_model::{ClientId, ClusterMap, Group, NodeId, PoolId, ServiceId, Time};
use staves_wire::ErrorCode;
use staves_wire::service::{Address, Answer, Body, NumberedOp, PoolRef};
use staves_wire::service::{ServiceAnswers, ServiceRequest};

use crate::error::ClientError;
use crate::numbers::Windows;
use crate::options::RouterOptions;
use crate::route::{Avoid, Target, data_bucket, owners, pool_of};

/// The reason why what lies behind a bound of bytes is asked for again.
pub(crate) const BEHIND_BOUND: &str =
    "it was not done: the answers before it are as many bytes as go at once";

/// The times that the writes of one turn are given higher numbers, at most.
const REDRAWS_MAX: u32 = 4;

/// An operation of a service, as its typed front hands it over.
#[derive(Clone, Debug)]
pub struct ServiceOp {
    /// The data bucket.
    pub to: Address,
    /// The service's own part.
    pub body: Body,
    /// It may change anything, and so needs a number.
    pub is_write: bool,
    /// Bytes that its answer is known to take.
    pub answer_bytes: usize,
}

impl ServiceOp {
    /// Bytes that go one way or the other.
    pub(crate) fn weight(&self) -> usize {
        self.body.bytes() + self.answer_bytes + 32
    }

    /// The windows that its number counts in: none if it is no write, all where the bucket is not known.
    pub fn windows(&self, map: &ClusterMap, pool: Option<PoolId>) -> Windows {
        if !self.is_write {
            return Windows::NONE;
        }
        let group = pool.and_then(|pool| self.to.group(map, pool));
        group.map_or(Windows::ALL, |group| Windows::of(group.id))
    }
}

/// An operation that has no answer yet.
#[derive(Debug)]
pub(crate) struct Todo {
    pub(crate) index: usize,
    pub(crate) op: NumberedOp,
    /// Bytes that go one way or the other.
    weight: usize,
    /// The windows that its number counts in, if it is a write of our own.
    windows: Windows,
    /// It was sent, and may have been done.
    tried: bool,
    /// The reason why it has no answer yet.
    trouble: Option<(ErrorCode, String)>,
}

impl Todo {
    /// An operation of another client, which is passed on.
    pub(crate) fn forwarded(index: usize, op: NumberedOp) -> Todo {
        Todo {
            index,
            weight: op.body.bytes(),
            op,
            windows: Windows::NONE,
            tried: false,
            trouble: None,
        }
    }

    /// It found a bound reached, and was not done.
    fn found_busy(&self) -> bool {
        matches!(self.trouble, Some((ErrorCode::Busy, _)))
    }

    /// A write that cannot have been done under its number yet.
    fn is_new(&self) -> bool {
        self.op.number > 0 && !self.tried
    }

    /// A write that may have been done.
    fn is_uncertain(&self) -> bool {
        self.op.number > 0 && self.tried
    }
}

/// A request for one node.
#[derive(Debug)]
pub struct NodeBatch {
    /// The node.
    pub node: NodeId,
    /// The request. The driver fills in its floor: that of `windows`.
    pub request: ServiceRequest,
    /// The windows that its numbers count in.
    pub windows: Windows,
    /// The time at which the node is given up.
    pub deadline: Time,
}

/// The reason why a batch has no answers.
#[derive(Clone, Debug)]
pub struct CallFailure {
    /// As sure as it is that nothing was done.
    pub code: ErrorCode,
    /// For people.
    pub text: String,
    /// Nothing was done for certain.
    pub nothing_done: bool,
}

/// An input of a turn.
#[derive(Debug)]
pub enum TurnEvent {
    /// The newest map, and the nodes that are passed over: the turn may go on.
    Go(Arc<ClusterMap>, Avoid),
    /// The outcome of the batch for this node.
    Answered(NodeId, Result<ServiceAnswers, CallFailure>),
    /// The numbers asked for, one for each write; `None` if they cannot be had in time.
    Numbered(Option<Vec<u64>>),
}

/// The next action of a turn's driver.
#[derive(Debug)]
pub enum TurnStep {
    /// Each of these batches sent, and its outcome. Batches may go side by side.
    Send(Vec<NodeBatch>),
    /// The outcomes of the other batches.
    Await,
    /// A map newer than this one by the deadline if it can be had, and in any case to go on.
    Look(Arc<ClusterMap>, Time),
    /// To go on after this time.
    Rest(Duration),
    /// Numbers above this one for writes that count in these windows, one for each. Those so far are not
    /// used any more.
    Renumber(u64, Vec<Windows>),
    /// Nothing: these are the answers. An error means that nothing was sent.
    /// `None` is the answer of what was not begun, in a turn [of so many bytes](RouterTurn::of_bytes).
    Done(Result<Vec<Option<Answer>>, ClientError>),
}

/// The operations that go out at once, until each has its answer or the deadline has passed.
#[derive(Debug)]
pub struct RouterTurn {
    service: ServiceId,
    pool: PoolRef,
    client: ClientId,
    options: RouterOptions,
    deadline: Time,
    addresses: Vec<Address>,
    answers: Vec<Option<Answer>>,
    todo: Vec<Todo>,
    in_flight: BTreeMap<NodeId, Vec<Todo>>,
    /// The map of the last round.
    map: Arc<ClusterMap>,
    /// Operations at its beginning.
    before: usize,
    /// A newer map was looked for, in this round.
    looking: bool,
    /// A newer map was looked for, ever.
    looked: bool,
    wait: Duration,
    /// Writes that no bucket has done, and that want numbers above `draw_above`.
    too_low: Vec<Todo>,
    draw_above: u64,
    redraws: u32,
    /// The bytes of values with which the turn ends, if it does.
    ends_at: Option<usize>,
    /// Bytes of the values so far.
    answer_bytes: usize,
    /// Bytes of the largest value for which that is too little.
    needs_bytes: usize,
}

impl RouterTurn {
    /// A turn of operations, in order. `numbers` are those of the writes among them.
    pub fn new(
        (service, pool, client): (ServiceId, PoolRef, ClientId),
        options: RouterOptions,
        ops: Vec<(ServiceOp, Windows)>,
        mut numbers: impl Iterator<Item = u64>,
        deadline: Time,
    ) -> RouterTurn {
        let addresses = ops.iter().map(|(op, _)| op.to).collect();
        let answers = vec![None; ops.len()];
        let todo = ops.into_iter().enumerate().map(|(index, (op, windows))| {
            let number = match op.is_write {
                true => numbers.next().unwrap_or(0),
                false => 0,
            };
            Todo {
                index,
                weight: op.weight(),
                op: NumberedOp {
                    number,
                    to: op.to,
                    body: op.body,
                },
                windows,
                tried: false,
                trouble: None,
            }
        });
        RouterTurn {
            service,
            pool,
            client,
            wait: options.backoff_min,
            options,
            deadline,
            addresses,
            answers,
            todo: todo.collect(),
            in_flight: BTreeMap::new(),
            map: Arc::default(),
            before: 0,
            looking: false,
            looked: false,
            too_low: Vec::new(),
            draw_above: 0,
            redraws: 0,
            ends_at: None,
            answer_bytes: 0,
            needs_bytes: 0,
        }
    }

    /// The same turn, which ends once its answers have so many bytes of values (`None`: whatever they have). What is left then
    /// was not done, has no answer, and may be asked for in a later turn, before whatever comes behind it.
    pub fn of_bytes(mut self, answer_bytes_max: Option<usize>) -> RouterTurn {
        self.ends_at = answer_bytes_max;
        self
    }

    /// Bytes of the largest value that was not answered, for it alone has more than the turn's; 0 if there was none.
    pub fn needs_bytes(&self) -> usize {
        self.needs_bytes
    }

    /// The time at which the turn ends at the latest. It moves with the bytes that came.
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// Takes an event. The first is [`TurnEvent::Go`].
    pub fn step(&mut self, now: Time, event: TurnEvent) -> TurnStep {
        match event {
            TurnEvent::Go(map, avoid) => self.go(now, map, avoid),
            TurnEvent::Answered(node, result) => {
                if let Some(todo) = self.in_flight.remove(&node) {
                    self.answered(todo, result);
                }
                match self.in_flight.is_empty() {
                    true => self.end_round(now),
                    false => TurnStep::Await,
                }
            }
            TurnEvent::Numbered(None) => self.finish(),
            TurnEvent::Numbered(Some(numbers)) => {
                for (mut todo, number) in self.too_low.drain(..).zip(numbers) {
                    todo.op.number = number;
                    self.todo.push(todo);
                }
                self.wait = self.options.backoff_min;
                TurnStep::Rest(Duration::ZERO)
            }
        }
    }

    /// The nodes that answer for what has no answer yet.
    pub(crate) fn owners(&self) -> BTreeSet<NodeId> {
        match pool_of(&self.map, self.service, &self.pool) {
            Ok(pool) => owners(&self.map, pool, self.todo.iter().map(|todo| todo.op.to)),
            Err(_) => BTreeSet::new(),
        }
    }

    fn go(&mut self, now: Time, map: Arc<ClusterMap>, avoid: Avoid) -> TurnStep {
        if std::mem::take(&mut self.looking) {
            if Arc::ptr_eq(&map, &self.map) {
                return self.rest();
            }
            self.wait = self.options.backoff_min;
        }
        // Only after a first round, which is made however little time there is.
        if self.before > 0 && self.is_over(now, self.options.backoff_min) {
            return self.end();
        }
        self.before = self.todo.len();
        self.map = map;
        let pool = match pool_of(&self.map, self.service, &self.pool) {
            Ok(pool) => pool,
            // Perhaps it was just made: a newer map may have it.
            Err(_) if !self.looked => return self.end_round(now),
            Err(error) => return TurnStep::Done(Err(error)),
        };
        let (batches, rest) = plan(&self.map, pool, std::mem::take(&mut self.todo), &avoid);
        for (mut todo, answer) in rest {
            match answer {
                // The map at hand may be an old one, and no node is asked that could correct it.
                Answer::Error(ErrorCode::Lost, text) if !self.looked => {
                    todo.trouble = Some((ErrorCode::Lost, text));
                    self.todo.push(todo);
                }
                answer => self.settle(todo, answer),
            }
        }
        if batches.is_empty() {
            return self.end_round(now);
        }
        let bytes_max = self.answer_bytes_max(batches.len());
        let batch =
            |(node, todo): (&NodeId, &Vec<Todo>)| self.batch(now, pool, *node, todo, bytes_max);
        let sent = batches.iter().map(batch).collect();
        self.in_flight = batches;
        TurnStep::Send(sent)
    }

    /// The bytes of values that each of so many nodes may answer.
    fn answer_bytes_max(&self, nodes: usize) -> u32 {
        let bytes = match self.ends_at {
            // At least one operation is answered, however little is left.
            Some(max) => max.saturating_sub(self.answer_bytes) / nodes.max(1),
            None => self.options.batch_bytes_max,
        };
        u32::try_from(bytes).unwrap_or(u32::MAX).max(1)
    }

    fn batch(
        &self,
        now: Time,
        pool: PoolId,
        node: NodeId,
        todo: &[Todo],
        answer_bytes_max: u32,
    ) -> NodeBatch {
        let windows = todo.iter().map(|todo| todo.windows);
        let request = ServiceRequest {
            revision: self.map.revision,
            service: self.service,
            pool: PoolRef::Id(pool),
            client: self.client,
            floor: 0,
            retry: todo.iter().any(|todo| todo.tried) && !planted(Mutant::RetryNotMarked),
            forwarded: false,
            ops: todo.iter().map(|todo| todo.op.clone()).collect(),
            answer_bytes_max,
            strict: self.ends_at.is_some(),
        };
        NodeBatch {
            node,
            request,
            windows: windows.fold(Windows::NONE, Windows::and),
            deadline: self.deadline.min(now + try_max(&self.options, todo)),
        }
    }

    fn answered(&mut self, todo: Vec<Todo>, result: Result<ServiceAnswers, CallFailure>) {
        match result {
            Ok(theirs) => {
                self.draw_above = self.draw_above.max(theirs.draw_above);
                self.needs_bytes = self.needs_bytes.max(theirs.needs_bytes as usize);
                // What is many bytes takes its time, and what comes behind it has to wait for it.
                let bytes: usize = theirs.answers.iter().map(Answer::value_bytes).sum();
                self.deadline = self.deadline + Duration::from_micros(bytes as u64 / 8);
                self.answer_bytes += bytes;
                let behind_bound = || Answer::error(ErrorCode::Busy, BEHIND_BOUND);
                let mut answers = theirs.answers.into_iter();
                for todo in todo {
                    let answer = answers.next().unwrap_or_else(behind_bound);
                    let forgotten = matches!(answer, Answer::Error(ErrorCode::Forgotten, _));
                    if theirs.draw_above > 0 && todo.is_new() && forgotten {
                        self.too_low.push(todo);
                    } else {
                        self.settle(todo, answer);
                    }
                }
            }
            Err(failure) => {
                for mut todo in todo {
                    todo.tried |= !failure.nothing_done;
                    let code = match failure.code {
                        // Of others in its batch, too: a read is asked again.
                        ErrorCode::AnswerGone if todo.op.number == 0 => ErrorCode::Unreachable,
                        code => code,
                    };
                    self.settle(todo, Answer::error(code, failure.text.clone()));
                }
            }
        }
    }

    /// An answer, or a reason to ask again.
    fn settle(&mut self, mut todo: Todo, answer: Answer) {
        match answer {
            Answer::Error(code, text) if code.worth_retrying() || code == ErrorCode::Deadline => {
                todo.tried |= !code.nothing_done();
                if planted(Mutant::RetriedUnderNewNumber) && todo.is_uncertain() {
                    todo.op.number += 1;
                }
                todo.trouble = Some((code, text));
                self.todo.push(todo);
            }
            // The map's word, and not the bucket's own, is no news of a write that was sent before; nor is it that a second try found no room.
            Answer::Error(
                ErrorCode::Lost | ErrorCode::NotFound | ErrorCode::Refused | ErrorCode::OutOfMemory,
                text,
            ) if todo.is_uncertain() && !planted(Mutant::MapsWordBelieved) => {
                let text = format!("the write may or may not have been done: {text}");
                self.answers[todo.index] = Some(Answer::error(ErrorCode::Unreachable, text));
            }
            answer => self.answers[todo.index] = Some(answer),
        }
    }

    fn end_round(&mut self, now: Time) -> TurnStep {
        if self.has_its_bytes() {
            self.todo.clear();
            return TurnStep::Done(Ok(std::mem::take(&mut self.answers)));
        }
        // A try that begins with next to no time left would only make it uncertain whether
        // anything was done.
        if self.todo.is_empty() || self.is_over(now, self.wait) {
            return self.end();
        }
        self.todo.sort_by_key(|todo| todo.index);
        if self.todo.len() < self.before && self.todo.iter().all(Todo::found_busy) {
            // As much was done as goes at once: no newer map is wanted, nor a longer wait.
            self.wait = self.options.backoff_min;
            return self.rest();
        }
        (self.looking, self.looked) = (true, true);
        TurnStep::Look(self.map.clone(), self.deadline)
    }

    /// True if the answers have the bytes with which the turn ends. A write that may have been done, or whose number was too
    /// low, is not left to another turn, which would give it another number.
    fn has_its_bytes(&self) -> bool {
        let has_all = |max| self.answer_bytes >= max || self.needs_bytes > 0;
        self.ends_at.is_some_and(has_all)
            && self.too_low.is_empty()
            && !self.todo.iter().any(Todo::is_uncertain)
    }

    /// True if a try that begins after this time would be one too many.
    fn is_over(&self, now: Time, wait: Duration) -> bool {
        now + wait >= self.deadline && !planted(Mutant::TurnWithoutEnd)
    }

    fn rest(&mut self) -> TurnStep {
        let wait = self.wait;
        self.wait = (wait * 2).min(self.options.backoff_max);
        TurnStep::Rest(wait)
    }

    /// All operations have been answered or given up, but those whose numbers were too low.
    fn end(&mut self) -> TurnStep {
        self.give_up_overtaken();
        if self.too_low.is_empty() || self.redraws == REDRAWS_MAX || !self.todo.is_empty() {
            return self.finish();
        }
        self.redraws += 1;
        let windows = self.too_low.iter().map(|todo| todo.windows);
        TurnStep::Renumber(self.draw_above, windows.collect())
    }

    /// A write is not done after one that was sent behind it, to the same hash slot, and has its answer.
    fn give_up_overtaken(&mut self) {
        let (answers, addresses) = (&mut self.answers, &self.addresses);
        self.too_low.retain(|todo| {
            let behind = answers.iter().zip(addresses).skip(todo.index + 1);
            let overtaken = todo.op.to.keeps_order()
                && !planted(Mutant::OvertakenDoneLater)
                && behind
                    .filter(|(_, address)| **address == todo.op.to)
                    .any(|(answer, _)| answer.is_some());
            if overtaken {
                let text = "it was not done, for its number was too low, and a later operation of the batch was";
                answers[todo.index] = Some(Answer::error(ErrorCode::NotServing, text));
            }
            !overtaken
        });
        self.too_low.sort_by_key(|todo| todo.index);
    }

    /// Time is up: an operation without an answer gets one that gives the reason.
    fn finish(&mut self) -> TurnStep {
        for todo in self.too_low.drain(..) {
            let text = "it was not done: the bucket has forgotten clients with higher numbers than it had, \
                        and there was no time to ask again with another";
            self.answers[todo.index] = Some(Answer::error(ErrorCode::NotServing, text));
        }
        for mut todo in self.todo.drain(..) {
            let (code, text) = todo
                .trouble
                .take()
                .unwrap_or((ErrorCode::Unreachable, "nobody to ask".into()));
            let answer = if todo.is_uncertain() {
                let text = format!(
                    "the deadline passed, and the write may or may not have been done: {text}"
                );
                Answer::error(ErrorCode::Deadline, text)
            } else {
                // Nothing was done, or it was a read: the error is what stood in the way.
                let code = match code.nothing_done() {
                    true => code,
                    false => ErrorCode::NotServing,
                };
                Answer::error(code, format!("the deadline passed: {text}"))
            };
            self.answers[todo.index] = Some(answer);
        }
        let answers = std::mem::take(&mut self.answers);
        let answered = |answer| Some(answered(answer));
        TurnStep::Done(Ok(answers.into_iter().map(answered).collect()))
    }
}

/// The answer of an operation, for whose lack there is no reason.
pub(crate) fn answered(answer: Option<Answer>) -> Answer {
    let unanswered = || Answer::error(ErrorCode::Internal, "no answer came for the operation");
    answer.unwrap_or_else(unanswered)
}

/// The time that a node may take for these operations: 32 MB a second is slow; slower is not waited for.
pub(crate) fn try_max(options: &RouterOptions, todo: &[Todo]) -> Duration {
    let bytes: usize = todo.iter().map(|todo| todo.weight).sum();
    options.try_max + Duration::from_micros(bytes as u64 / 32)
}

/// Operations by node, and the answers of those that go nowhere.
pub(crate) type RoutePlan = (BTreeMap<NodeId, Vec<Todo>>, Vec<(Todo, Answer)>);

/// The nodes that operations go to by a map.
pub(crate) fn plan(map: &ClusterMap, pool: PoolId, todo: Vec<Todo>, avoid: &Avoid) -> RoutePlan {
    let mut batches: BTreeMap<NodeId, Vec<Todo>> = BTreeMap::new();
    let mut rest = Vec::new();
    for todo in todo {
        let to = todo.op.to;
        let group = to.group(map, pool);
        let target = group.map(|group| data_bucket(map, group, to.slot(), avoid));
        let answer = match (target, to) {
            (Some(Target::Node(node)), _) => {
                batches.entry(node).or_default().push(todo);
                continue;
            }
            (Some(Target::Lost), _) => lost(to),
            (None, Address::Bucket(group, _)) => {
                let text = format!("group {group} is gone: its region was deleted");
                Answer::error(ErrorCode::NotFound, text)
            }
            (Some(Target::Wait) | None, _) => {
                let vacant = |group: &Group| group.open && group.member(to.slot()).is_none();
                let why = match group.is_some_and(vacant) {
                    true => {
                        ": its node was lost, and there is none with room to rebuild it on; \
                             add a node, or give the pool more memory"
                    }
                    false => " at present",
                };
                let text = format!("nobody answers for {to}{why}");
                Answer::error(ErrorCode::NotServing, text)
            }
        };
        rest.push((todo, answer));
    }
    (batches, rest)
}

fn lost(to: Address) -> Answer {
    let lost = match to {
        Address::Slot(slot) => format!("the bucket of hash slot {slot}"),
        Address::Bucket(group, _) => format!("group {group}"),
    };
    let text = format!("{lost} is lost: more of its nodes failed than its scheme bears");
    Answer::error(ErrorCode::Lost, text)
}

#[cfg(test)]
mod tests;
