//! The users of each dataset: mounts report themselves now and then, so that a drop under a running program is announced.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::facts::UseFacts;

/// A mount that has been silent for so long is gone; they speak every few seconds.
const SILENT_MAX: Duration = Duration::from_secs(20);
/// Most that are remembered.
const USES_MAX: usize = 256;
/// Longest word for one, in bytes.
const TEXT_BYTES_MAX: usize = 512;

/// The mounts that reported recently.
#[derive(Default)]
pub struct Uses(Mutex<BTreeMap<UseFacts, Instant>>);

impl Uses {
    /// A mount reports its use of a dataset.
    pub fn told(&self, dataset: String, by: String) {
        if dataset.len() > TEXT_BYTES_MAX || by.len() > TEXT_BYTES_MAX {
            return;
        }
        let mut all = self.0.lock();
        all.retain(|_, told| told.elapsed() < SILENT_MAX);
        let one = UseFacts { dataset, by };
        if all.len() < USES_MAX || all.contains_key(&one) {
            all.insert(one, Instant::now());
        }
    }

    /// The mounts that reported lately.
    pub fn list(&self) -> Vec<UseFacts> {
        let all = self.0.lock();
        let lately = all.iter().filter(|(_, told)| told.elapsed() < SILENT_MAX);
        lately.map(|(one, _)| one.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_uses_a_dataset_is_told_once_and_they_are_bounded() {
        let uses = Uses::default();
        for _ in 0..3 {
            uses.told("genomes".into(), "lab1:/mnt".into());
        }
        uses.told("x".repeat(5000), "y".into());
        let (dataset, by) = ("genomes".to_owned(), "lab1:/mnt".to_owned());
        assert_eq!(uses.list(), [UseFacts { dataset, by }]);
        for i in 0..1000 {
            uses.told("genomes".into(), format!("lab{i}:/mnt"));
        }
        assert_eq!(uses.list().len(), USES_MAX);
    }
}
