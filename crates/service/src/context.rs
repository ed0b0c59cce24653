//! The context of a bucket: the group's member, answers that wait, and memory that is reserved.

use std::collections::BTreeMap;

use bytes::Bytes;
use staves_group::{Effects, Member, Recall};
use staves_model::mutant::{Mutant, planted};
use staves_model::{PAGE_BYTES, Time};
use staves_wire::error::ErrorCode;
use staves_wire::group::{RequestId, Run};
use staves_wire::service::Answer;

use crate::answer::{self, Refused};
use crate::reservation::Reservation;
use crate::waiting::{LARGE_READ_BYTES, Unstable, Waiters};
use crate::{BucketEffects, KeyHash, Limits, NOTHING_KEPT, OpHeader, Outcome};

/// Everything of a bucket that a service executes operations with.
pub struct BucketContext {
    pub(crate) limits: Limits,
    pub(crate) member: Member,
    pub(crate) waiters: Waiters,
    /// Answers that wait for the members' disks.
    pub(crate) syncing: Waiters,
    /// Sessions that are over, by the number of the image that they wrote to.
    pub(crate) sessions_over: BTreeMap<u32, u64>,
    pub(crate) unstable: Unstable,
    pub(crate) reservation: Reservation,
    /// Deltas or a reservation were made since the last flush.
    pub(crate) unflushed: bool,
    forgotten: &'static str,
}

/// The reason why a change was not made. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UpdateError {
    /// The log, or memory, has no room yet.
    Blocked,
    /// There is no memory.
    Full,
    /// This is not the data bucket any more.
    NotServing,
}

impl From<staves_group::AdmitError> for UpdateError {
    fn from(error: staves_group::AdmitError) -> UpdateError {
        match error {
            staves_group::AdmitError::Busy => UpdateError::Blocked,
            staves_group::AdmitError::NotServing => UpdateError::NotServing,
        }
    }
}

impl UpdateError {
    /// The outcome of the operation, with the service's own answer for want of memory.
    pub fn outcome(self, full: impl FnOnce() -> Answer) -> Outcome {
        match self {
            UpdateError::Blocked => Outcome::Blocked { starved: true },
            UpdateError::Full => Outcome::at_once(full()),
            UpdateError::NotServing => Outcome::Refuse(Refused::NotServing),
        }
    }
}

/// The weight of a delta in the log, as `Delta::weight` counts it.
fn weight(runs: usize, bytes: usize, answer: usize) -> usize {
    64 + runs * 16 + bytes + answer
}

impl BucketContext {
    pub(crate) fn new(limits: Limits, member: Member, forgotten: &'static str) -> BucketContext {
        BucketContext {
            limits,
            member,
            waiters: Waiters::default(),
            syncing: Waiters::default(),
            sessions_over: BTreeMap::new(),
            unstable: Unstable::default(),
            reservation: Reservation::default(),
            unflushed: false,
            forgotten,
        }
    }

    /// The group's member.
    #[inline]
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// The group's member, for what changes no data: requests for missing pages.
    pub fn member_mut(&mut self) -> &mut Member {
        &mut self.member
    }

    /// The seq that a read of this key hash must wait for; 0 if it is stable.
    #[inline]
    pub fn unstable_seq(&self, key_hash: KeyHash) -> u64 {
        self.unstable.seq_of(key_hash)
    }

    /// The answer of an earlier try of the same request (I9).
    pub fn recall(&self, header: &OpHeader) -> Option<Outcome> {
        let (seq, answer) = match self.member.recall(header.request.as_ref()?) {
            Recall::New => return None,
            Recall::Waiting { seq, answer } => (seq, answer::recall(&answer)),
            Recall::Done { answer } => (0, answer::recall(&answer)),
            Recall::Forgotten => (0, Answer::error(ErrorCode::Forgotten, self.forgotten)),
        };
        Some(Outcome::write(seq, answer))
    }

    /// An answer as the request table keeps it: nothing where nobody retries.
    pub fn kept(header: &OpHeader, answer: &Answer) -> Bytes {
        match header.request {
            Some(_) => answer::keep(answer),
            None => NOTHING_KEPT,
        }
    }

    /// The outcome of a write that changed nothing. Where the client may retry, a delta without bytes brings
    /// the answer to every member, so that a late copy of the request does not take effect after all (I9).
    /// Elsewhere it is a read of what `seq` wrote.
    pub fn record(&mut self, header: &OpHeader, answer: Answer, seq: u64) -> Outcome {
        let Some(request) = header.request else {
            return Outcome::read(seq, answer);
        };
        let kept = answer::keep(&answer);
        match self.admit(0, 0, kept.len()) {
            Ok(()) => {
                let seq = self.commit(Some(request), kept, Vec::new(), Bytes::new());
                Outcome::write(seq, answer)
            }
            Err(stop) => stop.outcome(|| answer),
        }
    }

    /// Makes one delta with an answer, if the log has room; its seq.
    ///
    /// # Errors
    /// Nothing was changed.
    pub fn make(
        &mut self,
        header: &OpHeader,
        answer: &Answer,
        runs: Vec<Run>,
        bytes: Bytes,
    ) -> Result<u64, UpdateError> {
        let kept = BucketContext::kept(header, answer);
        self.admit(runs.len(), bytes.len(), kept.len())?;
        Ok(self.commit(header.request, kept, runs, bytes))
    }

    /// True if pages of this run are still to be rebuilt; requests them out of turn (row H6).
    pub fn lacks(&mut self, now: Time, run: Run, effects: &mut Effects) -> bool {
        if self.member.absent_in(&[run]).is_none() {
            return false;
        }
        let page = |at: u64| (at / PAGE_BYTES as u64) as u32;
        let (first, last) = (page(run.offset), page(run.offset + u64::from(run.len) - 1));
        self.member.demand(now, first, last - first + 1, effects);
        true
    }

    /// True if pages of this run have to be waited for, because they are on the node's disk alone; requests them. A run that is to be
    /// overwritten needs them only at its ends.
    pub fn fetches(&self, run: Run, is_overwritten: bool, effects: &mut Effects) -> bool {
        let Some(pages) = self.member.pages() else {
            return false;
        };
        let (known, page) = (effects.reads.len(), PAGE_BYTES as u64);
        let end = run.offset + u64::from(run.len);
        if !is_overwritten {
            pages.cold(run.offset, run.len.into(), &mut effects.reads);
            return effects.reads.len() > known;
        }
        let (first, last) = (run.offset / page, (end - 1) / page);
        let is_whole = |at: u64| run.offset <= at * page && (at + 1) * page <= end;
        for at in [first, last]
            .into_iter()
            .take(if first == last { 1 } else { 2 })
        {
            if !is_whole(at) {
                pages.cold(at * page, page, &mut effects.reads);
            }
        }
        effects.reads.len() > known
    }

    /// Asks the log for room for a delta.
    pub fn admit(&self, runs: usize, bytes: usize, kept: usize) -> Result<(), UpdateError> {
        Ok(self.member.admit(weight(runs, bytes, kept))?)
    }

    /// Makes a delta that the log has admitted; its seq.
    pub fn commit(
        &mut self,
        request: Option<RequestId>,
        kept: Bytes,
        runs: Vec<Run>,
        bytes: Bytes,
    ) -> u64 {
        self.unflushed = true;
        self.member.update(request, kept, runs, bytes)
    }

    /// The same, but takes runs and bytes out of the vectors only where the log keeps them.
    pub fn commit_from(
        &mut self,
        request: Option<RequestId>,
        kept: Bytes,
        runs: &mut Vec<Run>,
        bytes: &mut Vec<u8>,
    ) -> u64 {
        self.unflushed = true;
        self.member.update_from(request, kept, runs, bytes)
    }

    /// Records that delta `seq` wrote under a key hash: reads of it wait until it is stable.
    pub fn wrote(&mut self, key_hash: KeyHash, seq: u64) {
        if seq > self.member.stable() {
            self.unstable.insert(key_hash, seq);
        }
    }

    /// Returns an answer that may be released now, else lets it wait.
    pub fn deliver(
        &mut self,
        now: Time,
        header: &OpHeader,
        seq: u64,
        answer: Answer,
        read: bool,
    ) -> Result<Option<Answer>, Refused> {
        if self.may_leave(now, seq, read) {
            return Ok(Some(answer));
        }
        // The answer of a write that was made is kept in any case; the log bounds those.
        if read && self.is_full() {
            return Err(Refused::Busy);
        }
        self.waiters.push(seq, header, answer, read);
        Ok(None)
    }

    /// Returns an answer that may be released now, else lets it wait, as [`Self::deliver`] does, until everything up to `seq` is on the disks of all members.
    pub fn deliver_synced(
        &mut self,
        now: Time,
        header: &OpHeader,
        seq: u64,
        answer: Answer,
        read: bool,
    ) -> Result<Option<Answer>, Refused> {
        let may_leave = match read {
            true => self.may_answer_flush(now),
            false => !self.member.lacks_copies(),
        };
        if seq <= self.member.flushed() && may_leave && self.member.may_answer(now) {
            return Ok(Some(answer));
        }
        if read && self.is_full() {
            return Err(Refused::Busy);
        }
        self.syncing.push(seq, header, answer, read);
        Ok(None)
    }

    // D-3: all that others answered is in the log here only if no successor has answered anything.
    fn may_answer_flush(&self, now: Time) -> bool {
        self.member.may_read(now) || planted(Mutant::FlushWithoutLease)
    }

    /// The session of an image up to which all are over; 0 for none.
    pub fn session_over(&self, image: u32) -> u64 {
        self.sessions_over.get(&image).copied().unwrap_or(0)
    }

    /// True if there is memory for a read's answer, should it have to wait: a copy of a large value.
    pub(crate) fn fits(&self, now: Time, seq: u64, answer: &Answer, max: Option<usize>) -> bool {
        let bytes = answer.value_bytes();
        bytes <= LARGE_READ_BYTES
            || max.is_none_or(|max| bytes <= max)
            || self.may_leave(now, seq, true)
    }

    /// The bucket begins to serve. Over what another process has held it does not know which of the last writes its copies lack:
    /// they are shown when all have them.
    pub(crate) fn begin_serving(&mut self) {
        let (last, stable) = (self.member.last(), self.member.stable());
        if last > stable {
            self.unstable.all_until(last);
        }
    }

    /// Releases the answers that waited for what is stable now.
    pub(crate) fn release(&mut self, now: Time, out: &mut BucketEffects) {
        let may_flush = self.syncing.len() > 0 && self.may_answer_flush(now);
        let BucketContext {
            member,
            waiters,
            syncing,
            unstable,
            ..
        } = self;
        let stable = member.stable();
        unstable.purge(stable);
        if waiters.len() + syncing.len() == 0 || !member.may_answer(now) {
            return;
        }
        let may_write = !member.lacks_copies();
        let may_leave = |read| if read { may_flush } else { may_write };
        syncing.pop(member.flushed(), may_leave, |token, answer| {
            out.answers.push((token, Ok(answer)));
        });
        let may_read = member.may_read(now) || planted(Mutant::HeldReadNeedsNoLease);
        let may_leave = |read| if read { may_read } else { may_write };
        waiters.pop(stable, may_leave, |token, answer| {
            out.answers.push((token, Ok(answer)));
        });
    }

    /// True if an answer that depends on `seq` may be released now.
    pub(crate) fn may_leave(&self, now: Time, seq: u64, read: bool) -> bool {
        let safe = match read {
            true => self.member.releases(seq) && self.member.may_read(now),
            // A copy may have died since it was made; a refusal needs none.
            false => seq == 0 || (seq <= self.member.stable() && !self.member.lacks_copies()),
        };
        safe && self.member.may_answer(now)
    }

    /// Bytes of the answers that wait.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.waiters.bytes() + self.syncing.bytes()
    }

    /// True if as many answers wait as may.
    pub(crate) fn is_full(&self) -> bool {
        self.waiters.len() + self.syncing.len() >= self.limits.waiting_max
            || self.waiting_bytes() >= self.limits.waiting_bytes_max
    }
}
