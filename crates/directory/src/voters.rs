//! The choice of voters: a pure function from the map and Raft's present membership to the next step.
//!
//! **The rule.** Of the nodes that run, keep their vote on disk and do not leave, five vote from five up
//! (or what `voters_max` says), three from three up, else one. Two nodes mean one voter: a second would add
//! a way to lose the majority and no loss that is borne. Voters that stay keep their seat; a free seat goes to a node
//! in a zone that has no voter yet, and only to one whose log is caught up. A dead voter's seat is given away
//! as long as three nodes can vote; below that it is kept, for the dead one's return is then what the
//! cluster may need, until the node is forgotten for good.
//!
//! **The steps.** One change of membership at a time, and an unfinished one first: openraft goes through
//! a joint configuration, in which both the old and the new set must agree, so the old majority is never
//! passed by. All other nodes of the map are learners: they get the log and have no say.

use std::collections::{BTreeMap, BTreeSet};

use staves_model::{ClusterMap, Node, NodeId, NodeState};

use crate::options::Options;

/// The inputs of the decision on a step.
pub(crate) struct View<'a> {
    pub map: &'a ClusterMap,
    /// The deciding leader: one that loses its seat costs an election.
    pub leader: NodeId,
    /// Raft's voter sets: one, or two while a change is unfinished.
    pub voters: &'a [BTreeSet<NodeId>],
    /// All nodes that Raft replicates to, voters included, with the addresses it has for them.
    pub known: &'a BTreeMap<NodeId, String>,
    /// Nodes whose log is near the leader's.
    pub caught_up: &'a BTreeSet<NodeId>,
    /// Nodes that are down, but so lately that their seats are kept.
    pub just_down: &'a BTreeSet<NodeId>,
    /// Nodes that announced that they leave.
    pub leaving: &'a BTreeSet<NodeId>,
    pub voters_max: usize,
    pub volatile_votes: bool,
}

/// One change of Raft's membership.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum MembershipStep {
    /// Replicate to these nodes.
    Add(BTreeMap<NodeId, String>),
    /// These nodes are reached elsewhere now.
    Move(BTreeMap<NodeId, String>),
    /// Do not replicate to these any more.
    Remove(BTreeSet<NodeId>),
    /// These vote.
    Vote(BTreeSet<NodeId>),
}

/// The number of voters among `n` nodes that can vote.
pub(crate) fn seats(n: usize, voters_max: usize) -> usize {
    let most = n.min(voters_max);
    if most < 3 { 1 } else { most - (1 - most % 2) }
}

/// True if a node other than `node` could vote, now or once its log is caught up.
pub(crate) fn others_can_vote(
    map: &ClusterMap,
    node: NodeId,
    leaving: &BTreeSet<NodeId>,
    options: &Options,
) -> bool {
    map.nodes.values().any(|n| {
        n.id != node
            && n.state == NodeState::Up
            && keeps_votes(n, options.volatile_votes)
            && !leaving.contains(&n.id)
    })
}

fn keeps_votes(node: &Node, volatile_votes: bool) -> bool {
    node.durable || volatile_votes
}

impl View<'_> {
    /// The next step, if there is one.
    pub fn next_step(&self) -> Option<MembershipStep> {
        let [.., present] = self.voters else {
            return None;
        };
        if self.voters.len() > 1 {
            return Some(MembershipStep::Vote(present.clone()));
        }
        let add = self.missing();
        if !add.is_empty() {
            return Some(MembershipStep::Add(add));
        }
        let moved = self.moved();
        if !moved.is_empty() {
            return Some(MembershipStep::Move(moved));
        }
        let wanted = self.wanted(present);
        if wanted != *present {
            return Some(MembershipStep::Vote(wanted));
        }
        let gone = self.gone(present);
        (!gone.is_empty()).then_some(MembershipStep::Remove(gone))
    }

    fn missing(&self) -> BTreeMap<NodeId, String> {
        let up = self.map.nodes.values().filter(|n| n.state == NodeState::Up);
        up.filter(|n| !self.known.contains_key(&n.id))
            .map(|n| (n.id, n.native.clone()))
            .collect()
    }

    fn moved(&self) -> BTreeMap<NodeId, String> {
        let known = self
            .map
            .nodes
            .values()
            .filter(|n| self.known.contains_key(&n.id));
        known
            .filter(|n| self.known.get(&n.id) != Some(&n.native))
            .map(|n| (n.id, n.native.clone()))
            .collect()
    }

    /// Nodes that were forgotten, and those that cannot come back under their id.
    fn gone(&self, present: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
        let returns = |n: &Node| n.state == NodeState::Up || n.durable;
        self.known
            .keys()
            .filter(|id| !present.contains(id) && !self.map.nodes.get(id).is_some_and(returns))
            .copied()
            .collect()
    }

    fn may_vote(&self, node: &Node) -> bool {
        let there = node.state == NodeState::Up || self.just_down.contains(&node.id);
        there && keeps_votes(node, self.volatile_votes) && !self.leaving.contains(&node.id)
    }

    /// The voters that there should be.
    fn wanted(&self, present: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
        let able: Vec<&Node> = self
            .map
            .nodes
            .values()
            .filter(|n| {
                self.may_vote(n) && (present.contains(&n.id) || self.caught_up.contains(&n.id))
            })
            .collect();
        // No node can: the present voters go on (the first node of a cluster in memory is one).
        if able.is_empty() {
            return present.clone();
        }
        let stay = self.dead_that_may_return(present);
        if able.len() < 3 && able.len() + stay.len() >= 3 && !stay.is_empty() {
            let sitting = able.iter().map(|n| n.id).filter(|id| present.contains(id));
            return sitting.chain(stay).collect();
        }
        self.elect(present, able)
    }

    /// Voters that are down, keep their vote on disk, and did not announce that they leave.
    fn dead_that_may_return(&self, present: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
        let returns = |id: &&NodeId| {
            self.map
                .nodes
                .get(id)
                .is_some_and(|n| n.durable && !self.may_vote(n))
                && !self.leaving.contains(id)
        };
        present.iter().filter(returns).copied().collect()
    }

    /// Fills the seats: present voters that do not drain first, the leader before all of them, then by zone, then by id.
    fn elect(&self, present: &BTreeSet<NodeId>, mut able: Vec<&Node>) -> BTreeSet<NodeId> {
        let seats = seats(able.len(), self.voters_max);
        let mut elected = BTreeSet::new();
        let mut zones: BTreeSet<&str> = BTreeSet::new();
        while elected.len() < seats {
            let rank = |n: &&Node| {
                let zone_has_one = n.zone.as_deref().is_some_and(|z| zones.contains(z));
                (
                    n.draining,
                    !present.contains(&n.id),
                    n.id != self.leader,
                    zone_has_one,
                    n.id,
                )
            };
            let Some(best) = (0..able.len()).min_by_key(|i| rank(&able[*i])) else {
                break;
            };
            let node = able.swap_remove(best);
            zones.extend(node.zone.as_deref());
            elected.insert(node.id);
        }
        elected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cluster of nodes 1..=n that run, durable, all known to Raft and caught up.
    struct Case {
        map: ClusterMap,
        voters: Vec<BTreeSet<NodeId>>,
        leaving: BTreeSet<NodeId>,
        just_down: BTreeSet<NodeId>,
        behind: BTreeSet<NodeId>,
        leader: u64,
    }

    fn ids(ids: &[u64]) -> BTreeSet<NodeId> {
        ids.iter().copied().map(NodeId).collect()
    }

    impl Case {
        fn new(n: u64, voters: &[u64]) -> Case {
            Case {
                map: staves_model::testing::cluster(n),
                voters: vec![ids(voters)],
                leaving: BTreeSet::new(),
                just_down: BTreeSet::new(),
                behind: BTreeSet::new(),
                leader: 1,
            }
        }

        fn node(&mut self, id: u64) -> &mut Node {
            self.map
                .nodes
                .get_mut(&NodeId(id))
                .expect("a node of the case")
        }

        fn down(&mut self, id: u64) {
            self.node(id).state = NodeState::Down;
        }

        fn step(&self) -> Option<MembershipStep> {
            let mut known: BTreeMap<NodeId, String> = self
                .map
                .nodes
                .values()
                .map(|n| (n.id, n.native.clone()))
                .collect();
            for id in self.voters.iter().flatten() {
                known.entry(*id).or_insert_with(|| "n99:1600".into());
            }
            let caught_up = known
                .keys()
                .filter(|n| !self.behind.contains(n))
                .copied()
                .collect();
            let view = View {
                map: &self.map,
                leader: NodeId(self.leader),
                voters: &self.voters,
                known: &known,
                caught_up: &caught_up,
                just_down: &self.just_down,
                leaving: &self.leaving,
                voters_max: 5,
                volatile_votes: false,
            };
            view.next_step()
        }

        /// Takes steps until there is none, at most ten, and gives the voters.
        fn settle(&mut self) -> BTreeSet<NodeId> {
            for _ in 0..10 {
                match self.step() {
                    Some(MembershipStep::Vote(voters)) => self.voters = vec![voters],
                    Some(other) => panic!("not a step of voters: {other:?}"),
                    None => return self.voters[0].clone(),
                }
            }
            panic!("the voters do not settle");
        }
    }

    #[test]
    fn seats_are_odd_and_two_nodes_have_one() {
        let seats: Vec<usize> = (1..=8).map(|n| super::seats(n, 5)).collect();
        assert_eq!(seats, [1, 1, 3, 3, 5, 5, 5, 5]);
        assert_eq!(
            (super::seats(9, 7), super::seats(9, 1), super::seats(4, 3)),
            (7, 1, 3)
        );
    }

    #[test]
    fn voters_grow_with_the_nodes() {
        assert_eq!(Case::new(2, &[1]).settle(), ids(&[1]));
        assert_eq!(Case::new(3, &[1]).settle(), ids(&[1, 2, 3]));
        assert_eq!(Case::new(4, &[1, 2, 3]).settle(), ids(&[1, 2, 3]));
        assert_eq!(Case::new(7, &[1, 2, 3]).settle(), ids(&[1, 2, 3, 4, 5]));
    }

    #[test]
    fn an_unfinished_change_comes_first() {
        let mut case = Case::new(5, &[1]);
        case.voters.push(ids(&[2, 3, 4]));
        assert_eq!(case.step(), Some(MembershipStep::Vote(ids(&[2, 3, 4]))));
    }

    #[test]
    fn a_node_that_is_behind_gets_no_seat_yet() {
        let mut case = Case::new(3, &[1]);
        case.behind = ids(&[3]);
        assert_eq!(case.settle(), ids(&[1]));
    }

    #[test]
    fn a_dead_voter_is_replaced_but_not_at_once() {
        let mut case = Case::new(6, &[1, 2, 3, 4, 5]);
        case.down(2);
        case.just_down = ids(&[2]);
        assert_eq!(case.step(), None);
        case.just_down.clear();
        assert_eq!(case.settle(), ids(&[1, 3, 4, 5, 6]));
    }

    #[test]
    fn the_leader_keeps_its_seat_when_there_are_fewer() {
        let mut case = Case::new(5, &[1, 2, 3, 4, 5]);
        case.down(1);
        case.leader = 5;
        assert_eq!(case.settle(), ids(&[2, 3, 5]));
    }

    /// Row X7: ten nodes, seven killed one by one; at each step a majority of the voters lives.
    #[test]
    fn x7_seven_of_ten_die_one_by_one() {
        let mut case = Case::new(10, &[1]);
        assert_eq!(case.settle().len(), 5);
        for dead in 1..=7 {
            case.down(dead);
            let old = case.voters[0].clone();
            let alive = |set: &BTreeSet<NodeId>| set.iter().filter(|n| n.0 > dead).count();
            assert!(
                alive(&old) * 2 > old.len(),
                "no majority of {old:?} after {dead}"
            );
            let new = case.settle();
            assert_eq!(
                alive(&new),
                new.len(),
                "a dead voter stays in {new:?} after {dead}"
            );
        }
        assert_eq!(case.voters[0], ids(&[8, 9, 10]));
    }

    #[test]
    fn of_three_one_dead_keeps_its_seat_until_forgotten() {
        let mut case = Case::new(3, &[1, 2, 3]);
        case.down(3);
        assert_eq!(case.step(), None);
        case.map.nodes.remove(&NodeId(3));
        assert_eq!(case.step(), Some(MembershipStep::Vote(ids(&[1]))));
    }

    #[test]
    fn who_leaves_gives_its_seat_up() {
        let mut case = Case::new(2, &[1]);
        case.leaving = ids(&[1]);
        assert_eq!(case.settle(), ids(&[2]));
        let mut case = Case::new(3, &[1, 2, 3]);
        case.leaving = ids(&[1]);
        assert_eq!(case.settle(), ids(&[2]));
        // The last one has nobody to hand over to.
        let mut case = Case::new(1, &[1]);
        case.leaving = ids(&[1]);
        assert_eq!(case.settle(), ids(&[1]));
    }

    #[test]
    fn a_draining_voter_makes_room() {
        let mut case = Case::new(4, &[1, 2, 3]);
        case.node(1).draining = true;
        assert_eq!(case.settle(), ids(&[2, 3, 4]));
    }

    #[test]
    fn nodes_in_memory_do_not_vote_once_others_can() {
        let mut case = Case::new(2, &[1]);
        case.node(1).durable = false;
        assert_eq!(case.settle(), ids(&[2]));
        let mut case = Case::new(2, &[1]);
        case.node(1).durable = false;
        case.node(2).durable = false;
        assert_eq!(case.settle(), ids(&[1]));
    }

    #[test]
    fn zones_share_the_seats() {
        let mut case = Case::new(5, &[1]);
        for (id, zone) in [(1, "a"), (2, "a"), (3, "a"), (4, "b"), (5, "c")] {
            case.node(id).zone = Some(zone.into());
        }
        case.node(5).state = NodeState::Up;
        case.behind = ids(&[2]);
        assert_eq!(case.settle(), ids(&[1, 4, 5]));
    }

    #[test]
    fn forgotten_nodes_are_let_go_and_new_ones_taken_in() {
        let case = Case::new(3, &[1, 2, 3]);
        let mut known: BTreeMap<NodeId, String> = BTreeMap::new();
        for id in [1, 2, 3, 9] {
            known.insert(NodeId(id), format!("n{id}:1600"));
        }
        let everyone = known.keys().copied().collect();
        let step = |known: &BTreeMap<NodeId, String>| {
            let none = BTreeSet::new();
            let view = View {
                map: &case.map,
                leader: NodeId(1),
                voters: &case.voters,
                known,
                caught_up: &everyone,
                just_down: &none,
                leaving: &none,
                voters_max: 5,
                volatile_votes: false,
            };
            view.next_step()
        };
        assert_eq!(step(&known), Some(MembershipStep::Remove(ids(&[9]))));
        known.insert(NodeId(3), "n33:1600".into());
        let moved = BTreeMap::from([(NodeId(3), "n3:1600".to_owned())]);
        assert_eq!(step(&known), Some(MembershipStep::Move(moved.clone())));
        known.remove(&NodeId(3));
        assert_eq!(step(&known), Some(MembershipStep::Add(moved)));
    }
}
