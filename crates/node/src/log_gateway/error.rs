//! Errors of requests on logs.

use staves_client::{AppendCondition, ClientError, ErrorCode};

/// Most bytes of an error's text.
const TEXT_BYTES_MAX: usize = 1000;

/// The place of a position that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outside {
    /// It was trimmed: the log begins here.
    Trimmed(u64),
    /// It is past the tail, which is here.
    PastTail(u64),
}

/// The state that a condition of a request was not true of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConditionFound {
    /// The tail of the log, or of the stream.
    Tail(u64),
    /// The position of the cursor; none if there is no such cursor.
    Cursor(Option<u64>),
}

/// A request that was not done, or may not have been.
#[derive(Clone, Debug)]
pub(crate) struct LogError {
    pub(crate) code: ErrorCode,
    pub(crate) text: String,
    /// A change may have been made all the same.
    pub(crate) is_uncertain: bool,
    /// The position that was asked for is not in the log.
    pub(crate) outside: Option<Outside>,
    /// A condition does not hold. Nothing was done, and nothing will be.
    pub(crate) found: Option<ConditionFound>,
}

impl LogError {
    /// A request that was not done.
    pub(crate) fn of(code: ErrorCode, text: impl Into<String>) -> LogError {
        LogError {
            code,
            text: bounded(text.into()),
            is_uncertain: false,
            outside: None,
            found: None,
        }
    }

    /// A change that may have been made.
    pub(crate) fn uncertain(code: ErrorCode, text: impl Into<String>) -> LogError {
        LogError {
            is_uncertain: true,
            ..LogError::of(code, text)
        }
    }

    pub(super) fn trimmed(name: &str, position: u64, from: u64) -> LogError {
        let text = format!("position {position} of log '{name}' is trimmed: read from {from} on");
        LogError {
            outside: Some(Outside::Trimmed(from)),
            ..LogError::of(ErrorCode::NotFound, text)
        }
    }

    pub(super) fn past_tail(name: &str, position: u64, tail: u64) -> LogError {
        let text = format!(
            "position {position} of log '{name}' is past its tail, {tail}: read from {tail} or below"
        );
        LogError {
            outside: Some(Outside::PastTail(tail)),
            ..LogError::of(ErrorCode::NotFound, text)
        }
    }

    pub(super) fn past_condition(name: &str, condition: AppendCondition, tail: u64) -> LogError {
        let of = match condition.tag {
            Some(tag) => format!("tag {tag} in log '{name}'"),
            None => format!("log '{name}'"),
        };
        let text = format!(
            "the condition failed: the tail of {of} is {tail}, past {}; nothing was appended. Read what came since, and append with if_tail {tail}",
            condition.tail
        );
        LogError {
            found: Some(ConditionFound::Tail(tail)),
            ..LogError::of(ErrorCode::Refused, text)
        }
    }

    pub(super) fn no_cursor(name: &str, cursor: &str) -> LogError {
        let text =
            format!("log '{name}' has no cursor '{cursor}': its cursors are listed under it");
        LogError::of(ErrorCode::NotFound, text)
    }

    pub(super) fn cursor_elsewhere(name: &str, cursor: &str, now: Option<u64>) -> LogError {
        let text = match now {
            Some(now) => format!(
                "cursor '{cursor}' of log '{name}' is at {now}, and was left there: read it anew, and set it with if_at {now}"
            ),
            None => format!("log '{name}' has no cursor '{cursor}': make it with if_new"),
        };
        LogError {
            found: Some(ConditionFound::Cursor(now)),
            ..LogError::of(ErrorCode::Refused, text)
        }
    }

    /// The same of a request that changes nothing.
    pub(super) fn settled(self) -> LogError {
        LogError {
            is_uncertain: false,
            ..self
        }
    }

    /// The same of a trimmed position, with where the log begins.
    pub(super) fn with_begin(self, name: &str, begin: u64) -> LogError {
        match self.outside {
            Some(Outside::Trimmed(above)) if begin >= above => {
                LogError::trimmed(name, above - 1, begin)
            }
            _ => self,
        }
    }

    /// The log itself is not there.
    pub(crate) fn is_gone(&self) -> bool {
        self.code == ErrorCode::NotFound && self.outside.is_none()
    }
}

impl From<ClientError> for LogError {
    fn from(error: ClientError) -> LogError {
        let text = match &error {
            ClientError::Operation { text, .. } => text.clone(),
            other => other.to_string(),
        };
        LogError {
            is_uncertain: error.is_uncertain(),
            ..LogError::of(error.code(), text)
        }
    }
}

/// A text that repeats what a client sent is no longer than others.
fn bounded(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        let mut end = TEXT_BYTES_MAX;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}
