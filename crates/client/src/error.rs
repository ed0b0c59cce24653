//! What a client can be told, by what its user can do about it.

use staves_net::NetError;
use staves_wire::ErrorCode;

/// Why a request has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// No address was given.
    #[error("no address of a node was given: name one, for example 127.0.0.1:1600")]
    NoAddress,
    /// None of the nodes answered in time.
    #[error("no node of the cluster could be reached (tried {tried}): {last}")]
    Unreachable {
        /// The addresses, with commas.
        tried: String,
        /// What went wrong last.
        last: String,
        /// Whether time ran out.
        late: bool,
    },
    /// The cluster has no such pool.
    #[error("there is no pool '{name}'; there are: {have}")]
    NoSuchPool {
        /// The name.
        name: String,
        /// Those that there are, with commas.
        have: String,
    },
    /// The operation was refused, or its outcome is not known: see the code.
    #[error("{text} ({code})")]
    Operation {
        /// What kind.
        code: ErrorCode,
        /// What it says.
        text: String,
    },
    /// One node, asked by name, did not answer as it should.
    #[error(transparent)]
    Net(#[from] NetError),
}

impl ClientError {
    /// The code that fits, for passing it on.
    pub fn code(&self) -> ErrorCode {
        match self {
            ClientError::NoAddress => ErrorCode::Unreachable,
            ClientError::Unreachable { late: true, .. } => ErrorCode::Deadline,
            ClientError::Unreachable { .. } => ErrorCode::Unreachable,
            ClientError::NoSuchPool { .. } => ErrorCode::NotFound,
            ClientError::Operation { code, .. } => *code,
            ClientError::Net(error) => error.code(),
        }
    }
}
