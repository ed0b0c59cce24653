//! The operations of a reader: their input, output, bounds and failures.

use std::time::Duration;

use bytes::Bytes;

use crate::message::{
    SequencerReply, SequencerRequest, SlotAnswer, UnitReply, UnitRequest, WAIT_MS_MAX,
};
use crate::types::{LogView, Position, SequencerId, UnitId};

/// The bounds and times of a client's reads.
#[derive(Clone, Debug)]
pub struct ReadLimits {
    /// Most operations in flight.
    pub in_flight_max: usize,
    /// Most map pages that are kept.
    pub pages_max: usize,
    /// An operation without an answer is sent again after this time.
    pub retry: Duration,
    /// An undecided position is asked for again after this time.
    pub poll: Duration,
    /// A sequencer is asked to wait so long for its log to grow.
    pub wait: Duration,
    /// One that has no room for another wait is asked again after this time.
    pub wait_again: Duration,
    /// An operation is given up after this time.
    pub deadline: Duration,
}

impl Default for ReadLimits {
    fn default() -> ReadLimits {
        ReadLimits {
            in_flight_max: 1024,
            pages_max: 64,
            retry: Duration::from_millis(500),
            poll: Duration::from_millis(3),
            wait: Duration::from_millis(WAIT_MS_MAX as u64),
            wait_again: Duration::from_millis(50),
            deadline: Duration::from_secs(10),
        }
    }
}

/// An operation of a reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadOp {
    /// The content of a position.
    Read(Position),
    /// The tail, and with a tag the last positions of its stream.
    Tail(Option<u64>),
    /// Trims the log: positions below go.
    Trim(Position),
    /// Trims one record.
    Punch(Position),
    /// Waits until there is something to read, or for [`ReadLimits::wait`].
    Wait {
        /// The position that is to be decided, it and all below.
        position: Position,
        /// The stream of which a record is to lie there or above; none for any.
        tag: Option<u64>,
    },
}

/// The input of a step.
#[derive(Clone, Debug)]
pub enum ReaderEvent {
    /// Begins an operation, under the caller's number.
    Begin(u64, ReadOp),
    /// A unit's reply to a request of an operation.
    Unit(u64, UnitReply<Bytes>),
    /// A sequencer's reply.
    Sequencer(u64, SequencerReply),
    /// The log's open term.
    View(Box<LogView>),
    /// Time has passed.
    Tick,
}

/// The output of a step.
#[derive(Default, Debug)]
pub struct ReaderEffects {
    /// Requests to units, with the operation's number.
    pub units: Vec<(u64, UnitId, UnitRequest)>,
    /// Requests to sequencers.
    pub sequencers: Vec<(u64, SequencerId, SequencerRequest)>,
    /// The log's record is needed anew.
    pub view_wanted: bool,
    /// Operations that are over.
    pub done: Vec<(u64, Result<ReadResult, ReadFailure>)>,
}

/// The result of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReadResult {
    /// The content of a position, for ever. Never `Unwritten`.
    Slot(Position, SlotAnswer<Bytes>),
    /// The position was not given out yet.
    PastTail(Position),
    /// The tail: above all that was acknowledged before the operation began.
    Tail {
        /// The first position that was not given out.
        tail: Position,
        /// The last positions of the stream that was asked for.
        stream: Vec<Position>,
        /// Positions below are trimmed.
        trim: Position,
    },
    /// A wait is over. All below is decided, of a stream up to its last record.
    Grown(Position),
    /// The log or the record is trimmed.
    Trimmed,
    /// The trim lies past what is decided: nothing was done.
    TrimPastDecided,
}

/// The reason why an operation is over without a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadFailure {
    /// Too many operations are in flight. Nothing was sent.
    #[error("too many reads are in flight: wait for some of them")]
    Busy,
    /// No answer came in time.
    #[error("no answer came in time: see that the log's units and its sequencer are up")]
    Timeout,
}
