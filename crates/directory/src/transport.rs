//! The directory's access to other nodes: opaque bytes there and back, over connections of the node's.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use staves_model::NodeId;

/// The result of a transport's call.
pub type CallFuture = Pin<Box<dyn Future<Output = Result<Bytes, TransportError>> + Send>>;

/// Carries one request to another node's `Directory::handle` and its answer back.
///
/// An implementation MUST end every call within its deadline, MUST answer [`TransportError::Refused`] at once
/// if nobody listens at the address, and SHOULD keep these small messages out of the way of bulk data: a late
/// heartbeat costs an election. It need not check who answers; the bytes name the node they are for.
pub trait Transport: Send + Sync + 'static {
    /// Calls the node at `addr`. `target` is `None` while a starting node does not know the receiver's id.
    fn call(
        &self,
        target: Option<NodeId>,
        addr: &str,
        bytes: Bytes,
        deadline: Duration,
    ) -> CallFuture;
}

/// The failure of a call.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum TransportError {
    /// Nobody listens there: the request was not delivered.
    #[error("{addr} refused the connection: {reason}")]
    Refused {
        /// The address.
        addr: String,
        /// The system's error.
        reason: String,
    },
    /// It was not sent (a full queue, a name that does not resolve): the request was not delivered.
    #[error("nothing could be sent to {addr}: {reason}")]
    NotSent {
        /// The address.
        addr: String,
        /// The reason.
        reason: String,
    },
    /// No answer: the request may or may not have been delivered.
    #[error("{addr} did not answer within {} ms", waited.as_millis())]
    TimedOut {
        /// The address.
        addr: String,
        /// The time waited.
        waited: Duration,
    },
    /// The connection broke: the request may or may not have been delivered.
    #[error("the connection to {addr} broke: {reason}")]
    Broken {
        /// The address.
        addr: String,
        /// The system's error.
        reason: String,
    },
}

impl TransportError {
    /// True if the request certainly did not arrive, so that sending it again does no harm.
    pub fn undelivered(&self) -> bool {
        matches!(
            self,
            TransportError::Refused { .. } | TransportError::NotSent { .. }
        )
    }
}
