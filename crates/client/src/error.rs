//! The errors of a client, by the remedy that its user has.
//!
//! | error | what to do |
//! | --- | --- |
//! | [`NoAddress`](ClientError::NoAddress) | name a node |
//! | [`Unreachable`](ClientError::Unreachable) | check the addresses, and that nodes run; nothing was done |
//! | [`NoSuchPool`](ClientError::NoSuchPool) | set [`pool`](crate::ClientOptions::pool), or make the pool |
//! | [`NoSuchRegion`](ClientError::NoSuchRegion) | make the region; a node that reaches no majority may know an old map |
//! | [`Operation`](ClientError::Operation) | by its code; the client has asked again for as long as that could help |
//! | [`Net`](ClientError::Net) | a single node was asked by name and did not answer: ask again, or another |
//!
//! Of the codes of an operation, [`OutOfMemory`](ErrorCode::OutOfMemory),
//! [`NotAnInteger`](ErrorCode::NotAnInteger), [`TooLarge`](ErrorCode::TooLarge) and their kin say what is
//! wrong with it; [`NotServing`](ErrorCode::NotServing) and [`Busy`](ErrorCode::Busy) that nobody could do
//! it in time, and that nothing was done; [`Lost`](ErrorCode::Lost) that its bytes are gone for good.
//! [`Deadline`](ErrorCode::Deadline), [`Unreachable`](ErrorCode::Unreachable) and
//! [`Forgotten`](ErrorCode::Forgotten) leave open whether a write was done
//! ([`ClientError::is_uncertain`]); so it is taken, to be on the safe side, with
//! [`AnswerGone`](ErrorCode::AnswerGone), which says that it was.

use staves_net::NetError;
use staves_wire::ErrorCode;

/// The reason why a request has no answer.
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
        /// The last failure.
        last: String,
        /// Time ran out.
        late: bool,
    },
    /// The cluster has no such pool.
    #[error("there is no {service} pool '{name}'{instead}")]
    NoSuchPool {
        /// The service.
        service: &'static str,
        /// The name.
        name: String,
        /// The contents of the pool of that name, or the pools that the service has.
        instead: String,
    },
    /// The cluster has no such region.
    #[error("there is no region '{name}'; 'staves memory list' shows those there are")]
    NoSuchRegion {
        /// The name.
        name: String,
    },
    /// The operation was refused, or its outcome is not known: see the code.
    #[error("{text} ({code})")]
    Operation {
        /// Its kind.
        code: ErrorCode,
        /// Its text.
        text: String,
    },
    /// One node, asked by name, did not answer as it should.
    #[error(transparent)]
    Net(#[from] NetError),
}

impl ClientError {
    /// An operation that was refused, or whose outcome is not known.
    pub(crate) fn of(code: ErrorCode, text: impl Into<String>) -> ClientError {
        let text = text.into();
        ClientError::Operation { code, text }
    }

    /// Returns true if a write may or may not have been done. If not, it is certain that it was not. A read that
    /// failed may simply be asked again.
    pub fn is_uncertain(&self) -> bool {
        match self {
            ClientError::Operation { code, .. } => !code.nothing_done(),
            ClientError::Net(error) => !error.nothing_done(),
            // Said before anything is sent.
            ClientError::NoAddress
            | ClientError::Unreachable { .. }
            | ClientError::NoSuchPool { .. }
            | ClientError::NoSuchRegion { .. } => false,
        }
    }

    /// The code that fits, for passing it on.
    pub fn code(&self) -> ErrorCode {
        match self {
            ClientError::NoAddress => ErrorCode::Unreachable,
            ClientError::Unreachable { late: true, .. } => ErrorCode::Deadline,
            ClientError::Unreachable { .. } => ErrorCode::Unreachable,
            ClientError::NoSuchPool { .. } | ClientError::NoSuchRegion { .. } => {
                ErrorCode::NotFound
            }
            ClientError::Operation { code, .. } => *code,
            ClientError::Net(error) => error.code(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_have_been_done_is_uncertain() {
        let operation = |code| ClientError::Operation {
            code,
            text: String::new(),
        };
        for code in ErrorCode::ALL {
            let uncertain = matches!(
                code,
                ErrorCode::Deadline
                    | ErrorCode::LogFull
                    | ErrorCode::Unreachable
                    | ErrorCode::Forgotten
                    | ErrorCode::AnswerGone
                    | ErrorCode::Internal
            );
            assert_eq!(operation(*code).is_uncertain(), uncertain, "{code}");
        }
        // Its code says "deadline" to those it is passed on to, but nobody was ever asked.
        let nobody = ClientError::Unreachable {
            tried: String::new(),
            last: String::new(),
            late: true,
        };
        assert!(!nobody.is_uncertain() && !ClientError::NoAddress.is_uncertain());
    }
}
