//! The cache of a folder's answers about names, for the time that it is silent: files in memory can be opened and read while the
//! file server is away for a moment.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::entry::Stat;

/// The lifetime of an entry while the folder is silent: a file server may take so long to restart.
const STAT_TTL: Duration = Duration::from_secs(300);
/// The most names in the cache.
const REMEMBERED_MAX: usize = 1 << 14;

/// The attributes of names, and the time of each answer.
#[derive(Debug, Default)]
pub struct StatCache(Mutex<HashMap<Vec<u8>, (Instant, Stat)>>);

impl StatCache {
    /// Records the folder's answer; `None`: there is no such name, or nothing that can be shown.
    pub fn insert(&self, path: &[u8], stat: Option<&Stat>) {
        let mut all = self.0.lock();
        let Some(stat) = stat else {
            all.remove(path);
            return;
        };
        if all.len() >= REMEMBERED_MAX && !all.contains_key(path) {
            all.retain(|_, (at, _)| at.elapsed() < STAT_TTL);
            if all.len() >= REMEMBERED_MAX {
                all.clear();
            }
        }
        all.insert(path.to_owned(), (Instant::now(), stat.clone()));
    }

    /// The last answer for a path, unless it is too old.
    pub fn get(&self, path: &[u8]) -> Option<Stat> {
        let all = self.0.lock();
        let (at, stat) = all.get(path)?;
        (at.elapsed() < STAT_TTL).then(|| stat.clone())
    }
}
