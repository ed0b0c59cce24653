//! The messages of the log, as plain values. Any of them may be lost, doubled or late; each carries the log's number.
//!
//! Every request has one reply: a request that a later one replaces is answered as [`UnitAnswer::Superseded`]. `D` is the data of a record: bytes
//! on the wire ([`Records`]), places at a unit's machine.

/// A value of an enum as the same variant of the enum with another parameter, and arms for those variants that have it.
macro_rules! retyped {
    ($value:expr, $type:ident {
        $($variant:ident $({ $($field:ident),* })?,)*
    } $($arms:tt)*) => {
        match $value {
            $($type::$variant $({ $($field),* })? => $type::$variant $({ $($field),* })?,)*
            $($arms)*
        }
    };
}

mod record;
mod sequencer;
mod unit;
mod unit_answer;

use bytes::Bytes;

pub use record::*;
pub use sequencer::*;
pub use unit::*;
pub use unit_answer::*;

/// The records of an append, one after another.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Records {
    /// Bytes of each: at least one record, at most `BATCH_RECORDS_MAX`.
    pub lens: Vec<u32>,
    /// All bytes: as many as `lens` add up to.
    pub bytes: Bytes,
}

impl Records {
    /// One record.
    pub fn one(bytes: Bytes) -> Records {
        let lens = vec![bytes.len() as u32];
        Records { lens, bytes }
    }

    /// The number of records.
    pub fn count(&self) -> u32 {
        self.lens.len() as u32
    }

    /// The bytes of each record, not copied.
    pub fn each(&self) -> impl Iterator<Item = Bytes> + '_ {
        let mut at = 0;
        self.lens.iter().map(move |len| {
            let end = (at + *len as usize).min(self.bytes.len());
            let record = self.bytes.slice(at.min(end)..end);
            at = end;
            record
        })
    }
}
