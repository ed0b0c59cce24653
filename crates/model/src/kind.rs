//! The kinds of pools, and the row of facts about each. Everything else that depends on a kind reads the row.

use serde::{Deserialize, Serialize};

use crate::files::Holdings;
use crate::ids::ServiceId;
use crate::region::Region;

/// The meaning of a pool's bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PoolKind {
    /// Key-value records in hash slots.
    Cache,
    /// Flat bytes in regions. Each of its groups belongs to one region.
    Memory {
        /// They come and go while the pool serves.
        regions: Vec<Region>,
    },
    /// Blocks of files that come from sources. It has no groups.
    Files(Holdings),
    /// Hash slots of a service that has no kind of its own: the map knows its number only.
    Slots(ServiceId),
}

/// The facts about a kind of pools.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KindRow {
    /// A word for people.
    pub word: &'static str,
    /// The service that its groups' buckets are of; none if it has no groups.
    pub service: Option<ServiceId>,
    /// Its operations are addressed by hash slot, and its buckets are all made with it.
    pub has_slots: bool,
    /// Pages of its parity may be made anew from the other members.
    pub can_mend: bool,
    /// Its contents, for someone who took it for another kind, and the command that lists them.
    pub holds: &'static str,
}

impl PoolKind {
    /// The facts about it.
    pub fn row(&self) -> KindRow {
        match self {
            PoolKind::Cache => KindRow {
                word: "cache",
                service: Some(ServiceId::CACHE),
                has_slots: true,
                can_mend: false,
                holds: "keys",
            },
            PoolKind::Memory { .. } => KindRow {
                word: "memory",
                service: Some(ServiceId::MEMORY),
                has_slots: false,
                can_mend: true,
                holds: "regions; 'staves memory list' shows them",
            },
            PoolKind::Files(_) => KindRow {
                word: "files",
                service: None,
                has_slots: false,
                can_mend: false,
                holds: "blocks of files; 'staves mount' reads them",
            },
            PoolKind::Slots(ServiceId::LOG) => KindRow {
                word: "log",
                service: Some(ServiceId::LOG),
                has_slots: true,
                can_mend: false,
                holds: "logs; 'staves log list' shows them",
            },
            PoolKind::Slots(service) => KindRow {
                word: "slots",
                service: Some(*service),
                has_slots: true,
                can_mend: false,
                holds: "what its own service reads",
            },
        }
    }

    /// A word for people.
    pub fn word(&self) -> &'static str {
        self.row().word
    }

    /// The service that its groups' buckets are of; none if it has no groups.
    pub fn service(&self) -> Option<ServiceId> {
        self.row().service
    }
}
