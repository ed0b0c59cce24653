//! Operations of one connection that this node's buckets do not answer: for other nodes, or refused
//! here, or interrupted by a takeover.
//!
//! They keep the order in which the connection sent them: one batch is under way at a time, and later
//! operations for a bucket that has any on the way to other nodes go that way too. Nor does any set out while an
//! earlier one waits at this node's bucket: a takeover could refuse that one, and find the later done.
//! Answers leave in order anyway, so nobody waits longer for that.
//!
//! A batch asks for as many bytes as there is memory for, and for no more than are on their way to the client at a time: what is
//! beyond them was not begun, and sets out again before what came behind it. How large a value is shows with its answer,
//! or is said in place of a value that is larger than was asked for: that one is asked for again once there is memory for all
//! of it. So a connection begins with one operation, and goes on with as many as the values of the last batch let
//! expect to fit. Nothing more sets out, nor is read, while the client takes nothing.

mod batch;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use staves_model::PoolId;
use staves_model::mutant::{Mutant, planted};
use staves_wire::ErrorCode;
use staves_wire::group::RequestId;
use staves_wire::service::Answer;

use self::batch::forward_batch;
use super::completions::{Completion, CompletionQueue, RemoteAnswers, RemoteOp};
use crate::host::Host;

/// Most operations of one batch.
const BATCH_OPS_MAX: usize = 1024;
/// Most bytes that a batch carries or is expected to be answered, or those of its only operation.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// The least that is expected of an answer.
const ANSWER_BYTES_MIN: usize = BATCH_BYTES_MAX / BATCH_OPS_MAX;
/// By this much less is expected after a batch of smaller answers.
const EXPECTED_LESS: usize = 16;

/// The operations of one connection that other nodes answer.
#[derive(Debug)]
pub(super) struct RemoteOps {
    /// By place and part: the order in which they came.
    queued: VecDeque<((u64, u32), RemoteOp)>,
    /// The reads among them.
    reads: usize,
    /// Such operations, queued or under way, by bucket.
    held: BTreeMap<u32, u32>,
    under_way: bool,
    /// Bytes for which the batch under way has taken memory.
    under_way_bytes: usize,
    /// Bytes that a value is known to have for which too few were asked; 0 if there is none.
    needs_bytes: usize,
    /// Bytes of the largest answer that is expected.
    expected_bytes: usize,
    /// Bytes of the largest value of the last batch that had any, or of the one that was too large for it.
    largest_bytes: usize,
    /// The last batch had reads: only their answers say how large values are.
    read: bool,
    /// The last batch brought answers: what has waited for it has its time from then on.
    goes_on: bool,
}

impl Default for RemoteOps {
    fn default() -> RemoteOps {
        RemoteOps {
            queued: VecDeque::new(),
            reads: 0,
            held: BTreeMap::new(),
            under_way: false,
            under_way_bytes: 0,
            needs_bytes: 0,
            expected_bytes: BATCH_BYTES_MAX,
            largest_bytes: 0,
            read: false,
            goes_on: false,
        }
    }
}

impl RemoteOps {
    /// True if more may be queued: the next batch is not full yet.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.reads * self.expected_bytes < BATCH_BYTES_MAX && self.queued.len() < BATCH_OPS_MAX
    }

    /// Bytes that a value of the next batch is known to have, if they are more than were asked for last.
    pub(super) fn needs_bytes(&self) -> usize {
        self.needs_bytes
    }

    /// Bytes that a value of the next batch will have, if it is like the last ones.
    pub(super) fn likely_bytes(&self) -> usize {
        self.largest_bytes
    }

    /// Leaves so many of these operations as so many bytes of answers suffice for, whatever nodes they go to: each node is
    /// asked for its share of the bytes, and one that may not give a single value gives none.
    pub(super) fn fit(&self, places: &mut Vec<(u64, u32)>, answer_bytes: usize) {
        let mut reads_max = match self.largest_bytes {
            0 => return,
            bytes => (answer_bytes / bytes).max(1),
        };
        let queued = self.queued.iter();
        let ops = queued.filter(|(at, _)| places.binary_search(at).is_ok());
        let mut ops = ops.take(places.len());
        let too_many = ops.position(|(_, wanted)| {
            let is_read = !wanted.op.is_write;
            let too_many = is_read && reads_max == 0;
            reads_max -= usize::from(is_read && !too_many);
            too_many
        });
        places.truncate(too_many.unwrap_or(places.len()));
    }

    /// True if operations of this bucket are queued or under way, so that later ones must follow.
    #[inline]
    pub(super) fn holds(&self, bucket: u32) -> bool {
        !self.held.is_empty()
            && self.held.contains_key(&bucket)
            && !planted(Mutant::QueuedBucketPassed)
    }

    pub(super) fn push(&mut self, place: u64, part: u32, wanted: RemoteOp) {
        *self.held.entry(wanted.bucket).or_default() += 1;
        self.reads += usize::from(!wanted.op.is_write);
        self.queue((place, part), wanted);
    }

    fn queue(&mut self, at: (u64, u32), wanted: RemoteOp) {
        let to = match self.queued.back() {
            Some((last, _)) if *last > at => self.queued.partition_point(|(known, _)| *known < at),
            _ => self.queued.len(),
        };
        self.queued.insert(to, (at, wanted));
    }

    /// Bytes that count for answers which are still to come.
    pub(super) fn under_way_bytes(&self) -> usize {
        self.under_way_bytes
    }

    /// True if a batch is on its way.
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way
    }

    /// True if there is anything to set out with.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        !self.under_way && !self.queued.is_empty()
    }

    /// Sets out with the operations at these places, for so many bytes of answers, for some of which memory was taken.
    pub(super) fn dispatch(
        &mut self,
        host: &Arc<Host>,
        completions: &Arc<CompletionQueue>,
        pool: PoolId,
        places: &[(u64, u32)],
        (answer_bytes_max, reserved_bytes): (usize, usize),
    ) {
        let mut batch = self.take(places);
        self.under_way = true;
        self.under_way_bytes = reserved_bytes;
        if self.goes_on {
            let until = host.clock.now() + host.options().request;
            let new = batch.iter_mut().filter(|(_, op)| op.request.is_none());
            new.for_each(|(_, op)| op.deadline = op.deadline.max(until));
        }
        let (host, completions) = (host.clone(), completions.clone());
        tokio::spawn(async move {
            let mut answers = forward_batch(&host, pool, batch, answer_bytes_max).await;
            answers.reserved_bytes = reserved_bytes;
            completions.put(Completion::Remote(answers));
        });
    }

    /// Those at these places, which are in order. What lies behind the last of them is not looked at: a command may have very many.
    fn take(&mut self, places: &[(u64, u32)]) -> Vec<((u64, u32), RemoteOp)> {
        let mut batch = Vec::with_capacity(places.len());
        let mut passed = Vec::new();
        let mut places = places.iter().peekable();
        while places.peek().is_some()
            && let Some((at, wanted)) = self.queued.pop_front()
        {
            match places.next_if_eq(&&at) {
                Some(_) => batch.push((at, wanted)),
                None => passed.push((at, wanted)),
            }
        }
        while let Some(one) = passed.pop() {
            self.queued.push_front(one);
        }
        let reads = batch.iter().filter(|(_, op)| !op.op.is_write).count();
        self.reads -= reads;
        self.read = reads > 0;
        batch
    }

    /// There is no memory for an answer to this command: what is queued of it is refused, but for what may have been done.
    pub(super) fn refuse(
        &mut self,
        place: u64,
        answer: &Answer,
        mut settle: impl FnMut(u64, u32, Answer),
    ) {
        self.needs_bytes = 0;
        for (at, wanted) in std::mem::take(&mut self.queued) {
            if at.0 != place || wanted.request.is_some() {
                self.queued.push_back((at, wanted));
                continue;
            }
            self.reads -= usize::from(!wanted.op.is_write);
            self.let_go(wanted.bucket);
            settle(at.0, at.1, answer.clone());
        }
    }

    /// Nobody waits any more: what has not set out does not. The numbers under which it would have asked.
    pub(super) fn give_up(&mut self) -> impl Iterator<Item = (u32, RequestId)> {
        self.reads = 0;
        let queued = std::mem::take(&mut self.queued).into_iter();
        queued.filter_map(|(_, wanted)| Some((wanted.bucket, wanted.request?)))
    }

    /// The places of the operations that set out next, and the bytes that the values are expected to have. `waiting`: buckets at
    /// which operations of this connection wait.
    pub(super) fn next_batch(&self, waiting: &BTreeSet<u32>) -> (Vec<(u64, u32)>, usize) {
        let passed = planted(Mutant::WaitingBucketPassed);
        let free =
            |(_, wanted): &&((u64, u32), RemoteOp)| passed || !waiting.contains(&wanted.bucket);
        let (mut places, mut bytes, mut reads) = (Vec::new(), 0, 0);
        for (place, wanted) in self.queued.iter().filter(free) {
            bytes += wanted.op.body.bytes().max(match wanted.op.is_write {
                true => ANSWER_BYTES_MIN,
                false => self.expected_bytes,
            });
            if bytes > BATCH_BYTES_MAX && !places.is_empty() {
                break;
            }
            places.push(*place);
            reads += usize::from(!wanted.op.is_write);
        }
        let expected = reads * self.expected_bytes;
        (places, expected.max(self.needs_bytes))
    }

    /// A batch came back: hands its answers out.
    pub(super) fn back(&mut self, batch: RemoteAnswers, mut settle: impl FnMut(u64, u32, Answer)) {
        (self.under_way, self.under_way_bytes) = (false, 0);
        let RemoteAnswers {
            results,
            left,
            needs_bytes,
            ..
        } = batch;
        let answers = results.iter().map(|one| &one.answer);
        let given = answers.filter(|answer| !matches!(answer, Answer::Error(..)));
        let largest = given.map(Answer::value_bytes).max();
        // A refusal says nothing of the value's size.
        if let Some(largest) = largest.filter(|_| self.read) {
            let less = (self.expected_bytes / EXPECTED_LESS).max(ANSWER_BYTES_MIN);
            self.expected_bytes = largest.max(less);
            self.largest_bytes = largest;
        }
        // As much is asked for next, and enough for each of those that set out together.
        self.needs_bytes = needs_bytes;
        self.expected_bytes = self.expected_bytes.max(needs_bytes);
        self.largest_bytes = self.largest_bytes.max(needs_bytes);
        self.goes_on = largest.is_some();
        for one in results {
            self.let_go(one.bucket);
            settle(one.place, one.part, one.answer);
        }
        // Their buckets are held all the while, so nothing has passed them.
        self.reads += left.iter().filter(|(_, op)| !op.op.is_write).count();
        left.into_iter()
            .for_each(|(at, wanted)| self.queue(at, wanted));
    }

    /// The pool was deleted, and with it whoever could answer: what is queued does not set out.
    pub(super) fn stay(&mut self, mut settle: impl FnMut(u64, u32, Answer)) {
        self.reads = 0;
        for ((place, part), wanted) in std::mem::take(&mut self.queued) {
            self.let_go(wanted.bucket);
            let gone = "the pool that this door serves was deleted";
            let answer = match wanted.request {
                None => Answer::error(ErrorCode::NotFound, gone),
                Some(_) => {
                    let text = format!("the write may or may not have been done before: {gone}");
                    Answer::error(ErrorCode::Unreachable, text)
                }
            };
            settle(place, part, answer);
        }
    }

    fn let_go(&mut self, bucket: u32) {
        if let Some(count) = self.held.get_mut(&bucket) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&bucket);
            }
        }
    }
}

#[cfg(test)]
mod tests;
