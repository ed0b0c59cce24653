//! From a configuration to open doors, and what can be wrong on the way.

mod certificate;
mod first_pool;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use staves_directory::{DirectoryError, Options, StoreError, Times};
use staves_model::{Change, ClusterId, ElectionTimes, NodeFacts};
use staves_net::{InFlight, NetError, Secret, SecretError, Secrets};
use staves_store::Budget;
use tokio::net::TcpListener;

use crate::config::{Config, ConfigError, Doors, Endpoint, Size};
use crate::disk::NodeDiskError;
use crate::disks::StartedDisks;

pub(crate) use self::certificate::certificate;
use self::first_pool::first_pool;
pub(crate) use self::first_pool::{asked_first_pool, tell_differences};

/// The time to wait for a port that is in use, and between two tries.
const PORT_WAIT: Duration = Duration::from_secs(3);
const PORT_LOOK: Duration = Duration::from_millis(50);

/// A reason why a node does not start, in one line.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another process listens there.
    #[error(
        "{addr} is in use by another process: give the {door} door another address with {flag}, or stop the other process"
    )]
    PortInUse {
        /// The door's name.
        door: &'static str,
        /// Its address.
        addr: String,
        /// The flag that changes it.
        flag: &'static str,
    },
    /// The door cannot be opened there.
    #[error(
        "the {door} door cannot be opened at {addr}: {reason}; choose another address with {flag}"
    )]
    Bind {
        /// The door's name.
        door: &'static str,
        /// Its address.
        addr: String,
        /// The system's error.
        reason: io::Error,
        /// The flag that changes it.
        flag: &'static str,
    },
    /// The configuration does not hold together with what the system gave.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The system has not so much memory.
    #[error("{reason}; ask for less with --memory")]
    Memory {
        /// The memory asked for, and the memory that there is or the system's error.
        reason: String,
    },
    /// None of the nodes given answered as hoped.
    #[error("cannot join a cluster through {addresses}: {reason}")]
    Join {
        /// The addresses of `--join`.
        addresses: String,
        /// The last error.
        reason: DirectoryError,
    },
    /// The nodes to join are not of one cluster.
    #[error(
        "--join names nodes of two clusters: {} is of cluster {}, {} of cluster {}; nothing was joined: name \
         nodes of one cluster",
        nodes[0], clusters[0], nodes[1], clusters[1]
    )]
    TwoClusters {
        /// Their addresses.
        nodes: [String; 2],
        /// Their clusters, in the same order.
        clusters: [ClusterId; 2],
    },
    /// A secret file cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The certificate, its key or the authorities of clients cannot be used.
    #[error(transparent)]
    Tls(#[from] crate::TlsError),
    /// The secrets of nodes and of clients are the same.
    #[error(
        "secret_file and client_secret_file hold the same secret, so that every client could be a node: make another for clients"
    )]
    OneSecret,
    /// A node that is to be joined does not let this one in.
    #[error("cannot join a cluster: {reason}")]
    Denied {
        /// Its error.
        reason: NetError,
    },
    /// The data folder.
    #[error("the data folder cannot be used: {0}")]
    Folder(StoreError),
    /// The directory.
    #[error(transparent)]
    Directory(DirectoryError),
    /// It ran, and its life is over: the process must end.
    #[error("{0}")]
    Over(Arc<DirectoryError>),
    /// The disk.
    #[error(transparent)]
    Disk(#[from] NodeDiskError),
    /// A disk without a folder for it.
    #[error("--disk needs a data folder: give one with --data")]
    DiskWithoutFolder,
    /// It ran, and its disk failed: the process must end.
    #[error(
        "the disk has failed: {0}; start the node again, and replace the disk if it fails again"
    )]
    DiskFailed(String),
    /// The system gave no threads.
    #[error("the node's threads cannot be started: {0}")]
    Runtime(io::Error),
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
    /// NBD, where it is served.
    pub nbd: Option<SocketAddr>,
    /// gRPC, where it is served.
    pub grpc: Option<SocketAddr>,
    /// Logs by HTTP, where they are served.
    pub http: Option<SocketAddr>,
}

/// The three doors, open.
pub(crate) struct Listeners {
    pub(crate) native: TcpListener,
    pub(crate) resp: TcpListener,
    pub(crate) admin: TcpListener,
    /// Their addresses, by the names that they were given, with the ports that they got.
    pub(crate) bound: Doors,
}

impl Listeners {
    pub(crate) async fn open(config: &Config) -> Result<Listeners, StartError> {
        let native = bind("native", &config.listen, "--listen").await?;
        let resp = bind("RESP", &config.resp, "--resp").await?;
        let admin = bind("admin", &config.admin, "--admin").await?;
        let bound = Doors {
            native: with_port(&config.listen, &native),
            resp: with_port(&config.resp, &resp),
            admin: with_port(&config.admin, &admin),
        };
        Ok(Listeners {
            native,
            resp,
            admin,
            bound,
        })
    }

    pub(crate) fn addresses(&self, [nbd, grpc, http]: [Option<SocketAddr>; 3]) -> Addresses {
        Addresses {
            native: address(&self.native),
            resp: address(&self.resp),
            admin: address(&self.admin),
            nbd,
            grpc,
            http,
        }
    }
}

pub(crate) async fn bind(
    door: &'static str,
    at: &Endpoint,
    flag: &'static str,
) -> Result<TcpListener, StartError> {
    let addr = at.to_string();
    let until = Instant::now() + PORT_WAIT;
    loop {
        match TcpListener::bind((at.host.as_str(), at.port)).await {
            Ok(listener) => return Ok(listener),
            Err(reason) if reason.kind() != io::ErrorKind::AddrInUse => {
                return Err(StartError::Bind {
                    door,
                    addr,
                    reason,
                    flag,
                });
            }
            Err(_) if Instant::now() >= until => {
                return Err(StartError::PortInUse { door, addr, flag });
            }
            // A node that was told to stop has it until it has handed over.
            Err(_) => tokio::time::sleep(PORT_LOOK).await,
        }
    }
}

fn with_port(asked: &Endpoint, listener: &TcpListener) -> Endpoint {
    let port = listener.local_addr().map_or(asked.port, |a| a.port());
    Endpoint {
        host: asked.host.clone(),
        port,
    }
}

/// The address of a listener, for people and tests.
pub(crate) fn address(listener: &TcpListener) -> SocketAddr {
    let address = listener.local_addr();
    address.expect("an open listener has an address")
}

/// The secrets of the configuration, if it has any.
pub(crate) fn secrets(config: &Config) -> Result<Option<Secrets>, StartError> {
    let (nodes, clients) = (&config.secret_file, &config.client_secret_file);
    let Some(nodes) = nodes else { return Ok(None) };
    let clients = clients.as_deref().map(Secret::read);
    let (nodes, clients) = (Secret::read(nodes)?, clients.transpose()?);
    if clients.as_ref() == Some(&nodes) {
        return Err(StartError::OneSecret);
    }
    Ok(Some(Secrets { nodes, clients }))
}

/// Looks at the files that a configuration names, as a start does.
pub fn check_files(config: &Config) -> Result<(), StartError> {
    secrets(config)?;
    certificate(config).map(drop)
}

/// A warning for a node without a secret, unless only this machine reaches its native port.
pub(crate) fn trusts(config: &Config, native: SocketAddr) -> Option<&'static str> {
    let open = config.secret_file.is_none() && !native.ip().is_loopback();
    open.then_some(
        "no secret_file: whoever reaches the native port and says that it is a node is one; --secret-file changes that",
    )
}

/// A warning for a node without a data folder.
pub(crate) fn forgets(config: &Config, votes: bool) -> Option<&'static str> {
    match (&config.data, votes) {
        (Some(_), _) => None,
        (None, true) => Some(
            "no data folder: this node votes, and its part of the directory lies in its memory alone; while no other node \
             votes, the cluster ends with this process: start nodes with --data",
        ),
        (None, false) => Some(
            "no data folder: this node does not vote in the directory, and gets a new id at each start; --data gives it one",
        ),
    }
}

/// The disks of the configuration and of its data folder.
pub(crate) fn open_disks(config: &Config) -> Result<StartedDisks, StartError> {
    if config.data.is_none() && config.disk.0 > 0 {
        return Err(StartError::DiskWithoutFolder);
    }
    let memory = config.disk_memory_bytes();
    let data = config.data.as_deref();
    Ok(StartedDisks::open(data, config.disk.0, memory)?)
}

/// The options of the directory, of a node whose disks have these members.
pub(crate) fn directory_options(
    config: &Config,
    told: &Doors,
    disks: Option<&StartedDisks>,
) -> Options {
    let ms = |m: crate::config::Millis| m.duration();
    let native = told.native.to_string();
    Options {
        data_dir: config.data.clone(),
        join: config.join.iter().map(Endpoint::to_string).collect(),
        data_is_newest: config.data_is_newest,
        volatile_votes: config.volatile_votes,
        voters_max: config.voters_max as usize,
        node: NodeFacts {
            name: config.name.clone().unwrap_or_else(|| native.clone()),
            zone: config.zone.clone(),
            native,
            resp: told.resp.to_string(),
            admin: told.admin.to_string(),
            memory_bytes: config.memory.0,
            disk_bytes: disks.map_or(0, |started| started.disks.room_bytes()),
        },
        claims: disks.map_or_else(Vec::new, |started| started.claims.clone()),
        claims_of: disks.and_then(|started| started.owner),
        first_changes: vec![first_pool(config)],
        times: Times {
            lease: ms(config.lease_ms),
            heartbeat: ms(config.heartbeat_ms),
            election: ElectionTimes {
                min: ms(config.election_min_ms),
                max: ms(config.election_max_ms),
            },
            ping: ms(config.ping_ms),
            suspicion: ms(config.suspicion_ms),
            join: ms(config.join_ms),
            unflushed_wait: ms(config.unflushed_wait_ms),
            ..Times::default()
        },
    }
}

/// Checks a configuration as the directory will: its options are looked at, and the
/// node and the first pool are put into an empty map.
pub(crate) fn rehearse(config: &Config, told: &Doors) -> Result<(), String> {
    let options = directory_options(config, told, None);
    options.check().map_err(|error| error.to_string())?;
    let node = Change::NodeUp {
        id: None,
        facts: options.node,
        durable: config.data.is_some(),
        claims: options.claims,
    };
    let (mut map, cluster) = (staves_model::ClusterMap::default(), ClusterId(1));
    let changes = [Change::Bootstrap { cluster }, node];
    for change in changes.iter().chain(&options.first_changes) {
        map.apply(None, change).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Memory is taken from the system as it is filled: more than there is would be found out only when the node is killed for it.
pub(crate) fn fits(memory: Size, total: Option<u64>) -> Result<(), StartError> {
    match total {
        Some(total) if memory.0 > total => Err(StartError::Memory {
            reason: format!(
                "memory is {memory}, and this machine has (or lets this process have) {} MiB in all",
                total >> 20
            ),
        }),
        _ => Ok(()),
    }
}

/// The options of buckets.
pub(crate) fn host_options(config: &Config, in_flight: Arc<InFlight>) -> crate::host::Options {
    let group = staves_group::Options {
        lease: config.lease_ms.duration(),
        heartbeat_every: config.lease_ms.duration() / 5,
        // A share of the node's bound for each bucket: traffic is never even over all of them.
        backfill_budget: Arc::new(Budget::new(config.rebuild_pages_max)),
        log_bytes_max: (config.log_bytes_max.0 / 8).max(LOG_BYTES_MIN) as usize,
        node_logs: Arc::new(staves_group::NodeLogs::new(config.log_bytes_max.0 as usize)),
        ..staves_group::Options::default()
    };
    let services = crate::ServiceOptions {
        value_bytes_max: config.value_bytes(),
        ..crate::ServiceOptions::default()
    };
    crate::host::Options {
        services,
        group,
        pool: config.pool.clone(),
        tick: config.tick_ms.duration().max(Duration::from_millis(1)),
        request: config.request_ms.duration(),
        in_flight,
    }
}

/// Least bytes of a bucket's log: below, single updates would go one at a time.
const LOG_BYTES_MIN: u64 = 1 << 20;

/// A failed start of the directory, by what the operator can do about it.
pub(crate) fn start_error(config: &Config, error: DirectoryError) -> StartError {
    match error {
        DirectoryError::Store(error) => StartError::Folder(error),
        reason @ (DirectoryError::NoLeader { .. } | DirectoryError::NotRunning { .. })
            if !config.join.is_empty() =>
        {
            let addresses: Vec<String> = config.join.iter().map(Endpoint::to_string).collect();
            StartError::Join {
                addresses: addresses.join(", "),
                reason,
            }
        }
        error => StartError::Directory(error),
    }
}

#[cfg(test)]
mod tests;
