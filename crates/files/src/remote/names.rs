//! Names below an address: a bucket lists them; a web server has a manifest of them, or lists them by WebDAV (`names/web.rs`).

mod web;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures_util::StreamExt;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::{ListResult, ObjectMeta};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::address::{self, Address, Server};
use super::bounded::{LISTS_AT_ONCE, NAMES_MAX};
use super::door::TOTAL;
use super::failure::Failure;
use super::manifest::{MANIFEST_BYTES_MAX, Manifest};
use super::{AWAY_WAIT, Absence, Remote, STAT_TTL};
use crate::answers::Answers;
use crate::driver;
use crate::entry::{Kind, SourceError, Stat};
use crate::folder::Workers;
use crate::outage::{ANSWER_AGE_MAX, OUTAGE_MAX, Outage};
use crate::stat_cache::{NameLimits, StatCache};

/// The number of pages of a list in a row that have no further name: all of them may be of names that nothing can have.
const PAGES_IN_VAIN_MAX: usize = 1000;
/// The permits for lists, which take memory for their names.
static LISTS: Semaphore = Semaphore::const_new(LISTS_AT_ONCE);
/// The manifest of a web server's folder, if no other is named.
const MANIFEST: &str = "MANIFEST";

/// The names of a source, and the origin of its lists.
pub struct Names {
    known: Mutex<Answers<NameAnswer>>,
    /// The time of the last question that had no answer.
    pub(super) unanswered: Mutex<Option<Instant>>,
    /// The lists that were shown, for outages.
    shown: StatCache,
    lists: Mutex<Option<(Instant, Lists)>>,
    manifest_bytes_max: u64,
    dav: Mutex<HashMap<String, (Instant, Arc<Listed>)>>,
    place: Place,
    /// A name that had a version is answered without one now: until an answer is as before, none without one is an answer.
    pub(super) is_answered_oddly: AtomicBool,
    /// The server gives something else for its manifest, which was one before.
    manifest_is_odd: AtomicBool,
}

/// The last answer about a name.
struct NameAnswer {
    /// `None`: there is no such name, or not in the version that it had.
    stat: Option<Stat>,
    /// It counts in an outage alone: the next caller asks the server.
    is_doubted: bool,
}

/// The possible place of a manifest.
enum Place {
    /// Buckets need none.
    Needless,
    /// In the folder itself, if at all.
    Below(String, IfAbsent),
    /// On this machine, where it may be on a file server.
    Here(String, Workers),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum IfAbsent {
    Dav,
    Fail,
}

/// The origin of a web server's lists.
#[derive(Clone)]
enum Lists {
    Manifest(Arc<Manifest>),
    Dav,
}

/// A folder's content by WebDAV: files with their attributes, and folders.
type Listed = BTreeMap<String, Option<ObjectMeta>>;

const FOLDER: Stat = Stat {
    kind: Kind::Folder,
    size: 0,
    modified: (0, 0),
    executable: false,
    for_all: true,
    links: 1,
    has_holes: false,
};

impl Names {
    pub fn of(address: &Address, limits: NameLimits) -> Names {
        let place = match &address.server {
            Server::Bucket { .. } => Place::Needless,
            Server::Web { manifest, .. } => match manifest {
                None => Place::Below(MANIFEST.to_owned(), IfAbsent::Dav),
                Some(path) if path.starts_with('/') => {
                    Place::Here(path.clone(), Workers::new(path, || ()))
                }
                Some(name) => Place::Below(name.clone(), IfAbsent::Fail),
            },
        };
        Names {
            known: Mutex::new(Answers::new(limits.cached)),
            unanswered: Mutex::default(),
            shown: StatCache::new(limits.cached),
            lists: Mutex::default(),
            manifest_bytes_max: MANIFEST_BYTES_MAX.min(limits.list_bytes as u64),
            dav: Mutex::default(),
            place,
            is_answered_oddly: AtomicBool::new(false),
            manifest_is_odd: AtomicBool::new(false),
        }
    }

    /// The reason that a name has no version: where it had one before, something else answers in the server's place.
    pub(super) fn doubted(&self, path: &str, failure: Failure) -> Failure {
        if !matches!(failure, Failure::Unversioned) {
            return failure;
        }
        let known = |stat: &Option<Stat>| matches!(stat, Some(stat) if matches!(stat.kind, Kind::File { .. }));
        let had_one = {
            let all = self.known.lock();
            // One that has had none for so long has none: its server has changed.
            let counts = |at: Instant| at.elapsed() < ANSWER_AGE_MAX + OUTAGE_MAX;
            all.get(path.as_bytes())
                .is_some_and(|own| counts(own.at) && known(&own.value.stat))
        };
        if had_one || self.shown.has_file(path.as_bytes()) {
            self.is_answered_oddly.store(true, Ordering::Relaxed);
        }
        let is_odd = self.is_answered_oddly.load(Ordering::Relaxed) || self.manifest_is_odd();
        match is_odd {
            true => Failure::versionless(),
            false => failure,
        }
    }

    /// True while the server gives no manifest where it gave one before.
    pub(super) fn manifest_is_odd(&self) -> bool {
        self.manifest_is_odd.load(Ordering::Relaxed)
    }

    /// Something else than a manifest, where one was read before, is no answer of the server.
    fn no_manifest(&self, why: String) -> Failure {
        let was_read = matches!(*self.lists.lock(), Some((_, Lists::Manifest(_))));
        if was_read && matches!(self.place, Place::Below(..)) {
            self.manifest_is_odd.store(true, Ordering::Relaxed);
        }
        match was_read {
            true => Failure::Odd(why),
            false => Failure::NoList(why),
        }
    }

    fn manifest(&self, text: Result<String, String>) -> Result<Lists, Failure> {
        let parsed = text.and_then(|text| {
            let manifest = Manifest::parse(&text);
            manifest.map_err(|why| format!("its manifest is none: {why}"))
        });
        let manifest = parsed.map_err(|why| self.no_manifest(why))?;
        self.manifest_is_odd.store(false, Ordering::Relaxed);
        Ok(Lists::Manifest(Arc::new(manifest)))
    }

    /// The name is not what it was: the next caller asks the server, and nothing older counts in an outage.
    pub fn forget(&self, path: &str) {
        self.insert(path, None, true);
    }

    fn known(&self, path: &str) -> Option<Option<Stat>> {
        let known = self.known.lock();
        let answer = known.get(path.as_bytes())?;
        let counts = !answer.value.is_doubted && answer.at.elapsed() < STAT_TTL;
        counts.then(|| answer.value.stat.clone())
    }

    /// The next caller asks the server, and goes on with what is known if there is no answer.
    pub fn doubt(&self, path: &str) {
        if let Some(answer) = self.known.lock().get_mut(path.as_bytes()) {
            answer.value.is_doubted = true;
        }
    }

    /// The last answer for a name, its own or its folder's list, if it counts in an outage.
    fn last_known(&self, path: &str, outage: &Outage) -> Option<Stat> {
        let own = {
            let known = self.known.lock();
            let own = known.get(path.as_bytes());
            own.map(|own| (own.at, own.value.stat.clone()))
        };
        self.shown.newest(path.as_bytes(), own, outage)
    }

    /// True if the server was asked just now. One caller at a time is to have it asked again.
    pub(super) fn is_away(&self) -> bool {
        let mut unanswered = self.unanswered.lock();
        if unanswered.is_some_and(|at| at.elapsed() < STAT_TTL) {
            return true;
        }
        *unanswered = Some(Instant::now());
        false
    }

    fn remember(&self, path: &str, stat: Option<Stat>) {
        self.insert(path, stat, false);
    }

    fn insert(&self, path: &str, stat: Option<Stat>, is_doubted: bool) {
        let answer = NameAnswer { stat, is_doubted };
        self.known.lock().insert(path.as_bytes(), answer, 1);
    }
}

impl Remote {
    /// See [`crate::Source::stat`]. While the server does not answer, its last answer.
    pub fn stat(self: &Arc<Self>, path: &[u8]) -> Result<Stat, SourceError> {
        let path = self.plain(path)?;
        if path.is_empty() {
            return Ok(FOLDER);
        }
        if let Some(known) = self.names.known(&path) {
            return known.ok_or_else(|| self.error(&path, Failure::NotFound));
        }
        let admitted = |outage: &Outage| self.names.last_known(&path, outage);
        if let Some(outage) = self.outage_asked_again(&path) {
            match admitted(&outage) {
                Some(last) => return Ok(last),
                None if outage.since.elapsed() >= AWAY_WAIT => {
                    return Err(self.away(&path, &outage));
                }
                None => {}
            }
        }
        let (me, name) = (self.clone(), path.clone());
        let work = async move {
            let stat = match me.is_web() {
                true => me.stat_on_web(&name).await?,
                false => me.stat_in_bucket(&name).await?,
            };
            me.names.remember(&name, stat.clone());
            stat.ok_or(Failure::NotFound)
        };
        let asked = Instant::now();
        let is_known = admitted(&Outage::that_begins(asked)).is_some();
        let answer = self.ask(work, if is_known { AWAY_WAIT } else { TOTAL * 2 });
        match self.judge(asked, &answer).as_ref().and_then(admitted) {
            Some(last) => Ok(last),
            None => answer.map_err(|failure| self.error(&path, failure)),
        }
    }

    /// See [`crate::Source::list`]. During an outage, the last list.
    pub fn list(
        self: &Arc<Self>,
        path: &[u8],
        names_max: usize,
    ) -> Result<impl Iterator<Item = (String, Stat)> + use<>, SourceError> {
        let path = self.plain(path)?;
        let most = names_max.min(NAMES_MAX);
        let last = |outage: &Outage| {
            let names = self.names.shown.list(path.as_bytes(), outage)?;
            let fits = names.len() <= most;
            fits.then(|| of_cache(&names))
        };
        if let Some(outage) = self.outage_asked_again(&path) {
            match last(&outage) {
                Some(known) => return Ok(known.into_iter()),
                None if outage.since.elapsed() >= AWAY_WAIT => {
                    return Err(self.away(&path, &outage));
                }
                None => {}
            }
        }
        let asked = Instant::now();
        let shortly = self.names.shown.has_list(path.as_bytes());
        let (me, folder) = (self.clone(), path.clone());
        let work = async move {
            let names = me.names_in(&folder, most);
            match shortly {
                true => me.while_it_answers(names).await,
                false => names.await,
            }
        };
        let answer = self.ask(work, TOTAL * 2);
        if let Some(known) = self.judge(asked, &answer).as_ref().and_then(last) {
            return Ok(known.into_iter());
        }
        let names = answer.map_err(|failure| self.error(&path, failure))?;
        // There are no empty folders in buckets and manifests; WebDAV has them.
        if names.is_empty() && self.stat(path.as_bytes())?.kind != Kind::Folder {
            return Err(self.error(&path, Failure::NotFound));
        }
        let mut record = self.names.shown.record();
        for (name, stat) in &names {
            record.add(name.as_bytes(), stat);
        }
        self.names.shown.insert_list(path.as_bytes(), record);
        Ok(names.into_iter())
    }

    /// Checks that there is anything at the address.
    pub async fn check(self: &Arc<Self>) -> Result<(), SourceError> {
        let (me, asked) = (self.clone(), Instant::now());
        let seen = driver::run(async move { me.is_empty().await }).await;
        let seen = seen.unwrap_or_else(|why| Err(Failure::Other(why)));
        self.judge(asked, &seen);
        match seen {
            Ok(true) | Err(Failure::NotFound) => Err(self.nothing()),
            Ok(false) => Ok(()),
            Err(failure) => Err(self.error("", failure)),
        }
    }

    fn nothing(&self) -> SourceError {
        let reason = match &self.address.server {
            Server::Bucket { name, .. } if self.address.prefix.is_empty() => {
                format!("there is no bucket '{name}', or nothing is in it")
            }
            Server::Bucket { name, .. } => {
                let prefix = &self.address.prefix;
                format!(
                    "there is no bucket '{name}', or nothing in it whose name begins with '{prefix}/'"
                )
            }
            Server::Web { .. } => "nothing is there".to_owned(),
        };
        SourceError::Absent {
            place: self.place().to_owned(),
            reason,
        }
    }

    /// True if the address has nothing at all.
    async fn is_empty(&self) -> Result<bool, Failure> {
        if self.is_web() {
            return Ok(self.names_on_web("", NAMES_MAX).await?.is_empty());
        }
        let (listed, next) = self.page("", None).await?;
        Ok(next.is_none() && self.named("", &listed).next().is_none())
    }

    /// The names in a folder; none if it is not there.
    async fn names_in(&self, folder: &str, most: usize) -> Result<BTreeMap<String, Stat>, Failure> {
        match self.is_web() {
            true => self.names_on_web(folder, most).await,
            false => self.names_in_bucket(folder, most).await,
        }
    }

    async fn stat_in_bucket(&self, path: &str) -> Result<Option<Stat>, Failure> {
        if let Some(stat) = self.ask_name(path).await? {
            return Ok(Some(stat));
        }
        let key = self.key(path);
        let key = key.as_ref();
        let below = self.tried(move || async move {
            let first = self.door.store().list(key).next().await;
            Ok(first.transpose()?.is_some())
        });
        Ok(below.await?.then_some(FOLDER))
    }

    async fn names_in_bucket(
        &self,
        folder: &str,
        most: usize,
    ) -> Result<BTreeMap<String, Stat>, Failure> {
        let _place = LISTS.acquire().await.expect("it is never closed");
        let mut names: BTreeMap<String, Stat> = BTreeMap::new();
        let (mut from, mut pages_in_vain) = (None, 0);
        loop {
            let (listed, next) = self.page(folder, from.clone()).await?;
            let before = names.len();
            for (name, meta) in self.named(folder, &listed) {
                let stat = match meta {
                    Some(meta) => self.stat_of(meta).map(Some),
                    None if names.contains_key(name) => continue, // the file is on a page before
                    None => Ok(Some(FOLDER)),
                };
                let stat = self.noted(&below(folder, name), stat)?;
                names.extend(stat.map(|stat| (name.to_owned(), stat)));
            }
            if names.len() > most {
                return Err(too_many(most));
            }
            pages_in_vain = if names.len() > before {
                0
            } else {
                pages_in_vain + 1
            };
            match next {
                Some(next) if from.as_ref() == Some(&next) || pages_in_vain > PAGES_IN_VAIN_MAX => {
                    return Err(Failure::Odd(
                        "its list goes on for ever without another name".into(),
                    ));
                }
                Some(next) => from = Some(next),
                None => return Ok(names),
            }
        }
    }

    /// Remembers what a name in a list is. A list has those that the server refuses, too: programs that mirror delete what they do not
    /// see.
    fn noted(
        &self,
        path: &str,
        seen: Result<Option<Stat>, Failure>,
    ) -> Result<Option<Stat>, Failure> {
        match seen {
            Ok(stat) => {
                self.names.remember(path, stat.clone());
                Ok(stat)
            }
            Err(failure) if failure.is_of_name() => {
                self.names.forget(path);
                Ok(Some(Stat::UNREADABLE))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Some of what is in a folder of a bucket, and where to go on.
    async fn page(
        &self,
        folder: &str,
        from: Option<String>,
    ) -> Result<(ListResult, Option<String>), Failure> {
        let prefix = self.key(folder).map(|key| format!("{key}/"));
        let (prefix, from) = (&prefix, &from);
        let page = self.tried(move || async move {
            let bucket = self.door.pages().expect("a bucket lists by pages");
            let options = PaginatedListOptions {
                delimiter: Some("/".into()),
                page_token: from.clone(),
                ..PaginatedListOptions::default()
            };
            Ok(bucket.list_paginated(prefix.as_deref(), options).await?)
        });
        let page = page.await?;
        Ok((page.result, page.page_token.filter(|next| !next.is_empty())))
    }

    /// Requests the content of a folder of a WebDAV server.
    async fn ask_folder(&self, folder: &str) -> Result<ListResult, Failure> {
        let key = self.key(folder);
        let key = key.as_ref();
        let once = move || async move { Ok(self.door.store().list_with_delimiter(key).await?) };
        self.tried_as(Absence::IsDoubted, once).await
    }

    /// The names of a list, folders first: a file of the same name hides one. What has a name that no file can have is left out.
    fn named<'a>(
        &self,
        folder: &str,
        listed: &'a ListResult,
    ) -> impl Iterator<Item = (&'a str, Option<&'a ObjectMeta>)> {
        let within = self
            .key(folder)
            .map(|key| format!("{key}/"))
            .unwrap_or_default();
        let folders = listed.common_prefixes.iter().map(|path| (path, None));
        let files = listed
            .objects
            .iter()
            .map(|meta| (&meta.location, Some(meta)));
        folders.chain(files).filter_map(move |(path, meta)| {
            let whole: &str = path.as_ref();
            let name = whole.strip_prefix(&within)?;
            (address::is_plain(name) && !name.contains('/')).then_some((name, meta))
        })
    }
}

fn of_cache(names: &BTreeMap<Vec<u8>, Stat>) -> BTreeMap<String, Stat> {
    let text = |name: &Vec<u8>| String::from_utf8_lossy(name).into_owned();
    names
        .iter()
        .map(|(name, stat)| (text(name), stat.clone()))
        .collect()
}

fn too_many(names_max: usize) -> Failure {
    Failure::NoList(format!(
        "it has more than {names_max} names, which are not listed: a file whose name is known can be opened; to list them, spread them over folders below it"
    ))
}

fn below(folder: &str, name: &str) -> String {
    match folder.is_empty() {
        true => name.to_owned(),
        false => format!("{folder}/{name}"),
    }
}

fn is_new(since: Instant) -> bool {
    since.elapsed() < STAT_TTL
}
