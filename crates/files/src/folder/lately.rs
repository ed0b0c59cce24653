//! The cache of a folder's answers about names, for the time that it is silent: files in memory can be opened and read while the
//! file server is away for a moment.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::source::Stat;

/// For how long it is believed, where nobody can be asked: so long a file server may take to start again.
const BELIEVED: Duration = Duration::from_secs(300);
/// Names that are remembered.
const REMEMBERED_MAX: usize = 1 << 14;

/// Names, and when each was asked for.
#[derive(Debug, Default)]
pub struct Lately(Mutex<HashMap<Vec<u8>, (Instant, Stat)>>);

impl Lately {
    /// The folder said this; `None`: that there is no such name, or nothing that can be shown.
    pub fn said(&self, path: &[u8], stat: Option<&Stat>) {
        let mut all = self.0.lock();
        let Some(stat) = stat else {
            all.remove(path);
            return;
        };
        if all.len() >= REMEMBERED_MAX && !all.contains_key(path) {
            all.retain(|_, (said, _)| said.elapsed() < BELIEVED);
            if all.len() >= REMEMBERED_MAX {
                all.clear();
            }
        }
        all.insert(path.to_owned(), (Instant::now(), stat.clone()));
    }

    /// The last answer for a path, unless it is too old.
    pub fn of(&self, path: &[u8]) -> Option<Stat> {
        let all = self.0.lock();
        let (said, stat) = all.get(path)?;
        (said.elapsed() < BELIEVED).then(|| stat.clone())
    }
}
