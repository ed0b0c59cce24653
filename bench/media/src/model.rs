//! The time of a read on a medium. Plain arithmetic on a clock that is handed in.

use std::time::Duration;

/// A disk: a seek unless the read goes on where the last one ended.
const DISK_SEEK: Duration = Duration::from_millis(8);
/// Bytes a second.
const DISK_RATE: u64 = 150_000_000;
/// The bytes that the drive reads ahead by itself, into memory of its own.
const DISK_BUFFER: u64 = 1 << 20;
/// An object store: each request, and bytes a second of each.
const STORE_REQUEST: Duration = Duration::from_millis(5);
const STORE_RATE: u64 = 100_000_000;

fn transfer(bytes: u64, rate: u64) -> Duration {
    Duration::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(rate)) as u64)
}

/// The time of a request to an object store.
pub fn store(bytes: u64) -> Duration {
    STORE_REQUEST + transfer(bytes, STORE_RATE)
}

/// The one head of a disk. Times are since whatever moment the caller chose.
#[derive(Debug, Default)]
pub struct Head {
    /// The head's place: file and offset.
    at: Option<(u64, u64)>,
    /// The time at which the queued reads are done.
    free: Duration,
    /// The time that it has worked in all.
    pub busy: Duration,
    /// The delay of the last reader's wake-up: time that the model does not have.
    pub late: Duration,
}

impl Head {
    /// Takes a read that arrives now; says when it is done.
    pub fn read(&mut self, now: Duration, file: u64, offset: u64, bytes: u64) -> Duration {
        let passed = now.saturating_sub(self.late);
        let (cost, from) = match self.at == Some((file, offset)) {
            true => (
                Duration::ZERO,
                passed.saturating_sub(transfer(DISK_BUFFER, DISK_RATE)),
            ),
            false => (DISK_SEEK, passed),
        };
        let cost = cost + transfer(bytes, DISK_RATE);
        // What is in the drive's memory already is there at once.
        self.free = (self.free.max(from) + cost).max(passed);
        self.busy += cost;
        self.at = Some((file, offset + bytes));
        self.free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_jump_costs_a_seek_and_going_on_does_not() {
        let mut head = Head::default();
        assert_eq!(head.read(MS, 1, 0, 1_500_000), MS * 19);
        assert_eq!(head.read(MS * 19, 1, 1_500_000, 1_500_000), MS * 29);
        assert_eq!(
            head.read(MS * 50, 2, 3_000_000, 1_500_000),
            MS * 68,
            "another file"
        );
        assert_eq!(head.read(MS * 68, 2, 0, 1_500_000), MS * 86, "back");
        assert_eq!(head.busy, MS * 64);
    }

    #[test]
    fn the_drive_reads_on_by_itself_as_far_as_its_memory_goes() {
        let mut head = Head::default();
        head.read(Duration::ZERO, 1, 0, 300_000);
        assert_eq!(
            head.read(MS * 11, 1, 300_000, 300_000),
            MS * 12,
            "half of it was there"
        );
        assert_eq!(
            head.read(MS * 15, 1, 600_000, 300_000),
            MS * 15,
            "all of it was there"
        );
        let long = head.read(MS * 1000, 1, 900_000, 3_000_000);
        assert!(
            long > MS * 1012 && long < MS * 1014,
            "a mebibyte of it was there: {long:?}"
        );
    }

    #[test]
    fn there_is_one_head() {
        let mut head = Head::default();
        head.read(Duration::ZERO, 1, 0, 0);
        assert_eq!(
            head.read(Duration::ZERO, 2, 0, 0),
            MS * 16,
            "after the other"
        );
    }

    #[test]
    fn who_is_woken_too_late_does_not_make_the_disk_slower() {
        let mut head = Head::default();
        let done = head.read(Duration::ZERO, 1, 0, 1_500_000);
        head.late = MS / 2;
        assert_eq!(
            head.read(done + MS / 2, 1, 1_500_000, 1_500_000),
            done + MS * 10
        );
    }

    #[test]
    fn a_store_takes_a_while_for_each_request() {
        assert_eq!(store(0), MS * 5);
        assert_eq!(store(1_000_000), MS * 15);
    }
}
