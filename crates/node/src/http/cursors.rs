//! Requests on the cursors of a log.

use axum::body::Body;
use hyper::{Request, Response, StatusCode};
use serde_json::{Value, json};

use super::answers::{HttpError, json_answer};
use super::connection::HttpConnection;
use super::query::QueryPairs;

/// Answers a request on one cursor.
pub(super) async fn answer<B>(
    connection: &HttpConnection,
    (name, cursor): (String, String),
    request: &Request<B>,
) -> Result<Response<Body>, HttpError> {
    match request.method().as_str() {
        "GET" => get(connection, (name, cursor), request).await,
        "PUT" => set(connection, (name, cursor), request).await,
        "DELETE" => delete(connection, (name, cursor), request).await,
        _ => Err(HttpError::no_method("GET, PUT, DELETE")),
    }
}

/// All cursors of a log.
pub(super) async fn list<B>(
    connection: &HttpConnection,
    name: String,
    request: &Request<B>,
) -> Result<Response<Body>, HttpError> {
    let query = QueryPairs::parse(request.uri().query(), &["pool", "timeout_ms"])?;
    let target = query.target(name);
    let cursors = connection.logs().cursors(&target, query.until()?).await?;
    let row =
        |(cursor, position): (&String, &u64)| json!({ "cursor": cursor, "position": position });
    let rows: Vec<Value> = cursors.iter().map(row).collect();
    let value = json!({ "log": target.name, "cursors": rows });
    Ok(json_answer(StatusCode::OK, &value))
}

async fn get<B>(
    connection: &HttpConnection,
    (name, cursor): (String, String),
    request: &Request<B>,
) -> Result<Response<Body>, HttpError> {
    let query = QueryPairs::parse(request.uri().query(), &["pool", "timeout_ms"])?;
    let target = query.target(name);
    let position = connection.logs().cursor(&target, &cursor, query.until()?);
    let position = position.await?;
    let value = json!({ "log": target.name, "cursor": cursor, "position": position });
    Ok(json_answer(StatusCode::OK, &value))
}

async fn set<B>(
    connection: &HttpConnection,
    (name, cursor): (String, String),
    request: &Request<B>,
) -> Result<Response<Body>, HttpError> {
    let known = ["position", "if_at", "if_new", "pool", "timeout_ms"];
    let query = QueryPairs::parse(request.uri().query(), &known)?;
    let target = query.target(name);
    let Some(to) = query.number("position")? else {
        let text = "position is missing: give the position that is read next, ?position=POSITION";
        return Err(HttpError::malformed(text));
    };
    let from = match (query.number("if_at")?, query.flag("if_new")?) {
        (Some(_), true) => {
            let text = "if_at and if_new: give one of them";
            return Err(HttpError::malformed(text));
        }
        (Some(at), false) => Some(Some(at)),
        (None, true) => Some(None),
        (None, false) => None,
    };
    let set = connection
        .logs()
        .set_cursor(&target, &cursor, (from, to), query.until()?);
    set.await?;
    let value = json!({ "log": target.name, "cursor": cursor, "position": to, "result": "set" });
    Ok(json_answer(StatusCode::OK, &value))
}

async fn delete<B>(
    connection: &HttpConnection,
    (name, cursor): (String, String),
    request: &Request<B>,
) -> Result<Response<Body>, HttpError> {
    let known = ["if_at", "pool", "timeout_ms"];
    let query = QueryPairs::parse(request.uri().query(), &known)?;
    let target = query.target(name);
    let from = query.number("if_at")?;
    let deleted = connection
        .logs()
        .delete_cursor(&target, &cursor, from, query.until()?);
    deleted.await?;
    let value = json!({ "log": target.name, "cursor": cursor, "result": "deleted" });
    Ok(json_answer(StatusCode::OK, &value))
}
