//! The demo's load: writers that remember what was acknowledged, and the check that it is still there.
//!
//! Each writer has keys of its own and one write under way at a time, so that what a key must hold is
//! known: the last acknowledged value, or a later one whose fate is unknown because its connection broke
//! or its answer was an error. A key with an unknown write is left alone from then on; otherwise a write
//! that took effect late could not be told from a lost one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use staves_resp::client::{Reply, Resp};

/// Longest wait of a writer for one answer, before it tries another node.
const ANSWER: Duration = Duration::from_secs(5);
/// Rest after a failure.
const REST: Duration = Duration::from_millis(5);
/// Bytes of a value.
const VALUE_BYTES: usize = 128;
/// Most keys of a writer: from then on it overwrites.
const KEYS_MAX: usize = 100_000;
/// One write in so many overwrites an older key.
const OVERWRITE: u32 = 4;
/// Keys that the check reads at once.
const BATCH: usize = 128;
/// Losses that are told one by one.
const EXAMPLES: usize = 5;

/// The generations of its value that a key may hold, from 1.
#[derive(Clone, Copy, Default)]
struct KeyVersions {
    /// The last acknowledged one; 0 for none.
    acknowledged: u32,
    /// One whose fate is unknown; 0 for none.
    unknown: u32,
}

struct LoadShared {
    doors: Vec<String>,
    stop: AtomicBool,
    begun: Instant,
    /// The longest time between two acknowledgements of any one writer in this round.
    longest_wait_us: AtomicU64,
    /// The time of each writer's last acknowledgement, since `begun`.
    last_us: Vec<AtomicU64>,
}

impl LoadShared {
    fn now_us(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64
    }

    /// A writer was acknowledged just now.
    fn acknowledged(&self, writer: usize) {
        let now = self.now_us();
        let waited = now - self.last_us[writer].swap(now, Ordering::SeqCst);
        self.longest_wait_us.fetch_max(waited, Ordering::SeqCst);
    }
}

/// Writers at work.
pub struct KeyLoad {
    shared: Arc<LoadShared>,
    writers: Vec<JoinHandle<Writer>>,
}

/// The counts of writes.
#[derive(Default)]
pub struct Written {
    /// By writer.
    keys: Vec<Vec<KeyVersions>>,
    /// Writes that were acknowledged.
    pub acknowledged: u64,
    /// Writes that were cut off or answered with an error.
    pub unknown: u64,
}

/// The findings of the check.
#[derive(Default)]
pub struct CheckFindings {
    /// Keys read.
    pub keys: u64,
    /// Keys whose acknowledged value is not there.
    pub lost: u64,
    /// The first of them.
    pub examples: Vec<String>,
}

impl KeyLoad {
    /// Starts writers, spread over these doors.
    pub fn start(doors: &[String], writers: usize) -> anyhow::Result<KeyLoad> {
        if doors.is_empty() {
            bail!("there is no node to write to");
        }
        let shared = Arc::new(LoadShared {
            doors: doors.to_vec(),
            stop: AtomicBool::new(false),
            begun: Instant::now(),
            longest_wait_us: AtomicU64::new(0),
            last_us: (0..writers).map(|_| AtomicU64::new(0)).collect(),
        });
        let start = |number| {
            let writer = Writer::new(number, shared.clone());
            std::thread::spawn(move || writer.run())
        };
        Ok(KeyLoad {
            shared: shared.clone(),
            writers: (0..writers).map(start).collect(),
        })
    }

    /// The longest wait counts from here.
    pub fn begin_round(&self) {
        self.shared.longest_wait_us.store(0, Ordering::SeqCst);
    }

    /// The longest that a writer went without an acknowledgement since the round began; one that still
    /// waits counts with what it has waited so far.
    pub fn longest_wait(&self) -> Duration {
        let now = self.shared.now_us();
        let lasts = self
            .shared
            .last_us
            .iter()
            .map(|last| last.load(Ordering::SeqCst));
        let waiting = lasts
            .map(|last| now.saturating_sub(last))
            .max()
            .unwrap_or(0);
        let ended = self.shared.longest_wait_us.load(Ordering::SeqCst);
        Duration::from_micros(ended.max(waiting))
    }

    /// Stops the writers, each after the write that it is at.
    pub fn stop(self) -> anyhow::Result<Written> {
        self.shared.stop.store(true, Ordering::SeqCst);
        let mut written = Written::default();
        for writer in self.writers {
            let writer = writer.join().map_err(|_| anyhow!("a writer panicked"))?;
            written.acknowledged += writer.acknowledged;
            written.unknown += writer.unknown;
            written.keys.push(writer.keys);
        }
        Ok(written)
    }
}

struct Writer {
    number: usize,
    shared: Arc<LoadShared>,
    keys: Vec<KeyVersions>,
    acknowledged: u64,
    unknown: u64,
    random: SmallRng,
}

impl Writer {
    fn new(number: usize, shared: Arc<LoadShared>) -> Writer {
        let random = SmallRng::seed_from_u64(number as u64);
        Writer {
            number,
            shared,
            keys: Vec::new(),
            acknowledged: 0,
            unknown: 0,
            random,
        }
    }

    fn run(mut self) -> Writer {
        let mut door = self.number;
        let mut connection = None;
        while !self.shared.stop.load(Ordering::SeqCst) {
            let Some(open) = &mut connection else {
                let address = &self.shared.doors[door % self.shared.doors.len()];
                connection = Resp::connect(address, ANSWER, ANSWER).ok();
                if connection.is_none() {
                    door += 1;
                    std::thread::sleep(REST);
                }
                continue;
            };
            let (at, generation) = self.choose();
            let key = key(self.number, at);
            let value = value(&key, generation);
            match open.call(&[b"SET", key.as_bytes(), value.as_bytes()]) {
                Ok(Reply::Ok) => {
                    self.keys[at].acknowledged = generation;
                    self.acknowledged += 1;
                    self.shared.acknowledged(self.number);
                }
                answer => {
                    self.keys[at].unknown = generation;
                    self.unknown += 1;
                    if answer.is_err() {
                        connection = None;
                        door += 1;
                    }
                    std::thread::sleep(REST);
                }
            }
        }
        self
    }

    /// A key of its own and the generation to write: mostly a new key, sometimes an older one.
    fn choose(&mut self) -> (usize, u32) {
        let full = self.keys.len() >= KEYS_MAX;
        if !self.keys.is_empty() && (full || self.random.random_ratio(1, OVERWRITE)) {
            let at = self.random.random_range(0..self.keys.len());
            if self.keys[at].unknown == 0 {
                return (at, self.keys[at].acknowledged + 1);
            }
        }
        self.keys.push(KeyVersions::default());
        (self.keys.len() - 1, 1)
    }
}

fn key(writer: usize, at: usize) -> String {
    format!("demo:{writer}:{at}")
}

fn value(key: &str, generation: u32) -> String {
    format!(
        "{:.<VALUE_BYTES$}",
        format!("{key} generation {generation} ")
    )
}

/// Reads every key through one node.
pub fn check(door: &str, written: &Written, patience: Duration) -> anyhow::Result<CheckFindings> {
    let until = Instant::now() + patience;
    let mut connection = Resp::connect(door, ANSWER, ANSWER)?;
    let mut checked = CheckFindings::default();
    let all = written.keys.iter().enumerate();
    let all = all.flat_map(|(writer, keys)| {
        keys.iter()
            .enumerate()
            .map(move |(at, state)| (key(writer, at), *state))
    });
    let all: Vec<(String, KeyVersions)> = all.collect();
    for batch in all.chunks(BATCH) {
        let values = loop {
            match read(&mut connection, batch) {
                Ok(values) => break values,
                Err(error) if Instant::now() >= until => {
                    bail!("{door} does not give the keys back: {error}");
                }
                Err(_) => {
                    std::thread::sleep(REST);
                    connection = Resp::connect(door, ANSWER, ANSWER)?;
                }
            }
        };
        for ((key, state), found) in batch.iter().zip(values) {
            checked.judge(key, *state, found);
        }
    }
    Ok(checked)
}

fn read(connection: &mut Resp, batch: &[(String, KeyVersions)]) -> io::Result<Vec<Reply>> {
    let mut args: Vec<&[u8]> = vec![b"MGET"];
    args.extend(batch.iter().map(|(key, _)| key.as_bytes()));
    match connection.call(&args)? {
        Reply::Array(values) if values.len() == batch.len() => Ok(values),
        other => Err(io::Error::other(format!(
            "MGET was answered with {other:?}"
        ))),
    }
}

impl CheckFindings {
    fn judge(&mut self, key: &str, state: KeyVersions, found: Reply) {
        self.keys += 1;
        let is = |generation: u32| {
            let wanted = (generation > 0).then(|| value(key, generation).into_bytes());
            found == wanted.map_or(Reply::Nil, Reply::Bulk)
        };
        // Generation 0 is "no value", which is right only where nothing was acknowledged.
        if is(state.acknowledged) || (state.unknown > 0 && is(state.unknown)) {
            return;
        }
        self.lost += 1;
        if self.examples.len() < EXAMPLES {
            let found = match found {
                Reply::Bulk(value) => String::from_utf8_lossy(&value)
                    .trim_end_matches('.')
                    .to_owned(),
                Reply::Nil => "nothing".into(),
                other => format!("{other:?}"),
            };
            self.examples.push(format!(
                "{key}: generation {} was acknowledged, found: {found}",
                state.acknowledged
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_knows_what_may_be_there() {
        let judge = |state: KeyVersions, found: Option<u32>| {
            let mut checked = CheckFindings::default();
            let found = found.map(|generation| value("k", generation).into_bytes());
            checked.judge("k", state, found.map_or(Reply::Nil, Reply::Bulk));
            checked.lost
        };
        let key = |acknowledged, unknown| KeyVersions {
            acknowledged,
            unknown,
        };
        assert_eq!(judge(key(3, 0), Some(3)), 0);
        assert_eq!(judge(key(3, 0), Some(2)), 1, "an older value is a loss");
        assert_eq!(judge(key(3, 0), None), 1);
        assert_eq!(judge(key(3, 4), Some(3)), 0);
        assert_eq!(judge(key(3, 4), Some(4)), 0);
        assert_eq!(judge(key(3, 4), None), 1);
        assert_eq!(judge(key(0, 1), None), 0);
        assert_eq!(judge(key(0, 1), Some(1)), 0);
        assert_eq!(judge(key(0, 1), Some(2)), 1, "nobody wrote that");
    }

    #[test]
    fn values_have_one_length_and_differ() {
        assert_eq!(value("demo:1:2", 3).len(), VALUE_BYTES);
        assert_ne!(value("demo:1:2", 3), value("demo:1:2", 33));
    }
}
