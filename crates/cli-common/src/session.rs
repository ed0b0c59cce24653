//! A command's session with a cluster, through the client library.

use std::time::{Duration, Instant};

use anyhow::Context;
use staves_client::{Client, ClientError, ClientOptions, Region, SourceError};
use staves_model::{ClusterMap, Pool};
use staves_wire::ErrorCode;
use tokio::runtime::Runtime;

use crate::cluster::HINT;
use crate::codes::{Code, Own};
use crate::failure::{self, Failure};
use crate::options::GlobalOptions;

/// A client, and what it runs on.
pub struct ClientSession {
    /// The runtime that the client runs on.
    pub runtime: Runtime,
    /// The client.
    pub client: Client,
    /// The time that the command may take.
    pub deadline: Duration,
    /// The end of that time, for a command that keeps to it.
    pub until: Instant,
}

impl ClientSession {
    /// Finds the cluster through any of the nodes of `--cluster`.
    pub fn open(global: &GlobalOptions) -> anyhow::Result<ClientSession> {
        let deadline = global.deadline.duration();
        let until = Instant::now() + deadline;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the program's runtime")?;
        let addresses: Vec<String> = global.cluster.iter().map(ToString::to_string).collect();
        let options = ClientOptions {
            // The rest is for looking into what went wrong.
            deadline: deadline * 4 / 5,
            map_try_max: deadline * 4 / 5,
            admin: true,
            ..ClientOptions::default()
        };
        let client = runtime.block_on(Client::connect(&addresses, options));
        let client = client.map_err(not_reached)?;
        Ok(ClientSession {
            runtime,
            client,
            deadline,
            until,
        })
    }

    /// The rest of the deadline.
    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// The region of this name.
    pub fn region(&self, name: &str) -> anyhow::Result<Region> {
        self.wait(self.client.region(name))
    }

    /// Waits for what a client does.
    pub fn wait<T>(
        &self,
        future: impl Future<Output = Result<T, ClientError>>,
    ) -> anyhow::Result<T> {
        self.runtime.block_on(future).map_err(failed)
    }
}

/// A client's error as a failure of the command.
pub fn failed(error: ClientError) -> anyhow::Error {
    let code = error.code();
    let text = match error {
        ClientError::Operation { text, .. } => text,
        error => error.to_string(),
    };
    match code {
        ErrorCode::NotFound => Failure::NotFound(text).into(),
        code => Failure::Wire(code, text).into(),
    }
}

/// The same, where no node was found yet.
pub fn not_reached(error: ClientError) -> anyhow::Error {
    let error = failed(error);
    match failure::code(&error) {
        Code::Wire(ErrorCode::Unreachable | ErrorCode::Deadline) => {
            failure::with_text(&error, format!("{error:#}; {}", HINT))
        }
        _ => error,
    }
}

/// A source's error as a failure of the command.
pub fn no_source(error: SourceError) -> anyhow::Error {
    let text = error.to_string();
    match error {
        SourceError::NotFound { .. } | SourceError::Absent { .. } => Failure::NotFound(text).into(),
        SourceError::Denied { .. } | SourceError::Private { .. } => {
            Failure::Wire(ErrorCode::Denied, text).into()
        }
        SourceError::Unreachable { .. } => Failure::Wire(ErrorCode::Unreachable, text).into(),
        SourceError::Malformed { .. } => Failure::Own(Own::Usage, text).into(),
        SourceError::Changed { .. } => Failure::Own(Own::Failed, text).into(),
    }
}

/// Checks that the pool exists and holds regions.
pub fn check_pool(session: &ClientSession, name: &str) -> anyhow::Result<()> {
    let known = |map: &ClusterMap| map.pool_named(name).map(Pool::is_cache);
    let kind = match known(&session.client.map()) {
        None => known(&*session.wait(session.client.refresh())?),
        kind => kind,
    };
    let text = match kind {
        Some(false) => return Ok(()),
        Some(true) => {
            let make = "'staves pool create NAME --kind memory' makes one that holds regions";
            let text = format!("pool '{name}' holds keys, not regions; {make}");
            return Err(Failure::Wire(ErrorCode::Refused, text).into());
        }
        None => format!(
            "there is no pool '{name}'; 'staves pool list' shows those there are, and 'staves pool create {name} --kind memory' makes it"
        ),
    };
    Err(Failure::NotFound(text).into())
}
