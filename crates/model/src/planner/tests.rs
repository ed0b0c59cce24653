//! Plans for maps in every kind of trouble.

mod claims;
mod drains;
mod empty;
mod fills;
mod forecast;
mod isolated;
mod losses;
mod moves;
mod odd;
mod rest;
mod writeback;

use super::*;
use crate::change::{GroupStep, Outcome, Refusal};
use crate::scheme::Scheme;
use crate::testing::*;

/// A cluster in which epochs open and joiners complete as the test lets them.
#[derive(Clone)]
struct TestCluster {
    map: ClusterMap,
    planner: Planner,
    now: Time,
    /// Most groups seen in change by moves at one time.
    moving_most: usize,
}

impl TestCluster {
    fn of(map: ClusterMap) -> TestCluster {
        let planner = Planner::new(PlannerConfig::default());
        TestCluster {
            map,
            planner,
            now: Time::from_millis(1000),
            moving_most: 0,
        }
    }

    fn change(&mut self, change: &Change) -> Outcome {
        self.map
            .apply(None, change)
            .expect("the test knows that it may")
    }

    fn wait(&mut self, ms: u64) {
        self.now = self.now + Duration::from_millis(ms);
    }

    /// One look of the planner. What it proposes on the present map is never refused.
    fn keep(&mut self, stuck: &[StuckReport]) -> Vec<Change> {
        let proposed = self.planner.step(self.now, &self.map, stuck);
        for (revision, change) in &proposed {
            if let Err(refusal) = self.map.apply(Some(*revision), change) {
                panic!("{refusal}\n{change:?}");
            }
        }
        let changing = self
            .map
            .groups
            .values()
            .filter(|g| in_change_now(&self.map, g))
            .count();
        self.moving_most = self.moving_most.max(changing);
        proposed.into_iter().map(|(_, change)| change).collect()
    }

    fn runs(&self, group: &Group) -> bool {
        group.listed().all(|(_, x)| self.map.runs(x.id))
    }

    /// Leaders open, and joiners complete, each with the given chance in percent.
    fn work(&mut self, dice: &mut Dice, percent: u64) {
        let able = self
            .map
            .groups
            .values()
            .filter(|g| g.epoch > Epoch(0) && self.runs(g));
        let able: Vec<Group> = able.cloned().collect();
        for group in able {
            if dice.below(100) >= percent {
                continue;
            }
            if !group.open {
                self.change(&Change::step(GroupStep::Open {
                    group: group.id,
                    epoch: group.epoch,
                }));
                continue;
            }
            for (slot, member) in group.listed().filter(|(_, x)| !x.complete) {
                if dice.below(100) >= percent {
                    continue;
                }
                let incarnation = member.id.incarnation;
                let epoch = group.epoch;
                self.change(&Change::step(GroupStep::Complete {
                    group: group.id,
                    epoch,
                    slot,
                    incarnation,
                }));
            }
        }
    }

    /// Lets everything go well until the planner proposes nothing more.
    fn settle(&mut self) {
        let mut dice = Dice(1);
        let mut idle = 0;
        for _ in 0..5_000 {
            let said = self.keep(&[]);
            self.work(&mut dice, 100);
            idle = if said.is_empty() { idle + 1 } else { 0 };
            // Long enough for a start from nothing, and for who was stuck to be tried again.
            self.wait(if idle < 20 { 25 } else { 5_000 });
            if idle > 150 {
                return;
            }
        }
        panic!("it does not come to rest: {:?}", self.keep(&[]));
    }

    /// Checks what must hold when nothing has gone wrong for long.
    fn check_at_rest(&self) {
        let ring = Ring::of(&self.map);
        for pool in self.map.pools.values() {
            let plan = ring.plan(pool);
            for (id, plan) in pool.groups.iter().zip(plan) {
                let group = &self.map.groups[id];
                if group.lost || plan.len() < usize::from(group.m) {
                    continue;
                }
                assert!(group.open && self.runs(group), "{group:?}");
                assert!(
                    group.members.iter().flatten().all(|x| x.complete),
                    "{group:?}"
                );
                let nodes: Vec<NodeId> = group.listed().map(|(_, x)| x.id.node).collect();
                let as_set = |nodes: &[NodeId]| nodes.iter().copied().collect::<BTreeSet<_>>();
                if group.m == 1 {
                    assert_eq!(nodes[0], plan[0], "the ring's first serves: {group:?}");
                    assert_eq!(as_set(&nodes), as_set(&plan), "{group:?}");
                } else {
                    assert!(
                        group.members[..usize::from(group.m)]
                            .iter()
                            .all(Option::is_some)
                    );
                    assert!(nodes.len() <= pool.scheme.width());
                    let free = ring.nodes().any(|n| !nodes.contains(&n));
                    assert!(nodes.len() == pool.scheme.width() || !free, "{group:?}");
                    let doubled = group.listed().any(|(_, x)| group.is_doubled(x));
                    assert!(!doubled || !free, "{group:?}");
                    let draining = nodes.iter().any(|n| self.map.nodes[n].draining);
                    assert!(
                        !draining || !free || nodes.len() == usize::from(group.m),
                        "{group:?}"
                    );
                    let places: BTreeSet<_> = group.listed().map(|(_, x)| x.id.place()).collect();
                    assert_eq!(places.len(), nodes.len(), "{group:?}");
                    // No twin is left beside its original.
                    let own = |(slot, _): (MemberSlot, &Member)| group.bucket_slot(slot) == slot;
                    assert!(group.listed().all(own), "{group:?}");
                    let bears = group.tolerates(|id| self.map.runs(id));
                    let spare = nodes.len() - usize::from(group.m);
                    assert!(doubled || bears == Some(spare as u8), "{group:?}");
                }
            }
        }
    }

    fn set_scheme(&mut self, scheme: &str) {
        let scheme = scheme.parse::<Scheme>().expect("a scheme");
        let name = "cache".into();
        self.change(&Change::SetPool {
            name,
            scheme: Some(scheme),
            node_budget_bytes: None,
        });
    }

    fn firsts(&self) -> BTreeMap<NodeId, usize> {
        let mut count = BTreeMap::new();
        for group in self.map.groups.values() {
            *count
                .entry(group.members[0].expect("data slots are listed").id.node)
                .or_insert(0) += 1;
        }
        count
    }
}

fn settled(nodes: u64, scheme: &str, buckets: u32) -> TestCluster {
    let mut town = TestCluster::of(cluster_with_pool(nodes, scheme, buckets));
    town.settle();
    town.check_at_rest();
    town
}

fn epochs_of(changes: &[Change]) -> Vec<&NewEpoch> {
    let epochs = changes.iter().filter_map(|c| match c {
        Change::CommitEpochs(new) => Some(new),
        _ => None,
    });
    epochs.flatten().collect()
}

fn coded(nodes: u64, scheme: &str, groups: u32) -> TestCluster {
    let mut town = TestCluster::of(cluster(nodes));
    town.change(&create_pool("cache", scheme, groups, false));
    town.settle();
    town.check_at_rest();
    town
}

fn drain(town: &mut TestCluster, node: u64, on: bool) {
    let node = NodeId(node);
    town.change(&Change::Drain { node, on });
}

fn stuck(town: &TestCluster, group: u32, slots: &[u8], reporter: NodeId) -> StuckReport {
    let epoch = town.map.groups[&GroupId(group)].epoch;
    let slots = slots.iter().map(|s| MemberSlot(*s)).collect();
    StuckReport {
        group: GroupId(group),
        epoch,
        slots,
        reporter,
    }
}

/// Rows D5, D6, X2, X3, X5 together: joins, deaths, returns, drains, changes of k, stuck members, in
/// any order; then it heals, and comes to the ring's placement (I11). No proposal is ever refused.
#[test]
fn from_any_history_it_converges_to_the_ring() {
    for seed in 0..300 {
        let scheme = ["1+0", "1+1", "1+2", "2+1", "2+2"][seed as usize % 5];
        let mut dice = Dice(seed);
        let mut town = TestCluster::of(cluster_with_pool(1 + dice.below(5), scheme, 8));
        for _ in 0..150 {
            let reports = disturb(&mut town, &mut dice, scheme);
            town.keep(&reports);
            town.work(&mut dice, 40);
            town.wait(25 + dice.below(200));
        }
        heal(&mut town);
        town.settle();
        town.check_at_rest();
    }
}

fn disturb(town: &mut TestCluster, dice: &mut Dice, scheme: &str) -> Vec<StuckReport> {
    let all: Vec<NodeId> = town.map.nodes.keys().copied().collect();
    let Some(node) = dice.pick(&all) else {
        return Vec::new();
    };
    let incarnation = town.map.nodes[&node].incarnation;
    match dice.below(30) {
        0 if all.len() < 8 => drop(town.change(&node_up(None))),
        1 => drop(town.change(&node_up(Some(node.0)))),
        2 | 3 => drop(town.change(&Change::NodeDown { node, incarnation })),
        4..=6 => drop(town.change(&Change::NodeBack { node, incarnation })),
        7 => drop(town.change(&Change::Drain {
            node,
            on: dice.below(3) == 0,
        })),
        8 => town.set_scheme(&format!("{}+{}", &scheme[..1], dice.below(4))),
        9 | 10 => {
            let group = &town.map.groups[&GroupId(1 + dice.below(8) as u32)];
            let coordinator = group.member(group.coordinator).map_or(node, |x| x.id.node);
            let slots: Vec<u8> = (0..5).filter(|_| dice.below(2) == 0).collect();
            return vec![stuck(town, group.id.0, &slots, coordinator)];
        }
        11 => town.planner = Planner::new(PlannerConfig::default()),
        _ => {}
    }
    Vec::new()
}

fn heal(town: &mut TestCluster) {
    let all: Vec<NodeId> = town.map.nodes.keys().copied().collect();
    for node in all {
        let incarnation = town.map.nodes[&node].incarnation;
        town.change(&Change::NodeBack { node, incarnation });
    }
}

/// A proposal that comes late is refused whole and made anew; nothing is stuck by it.
#[test]
fn late_proposals_are_refused_and_made_anew() {
    let mut town = settled(5, "1+2", 8);
    town.change(&node_down(&town.map, 1));
    let late = town.planner.step(town.now, &town.map, &[]);
    town.change(&node_down(&town.map, 2));
    for (revision, change) in &late {
        let refusal = town
            .map
            .apply(Some(*revision), change)
            .expect_err("2 is down as well");
        assert!(matches!(refusal, Refusal::MemberNotUp { .. }), "{refusal}");
    }
    assert!(!town.keep(&[]).is_empty(), "the nodes changed: at once");
    town.settle();
    town.check_at_rest();
}

#[cfg(feature = "mutants")]
mod planted {
    use super::*;
    use crate::mutant::{Mutant, plant};

    /// The simulator can only find what the planner does with the rule off.
    #[test]
    fn a_stuck_source_is_called_in_as_a_joiner() {
        let mut town = settled(3, "1+2", 1);
        let node = |s: usize| {
            town.map.groups[&GroupId(1)].members[s]
                .expect("listed")
                .id
                .node
        };
        let (data, copy) = (node(0), node(2));
        plant(Some(Mutant::SourceListedAsJoiner));
        let said = town.keep(&[stuck(&town, 1, &[2], data)]);
        plant(None);
        let new = epochs_of(&said)[0];
        let at = new
            .members
            .iter()
            .position(|x| x.is_some_and(|x| x.node == copy));
        assert_eq!(new.kept[at.expect("listed again")], None);
    }

    #[test]
    fn an_abandoned_epochs_joiner_is_taken_for_a_source() {
        let mut town = settled(4, "1+2", 1);
        let first = town.map.groups[&GroupId(1)].members[0]
            .expect("listed")
            .id
            .node;
        town.change(&node_down(&town.map, first.0));
        town.keep(&[]);
        let joiner = town.map.groups[&GroupId(1)].members[2]
            .expect("listed")
            .id
            .node;
        town.wait(1000);
        town.keep(&[]);
        town.wait(1000);
        plant(Some(Mutant::SourcesFromCommitted));
        let said = town.keep(&[]);
        plant(None);
        let new = epochs_of(&said)[0];
        let at = new
            .members
            .iter()
            .position(|x| x.is_some_and(|x| x.node == joiner));
        assert!(new.kept[at.expect("listed")].is_some());
    }
}
