//! The admin door: HTTP for machines that watch (port 1680).
//!
//! `/livez` answers while the process runs, `/readyz` while this node is part of its cluster and means to
//! stay (a node does not turn unready because others are away, but it does when it has been cut off from
//! the directory's majority for so long that it answers for no key), `/metrics` has
//! Prometheus's text, `/api/v1/status` the cluster's state as JSON.
//!
//! A connection carries one request, which has little time to come and to be answered, and there are few of them at a time:
//! nobody who says nothing keeps a descriptor, or keeps out who asks something ([`Newcomers`]), nor do those who ask for much keep out
//! who only looks whether the node lives. It answers to this node's own names only ([`HostNames`]).

mod names;

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use staves_net::{Descriptors, Newcomer, Newcomers, Refusals};
use staves_wire::hello::Role;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinHandle, JoinSet};

use crate::entry::Entry;
use crate::metrics;
pub(crate) use names::HostNames;

type Shared = Arc<Entry>;

const LIVEZ: &str = "/livez";
const READYZ: &str = "/readyz";
const STATUS: &str = "/api/v1/status";

/// The time that a request may take to come, and with its answer.
const HEADER: Duration = Duration::from_secs(5);
const REQUEST: Duration = Duration::from_secs(30);
/// The time that an answer has to be taken: it is in memory until then, and keeps a place.
const TAKEN: Duration = Duration::from_secs(5);
/// The longest wait for a turn among requests that cost much.
const GATE: Duration = Duration::from_secs(5);
/// Most connections at a time, where there are descriptors enough.
const CONNECTIONS_MAX: usize = 64;
/// After the operating system refused to accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The answer to a request that there is no room for.
const FULL: &str = "too many such requests at this door: come back shortly\n";

/// The places for requests that are answered, until their connections end. Each kind has its own.
struct DoorPlaces {
    /// `/livez` and `/readyz`: a few bytes, said at once.
    signs: Arc<Semaphore>,
    /// `/api/v1/status`: it waits for its turn.
    status: Arc<Semaphore>,
    others: Arc<Semaphore>,
}

impl DoorPlaces {
    fn new(max: usize) -> DoorPlaces {
        let part = (max / 4).max(1);
        let rest = max.saturating_sub(2 * part).max(1);
        let of = |count| Arc::new(Semaphore::new(count));
        DoorPlaces {
            signs: of(part),
            status: of(part),
            others: of(rest),
        }
    }

    /// A place for a request, if there is one.
    fn take(&self, path: &str) -> Option<OwnedSemaphorePermit> {
        let kind = match path {
            LIVEZ | READYZ => &self.signs,
            STATUS => &self.status,
            _ => &self.others,
        };
        kind.clone().try_acquire_owned().ok()
    }
}

/// The checks that a request must pass.
struct Doorway {
    names: Arc<HostNames>,
    newcomer: Newcomer,
    places: Arc<DoorPlaces>,
    place: OnceLock<OwnedSemaphorePermit>,
    /// The answer is there.
    answered: Notify,
}

/// Serves the door until the task is aborted.
pub(crate) fn serve(listener: TcpListener, names: HostNames, running: Shared) -> JoinHandle<()> {
    let app = Router::new()
        .route(LIVEZ, get(|| async { "ok\n" }))
        .route(READYZ, get(readyz))
        .route("/metrics", get(metrics_text))
        .route(STATUS, get(status))
        .with_state(running);
    tokio::spawn(accept(listener, app, Arc::new(names)))
}

async fn accept(listener: TcpListener, app: Router, names: Arc<HostNames>) {
    let max = CONNECTIONS_MAX.min(Descriptors::of_process().share(8));
    let places = Arc::new(DoorPlaces::new(max));
    let mut newcomers = Newcomers::new(max);
    let (refused, not_accepted) = (Refusals::default(), Refusals::default());
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((socket, addr)) => {
                let (newcomer, displaced) = newcomers.enter(addr.ip());
                if displaced {
                    refused.add(|unsaid| {
                        tracing::warn!(%addr, max, unsaid, "too many connections to the admin door ask nothing: the oldest was closed for one more");
                    });
                }
                let door = Arc::new(Doorway {
                    names: names.clone(),
                    newcomer,
                    places: places.clone(),
                    place: OnceLock::new(),
                    answered: Notify::new(),
                });
                let app = app.clone();
                connections.spawn(async move {
                    let conversation = converse(socket, app, door.clone());
                    tokio::select! {
                        _ = tokio::time::timeout(REQUEST, conversation) => {}
                        () = door.newcomer.displaced() => {}
                        () = not_taken(&door) => {
                            tracing::debug!(%addr, "an answer of the admin door was not taken in time");
                        }
                    }
                });
            }
            Err(error) => {
                not_accepted.add(|unsaid| {
                    tracing::warn!(%error, unsaid, "a connection to the admin door could not be accepted");
                });
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
        // Whoever has come with its request is heard before others come: it is no silent one.
        tokio::task::yield_now().await;
    }
}

/// Ends when the answer has been there for too long.
async fn not_taken(door: &Doorway) {
    door.answered.notified().await;
    tokio::time::sleep(TAKEN).await;
}

/// One request and its answer.
async fn converse(socket: TcpStream, app: Router, door: Arc<Doorway>) {
    let Ok(local) = socket.local_addr() else {
        return;
    };
    let guard = move |request, next| let_in(door.clone(), local.ip(), request, next);
    let app = TowerToHyperService::new(app.layer(from_fn(guard)));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER);
    let served = http.keep_alive(false);
    let served = served.serve_connection(TokioIo::new(socket), app);
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection to the admin door ended");
    }
}

/// Refuses requests for hosts that are not this node, and those beyond the bound.
async fn let_in(door: Arc<Doorway>, local: IpAddr, request: Request, next: Next) -> Response {
    // If its place went to another just now, its connection ends at once.
    door.newcomer.has_spoken();
    let Some(place) = door.places.take(request.uri().path()) else {
        return (StatusCode::SERVICE_UNAVAILABLE, FULL).into_response();
    };
    // A connection carries one request: it has none yet.
    let _ = door.place.set(place);
    let answer = answer(&door, local, request, next).await;
    door.answered.notify_one();
    answer
}

/// Most characters of a refused name that are said again.
const HOST_CHARS_MAX: usize = 253;

async fn answer(door: &Doorway, local: IpAddr, request: Request, next: Next) -> Response {
    match door.names.stranger(request.uri(), request.headers(), local) {
        None => next.run(request).await,
        Some(host) => {
            // A name has 253 bytes at most: what is longer was not meant for one.
            let host: String = host.chars().take(HOST_CHARS_MAX).collect();
            let text = format!(
                "'{host}' is none of this node's names: ask for localhost, its address or its name, or start it with \
                 --advertise admin={host}\n"
            );
            (StatusCode::MISDIRECTED_REQUEST, text).into_response()
        }
    }
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

async fn status(State(running): State<Shared>) -> Response {
    match running.get() {
        Some(running) => match running.gates.of(Role::Admin).enter(GATE).await {
            Ok(_turn) => {
                let headers = [(header::CONTENT_TYPE, "application/json")];
                (headers, running.status_json()).into_response()
            }
            Err(refusal) => {
                let text = format!("{refusal}\n");
                (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
            }
        },
        None => joining(&running).into_response(),
    }
}

fn joining(entry: &Entry) -> (StatusCode, String) {
    let text = format!("{}\n", entry.not_yet());
    (StatusCode::SERVICE_UNAVAILABLE, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: seventy readers of the status kept `/livez` at 503.
    #[test]
    fn no_kind_of_request_takes_the_places_of_another() {
        let kinds = [(LIVEZ, 16), (STATUS, 16), ("/metrics", 32)];
        let places = DoorPlaces::new(64);
        let mut taken = Vec::new();
        for (path, count) in kinds {
            let all = std::iter::from_fn(|| places.take(path));
            let before = taken.len();
            taken.extend(all);
            assert_eq!(taken.len() - before, count, "{path}");
        }
        assert!(places.take(READYZ).is_none(), "those of /livez");
        drop(taken);
        assert!(places.take(READYZ).is_some());
        // However few there are, each has one.
        let few = DoorPlaces::new(1);
        let taken: Vec<_> = kinds.map(|(path, _)| few.take(path)).into();
        assert!(taken.iter().all(Option::is_some));
    }
}
