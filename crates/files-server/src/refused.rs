//! Refusals of servers, which leave a file to the mounts for a while.
//!
//! A refusal is a fact of one file: others of the same server may be read on. A node that has no credentials any more is refused
//! one file after the other. So after some of them with nothing read in between, the whole dataset is left to the mounts, and
//! a server is asked in vain no more than [`FILES_MAX`] times in [`REFUSED`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use staves_wire::files::FileId;

/// The time that a refused file is not asked for again.
const REFUSED: Duration = Duration::from_secs(10);
/// So many files in a row, and the server gives this node nothing.
const FILES_MAX: usize = 8;
/// Refused files of a dataset that are remembered; what comes on top is asked for again.
const REMEMBERED_MAX: usize = 1024;

/// By dataset.
#[derive(Default)]
pub(super) struct Refused(Mutex<BTreeMap<String, Refusals>>);

/// Of one dataset.
#[derive(Default)]
struct Refusals {
    /// The time of each file's last refusal.
    files: BTreeMap<FileId, Instant>,
    /// The time of the server's last bytes.
    gave: Option<Instant>,
}

impl Refused {
    /// A server refused this node a file.
    pub(super) fn add(&self, dataset: &str, file: FileId) {
        self.add_at(dataset, file, Instant::now());
    }

    /// It gave this node something of the dataset.
    pub(super) fn gave(&self, dataset: &str) {
        self.gave_at(dataset, Instant::now());
    }

    /// True if all of a dataset is left to the mounts.
    pub(super) fn is_all(&self, dataset: &str) -> bool {
        self.is_all_at(dataset, Instant::now())
    }

    /// True if a file of it is left to them.
    pub(super) fn is(&self, dataset: &str, file: FileId) -> bool {
        self.is_at(dataset, file, Instant::now())
    }

    fn add_at(&self, dataset: &str, file: FileId, now: Instant) {
        let mut all = self.0.lock();
        all.retain(|_, refusals| {
            refusals.files.retain(|_, since| is_late(*since, now));
            !refusals.files.is_empty()
        });
        let files = &mut all.entry(dataset.to_owned()).or_default().files;
        if files.len() < REMEMBERED_MAX || files.contains_key(&file) {
            files.insert(file, now);
        }
    }

    fn gave_at(&self, dataset: &str, now: Instant) {
        if let Some(refusals) = self.0.lock().get_mut(dataset) {
            refusals.gave = Some(now);
        }
    }

    fn is_all_at(&self, dataset: &str, now: Instant) -> bool {
        let all = self.0.lock();
        all.get(dataset).is_some_and(|refusals| {
            let in_a_row = |since: &&Instant| {
                is_late(**since, now) && refusals.gave.is_none_or(|gave| **since > gave)
            };
            refusals.files.values().filter(in_a_row).count() >= FILES_MAX
        })
    }

    fn is_at(&self, dataset: &str, file: FileId, now: Instant) -> bool {
        let all = self.0.lock();
        let since = all.get(dataset).and_then(|r| r.files.get(&file));
        since.is_some_and(|since| is_late(*since, now))
    }
}

fn is_late(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) < REFUSED
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(high: u64) -> FileId {
        FileId { high, low: 7 }
    }

    /// Regression: one file that a server refused left the whole dataset to the mounts.
    #[test]
    fn a_refusal_is_of_one_file_as_long_as_others_are_given() {
        let (refused, now) = (Refused::default(), Instant::now());
        let at = |n: u64| now + Duration::from_millis(n);
        for file in 0..100 {
            refused.add_at("data", id(file), at(2 * file));
            refused.gave_at("data", at(2 * file + 1));
            assert!(!refused.is_all_at("data", at(2 * file + 1)));
        }
        assert!(refused.is_at("data", id(5), at(200)));
        assert!(!refused.is_at("data", id(100), at(200)));
        assert!(!refused.is_at("other", id(5), at(200)));
        let later = at(200) + REFUSED;
        assert!(!refused.is_at("data", id(5), later), "it is asked again");
    }

    #[test]
    fn a_server_that_gives_nothing_is_left_alone_for_a_while() {
        let (refused, now) = (Refused::default(), Instant::now());
        let mut asked = 0;
        // Readers want another file each tenth of a second, for a minute.
        for tick in 0..600 {
            let now = now + Duration::from_millis(100 * tick);
            if !refused.is_all_at("data", now) {
                asked += 1;
                refused.add_at("data", id(tick), now);
            }
            assert!(!refused.is_all_at("other", now));
        }
        let windows = 60 / REFUSED.as_secs() as usize;
        assert!(asked >= windows, "it is tried again: {asked}");
        assert!(asked <= FILES_MAX * (windows + 1), "{asked}");
        // It gives again: all of it is asked for.
        let end = now + Duration::from_secs(60);
        refused.gave_at("data", end);
        assert!(!refused.is_all_at("data", end));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (refused, now) = (Refused::default(), Instant::now());
        for file in 0..2 * REMEMBERED_MAX as u64 {
            refused.add_at("data", id(file), now);
        }
        assert_eq!(refused.0.lock()["data"].files.len(), REMEMBERED_MAX);
        refused.add_at("other", id(1), now + REFUSED);
        assert_eq!(refused.0.lock().len(), 1, "what is over is forgotten");
    }
}
