//! A cluster of real nodes in one process, each on a runtime of its own, so that one can be killed as a process is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use staves_client::ClientOptions;
use staves_model::{Change, ClusterMap, MemberSlot, NodeId};
use staves_net::{Connection, Identity, NetError};
use staves_node::config::{Config, Endpoint};
use staves_node::status::{State, StatusReport};
use staves_node::{Addresses, HostedService, Node, SERVICES, StartError};
use staves_wire::Message;
use staves_wire::directory::{Propose, Proposed};
use tempfile::TempDir;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;

use crate::resp::RespClient;
use crate::{DEADLINE, wait_until};

/// The worker threads of each node.
const THREADS: usize = 2;
/// A configuration with free ports and a little memory.
pub fn config(data: Option<&TempDir>, join: &[&TestNode]) -> Config {
    let free: Endpoint = "127.0.0.1:0".parse().expect("an address");
    let at = |c: &&TestNode| c.addresses.native.to_string().parse().expect("an address");
    Config {
        data: data.map(|d| d.path().to_owned()),
        listen: free.clone(),
        resp: free.clone(),
        admin: free,
        join: join.iter().map(at).collect(),
        memory: "128MiB".parse_size(),
        buckets: 16,
        stop_ms: "6s".parse_millis(),
        ..Config::default()
    }
}

/// Parses text into the types of the configuration.
pub trait Parse {
    /// A size such as `128MiB`.
    fn parse_size(&self) -> staves_node::config::Size;
    /// A time such as `6s`.
    fn parse_millis(&self) -> staves_node::config::Millis;
}

impl Parse for str {
    fn parse_size(&self) -> staves_node::config::Size {
        staves_node::config::Setting::parse(self).expect("a size")
    }

    fn parse_millis(&self) -> staves_node::config::Millis {
        staves_node::config::Setting::parse(self).expect("a time")
    }
}

/// One node.
pub struct TestNode {
    /// The addresses that it listens on.
    pub addresses: Addresses,
    /// Its id.
    pub id: NodeId,
    runtime: Option<Runtime>,
    node: Option<Node>,
}

impl TestNode {
    /// Starts a node.
    pub fn try_start(config: Config) -> Result<TestNode, StartError> {
        TestNode::try_start_hosting(config, SERVICES)
    }

    /// Starts a node with another table of services.
    pub fn try_start_hosting(
        config: Config,
        services: &[HostedService],
    ) -> Result<TestNode, StartError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .enable_all()
            .build()
            .expect("threads");
        match runtime.block_on(Node::start_hosting(config, services)) {
            Ok(node) => Ok(TestNode {
                addresses: node.addresses(),
                id: node.id(),
                node: Some(node),
                runtime: Some(runtime),
            }),
            Err(error) => {
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// Starts a node, also on the folder of one that was killed here a moment ago.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(config: Config) -> TestNode {
        TestNode::start_hosting(config, SERVICES)
    }

    fn start_hosting(config: Config, services: &[HostedService]) -> TestNode {
        let mut started = TestNode::try_start_hosting(config.clone(), services);
        let begun = Instant::now();
        // Threads of a node that was killed here may hold its folder a little longer.
        while let Err(error) = &started
            && format!("{error:?}").contains("Locked")
            && begun.elapsed() < DEADLINE
        {
            std::thread::sleep(Duration::from_millis(50));
            started = TestNode::try_start_hosting(config.clone(), services);
        }
        started.expect("the node starts")
    }

    /// True once it was killed or has left.
    pub fn is_dead(&self) -> bool {
        self.node.is_none()
    }

    fn node(&self) -> &Node {
        self.node.as_ref().expect("the node runs")
    }

    /// A connection to its RESP port.
    pub fn client(&self) -> RespClient {
        RespClient::connect(self.addresses.resp)
    }

    /// Its copy of the cluster map.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.node().map().borrow().clone()
    }

    /// Its copy of the map, and each newer one.
    pub fn maps(&self) -> watch::Receiver<Arc<ClusterMap>> {
        self.node().map()
    }

    /// Its status.
    pub fn status(&self) -> StatusReport {
        self.node().status()
    }

    /// A metric.
    pub fn metric(&self, name: &str) -> u64 {
        use std::io::{Read, Write};
        let mut door = std::net::TcpStream::connect(self.addresses.admin).expect("it opens");
        let ask = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        door.write_all(ask).expect("it listens");
        let mut page = String::new();
        door.read_to_string(&mut page).expect("it answers");
        let value = page.lines().find_map(|line| line.strip_prefix(name));
        let value = value.and_then(|value| value.trim().parse().ok());
        value.unwrap_or_else(|| panic!("there is no {name}"))
    }

    /// The number of its data buckets.
    pub fn data_buckets(&self) -> usize {
        self.node().data_buckets()
    }

    /// The node of the data bucket of a key of the pool `cache`, once there is one.
    pub fn owner(&self, key: &str) -> NodeId {
        let mut owner = None;
        wait_until("the key's bucket is open", || {
            owner = self.owner_now(key);
            owner.is_some()
        });
        owner.expect("just seen")
    }

    fn owner_now(&self, key: &str) -> Option<NodeId> {
        let map = self.map();
        let pool = map.pool_named("cache")?;
        let group = map.group_of(pool.id, staves_model::hash_slot(key.as_bytes()))?;
        let data = group.member(MemberSlot(0)).filter(|_| group.open)?;
        Some(data.id.node)
    }

    /// Ends it as SIGKILL does: sockets close, and it does not leave.
    pub fn kill(&mut self) {
        self.node = None;
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_millis(500));
        }
    }

    /// Stops all its threads for so long, as SIGSTOP does; returns when they stand still.
    pub fn pause(&self, time: Duration) {
        self.hang(time);
        stand_still(&self.node().liveness(), time);
    }

    /// Stops the threads of its work for so long, and not those of its directory; returns when they stand still.
    pub fn hang(&self, time: Duration) {
        stand_still(self.runtime().handle(), time);
    }

    /// The reason that its life is over, waited for so long.
    pub fn over(&self, patience: Duration) -> Option<String> {
        let over = async { tokio::time::timeout(patience, self.node().over()).await };
        let why = self.runtime().block_on(over);
        why.ok().map(|why| why.to_string())
    }

    /// Leaves in good order.
    pub fn leave(&mut self) {
        let node = self.node.take().expect("the node runs");
        let runtime = self.runtime.take().expect("the node runs");
        runtime.block_on(node.leave());
        runtime.shutdown_timeout(Duration::from_millis(500));
    }

    /// Sends one request as a tool does.
    pub fn ask(&self, request: &Message) -> Message {
        let deadline = Instant::now() + Duration::from_secs(8);
        self.runtime().block_on(async {
            let identity = Identity::admin(staves_model::ClusterId(0));
            let options = staves_net::Options::default();
            let native = self.addresses.native.to_string();
            let connection = Connection::open(&native, &identity, &options)
                .await
                .expect("the native door takes connections");
            match connection.call(request, deadline).await {
                Err(NetError::Refused { packet, .. }) => Message::Error(packet),
                answer => answer.expect("the native door answers"),
            }
        })
    }

    /// Proposes a change as a tool does; the reason if it is rejected.
    pub fn propose(&self, change: &Change) -> Result<(), String> {
        let change = postcard::to_allocvec(change).expect("it encodes").into();
        let proposal = Message::Propose(Propose {
            expected: None,
            change,
        });
        match self.ask(&proposal) {
            Message::Proposed(Proposed::Applied { .. }) => Ok(()),
            Message::Proposed(Proposed::Refused { reason, .. }) => Err(reason),
            other => panic!("a proposal was answered with {other:?}"),
        }
    }

    /// Its runtime.
    pub fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("the node runs")
    }
}

fn stand_still(runtime: &Handle, time: Duration) {
    let threads = runtime.metrics().num_workers();
    let standing = Arc::new(AtomicUsize::new(0));
    for _ in 0..threads {
        let standing = standing.clone();
        runtime.spawn(async move {
            standing.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(time);
        });
    }
    wait_until("all threads of the node stand still", || {
        standing.load(Ordering::SeqCst) == threads
    });
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A cluster whose nodes have folders.
pub struct TestCluster {
    /// The nodes, the founder first.
    pub nodes: Vec<TestNode>,
    /// Their folders, in the same order.
    pub folders: Vec<TempDir>,
}

impl TestCluster {
    /// Starts a cluster: the first node founds it, all others join at once (row D6).
    pub fn start(nodes: usize) -> TestCluster {
        TestCluster::start_with(nodes, |_, _| {})
    }

    /// The same with changed configurations.
    pub fn start_with(nodes: usize, change: impl Fn(usize, &mut Config) + Sync) -> TestCluster {
        TestCluster::start_hosting(nodes, SERVICES, change)
    }

    /// The same with another table of services.
    pub fn start_hosting(
        nodes: usize,
        services: &[HostedService],
        change: impl Fn(usize, &mut Config) + Sync,
    ) -> TestCluster {
        let folders: Vec<TempDir> = (0..nodes)
            .map(|_| tempfile::tempdir().expect("a folder"))
            .collect();
        let config_of = |at: usize, join: &[&TestNode]| {
            let mut config = config(Some(&folders[at]), join);
            change(at, &mut config);
            config
        };
        let founder = TestNode::start_hosting(config_of(0, &[]), services);
        let joined: Vec<TestNode> = std::thread::scope(|scope| {
            let starts = (1..nodes).map(|at| {
                let config = config_of(at, &[&founder]);
                scope.spawn(move || TestNode::start_hosting(config, services))
            });
            let starts: Vec<_> = starts.collect();
            starts
                .into_iter()
                .map(|s| s.join().expect("it starts"))
                .collect()
        });
        let mut nodes = vec![founder];
        nodes.extend(joined);
        let cluster = TestCluster { nodes, folders };
        cluster.settle();
        cluster
    }

    /// Waits until every node reports the cluster healthy and all have buckets.
    pub fn settle(&self) -> Duration {
        wait_until("the cluster is healthy", || {
            let running: Vec<_> = self.nodes.iter().filter(|c| !c.is_dead()).collect();
            running.iter().all(|c| {
                let status = c.status();
                let up = status.nodes.iter().filter(|n| n.up).count();
                status.state == State::Healthy
                    && up == running.len()
                    && (c.data_buckets() > 0 || self.is_draining(c.id))
            })
        })
    }

    fn is_draining(&self, id: NodeId) -> bool {
        let living = self.nodes.iter().find(|c| !c.is_dead());
        living.is_some_and(|c| c.map().nodes.get(&id).is_some_and(|n| n.draining))
    }

    /// Waits until the buckets of a dead node have all their copies on others. The node stays listed for a while.
    pub fn settle_again(&self) {
        wait_until("all buckets have their copies again", || {
            let living = self.nodes.iter().find(|c| !c.is_dead());
            let map = living.expect("a node lives").map();
            let whole = |g: &staves_model::Group| {
                let up = |x: &staves_model::Member| x.complete && map.runs(x.id);
                g.open && g.members.iter().flatten().filter(|x| up(x)).count() == 3
            };
            map.groups.values().all(whole)
        });
    }

    /// The node that leads the directory.
    pub fn leader(&self) -> usize {
        let mut leader = None;
        wait_until("the directory has a leader", || {
            let living = self.nodes.iter().filter(|c| !c.is_dead());
            leader = living.filter_map(|c| c.status().directory.leader).next();
            let at = leader.and_then(|l| self.nodes.iter().position(|c| c.id.0 == l));
            at.is_some_and(|at| !self.nodes[at].is_dead())
        });
        self.position(NodeId(leader.expect("just seen")))
    }

    /// A native client with the addresses of all nodes, on the runtime of the first.
    pub fn native_client(&self) -> staves_client::Client {
        let addresses = self.nodes.iter().map(|c| c.addresses.native.to_string());
        let addresses: Vec<String> = addresses.collect();
        let options = ClientOptions {
            deadline: Duration::from_secs(20),
            ..ClientOptions::default()
        };
        let connecting = staves_client::Client::connect(&addresses, options);
        let runtime = self.nodes[0].runtime();
        runtime.block_on(connecting).expect("a client")
    }

    /// The RESP addresses of the living nodes.
    pub fn doors(&self) -> Vec<std::net::SocketAddr> {
        let living = self.nodes.iter().filter(|c| !c.is_dead());
        living.map(|c| c.addresses.resp).collect()
    }

    /// The index of a node.
    pub fn position(&self, id: NodeId) -> usize {
        let at = self.nodes.iter().position(|c| c.id == id);
        at.expect("a node of the cluster")
    }
}
