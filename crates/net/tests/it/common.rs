//! A node that answers by script.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use staves_model::{ClientId, ClusterId, Incarnation, NodeId, ServiceId};
use staves_net::{Connection, Handler, Identity, Options, PeerInfo, Reply, Server, Who};
pub use staves_testkit::{block_on, wait_until_async};
use staves_wire::admin::StatusAnswer;
use staves_wire::directory::GetMap;
use staves_wire::group::GroupEnvelope;
use staves_wire::service::{PoolRef, ServiceRequest};
use staves_wire::{ErrorCode, Message};

pub const CLUSTER: ClusterId = ClusterId(0xC1);

/// Answers:
/// `GetMap` with `wait_ms` n: a status of that many bytes, in turn; n = 1: keeps the reply;
/// n = 2: drops the reply; n = 3: answers all that it kept, the last first, then this.
/// `Service` of client n: a status of that many bytes.
#[derive(Clone, Default)]
pub struct Script {
    pub kept: Arc<Mutex<Vec<Reply>>>,
    pub seen: Arc<Mutex<Vec<u32>>>,
    pub groups: Arc<Mutex<Vec<GroupEnvelope>>>,
    pub batches: Arc<Mutex<usize>>,
}

pub fn status(len: usize) -> Message {
    Message::StatusAnswer(StatusAnswer {
        json: Bytes::from(vec![7; len]),
    })
}

pub fn ask(n: u32) -> Message {
    Message::GetMap(GetMap {
        known: Default::default(),
        wait_ms: n,
    })
}

/// A request to the cache that is answered by so many bytes.
pub fn ask_cache(len: u64) -> Message {
    Message::Service(ServiceRequest {
        revision: Default::default(),
        service: ServiceId::CACHE,
        pool: PoolRef::Name("cache".to_owned()),
        client: ClientId(len),
        floor: 1,
        retry: false,
        forwarded: false,
        answer_bytes_max: 0,
        strict: false,
        ops: Vec::new(),
    })
}

pub const KEEP: u32 = 1;
pub const DROP: u32 = 2;
pub const RELEASE: u32 = 3;
/// Keeps the reply to a request that costs much.
pub const COSTLY: u32 = u32::MAX;

impl Handler for Script {
    fn group(&self, _: &PeerInfo, batch: Vec<GroupEnvelope>) {
        self.groups.lock().unwrap().extend(batch);
        *self.batches.lock().unwrap() += 1;
    }

    fn request(&self, _: &PeerInfo, request: Message, mut reply: Reply) {
        let n = match request {
            Message::GetMap(GetMap { wait_ms, .. }) => wait_ms,
            Message::Service(request) => return reply.send(&status(request.client.0 as usize)),
            Message::Propose(propose) => return reply.send(&status(propose.change.len())),
            _ => return reply.error(ErrorCode::Unsupported, "not in the script"),
        };
        self.seen.lock().unwrap().push(n);
        match n {
            KEEP => self.kept.lock().unwrap().push(reply),
            COSTLY => {
                reply.mark_costly();
                self.kept.lock().unwrap().push(reply);
            }
            DROP => drop(reply),
            RELEASE => {
                let mut kept = self.kept.lock().unwrap();
                while let Some(kept) = kept.pop() {
                    kept.send(&status(1));
                }
                reply.send(&status(3));
            }
            n => reply.send(&status(n as usize)),
        }
    }
}

pub fn who(node: u64) -> Who {
    Who {
        cluster: CLUSTER,
        node: NodeId(node),
        incarnation: Incarnation(node),
    }
}

pub fn node(id: u64) -> Identity {
    Identity::node(who(id))
}

pub async fn server_on(addr: &str, id: u64, options: Options) -> (Server, Script) {
    let script = Script::default();
    let server = Server::bind(addr, node(id), options, script.clone()).await;
    (server.expect("a free port on loopback"), script)
}

pub async fn server(options: Options) -> (Server, Script, String) {
    let (server, script) = server_on("127.0.0.1:0", 1, options).await;
    let addr = server.local_addr().to_string();
    (server, script, addr)
}

pub async fn client(addr: &str, options: Options) -> Connection {
    Connection::open(addr, &Identity::client(CLUSTER), &options)
        .await
        .expect("it answers")
}

pub fn within(ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(ms)
}

/// The most that a slowed relay catches up.
const LAG_MAX: Duration = Duration::from_millis(700);

/// A cable between client and server that can be cut without either noticing.
pub struct Relay {
    pub addr: String,
    frozen: Arc<std::sync::atomic::AtomicBool>,
    pause_us: Arc<std::sync::atomic::AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Relay {
    pub async fn start(to: String) -> Relay {
        use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let addr = listener.local_addr().expect("its address").to_string();
        let frozen = Arc::new(AtomicBool::new(false));
        let cut = frozen.clone();
        let pause_us = Arc::new(AtomicU64::new(0));
        let slow = pause_us.clone();
        let task = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = tokio::net::TcpStream::connect(&to)
                    .await
                    .expect("the server");
                let (near_read, near_write) = near.into_split();
                let (far_read, far_write) = far.into_split();
                for (mut from, mut into) in [(near_read, far_write), (far_read, near_write)] {
                    let (cut, slow) = (cut.clone(), slow.clone());
                    tokio::spawn(async move {
                        let mut bytes = vec![0; 65536];
                        let mut due = Instant::now();
                        loop {
                            let Ok(n @ 1..) = from.read(&mut bytes).await else {
                                return;
                            };
                            while cut.load(Ordering::Relaxed) {
                                tokio::time::sleep(Duration::from_millis(5)).await;
                            }
                            let per_64_kib = Duration::from_micros(slow.load(Ordering::Relaxed));
                            due = due.max(Instant::now() - LAG_MAX);
                            due += per_64_kib.mul_f64(n as f64 / 65536.0);
                            tokio::time::sleep_until(due.into()).await;
                            if into.write_all(&bytes[..n]).await.is_err() {
                                return;
                            }
                        }
                    });
                }
            }
        });
        Relay {
            addr,
            frozen,
            pause_us,
            task,
        }
    }

    /// Takes so long for each 64 KiB on average: what a busy machine delays is caught up.
    pub fn slow_down(&self, per_64_kib: Duration) {
        self.pause_us.store(
            per_64_kib.as_micros() as u64,
            std::sync::atomic::Ordering::Relaxed,
        );
    }

    pub fn freeze(&self) {
        self.frozen
            .store(true, std::sync::atomic::Ordering::Relaxed);
    }

    pub fn thaw(&self) {
        self.frozen
            .store(false, std::sync::atomic::Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}
