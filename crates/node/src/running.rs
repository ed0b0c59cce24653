//! A running node, as its doors see it: what they share, and what it reports of itself.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use staves_directory::Directory;
use staves_model::{ClusterMap, NodeId, NodeState, PoolId};
use staves_net::{InFlight, NetError, RefusedConnections};
use staves_resp::{Brief, ClientFacts, Facts, Redirect, ServerInfo};
use staves_store::EXTENT_BYTES;
use staves_wire::cache::CacheStats;
use staves_wire::service::{Answer, PoolRef};
use staves_wire::{ErrorCode, Message};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::client_doors::ClientDoors;
use crate::cpu::CpuTime;
use crate::door::state::DoorState;
use crate::gate::Gates;
use crate::host::Host;
use crate::native::maps::MapAnswers;
use crate::status::{
    DirectoryFacts, DownNodes, FirstPool, NodeFacts, PoolFacts, SilentNode, StatusReport,
    UnopenedGroups,
};
use crate::volumes::ServedVolumes;
use crate::witness::Witness;
use staves_files_server::Files;

/// After this without a word from a directory leader that a majority confirmed, none is reported.
const LEADER_SILENT_MAX: Duration = Duration::from_secs(2);

/// The time that the other nodes have to count their keys.
const COUNT: Duration = Duration::from_secs(3);
/// The rest before they are asked again.
const COUNT_AGAIN: Duration = Duration::from_millis(100);

/// The doors' part of it.
pub(crate) struct OpenDoors {
    pub(crate) resp: Arc<DoorState>,
    pub(crate) clients: ClientDoors,
    pub(crate) refused: Arc<RefusedConnections>,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) resp_port: u16,
}

/// The state that all parts of a running node share.
pub(crate) struct Running {
    pub(crate) host: Arc<Host>,
    pub(crate) files: Arc<Files>,
    pub(crate) directory: Directory,
    pub(crate) witness: Witness,
    /// Groups that do not open and nodes that are down, each since when.
    pub(crate) late: Mutex<(UnopenedGroups, DownNodes)>,
    pub(crate) door: Arc<DoorState>,
    /// The doors of NBD, gRPC and HTTP.
    pub(crate) clients: ClientDoors,
    /// The volumes that were opened here, by NBD and gRPC.
    pub(crate) volumes: ServedVolumes,
    /// Connections that the native door refused.
    pub(crate) refused: Arc<RefusedConnections>,
    /// The memory for requests and answers of clients.
    pub(crate) in_flight: Arc<InFlight>,
    /// The way of requests that cost much, at all doors.
    pub(crate) gates: Gates,
    /// MapAnswers for those who ask for them.
    pub(crate) maps: MapAnswers,
    pub(crate) clients_max: u32,
    pub(crate) value_bytes_max: usize,
    pub(crate) redirect: Redirect,
    pub(crate) stop_ms: Duration,
    /// The data folder.
    pub(crate) data: Option<PathBuf>,
    pub(crate) resp_port: u16,
    pub(crate) memory_bytes: u64,
    /// The pool that this node asked for when it began the cluster.
    pub(crate) first_pool: Option<FirstPool>,
    /// Somebody asked the node to stop.
    pub(crate) stop_asked: watch::Sender<bool>,
    pub(crate) stopping: AtomicBool,
}

impl Running {
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
        let cut_off = self.host.silent_for() > staves_model::planner::START_EMPTY_AFTER;
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

    /// Takes in each map that comes.
    pub(crate) async fn follow_all(self: Arc<Self>, mut map: watch::Receiver<Arc<ClusterMap>>) {
        while map.changed().await.is_ok() {
            let newest = map.borrow_and_update().clone();
            self.follow(&newest);
        }
    }

    /// Takes in a map. Called by one task only.
    pub(crate) fn follow(&self, map: &Arc<ClusterMap>) {
        let now = Instant::now();
        let term = self.directory.status().term;
        let (unopened, down) = &mut *self.late.lock();
        unopened.follow(map, now);
        down.follow(map, term, now);
        self.files.follow(map);
        self.host.follow(map.clone());
    }

    /// The cluster as this node sees it.
    pub(crate) fn status(&self) -> StatusReport {
        let map = self.directory.map().borrow().clone();
        let report = StatusReport::new(
            &map,
            self.host.life.node,
            self.directory_facts(),
            [self.node_facts()],
        );
        match self.first_pool.clone() {
            Some(pool) => report.with_first_pool(pool),
            None => report,
        }
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
        let (unopened, down) = &mut *self.late.lock();
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
            unopened: unopened.overdue(Instant::now()),
            down: down.all(status.term, Instant::now()),
            unflushed_wait_ms: down.wait_ms,
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
            let figures = host.figures_of(Some(pool.id));
            PoolFacts {
                pool: pool.name.clone(),
                used_bytes,
                budget_bytes,
                dense_buckets: figures.dense_buckets(),
                lacking_buckets: figures.lacking_buckets,
                lacking_bytes: u64::from(figures.lacked_extents) * EXTENT_BYTES as u64,
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
            away: self.files.away(),
            volumes: self.volumes.facts(),
            budget_bytes: self.memory_bytes,
            reads: figures.counter("cache_reads"),
            hits: figures.counter("cache_hits"),
            writes: figures.counter("cache_writes"),
            filling_pages: figures.filling_pages,
            missing_pages: figures.missing_pages,
            pages_per_second: host.fill_rate(),
            stopping: self.is_stopping(),
            clients_refused: self.door.rejected.recent() + self.refused.recent(),
            pools: self.pool_facts(),
            disks: host.disks().facts(),
            nbd: self.clients.addresses.nbd.clone(),
            grpc: self.clients.addresses.grpc.clone(),
            http: self.clients.addresses.http.clone(),
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
