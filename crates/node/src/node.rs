//! A node: started, running, stopped.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use staves_directory::{Directory, Life};
use staves_model::{ClusterMap, NodeId};
use staves_net::{Identity, InFlight, PeerOptions, Peers, Server, Who};
use staves_store::Arena;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::accepting::accept;
use crate::client_sockets::ClientSockets;
use crate::clock::Clock;
use crate::config::Config;
use crate::disk::{NodeDisk, NodeDiskError};
use crate::disks::{Disks, StartedDisks};
use crate::door::{Door, Phase};
use crate::entry::{Entry, enter};
use crate::forward::{NodeRouter, NodeTransport};
use crate::gate::Gates;
use crate::host::services::{HostedService, SERVICES};
use crate::host::{self, Host};
use crate::links::{DirectoryLinks, DirectoryWay};
use crate::liveness::{self, Liveness};
use crate::native::NativeDoor;
use crate::native::maps::MapAnswers;
use crate::running::{OpenDoors, Running};
use crate::start::{self, Addresses, Listeners, StartError};
use crate::status::{DownNodes, StatusReport};
use crate::volumes::ServedVolumes;
use crate::volumes::images::watch_over_images;
use crate::witness::{self, Witness};
use crate::{admin, leave};
use staves_files_server::Files;

/// The time that requests under way may take when the doors close.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

/// A node that runs. Dropped, it ends as if its process were killed; [`Node::leave`] ends it in order.
pub struct Node {
    running: Arc<Running>,
    addresses: Addresses,
    server: Option<Server>,
    phase: watch::Sender<Phase>,
    doors: Vec<JoinHandle<()>>,
    tasks: Vec<JoinHandle<()>>,
    liveness: Arc<Liveness>,
    stopped: bool,
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
        let memory = crate::config::Size(config.memory.0.saturating_add(config.memory_of_disk()));
        start::fits(memory, crate::resident::total_bytes())?;
        start::tell_differences(&config);
        let secrets = start::secrets(&config)?;
        let certificate = start::certificate(&config)?;
        let listeners = Listeners::open(&config).await?;
        let told = config.advertised(&listeners.bound)?;
        let arena = Arena::new(config.memory.0).map_err(|error| StartError::Memory {
            reason: error.to_string(),
        })?;
        let sockets = ClientSockets::bind(&config, certificate).await?;
        let mut disks = start::open_disks(&config)?;
        let addresses = listeners.addresses(sockets.addresses());

        // The cluster talks to a node while it joins: its native door is open before it has an id.
        let identity = Identity::node(Who::default()).with_secrets(secrets.clone());
        let liveness = Arc::new(Liveness::start()?);
        let links = DirectoryLinks::new(identity.clone(), liveness.handle());
        let options = start::directory_options(&config, &told, Some(&disks));
        let directory = liveness.open(options, DirectoryWay(links.clone())).await;
        let directory = directory?.map_err(|error| start::start_error(&config, error))?;
        let entry = Entry::new(&config, directory.cluster_of_folder().is_some());
        let handler = NativeDoor {
            directory: directory.clone(),
            running: entry.clone(),
            ordinary: Handle::current(),
        };
        staves_group::bound_request_tables(config.request_table_bytes());
        let in_flight = InFlight::bounded(config.in_flight_bytes(), config.in_flight_requests());
        let net = staves_net::Options {
            in_flight: in_flight.clone(),
            ..staves_net::Options::default()
        };
        let server = liveness.serve(listeners.native, |door| {
            Server::on(door, identity.clone(), net, handler)
        })?;
        let names = admin::HostNames::new(&config, &told);
        let mut tasks = vec![admin::serve(listeners.admin, names.clone(), entry.clone())];
        let door = Door::new(&config, entry.clone());
        let (phase, at) = watch::channel(Phase::Joining);
        let accepting = tokio::spawn(accept(listeners.resp, door.clone(), at.clone()));
        let of_node = (&entry, names, &told.native);
        let (clients, mut accepts, beside) = sockets.serve(&config, of_node, secrets, &at);
        tasks.push(tokio::spawn(watch_over_images(entry.clone())));
        tasks.extend(beside);
        accepts.push(accepting);
        let life = match enter(&config, &links, &directory, &liveness.handle()).await {
            Ok(life) => life,
            Err(error) => {
                directory.stop().await;
                return Err(error);
            }
        };
        if let Err(error) = disks.own(life.cluster, life.node) {
            directory.stop().await;
            return Err(error.into());
        }
        directory.works();
        identity.set(Who {
            cluster: life.cluster,
            node: life.node,
            incarnation: life.incarnation,
        });
        let (witness, said) = Witness::new(directory.map());
        let doors = OpenDoors {
            resp: door.state.clone(),
            clients,
            refused: server.refused(),
            in_flight,
            resp_port: addresses.resp.port(),
        };
        let now = Running::new(
            &config,
            (life, &identity),
            arena,
            witness,
            &directory,
            (doors, services),
            disks.disks.clone(),
        );
        let open = drive(disks, &now)?;
        now.begin(&config.pool, &entry);
        for disk in open {
            host::saver::start(&disk, &now.host).map_err(NodeDiskError::Thread)?;
        }
        tasks.extend(now.drivers());
        let gets_on = liveness::gets_on(directory.clone(), now.host.clone());
        tasks.push(liveness.handle().spawn(gets_on));
        tasks.push(tokio::spawn(witness::run(directory, said)));
        phase.send_replace(Phase::Open);
        tracing::info!(
            node = %life.node, native = %told.native, resp = %told.resp, admin = %told.admin,
            nbd = now.clients.addresses.nbd.as_deref(), grpc = now.clients.addresses.grpc.as_deref(),
            http = now.clients.addresses.http.as_deref(), "serving"
        );
        let votes = now.directory.status().voters.contains(&life.node);
        let trusts = start::trusts(&config, addresses.native);
        let warnings = [start::forgets(&config, votes), trusts];
        for text in warnings.into_iter().flatten() {
            tracing::warn!("{text}");
        }
        Ok(Node {
            running: now,
            addresses,
            server: Some(server),
            phase,
            doors: accepts,
            tasks,
            liveness,
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

    /// The runtime of its directory, whose threads are its own (for tests).
    pub fn liveness(&self) -> Handle {
        self.liveness.handle()
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
        let disk_fails = self.running.host.disks().over();
        tokio::select! {
            why = over.wait_for(Option::is_some) => match why.ok().and_then(|why| why.clone()) {
                Some(why) => StartError::Over(why),
                // The sender lives as long as the node.
                None => std::future::pending().await,
            },
            why = disk_fails => StartError::DiskFailed(why),
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
        for door in self.doors.drain(..) {
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
        self.tasks.iter().chain(&self.doors).for_each(|t| t.abort());
        // Without a runtime the directory ends with its threads.
        if !self.stopped
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (directory, liveness) = (self.running.directory.clone(), self.liveness.clone());
            runtime.spawn(async move {
                directory.stop().await;
                drop(liveness);
            });
        }
    }
}

/// Starts the threads of the journals.
fn drive(disks: StartedDisks, running: &Running) -> Result<Vec<Arc<NodeDisk>>, NodeDiskError> {
    let driven = disks.journals.into_iter().map(|(disk, journal)| {
        host::saver::drive(&disk, journal, &running.host).map_err(NodeDiskError::Thread)?;
        Ok(disk)
    });
    driven.collect()
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

impl Running {
    /// A node that has its life, and serves nobody yet.
    fn new(
        config: &Config,
        (life, identity): (Life, &Identity),
        arena: Arc<Arena>,
        witness: Witness,
        directory: &Directory,
        (doors, services): (OpenDoors, &[HostedService]),
        disks: Arc<Disks>,
    ) -> Arc<Running> {
        let saw = witness.clone();
        let evidence = Arc::new(move |node, sign| saw.saw(node, sign));
        let peers = Peers::new(identity.clone(), PeerOptions::default(), evidence);
        let mut files = Files::new(life, peers.clone(), arena.clone(), config.memory.0);
        files.spreads = config.files_copies;
        let files = Arc::new(files);
        let host = Arc::new(Host::new(
            life,
            Clock::start(),
            arena,
            peers,
            start::host_options(config, doors.in_flight.clone()),
            services.to_vec(),
            disks,
        ));
        let transport = NodeTransport::new(&host, directory.clone(), witness.clone());
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
            late: DownNodes::beside_unopened(config.unflushed_wait_ms.0),
            door: doors.resp,
            clients: doors.clients,
            volumes: ServedVolumes::default(),
            refused: doors.refused,
            in_flight: doors.in_flight,
            gates: Gates::default(),
            maps: MapAnswers::default(),
            clients_max: config.clients_max,
            value_bytes_max: config.value_bytes(),
            redirect: config.resp_redirect,
            stop_ms: config.stop_ms.duration(),
            data: config.data.clone(),
            resp_port: doors.resp_port,
            memory_bytes: config.memory.0,
            first_pool: start::asked_first_pool(config),
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
        self.follow(&first);
        entry.set(self.clone());
    }
}
