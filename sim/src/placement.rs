//! Placement of a files pool: nodes with the real [`Capacity`] machine, which take buckets on and give them up by themselves,
//! while nodes die and come back, stop, drain and resume, and hear of the map late.
//!
//! Blocks stand for themselves: a node has all of a bucket from when it took or copied it until it lets go of it. What
//! the pool must hold: a bucket that a living node alone holds stays, a drained node ends with nothing, every bucket finds a holder.

use std::collections::BTreeSet;

use staves_model::capacity::{Capacity, Own, Plan};
use staves_model::mutant::{Mutant, plant};
use staves_model::testing::{cluster, create_files_pool, new_node, node_down};
use staves_model::{
    Change, ClusterMap, Holdings, Incarnation, NewHoldings, NodeId, PoolId, Refusal, Revision, Time,
};

use crate::rng::Rng;

const POOL: PoolId = PoolId(1);
const BUCKETS: u32 = 64;
/// Bytes that each bucket takes.
const BUCKET_BYTES: u64 = 100;
/// Time between two looks of a node.
const ROUND_NS: u64 = 200_000_000;
/// Rounds with faults, and without: enough for every bucket of a drained node to be copied, one a round.
const ROUGH: u64 = 150;
const CALM: u64 = 3 * BUCKETS as u64;

/// A process's part: what it holds and does.
struct PoolNode {
    node: NodeId,
    incarnation: Incarnation,
    capacity: Capacity,
    /// Buckets of which it has all blocks.
    has: BTreeSet<u32>,
    copying: Option<u32>,
    /// A decision on an older map, which arrives late.
    late: Option<(Revision, NewHoldings)>,
    budget: u64,
}

struct Placement {
    map: ClusterMap,
    now: Time,
    rng: Rng,
    places: Vec<PoolNode>,
    violations: Vec<String>,
}

/// Runs one seed; the violations.
pub fn run(seed: u64, mutant: Option<Mutant>) -> Vec<String> {
    plant(mutant);
    let mut rng = Rng::new(seed);
    let mut map = cluster(0);
    let nodes = 4 + rng.below(3);
    // Between hardly enough for one copy of each bucket, and plenty.
    let all = u64::from(BUCKETS) * BUCKET_BYTES;
    let mean = all * rng.pick(&[14, 20, 30]) / 10 / nodes;
    let mut places = Vec::new();
    for _ in 0..nodes {
        let budget = mean / 2 + rng.below(mean);
        map.apply(None, &new_node("node", budget))
            .expect("a node joins");
        let (node, known) = map.nodes.last_key_value().expect("it is there");
        places.push(PoolNode::new(*node, known.incarnation, budget));
    }
    map.apply(None, &create_files_pool("files", BUCKETS, 1 << 40))
        .expect("a pool");
    let mut w = Placement {
        map,
        now: Time(1),
        rng,
        places,
        violations: Vec::new(),
    };
    for round in 0..ROUGH + CALM {
        if round < ROUGH {
            w.fault();
        } else if round == ROUGH {
            w.come_back();
        }
        w.round();
    }
    w.at_rest();
    plant(None);
    w.violations
}

impl PoolNode {
    fn new(node: NodeId, incarnation: Incarnation, budget: u64) -> PoolNode {
        PoolNode {
            node,
            incarnation,
            capacity: Capacity::default(),
            has: BTreeSet::new(),
            copying: None,
            late: None,
            budget,
        }
    }
}

impl Placement {
    fn holdings(&self) -> &Holdings {
        let holdings = self.map.pools[&POOL].holdings();
        holdings.expect("a files pool")
    }

    // A node dies, comes back with nothing, drains, resumes, or stops once it is drained. Two nodes stay as they are.
    fn fault(&mut self) {
        let at = self.rng.below(self.places.len() as u64) as usize;
        let (node, draining) = (
            self.places[at].node,
            self.map.nodes[&self.places[at].node].draining,
        );
        let up = self.map.is_up(node, self.places[at].incarnation);
        let well = self.map.homes().count() > 2;
        match self.rng.below(40) {
            0 if up && (well || draining) => self.die(at),
            1..4 if !up => self.start(at),
            4..7 if up && !draining && well => self.drain(node, true),
            7..9 if draining => self.drain(node, false),
            9..13 if up && draining && self.holds(node) == 0 => self.die(at),
            _ => {}
        }
    }

    fn change(&mut self, change: &Change) {
        if let Err(why) = self.map.apply(None, change) {
            self.violations
                .push(format!("the map refuses {change:?}: {why}"));
        }
    }

    fn die(&mut self, at: usize) {
        let node = self.places[at].node;
        let down = node_down(&self.map, node.0);
        self.change(&down);
        self.places[at].has.clear();
    }

    fn start(&mut self, at: usize) {
        let (node, budget) = (self.places[at].node, self.places[at].budget);
        let mut up = new_node("node", budget);
        if let Change::NodeUp { id, .. } = &mut up {
            *id = Some(node);
        }
        self.change(&up);
        let incarnation = self.map.nodes[&node].incarnation;
        self.places[at] = PoolNode::new(node, incarnation, budget);
    }

    fn drain(&mut self, node: NodeId, on: bool) {
        let drain = Change::Drain { node, on };
        self.change(&drain);
    }

    fn come_back(&mut self) {
        for at in 0..self.places.len() {
            if !self
                .map
                .is_up(self.places[at].node, self.places[at].incarnation)
            {
                self.start(at);
            }
        }
        // One drains to the end; the others stay.
        let ids: Vec<NodeId> = self.places.iter().map(|p| p.node).collect();
        for node in ids.into_iter().skip(1) {
            self.drain(node, false);
        }
        let first = self.places[0].node;
        self.drain(first, true);
    }

    // Every node looks once, in any order; some are slow, and propose what they decided before.
    fn round(&mut self) {
        self.now = Time(self.now.0 + ROUND_NS);
        let first = self.rng.below(self.places.len() as u64) as usize;
        for i in 0..self.places.len() {
            let at = (first + i) % self.places.len();
            if self
                .map
                .is_up(self.places[at].node, self.places[at].incarnation)
            {
                self.look(at);
            }
        }
    }

    fn look(&mut self, at: usize) {
        if let Some((seen, late)) = self.places[at].late.take() {
            return self.propose(at, seen, &late);
        }
        let holdings = self.holdings().clone();
        let place = &mut self.places[at];
        let (node, incarnation) = (place.node, place.incarnation);
        // A copy is done in a round, if another holds the bucket still.
        let copied = place.copying.take();
        let copied = copied.filter(|b| (1..16).contains(&holdings.holders(*b).len()));
        place.has = (0..BUCKETS)
            .filter(|b| holdings.place(*b, node, incarnation).is_some() || copied == Some(*b))
            .collect();
        let bytes = |b: u32| BUCKET_BYTES * u64::from(place.has.contains(&b));
        let bucket_bytes: Vec<u64> = (0..BUCKETS).map(bytes).collect();
        let own = Own {
            node,
            incarnation,
            budget_bytes: place.budget,
            bucket_bytes: &bucket_bytes,
            evicts_last: bucket_bytes.iter().sum::<u64>() > place.budget,
            copying: copied,
            going: &[],
            draining: self.map.nodes[&node].draining,
            spreads: true,
        };
        let pool = &self.map.pools[&POOL];
        let plan = place.capacity.step(self.now, &self.map, pool, &own);
        self.check_plan(at, &plan);
        let place = &mut self.places[at];
        place.copying = plan.copy;
        let new = NewHoldings {
            pool: POOL,
            node,
            incarnation,
            take: plan.take.into_iter().chain(copied).collect(),
            leave: plan.leave,
            flag: plan.flag,
            unflag: plan.unflag,
        };
        let seen = self.map.revision;
        match self.rng.below(4) {
            0 => self.places[at].late = Some((seen, new)),
            _ => self.propose(at, seen, &new),
        }
    }

    fn propose(&mut self, at: usize, seen: Revision, new: &NewHoldings) {
        match self.map.apply(Some(seen), &Change::Hold(new.clone())) {
            Ok(_) | Err(Refusal::MapMovedOn { .. }) => {}
            Err(why) => {
                let node = self.places[at].node;
                self.violations
                    .push(format!("P1 {node:?} proposes what the map refuses: {why}"));
            }
        }
    }

    // D7: a node gives up no bucket that it alone means to keep, and one a round of those that others hold, unless it drains.
    fn check_plan(&mut self, at: usize, plan: &Plan) {
        let (node, incarnation) = (self.places[at].node, self.places[at].incarnation);
        let draining = self.map.nodes[&node].draining;
        for bucket in &plan.leave {
            let holders = self.holdings().holders(*bucket).iter();
            let others = holders.filter(|h| !h.is(node, incarnation) && !h.leaving);
            if others.count() == 0 {
                self.violations.push(format!(
                    "P2 {node:?} gives up bucket {bucket}, which no other node means to keep"
                ));
            }
        }
        if plan.leave.len() > 1 && !draining {
            let count = plan.leave.len();
            self.violations
                .push(format!("P3 {node:?} gives up {count} buckets at once"));
        }
    }

    fn holds(&self, node: NodeId) -> usize {
        let buckets = self.holdings().buckets.iter().flatten();
        buckets.filter(|holder| holder.node == node).count()
    }

    // The drained node has nothing left, and every bucket has a holder that stays.
    fn at_rest(&mut self) {
        let (drained, left) = (self.places[0].node, self.holds(self.places[0].node));
        if left > 0 {
            self.violations.push(format!(
                "P4 {drained:?} drains to the end and still holds {left} buckets"
            ));
        }
        let buckets = self.holdings().buckets.iter();
        let orphans = buckets.filter(|holders| holders.iter().all(|h| h.leaving));
        let orphans = orphans.count();
        if orphans > 0 {
            self.violations
                .push(format!("P5 {orphans} buckets have no holder that stays"));
        }
    }
}
