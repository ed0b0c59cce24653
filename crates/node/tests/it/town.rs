//! Nodes in one process, each on a runtime of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use staves_client::ClientOptions;
use staves_model::{Change, ClusterMap, MemberSlot, NodeId};
use staves_net::{Connection, Identity, NetError};
use staves_node::config::{Config, Endpoint};
use staves_node::status::{State, StatusReport};
use staves_node::{Addresses, Node, StartError};
use staves_wire::Message;
use staves_wire::directory::{Propose, Proposed};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::client::Client;

/// Worker threads of each node.
const THREADS: usize = 2;
/// What has not come true by then does not.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for something to come true.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    begun.elapsed()
}

/// A configuration with free ports and a little memory.
pub fn config(data: Option<&TempDir>, join: &[&Citizen]) -> Config {
    let free: Endpoint = "127.0.0.1:0".parse().expect("an address");
    let at = |c: &&Citizen| c.addresses.native.to_string().parse().expect("an address");
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

/// Text to the configuration's own types.
pub trait Parse {
    fn parse_size(&self) -> staves_node::config::Size;
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
pub struct Citizen {
    pub addresses: Addresses,
    pub id: NodeId,
    runtime: Option<Runtime>,
    node: Option<Node>,
}

impl Citizen {
    pub fn try_start(config: Config) -> Result<Citizen, StartError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .enable_all()
            .build()
            .expect("threads");
        match runtime.block_on(Node::start(config)) {
            Ok(node) => Ok(Citizen {
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

    pub fn start(config: Config) -> Citizen {
        let mut started = Citizen::try_start(config.clone());
        let begun = Instant::now();
        // Threads of a node that was killed here may hold its folder a little longer.
        while let Err(error) = &started
            && format!("{error:?}").contains("Locked")
            && begun.elapsed() < PATIENCE
        {
            std::thread::sleep(Duration::from_millis(50));
            started = Citizen::try_start(config.clone());
        }
        started.expect("the node starts")
    }

    pub fn is_dead(&self) -> bool {
        self.node.is_none()
    }

    fn node(&self) -> &Node {
        self.node.as_ref().expect("the node runs")
    }

    pub fn client(&self) -> Client {
        Client::connect(self.addresses.resp)
    }

    pub fn map(&self) -> Arc<ClusterMap> {
        self.node().map().borrow().clone()
    }

    pub fn status(&self) -> StatusReport {
        self.node().status()
    }

    /// A number of its metrics' page.
    pub fn metric(&self, name: &str) -> u64 {
        use std::io::{Read, Write};
        let mut door = std::net::TcpStream::connect(self.addresses.admin).expect("it opens");
        let ask = b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        door.write_all(ask).expect("it listens");
        let mut page = String::new();
        door.read_to_string(&mut page).expect("it answers");
        let value = page.lines().find_map(|line| line.strip_prefix(name));
        let value = value.and_then(|value| value.trim().parse().ok());
        value.unwrap_or_else(|| panic!("there is no {name}"))
    }

    pub fn data_buckets(&self) -> usize {
        self.node().data_buckets()
    }

    /// The node of the data bucket of a key of the pool `cache`, once there is one.
    pub fn owner(&self, key: &str) -> NodeId {
        let mut owner = None;
        eventually("the key's bucket is open", || {
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

    /// Ends it as SIGKILL would: no goodbye, sockets closed.
    pub fn kill(&mut self) {
        self.node = None;
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_millis(500));
        }
    }

    /// Lets it stand still, as SIGSTOP would: no thread of it does anything for so long.
    pub fn pause(&self, time: Duration) {
        for _ in 0..THREADS {
            self.runtime()
                .spawn(async move { std::thread::sleep(time) });
        }
    }

    /// Why its life is over, if it is within so long.
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

    /// One request of a person's tool.
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

    /// A change as a person's tool makes it; the refusal if it is refused.
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

    pub fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("the node runs")
    }
}

impl Drop for Citizen {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A cluster whose nodes have folders.
pub struct Town {
    pub citizens: Vec<Citizen>,
    pub folders: Vec<TempDir>,
}

impl Town {
    /// The first founds, all others join it at once (row D6).
    pub fn found(nodes: usize) -> Town {
        Town::found_as(nodes, |_, _| {})
    }

    /// The same, with configurations of their own.
    pub fn found_as(nodes: usize, change: impl Fn(usize, &mut Config) + Sync) -> Town {
        let folders: Vec<TempDir> = (0..nodes)
            .map(|_| tempfile::tempdir().expect("a folder"))
            .collect();
        let config_of = |at: usize, join: &[&Citizen]| {
            let mut config = config(Some(&folders[at]), join);
            change(at, &mut config);
            config
        };
        let founder = Citizen::start(config_of(0, &[]));
        let joined: Vec<Citizen> = std::thread::scope(|scope| {
            let starts = (1..nodes).map(|at| {
                let config = config_of(at, &[&founder]);
                scope.spawn(move || Citizen::start(config))
            });
            let starts: Vec<_> = starts.collect();
            starts
                .into_iter()
                .map(|s| s.join().expect("it starts"))
                .collect()
        });
        let mut citizens = vec![founder];
        citizens.extend(joined);
        let town = Town { citizens, folders };
        town.settle();
        town
    }

    /// Until everything is as it was asked to be, in everybody's eyes, and all have buckets.
    pub fn settle(&self) -> Duration {
        eventually("the cluster is healthy", || {
            let running: Vec<_> = self.citizens.iter().filter(|c| !c.is_dead()).collect();
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
        let living = self.citizens.iter().find(|c| !c.is_dead());
        living.is_some_and(|c| c.map().nodes.get(&id).is_some_and(|n| n.draining))
    }

    /// Until what a dead node held is held by others. The dead node itself stays missed for a while.
    pub fn settle_again(&self) {
        eventually("all buckets have their copies again", || {
            let living = self.citizens.iter().find(|c| !c.is_dead());
            let map = living.expect("somebody lives").map();
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
        eventually("somebody leads the directory", || {
            let living = self.citizens.iter().filter(|c| !c.is_dead());
            leader = living.filter_map(|c| c.status().directory.leader).next();
            let at = leader.and_then(|l| self.citizens.iter().position(|c| c.id.0 == l));
            at.is_some_and(|at| !self.citizens[at].is_dead())
        });
        self.position(NodeId(leader.expect("just seen")))
    }

    /// A client of the native protocol that knows all nodes, and runs with the first.
    pub fn native_client(&self) -> staves_client::Client {
        let addresses = self.citizens.iter().map(|c| c.addresses.native.to_string());
        let addresses: Vec<String> = addresses.collect();
        let options = ClientOptions {
            deadline: Duration::from_secs(20),
            ..ClientOptions::default()
        };
        let connecting = staves_client::Client::connect(&addresses, options);
        let runtime = self.citizens[0].runtime();
        runtime.block_on(connecting).expect("a client")
    }

    /// The RESP doors of those that live.
    pub fn doors(&self) -> Vec<std::net::SocketAddr> {
        let living = self.citizens.iter().filter(|c| !c.is_dead());
        living.map(|c| c.addresses.resp).collect()
    }

    pub fn position(&self, id: NodeId) -> usize {
        let at = self.citizens.iter().position(|c| c.id == id);
        at.expect("a node of the town")
    }
}
