//! Appends through a proxy at the site: the HTTP door of a node, which takes the position and writes the record on the clients' behalf.
//!
//! Requests are sent when they are due, whatever was answered, and their latency counts from then, as `staves bench log --rate` does. A connection has
//! one request under way; one that is idle is used again, the latest first.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Requests under way at once at most; a door has 1,024 connections.
const UNDER_WAY_MAX: usize = 1000;
/// An idle connection is used again within this time; the door ends it some seconds later.
const IDLE_MAX: Duration = Duration::from_secs(8);
/// The bound on one request.
const ANSWER: Duration = Duration::from_secs(30);
/// Most bytes of an answer.
const ANSWER_BYTES_MAX: usize = 16 << 10;
/// Bytes of a record, as those of the bench.
const RECORD_BYTES: usize = 1024;

/// The load on the proxy.
#[derive(Clone, Debug)]
pub struct ProxyLoad {
    /// The door.
    pub door: SocketAddr,
    /// The log.
    pub log: String,
    /// Requests a second.
    pub rate: u64,
    /// The time before anything counts.
    pub warm_up: Duration,
    /// The time that counts.
    pub duration: Duration,
}

/// The results of a round.
#[derive(Clone, Debug, Default)]
pub struct ProxyRound {
    latencies: Vec<Duration>,
    errors: u64,
    error: Option<String>,
    seconds: f64,
}

/// A connection that is idle, and since when.
type IdleConnection = (TcpStream, Instant);

/// Runs a round.
///
/// # Errors
/// There is no runtime. What fails of the load is counted.
pub fn run(load: &ProxyLoad) -> anyhow::Result<ProxyRound> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    Ok(runtime.block_on(send_all(load)))
}

async fn send_all(load: &ProxyLoad) -> ProxyRound {
    let request = Arc::new(request(load));
    let idle: Arc<Mutex<Vec<IdleConnection>>> = Arc::default();
    let begun = Instant::now();
    let mut round = ProxyRound {
        seconds: load.duration.as_secs_f64(),
        ..ProxyRound::default()
    };
    let mut under_way = JoinSet::new();
    let interval = Duration::from_secs_f64(1.0 / load.rate.max(1) as f64);
    let mut due = begun;
    while due < begun + load.warm_up + load.duration {
        tokio::time::sleep_until(due.into()).await;
        while under_way.len() >= UNDER_WAY_MAX {
            take(&mut round, under_way.join_next().await);
        }
        while let Some(ended) = under_way.try_join_next() {
            take(&mut round, Some(ended));
        }
        let counts = due >= begun + load.warm_up;
        under_way.spawn(one(load.door, request.clone(), idle.clone(), (due, counts)));
        due += interval;
    }
    while let Some(ended) = under_way.join_next().await {
        take(&mut round, Some(ended));
    }
    round
}

/// A request that has ended: its latency, if it counts.
type ProxyAnswer = anyhow::Result<Option<Duration>>;

fn take(round: &mut ProxyRound, ended: Option<Result<ProxyAnswer, tokio::task::JoinError>>) {
    let failed = match ended {
        None | Some(Ok(Ok(None))) => return,
        Some(Ok(Ok(Some(latency)))) => return round.latencies.push(latency),
        Some(Ok(Err(error))) => format!("{error:#}"),
        Some(Err(error)) => error.to_string(),
    };
    round.errors += 1;
    round.error.get_or_insert(failed);
}

fn request(load: &ProxyLoad) -> Vec<u8> {
    let record = "r".repeat(RECORD_BYTES);
    let head = format!(
        "POST /v1/logs/{} HTTP/1.1\r\nhost: {}\r\ncontent-length: {RECORD_BYTES}\r\n\r\n{record}",
        load.log, load.door
    );
    head.into_bytes()
}

async fn one(
    door: SocketAddr,
    request: Arc<Vec<u8>>,
    idle: Arc<Mutex<Vec<IdleConnection>>>,
    (due, counts): (Instant, bool),
) -> ProxyAnswer {
    let used = {
        let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(_, since)| since.elapsed() < IDLE_MAX);
        idle.pop()
    };
    let asked = async {
        let stream = match used {
            Some((stream, _)) => stream,
            None => TcpStream::connect(door).await.context("cannot connect")?,
        };
        stream.set_nodelay(true)?;
        write_all(&stream, &request).await?;
        read_answer(&stream).await?;
        anyhow::Ok(stream)
    };
    let answered = tokio::time::timeout(ANSWER, asked).await;
    let stream = answered.context("no answer in time")??;
    let latency = due.elapsed();
    let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
    idle.push((stream, Instant::now()));
    Ok(counts.then_some(latency))
}

async fn write_all(stream: &TcpStream, mut bytes: &[u8]) -> anyhow::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("cannot send"),
        }
    }
    Ok(())
}

/// Reads an answer whole; an error unless it says that the record is in the log.
async fn read_answer(stream: &TcpStream) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = answer_end(&bytes)?
            && bytes.len() >= end
        {
            return Ok(());
        }
        if bytes.len() > ANSWER_BYTES_MAX {
            bail!("an answer is longer than {ANSWER_BYTES_MAX} bytes");
        }
        stream.readable().await?;
        let mut part = [0; 4096];
        match stream.try_read(&mut part) {
            Ok(0) => bail!("the door has ended the connection"),
            Ok(len) => bytes.extend_from_slice(&part[..len]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("cannot receive"),
        }
    }
}

/// The length of an answer with its head, once the head is there.
fn answer_end(bytes: &[u8]) -> anyhow::Result<Option<usize>> {
    let Some(head) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let mut lines = text.lines();
    let status = lines.next().unwrap_or_default();
    if !status.starts_with("http/1.1 200") {
        bail!("the door answered '{status}'");
    }
    let length = lines.find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length
        .and_then(|length| length.trim().parse().ok())
        .context("an answer has no length")?;
    Ok(Some(head + 4 + length))
}

impl ProxyRound {
    fn quantile(&self, percent: f64) -> Duration {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let place = (sorted.len() as f64 * percent).ceil() as usize;
        let found = sorted.get(place.saturating_sub(1));
        found.copied().unwrap_or_default()
    }
}

/// The median of some rounds, in the words of `staves bench log`; `None` of none.
pub fn median(rate: u64, mut rounds: Vec<ProxyRound>) -> Option<Value> {
    rounds.sort_by_key(|round| round.quantile(0.5));
    let round = rounds.get(rounds.len() / 2)?;
    let us = |percent| round.quantile(percent).as_secs_f64() * 1e6;
    Some(json!({
        "mode": super::PROXY, "rate": rate,
        "appends_per_second": round.latencies.len() as f64 / round.seconds,
        "latency_us": {"p50": us(0.5), "p90": us(0.9), "p99": us(0.99), "max": us(1.0)},
        "holes_per_append": 0, "errors": round.errors, "error": round.error, "unsent": 0,
    }))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn answers_are_read_to_their_end() {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n";
        let end = |text: &str| answer_end(text.as_bytes());
        assert_eq!(end(&head[..head.len() - 1]).expect("no error"), None);
        assert_eq!(end(head).expect("no error"), Some(head.len() + 3));
        assert!(end("HTTP/1.1 429 Too Many\r\ncontent-length: 0\r\n\r\n").is_err());
        assert!(end("HTTP/1.1 200 OK\r\n\r\n").is_err());
    }

    /// Answers each record; the tenth with a refusal, which ends the connection.
    fn answer(mut socket: std::net::TcpStream, all: &AtomicU64) {
        let mut bytes = vec![0; 1 << 16];
        let mut seen = 0;
        while let Ok(len @ 1..) = socket.read(&mut bytes) {
            seen += len;
            if seen < RECORD_BYTES {
                continue;
            }
            seen = 0;
            let is_tenth = all.fetch_add(1, Ordering::SeqCst) == 9;
            let answer: &[u8] = match is_tenth {
                true => b"HTTP/1.1 507 Full\r\ncontent-length: 0\r\n\r\n",
                false => b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
            };
            if socket.write_all(answer).is_err() || is_tenth {
                return;
            }
        }
    }

    /// Requests keep to the clock, connections are used again, and a refusal is an error that is counted.
    #[test]
    fn requests_are_sent_when_they_are_due() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let door = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            let all = Arc::new(AtomicU64::new(0));
            for socket in listener.incoming().flatten() {
                let all = all.clone();
                std::thread::spawn(move || answer(socket, &all));
            }
        });
        let load = ProxyLoad {
            door,
            log: "l".into(),
            rate: 20,
            warm_up: Duration::from_millis(100),
            duration: Duration::from_secs(1),
        };
        let round = run(&load).expect("a round");
        assert_eq!(
            (round.latencies.len() as u64 + round.errors, round.errors),
            (20, 1)
        );
        let error = round.error.clone().unwrap_or_default();
        assert!(error.contains("507"), "{error}");
        let json = median(20, vec![round]).expect("a round");
        assert_eq!(
            (&json["appends_per_second"], &json["rate"]),
            (&19.0.into(), &20.into())
        );
        assert!(json["latency_us"]["p50"].as_f64() > Some(0.0), "{json}");
    }
}
