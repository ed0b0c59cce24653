//! The circumstances of a run: its seed and shape, how rough it is, and what memory, storage and losses are like in its world.

use staves_group::Durability;
use staves_model::mutant::Mutant;

use crate::load::{SERVICES, ServiceEntry, service_of};
use crate::rng::Rng;

/// The input of a run.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// Data buckets.
    pub m: usize,
    /// Parity buckets.
    pub k: usize,
    /// Groups of the world: that of this shape, and others by the seed.
    pub groups: usize,
    /// A planted bug.
    pub mutant: Option<Mutant>,
    /// The roughest profile, with most of its faults aimed: for bugs that need several at once.
    pub hunting: bool,
    /// Print what happens.
    pub trace: bool,
}

/// A group that a world has beside the scenario's own.
#[derive(Clone, Copy)]
pub struct GroupShape {
    /// Data buckets.
    pub m: usize,
    /// Parity buckets.
    pub k: usize,
    /// Its service; with none, clients use the members' registers.
    pub service: Option<&'static ServiceEntry>,
}

impl GroupShape {
    /// The other groups of a scenario's world, each with another service than the one before. Their chances are their
    /// own, so that worlds of one group stay as they are.
    pub fn others(s: &Scenario) -> Vec<GroupShape> {
        let mut rng = Rng::new(s.seed ^ 0x4752_4F55);
        let mut services: Vec<_> = SERVICES.iter().map(Some).chain([None]).collect();
        let name = |service: &Option<&ServiceEntry>| service.map(|service| service.name);
        services.retain(|service| name(service) != name(&service_of(s)));
        let others = 1..s.groups;
        others
            .map_while(|_| {
                let at = rng.below(services.len() as u64) as usize;
                let service = (!services.is_empty()).then(|| services.swap_remove(at))?;
                let (m, k) = match service {
                    // The cache has one data bucket.
                    Some(service) if service.name == "key-value" => (1, 1 + rng.below(3) as usize),
                    _ => rng.pick(&[(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (4, 2)]),
                };
                Some(GroupShape { m, k, service })
            })
            .collect()
    }
}

/// The roughness of a run. Chances are per mille.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Messages lost.
    pub lost: u64,
    /// Messages that take up to half a second.
    pub slow: u64,
    /// Members suspected without reason, each time the directory looks.
    pub suspected: u64,
    /// Changes of the data bucket without reason, each time the directory looks.
    pub switched: u64,
    /// Most milliseconds between faults.
    pub fault_gap: u64,
    /// Clients that look at a new map before a request.
    pub map_seen: u64,
    /// Most milliseconds that a client thinks.
    pub think: u64,
    /// Faults aimed at a step of the protocol.
    pub aimed: u64,
    /// Faults that are islands: the data bucket cut off while clients still reach it.
    pub islands: u64,
}

/// Members whose storage syncs late.
#[derive(Clone, Copy, Debug)]
pub struct LateSyncs {
    /// The mark that releases answers.
    pub durability: Durability,
    /// Steps of a member until a sync ends.
    pub steps: usize,
}

impl LateSyncs {
    /// By the scenario's seed, in some worlds whose clients use registers. Its chances are its own.
    pub fn of(s: &Scenario) -> Option<LateSyncs> {
        let mut rng = Rng::new(s.seed ^ 0x4C41_5445);
        let hunted = s.mutant.is_some_and(|m| Mutant::DURABLE.contains(&m));
        let late = hunted || (s.mutant.is_none() && rng.chance(250));
        late.then(|| LateSyncs {
            durability: match hunted || rng.chance(700) {
                true => Durability::Durable,
                false => Durability::Writeback,
            },
            steps: 1 + rng.below(6) as usize,
        })
    }
}

/// The fate of a group that has lost more than its scheme bears.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// It never does.
    Bounded,
    /// The pool may start empty.
    StartsEmpty,
    /// It waits for its members.
    Waits,
}

/// The treatment of memory in a world with m > 1. Chances are per mille.
#[derive(Clone, Copy, Default, Debug)]
pub struct Room {
    /// A data bucket changes its wish, each time its timer comes.
    pub wishes: u64,
    /// A burst, each time a client acts.
    pub bursts: u64,
    /// Some nodes have few extents, until somebody gives them more.
    pub tight: bool,
}

impl Room {
    /// By the scenario's seed. Its chances are its own, so that worlds with m = 1 stay as they are.
    pub fn of(s: &Scenario) -> Room {
        let mut rng = Rng::new(s.seed ^ 0x524F_4F4D);
        if s.m == 1 {
            return Room::default();
        }
        let room = Room {
            wishes: rng.pick(&[0, 15, 60]),
            bursts: rng.pick(&[0, 30, 150]),
            tight: rng.chance(350),
        };
        // Planted bugs that only such worlds can show are hunted there alone.
        match s.mutant {
            Some(Mutant::GrantedToAll | Mutant::MemoryOfTheLargestAsked) => Room {
                wishes: 60,
                tight: true,
                ..room
            },
            Some(Mutant::MissingPagesMemoryGivenBack) => Room { wishes: 60, ..room },
            Some(Mutant::EqualLabelsTakenAsOne) => Room {
                bursts: 150,
                ..room
            },
            _ => room,
        }
    }
}
