//! The bodies of requests, and the memory that they take.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Incoming};
use staves_client::ErrorCode;
use staves_net::{InFlight, InFlightPart};
use tokio::time::{Instant, timeout};

use super::answers::HttpError;
use crate::log_gateway::error::LogError;
use crate::log_gateway::{APPEND_RECORDS_MAX, LOG_BATCH_BYTES_MAX, room};

/// Most bytes of a body: the records of an append, and the ends of their lines.
pub(super) const BODY_BYTES_MAX: usize = LOG_BATCH_BYTES_MAX + 2 * APPEND_RECORDS_MAX;
/// A body is in memory twice for a moment: as it came, and as it is sent on.
const COPIES: usize = 2;

/// The body of a request, within a time, and its memory.
pub(super) async fn receive(
    body: Incoming,
    memory: &Arc<InFlight>,
    time: Duration,
) -> Result<(Bytes, InFlightPart), HttpError> {
    match timeout(time, receive_all(body, memory, Instant::now() + time)).await {
        Ok(received) => received,
        Err(_) => {
            let text = format!("the body did not come whole within {time:?}; nothing was done");
            Err(HttpError::slow(text))
        }
    }
}

async fn receive_all(
    mut body: Incoming,
    memory: &Arc<InFlight>,
    until: Instant,
) -> Result<(Bytes, InFlightPart), HttpError> {
    let mut part = InFlightPart::of_request(memory.clone());
    let mut all = BytesMut::new();
    if let Some(length) = body.size_hint().exact() {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        check_length(length)?;
        room(&mut part, COPIES * length, until).await?;
        all.reserve(length);
    }
    loop {
        let next = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        let frame = tokio::select! {
            frame = next => frame,
            () = part.stuck() => {
                let text = "the body comes too slowly, and others wait for its memory; nothing was done";
                return Err(HttpError::slow(text));
            }
        };
        let Some(frame) = frame else {
            return Ok((all.freeze(), part));
        };
        let frame = frame.map_err(|error| {
            let text = format!("the body cannot be read: {error}; nothing was done");
            LogError::of(ErrorCode::Malformed, text)
        })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let length = all.len() + data.len();
        check_length(length)?;
        room(&mut part, COPIES * length.max(all.capacity()), until).await?;
        part.moved(data.len());
        all.extend_from_slice(&data);
    }
}

fn check_length(length: usize) -> Result<(), HttpError> {
    if length <= BODY_BYTES_MAX {
        return Ok(());
    }
    let text = format!(
        "a body of {length} bytes or more: one has {BODY_BYTES_MAX} at most, and its records {LOG_BATCH_BYTES_MAX}; split it; nothing was done"
    );
    Err(LogError::of(ErrorCode::TooLarge, text).into())
}

/// The records of a body of JSON lines, each as it stands there.
pub(super) fn lines(body: &Bytes) -> Result<Vec<Bytes>, HttpError> {
    let mut records = Vec::new();
    let mut begin = 0;
    while begin < body.len() {
        let rest = &body[begin..];
        let end = rest.iter().position(|byte| *byte == b'\n');
        let mut line = body.slice(begin..begin + end.unwrap_or(rest.len()));
        begin += line.len() + 1;
        if line.last() == Some(&b'\r') {
            line.truncate(line.len() - 1);
        }
        let number = records.len() + 1;
        if number > APPEND_RECORDS_MAX {
            let text = format!(
                "the body has more than {APPEND_RECORDS_MAX} lines: append fewer at a time; nothing was done"
            );
            return Err(LogError::of(ErrorCode::TooLarge, text).into());
        }
        check_json(&line, number)?;
        records.push(line);
    }
    if records.is_empty() {
        let text = "the body has no lines: send a line of JSON for each record; nothing was done";
        return Err(LogError::of(ErrorCode::Malformed, text).into());
    }
    Ok(records)
}

fn check_json(line: &[u8], number: usize) -> Result<(), HttpError> {
    // JSON that is passed over is not looked at for UTF-8.
    let json = match std::str::from_utf8(line) {
        Ok(text) => serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|e| e.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match json {
        Ok(_) => Ok(()),
        Err(reason) => {
            let text = format!(
                "line {number} is no JSON: {reason}; send lines of JSON, or one record with another content-type; nothing was done"
            );
            Err(LogError::of(ErrorCode::Malformed, text).into())
        }
    }
}
