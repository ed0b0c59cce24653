//! A stranger at the native door who speaks the protocol well and says absurd things: as a client, as a tool, and as a
//! node that he is not. Whatever he says, the nodes go on, take no memory for it, and serve what they served before.

mod nodes;
mod requests;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use staves_client::{Client, ClientOptions, Dataset};
use staves_model::{
    Change, ClusterId, ClusterMap, GroupId, Incarnation, Medium, NodeId, Pool, PoolKind, Scheme,
    Time,
};
use staves_net::{Identity, Who};
use staves_wire::files::{FileId, FileRead};
use staves_wire::frame::{self, Decoder, Envelope, Incoming, Limits};
use staves_wire::hello::Ping;
use staves_wire::{ErrorCode, Message, Opcode};
use tempfile::TempDir;

use self::nodes::{of_directories, of_groups};
use self::requests::{cache, fetch, memory, of_files, of_tools, proposals};
use crate::files::{self, POOL};
use staves_testkit::cluster::{TestCluster, TestNode};
use staves_testkit::resp::Reply;
use staves_testkit::{DEADLINE, wait_until};

/// Numbers where things go wrong.
const NUMBERS: [u64; 6] = [0, 1, u32::MAX as u64, 1 << 62, u64::MAX - 1, u64::MAX];
const NOBODY: NodeId = NodeId(777);
/// The growth that the process may show while strangers talk: all nodes of the test, and other tests beside it.
const GROWTH_MAX: u64 = 1 << 30;

/// A connection of somebody who says who he is.
struct Stranger {
    socket: TcpStream,
    decoder: Decoder,
    buffer: BytesMut,
    requests: u64,
}

impl Stranger {
    fn at(node: &TestNode, identity: &Identity) -> Stranger {
        let socket = TcpStream::connect(node.addresses.native).expect("it listens");
        socket.set_read_timeout(Some(DEADLINE)).expect("a socket");
        let mut stranger = Stranger {
            socket,
            decoder: Decoder::new(Limits::default()),
            buffer: BytesMut::new(),
            requests: 0,
        };
        let welcome = stranger.ask(&Message::Hello(identity.hello()));
        assert!(matches!(welcome, Message::Welcome(_)), "{welcome:?}");
        stranger
    }

    fn say(&mut self, message: &Message) {
        self.requests += 1;
        let envelope = Envelope {
            request: self.requests,
            ..Envelope::default()
        };
        let mut bytes = BytesMut::new();
        frame::encode(envelope, message, &mut bytes);
        self.socket.write_all(&bytes).expect("it takes bytes");
    }

    /// The answer, which comes within a bounded time; the connection goes on.
    fn ask(&mut self, message: &Message) -> Message {
        self.say(message);
        let word = message.opcode().word();
        loop {
            let next = self.decoder.next(&mut self.buffer);
            if let Some(Incoming::Message(raw)) = next.expect("the node speaks well") {
                if raw.header.request < self.requests {
                    continue; // what was said without waiting was refused
                }
                let opcode = Opcode::from_number(raw.header.opcode).expect("known");
                let answer = Message::decode(opcode, raw.header.epoch, raw.body);
                return answer.expect("decodes");
            }
            let mut bytes = [0; 16 << 10];
            let read = self.socket.read(&mut bytes);
            let read = read.unwrap_or_else(|error| panic!("{word} has no answer: {error}"));
            assert!(read > 0, "{word} ended the connection");
            self.buffer.extend_from_slice(&bytes[..read]);
        }
    }

    fn code(&mut self, message: &Message) -> Option<ErrorCode> {
        match self.ask(message) {
            Message::Error(packet) => Some(packet.code),
            _ => None,
        }
    }

    /// The node has taken all that was said so far.
    fn is_heard(&mut self) {
        let pong = self.ask(&Message::Ping(Ping { clock: Time(1) }));
        assert!(matches!(pong, Message::Pong(_)));
    }
}

/// A cluster with a cache, a region and a dataset, and what is in them.
struct Served {
    client: Client,
    data: Dataset,
    folder: TempDir,
    region: Bytes,
    cluster: TestCluster,
}

impl Served {
    fn new() -> Served {
        let cluster = files::cluster(3, 16 << 20);
        let pool = Change::CreatePool {
            name: "memory".into(),
            kind: PoolKind::Memory {
                regions: Vec::new(),
            },
            scheme: Scheme { m: 2, k: 1 },
            medium: Medium::Ram,
            node_budget_bytes: 16 << 20,
            buckets: 0,
            may_start_empty: false,
        };
        cluster.nodes[0].propose(&pool).expect("a pool");
        let folder = files::folder(&[("a", 3 * files::MIB + 777)]);
        files::let_it_age();
        let data = files::dataset(&cluster, &folder);
        let region = Bytes::from(files::pattern(9, 300_000));
        let addresses = cluster.nodes.iter().map(|c| c.addresses.native.to_string());
        let addresses: Vec<String> = addresses.collect();
        let client = cluster.nodes[0].runtime().block_on(async {
            let options = ClientOptions {
                deadline: Duration::from_secs(20),
                ..ClientOptions::default()
            };
            let client = Client::connect(&addresses, options)
                .await
                .expect("a client");
            let made = client
                .create_region("memory", "r", 1 << 20)
                .await
                .expect("a region");
            made.write(1000, region.clone()).await.expect("a write");
            client
        });
        let mut resp = cluster.nodes[1].client();
        for key in 0..50 {
            let (key, value) = (format!("key{key}"), format!("value{key}"));
            assert!(resp.ask(&format!("SET {key} {value}")).is_error().is_none());
        }
        let served = Served {
            client,
            data,
            folder,
            region,
            cluster,
        };
        served.check("before");
        served
    }

    /// All that was there is there, at every node, and all nodes are well.
    fn check(&self, when: &str) {
        for node in &self.cluster.nodes {
            let mut resp = node.client();
            for key in 0..50 {
                let (key, value) = (format!("key{key}"), format!("value{key}"));
                assert_eq!(
                    resp.ask(&format!("GET {key}")),
                    Reply::text(&value),
                    "{when}"
                );
            }
        }
        self.cluster.nodes[0].runtime().block_on(async {
            let region = self.client.region("r").await.expect("it is there");
            let bytes = region
                .read(1000, self.region.len() as u64)
                .await
                .expect("a read");
            assert!(bytes == self.region, "{when}");
        });
        let bytes = files::read(&self.cluster, &self.data, "a").expect("a file");
        let truth = std::fs::read(self.folder.path().join("a")).expect("its source");
        assert!(bytes == truth, "{when}");
    }

    fn groups(&self) -> Vec<GroupId> {
        self.cluster.nodes[0].map().groups.keys().copied().collect()
    }
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages: u64 = text
        .split(' ')
        .nth(1)
        .and_then(|p| p.parse().ok())
        .expect("a number");
    pages * 4096
}

/// Panics in our own code, of any thread, from now on: in the program one ends the node.
fn panics() -> &'static AtomicUsize {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let ours = info.location().is_some_and(|at| at.file().contains("src/"));
            PANICS.fetch_add(usize::from(ours), Ordering::Relaxed);
            before(info);
        }));
    });
    &PANICS
}

/// The pools without what nodes change by themselves: who holds which bucket of files.
fn people_made(map: &ClusterMap) -> Vec<Pool> {
    let mut pools: Vec<Pool> = map.pools.values().cloned().collect();
    for pool in &mut pools {
        if let PoolKind::Files(holdings) = &mut pool.kind {
            holdings.buckets.clear();
            holdings.revision = Default::default();
        }
    }
    pools
}

/// Says all of it to every node, and then looks whether anything is other than it was.
fn endure(served: &Served, identity: &Identity, what: &str, messages: &[Message]) {
    let before = (panics().load(Ordering::Relaxed), resident_bytes());
    let map = served.cluster.nodes[0].map();
    for node in &served.cluster.nodes {
        let mut stranger = Stranger::at(node, identity);
        for message in messages {
            match message {
                Message::Group(_) => stranger.say(message),
                _ => drop(stranger.ask(message)),
            }
        }
        stranger.is_heard();
    }
    served.check(what);
    let after = served.cluster.nodes[0].map();
    assert!(people_made(&after) == people_made(&map), "{what}");
    let up = |map: &ClusterMap| {
        map.nodes
            .values()
            .filter(|n| map.is_up(n.id, n.incarnation))
            .count()
    };
    assert_eq!(after.nodes.len(), 3, "{what}");
    wait_until("all nodes are up", || {
        up(&served.cluster.nodes[0].map()) == 3
    });
    assert_eq!(panics().load(Ordering::Relaxed), before.0, "{what}");
    let grown = resident_bytes().saturating_sub(before.1);
    assert!(grown < GROWTH_MAX, "{what}: {grown} bytes more");
}

fn client() -> Identity {
    Identity::client(ClusterId(0))
}

fn tool() -> Identity {
    Identity::admin(ClusterId(0))
}

/// A node of nobody's.
fn node(served: &Served) -> Identity {
    Identity::node(Who {
        cluster: served.cluster.nodes[0].map().cluster,
        node: NOBODY,
        incarnation: Incarnation(u64::MAX),
    })
}

#[test]
fn absurd_requests_of_clients_and_tools_change_nothing() {
    let served = Served::new();
    let groups = served.groups();
    endure(&served, &client(), "cache", &cache(&served));
    endure(&served, &client(), "memory", &memory(&groups));
    endure(&served, &client(), "files", &of_files(&served));
    endure(&served, &tool(), "tools", &of_tools(&groups));
    endure(&served, &tool(), "proposals", &proposals());
    endure(&served, &client(), "proposals of a client", &proposals());
}

#[test]
fn absurd_words_of_a_node_that_is_none_change_nothing() {
    let served = Served::new();
    let node = node(&served);
    endure(&served, &node, "groups", &of_groups(&served));
    endure(&served, &node, "the directory", &of_directories(&served));
}

/// Regression: who asked for 4 GiB waited for room that never came, and kept it from everybody behind.
#[test]
fn a_fetch_that_is_too_long_is_refused_at_once() {
    let cluster = files::cluster(1, 16 << 20);
    let pool = cluster.nodes[0].map().pool_named(POOL).expect("made").id;
    let mut stranger = Stranger::at(&cluster.nodes[0], &client());
    for len in [0, (1 << 20) + 1, u32::MAX] {
        let (file, from) = (FileId { high: 1, low: 2 }, 0);
        let read = FileRead {
            pool,
            file,
            from,
            len,
        };
        let fetch = fetch(&read, u64::MAX);
        for ask in [Message::FileRead(read), fetch] {
            assert_eq!(stranger.code(&ask), Some(ErrorCode::Malformed), "{len}");
        }
    }
}
