//! Groups that have moved on to a new epoch, and do not open it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use staves_model::{ClusterMap, Group, GroupId};

/// An epoch that is committed opens within some milliseconds, if all its members reach each other.
const OPENS_WITHIN: Duration = Duration::from_secs(1);

/// The groups that served once and have no open epoch, each with the time since when. An epoch that follows another
/// before it opens does not begin that time anew: clients have waited all along.
#[derive(Debug, Default)]
pub(crate) struct UnopenedGroups(BTreeMap<GroupId, Instant>);

impl UnopenedGroups {
    /// Takes in a newer map.
    pub(crate) fn follow(&mut self, map: &ClusterMap, now: Instant) {
        let changes = |group: &Group| !group.open && !group.lost && group.last_open.epoch.0 > 0;
        self.0
            .retain(|id, _| map.groups.get(id).is_some_and(changes));
        for group in map.groups.values().filter(|group| changes(group)) {
            self.0.entry(group.id).or_insert(now);
        }
    }

    /// Those that should have opened by now.
    pub(crate) fn overdue(&self, now: Instant) -> Vec<u32> {
        let overdue = |since: &Instant| now.saturating_duration_since(*since) > OPENS_WITHIN;
        let groups = self.0.iter().filter(|(_, since)| overdue(since));
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
        assert_eq!(unopened.overdue(at(20_000)), [0; 0]);
    }
}
