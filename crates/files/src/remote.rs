//! A bucket, or a folder of a web server, as a source.
//!
//! **A version** is the ETag, if it is a strong one, or else the time of the last change. Each request for bytes is on
//! the condition of the version, and the answer is compared with it: a server that ignores conditions shows that in
//! the headers of its answer. So bytes are those of the version, or there is an error.
//!
//! **Bounds.** A request is tried [three times](PAUSES), twice if a web server denies a name that is listed; a server that is silent for 5 s is given up, and all tries together
//! take at most 25 s. At most [`AT_ONCE`] requests for bytes of a source are under way in a process. Attributes of a name are
//! cached for [`STAT_TTL`], and longer while the server does not answer (`outage.rs`); a read that finds another version ends that. A listing has at most [`bounded::NAMES_MAX`] names.
//!
//! `remote/address.rs`: addresses. `remote/away.rs`: whether it answers. `remote/bounded.rs`: the bounds of lists. `remote/bucket.rs`: credentials;
//! `remote/door.rs`: new ones. `remote/manifest.rs`: lists of servers that cannot list. `remote/failure.rs`: errors. `remote/roots.rs`: certificates.
//! `remote/sifted.rs`: keys that no path can have.

pub mod address;
mod away;
mod bounded;
mod bucket;
mod door;
mod failure;
mod manifest;
mod names;
mod roots;
mod sifted;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use chrono::DateTime;
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt};
use tokio::sync::Semaphore;

use self::address::{Address, Server};
use self::bucket::Settings;
use self::door::{Door, Find, TOTAL, settings};
use self::failure::Failure;
use self::names::Names;
use crate::driver;
use crate::entry::{Keep, Kind, SourceError, Stat};
use crate::outage::{Availability, Outage};
use crate::stat_cache::NameLimits;
use crate::version::FileVersion;

/// Requests for bytes of one source that a process has under way.
const AT_ONCE: usize = 32;
/// The lifetime of a cached answer about a name.
const STAT_TTL: Duration = Duration::from_secs(5);
/// The longest wait for an answer of which there is an earlier one.
const AWAY_WAIT: Duration = Duration::from_secs(6);
/// The pauses before each further try.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(800)];
/// A web server's ETag, or whatever has none, may tell no more than the second of the change and the size: a file that changed this
/// lately, by this machine's clock, may change again and not show it. Clocks that are a few seconds apart do no harm.
const FRESH: Duration = Duration::from_secs(10);

/// A caller that asks beside others waits four times the usual before they count as silent, and at most a second.
const USUAL_MAX: Duration = Duration::from_millis(250);

/// The weight of an answer that something is not there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Absence {
    Counts,
    /// It is listed, or was there just before: it is asked for once more. A server in trouble may deny it once.
    IsDoubted,
}

/// A bucket or a web server's folder.
pub struct Remote {
    address: Address,
    place: String,
    door: Arc<Door>,
    names: Names,
    /// A source that does not answer delays no other one.
    room: Semaphore,
    /// Microseconds that answers took until now, smoothed.
    usual_us: AtomicU64,
    availability: Availability,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Remote({})", self.place)
    }
}

impl Remote {
    /// Sends no request yet.
    pub fn open(address: Address, limits: NameLimits) -> Result<Remote, SourceError> {
        Remote::with(address, limits, Box::new(Settings::find))
    }

    fn with(address: Address, limits: NameLimits, find: Find) -> Result<Remote, SourceError> {
        let place = address.to_string();
        let malformed = |reason: String| SourceError::Malformed {
            text: place.clone(),
            reason,
        };
        let door = Arc::new(Door::open(&address, limits.list_bytes, find).map_err(malformed)?);
        Ok(Remote {
            names: Names::of(&address, limits),
            address,
            place,
            door,
            room: Semaphore::new(AT_ONCE),
            usual_us: AtomicU64::new(0),
            availability: Availability::default(),
        })
    }

    /// The address, for messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// See [`crate::Source::outage`].
    pub fn outage(&self) -> Option<Outage> {
        self.availability.outage()
    }

    /// The usual time of its answers, as far as it was asked.
    pub fn usual(&self) -> Duration {
        Duration::from_micros(self.usual_us.load(Ordering::Relaxed)).min(USUAL_MAX)
    }

    fn is_web(&self) -> bool {
        matches!(self.address.server, Server::Web { .. })
    }

    /// The server's name for a path; the root's is `None` if there is no prefix.
    fn key(&self, path: &str) -> Option<Path> {
        let prefix = &self.address.prefix;
        let key = match (prefix.is_empty(), path.is_empty()) {
            (true, true) => return None,
            (true, false) => Path::parse(path),
            (false, true) => Path::parse(prefix),
            (false, false) => Path::parse(format!("{prefix}/{path}")),
        };
        Some(key.expect("prefixes and paths are plain"))
    }

    /// See [`crate::Source::read`].
    pub async fn read(
        self: &Arc<Self>,
        file: &FileVersion,
        from: u64,
        len: usize,
    ) -> Result<(Bytes, Keep), SourceError> {
        let path = self.plain(&file.path)?;
        let place = self.url(&path);
        let (me, file) = (self.clone(), file.clone());
        let read = driver::run(async move { me.read_there(&path, &file, from, len).await });
        let unreachable = |reason| Err(SourceError::Unreachable { place, reason });
        read.await.unwrap_or_else(unreachable)
    }

    async fn read_there(
        &self,
        path: &str,
        file: &FileVersion,
        from: u64,
        len: usize,
    ) -> Result<(Bytes, Keep), SourceError> {
        let end = from.checked_add(len as u64).filter(|end| *end <= file.size);
        let Some(end) = end.filter(|end| *end > from) else {
            let reason = format!(
                "bytes {from} and {len} more are not within its {}",
                file.size
            );
            let place = self.url(path);
            return Err(SourceError::Unreachable { place, reason });
        };
        let asked = Instant::now();
        let read = self.tried_as(self.listed_absence(), move || async move {
            let _place = self.room.acquire().await.expect("it is never closed");
            self.get(path, file, from..end).await
        });
        let failure = match read.await {
            Ok(read) => return Ok(read),
            Err(failure) => failure,
        };
        if failure.is_clear() && !self.names.manifest_is_odd() {
            self.names.forget(path);
            return Err(self.error(path, failure));
        }
        self.names.doubt(path);
        // Some say in other words that the file is another one: that it is too short, that there is no such range.
        let named = self.ask_name(path).await;
        self.or_a_sign(named.as_ref().err().cloned()).await;
        self.judge(asked, &named);
        if let Ok(Some(stat)) = named
            && !is_still(&stat, file)
            && !self.names.manifest_is_odd()
        {
            self.names.forget(path);
            return Err(self.error(path, Failure::Changed));
        }
        Err(self.error(path, failure))
    }

    /// One try.
    async fn get(
        &self,
        path: &str,
        file: &FileVersion,
        range: Range<u64>,
    ) -> Result<(Bytes, Keep), Failure> {
        let key = self.key(path).ok_or(Failure::Changed)?;
        let mut options = GetOptions::new().with_range(Some(range.clone()));
        match file.version.strip_prefix(MODIFIED) {
            Some(time) => {
                let time = time
                    .parse()
                    .ok()
                    .and_then(|s| DateTime::from_timestamp(s, 0));
                options.if_unmodified_since = time;
            }
            None => options.if_match = Some(file.version.clone()),
        }
        let answer = self.door.store().get_opts(&key, options).await?;
        // It had one: this is another's answer, a page for people perhaps.
        let version = version_of(&answer.meta).ok_or_else(Failure::versionless)?;
        if version != file.version || answer.meta.size != file.size {
            return Err(Failure::Changed);
        }
        let fresh = self.is_fresh(&answer.meta, &version);
        if answer.range != range {
            let text = format!(
                "it gives bytes {:?} where {range:?} were asked for",
                answer.range
            );
            return Err(Failure::Odd(text));
        }
        let len = (range.end - range.start) as usize;
        let mut bytes = BytesMut::with_capacity(len);
        let mut stream = answer.into_stream();
        while let Some(some) = stream.next().await {
            let some = some?;
            if bytes.len() + some.len() > len {
                let text = format!("it sends more than the {len} bytes that were asked for");
                return Err(Failure::Odd(text));
            }
            bytes.extend_from_slice(&some);
        }
        if bytes.len() < len {
            let text = format!(
                "it sends {} of the {len} bytes that were asked for",
                bytes.len()
            );
            return Err(Failure::Odd(text));
        }
        let keep = if fresh { Keep::NotYet } else { Keep::Yes };
        Ok((bytes.freeze(), keep))
    }

    /// Asks the server for a name: `None` if there is no file of that name.
    async fn ask_name(&self, path: &str) -> Result<Option<Stat>, Failure> {
        self.ask_name_as(Absence::Counts, path).await
    }

    async fn ask_name_as(&self, absence: Absence, path: &str) -> Result<Option<Stat>, Failure> {
        let Some(key) = self.key(path) else {
            return Ok(None);
        };
        let key = &key;
        let asked = self.tried_as(absence, move || async move {
            let meta = self.door.store().head(key).await?;
            let stat = self.stat_of(&meta);
            stat.map_err(|failure| self.names.doubted(path, failure))
        });
        let answer = asked.await;
        if matches!(answer, Ok(_) | Err(Failure::NotFound)) {
            self.names.is_answered_oddly.store(false, Ordering::Relaxed);
        }
        match answer {
            Ok(stat) => Ok(Some(stat)),
            Err(Failure::NotFound) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// The weight of a denial of a name that is listed. A bucket's own list and its objects are of one mind.
    fn listed_absence(&self) -> Absence {
        match self.is_web() {
            true => Absence::IsDoubted,
            false => Absence::Counts,
        }
    }

    /// Tries until there is an answer, or none is to be hoped for.
    async fn tried<T, F>(&self, once: impl Fn() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        self.tried_as(Absence::Counts, once).await
    }

    async fn tried_as<T, F>(&self, absence: Absence, once: impl Fn() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let tries = async {
            let mut pauses = PAUSES.iter();
            let mut may_be_there = absence == Absence::IsDoubted;
            loop {
                let began = Instant::now();
                let failure = match once().await {
                    Ok(answer) => {
                        self.took(began.elapsed());
                        self.answered();
                        return Ok(answer);
                    }
                    Err(failure) => failure,
                };
                if failure.is_answer() {
                    self.answered();
                }
                if failure.is_refusal() && self.has_other_credentials(began).await {
                    continue;
                }
                let is_denied = matches!(failure, Failure::NotFound);
                let is_doubted = is_denied && std::mem::take(&mut may_be_there);
                let goes_on = is_doubted || !failure.is_clear();
                match pauses.next().filter(|_| goes_on) {
                    Some(pause) => {
                        tracing::debug!(place = %self.place, ?failure, "asked again");
                        tokio::time::sleep(*pause).await;
                    }
                    None => return Err(failure),
                }
            }
        };
        let ended = tokio::time::timeout(TOTAL, tries).await;
        ended.unwrap_or(Err(Failure::Late(TOTAL)))
    }

    /// True if there are other credentials than those of a try that was refused.
    async fn has_other_credentials(&self, asked: Instant) -> bool {
        let (door, address) = (self.door.clone(), self.address.clone());
        let looked = tokio::task::spawn_blocking(move || door.is_opened_anew(&address, asked));
        looked.await.unwrap_or(false)
    }

    fn took(&self, time: Duration) {
        let time = time.as_micros() as u64;
        let usual = self.usual_us.load(Ordering::Relaxed);
        let smoothed = if usual == 0 {
            time
        } else {
            (usual * 7 + time) / 8
        };
        self.usual_us.store(smoothed, Ordering::Relaxed);
    }

    fn stat_of(&self, meta: &ObjectMeta) -> Result<Stat, Failure> {
        let version = version_of(meta).ok_or(Failure::Unversioned)?;
        let fresh = self.is_fresh(meta, &version);
        Ok(Stat {
            kind: Kind::File { version, fresh },
            size: meta.size,
            // Not all answers have more than seconds.
            modified: (meta.last_modified.timestamp(), 0),
            executable: false,
            for_all: true,
            links: 1,
            has_holes: false,
        })
    }

    fn is_fresh(&self, meta: &ObjectMeta, version: &str) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_secs() as i64;
        let may_hide = self.is_web() || version.starts_with(MODIFIED);
        // A time that lies ahead is of another clock.
        may_hide && meta.last_modified.timestamp() > now - FRESH.as_secs() as i64
    }

    /// A path as a server may have it.
    fn plain(&self, path: &[u8]) -> Result<String, SourceError> {
        let text = std::str::from_utf8(path).ok();
        let text = text.filter(|text| text.is_empty() || address::is_plain(text));
        text.map(str::to_owned)
            .ok_or_else(|| SourceError::NotFound {
                path: String::from_utf8_lossy(path).into_owned(),
                place: self.place.clone(),
            })
    }

    /// The address of a path as people would type it.
    fn url(&self, path: &str) -> String {
        let place = self.place.split('#').next().unwrap_or_default();
        match path.is_empty() {
            true => place.to_owned(),
            false => format!("{place}/{path}"),
        }
    }

    /// A failure for the caller, with the address that it was at.
    fn error(&self, path: &str, failure: Failure) -> SourceError {
        let url = self.url(path);
        let reason = match failure {
            Failure::NotFound => {
                let (path, place) = (path.to_owned(), self.place().to_owned());
                return SourceError::NotFound { path, place };
            }
            Failure::Changed => return SourceError::Changed { path: url },
            Failure::Denied(text) => {
                let reason = format!("{text}; {}", self.door.credentials());
                return SourceError::Denied { path: url, reason };
            }
            Failure::Unversioned => "the server gives neither an ETag nor a time of the last change, so that it could change unseen".to_owned(),
            Failure::NoRanges => "the server gives the whole file where a part was asked for: it must know ranges".to_owned(),
            Failure::Late(time) => format!("it did not answer within {} s", time.as_secs()),
            Failure::Certificate(why) => failure::certificate(&why),
            Failure::NoList(text)
            | Failure::Status(text, _)
            | Failure::Odd(text)
            | Failure::Other(text) => text,
        };
        let place = match &self.address.server {
            Server::Bucket {
                endpoint: Some(endpoint),
                ..
            } => format!("{url} at {endpoint}"),
            _ => url,
        };
        SourceError::Unreachable { place, reason }
    }
}

/// The beginning of a version that is a time; an ETag begins with a quote.
const MODIFIED: &str = "modified ";

/// The mark of a version, if the server gives any.
fn version_of(meta: &ObjectMeta) -> Option<String> {
    let etag = meta.e_tag.as_deref().and_then(strong);
    let time = meta.last_modified.timestamp();
    etag.or_else(|| (time > 0).then(|| format!("{MODIFIED}{time}")))
}

/// The longest ETag: each is kept for its name.
const ETAG_BYTES_MAX: usize = 1024;

/// An ETag as it stands in headers; some listings leave out its quotes. Weak ones stay the same when bytes change.
fn strong(etag: &str) -> Option<String> {
    let etag = etag.trim();
    let bare = etag.trim_matches('"');
    let fits = !bare.is_empty() && bare.len() <= ETAG_BYTES_MAX;
    let fits = fits && !etag.starts_with("W/") && !bare.contains('"');
    fits.then(|| format!("\"{bare}\""))
}

fn is_still(stat: &Stat, file: &FileVersion) -> bool {
    let version = match &stat.kind {
        Kind::File { version, .. } => version,
        Kind::Folder | Kind::Link(_) | Kind::Unreadable => return false,
    };
    *version == file.version && stat.size == file.size
}

/// The address with the endpoint that this process would use: other machines are to read the same.
pub fn completed(mut address: Address) -> Result<Address, SourceError> {
    let found = Settings::find().map_err(|reason| SourceError::Malformed {
        text: address.to_string(),
        reason,
    })?;
    let found = settings(&address, found);
    if let Server::Bucket { endpoint, .. } = &mut address.server {
        *endpoint = found.endpoint;
    }
    Ok(address)
}
