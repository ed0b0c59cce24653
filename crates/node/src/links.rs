//! The directory's way to other nodes: connections of its own, so that a heartbeat of Raft never waits
//! behind a value of half a gigabyte.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use staves_directory::{CallFuture, Transport, TransportError};
use staves_model::{ClusterId, NodeId};
use staves_net::{Connection, Identity, NetError, Options, Who};
use staves_wire::Message;
use staves_wire::directory::{Raft, RaftAnswer, RaftKind};

/// After a failure, whoever wants the address next is told so for this long.
const FAILURE_KEPT: Duration = Duration::from_millis(30);
/// Most addresses that connections are kept to.
const ADDRESSES_MAX: usize = 4096;
/// How long connecting may take. Less than the silence that is reported, so that a machine that is gone
/// is told from one that is slow.
const CONNECT: Duration = Duration::from_millis(250);

/// Connections by address, made as they are needed.
pub(crate) struct DirectoryLinks {
    identity: Identity,
    options: Options,
    slots: Mutex<BTreeMap<String, Arc<Slot>>>,
}

/// At most one connection to an address.
type Slot = tokio::sync::Mutex<SlotState>;

#[derive(Default)]
enum SlotState {
    #[default]
    Empty,
    Open(Connection),
    Failed(NetError, Instant),
}

impl DirectoryLinks {
    /// No connections yet.
    pub(crate) fn new(identity: Identity) -> Arc<DirectoryLinks> {
        let options = Options {
            connect_timeout: CONNECT,
            silence_max: Duration::from_secs(1),
            ..Options::default()
        };
        Arc::new(DirectoryLinks {
            identity,
            options,
            slots: Mutex::default(),
        })
    }

    fn slot(&self, addr: &str) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        if slots.len() >= ADDRESSES_MAX && !slots.contains_key(addr) {
            slots.clear(); // they are made again as they are needed
        }
        slots.entry(addr.to_owned()).or_default().clone()
    }

    async fn connection(&self, addr: &str) -> Result<Connection, NetError> {
        let mut state = self.slot(addr).lock_owned().await;
        match &*state {
            SlotState::Open(connection) if connection.over().is_none() => {
                return Ok(connection.clone());
            }
            SlotState::Failed(error, at) if at.elapsed() < FAILURE_KEPT => {
                return Err(error.clone());
            }
            _ => {}
        }
        // On a task of its own: whoever asks may give up sooner, and the next who asks wants it.
        let (addr, identity, options) =
            (addr.to_owned(), self.identity.clone(), self.options.clone());
        let opening = tokio::spawn(async move {
            let opened = Connection::open(&addr, &identity, &options).await;
            *state = match &opened {
                Ok(connection) => SlotState::Open(connection.clone()),
                Err(error) => SlotState::Failed(error.clone(), Instant::now()),
            };
            opened
        });
        opening.await.unwrap_or_else(|_| {
            Err(NetError::Closed {
                addr: "the address".to_owned(),
                reason: "the node stops".to_owned(),
                sign: None,
            })
        })
    }

    /// The cluster of whoever is at the address; `None` if nobody says.
    pub(crate) async fn cluster_at(&self, addr: &str) -> Option<ClusterId> {
        // As one that belongs to none yet: who belongs to another would be turned away without a word.
        let nobody = Identity::node(Who::default());
        let connection = Connection::open(addr, &nobody, &self.options).await.ok()?;
        Some(connection.welcome().cluster).filter(|cluster| cluster.0 != 0)
    }

    /// Asks whoever is at the address.
    pub(crate) async fn ask(
        &self,
        addr: &str,
        request: &Message,
        deadline: Instant,
    ) -> Result<Message, NetError> {
        let begun = Instant::now();
        match tokio::time::timeout_at(deadline.into(), self.connection(addr)).await {
            Ok(connection) => connection?.call(request, deadline).await,
            Err(_) => Err(NetError::Deadline {
                addr: addr.to_owned(),
                what: request.opcode().word(),
                waited_ms: begun.elapsed().as_millis() as u64,
                sent: false,
            }),
        }
    }
}

/// The links as the directory's transport.
pub(crate) struct DirectoryWay(pub(crate) Arc<DirectoryLinks>);

impl Transport for DirectoryWay {
    fn call(
        &self,
        _target: Option<NodeId>,
        addr: &str,
        bytes: Bytes,
        deadline: Duration,
    ) -> CallFuture {
        let (links, addr) = (self.0.clone(), addr.to_owned());
        Box::pin(async move {
            let until = Instant::now() + deadline;
            // The bytes say by themselves what they are.
            let request = Message::Raft(Raft {
                kind: RaftKind::Append,
                body: bytes,
            });
            match links.ask(&addr, &request, until).await {
                Ok(Message::RaftAnswer(RaftAnswer { body })) => Ok(body),
                Ok(other) => Err(TransportError::Broken {
                    addr,
                    reason: format!("it answered with {}", other.opcode().word()),
                }),
                Err(error) => Err(failure(error, addr, deadline)),
            }
        })
    }
}

fn failure(error: NetError, addr: String, waited: Duration) -> TransportError {
    let reason = error.to_string();
    match error {
        NetError::Connect {
            kind: io::ErrorKind::ConnectionRefused,
            ..
        } => TransportError::Refused { addr, reason },
        NetError::Connect { .. } | NetError::Hello { .. } | NetError::TooLarge { .. } => {
            TransportError::NotSent { addr, reason }
        }
        NetError::Deadline { sent: true, .. } => TransportError::TimedOut { addr, waited },
        error if error.nothing_done() => TransportError::NotSent { addr, reason },
        _ => TransportError::Broken { addr, reason },
    }
}
