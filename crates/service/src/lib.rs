//! The bucket of a service on groups, without what the service itself does.
//!
//! **Promises.** An operation is atomic. A write is answered once every listed member has received it, a
//! read returns only what they have received, and only under a lease (I7, I8). A retried request takes
//! effect once (I9). Nothing waits past its deadline, and what waits is bounded in number and in bytes.
//!
//! **Path of an operation.** A caller submits it to a [`Bucket`]. A read that needs nothing but settled
//! pages is answered from them, without a copy. Any other operation is executed by the [`Service`], which
//! reads the pages and makes deltas through the [`BucketContext`]. Its answer waits until the low watermark has
//! passed its delta; an operation that cannot begin is parked, for the log, for memory, for a lease, for
//! pages that are being rebuilt or for its epoch. [`Bucket::step`], called with every event, releases both.
//!
//! **Roles.** A bucket accepts operations for the data slot that it serves, and for the one that the newest
//! map gives it. A data bucket that stays the data bucket keeps its waiting answers, because it keeps
//! everything up to the cut; any other change of role interrupts them, and the client retries at the
//! successor under the same request number.
//!
//! **A new service** implements [`Service`]: what it knows of its pages, and what one operation does to
//! them. The example `counter` is the smallest.
//!
//! **Not here.** Agreement between members (`staves-group`), routing and the wire (`staves-client`,
//! `staves-wire`), threads, sockets and clocks (`staves-node`).

mod answer;
mod any;
mod bucket;
mod context;
mod key_hash;
mod reservation;
mod waiting;

use std::time::Duration;

use bytes::Bytes;
use staves_group::{Effects, Member};
use staves_model::{MemberSlot, ServiceId, Time};
use staves_store::Pages;
use staves_wire::DecodeError;
use staves_wire::group::{Delta, RequestId};
use staves_wire::service::{Address, Answer, Body};

pub use answer::{AnswerRef, KEPT_ANSWER_BYTES_MAX, Refused};
pub use any::AnyBucket;
pub use bucket::Bucket;
pub use context::{BucketContext, UpdateError};
pub use key_hash::KeyHash;
pub use reservation::Growth;

/// The bounds of one bucket.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most answers that wait for the low watermark.
    pub waiting_max: usize,
    /// Most bytes of values in them.
    pub waiting_bytes_max: usize,
    /// Most operations that are parked.
    pub parked_max: usize,
    /// Most bytes of them (one operation may pass it).
    pub parked_bytes_max: usize,
    /// The longest wait for members to reserve memory; then the write is refused. It must be longer than the removal of a
    /// dead member takes, so that a crash is not reported as full memory.
    pub grant_wait: Duration,
    /// Refused memory is not requested again within this time.
    pub refused_for: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            waiting_max: 65_536,
            waiting_bytes_max: 64 << 20,
            parked_max: 4096,
            parked_bytes_max: 32 << 20,
            grant_wait: Duration::from_millis(1000),
            refused_for: Duration::from_millis(2000),
        }
    }
}

/// The header of one operation.
#[derive(Clone, Copy, Debug)]
pub struct OpHeader {
    /// The caller's token, returned with the answer.
    pub token: u64,
    /// The data slot that the operation is for: no other bucket may execute it.
    pub slot: MemberSlot,
    /// The client's request number; none for a read, and where nobody retries.
    pub request: Option<RequestId>,
    /// The time at which it is given up.
    pub deadline: Time,
}

/// The output of a step.
#[derive(Default, Debug)]
pub struct BucketEffects {
    /// Output of the member.
    pub effects: Effects,
    /// Answers to operations that were not answered at once, by token.
    pub answers: Vec<(u64, Result<Answer, Refused>)>,
    /// The bytes of values for which the driver has memory; `None` for any number. Once they are used up (the last value
    /// may have more), parked reads of large values wait on. A read whose copy would have to wait is refused if it has more.
    pub value_bytes_max: Option<usize>,
}

impl BucketEffects {
    /// Of a driver that has so much memory for values.
    pub fn within(value_bytes_max: Option<usize>) -> BucketEffects {
        BucketEffects {
            value_bytes_max,
            ..BucketEffects::default()
        }
    }

    fn refuse(&mut self, tokens: Vec<u64>, why: Refused) {
        let refused = tokens.into_iter().map(|token| (token, Err(why)));
        self.answers.extend(refused);
    }
}

/// The result of executing an operation.
pub enum Outcome {
    /// An answer, to be released once everything up to `seq` is stable.
    Answer {
        /// The last delta that the answer depends on; 0 for none.
        seq: u64,
        /// The answer.
        answer: Answer,
        /// It is a read, which needs a lease when it is released, too (I7).
        read: bool,
    },
    /// An answer, to be released once everything up to `seq` is on the disks of all members.
    Synced {
        /// The last delta that must be.
        seq: u64,
        /// The answer.
        answer: Answer,
        /// It says something of what others may have answered, and needs a lease when it is released, as a read does.
        read: bool,
    },
    /// The service answers later, through [`BucketEffects::answers`].
    Later,
    /// The operation cannot begin. `starved`: for want of log or memory, so that no other write may pass it.
    Blocked {
        /// See above.
        starved: bool,
    },
    /// The bucket refuses it.
    Refuse(Refused),
}

impl Outcome {
    /// An answer that depends on no delta.
    pub fn at_once(answer: Answer) -> Outcome {
        Outcome::write(0, answer)
    }

    /// The answer to a write whose delta is `seq`.
    pub fn write(seq: u64, answer: Answer) -> Outcome {
        Outcome::Answer {
            seq,
            answer,
            read: false,
        }
    }

    /// The answer to a read of what `seq` wrote.
    pub fn read(seq: u64, answer: Answer) -> Outcome {
        Outcome::Answer {
            seq,
            answer,
            read: true,
        }
    }
}

/// A service on groups: its state over the pages of one bucket, and what an operation does.
pub trait Service: Sized + Send + 'static {
    /// An operation, which may borrow from the caller.
    type Op<'a>: Copy;
    /// The same with its own bytes, to be parked.
    type OwnedOp: Send;
    /// Its number on the wire and in the cluster map.
    const ID: ServiceId;
    /// The text that answers a retry which came too late to be recognised.
    const FORGOTTEN: &'static str;
    /// It keeps nothing that it derived from pages of parity, so that a scrub may rewrite them.
    const MENDABLE: bool;
    /// A bucket that was never written holds something all the same.
    const EXISTS_EMPTY: bool;

    /// Decodes an operation, and gives it to `take`.
    ///
    /// # Errors
    /// The body is none of the service's.
    fn with_body<R>(body: &Body, take: impl FnOnce(Self::Op<'_>) -> R) -> Result<R, DecodeError>;
    /// Checks that an operation is sent to the right address.
    ///
    /// # Errors
    /// It is not; the text says so.
    fn check_address(op: Self::Op<'_>, to: Address) -> Result<(), String>;
    /// The owned form of an operation.
    fn to_owned(op: Self::Op<'_>) -> Self::OwnedOp;
    /// The borrowed form of an operation.
    fn as_op(op: &Self::OwnedOp) -> Self::Op<'_>;
    /// True if it may change anything.
    fn is_write(op: Self::Op<'_>) -> bool;
    /// Bytes that it holds while it is parked.
    fn op_bytes(op: Self::Op<'_>) -> usize;
    /// The hash of the key that it touches: operations with the same one keep their order.
    fn key_hash(_op: Self::Op<'_>) -> Option<KeyHash> {
        None
    }
    /// An error answer to an operation that no state of the bucket would allow.
    fn malformed(&self, op: Self::Op<'_>) -> Option<Answer>;
    /// Bytes of the value that its answer will have, as far as is known before.
    fn answer_bytes(&self, _member: &Member, _op: Self::Op<'_>) -> usize {
        0
    }

    /// The answer to a read, borrowed from the pages: the path without a copy. Called under a lease, with
    /// everything stable that was written under the key hash.
    fn read_in_place<'p>(
        &mut self,
        _member: &'p Member,
        _key_hash: Option<KeyHash>,
        _op: Self::Op<'_>,
    ) -> Option<AnswerRef<'p>> {
        None
    }
    /// Executes a well-formed operation at a bucket that serves.
    fn execute(
        &mut self,
        context: &mut BucketContext,
        now: Time,
        header: &OpHeader,
        key_hash: Option<KeyHash>,
        op: Self::Op<'_>,
        out: &mut BucketEffects,
    ) -> Outcome;

    /// Follows a delta of another member that is about to be applied to the pages here.
    fn note(&mut self, _pages: &Pages, _delta: &Delta) {}
    /// Follows a change of the pages themselves; true if they are others than before.
    fn follow_pages(&mut self, _member: &Member) -> bool {
        false
    }
    /// True if the service's state is complete, so that a serving member can execute operations.
    fn is_ready(&self) -> bool {
        true
    }
    /// The bucket begins to serve.
    fn start(&mut self) {}
    /// The bucket ceases to serve: refuses what is in progress.
    fn stop(&mut self, _out: &mut BucketEffects) {}
    /// Continues what is in progress. Called by each step of a serving bucket.
    fn advance(&mut self, _shell: &mut BucketContext, _now: Time, _out: &mut BucketEffects) {}
    /// Housekeeping, a bounded part on each tick of a serving bucket; true if there is more to do, now or later.
    fn maintain(&mut self, _shell: &mut BucketContext, _now: Time) -> bool {
        false
    }
    /// True if an operation in progress holds up all others with this key hash.
    fn holds(&self, _key_hash: KeyHash) -> bool {
        false
    }
    /// Operations in progress that are neither parked nor wait for the low watermark.
    fn in_progress(&self) -> usize {
        0
    }
    /// True if [`Service::advance`] would find work at once.
    fn has_work(&self) -> bool {
        false
    }
    /// Adds its counters, by names that begin with the service's: what it did since the bucket was made, and what it holds where it
    /// serves.
    fn count(&self, member: &Member, serving: bool, add: &mut dyn FnMut(&'static str, u64));
    /// Checks the service's invariants, for the simulator and tests.
    fn check(&self, member: &Member, serving: bool) -> Result<(), String>;
}

/// An answer without bytes of its own in the request table.
const NOTHING_KEPT: Bytes = Bytes::new();
