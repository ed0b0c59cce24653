//! Floods: clients of one node that ask for more than a node has, or stand idle, and check nothing but that.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use staves_resp::client::{Reply, Resp, encode};

/// The time for a connection, and for each step on one.
const CONNECT: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(2);
/// The rest of clients that wait for the end.
const REST: Duration = Duration::from_millis(50);
/// Threads of a flood.
const THREADS: usize = 4;
/// Connections of each that ask for one key at a time.
const ASKING: usize = 250;
/// Connections of each that stand idle: more than nodes with few descriptors have places for.
const IDLE: usize = 60;
/// Values of each that are begun and not ended, and their bytes.
const UNFINISHED: usize = 4;
const UNFINISHED_BYTES: usize = 24 << 20;
/// Large values, their bytes, and the commands for all of them that one client sends before it reads.
const LARGE: usize = 4;
const LARGE_BYTES: usize = 1 << 20;
const PIPELINED: usize = 50;

/// The kinds, with the words that a scenario has for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FloodKind {
    /// A thousand connections, each asks for one key after the other.
    Connections,
    /// Values of which all but the last bytes are sent.
    Unfinished,
    /// Long pipelines of MGETs of large values, which are read slowly.
    Reads,
    /// Connections that greet the node and then say nothing.
    Idle,
}

/// See [`FloodKind`].
pub const KINDS: [(FloodKind, &str); 4] = [
    (FloodKind::Connections, "connections"),
    (FloodKind::Unfinished, "unfinished values"),
    (FloodKind::Reads, "reads"),
    (FloodKind::Idle, "idle clients"),
];

impl FloodKind {
    /// Its words.
    pub fn words(self) -> &'static str {
        let known = KINDS.iter().find(|(kind, _)| *kind == self);
        known.map_or("", |(_, words)| words)
    }
}

/// The sums of a flood.
#[derive(Default)]
struct FloodCounts {
    connections: AtomicUsize,
    commands: AtomicUsize,
}

/// A flood that goes on until it is dropped.
pub struct Flood {
    /// The node, counted from 0.
    pub at: usize,
    /// The kind.
    pub kind: FloodKind,
    stop: Arc<AtomicBool>,
    tally: Arc<FloodCounts>,
    threads: Vec<JoinHandle<()>>,
}

impl Flood {
    /// Starts the clients, in the caller's namespace.
    pub fn start(kind: FloodKind, at: usize, door: SocketAddr) -> Flood {
        raise_own_limit();
        let (stop, tally) = (Arc::<AtomicBool>::default(), Arc::<FloodCounts>::default());
        let threads = (0..THREADS).map(|number| {
            let one = One {
                number,
                door,
                stop: stop.clone(),
                tally: tally.clone(),
            };
            std::thread::spawn(move || match kind {
                FloodKind::Connections => one.connections(),
                FloodKind::Unfinished => one.unfinished(),
                FloodKind::Reads => one.reads(),
                FloodKind::Idle => one.idle(),
            })
        });
        Flood {
            at,
            kind,
            threads: threads.collect(),
            stop,
            tally,
        }
    }

    /// The connections that were made, and the commands that were answered, refusals too.
    pub fn counts(&self) -> (usize, usize) {
        let count = |of: &AtomicUsize| of.load(Ordering::Relaxed);
        (count(&self.tally.connections), count(&self.tally.commands))
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It has nothing to say: what it saw is in the tally.
            let _ = thread.join();
        }
    }
}

/// Floods need more descriptors than a shell gives.
fn raise_own_limit() {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum;
    // With fewer there is a smaller flood.
    let _ = setrlimit(Resource::Nofile, Rlimit { current, ..limit });
}

/// One thread of a flood.
struct One {
    number: usize,
    door: SocketAddr,
    stop: Arc<AtomicBool>,
    tally: Arc<FloodCounts>,
}

impl One {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn connect(&self) -> Option<Resp> {
        let resp = Resp::connect(self.door, CONNECT, PATIENCE).ok()?;
        self.tally.connections.fetch_add(1, Ordering::Relaxed);
        Some(resp)
    }

    fn receive(&self, resp: &mut Resp) -> Option<Reply> {
        let reply = resp.receive().ok()?;
        self.tally.commands.fetch_add(1, Ordering::Relaxed);
        Some(reply)
    }

    fn connections(&self) {
        let mut all: Vec<Option<Resp>> = (0..ASKING).map(|_| None).collect();
        while self.goes_on() {
            for (at, place) in all.iter_mut().enumerate() {
                let key = format!("flood-{at}");
                let mut command = Vec::new();
                encode(&[b"GET", key.as_bytes()], &mut command);
                let resp = place.take().or_else(|| self.connect());
                *place = resp.and_then(|mut resp| resp.send(&command).ok().map(|()| resp));
                if !self.goes_on() {
                    return;
                }
            }
            for place in &mut all {
                let resp = place.take();
                *place = resp.and_then(|mut resp| self.receive(&mut resp).map(|_| resp));
                if !self.goes_on() {
                    return;
                }
            }
        }
    }

    fn unfinished(&self) {
        let mut all = Vec::new();
        for at in 0..UNFINISHED {
            let Some(mut resp) = self.connect() else {
                continue;
            };
            let key = format!("flood-{}-{at}", self.number);
            let head = format!(
                "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${UNFINISHED_BYTES}\r\n",
                key.len()
            );
            let mut sent = resp.send(head.as_bytes()).is_ok();
            let piece = [b'v'; 1 << 16];
            for _ in 1..UNFINISHED_BYTES / piece.len() {
                // A node that has no memory for it takes no more, or closes.
                sent = sent && self.goes_on() && resp.send(&piece).is_ok();
            }
            all.push(resp);
        }
        while self.goes_on() {
            std::thread::sleep(REST);
        }
    }

    fn reads(&self) {
        let keys: Vec<String> = (0..LARGE).map(|at| format!("{{flood}}{at}")).collect();
        let mut get: Vec<&[u8]> = vec![b"MGET"];
        get.extend(keys.iter().map(String::as_bytes));
        let mut command = Vec::new();
        encode(&get, &mut command);
        let value = vec![b'v'; LARGE_BYTES];
        while self.goes_on() {
            let Some(mut resp) = self.connect() else {
                std::thread::sleep(REST);
                continue;
            };
            let written = keys
                .iter()
                .all(|key| resp.call(&[b"SET", key.as_bytes(), &value]).is_ok());
            if written && resp.send(&command.repeat(PIPELINED)).is_ok() {
                std::thread::sleep(10 * REST);
                let mut left = PIPELINED;
                while left > 0 && self.goes_on() && self.receive(&mut resp).is_some() {
                    left -= 1;
                }
            }
        }
    }

    fn idle(&self) {
        let mut all = Vec::new();
        while self.goes_on() {
            if all.len() < IDLE
                && let Some(mut resp) = self.connect()
                && resp.send(b"PING\r\n").is_ok()
                && self.receive(&mut resp) == Some(Reply::Simple("PONG".into()))
            {
                all.push(resp);
                continue;
            }
            // Refused, or enough.
            std::thread::sleep(REST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Instant;

    #[test]
    fn a_flood_begins_and_ends_and_is_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let door = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let mut socket = socket.expect("a client");
                std::thread::spawn(move || {
                    let mut bytes = [0; 1024];
                    while socket.read(&mut bytes).is_ok_and(|n| n > 0) {
                        if socket.write_all(b"+PONG\r\n").is_err() {
                            return;
                        }
                    }
                });
            }
        });
        for (kind, words) in KINDS {
            let flood = Flood::start(kind, 3, door);
            let until = Instant::now() + staves_testkit::DEADLINE;
            let wanted = |(connections, commands): (usize, usize)| match kind {
                FloodKind::Connections => connections > ASKING && commands > ASKING,
                FloodKind::Unfinished => connections == THREADS * UNFINISHED,
                FloodKind::Reads => connections >= THREADS,
                FloodKind::Idle => connections == THREADS * IDLE,
            };
            while !wanted(flood.counts()) {
                assert!(Instant::now() < until, "{words}: {:?}", flood.counts());
                std::thread::sleep(REST);
            }
            assert_eq!((flood.at, flood.kind.words()), (3, words));
        }
    }
}
