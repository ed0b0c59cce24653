//! A bucket of any service, as the driver holds it.

use std::any::Any;
use std::collections::BTreeMap;

use staves_group::{Event, Member};
use staves_model::{MemberSlot, Time};
use staves_wire::ErrorCode;
use staves_wire::service::{Address, Answer, Body};

use crate::{AnswerRef, Bucket, BucketEffects, OpHeader, Refused, Service};

/// A [`Bucket`] whose service is known at run time only. A caller that knows it may downcast.
pub trait AnyBucket: Any + Send {
    /// See [`Bucket::member`].
    fn member(&self) -> &Member;
    /// The member, for what only the driver does to it: the saving of its pages.
    fn member_to_save(&mut self) -> &mut Member;
    /// The member, if its pages may be replaced under the service ([`Service::MENDABLE`]).
    fn member_to_mend(&mut self) -> Option<&mut Member>;
    /// See [`Bucket::serving`].
    fn serving(&self) -> bool;
    /// See [`Bucket::answers_for`].
    fn answers_for(&self, slot: MemberSlot) -> bool;
    /// See [`Bucket::set_sessions_over`].
    fn set_sessions_over(&mut self, over: BTreeMap<u32, u64>);
    /// See [`Bucket::has_work`].
    fn has_work(&self) -> bool;
    /// See [`Bucket::at_rest`].
    fn at_rest(&self) -> bool;
    /// True if this member may hold anything that was ever written.
    fn holds_anything(&self) -> bool;
    /// See [`BucketContext::lacked_extents`](crate::BucketContext::lacked_extents).
    fn lacked_extents(&self, now: Time) -> u32;
    /// Adds the service's counters, each by its name.
    fn count(&self, add: &mut dyn FnMut(&'static str, u64));
    /// Submits an operation in the service's encoding, for this address; see [`Bucket::submit`]. Also the bytes
    /// that its answer has, or will have as far as is known.
    ///
    /// # Errors
    /// As [`Bucket::submit`].
    fn submit_body(
        &mut self,
        now: Time,
        header: OpHeader,
        to: Address,
        body: &Body,
        out: &mut BucketEffects,
    ) -> (Result<Option<Answer>, Refused>, usize);
    /// Lends the answer of a read that can be given at once. False if it is none, or cannot: submit it then.
    fn read_body(
        &mut self,
        now: Time,
        header: OpHeader,
        to: Address,
        body: &Body,
        give: &mut dyn FnMut(AnswerRef<'_>),
    ) -> bool;
    /// Bytes of the value that an operation would be answered now, as far as is known before it is begun.
    fn value_bytes(&self, to: Address, body: &Body) -> usize;
    /// See [`Bucket::unflushed`].
    fn unflushed(&self) -> bool;
    /// See [`Bucket::waiting_bytes`].
    fn waiting_bytes(&self) -> usize;
    /// See [`Bucket::flush`].
    fn flush(&mut self, now: Time, out: &mut BucketEffects);
    /// See [`Bucket::step`].
    fn step(&mut self, now: Time, event: Event, out: &mut BucketEffects);
}

impl<S: Service> AnyBucket for Bucket<S> {
    fn member(&self) -> &Member {
        Bucket::member(self)
    }

    fn member_to_save(&mut self) -> &mut Member {
        self.member_mut()
    }

    fn member_to_mend(&mut self) -> Option<&mut Member> {
        S::MENDABLE.then(|| self.member_mut())
    }

    fn serving(&self) -> bool {
        Bucket::serving(self)
    }

    fn answers_for(&self, slot: MemberSlot) -> bool {
        Bucket::answers_for(self, slot)
    }

    fn lacked_extents(&self, now: Time) -> u32 {
        Bucket::lacked_extents(self, now)
    }

    fn set_sessions_over(&mut self, over: BTreeMap<u32, u64>) {
        Bucket::set_sessions_over(self, over);
    }

    fn has_work(&self) -> bool {
        Bucket::has_work(self)
    }

    fn at_rest(&self) -> bool {
        Bucket::at_rest(self)
    }

    fn holds_anything(&self) -> bool {
        let member = self.member();
        let written = || member.stream(0).is_some_and(|stream| stream.prefix > 0);
        member.slot().is_some() && (S::EXISTS_EMPTY || written())
    }

    fn count(&self, add: &mut dyn FnMut(&'static str, u64)) {
        self.service()
            .count(self.member(), Bucket::serving(self), add);
    }

    fn submit_body(
        &mut self,
        now: Time,
        header: OpHeader,
        to: Address,
        body: &Body,
        out: &mut BucketEffects,
    ) -> (Result<Option<Answer>, Refused>, usize) {
        let submitted = S::with_body(body, |op| {
            S::check_address(op, to)?;
            let expected = |bucket: &Self| bucket.service().answer_bytes(bucket.member(), op);
            // A write's answer is the value that it replaces.
            let replaced = match S::is_write(op) {
                true => expected(self),
                false => 0,
            };
            let result = self.submit(now, header, op, out);
            let bytes = match &result {
                Ok(Some(answer)) => answer.value_bytes(),
                Ok(None) if S::is_write(op) => replaced,
                Ok(None) => expected(self),
                Err(_) => 0,
            };
            Ok((result, bytes))
        });
        let wrong = match submitted {
            Ok(Ok(done)) => return done,
            Ok(Err(wrong)) => wrong,
            Err(undecodable) => undecodable.to_string(),
        };
        (Ok(Some(Answer::error(ErrorCode::Malformed, wrong))), 0)
    }

    fn read_body(
        &mut self,
        now: Time,
        header: OpHeader,
        to: Address,
        body: &Body,
        give: &mut dyn FnMut(AnswerRef<'_>),
    ) -> bool {
        let read = S::with_body(body, |op| {
            let is_read = !S::is_write(op) && S::check_address(op, to).is_ok();
            let read = is_read
                .then(|| self.read_in_place(now, &header, S::key_hash(op), op))
                .flatten();
            read.map(give).is_some()
        });
        read.unwrap_or(false)
    }

    fn value_bytes(&self, to: Address, body: &Body) -> usize {
        let known = S::with_body(body, |op| match S::check_address(op, to) {
            Ok(()) => self.service().answer_bytes(self.member(), op),
            Err(_) => 0,
        });
        known.unwrap_or(0)
    }

    fn unflushed(&self) -> bool {
        Bucket::unflushed(self)
    }

    fn waiting_bytes(&self) -> usize {
        Bucket::waiting_bytes(self)
    }

    fn flush(&mut self, now: Time, out: &mut BucketEffects) {
        Bucket::flush(self, now, out);
    }

    fn step(&mut self, now: Time, event: Event, out: &mut BucketEffects) {
        Bucket::step(self, now, event, out);
    }
}
