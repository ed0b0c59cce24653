//! The memory that a node takes for files beside the blocks themselves, and so the share of its `--memory` that blocks may have: a
//! process keeps to its `--memory` and a tenth.
//!
//! Three things hold bytes: bytes on their way from a source or through a question (flights), answers that their
//! askers have not taken yet, and copies for other holders. A request without room waits for it, a short time,
//! and is then answered `busy`: a mount goes to another holder or to the source. Copies are not waited for: they are
//! dropped. A small node has less room for them; and since the program itself is more than a tenth of its memory, its
//! blocks have less than all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use staves_net::Reply;
use staves_wire::files::FILE_BYTES_MAX;
use staves_wire::{ErrorCode, ErrorPacket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// The program with its tables, threads and buffers of connections: 16 MiB when it has just begun.
const PROGRAM_BYTES: u64 = 24 << 20;
/// Of a node's blocks, the part that their table takes beside them at most: some 90 bytes for each 8 KiB, and 200 more where blocks
/// are of two parts each.
const TABLE_PART: u64 = 28;
/// A copy counts as so many bytes at least: what carries it takes memory too. So does a flight: whole parts are fetched.
const BYTES_MIN: u32 = 16 << 10;
/// Bytes of the names of a folder while a dataset is walked through, at most: 100,000 names of a bucket.
const NAMES_BYTES_MAX: u64 = 50 << 20;
/// The longest wait for room.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// The interval between looks for answers that have been sent.
const LOOK: Duration = Duration::from_millis(5);

pub(super) struct Room {
    memory_bytes: u64,
    flight: Semaphore,
    flight_bytes: usize,
    answer_bytes: usize,
    copies: Arc<Semaphore>,
    copy_bytes: usize,
}

impl Room {
    /// Of a node with so much memory: a sixteenth of it for what is fetched, within bounds, half of that for answers, a quarter for copies.
    pub(super) fn new(memory_bytes: u64) -> Room {
        let flight_bytes = (memory_bytes / 16).clamp(4 << 20, 16 << 20) as usize;
        Room {
            memory_bytes,
            flight: Semaphore::new(flight_bytes),
            flight_bytes,
            answer_bytes: flight_bytes / 2,
            copies: Arc::new(Semaphore::new(flight_bytes / 4)),
            copy_bytes: flight_bytes / 4,
        }
    }

    /// The bytes that blocks, and the buckets of other pools, may have in all: with the rest a tenth more than the node's memory at most. A very
    /// small node does not get so far, and gives blocks half of its memory all the same.
    pub(super) fn for_blocks(&self) -> u64 {
        let requests = self.flight_bytes + self.answer_bytes + self.copy_bytes;
        let most = self.memory_bytes.saturating_add(self.memory_bytes / 10);
        let left = most.saturating_sub(PROGRAM_BYTES + requests as u64);
        let left = left - left / TABLE_PART;
        left.clamp(self.memory_bytes / 2, self.memory_bytes)
    }

    /// Room for bytes from a source, until it is dropped. More than one message may ask for is refused later, and must not keep others
    /// from their turn until then.
    pub(super) async fn flight(
        &self,
        bytes: u32,
        deadline: Instant,
    ) -> Result<SemaphorePermit<'_>, ErrorPacket> {
        let until = deadline.min(Instant::now() + WAIT_MAX);
        let bytes = bytes.clamp(BYTES_MIN, FILE_BYTES_MAX);
        let room = self.flight.acquire_many(bytes);
        match tokio::time::timeout_at(until.into(), room).await {
            Ok(Ok(room)) => Ok(room),
            _ => Err(busy()),
        }
    }

    /// The same for fetches without a waiting reader: only where half of it is free.
    pub(super) fn spare_flight(&self, bytes: u32) -> Option<SemaphorePermit<'_>> {
        let much = self.flight.available_permits() >= self.flight_bytes / 2;
        much.then(|| self.flight.try_acquire_many(bytes).ok())?
    }

    /// Bytes that the names of a folder may take while a dataset is walked through: a quarter of what may be fetched, which they
    /// count in ([`Room::names`]); and of a large node what is left of its tenth.
    pub(super) fn names_bytes(&self) -> usize {
        let requests = self.flight_bytes + self.answer_bytes + self.copy_bytes;
        let blocks = self.for_blocks();
        let used = blocks + blocks / TABLE_PART + PROGRAM_BYTES + requests as u64;
        let most = self.memory_bytes.saturating_add(self.memory_bytes / 10);
        let left = most.saturating_sub(used).min(NAMES_BYTES_MAX) as usize;
        left.max(self.flight_bytes / 4)
    }

    /// Room for these, until it is dropped; `None` if nobody gives any back for so long.
    pub(super) async fn names(&self, wait_max: Duration) -> Option<SemaphorePermit<'_>> {
        let room = self.flight.acquire_many((self.flight_bytes / 4) as u32);
        tokio::time::timeout(wait_max, room).await.ok()?.ok()
    }

    /// Room for a copy to another holder.
    pub(super) fn copy(&self, bytes: u32) -> Option<OwnedSemaphorePermit> {
        let bytes = bytes.max(BYTES_MIN);
        self.copies.clone().try_acquire_many_owned(bytes).ok()
    }

    /// True if an answer of so many bytes may be sent now.
    pub(super) fn may_answer(&self, reply: &Reply, bytes: u32) -> bool {
        reply.server_queued_bytes() + bytes as usize <= self.answer_bytes
    }

    /// Waits until it may be.
    pub(super) async fn wait_to_answer(
        &self,
        reply: &Reply,
        bytes: u32,
        deadline: Instant,
    ) -> Result<(), ErrorPacket> {
        let until = deadline.min(Instant::now() + WAIT_MAX);
        while !self.may_answer(reply, bytes) {
            if Instant::now() >= until {
                return Err(busy());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }
}

fn busy() -> ErrorPacket {
    let text = "this node has as many bytes of files under way as it may: ask another holder, or the source";
    ErrorPacket::new(ErrorCode::Busy, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that does not fit waits, and is then refused; bytes that were given back serve again.
    #[tokio::test]
    async fn bytes_under_way_are_bounded_and_who_waits_is_answered() {
        let room = Room::new(1 << 40);
        let later = || Instant::now() + Duration::from_secs(60);
        let mut held = Vec::new();
        for _ in 0..room.flight_bytes >> 20 {
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
        let copies: Vec<_> = (0..=room.copy_bytes >> 20)
            .map(|_| room.copy(1 << 20))
            .collect();
        assert!(copies.last().unwrap().is_none() && copies[0].is_some());
    }

    /// However few bytes each has, copies under way are bounded in number.
    #[test]
    fn small_copies_are_bounded_in_number() {
        let room = Room::new(1 << 30);
        let held: Vec<_> = (0..10_000).map_while(|_| room.copy(1)).collect();
        assert_eq!(held.len(), room.copy_bytes / BYTES_MIN as usize);
    }

    /// The same of flights; and a question for more than the whole room delays no other.
    #[tokio::test]
    async fn small_flights_are_bounded_in_number_and_a_huge_one_blocks_none() {
        let room = Room::new(64 << 20);
        let later = || Instant::now() + Duration::from_secs(60);
        drop(room.flight(u32::MAX, later()).await.unwrap());
        let most = room.flight_bytes / BYTES_MIN as usize;
        let mut held = Vec::new();
        for _ in 0..most {
            held.push(room.flight(1, later()).await.unwrap());
        }
        assert!(room.flight(1, later()).await.is_err());
    }

    /// With blocks, requests and itself a process has its memory and a tenth at most, down to 64 MiB; a large one gives all to blocks.
    #[test]
    fn blocks_leave_room_for_the_rest_of_the_process() {
        for mib in [64, 96, 128, 256, 400, 500, 1 << 10, 1 << 20] {
            let memory = mib << 20;
            let room = Room::new(memory);
            let requests = room.flight_bytes + room.answer_bytes + room.copy_bytes;
            let tables = room.for_blocks() / TABLE_PART;
            let all = room.for_blocks() + tables + PROGRAM_BYTES + requests as u64;
            assert!(all <= memory + memory / 10, "{mib} MiB");
            let beyond = room.names_bytes().saturating_sub(room.flight_bytes / 4) as u64;
            assert!(all + beyond <= memory + memory / 10, "{mib} MiB with names");
            assert!(room.names_bytes() >= 1 << 20 && room.names_bytes() <= 50 << 20);
            assert!(room.for_blocks() >= memory / 2);
            assert!(room.flight_bytes >= 4 << 20, "some stretches at a time");
        }
        assert_eq!(Room::new(2 << 30).for_blocks(), 2 << 30);
        assert_eq!(Room::new(16 << 20).for_blocks(), 8 << 20);
        assert!(Room::new(u64::MAX).for_blocks() > 0);
    }
}
