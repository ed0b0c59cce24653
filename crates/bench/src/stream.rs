//! One connection to a server of bytes: Redis's protocol, or memcached's.
//!
//! Without `--rate` a connection writes as many requests as may be under way, and the next as many once
//! all are answered, as redis-benchmark does. With it, it writes each when it is due.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::tcp::WriteHalf;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::dialect::{Dialect, ServerReply};
use super::pace::Alarm;
use super::work::{Common, PendingRequest, RequestLane};

/// Least room for one read.
const READ_BYTES: usize = 64 << 10;
/// The interval at which overdue answers and the end of the run are looked for.
const LOOK: Duration = Duration::from_millis(100);
/// Rest before a lost connection is made again.
const REST: Duration = Duration::from_millis(50);

/// Connects, or says in one line why not.
pub async fn connect(address: &str, deadline: Duration) -> Result<TcpStream, String> {
    let reason = match timeout(deadline, TcpStream::connect(address)).await {
        Ok(Ok(socket)) => match socket.set_nodelay(true) {
            Ok(()) => return Ok(socket),
            Err(error) => error.to_string(),
        },
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {deadline:?}"),
    };
    Err(format!("cannot connect to {address}: {reason}"))
}

/// A connection and what is under way on it.
pub struct Stream {
    common: Common,
    dialect: Dialect,
    address: String,
    lane: RequestLane,
    alarm: Alarm,
    /// Requests, and how many bytes of them are written.
    output: Vec<u8>,
    written: usize,
    input: BytesMut,
    asked: VecDeque<PendingRequest>,
}

impl Stream {
    pub fn new(common: Common, dialect: Dialect, address: String, lane: RequestLane) -> Stream {
        Stream {
            common,
            dialect,
            address,
            lane,
            alarm: Alarm::default(),
            output: Vec::new(),
            written: 0,
            input: BytesMut::new(),
            asked: VecDeque::new(),
        }
    }

    /// Sends and counts until the window has ended and everything is answered or given up.
    pub async fn run(mut self, socket: TcpStream) {
        let mut socket = Some(socket);
        while let Some(open) = socket {
            socket = match self.exchange(open).await {
                Ok(()) => None,
                Err(text) => {
                    for asked in self.asked.drain(..) {
                        self.common.lost(asked.since, &text);
                    }
                    self.reconnect().await
                }
            };
        }
        let window = &self.common.window;
        let unsent = self.lane.pace.unsent(window.start, window.end());
        self.common.tally.borrow_mut().unsent += unsent;
    }

    /// Until all is done, or the connection is of no more use: why.
    async fn exchange(&mut self, mut socket: TcpStream) -> Result<(), String> {
        let lost = |error: io::Error| format!("connection: {}: {error}", self.address);
        let (mut reading, writing) = socket.split();
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.output.clear();
        self.written = 0;
        self.input.clear();
        loop {
            let now = Instant::now();
            let due = admit(
                &mut self.lane,
                &mut self.asked,
                &mut self.output,
                self.dialect,
                &self.common,
                now,
            );
            write(&writing, &mut self.output, &mut self.written).map_err(lost)?;
            if self.asked.is_empty() && self.lane.over(now, self.common.window.end()) {
                return Ok(());
            }
            // An answer that is not whole yet doubles the room, so that a large one takes few reads.
            self.input.reserve(READ_BYTES.max(self.input.len()));
            tokio::select! {
                biased;
                count = reading.read_buf(&mut self.input) => {
                    if count.map_err(lost)? == 0 {
                        return Err(format!("connection: {} closed it", self.address));
                    }
                    let (common, dialect) = (&self.common, self.dialect);
                    take_answers(common, dialect, &mut self.asked, &mut self.input)?;
                }
                ready = writing.writable(), if !self.output.is_empty() => ready.map_err(lost)?,
                rung = self.alarm.wait_until(due.unwrap_or(now)), if due.is_some() => {
                    rung.map_err(|error| format!("timer: {error}"))?;
                }
                _ = look.tick() => {
                    let deadline = self.common.job.deadline;
                    if self.asked.front().is_some_and(|asked| asked.sent.elapsed() > deadline) {
                        return Err(format!("timeout: {} did not answer within {deadline:?}", self.address));
                    }
                }
            }
        }
    }

    /// Makes the connection again, for as long as there is something to send.
    async fn reconnect(&mut self) -> Option<TcpStream> {
        loop {
            sleep(REST).await;
            if self.lane.over(Instant::now(), self.common.window.end()) {
                return None;
            }
            let began = Instant::now();
            match connect(&self.address, self.common.job.deadline).await {
                Ok(socket) => return Some(socket),
                // What is due meanwhile counts as late by itself; without a clock, the try counts.
                Err(text) => self.common.lost(began, &format!("connection: {text}")),
            }
        }
    }
}

/// Puts what may be sent now into the output. Returns when the next is due, if the clock says that.
fn admit(
    lane: &mut RequestLane,
    asked: &mut VecDeque<PendingRequest>,
    output: &mut Vec<u8>,
    dialect: Dialect,
    common: &Common,
    now: Instant,
) -> Option<Instant> {
    let (end, most) = (common.window.end(), common.job.plan.pipeline as usize);
    let by_clock = lane.pace.due().is_some();
    if by_clock || asked.is_empty() {
        while asked.len() < most
            && let Some((next, keys)) = lane.next(now, end)
        {
            dialect.ask(next.kind, keys, &common.job.value, output);
            asked.push_back(next);
        }
    }
    lane.pace
        .due()
        .filter(|due| asked.len() < most && *due < end)
}

/// Writes as much as the socket takes.
fn write(writing: &WriteHalf<'_>, output: &mut Vec<u8>, written: &mut usize) -> io::Result<()> {
    while *written < output.len() {
        match writing.try_write(&output[*written..]) {
            Ok(count) => *written += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    output.clear();
    *written = 0;
    Ok(())
}

/// Counts all answers that are whole.
fn take_answers(
    common: &Common,
    dialect: Dialect,
    asked: &mut VecDeque<PendingRequest>,
    input: &mut BytesMut,
) -> Result<(), String> {
    // All of them had arrived by now; a clock reading each would cost more than it tells.
    let now = Instant::now();
    let value_bytes = common.job.value.len();
    while let Some(first) = asked.front() {
        let answer = dialect.answer(first.kind, first.keys, value_bytes, input);
        let Some((used, reply)) = answer.map_err(|error| format!("protocol: {error}"))? else {
            return Ok(());
        };
        match reply {
            ServerReply::Done { misses } => common.answered(first, misses, now),
            ServerReply::Refused(text) => common.refused(first.since, &text),
        }
        asked.pop_front();
        input.advance(used);
    }
    match input.is_empty() {
        true => Ok(()),
        false => Err("protocol: bytes came that nobody asked for".into()),
    }
}
