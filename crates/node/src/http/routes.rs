//! Requests, taken apart and done.

use std::sync::Arc;

use axum::body::Body;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST, ORIGIN};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use serde_json::json;
use staves_client::AppendMode;

use super::answers::{HttpError, JSON_LINES, json_answer, lines_answer, log_json};
use super::bodies::{lines, receive};
use super::connection::HttpConnection;
use super::events;
use super::query::{QueryPairs, decoded};
use crate::log_gateway::{LIST_MAX, LogGateway, LogTarget, READ_RECORDS_MAX};

/// The path of all logs.
const LOGS: &str = "/v1/logs";
/// Most characters of a refused name that are repeated.
const SHOWN_CHARS: usize = 253;

/// The thing that a path names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LogPath {
    Log,
    Tail,
    Trim,
    Follow,
}

/// Answers a request.
pub(super) async fn answer(
    connection: &Arc<HttpConnection>,
    request: Request<Incoming>,
) -> Response<Body> {
    match done(connection, request).await {
        Ok(response) => response,
        Err(error) => error.answer(),
    }
}

async fn done(
    connection: &Arc<HttpConnection>,
    request: Request<Incoming>,
) -> Result<Response<Body>, HttpError> {
    let_in(connection, &request)?;
    let path = request.uri().path().to_owned();
    let rest = path.strip_prefix(LOGS).ok_or_else(no_path)?;
    if rest.is_empty() {
        return match *request.method() {
            Method::GET => list(connection, &request).await,
            _ => Err(HttpError::no_method("GET")),
        };
    }
    let rest = rest.strip_prefix('/').ok_or_else(no_path)?;
    let (name, place) = match rest.split_once('/') {
        None => (rest, LogPath::Log),
        Some((name, "tail")) => (name, LogPath::Tail),
        Some((name, "trim")) => (name, LogPath::Trim),
        Some((name, "follow")) => (name, LogPath::Follow),
        Some(_) => return Err(no_path()),
    };
    let name = decoded("the name of the log", name)?;
    match (place, request.method().as_str()) {
        (LogPath::Log, "GET") => read_or_show(connection, name, &request).await,
        (LogPath::Log, "POST") => append(connection, name, request).await,
        (LogPath::Log, "PUT") => create(connection, name, &request).await,
        (LogPath::Log, "DELETE") => delete(connection, name, &request).await,
        (LogPath::Log, _) => Err(HttpError::no_method("GET, POST, PUT, DELETE")),
        (LogPath::Tail, "GET") => tail(connection, name, &request).await,
        (LogPath::Trim, "POST") => trim(connection, name, &request).await,
        (LogPath::Follow, "GET") => events::follow(connection, name, &request).await,
        (LogPath::Trim, _) => Err(HttpError::no_method("POST")),
        (LogPath::Tail | LogPath::Follow, _) => Err(HttpError::no_method("GET")),
    }
}

fn no_path() -> HttpError {
    HttpError::no_path(
        "there is no such path: this door has /v1/logs, /v1/logs/NAME and, behind that, /tail, /trim and /follow",
    )
}

/// Refuses pages of other origins, and names that are not this node's.
fn let_in<B>(connection: &HttpConnection, request: &Request<B>) -> Result<(), HttpError> {
    let headers = request.headers();
    let names = &connection.door.names;
    if let Some(host) = names.stranger(request.uri(), headers, connection.local) {
        let host: String = host.chars().take(SHOWN_CHARS).collect();
        let text = format!(
            "'{host}' is none of this node's names: ask for localhost, its address or its name, or start it with --advertise {host}"
        );
        return Err(HttpError::stranger(text));
    }
    if is_foreign(headers) {
        let text = "a page of another origin asks: serve the page and this door under one address, through a proxy";
        return Err(HttpError::denied(text));
    }
    Ok(())
}

/// Returns true for a request of a page that came from elsewhere. No program but a browser names an origin.
fn is_foreign(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(ORIGIN) else {
        return false;
    };
    let origin = origin.to_str().unwrap_or_default();
    let own = headers.get(HOST).and_then(|host| host.to_str().ok());
    let named = origin.split_once("://").map(|(_, host)| host);
    own.is_none() || named != own
}

/// The log that a request names.
pub(super) fn target(name: String, query: &QueryPairs) -> LogTarget {
    LogTarget {
        name,
        pool: query.text("pool").map(str::to_owned),
    }
}

fn logs(connection: &HttpConnection) -> &Arc<LogGateway> {
    &connection.door.logs
}

async fn list<B>(
    connection: &HttpConnection,
    request: &Request<B>,
) -> Result<Response<Body>, HttpError> {
    let known = ["pool", "limit", "after_pool", "after"];
    let query = QueryPairs::parse(request.uri().query(), &known)?;
    let most = query.count("limit", LIST_MAX)?;
    let pool = query.text("pool");
    let after = query.text("after").map(|name| {
        let of = query.text("after_pool").or(pool);
        (of.unwrap_or_default().to_owned(), name.to_owned())
    });
    let page = logs(connection).list(pool, after, most, query.until()?);
    let page = page.await?;
    let all: Vec<_> = page.logs.iter().map(log_json).collect();
    let value = json!({ "logs": all, "more": page.more });
    Ok(json_answer(StatusCode::OK, &value))
}

async fn read_or_show<B>(
    connection: &Arc<HttpConnection>,
    name: String,
    request: &Request<B>,
) -> Result<Response<Body>, HttpError> {
    let known = ["from", "count", "pool", "timeout_ms"];
    let query = QueryPairs::parse(request.uri().query(), &known)?;
    let target = target(name, &query);
    let (from, until) = (query.number("from")?, query.until()?);
    if from.is_none() && query.text("count").is_none() {
        let stat = logs(connection).show(&target, until).await?;
        return Ok(json_answer(StatusCode::OK, &log_json(&stat)));
    }
    let count = query.count("count", READ_RECORDS_MAX)?;
    let batch = logs(connection).read(&target, from, count, until).await?;
    connection.door.places.state.count_read(0);
    Ok(lines_answer(batch, connection))
}

async fn append(
    connection: &HttpConnection,
    name: String,
    request: Request<Incoming>,
) -> Result<Response<Body>, HttpError> {
    let known = ["pool", "timeout_ms"];
    let query = QueryPairs::parse(request.uri().query(), &known)?;
    let target = target(name, &query);
    let (head, body) = request.into_parts();
    let memory = &logs(connection).figures.memory;
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
    let first = logs(connection).append(&target, records, query.until()?);
    let first = first.await?;
    connection.door.places.state.count_write(0);
    let positions: Vec<u64> = (first..first.saturating_add(count)).collect();
    let value = json!({ "log": target.name, "positions": positions });
    Ok(json_answer(StatusCode::OK, &value))
}

async fn create<B>(
    connection: &HttpConnection,
    name: String,
    request: &Request<B>,
) -> Result<Response<Body>, HttpError> {
    let query = QueryPairs::parse(request.uri().query(), &["pool", "mode", "timeout_ms"])?;
    let mode = match query.text("mode") {
        None | Some("bind") => AppendMode::Bind,
        Some("predict") => AppendMode::Predict,
        Some("corfu") => AppendMode::Corfu,
        Some(_) => {
            let text = "there is no such mode: it is bind, predict or corfu";
            return Err(HttpError::malformed(text));
        }
    };
    let target = target(name, &query);
    let made = logs(connection)
        .create(&target, mode, query.until()?)
        .await?;
    Ok(json_answer(StatusCode::CREATED, &log_json(&made)))
}

async fn delete<B>(
    connection: &HttpConnection,
    name: String,
    request: &Request<B>,
) -> Result<Response<Body>, HttpError> {
    let query = QueryPairs::parse(request.uri().query(), &["pool", "timeout_ms"])?;
    let target = target(name, &query);
    let was = logs(connection).delete(&target, query.until()?).await?;
    let mut value = log_json(&was);
    value["result"] = "deleted".into();
    Ok(json_answer(StatusCode::OK, &value))
}

async fn tail<B>(
    connection: &HttpConnection,
    name: String,
    request: &Request<B>,
) -> Result<Response<Body>, HttpError> {
    let query = QueryPairs::parse(request.uri().query(), &["pool", "timeout_ms"])?;
    let target = target(name, &query);
    let tail = logs(connection).tail(&target, query.until()?).await?;
    let value = json!({ "log": target.name, "tail": tail });
    Ok(json_answer(StatusCode::OK, &value))
}

async fn trim<B>(
    connection: &HttpConnection,
    name: String,
    request: &Request<B>,
) -> Result<Response<Body>, HttpError> {
    let query = QueryPairs::parse(request.uri().query(), &["to", "pool", "timeout_ms"])?;
    let target = target(name, &query);
    let Some(to) = query.number("to")? else {
        let text = "to is missing: give the first position that is to be kept, ?to=POSITION";
        return Err(HttpError::malformed(text));
    };
    let trimmed = logs(connection).trim(&target, to, query.until()?).await?;
    let mut value = log_json(&trimmed);
    value["result"] = "trimmed".into();
    Ok(json_answer(StatusCode::OK, &value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_the_same_origin_are_let_in() {
        let foreign = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (key, value) in pairs {
                headers.insert(*key, value.parse().expect("a header"));
            }
            is_foreign(&headers)
        };
        assert!(!foreign(&[("host", "localhost:1700")]), "no browser");
        let own = ("host", "localhost:1700");
        assert!(!foreign(&[own, ("origin", "http://localhost:1700")]));
        for origin in ["http://evil.example", "null", "http://localhost", ""] {
            assert!(foreign(&[own, ("origin", origin)]), "{origin}");
        }
        assert!(foreign(&[("origin", "http://localhost:1700")]));
    }
}
