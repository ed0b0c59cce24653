//! The part of a batch that other nodes answer: passed on once, with its client's own numbers.

use std::sync::Arc;
use std::time::Instant;

use staves_wire::ErrorCode;
use staves_wire::service::{Answer, ServiceAnswers, ServiceRequest};

use super::Batch;
use crate::host::Host;
use staves_net::{OWN_BYTES, SMALL_BYTES};

/// The part of a client's batch that is passed on takes so much memory, and is answered by as many bytes, or by one value for
/// which there was memory.
const PASSED_BYTES: usize = 4 << 20;
/// A value may grow while there is made room for it; so often it is asked for.
const LARGER_MAX: usize = 3;

/// The part of a batch that goes to other nodes.
pub(super) struct PassedOn {
    pub(super) host: Arc<Host>,
    pub(super) batch: Arc<Batch>,
    pub(super) request: ServiceRequest,
    /// The places of its operations in the batch.
    pub(super) elsewhere: Vec<usize>,
    pub(super) is_client: bool,
    pub(super) deadline: Instant,
}

impl PassedOn {
    /// Has the router do it, by so many bytes of answers at most.
    pub(super) async fn run(mut self, bytes_left: usize) {
        let bytes_max = match self.is_client {
            false => bytes_left.max(1),
            // Small values go on while the memory for requests is taken.
            true => {
                let most = bytes_left.clamp(1, PASSED_BYTES);
                let mut steps = [most, most.min(SMALL_BYTES)].into_iter();
                let taken = steps.find(|bytes| self.batch.try_room(*bytes));
                taken.unwrap_or(most.min(OWN_BYTES))
            }
        };
        self.request.answer_bytes_max = bytes_max as u32;
        // What nodes ask for clients is as strict as they want it.
        self.request.strict |= self.is_client;
        if self.pass().await {
            self.batch.finish();
        }
    }

    /// Asks once, and a second time for what came to the wrong node if the answer brought a newer map. A value that is too large
    /// is asked for by itself, once there is memory for it. True if the batch has all its answers then.
    async fn pass(&mut self) -> bool {
        let router = self.host.router().clone();
        let (mut last, mut moved, mut larger) = (false, false, 0);
        while !self.elsewhere.is_empty() {
            let map = router.map();
            let ops = self.elsewhere.iter();
            let ops = ops.map(|index| self.request.ops[*index].clone());
            let again = self.request.with_ops(ops.collect());
            let answers = router.forward(again, self.deadline).await;
            let by_newer = !moved && !Arc::ptr_eq(&map, &router.map());
            moved = true;
            self.note(&answers);
            if larger < LARGER_MAX && self.has_room_for_first(&answers).await {
                larger += 1;
                let rest = self.elsewhere.split_off(1);
                let refused = rest.into_iter().zip(answers.answers.into_iter().skip(1));
                refused.for_each(|(index, answer)| last |= self.batch.put(index, answer));
                continue;
            }
            let mut left = Vec::new();
            let elsewhere = std::mem::take(&mut self.elsewhere);
            for (index, answer) in elsewhere.into_iter().zip(answers.answers) {
                match answer {
                    Answer::Error(ErrorCode::NotServing, _) if by_newer => left.push(index),
                    answer => last |= self.batch.put(index, answer),
                }
            }
            self.elsewhere = left;
        }
        last
    }

    /// Notes what other nodes sent beside their answers.
    fn note(&self, answers: &ServiceAnswers) {
        let mut state = self.batch.state.lock();
        state.moved.extend(answers.moved.iter().cloned());
        state.draw_above = state.draw_above.max(answers.draw_above);
        if !self.is_client {
            state.needs_bytes = state.needs_bytes.max(answers.needs_bytes);
        }
    }

    /// True if the first value was withheld, and nothing else was done, and there is memory for it now.
    async fn has_room_for_first(&mut self, answers: &ServiceAnswers) -> bool {
        let is_busy = |answer: &Answer| matches!(answer, Answer::Error(ErrorCode::Busy, _));
        let (needs, has) = (answers.needs_bytes, self.request.answer_bytes_max);
        if !self.is_client || needs == 0 || !answers.answers.iter().all(is_busy) {
            return false;
        }
        self.request.answer_bytes_max = needs.max(has);
        let in_flight = &self.host.options().in_flight;
        let more = needs.saturating_sub(has) as usize;
        if more == 0 || self.batch.try_room(more) {
            return true;
        }
        // Who waits holds nothing of what others wait for. One that has values gives those.
        self.batch.gives_all_back()
            && self
                .batch
                .room(in_flight, needs as usize, self.deadline)
                .await
    }
}
