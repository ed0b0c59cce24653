//! How the directory reaches other nodes: opaque bytes there and back, through whatever the node has.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use staves_model::NodeId;

/// What a transport's call comes to.
pub type CallFuture = Pin<Box<dyn Future<Output = Result<Bytes, TransportError>> + Send>>;

/// Carries one request to another node's `Directory::handle` and its answer back.
///
/// An implementation MUST end every call within its deadline, MUST answer [`TransportError::Refused`] at once
/// if nobody listens at the address, and SHOULD keep these small messages out of the way of bulk data: a late
/// heartbeat costs an election. It need not check who answers; the bytes name the node they are for.
pub trait Transport: Send + Sync + 'static {
    /// Calls the node at `addr`. `target` is `None` while a starting node does not know whom it calls.
    fn call(
        &self,
        target: Option<NodeId>,
        addr: &str,
        bytes: Bytes,
        deadline: Duration,
    ) -> CallFuture;
}

/// Why a call failed.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum TransportError {
    /// Nobody listens there: the request was not delivered.
    #[error("{addr} refused the connection: {reason}")]
    Refused {
        /// The address.
        addr: String,
        /// What the system said.
        reason: String,
    },
    /// It was not sent (a full queue, a name that does not resolve): the request was not delivered.
    #[error("nothing could be sent to {addr}: {reason}")]
    NotSent {
        /// The address.
        addr: String,
        /// Why.
        reason: String,
    },
    /// No answer: the request may or may not have been delivered.
    #[error("{addr} did not answer within {} ms", waited.as_millis())]
    TimedOut {
        /// The address.
        addr: String,
        /// How long.
        waited: Duration,
    },
    /// The connection broke: the request may or may not have been delivered.
    #[error("the connection to {addr} broke: {reason}")]
    Broken {
        /// The address.
        addr: String,
        /// What the system said.
        reason: String,
    },
}

impl TransportError {
    /// Whether the request certainly did not arrive, so that asking again does no harm.
    pub fn undelivered(&self) -> bool {
        matches!(
            self,
            TransportError::Refused { .. } | TransportError::NotSent { .. }
        )
    }
}
