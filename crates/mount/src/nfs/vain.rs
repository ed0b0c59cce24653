//! Names that cannot be had, and for how long.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::recent::Recent;

/// For so many lifetimes a name that cannot be had counts as away by itself: its server may be starting again.
const LIFETIMES: u32 = 60;
/// Failures that lie further apart than so many are of different causes. Clients ask again after a few seconds.
const APART_LIFETIMES: u32 = 20;
/// Names of which the times are kept.
const NAMES_MAX: usize = 1 << 12;

/// The first and the last failure of names.
pub(super) struct Vain {
    lifetime: Duration,
    names: Mutex<Recent<Arc<Path>, (Instant, Instant)>>,
}

impl Vain {
    pub(super) fn new(lifetime: Duration) -> Vain {
        Vain {
            lifetime,
            names: Mutex::new(Recent::new(NAMES_MAX)),
        }
    }

    /// A name could not be had; true if it is so for long, one failure after the other.
    pub(super) fn failed(&self, path: &Path) -> bool {
        let (path, now): (Arc<Path>, _) = (path.into(), Instant::now());
        let mut names = self.names.lock();
        let known = names.get(&path);
        let same = known.filter(|(_, last)| now - *last < APART_LIFETIMES * self.lifetime);
        let first = same.map_or(now, |(first, _)| first);
        names.put(path, (first, now));
        now - first >= LIFETIMES * self.lifetime
    }
}
