//! Groups none of whose members reaches another, while other nodes reach them.

use super::*;
use crate::detector::{Detector, DetectorConfig, Evidence, Findings, Report, Sign};
use crate::reach::apart;

/// The time after which a member that does not answer is reported stuck.
pub(super) const STUCK_AFTER: Duration = Duration::from_millis(800);

pub(super) fn pair(a: NodeId, b: NodeId) -> (NodeId, NodeId) {
    (a.min(b), a.max(b))
}

fn every_pair_of(nodes: &[NodeId]) -> Cuts {
    let pairs = |a: &NodeId| nodes.iter().map(|b| pair(*a, *b)).collect::<Vec<_>>();
    nodes
        .iter()
        .flat_map(pairs)
        .filter(|(a, b)| a < b)
        .collect()
}

pub(super) fn nodes_of(town: &TestCluster, group: u32) -> Vec<NodeId> {
    let group = &town.map.groups[&GroupId(group)];
    group.listed().map(|(_, x)| x.id.node).collect()
}

/// The evidence of the detector where each of three nodes is not heard by the next.
fn one_way(town: &TestCluster, nodes: &[NodeId]) -> Cuts {
    let mut detector = Detector::new(DetectorConfig::default());
    let seen = |suspect: usize, reporter: usize, sign| Report {
        reporter: nodes[reporter],
        seen: Evidence {
            node: nodes[suspect],
            incarnation: town.map.nodes[&nodes[suspect]].incarnation,
            sign,
        },
    };
    let reports = (0..3).flat_map(|i| {
        let next = (i + 1) % 3;
        [seen(i, next, Sign::Silent), seen(next, i, Sign::Alive)]
    });
    let reports: Vec<_> = reports.collect();
    detector.step(town.now, &town.map, &reports, &mut Findings::default());
    detector.cuts()
}

impl TestCluster {
    /// Lives with cuts for a time. Who leads a group's epoch opens it if it reaches all that are listed, and reports those
    /// whom it does not reach, as data buckets do of the parity that they need; `deaf` leads nothing. Returns the epochs, and when each
    /// group was last not open.
    pub(super) fn live_with(&mut self, cuts: &Cuts, deaf: Option<NodeId>, time: Duration) -> Lived {
        let (began, mut lived) = (self.now, Lived::default());
        let mut since = BTreeMap::new();
        while self.now.since(began) < time {
            self.planner.see_cuts(cuts.clone());
            let mut reports = Vec::new();
            for group in self.map.groups.clone().into_values() {
                let leads = match group.open {
                    true => 0..group.m,
                    false => group.coordinator.0..group.coordinator.0 + 1,
                };
                let state = (group.epoch, group.open);
                let seen = since.entry(group.id).or_insert((state, self.now));
                if seen.0 != state {
                    *seen = (state, self.now);
                }
                let leaders = leads.filter_map(|slot| group.member(MemberSlot(slot)));
                let leaders: Vec<NodeId> = leaders.map(|x| x.id.node).collect();
                let missed = |leader: &NodeId| missed_by(&group, *leader, cuts);
                let is_well = leaders.iter().all(|leader| missed(leader).is_empty());
                let hear = leaders.iter().all(|leader| deaf != Some(*leader));
                if is_well && hear {
                    self.get_on(&group);
                } else if hear && self.now.since(seen.1) >= STUCK_AFTER {
                    let miss = leaders.iter().filter(|leader| !missed(leader).is_empty());
                    reports.extend(miss.map(|leader| StuckReport {
                        group: group.id,
                        epoch: group.epoch,
                        slots: missed(leader),
                        reporter: *leader,
                    }));
                }
                if !(group.open && is_well && leaders.len() == usize::from(group.m)) {
                    lived.stood_until = self.now.since(began);
                }
            }
            let groups = self.map.groups.values();
            let bare = groups.filter(|g| g.tolerates(|id| self.map.runs(id)) == Some(0));
            lived.bare += Duration::from_millis(25) * (bare.count() > 0).into();
            let new = self.keep(&reports);
            let new = epochs_of(&new).into_iter().cloned();
            lived
                .epochs
                .extend(new.map(|new| (self.now.since(began), new)));
            self.wait(25);
        }
        lived
    }

    /// The group's epoch opens, or its joiners complete.
    pub(super) fn get_on(&mut self, group: &Group) {
        let (id, epoch) = (group.id, group.epoch);
        if !group.open {
            self.change(&Change::step(GroupStep::Open { group: id, epoch }));
            return;
        }
        for (slot, member) in group.listed().filter(|(_, x)| !x.complete) {
            let incarnation = member.id.incarnation;
            self.change(&Change::step(GroupStep::Complete {
                group: id,
                epoch,
                slot,
                incarnation,
            }));
        }
    }

    /// After the cuts: no group has more than the three epochs of one move, and all ends on the ring.
    fn heals(&mut self) {
        let lived = self.live_with(&Cuts::new(), None, Duration::from_secs(200));
        for id in self.map.groups.keys() {
            let of = lived.epochs.iter().filter(|(_, new)| new.group == *id);
            assert!(of.clone().count() <= 3, "{:?}", of.collect::<Vec<_>>());
        }
        assert!(lived.stood_until < Duration::from_millis(200_000 - 1_000));
        self.check_at_rest();
    }
}

/// The members that a leader does not reach: of an open epoch with m > 1, those of parity.
pub(super) fn missed_by(group: &Group, leader: NodeId, cuts: &Cuts) -> Vec<MemberSlot> {
    let needs = |slot: MemberSlot| !group.open || group.m == 1 || slot.0 >= group.m;
    let misses = |(slot, x): &(MemberSlot, &Member)| needs(*slot) && apart(cuts, leader, x.id.node);
    let missed = group.listed().filter(misses);
    missed.map(|(slot, _)| slot).collect()
}

/// The events of a time with cuts.
#[derive(Default, Debug)]
pub(super) struct Lived {
    pub(super) epochs: Vec<(Duration, NewEpoch)>,
    pub(super) stood_until: Duration,
    /// For how long some group bore no loss.
    pub(super) bare: Duration,
}

impl Lived {
    /// Within 3 s all groups serve, and 2 s later nothing is changed any more.
    fn comes_to_rest(&self) {
        assert!(self.stood_until < Duration::from_secs(3), "{self:?}");
        let last = self.epochs.last().expect("members changed");
        assert!(last.0 < Duration::from_secs(5), "{last:?}");
    }
}

const MINUTES: Duration = Duration::from_secs(180);

#[test]
fn of_three_that_do_not_reach_each_other_one_goes_on_with_others() {
    let mut town = settled(5, "1+2", 1);
    let held = nodes_of(&town, 1);
    let cuts = every_pair_of(&held);
    assert_eq!(cuts.len(), 3);
    town.live_with(&cuts, None, MINUTES).comes_to_rest();
    let now = nodes_of(&town, 1);
    let stay: Vec<_> = now.iter().filter(|n| held.contains(n)).collect();
    assert_eq!(
        (stay, now.len()),
        (vec![&held[0]], 3),
        "who served, and two others"
    );
    town.heals();
}

#[test]
fn the_same_where_each_is_not_heard_by_the_next_alone() {
    let mut town = settled(5, "1+2", 1);
    let cuts = one_way(&town, &nodes_of(&town, 1));
    assert_eq!(cuts.len(), 3, "{cuts:?}");
    town.live_with(&cuts, None, MINUTES).comes_to_rest();
    town.heals();
}

#[test]
fn in_a_star_every_group_goes_on_with_the_hub() {
    for nodes in [4, 6] {
        let mut town = settled(nodes, "1+2", 16);
        let leaves: Vec<NodeId> = (2..=nodes).map(NodeId).collect();
        let cuts = every_pair_of(&leaves);
        town.live_with(&cuts, None, MINUTES).comes_to_rest();
        for group in 1..=16 {
            let held = nodes_of(&town, group);
            assert!(held.len() >= 2 && held.contains(&NodeId(1)), "{held:?}");
        }
        town.heals();
    }
}

/// The first node reaches the second alone, which does not reach the third.
fn one_reaches_one(nodes: u64) -> Cuts {
    let cut = (3..=nodes).map(|other| pair(NodeId(1), NodeId(other)));
    cut.chain([pair(NodeId(2), NodeId(3))]).collect()
}

/// Clients of a node that does not reach the second ask others, and those reach the first as little.
#[test]
fn what_a_node_served_that_reaches_one_other_goes_to_one_that_reaches_more() {
    for scheme in ["1+1", "1+2"] {
        let mut town = settled(5, scheme, 16);
        let served = |town: &TestCluster| (1..=16).any(|g| nodes_of(town, g)[0] == NodeId(1));
        assert!(served(&town), "the first node serves some");
        let copies = nodes_of(&town, 1).len();
        town.live_with(&one_reaches_one(5), None, MINUTES)
            .comes_to_rest();
        assert!(!served(&town));
        for group in 1..=16 {
            assert_eq!(nodes_of(&town, group).len(), copies, "of group {group}");
        }
        town.heals();
    }
}

/// The first and the second of six reach the last alone: it is a star but for the three that reach each other. Regression: a group
/// that one of them coordinated had an epoch each second, with one of the others stuck in turn, and its coordinator stayed.
#[test]
fn a_node_that_reaches_few_coordinates_nothing_that_another_can() {
    let first = (2..=5).map(|other| pair(NodeId(1), NodeId(other)));
    let second = (3..=5).map(|other| pair(NodeId(2), NodeId(other)));
    let cuts: Cuts = first.chain(second).collect();
    for scheme in ["1+1", "1+2"] {
        let mut town = settled(6, scheme, 32);
        let lived = town.live_with(&cuts, None, MINUTES);
        lived.comes_to_rest();
        for group in 1..=32 {
            let of = lived
                .epochs
                .iter()
                .filter(|(_, new)| new.group == GroupId(group));
            assert!(of.clone().count() <= 8, "{:?}", of.collect::<Vec<_>>());
        }
        town.heals();
    }
}

/// The coordinator would report the others stuck one after another, for as long as it is cut off.
#[test]
fn who_reaches_few_does_not_coordinate_the_next_try() {
    let (mut seen, few) = (0, NodeId(1));
    for scheme in ["2+1", "2+2"] {
        let mut town = coded(6, scheme, 32);
        for _ in 0..2 {
            town.planner.see_cuts(one_reaches_one(6));
            town.keep(&[]);
            town.wait(400);
        }
        let dead = NodeId(4);
        let incarnation = town.map.nodes[&dead].incarnation;
        town.change(&Change::NodeDown {
            node: dead,
            incarnation,
        });
        for tries in 0..4 {
            let mut reports = Vec::new();
            for group in town.map.groups.values().filter(|g| !g.open) {
                let leader = group.member(group.coordinator).expect("listed").id.node;
                assert_ne!(leader, few, "of try {tries} of {:?}", group.id);
                seen += usize::from(group.listed().any(|(_, x)| x.id.node == few));
                let other = group.listed().find(|(slot, _)| *slot != group.coordinator);
                let (other, _) = other.expect("three are listed");
                reports.push(stuck(&town, group.id.0, &[other.0], leader));
            }
            town.keep(&reports);
            town.wait(1_000);
        }
    }
    assert!(seen > 10, "it is listed in {seen} epochs");
}

/// A link that is cut and heals each second moves what the node served once, not each time.
#[test]
fn what_flaps_is_not_moved_back_and_forth() {
    let mut town = settled(5, "1+2", 16);
    let mut epochs = BTreeMap::new();
    for _ in 0..20 {
        for cuts in [one_reaches_one(5), Cuts::new()] {
            let lived = town.live_with(&cuts, None, Duration::from_secs(1));
            for (_, new) in lived.epochs {
                *epochs.entry(new.group).or_insert(0) += 1;
            }
        }
    }
    assert!(epochs.values().all(|count| *count <= 6), "{epochs:?}");
    town.heals();
}

/// A node that had no processor time for a moment hears nobody.
#[test]
fn nothing_is_taken_from_a_node_that_reaches_few_for_a_moment() {
    let mut town = settled(5, "1+2", 16);
    for _ in 0..10 {
        let cuts = one_reaches_one(5);
        let moment = Duration::from_millis(250);
        let lived = town.live_with(&cuts, None, moment);
        assert!(lived.epochs.is_empty(), "{lived:?}");
        town.live_with(&Cuts::new(), None, moment);
    }
}

#[test]
fn a_planner_that_leaves_all_to_who_reaches_few_or_takes_it_at_once_is_seen() {
    let goes = what_a_node_served_that_reaches_one_other_goes_to_one_that_reaches_more as fn();
    let stays = nothing_is_taken_from_a_node_that_reaches_few_for_a_moment as fn();
    for (bug, test) in [(Mutant::NarrowNotSeen, goes), (Mutant::NarrowAtOnce, stays)] {
        crate::mutant::plant(Some(bug));
        let seen = std::panic::catch_unwind(test);
        crate::mutant::plant(None);
        assert!(seen.is_err(), "{bug:?}");
    }
}

/// The one that reaches most nodes goes on, though another served.
#[test]
fn who_reaches_more_goes_on() {
    let mut town = settled(6, "1+2", 1);
    let held = nodes_of(&town, 1);
    let other = (1..=6).map(NodeId).find(|n| !held.contains(n));
    let mut cuts = every_pair_of(&held);
    cuts.insert(pair(held[0], other.expect("three more")));
    town.live_with(&cuts, None, MINUTES).comes_to_rest();
    let now = nodes_of(&town, 1);
    assert!(now.contains(&held[1]) && !now.contains(&held[0]), "{now:?}");
    town.heals();
}

#[test]
fn the_next_has_its_turn_where_the_first_opens_nothing() {
    let mut town = settled(5, "1+2", 1);
    let held = nodes_of(&town, 1);
    let cuts = every_pair_of(&held);
    town.planner.see_cuts(cuts.clone());
    town.keep(&[stuck(&town, 1, &[1, 2], held[0])]);
    assert_eq!(nodes_of(&town, 1)[0], held[0]);
    let lived = town.live_with(&cuts, Some(held[0]), MINUTES);
    lived.comes_to_rest();
    assert!(nodes_of(&town, 1).contains(&held[1]));
}

/// As in a cluster without processor time: silence all round says nothing of a cut, and two copies are not given up for it.
#[test]
fn nobody_is_put_out_where_no_other_node_reaches_them() {
    let mut town = settled(5, "1+2", 1);
    let all: Vec<NodeId> = town.map.nodes.keys().copied().collect();
    let cuts = every_pair_of(&all);
    let lived = town.live_with(&cuts, None, Duration::from_secs(10));
    let whole = |new: &NewEpoch| new.kept.iter().flatten().count() == 3;
    assert!(lived.epochs.iter().all(|(_, new)| whole(new)), "{lived:?}");
    town.heals();
}

/// With m > 1 one member has not all that was acknowledged.
#[test]
fn a_coded_group_waits_for_as_many_as_it_needs() {
    let mut town = coded(6, "2+1", 1);
    let cuts = every_pair_of(&nodes_of(&town, 1));
    let lived = town.live_with(&cuts, None, Duration::from_secs(10));
    let enough = |new: &NewEpoch| new.kept.iter().flatten().count() >= 2;
    assert!(lived.epochs.iter().all(|(_, new)| enough(new)), "{lived:?}");
}
