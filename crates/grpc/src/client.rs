//! Reads, and the state of volumes, through any node.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};

use crate::error::VolumesError;
use crate::session::{AttachOptions, AttachedVolume};
use crate::v1::volumes_client::VolumesClient as Stub;
use crate::{READ_BYTES_MAX, v1};

/// The time for a connection to be made, before another node is tried.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// The pause before the next node is asked.
const AGAIN: Duration = Duration::from_millis(50);
/// An idle connection is asked so often whether it lives, and given so long.
const PING: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(5));

/// The behaviour of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// The time for one call of the library, with all that it asks again.
    pub deadline: Duration,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            deadline: Duration::from_secs(30),
        }
    }
}

/// A client of a cluster. Clones share its connections.
#[derive(Clone, Debug)]
pub struct VolumesClient {
    nodes: Arc<[Endpoint]>,
    channels: Arc<[Channel]>,
    /// The node that answered last.
    next: Arc<AtomicUsize>,
    options: ClientOptions,
}

impl VolumesClient {
    /// A client that asks these nodes, as HOST:PORT of their gRPC doors, beginning with the first. Connects when it is used. Is made
    /// on a runtime of tokio.
    pub fn new<A: AsRef<str>>(
        addresses: &[A],
        options: ClientOptions,
    ) -> Result<VolumesClient, VolumesError> {
        if Handle::try_current().is_err() {
            return Err(VolumesError::NoRuntime);
        }
        let nodes: Result<Vec<Endpoint>, VolumesError> = addresses
            .iter()
            .map(|address| endpoint(address.as_ref()))
            .collect();
        let nodes: Arc<[Endpoint]> = nodes?.into();
        if nodes.is_empty() {
            let address = String::new();
            return Err(VolumesError::Address { address });
        }
        Ok(VolumesClient {
            channels: nodes.iter().map(Endpoint::connect_lazy).collect(),
            nodes,
            next: Arc::default(),
            options,
        })
    }

    /// Reads bytes at any offset, linearizably, if they are no more than [`READ_BYTES_MAX`]. Longer ranges are read piece by piece.
    pub async fn read(
        &self,
        volume: &str,
        offset: u64,
        length: usize,
    ) -> Result<Bytes, VolumesError> {
        let mut all = BytesMut::with_capacity(length);
        while all.len() < length {
            let piece = READ_BYTES_MAX.min(length - all.len());
            let request = v1::ReadRequest {
                volume: volume.to_owned(),
                offset: offset.saturating_add(all.len() as u64),
                length: piece as u32,
            };
            let ask = |mut stub: Stub<Channel>| {
                let request = request.clone();
                async move { stub.read(request).await }
            };
            let data = self.ask(ask).await?.data;
            if data.len() != piece {
                let text = format!("{} bytes for a read of {piece}", data.len());
                return Err(VolumesError::refused(&Status::internal(text)));
            }
            if piece == length {
                return Ok(data);
            }
            all.extend_from_slice(&data);
        }
        Ok(all.freeze())
    }

    /// All volumes.
    pub async fn list(&self) -> Result<Vec<v1::Volume>, VolumesError> {
        let list = |mut stub: Stub<Channel>| async move { stub.list(v1::ListRequest {}).await };
        Ok(self.ask(list).await?.volumes)
    }

    /// The state of a volume and of its groups.
    pub async fn state(&self, volume: &str) -> Result<v1::GetStateReply, VolumesError> {
        let volume = volume.to_owned();
        let ask = |mut stub: Stub<Channel>| {
            let volume = volume.clone();
            async move { stub.get_state(v1::GetStateRequest { volume }).await }
        };
        self.ask(ask).await
    }

    /// The node that answers at present.
    pub async fn heartbeat(&self) -> Result<v1::HeartbeatReply, VolumesError> {
        let ask =
            |mut stub: Stub<Channel>| async move { stub.heartbeat(v1::HeartbeatRequest {}).await };
        self.ask(ask).await
    }

    /// Begins a session, in which the volume may be written, through the first node that gives one.
    pub async fn attach(
        &self,
        volume: &str,
        options: AttachOptions,
    ) -> Result<AttachedVolume, VolumesError> {
        AttachedVolume::begin(self, volume, options).await
    }

    /// The end of a call that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.options.deadline
    }

    /// A connection of its own to the node whose turn it is.
    pub(crate) fn own_channel(&self) -> Channel {
        let at = self.next.load(Ordering::Relaxed) % self.nodes.len();
        self.nodes[at].connect_lazy()
    }

    /// That node did not answer: the next one has its turn.
    pub(crate) async fn go_on(&self) {
        self.next.fetch_add(1, Ordering::Relaxed);
        sleep(AGAIN).await;
    }

    /// Asks node after node until one answers. For calls that change nothing.
    async fn ask<T, F>(&self, call: impl Fn(Stub<Channel>) -> F) -> Result<T, VolumesError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = self.deadline();
        let mut last = String::from("there was none");
        while Instant::now() < deadline {
            let at = self.next.load(Ordering::Relaxed) % self.channels.len();
            match timeout_at(deadline, call(stub(self.channels[at].clone()))).await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) if is_worth_asking_again(&status) => {
                    last = status.message().to_owned();
                }
                Ok(Err(status)) => return Err(VolumesError::refused(&status)),
                Err(_) => break,
            }
            self.go_on().await;
        }
        Err(VolumesError::Deadline(last))
    }
}

/// True if another node, or the same a little later, may do what this one did not.
pub(crate) fn is_worth_asking_again(status: &Status) -> bool {
    // A connection that breaks under a call has no code of its own.
    matches!(
        status.code(),
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown
    )
}

pub(crate) fn stub(channel: Channel) -> Stub<Channel> {
    Stub::new(channel).max_decoding_message_size(2 * READ_BYTES_MAX)
}

fn endpoint(address: &str) -> Result<Endpoint, VolumesError> {
    let wrong = || VolumesError::Address {
        address: address.to_owned(),
    };
    if address.is_empty() || address.contains('/') {
        return Err(wrong());
    }
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| wrong())?;
    Ok(endpoint
        .connect_timeout(CONNECT_MAX)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1)
        .keep_alive_while_idle(true))
}
