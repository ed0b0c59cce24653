//! The data bucket's process: the baselines, and low watermarks as the paper has them.

use std::collections::VecDeque;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng, rngs::SmallRng};

use crate::bucket::{Bucket, Delta, K, pack};
use crate::link::{Frame, Kind, Link, wait};
use crate::logged;

/// The protocol that makes an update safe.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Mode {
    /// Parity applies and acknowledges; the client is answered after all acknowledgements.
    OnePhase,
    /// Parity queues and acknowledges, one after the other; then all are told to apply.
    SerialTwoPhase,
    /// The same to all at once.
    ParallelTwoPhase,
    /// Low watermarks: parity applies, and reports its state every so many updates.
    Watermark {
        /// Updates between two reports.
        every: u64,
        /// Only the last update of a run is answered (the paper's B).
        last_only: bool,
    },
    /// Our own protocol, the machine of `staves-group`: parity logs, and applies what is stable.
    Logged,
}

/// Deltas without an acknowledgement that the data bucket keeps; a full log holds the client back.
const LOG_MAX: usize = 512;
/// Silence after which what is owed is sent again; once something was lost, one and a half round trips.
const PATIENCE: Duration = Duration::from_micros(500);
/// Copies of one message on a way that loses them.
const COPIES_MIN: u32 = 2;
const COPIES_MAX: u32 = 6;

/// Serves one client and two parity buckets until the client goes.
pub fn run(mode: Mode, loss: f64, listener: TcpListener) -> anyhow::Result<()> {
    let mut links = Vec::new();
    // The parity buckets come first, in their order: the parent sees to it.
    for _ in 0..=K {
        let (stream, _): (TcpStream, _) = listener.accept()?;
        links.push(Link::new(stream)?);
    }
    if mode == Mode::Logged {
        return logged::data(loss, links);
    }
    let mut state = Data {
        mode,
        loss,
        dice: SmallRng::seed_from_u64(7),
        bucket: Bucket::new(),
        under_way: None,
        log: VecDeque::new(),
        made: 0,
        sent: [0; K],
        prefix: [0; K],
        moved: [Instant::now(); K],
        asked: [Instant::now(); K],
        round_trip: PATIENCE,
        copies: [COPIES_MIN; K],
        lossy: false,
        answered: 0,
        flush_at: 0,
    };
    loop {
        let owed = !state.log.is_empty();
        wait(&mut links, owed.then(|| state.patience()))?;
        for link in &mut links {
            if !link.held && !link.fill()? {
                return Ok(());
            }
        }
        for at in 0..=K {
            while at < K || state.log.len() < LOG_MAX {
                let Some(frame) = links[at].next()? else {
                    break;
                };
                if at < K {
                    state.acknowledged(at, &frame, &mut links);
                } else {
                    state.update(&frame, &mut links);
                }
            }
        }
        links[K].held = state.log.len() >= LOG_MAX;
        state.send_owed(&mut links);
        for link in &mut links {
            link.flush()?;
        }
    }
}

struct Data {
    mode: Mode,
    loss: f64,
    dice: SmallRng,
    bucket: Bucket,
    /// A baseline's update: the delta, and how many have acknowledged it.
    under_way: Option<(Delta, usize)>,
    log: VecDeque<Delta>,
    made: u64,
    sent: [u64; K],
    prefix: [u64; K],
    moved: [Instant; K],
    /// The time of the last message to each parity, and the smoothed time of an answer.
    asked: [Instant; K],
    round_trip: Duration,
    /// The number of copies of each message: twice more after each silence, once less after each answer.
    copies: [u32; K],
    /// Something was lost lately: each message carries all that is owed.
    lossy: bool,
    answered: u64,
    /// The seq of the last update of the run.
    flush_at: u64,
}

impl Data {
    fn update(&mut self, frame: &Frame, links: &mut [Link]) {
        if frame.kind == Kind::Ping {
            links[K].send(Kind::Ping, 0, 0, &[]);
            return;
        }
        self.made += 1;
        let delta = Delta {
            seq: self.made,
            at: frame.at,
            bytes: self.bucket.put(frame.at, &frame.bytes),
        };
        let to_all = |kind: Kind, delta: &Delta, links: &mut [Link]| {
            for link in &mut links[..K] {
                link.send(kind, delta.seq, delta.at, &delta.bytes);
            }
        };
        match self.mode {
            Mode::OnePhase => {
                to_all(Kind::Delta, &delta, links);
                self.under_way = Some((delta, 0));
            }
            Mode::ParallelTwoPhase => {
                to_all(Kind::Prepare, &delta, links);
                self.under_way = Some((delta, 0));
            }
            Mode::SerialTwoPhase => {
                links[0].send(Kind::Prepare, delta.seq, delta.at, &delta.bytes);
                self.under_way = Some((delta, 0));
            }
            Mode::Watermark { .. } => {
                if frame.kind == Kind::Last {
                    self.flush_at = delta.seq;
                }
                self.log.push_back(delta);
            }
            Mode::Logged => unreachable!("has a driver of its own"),
        }
    }

    fn acknowledged(&mut self, at: usize, frame: &Frame, links: &mut [Link]) {
        if let Mode::Watermark { .. } = self.mode {
            self.hear(at, frame, links);
            return;
        }
        let Some((delta, acks)) = &mut self.under_way else {
            return;
        };
        *acks += 1;
        if *acks < K {
            if self.mode == Mode::SerialTwoPhase {
                links[*acks].send(Kind::Prepare, delta.seq, delta.at, &delta.bytes);
            }
            return;
        }
        if self.mode != Mode::OnePhase {
            // The client is answered when they are sent: two phases are not made to look worse.
            for link in &mut links[..K] {
                link.send(Kind::Commit, delta.seq, 0, &[]);
            }
        }
        links[K].send(Kind::Answer, delta.seq, 0, &[]);
        self.under_way = None;
    }

    fn hear(&mut self, at: usize, frame: &Frame, links: &mut [Link]) {
        if frame.seq > self.prefix[at] {
            self.prefix[at] = frame.seq;
            self.moved[at] = Instant::now();
            self.copies[at] = (self.copies[at] - 1).max(COPIES_MIN);
            if frame.seq == self.sent[at] {
                let took = self.moved[at] - self.asked[at];
                self.round_trip = (self.round_trip * 7 + took) / 8;
            }
        }
        if frame.kind == Kind::AckGap {
            self.sent[at] = self.prefix[at];
            self.lossy = true;
        }
        let low = self.prefix.iter().copied().min().unwrap_or(0);
        while self.log.front().is_some_and(|d| d.seq <= low) {
            self.log.pop_front();
        }
        let Mode::Watermark { last_only, .. } = self.mode else {
            return;
        };
        if low > self.answered && (!last_only || low >= self.flush_at) {
            self.answered = low;
            links[K].send(Kind::Answer, low, 0, &[]);
        }
    }

    fn patience(&self) -> Duration {
        match self.lossy {
            true => (self.round_trip * 3 / 2).min(PATIENCE),
            false => PATIENCE,
        }
    }

    /// Low watermarks: one message to each parity bucket with all that it was not sent yet.
    fn send_owed(&mut self, links: &mut [Link]) {
        let Mode::Watermark { .. } = self.mode else {
            return;
        };
        let now = Instant::now();
        for (at, link) in links[..K].iter_mut().enumerate() {
            let owes = self.prefix[at] < self.sent[at];
            if owes && now - self.moved[at] >= self.patience() {
                self.sent[at] = self.prefix[at];
                self.copies[at] = (self.copies[at] + 2).min(COPIES_MAX);
                self.moved[at] = now;
                self.lossy |= self.loss > 0.0;
            }
            if self.sent[at] >= self.made {
                continue;
            }
            if !owes {
                self.moved[at] = now;
            }
            let after = if self.lossy {
                self.prefix[at]
            } else {
                self.sent[at]
            };
            let last = u32::from(self.flush_at >= self.made);
            self.sent[at] = self.made;
            self.asked[at] = now;
            let copies = if self.lossy { self.copies[at] } else { 1 };
            let arrives = |_: &u32| self.loss == 0.0 || self.dice.random::<f64>() >= self.loss;
            let copies = (0..copies).filter(arrives).count();
            if copies > 0 {
                let owed = self.log.iter().filter(|d| d.seq > after);
                link.send_with(Kind::Deltas, self.made, last, |out| pack(owed, out));
                link.repeat_last(copies - 1);
            }
        }
    }
}
