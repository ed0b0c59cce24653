//! The packets that are on their way: a plain machine, without a clock and without sockets.

use std::collections::VecDeque;
use std::time::Duration;

/// Packets that wait for their time, in the order in which they came. Times are those since any fixed instant.
#[derive(Debug)]
pub struct DelayQueue {
    delay: Duration,
    packets_max: usize,
    waiting: VecDeque<QueuedPacket>,
}

#[derive(Clone, Copy, Debug)]
struct QueuedPacket {
    due: Duration,
    packet: u32,
}

/// Packets that may go on: the last one of them, and all that came before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReleasedBatch {
    /// The number of the last packet, in the kernel's count.
    pub last: u32,
    /// The number of packets.
    pub packets: usize,
    /// The time beyond the delay that the first of them waited.
    pub late: Duration,
}

impl DelayQueue {
    /// An empty queue; it holds `packets_max` packets at most.
    pub fn new(delay: Duration, packets_max: usize) -> DelayQueue {
        DelayQueue {
            delay,
            packets_max,
            waiting: VecDeque::new(),
        }
    }

    /// Takes a packet in. False if the queue is full: the packet is to be dropped.
    #[must_use]
    pub fn arrive(&mut self, now: Duration, packet: u32) -> bool {
        if self.waiting.len() == self.packets_max {
            return false;
        }
        // A packet never overtakes the one before it, whatever its caller's clock says.
        let earliest = self.waiting.back().map_or(Duration::ZERO, |last| last.due);
        let due = (now + self.delay).max(earliest);
        self.waiting.push_back(QueuedPacket { due, packet });
        true
    }

    /// Lets the packets go whose time has come.
    pub fn release(&mut self, now: Duration) -> Option<ReleasedBatch> {
        let first = *self.waiting.front()?;
        let packets = self.waiting.partition_point(|waiting| waiting.due <= now);
        let last = self.waiting.drain(..packets).next_back()?;
        Some(ReleasedBatch {
            last: last.packet,
            packets,
            late: now.saturating_sub(first.due),
        })
    }

    /// The time at which the next packet may go on.
    pub fn next_due(&self) -> Option<Duration> {
        self.waiting.front().map(|waiting| waiting.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn queue(packets_max: usize) -> DelayQueue {
        DelayQueue::new(10 * MS, packets_max)
    }

    #[test]
    fn a_packet_waits_its_time_and_no_longer() {
        let mut queue = queue(8);
        assert_eq!((queue.next_due(), queue.release(99 * MS)), (None, None));
        assert!(queue.arrive(5 * MS, 1));
        assert_eq!(queue.next_due(), Some(15 * MS));
        assert_eq!(queue.release(15 * MS - Duration::from_nanos(1)), None);
        let late = Duration::ZERO;
        assert_eq!(
            queue.release(15 * MS),
            Some(ReleasedBatch {
                last: 1,
                packets: 1,
                late
            })
        );
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn packets_that_are_due_go_in_one_batch_and_in_order() {
        let mut queue = queue(8);
        for (at, packet) in [(0, 7), (1, 8), (1, 9), (4, 10)] {
            assert!(queue.arrive(at * MS, packet));
        }
        let late = 2 * MS;
        assert_eq!(
            queue.release(12 * MS),
            Some(ReleasedBatch {
                last: 9,
                packets: 3,
                late
            })
        );
        assert_eq!(queue.release(13 * MS), None);
        assert_eq!(queue.release(14 * MS).map(|r| r.last), Some(10));
    }

    #[test]
    fn a_full_queue_takes_nothing_until_a_packet_went_on() {
        let mut queue = queue(2);
        assert!(queue.arrive(Duration::ZERO, 1) && queue.arrive(Duration::ZERO, 2));
        assert!(!queue.arrive(MS, 3), "two are on their way");
        assert_eq!(queue.release(10 * MS).map(|r| r.packets), Some(2));
        assert!(queue.arrive(11 * MS, 4));
        assert_eq!(queue.release(21 * MS).map(|r| r.last), Some(4));
    }

    #[test]
    fn a_clock_that_steps_back_lets_no_packet_overtake() {
        let mut queue = queue(4);
        assert!(queue.arrive(5 * MS, 1) && queue.arrive(2 * MS, 2));
        assert_eq!(queue.release(12 * MS), None);
        assert_eq!(queue.release(15 * MS).map(|r| r.packets), Some(2));
    }

    #[test]
    fn numbers_of_packets_may_begin_again() {
        let mut queue = queue(4);
        assert!(queue.arrive(Duration::ZERO, u32::MAX) && queue.arrive(Duration::ZERO, 0));
        assert_eq!(queue.release(10 * MS).map(|r| r.last), Some(0));
    }
}
