//! Operations in the encoding of their service, as the native protocol brings them.

use std::any::Any;

use staves_model::Time;
use staves_service::{AnswerRef, OpHeader, Refused, Service};
use staves_wire::cache::Op;
use staves_wire::group::RequestId;
use staves_wire::service::{Answer, NumberedOp};

use super::CellState;
use crate::host::waiter::Waiter;

impl CellState {
    /// Submits an operation in its service's encoding, as [`CellState::submit`] does; also the bytes that its
    /// answer takes, as far as they are known.
    pub(crate) fn submit_body(
        &mut self,
        now: Time,
        request: Option<RequestId>,
        deadline: Time,
        op: &NumberedOp,
        waiter: impl FnOnce() -> Waiter,
        wants_flush: &mut bool,
    ) -> (Result<Option<Answer>, Refused>, usize) {
        self.unless_lost((Err(Refused::NotServing), 0), |state| {
            state.submit_here(now, request, deadline, op, waiter, wants_flush)
        })
    }

    fn submit_here(
        &mut self,
        now: Time,
        request: Option<RequestId>,
        deadline: Time,
        op: &NumberedOp,
        waiter: impl FnOnce() -> Waiter,
        wants_flush: &mut bool,
    ) -> (Result<Option<Answer>, Refused>, usize) {
        let Some(bucket) = &mut self.bucket else {
            return (Err(Refused::NotServing), 0);
        };
        let header = OpHeader {
            token: self.waiting.next_token(),
            slot: op.to.slot(),
            request,
            deadline,
        };
        let (result, bytes) = bucket.submit_body(now, header, op.to, &op.body, &mut self.out);
        bucket.member_to_save().let_go_beyond();
        let waits = matches!(result, Ok(None));
        if waits {
            self.waiting.insert(waiter());
        }
        if (waits || bucket.unflushed()) && !self.active {
            (self.active, self.unseen, *wants_flush) = (true, true, true);
        }
        // Without parity nobody needs the deltas; a read may still request pages of other nodes.
        let effects = &self.out.effects;
        let has_effects = !effects.sends.is_empty() || !effects.reads.is_empty();
        let has_sends = (self.parity && bucket.unflushed()) || has_effects;
        if has_sends && !self.dirty {
            self.dirty = true;
            *wants_flush = true;
        }
        (result, bytes)
    }

    /// Lends the answer of a read in its service's encoding, if it can be given at once.
    pub(crate) fn read_body(
        &mut self,
        now: Time,
        deadline: Time,
        op: &NumberedOp,
        give: &mut dyn FnMut(AnswerRef<'_>),
    ) -> bool {
        self.unless_lost(false, |state| {
            let Some(bucket) = &mut state.bucket else {
                return false;
            };
            let header = OpHeader {
                token: state.waiting.next_token(),
                slot: op.to.slot(),
                request: None,
                deadline,
            };
            let is_read = bucket.read_body(now, header, op.to, &op.body, give);
            bucket.member_to_save().let_go_beyond();
            is_read
        })
    }

    /// Bytes of the value that an operation would be answered now, as far as is known before it is begun.
    pub(crate) fn value_bytes(&self, op: &NumberedOp) -> usize {
        let bucket = self.bucket.as_ref();
        bucket.map_or(0, |bucket| bucket.value_bytes(op.to, &op.body))
    }

    /// As [`CellState::value_bytes`], of an operation on the cache that no message brought.
    pub(crate) fn cache_value_bytes(&self, op: Op<'_>) -> usize {
        let bucket = self.bucket.as_ref().map(|bucket| bucket.as_ref());
        let bucket = bucket.and_then(|bucket| {
            let bucket: &dyn Any = bucket;
            bucket.downcast_ref::<staves_cache::Bucket>()
        });
        bucket.map_or(0, |bucket| {
            bucket.service().answer_bytes(bucket.member(), op)
        })
    }
}
