//! The errors of appends and reads, as the log's user gets them.

use staves_log::{AppendError, ReadFailure};
use staves_wire::ErrorCode;

use super::Actor;
use crate::error::ClientError;

impl Actor {
    /// The last trouble, as the reason of what did not come in time.
    fn because(&self) -> String {
        let trouble = self.trouble.as_ref();
        trouble.map_or_else(String::new, |error| format!("; the last answer: {error}"))
    }

    pub(super) fn append_error(&self, error: AppendError) -> ClientError {
        let code = match error {
            AppendError::Busy => ErrorCode::Busy,
            AppendError::NoRoom => ErrorCode::OutOfMemory,
            AppendError::Timeout | AppendError::TooManyTags | AppendError::Expired => {
                ErrorCode::Deadline
            }
            AppendError::Full => ErrorCode::LogFull,
            AppendError::Exhausted
            | AppendError::Invalid(_)
            | AppendError::ConditionFailed { .. }
            | AppendError::Refused => ErrorCode::Refused,
        };
        let because = match error {
            AppendError::Timeout => self.because(),
            _ => String::new(),
        };
        ClientError::of(code, format!("log '{}': {error}{because}", self.name))
    }

    pub(super) fn read_error(&self, error: ReadFailure) -> ClientError {
        let (code, because) = match error {
            ReadFailure::Busy => (ErrorCode::Busy, String::new()),
            ReadFailure::Timeout => (ErrorCode::Deadline, self.because()),
        };
        ClientError::of(code, format!("log '{}': {error}{because}", self.name))
    }
}
