//! What the cluster bears once a node has stopped: asked before it stops (row D6).
//!
//! Memory dies with its process. A group of a pool that promises to keep what it holds, and that is
//! down to the last m buckets, is lost with the next member that goes, however orderly it goes. So whoever
//! stops a node asks first, and the directory's leader, which knows who else was told that it may,
//! says whether it can be borne.

use crate::ids::{GroupId, NodeId};
use crate::map::{ClusterMap, Group, Node};

/// What the groups of a node would bear without it. Groups are in order of id; those that are lost already
/// are not among them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AfterStop {
    /// Groups that would have fewer members than they need.
    pub broken: Vec<GroupId>,
    /// Groups that bear a loss now and would bear none.
    pub bare: Vec<GroupId>,
}

impl ClusterMap {
    /// What would be left if this node stopped, and those of which `goes` says so as well.
    pub fn after_stop(&self, node: NodeId, goes: impl Fn(NodeId) -> bool) -> AfterStop {
        let mut after = AfterStop::default();
        for group in self.groups.values().filter(|g| g.names(node)) {
            // A pool that may start empty promises nothing about what it held.
            let keeps = self.pools.get(&group.pool);
            if keeps.is_none_or(|pool| pool.may_start_empty) {
                continue;
            }
            let bears = |gone: &dyn Fn(NodeId) -> bool| {
                group.tolerates(|n, life| self.is_up(n, life) && !gone(n.home()))
            };
            let now = bears(&goes);
            match bears(&|n| n == node || goes(n)) {
                None if now.is_some() => after.broken.push(group.id),
                Some(0) if now > Some(0) => after.bare.push(group.id),
                _ => {}
            }
        }
        after
    }

    /// The pool's name and its first group, to tell of some groups of one or more pools.
    fn named(&self, groups: &[GroupId]) -> Option<(&str, &Group)> {
        let group = self.groups.get(groups.first()?)?;
        Some((&self.pools.get(&group.pool)?.name, group))
    }
}

impl AfterStop {
    /// Why the node must not stop, and what to do, if it must not.
    pub fn refusal(&self, map: &ClusterMap, node: &Node) -> Option<String> {
        let (pool, group) = map.named(&self.broken)?;
        let more = match self.broken.len() - 1 {
            0 => String::new(),
            1 => ", and 1 group more".to_owned(),
            more => format!(", and {more} groups more"),
        };
        Some(format!(
            "node {id} ({name}) cannot be stopped: group {group} of pool '{pool}'{more} would have fewer than the \
             {m} members that it needs, and what it holds would be lost; wait until 'staves status' says that \
             another loss is borne, or move its buckets away with 'staves node drain {id} --wait 10m'; nothing was \
             changed (--force stops all the same)",
            id = node.id,
            name = node.name,
            group = group.id,
            m = group.m,
        ))
    }

    /// What is to be said of a stop that can be borne, if anything is.
    pub fn warning(&self, map: &ClusterMap) -> Option<String> {
        let (pool, group) = map.named(&self.bare)?;
        let groups = match self.bare.len() {
            1 => format!("group {} of pool '{pool}' bears", group.id),
            n => format!(
                "{n} groups (group {} of pool '{pool}' first) bear",
                group.id
            ),
        };
        Some(format!(
            "{groups} no further loss until what is missing is rebuilt: stop no other node before that"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    /// A pool 2+1 with one group on nodes 1 to 3, and node 4 beside them.
    fn map() -> ClusterMap {
        let mut map = cluster(4);
        map.apply(None, &create_pool("kept", "2+1", 1, false))
            .expect("new");
        start(&mut map, &[1, 2, 3]);
        map
    }

    #[test]
    fn a_stop_that_is_borne_is_told_of_and_the_next_is_refused() {
        let mut map = map();
        let nobody = |_| false;
        assert_eq!(map.after_stop(NodeId(4), nobody), AfterStop::default());
        let after = map.after_stop(NodeId(1), nobody);
        assert_eq!((after.broken.len(), after.bare.len()), (0, 1));
        assert_eq!(after.refusal(&map, &map.nodes[&NodeId(1)]), None);
        let warning = after.warning(&map).expect("it bears none then");
        assert!(warning.contains("'kept'"), "{warning}");

        // Told at once to two, and one after the other.
        let both = map.after_stop(NodeId(2), |n| n == NodeId(1));
        map.apply(None, &node_down(&map.clone(), 1)).expect("up");
        let next = map.after_stop(NodeId(2), nobody);
        assert_eq!(both, next);
        assert_eq!(next.broken, [GroupId(1)]);
        let text = next.refusal(&map, &map.nodes[&NodeId(2)]).expect("refused");
        for part in [
            "node 2",
            "group 1",
            "'kept'",
            "2 members",
            "drain",
            "--force",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        map.apply(None, &node_down(&map.clone(), 2)).expect("up");
        let lost = map.after_stop(NodeId(3), nobody);
        assert_eq!(lost, AfterStop::default(), "nothing more can be lost");
    }

    #[test]
    fn a_pool_that_may_start_empty_refuses_no_stop() {
        let mut map = cluster(1);
        map.apply(None, &create_pool("cache", "1+0", 1, true))
            .expect("new");
        start(&mut map, &[1]);
        assert_eq!(map.after_stop(NodeId(1), |_| false), AfterStop::default());
    }
}
