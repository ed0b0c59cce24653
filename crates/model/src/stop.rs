//! What the cluster bears once a node has stopped: asked before it stops (row D6).
//!
//! Memory dies with its process. A group that is down to the last m buckets is lost with the next member
//! that goes, however orderly it goes; where its pool may start empty it does, and what it held is gone all
//! the same. So whoever stops a node asks first, and the directory's leader, which knows who else was told
//! that it may, says whether it can be borne.

use crate::ids::{GroupId, MemberSlot, NodeId};
use crate::map::{ClusterMap, Group, Member, Node, NodeState, whole_buckets};

/// What the groups of a node would bear without it. Groups are in order of id; those that are lost already
/// are not among them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AfterStop {
    /// Groups that would have fewer members than they need.
    pub broken: Vec<GroupId>,
    /// Groups that bear a loss now and would bear none.
    pub bare: Vec<GroupId>,
    /// Groups that would lose nothing, and have a data bucket that no node is left to answer for (m > 1).
    pub mute: Vec<GroupId>,
    /// Other nodes that hold nothing for long: they drain, or are on their way out.
    pub others: Vec<NodeId>,
}

impl ClusterMap {
    /// What would be left if this node stopped, and those of which `goes` says so as well.
    pub fn after_stop(&self, node: NodeId, goes: impl Fn(NodeId) -> bool) -> AfterStop {
        let goes = |n: NodeId| n != node && goes(n);
        let mut after = AfterStop::default();
        for group in self.groups.values().filter(|g| g.names(node)) {
            if !self.pools.contains_key(&group.pool) {
                continue;
            }
            let bears = |gone: &dyn Fn(NodeId) -> bool| {
                group.tolerates(|id| self.runs(id) && !gone(id.node))
            };
            let now = bears(&goes);
            let gone = |n: NodeId| n == node || goes(n);
            match bears(&gone) {
                // Those that go are there still, and may stay: what they hold is lost by nobody's stop but the last one's.
                None if bears(&|_| false).is_some() => after.broken.push(group.id),
                Some(0) if now > Some(0) => after.bare.push(group.id),
                _ => {}
            }
            if now.is_some() && !self.is_mute(group, &goes) && self.is_mute(group, &gone) {
                after.mute.push(group.id);
            }
        }
        let leaves = |n: &&Node| {
            let is_up = n.state == NodeState::Up;
            n.id != node && is_up && (n.draining || goes(n.id))
        };
        after.others = self.nodes.values().filter(leaves).map(|n| n.id).collect();
        after
    }

    /// Whether a data bucket of the group would have no node: a lost one is made anew on a node without a part in
    /// the group, beside the one part that a node has, or on that of a parity bucket that the group can do without.
    fn is_mute(&self, group: &Group, gone: &dyn Fn(NodeId) -> bool) -> bool {
        let there = |x: &Member| self.runs(x.id) && !gone(x.id.node);
        let m = usize::from(group.m);
        let whole = whole_buckets(group.m, &group.members, there);
        if m == 1 || whole < m {
            return false;
        }
        let answers = |slot: usize| {
            let slot = MemberSlot(slot as u8);
            let own = group.member(slot).is_some_and(there);
            let holds = |(s, x): (MemberSlot, &Member)| {
                group.bucket_slot(s) == slot && x.complete && there(x)
            };
            own || group.listed().any(holds)
        };
        let homeless = (0..m).filter(|slot| !answers(*slot)).count();
        let free = |n: &&Node| {
            let home = n.state == NodeState::Up && !n.draining && !gone(n.id);
            let parts = group.listed().filter(|(_, x)| x.id.node == n.id);
            home && parts.count() < 2
        };
        homeless > self.nodes.values().filter(free).count() + (whole - m)
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
        let Some((pool, group)) = map.named(&self.broken) else {
            return self.refusal_of_mute(map, node);
        };
        let more = match self.broken.len() - 1 {
            0 => String::new(),
            1 => ", and 1 group more".to_owned(),
            more => format!(", and {more} groups more"),
        };
        let left = match group.m {
            1 => "no copy left".to_owned(),
            m => format!("fewer than the {m} members that it needs"),
        };
        Some(format!(
            "node {id} ({name}) cannot be stopped: group {group} of pool '{pool}'{more} would have {left}, and what \
             it holds would be lost; wait until 'staves status' says that \
             another loss is borne, or move its buckets away with 'staves node drain {id} --wait 10m'; nothing was \
             changed (--force stops all the same)",
            id = node.id,
            name = node.name,
            group = group.id,
        ))
    }

    /// A stop that leaves a bucket without an answer is told of; together with others that are on their way out it is
    /// refused, since whoever asks may not know of them.
    fn refusal_of_mute(&self, map: &ClusterMap, node: &Node) -> Option<String> {
        let text = self.told_of_mute(map)?;
        let name = |id: &NodeId| map.nodes.get(id).map(|n| format!("{} ({})", n.id, n.name));
        let others: Vec<String> = self.others.iter().filter_map(name).collect();
        if others.is_empty() {
            return None;
        }
        Some(format!(
            "node {id} ({name}) cannot be stopped while others drain or stop (node {others}): {text}; wait until they \
             are back, 'staves node resume' them, or add a node; nothing was changed (--force stops all the same)",
            id = node.id,
            name = node.name,
            others = others.join(", node "),
        ))
    }

    fn told_of_mute(&self, map: &ClusterMap) -> Option<String> {
        let (pool, group) = map.named(&self.mute)?;
        let has = match self.mute.len() {
            1 => format!("group {} of pool '{pool}' would have", group.id),
            n => format!(
                "{n} groups (group {} of pool '{pool}' first) would have",
                group.id
            ),
        };
        Some(format!(
            "{has} a data bucket that no node is left to answer for until one comes (nothing is lost)"
        ))
    }

    /// What is to be said of a stop that can be borne, if anything is.
    pub fn warning(&self, map: &ClusterMap) -> Option<String> {
        let bare = self.told_of_bare(map);
        match (self.told_of_mute(map), bare) {
            (Some(mute), Some(bare)) => Some(format!("{mute}; {bare}")),
            (mute, bare) => mute.or(bare),
        }
    }

    fn told_of_bare(&self, map: &ClusterMap) -> Option<String> {
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
    use crate::change::Change;
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
        assert_eq!(
            (&both.broken, &both.others[..]),
            (&next.broken, &[NodeId(1)][..])
        );
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

    /// Regression: where more had been told to stop, or were silent, than a group bears, it passed for lost, and the rest was let go.
    #[test]
    fn those_that_are_to_go_are_not_gone_yet() {
        let mut map = map();
        let two = map.after_stop(NodeId(1), |n| n != NodeId(4));
        assert_eq!(two.broken, [GroupId(1)]);
        // One was told, and another died.
        map.apply(None, &node_down(&map.clone(), 3)).expect("up");
        let after = map.after_stop(NodeId(2), |n| n == NodeId(1));
        assert_eq!(after.broken, [GroupId(1)]);
    }

    /// Regression: two nodes were stopped at once, or one beside another that drained. Nothing was lost, and nobody was
    /// left to answer for a data bucket.
    #[test]
    fn a_stop_that_leaves_nobody_to_answer_counts_those_that_drain_or_stop() {
        // 2+2 on two nodes, each with two parts, and node 3 beside them.
        let (one, two) = (NodeId(1), NodeId(2));
        let mut map = cluster(3);
        map.apply(None, &create_pool("kept", "2+2", 1, false))
            .expect("new");
        start(&mut map, &[1, 2, second(1), second(2)]);
        let borne = map.after_stop(one, |_| false);
        assert_eq!(borne.mute, [], "node 3 takes the bucket");
        assert_eq!(borne.refusal(&map, &map.nodes[&one]), None);

        // The one free node is on its way out.
        for drains in [true, false] {
            let three = NodeId(3);
            map.apply(
                None,
                &Change::Drain {
                    node: three,
                    on: drains,
                },
            )
            .expect("known");
            let after = map.after_stop(one, |n| !drains && n == three);
            assert_eq!(
                (&after.mute[..], &after.others[..]),
                (&[GroupId(1)][..], &[three][..])
            );
            let text = after.refusal(&map, &map.nodes[&one]).expect("refused");
            for part in [
                "node 1",
                "node 3 (a node)",
                "group 1",
                "'kept'",
                "nothing is lost",
                "--force",
            ] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }

        // Alone it is only told of: who stops a node knows that it is gone.
        map.apply(None, &node_down(&map.clone(), 3)).expect("up");
        let alone = map.after_stop(two, |_| false);
        assert_eq!(
            (alone.refusal(&map, &map.nodes[&two]), alone.others.len()),
            (None, 0)
        );
        let warning = alone.warning(&map).expect("nobody answers then");
        assert!(
            warning.contains("no node is left") && warning.contains("no further loss"),
            "{warning}"
        );
    }

    /// Regression: nothing was said of the stop of a node that drained.
    #[test]
    fn the_stop_of_a_draining_node_is_judged_like_any_other() {
        let mut map = map();
        let drain = Change::Drain {
            node: NodeId(1),
            on: true,
        };
        map.apply(None, &drain).expect("known");
        let drains = |n: NodeId| map.nodes[&n].draining;
        let after = map.after_stop(NodeId(1), drains);
        assert_eq!(
            (&after.bare[..], after.others.len()),
            (&[GroupId(1)][..], 0)
        );
        assert!(after.warning(&map).is_some());
    }

    /// That a pool may start empty is for accidents: nobody empties it by an orderly stop without saying so.
    #[test]
    fn the_last_copy_of_a_cache_is_not_stopped() {
        let mut map = cluster(2);
        map.apply(None, &create_pool("cache", "1+1", 2, true))
            .expect("new");
        start(&mut map, &[1, 2]);
        let nobody = |_| false;
        let first = map.after_stop(NodeId(1), nobody);
        assert_eq!(first.refusal(&map, &map.nodes[&NodeId(1)]), None);
        assert!(first.warning(&map).is_some(), "it bears none then");
        map.apply(None, &node_down(&map.clone(), 1)).expect("up");
        let last = map.after_stop(NodeId(2), nobody);
        let why = last
            .refusal(&map, &map.nodes[&NodeId(2)])
            .expect("the last");
        for part in ["pool 'cache'", "no copy left", "--force"] {
            assert!(why.contains(part), "{why}");
        }
    }
}
