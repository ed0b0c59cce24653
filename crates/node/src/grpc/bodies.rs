//! The messages of calls, and the memory that they take.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::body::{Body as HttpBody, Incoming};
use staves_net::{InFlight, InFlightPart};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::{Code, Response, Status};

use super::connection::GrpcConnection;
use super::failure::{settled, status};
use crate::pieces::{PiecedBody, is_taken};
use crate::volumes::error::BlockError;
use crate::volumes::memory::memory_of;

/// gRPC's head of a message: a flag, and the length.
const HEAD_BYTES: usize = 5;
/// The time that a message may take to come.
const RECEIVE_MAX: Duration = Duration::from_secs(30);
/// A message is in memory twice for a moment: as it came or goes, and decoded.
const COPIES: usize = 2;

/// The memory for an answer, until the client has taken it. The extension of a response.
#[derive(Clone)]
pub(super) struct AnswerMemory(Arc<parking_lot::Mutex<Option<InFlightPart>>>);

/// The receiver of what has left of a stream, whose sender holds the memory. The extension of a response.
#[derive(Clone)]
pub(super) struct StreamProgress(pub(super) mpsc::UnboundedSender<usize>);

/// Memory for an answer of so many bytes.
pub(super) async fn answer_memory(
    memory: &Arc<InFlight>,
    bytes: usize,
) -> Result<InFlightPart, Status> {
    let part = memory_of(memory, COPIES * bytes).await;
    part.ok_or_else(|| status(&BlockError::no_memory()))
}

/// An answer whose memory is held until it has left.
pub(super) fn held<T>(answer: T, part: InFlightPart) -> Response<T> {
    let mut response = Response::new(answer);
    let memory = AnswerMemory(Arc::new(parking_lot::Mutex::new(Some(part))));
    response.extensions_mut().insert(memory);
    response
}

/// The message of a call as gRPC frames it, of `bytes_max` at most, and its memory.
pub(super) async fn receive(
    body: Incoming,
    bytes_max: usize,
    memory: &Arc<InFlight>,
) -> Result<(Bytes, Option<InFlightPart>), Status> {
    let received = timeout(RECEIVE_MAX, receive_all(body, bytes_max, memory));
    received.await.unwrap_or_else(|_| {
        let text = format!("the call did not come whole within {RECEIVE_MAX:?}; nothing was done");
        Err(settled(Code::DeadlineExceeded, text))
    })
}

async fn receive_all(
    mut body: Incoming,
    bytes_max: usize,
    memory: &Arc<InFlight>,
) -> Result<(Bytes, Option<InFlightPart>), Status> {
    let mut message = BytesMut::new();
    let mut part: Option<InFlightPart> = None;
    loop {
        if let (None, Some(length)) = (&part, length_of(&message)) {
            let whole = HEAD_BYTES.saturating_add(length);
            if length > bytes_max || message.len() > whole {
                return Err(too_large(length, bytes_max));
            }
            part = Some(answer_memory(memory, whole).await?);
            message.reserve(whole - message.len());
        }
        let next = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        let frame = match &mut part {
            None => next.await,
            Some(part) => tokio::select! {
                frame = next => frame,
                () = part.stuck() => {
                    let text = "the call comes too slowly, and others wait for its memory; nothing was done";
                    return Err(settled(Code::Unavailable, text));
                }
            },
        };
        let Some(frame) = frame else {
            return Ok((message.freeze(), part));
        };
        let frame = frame.map_err(|error| Status::cancelled(error.to_string()))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let whole = length_of(&message).map(|length| HEAD_BYTES + length);
        if whole.is_some_and(|whole| message.len() + data.len() > whole) {
            let text = "a call has one message, and this one has more; nothing was done";
            return Err(settled(Code::InvalidArgument, text));
        }
        message.extend_from_slice(&data);
        if let Some(part) = &mut part {
            part.moved(data.len());
        }
    }
}

fn length_of(message: &[u8]) -> Option<usize> {
    let length = message.get(1..HEAD_BYTES)?;
    Some(
        length
            .iter()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
    )
}

fn too_large(length: usize, bytes_max: usize) -> Status {
    let text = format!(
        "a message of {length} bytes, or more than one; this call takes one of {bytes_max} bytes at most: split it; nothing was done"
    );
    settled(Code::InvalidArgument, text)
}

/// Lets an answer leave in pieces, its memory held until the last.
pub(super) fn in_pieces(
    response: hyper::Response<Body>,
    connection: &Arc<GrpcConnection>,
) -> hyper::Response<Body> {
    let (mut head, body) = response.into_parts();
    if let Some(StreamProgress(sent)) = head.extensions.remove() {
        return hyper::Response::from_parts(head, Body::new(PiecedBody::new(body, sent)));
    }
    let memory = head.extensions.remove::<AnswerMemory>();
    let part = memory.and_then(|AnswerMemory(part)| part.lock().take());
    let Some(part) = part else {
        return hyper::Response::from_parts(head, body);
    };
    let (sent, progress) = mpsc::unbounded_channel();
    tokio::spawn(watch_over(part, progress, connection.clone()));
    hyper::Response::from_parts(head, Body::new(PiecedBody::new(body, sent)))
}

/// Holds the memory of an answer, and ends the connection of a client that does not take it.
async fn watch_over(
    mut part: InFlightPart,
    mut progress: mpsc::UnboundedReceiver<usize>,
    connection: Arc<GrpcConnection>,
) {
    if !is_taken(&mut part, &mut progress, usize::MAX).await {
        connection.close();
    }
}
