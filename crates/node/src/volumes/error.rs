//! Requests on volumes that were not done, or may not have been.

use staves_client::ClientError;
use staves_wire::ErrorCode;

/// The kind of a failure. Each door has words of its own for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum VolumeFault {
    /// The session is over, and nothing of this request will take effect.
    SessionOver,
    /// There is no such volume any more.
    Deleted,
    /// The volume is attached to somebody else.
    Attached,
    /// The pool is full.
    Full,
    /// The request is wrong.
    BadRequest,
    /// The door does not do this.
    Unsupported,
    /// The node's memory for requests is taken by others.
    NoMemory,
    /// Nothing was done: it may be asked again, here or elsewhere.
    NotServing,
    /// It was not done in time.
    Late,
    /// More was lost than the pool's scheme bears.
    Lost,
    /// Anything else.
    Failed,
}

/// A request that was not done, or may not have been.
#[derive(Clone, Debug)]
pub(crate) struct BlockError {
    /// For the client.
    pub(crate) fault: VolumeFault,
    /// For people.
    pub(crate) text: String,
    /// The session is over: somebody else writes, or it is not known whether this was done. What may still be on its way must not
    /// take effect after what the client writes next.
    pub(crate) ends_session: bool,
}

impl BlockError {
    pub(crate) fn new(fault: VolumeFault, text: impl Into<String>) -> BlockError {
        BlockError {
            fault,
            text: text.into(),
            ends_session: false,
        }
    }

    pub(crate) fn no_memory() -> BlockError {
        let text = "the node's memory for requests is taken by others; ask again, or give it more (in_flight_bytes_max)";
        BlockError::new(VolumeFault::NoMemory, text)
    }

    pub(crate) fn of(code: ErrorCode, text: String, is_write: bool) -> BlockError {
        let fault = match code {
            ErrorCode::Fenced => VolumeFault::SessionOver,
            ErrorCode::NotFound => VolumeFault::Deleted,
            ErrorCode::OutOfMemory => VolumeFault::Full,
            ErrorCode::Malformed | ErrorCode::TooLarge => VolumeFault::BadRequest,
            ErrorCode::Lost => VolumeFault::Lost,
            ErrorCode::Deadline | ErrorCode::Unreachable => VolumeFault::Late,
            code if code.worth_retrying() => VolumeFault::NotServing,
            _ => VolumeFault::Failed,
        };
        let over = matches!(code, ErrorCode::Fenced | ErrorCode::NotFound);
        BlockError {
            fault,
            text,
            ends_session: over || (is_write && !code.nothing_done()),
        }
    }

    pub(crate) fn of_client(error: &ClientError, is_write: bool) -> BlockError {
        BlockError::of(error.code(), error.to_string(), is_write)
    }

    /// True if nothing of the request is on its way any more: it may be sent again in the same session.
    pub(crate) fn is_settled(&self) -> bool {
        let over = matches!(self.fault, VolumeFault::SessionOver | VolumeFault::Deleted);
        !self.ends_session || over
    }
}
