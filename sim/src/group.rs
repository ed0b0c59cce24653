//! A reliability group of a simulated world: its shape, its service with the clients' history, and the judges' account of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use staves_erasure::Code;
use staves_model::{DiskId, Group, GroupId, K_MAX, NodeId, PoolId, Region};
use staves_wire::group::RequestId;
use staves_wire::service::PoolRef;

use crate::ghost::Ghost;
use crate::history::Operation;
use crate::load::{Load, ServiceEntry, service_of};
use crate::scenario::{GroupShape, LateSyncs, Scenario};
use crate::world::World;

/// Most parity buckets of a group, those counted that are being exchanged.
const PARITY_MAX: usize = 2 * K_MAX as usize;

/// One group of a world, alone in its pool.
pub struct SimGroup {
    /// Data buckets.
    pub m: usize,
    /// Wanted parity buckets.
    pub k: usize,
    /// The code of its m, with all parity that it may have; for the judges alone.
    pub code: Code,
    /// Its pool.
    pub pool: PoolId,
    /// The pool's name.
    pub pool_name: String,
    /// Its id; of a region's group that of the present region.
    pub id: GroupId,
    /// The history of the clients of its registers.
    pub history: Vec<Operation>,
    /// The load of its service; with none, clients use the members' registers.
    pub load: Option<Box<dyn Load>>,
    /// The names of its operations at the buckets, by their place in the load's history.
    pub(crate) requests: BTreeMap<usize, RequestId>,
    /// The service's objects are chunks of regions.
    pub has_regions: bool,
    /// The regions that there were, the present one last, each with its last known size.
    pub regions: Vec<Region>,
    /// Its members sync late, if they do.
    pub late: Option<LateSyncs>,
    /// The beginning of each of its lives.
    pub lives: Vec<u64>,
    /// The right content of every page, by its labels.
    pub ghost: Ghost,
    /// The time at which its entry in the directory last changed.
    pub since: u64,
    /// Its entry, newest last.
    pub(crate) entries: Vec<Arc<Group>>,
    /// The newest entry that was open.
    pub(crate) opened: Option<Arc<Group>>,
    /// Members that were reported, until the directory next looks.
    pub(crate) stuck: BTreeSet<(NodeId, DiskId)>,
}

impl SimGroup {
    fn new(pool_name: String, (m, k): (usize, usize), service: Option<&ServiceEntry>) -> SimGroup {
        SimGroup {
            m,
            k,
            code: Code::new(m, PARITY_MAX).expect("a group's members are fewer than 256"),
            pool: PoolId::default(),
            pool_name,
            id: GroupId(0),
            history: Vec::new(),
            load: service.map(|service| (service.load)()),
            has_regions: service.is_some_and(|service| service.has_regions),
            regions: Vec::new(),
            late: None,
            requests: BTreeMap::new(),
            lives: vec![0],
            ghost: Ghost::default(),
            since: 0,
            entries: Vec::new(),
            opened: None,
            stuck: BTreeSet::new(),
        }
    }

    /// The groups of a scenario's world, the scenario's own first.
    pub fn of(s: &Scenario) -> Vec<SimGroup> {
        let own = SimGroup::new("cache".into(), (s.m, s.k), service_of(s));
        let late = LateSyncs::of(s).filter(|_| own.load.is_none());
        let others = GroupShape::others(s).into_iter().enumerate();
        let others = others.map(|(i, other)| {
            SimGroup::new(format!("pool-{}", i + 1), (other.m, other.k), other.service)
        });
        std::iter::once(SimGroup { late, ..own })
            .chain(others)
            .collect()
    }

    /// The number of objects of its service that operations were done on.
    pub(crate) fn objects(&self) -> usize {
        self.load.as_ref().map_or(0, |load| load.objects().len())
    }

    /// The entry now.
    pub(crate) fn entry(&self) -> Option<Arc<Group>> {
        self.entries.last().cloned()
    }

    /// The number of members that one node may hold.
    pub(crate) fn seats(&self) -> usize {
        if self.m > 1 { 2 } else { 1 }
    }
}

impl World {
    /// A group as the directory has it.
    pub fn committed(&self, g: usize) -> &Group {
        &self.directory.map.groups[&self.groups[g].id]
    }

    /// The index of a group, whose region may be gone.
    pub(crate) fn index_of(&self, id: GroupId) -> Option<usize> {
        let is = |g: &SimGroup| g.id == id || g.regions.iter().any(|r| r.id.0 == id.0);
        self.groups.iter().position(is)
    }

    /// The index of the group of a pool; requests of simulated clients name pools that there are.
    pub(crate) fn index_of_pool(&self, pool: &PoolRef) -> usize {
        let is = |g: &SimGroup| matches!(pool, PoolRef::Id(id) if *id == g.pool);
        self.groups.iter().position(is).unwrap_or_default()
    }

    /// The indices of all groups.
    pub(crate) fn all_groups(&self) -> std::ops::Range<usize> {
        0..self.groups.len()
    }

    /// A group by chance.
    pub(crate) fn some_group(&mut self) -> usize {
        match self.groups.len() {
            1 => 0,
            several => self.rng.below(several as u64) as usize,
        }
    }

    /// The group of an entry.
    pub(crate) fn group_at(&self, node: usize) -> &SimGroup {
        &self.groups[self.nodes[node].group]
    }
}
