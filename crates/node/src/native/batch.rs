//! Batches of operations of the native protocol, of any service: taken apart by bucket, answered together.

mod at_once;
mod hand;
mod pass;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use staves_model::mutant::{Mutant, planted};
use staves_model::{ClusterMap, Group, PoolId, Revision, ServiceId};
use staves_net::{InFlight, InFlightPart, Reply};
use staves_service::Refused;
use staves_wire::service::{Address, Answer, PoolRef, ServiceAnswers, ServiceRequest};
use staves_wire::{ErrorCode, Message};
use tokio::sync::oneshot;

use self::hand::Hand;
use self::pass::PassedOn;
use crate::host::{Host, Routes};

/// Answers to one batch of so many bytes are enough: what is left is not done, and asked for again. They all
/// lie in memory at once, here and at the asker, and are one message.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Most characters of a pool's name in an error.
const NAME_SHOWN_MAX: usize = 64;

/// The memory for answers is taken in steps of so many bytes.
const STEP_BYTES: usize = 1 << 20;

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
    /// As other nodes sent it.
    draw_above: u64,
    /// Of the largest value that was withheld, here or by another node.
    needs_bytes: u32,
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
                needs_bytes: 0,
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

    /// Answers an operation, whose value is too large, by how large it is; true if its answer was the last. It was not begun.
    fn withhold(&self, index: usize, value_bytes: usize) -> bool {
        {
            let mut state = self.state.lock();
            let bytes = u32::try_from(value_bytes).unwrap_or(u32::MAX);
            state.needs_bytes = state.needs_bytes.max(bytes);
        }
        let text =
            format!("it was not done: its value has {value_bytes} bytes, more than were asked for");
        self.put(index, Answer::error(ErrorCode::Busy, text))
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

    /// Takes memory for so many bytes more than it has, if there is any.
    fn try_room(&self, bytes: usize) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let bytes = state.bytes() + bytes;
        let taken = state.part.try_set_in_turn(bytes);
        if taken {
            state.expected_bytes = bytes;
        }
        taken
    }

    /// It holds no memory then. False if there are values in it.
    fn gives_all_back(&self) -> bool {
        self.expects(0);
        self.state.lock().bytes() == 0
    }

    /// Waits for memory for so many bytes more than it has, a short time. True if it got it.
    async fn room(&self, in_flight: &InFlight, bytes: usize, deadline: Instant) -> bool {
        loop {
            if self.try_room(bytes) {
                return true;
            }
            {
                let mut guard = self.state.lock();
                let state = &mut *guard;
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
        let nothing = InFlightPart::of_request(self.host.upgrade()?.options().in_flight.clone());
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
        let (answers, mut moved, (draw_above, needs_bytes), asker) = {
            let mut state = self.state.lock();
            let Some(asker) = state.asker.take() else {
                return;
            };
            let answers = std::mem::take(&mut state.answers);
            let moved = std::mem::take(&mut state.moved);
            let numbers = (state.draw_above, state.needs_bytes);
            (answers, moved, numbers, asker)
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
            needs_bytes,
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
    let asker = match asker {
        Asker::Wire(reply) => match at_once::serve(host, &request, deadline, reply) {
            Ok(()) => return,
            Err(reply) => Asker::Wire(reply),
        },
        here => here,
    };
    let asked = AskedBatch {
        request,
        deadline,
        pass_on,
        asker,
        part: InFlightPart::of_request(host.options().in_flight.clone()),
        short_bytes: 0,
    };
    let is_wire = matches!(asked.asker, Asker::Wire(_));
    if let Some(asked) = begin(host, asked, false) {
        tokio::spawn(begin_later(host.clone(), asked));
    }
    // The connection that it came on ends its turn itself.
    if !is_wire {
        host.end_turn();
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
        if last || asked.part.try_set_in_turn(asked.short_bytes) {
            let again = begin(&host, asked, last);
            host.end_turn();
            match again {
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
    let (version, routes) = (host.version(), host.routes());
    let pool = routes.pool(request.service, &request.pool);
    let id = pool.map(|pool| pool.id);
    let is_client = asker.is_client();
    let (answer_bytes_max, taken_bytes) =
        asker.answer_bytes_max(&mut part, request.answer_bytes_max);
    let batch = Batch::new(host, id, &request, asker, (part, taken_bytes));
    let batch = Arc::new(batch);
    let mut hand = Hand::of(host, &batch, &request, deadline);
    (hand.is_client, hand.version) = (is_client, version);
    (hand.answer_bytes_max, hand.taken_bytes) = (answer_bytes_max, taken_bytes);
    let Ok(elsewhere) = hand.submit_all(&routes, pool, pass_on, last) else {
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
    };
    hand.end();
    let bytes_left = hand.bytes_left();
    if !elsewhere.is_empty() {
        let pass = PassedOn {
            host: host.clone(),
            batch: batch.clone(),
            elsewhere,
            is_client,
            deadline,
            request,
        };
        tokio::spawn(pass.run(bytes_left));
    }
    if batch.end_of_ops() {
        batch.finish();
    }
    None
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
        needs_bytes: 0,
    };
    match tokio::time::timeout_at(deadline.into(), answers).await {
        Ok(Ok(answers)) => answers,
        Ok(Err(_)) => late("the request was dropped without an answer"),
        Err(_) => late("the node's own bucket did not answer in time"),
    }
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

/// The reason why a pool takes no operations of a service.
pub(super) fn no_pool(map: &ClusterMap, service: ServiceId, pool: &PoolRef) -> String {
    let known = map.pools.values().find(|known| match pool {
        PoolRef::Id(id) => known.id == *id,
        PoolRef::Name(name) => known.name == *name,
    });
    let name = match (pool, known) {
        (_, Some(known)) => known.name.clone(),
        (PoolRef::Id(id), None) => {
            return format!(
                "the {} pool of this request is gone: no pool has its number, {id}, any more; 'staves pool list' shows those there are",
                service.word()
            );
        }
        // It is a stranger's, may be long, and is said for each operation.
        (PoolRef::Name(name), None) => name.chars().take(NAME_SHOWN_MAX).collect(),
    };
    let then = match known {
        Some(known) => format!(": it holds {}", known.kind.row().holds),
        None => "; 'staves pool list' shows those there are".to_owned(),
    };
    format!("there is no {} pool '{name}'{then}", service.word())
}

#[cfg(test)]
mod tests;
