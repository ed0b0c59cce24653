//! The admin door: HTTP for machines that watch (port 1680).
//!
//! `/livez` answers while the process runs, `/readyz` while this node is part of its cluster and means to
//! stay (a node does not turn unready because others are away, but it does when it has been cut off from
//! the directory's majority for so long that it answers for no key), `/metrics` has
//! Prometheus's text, `/api/v1/status` the cluster's state as JSON.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::entry::Entry;
use crate::metrics;

type Shared = Arc<Entry>;

/// Serves the door until the task is aborted.
pub(crate) fn serve(listener: TcpListener, running: Shared) -> JoinHandle<()> {
    let app = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text))
        .route("/api/v1/status", get(status))
        .with_state(running);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, app).await {
            tracing::warn!(%error, "the admin door closed");
        }
    })
}

async fn readyz(State(running): State<Shared>) -> (StatusCode, String) {
    let Some(now) = running.get() else {
        return joining(&running);
    };
    match now.is_ready() {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

async fn metrics_text(State(running): State<Shared>) -> impl IntoResponse {
    let text = running.get().map(|running| metrics::text(running));
    let headers = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (headers, text.unwrap_or_default())
}

async fn status(State(running): State<Shared>) -> axum::response::Response {
    match running.get() {
        Some(running) => {
            let headers = [(header::CONTENT_TYPE, "application/json")];
            (headers, running.status_json()).into_response()
        }
        None => joining(&running).into_response(),
    }
}

fn joining(entry: &Entry) -> (StatusCode, String) {
    let text = format!("{}\n", entry.not_yet());
    (StatusCode::SERVICE_UNAVAILABLE, text)
}
