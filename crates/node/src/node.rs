//! A node: started, running, stopped.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use staves_directory::{Directory, DirectoryError, Life};
use staves_model::{ClusterId, ClusterMap, NodeId, NodeState, PoolId};
use staves_net::{Identity, NetError, PeerOptions, Peers, Server, Who};
use staves_resp::{Brief, ClientFacts, Facts, Redirect, ServerInfo};
use staves_store::Arena;
use staves_wire::cache::CacheStats;
use staves_wire::service::{Answer, PoolRef};
use staves_wire::{ErrorCode, Message};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::clock::Clock;
use crate::config::{Config, Endpoint};
use crate::cpu::CpuTime;
use crate::door::{self, Door, DoorState, Phase};
use crate::entry::Entry;
use crate::files::Files;
use crate::forward::{NodeRouter, NodeTransport};
use crate::host::services::{HostedService, SERVICES};
use crate::host::{self, Host};
use crate::links::{DirectoryLinks, DirectoryWay};
use crate::native::NativeDoor;
use crate::start::{self, Listeners, StartError};
use crate::status::{DirectoryFacts, NodeFacts, PoolFacts, SilentNode, StatusReport};
use crate::witness::{self, Witness};
use crate::{admin, leave};

/// After this without a word from a directory leader that a majority confirmed, none is reported.
const LEADER_SILENT_MAX: Duration = Duration::from_secs(2);

/// The time that the other nodes have to count their keys.
const COUNT: Duration = Duration::from_secs(3);
/// The rest before they are asked again.
const COUNT_AGAIN: Duration = Duration::from_millis(100);
/// The time that requests under way may take when the doors close.
const GRACE: Duration = Duration::from_millis(500);

/// The state that all parts of a running node share.
pub(crate) struct Running {
    pub(crate) host: Arc<Host>,
    pub(crate) files: Arc<Files>,
    pub(crate) directory: Directory,
    pub(crate) witness: Witness,
    pub(crate) door: Arc<DoorState>,
    pub(crate) clients_max: u32,
    pub(crate) value_bytes_max: usize,
    pub(crate) redirect: Redirect,
    pub(crate) stop_ms: Duration,
    /// The data folder.
    pub(crate) data: Option<PathBuf>,
    resp_port: u16,
    memory_bytes: u64,
    /// Somebody asked the node to stop.
    stop_asked: watch::Sender<bool>,
    stopping: AtomicBool,
}

/// A node that runs. Dropped, it ends as if its process were killed; [`Node::leave`] ends it in order.
pub struct Node {
    running: Arc<Running>,
    addresses: Addresses,
    server: Option<Server>,
    phase: watch::Sender<Phase>,
    door: Option<JoinHandle<()>>,
    tasks: Vec<JoinHandle<()>>,
    stopped: bool,
}

/// The addresses of a node's doors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// The native protocol.
    pub native: SocketAddr,
    /// Redis's protocol.
    pub resp: SocketAddr,
    /// HTTP.
    pub admin: SocketAddr,
}

impl Node {
    /// Opens the doors, makes, joins or comes back to the cluster, and serves. Must be called on a
    /// runtime of tokio, which everything of the node runs on.
    pub async fn start(config: Config) -> Result<Node, StartError> {
        Node::start_hosting(config, SERVICES).await
    }

    /// The same with another table of services.
    pub async fn start_hosting(
        config: Config,
        services: &[HostedService],
    ) -> Result<Node, StartError> {
        config.check()?;
        start::fits(config.memory, crate::resident::total_bytes())?;
        start::tell_differences(&config);
        let listeners = Listeners::open(&config).await?;
        let told = config.advertised(&listeners.bound)?;
        let arena = Arena::new(config.memory.0).map_err(|error| StartError::Memory {
            reason: error.to_string(),
        })?;
        let addresses = Addresses {
            native: start::address(&listeners.native),
            resp: start::address(&listeners.resp),
            admin: start::address(&listeners.admin),
        };

        // The cluster talks to a node while it joins: its native door is open before it has an id.
        let identity = Identity::node(Who::default());
        let links = DirectoryLinks::new(identity.clone());
        let options = start::directory_options(&config, &told);
        let directory = Directory::open(options, Arc::new(DirectoryWay(links.clone())))
            .map_err(|error| start::start_error(&config, error))?;
        let entry = Entry::new(&config, directory.cluster_of_folder().is_some());
        let handler = NativeDoor {
            directory: directory.clone(),
            running: entry.clone(),
        };
        let net = staves_net::Options::default();
        let server = Server::on(listeners.native, identity.clone(), net, handler)
            .map_err(StartError::Runtime)?;
        let mut tasks = vec![admin::serve(listeners.admin, entry.clone())];
        let door = Door::new(&config, entry.clone());
        let (phase, at) = watch::channel(Phase::Joining);
        let accepting = tokio::spawn(door::accept(listeners.resp, door.clone(), at));
        let life = match enter(&config, &links, &directory).await {
            Ok(life) => life,
            Err(error) => {
                directory.stop().await;
                return Err(error);
            }
        };
        identity.set(Who {
            cluster: life.cluster,
            node: life.node,
            incarnation: life.incarnation,
        });

        let (witness, said) = Witness::new(directory.map());
        let doors = (door.state.clone(), addresses.resp.port());
        let now = Running::new(
            &config,
            (life, &identity),
            arena,
            witness,
            &directory,
            (doors, services),
        );
        now.begin(&config.pool, &entry);
        tasks.extend(now.drivers());
        tasks.push(tokio::spawn(witness::run(directory, said)));
        phase.send_replace(Phase::Open);
        tracing::info!(
            node = %life.node, native = %told.native, resp = %told.resp, admin = %told.admin,
            "serving"
        );
        let votes = now.directory.status().voters.contains(&life.node);
        if let Some(text) = start::forgets(&config, votes) {
            tracing::warn!("{text}");
        }
        Ok(Node {
            running: now,
            addresses,
            server: Some(server),
            phase,
            door: Some(accepting),
            tasks,
            stopped: false,
        })
    }

    /// Its id in the cluster.
    pub fn id(&self) -> NodeId {
        self.running.host.life.node
    }

    /// The addresses of its doors.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// The cluster as it sees it.
    pub fn status(&self) -> StatusReport {
        self.running.status()
    }

    /// Its map, and each newer one.
    pub fn map(&self) -> watch::Receiver<Arc<ClusterMap>> {
        self.running.directory.map()
    }

    /// Data buckets that it answers for at present.
    pub fn data_buckets(&self) -> usize {
        self.running.host.data_buckets()
    }

    /// Waits until somebody asks it to stop (`staves node stop`).
    pub async fn stop_asked(&self) {
        let mut asked = self.running.stop_asked.subscribe();
        // The sender lives as long as the node.
        let _ = asked.wait_for(|asked| *asked).await;
    }

    /// Waits until this life is over, which nothing ends well: the node was started again elsewhere, or
    /// removed. Says why.
    pub async fn over(&self) -> StartError {
        let mut over = self.running.directory.over();
        let why = over.wait_for(Option::is_some).await;
        match why.ok().and_then(|why| why.clone()) {
            Some(why) => StartError::Over(why),
            // The sender lives as long as the node.
            None => std::future::pending().await,
        }
    }

    /// Closes without a word to the cluster: what it could say would be said in another's name.
    pub async fn abandon(mut self) {
        self.running.stopping.store(true, Ordering::Release);
        self.close().await;
    }

    /// Leaves the cluster in good order: hands over what it serves, gives up its vote, says goodbye,
    /// closes its doors. Takes no longer than `stop_ms`, and a little more to close.
    pub async fn leave(mut self) {
        self.running.stopping.store(true, Ordering::Release);
        self.phase.send_replace(Phase::Leaving);
        leave::leave(&self.running).await;
        self.close().await;
    }

    async fn close(&mut self) {
        self.phase.send_replace(Phase::Closing);
        if let Some(door) = self.door.take() {
            let _ = tokio::time::timeout(GRACE, door).await;
        }
        if let Some(server) = self.server.take() {
            server.stop(GRACE).await;
        }
        self.running.directory.stop().await;
        self.stopped = true;
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.phase.send_replace(Phase::Closing);
        self.tasks.iter().chain(&self.door).for_each(|t| t.abort());
        // Its tasks are the directory's own. Without a runtime they have ended already.
        if !self.stopped
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let directory = self.running.directory.clone();
            runtime.spawn(async move { directory.stop().await });
        }
    }
}

/// Runs a node until `shutdown` ends or somebody asks the node to stop; then leaves in good order.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), StartError> {
    tokio::pin!(shutdown);
    let node = tokio::select! {
        node = Node::start(config) => node?,
        () = &mut shutdown => return Ok(()),
    };
    let over = tokio::select! {
        () = &mut shutdown => {
            tracing::info!("stopping: a signal came");
            None
        }
        () = node.stop_asked() => {
            tracing::info!("stopping: somebody asked for it");
            None
        }
        why = node.over() => Some(why),
    };
    match over {
        None => node.leave().await,
        Some(why) => {
            node.abandon().await;
            return Err(why);
        }
    }
    Ok(())
}

/// Most tasks that a busy thread polls before it looks what has come on its sockets and which times have
/// passed. Each of them may have a megabyte to copy ([`staves_net`] gives others their turn after that),
/// and a heartbeat must not wait for very many.
const POLLS_MAX: u32 = 16;

/// Runs a node on threads of its own until SIGTERM or SIGINT, and then leaves in good order; at a second
/// signal the process exits at once, with 130.
pub fn serve(config: Config) -> Result<(), StartError> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = match config.threads {
        0 => processors,
        some => some as usize,
    };
    staves_store::share_heaps(workers);
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    threads.worker_threads(workers);
    threads.event_interval(POLLS_MAX);
    let runtime = threads.enable_all().build().map_err(StartError::Runtime)?;
    let served = runtime.block_on(async {
        use tokio::signal::unix::{SignalKind, signal};
        let mut interrupt = signal(SignalKind::interrupt()).map_err(StartError::Runtime)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(StartError::Runtime)?;
        let shutdown = async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            tokio::spawn(async move {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                tracing::warn!("a second signal came: exiting at once");
                std::process::exit(130);
            });
        };
        run(config, shutdown).await
    });
    runtime.shutdown_timeout(GRACE);
    served
}

/// Makes, joins or comes back to the cluster. A data folder takes its node back to its own cluster,
/// whatever it was told to join, and a new node joins the first that answers: so all are compared before
/// anything is done.
async fn enter(
    config: &Config,
    links: &Arc<DirectoryLinks>,
    directory: &Directory,
) -> Result<Life, StartError> {
    same_cluster(config, links, directory.cluster_of_folder()).await?;
    let life = directory.start().await;
    life.map_err(|error| start::start_error(config, error))
}

/// If the nodes that are to be joined, or the data folder, are of two clusters, somebody has mixed up folders
/// or addresses. Who does not answer now is not compared.
async fn same_cluster(
    config: &Config,
    links: &Arc<DirectoryLinks>,
    folder: Option<ClusterId>,
) -> Result<(), StartError> {
    let ask = |address: &Endpoint| {
        let (links, address) = (links.clone(), address.to_string());
        tokio::spawn(async move { links.cluster_at(&address).await })
    };
    let asked: Vec<_> = config.join.iter().map(ask).collect();
    let mut first: Option<(&Endpoint, ClusterId)> = None;
    for (address, answer) in config.join.iter().zip(asked) {
        let Ok(Some(theirs)) = answer.await else {
            continue;
        };
        let ours = folder.filter(|ours| *ours != theirs);
        if let Some(ours) = ours {
            return Err(StartError::Join {
                addresses: address.to_string(),
                reason: DirectoryError::OtherCluster { ours, theirs },
            });
        }
        let (other, other_cluster) = *first.get_or_insert((address, theirs));
        if other_cluster != theirs {
            return Err(StartError::TwoClusters {
                nodes: [other, address].map(Endpoint::to_string),
                clusters: [other_cluster, theirs],
            });
        }
    }
    Ok(())
}

async fn follow_map(host: Arc<Host>, files: Arc<Files>, mut map: watch::Receiver<Arc<ClusterMap>>) {
    while map.changed().await.is_ok() {
        let newest = map.borrow_and_update().clone();
        files.follow(&newest);
        host.follow(newest);
    }
}

impl Running {
    /// A node that has its life, and serves nobody yet. `door` is Redis's, with its port.
    fn new(
        config: &Config,
        (life, identity): (Life, &Identity),
        arena: Arc<Arena>,
        witness: Witness,
        directory: &Directory,
        ((door, resp_port), services): ((Arc<DoorState>, u16), &[HostedService]),
    ) -> Arc<Running> {
        let saw = witness.clone();
        let evidence = Arc::new(move |node, sign| saw.saw(node, sign));
        let peers = Peers::new(identity.clone(), PeerOptions::default(), evidence);
        let options = start::host_options(config);
        let memory = config.memory.0;
        let files = Arc::new(Files::new(life, peers.clone(), arena.clone(), memory));
        let host = Arc::new(Host::new(
            life,
            Clock::start(),
            arena,
            peers,
            options,
            services.to_vec(),
        ));
        let transport = NodeTransport::new(host.clone(), directory.map(), witness.clone());
        let router = NodeRouter::new(
            transport,
            staves_model::ClientId(rand::random::<u64>().max(1)),
            Arc::new(ClusterMap::default()),
            staves_client::RouterOptions::default(),
        );
        host.set_router(router);
        Arc::new(Running {
            host,
            files,
            directory: directory.clone(),
            witness,
            door,
            clients_max: config.clients_max,
            value_bytes_max: config.value_bytes_max.0 as usize,
            redirect: config.resp_redirect,
            stop_ms: config.stop_ms.duration(),
            data: config.data.clone(),
            resp_port,
            memory_bytes: config.memory.0,
            stop_asked: watch::Sender::new(false),
            stopping: AtomicBool::new(false),
        })
    }

    /// Takes over the map as it is, and lets the doors know of the node.
    fn begin(self: &Arc<Self>, pool: &str, entry: &Entry) {
        let first = self.directory.map().borrow().clone();
        if first.pool_named(pool).is_none() && !first.pools.is_empty() {
            tracing::warn!(%pool, "the cluster has no such pool: the RESP door answers for no key until there is one");
        }
        self.files.follow(&first);
        self.host.follow(first);
        entry.set(self.clone());
    }

    /// The tasks that keep it going, until they are aborted.
    fn drivers(self: &Arc<Self>) -> Vec<JoinHandle<()>> {
        let (host, files) = (self.host.clone(), self.files.clone());
        let directory = self.directory.clone();
        let map = directory.map();
        let mut tasks = vec![
            tokio::spawn(follow_map(host.clone(), files.clone(), map)),
            tokio::spawn(leave::came_back(self.clone())),
        ];
        tasks.extend(Files::drivers(files, directory.clone()));
        tasks.extend(host::drivers(host, directory));
        tasks
    }

    /// True if the node is on its way out.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) fn ask_to_stop(&self) {
        self.stop_asked.send_replace(true);
    }

    /// Checks that it is part of the cluster and means to stay, as far as it knows itself.
    pub(crate) fn is_ready(&self) -> Result<(), &'static str> {
        if self.is_stopping() {
            return Err("the node is stopping");
        }
        let routes = self.host.routes();
        let life = self.host.life;
        match routes.map.nodes.get(&life.node) {
            Some(node) if node.incarnation == life.incarnation => {}
            _ => return Err("the node's map does not have it yet"),
        }
        let pool = routes.door.and_then(|id| routes.map.pools.get(&id));
        let cut_off = self.host.silent_for() > staves_model::keeper::START_EMPTY_AFTER;
        if cut_off && pool.is_some_and(|pool| pool.may_start_empty) {
            return Err(
                "the directory's majority has not been heard for so long that this node answers for no key",
            );
        }
        Ok(())
    }

    /// True if no leader of the directory that a majority follows has answered recently.
    fn directory_is_silent(&self) -> bool {
        self.host.silent_for() > LEADER_SILENT_MAX
    }

    /// The cluster as this node sees it.
    pub(crate) fn status(&self) -> StatusReport {
        let map = self.directory.map().borrow().clone();
        StatusReport::new(
            &map,
            self.host.life.node,
            self.directory_facts(),
            [self.node_facts()],
        )
    }

    pub(crate) fn status_json(&self) -> Vec<u8> {
        // Plain data with string keys: it always encodes.
        serde_json::to_vec(&self.status()).unwrap_or_default()
    }

    pub(crate) fn directory_facts(&self) -> DirectoryFacts {
        let status = self.directory.status();
        // A leader that has not answered for so long is the leader of others, or of nobody.
        let silent = self.directory_is_silent();
        let silent_for = |(node, time): (NodeId, Duration)| SilentNode {
            node: node.0,
            ms: time.as_millis() as u64,
        };
        DirectoryFacts {
            leader: status.leader.map(|n| n.0).filter(|_| !silent),
            voters: status.voters.iter().map(|n| n.0).collect(),
            term: status.term,
            silent: self
                .directory
                .silent()
                .into_iter()
                .map(silent_for)
                .collect(),
        }
    }

    /// The memory of this node that each pool takes, and may take.
    pub(crate) fn pool_facts(&self) -> Vec<PoolFacts> {
        let host = &self.host;
        let routes = host.routes();
        let pools = routes.map.pools.values().map(|pool| {
            // Files are evicted where room is needed: their pool is never full.
            let files = self
                .files
                .pool(pool.id)
                .map(|files| (files.used_bytes(), 0));
            let (used_bytes, budget_bytes) = files.unwrap_or_else(|_| host.memory(Some(pool.id)));
            PoolFacts {
                pool: pool.name.clone(),
                used_bytes,
                budget_bytes,
            }
        });
        pools.collect()
    }

    fn node_facts(&self) -> NodeFacts {
        let host = &self.host;
        let figures = host.figures();
        let (used_bytes, _) = host.memory(None);
        NodeFacts {
            node: host.life.node.0,
            incarnation: host.life.incarnation.0,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms: host.clock.uptime().as_millis() as u64,
            resident_bytes: crate::resident::resident_bytes(None).unwrap_or(0),
            sent_bytes: staves_net::sent_bytes(),
            keys: figures.counter("cache_keys"),
            live_bytes: figures.counter("cache_live_bytes"),
            used_bytes,
            files_bytes: self.files.used_bytes(),
            uses: self.files.uses.list(),
            fetching_again: self.files.fetching_again(),
            lacking: self.files.lacking(),
            budget_bytes: self.memory_bytes,
            reads: figures.counter("cache_reads"),
            hits: figures.counter("cache_hits"),
            writes: figures.counter("cache_writes"),
            filling_pages: figures.filling_pages,
            missing_pages: figures.missing_pages,
            pages_per_second: host.fill_rate(),
            stopping: self.is_stopping(),
            pools: self.pool_facts(),
        }
    }

    /// The keys of the RESP door's pool on all nodes that are up. Asked again while a
    /// node does not answer that the map takes to be up, or a bucket is on its way between two.
    pub(crate) async fn key_count(&self) -> Answer {
        let deadline = Instant::now() + COUNT;
        loop {
            let routes = self.host.routes();
            let Some(pool) = routes.door else {
                return Answer::Int(0);
            };
            let counted = self.count_keys(&routes.map, pool, deadline).await;
            if let Ok((keys, missing)) = counted
                && missing == 0
            {
                return Answer::Int(keys as i64);
            }
            if Instant::now() + COUNT_AGAIN >= deadline {
                let (code, reason) = match counted {
                    Ok((_, missing)) => (
                        ErrorCode::NotServing,
                        format!("{missing} buckets are not answered for at present"),
                    ),
                    Err(error) => (error.code(), error.to_string()),
                };
                return Answer::error(code, format!("the keys cannot be counted: {reason}"));
            }
            tokio::time::sleep(COUNT_AGAIN).await;
        }
    }

    /// The keys in buckets that are answered for, and how many buckets are not.
    async fn count_keys(
        &self,
        map: &ClusterMap,
        pool: PoolId,
        deadline: Instant,
    ) -> Result<(u64, u64), NetError> {
        let me = self.host.life.node;
        let mut others = JoinSet::new();
        let up = |n: &&staves_model::Node| n.state == NodeState::Up && n.id != me;
        for node in map.nodes.values().filter(up) {
            let (peers, node) = (self.host.peers.clone(), node.id);
            let request = Message::CacheStats(CacheStats {
                pool: PoolRef::Id(pool),
            });
            others.spawn(async move { peers.call(node, &request, deadline).await });
        }
        let mine = self.host.cache_stats(pool);
        let (mut keys, mut buckets) = (mine.keys, u64::from(mine.buckets));
        while let Some(answer) = others.join_next().await {
            match answer {
                Ok(Ok(Message::CacheStatsAnswer(stats))) => {
                    keys += stats.keys;
                    buckets += u64::from(stats.buckets);
                }
                Ok(Err(error)) => return Err(error),
                _ => {}
            }
        }
        // What is lost has no keys any more.
        let wanted = map.groups.values().filter(|g| g.pool == pool && !g.lost);
        Ok((keys, (wanted.count() as u64).saturating_sub(buckets)))
    }
}

/// The facts that the RESP door reports.
impl ServerInfo for Running {
    fn brief(&self) -> Brief {
        let unix_time = SystemTime::now().duration_since(UNIX_EPOCH);
        Brief {
            redirect: self.redirect,
            version: env!("CARGO_PKG_VERSION"),
            uptime: self.host.clock.uptime(),
            unix_time: unix_time.unwrap_or_default(),
        }
    }

    fn facts(&self) -> Facts {
        let host = &self.host;
        let routes = host.routes();
        let figures = host.figures_of(routes.door);
        let (used_bytes, budget_bytes) = host.memory(routes.door);
        let status = self.directory.status();
        let cpu = CpuTime::of_this_process();
        Facts {
            map: routes.map.clone(),
            node: host.life.node,
            pool: host.options().pool.clone(),
            brief: self.brief(),
            port: self.resp_port,
            value_bytes_max: self.value_bytes_max,
            clients_max: self.clients_max,
            connected: self.door.clients.lock().len(),
            connections_total: self.door.connections_total.load(Ordering::Relaxed),
            commands_total: self.door.commands_total.load(Ordering::Relaxed),
            hits_total: figures.counter("cache_hits"),
            misses_total: figures.counter("cache_reads") - figures.counter("cache_hits"),
            keys: figures.counter("cache_keys"),
            used_bytes,
            budget_bytes,
            cpu_user: cpu.user,
            cpu_system: cpu.system,
            leads_directory: status.leader == Some(host.life.node) && !self.directory_is_silent(),
            directory_silent: self.directory_is_silent(),
            config_file: String::new(),
        }
    }

    fn clients(&self) -> Vec<ClientFacts> {
        self.door.clients.lock().values().cloned().collect()
    }
}
