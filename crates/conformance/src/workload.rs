//! Load for a service, and a plain model of it: the contract of the suite, the simulator and the clients of real nodes.

use std::fmt::Debug;

use staves_group::{Member, Options};
use staves_history::Operation;
use staves_model::{HashSlot, MemberSlot, Pool, hash_slot};
use staves_service::{Bucket, Limits, Service};
use staves_wire::service::{Address, Answer, Body};

/// The circumstances that an operation is drawn for.
pub struct Draw<'a, O: Operation> {
    /// The object.
    pub object: u64,
    /// No other operation has this number.
    pub number: u64,
    /// Of a thousand operations, so many read.
    pub reads: u64,
    /// It carries this many bytes at most, if the workload can draw one that does.
    pub bytes_max: u64,
    /// The last operations on the object that were answered, newest last; as far as the driver keeps them.
    pub recent: &'a [(O, O::Seen)],
    /// Chance: a number below the one given.
    pub random: &'a mut dyn FnMut(u64) -> u64,
}

impl<O: Operation> Draw<'_, O> {
    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        (self.random)(n)
    }

    /// True so many times of a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// True if the operation is to be a read.
    pub fn is_read(&mut self) -> bool {
        self.chance(self.reads)
    }
}

/// Load for a service, and a plain model of it. Its data are objects that have nothing to do with each
/// other; the data slot of object `n` is `n % m`, unless the driver knows another.
pub trait Workload: 'static {
    /// The service.
    type Service: Service;
    /// An operation on one object, as the plain model has it.
    type Operation: Operation + Debug;
    /// The number of objects.
    const OBJECTS: u64;
    /// The schemes (m, k) that the service is for.
    const SCHEMES: &'static [(u8, u8)];
    /// More bytes than any delta weighs that one operation makes, where one alone can fill a member's log.
    const DELTA_BYTES_MAX: usize = 0;
    /// Its buckets answer at once that the group is lost, whatever they would wait for.
    const REPORTS_LOSS: bool = true;

    /// A bucket around a member of a group.
    fn bucket(limits: Limits, member: Member) -> Bucket<Self::Service>;
    /// The options of members in which this load meets every bound.
    fn options(base: Options) -> Options {
        base
    }
    /// Picks one of so many objects.
    fn pick(objects: u64, random: &mut dyn FnMut(u64) -> u64) -> u64 {
        random(objects)
    }
    /// Draws an operation.
    fn draw(draw: &mut Draw<'_, Self::Operation>) -> Self::Operation;
    /// The operation that reads the whole object.
    fn read(object: u64) -> Self::Operation;
    /// The write of an operation with this number, of a few bytes.
    fn write(object: u64, number: u64) -> Self::Operation;
    /// The service's own form of an operation on the object with this number in its data bucket.
    fn body(object: u64, operation: &Self::Operation) -> Body;
    /// The hash slot of an object, if the service's objects are addressed by hash slot.
    fn hash_slot(_object: u64) -> Option<HashSlot> {
        None
    }
    /// The address of an object in a pool of the service.
    fn address(pool: &Pool, object: u64) -> Address {
        if pool.kind.row().has_slots {
            let any = || hash_slot(&object.to_le_bytes());
            return Address::Slot(Self::hash_slot(object).unwrap_or_else(any));
        }
        let group = object as usize % pool.groups.len();
        let slot = object % u64::from(pool.scheme.m);
        Address::Bucket(pool.groups[group], MemberSlot(slot as u8))
    }
    /// The model's form of an answer; none if the operation never has such an answer.
    fn seen(
        operation: &Self::Operation,
        answer: &Answer,
    ) -> Option<<Self::Operation as Operation>::Seen>;
    /// A name for what happened, so that a run can count what it has met.
    fn outcome(
        _operation: &Self::Operation,
        _seen: &<Self::Operation as Operation>::Seen,
    ) -> &'static str {
        "answered"
    }
    /// True if a read saw a value that only this write can have put there.
    fn shows(
        _read: &Self::Operation,
        _seen: &<Self::Operation as Operation>::Seen,
        _write: &Self::Operation,
    ) -> bool {
        false
    }
    /// Judges the answered operations on an object by rules that hold in whatever order they were done.
    ///
    /// # Errors
    /// A rule is broken; the text says which.
    fn judge(
        _object: u64,
        _answered: &[(Self::Operation, <Self::Operation as Operation>::Seen)],
    ) -> Result<(), String> {
        Ok(())
    }
}

/// Bytes that follow from a seed.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (seed.wrapping_mul(31).wrapping_add(i * 7 + i / 251)) as u8)
        .collect()
}
