//! A node's configuration: file, environment, flags, in that order, the later over the earlier.
//!
//! **Promises.** One table, [`KEYS`], is all there is: the parser, the environment's names, the example
//! file and `config show` are made from it, so that they cannot disagree. A key that does not exist is
//! an error with file, line and the nearest key there is; so is a value that does not fit, with what
//! would. Nothing is taken for granted from a file that could not be read whole.
//!
//! **Path of the data.** Each layer yields pairs of key and text ([`file`] for TOML, where lists become
//! commas); the key's setter parses the text into [`Config`]; [`Config::check`] looks at what only makes
//! sense together. [`Loaded`] remembers where each value came from.
//!
//! **Not here.** Which flags there are (the program derives them), what the values do. The environment is
//! shared with others (orchestrators make up `STAVES_...` names for a service called `staves`), so an
//! unknown variable there is a warning, and only if it looks like a slip.

mod error;
mod file;
mod redirect;
mod suggest;
mod tls;
mod value;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::client_doors::DoorAddresses;
use staves_model::Scheme;
use staves_model::change::BUCKETS_MAX;
use staves_wire::cache::VALUE_BYTES_MAX;

pub use error::{ConfigError, Origin};
pub use staves_nbd::TlsPolicy;
pub use staves_resp::Redirect;
pub use suggest::nearest;
use value::is_wildcard;
pub use value::{Advertise, Doors, Endpoint, Millis, Setting, Size};

/// One key of the configuration.
pub struct Key {
    /// Its name in the file; with dashes its flag, in capitals behind `STAVES_` its variable.
    pub name: &'static str,
    /// Its default, as text; empty if there is none.
    pub default: &'static str,
    /// Its meaning, in a sentence or two.
    pub doc: &'static str,
    set: fn(&mut Config, &str) -> Result<(), String>,
    get: fn(&Config) -> String,
    quoted: fn(&str) -> String,
}

impl Key {
    /// Its environment variable.
    pub fn variable(&self) -> String {
        format!("STAVES_{}", self.name.to_ascii_uppercase())
    }
}

macro_rules! keys {
    ($($name:ident: $type:ty = $default:literal, $doc:literal;)*) => {
        /// A node's configuration. Each field is a key of [`KEYS`], where its meaning stands.
        #[derive(Clone, PartialEq, Debug)]
        pub struct Config {
            $(#[doc = $doc] pub $name: $type,)*
        }

        /// All keys, in the order in which people meet them.
        pub const KEYS: &[Key] = &[$(Key {
            name: stringify!($name),
            default: $default,
            doc: $doc,
            set: |config, text| {
                config.$name = <$type as Setting>::parse(&with_unit(stringify!($name), text))?;
                Ok(())
            },
            get: |config| config.$name.show(),
            quoted: <$type as Setting>::toml,
        },)*];

        impl Default for Config {
            fn default() -> Config {
                Config {
                    // A default that does not parse is a fault of this table; a test parses them all.
                    $($name: <$type as Setting>::parse(&with_unit(stringify!($name), $default))
                        .expect(concat!("the default of '", stringify!($name), "' parses")),)*
                }
            }
        }
    };
}

/// A value for a key. Times and sizes need a unit everywhere; where the key's own name says it (`..._ms`,
/// `..._bytes_...`), a plain number is taken in that unit.
fn with_unit<'a>(key: &str, text: &'a str) -> Cow<'a, str> {
    let bare = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if bare && key.ends_with("_ms") {
        Cow::Owned(format!("{text}ms"))
    } else if bare && key.contains("_bytes") {
        Cow::Owned(format!("{text}B"))
    } else {
        Cow::Borrowed(text)
    }
}

keys! {
    data: Option<PathBuf> = "", "The folder for the node's identity and its vote. Without one the node gets a new id at each start and does not vote.";
    listen: Endpoint = "127.0.0.1:1600", "Where the native protocol is served. Other nodes must reach it.";
    resp: Endpoint = "127.0.0.1:6379", "Where Redis's protocol is served.";
    resp_redirect: Redirect = "forward", "What a client of Redis's protocol gets for a key that another node serves: 'forward' asks that node and passes its answer on; 'moved' answers MOVED, for clients that know Redis Cluster.";
    admin: Endpoint = "127.0.0.1:1680", "Where HTTP is served: health, metrics, status.";
    nbd: Option<Endpoint> = "", "Where volumes are served as block devices, by NBD (its usual port is 10809). Without it they are not. Whoever reaches it may read and write all volumes.";
    grpc: Option<Endpoint> = "", "Where volumes and logs are served by gRPC, to programs. Without it they are not. Whoever reaches it may read and write all volumes and logs.";
    http: Option<Endpoint> = "", "Where logs are served by HTTP, to programs and browsers. Without it they are not. Whoever reaches it may read and write all logs.";
    tls_cert: Option<PathBuf> = "", "A file with the certificate (PEM, those of intermediate authorities behind it) that the node shows to clients of NBD that ask for TLS. The other ports have no TLS. It is read at the start.";
    tls_key: Option<PathBuf> = "", "A file with the private key of tls_cert (PEM, without a password), readable by its owner and group only.";
    tls_client_ca: Option<PathBuf> = "", "A file with the certificates (PEM) of those who sign the certificates of clients. With it TLS begins only with clients that have such a certificate.";
    nbd_tls: Option<TlsPolicy> = "", "TLS at the NBD port: 'off'; 'offered', for clients that ask for it; 'required', so that clients without it are refused. By default 'offered' with tls_cert, and 'off' without.";
    advertise: Advertise = "", "What others are told to connect to, if it is not what the doors bind to: a host, a host:port for the native protocol, or 'native=HOST:PORT,resp=HOST:PORT,admin=HOST:PORT'.";
    join: Vec<Endpoint> = "", "Nodes of the cluster to join, any of them. Without any, a node without a cluster starts one.";
    secret_file: Option<PathBuf> = "", "A file with the secret that the nodes of the cluster share, readable by its owner only. Without one, whoever reaches the native port may say that it is a node. Clients and tools may prove this one, too.";
    client_secret_file: Option<PathBuf> = "", "A file with another secret, which suffices for native clients and tools, and not for nodes.";
    memory: Size = "1GiB", "Memory for pages. A new cluster's first pool gets half of it on every node.";
    disk: Size = "0", "Bytes of the data folder for the pages of pools on disk. They are taken whole, and some for a journal beside them, when the node first starts with it; a disk that is there is used whatever this says. 0: none.";
    disk_memory: Size = "0", "Memory for the pages of pools on disk, beside memory: those used of late are there, the others are read from the disk. 0 is a quarter of memory. 1MiB at least, and never more than the disk takes.";
    zone: Option<String> = "", "Where the node stands (a rack, a data centre). Copies go to distinct zones where there are enough.";
    name: Option<String> = "", "A name for people. Without one its native address stands for it.";
    log: String = "info", "What is logged: error, warn, info, debug, trace, or directives such as 'info,staves_net=debug'.";
    pool: String = "cache", "The pool that Redis's protocol serves, and that a new cluster starts with.";
    scheme: Scheme = "1+2", "The scheme of a new cluster's first pool: one primary and so many copies, as far as there are nodes.";
    buckets: u32 = "64", "How many buckets a new cluster's first pool has: a power of two. Fewer where half of memory is less than 2 MiB for each, which a warning at the start and the status say; the number stays, whatever memory comes later.";
    threads: u32 = "0", "Worker threads; 0 is one for each core.";
    clients_max: u32 = "10000", "Most connections of Redis's protocol at a time.";
    in_flight_bytes_max: Size = "0", "Memory for requests and answers of clients that are under way, at all doors together; 0 is an eighth of memory, and 32MiB at least. When it is taken, large requests wait, and are refused after 3 to 6 s. A single one may be larger. Not more than memory, or 32MiB if that is more.";
    in_flight_requests_max: u32 = "0", "Most requests of clients that wait at a time, at both doors together; 0 is 20 for each millisecond of request_ms and each thread, and not more than one for 512 bytes of in_flight_bytes_max. Beyond, requests that would wait are refused at once; the first of each connection is taken in any case.";
    value_bytes_max: Size = "512MiB", "Largest value that is taken; what is larger than memory is never taken.";
    log_bytes_max: Size = "64MiB", "Memory for updates that not every copy has received yet, of all buckets of the node together; each may take an eighth of it. When it is full, writers wait.";
    rebuild_pages_max: u32 = "1024", "Most pages that the node has asked other nodes for at a time while it rebuilds buckets. With 0 it rebuilds only what clients ask for.";
    files_copies: bool = "true", "Let the node use memory that is free for second copies of files' blocks. Without them, the blocks that only a lost node had are fetched from their source again.";
    request_ms: Millis = "5000", "How long a request of a client may take before it is answered with an error.";
    join_ms: Millis = "60000", "How long a starting node looks for its cluster before it gives up.";
    stop_ms: Millis = "10000", "How long a node that is asked to stop may take to hand over what it serves.";
    voters_max: u32 = "5", "Most nodes that vote in the directory: an odd number. There are three from three nodes on, five from five.";
    data_is_newest: bool = "false", "Say that a data folder that was copied or restored has all that the node wrote before: it votes in the directory at once. Otherwise it first catches up, or asks all others that vote. If it is not true, what was acknowledged may be lost.";
    volatile_votes: bool = "false", "Let a node without a data folder vote. For demonstrations: a vote that is forgotten can split a cluster.";
    lease_ms: Millis = "500", "How long a primary may answer reads after the directory, or all its copies, have last said so.";
    tick_ms: Millis = "25", "How often the node's machines look at the clock.";
    ping_ms: Millis = "100", "How often neighbours are pinged.";
    suspicion_ms: Millis = "350", "How long a neighbour may be silent before it is suspected.";
    heartbeat_ms: Millis = "150", "How often the directory's leader shows that it lives.";
    election_min_ms: Millis = "450", "The shortest silence of the directory's leader before an election. Two thirds of it are also how long a node waits for the answer of another in the directory.";
    election_max_ms: Millis = "600", "The longest silence of the directory's leader before an election.";
    unflushed_wait_ms: Millis = "60000", "How long the directory waits for a node that is down and may hold what volumes with write-back have not flushed. Then that is given up, and their sessions end.";
}

/// A configuration and where each of its values came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    /// The origin of each key that was set; others have their defaults.
    pub origins: BTreeMap<&'static str, Origin>,
    /// Warnings of probable slips.
    pub warnings: Vec<String>,
}

/// Puts the layers together: defaults, then the file, the environment, the flags.
///
/// `env` may hold variables of others; only those that begin with `STAVES_` are looked at. `flags` are
/// pairs of key and text.
pub fn load(
    path: Option<&Path>,
    env: impl IntoIterator<Item = (String, String)>,
    flags: impl IntoIterator<Item = (String, String)>,
) -> Result<Loaded, ConfigError> {
    let text = path.map(file::read).transpose()?;
    let (path, text) = (path.unwrap_or(Path::new("")), text.as_deref().unwrap_or(""));
    load_text(path, text, env, flags)
}

/// As [`load`], for a file that is already read.
pub fn load_text(
    path: &Path,
    text: &str,
    env: impl IntoIterator<Item = (String, String)>,
    flags: impl IntoIterator<Item = (String, String)>,
) -> Result<Loaded, ConfigError> {
    let mut loaded = Loaded {
        config: Config::default(),
        origins: BTreeMap::new(),
        warnings: Vec::new(),
    };
    for (line, name, value) in file::pairs(path, text)? {
        let origin = Origin::File {
            path: path.to_owned(),
            line,
        };
        loaded.set(&name, value, origin)?;
    }
    // In the order of the names, so that the first error does not depend on the environment's order.
    let env: BTreeMap<String, String> = env.into_iter().collect();
    for (variable, value) in env {
        let Some(name) = variable.strip_prefix("STAVES_") else {
            continue;
        };
        let name = name.to_ascii_lowercase();
        if find(&name).is_some() {
            loaded.set(&name, Ok(value), Origin::Environment { variable })?;
        } else if !OTHER_VARIABLES.contains(&name.as_str())
            && let Some(meant) = nearest(&name, KEYS.iter().map(|k| k.name))
        {
            let meant = meant.to_ascii_uppercase();
            loaded.warnings.push(format!(
                "the variable {variable} is not one of ours; did you mean STAVES_{meant}?"
            ));
        }
    }
    for (name, value) in flags {
        let origin = Origin::Flag {
            flag: format!("--{}", name.replace('_', "-")),
        };
        // Most often a variable of a script that is not set.
        let value = match value.trim().is_empty() {
            true => Err("it is empty: give it a value, or leave the flag out".to_owned()),
            false => Ok(value),
        };
        loaded.set(&name, value, origin)?;
    }
    match loaded.config.check() {
        Ok(()) => Ok(loaded),
        Err(error) => Err(loaded.located(error)),
    }
}

/// Variables that the program reads elsewhere.
const OTHER_VARIABLES: &[&str] = &[
    "cluster",
    "config",
    "deadline",
    "output",
    "python",
    "require_tools",
];

fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

impl Loaded {
    fn set(
        &mut self,
        name: &str,
        value: Result<String, String>,
        origin: Origin,
    ) -> Result<(), ConfigError> {
        let Some(key) = find(name) else {
            let meant = nearest(name, KEYS.iter().map(|k| k.name));
            return Err(ConfigError::UnknownKey {
                origin,
                key: name.to_owned(),
                meant,
            });
        };
        // A secret that is meant and missing must not make an open node. (In a file the empty text is the default.)
        let is_secret = key.name.ends_with("secret_file") || key.name.contains("tls");
        let is_variable = matches!(origin, Origin::Environment { .. });
        let value =
            value.and_then(
                |text| {
                    match is_secret && is_variable && text.trim().is_empty() {
                    true => Err(
                        "it is empty: name the file, or unset it for a node without that protection"
                            .to_owned(),
                    ),
                    false => Ok(text),
                }
                },
            );
        value
            .and_then(|text| (key.set)(&mut self.config, text.trim()))
            .map_err(|reason| ConfigError::BadValue {
                origin: origin.clone(),
                key: key.name,
                reason,
            })?;
        self.origins.insert(key.name, origin);
        Ok(())
    }

    /// Adds to a conflict the values that cause it: those without which it would not arise. A reason
    /// may name others.
    fn located(&self, error: ConfigError) -> ConfigError {
        let ConfigError::Conflict { reason, .. } = &error else {
            return error;
        };
        let is_cause = |key: &Key| {
            let mut other = self.config.clone();
            (key.set)(&mut other, key.default).is_ok() && other.check().as_ref() != Err(&error)
        };
        let words: Vec<&str> = reason.split([' ', ':', ',']).collect();
        // Other names of keys are words of any sentence.
        let is_named = |key: &Key| key.name.contains('_') && words.contains(&key.name);
        let settings = KEYS.iter().filter_map(|key| {
            let value = (key.quoted)(&(key.get)(&self.config));
            match self.origins.get(key.name) {
                Some(origin) if is_cause(key) || is_named(key) => Some(match origin {
                    Origin::File { .. } => format!("{origin}: {} = {value}", key.name),
                    Origin::Environment { .. } | Origin::Flag { .. } => format!("{origin}={value}"),
                }),
                None if is_named(key) => Some(format!("{} = {value} by default", key.name)),
                _ => None,
            }
        });
        ConfigError::Conflict {
            settings: settings.collect(),
            reason: reason.clone(),
        }
    }

    /// Every key, its value as text, and where it came from (`None`: the default).
    pub fn entries(&self) -> impl Iterator<Item = (&'static str, String, Option<&Origin>)> {
        KEYS.iter().map(|key| {
            (
                key.name,
                (key.get)(&self.config),
                self.origins.get(key.name),
            )
        })
    }

    /// The configuration in force as TOML, each value with where it came from.
    pub fn show(&self) -> String {
        let mut text = String::new();
        for (key, (name, value, origin)) in KEYS.iter().zip(self.entries()) {
            let origin = origin.map_or("default".to_owned(), Origin::to_string);
            let assignment = if value.is_empty() && key.default.is_empty() {
                format!("# {name} is not set")
            } else {
                format!("{name} = {}", (key.quoted)(&value))
            };
            text += &format!("{assignment:<48} # {origin}\n");
        }
        text
    }
}

/// A commented file with every key at its default: as it stands it changes nothing.
pub fn example() -> String {
    let mut text = String::from(
        "# Configuration of a Staves node. Every key is optional and stands here with its default.\n\
         # A variable STAVES_<KEY> goes over this file, and a flag --<key> of 'staves up' over both.\n\
         # Times and sizes have a unit (\"2s\", \"512MiB\"), but where the key's name says it.\n",
    );
    for key in KEYS {
        text += "\n";
        for line in wrapped(key.doc, 96) {
            text += &format!("# {line}\n");
        }
        text += &format!("#{} = {}\n", key.name, (key.quoted)(key.default));
    }
    text
}

/// Text in lines of at most so many bytes, broken at blanks.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let full = lines
            .last()
            .is_some_and(|line| line.len() + 1 + word.len() > width);
        if full {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

impl Config {
    /// Checks all that can be checked without the machine that the configuration is for: what
    /// only makes sense together, and what the directory and its map would refuse. `up` and `config check`
    /// both ask here, so that what the one takes the other does too.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_together()?;
        let doors = Doors {
            native: self.listen.clone(),
            resp: self.resp.clone(),
            admin: self.admin.clone(),
        };
        let told = self.advertised(&doors)?;
        crate::start::rehearse(self, &told).map_err(ConfigError::conflict)
    }

    fn check_together(&self) -> Result<(), ConfigError> {
        let Config {
            lease_ms,
            tick_ms,
            ping_ms,
            suspicion_ms,
            ..
        } = self;
        let rules = [
            (
                self.memory.0 >= MEMORY_BYTES_MIN,
                "memory must be at least 16MiB",
            ),
            (
                self.value_bytes_max.0 <= VALUE_BYTES_MAX as u64 && self.value_bytes_max.0 > 0,
                "value_bytes_max must be more than nothing and at most 512MiB",
            ),
            (
                self.log_bytes_max.0 >= LOG_BYTES_MIN
                    && self.log_bytes_max.0 <= self.memory.0.max(LOG_BYTES_USUAL),
                "log_bytes_max must be at least 1MiB and at most memory (or 64MiB, if that is more)",
            ),
            (
                self.in_flight_bytes_max.0 == 0
                    || self.in_flight_bytes_max.0 >= IN_FLIGHT_BYTES_MIN
                        && self.in_flight_bytes_max.0 <= self.memory.0.max(IN_FLIGHT_BYTES_USUAL),
                "in_flight_bytes_max must be 0 (an eighth of memory), or at least 4MiB and at most memory (or 32MiB, if that is more)",
            ),
            (
                self.buckets.is_power_of_two() && self.buckets <= BUCKETS_MAX,
                "buckets must be a power of two, at most 4096",
            ),
            (
                self.scheme.m == 1,
                "scheme must be 1+k: a key-value pool keeps whole copies",
            ),
            (
                self.voters_max % 2 == 1 && self.voters_max <= 9,
                "voters_max must be 1, 3, 5, 7 or 9: an even number bears no more losses",
            ),
            (
                tick_ms.0 * 4 <= lease_ms.0,
                "lease_ms must be at least four times tick_ms",
            ),
            (
                ping_ms.0 * 2 <= suspicion_ms.0,
                "suspicion_ms must be at least twice ping_ms",
            ),
            (
                self.heartbeat_ms.0 * 2 <= self.election_min_ms.0,
                "election_min_ms must be at least twice heartbeat_ms",
            ),
            (
                self.election_min_ms.0 < self.election_max_ms.0,
                "election_max_ms must be greater than election_min_ms, or elections tie",
            ),
            (
                self.client_secret_file.is_none() || self.secret_file.is_some(),
                "client_secret_file needs secret_file: without a secret of the nodes, whoever says that it is a node is one",
            ),
            self.tls_files_are_whole(),
            self.tls_has_a_certificate(),
            (self.clients_max > 0, "clients_max must be at least 1"),
            (
                self.threads <= THREADS_MAX,
                "threads may be at most 1024: a thread for each core is enough",
            ),
            (
                distinct(&[
                    Some(&self.listen),
                    Some(&self.resp),
                    Some(&self.admin),
                    self.nbd.as_ref(),
                    self.grpc.as_ref(),
                    self.http.as_ref(),
                ]),
                "listen, resp, admin, nbd, grpc and http must be addresses of their own: two doors cannot share one",
            ),
        ];
        match rules.into_iter().find(|(holds, _)| !holds) {
            Some((_, reason)) => Err(ConfigError::conflict(reason)),
            None => Ok(()),
        }
    }

    /// Bytes of the largest value that is taken: what is larger than the node's memory finds no place anywhere.
    pub fn value_bytes(&self) -> usize {
        self.value_bytes_max.0.min(self.memory.0) as usize
    }

    /// The memory for requests and answers of clients.
    pub fn in_flight_bytes(&self) -> usize {
        let bytes = match self.in_flight_bytes_max.0 {
            0 => (self.memory.0 / 8).max(IN_FLIGHT_BYTES_USUAL),
            bytes => bytes,
        };
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// The memory for pages of the node's disk.
    pub fn disk_memory_bytes(&self) -> u64 {
        match self.disk_memory.0 {
            0 => (self.memory.0 / 4).max(DISK_MEMORY_MIN),
            bytes => bytes.max(DISK_MEMORY_MIN),
        }
    }

    /// The part of it that a disk of the configured size takes.
    pub fn memory_of_disk(&self) -> u64 {
        self.disk_memory_bytes().min(self.disk.0)
    }

    /// The memory for what buckets remember of requests, for retries. Some buckets may have more while others fill theirs.
    pub fn request_table_bytes(&self) -> usize {
        let bytes = (self.memory.0 / 32).clamp(REQUEST_TABLE_BYTES.0, REQUEST_TABLE_BYTES.1);
        bytes as usize
    }

    /// The most requests of clients that wait: as many as a slow node answers before their time is over, and as there is memory for.
    pub fn in_flight_requests(&self) -> usize {
        if self.in_flight_requests_max > 0 {
            return self.in_flight_requests_max as usize;
        }
        let threads = match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads as usize,
        };
        let ms = usize::try_from(self.request_ms.0).unwrap_or(usize::MAX);
        let in_time = ms.saturating_mul(threads).saturating_mul(REQUESTS_PER_MS);
        let in_memory = self.in_flight_bytes() / WAITING_REQUEST_BYTES;
        in_time.clamp(1, in_memory)
    }

    /// The advertised addresses, once the doors are open on `bound` (whose ports are never 0).
    pub fn advertised(&self, bound: &Doors) -> Result<Doors, ConfigError> {
        self.advertise.over(bound).map_err(ConfigError::conflict)
    }

    /// The addresses of NBD, gRPC and HTTP for clients, where they are open: at the advertised host, or that of `native` where a door
    /// stands for every address of the machine.
    pub(crate) fn door_addresses(
        &self,
        [nbd, grpc, http]: [Option<SocketAddr>; 3],
        native: &Endpoint,
    ) -> DoorAddresses {
        let address = |asked: Option<&Endpoint>, bound: Option<SocketAddr>| {
            Some(self.door_address(asked?, bound?, native))
        };
        DoorAddresses {
            nbd: address(self.nbd.as_ref(), nbd),
            grpc: address(self.grpc.as_ref(), grpc),
            http: address(self.http.as_ref(), http),
        }
    }

    fn door_address(&self, asked: &Endpoint, bound: SocketAddr, native: &Endpoint) -> String {
        let port = bound.port();
        let host = self.advertise.host.as_ref().unwrap_or(&asked.host);
        let host = match is_wildcard(host) {
            true => native.host.clone(),
            false => host.clone(),
        };
        Endpoint { host, port }.to_string()
    }
}

const IN_FLIGHT_BYTES_MIN: u64 = 4 << 20;
/// The least and the most memory for what buckets remember of requests.
const REQUEST_TABLE_BYTES: (u64, u64) = (8 << 20, 64 << 20);
/// The least that `in_flight_bytes_max` is by itself.
/// With less, what one request needs may be more than there may be.
const DISK_MEMORY_MIN: u64 = 1 << 20;
const IN_FLIGHT_BYTES_USUAL: u64 = 32 << 20;
/// Requests that a thread of a slow node answers in a millisecond.
const REQUESTS_PER_MS: usize = 20;
/// Memory of a small request that waits.
const WAITING_REQUEST_BYTES: usize = 512;
const MEMORY_BYTES_MIN: u64 = 16 << 20;
/// Below, single updates would go one at a time.
const LOG_BYTES_MIN: u64 = 1 << 20;
/// The default of `log_bytes_max`, which a node with less memory than that takes, too.
const LOG_BYTES_USUAL: u64 = 64 << 20;
const THREADS_MAX: u32 = 1024;

/// Port 0 is any free one, so two of it do not meet.
fn distinct(doors: &[Option<&Endpoint>]) -> bool {
    let mut fixed: Vec<String> = doors
        .iter()
        .flatten()
        .filter(|door| door.port != 0)
        .map(|door| door.to_string())
        .collect();
    let count = fixed.len();
    fixed.sort_unstable();
    fixed.dedup();
    fixed.len() == count
}

#[cfg(test)]
mod tests;
