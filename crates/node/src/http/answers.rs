//! Answers of the door: JSON, and errors with the words of the other doors.

use axum::body::Body;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use staves_client::{AppendMode, ErrorCode, LogStat};

use crate::log_gateway::error::{ConditionFound, LogError, Outside};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The type of JSON lines.
pub(super) const JSON_LINES: &str = "application/x-ndjson";

/// A request that was not done, or may not have been, as HTTP has it.
#[derive(Debug)]
pub(super) struct HttpError {
    status: StatusCode,
    error: LogError,
    /// The methods that there are.
    allow: Option<&'static str>,
}

impl From<LogError> for HttpError {
    fn from(error: LogError) -> HttpError {
        HttpError {
            status: status(&error),
            error,
            allow: None,
        }
    }
}

impl HttpError {
    fn with(status: StatusCode, code: ErrorCode, text: impl Into<String>) -> HttpError {
        HttpError {
            status,
            error: LogError::of(code, text),
            allow: None,
        }
    }

    /// A request that makes no sense.
    pub(super) fn malformed(text: impl Into<String>) -> HttpError {
        HttpError::with(StatusCode::BAD_REQUEST, ErrorCode::Malformed, text)
    }

    /// A path that there is not.
    pub(super) fn no_path(text: impl Into<String>) -> HttpError {
        HttpError::with(StatusCode::NOT_FOUND, ErrorCode::NotFound, text)
    }

    /// A method that the path does not have.
    pub(super) fn no_method(allow: &'static str) -> HttpError {
        let text = format!("this path has the methods {allow}, and not this one");
        HttpError {
            allow: Some(allow),
            ..HttpError::with(StatusCode::METHOD_NOT_ALLOWED, ErrorCode::Unsupported, text)
        }
    }

    /// A host that is none of this node's names.
    pub(super) fn stranger(text: impl Into<String>) -> HttpError {
        HttpError::with(StatusCode::MISDIRECTED_REQUEST, ErrorCode::Denied, text)
    }

    /// A page of another origin.
    pub(super) fn denied(text: impl Into<String>) -> HttpError {
        HttpError::with(StatusCode::FORBIDDEN, ErrorCode::Denied, text)
    }

    /// A body that did not come.
    pub(super) fn slow(text: impl Into<String>) -> HttpError {
        HttpError::with(StatusCode::REQUEST_TIMEOUT, ErrorCode::Deadline, text)
    }

    /// The answer.
    pub(super) fn answer(self) -> Response<Body> {
        let mut response = json_answer(self.status, &error_json(&self.error));
        let headers = response.headers_mut();
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        let again = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::SERVICE_UNAVAILABLE,
        ];
        if again.contains(&self.status) {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

fn status(error: &LogError) -> StatusCode {
    match error.outside {
        Some(Outside::Trimmed(_)) => return StatusCode::GONE,
        Some(Outside::PastTail(_)) => return StatusCode::RANGE_NOT_SATISFIABLE,
        None => {}
    }
    match error.code {
        ErrorCode::Malformed | ErrorCode::Unsupported => StatusCode::BAD_REQUEST,
        ErrorCode::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorCode::Denied | ErrorCode::WrongCluster => StatusCode::FORBIDDEN,
        ErrorCode::NotFound => StatusCode::NOT_FOUND,
        ErrorCode::Refused => StatusCode::CONFLICT,
        ErrorCode::Deadline => StatusCode::GATEWAY_TIMEOUT,
        ErrorCode::OutOfMemory | ErrorCode::LogFull => StatusCode::INSUFFICIENT_STORAGE,
        // It may have been done: who asks again may do it twice.
        code if code.worth_retrying() && error.is_uncertain => StatusCode::GATEWAY_TIMEOUT,
        ErrorCode::Busy => StatusCode::TOO_MANY_REQUESTS,
        code if code.worth_retrying() => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// An error as JSON.
pub(super) fn error_json(error: &LogError) -> Value {
    let mut value = json!({
        "error": error.text,
        "code": error.code.word(),
        "may_have_been_done": error.is_uncertain,
    });
    match error.outside {
        Some(Outside::Trimmed(from)) => value["trim"] = from.into(),
        Some(Outside::PastTail(tail)) => value["tail"] = tail.into(),
        None => {}
    }
    match error.found {
        Some(ConditionFound::Tail(tail)) => value["tail"] = tail.into(),
        Some(ConditionFound::Cursor(position)) => value["position"] = position.into(),
        None => {}
    }
    value
}

/// An answer of one JSON value, in a line.
pub(super) fn json_answer(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(format!("{value}\n")));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

/// A log as JSON, as the program has it.
pub(super) fn log_json(stat: &LogStat) -> Value {
    let mode = match stat.mode {
        AppendMode::Bind => "bind",
        AppendMode::Predict => "predict",
        AppendMode::Corfu => "corfu",
    };
    json!({
        "log": stat.name,
        "pool": stat.pool,
        "mode": mode,
        "term": stat.term,
        "sequencer": stat.sequencer,
        "units": stat.units,
        "trim": stat.trim,
    })
}

/// A record as JSON: as text if it is some, or else in hexadecimal digits.
pub(super) fn record_json(position: u64, record: &[u8]) -> Value {
    match std::str::from_utf8(record) {
        Ok(text) => json!({ "position": position, "value": text }),
        Err(_) => {
            let hex = record.iter().map(|byte| format!("{byte:02x}"));
            json!({ "position": position, "value_hex": hex.collect::<String>() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: 503 says that nothing was done.
    #[test]
    fn only_of_what_was_not_done_it_is_said_that_it_may_be_asked_again() {
        let text = "nobody answers";
        for code in ErrorCode::ALL {
            let uncertain = status(&LogError::uncertain(*code, text));
            assert_ne!(uncertain, StatusCode::SERVICE_UNAVAILABLE, "{code}");
            assert_ne!(uncertain, StatusCode::TOO_MANY_REQUESTS, "{code}");
        }
        let settled = LogError::of(ErrorCode::Unreachable, text);
        assert_eq!(status(&settled), StatusCode::SERVICE_UNAVAILABLE);
        let full = LogError::uncertain(ErrorCode::LogFull, text);
        assert_eq!(status(&full), StatusCode::INSUFFICIENT_STORAGE);
    }
}
