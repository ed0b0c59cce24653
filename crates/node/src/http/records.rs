//! Requests on the records of a log.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use serde_json::json;
use staves_net::InFlightPart;
use tokio::sync::mpsc;

use super::answers::{HttpError, JSON_LINES, json_answer, log_json, record_json};
use super::bodies::{lines, receive};
use super::connection::HttpConnection;
use super::query::QueryPairs;
use crate::log_gateway::appends::GatewayAppend;
use crate::log_gateway::{LogBatch, READ_RECORDS_MAX, ReadFrom};
use crate::pieces::{PiecedBody, is_taken};

/// The position to go on at, and the log's tail.
const NEXT: &str = "staves-next";
const TAIL: &str = "staves-tail";

/// Reads a log, or shows it where no position, tag or count is named.
pub(super) async fn read_or_show<B>(
    connection: &Arc<HttpConnection>,
    name: String,
    request: &Request<B>,
) -> Result<Response<Body>, HttpError> {
    let known = ["from", "tag", "count", "pool", "timeout_ms"];
    let query = QueryPairs::parse(request.uri().query(), &known)?;
    let target = query.target(name);
    let until = query.until()?;
    let from = ReadFrom {
        position: query.number("from")?,
        tag: query.number("tag")?,
    };
    let shows = from.position.or(from.tag).is_none() && query.text("count").is_none();
    if shows {
        let stat = connection.logs().show(&target, until).await?;
        return Ok(json_answer(StatusCode::OK, &log_json(&stat)));
    }
    let count = query.count("count", READ_RECORDS_MAX)?;
    let batch = connection.logs().read(&target, from, count, until).await?;
    connection.door.places.state.count_read(0);
    Ok(lines_answer(batch, connection))
}

/// Appends the body.
pub(super) async fn append(
    connection: &HttpConnection,
    name: String,
    request: Request<Incoming>,
) -> Result<Response<Body>, HttpError> {
    let known = ["tag", "if_tail", "if_tag", "pool", "timeout_ms"];
    let query = QueryPairs::parse(request.uri().query(), &known)?;
    let target = query.target(name);
    let tags = query.numbers("tag")?;
    let condition = (query.number("if_tail")?, query.number("if_tag")?);
    let (head, body) = request.into_parts();
    let memory = &connection.logs().figures.memory;
    let (body, _part) = receive(body, memory, connection.door.times.body).await?;
    let kind = head.headers.get(CONTENT_TYPE).map(|kind| kind.as_bytes());
    let kind = kind.and_then(|kind| kind.split(|byte| *byte == b';').next());
    let is_lines = kind.is_some_and(|kind| {
        kind.trim_ascii()
            .eq_ignore_ascii_case(JSON_LINES.as_bytes())
    });
    let records = match is_lines {
        true => lines(&body)?,
        false => vec![body],
    };
    let count = records.len() as u64;
    let append = GatewayAppend::new(records, tags, condition)?;
    let first = connection.logs().append(&target, append, query.until()?);
    let first = first.await?;
    connection.door.places.state.count_write(0);
    let positions: Vec<u64> = (first..first.saturating_add(count)).collect();
    let value = json!({ "log": target.name, "positions": positions });
    Ok(json_answer(StatusCode::OK, &value))
}

/// Gives up all below a position.
pub(super) async fn trim<B>(
    connection: &HttpConnection,
    name: String,
    request: &Request<B>,
) -> Result<Response<Body>, HttpError> {
    let query = QueryPairs::parse(request.uri().query(), &["to", "pool", "timeout_ms"])?;
    let target = query.target(name);
    let Some(to) = query.number("to")? else {
        let text = "to is missing: give the first position that is to be kept, ?to=POSITION";
        return Err(HttpError::malformed(text));
    };
    let trimmed = connection.logs().trim(&target, to, query.until()?).await?;
    let mut value = log_json(&trimmed);
    value["result"] = "trimmed".into();
    Ok(json_answer(StatusCode::OK, &value))
}

/// Gives up the record of one position.
pub(super) async fn punch<B>(
    connection: &HttpConnection,
    name: String,
    request: &Request<B>,
) -> Result<Response<Body>, HttpError> {
    let query = QueryPairs::parse(request.uri().query(), &["at", "pool", "timeout_ms"])?;
    let target = query.target(name);
    let Some(at) = query.number("at")? else {
        let text = "at is missing: give the position whose record is to go, ?at=POSITION";
        return Err(HttpError::malformed(text));
    };
    connection.logs().punch(&target, at, query.until()?).await?;
    let value = json!({ "log": target.name, "position": at, "result": "punched" });
    Ok(json_answer(StatusCode::OK, &value))
}

/// An answer of a line for each record, whose memory is held until it has left.
fn lines_answer(batch: LogBatch, connection: &Arc<HttpConnection>) -> Response<Body> {
    let LogBatch {
        records,
        next,
        tail,
        mut part,
    } = batch;
    let mut lines = String::new();
    for (position, record) in &records {
        lines += &record_json(*position, record).to_string();
        lines.push('\n');
    }
    drop(records);
    part.grow_to(lines.len());
    let mut response = Response::new(held(lines.into(), part, connection));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON_LINES));
    headers.insert(NEXT, next.into());
    headers.insert(TAIL, tail.into());
    response
}

/// A body whose memory is held until it has left, or its client is seen not to take it.
fn held(bytes: Bytes, mut part: InFlightPart, connection: &Arc<HttpConnection>) -> Body {
    let (sent, mut progress) = mpsc::unbounded_channel();
    let (connection, length) = (connection.clone(), bytes.len());
    tokio::spawn(async move {
        if !is_taken(&mut part, &mut progress, length).await {
            connection.close();
        }
    });
    Body::new(PiecedBody::new(Body::from(bytes), sent))
}
