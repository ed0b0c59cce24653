//! The failures between two processes, by the caller's possible reaction.

use std::io;

use staves_model::NodeId;
use staves_wire::directory::Sign;
use staves_wire::{ErrorCode, ErrorPacket};

/// The reason that there is no answer, or not the one that was wanted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NetError {
    /// No connection. Nothing was done.
    #[error("cannot connect to {addr}: {reason}")]
    Connect {
        /// The address tried.
        addr: String,
        /// The operating system's word for it.
        kind: io::ErrorKind,
        /// Its text.
        reason: String,
        /// The time of the tries.
        waited_ms: u32,
    },
    /// Connected, but the other side did not greet back as it should. Nothing was done.
    #[error("{addr} did not accept the hello: {reason}")]
    Hello {
        /// The address.
        addr: String,
        /// The reason.
        reason: String,
        /// The other side's code, if it gave one.
        code: Option<ErrorCode>,
    },
    /// Another node answers at the address. Nothing was done.
    #[error(
        "{addr} is node {found}, not node {wanted}: the address has a new owner, or the map is old"
    )]
    WrongNode {
        /// The address.
        addr: String,
        /// The node that should be there.
        wanted: NodeId,
        /// The node that is there.
        found: NodeId,
    },
    /// The map has no address for the node. Nothing was done.
    #[error("no address is known for node {node}")]
    NoAddress {
        /// The node.
        node: NodeId,
    },
    /// The message is larger than the other side takes. Nothing was done.
    #[error("a {what} message of {bytes} bytes is more than {addr} takes ({bytes_max})")]
    TooLarge {
        /// The address.
        addr: String,
        /// The message.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// The connection ended before the answer. The request may or may not have been done.
    #[error("the connection to {addr} ended: {reason}")]
    Closed {
        /// The address.
        addr: String,
        /// The reason.
        reason: String,
        /// The sign of life or death in it, if any.
        sign: Option<Sign>,
    },
    /// The answer took too long. The request may or may not have been done.
    #[error("{addr} did not answer a {what} request within {waited_ms} ms")]
    Deadline {
        /// The address.
        addr: String,
        /// The message that was to be answered.
        what: &'static str,
        /// The time that it had.
        waited_ms: u64,
        /// True if it had been sent at all.
        sent: bool,
        /// True if the other side sent anything after that: it is late and not silent.
        heard: bool,
    },
    /// The other side answered with an error packet.
    #[error("{addr} refused {what}: {packet}")]
    Refused {
        /// The address.
        addr: String,
        /// The message that it refused.
        what: &'static str,
        /// Its answer.
        packet: ErrorPacket,
    },
    /// An answer of the wrong kind: a fault in one of the two programs.
    #[error("{addr} answered {what} with {got}")]
    Unexpected {
        /// The address.
        addr: String,
        /// The message that was asked.
        what: &'static str,
        /// The message that came.
        got: &'static str,
    },
}

impl NetError {
    /// True if the request was certainly not executed.
    pub fn nothing_done(&self) -> bool {
        match self {
            NetError::Connect { .. }
            | NetError::Hello { .. }
            | NetError::WrongNode { .. }
            | NetError::NoAddress { .. }
            | NetError::TooLarge { .. } => true,
            NetError::Deadline { sent, .. } => !sent,
            NetError::Refused { packet, .. } => packet.code.nothing_done(),
            NetError::Closed { .. } | NetError::Unexpected { .. } => false,
        }
    }

    /// The sign of the other side's life or death in it (row D5), if any.
    pub fn sign(&self) -> Option<Sign> {
        match self {
            NetError::Connect { kind, .. } => Some(match kind {
                io::ErrorKind::ConnectionRefused => Sign::Refused,
                _ => Sign::Silent,
            }),
            // Node 0 is a process that has not joined yet: it may be the one that is wanted.
            NetError::WrongNode { found, .. } => (found.0 != 0).then_some(Sign::Refused),
            NetError::Closed { sign, .. } => *sign,
            NetError::Deadline {
                sent: true,
                heard: false,
                ..
            } => Some(Sign::Silent),
            NetError::Hello { code: None, .. } => Some(Sign::Failed),
            _ => None,
        }
    }

    /// The code that fits, for passing it on.
    pub fn code(&self) -> ErrorCode {
        match self {
            NetError::Deadline { .. } => ErrorCode::Deadline,
            NetError::Refused { packet, .. } => packet.code,
            NetError::Hello {
                code: Some(code), ..
            } => *code,
            NetError::TooLarge { .. } => ErrorCode::TooLarge,
            NetError::Unexpected { .. } => ErrorCode::Internal,
            _ => ErrorCode::Unreachable,
        }
    }
}
