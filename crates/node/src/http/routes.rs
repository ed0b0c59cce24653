//! Requests, taken apart and done.

use std::sync::Arc;

use axum::body::Body;
use hyper::body::Incoming;
use hyper::header::{HOST, ORIGIN};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use serde_json::json;
use staves_client::AppendMode;

use super::answers::{HttpError, json_answer, log_json};
use super::connection::HttpConnection;
use super::query::{QueryPairs, decoded};
use super::{cursors, events, records};
use crate::log_gateway::LIST_MAX;

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
    Punch,
    Follow,
    Cursors,
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
    let (name, below) = rest.split_once('/').unwrap_or((rest, ""));
    let log = decoded("the name of the log", name)?;
    let place = match below {
        "" if name.len() == rest.len() => LogPath::Log,
        "tail" => LogPath::Tail,
        "trim" => LogPath::Trim,
        "punch" => LogPath::Punch,
        "follow" => LogPath::Follow,
        "cursors" => LogPath::Cursors,
        below => {
            let cursor = below.strip_prefix("cursors/");
            let cursor = cursor.filter(|cursor| !cursor.contains('/'));
            let cursor = cursor.ok_or_else(no_path)?;
            let cursor = decoded("the name of the cursor", cursor)?;
            return cursors::answer(connection, (log, cursor), &request).await;
        }
    };
    match (place, request.method().as_str()) {
        (LogPath::Log, "GET") => records::read_or_show(connection, log, &request).await,
        (LogPath::Log, "POST") => records::append(connection, log, request).await,
        (LogPath::Log, "PUT") => create(connection, log, &request).await,
        (LogPath::Log, "DELETE") => delete(connection, log, &request).await,
        (LogPath::Log, _) => Err(HttpError::no_method("GET, POST, PUT, DELETE")),
        (LogPath::Tail, "GET") => tail(connection, log, &request).await,
        (LogPath::Trim, "POST") => records::trim(connection, log, &request).await,
        (LogPath::Punch, "POST") => records::punch(connection, log, &request).await,
        (LogPath::Cursors, "GET") => cursors::list(connection, log, &request).await,
        (LogPath::Follow, "GET") => events::follow(connection, log, &request).await,
        (LogPath::Trim | LogPath::Punch, _) => Err(HttpError::no_method("POST")),
        (_, _) => Err(HttpError::no_method("GET")),
    }
}

fn no_path() -> HttpError {
    HttpError::no_path(
        "there is no such path: this door has /v1/logs, /v1/logs/NAME and, behind that, /tail, /trim, /punch, /follow, /cursors and /cursors/CURSOR",
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
    let page = connection.logs().list(pool, after, most, query.until()?);
    let page = page.await?;
    let all: Vec<_> = page.logs.iter().map(log_json).collect();
    let value = json!({ "logs": all, "more": page.more });
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
    let target = query.target(name);
    let made = connection
        .logs()
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
    let target = query.target(name);
    let deleted = connection.logs().delete(&target, query.until()?).await?;
    let mut value = log_json(&deleted.stat);
    value["result"] = "deleted".into();
    if let Some(warning) = deleted.warning {
        value["warning"] = warning.into();
    }
    Ok(json_answer(StatusCode::OK, &value))
}

async fn tail<B>(
    connection: &HttpConnection,
    name: String,
    request: &Request<B>,
) -> Result<Response<Body>, HttpError> {
    let query = QueryPairs::parse(request.uri().query(), &["pool", "timeout_ms"])?;
    let target = query.target(name);
    let tail = connection.logs().tail(&target, query.until()?).await?;
    let value = json!({ "log": target.name, "tail": tail });
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
