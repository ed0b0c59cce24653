//! The reasons why appends end without a position.

use super::bounds::AppendBound;
use crate::types::Position;

/// The reason why an append is over without a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AppendError {
    /// Too much is in flight. Nothing was sent.
    #[error("too many appends or bytes are in flight: wait for some of them")]
    Busy,
    /// All numbers of appends are used. Nothing was sent.
    #[error("this client has used all its numbers: open the log anew")]
    Exhausted,
    /// The append breaks a bound. Nothing was sent.
    #[error("{0}")]
    Invalid(AppendBound),
    /// No answer came in time: it may be in the log.
    #[error(
        "no unit acknowledged the append in time: it may be in the log; see that its units and its sequencer are up"
    )]
    Timeout,
    /// No unit of the log had room for its data: it is not in the log.
    #[error(
        "no unit of the log had room for the append, which is not in the log: trim logs ('staves log trim'), delete some, or give their pool more ('staves pool set POOL --memory SIZE')"
    )]
    NoRoom,
    /// The log had more than it keeps until the deadline, and a cursor that had not passed it: the append may be in the log.
    #[error(
        "the log is full: it keeps what its oldest cursor has not passed; move or delete that cursor, trim the log, or let it discard old records. The append may be in the log: read its end before it is appended again"
    )]
    Full,
    /// The log had as many tags as it remembers until the deadline, and the append brought others: it may be in the log.
    #[error(
        "the log remembers as many tags as it can (1,048,576), and the append brings more: trim the log, which lets it forget those that have no record any more, or use fewer tags. The append may be in the log: read its end before it is appended again"
    )]
    TooManyTags,
    /// Its condition does not hold, and never will: it is not in the log.
    #[error("the condition of the append does not hold: the tail is {tail}")]
    ConditionFailed {
        /// The tail of the condition's stream, or of the log.
        tail: Position,
    },
    /// A unit or sequencer refused it: it is not in the log.
    #[error("the log refused the append as malformed or given up: open the log anew")]
    Refused,
    /// Its session ended while it was under way: it may be in the log.
    #[error(
        "the session of the append expired while it was under way, for the log has seen too many newer ones: it may be in the log; read the log's end before it is appended again"
    )]
    Expired,
}
