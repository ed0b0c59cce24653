//! What a failure means to a script: its exit code.

use std::process::ExitCode;

use staves_net::NetError;
use staves_wire::ErrorCode;

/// A failure with an exit code of its own. Any other error is 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// No such thing.
    NotFound(String),
    /// The cluster could not be reached, or did not answer in time.
    Unreachable(String),
    /// `status --check` of a cluster that is not healthy.
    Degraded(String),
    /// The command line makes no sense, in a way that only the command sees.
    Usage(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Failure::NotFound(text)
        | Failure::Unreachable(text)
        | Failure::Degraded(text)
        | Failure::Usage(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for Failure {}

impl From<NetError> for Failure {
    fn from(error: NetError) -> Failure {
        Failure::Unreachable(error.to_string())
    }
}

/// An error of the network as a failure of the command: what could not be reached is told apart from
/// what was refused.
pub fn from_net(error: NetError) -> anyhow::Error {
    match error.code() {
        ErrorCode::NotFound => Failure::NotFound(error.to_string()).into(),
        code if is_unreachable(code) => Failure::Unreachable(error.to_string()).into(),
        _ => anyhow::Error::msg(error.to_string()),
    }
}

/// Whether an error code means that nobody answered for it.
pub fn is_unreachable(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::Deadline
            | ErrorCode::Unreachable
            | ErrorCode::NoQuorum
            | ErrorCode::NotLeader
            | ErrorCode::NotServing
            | ErrorCode::Busy
            | ErrorCode::Stopping
    )
}

/// The exit code of an error, wherever in its chain the reason stands.
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    let failure = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<Failure>());
    ExitCode::from(match failure {
        None => 1,
        Some(Failure::Usage(_)) => 2,
        Some(Failure::NotFound(_)) => 3,
        Some(Failure::Unreachable(_)) => 4,
        Some(Failure::Degraded(_)) => 5,
    })
}
