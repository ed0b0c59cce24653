//! Errors of the client library.

use tonic::{Code, Status};

use crate::SETTLED;

/// A call that was not done, or may not have been.
#[derive(Clone, Debug, thiserror::Error)]
pub enum VolumesError {
    /// An address of a node cannot be used.
    #[error("'{address}' is no address of a node: give HOST:PORT, of its gRPC door")]
    Address {
        /// The address as it was given.
        address: String,
    },
    /// There is no runtime of tokio to connect on.
    #[error("a client of volumes needs a runtime of tokio: make it on one")]
    NoRuntime,
    /// No node answered in time.
    #[error("no node did it in time; the last answer: {0}")]
    Deadline(String),
    /// The session is over. The last write may or may not have been done, if it was under way.
    #[error("the session is over: attach the volume again, and decide then what to write: {0}")]
    SessionOver(String),
    /// A node refused the call: it is not worth asking again.
    #[error("{text} ({code})")]
    Refused {
        /// gRPC's code.
        code: Code,
        /// The node's words.
        text: String,
    },
}

impl VolumesError {
    pub(crate) fn refused(status: &Status) -> VolumesError {
        VolumesError::Refused {
            code: status.code(),
            text: status.message().to_owned(),
        }
    }

    /// gRPC's code, where a node refused the call.
    pub fn code(&self) -> Option<Code> {
        match self {
            VolumesError::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// True if the node says that nothing of the call is under way any more.
pub(crate) fn is_settled(status: &Status) -> bool {
    status.metadata().contains_key(SETTLED)
}
