//! Writes, in a session of one node.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use crate::client::{VolumesClient, is_worth_asking_again, stub};
use crate::error::{VolumesError, is_settled};
use crate::v1::volumes_client::VolumesClient as Stub;
use crate::{WRITE_BYTES_MAX, v1};

/// The pause before a call is sent again of which nothing was done.
const AGAIN: Duration = Duration::from_millis(20);

/// The way to attach a volume.
#[derive(Clone, Copy, Default, Debug)]
pub struct AttachOptions {
    /// The time to wait for somebody else to let go, within the client's deadline.
    pub wait: Duration,
    /// Takes the volume from whoever has it.
    pub take_over: bool,
}

/// A volume in a session of this client. The session ends with the value, and with its connection: writes fail then, and the volume is to be
/// attached anew. Bytes are read through it, or through [`VolumesClient::read`].
#[derive(Debug)]
pub struct AttachedVolume {
    client: VolumesClient,
    channel: Channel,
    volume: String,
    session: u64,
    size_bytes: u64,
    /// Set once, by a write without an answer: nothing is sent in this session any more.
    over: std::sync::OnceLock<String>,
}

impl AttachedVolume {
    /// Asks node after node for a session, each by a connection of its own.
    pub(crate) async fn begin(
        client: &VolumesClient,
        volume: &str,
        options: AttachOptions,
    ) -> Result<AttachedVolume, VolumesError> {
        let deadline = client.deadline();
        let mut last = String::from("there was none");
        while Instant::now() < deadline {
            let channel = client.own_channel();
            let left = deadline.saturating_duration_since(Instant::now());
            let request = v1::AttachRequest {
                volume: volume.to_owned(),
                wait_ms: options.wait.min(left).as_millis() as u32,
                take_over: options.take_over,
            };
            let mut asked = stub(channel.clone());
            match timeout_at(deadline, asked.attach(request)).await {
                Ok(Ok(attached)) => {
                    let v1::AttachReply {
                        session,
                        size_bytes,
                    } = attached.into_inner();
                    return Ok(AttachedVolume {
                        client: client.clone(),
                        channel,
                        volume: volume.to_owned(),
                        session,
                        size_bytes,
                        over: std::sync::OnceLock::new(),
                    });
                }
                Ok(Err(status)) if is_worth_asking_again(&status) => {
                    last = status.message().to_owned();
                }
                Ok(Err(status)) => return Err(VolumesError::refused(&status)),
                Err(_) => break,
            }
            client.go_on().await;
        }
        Err(VolumesError::Deadline(last))
    }

    /// The session's number.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// The volume's length when it was attached.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Reads bytes at any offset, through any node.
    pub async fn read(&self, offset: u64, length: usize) -> Result<Bytes, VolumesError> {
        self.client.read(&self.volume, offset, length).await
    }

    /// Writes bytes at any offset. More than [`WRITE_BYTES_MAX`] are written piece by piece, in order.
    pub async fn write(&self, offset: u64, data: impl Into<Bytes>) -> Result<(), VolumesError> {
        let (mut at, mut data) = (offset, data.into());
        loop {
            let piece = data.split_to(WRITE_BYTES_MAX.min(data.len()));
            let len = piece.len() as u64;
            let request = v1::WriteRequest {
                volume: self.volume.clone(),
                session: self.session,
                offset: at,
                data: piece,
            };
            let write = |mut stub: Stub<Channel>| {
                let request = request.clone();
                async move { stub.write(request).await }
            };
            self.change(write).await?;
            at = at.saturating_add(len);
            if data.is_empty() {
                return Ok(());
            }
        }
    }

    /// Makes bytes zeroes; whole pieces of 64 KiB give their memory back.
    pub async fn zero(&self, offset: u64, length: u64) -> Result<(), VolumesError> {
        let request = v1::ZeroRequest {
            volume: self.volume.clone(),
            session: self.session,
            offset,
            length,
        };
        let zero = |mut stub: Stub<Channel>| {
            let request = request.clone();
            async move { stub.zero(request).await }
        };
        self.change(zero).await.map(drop)
    }

    /// Gives the memory of whole pieces of 64 KiB back.
    pub async fn discard(&self, offset: u64, length: u64) -> Result<(), VolumesError> {
        let request = v1::DiscardRequest {
            volume: self.volume.clone(),
            session: self.session,
            offset,
            length,
        };
        let discard = |mut stub: Stub<Channel>| {
            let request = request.clone();
            async move { stub.discard(request).await }
        };
        self.change(discard).await.map(drop)
    }

    /// Waits until all that was answered before is on the disks of all copies. Only where the volume has write-back there is anything to wait for;
    /// if some of it may be gone, the session is over.
    pub async fn flush(&self) -> Result<(), VolumesError> {
        let request = v1::FlushRequest {
            volume: self.volume.clone(),
            session: self.session,
        };
        let flush = |mut stub: Stub<Channel>| {
            let request = request.clone();
            async move { stub.flush(request).await }
        };
        self.change(flush).await.map(drop)
    }

    /// Ends the session: the volume is free.
    pub async fn detach(self) -> Result<(), VolumesError> {
        let request = v1::DetachRequest {
            volume: self.volume.clone(),
            session: self.session,
        };
        let detach = |mut stub: Stub<Channel>| {
            let request = request.clone();
            async move { stub.detach(request).await }
        };
        self.change(detach).await.map(drop)
    }

    /// Sends a call in this session, and again only while the node says that nothing of it is under way.
    async fn change<T, F>(&self, call: impl Fn(Stub<Channel>) -> F) -> Result<T, VolumesError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = self.client.deadline();
        // A call that is dropped ends the session at the node, too.
        let mut unanswered = Unanswered(Some(self));
        loop {
            if let Some(why) = self.over.get() {
                return Err(VolumesError::SessionOver(why.clone()));
            }
            let failed = match timeout_at(deadline, call(stub(self.channel.clone()))).await {
                Ok(Ok(response)) => {
                    unanswered.0 = None;
                    return Ok(response.into_inner());
                }
                Ok(Err(status)) => status,
                Err(_) => return Err(self.end("a write had no answer in time")),
            };
            if !is_settled(&failed) || failed.code() == Code::Aborted {
                return Err(self.end(failed.message()));
            }
            unanswered.0 = None;
            if failed.code() != Code::Unavailable {
                return Err(VolumesError::refused(&failed));
            }
            if Instant::now() + AGAIN >= deadline {
                return Err(VolumesError::Deadline(failed.message().to_owned()));
            }
            sleep(AGAIN).await;
            unanswered.0 = Some(self);
        }
    }

    fn end(&self, why: &str) -> VolumesError {
        let why = self.over.get_or_init(|| why.to_owned());
        VolumesError::SessionOver(why.clone())
    }
}

/// Ends a session whose call was dropped before its answer.
struct Unanswered<'a>(Option<&'a AttachedVolume>);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(volume) = self.0 {
            let _ = volume.over.set("a call was given up".to_owned());
        }
    }
}
