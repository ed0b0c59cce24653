//! One connection of the RESP door.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Buf, BytesMut};
use staves_model::Time;
use staves_net::{Behind, InFlightPart, KeptBuffers, OWN_BYTES, WaitingPart};
use staves_service::{AnswerRef, Refused};
use staves_wire::ErrorCode;
use staves_wire::cache::Op;
use staves_wire::group::RequestId;
use staves_wire::service::Answer;
use tokio::net::TcpStream;
use tokio::sync::watch;

mod input;
mod local;
mod memory;
mod output;
mod tried;

use self::input::read;
use self::local::DoorTurn;
use self::tried::{Left, Tried, put, try_here};
use super::Phase;
use super::completions::{Completion, CompletionQueue, RemoteOp};
use super::remote::RemoteOps;
use crate::host::{Cell, Routes};
use crate::running::Running;
use staves_resp::{
    Args, Command, CommandName, Join, Limits, NOT_DONE, Ops, Output, Parser, PartialReply,
    Protocol, Redirect, ReplyQueue, Session, Transaction, cross_slot, elsewhere,
};

/// Most commands of one connection that wait. Beyond, nothing more is read.
const PLACES_MAX: usize = 1024;
/// Most bytes of those commands, and of answers to them that wait for an earlier one. Beyond, nothing more is read.
const WAITING_BYTES_MAX: usize = 16 << 20;
/// Most bytes of answers that wait to be written, of one connection. Beyond, nothing more is read.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// Memory for answers is taken in steps of so many bytes.
const ANSWERS_STEP_BYTES: usize = 32 << 10;
/// Most bytes of values that one command is answered, or those that the largest value alone may have, if that
/// is more (and one value beyond). They all lie in memory at once.
const VALUES_BYTES_MAX: usize = 64 << 20;
/// The bytes that an operation of a command of many takes while the command waits: its place, and where it goes to
/// another node, with its key and what links them.
const OP_BYTES: usize = size_of::<PartialReply>() + size_of::<RemoteOp>() * 3 / 2 + 64;
/// Most bytes read before others have a turn: what they ask for takes as long as copying it does.
const TURN_BYTES: usize = 256 << 10;

/// One connection: what has been read and not taken apart, and the rest.
pub(super) struct Connection {
    input: BytesMut,
    kept: KeptBuffers,
    parser: Parser,
    executor: Executor,
}

/// Executes the commands of one connection.
struct Executor {
    running: Arc<Running>,
    session: Session,
    output: Output,
    places: ReplyQueue,
    completions: Arc<CompletionQueue>,
    remote: RemoteOps,
    /// The rest of the memory that small ones of a batch share.
    bodies: BytesMut,
    /// Operations for other nodes wait until the client has taken earlier answers, or there is memory for theirs.
    held_back: bool,
    /// They wait for memory.
    needs_memory: bool,
    /// Bytes that the operations of the command at hand take while it waits.
    op_bytes: usize,
    routes: Arc<Routes>,
    version: u64,
    /// Its part of the node's memory for requests, and the bytes that it held at the last look.
    part: InFlightPart,
    held: usize,
    /// Its part of the requests that wait at the node.
    waits: WaitingPart,
    /// Of the next command, if it is a costly one.
    turn: DoorTurn,
    /// A command waits for room in that memory, for so many bytes of values at least.
    starved: bool,
    needs: usize,
    /// They are to lie behind a part of the command that another node answers.
    needs_behind_parts: bool,
    /// Commands wait until the client has taken answers to earlier ones, or there is memory for more of them.
    unread: bool,
    /// Cells that want a flush after this batch.
    touched: Vec<Arc<Cell>>,
    /// The flushes of some were put off to the end of the turn.
    owes_end_of_turn: bool,
    /// The time at which this batch was read, and its deadline.
    now: Time,
    deadline: Time,
    commands: u64,
    transaction: Transaction,
    /// The connection is to be closed once everything is answered.
    closing: bool,
}

impl Connection {
    pub(super) fn new(
        running: Arc<Running>,
        limits: Limits,
        id: u64,
        addr: String,
        local: String,
        transaction: Transaction,
    ) -> Connection {
        let host = &running.host;
        let session = Session::new(id, addr, local, host.clock.uptime());
        running
            .door
            .clients
            .lock()
            .insert(id, session.client().clone());
        let (version, routes) = (host.version(), host.routes());
        Connection {
            input: BytesMut::new(),
            kept: KeptBuffers::new(running.in_flight.clone()),
            parser: Parser::new(limits),
            executor: Executor {
                session,
                output: Output::new(),
                places: ReplyQueue::default(),
                completions: Arc::new(CompletionQueue::new(running.in_flight.clone())),
                remote: RemoteOps::default(),
                bodies: BytesMut::new(),
                held_back: false,
                needs_memory: false,
                op_bytes: 0,
                part: InFlightPart::new(running.in_flight.clone()),
                held: 0,
                waits: WaitingPart::new(running.in_flight.clone()),
                turn: DoorTurn::None,
                starved: false,
                needs: 0,
                needs_behind_parts: false,
                unread: false,
                routes,
                version,
                touched: Vec::new(),
                owes_end_of_turn: false,
                now: Time::ZERO,
                deadline: Time::ZERO,
                commands: 0,
                transaction,
                closing: false,
                running,
            },
        }
    }

    /// Serves it until it ends, from what has been read of it already.
    pub(super) async fn run(
        mut self,
        mut socket: TcpStream,
        input: BytesMut,
        mut phase: watch::Receiver<Phase>,
    ) -> io::Result<()> {
        self.input = input;
        let (mut reading, writing) = socket.split();
        // Once for all, not at each turn: who waits there is put on a list that all connections share.
        let closing = phase.wait_for(|p| *p == Phase::Closing);
        tokio::pin!(closing);
        let mut turn_bytes = 0;
        loop {
            if turn_bytes >= TURN_BYTES {
                turn_bytes = 0;
                tokio::task::yield_now().await;
            }
            let short_of_room = self.work();
            self.executor.end_of_turn().await;
            let written = self.executor.write(&writing)?;
            let has_memory = self.account();
            let executor = &mut self.executor;
            let has_room = !executor.closing && executor.has_room();
            let was_unread = std::mem::take(&mut executor.unread);
            executor.unread = was_unread && !executor.has_memory_for_answers();
            if was_unread && !executor.unread {
                continue;
            }
            if short_of_room && has_room || executor.held_back && written > 0 {
                continue;
            }
            if executor.closing && executor.places.is_empty() && executor.output.is_empty() {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = executor.completions.notified(), if !executor.places.is_empty() => {}
                count = read(&mut reading, &mut self.input, &self.parser, &executor.running.in_flight), if executor.may_read(has_room && has_memory) => {
                    let count = count?;
                    turn_bytes += count;
                    // At once, so that those who read next see it.
                    executor.held += count;
                    executor.part.grow_to(executor.held);
                    executor.part.moved(count);
                    // What was asked before the client closed its side is still done and answered.
                    executor.closing |= count == 0;
                    let door = &executor.running.door;
                    door.read_bytes_total.fetch_add(count as u64, Ordering::Relaxed);
                }
                ready = writing.writable(), if !executor.output.is_empty() => ready?,
                () = executor.turn.comes(), if executor.turn.is_awaited() => {}
                () = executor.running.in_flight.room(), if !has_memory || executor.waits_for_memory() => {}
                () = executor.part.stuck(), if executor.part.is_counted() && (!self.input.is_empty() || !executor.output.is_empty()) => {
                    let text = "it held memory for which other connections waited, and hardly took or gave a byte";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                _ = &mut closing, if !executor.closing => executor.closing = true,
            }
        }
    }

    /// Does what can be done without waiting. Returns whether commands were left for want of room.
    fn work(&mut self) -> bool {
        self.kept.has_grown_to(self.input.capacity());
        let Connection {
            input,
            parser,
            executor,
            ..
        } = self;
        executor.begin();
        if executor.still_starved() {
            executor.end();
            return false;
        }
        let mut at = 0;
        let mut short_of_room = false;
        while !executor.closing {
            if !executor.has_room() {
                short_of_room = true;
                break;
            }
            executor.unread = !executor.has_memory_for_answers();
            if executor.unread {
                break;
            }
            match parser.next(&input[at..]) {
                Ok(Some(frame)) if frame.args.are_http() => {
                    tracing::warn!(
                        "an HTTP request came to the RESP door; its connection is closed"
                    );
                    executor.closing = true;
                }
                Ok(Some(frame)) => {
                    let place = executor.places.next();
                    let command = executor.command_of(frame.args);
                    if executor.waits_for_turn(&command) {
                        break;
                    }
                    executor.command(command);
                    if executor.starved {
                        break;
                    }
                    at += frame.used;
                    if executor.places.next() != place {
                        let bytes = frame.used + executor.op_bytes;
                        executor.places.charge_bytes(bytes);
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    let text = format!("ERR {error}");
                    executor.places.tail(&mut executor.output).error(&text);
                    executor.closing = true;
                }
            }
        }
        input.advance(at);
        executor.end();
        short_of_room
    }
}

impl Drop for Executor {
    /// However the connection ends: what nobody will ask again for gives its number back, or its bucket's
    /// lane would keep it for ever.
    fn drop(&mut self) {
        let received = self.completions.close();
        let Some(pool) = self.routes.door.and_then(|id| self.routes.pools.get(&id)) else {
            return;
        };
        let (places, remote) = (&mut self.places, &mut self.remote);
        let bucket_of = |op: &Op<'_>| pool.bucket_of(op.slot());
        give_up(received, places, remote, bucket_of, |bucket, request| {
            if let Some(cell) = pool.cells.get(bucket as usize) {
                cell.lock().lane.answered(&request);
            }
        });
    }
}

/// The numbers of interrupted writes that have not set out again, with their buckets.
fn give_up(
    received: Vec<Completion>,
    places: &mut ReplyQueue,
    remote: &mut RemoteOps,
    bucket_of: impl Fn(&Op<'_>) -> u32,
    mut back: impl FnMut(u32, RequestId),
) {
    for completion in received {
        let Completion::Part {
            place,
            part,
            request: Some(request),
            ..
        } = completion
        else {
            continue;
        };
        if let Some((op, _)) = places.send_away(place, part) {
            back(bucket_of(&op.as_op()), request);
        }
    }
    remote
        .give_up()
        .for_each(|(bucket, request)| back(bucket, request));
}

impl Executor {
    fn has_room(&self) -> bool {
        self.places.len() < PLACES_MAX
            && self.places.charged_bytes() < WAITING_BYTES_MAX
            && self.output.len() + self.places.held_bytes() < OUTPUT_BYTES_MAX
            && self.remote.has_room()
    }

    fn protocol(&self) -> Protocol {
        self.session.protocol()
    }

    /// A batch begins: what was completed first, by the newest table.
    fn begin(&mut self) {
        let host = &self.running.host;
        let version = host.version();
        if version != self.version {
            self.version = version;
            self.routes = host.routes();
        }
        self.now = host.clock.now();
        self.deadline = self.now + host.options().request;
        if !self.places.is_empty() {
            self.take_completions();
        }
    }

    /// A batch ends: answers go into their order.
    fn end(&mut self) {
        self.owes_end_of_turn |= self.running.host.put_off(&mut self.touched);
        self.places.release(&mut self.output);
        self.held_back = false;
        if self.remote.is_ready() {
            self.dispatch();
            self.bodies = BytesMut::new();
        }
        let done = std::mem::take(&mut self.commands);
        if done > 0 {
            let door = &self.running.door;
            door.commands_total.fetch_add(done, Ordering::Relaxed);
        }
    }

    // What goes by another way. Where the door's pool is deleted there is none any more.
    fn dispatch(&mut self) {
        if let Some(pool) = self.routes.door {
            let waiting = self.places.waiting();
            let buckets = waiting.filter_map(|op| self.bucket_of(&op.as_op()));
            let waiting: BTreeSet<u32> = buckets.collect();
            let (mut places, expected) = self.remote.next_batch(&waiting);
            let Some(first) = places.first() else {
                return;
            };
            match self.answer_room(expected) {
                Ok(bytes) => {
                    self.remote.fit(&mut places, bytes.0);
                    let (host, completions) = (&self.running.host, &self.completions);
                    self.remote
                        .dispatch(host, completions, pool, &places, bytes);
                }
                Err(true) => self.refuse_remote(first.0),
                Err(false) => self.held_back = true,
            }
        } else {
            let places = &mut self.places;
            self.remote.stay(|place, part, answer| {
                places.settle(place, part, answer);
            });
            places.release(&mut self.output);
        }
    }

    fn take_completions(&mut self) {
        for completion in self.completions.take() {
            match completion {
                Completion::Part {
                    place,
                    part,
                    result,
                    request,
                } => match result {
                    Ok(answer) => self.places.settle(place, part, answer),
                    Err(late @ (Refused::Deadline | Refused::Late)) => {
                        let answer = Answer::error(late.code(), late.to_string());
                        self.places.settle(place, part, answer);
                    }
                    Err(refused) => self.send_away(place, part, refused, request),
                },
                Completion::Remote(batch) => {
                    let places = &mut self.places;
                    self.remote.back(batch, |place, part, answer| {
                        places.settle(place, part, answer);
                    });
                }
            }
        }
    }

    /// A bucket refused what had waited there: it goes on by another way.
    fn send_away(&mut self, place: u64, part: u32, refused: Refused, request: Option<RequestId>) {
        let Some((op, deadline)) = self.places.send_away(place, part) else {
            return;
        };
        if refused == Refused::Interrupted && op.as_op().is_write() && request.is_none() {
            // It began while the group had no copies, without a number: nobody can tell any more.
            let text = "a takeover came in between, and the write may or may not have been done";
            let answer = Answer::error(ErrorCode::Deadline, text);
            return self.places.settle(place, part, answer);
        }
        let bucket = self.bucket_of(&op.as_op());
        let (op, bodies) = (op.as_op(), &mut self.bodies);
        let wanted = RemoteOp::new(bucket.unwrap_or(0), &op, request, deadline, bodies);
        self.detoured(place, part, wanted);
    }

    fn detoured(&mut self, place: u64, part: u32, wanted: RemoteOp) {
        let door = &self.running.door;
        door.detoured_total.fetch_add(1, Ordering::Relaxed);
        self.remote.push(place, part, wanted);
    }

    #[inline]
    fn bucket_of(&self, op: &Op<'_>) -> Option<u32> {
        let pool = self.routes.pools.get(&self.routes.door?)?;
        Some(pool.bucket_of(op.slot()))
    }

    fn command_of<'a>(&self, args: Args<'a>) -> Command<'a> {
        match self.too_many(args.len() / 2) {
            Some(text) => Command::Refused(text),
            None => Command::of(args, self.running.value_bytes_max),
        }
    }

    fn command(&mut self, command: Command<'_>) {
        self.commands += 1;
        self.op_bytes = 0;
        match command {
            Command::Transaction(mark) => {
                let out = self.places.tail(&mut self.output);
                match self.transaction.step(mark) {
                    Ok(()) => out.ok(),
                    Err(text) => out.error(text),
                }
            }
            Command::Nothing => self.commands -= 1,
            Command::Local {
                name: CommandName::Reset | CommandName::Quit,
                ..
            } if self.transaction.is_open => {
                self.transaction = Transaction::default();
                self.commands -= 1;
                self.command(command);
            }
            _ if self.transaction.is_open => self.error(NOT_DONE),
            Command::Data { .. } if self.waits.is_full(self.places.len()) => self.refuse_place(),
            Command::Data {
                ops: Ops::One(op),
                join,
            } => self.one(&op, join),
            Command::Data {
                ops: Ops::Many(ops),
                join,
            } => self.many(&ops, join),
            Command::KeyCount => self.key_count(),
            Command::Local { name, args } => self.local(name, args),
            Command::Refused(text) => self.error(&text),
        }
    }

    fn error(&mut self, text: &str) {
        self.places.tail(&mut self.output).error(text);
    }

    /// A command of one operation: the fast path.
    fn one(&mut self, op: &Op<'_>, join: Join) {
        let protocol = self.protocol();
        let place = self.places.next();
        let behind = self.behind();
        if let Some(bytes) = self.lacks_memory_for_write(op, behind) {
            return self.no_memory(bytes, false);
        }
        let held = self.held_before(behind);
        let tail = self.places.tail(&mut self.output);
        // The table, the tail and the bookkeeping are different fields: taken apart for the borrows.
        let (part, mut no_memory) = (&mut self.part, None);
        let give = |answer: AnswerRef<'_>| match answer {
            AnswerRef::Value(value)
                if value.len() > OWN_BYTES
                    && matches!(op, Op::Get { .. })
                    && !part.try_set_answers(held + tail.len() + value.len(), behind) =>
            {
                no_memory = Some(value.len());
            }
            answer => put(tail, protocol, join, answer),
        };
        let tried = try_here(
            &self.routes,
            &self.remote,
            &self.completions,
            &mut self.touched,
            (self.now, self.deadline),
            (place, 0),
            op,
            give,
        );
        match tried {
            Tried::Given(()) => {
                if let Some(bytes) = no_memory {
                    self.no_memory(bytes, false);
                }
            }
            Tried::Waits => {
                self.places.push_one(
                    join,
                    protocol,
                    self.deadline,
                    PartialReply::Waits(op.to_owned()),
                );
            }
            Tried::Elsewhere(bucket) => {
                if self.sent_elsewhere(op) {
                    return;
                }
                self.places
                    .push_one(join, protocol, self.deadline, PartialReply::Away);
                self.elsewhere(place, 0, bucket, op);
            }
            Tried::NoPool => {
                let text = self.no_pool();
                self.places.tail(&mut self.output).error(&text);
            }
        }
    }

    /// A command of several: each goes its own way, and their answers are joined.
    fn many(&mut self, ops: &[Op<'_>], join: Join) {
        if self.running.redirect == Redirect::Moved
            && let Some(text) = cross_slot(ops)
        {
            return self.places.tail(&mut self.output).error(text);
        }
        if let Some(text) = self.too_many(ops.len()) {
            return self.error(&text);
        }
        let op_bytes = ops.len() * OP_BYTES;
        if op_bytes > OWN_BYTES {
            let behind = self.behind();
            if !self.has_memory(op_bytes, behind) {
                return self.no_memory(op_bytes, false);
            }
            self.op_bytes = op_bytes;
        }
        let place = self.places.next();
        let mut parts = Vec::with_capacity(ops.len());
        let mut elsewhere = Vec::new();
        let mut left = Left::default();
        let mut value_bytes = 0;
        let value_bytes_max = VALUES_BYTES_MAX.max(self.running.value_bytes_max);
        let mut may_wait = true;
        let mut asked = OWN_BYTES.max(self.op_bytes);
        for (index, op) in ops.iter().enumerate() {
            let bytes = value_bytes + self.op_bytes;
            let behind = self.behind_parts(!may_wait || !elsewhere.is_empty());
            if bytes > asked {
                if self.has_memory(bytes + ANSWERS_STEP_BYTES, behind) {
                    asked = bytes + ANSWERS_STEP_BYTES;
                } else if self.has_memory(bytes, behind) {
                    asked = bytes;
                } else if may_wait {
                    return self.no_memory(bytes, !elsewhere.is_empty());
                } else if let Some(bucket) = self.bucket_of(op) {
                    // A part of it waits in its bucket already, so that it cannot begin anew: the rest waits as what others answer.
                    elsewhere.push((index as u32, bucket, op));
                    parts.push(PartialReply::Away);
                    continue;
                }
            }
            if value_bytes >= value_bytes_max && matches!(op, Op::Get { .. }) {
                parts.push(PartialReply::Answered(too_much(value_bytes_max)));
                continue;
            }
            let (at, so_far) = ((place, index as u32), (bytes, behind));
            let tried = match self.try_one_of_many(&mut left, at, op, so_far) {
                Ok(tried) => tried,
                Err(value) if may_wait => {
                    return self.no_memory(bytes + value, !elsewhere.is_empty());
                }
                Err(_) => self.bucket_of(op).map_or(Tried::NoPool, Tried::Elsewhere),
            };
            parts.push(match tried {
                Tried::Given(answer) => {
                    if let Answer::Value(value) = &answer {
                        value_bytes += value.len();
                    }
                    may_wait &= matches!(op, Op::Get { .. });
                    PartialReply::Answered(answer)
                }
                Tried::Waits => {
                    may_wait = false;
                    PartialReply::Waits(op.to_owned())
                }
                // All are of one slot where clients are redirected: if the first is, none was done.
                Tried::Elsewhere(_) if index == 0 && self.sent_elsewhere(op) => return,
                Tried::Elsewhere(bucket) => {
                    elsewhere.push((index as u32, bucket, op));
                    PartialReply::Away
                }
                Tried::NoPool => {
                    let text = self.no_pool();
                    return self.places.tail(&mut self.output).error(&text);
                }
            });
        }
        let protocol = self.protocol();
        self.places.push_many(join, protocol, self.deadline, parts);
        for (part, bucket, op) in elsewhere {
            self.elsewhere(place, part, bucket, op);
        }
        if self.places.len() == 1 {
            self.places.release(&mut self.output);
        }
    }

    /// Tries an operation of a command of many, whose answers have so many bytes by now. The bytes of a value for which there is no
    /// memory.
    fn try_one_of_many(
        &mut self,
        left: &mut Left,
        at: (u64, u32),
        op: &Op<'_>,
        (bytes, behind): (usize, Behind),
    ) -> Result<Tried<Answer>, usize> {
        let bucket = match left.is_empty() {
            true => None, // as nearly always
            false => self.bucket_of(op),
        };
        let held = bytes + self.held_beside();
        let (part, mut lacks) = (&mut self.part, None);
        let tried = left.try_unless_gone(bucket, || {
            try_here(
                &self.routes,
                &self.remote,
                &self.completions,
                &mut self.touched,
                (self.now, self.deadline),
                at,
                op,
                |answer| match answer {
                    AnswerRef::Value(value)
                        if value.len() > OWN_BYTES
                            && held + value.len() > part.bytes_max()
                            && !part.try_set_answers(held + value.len(), behind) =>
                    {
                        lacks = Some(value.len());
                        Answer::Nil
                    }
                    answer => answer.to_owned(),
                },
            )
        });
        lacks.map_or(Ok(tried), Err)
    }

    /// Answers with where the client should ask, if clients are redirected and this node is not to answer
    /// for the key. If it is and cannot yet, the operation is queued for another node and waits.
    fn sent_elsewhere(&mut self, op: &Op<'_>) -> bool {
        if self.running.redirect == Redirect::Forward {
            return false;
        }
        let map = &self.routes.map;
        let Some(pool) = self.routes.door.and_then(|id| map.pools.get(&id)) else {
            return false;
        };
        let me = self.running.host.life.node;
        let Some(text) = elsewhere(map, pool, op.slot(), me) else {
            return false;
        };
        self.places.tail(&mut self.output).error(&text);
        true
    }

    /// Queues it for another node, behind what else of this connection is on its way to the same bucket.
    fn elsewhere(&mut self, place: u64, part: u32, bucket: u32, op: &Op<'_>) {
        if self.completions.disturbed() {
            self.take_completions();
        }
        let wanted = RemoteOp::new(bucket, op, None, self.deadline, &mut self.bodies);
        self.detoured(place, part, wanted);
    }

    fn no_pool(&self) -> String {
        format!(
            "CLUSTERDOWN the cluster has no pool '{}', which this door serves: make one with \
             'staves pool create', or set 'pool'",
            self.running.host.options().pool
        )
    }
}

fn too_much(bytes_max: usize) -> Answer {
    let text = format!(
        "the values together have more than {} MiB: ask for fewer keys with one command",
        bytes_max >> 20
    );
    Answer::error(ErrorCode::TooLarge, text)
}

#[cfg(test)]
mod tests;
