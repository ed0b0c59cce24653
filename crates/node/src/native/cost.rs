//! The cost of each request of the native protocol.
//!
//! A client's connection has only a few under way of those that cost more than some microseconds, and is not read until they are
//! answered (`staves_net::Reply::mark_costly`): those of many connections take turns.

use staves_log::service::UnitCall;
use staves_model::ServiceId;
use staves_wire::Opcode;
use staves_wire::cache::Op;
use staves_wire::memory::Action;
use staves_wire::service::NumberedOp;

/// The cost of a request to the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestCost {
    /// As much as its own bytes, or it has a bound of its own: it is worked on at once.
    Own,
    /// Little, and then it waits for others: a client's connection has only a few.
    Waits,
    /// Much: it goes through the [gate](crate::gate).
    Much,
}

/// True if an operation changes nothing, as far as that is known of its service.
pub(super) fn is_read(service: ServiceId, op: &NumberedOp) -> bool {
    match service {
        ServiceId::CACHE => Op::from_body(&op.body).is_ok_and(|op| !op.is_write()),
        ServiceId::LOG => UnitCall::is_read(&op.body),
        ServiceId::MEMORY => Action::from_body(&op.body).is_ok_and(|action| !action.is_write()),
        _ => false,
    }
}

/// True for the requests of applications to services: a bound on how many of them wait is theirs alone.
pub(super) fn is_of_a_service(of: Opcode) -> bool {
    matches!(
        of,
        Opcode::Service | Opcode::FileRead | Opcode::FileFetch | Opcode::FilePut | Opcode::LogAsk
    )
}

/// The cost of each request.
pub(super) fn cost(of: Opcode) -> RequestCost {
    match of {
        // What is read and written is bounded by the memory for it; maps are encoded once, and wait for room; signs are only noted.
        Opcode::Service
        | Opcode::FileRead
        | Opcode::FileFetch
        | Opcode::FilePut
        | Opcode::GetMap
        | Opcode::LogAsk
        | Opcode::Report => RequestCost::Own,
        Opcode::FileLost
        | Opcode::LogAppoint
        | Opcode::NodeStop
        | Opcode::NodeStopForced
        | Opcode::NodeDrain
        | Opcode::NodeDisk
        | Opcode::NodeResume => RequestCost::Waits,
        Opcode::CacheStats
        | Opcode::Status
        | Opcode::GroupState
        | Opcode::GroupSums
        | Opcode::GroupMend
        | Opcode::KeyRange
        | Opcode::Propose
        | Opcode::FileKeys
        | Opcode::FileChanges
        | Opcode::FileCheck
        | Opcode::FileUse
        | Opcode::FileAway => RequestCost::Much,
        // Not asked of a running node: refused, or answered before.
        Opcode::Hello | Opcode::Ping | Opcode::Prove | Opcode::Group | Opcode::Raft => {
            RequestCost::Own
        }
        // Answers are none of a handler's.
        Opcode::Welcome
        | Opcode::Pong
        | Opcode::Error
        | Opcode::Done
        | Opcode::Challenge
        | Opcode::Proven
        | Opcode::CacheStatsAnswer
        | Opcode::ServiceAnswers
        | Opcode::LogSaid
        | Opcode::RaftAnswer
        | Opcode::Proposed
        | Opcode::MapAnswer
        | Opcode::FileBytes
        | Opcode::FileKeysAnswer
        | Opcode::FileChecked
        | Opcode::FileChangesAnswer
        | Opcode::FileLostAnswer
        | Opcode::StatusAnswer
        | Opcode::KeyRangeAnswer
        | Opcode::GroupStateAnswer
        | Opcode::GroupSumsAnswer => RequestCost::Own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_log::{BucketRequest, LogId, RecordRequest, UnitOp, UnitRequest};
    use staves_model::{GroupId, MemberSlot};
    use staves_wire::service::Address;

    /// Regression: reads of logs counted as writes, and what they answer was not bounded by the memory for it.
    #[test]
    fn reads_of_logs_are_known_as_reads() {
        let is_read = |request| {
            let op = NumberedOp {
                number: 0,
                to: Address::Bucket(GroupId(1), MemberSlot(0)),
                body: UnitCall::Request(request).into_body(),
            };
            is_read(ServiceId::LOG, &op)
        };
        let unit = |op| {
            let log = LogId(1);
            BucketRequest::Unit(UnitRequest { log, op })
        };
        assert!(is_read(unit(UnitOp::ReadPage { page: 1 })));
        assert!(!is_read(unit(UnitOp::Punch { position: 1 })));
        let name = || "l".to_owned();
        assert!(is_read(BucketRequest::Record(RecordRequest::View {
            name: name()
        })));
        assert!(!is_read(BucketRequest::Record(RecordRequest::Delete {
            name: name()
        })));
    }
}
