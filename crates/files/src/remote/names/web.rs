//! Names of a web server's folder: by its manifest, or by WebDAV.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use futures_util::future::join;
use futures_util::{Stream, StreamExt};
use object_store::{GetOptions, ObjectMeta};

use super::{FOLDER, IfAbsent, LISTS, Listed, Lists, MANIFEST, Place, below, is_new, too_many};
use crate::entry::{Kind, Stat};
use crate::folder::Workers;
use crate::remote::failure::Failure;
use crate::remote::manifest::{Claim, Entry, Manifest};
use crate::remote::{Absence, PAUSES, Remote, strong};

/// Names of folders of WebDAV servers that are known for [`STAT_TTL`] (but of one folder always all).
const DAV_NAMES_MAX: usize = 1 << 16;
/// Folders of WebDAV servers whose names are remembered.
const FOLDERS_MAX: usize = 64;
/// Files that are asked for one by one, at a time.
const ASKED_AT_ONCE: usize = 16;
/// Names in a folder of which there may be no answer, where there is one of no other: with more of them the server is at fault.
const UNANSWERED_MAX: usize = 16;
/// A name that no server has, unless it has something for each.
const NO_NAME: &str = ".staves-asks-for-what-is-not-there";

impl Remote {
    pub(super) async fn stat_on_web(&self, path: &str) -> Result<Option<Stat>, Failure> {
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

    pub(super) async fn names_on_web(
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
    pub(in crate::remote) async fn ask_manifest(&self) -> Result<(), Failure> {
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

fn too_long(bytes_max: u64) -> String {
    format!("its manifest is longer than {bytes_max} bytes")
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
    meta.e_tag.as_deref().and_then(strong).is_some()
}
