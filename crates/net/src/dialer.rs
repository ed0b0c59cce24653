//! Connections by address, made as they are needed: for whoever asks many nodes now and then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use staves_wire::Message;
use tokio::runtime::Handle;

use crate::connection::Connection;
use crate::error::NetError;
use crate::identity::Identity;
use crate::options::Options;

/// Most addresses that connections are kept to.
const ADDRESSES_MAX: usize = 4096;

/// At most one connection to an address, opened by whoever needs it first.
pub struct Dialer {
    identity: Identity,
    options: Options,
    failure_kept: Duration,
    /// The runtime of the connections; `None` is that of whoever asks first.
    runtime: Option<Handle>,
    slots: Mutex<BTreeMap<String, Arc<Slot>>>,
}

type Slot = tokio::sync::Mutex<DialState>;

#[derive(Default)]
enum DialState {
    #[default]
    Empty,
    Open(Connection),
    Failed(NetError, Instant),
}

impl Dialer {
    /// No connections yet. After a failure to connect, the next who wants the address is told so for
    /// `failure_kept`.
    pub fn new(identity: Identity, options: Options, failure_kept: Duration) -> Dialer {
        Dialer {
            identity,
            options,
            failure_kept,
            runtime: None,
            slots: Mutex::default(),
        }
    }

    /// Serves its connections on this runtime.
    pub fn on(mut self, runtime: Handle) -> Dialer {
        self.runtime = Some(runtime);
        self
    }

    /// Asks whoever is at the address.
    pub async fn call(
        &self,
        addr: &str,
        request: &Message,
        deadline: Instant,
    ) -> Result<Message, NetError> {
        let connection = self.reach(addr, request, deadline).await?;
        connection.call(request, deadline).await
    }

    /// The connection to the address, for this request: it has to be there by the request's deadline.
    pub async fn reach(
        &self,
        addr: &str,
        request: &Message,
        deadline: Instant,
    ) -> Result<Connection, NetError> {
        let begun = Instant::now();
        let connection = tokio::time::timeout_at(deadline.into(), self.connection(addr));
        connection.await.unwrap_or_else(|_| {
            Err(NetError::Deadline {
                addr: addr.to_owned(),
                what: request.opcode().word(),
                waited_ms: begun.elapsed().as_millis() as u64,
                sent: false,
                heard: false,
            })
        })
    }

    /// The connection to the address, opened if there is none that is well.
    async fn connection(&self, addr: &str) -> Result<Connection, NetError> {
        let mut state = self.slot(addr).lock_owned().await;
        match &*state {
            DialState::Open(connection) if connection.over().is_none() => {
                return Ok(connection.clone());
            }
            DialState::Failed(error, at) if at.elapsed() < self.failure_kept => {
                return Err(error.clone());
            }
            _ => {}
        }
        // On a task of its own: whoever asks may give up sooner, and the next who asks wants it.
        let (addr, identity, options) =
            (addr.to_owned(), self.identity.clone(), self.options.clone());
        let runtime = self.runtime.clone().unwrap_or_else(Handle::current);
        let opening = runtime.spawn(async move {
            let opened = Connection::open(&addr, &identity, &options).await;
            *state = match &opened {
                Ok(connection) => DialState::Open(connection.clone()),
                Err(error) => DialState::Failed(error.clone(), Instant::now()),
            };
            opened
        });
        opening.await.unwrap_or_else(|_| {
            Err(NetError::Closed {
                addr: "the address".to_owned(),
                reason: "this process stops".to_owned(),
                sign: None,
            })
        })
    }

    fn slot(&self, addr: &str) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        if slots.len() >= ADDRESSES_MAX && !slots.contains_key(addr) {
            slots.clear(); // they are made again as they are needed
        }
        slots.entry(addr.to_owned()).or_default().clone()
    }
}
