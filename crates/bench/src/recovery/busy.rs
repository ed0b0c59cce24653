//! The processor time of processes over an interval that is known only afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use staves_node::cpu::CpuTime;

/// The interval between samples. The kernel counts processor time in steps of 10 ms.
const LOOK: Duration = Duration::from_millis(20);

/// Times, each with the processor time that all processes had used by then.
type CpuSamples = Vec<(Instant, Duration)>;

/// Looks until it is stopped.
pub struct CpuWatch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<CpuSamples>,
}

impl CpuWatch {
    pub fn start(pids: Vec<u32>) -> CpuWatch {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut seen = CpuSamples::new();
            while !stopped.load(Ordering::Relaxed) {
                let used = |pid: &u32| CpuTime::of_process(*pid).ok().map(|time| time.total());
                seen.push((Instant::now(), pids.iter().filter_map(used).sum()));
                std::thread::sleep(LOOK);
            }
            seen
        });
        CpuWatch { stop, thread }
    }

    pub fn stop(self) -> anyhow::Result<Busy> {
        self.stop.store(true, Ordering::Relaxed);
        let seen = self.thread.join();
        seen.map(Busy)
            .map_err(|_| anyhow!("a thread of the bench has failed"))
    }
}

/// The samples.
pub struct Busy(CpuSamples);

impl Busy {
    /// The processor time that was used from one time to another.
    pub fn between(&self, from: Instant, until: Instant) -> Duration {
        self.at(until).saturating_sub(self.at(from))
    }

    // By the straight line between what was seen before and after.
    fn at(&self, at: Instant) -> Duration {
        let next = self.0.partition_point(|(seen, _)| *seen < at);
        match (self.0.get(next.wrapping_sub(1)), self.0.get(next)) {
            (Some((from, before)), Some((until, after))) => {
                let share = (at - *from).as_secs_f64() / (*until - *from).as_secs_f64().max(1e-9);
                *before + after.saturating_sub(*before).mul_f64(share.min(1.0))
            }
            (Some((_, used)), None) | (None, Some((_, used))) => *used,
            (None, None) => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_between_two_looks_is_taken_as_used_evenly() {
        let zero = Instant::now();
        let ms = Duration::from_millis;
        let busy = Busy(vec![
            (zero, ms(100)),
            (zero + ms(20), ms(140)),
            (zero + ms(40), ms(140)),
        ]);
        let between = |from, until| busy.between(zero + ms(from), zero + ms(until)).as_millis();
        assert_eq!(between(0, 40), 40);
        assert_eq!(between(5, 10), 10);
        assert_eq!(between(20, 40), 0);
        assert_eq!(between(10, 90), 20, "nothing is known of what came after");
    }

    #[test]
    fn who_works_is_seen_to() {
        let watch = CpuWatch::start(vec![std::process::id()]);
        let begun = Instant::now();
        let mut x = 1u64;
        while begun.elapsed() < Duration::from_millis(400) {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        let until = Instant::now();
        let busy = watch.stop().expect("it ends");
        assert!(
            busy.between(begun, until) > Duration::from_millis(20),
            "{x}"
        );
    }
}
