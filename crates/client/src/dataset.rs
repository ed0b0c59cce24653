//! Datasets: files that are read from the memory of all nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, RwLock};
use staves_files::{FileVersion, Keep, Kind, Seek, Source, SourceError, Stat};
use staves_model::{Change, ClusterMap, Holdings, NodeId, PoolId};
use staves_net::NetError;
use staves_store::blocks;
use staves_wire::files::{
    FILE_BYTES_MAX, FileAway, FileBytes, FileFetch, FileId, FilePut, FileRead, FileUse,
};
use staves_wire::{ErrorCode, Message};
use tokio::sync::Semaphore;
use tokio::time::{sleep_until, timeout_at};

use crate::client::Client;
use crate::error::ClientError;
use crate::local::Locals;
use crate::patience::Patience;

/// The pause between two looks for a newer map.
const MAP_AGE_MAX: Duration = Duration::from_secs(1);
/// The time that a read may take in all.
const READ: Duration = Duration::from_secs(30);
/// The time that a home has to take what this client read from the source; no caller waits for it.
const PUT: Duration = Duration::from_secs(2);
/// Bytes on their way to homes: what comes on top is not given. A home that does not take them holds each for [`PUT`].
const GIVEN_BYTES_MAX: usize = 8 << 20;
/// A gift counts as so many bytes at least: what carries it takes memory too.
const GIFT_BYTES_MIN: usize = 16 << 10;
/// The pause between two reports of a mount that it uses its dataset.
const TELL: Duration = Duration::from_secs(5);
/// The most characters of the reason that a source is away.
const WHY_CHARS_MAX: usize = 120;
/// Bytes of a part: what is given to a home is cut at them.
const PART_BYTES: u64 = blocks::PART_BYTES as u64;
/// The pool of a dataset whose pool is not known yet: no pool has this id.
const NO_POOL: PoolId = PoolId(u32::MAX);
/// Bytes of a block.
const BLOCK_BYTES: u64 = blocks::BLOCK_BYTES as u64;

/// A dataset, to read. Clones are the same one.
#[derive(Clone)]
pub struct Dataset {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    pool_name: String,
    /// The pool of that name, as it was last found.
    pool: RwLock<PoolId>,
    name: String,
    /// As the directory has it.
    address: String,
    source: Source,
    patience: Patience,
    looked: Mutex<Instant>,
    /// Microseconds that the source lately took, for homes or here, smoothed: homes are not silent while it is slow.
    fetch_us: AtomicU64,
    locals: Arc<Locals>,
    /// Room for what is given to homes.
    gifts: Arc<Semaphore>,
    figures: Figures,
    used: Mutex<Option<Use>>,
    /// True while the source is asked for a sign of life.
    probed: AtomicBool,
    /// The last logged reason for which no pool has it.
    unpooled: Mutex<String>,
}

/// The use of a dataset by a mount.
struct Use {
    /// The mount, for people.
    by: String,
    /// The last report, and whether the source was away then.
    told: Option<(Instant, bool)>,
}

/// The origins of bytes.
#[derive(Debug, Default)]
pub struct Figures {
    /// Bytes that lay in the memory of a node on this machine.
    pub local_bytes: AtomicU64,
    /// Bytes that other holders had.
    pub pool_bytes: AtomicU64,
    /// Bytes that homes fetched for this client.
    pub fetched_bytes: AtomicU64,
    /// Bytes that this client read from the source itself.
    pub source_bytes: AtomicU64,
    /// Bytes of these that no home was given, because too many were on their way to homes.
    pub not_given_bytes: AtomicU64,
}

/// A file, open in one version.
#[derive(Clone, Debug)]
pub struct OpenFile {
    version: Arc<FileVersion>,
    id: FileId,
}

impl OpenFile {
    /// Its bytes.
    pub fn size(&self) -> u64 {
        self.version.size
    }

    /// The version that is read.
    pub fn version(&self) -> &FileVersion {
        &self.version
    }

    /// Its name in the pool.
    pub fn id(&self) -> FileId {
        self.id
    }
}

impl Client {
    /// A dataset of a files pool, named in the directory if it is not yet. `source` is a folder's whole path, or the address
    /// of a bucket or of a web server's folder as [`Dataset::address`] gives it. A cluster
    /// whose directory has no majority just now, or that does not answer at all, is no hindrance where the pool is known
    /// from before; nor is a server that does not answer, where the dataset is.
    pub async fn dataset(
        &self,
        pool: &str,
        name: &str,
        source: &str,
    ) -> Result<Dataset, ClientError> {
        let place = Source::parse(source).map_err(no_source)?;
        let map = self.map();
        let id = files_pool(&map, pool)?;
        let is_known = is_known(&map, id, name, source);
        match place.check().await {
            Err(SourceError::Unreachable { .. }) if is_known => {}
            checked => checked.map_err(no_source)?,
        }
        if !is_known {
            let change = Change::SetDataset {
                pool: pool.to_owned(),
                name: name.to_owned(),
                source: source.to_owned(),
            };
            self.propose(&change).await?;
        }
        let data = self.opened(id, pool, name, source, place);
        data.look_around().await;
        Ok(data)
    }

    /// The same while no node answers: files are read from their source. Once a [`Dataset::refresh`] has reached a node and the pool is
    /// there, the dataset is named in the directory, and read from its memory.
    pub async fn dataset_without_nodes(
        &self,
        pool: &str,
        name: &str,
        source: &str,
    ) -> Result<Dataset, ClientError> {
        let place = Source::parse(source).map_err(no_source)?;
        place.check().await.map_err(no_source)?;
        Ok(self.opened(NO_POOL, pool, name, source, place))
    }

    fn opened(&self, id: PoolId, pool: &str, name: &str, address: &str, source: Source) -> Dataset {
        Dataset {
            inner: Arc::new(Inner {
                client: self.clone(),
                pool_name: pool.to_owned(),
                pool: RwLock::new(id),
                name: name.to_owned(),
                address: address.to_owned(),
                source,
                patience: Patience::default(),
                looked: Mutex::new(Instant::now()),
                fetch_us: AtomicU64::new(0),
                locals: Arc::default(),
                gifts: Arc::new(Semaphore::new(GIVEN_BYTES_MAX)),
                figures: Figures::default(),
                used: Mutex::default(),
                probed: AtomicBool::new(false),
                unpooled: Mutex::default(),
            }),
        }
    }
}

impl Use {
    /// True if it is time for a report: now and then, and at once when the source goes away or comes back.
    fn is_due(&mut self, is_away: bool) -> bool {
        let told = self
            .told
            .filter(|(at, was_away)| at.elapsed() < TELL && *was_away == is_away);
        if told.is_none() {
            self.told = Some((Instant::now(), is_away));
        }
        told.is_none()
    }
}

/// Returns true if a pool has a dataset of that name with that source.
fn is_known(map: &ClusterMap, pool: PoolId, name: &str, source: &str) -> bool {
    let there = map.dataset(name).filter(|(there, _)| there.id == pool);
    there.is_some_and(|(_, dataset)| dataset.source == source)
}

fn no_source(error: SourceError) -> ClientError {
    let code = match error {
        SourceError::Denied { .. } => ErrorCode::Denied,
        SourceError::Unreachable { .. } => ErrorCode::Unreachable,
        _ => ErrorCode::NotFound,
    };
    ClientError::of(code, error.to_string())
}

fn files_pool(map: &ClusterMap, name: &str) -> Result<PoolId, ClientError> {
    let found = map.pool_named(name).filter(|p| p.holdings().is_some());
    found.map(|p| p.id).ok_or_else(|| {
        let have = map.pools.values().filter(|p| p.holdings().is_some());
        let have: Vec<&str> = have.map(|p| p.name.as_str()).collect();
        let instead = match have.is_empty() {
            true => {
                format!(", nor any other: make one with 'staves pool create {name} --kind files'")
            }
            false => format!("; there are: {}", have.join(", ")),
        };
        ClientError::NoSuchPool {
            service: "files",
            name: name.to_owned(),
            instead,
        }
    })
}

impl Dataset {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The words for a source by which all machines find the same: a folder's path without links, a bucket's address with the
    /// endpoint that this process's environment says.
    pub fn address(source: &str) -> Result<String, SourceError> {
        Source::address(source)
    }

    /// The file at a path of the source now. Blocks the thread.
    pub fn stat(&self, path: &[u8]) -> Result<Stat, SourceError> {
        self.inner.source.stat(path)
    }

    /// The names in a folder, as the source has them now. Blocks the thread.
    pub fn list(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, Stat)>, SourceError> {
        self.inner.source.list(path)
    }

    /// The same for whoever makes something smaller of them: each is added to `into` as it comes. Blocks the thread.
    pub fn gather<T: Clone + Send + 'static>(
        &self,
        path: &[u8],
        into: T,
        add: impl Fn(&mut T, &[u8], Stat) + Send + Sync + 'static,
    ) -> Result<T, SourceError> {
        self.inner.source.gather(path, into, add)
    }

    /// A version of a file of this dataset, by what its source says of it.
    pub fn version(&self, path: &[u8], size: u64, version: String) -> FileVersion {
        FileVersion {
            dataset: self.inner.name.clone(),
            path: path.to_vec(),
            size,
            version,
        }
    }

    /// Opens a file in its present version. Blocks the thread.
    pub fn open(&self, path: &[u8]) -> Result<OpenFile, SourceError> {
        self.open_with_stat(path).map(|(file, _)| file)
    }

    /// The same, with what is known of it.
    pub fn open_with_stat(&self, path: &[u8]) -> Result<(OpenFile, Stat), SourceError> {
        let stat = self.inner.source.stat_to_open(path)?;
        match self.file(path, &stat) {
            Some(file) => Ok((file, stat)),
            None => Err(SourceError::Denied {
                path: String::from_utf8_lossy(path).into_owned(),
                reason: "it is no file, or its source refused it when it was listed".into(),
            }),
        }
    }

    /// The file that a list has at a path, open; `None` if that is no file. Asks nobody.
    pub fn file(&self, path: &[u8], stat: &Stat) -> Option<OpenFile> {
        let Kind::File { version, .. } = &stat.kind else {
            return None;
        };
        let version = self.version(path, stat.size, version.clone());
        let id = version.id();
        let version = Arc::new(version);
        Some(OpenFile { version, id })
    }

    /// The next data or hole of an open file, at or behind an offset; `None` if there is none from there on. Blocks the thread.
    pub fn seek(&self, file: &OpenFile, from: u64, what: Seek) -> Result<Option<u64>, SourceError> {
        self.inner.source.seek(&file.version, from, what)
    }

    /// The origins of the bytes read so far.
    pub fn figures(&self) -> &Figures {
        &self.inner.figures
    }

    /// The pool, and the newest map that this client has.
    pub fn pool(&self) -> (PoolId, Arc<ClusterMap>) {
        (self.inner.pool(), self.inner.client.map())
    }

    /// Bytes of an open file, fewer only at its end. They are those of its version, or there is an error: rows D9 and D11.
    pub async fn read_at(
        &self,
        file: &OpenFile,
        from: u64,
        len: usize,
    ) -> Result<Bytes, SourceError> {
        let end = from.saturating_add(len as u64).min(file.size());
        if from >= end {
            return Ok(Bytes::new());
        }
        self.look_for_a_newer_map();
        if self.is_local() {
            let mut bytes = BytesMut::zeroed((end - from) as usize);
            if self.read_here(file, from, &mut bytes) {
                return Ok(bytes.freeze());
            }
        }
        let first = self.piece(file, from, end);
        let mut bytes = self.inner.read(file, first.0, first.1).await?;
        if from + bytes.len() as u64 == end {
            return Ok(bytes);
        }
        let mut all = BytesMut::with_capacity((end - from) as usize);
        loop {
            all.extend_from_slice(&bytes);
            let at = from + all.len() as u64;
            if at == end {
                return Ok(all.freeze());
            }
            let (at, len) = self.piece(file, at, end);
            bytes = self.inner.read(file, at, len).await?;
        }
    }

    /// Brings bytes of an open file, within one stretch, to their home, if they are not there. How many they are. Nobody
    /// waits for them: a home that is slow is waited for, where a read would go to the source by itself.
    pub async fn load(&self, file: &OpenFile, from: u64, len: usize) -> Result<u64, SourceError> {
        let end = from.saturating_add(len as u64).min(file.size());
        if from >= end {
            return Ok(0);
        }
        let (from, len) = self.piece(file, from, end);
        self.inner.load(file, from, len).await?;
        Ok(u64::from(len))
    }

    /// Returns true if nodes may keep an open file's bytes, as its source has it now.
    pub async fn may_be_kept(&self, file: &OpenFile) -> Result<Keep, SourceError> {
        let some = file.size().min(1) as usize;
        let read = self.inner.source.read(&file.version, 0, some).await;
        read.map(|(_, keep)| keep)
    }

    /// The part of a range in the first stretch that it touches.
    fn piece(&self, _file: &OpenFile, from: u64, end: u64) -> (u64, u32) {
        let stretch = u64::from(FILE_BYTES_MAX);
        let to = end.min((from / stretch + 1) * stretch);
        (from, (to - from) as u32)
    }

    fn look_for_a_newer_map(&self) {
        let mut looked = self.inner.looked.lock();
        if looked.elapsed() < MAP_AGE_MAX {
            return;
        }
        *looked = Instant::now();
        let data = self.clone();
        tokio::spawn(async move { data.refresh().await });
    }

    /// Looks for a newer map, and for nodes on this machine. Reads that go to nodes do so by themselves, once a second.
    pub async fn refresh(&self) {
        if let Err(error) = self.inner.client.refresh().await {
            tracing::debug!(%error, "no newer map");
        }
        self.inner.find_pool_again().await;
        self.look_around().await;
        self.tell_use().await;
    }

    /// Lets the cluster know from now on, with each [`Dataset::refresh`], who uses the dataset, for people who want to drop it.
    pub fn used_by(&self, whom: impl Into<String>) {
        let by = whom.into();
        *self.inner.used.lock() = Some(Use { by, told: None });
    }

    /// True while the source answers nothing at all, as far as is known.
    pub fn is_away(&self) -> bool {
        self.inner.source.outage().is_some()
    }

    async fn tell_use(&self) {
        let outage = self.inner.source.outage();
        let due = |used: &mut Use| used.is_due(outage.is_some()).then(|| used.by.clone());
        let by = self.inner.used.lock().as_mut().and_then(due);
        let Some(by) = by else { return };
        self.probe_source();
        let dataset = self.inner.name.clone();
        let told = match outage {
            None => Message::FileUse(FileUse { dataset, by }),
            Some(outage) => Message::FileAway(FileAway {
                dataset,
                by,
                for_ms: outage.since.elapsed().as_millis() as u64,
                why: outage.why.chars().take(WHY_CHARS_MAX).collect(),
            }),
        };
        if let Err(error) = self.inner.client.ask_any(&told).await {
            tracing::debug!(%error, "nobody heard that the dataset is in use");
        }
    }

    /// Asks the source for a sign of life, if nobody does just now. Waits for nothing.
    fn probe_source(&self) {
        if self.inner.probed.swap(true, Ordering::Relaxed) {
            return;
        }
        let inner = self.inner.clone();
        tokio::spawn(async move {
            inner.source.probe(TELL).await;
            inner.probed.store(false, Ordering::Relaxed);
        });
    }

    /// The nodes on this machine.
    async fn look_around(&self) {
        let (locals, pool) = (self.inner.locals.clone(), self.inner.pool());
        let map = self.inner.client.map();
        let looked = tokio::task::spawn_blocking(move || locals.look(&map, pool)).await;
        if let Err(error) = looked {
            tracing::debug!(%error, "the nodes of this machine were not looked for");
        }
    }

    /// Fills `into` with bytes of an open file from a node's memory on this machine, without waiting for anything. False if
    /// not all of them are there: [`Dataset::read_at`] gets them.
    pub fn read_here(&self, file: &OpenFile, from: u64, into: &mut [u8]) -> bool {
        let end = from.checked_add(into.len() as u64);
        let here = end.is_some_and(|end| end <= file.size())
            && self.inner.locals.read(file.id, from, into);
        if here {
            let local_bytes = &self.inner.figures.local_bytes;
            local_bytes.fetch_add(into.len() as u64, Ordering::Relaxed);
        }
        here
    }

    /// Returns true if there is such a folder and nothing is in it. Blocks the thread for as long as it takes, but not for ever.
    pub fn is_empty_folder(source: &str) -> bool {
        let source = Source::parse(source);
        let names = source.and_then(|source| source.list_at_most(b"", 0));
        names.is_ok_and(|names| names.is_empty())
    }

    /// Returns true if a node of the pool is on this machine.
    pub fn is_local(&self) -> bool {
        !self.inner.locals.is_empty()
    }
}

/// The outcome of a request to a node.
enum Asked {
    Bytes(Bytes),
    /// It has not all of them, or cannot get them.
    Absent,
    /// It did not answer, or not yet.
    Silent,
}

impl Inner {
    fn pool(&self) -> PoolId {
        *self.pool.read()
    }

    /// A pool that was deleted and made anew under its name is another one, which knows no datasets yet. Until it is found, reads go
    /// to the source.
    async fn find_pool_again(&self) {
        let map = self.client.map();
        if map.pools.contains_key(&self.pool()) {
            return;
        }
        // No node has answered yet.
        if map.nodes.is_empty() {
            return;
        }
        let new = match files_pool(&map, &self.pool_name) {
            Ok(new) => new,
            Err(error) => return self.log_unpooled(&error),
        };
        if !is_known(&map, new, &self.name, &self.address) {
            let change = Change::SetDataset {
                pool: self.pool_name.clone(),
                name: self.name.clone(),
                source: self.address.clone(),
            };
            if let Err(error) = self.client.propose(&change).await {
                return self.log_unpooled(&error);
            }
        }
        *self.pool.write() = new;
    }

    /// Logs a reason once, not each time that it is found again.
    fn log_unpooled(&self, error: &ClientError) {
        let text = error.to_string();
        let mut last = self.unpooled.lock();
        if *last != text {
            let dataset = &self.name;
            tracing::warn!(dataset, "no memory of nodes is used for it: {text}");
            *last = text;
        }
    }

    async fn read(&self, file: &OpenFile, from: u64, len: u32) -> Result<Bytes, SourceError> {
        let (map, pool) = (self.client.map(), self.pool());
        let holdings = map.pools.get(&pool).and_then(|p| p.holdings());
        let Some(holdings) = holdings else {
            return self.ask_source(file, from, len, None).await;
        };
        let bucket = holdings.bucket_of([file.id.high, file.id.low], (from / BLOCK_BYTES) as u32);
        let read = FileRead {
            pool,
            file: file.id,
            from,
            len,
        };
        let home = holdings.home(bucket).map(|h| h.node);
        for node in self.holders(&map, holdings, bucket) {
            match self.ask_holder(&map, node, &read).await {
                Asked::Bytes(bytes) => {
                    let pool_bytes = &self.figures.pool_bytes;
                    pool_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    return Ok(bytes);
                }
                Asked::Absent | Asked::Silent => {}
            }
        }
        let Some(home) = home.filter(|home| !self.patience.shuns(*home)) else {
            return self.ask_source(file, from, len, None).await;
        };
        self.ask_home(&map, home, file, read).await
    }

    async fn load(&self, file: &OpenFile, from: u64, len: u32) -> Result<(), SourceError> {
        let (map, pool) = (self.client.map(), self.pool());
        let holdings = map.pools.get(&pool).and_then(|p| p.holdings());
        let bucket =
            |h: &Holdings| h.bucket_of([file.id.high, file.id.low], (from / BLOCK_BYTES) as u32);
        let home = holdings.and_then(|h| h.home(bucket(h))).map(|h| h.node);
        if let Some(home) = home {
            let read = FileRead {
                pool,
                file: file.id,
                from,
                len,
            };
            let asked = self.ask(&map, home, fetch(file, read), len, READ).await;
            if let Asked::Bytes(_) = asked {
                return Ok(());
            }
        }
        self.ask_source(file, from, len, home).await.map(|_| ())
    }

    /// Those that hold a bucket, the most promising first. No more than two are asked before the source is.
    fn holders(&self, map: &ClusterMap, holdings: &Holdings, bucket: u32) -> Vec<NodeId> {
        let up = holdings.holders(bucket).iter();
        let up = up.filter(|h| map.is_up(h.node, h.incarnation) && !self.patience.shuns(h.node));
        let mut up: Vec<NodeId> = up.map(|h| h.node).collect();
        if up.len() > 1 {
            let first = rand::random_range(0..up.len());
            up.swap(0, first);
            up.truncate(2);
        }
        up
    }

    /// Asks a holder for what it has, no longer than such an answer takes.
    async fn ask_holder(&self, map: &ClusterMap, node: NodeId, read: &FileRead) -> Asked {
        let (began, len) = (Instant::now(), read.len);
        let within = self.patience.within(node, len);
        let asked = self
            .ask(map, node, Message::FileRead(read.clone()), len, within)
            .await;
        match &asked {
            Asked::Bytes(_) => self.patience.answered(node, len, began.elapsed()),
            Asked::Absent => {}
            Asked::Silent => self.patience.silent(node, len),
        }
        asked
    }

    /// Asks a node for `len` bytes.
    async fn ask(
        &self,
        map: &ClusterMap,
        node: NodeId,
        ask: Message,
        len: u32,
        within: Duration,
    ) -> Asked {
        let Some(to) = map.nodes.get(&node) else {
            return Asked::Absent;
        };
        let deadline = Instant::now() + within;
        let transport = self.client.router().transport();
        match transport.call_addr(&to.native, &ask, deadline).await {
            Ok(Message::FileBytes(FileBytes { bytes: Some(bytes) })) => {
                if bytes.len() == len as usize {
                    return Asked::Bytes(bytes);
                }
                // Whatever they are, they are not what was asked for.
                if self.patience.wrong(node) {
                    let given = bytes.len();
                    tracing::warn!(%node, "it gave {given} bytes of a file where {len} were asked for: it is passed over for a while");
                }
                Asked::Absent
            }
            Ok(_) => Asked::Absent,
            Err(NetError::Refused { .. }) => Asked::Absent,
            Err(error) => {
                tracing::debug!(%node, %error, "a holder does not answer");
                Asked::Silent
            }
        }
    }

    /// The home fetches what nobody has. If it takes longer than it lately did, the source is read here too, and the
    /// first that comes is taken.
    async fn ask_home(
        &self,
        map: &ClusterMap,
        home: NodeId,
        file: &OpenFile,
        read: FileRead,
    ) -> Result<Bytes, SourceError> {
        let (from, len) = (read.from, read.len);
        let began = Instant::now();
        let usual = Duration::from_micros(self.fetch_us.load(Ordering::Relaxed));
        // Where the source itself is slow, a home is not silent for that long.
        let patience = self
            .patience
            .within(home, len)
            .max(usual.max(self.source.usual()) * 4);
        let asked = self.ask(map, home, fetch(file, read), len, READ);
        tokio::pin!(asked);
        let answer = tokio::select! {
            answer = &mut asked => Some(answer),
            () = sleep_until((began + patience).into()) => None,
        };
        let answer = match answer {
            Some(answer) => answer,
            None => {
                let here = self.ask_source(file, from, len, Some(home));
                tokio::pin!(here);
                tokio::select! {
                    here = &mut here => match here {
                        Ok(bytes) => {
                            self.patience.silent(home, len);
                            return Ok(bytes);
                        }
                        // The home may reach it where this machine does not.
                        Err(error) => match asked.await {
                            Asked::Bytes(bytes) => Asked::Bytes(bytes),
                            _ => return Err(error),
                        },
                    },
                    answer = &mut asked => match answer {
                        Asked::Bytes(bytes) => Asked::Bytes(bytes),
                        _ => return here.await,
                    },
                }
            }
        };
        match answer {
            Asked::Bytes(bytes) => {
                self.source_took(began.elapsed());
                let fetched = &self.figures.fetched_bytes;
                fetched.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                Ok(bytes)
            }
            Asked::Absent => self.ask_source(file, from, len, Some(home)).await,
            Asked::Silent => {
                self.patience.silent(home, len);
                self.ask_source(file, from, len, None).await
            }
        }
    }

    /// Reads the source here, and gives the home what was read: whole parts.
    async fn ask_source(
        &self,
        file: &OpenFile,
        from: u64,
        len: u32,
        home: Option<NodeId>,
    ) -> Result<Bytes, SourceError> {
        let end = from + u64::from(len);
        let (start, stop) = match home {
            Some(_) => {
                let stop = end.next_multiple_of(PART_BYTES).min(file.version.size);
                (from / PART_BYTES * PART_BYTES, stop)
            }
            None => (from, end),
        };
        let began = Instant::now();
        let read = self
            .source
            .read(&file.version, start, (stop - start) as usize);
        let read = timeout_at((Instant::now() + READ).into(), read).await;
        let (bytes, keep) = read.unwrap_or_else(|_| {
            Err(SourceError::Unreachable {
                place: self.name.clone(),
                reason: format!("it did not answer within {} s", READ.as_secs()),
            })
        })?;
        self.source_took(began.elapsed());
        let source_bytes = &self.figures.source_bytes;
        source_bytes.fetch_add(stop - start, Ordering::Relaxed);
        if let Some(home) = home.filter(|_| keep == Keep::Yes) {
            self.give(home, file, start, bytes.clone());
        }
        let skip = (from - start) as usize;
        Ok(bytes.slice(skip..skip + len as usize))
    }

    /// Nobody waits for it, and where there is no room for it, it is left out: the home can do without.
    fn give(&self, home: NodeId, file: &OpenFile, from: u64, bytes: Bytes) {
        let takes = bytes.len().clamp(GIFT_BYTES_MIN, GIVEN_BYTES_MAX) as u32;
        let Ok(room) = self.gifts.clone().try_acquire_many_owned(takes) else {
            let not_given = &self.figures.not_given_bytes;
            not_given.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            return;
        };
        let put = Message::FilePut(FilePut {
            pool: self.pool(),
            file: file.id,
            size: file.version.size,
            from,
            bytes,
            forwarded: false,
        });
        let client = self.client.clone();
        tokio::spawn(async move {
            if let Err(error) = client.ask(home, put, Instant::now() + PUT).await {
                tracing::debug!(%home, %error, "a home did not take what was read");
            }
            drop(room);
        });
    }

    fn source_took(&self, took: Duration) {
        let smoothed = (self.fetch_us.load(Ordering::Relaxed) * 7 + took.as_micros() as u64) / 8;
        self.fetch_us.store(smoothed, Ordering::Relaxed);
    }
}

/// The question to a home.
fn fetch(file: &OpenFile, read: FileRead) -> Message {
    Message::FileFetch(FileFetch {
        read,
        size: file.version.size,
        dataset: file.version.dataset.clone(),
        path: Bytes::copy_from_slice(&file.version.path),
        version: file.version.version.clone(),
    })
}
