//! The round trip between two namespaces, by datagrams that come back.

use std::net::UdpSocket;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::{DelayCounts, Wan};
use crate::lab::{Lab, enter};

/// Round trips of a measurement.
const ROUND_TRIPS: usize = 100;
/// The pause between two.
const PAUSE: Duration = Duration::from_millis(5);
/// A datagram that is away for so long is lost.
const PATIENCE: Duration = Duration::from_secs(5);

/// Round trips without a delay and with one.
#[derive(Clone, Copy, Debug)]
pub struct RoundTripChange {
    /// The one-way delay that was asked for.
    pub one_way: Duration,
    /// The median without it.
    pub before: Duration,
    /// The median with it.
    pub median: Duration,
    /// The shortest and the longest with it.
    pub range: (Duration, Duration),
    /// The counts of the delay.
    pub counts: DelayCounts,
}

impl RoundTripChange {
    /// The round trip that the delay added, at the median.
    pub fn added(&self) -> Duration {
        self.median.saturating_sub(self.before)
    }
}

impl std::fmt::Display for RoundTripChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        write!(
            f,
            "one way {:.3} ms: round trips of {:.3} ms (median of {ROUND_TRIPS}) became {:.3} ms ({:.3} to {:.3}): {:.3} ms added, {:.3} ms wanted; {}",
            ms(self.one_way),
            ms(self.before),
            ms(self.median),
            ms(self.range.0),
            ms(self.range.1),
            ms(self.added()),
            2.0 * ms(self.one_way),
            self.counts
        )
    }
}

/// Builds a lab of two nodes, and measures the round trip between them without and with a delay.
///
/// # Errors
/// No lab can be built, or a datagram is lost.
pub fn measure(one_way: Duration) -> anyhow::Result<RoundTripChange> {
    let mut lab = Lab::new(2)?;
    let before = round_trips(&lab)?;
    lab.delay(Wan::new(one_way)?, 1)?;
    let after = round_trips(&lab)?;
    let median = |times: &[Duration]| times.get(times.len() / 2).copied().unwrap_or_default();
    Ok(RoundTripChange {
        one_way,
        before: median(&before),
        median: median(&after),
        range: (
            after.first().copied().unwrap_or_default(),
            after.last().copied().unwrap_or_default(),
        ),
        counts: lab.delays()?.unwrap_or_default(),
    })
}

/// Round trips from the first node to the second, shortest first.
fn round_trips(lab: &Lab) -> anyhow::Result<Vec<Duration>> {
    let answering = socket(&lab.place(1), &lab.address(1))?;
    let asking = socket(&lab.place(0), &lab.address(0))?;
    asking.connect(answering.local_addr()?)?;
    std::thread::scope(|scope| {
        scope.spawn(move || answer(&answering));
        ask(&asking)
    })
}

/// Sends back what comes, until nothing has come for a while.
fn answer(socket: &UdpSocket) {
    let mut bytes = [0; 8];
    while let Ok((len, from)) = socket.recv_from(&mut bytes) {
        // One that cannot be answered is lost, which the sender sees.
        let _ = socket.send_to(&bytes[..len], from);
        if bytes == u64::MAX.to_ne_bytes() {
            return;
        }
    }
}

fn ask(socket: &UdpSocket) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::new();
    // The first learns where the other one is, and counts for nothing; the last ends the other thread.
    for number in 0..ROUND_TRIPS as u64 + 2 {
        let bytes = match number {
            n if n == ROUND_TRIPS as u64 + 1 => u64::MAX,
            n => n,
        };
        std::thread::sleep(PAUSE);
        let begun = Instant::now();
        socket.send(&bytes.to_ne_bytes()).context("cannot send")?;
        let mut answered = [0; 8];
        socket
            .recv(&mut answered)
            .with_context(|| format!("no answer to datagram {number} within {PATIENCE:?}"))?;
        if answered != bytes.to_ne_bytes() {
            bail!("datagram {number} was answered with another one");
        }
        if (1..=ROUND_TRIPS as u64).contains(&number) {
            times.push(begun.elapsed());
        }
    }
    times.sort();
    Ok(times)
}

/// A socket of a namespace, for this thread.
fn socket(namespace: &Path, address: &str) -> anyhow::Result<UdpSocket> {
    // The namespace belongs to the thread, and the socket to the namespace in which it was made.
    let made = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter(namespace)?;
            UdpSocket::bind((address, 0)).with_context(|| format!("cannot bind {address}"))
        });
        thread
            .join()
            .unwrap_or_else(|_| Err(anyhow::anyhow!("its thread panicked")))
    })?;
    made.set_read_timeout(Some(PATIENCE))?;
    Ok(made)
}
