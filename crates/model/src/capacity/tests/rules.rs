//! Each rule of placement in one decision of one node, and the planted bugs that break it.

use super::*;
use crate::mutant::{Mutant, plant};

/// A rule: `None` if it holds, else the plan that broke it.
type Rule = fn() -> Option<Plan>;

/// The planted bugs, each with the rule that it breaks.
const BROKEN: [(Mutant, Rule); 7] = [
    (
        Mutant::OrphanKeptForItsShare,
        an_old_orphan_is_taken_by_any_node,
    ),
    (Mutant::SharesOfOneSize, orphans_are_shared_out_by_budget),
    (
        Mutant::FlaggedTakenAsStaying,
        a_flagged_bucket_is_copied_though_it_has_a_holder,
    ),
    (
        Mutant::SpreadBeforeFlagged,
        a_flagged_bucket_is_copied_before_one_is_spread,
    ),
    (
        Mutant::AnyBucketSpread,
        a_bucket_with_the_fewest_holders_is_spread,
    ),
    (
        Mutant::AllSparesLeftAtOnce,
        one_spare_copy_is_given_up_a_round,
    ),
    (
        Mutant::DrainLeavesTheLastCopy,
        a_draining_node_keeps_what_no_other_holds,
    ),
];

#[test]
fn d7_each_rule_holds_in_every_decision() {
    for (mutant, rule) in BROKEN {
        assert_eq!(rule(), None, "the rule that {mutant:?} breaks");
    }
}

#[test]
fn d7_each_planted_bug_of_placement_breaks_its_rule() {
    assert_eq!(BROKEN.map(|(mutant, _)| mutant), Mutant::PLACEMENT);
    for (mutant, rule) in BROKEN {
        plant(Some(mutant));
        let broken = rule();
        plant(None);
        assert!(broken.is_some(), "{mutant:?} was not seen");
    }
}

/// Without copies that nobody needs, those that a drain needs are made all the same.
#[test]
fn a_node_that_makes_no_copies_copies_what_another_gives_up() {
    let mut case = Case::new([vec![stays(1)], vec![leaves(2)]]);
    case.spreads = false;
    assert_eq!(case.plan().copy, Some(1));
    let mut case = Case::new([vec![stays(1)], vec![stays(2)]]);
    assert!(case.plan().copy.is_some());
    case.spreads = false;
    assert!(case.plan().is_empty());
}

/// A cluster of four nodes whose files pool has these holders; node 4 looks at it.
struct Case {
    map: ClusterMap,
    budget_bytes: u64,
    draining: bool,
    spreads: bool,
}

const LOOKS: NodeId = NodeId(4);

/// A holder that stays.
fn stays(node: u64) -> Holder {
    Holder {
        node: NodeId(node),
        incarnation: Incarnation(node),
        leaving: false,
    }
}

/// A holder that has flagged the bucket.
fn leaves(node: u64) -> Holder {
    Holder {
        leaving: true,
        ..stays(node)
    }
}

impl Case {
    /// Node 4 has room for ten buckets more than it holds.
    fn new(buckets: impl IntoIterator<Item = Vec<Holder>>) -> Case {
        let mut map = TestCluster::new(1, &[10_000; 4]).map;
        let pool = map.pools.get_mut(&POOL).unwrap();
        let buckets: Vec<Vec<Holder>> = buckets.into_iter().collect();
        let mut case = Case {
            budget_bytes: 10 * BUCKET_BYTES,
            draining: false,
            spreads: true,
            map: ClusterMap::default(),
        };
        case.budget_bytes += bytes(&buckets).iter().sum::<u64>();
        pool.kind = PoolKind::Files(Holdings {
            buckets,
            ..Holdings::default()
        });
        case.map = map;
        case
    }

    /// The same without room for a single bucket more.
    fn full(mut self) -> Case {
        self.budget_bytes -= 10 * BUCKET_BYTES;
        self
    }

    /// The plan of a node that looks for the second time, `later` after the first.
    fn plan_later(&self, later: Duration) -> Plan {
        let pool = &self.map.pools[&POOL];
        let bucket_bytes = bytes(&pool.holdings().unwrap().buckets);
        let own = Own {
            node: LOOKS,
            incarnation: Incarnation(LOOKS.0),
            budget_bytes: self.budget_bytes,
            bucket_bytes: &bucket_bytes,
            evicts_last: false,
            copying: None,
            going: &[],
            draining: self.draining,
            spreads: self.spreads,
        };
        let mut capacity = Capacity::default();
        capacity.step(Time(1), &self.map, pool, &own);
        capacity.step(Time(1) + later, &self.map, pool, &own)
    }

    fn plan(&self) -> Plan {
        self.plan_later(Duration::ZERO)
    }
}

/// Bytes that node 4 has of each bucket.
fn bytes(buckets: &[Vec<Holder>]) -> Vec<u64> {
    let here = |holders: &Vec<Holder>| holders.iter().any(|h| h.node == LOOKS);
    let each = buckets.iter().map(|b| u64::from(here(b)) * BUCKET_BYTES);
    each.collect()
}

/// The first plan that is not as it should be, of those of many cases: one case may be right by chance.
fn broken(plans: impl IntoIterator<Item = (Plan, bool)>) -> Option<Plan> {
    let mut plans = plans.into_iter();
    plans.find_map(|(plan, right)| (!right).then_some(plan))
}

/// Rule 1.
fn an_old_orphan_is_taken_by_any_node() -> Option<Plan> {
    let case = Case::new(vec![vec![]; 64]);
    let (young, old) = (case.plan(), case.plan_later(ORPHAN_MAX));
    let all: Vec<u32> = (0..64).collect();
    broken([
        (young.clone(), young.take.len() < 64),
        (old.clone(), old.take == all),
    ])
}

/// Rule 1: of four nodes one with nine tenths of the memory takes far more than a quarter.
fn orphans_are_shared_out_by_budget() -> Option<Plan> {
    let mut case = Case::new(vec![vec![]; 256]);
    case.map.nodes.get_mut(&LOOKS).unwrap().memory_bytes = 270_000;
    let plan = case.plan();
    broken([(plan.clone(), plan.take.len() > 200)])
}

/// Rule 2.
fn a_flagged_bucket_is_copied_though_it_has_a_holder() -> Option<Plan> {
    let case = Case::new([vec![leaves(1)], vec![stays(2), stays(4)]]).full();
    let plan = case.plan();
    // There is no room: first the spare copy goes.
    broken([(plan.clone(), plan.leave == [1] && plan.copy.is_none())])
}

/// Rule 2 before rule 3, wherever the flagged bucket stands.
fn a_flagged_bucket_is_copied_before_one_is_spread() -> Option<Plan> {
    broken((0..16).map(|flagged| {
        let holder = |b| if b == flagged { leaves(1) } else { stays(2) };
        let plan = Case::new((0..16).map(|b| vec![holder(b)])).plan();
        let right = plan.copy == Some(flagged);
        (plan, right)
    }))
}

/// Rule 3, wherever the bucket with the fewest holders stands.
fn a_bucket_with_the_fewest_holders_is_spread() -> Option<Plan> {
    broken((0..16).map(|few| {
        let holders = |b| match b == few {
            true => vec![stays(3)],
            false => vec![stays(1), stays(2)],
        };
        let plan = Case::new((0..16).map(holders)).plan();
        let right = plan.copy == Some(few);
        (plan, right)
    }))
}

/// Rule 4: the copy of which there are most goes, and no other in the same round.
fn one_spare_copy_is_given_up_a_round() -> Option<Plan> {
    broken((1..16).map(|most| {
        let holders = |b| match b {
            0 => vec![leaves(1)],
            b if b == most => vec![stays(2), stays(3), stays(4)],
            _ => vec![stays(2), stays(4)],
        };
        let plan = Case::new((0..16).map(holders)).full().plan();
        let right = plan.leave == [most];
        (plan, right)
    }))
}

/// A drain gives up what others hold, and flags the rest: to give that up would be refused with all else.
fn a_draining_node_keeps_what_no_other_holds() -> Option<Plan> {
    let mut case = Case::new([vec![stays(4)], vec![stays(4), stays(1)]]);
    case.draining = true;
    let plan = case.plan();
    broken([(plan.clone(), plan.leave == [1] && plan.flag == [0])])
}
