//! Clients: threads with real connections, few contended keys, and exact records of what they saw.
//!
//! Keys `t0`, `t1`, ... hold texts, keys `c0`, ... are counted (a scenario may want these only), and `l<client>-<n>` are written once
//! each, so that every bucket holds something that must not get lost. Every written text is unique.

pub mod files;
pub mod memory;
pub mod native;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use staves_history::Record;
use staves_history::record::{Answered, Asked};
use staves_resp::client::{Reply, Resp};

use self::memory::RegionClient;
use self::native::{CacheClient, Handle};

/// The time that a client waits for an answer. Nodes answer after 5 s at the latest.
pub const PATIENCE: Duration = Duration::from_secs(12);
const CONNECT: Duration = Duration::from_millis(1000);
/// Operations before a client goes to another node.
const STAY: u32 = 40;
/// The time that a reader waits, whose answer would be out of date: it soon asks for the next key.
const IMPATIENCE: Duration = Duration::from_millis(250);
/// Rest between two operations.
const REST: Duration = Duration::from_millis(4);
/// Clients on the contended pages of a memory region.
const CLIENTS_OF_MEMORY: u32 = 3;
/// Rest after trouble.
const PAUSE: Duration = Duration::from_millis(60);

/// The state that all clients and the run share.
pub struct Shared {
    begun: Instant,
    doors: Mutex<Vec<SocketAddr>>,
    records: Mutex<Vec<Record>>,
    /// Per node: until when it is excused from answering, in nanoseconds of the run.
    excused: Mutex<Vec<u64>>,
    hangs: Mutex<Vec<String>>,
    stop: AtomicBool,
    /// Answers, for progress.
    pub answered: AtomicU64,
    /// Operations that were certainly not done: refused, or never sent.
    pub refused: AtomicU64,
}

/// A lock whose holder cannot have broken anything by panicking.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Of a run that begins now.
    pub fn new() -> Arc<Shared> {
        Arc::new(Shared {
            begun: Instant::now(),
            doors: Mutex::default(),
            records: Mutex::default(),
            excused: Mutex::default(),
            hangs: Mutex::default(),
            stop: AtomicBool::new(false),
            answered: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    /// Nanoseconds since the run began.
    pub fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// One more door.
    pub fn add_door(&self, door: SocketAddr) {
        lock(&self.doors).push(door);
        lock(&self.excused).push(0);
    }

    /// A node that was killed, paused or slowed need not answer what it was asked before, nor, with
    /// `u64::MAX`, until it is said to be well again.
    pub fn excuse(&self, at: usize, until: u64) {
        if let Some(excused) = lock(&self.excused).get_mut(at) {
            *excused = until;
        }
    }

    /// Ends all clients.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// An operation that a client sends now.
    fn begin(&self, process: u32, key: &str, asked: Asked) -> Record {
        Record {
            process,
            key: key.to_owned(),
            asked,
            call: self.now(),
            returned: None,
            answer: None,
        }
    }

    /// Adds to the history.
    pub fn record(&self, record: Record) {
        if record.returned.is_some() {
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
        lock(&self.records).push(record);
    }

    /// The history so far.
    pub fn records(&self) -> Vec<Record> {
        lock(&self.records).clone()
    }

    /// The clients' complaints: nodes that kept them waiting and had no excuse.
    pub fn hangs(&self) -> Vec<String> {
        lock(&self.hangs).clone()
    }

    /// All doors of the native protocol.
    pub fn native_doors(&self) -> Vec<String> {
        let doors = lock(&self.doors);
        let native = doors.iter().map(|door| format!("{}:1600", door.ip()));
        native.collect()
    }

    /// An operation that certainly was not done.
    fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    fn door(&self, at: usize) -> Option<SocketAddr> {
        lock(&self.doors).get(at).copied()
    }

    fn doors(&self) -> usize {
        lock(&self.doors).len()
    }

    /// Something that must not be, whatever the history says.
    fn complain(&self, what: String) {
        lock(&self.hangs).push(what);
    }

    /// Nobody answered on a connection that stayed open.
    fn silent(&self, at: usize, record: &Record) {
        let excused = lock(&self.excused).get(at).copied().unwrap_or(u64::MAX);
        if excused < record.call {
            let waited = Duration::from_nanos(self.now() - record.call);
            let text = format!(
                "n{} kept a client waiting for {waited:?}: {:?} on {} at {:.3} s",
                at + 1,
                record.asked,
                record.key,
                record.call as f64 / 1e9
            );
            self.complain(text);
        }
    }
}

/// The contended keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keys {
    /// The number of keys.
    pub count: usize,
    /// All are counted and none is ever taken away: whatever is done twice shows for good. Otherwise of
    /// every two, one is a text and one is counted.
    pub counted: bool,
}

impl Keys {
    fn any(self, rng: &mut SmallRng) -> usize {
        rng.random_range(0..self.count)
    }

    fn name(self, at: usize) -> String {
        match at % 2 {
            _ if self.counted => format!("c{at}"),
            0 => format!("t{}", at / 2),
            _ => format!("c{}", at / 2),
        }
    }

    /// Chooses the request for a key. The first counted one is never taken away.
    fn choose(self, rng: &mut SmallRng, at: usize, text: impl FnOnce() -> String) -> Asked {
        let dice = rng.random_range(0..100);
        let (counted, forever) = (at % 2 == 1, at == 1);
        match dice {
            0..20 if self.counted => Asked::Get,
            _ if self.counted => Asked::Incr { by: 1 },
            0..45 => Asked::Get,
            _ if forever => Asked::Incr { by: 1 },
            45..92 if counted => Asked::Incr { by: 1 },
            92..96 if counted => Asked::Del,
            96.. if counted => Asked::GetDel,
            45..65 => Asked::Set { value: text() },
            65..73 => Asked::SetNx { value: text() },
            73..79 => Asked::Del,
            79..85 => Asked::GetDel,
            _ => Asked::Append { value: text() },
        }
    }
}

/// Starts clients: `contended` on the contended keys, and one that writes keys once. Of the first, one stays at
/// each node that there is, so that a node that keeps its clients waiting cannot catch them all; the
/// others go around. At each node there is also one that only reads, and does not wait for long. One
/// more goes through the native client. The threads are in the namespace of the caller's.
///
/// With a memory region there are three more for that.
pub fn start(
    shared: &Arc<Shared>,
    seed: u64,
    contended: usize,
    keys: Keys,
    region: bool,
) -> Vec<JoinHandle<()>> {
    let nodes = shared.doors();
    let spawn = |process: u32| {
        let shared = shared.clone();
        let rng = SmallRng::seed_from_u64(seed ^ u64::from(process) << 32);
        std::thread::spawn(move || {
            let mut client = Client {
                shared,
                process,
                written: 0,
                rng,
                home: match process as usize {
                    0 => None,
                    at if at <= contended => Some(at - 1).filter(|at| *at < nodes),
                    at => Some(at - 1 - contended),
                },
                patience: match process as usize > contended {
                    true => IMPATIENCE,
                    false => PATIENCE,
                },
                connection: None,
                stayed: 0,
            };
            match process {
                0 => client.write_ledger(),
                at if at as usize <= contended => client.contend(keys),
                _ => client.read(keys),
            }
        })
    };
    let last = (contended + nodes) as u32;
    let mut clients: Vec<JoinHandle<()>> = (0..=last).map(spawn).collect();
    let native = last + 1;
    clients.push(Handle::<CacheClient>::start(
        shared,
        native,
        seed,
        move |rng, number| {
            let at = keys.any(rng);
            let asked = keys.choose(rng, at, || format!("p{native}.{number};"));
            Some((keys.name(at), asked))
        },
    ));
    for at in (0..=CLIENTS_OF_MEMORY).filter(|_| region) {
        let process = native + 1 + at;
        let draw = memory::draw(process, at == 0);
        clients.push(Handle::<RegionClient>::start(shared, process, seed, draw));
    }
    clients
}

/// One client.
pub struct Client {
    shared: Arc<Shared>,
    process: u32,
    written: u64,
    rng: SmallRng,
    /// The node that it stays at, if it does.
    home: Option<usize>,
    patience: Duration,
    connection: Option<(usize, Resp)>,
    /// Operations on it so far.
    stayed: u32,
}

impl Client {
    /// A client for reading at the end.
    pub fn reader(shared: &Arc<Shared>, process: u32, seed: u64) -> Client {
        Client {
            shared: shared.clone(),
            process,
            written: 0,
            rng: SmallRng::seed_from_u64(seed),
            home: None,
            patience: PATIENCE,
            connection: None,
            stayed: 0,
        }
    }

    fn text(&mut self) -> String {
        self.written += 1;
        format!("p{}.{};", self.process, self.written)
    }

    fn contend(&mut self, keys: Keys) {
        while !self.shared.stopped() {
            let at = keys.any(&mut self.rng);
            let (process, written) = (self.process, &mut self.written);
            let asked = keys.choose(&mut self.rng, at, || {
                *written += 1;
                format!("p{process}.{written};")
            });
            let done = self.ask(&keys.name(at), asked).is_some();
            std::thread::sleep(if done { REST } else { PAUSE });
        }
    }

    fn read(&mut self, keys: Keys) {
        while !self.shared.stopped() {
            let at = keys.any(&mut self.rng);
            self.ask(&keys.name(at), Asked::Get);
            std::thread::sleep(2 * REST);
        }
    }

    fn write_ledger(&mut self) {
        while !self.shared.stopped() {
            let value = self.text();
            let key = format!("l{}-{}", self.process, self.written);
            let done = self.ask(&key, Asked::Set { value }).is_some();
            std::thread::sleep(if done { REST } else { PAUSE });
        }
    }

    /// Asks any node, and records what is known of it; the answer, if there was one.
    pub fn ask(&mut self, key: &str, asked: Asked) -> Option<Answered> {
        let (at, mut resp) = self.connect()?;
        let args = words(key, &asked);
        let args: Vec<&[u8]> = args.iter().map(String::as_bytes).collect();
        let mut record = self.shared.begin(self.process, key, asked);
        let reply = resp.call(&args);
        let returned = self.shared.now();
        match reply {
            Ok(Reply::Error(error)) if nothing_done(&error) => {
                self.keep(at, resp);
                self.shared.refuse();
                return None;
            }
            Ok(Reply::Error(_)) => self.keep(at, resp),
            Ok(reply) => {
                self.keep(at, resp);
                record.returned = Some(returned);
                record.answer = Some(answered(reply));
            }
            Err(error) if is_late(&error) && self.patience == PATIENCE => {
                self.shared.silent(at, &record);
            }
            Err(_) => {}
        }
        let answer = record.answer.clone();
        // A read that nobody answered tells nothing.
        if answer.is_some() || record.asked != Asked::Get {
            self.shared.record(record);
        }
        answer
    }

    fn keep(&mut self, at: usize, resp: Resp) {
        self.connection = Some((at, resp)).filter(|_| self.stayed < STAY);
    }

    /// The connection at hand, or a new one to any node.
    fn connect(&mut self) -> Option<(usize, Resp)> {
        self.stayed += 1;
        if let Some(at_hand) = self.connection.take() {
            return Some(at_hand);
        }
        self.stayed = 0;
        let at = match self.home {
            Some(home) => home,
            None => self.rng.random_range(0..self.shared.doors().max(1)),
        };
        match Resp::connect(self.shared.door(at)?, CONNECT, self.patience) {
            Ok(resp) => Some((at, resp)),
            Err(_) => {
                self.shared.refuse();
                None
            }
        }
    }
}

fn is_late(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    matches!(error.kind(), TimedOut | WouldBlock)
}

fn words(key: &str, asked: &Asked) -> Vec<String> {
    let one = |verb: &str| vec![verb.to_owned(), key.to_owned()];
    let two = |verb: &str, value: &str| vec![verb.to_owned(), key.to_owned(), value.to_owned()];
    match asked {
        Asked::Get => one("GET"),
        Asked::Set { value } => two("SET", value),
        Asked::SetNx { value } => [two("SET", value), vec!["NX".to_owned()]].concat(),
        Asked::Del => one("DEL"),
        Asked::Incr { by } => two("INCRBY", &by.to_string()),
        Asked::Append { value } => two("APPEND", value),
        Asked::GetDel => one("GETDEL"),
    }
}

fn answered(reply: Reply) -> Answered {
    match reply {
        Reply::Bulk(None) => Answered::Nil,
        Reply::Bulk(Some(value)) => Answered::Value(String::from_utf8_lossy(&value).into_owned()),
        Reply::Int(n) => Answered::Int(n),
        Reply::Simple(text) if text == "OK" => Answered::Ok,
        // Nothing that is asked for here is answered so; the check will say that nothing explains it.
        Reply::Simple(text) | Reply::Error(text) => Answered::Value(text),
        list @ Reply::Array(_) => Answered::Value(format!("{list:?}")),
    }
}

/// True if an error certainly means that the command was not done.
fn nothing_done(error: &str) -> bool {
    ["TRYAGAIN", "OOM", "CLUSTERDOWN", "MOVED", "LOADING"]
        .iter()
        .any(|word| error.starts_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_keys_are_only_read_and_counted() {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut asked = |counted: bool| {
            let keys = Keys { count: 6, counted };
            let one = |_| {
                let at = keys.any(&mut rng);
                (keys.name(at), keys.choose(&mut rng, at, || "x".into()))
            };
            (0..1000).map(one).collect::<Vec<_>>()
        };
        let counts = |(key, asked): &(String, Asked)| {
            key.starts_with('c') && matches!(asked, Asked::Get | Asked::Incr { .. })
        };
        assert!(asked(true).iter().all(counts));
        let mixed = asked(false);
        assert!(mixed.iter().any(|(key, _)| key.starts_with('t')));
        assert!(mixed.iter().any(|(_, asked)| *asked == Asked::Del));
    }

    #[test]
    fn only_certain_errors_are_taken_for_not_done() {
        assert!(nothing_done("TRYAGAIN the key's bucket ..."));
        assert!(!nothing_done("IOERR the deadline passed ..."));
        assert!(!nothing_done("ERR whatever"));
    }
}
