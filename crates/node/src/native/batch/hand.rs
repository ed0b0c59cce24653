//! Hands the operations of a batch to this node's buckets.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use staves_group::Recall;
use staves_model::mutant::{Mutant, planted};
use staves_model::{ClientId, GroupId, Time};
use staves_net::OWN_BYTES;
use staves_service::{AnswerRef, Refused};
use staves_wire::ErrorCode;
use staves_wire::group::RequestId;
use staves_wire::service::{Address, Answer, NumberedOp, ServiceRequest};

use super::{ANSWER_BYTES_MAX, Batch, STEP_BYTES, no_room, no_such_pool};
use crate::host::{Cell, CellState, Host, PoolRoutes, Routes, Waiter};
use crate::native::cost::is_read;
use crate::native::numbers;
use crate::native::sides::{Side, Sides};

/// The cell of an operation's data bucket; of the node's two, the one that answers for it.
pub(super) fn cell_of<'a>(
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
    if let Some(answer) = routes.refuse_write(request, group, op) {
        return Err(answer);
    }
    let shadow = cells.next().filter(|_| !home.lock().answers_for(slot));
    let shadow = shadow.filter(|cell| cell.lock().answers_for(slot));
    Ok(shadow.unwrap_or(home))
}

fn not_here(host: &Host, to: Address) -> Answer {
    let me = host.life.node;
    let text = format!("node {me} does not answer for {to}; ask the node that the newer map names");
    Answer::error(ErrorCode::NotServing, text)
}

/// There is no memory for the first answer of a batch, of which nothing was done.
pub(super) struct NoRoom;

/// Hands operations to this node's buckets.
pub(super) struct Hand<'a> {
    host: &'a Arc<Host>,
    batch: &'a Arc<Batch>,
    request: &'a ServiceRequest,
    now: Time,
    deadline: Time,
    sides: Sides,
    /// Of the answers so far, those included that are still to come.
    answer_bytes: usize,
    pub(super) answer_bytes_max: usize,
    /// Those for which there is memory.
    pub(super) taken_bytes: usize,
    pub(super) is_client: bool,
    /// The host's version before its routes were taken.
    pub(super) version: u64,
    /// Bytes of a value that was read and let go: there is no memory for it.
    pub(super) short_bytes: usize,
    /// A value was larger than the asker takes.
    withheld: bool,
    touched: Vec<Arc<Cell>>,
}

impl<'a> Hand<'a> {
    /// For a batch of another node, whose answers may have as many bytes as go at once.
    pub(super) fn of(
        host: &'a Arc<Host>,
        batch: &'a Arc<Batch>,
        request: &'a ServiceRequest,
        deadline: Instant,
    ) -> Hand<'a> {
        Hand {
            host,
            batch,
            request,
            now: host.clock.now(),
            deadline: host.clock.at(deadline),
            sides: Sides::default(),
            answer_bytes: 0,
            answer_bytes_max: ANSWER_BYTES_MAX,
            taken_bytes: ANSWER_BYTES_MAX,
            is_client: false,
            version: host.version(),
            short_bytes: 0,
            withheld: false,
            touched: Vec::new(),
        }
    }

    /// Hands in what is this node's to answer for, until the answers have as many bytes as go at once. The places of those that
    /// are to be passed on.
    pub(super) fn submit_all(
        &mut self,
        routes: &Routes,
        pool: Option<&PoolRoutes>,
        pass_on: bool,
        last: bool,
    ) -> Result<Vec<usize>, NoRoom> {
        let (request, batch) = (self.request, self.batch);
        let mut elsewhere = Vec::new();
        for (index, op) in request.ops.iter().enumerate() {
            if request.answer_bytes_max > 0 && self.is_full() {
                batch.end_before(index);
                break;
            }
            let cell = match pool {
                Some(pool) => cell_of(routes, pool, request, op),
                None => Err(no_such_pool(routes, request)),
            };
            let side = match cell {
                Ok(cell) => self.submit(routes, cell, index, op),
                Err(answer) => {
                    batch.put(index, answer);
                    continue;
                }
            };
            if index == 0 && !last && self.short_bytes > 0 {
                return Err(NoRoom);
            }
            match side {
                Side::Here => {}
                Side::Refused(refused) => drop(batch.put(index, batch.refuse(refused))),
                Side::Elsewhere if pass_on => elsewhere.push(index),
                Side::Elsewhere => {
                    batch.put(index, not_here(self.host, op.to));
                }
            }
        }
        Ok(elsewhere)
    }

    /// The operations are handed in: what they made goes to the copies at the end of the turn.
    pub(super) fn end(&mut self) {
        self.batch.expects(self.answer_bytes);
        self.host.put_off(&mut self.touched);
    }

    pub(super) fn bytes_left(&self) -> usize {
        self.answer_bytes_max.saturating_sub(self.answer_bytes)
    }

    /// True if the answers have as many bytes as go at once.
    fn is_full(&mut self) -> bool {
        if self.answer_bytes >= self.taken_bytes && self.taken_bytes < self.answer_bytes_max {
            let wanted = self.answer_bytes_max.min(self.answer_bytes + STEP_BYTES);
            self.taken_bytes = self.batch.take_up_to(wanted);
        }
        self.short_bytes > 0 || self.withheld || self.answer_bytes >= self.taken_bytes
    }

    /// Hands an operation to a bucket, if it is this node's to answer for. Its answer is noted in the batch then,
    /// now or later.
    pub(super) fn submit(
        &mut self,
        routes: &Routes,
        cell: &Arc<Cell>,
        index: usize,
        op: &NumberedOp,
    ) -> Side {
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
        let in_flight = &host.options().in_flight;
        let submitted = match self.read(&mut state, op) {
            Some(Err(value_bytes)) => {
                self.withheld = true;
                if ordered {
                    self.sides.refuse(cell.group, Refused::Busy);
                }
                self.batch.withhold(index, value_bytes);
                return Side::Here;
            }
            Some(Ok(answer)) => Ok(Some(answer)),
            None if self.lacks_memory(&state, op) => Ok(Some(no_room(in_flight))),
            None => self.submit_to(cell, &mut state, index, op),
        };
        drop(state);
        match submitted {
            Ok(Some(answer)) if self.short_bytes > 0 || self.is_too_much(op, &answer) => {
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

    /// The answer of a read that can be given at once, or the bytes of an operation's value if they are more than the asker takes.
    fn read(&mut self, state: &mut CellState, op: &NumberedOp) -> Option<Result<Answer, usize>> {
        if op.number > 0 || self.batch.disturbed.load(Ordering::Acquire) {
            return self.too_large(state, op).map(Err);
        }
        let bytes_max = match self.request.strict {
            true => self.value_bytes_max(),
            false => usize::MAX,
        };
        let mut read = None;
        state.read_body(self.now, self.deadline, op, &mut |answer| {
            read = Some(match answer {
                AnswerRef::Value(value) if value.len() > bytes_max => Err(value.len()),
                answer => Ok(answer.to_owned()),
            });
        });
        if let Some(Ok(answer)) = &read {
            self.answer_bytes += answer.value_bytes();
        }
        read.or_else(|| self.too_large(state, op).map(Err))
    }

    /// Submits an operation, whose cell is flushed at the end if it has anything to send then.
    fn submit_to(
        &mut self,
        cell: &Arc<Cell>,
        state: &mut CellState,
        index: usize,
        op: &NumberedOp,
    ) -> Result<Option<Answer>, Refused> {
        if let Some(answer) = self.refuse_by_newer_map(cell.group, op) {
            return Ok(Some(answer));
        }
        let mut wants_flush = false;
        let in_flight = &self.host.options().in_flight;
        state.lend(in_flight);
        let submitted = self.submit_here(state, index, op, &mut wants_flush);
        state.count_waiting(in_flight);
        if wants_flush {
            self.touched.push(cell.clone());
        }
        submitted
    }

    /// The bytes of an operation's value, if they are more than the asker takes. What may have been done is answered in any case.
    fn too_large(&self, state: &CellState, op: &NumberedOp) -> Option<usize> {
        if !self.request.strict || self.may_be_done(state, op) {
            return None;
        }
        let value_bytes = state.value_bytes(op);
        let too_large = value_bytes > self.value_bytes_max();
        too_large.then_some(value_bytes)
    }

    /// Bytes that the next value may have. The first may have as many as its asker says, who knows by then how large it is: a value
    /// that has more than a batch may have would never be read otherwise.
    fn value_bytes_max(&self) -> usize {
        match self.answer_bytes {
            0 => self
                .answer_bytes_max
                .max(self.request.answer_bytes_max as usize),
            some => self.answer_bytes_max.saturating_sub(some),
        }
    }

    /// True if there is no memory for the value that a client's write would take out: it is not begun. What may have been done before
    /// is answered in any case.
    fn lacks_memory(&mut self, state: &CellState, op: &NumberedOp) -> bool {
        let asks = self.is_client && !is_read(self.request.service, op);
        let bytes = if asks { state.value_bytes(op) } else { 0 };
        // The table is asked only for the few that take a value out.
        bytes > OWN_BYTES && !self.may_be_done(state, op) && self.is_short_of(bytes)
    }

    /// True if the bucket has seen the operation, or cannot say that it has not: no client's word counts for that.
    fn may_be_done(&self, state: &CellState, op: &NumberedOp) -> bool {
        let member = state.bucket.as_ref().map(|bucket| bucket.member());
        let known = member
            .zip(self.name_of(op))
            .map(|(member, name)| member.recall(&name) != Recall::New);
        known.unwrap_or(false)
    }

    /// The request that an operation is, if a retry of it is to be known.
    fn name_of(&self, op: &NumberedOp) -> Option<RequestId> {
        let named = op.number > 0 && self.request.client != ClientId(0);
        named.then_some(RequestId {
            client: self.request.client,
            number: op.number,
            floor: self.request.floor,
        })
    }

    /// True if there is no memory for a value that a client has read.
    fn is_too_much(&mut self, op: &NumberedOp, answer: &Answer) -> bool {
        let asks = self.is_client && is_read(self.request.service, op);
        asks && self.is_short_of(answer.value_bytes())
    }

    fn is_short_of(&mut self, bytes: usize) -> bool {
        let is_short = bytes > OWN_BYTES && !self.batch.has_room_for(bytes);
        if is_short {
            self.short_bytes = bytes;
        }
        is_short
    }

    /// Refuses a write by the newest map, if it came after the routes were taken: the bucket may be in an epoch of it
    /// that has no parity.
    fn refuse_by_newer_map(&self, group: GroupId, op: &NumberedOp) -> Option<Answer> {
        if self.host.version() == self.version || op.to.keeps_order() {
            return None;
        }
        self.host.routes().refuse_write(self.request, group, op)
    }

    fn submit_here(
        &mut self,
        state: &mut CellState,
        index: usize,
        op: &NumberedOp,
        wants_flush: &mut bool,
    ) -> Result<Option<Answer>, Refused> {
        let (batch, request) = (self.batch, self.request);
        let name = self.name_of(op);
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
