//! The times at which requests are sent, and the window in which they count.

use std::fs::File;
use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A request counts if it was sent, or was due to be sent, from `start` until `end`.
#[derive(Debug)]
pub struct Window {
    pub zero: Instant,
    pub start: Instant,
    /// After `zero`; brought forward when the run is interrupted.
    end_ns: AtomicU64,
}

impl Window {
    pub fn new(zero: Instant, warm_up: Duration, duration: Duration) -> Window {
        let end_ns = (warm_up + duration).as_nanos().try_into();
        Window {
            zero,
            start: zero + warm_up,
            end_ns: AtomicU64::new(end_ns.unwrap_or(u64::MAX)),
        }
    }

    pub fn end(&self) -> Instant {
        self.zero + Duration::from_nanos(self.end_ns.load(Ordering::Relaxed))
    }

    pub fn counts(&self, since: Instant) -> bool {
        since >= self.start && since < self.end()
    }

    /// Ends it now, unless it has ended.
    pub fn stop(&self) {
        let now = self.zero.elapsed().as_nanos().try_into();
        self.end_ns
            .fetch_min(now.unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// The schedule of a connection's requests.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// The next request is due as soon as those before are answered.
    Closed,
    /// By the clock.
    Open { next: Instant, interval: Duration },
}

impl Pace {
    /// Of the connection `index` of so many, which share `rate` requests a second evenly.
    pub fn new(rate: Option<u64>, zero: Instant, index: u32, connections: u32) -> Pace {
        let Some(rate) = rate else {
            return Pace::Closed;
        };
        let step = 1.0 / rate as f64;
        Pace::Open {
            next: zero + Duration::from_secs_f64(step * f64::from(index)),
            interval: Duration::from_secs_f64(step * f64::from(connections)),
        }
    }

    /// The time at which the next one is due, if the clock decides.
    pub fn due(&self) -> Option<Instant> {
        match self {
            Pace::Closed => None,
            Pace::Open { next, .. } => Some(*next),
        }
    }

    /// Takes the next one if its time has come before `end`, with the time that its latency counts from:
    /// the time that it was *due*. A server that stalls thus delays all the requests that should have
    /// been sent meanwhile, as it would delay real users, and not only those under way.
    pub fn take(&mut self, now: Instant, end: Instant) -> Option<Instant> {
        match self {
            Pace::Closed => (now < end).then_some(now),
            Pace::Open { next, interval } => {
                let due = *next;
                if due > now || due >= end {
                    return None;
                }
                *next += *interval;
                Some(due)
            }
        }
    }

    /// Returns whether no request is due any more before `end`.
    pub fn over(&self, now: Instant, end: Instant) -> bool {
        self.due().unwrap_or(now) >= end
    }

    /// Counts the requests that were due from `start` until `end` and not taken.
    pub fn unsent(&self, start: Instant, end: Instant) -> u64 {
        let Pace::Open { next, interval } = self else {
            return 0;
        };
        let late = end.saturating_duration_since((*next).max(start));
        late.as_nanos().div_ceil(interval.as_nanos().max(1)) as u64
    }
}

/// A timer that rings within microseconds: tokio's own rounds up to a millisecond, which is twenty times
/// the latency that is to be measured.
#[derive(Default)]
pub struct Alarm {
    /// Made when it is first needed: without a rate it never is.
    timer: Option<AsyncFd<File>>,
    set_for: Option<Instant>,
}

fn new_timer() -> io::Result<AsyncFd<File>> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
    // Deprecated because what is registered might hand out another descriptor later; a File does not, and
    // it is not exchanged. The form that replaces it is unsafe.
    #[allow(deprecated)]
    AsyncFd::with_interest(File::from(timer), Interest::READABLE)
}

impl Alarm {
    /// Waits until then. May be given up and begun again.
    pub async fn wait_until(&mut self, at: Instant) -> io::Result<()> {
        let wait = at.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            return Ok(());
        }
        let timer = match &mut self.timer {
            Some(timer) => timer,
            none => none.insert(new_timer()?),
        };
        if self.set_for != Some(at) {
            // Setting it again also forgets a ring that nobody took.
            let value = Itimerspec {
                it_interval: Timespec::default(),
                it_value: Timespec {
                    tv_sec: wait.as_secs() as i64,
                    tv_nsec: wait.subsec_nanos().into(),
                },
            };
            timerfd_settime(timer.get_ref(), TimerfdTimerFlags::empty(), &value)?;
            self.set_for = Some(at);
        }
        loop {
            let mut ready = timer.readable().await?;
            let rung = ready.try_io(|timer| timer.get_ref().read(&mut [0; 8]));
            if let Ok(rung) = rung {
                self.set_for = None;
                return rung.map(|_| ());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn due_times_do_not_move_when_the_client_is_late() {
        let zero = Instant::now();
        let end = zero + 100 * MS;
        // 1000 a second over 2 connections: one each 2 ms, the second's half way between the first's.
        let mut first = Pace::new(Some(1000), zero, 0, 2);
        let mut second = Pace::new(Some(1000), zero, 1, 2);
        assert_eq!(first.take(zero, end), Some(zero));
        assert_eq!(first.take(zero + MS, end), None);
        assert_eq!(second.take(zero + MS, end), Some(zero + MS));
        // Nothing was taken for 9 ms: those that were due come with the times that they were due at.
        let late = zero + 11 * MS;
        let taken: Vec<Instant> = std::iter::from_fn(|| first.take(late, end)).collect();
        assert_eq!(taken, [2, 4, 6, 8, 10].map(|ms| zero + ms * MS));
        // 12, 14, ... 98 ms; of those, 50 to 98 are within the window.
        assert_eq!(first.unsent(zero, end), 44);
        assert_eq!(first.unsent(zero + 50 * MS, end), 25);
        assert!(!first.over(late, end));
        while first.take(end, end).is_some() {}
        assert!(first.over(end, end));
        assert_eq!(first.unsent(zero, end), 0);
    }

    #[test]
    fn the_window_counts_by_the_time_of_sending_and_can_be_cut_short() {
        let zero = Instant::now();
        let window = Window::new(zero, 10 * MS, Duration::from_secs(60));
        assert!(!window.counts(zero + 9 * MS));
        assert!(window.counts(zero + 10 * MS));
        assert!(!window.counts(zero + Duration::from_millis(60_010)));
        window.stop();
        let cut = window.end();
        assert!(cut <= Instant::now());
        std::thread::sleep(2 * MS);
        window.stop();
        assert_eq!(window.end(), cut, "it ends once");
    }

    #[test]
    fn the_alarm_rings_after_its_time_and_again() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let mut alarm = Alarm::default();
            for micros in [1, 300, 2_000] {
                let at = Instant::now() + Duration::from_micros(micros);
                alarm.wait_until(at).await.expect("it rings");
                assert!(Instant::now() >= at);
            }
            // Given up, the time passed, and begun again for later: the old ring is not taken for it.
            let soon = Instant::now() + 500 * MS;
            let waiting = tokio::time::timeout(MS, alarm.wait_until(soon)).await;
            assert!(waiting.is_err());
            std::thread::sleep(soon.saturating_duration_since(Instant::now()) + MS);
            let later = Instant::now() + 5 * MS;
            alarm.wait_until(later).await.expect("it rings");
            assert!(Instant::now() >= later);
        });
    }
}
