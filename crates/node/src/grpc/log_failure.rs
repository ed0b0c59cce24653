//! Calls on logs as the gateway has them, and gRPC's codes for their failures.

use std::time::Duration;

use staves_client::ErrorCode;
use staves_grpc::{POSITION, TAIL, TRIM};
use tokio::time::Instant;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use super::failure::settled;
use crate::log_gateway::error::{ConditionFound, LogError, Outside};
use crate::log_gateway::{LogTarget, REQUEST_MAX};

/// The status of a call on a log that failed.
pub(super) fn status(error: &LogError) -> Status {
    let code = match error.code {
        _ if error.outside.is_some() => Code::OutOfRange,
        ErrorCode::NotFound => Code::NotFound,
        ErrorCode::Malformed | ErrorCode::Unsupported | ErrorCode::TooLarge => {
            Code::InvalidArgument
        }
        ErrorCode::Refused => Code::FailedPrecondition,
        ErrorCode::Denied | ErrorCode::WrongCluster => Code::PermissionDenied,
        ErrorCode::OutOfMemory | ErrorCode::LogFull => Code::ResourceExhausted,
        ErrorCode::Lost => Code::DataLoss,
        ErrorCode::Deadline => Code::DeadlineExceeded,
        // Of a change that was sent it is not known.
        ErrorCode::Unreachable if error.is_uncertain => Code::DeadlineExceeded,
        code if code.worth_retrying() => Code::Unavailable,
        _ => Code::Internal,
    };
    let mut status = match error.is_uncertain {
        true => Status::new(code, error.text.clone()),
        false => settled(code, error.text.clone()),
    };
    let outside = error.outside.map(|outside| match outside {
        Outside::Trimmed(from) => (TRIM, from),
        Outside::PastTail(tail) => (TAIL, tail),
    });
    let found = error.found.and_then(|found| match found {
        ConditionFound::Tail(tail) => Some((TAIL, tail)),
        ConditionFound::Cursor(position) => position.map(|position| (POSITION, position)),
    });
    for (key, number) in outside.into_iter().chain(found) {
        status
            .metadata_mut()
            .insert(key, MetadataValue::from(number));
    }
    status
}

pub(super) fn failed(error: LogError) -> Status {
    status(&error)
}

/// The log that a call names.
pub(super) fn target(name: String, pool: Option<String>) -> LogTarget {
    LogTarget { name, pool }
}

/// The end of a call's time; 0 and more than the most are the most.
pub(super) fn until(timeout_ms: u32) -> Instant {
    let time = match timeout_ms {
        0 => REQUEST_MAX,
        ms => REQUEST_MAX.min(Duration::from_millis(ms.into())),
    };
    Instant::now() + time
}
