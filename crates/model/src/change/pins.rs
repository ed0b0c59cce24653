//! Files that are to stay in memory.

use super::outcome::{Outcome, Refusal, too_many};
use crate::files::{PIN_TEXT_BYTES_MAX, PINS_MAX, Pin};
use crate::map::ClusterMap;

impl ClusterMap {
    pub(super) fn pin_files(&mut self, pins: &[Pin]) -> Result<Outcome, Refusal> {
        let Some(first) = pins.first() else {
            return Ok(Outcome::Unchanged);
        };
        pins.iter().try_for_each(|pin| check(pin, &first.dataset))?;
        let pool = self.pool_of_dataset(&first.dataset)?;
        let (id, holdings) = (pool.id, pool.holdings().expect("it has a dataset"));
        let place = |pin: &Pin| (pin.dataset.clone(), pin.path.clone());
        let mut then = holdings.pins.clone();
        then.retain(|pin| pins.iter().all(|new| place(new) != place(pin)));
        let (kept, elsewhere) = (bytes_of(&then), self.pins() - holdings.pins.len());
        then.extend(pins.iter().cloned());
        then.sort_by_key(place);
        then.dedup_by_key(|pin| place(pin));
        if elsewhere + then.len() > PINS_MAX {
            return Err(too_many("pinned files", PINS_MAX));
        }
        let (wanted, room) = (bytes_of(pins), self.pin_room(pool));
        if kept.saturating_add(wanted) > room {
            return Err(Refusal::PinsTooMuch {
                pool: pool.name.clone(),
                wanted,
                room,
                pinned: kept,
            });
        }
        if then == holdings.pins {
            return Ok(Outcome::Unchanged);
        }
        self.holdings_mut(id).pins = then;
        self.moved(Outcome::Done)
    }

    pub(super) fn unpin_files(
        &mut self,
        dataset: &str,
        paths: &[Vec<u8>],
    ) -> Result<Outcome, Refusal> {
        let pool = self.pool_of_dataset(dataset)?.id;
        let pins = &mut self.holdings_mut(pool).pins;
        let were = pins.len();
        let goes =
            |pin: &Pin| pin.dataset == dataset && (paths.is_empty() || paths.contains(&pin.path));
        pins.retain(|pin| !goes(pin));
        match pins.len() == were {
            true => Ok(Outcome::Unchanged),
            false => self.moved(Outcome::Done),
        }
    }

    /// Pinned files of all pools.
    fn pins(&self) -> usize {
        let all = self.pools.values().filter_map(|p| p.holdings());
        all.map(|h| h.pins.len()).sum()
    }
}

fn bytes_of(pins: &[Pin]) -> u64 {
    let sum = |sum: u64, pin: &Pin| sum.saturating_add(pin.bytes());
    pins.iter().fold(0, sum)
}

fn check(pin: &Pin, dataset: &str) -> Result<(), Refusal> {
    let reason = match pin {
        _ if pin.dataset != dataset => "files of several datasets are not pinned at once",
        _ if pin.path.len() > PIN_TEXT_BYTES_MAX => "its path is longer than 4096 bytes",
        _ if pin.version.len() > PIN_TEXT_BYTES_MAX => "its version is longer than 4096 bytes",
        _ => return Ok(()),
    };
    Err(Refusal::BadPin {
        path: String::from_utf8_lossy(&pin.path)
            .chars()
            .take(80)
            .collect(),
        reason: reason.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::Change;
    use crate::testing::{cluster, create_files_pool, node_down};

    const MIB: u64 = 1 << 20;

    /// Two nodes with 4 MiB each: 6 MiB may be pinned.
    fn files() -> ClusterMap {
        let mut map = cluster(2);
        map.apply(None, &create_files_pool("files", 8, 4 * MIB))
            .unwrap();
        for name in ["a", "b"] {
            let (pool, name, source) = ("files".into(), name.into(), "/x".into());
            map.apply(None, &Change::SetDataset { pool, name, source })
                .unwrap();
        }
        map
    }

    fn pin(dataset: &str, path: &str, size: u64) -> Pin {
        Pin {
            dataset: dataset.into(),
            path: path.into(),
            size,
            version: format!("v{size}"),
        }
    }

    fn pinned(map: &ClusterMap) -> Vec<(String, String, u64)> {
        let pins = &map.dataset("a").unwrap().0.holdings().unwrap().pins;
        let of = |p: &Pin| {
            let path = String::from_utf8(p.path.clone()).unwrap();
            (p.dataset.clone(), path, p.size)
        };
        pins.iter().map(of).collect()
    }

    #[test]
    fn a_file_is_pinned_once_in_its_newest_version_until_it_is_unpinned() {
        let mut map = files();
        let mut apply = |change: Change| map.apply(None, &change).map(|done| (done, pinned(&map)));
        let of = |dataset: &str, path: &str, size| (dataset.to_owned(), path.to_owned(), size);
        let two = vec![pin("a", "y", MIB), pin("a", "x", MIB)];
        let (_, there) = apply(Change::PinFiles(two.clone())).unwrap();
        assert_eq!(there, [of("a", "x", MIB), of("a", "y", MIB)]);
        let again = apply(Change::PinFiles(two)).unwrap();
        assert_eq!(again, (Outcome::Unchanged, there));
        let (_, there) = apply(Change::PinFiles(vec![pin("a", "x", 5 * MIB)])).unwrap();
        assert_eq!(there, [of("a", "x", 5 * MIB), of("a", "y", MIB)]);
        let unpin = |dataset: &str, paths: &[&str]| Change::UnpinFiles {
            dataset: dataset.into(),
            paths: paths.iter().map(|p| p.as_bytes().to_vec()).collect(),
        };
        assert_eq!(apply(unpin("b", &[])).unwrap().0, Outcome::Unchanged);
        assert_eq!(apply(unpin("a", &["x"])).unwrap().1, [of("a", "y", MIB)]);
        apply(Change::PinFiles(vec![pin("b", "x", MIB)])).unwrap();
        assert_eq!(apply(unpin("a", &[])).unwrap().1, [of("b", "x", MIB)]);
        let name = "b".to_owned();
        assert_eq!(apply(Change::DropDataset { name }).unwrap().1, []);
    }

    #[test]
    fn no_more_is_pinned_than_fits() {
        let mut map = files();
        let most = map.pin_room(&map.pools[&crate::PoolId(1)]);
        assert_eq!(most, 6 * MIB);
        let first = vec![pin("a", "x", 4 * MIB + 1)];
        map.apply(None, &Change::PinFiles(first)).unwrap();
        let before = map.clone();
        let more = Change::PinFiles(vec![pin("b", "x", 2 * MIB)]);
        let refused = map.apply(None, &more).unwrap_err().to_string();
        for part in ["'files'", "2MiB", "6MiB", "4104KiB", "files unpin"] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
        assert_eq!(map, before);
        // With a node less there is less room, and what is pinned stays.
        map.apply(None, &node_down(&map, 2)).unwrap();
        assert_eq!(pinned(&map).len(), 1);
        let one = Change::PinFiles(vec![pin("b", "x", 1)]);
        assert!(map.apply(None, &one).is_err());
        let many = (0..=PINS_MAX).map(|i| pin("a", &format!("{i}"), 0));
        let many = Change::PinFiles(many.collect());
        assert!(matches!(
            before.clone().apply(None, &many),
            Err(Refusal::TooMany { .. })
        ));
        let long = Change::PinFiles(vec![pin("a", &"x".repeat(5000), 1)]);
        assert!(before.clone().apply(None, &long).is_err());
        let mixed = Change::PinFiles(vec![pin("a", "1", 1), pin("b", "1", 1)]);
        assert!(before.clone().apply(None, &mixed).is_err());
        let nobody = Change::PinFiles(vec![pin("c", "1", 1)]);
        assert!(matches!(
            before.clone().apply(None, &nobody),
            Err(Refusal::UnknownDataset { .. })
        ));
    }

    /// Regression: what all nodes have together went past the end of numbers.
    #[test]
    fn nodes_may_say_that_they_have_any_amount_of_memory() {
        let mut map = cluster(0);
        for _ in 0..3 {
            let node = crate::testing::new_node("new", u64::MAX);
            map.apply(None, &node).unwrap();
        }
        map.apply(None, &create_files_pool("files", 8, u64::MAX))
            .unwrap();
        assert!(map.pin_room(map.pool_named("files").unwrap()) > u64::MAX / 2);
    }
}
