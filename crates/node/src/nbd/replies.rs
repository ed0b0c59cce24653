//! Replies on their way to a client.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use staves_nbd::NbdError;
use staves_net::InFlightPart;
use tokio::io::AsyncWriteExt;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;

use crate::running::Running;
use crate::tls::DoorWriter;
use crate::volumes::error::VolumeFault;

/// The time that a client may take none of its replies.
pub(super) const WRITE_MAX: Duration = Duration::from_secs(30);
/// Replies up to this length leave together.
const TOGETHER_BYTES: usize = 64 << 10;

/// NBD's number for a failure.
pub(super) fn nbd_error(fault: VolumeFault) -> NbdError {
    match fault {
        VolumeFault::SessionOver | VolumeFault::Deleted => NbdError::Eshutdown,
        VolumeFault::Attached => NbdError::Eperm,
        VolumeFault::Full => NbdError::Enospc,
        VolumeFault::BadRequest => NbdError::Einval,
        VolumeFault::Unsupported => NbdError::Enotsup,
        VolumeFault::NoMemory => NbdError::Enomem,
        VolumeFault::NotServing | VolumeFault::Late | VolumeFault::Lost | VolumeFault::Failed => {
            NbdError::Eio
        }
    }
}

/// A reply on its way, and what it holds until it has left.
pub(super) struct NbdReply {
    pub(super) head: BytesMut,
    pub(super) payload: Vec<Bytes>,
    pub(super) part: Option<InFlightPart>,
    pub(super) _place: OwnedSemaphorePermit,
}

/// Sends replies as they come, small ones together.
pub(super) async fn write(
    mut writing: DoorWriter,
    mut replies: mpsc::Receiver<NbdReply>,
    running: Arc<Running>,
) -> io::Result<()> {
    let mut together = BytesMut::new();
    let mut held: Vec<NbdReply> = Vec::new();
    while let Some(reply) = replies.recv().await {
        let mut next = Some(reply);
        while let Some(mut reply) = next.take() {
            together.extend_from_slice(&reply.head);
            let bytes: usize = reply.payload.iter().map(Bytes::len).sum();
            if bytes > TOGETHER_BYTES {
                let part = reply.part.take();
                send(&mut writing, &together, &reply.payload, part).await?;
                together.clear();
            } else {
                reply
                    .payload
                    .iter()
                    .for_each(|p| together.extend_from_slice(p));
                reply.payload.clear();
                held.push(reply);
            }
            if together.len() < TOGETHER_BYTES {
                next = replies.try_recv().ok();
            }
        }
        let part = InFlightPart::of_request(running.in_flight.clone());
        send(&mut writing, &together, &[], Some(part)).await?;
        together.clear();
        held.clear();
    }
    writing.shutdown().await
}

/// Sends a head and its payload. Ends if the client takes nothing for long, or holds memory for which others wait.
async fn send(
    writing: &mut DoorWriter,
    head: &[u8],
    payload: &[Bytes],
    mut part: Option<InFlightPart>,
) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(1 + payload.len());
    slices.push(IoSlice::new(head));
    slices.extend(payload.iter().map(|bytes| IoSlice::new(bytes)));
    let mut left = &mut slices[..];
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        let count = unless_stuck(&mut part, writing.write_vectored(left)).await?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        if let Some(part) = &mut part {
            part.moved(count);
        }
        IoSlice::advance_slices(&mut left, count);
    }
    // TLS keeps the last of it, 64 KiB at most, until it is asked to send that.
    unless_stuck(&mut part, writing.flush()).await
}

/// Waits until the client takes something, and no longer than it may.
async fn unless_stuck<T>(
    part: &mut Option<InFlightPart>,
    step: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let stuck = async {
        match part {
            Some(part) => part.stuck().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        done = timeout(WRITE_MAX, step) => done.map_err(io::Error::from)?,
        () = stuck => Err(io::Error::other("replies that nobody takes, for whose memory others wait")),
    }
}
