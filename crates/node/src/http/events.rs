//! Followers by server-sent events, which browsers and `curl` read.

use std::sync::Arc;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::Frame;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

use super::answers::{HttpError, error_json, record_json};
use super::connection::HttpConnection;
use super::query::QueryPairs;
use crate::log_gateway::follow::{FollowEvent, FollowForm, FollowFrom, Follower};
use crate::pieces::PiecedBody;

const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
/// The id of the last event that a browser had, as it connects anew.
const LAST_EVENT_ID: &str = "last-event-id";

/// Records as events, with their positions as ids.
struct SseForm;

impl FollowForm for SseForm {
    type Item = Bytes;

    fn item(event: FollowEvent) -> Option<(Bytes, usize)> {
        let text = match event {
            FollowEvent::Records(records) => {
                let event = |(position, record): &(u64, Bytes)| {
                    // JSON has no line ends within.
                    format!(
                        "id: {position}\ndata: {}\n\n",
                        record_json(*position, record)
                    )
                };
                records.iter().map(event).collect()
            }
            FollowEvent::Quiet => ":\n\n".to_owned(),
            FollowEvent::Ended(error) => format!("event: error\ndata: {}\n\n", error_json(&error)),
        };
        let bytes = text.len();
        Some((text.into(), bytes))
    }
}

/// The events of a follower, as they come.
struct EventBody(mpsc::Receiver<Bytes>);

impl HttpBody for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.0.poll_recv(cx);
        next.map(|next| next.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// Follows a log.
pub(super) async fn follow<B>(
    connection: &Arc<HttpConnection>,
    name: String,
    request: &Request<B>,
) -> Result<Response<Body>, HttpError> {
    let query = QueryPairs::parse(request.uri().query(), &["from", "tag", "pool"])?;
    let last = request.headers().get(LAST_EVENT_ID);
    let from = match last {
        // A browser asks for the same address again, and says by this how far it came.
        Some(last) if !last.is_empty() => FollowFrom::Position(behind(last)?),
        _ => match query.text("from") {
            None => FollowFrom::Begin,
            Some("tail") => FollowFrom::Tail,
            Some(_) => FollowFrom::Position(query.number("from")?.unwrap_or_default()),
        },
    };
    let target = query.target(name);
    let from = (from, query.number("tag")?);
    let follower = Follower::begin(connection.logs(), target, from, query.until()?).await?;
    let (items, events) = mpsc::channel(1);
    let (sent, progress) = mpsc::unbounded_channel();
    let connection = connection.clone();
    tokio::spawn(async move {
        if !follower.run::<SseForm>(items, progress).await {
            connection.close();
        }
    });
    let body = Body::new(PiecedBody::new(EventBody(events), sent));
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, EVENTS);
    response.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    Ok(response)
}

/// The position behind the last event.
fn behind(last: &HeaderValue) -> Result<u64, HttpError> {
    let text = last.to_str().unwrap_or_default();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let position = text.parse::<u64>().ok().filter(|_| is_number);
    position
        .and_then(|last| last.checked_add(1))
        .ok_or_else(|| {
            let text = "Last-Event-ID is no position of this log: leave it out, and give from";
            HttpError::malformed(text)
        })
}
