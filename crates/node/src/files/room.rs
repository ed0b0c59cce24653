//! How much memory requests for files may take beside the blocks themselves, on one node: the hard part of its budget.
//!
//! Three things hold bytes: what is on its way from a source or through a question ([`FLIGHT_BYTES`]), answers that their
//! askers have not taken yet ([`ANSWER_BYTES`]), and copies for other holders ([`COPY_BYTES`]). Who finds no room waits for
//! it, but not long, and is then told `busy`: a mount goes to another holder or to the source. Copies are not waited for,
//! so that they are left out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use staves_net::Reply;
use staves_wire::{ErrorCode, ErrorPacket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Bytes that are being fetched.
pub(super) const FLIGHT_BYTES: usize = 16 << 20;
/// Bytes of answers that wait to be written, of all connections.
const ANSWER_BYTES: usize = 8 << 20;
/// Bytes on their way to other holders.
const COPY_BYTES: usize = 4 << 20;
/// Longest that anybody waits for room.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// How often it is looked whether answers have been taken.
const LOOK: Duration = Duration::from_millis(5);

pub(super) struct Room {
    flight: Semaphore,
    copies: Arc<Semaphore>,
}

impl Room {
    pub(super) fn new() -> Room {
        Room {
            flight: Semaphore::new(FLIGHT_BYTES),
            copies: Arc::new(Semaphore::new(COPY_BYTES)),
        }
    }

    /// Room for bytes from a source, until it is dropped.
    pub(super) async fn flight(
        &self,
        bytes: u32,
        deadline: Instant,
    ) -> Result<SemaphorePermit<'_>, ErrorPacket> {
        let until = deadline.min(Instant::now() + WAIT_MAX);
        let room = self.flight.acquire_many(bytes);
        match tokio::time::timeout_at(until.into(), room).await {
            Ok(Ok(room)) => Ok(room),
            _ => Err(busy()),
        }
    }

    /// The same for what is fetched though nobody waits for it: only where half of it is free.
    pub(super) fn spare_flight(&self, bytes: u32) -> Option<SemaphorePermit<'_>> {
        let much = self.flight.available_permits() >= FLIGHT_BYTES / 2;
        much.then(|| self.flight.try_acquire_many(bytes).ok())?
    }

    /// Room for a copy to another holder.
    pub(super) fn copy(&self, bytes: u32) -> Option<OwnedSemaphorePermit> {
        self.copies.clone().try_acquire_many_owned(bytes).ok()
    }
}

/// Whether an answer of so many bytes may be given now.
pub(crate) fn may_answer(reply: &Reply, bytes: u32) -> bool {
    reply.server_queued_bytes() + bytes as usize <= ANSWER_BYTES
}

/// Waits until it may be.
pub(crate) async fn wait_to_answer(
    reply: &Reply,
    bytes: u32,
    deadline: Instant,
) -> Result<(), ErrorPacket> {
    let until = deadline.min(Instant::now() + WAIT_MAX);
    while !may_answer(reply, bytes) {
        if Instant::now() >= until {
            return Err(busy());
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

fn busy() -> ErrorPacket {
    let text = "this node has as many bytes of files under way as it may: ask another holder, or the source";
    ErrorPacket::new(ErrorCode::Busy, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What does not fit waits, and is then refused; what was given back serves again.
    #[tokio::test]
    async fn bytes_under_way_are_bounded_and_who_waits_is_answered() {
        let room = Room::new();
        let later = || Instant::now() + Duration::from_secs(60);
        let mut held = Vec::new();
        for _ in 0..FLIGHT_BYTES >> 20 {
            held.push(room.flight(1 << 20, later()).await.unwrap());
        }
        let refused = room.flight(1, later()).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Busy);
        assert!(room.spare_flight(1).is_none());
        held.pop();
        drop(room.flight(1 << 20, later()).await.unwrap());
        assert!(room.spare_flight(1).is_none(), "readers come first");
        held.clear();
        assert!(room.spare_flight(1 << 20).is_some());
        let copies: Vec<_> = (0..=COPY_BYTES >> 20).map(|_| room.copy(1 << 20)).collect();
        assert!(copies.last().unwrap().is_none() && copies[0].is_some());
    }
}
