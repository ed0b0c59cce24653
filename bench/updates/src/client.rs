//! The client: sends updates, at most so many unanswered, and takes the time until all are answered.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng, rngs::SmallRng};

use crate::bucket::BUCKET_BYTES;
use crate::link::{Kind, Link, wait};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// One client of one group.
pub struct Client {
    links: [Link; 1],
    dice: SmallRng,
    /// Updates sent since the group began.
    sent: u64,
    answered: u64,
}

impl Client {
    pub fn new(stream: TcpStream) -> anyhow::Result<Client> {
        Ok(Client {
            links: [Link::new(stream)?],
            dice: SmallRng::seed_from_u64(1),
            sent: 0,
            answered: 0,
        })
    }

    /// Round trips to the data bucket's process and back, one at a time.
    pub fn pings(&mut self, count: usize) -> anyhow::Result<Vec<Duration>> {
        let mut times = Vec::new();
        for _ in 0..count {
            let begun = Instant::now();
            self.links[0].send(Kind::Ping, 0, 0, &[]);
            self.links[0].flush()?;
            while self.hear(begun)? != Some(Kind::Ping) {}
            times.push(begun.elapsed());
        }
        Ok(times)
    }

    /// Sends so many updates of so many bytes, and waits until all are answered.
    pub fn updates(
        &mut self,
        count: usize,
        bytes: usize,
        window: usize,
    ) -> anyhow::Result<Duration> {
        let mut new = vec![0u8; bytes];
        let begun = Instant::now();
        let end = self.sent + count as u64;
        while self.answered < end {
            while self.sent < end && self.sent - self.answered < window as u64 {
                self.sent += 1;
                let at = self.dice.random_range(0..BUCKET_BYTES / bytes) * bytes;
                new.fill(self.sent as u8);
                let kind = if self.sent == end {
                    Kind::Last
                } else {
                    Kind::Update
                };
                self.links[0].send(kind, self.sent, at as u32, &new);
            }
            self.links[0].flush()?;
            self.hear(begun)?;
        }
        Ok(begun.elapsed())
    }

    fn hear(&mut self, begun: Instant) -> anyhow::Result<Option<Kind>> {
        anyhow::ensure!(begun.elapsed() < PATIENCE, "no answer for {PATIENCE:?}");
        wait(&mut self.links, Some(Duration::from_millis(100)))?;
        anyhow::ensure!(self.links[0].fill()?, "the data bucket's process ended");
        let mut heard = None;
        while let Some(frame) = self.links[0].next()? {
            heard = Some(frame.kind);
            if frame.kind == Kind::Answer {
                self.answered = frame.seq;
            }
        }
        Ok(heard)
    }
}
