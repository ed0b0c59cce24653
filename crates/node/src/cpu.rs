//! The processor time that a process has used, as the kernel counts it.
//!
//! From `/proc`, not from `getrusage`: another process can be asked for in the same way, which a
//! benchmark on the same machine does.

use std::io;
use std::ops::Sub;
use std::time::Duration;

/// A tick of `/proc/<pid>/stat`. `USER_HZ` is 100 on every processor that this program runs on,
/// whatever the kernel's own tick.
const TICK: Duration = Duration::from_millis(10);

/// Processor time, of all threads, the ended ones too. In steps of 10 ms.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuTime {
    /// In the program.
    pub user: Duration,
    /// In the kernel, on its behalf.
    pub system: Duration,
}

impl CpuTime {
    /// Of this process since it started; nothing where `/proc` cannot be read.
    pub fn of_this_process() -> CpuTime {
        CpuTime::read("/proc/self/stat").unwrap_or_default()
    }

    /// Of the process with this id since it started.
    pub fn of_process(pid: u32) -> io::Result<CpuTime> {
        CpuTime::read(&format!("/proc/{pid}/stat"))
    }

    /// Both together.
    pub fn total(&self) -> Duration {
        self.user + self.system
    }

    fn read(path: &str) -> io::Result<CpuTime> {
        let stat = std::fs::read_to_string(path)?;
        CpuTime::parse(&stat)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{path} is odd")))
    }

    /// proc(5): `pid (name) state ...`, user and system ticks in fields 14 and 15. The name may hold
    /// blanks and parentheses, so the fields are counted from the last one.
    fn parse(stat: &str) -> Option<CpuTime> {
        let (_, fields) = stat.rsplit_once(')')?;
        let mut ticks = fields.split_ascii_whitespace().skip(11);
        let mut next = || TICK.checked_mul(ticks.next()?.parse().ok()?);
        Some(CpuTime {
            user: next()?,
            system: next()?,
        })
    }
}

impl Sub for CpuTime {
    type Output = CpuTime;

    /// The time used since `before`.
    fn sub(self, before: CpuTime) -> CpuTime {
        CpuTime {
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_kernels_line_is_read() {
        let line = "7 (a) b (c) S 1 7 7 0 -1 4194560 9 0 0 0 123 45 6 7 20 0 3 0 100 0 0";
        let time = CpuTime::parse(line).expect("a line of proc(5)");
        assert_eq!(time.user, Duration::from_millis(1230));
        assert_eq!(time.system, Duration::from_millis(450));
        for bad in ["", "7 (a) S 1", "7 (a) S 1 7 7 0 -1 4 9 0 0 0 x y"] {
            assert_eq!(CpuTime::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_busy_process_uses_time_and_a_missing_one_is_an_error() {
        let before = CpuTime::of_this_process();
        let until = Instant::now() + Duration::from_secs(60);
        while (CpuTime::of_this_process() - before).total() < Duration::from_millis(50) {
            assert!(Instant::now() < until, "a minute's work was not counted");
        }
        let by_id = CpuTime::of_process(std::process::id()).expect("it runs");
        assert!(by_id.total() >= before.total() + Duration::from_millis(50));
        // Beyond the kernel's largest id.
        assert!(CpuTime::of_process(u32::MAX).is_err());
    }
}
