//! A cluster of nodes, each a `Directory`, joined by an in-process network with faults.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use staves_directory::{
    CallFuture, Directory, DirectoryError, Life, Options, Proposal, Transport, TransportError,
};
use staves_model::testing::node_facts;
use staves_model::{Change, ClusterMap, NodeId, NodeState};
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// The longest that anything in a test is waited for; a machine under load is slow.
pub const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Wires {
    doors: BTreeMap<String, Directory>,
    /// One-way cuts: (from, to) whose messages vanish.
    cut: BTreeSet<(String, String)>,
    /// Of so many messages one vanishes; 0: none.
    drop_one_of: u64,
    sent: u64,
    /// The time that each message takes.
    delay: Duration,
    /// A node whose messages take longer, in both directions.
    slow: Option<(String, Duration)>,
}

/// The network.
#[derive(Clone, Default)]
pub struct Net(Arc<Mutex<Wires>>);

struct Door {
    net: Net,
    from: String,
}

impl Transport for Door {
    fn call(&self, _: Option<NodeId>, addr: &str, bytes: Bytes, deadline: Duration) -> CallFuture {
        let (net, from, addr) = (self.net.clone(), self.from.clone(), addr.to_owned());
        Box::pin(async move {
            match net.route(&from, &addr) {
                Route::Refused => Err(TransportError::Refused {
                    addr,
                    reason: "nobody listens".into(),
                }),
                Route::Vanishes => vanish(addr, deadline).await,
                Route::To(door) => {
                    let delay = net.delay(&from, &addr);
                    // In a task of its own: the other side does not stop because we stop listening.
                    let answer = tokio::spawn(async move {
                        tokio::time::sleep(delay).await;
                        let answer = door.handle(bytes).await;
                        tokio::time::sleep(delay).await;
                        answer
                    });
                    let answer = tokio::time::timeout(deadline, answer).await;
                    match (answer, net.route(&addr, &from)) {
                        (Ok(Ok(answer)), Route::To(_)) => Ok(answer),
                        (Ok(Ok(answer)), Route::Refused) => Ok(answer),
                        _ => vanish(addr, deadline).await,
                    }
                }
            }
        })
    }
}

async fn vanish(addr: String, deadline: Duration) -> Result<Bytes, TransportError> {
    tokio::time::sleep(deadline).await;
    Err(TransportError::TimedOut {
        addr,
        waited: deadline,
    })
}

enum Route {
    To(Directory),
    Refused,
    Vanishes,
}

impl Net {
    fn route(&self, from: &str, to: &str) -> Route {
        let mut wires = self.0.lock().expect("no test panics with the lock held");
        wires.sent += 1;
        let dropped = wires.drop_one_of > 0 && wires.sent.is_multiple_of(wires.drop_one_of);
        if dropped || wires.cut.contains(&(from.to_owned(), to.to_owned())) {
            return Route::Vanishes;
        }
        wires
            .doors
            .get(to)
            .cloned()
            .map_or(Route::Refused, Route::To)
    }

    pub fn drop_one_of(&self, n: u64) {
        self.0.lock().expect("lock").drop_one_of = n;
    }

    fn delay(&self, from: &str, to: &str) -> Duration {
        let wires = self.0.lock().expect("lock");
        let slow = wires.slow.as_ref().filter(|(n, _)| n == from || n == to);
        slow.map_or(wires.delay, |(_, delay)| *delay)
    }

    /// Every message to and from this node takes so long from now on.
    pub fn slow_node(&self, addr: &str, delay: Duration) {
        self.0.lock().expect("lock").slow = Some((addr.to_owned(), delay));
    }

    /// Every message takes so long from now on.
    pub fn slow(&self, delay: Duration) {
        self.0.lock().expect("lock").delay = delay;
    }

    fn plug(&self, addr: &str, directory: &Directory) {
        self.0
            .lock()
            .expect("lock")
            .doors
            .insert(addr.to_owned(), directory.clone());
    }

    fn unplug(&self, addr: &str) {
        self.0.lock().expect("lock").doors.remove(addr);
    }

    pub fn cut(&self, a: &str, b: &str) {
        let mut wires = self.0.lock().expect("lock");
        wires.cut.insert((a.to_owned(), b.to_owned()));
        wires.cut.insert((b.to_owned(), a.to_owned()));
    }

    /// Messages from the first do not reach the second.
    pub fn cut_one_way(&self, from: &str, to: &str) {
        let mut wires = self.0.lock().expect("lock");
        wires.cut.insert((from.to_owned(), to.to_owned()));
    }

    pub fn heal(&self) {
        self.0.lock().expect("lock").cut.clear();
    }
}

/// One node that runs.
#[derive(Clone)]
pub struct TestNode {
    pub directory: Directory,
    pub life: Life,
    pub addr: String,
}

/// The network, the folders, and how nodes start.
pub struct TestCluster {
    pub net: Net,
    folders: TempDir,
    pub adjust: fn(&mut Options),
}

impl TestCluster {
    pub fn new() -> TestCluster {
        if std::env::var_os("STAVES_LOG").is_some() {
            use tracing_subscriber::fmt;
            let _ = fmt()
                .with_max_level(tracing::Level::INFO)
                .with_test_writer()
                .try_init();
        }
        let folders = tempfile::tempdir().expect("a folder for tests");
        TestCluster {
            net: Net::default(),
            folders,
            adjust: |_| {},
        }
    }

    pub fn folder(&self, name: &str) -> PathBuf {
        self.folders.path().join(name)
    }

    pub fn options(&self, name: &str, join: &[&str]) -> Options {
        let mut options = Options::new(node_facts(name, 1 << 30));
        options.data_dir = Some(self.folder(name));
        options.join = join.iter().map(|n| format!("{n}:1600")).collect();
        options.times.join = PATIENCE;
        (self.adjust)(&mut options);
        options
    }

    pub fn open(&self, options: Options) -> Result<(Directory, String), DirectoryError> {
        let addr = options.node.native.clone();
        let door = Door {
            net: self.net.clone(),
            from: addr.clone(),
        };
        let directory = Directory::open(options, Arc::new(door))?;
        self.net.plug(&addr, &directory);
        Ok((directory, addr))
    }

    /// A node that nobody reaches.
    pub fn open_unplugged(&self, options: Options) -> Result<Directory, DirectoryError> {
        let door = Door {
            net: self.net.clone(),
            from: options.node.native.clone(),
        };
        Directory::open(options, Arc::new(door))
    }

    pub async fn try_start(&self, options: Options) -> Result<TestNode, DirectoryError> {
        let (directory, addr) = self.open(options)?;
        match directory.start().await {
            Ok(life) => Ok(TestNode {
                directory,
                life,
                addr,
            }),
            Err(e) => {
                self.net.unplug(&addr);
                directory.stop().await;
                Err(e)
            }
        }
    }

    pub async fn start(&self, name: &str, join: &[&str]) -> TestNode {
        self.try_start(self.options(name, join))
            .await
            .expect("the node starts")
    }

    /// A node that may need others to start.
    pub fn start_soon(&self, name: &str, join: &[&str]) -> JoinHandle<TestNode> {
        let opened = self.open(self.options(name, join));
        let (directory, addr) = opened.expect("a folder of its own");
        tokio::spawn(async move {
            let life = directory.start().await.expect("the node starts");
            TestNode {
                directory,
                life,
                addr,
            }
        })
    }

    /// The first node alone, the others at once; returns when every node that should vote does.
    pub async fn found(&self, n: usize) -> Vec<TestNode> {
        let mut nodes = vec![self.start("a", &[]).await];
        let names: Vec<String> = (1..n)
            .map(|i| ((b'a' + i as u8) as char).to_string())
            .collect();
        let starts = names.iter().map(|name| self.start_soon(name, &["a"]));
        for start in starts.collect::<Vec<_>>() {
            nodes.push(start.await.expect("no panic"));
        }
        let voters = match n {
            1 | 2 => 1,
            3 | 4 => 3,
            _ => 5,
        };
        for node in &nodes {
            eventually("all voters sit", || {
                let status = node.directory.status();
                let all = status.voters.len() + status.learners.len() == n;
                status.voters.len() == voters && all && !status.changing_voters
            })
            .await;
        }
        nodes
    }

    pub async fn kill_all<'a>(&self, nodes: impl IntoIterator<Item = &'a TestNode>) {
        for node in nodes {
            self.kill(node).await;
        }
    }

    /// As SIGKILL does: nobody listens there any more, at once.
    pub async fn kill(&self, node: &TestNode) {
        self.net.unplug(&node.addr);
        node.directory.stop().await;
    }
}

impl TestNode {
    pub fn map(&self) -> Arc<ClusterMap> {
        self.directory.map().borrow().clone()
    }

    pub fn id(&self) -> NodeId {
        self.life.node
    }

    pub fn sees_down(&self, node: NodeId) -> bool {
        self.map()
            .nodes
            .get(&node)
            .is_some_and(|n| n.state == NodeState::Down)
    }

    /// Commits something harmless.
    pub async fn touch(&self, deadline: Duration) -> Result<(), DirectoryError> {
        let on = self
            .map()
            .nodes
            .get(&NodeId(1))
            .is_some_and(|n| !n.draining);
        let change = Change::Drain {
            node: NodeId(1),
            on,
        };
        self.directory
            .propose(Proposal::unconditional(change), deadline)
            .await
            .map(drop)
    }
}

pub fn leader(nodes: &[TestNode]) -> Option<TestNode> {
    let named = nodes.iter().filter_map(|c| {
        let status = c.directory.status();
        Some((status.term, status.leader?))
    });
    let (_, leader) = named.max()?;
    nodes
        .iter()
        .find(|c| c.id() == leader && c.directory.status().leader == Some(leader))
        .cloned()
}

pub fn others(nodes: &[TestNode], but: &TestNode) -> Vec<TestNode> {
    nodes
        .iter()
        .filter(|c| c.id() != but.id())
        .cloned()
        .collect()
}

pub async fn eventually(what: &str, holds: impl Fn() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds() {
        assert!(
            begun.elapsed() < PATIENCE,
            "after {PATIENCE:?} it does not hold that {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    begun.elapsed()
}
