//! Names below an address: a bucket lists them; a web server has a manifest of them, or lists them by WebDAV.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures_util::future::join;
use futures_util::{Stream, StreamExt};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::{GetOptions, ListResult, ObjectMeta};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::address::{self, Address, Server};
use super::bounded::{LISTS_AT_ONCE, NAMES_MAX};
use super::door::TOTAL;
use super::failure::Failure;
use super::manifest::{Claim, Entry, MANIFEST_BYTES_MAX, Manifest};
use super::{AWAY_WAIT, Absence, PAUSES, Remote, STAT_TTL};
use crate::answers::Answers;
use crate::driver;
use crate::entry::{Kind, SourceError, Stat};
use crate::folder::Workers;
use crate::outage::{ANSWER_AGE_MAX, OUTAGE_MAX, Outage};
use crate::stat_cache::{NameLimits, StatCache};

/// The number of pages of a list in a row that have no further name: all of them may be of names that nothing can have.
const PAGES_IN_VAIN_MAX: usize = 1000;
/// Names of folders of WebDAV servers that are known for [`STAT_TTL`] (but of one folder always all).
const DAV_NAMES_MAX: usize = 1 << 16;
/// Folders of WebDAV servers whose names are remembered.
const FOLDERS_MAX: usize = 64;
/// Files that are asked for one by one, at a time.
const ASKED_AT_ONCE: usize = 16;
/// Names in a folder of which there may be no answer, where there is one of no other: with more of them the server is at fault.
const UNANSWERED_MAX: usize = 16;
/// The permits for lists, which take memory for their names.
static LISTS: Semaphore = Semaphore::const_new(LISTS_AT_ONCE);
/// The manifest of a web server's folder, if no other is named.
const MANIFEST: &str = "MANIFEST";
/// A name that no server has, unless it has something for each.
const NO_NAME: &str = ".staves-asks-for-what-is-not-there";

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

    async fn stat_on_web(&self, path: &str) -> Result<Option<Stat>, Failure> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        // What lists it may be wrong: the file itself says which version it is. It is asked for beside a list that is too old, so that
        // both take no longer than one of them.
        let (is_folder, asked) = match self.is_listed(folder) {
            true => (self.is_folder(folder, name).await?, None),
            false => {
                let both = join(self.is_folder(folder, name), self.ask_name(path)).await;
                (both.0?, Some(both.1))
            }
        };
        match (is_folder, asked) {
            (None, _) => Ok(None),
            (Some(true), _) => Ok(Some(FOLDER)),
            (Some(false), Some(asked)) if !matches!(asked, Ok(None)) => asked,
            (Some(false), _) => self.ask_name_as(Absence::IsDoubted, path).await,
        }
    }

    /// True if the list of a folder's names is known.
    fn is_listed(&self, folder: &str) -> bool {
        match &*self.names.lists.lock() {
            Some((_, Lists::Dav)) => self.listed(folder).is_some(),
            Some((since, Lists::Manifest(_))) => is_new(*since),
            None => false,
        }
    }

    /// True if a name is that of a folder; none if there is no such name.
    async fn is_folder(&self, folder: &str, name: &str) -> Result<Option<bool>, Failure> {
        Ok(match self.lists().await? {
            Lists::Manifest(manifest) => {
                let entry = manifest.get(&below(folder, name));
                entry.map(|entry| entry == Entry::Folder)
            }
            Lists::Dav => match self.dav(folder).await {
                Err(Failure::NotFound) => None,
                listed => listed?.get(name).map(Option::is_none),
            },
        })
    }

    async fn names_on_web(
        &self,
        folder: &str,
        most: usize,
    ) -> Result<BTreeMap<String, Stat>, Failure> {
        let mut names = BTreeMap::new();
        let mut unknown = Vec::new();
        match self.lists().await? {
            Lists::Manifest(manifest) => {
                let listed = manifest.list(folder);
                if listed.len() > most {
                    return Err(too_many(most));
                }
                for (name, entry) in listed {
                    match entry {
                        Entry::Folder => drop(names.insert(name, FOLDER)),
                        Entry::File(None) => unknown.push(name),
                        Entry::File(Some(claim)) => drop(names.insert(name, claimed(claim))),
                    }
                }
            }
            Lists::Dav => {
                let listed = self.dav(folder).await?;
                if listed.len() > most {
                    return Err(too_many(most));
                }
                for (name, meta) in listed.iter() {
                    let stat = meta.as_ref().map_or(Ok(FOLDER), |meta| self.stat_of(meta));
                    let is_known = meta.as_ref().is_none_or(is_told);
                    match stat {
                        Ok(stat) if is_known => drop(names.insert(name.clone(), stat)),
                        _ => unknown.push(name.clone()),
                    }
                }
            }
        }
        self.ask_names(folder, unknown, &mut names).await?;
        Ok(names)
    }

    /// Asks for names that a list says nothing of. Some of which there is no answer do not hide the others.
    async fn ask_names(
        &self,
        folder: &str,
        unknown: Vec<String>,
        names: &mut BTreeMap<String, Stat>,
    ) -> Result<(), Failure> {
        let mut asked = std::pin::pin!(self.each_asked(folder, unknown));
        let (mut failed, mut answers, mut last) = (0, 0, None);
        let mut denied = Vec::new();
        while let Some((name, was_asked, answer)) = asked.next().await {
            match answer {
                Ok(stat) => {
                    answers += usize::from(was_asked);
                    match stat {
                        Some(stat) => drop(names.insert(name, stat)),
                        None if was_asked => denied.push(name),
                        None => {}
                    }
                }
                Err(failure) if failure.is_clear() => return Err(failure),
                Err(failure) => {
                    failed += 1;
                    if failed > UNANSWERED_MAX && answers == 0 {
                        return Err(failure);
                    }
                    names.insert(name, Stat::UNREADABLE);
                    last = Some(failure);
                }
            }
        }
        self.ask_denied(folder, denied, names).await?;
        // If nobody else was answered, it may not be about names.
        match last {
            Some(failure) if answers == 0 && !self.gives_a_sign().await => Err(failure),
            _ => Ok(()),
        }
    }

    /// Asks for listed names that the server denied, once more: all in one pass, so that a list of many that are gone takes no more than
    /// twice its time.
    async fn ask_denied(
        &self,
        folder: &str,
        denied: Vec<String>,
        names: &mut BTreeMap<String, Stat>,
    ) -> Result<(), Failure> {
        if denied.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(PAUSES[0]).await;
        for name in &denied {
            self.names.doubt(&below(folder, name));
        }
        let mut asked = std::pin::pin!(self.each_asked(folder, denied));
        while let Some((name, _, answer)) = asked.next().await {
            match answer {
                Ok(stat) => names.extend(stat.map(|stat| (name, stat))),
                Err(failure) if failure.is_clear() => return Err(failure),
                Err(_) => drop(names.insert(name, Stat::UNREADABLE)),
            }
        }
        Ok(())
    }

    /// The answers for names of a folder, and whether the server was asked for them.
    fn each_asked<'a>(
        &'a self,
        folder: &'a str,
        names: Vec<String>,
    ) -> impl Stream<Item = (String, bool, Result<Option<Stat>, Failure>)> + 'a {
        let asked = names.into_iter().map(move |name| async move {
            let path = below(folder, &name);
            match self.names.known(&path) {
                Some(known) => (name, false, Ok(known)),
                None => {
                    let answer = self.noted(&path, self.ask_name(&path).await);
                    (name, true, answer)
                }
            }
        });
        futures_util::stream::iter(asked).buffer_unordered(ASKED_AT_ONCE)
    }

    /// The origin of lists: found out once, a manifest anew when it is old.
    async fn lists(&self) -> Result<Lists, Failure> {
        let known = self.names.lists.lock().clone();
        match known {
            Some((_, Lists::Dav)) => return Ok(Lists::Dav),
            Some((since, lists)) if is_new(since) => return Ok(lists),
            _ => {}
        }
        let lists = match &self.names.place {
            Place::Here(path, workers) => {
                let text = manifest_here(path, workers, self.names.manifest_bytes_max).await;
                self.names.manifest(text)?
            }
            Place::Below(name, if_absent) => match self.manifest_there(name).await {
                Ok(manifest) => manifest,
                Err(Failure::NotFound | Failure::Denied(_)) if *if_absent == IfAbsent::Dav => {
                    Lists::Dav
                }
                Err(Failure::NotFound) => {
                    let text = format!("there is no manifest '{name}'");
                    return Err(Failure::NoList(text));
                }
                Err(failure) => return Err(failure),
            },
            Place::Needless => Lists::Dav,
        };
        *self.names.lists.lock() = Some((Instant::now(), lists.clone()));
        Ok(lists)
    }

    /// Asks for the manifest once more, which was something else before.
    pub(super) async fn ask_manifest(&self) -> Result<(), Failure> {
        match &self.names.place {
            Place::Below(name, _) => {
                let answer = self.manifest_there(name).await;
                if answer.as_ref().err().is_none_or(Failure::is_answer) {
                    self.names.manifest_is_odd.store(false, Ordering::Relaxed);
                }
                answer.map(drop)
            }
            Place::Here(..) | Place::Needless => Ok(()),
        }
    }

    async fn manifest_there(&self, name: &str) -> Result<Lists, Failure> {
        let key = self.key(name).ok_or(Failure::NotFound)?;
        let key = &key;
        let absence = match *self.names.lists.lock() {
            Some((_, Lists::Manifest(_))) => Absence::IsDoubted,
            _ => Absence::Counts,
        };
        self.tried_as(absence, move || async move {
            let answer = self.door.store().get_opts(key, GetOptions::new()).await?;
            let mut bytes = Vec::new();
            let mut stream = answer.into_stream();
            while let Some(some) = stream.next().await {
                bytes.extend_from_slice(&some?);
                let bytes_max = self.names.manifest_bytes_max;
                if bytes.len() as u64 > bytes_max {
                    return self.names.manifest(Err(too_long(bytes_max)));
                }
            }
            let text = String::from_utf8(bytes);
            let text = text.map_err(|_| "its manifest is not UTF-8".to_owned());
            let text = match text {
                Ok(text) => self.is_page(&text).await?.map_or(Ok(text), Err),
                Err(why) => Err(why),
            };
            self.names.manifest(text)
        })
        .await
    }

    /// The reason why a text, whose lines may all be paths, is no manifest but a page of plain words in its place.
    async fn is_page(&self, text: &str) -> Result<Option<String>, Failure> {
        let before = match &*self.names.lists.lock() {
            Some((_, Lists::Manifest(before))) => Some(before.clone()),
            _ => None,
        };
        if let Some(before) = before {
            // Another dataset, perhaps: then its files are there.
            let is_strange = match before.stranger(text) {
                Some(name) => {
                    !matches!(self.ask_name(&name).await, Ok(Some(_)))
                        || self.has_everything().await?
                }
                None => false,
            };
            let why = || "its manifest names none of the files that it named before".to_owned();
            return Ok(is_strange.then(why));
        }
        let is_sure = Manifest::parse(text).map_or(true, |manifest| manifest.has_sizes());
        if is_sure || !self.has_everything().await? {
            return Ok(None); // a text that does not parse has its own error
        }
        Ok(Some(format!(
            "its manifest may be a page for people (a log-in, an error with the status of success): the server has a file for every name, \
             '{NO_NAME}' too. Have it answer 404 for what is not there, or put sizes into the manifest (PATH, a tab, SIZE)"
        )))
    }

    /// True if the server has something for a name that nobody gives a file.
    async fn has_everything(&self) -> Result<bool, Failure> {
        match self.ask_name(NO_NAME).await {
            Ok(stat) => Ok(stat.is_some()),
            Err(Failure::Unversioned) => Ok(true),
            Err(failure) if failure.is_clear() => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// The cached content of a folder of a WebDAV server.
    fn listed(&self, folder: &str) -> Option<Arc<Listed>> {
        let dav = self.names.dav.lock();
        let (since, listed) = dav.get(folder)?;
        is_new(*since).then(|| listed.clone())
    }

    async fn dav(&self, folder: &str) -> Result<Arc<Listed>, Failure> {
        if let Some(listed) = self.listed(folder) {
            return Ok(listed);
        }
        let _place = LISTS.acquire().await.expect("it is never closed");
        // Somebody else may have asked meanwhile.
        if let Some(listed) = self.listed(folder) {
            return Ok(listed);
        }
        let listed = self.ask_folder(folder).await;
        let is_of_server =
            |failure: &Failure| folder.is_empty() || !matches!(failure, Failure::NotFound);
        if listed.as_ref().err().is_some_and(is_of_server) {
            // Perhaps there is a manifest by then.
            *self.names.lists.lock() = None;
        }
        let listed = listed.map_err(|failure| match failure {
            Failure::Status(status, 400..=499 | 501) | Failure::Denied(status) => Failure::NoList(format!(
                "it has no file '{MANIFEST}', and does not list its files by WebDAV ({status}): put a manifest there, or name one with #manifest=/PATH"
            )),
            failure => failure,
        })?;
        let named = self.named(folder, &listed);
        let listed = named.map(|(name, meta)| (name.to_owned(), meta.cloned()));
        let listed = Arc::new(listed.collect::<Listed>());
        let mut dav = self.names.dav.lock();
        let names: usize = dav.values().map(|(_, listed)| listed.len()).sum();
        if dav.len() >= FOLDERS_MAX || names + listed.len() > DAV_NAMES_MAX {
            dav.clear();
        }
        dav.insert(folder.to_owned(), (Instant::now(), listed.clone()));
        Ok(listed)
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

fn too_long(bytes_max: u64) -> String {
    format!("its manifest is longer than {bytes_max} bytes")
}

fn below(folder: &str, name: &str) -> String {
    match folder.is_empty() {
        true => name.to_owned(),
        false => format!("{folder}/{name}"),
    }
}

async fn manifest_here(path: &str, workers: &Workers, bytes_max: u64) -> Result<String, String> {
    let asked = path.to_owned();
    let read = move |_: &_| {
        let read = || {
            let mut file = std::fs::File::open(&asked)?.take(bytes_max + 1);
            let mut text = String::new();
            file.read_to_string(&mut text).map(|_| text)
        };
        Ok(read())
    };
    let failed = |error: String| format!("the manifest {path} cannot be read: {error}");
    let read = workers.run(0, read).await;
    let text = read.map_err(|error| failed(error.to_string()))?;
    let text = text.map_err(|error| failed(error.to_string()))?;
    match text.len() as u64 > bytes_max {
        true => Err(too_long(bytes_max)),
        false => Ok(text),
    }
}

fn is_new(since: Instant) -> bool {
    since.elapsed() < STAT_TTL
}

fn claimed(claim: Claim) -> Stat {
    Stat {
        kind: Kind::File {
            version: claim.etag,
            fresh: false,
        },
        size: claim.size,
        ..FOLDER
    }
}

/// True if a list describes a file as fully as the file itself would.
fn is_told(meta: &ObjectMeta) -> bool {
    meta.e_tag.as_deref().and_then(super::strong).is_some()
}
