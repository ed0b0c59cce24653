//! Groups that have moved on to a new epoch, and do not open it, or not for long.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use staves_model::{ClusterMap, Group, GroupId};

/// An epoch that is committed opens within some milliseconds, if all its members reach each other.
const OPENS_WITHIN: Duration = Duration::from_secs(1);
/// An epoch that opened after so long, and is given up within so long, answered nothing in between: members were stuck in it.
const BARELY_OPEN: Duration = Duration::from_millis(400);
const STAYS_FOR: Duration = Duration::from_millis(1500);

/// The groups that served once and have no open epoch, or one that opened a moment ago. An epoch that follows another before that has
/// opened and stayed does not begin the time anew: clients have waited all along.
#[derive(Debug, Default)]
pub(crate) struct UnopenedGroups(BTreeMap<GroupId, Spell>);

/// The time since a group served.
#[derive(Clone, Copy, Debug)]
struct Spell {
    since: Instant,
    opened: Option<Instant>,
}

impl Spell {
    /// It may yet turn out that nothing was answered in the epoch that opened.
    fn is_in_doubt(&self, now: Instant) -> bool {
        self.opened.is_none_or(|opened| {
            let waited = opened.saturating_duration_since(self.since);
            waited >= BARELY_OPEN && now.saturating_duration_since(opened) < STAYS_FOR
        })
    }

    /// The group should have opened for good by now. An epoch that was overdue is believed when it has stayed.
    fn is_overdue(&self, now: Instant) -> bool {
        let until = self.opened.unwrap_or(now);
        self.is_in_doubt(now) && until.saturating_duration_since(self.since) > OPENS_WITHIN
    }
}

impl UnopenedGroups {
    /// Takes in a newer map.
    pub(crate) fn follow(&mut self, map: &ClusterMap, now: Instant) {
        let served = |group: &Group| !group.lost && group.last_open.epoch.0 > 0;
        self.0.retain(|id, spell| {
            let group = map.groups.get(id).filter(|group| served(group));
            group.is_some() && spell.is_in_doubt(now)
        });
        for group in map.groups.values().filter(|group| served(group)) {
            if !group.open {
                let since = Spell {
                    since: now,
                    opened: None,
                };
                self.0.entry(group.id).or_insert(since).opened = None;
            } else if let Some(spell) = self.0.get_mut(&group.id) {
                spell.opened.get_or_insert(now);
            }
        }
    }

    /// Those that should have opened by now.
    pub(crate) fn overdue(&self, now: Instant) -> Vec<u32> {
        let groups = self.0.iter().filter(|(_, spell)| spell.is_overdue(now));
        groups.map(|(id, _)| id.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use staves_model::Epoch;
    use staves_model::testing::{cluster_with_pool, start_group};

    use super::*;

    #[test]
    fn a_group_is_overdue_a_second_after_it_served() {
        let mut map = cluster_with_pool(3, "1+1", 2);
        let first = *map.groups.keys().next().expect("two groups");
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let mut unopened = UnopenedGroups::default();
        // Before its first epoch there is nobody who waits for it.
        unopened.follow(&map, at(0));
        assert_eq!(unopened.overdue(at(5_000)), [0; 0]);
        start_group(&mut map, first.0, &[1, 2]);
        let group = map.groups.get_mut(&first).expect("a group");
        (group.epoch, group.open) = (Epoch(2), false);
        unopened.follow(&map, at(10_000));
        assert_eq!(unopened.overdue(at(11_000)), [0; 0]);
        // Another epoch, which does not open either.
        map.groups.get_mut(&first).expect("a group").epoch = Epoch(3);
        unopened.follow(&map, at(10_900));
        assert_eq!(unopened.overdue(at(11_001)), [first.0]);
        map.groups.get_mut(&first).expect("a group").open = true;
        unopened.follow(&map, at(11_002));
        assert_eq!(
            unopened.overdue(at(11_003)),
            [first.0],
            "it is not known yet"
        );
        assert_eq!(unopened.overdue(at(20_000)), [0; 0]);
    }

    /// Regression: of two states that followed each other every second, one was called healthy: its epoch was open, and answered nothing.
    #[test]
    fn an_epoch_that_opens_and_is_given_up_at_once_counts_for_nothing() {
        let mut map = cluster_with_pool(3, "1+1", 2);
        let first = *map.groups.keys().next().expect("two groups");
        start_group(&mut map, first.0, &[1, 2]);
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let mut unopened = UnopenedGroups::default();
        let mut step = |ms, open| {
            let group = map.groups.get_mut(&first).expect("a group");
            group.open = open;
            unopened.follow(&map, at(ms));
            unopened.overdue(at(ms + 1))
        };
        for round in 0..4 {
            let late: &[u32] = if round > 0 { &[first.0] } else { &[] };
            assert_eq!(step(round * 1400, false), late);
            assert_eq!(step(round * 1400 + 600, true), late);
        }
        // A quick move has several epochs, and each serves.
        for ms in (20_000..22_000).step_by(20) {
            assert_eq!(step(ms, ms % 40 == 0), [0; 0], "{ms}");
        }
    }
}
