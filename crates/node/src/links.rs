//! The directory's way to other nodes: connections of its own, so that a heartbeat of Raft never waits
//! behind a value of half a gigabyte.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use staves_directory::{CallFuture, Transport, TransportError};
use staves_model::{ClusterId, NodeId};
use staves_net::{Connection, Dialer, Identity, NetError, Options};
use staves_wire::directory::{Raft, RaftAnswer, RaftKind};
use staves_wire::{ErrorCode, Message};
use tokio::runtime::Handle;

/// After a failure, whoever wants the address next is told so for this long.
const FAILURE_KEPT: Duration = Duration::from_millis(30);
/// The time that connecting may take. Less than the silence that is reported, so that a machine that is gone
/// is told from one that is slow.
const CONNECT: Duration = Duration::from_millis(250);

/// Connections by address, made as they are needed.
pub(crate) struct DirectoryLinks {
    stranger: Identity,
    options: Options,
    dialer: Dialer,
}

impl DirectoryLinks {
    /// No connections yet; they are served on this runtime.
    pub(crate) fn new(identity: Identity, runtime: Handle) -> Arc<DirectoryLinks> {
        let options = Options {
            connect_timeout: CONNECT,
            silence_max: Duration::from_secs(1),
            ..Options::default()
        };
        let stranger = identity.stranger();
        let dialer =
            Dialer::new(identity.for_directory(), options.clone(), FAILURE_KEPT).on(runtime);
        Arc::new(DirectoryLinks {
            stranger,
            options,
            dialer,
        })
    }

    /// The cluster of whoever is at the address; `None` if nobody says. Fails if they do not share this node's secret.
    pub(crate) async fn cluster_at(&self, addr: &str) -> Result<Option<ClusterId>, NetError> {
        // As one that belongs to none yet: who belongs to another would be turned away without a word.
        match Connection::open(addr, &self.stranger, &self.options).await {
            Ok(connection) => {
                Ok(Some(connection.welcome().cluster).filter(|cluster| cluster.0 != 0))
            }
            Err(error) if error.code() == ErrorCode::Denied => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Asks whoever is at the address.
    pub(crate) async fn ask(
        &self,
        addr: &str,
        request: &Message,
        deadline: Instant,
    ) -> Result<Message, NetError> {
        self.dialer.call(addr, request, deadline).await
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
